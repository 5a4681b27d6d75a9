"""Datasets recorded by trained policies, in any environment that they act in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from surefoot.core.actors.memory import Memory, PolicyLike
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import VECTOR, unnamed
from surefoot.core.base.threads import one_torch_thread
from surefoot.core.policy.control_loop import ControlLoop
from surefoot.data.arrays import from_arrays
from surefoot.data.dataset import Dataset
from surefoot.envs.acting.episodes import EpisodeRunner
from surefoot.envs.acting.interventions import COLUMN as INTERVENED
from surefoot.envs.acting.interventions import speaks_of, taken_over
from surefoot.envs.acting.steps import Step
from surefoot.envs.episodes import episode_seeds
from surefoot.envs.interface import Array, as_numpy
from surefoot.envs.make import is_team
from surefoot.envs.names import gymnasium_id
from surefoot.envs.spaces import arrays_of
from surefoot.envs.vector import make_vec
from surefoot.play.actors import Actor

ROWS = 10
"""Environments side by side of each policy, at most."""


class _Steps:
    """Keeps every step of all rows until the episodes are put together."""

    def __init__(self, env_id: str, space: Any, action_space: Any) -> None:
        self.arrays, self.env_id, self.action_space = arrays_of(space, env_id), env_id, action_space
        self.people = False  # whether anybody took over
        self.columns: dict[str, list[Array]] = {}
        self.moved: list[Array] = []
        self.ended: list[Array] = []

    def __call__(self, seen: Any, actions: Array, done: Step, costs: Array, moved: Array, ended: Array) -> None:
        """As `envs.acting.episodes.Record`."""
        taken = taken_over(done.info, self.action_space, len(moved), self.env_id) if speaks_of(done.info) else None
        step = {"actions": actions.copy(), "costs": costs.astype(np.float32)}
        step[INTERVENED] = np.zeros(len(moved), np.bool_) if taken is None else taken.rows & moved
        if taken is not None:  # what was carried out
            step["actions"][taken.rows] = taken.actions[taken.rows]
            self.people = True
        step |= self._named("observations", seen) | self._named("next_observations", done.next_observations)
        for name in ("rewards", "terminations", "truncations"):
            step[name] = as_numpy(getattr(done, name))
        for name, values in step.items():
            self.columns.setdefault(name, []).append(values)
        self.moved.append(moved.copy())
        self.ended.append(ended.copy())

    def _named(self, column: str, values: Any) -> dict[str, Array]:
        if VECTOR in self.arrays:
            return {column: as_numpy(values).astype(np.float32)}
        parts = values if isinstance(values, Mapping) else dict.fromkeys(self.arrays, values)
        found = {}
        for key, array in self.arrays.items():
            part = as_numpy(parts[key])
            bytes_stay = array.dtype == "uint8"
            found[f"{column}/{key}"] = part.astype(np.uint8 if bytes_stay else np.float32)
        return found

    def episodes(self, policies: int, count: int) -> tuple[dict[str, Array], Array]:
        """Columns in episode order, those of one policy after another's, and each row's episode."""
        moved, ended = np.stack(self.moved), np.stack(self.ended)
        rows = moved.shape[1] // policies
        places: list[tuple[Array, int]] = []
        for policy in range(policies):
            for episode in range(count):
                row, turn = policy * rows + episode % rows, episode // rows
                steps = np.flatnonzero(moved[:, row])
                before = np.cumsum(ended[steps, row]) - ended[steps, row]
                places.append((steps[before == turn], row))
        times = np.concatenate([steps for steps, _ in places])
        owners = np.concatenate([np.full(len(steps), row) for steps, row in places])
        numbers = np.concatenate([np.full(len(steps), k, np.int64) for k, (steps, _) in enumerate(places)])
        columns = {}
        for name in list(self.columns):
            columns[name] = np.stack(self.columns.pop(name))[times, owners]
        return columns, numbers


def record(
    acting: Sequence[Actor],
    episodes: int,
    seed: int = 0,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Whole episodes of each policy as a dataset: what a behaviour policy's data are.

    Args:
        acting: policies of trained runs, each with the environment that it acts in, which must be the same.
        episodes: of each policy, at least 1.
        seed: of initial states and of the noise that policies draw. The same seed gives the same initial states to
            each policy.
        env_id: the environment; None: that of the first policy.
        env_kwargs: arguments of the environment.
        progress: called with (finished, all) episodes.

    Returns:
        The episodes of the first policy, then of the second, ...; `attributes["policies"]` names them as a JSON list,
        and `attributes["policy_episodes"]` how many episodes each has.

    Raises:
        ConfigError: no policy or episode, policies of several environments, or one that is not trained.
        EnvironmentMismatchError: the environment gives numbers that are not finite, or no end.
    """
    if not acting or episodes < 1:
        raise ConfigError("a recording needs a policy and at least 1 episode of it")
    where = env_id or acting[0].env_id
    for one in acting:
        if env_id is None and gymnasium_id(one.env_id) != gymnasium_id(where):
            raise ConfigError(
                f"{one.label} acts in {one.env_id} and {acting[0].label} in {where}: record one file for each, or name "
                "one environment with --env"
            )
        if not isinstance(one.policy, ControlLoop):
            raise ConfigError(f"{one.label}: only policies of trained runs are recorded")
    policies: list[Any] = [one.policy for one in acting]
    rows = min(ROWS, episodes)
    vector = make_vec(where, len(policies) * rows, **dict(env_kwargs or {}))
    try:
        if is_team(where):
            raise ConfigError(f"{where}: several agents act in it, and a dataset has the steps of one: record another")
        memories = [policy.begin(rows, seed) for policy in policies]
        dataset = recorded(vector, policies, memories, where, episodes, seed, progress)
    finally:
        vector.close()
    facts = {
        "source": "recorded by surefoot from trained policies",
        "policies": json.dumps([one.label for one in acting]),
        "policy_episodes": episodes,
        "seed": seed,
    }
    return dataset.replace(attributes={**dataset.attributes, **facts})


