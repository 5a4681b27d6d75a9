"""Datasets for an objective: rewards, costs and ends of a machine, and its state beside each observation."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data.checks import validate
from surefoot.data.dataset import BEST_RETURN, OBSERVATION_NAMES, REWARDS, Dataset
from surefoot.envs.make import split_options, with_options
from surefoot.envs.names import OBJECTIVE
from surefoot.envs.objectives.labels import labels_of, letters
from surefoot.envs.objectives.machine import Machine
from surefoot.envs.objectives.named import machine_named, objective_in
from surefoot.envs.objectives.relabel import COLUMN, courses

Array = np.ndarray[Any, Any]
STATED = "objective"
"""Attribute of data that have an objective: what it is and by which labels, as an environment's name says it."""


def stated_in(name: str) -> str:
    """What of an environment's name is its objective, without the environment."""
    _, options = split_options(name)
    own = {key: value for key, value in options.items() if key in ("formula", "machine", "labels")}
    return with_options("", own).removeprefix("?")


def for_environment(dataset: Dataset, environment: str) -> tuple[Dataset, list[str]]:
    """The dataset with the objective that an environment's name says, which it may have already; and notes.

    Raises:
        ConfigError: it has another one.
        DataError: as `with_objective`.
    """
    stated, known = stated_in(environment), dataset.attributes.get(STATED)
    if known == stated:
        return dataset, []
    if known is not None:
        raise ConfigError(
            f"{dataset.name} was made for the objective {known}, and this run has {stated}: give the data that it was "
            "made of, or leave objective= out",
            field="objective",
            code="conflict",
        )
    made = with_objective(dataset, stated)
    solved = int(made.terminations.sum())
    return made, [
        f"{dataset.name}: rewards, costs and ends of the objective; {len(made):,} of {len(dataset):,} rows are left, "
        f"{solved:,} of them terminate"
    ]


def with_objective(dataset: Dataset, stated: str, counterfactual: bool = False) -> Dataset:
    """A dataset as it would have been recorded with an objective.

    Args:
        dataset: of vectors. Its own terminations stay; what follows the machine's ends is dropped.
        stated: `formula=...&labels=...` or `machine=...&labels=...`, as in an environment's name.
        counterfactual: beside each episode the courses of the machine from its other states, as episodes of their own:
            each step is there once from every state that does not end episodes.

    Returns:
        The dataset, with the column `objective` that counterfactual replay reads. Margins go where the machine has
        costs, and returns-to-go.

    Raises:
        ConfigError: the objective or the labelling function is none, or raises.
        DataError: images, an objective already, or a machine that weighs rewards which the data don't have.
    """
    if STATED in dataset.attributes:
        raise DataError(f"{dataset.name} has the objective {dataset.attributes[STATED]} already: give data without one")
    if not dataset.observation_dim:
        raise DataError(f"{dataset.name}: an objective's state is put behind observations that are one vector")
    _, options = split_options(f"{OBJECTIVE}?{stated}")
    machine, name = machine_named(options.get("formula"), options.get("machine")), str(options.get("labels"))
    if machine.environment_reward != 0 and not dataset.has_rewards:
        raise DataError(f"{dataset.name} has no rewards, and the objective adds the environment's own")
    actions = dataset.actions if dataset.choices is None else dataset.actions.argmax(1).astype(np.int64)
    seen = (dataset.observations.copy(), actions, dataset.next_observations.copy())
    letter = letters(labels_of(name), machine.propositions, *seen, f"labels={name}")
    rows, before, after, starts = _courses(dataset, machine, letter, counterfactual)
    over = dataset.terminations[rows]
    ended = (after >= machine.live) | over
    last = np.zeros(len(rows), np.bool_)
    last[np.append(starts[1:], len(rows)) - 1] = True
    rewards = machine.rewards[before, letter[rows]] + machine.environment_reward * dataset.rewards[rows]
    own_costs = np.zeros(len(rows), np.float32) if dataset.costs is None else dataset.costs[rows]
    costs = None if dataset.costs is None and not machine.has_costs else own_costs + machine.costs[before, letter[rows]]
    dropped = {"returns_to_go", *(("margins",) if machine.has_costs else ())}
    extras = {key: value[rows] for key, value in dataset.extras.items() if key not in dropped}
    facts = np.stack([letter[rows], over, dataset.rewards[rows], own_costs], 1)
    made = dataset.replace(
        observations=_beside(dataset.observations[rows], machine.one_hot(before)),
        actions=dataset.actions[rows],
        rewards=rewards.astype(np.float32),
        next_observations=_beside(dataset.next_observations[rows], machine.one_hot(after)),
        terminations=ended,
        truncations=last & ~ended,
        episode_ids=np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(rows)))),
        valid=dataset.transitions[rows],
        costs=None if costs is None else costs.astype(np.float32),
        extras={**extras, COLUMN: facts.astype(np.float32)},
        next_known=None if dataset.next_known is None else dataset.next_known[rows],
        env_id=_elsewhere(dataset.env_id, stated),
        attributes=_attributes(dataset, machine, stated),
    )
    validate(made)
    return made


def _courses(dataset: Dataset, machine: Machine, letter: Array, counterfactual: bool) -> tuple[Array, ...]:
    """(M,) rows, states before and after, and where each of the new episodes starts."""
    found: list[tuple[Array, Array, Array]] = []
    for first, end in zip(dataset.episode_starts[:-1].tolist(), dataset.episode_starts[1:].tolist(), strict=True):
        over = dataset.terminations[first:end]
        found += [
            (first + steps, before, after)
            for steps, before, after in courses(machine, letter[first:end], over, counterfactual)
        ]
    lengths = [len(steps) for steps, _, _ in found]
    rows, before, after = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return rows, before, after, np.concatenate([[0], np.cumsum(lengths[:-1])]).astype(np.int64)


def _beside(observations: Array, states: Array) -> Array:
    return np.ascontiguousarray(np.concatenate([observations, states], 1), np.float32)


def _elsewhere(env_id: str | None, stated: str) -> str | None:
    """The environment with the objective, by name."""
    if env_id is None or objective_in(env_id) is not None:
        return None
    base, options = split_options(env_id)
    return with_options(OBJECTIVE + base, {**options, **split_options(f"?{stated}")[1]})


def _attributes(dataset: Dataset, machine: Machine, stated: str) -> dict[str, Any]:
    found = {key: value for key, value in dataset.attributes.items() if key != BEST_RETURN}
    if dataset.observation_names is not None:
        names = [*dataset.observation_names, *(f"objective {name}" for name in machine.states[: machine.live])]
        found[OBSERVATION_NAMES] = json.dumps(names)
    return {**found, STATED: stated, REWARDS: "objective"}
