"""Whole episodes of policies, summed up: stepped from python, or by the native loop with the policy inside."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from surefoot.core.actors.memory import GOAL, Memory, PolicyLike, in_rows
from surefoot.core.base.actions import middle_and_half
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.base.spec import VECTOR, mapped
from surefoot.core.policy.mean_pictures import looks
from surefoot.core.policy.policy import Policy
from surefoot.envs.acting.steps import Step, Stepping
from surefoot.envs.acting.team_policy import TeamPolicy
from surefoot.envs.interface import SUCCESS, Array, as_numpy, valid_rows
from surefoot.envs.reward_terms import reward_terms
from surefoot.envs.side_by_side import PausableVectorEnv
from surefoot.envs.spaces import arrays_of
from surefoot.envs.vector import check_actions, make_vec

UNLIMITED_EPISODE_STEPS = 100_000  # an episode this long in an environment without a time limit is an error
NATIVE_EPISODES = 256
"""Episodes of one native call: bounds the memory of what it records."""
NATIVE_RECORDS = ("rewards", "actions", "observations")
"""What is summed up of it, watched, and tried for weights whose products overflow."""
Watch = Callable[[int, Array], None]
"""A policy's position and the (n, observation dim) observations that it acts on in episodes that are under way."""
Record = Callable[[Any, Array, Step, Array, Array, Array], None]
"""Of all rows: the observations acted on, the actions, which are written over in the next step, what they came to, the
costs (rows,), which rows moved and whose episodes ended, (rows,) bool."""


@dataclasses.dataclass
class Sums:
    """What P policies times E episodes came to; all (P, E) float64 by default."""

    returns: Array
    lengths: Array
    """int64."""
    costs: Array
    violations: Array
    """int64: steps with a cost above 0."""
    margins: Array
    """Lowest margins; infinite where the environment gives none."""
    changes: Array
    """Mean squared differences of successive actions, in units of half their range, summed over dimensions; NaN where
    they have no range."""
    terminated: Array
    """bool."""
    diverged: Array
    """bool: the simulation broke down, which ended the episode."""
    has_costs: Array
    """(P,) bool: whether the environment gave a cost."""
    succeeded: Array
    """What the environment reported of success at the last step, 0 or 1; NaN where it says nothing of it."""

    @classmethod
    def empty(cls, *shape: int) -> Sums:
        """Of that many, nothing yet."""
        kinds: dict[str, Any] = {
            "lengths": np.int64,
            "violations": np.int64,
            "terminated": np.bool_,
            "diverged": np.bool_,
        }
        found: dict[str, Array] = {
            f.name: np.zeros(shape, kinds.get(f.name, np.float64)) for f in dataclasses.fields(cls)
        }
        found["has_costs"] = np.zeros(shape[0], np.bool_)
        found["margins"] += np.inf
        found["succeeded"] += np.nan
        return cls(**found)


SUMMED = tuple(field.name for field in dataclasses.fields(Sums) if field.name != "has_costs")


