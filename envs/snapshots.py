"""Snapshots of a simulator: states that episodes start from in place of the environment's own initial states.

Source: Zhao et al., "Snapshot Reinforcement Learning: Leveraging Prior Trajectories for Efficiency" (2024). Its S3RL
draws a cluster of the teacher's values uniformly, then a snapshot in it, and truncates such episodes after some steps.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from surefoot.core.actors.memory import Memory
from surefoot.core.base.checkpoint import check_format
from surefoot.core.base.errors import CheckpointError, ConfigError, EnvironmentMismatchError
from surefoot.core.base.files import written_aside
from surefoot.core.base.schema import Maybe, Plain, Record, Table, Text, check, parse
from surefoot.core.base.spec import mapped
from surefoot.core.base.unpacking import read_npz
from surefoot.core.policy.policy import Policy
from surefoot.envs.acting.episodes import EpisodeRunner
from surefoot.envs.acting.steps import Step
from surefoot.envs.curriculum import Lessons
from surefoot.envs.drawn_episodes import DrawnEpisodes
from surefoot.envs.interface import (
    Array,
    Numbers,
    as_numpy,
    check_contract,
    final_observations,
    reset_mask,
    valid_rows,
)
from surefoot.envs.k_means import k_means
from surefoot.envs.placing import NAMES, Placing, States, fitting, placing
from surefoot.envs.side_by_side import name_of
from surefoot.envs.vector import make_vec

FORMAT = "surefoot-snapshots-1"
VALUES, DESCRIPTION = "values", "description"
ABOUT = Record({"format": Text(), "environment": Maybe(Text()), "value": Text(), "source": Text()}, others=True)
MOST = 10_000
"""Snapshots of one file: the clusters of more would take longer to find than episodes to run."""
AT_ONCE = 10
"""Episodes that are recorded side by side."""
SAME = 1e-4
"""How far, as a part of its size or of 1, an observation may be from that of its own state set again."""
Value = Callable[[Any], Array]
"""(B, ...) observations, or a dict of several arrays, in the environment's units -> (B,) what a state is worth."""


