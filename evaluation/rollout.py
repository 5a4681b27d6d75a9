"""Whole episodes of several policies at once in one vector environment, without length bias."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from surefoot.core.actors.memory import Memory, PolicyLike, Reactive
from surefoot.core.base.children import refuse_at_import
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.schema import Many, Maybe, Number, Record, Table, Text, check
from surefoot.core.base.threads import one_torch_thread
from surefoot.envs.acting import EpisodeRunner, Sums, first_memory, for_team, knows, make_vec, native_sums

Array = np.ndarray[Any, Any]


EPISODES = Record(
    {"returns": Many(Number()), "lengths": Many(Number(0, whole=True)), "costs": Maybe(Many(Number()))},
    {
        "violations": Maybe(Many(Number(0, whole=True))),
        "action_changes": Maybe(Many(Number())),
        "successes": Maybe(Many(Number(0, 1))),
        "loop": Text(among=("native", "steps")),
        "reward_terms": Table(Many(Number(nan=True))),
    },
)
"""What `Episodes.to_json` gives, and gave before violations, action changes, loops and successes were written down."""


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
    loop: str = "steps"
    """What ran them: "native", the native loop with the policy inside, or "steps", one call a step."""
    successes: Array | None = None
    """(E,) float64, 0 or 1: whether the environment reported at the last step that the task is solved (`success`, else
    `is_success`, of its info); None where it says nothing of it."""
    reward_terms: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    """Term of the reward -> (E,) float64 its sum over each episode; empty where the environment tells none."""

    def to_json(self) -> dict[str, Any]:
        """The same as lists, ready for `json.dumps`."""
        return {
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "costs": None if self.costs is None else self.costs.tolist(),
            "violations": None if self.violations is None else self.violations.tolist(),
            "action_changes": None if self.action_changes is None else self.action_changes.tolist(),
            "successes": None if self.successes is None else self.successes.tolist(),
            "loop": self.loop,
            **(
                {"reward_terms": {n: term.tolist() for n, term in self.reward_terms.items()}}
                if self.reward_terms
                else {}
            ),
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
            solved = value.get("successes")
            successes = None if solved is None else np.asarray(solved, dtype=np.float64)
            terms = {name: np.asarray(one, np.float64) for name, one in value.get("reward_terms", {}).items()}
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"episodes: returns, lengths and costs must hold numbers ({error})") from error
        columns = (lengths, costs, violations, action_changes, successes, *terms.values())
        if any(column is not None and column.shape != returns.shape for column in columns):
            raise ConfigError("episodes: returns, lengths and costs differ in length; write them again")
        loop = str(value.get("loop", "steps"))
        return cls(returns, lengths, costs, violations, action_changes, loop, successes, terms)


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
    """A behaviour of `envs.behaviours` (numpy, given a generator) with a policy's interface."""

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
    first: int = 0,
) -> list[Episodes]:
    """Run `episodes` whole episodes of each policy, all policies side by side.

    A trained policy that the native loop knows runs inside it in a native system, or one of the user's in python or
    C++, many times faster and from the same initial states; its actions are rounded otherwise. All others are stepped:
    each has `num_envs` sub-environments of its own and acts on them in a call of its own, with a constant batch shape,
    so its episodes are bit for bit those that it would have alone. Episode e runs in sub-environment e % num_envs
    after a reset seeded from (seed, e), so that every policy meets the same initial states. The number of episodes
    that a sub-environment runs is fixed beforehand, so short episodes are not over-represented. Actions are clipped to
    the action space before they are executed. Where several agents act in an environment, a policy acts for each of
    them, an episode is the team's, its return the mean over the agents, and its reward terms are the agents' own.

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
        first: the number of the first episode, to continue after `first` of them. Noise that a trained policy draws for
            itself is that of the seed `first`, so that episodes which continue don't repeat what was drawn before.

    Returns:
        P `Episodes`, in the order of `policies`.

    Raises:
        ConfigError: a number out of range, or what `make_vec` raises.
        MainGuardError: a module that is only being imported calls.
        EnvironmentMismatchError: an action of the wrong shape; a non-finite observation, reward or action
            (the message names environment, episode and step); an endless episode.
    """
    for name, value, least in (("episodes", episodes, 1), ("num_envs", num_envs, 1), ("seed", seed, 0),
                               ("first", first, 0)):  # fmt: skip
        if value < least:
            raise ConfigError(f"evaluation: {name} is {value}; it must be at least {least}")
    if not policies:
        return []
    refuse_at_import("evaluates")
    num_envs = min(num_envs, episodes)
    seeds = evaluation_seeds(seed, first, episodes)
    inside = [p for p, policy in enumerate(policies) if not env_kwargs and knows(policy, env_id)]
    stepped = [p for p in range(len(policies)) if p not in inside]
    found: dict[int, Episodes] = {}
    with one_torch_thread(), torch.no_grad():
        for p in inside:
            sums = native_sums(policies[p], env_id, seeds, num_envs, p, watch)  # type: ignore[arg-type]  # it is known
            found[p] = _episodes(sums, 0, "native")
            if progress is not None:
                progress(len(found) * episodes, len(policies) * episodes)
        if stepped:
            acting = [policies[p] for p in stepped]
            vector = make_vec(env_id, len(acting) * num_envs, **dict(env_kwargs or {}))
            try:
                acting = [for_team(policy, vector) for policy in acting]
                runner = EpisodeRunner(vector, acting, env_id, episodes, watch=watch, positions=stepped)
                started, total = len(inside) * episodes, len(policies) * episodes
                reported = None if progress is None else lambda done, _: progress(started + done, total)
                sums = runner.run(seeds, [first_memory(policy, num_envs, first) for policy in acting], reported)
                found |= {
                    p: _episodes(sums, i, "steps", {name: term[i] for name, term in runner.terms.items()})
                    for i, p in enumerate(stepped)
                }
            finally:
                vector.close()
    return [found[p] for p in range(len(policies))]


@functools.lru_cache(maxsize=16)  # a run evaluates on the same episodes again and again
def evaluation_seeds(seed: int, first: int, episodes: int) -> tuple[int, ...]:
    """(E,) seeds in [0, 2^32) of the resets of episodes `first` and after; `envs.episodes.episode_seeds` has others."""
    return tuple(int(np.random.SeedSequence((seed, e)).generate_state(1)[0]) for e in range(first, first + episodes))


def _episodes(sums: Sums, p: int, loop: str, terms: Mapping[str, Array] | None = None) -> Episodes:
    """Those of one policy, with the terms of its reward."""
    has_costs = bool(sums.has_costs[p])
    return Episodes(
        sums.returns[p],
        sums.lengths[p],
        sums.costs[p] if has_costs else None,
        sums.violations[p] if has_costs else None,
        None if np.isnan(sums.changes[p]).any() else sums.changes[p],
        loop,
        None if np.isnan(sums.succeeded[p]).any() else sums.succeeded[p],
        terms or {},
    )