class EpisodeRunner:
    """Steps a vector environment until each row has run its share of episodes.

    Row r belongs to policy r // N, and runs the episodes e with e % N = r % N, one after the other. The number of
    episodes of a row is fixed beforehand, so short ones are not over-represented.

    Raises, as `run` does:
        EnvironmentMismatchError: an action of the wrong shape; an observation, reward, cost or action that is not
            finite (the message names environment, episode and step); an endless episode.
    """

    def __init__(
        self,
        vector: PausableVectorEnv,
        policies: Sequence[PolicyLike],
        env_id: str,
        episodes: int,
        *,
        limit: int | None = None,
        watch: Watch | None = None,
        positions: Sequence[int] | None = None,
        record: Record | None = None,
    ) -> None:
        """Take everything that is needed.

        Args:
            vector: of P * N rows.
            policies: P.
            env_id: for messages.
            episodes: E of each policy.
            limit: steps after which an episode is cut off, where E is N; None: the environment does so.
            watch: called at each step.
            positions: P numbers of the policies, for `watch` and messages; None: 0 to P - 1.
            record: called after each step with what it came to.
        """
        self.stepping, self.vector, self.policies, self.env_id = Stepping(vector), vector, policies, env_id
        self.positions = list(range(len(policies))) if positions is None else list(positions)
        self.watch, self.episodes, self.record = watch, episodes, record
        rows = vector.num_envs
        self.num_envs = rows // len(policies)
        self.column = np.arange(rows) % self.num_envs
        self.quota = (episodes - self.column + self.num_envs - 1) // self.num_envs
        self.finished = np.zeros(rows, dtype=np.int64)
        self.running = Sums.empty(rows)
        self.sums = Sums.empty(len(policies), episodes)
        self.terms: dict[str, Array] = {}
        """Term of the reward -> (P, E) its sum over each episode, where the environment tells them."""
        self._running_terms: dict[str, Array] = {}
        self.seeds: list[int] = []  # of each episode's reset
        self.memories: list[Memory] = []  # of each policy
        space: Any = vector.single_action_space
        several = isinstance(space, gymnasium.spaces.MultiDiscrete)  # a choice of each agent of a team
        self.discrete = several or isinstance(space, gymnasium.spaces.Discrete)
        self.one_vector = VECTOR in arrays_of(vector.single_observation_space, env_id)  # refuses what no policy reads
        if not self.discrete:
            check_actions(env_id, space)
        choices = (space.nvec if several else space.n) if self.discrete else 0
        self.low, self.high = (space.start, space.start + choices - 1) if self.discrete else (space.low, space.high)
        self.actions = np.zeros((rows, *space.shape), dtype=space.dtype)
        self.before = self.actions.copy()  # of the last step
        self.half = None if self.discrete else half_range(self.low, self.high)
        if self.half is None:
            self.running.changes += np.nan
        self.limit, self.endless = limit, limit is None and vector.max_episode_steps is None

    def run(
        self, seeds: Sequence[int], memories: Sequence[Memory], progress: Callable[[int, int], None] | None = None
    ) -> Sums:
        """Step to the end.

        Args:
            seeds: E, of the episodes' resets.
            memories: P, of the policies at the first step.
            progress: called with (finished, all) episodes, counted over the policies, whenever some finish.
        """
        self.seeds, self.memories = [int(seed) for seed in seeds], list(memories)
        observations = mapped(as_numpy, self.stepping.reset([self.seeds[e] for e in self.column]))
        self._seed_next(np.arange(len(self.column)))
        self._refuse_non_finite("observation", observations)
        self._tell_goals(np.ones(len(self.column), np.bool_))
        self._compare_pictures(observations)
        running = self.running
        while (moved := self.vector.active.copy()).any():
            self._act(observations)
            self._add_changes()
            seen = observations
            done = self.stepping.step(self.actions)
            moved &= as_numpy(valid_rows(done.info, len(moved))).astype(np.bool_)  # without a reset's own row
            observations, rewards = mapped(as_numpy, done.observations), as_numpy(done.rewards)
            self._refuse_non_finite("observation", observations)
            self._refuse_non_finite("reward", rewards)
            running.returns += np.where(moved, rewards, 0.0)
            running.lengths += moved
            self._add_terms(moved, done.info)
            costs = self.add_constraint(moved, done)
            self._note_success(moved, done.info)
            running.terminated |= moved & as_numpy(done.terminations)
            ended = moved & (as_numpy(done.terminations) | as_numpy(done.truncations))
            self._hear(rewards, costs, ended)
            self._tell_goals(ended)
            if self.limit is not None:
                ended |= moved & (running.lengths >= self.limit)
            elif self.endless and running.lengths.max() >= UNLIMITED_EPISODE_STEPS:
                raise EnvironmentMismatchError(
                    f"{self.env_id} has no time limit and an episode passed {UNLIMITED_EPISODE_STEPS} steps; "
                    "give it a time limit, max_episode_steps=1000"
                )
            if self.record is not None:
                self.record(seen, self.actions, done, costs, moved, ended)
            if ended.any():
                self._finish(np.flatnonzero(ended))
                if progress is not None:
                    progress(int(self.finished.sum()), self.sums.returns.size)
        return self.sums

    def _compare_pictures(self, observations: Any) -> None:
        """Warn where first pictures are nearer to another form of those that a policy was trained on."""
        if self.one_vector:
            return
        arrays = arrays_of(self.vector.single_observation_space, self.env_id)
        seen = observations if isinstance(observations, Mapping) else dict.fromkeys(arrays, observations)
        reported: set[tuple[str, str]] = set()
        for p, policy in enumerate(self.policies):
            rows = slice(p * self.num_envs, (p + 1) * self.num_envs)
            for key, mean in getattr(policy, "pictures", {}).items():
                array = arrays.get(key)
                if array is None or array.dtype != "uint8":
                    continue
                words = looks(torch.from_numpy(np.ascontiguousarray(seen[key][rows])), array, mean)
                if words is not None and (key, words) not in reported:
                    reported.add((key, words))
                    warnings.warn(
                        f"{self.env_id}: its first pictures of {key!r} look {words}, compared with those that the "
                        "policy was trained on: check the camera, or the data",
                        RuntimeWarning,
                        stacklevel=2,
                    )

    def add_constraint(self, moved: Array, done: Step) -> Array:
        """Add the costs and margins of a step in the rows that (rows,) `moved`; the costs (rows,).

        Where there are margins and no costs, a step with a negative one costs 1, as in training.
        """
        running, info = self.running, done.info
        costs, margins = np.zeros(len(moved)), np.full(len(moved), np.inf)
        if "margin" in info:
            there = moved & as_numpy(info.get("_margin", moved))
            margins[there] = as_numpy(info["margin"])[there]
            self._refuse_non_finite("margin", np.where(np.isnan(margins), np.nan, 0.0))  # which would pass for safe
            running.margins = np.minimum(running.margins, margins)
        key = next((name for name in ("cost", "margin") if name in info), None)
        if key is not None:
            given = moved & as_numpy(info.get(f"_{key}", moved))
            costs[given] = margins[given] < 0 if key == "margin" else as_numpy(info[key])[given]
            self._refuse_non_finite("cost", costs)
            self.sums.has_costs |= given.reshape(len(self.policies), -1).any(axis=1)
        running.costs += costs
        running.violations += costs > 0
        if "diverged" in info:
            running.diverged |= moved & as_numpy(info["diverged"])
        return costs

    def _add_terms(self, moved: Array, info: Mapping[str, Any]) -> None:
        """Add the terms of the reward in the rows that (rows,) `moved`."""
        for name, values in reward_terms(info, len(moved)).items():
            if name not in self.terms:
                self.terms[name], self._running_terms[name] = np.zeros(self.sums.returns.shape), np.zeros(len(moved))
            self._running_terms[name] += np.where(moved, as_numpy(values), 0.0)

    def _note_success(self, moved: Array, info: Mapping[str, Any]) -> None:
        """Record the success flags of the rows that (rows,) `moved`; that of an episode's last step remains."""
        key = next((name for name in SUCCESS if name in info), None)
        if key is not None:
            given = moved & as_numpy(info.get(f"_{key}", moved))
            self.running.succeeded[given] = as_numpy(info[key])[given] > 0

    def _act(self, observations: Any) -> None:
        """Each policy fills its own rows of `self.actions`; one whose rows have all ended is not called."""
        for p, policy in enumerate(self.policies):
            rows = slice(p * self.num_envs, (p + 1) * self.num_envs)
            if not self.vector.active[rows].any():
                continue
            if self.watch is not None and self.one_vector:
                under_way = observations[rows][self.vector.active[rows]]
                each = policy.agents if isinstance(policy, TeamPolicy) else 1
                self.watch(self.positions[p], under_way.reshape(len(under_way) * each, -1))
            seen = mapped(lambda values, rows=rows: self._tensor(values[rows]), observations)
            actions, self.memories[p] = policy.act(seen, self.memories[p])
            chosen = actions.cpu().numpy()
            if chosen.shape != self.actions[rows].shape or (self.discrete and chosen.dtype.kind not in "iu"):
                raise EnvironmentMismatchError(
                    f"policy {self.positions[p]} gave {chosen.dtype} actions of shape {chosen.shape} where "
                    f"{self.env_id} takes {self.actions.dtype} ones of shape {self.actions[rows].shape}; choose "
                    "the environment that it was trained for"
                )
            np.clip(chosen, self.low, self.high, out=self.actions[rows], casting="same_kind")
        self._refuse_non_finite("action", self.actions)

    def _tensor(self, values: Array) -> torch.Tensor:
        """Numbers as float32, images as bytes."""
        if values.dtype == np.bool_ and not self.one_vector and values.ndim > 2:
            values = values.view(np.uint8)
        bytes_stay = values.dtype == np.uint8 and not self.one_vector
        return torch.from_numpy(values if bytes_stay else values.astype(np.float32))

    def _add_changes(self) -> None:
        """Add how far the actions are from those of the step before, where there was one in the episode."""
        if self.half is None:
            return
        change = np.square((self.actions - self.before) / self.half).sum(axis=1)
        self.running.changes += np.where(self.running.lengths > 0, change, 0.0)
        self.before[:] = self.actions

    def _hear(self, rewards: Array, costs: Array, ended: Array) -> None:
        """Pass rewards, costs and ends to the policies' memories."""
        for p, policy in enumerate(self.policies):
            rows = slice(p * self.num_envs, (p + 1) * self.num_envs)
            heard = [values[rows].astype(np.float32) for values in (rewards, costs)]
            numbers = (torch.from_numpy(values) for values in (*heard, ended[rows]))
            self.memories[p] = policy.observe_outcome(self.memories[p], *numbers)

    def _tell_goals(self, started: Array) -> None:
        """Write the environment's goals into the memories of policies that are asked for one, where (rows,) `started`.

        Raises:
            EnvironmentMismatchError: the environment gives none, or others than the policy was trained for.
        """
        asked = [p for p, memory in enumerate(self.memories) if GOAL in memory]
        if not asked or not started.any():
            return
        goals = getattr(self.vector, "goals", None)
        for p in asked:
            rows = slice(p * self.num_envs, (p + 1) * self.num_envs)
            memory = self.memories[p]
            if goals is None and not bool(memory[GOAL].isnan().any()):
                continue  # it has one of its own
            check_goals(goals, memory[GOAL].shape[1], self.env_id)
            assert goals is not None
            reported = {GOAL: torch.from_numpy(goals[rows]).to(memory[GOAL])}
            self.memories[p] = in_rows(memory, reported, torch.from_numpy(started[rows]))

    def _finish(self, rows: Array) -> None:
        """Write down the episodes that ended, and pause the rows that have run their quota."""
        policy, episode = rows // self.num_envs, self._episode(rows)
        first = {"margins": np.inf, "succeeded": np.nan, "changes": np.nan if self.half is None else 0}
        self.running.changes[rows] /= np.maximum(self.running.lengths[rows] - 1, 1)
        for name in SUMMED:
            running = getattr(self.running, name)
            getattr(self.sums, name)[policy, episode] = running[rows]
            running[rows] = first.get(name, 0)
        for name, term in self._running_terms.items():
            self.terms[name][policy, episode] = term[rows]
            term[rows] = 0.0
        self.finished[rows] += 1
        self.vector.active[rows] = self.finished[rows] < self.quota[rows]
        self._seed_next(rows)

    def _seed_next(self, rows: Array) -> None:
        """Give the rows' automatic resets the seeds of the episodes after the running ones."""
        for row, episode in zip(rows.tolist(), (self._episode(rows) + self.num_envs).tolist(), strict=True):
            self.vector.next_seeds[row] = self.seeds[episode] if episode < self.episodes else None

    def _episode(self, rows: Array) -> Array:
        return self.column[rows] + self.num_envs * self.finished[rows]

    def _refuse_non_finite(self, what: str, values: Any) -> None:
        if isinstance(values, Mapping):
            for part in values.values():
                self._refuse_non_finite(what, part)
            return
        if np.isfinite(values).all():
            return
        row = int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))[0])
        raise non_finite(
            self.env_id,
            what,
            self.positions[row // self.num_envs],
            int(self._episode(np.array(row))),
            int(self.running.lengths[row]),
        )


def check_goals(goals: Array | None, width: int, env_id: str) -> None:
    """Refuse goals of an environment's resets that a policy is not asked for.

    Args:
        goals: (N, G); None: it gives none.
        width: of the goals that the policy was trained for.
        env_id: for the message.

    Raises:
        EnvironmentMismatchError: there are none, or of another width.
    """
    if goals is None:
        raise EnvironmentMismatchError(
            f"the policy is asked for a goal, and {env_id} gives none: its reset returns it as info['goal'], in the "
            "units of observations"
        )
    if goals.shape[1] != width:
        raise EnvironmentMismatchError(
            f"the policy is asked for goals of {width} numbers, and the resets of {env_id} give {goals.shape[1]}: "
            "choose the environment that it was trained for, or algo.goal_columns"
        )


def goals_given(env_id: str) -> Array | None:
    """(1, G) the goal that a reset of the environment gives; None: it gives none."""
    vector = make_vec(env_id, 1)
    try:
        vector.reset(seed=0)
        return getattr(vector, "goals", None)
    finally:
        vector.close()


def half_range(low: Array, high: Array) -> Array | None:
    """Half the range of each action, float64, 1 of a locked one; None where one is infinite or all are locked."""
    half: Array = middle_and_half(np.asarray(low, np.float64), np.asarray(high, np.float64))[1]
    return np.where(half == 0, 1.0, half) if np.isfinite(half).all() and half.any() else None


def non_finite(env_id: str, what: str, policy: int, episode: int, step: int) -> EnvironmentMismatchError:
    """What to raise for a number that is not finite."""
    return EnvironmentMismatchError(
        f"{env_id}: non-finite {what} for policy {policy} in episode {episode}, step {step}; "
        "check the policy's weights and the environment at that step"
    )


# -- by the native loop --------------------------------------------------------------------------------------


def knows(policy: Any, env_id: str) -> bool:
    """Whether the native loop has this environment, and can evaluate this policy."""
    if not isinstance(policy, Policy):
        return False
    from surefoot.envs.known_systems import system_of
    from surefoot.envs.native_rollout import evaluates

    return evaluates(policy) and system_of(env_id) is not None


def native_sums(
    policy: Policy, env_id: str, seeds: Sequence[int], num_envs: int, position: int = 0, watch: Watch | None = None
) -> Sums:
    """The sums (1, E) of E episodes of a policy that the native loop `knows`, on one processor.

    Initial states and dynamics are those of `EpisodeRunner`. The policy's network is computed by native code, whose
    sums of products are rounded otherwise than torch's.

    Args:
        policy: in the environment's own units.
        env_id: of a system whose equations are at hand.
        seeds: E, of the episodes' resets.
        num_envs: N, rows that `watch` is to believe in.
        position: of the policy, for `watch` and messages.
        watch: as of `EpisodeRunner`, which calls it in the same order.

    Raises:
        EnvironmentMismatchError: the policy does not fit the system, or an action is not finite.
        CheckpointError: weights that are not finite.
    """
    from surefoot.envs.known_systems import system_of
    from surefoot.envs.native_rollout import native_policy, rollout

    system, packed = system_of(env_id), native_policy(policy)
    assert system is not None, f"{env_id} has no native loop"
    half = half_range(np.asarray(system.action_low, np.float32), np.asarray(system.action_high, np.float32))
    sums, seen = Sums.empty(1, len(seeds)), []
    sums.has_costs[:] = True
    for first in range(0, len(seeds), NATIVE_EPISODES):
        part = slice(first, first + NATIVE_EPISODES)
        found = rollout(packed, system, seeds=np.asarray(seeds[part], np.int64), record=NATIVE_RECORDS, threads=1)
        lengths = found.lengths.numpy().astype(np.int64)
        records = {name: value.numpy()[: lengths.max()] for name, value in found.records.items()}  # behind it are zeros
        actions = records["actions"]
        there = np.arange(len(actions))[:, None] < lengths
        tried = policy(found.records["observations"][0])  # native code clips what is not finite to the bounds
        if not bool(tried.isfinite().all()):
            row = int((~tried.isfinite().all(-1)).nonzero()[0])
            raise non_finite(env_id, "action", position, first + row, 0)
        actions = np.clip(actions, system.action_low, system.action_high, dtype=np.float32)
        sums.returns[0, part] = np.add.reduce(records["rewards"], axis=0, dtype=np.float64)
        sums.lengths[0, part], sums.costs[0, part] = lengths, found.costs
        sums.violations[0, part], sums.margins[0, part] = found.costs, found.margins
        sums.terminated[0, part], sums.diverged[0, part] = found.terminated, found.diverged
        sums.changes[0, part] = np.nan
        if half is not None:
            change = np.square((actions[1:] - actions[:-1]) / half).sum(-1) * there[1:]
            sums.changes[0, part] = change.sum(0) / np.maximum(lengths - 1, 1)
        if watch is not None:
            seen += [records["observations"][:steps, row] for row, steps in enumerate(lengths)]
    if watch is not None:
        columns = [np.concatenate(seen[column::num_envs]) for column in range(num_envs)]
        for step in range(max(map(len, columns))):
            watch(position, np.stack([column[step] for column in columns if step < len(column)]))
    return sums
