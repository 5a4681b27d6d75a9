"""Environments with an objective by name: `objective:NAME?formula=F goal&labels=my_labels:rooms`."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

from surefoot.core.base.errors import ConfigError
from surefoot.envs.make import settled, split_options, with_options
from surefoot.envs.names import OBJECTIVE
from surefoot.envs.objectives.labels import labels_of
from surefoot.envs.objectives.ltlf import objective
from surefoot.envs.objectives.machine import Machine, machine_of, read_machine
from surefoot.envs.objectives.wrapper import ObjectiveEnv

ENDING = ".json"
"""Of files of machines."""


def named(env: str, stated: str, labels: str | None) -> str:
    """The name of an environment with an objective, which holds all of it: a machine's file is read.

    Args:
        env: name of the environment.
        stated: a formula, or the path of a machine's file (.json).
        labels: module:function.

    Raises:
        ConfigError: the environment has an objective already, or the objective or the function's name is none.
        CheckpointError: the file can't be read.
    """
    if env.startswith(OBJECTIVE):
        raise ConfigError(f"objective= is given, and {env} has one already: leave one of them out", field="objective")
    if labels is None:
        raise ConfigError(
            "objective= is given without labels=: give module:function, which says what holds in each step "
            "(docs/objectives.md)",
            field="labels",
            code="missing",
        )
    if stated.strip().lower().endswith(ENDING):
        stated_text: dict[str, Any] = {"machine": read_machine(pathlib.Path(stated.strip()).expanduser())}
    else:
        objective(stated)
        stated_text = {"formula": " ".join(stated.split())}
    return with_options(OBJECTIVE + settled(env), {**stated_text, "labels": labels})


@functools.lru_cache(maxsize=16)
def _machine(formula: str | None, machine: str | None) -> Machine:
    return objective(formula) if formula is not None else machine_of(json.loads(str(machine)))


def machine_named(formula: Any, machine: Any) -> Machine:
    """The machine that a name's arguments say.

    Raises:
        ConfigError: none or both of them, or one that is none.
    """
    if (formula is None) == (machine is None):
        raise ConfigError("an environment with an objective has one of the arguments formula= and machine=")
    if formula is not None and not isinstance(formula, str):
        formula = json.dumps(formula)  # `true`, or a number, which no formula is
    return _machine(formula, None if machine is None else json.dumps(machine, sort_keys=True))


def objective_in(name: str | None) -> tuple[str, Machine, str] | None:
    """The environment, the machine and the name of the labelling function that a name says; None of other names."""
    if name is None or not name.startswith(OBJECTIVE):
        return None
    base, options = split_options(name)
    formula, machine, labels = (options.pop(key, None) for key in ("formula", "machine", "labels"))
    if not isinstance(labels, str):
        raise ConfigError(f"environment {name}: give labels=module:function")
    return with_options(base.removeprefix(OBJECTIVE), options), machine_named(formula, machine), labels


def make(
    rest: str,
    num_envs: int,
    formula: Any = None,
    machine: Any = None,
    labels: Any = None,
    gap: str | None = None,
    threads: int = 1,
    tensors: str | None = None,
    **options: Any,
) -> ObjectiveEnv:
    """The environments of a name (`envs.make`).

    Args:
        rest: name of the environment itself.
        num_envs: rows.
        formula: what is wanted, or
        machine: the object of a machine's file.
        labels: module:function.
        gap: altered dynamics.
        threads: of our own simulators.
        tensors: "numpy" where it is to be evaluated in.
        options: arguments of the environment itself.

    Raises:
        ConfigError, EnvironmentMismatchError: it can't be made; the message says why.
    """
    from surefoot.envs.training import make_training
    from surefoot.envs.vector import make_vec

    if not isinstance(labels, str):
        raise ConfigError(f"environment {OBJECTIVE}{rest}: give labels=module:function", field="labels")
    found, function = machine_named(formula, machine), labels_of(labels)
    name = with_options(rest, options)
    env: Any = (
        make_vec(name, num_envs) if tensors == "numpy" else make_training(name, num_envs, gap=gap, threads=threads)
    )
    made = ObjectiveEnv(env, found, function, f"labels={labels}")
    made.called = OBJECTIVE + name
    return made
