"""`surefoot.fit`: an agent that python has made, trained from several seeds in a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.engine.agent import Agent
from surefoot.data import validate
from surefoot.data.dataset import Dataset
from surefoot.envs.make import LIMIT, name_for, with_options
from surefoot.runs.embedded import environment_of
from surefoot.runs.plan import OPTIONS, Plan, name_of, seeds_of
from surefoot.runs.progress_events import Listener
from surefoot.runs.run import IN_MEMORY, Run
from surefoot.runs.start import train


def fit(
    agent: Agent,
    dataset: Dataset | None = None,
    *,
    env: Any = "auto",
    env_options: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    steps: int = Plan.steps,
    seeds: int | Sequence[int] = Plan.seeds,
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    listener: Listener | None = None,
    trust: bool = False,
    logger: str | None = None,
    logger_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Train copies of `agent` from several seeds and evaluate them.

    Args:
        agent: gives algorithm and config, and, made from a `Spec` that states it, the range of actions where there is
            no simulator; its weights are drawn anew from each seed.
        dataset: what `surefoot.data.load` returned, or a `Dataset` of your own; none where the agent learns by
            acting.
        env: gymnasium id, or any name of `surefoot.envs.make`; a class, a function that makes an environment (it may
            take `num_envs` and give a vector environment), or an environment, which is copied; "auto": the one that the
            dataset says it was recorded in; None or "none": no simulator.
        env_options: arguments of the environment, numbers, texts or lists of them, which the run keeps.
        max_episode_steps: its time limit; None: its own.
        steps: training steps, or steps in the environment where the agent acts; for each seed.
        seeds: how many (0, 1, ...), or which.
        out: run folder; by default a new one under runs/.
        progress: show bars, or lines where the output is not a terminal.
        listener: called with each event (progress, evaluations, notes) instead; where it returns False, training of
            the event's seed ends at its next step (docs/training.md#listeners).
        trust: import the module of an environment that the dataset's file names, or of the agent in init=RUN.
        logger: tensorboard, wandb or mlflow, beside the run folder's own metrics.jsonl.
        logger_options: of the logger, such as project (docs/training.md#loggers).
        options: further fields of `Plan`, e.g. episodes=100.

    Raises:
        ConfigError: an option out of range, a folder that exists, or env="auto" where the dataset says none.
        DataError: the dataset breaks what `Dataset` promises, or lacks what the algorithm reads.
        EnvironmentMismatchError: the environment's spaces don't fit the dataset.
        DivergenceError: a loss stopped being finite.
    """
    for name in options:
        if name == "envs":
            raise ConfigError("fit takes no envs=: make the agent with num_envs=, which is the same")
        if name not in OPTIONS:
            raise ConfigError(f"fit has no option {name!r}; {nearest(name, ['env', *OPTIONS])}")
    source = None
    if dataset is not None:
        validate(dataset)
        again = dataset.as_read == options.get("view", Plan.view) and pathlib.Path(dataset.name).exists()
        source = str(pathlib.Path(dataset.name).resolve()) if again else IN_MEMORY  # its file gives the same again
    algorithm = name_of(type(agent))
    named = "none" if env is None else None if isinstance(env, str) and env == "auto" else env
    environment = environment_of(dataset, named_environment(named, env_options, max_episode_steps), trust)
    built_for = agent.environment_spec
    if dataset is not None and environment is None and not built_for.range_assumed and not built_for.discrete:
        for name, bound in (("action_low", built_for.action_low), ("action_high", built_for.action_high)):
            if options.setdefault(name, bound) is None:
                options[name] = bound
    plan = Plan(
        algorithm=algorithm,
        config=dataclasses.asdict(agent.config),
        dataset=source,
        environment=environment,
        steps=steps,
        seeds=seeds_of(seeds if isinstance(seeds, int) else list(seeds)),
        **options,
    )
    with shown(progress, listener) as heard:
        return train(
            plan, out, dataset=dataset, listener=heard, built_for=built_for, trust=trust, logger=logger,
            logger_options=logger_options,
        )  # fmt: skip


def named_environment(env: Any, options: Mapping[str, Any] | None, max_episode_steps: int | None) -> str | None:
    """An environment that was given by name or as an object, with its arguments, as one name; None stays.

    Raises:
        ConfigError: it is neither, or there are arguments of nothing.
    """
    given = dict(options or {}) | ({} if max_episode_steps is None else {LIMIT: max_episode_steps})
    if env is None or (isinstance(env, str) and env.lower() == "none"):
        if given:
            raise ConfigError(f"{next(iter(given))} is an argument of an environment, and none is given: give env=")
        return env
    name = name_for(env)
    return with_options(name, given) if given else name


@contextlib.contextmanager
def shown(progress: bool, listener: Listener | None = None) -> Iterator[Listener | None]:
    """Who listens to a training inside: `listener`, or what shows bars or lines; None where nothing is to be shown."""
    if listener is not None or not progress:
        yield listener
        return
    from surefoot.cli.support.output import PlainConsole
    from surefoot.cli.support.progress import Watcher

    with Watcher(PlainConsole()) as watcher:
        yield watcher