def recorded(
    vector: Any,
    policies: Sequence[PolicyLike],
    memories: Sequence[Memory],
    where: str,
    episodes: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Whole episodes of policies in a vector environment that is made.

    Args:
        vector: of as many rows for each policy.
        policies: P.
        memories: P, at the first step.
        where: name of the environment.
        episodes: of each policy.
        seed: of the initial states.
        progress: called with (finished, all) episodes.
    """
    kept = _Steps(where, vector.single_observation_space, vector.single_action_space)
    runner = EpisodeRunner(vector, policies, where, episodes, record=kept)
    with one_torch_thread(), torch.no_grad():
        sums = runner.run(episode_seeds(seed, 0, episodes).tolist(), memories, progress)
    columns, numbers = kept.episodes(len(policies), episodes)
    intervened = columns.pop(INTERVENED)
    dataset = _dataset(columns, numbers, gymnasium_id(where), runner, bool(sums.has_costs.any()))
    return dataset.replace(extras={**dataset.extras, INTERVENED: intervened}) if kept.people else dataset


def _dataset(columns: dict[str, Array], numbers: Array, env_id: str, runner: EpisodeRunner, costs: bool) -> Dataset:
    """The dataset of these columns; an episode that a limit of ours cut off is truncated."""
    last = np.append(numbers[1:] != numbers[:-1], True)
    terminations, actions = columns["terminations"] & last, columns["actions"]
    range_: dict[str, Any] = {}
    if runner.discrete:
        range_["choices"] = int(runner.high - runner.low + 1)
        actions = actions - runner.low
    elif np.isfinite(runner.low).all() and np.isfinite(runner.high).all():
        range_ |= {"action_low": runner.low.astype(np.float64), "action_high": runner.high.astype(np.float64)}
    return from_arrays(
        unnamed("observations", columns),
        actions,
        columns["rewards"],
        terminations,
        last & ~terminations,
        next_observations=unnamed("next_observations", columns),
        costs=columns["costs"] if costs else None,
        env_id=env_id,
        name=env_id,
        **range_,
    )