@dataclasses.dataclass(frozen=True)
class Snapshots:
    """K states of a simulator, and what each is worth.

    Raises:
        ConfigError: no states, more than `MOST`, names that no states have, lengths that differ, or numbers that are
            not finite.
    """

    states: States
    """Name -> (K, width): `state`, or `qpos` and `qvel` (`envs.placing`)."""
    values: Array
    """(K,) float64: larger is nearer to the end of the task. Clusters are made of them."""
    environment: str | None = None
    """The id that they were recorded in; None: not known."""
    value: str = "returns"
    """What the values are: "critic" or "returns"."""
    source: str = "states of one's own"
    """Where they come from, in words."""

    def __post_init__(self) -> None:
        """Check everything."""
        count = len(self.values)
        if not 1 <= count <= MOST:
            raise ConfigError(f"{self.source}: {count:,} snapshots; give from 1 to {MOST:,}")
        if not self.states or not set(self.states) <= set(NAMES):
            raise ConfigError(f"{self.source}: states have names {sorted(self.states)}; those that there are: {NAMES}")
        for name, found in {**self.states, VALUES: self.values}.items():
            wrong = found.ndim != (1 if name == VALUES else 2) or len(found) != count or found.dtype.kind not in "fiu"
            if wrong or not np.isfinite(found).all():
                row = (
                    ""
                    if wrong
                    else f"; row {int(np.flatnonzero(~np.isfinite(found.reshape(count, -1)).all(1))[0])} is not"
                )
                raise ConfigError(
                    f"{self.source}: {name!r} is {found.dtype} of shape {found.shape}; it takes {count} rows of finite "
                    f"numbers{row}"
                )

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def record(
        cls,
        policy: Policy,
        env: Any,
        *,
        episodes: int = 10,
        every: int = 10,
        seed: int = 0,
        discount: float = 0.99,
        value: Value | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Snapshots:
        """Run a policy's episodes and keep the simulator's state before every so many steps, the first among them.

        Args:
            policy: the teacher; it acts as it does in evaluation.
            env: id of an environment, or a vector environment that `make_vec` gives.
            episodes: at least 1.
            every: steps from one snapshot of an episode to the next, at least 1.
            seed: of the initial states.
            discount: of the returns that follow a snapshot, in [0, 1], where `value` is None.
            value: worth of observations, as by the teacher's critic; None: the discounted rewards of the episode from
                the snapshot on.
            progress: called with (finished, all) episodes.

        Raises:
            ConfigError: a number out of range, or more snapshots than `MOST`.
            EnvironmentMismatchError: the environment's state can't be set, or the policy does not fit.
        """
        if episodes < 1 or every < 1 or not 0 <= discount <= 1:
            raise ConfigError(
                f"episodes={episodes}, every={every} and discount={discount:g}: give 1 or more of the first two, and a "
                "discount in [0, 1]"
            )
        vector: Any = make_vec(env, min(episodes, AT_ONCE)) if isinstance(env, str) else env
        try:
            return _Recording(policy, vector, episodes, every, value).run(seed, discount, progress)
        finally:
            if isinstance(env, str):
                vector.close()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an .npz file, whole or not at all: the states by name, `values`, and `description`, JSON text.

        Raises:
            ConfigError: a path that does not end in .npz.
            SurefootError: the disk is full or the folder can't be written.
        """
        path = check_name(path)
        about = {"format": FORMAT, "environment": self.environment, "value": self.value, "source": self.source}
        with written_aside(path) as aside:
            np.savez_compressed(
                aside,
                allow_pickle=False,
                **{VALUES: self.values, DESCRIPTION: np.array(json.dumps(about))},
                **self.states,  # type: ignore[arg-type]
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Snapshots:
        """What `save` wrote.

        Raises:
            CheckpointError: the file is missing, damaged, of another kind or version, or holds other than numbers.
        """
        try:
            arrays, _ = read_npz(path, lambda name: name in (*NAMES, VALUES, DESCRIPTION), CheckpointError)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            reason = "there is no such file; `surefoot snapshots` makes some" if missing else f"can't be read ({error})"
            raise CheckpointError(f"{path}: {reason}") from error
        for name in (VALUES, DESCRIPTION):
            if name not in arrays:
                raise CheckpointError(
                    f"{path}: holds no snapshots, it has no {name!r}; `surefoot snapshots` makes some"
                )
        about = check(parse(str(arrays.pop(DESCRIPTION)), path), Table(Plain()), path)
        check_format(path, about.get("format"), FORMAT)
        check(about, ABOUT, path)
        try:
            return cls(
                {name: arrays[name] for name in NAMES if name in arrays},
                arrays[VALUES],
                about["environment"],
                about["value"],
                about["source"],
            )
        except ConfigError as error:
            raise CheckpointError(f"{path}: damaged: {error}; record it again") from error

    def clusters(self, most: int) -> list[Array]:
        """Numbers of the snapshots of each cluster of values, the lowest values first; at most so many clusters."""
        labels = k_means(self.values, most)
        return [np.flatnonzero(labels == cluster) for cluster in range(int(labels.max()) + 1)]


def check_name(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of snapshots to be written; raises ConfigError at one that does not end in .npz."""
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise ConfigError(f"{path}: snapshots are written as .npz; give a name that ends so")
    return path


class _Recording:
    """One policy's episodes, watched: a `PolicyLike` that looks at the simulator before it lets the policy act."""

    def __init__(self, policy: Policy, vector: Any, episodes: int, every: int, value: Value | None) -> None:
        self.policy, self.vector, self.episodes, self.every, self.value = policy, vector, episodes, every, value
        self.name = name_of(vector)
        self.where: Placing | None = None
        rows = vector.num_envs
        self.steps = np.zeros(rows, np.int64)
        self.rewards: list[list[float]] = [[] for _ in range(rows)]
        self.waiting: list[list[tuple[int, States, Any]]] = [[] for _ in range(rows)]
        """Of each row's running episode: step, state and observation of its snapshots."""
        self.kept: list[tuple[States, Any, float]] = []
        """State, observation and discounted return of the snapshots of episodes that are over."""

    def __getattr__(self, name: str) -> Any:
        """What the policy says of itself, such as its pictures."""
        return getattr(self.policy, name)

    def begin(self, rows: int) -> Memory:
        """As the policy's."""
        return self.policy.begin(rows)

    def act(self, observations: Any, memory: Memory) -> tuple[torch.Tensor, Memory]:
        """As the policy acts; before it, the states that are due are kept."""
        due = np.flatnonzero(self.vector.active & (self.steps % self.every == 0))
        if len(due):
            self.where = self.where or placing(self.vector)
            states = self.where.read()
            for row in due.tolist():
                seen = mapped(lambda values, row=row: values[row].clone(), observations)
                state = {name: value[row] for name, value in states.items()}
                self.waiting[row].append((int(self.steps[row]), state, seen))
        return self.policy.act(observations, memory)

    def observe_outcome(
        self, memory: Memory, rewards: torch.Tensor, costs: torch.Tensor, ended: torch.Tensor
    ) -> Memory:
        """As the policy's."""
        return self.policy.observe_outcome(memory, rewards, costs, ended)

    def _step(self, seen: Any, actions: Array, done: Step, costs: Array, moved: Array, ended: Array) -> None:
        """Take a step's rewards; at an episode's end, what followed each of its snapshots."""
        rewards = as_numpy(done.rewards)
        for row in np.flatnonzero(moved).tolist():
            self.rewards[row].append(float(rewards[row]))
            self.steps[row] += 1
            if ended[row]:
                following, total = np.zeros(len(self.rewards[row])), 0.0
                for step in range(len(following) - 1, -1, -1):
                    total = self.rewards[row][step] + self.discount * total
                    following[step] = total
                self.kept += [(state, seen, float(following[step])) for step, state, seen in self.waiting[row]]
                self.rewards[row], self.waiting[row], self.steps[row] = [], [], 0

    def run(self, seed: int, discount: float, progress: Callable[[int, int], None] | None) -> Snapshots:
        """All episodes."""
        self.discount = discount
        runner = EpisodeRunner(self.vector, [self], self.name, self.episodes, record=self._step)
        seeds = [int(one) for one in np.random.SeedSequence(seed).generate_state(self.episodes)]
        with torch.no_grad():
            runner.run(seeds, [self.policy.begin(self.vector.num_envs)], progress)
        states = {key: np.stack([state[key] for state, _, _ in self.kept]) for key in self.kept[0][0]}
        if self.value is None:
            values = np.array([following for _, _, following in self.kept])
        else:
            values = np.asarray(
                self.value(mapped(lambda *rows: torch.stack(rows), *[seen for _, seen, _ in self.kept]))
            )
        words = f"{self.episodes} episodes of a policy in {self.name}, every {self.every} steps"
        kind = "returns" if self.value is None else "critic"
        return Snapshots(states, values.astype(np.float64), self.name, kind, words)


class SnapshotStarts(DrawnEpisodes):
    """An environment whose episodes start from snapshots while a first phase lasts, and as its own afterwards.

    Each start draws a cluster of the snapshots' values, uniformly or by a teacher of `envs.curriculum`, and a snapshot
    in it uniformly. Such an episode is truncated, which is no termination, after `truncate` steps, and at the phase's
    end. The environment's own time limit counts from the snapshot. A row's draws depend on its seed, on how many there
    were and on what its seed's teacher heard, on nothing else.

    Args:
        env: contract environment whose rows can be reset alone and whose states can be set (`envs.placing`).
        snapshots: of this environment.
        clusters: most clusters; 1 draws uniformly of all snapshots.
        truncate: steps after which an episode from a snapshot is truncated; 0: only by the environment.
        until: environment steps of each seed in which episodes start from snapshots.
        rows_each: rows of one seed, among which its steps are shared; None: all.
        curriculum: name of a teacher.

    Raises:
        ConfigError: a number out of range, or no such teacher.
        EnvironmentMismatchError: it resets in steps of its own; the first `reset` raises it where its states can't be
            set, or snapshots are of another environment.
    """

    purpose = "snapshots"
    passed_on = (*DrawnEpisodes.passed_on, "parameters", "set_parameters")

    def __init__(
        self,
        env: Any,
        snapshots: Snapshots,
        *,
        clusters: int = 6,
        truncate: int = 100,
        until: int = 100_000,
        rows_each: int | None = None,
        curriculum: str = "uniform",
    ) -> None:
        check_contract(env)
        if clusters < 1 or truncate < 0 or until < 1 or (rows_each is not None and rows_each < 1):
            raise ConfigError(
                f"clusters={clusters}, truncate={truncate}, until={until} and rows_each={rows_each}: truncate is at "
                "least 0, the others at least 1"
            )
        if getattr(env, "inserts_rows", False):
            raise EnvironmentMismatchError(
                f"{name_of(env)}: it resets in a step of its own, and starts from snapshots need rows that are reset "
                "in the step that ends them"
            )
        super().__init__(env)
        self.snapshots, self.truncate = snapshots, truncate
        self._where: Placing | None = None
        self.members = snapshots.clusters(clusters)
        """Numbers of the snapshots of each cluster."""
        self.until = -(-until // (env.num_envs if rows_each is None else rows_each))
        """Steps of each row in which its episodes start from snapshots."""
        rows = env.num_envs
        self.taken = np.zeros(rows, np.int64)
        """(N,) steps of each row since construction."""
        self.elapsed = np.zeros(rows, np.int64)
        self.placed = np.zeros(rows, np.bool_)
        """(N,) whether the running episode started from a snapshot."""
        self.lessons = Lessons(curriculum, len(self.members), rows, rows if rows_each is None else rows_each)
        self._states: States | None = None

    @property
    def where(self) -> Placing:
        """What reads and sets the states; of some classes it is known after a reset only."""
        self._where = self._where or placing(self.env)
        return self._where

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """New episodes in all rows, or in those of `options["reset_mask"]`, from snapshots while the phase lasts.

        Raises:
            EnvironmentMismatchError: the snapshots are of another environment.
        """
        mask = reset_mask(options, self.num_envs)
        observations, info = self.env.reset(seed=seed, options=options)
        rows = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        if seed is not None or self._states is None:
            self.seed_draws(rows, seed)
        if self._states is None:
            self._states = self._fitted(observations)
        self.lessons.over(rows) if mask is not None else self.lessons.forget(rows)
        return (self.where.observations() if self._begin(rows) else observations), info

    def _fitted(self, observations: Any) -> States:
        """The states as the environment takes them, once it is known that it observes what is set."""
        states = fitting(self.where, self.snapshots.states, name_of(self.env), self.snapshots.source)
        first, before = np.array([0]), {name: value[:1] for name, value in self.where.read().items()}
        self.where.place(first, {name: value[:1] for name, value in states.items()})
        self.where.place(first, before)
        seen = mapped(lambda values: as_numpy(values)[0], self.where.observations())
        there = mapped(lambda values: as_numpy(values)[0], observations)
        same: list[bool] = []
        mapped(lambda a, b: same.append(bool(np.allclose(a, b, rtol=SAME, atol=SAME))), seen, there)
        if not all(same):
            raise EnvironmentMismatchError(
                f"{name_of(self.env)}: with its own state set again it observes something else than before, so that "
                "there is more to its state than can be set: no episode can start from a snapshot there"
            )
        return states

    def step(self, actions: Any) -> tuple[Any, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step; rows whose episode ended are at the first observation of the next one.

        Raises:
            EnvironmentMismatchError: the environment can't reset single rows.
        """
        observations, rewards, terminations, truncations, info = self.env.step(actions)
        moved = as_numpy(valid_rows(info, self.num_envs)).astype(np.bool_)
        over = (as_numpy(terminations) | as_numpy(truncations)).astype(np.bool_)
        self.taken += moved
        self.elapsed += moved
        self.lessons.add(rewards, moved)
        long = (self.elapsed >= self.truncate) if self.truncate else np.zeros_like(moved)
        cut = self.placed & moved & ~over & (long | (self.taken >= self.until))
        if cut.any():
            following = mapped(lambda rows: self.give(np.array(as_numpy(rows))), final_observations(observations, info))
            why = f"starts_truncate={self.truncate} and the phase's end cut off an episode from a snapshot"
            observations = self.reset_alone(cut, why)
            info = {**info, "final_obs": following, "_final_obs": self.give(over | cut)}
            truncations = self.give(as_numpy(truncations) | cut)
        self.lessons.over(np.flatnonzero(over | cut))
        if self._begin(np.flatnonzero(over | cut)):
            observations = self.where.observations()
        return observations, rewards, terminations, truncations, info

    def _begin(self, rows: Array) -> bool:
        """Begin the episodes of rows that were reset: whether any starts from a snapshot."""
        self.elapsed[rows], self.placed[rows] = 0, False
        chosen = rows[self.taken[rows] < self.until]
        if not len(chosen):
            return False
        assert self._states is not None  # there was a reset
        numbers = np.array([self._drawn(row) for row in chosen.tolist()])
        self.where.place(chosen, {name: values[numbers] for name, values in self._states.items()})
        self.placed[chosen] = True
        self._draws[chosen] += 1
        return True

    def _drawn(self, row: int) -> int:
        """The number of the snapshot of a row's next episode."""
        numbers = self.numbers(row)
        members = self.members[self.lessons.draw(row, numbers)]
        return int(members[int(numbers.integers(len(members)))])

    def get_state(self) -> dict[str, Array]:
        """What the next starts depend on, and all of the environment where it can be saved (`unsaved`)."""
        own = {name: np.array(getattr(self, name)) for name in SAVED} | self.lessons.get_state()
        inner = self.env.get_state() if self._saves else {}
        return {**inner, **{f"starts/{name.lstrip('_')}": value for name, value in own.items()}}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a state of `get_state`.

        Raises:
            EnvironmentMismatchError: it is of another environment or number of rows.
        """
        for name in SAVED:
            key, own = f"starts/{name.lstrip('_')}", getattr(self, name)
            if key not in state or np.shape(state[key]) != own.shape:
                raise EnvironmentMismatchError(
                    f"the state's {key!r} is none of {self.num_envs} rows: it is of another run"
                )
        self.lessons.set_state(
            {key.removeprefix("starts/"): value for key, value in state.items() if key.startswith("starts/")}
        )
        if self._states is None:  # states of some classes are known after a reset only
            self.env.reset(seed=[0] * self.num_envs if self.seeding == "rows" else None)
            self._states = fitting(self.where, self.snapshots.states, name_of(self.env), self.snapshots.source)
        if self._saves:
            self.env.set_state({key: value for key, value in state.items() if not key.startswith("starts/")})
        for name in SAVED:
            own = getattr(self, name)
            own[:] = np.asarray(state[f"starts/{name.lstrip('_')}"]).astype(own.dtype)


SAVED = ("taken", "elapsed", "placed", "_draws", "_seeds")
"""Attributes of `SnapshotStarts` that checkpoints hold, (N,) each."""
