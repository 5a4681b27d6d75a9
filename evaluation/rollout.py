"""Whole episodes of several policies at once in one vector environment, without length bias."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from surefoot.core.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.memory import Memory, PolicyLike, Reactive
from surefoot.core.schema import Many, Maybe, Number, Record, check
from surefoot.envs.vector import PausableVectorEnv, check_spaces, make_vec

Array = np.ndarray[Any, Any]

UNLIMITED_EPISODE_STEPS = 100_000  # an episode this long in an environment without a time limit is an error


EPISODES = Record(
    {"returns": Many(Number()), "lengths": Many(Number(0, whole=True)), "costs": Maybe(Many(Number()))},
    {"violations": Maybe(Many(Number(0, whole=True))), "action_changes": Maybe(Many(Number()))},
)
"""What `Episodes.to_json` gives, and gave before violations and action changes were counted."""


@dataclasses.dataclass(frozen=True)
class Episodes:
    """E whole episodes of one policy, in the order of their seeds."""

    returns: Array  # (E,) float64: undiscounted sum of rewards
    lengths: Array  # (E,) int64: steps
    costs: Array | None = None  # (E,) float64: sum of costs, or None where the environment gives none
    violations: Array | None = None  # (E,) int64: steps with a cost above 0; None where it gives none
    action_changes: Array | None = None
    """(E,) float64: mean over an episode's pairs of successive executed actions of their squared distance, in units of
    half the action range, summed over dimensions; 0 of an episode of one step, None where actions have no range."""

    def to_json(self) -> dict[str, Any]:
        """The same as lists, ready for `json.dumps`."""
        return {
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "costs": None if self.costs is None else self.costs.tolist(),
            "violations": None if self.violations is None else self.violations.tolist(),
            "action_changes": None if self.action_changes is None else self.action_changes.tolist(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Episodes:
        """Inverse of `to_json`; raises ConfigError where a key is missing, no list of numbers, or of another length."""
        check(value, EPISODES, "episodes", ConfigError)
        try:
            costs = None if value["costs"] is None else np.asarray(value["costs"], dtype=np.float64)
            returns = np.asarray(value["returns"], dtype=np.float64)
            lengths = np.asarray(value["lengths"], dtype=np.int64)
            counted = value.get("violations")  # files of before they were counted have none
            violations = None if counted is None else np.asarray(counted, dtype=np.int64)
            changes = value.get("action_changes")  # nor these
            action_changes = None if changes is None else np.asarray(changes, dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"episodes: returns, lengths and costs must hold numbers ({error})") from error
        columns = (lengths, costs, violations, action_changes)
        if any(column is not None and column.shape != returns.shape for column in columns):
            raise ConfigError("episodes: returns, lengths and costs differ in length; write them again")
        return cls(returns, lengths, costs, violations, action_changes)


class RandomPolicy(Reactive):
    """Uniform actions between the bounds; `begin` starts its random numbers again, so evaluations repeat."""

    def __init__(self, low: Array, high: Array, seed: int = 0) -> None:
        self.low, self.high, self.seed = low, high, seed
        self.begin(0)

    def begin(self, rows: int) -> Memory:
        """Start the random numbers again."""
        self._generator = np.random.default_rng(self.seed)
        return {}

    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        """(N, observation dim) -> (N, action dim) float32, uniform in [low, high]."""
        size = (len(observations), len(self.low))
        return torch.from_numpy(self._generator.uniform(self.low, self.high, size).astype(np.float32))


class ScriptedPolicy(Reactive):
    """A behaviour of `envs.behaviours` (numpy, given a generator) with the face of a policy."""

    def __init__(self, behaviour: Callable[[Array, np.random.Generator], Array], seed: int = 0) -> None:
        self.behaviour, self.seed = behaviour, seed
        self.begin(0)

    def begin(self, rows: int) -> Memory:
        """Start the random numbers again."""
        self._generator = np.random.default_rng(self.seed)
        return {}

    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        """(N, observation dim) -> (N, action dim) float32."""
        return torch.from_numpy(self.behaviour(observations.numpy(), self._generator).astype(np.float32))


def evaluate(
    policies: Sequence[PolicyLike],
    env_id: str,
    episodes: int = 50,
    seed: int = 0,
    num_envs: int = 10,
    env_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[int, Array], None] | None = None,
) -> list[Episodes]:
    """Run `episodes` whole episodes of each policy, all policies side by side.

    Each policy has `num_envs` sub-environments of its own and acts on them in a call of its own, with a
    constant batch shape, so its episodes are bit for bit those that it would have alone. Episode e runs in
    sub-environment e % num_envs after a reset seeded from (seed, e), so that every policy meets the same
    initial states. The number of episodes that a sub-environment runs is fixed beforehand, so short episodes
    are not over-represented. Actions are clipped to the action space before they are executed.

    Args:
        policies: P policies; torch runs single-threaded while they act.
        env_id: gymnasium id, `module:Id` included.
        episodes: whole episodes per policy, at least 1.
        seed: of the environments, at least 0.
        num_envs: sub-environments per policy, at least 1.
        env_kwargs: arguments of the environment.
        progress: called with (finished, all) episodes, counted over the policies, whenever some finish.
        watch: called at each step with a policy's position and the (n, observation dim) observations that it acts on in
            episodes that are under way; they must be copied to be kept.

    Returns:
        P `Episodes`, in the order of `policies`.

    Raises:
        ConfigError: a number out of range, or what `make_vec` raises.
        EnvironmentMismatchError: an action of the wrong shape; a non-finite observation, reward or action
            (the message names environment, episode and step); an endless episode.
    """
    for name, value, least in (("episodes", episodes, 1), ("num_envs", num_envs, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"evaluation: {name} is {value}; it must be at least {least}")
    if not policies:
        return []
    num_envs = min(num_envs, episodes)
    vector = make_vec(env_id, len(policies) * num_envs, **dict(env_kwargs or {}))
    try:
        with _one_torch_thread(), torch.no_grad():
            return _Rollout(vector, policies, env_id, episodes, num_envs, watch).run(seed, progress)
    finally:
        vector.close()


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Small forward passes are slower on several threads, which wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Rollout:
    """The counters of one evaluation; row r belongs to policy r // num_envs."""

    def __init__(
        self,
        vector: PausableVectorEnv,
        policies: Sequence[PolicyLike],
        env_id: str,
        episodes: int,
        num_envs: int,
        watch: Callable[[int, Array], None] | None = None,
    ) -> None:
        self.watch = watch
        self.vector, self.policies, self.env_id = vector, policies, env_id
        self.episodes, self.num_envs = episodes, num_envs
        rows = len(policies) * num_envs
        self.seeds: list[int] = []  # of each episode's reset
        self.memories: list[Memory] = []  # of each policy
        self.column = np.arange(rows) % num_envs
        self.quota = (episodes - self.column + num_envs - 1) // num_envs
        self.finished = np.zeros(rows, dtype=np.int64)
        self.step_returns = np.zeros(rows)
        self.step_costs = np.zeros(rows)
        self.step_violations = np.zeros(rows, dtype=np.int64)
        self.latest_costs = np.zeros(rows)  # of the last step alone
        self.step_lengths = np.zeros(rows, dtype=np.int64)
        self.step_changes = np.zeros(rows)
        self.has_cost = np.zeros(len(policies), dtype=np.bool_)
        shape = (len(policies), episodes)
        self.changes = np.zeros(shape)
        self.returns, self.costs = np.zeros(shape), np.zeros(shape)
        self.lengths, self.violations = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        action_space: Any = vector.single_action_space
        self.discrete = isinstance(action_space, gymnasium.spaces.Discrete)
        check_spaces(vector, *self._dimensions(), self.discrete)
        if self.discrete:
            self.low, self.high = action_space.start, action_space.start + action_space.n - 1
        else:
            self.low, self.high = action_space.low, action_space.high
        self.actions = np.zeros((rows, *action_space.shape), dtype=action_space.dtype)
        self.before = self.actions.copy()  # of the last step
        half = None if self.discrete else (np.asarray(self.high, np.float64) - self.low) / 2
        self.half = half if half is not None and np.isfinite(half).all() and half.all() else None
        self.time_limit = vector.max_episode_steps

    def run(self, seed: int, progress: Callable[[int, int], None] | None) -> list[Episodes]:
        """Step until every row has run its quota."""
        self.seeds = [int(np.random.SeedSequence((seed, e)).generate_state(1)[0]) for e in range(self.episodes)]
        observations, _ = self.vector.reset(seed=[self.seeds[e] for e in self.column])
        self._seed_next(np.arange(len(self.column)))
        self._refuse_non_finite("observation", observations)
        self.memories = [policy.begin(self.num_envs) for policy in self.policies]
        while self.vector.active.any():
            self._act(observations)
            self._add_changes()
            observations, rewards, terminations, truncations, info = self.vector.step(self.actions)
            self._refuse_non_finite("observation", observations)
            self._refuse_non_finite("reward", rewards)
            ended = terminations | truncations
            self.step_returns += rewards
            self.step_lengths += self.vector.active
            self._add_costs(info)
            self._tell(rewards, ended)
            if ended.any():
                self._finish(np.flatnonzero(ended))
                if progress is not None:
                    progress(int(self.finished.sum()), self.returns.size)
            elif self.time_limit is None and self.step_lengths.max() >= UNLIMITED_EPISODE_STEPS:
                raise EnvironmentMismatchError(
                    f"{self.env_id} has no time limit and an episode passed {UNLIMITED_EPISODE_STEPS} steps; "
                    "register it with max_episode_steps"
                )
        return [
            Episodes(
                self.returns[p],
                self.lengths[p],
                self.costs[p] if self.has_cost[p] else None,
                self.violations[p] if self.has_cost[p] else None,
                None if self.half is None else self.changes[p],
            )
            for p in range(len(self.policies))
        ]

    def _act(self, observations: Array) -> None:
        """Each policy fills its own rows of `self.actions`; one whose rows have all ended is not called."""
        for p, policy in enumerate(self.policies):
            rows = slice(p * self.num_envs, (p + 1) * self.num_envs)
            if not self.vector.active[rows].any():
                continue
            if self.watch is not None:
                self.watch(p, observations[rows][self.vector.active[rows]])
            seen = torch.from_numpy(observations[rows].astype(np.float32))
            actions, self.memories[p] = policy.act(seen, self.memories[p])
            chosen = actions.cpu().numpy()
            if chosen.shape != self.actions[rows].shape or (self.discrete and chosen.dtype.kind not in "iu"):
                raise EnvironmentMismatchError(
                    f"policy {p} gave {chosen.dtype} actions of shape {chosen.shape} where {self.env_id} takes "
                    f"{self.actions.dtype} ones of shape {self.actions[rows].shape}; choose the environment that it "
                    "was trained for"
                )
            np.clip(chosen, self.low, self.high, out=self.actions[rows], casting="same_kind")
        self._refuse_non_finite("action", self.actions)

    def _add_changes(self) -> None:
        """Add how far the actions are from those of the step before, where there was one in the episode."""
        if self.half is None:
            return
        change = np.square((self.actions - self.before) / self.half).sum(axis=1)
        self.step_changes += np.where(self.step_lengths > 0, change, 0.0)
        self.before[:] = self.actions

    def _add_costs(self, info: dict[str, Any]) -> None:
        """Add this step's costs."""
        self.latest_costs[:] = 0
        key = next((name for name in ("cost", "costs") if name in info), None)
        if key is not None:
            given = self.vector.active & np.asarray(info.get(f"_{key}", True))
            self._refuse_non_finite("cost", np.where(given, info[key], 0.0))
            self.latest_costs[given] = np.asarray(info[key], dtype=np.float64)[given]
            self.has_cost |= given.reshape(len(self.policies), -1).any(axis=1)
        self.step_costs += self.latest_costs
        self.step_violations += self.latest_costs > 0

    def _tell(self, rewards: Array, ended: Array) -> None:
        """Policies hear what their actions brought."""
        for p, policy in enumerate(self.policies):
            rows = slice(p * self.num_envs, (p + 1) * self.num_envs)
            self.memories[p] = policy.hear(
                self.memories[p],
                torch.from_numpy(rewards[rows].astype(np.float32)),
                torch.from_numpy(self.latest_costs[rows].astype(np.float32)),
                torch.from_numpy(ended[rows].astype(np.bool_)),
            )

    def _finish(self, rows: Array) -> None:
        """Write down the episodes that ended, and pause the rows that have run their quota."""
        policy, episode = rows // self.num_envs, self._episode(rows)
        self.returns[policy, episode] = self.step_returns[rows]
        self.costs[policy, episode] = self.step_costs[rows]
        self.lengths[policy, episode] = self.step_lengths[rows]
        self.violations[policy, episode] = self.step_violations[rows]
        self.changes[policy, episode] = self.step_changes[rows] / np.maximum(self.step_lengths[rows] - 1, 1)
        self.step_returns[rows] = self.step_costs[rows] = self.step_lengths[rows] = self.step_violations[rows] = 0
        self.step_changes[rows] = 0
        self.finished[rows] += 1
        self.vector.active[rows] = self.finished[rows] < self.quota[rows]
        self._seed_next(rows)

    def _seed_next(self, rows: Array) -> None:
        """Give the rows' automatic resets the seeds of the episodes after the running ones."""
        for row, episode in zip(rows.tolist(), (self._episode(rows) + self.num_envs).tolist(), strict=True):
            self.vector.next_seeds[row] = self.seeds[episode] if episode < self.episodes else None

    def _episode(self, rows: Array) -> Array:
        return self.column[rows] + self.num_envs * self.finished[rows]

    def _dimensions(self) -> tuple[int, int]:
        """Of the environment itself: `check_spaces` then refuses what is not a pair of bounded vectors."""
        observation: Any = self.vector.single_observation_space
        action: Any = self.vector.single_action_space
        width = action.n if self.discrete else (action.shape or (0,))[0]
        return (observation.shape or (0,))[0], int(width)

    def _refuse_non_finite(self, what: str, values: Array) -> None:
        if np.isfinite(values).all():
            return
        row = int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))[0])
        raise EnvironmentMismatchError(
            f"{self.env_id}: non-finite {what} for policy {row // self.num_envs} in episode "
            f"{int(self._episode(np.array(row)))}, step {int(self.step_lengths[row])}; "
            "check the policy's weights and the environment at that step"
        )
