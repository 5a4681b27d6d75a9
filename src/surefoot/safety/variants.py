"""`--vary` of `surefoot evaluate` and `certify`: policies over a family of variants of one native system.

A policy that does well in one simulator may fail in the next, of another mass or friction: Jayawardana et al., "The
impact of task underspecification in evaluating deep reinforcement learning" (2022).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.core.policy.policy import Policy
from surefoot.cuda_ext.twin import episode_key, uniform
from surefoot.envs.episodes import episode_seeds, run_episodes
from surefoot.envs.interface import Array
from surefoot.envs.known_systems import system_of
from surefoot.envs.names import beneath
from surefoot.envs.parameters import Ranges, parameter_ranges
from surefoot.evaluation import Family, Interval, family, hierarchical_interval

CONSTANTS = 8
"""Stream of `of_episodes`, after those of world_models/draws.py."""
MOST_VARIANTS, MOST_EPISODES = 100_000, 10**7


@dataclasses.dataclass(frozen=True)
class Varied:
    """What S policies came to in M variants."""

    environment: str
    values: dict[str, Array]
    """Constant -> (M,) its value in each variant."""
    scores: Array
    """(S, M) mean returns."""
    found: Family
    episodes: int
    """Of each policy in each variant."""
    again: Interval
    """Of the worst variant, in fresh episodes."""

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "environment": self.environment,
            "variants": {name: column.tolist() for name, column in self.values.items()},
            "episodes": self.episodes,
            "scores": self.scores.tolist(),
            **self.found.to_json(),
            "worst_again": self.again.to_json(),
        }


def ranges_of(words: Sequence[str], env_id: str) -> Ranges:
    """What --vary says, as in `mass=0.5:2,gravity=8:12`.

    Raises:
        ConfigError: not a native system; an unknown constant; no range, or one that the system does not allow.
    """
    system = system_of(beneath(env_id))
    if system is None:
        raise ConfigError(
            f"--vary changes the constants of native systems and of systems of yours, and {env_id} is none: "
            "`surefoot envs list`"
        )
    return parameter_ranges(words, system, env_id, "--vary ")


def drawn(ranges: Ranges, count: int, seed: int) -> dict[str, Array]:
    """Constant -> (count,) float32 values, drawn evenly from its range."""
    draw = np.random.default_rng(np.random.SeedSequence((seed, count)))
    return {name: draw.uniform(low, high, count).astype(np.float32) for name, (low, high) in ranges.items()}


def of_episodes(ranges: Ranges, seeds: Array) -> dict[str, Array]:
    """Constant -> (N,) float32 values for the episodes of (N,) seeds, of each the same whichever are beside it."""
    own = torch.from_numpy(seeds.astype(np.int64))
    shares = uniform(episode_key(own, torch.zeros_like(own), CONSTANTS), 0, len(ranges), torch.float64).numpy()
    bounds = zip(ranges.items(), shares.T, strict=True)
    return {name: (low + (high - low) * share).astype(np.float32) for (name, (low, high)), share in bounds}


def evaluate_variants(
    policies: Sequence[Policy],
    env_id: str,
    ranges: Ranges,
    variants: int = 50,
    episodes: int = 20,
    seed: int = 2,
    share: float = 0.1,
) -> Varied:
    """Run policies in variants whose constants are drawn evenly from ranges, all of a policy's episodes side by side.

    Args:
        policies: S, each of another training seed.
        env_id: a native system.
        ranges: what `ranges_of` gave.
        variants: M, from 2 on; the same for all policies, and of each variant the same initial states.
        episodes: of each policy in each variant, from 2 on.
        seed: of the variants and initial states.
        share: of the variants that the quantile and the CVaR are about, in (0, 1].

    Raises:
        ConfigError: a number out of range.
        EnvironmentMismatchError: a policy does not fit the system.
        SurefootError: a variant's simulation broke down.
    """
    for name, number, most in (("variants", variants, MOST_VARIANTS), ("episodes", episodes, MOST_EPISODES)):
        if not 2 <= number <= most:
            raise ConfigError(f"{name} is {number}; it must be from 2 to {most:,}")
    if variants * episodes > MOST_EPISODES:
        raise ConfigError(f"{variants:,} variants of {episodes:,} episodes are more than {MOST_EPISODES:,} in all")
    first = episode_seeds(seed, 0, episodes)  # which refuses a seed below 0
    values = drawn(ranges, variants, seed)
    returns = np.stack([_returns(policy, env_id, values, first) for policy in policies])
    scores = returns.mean(axis=2)
    found = family(scores, share=share, deviation=_noise(returns), episodes=episodes)
    worst = {name: column[[found.worst_variant]] for name, column in values.items()}
    fresh = episode_seeds(seed, episodes, max(episodes, 100))
    again = [_returns(policy, env_id, worst, fresh)[0] for policy in policies]
    return Varied(env_id, values, scores, found, episodes, hierarchical_interval(again))


def _noise(returns: Array) -> float:
    """Deviation of an episode of (S, M, E) returns, less what its variant and its initial state explain."""
    by_variant, by_state = returns.mean(axis=2, keepdims=True), returns.mean(axis=1, keepdims=True)
    left = returns - by_variant - by_state + returns.mean(axis=(1, 2), keepdims=True)
    seeds, variants, episodes = returns.shape
    return float(np.sqrt((left**2).sum() / (seeds * (variants - 1) * (episodes - 1))))


def _returns(policy: Policy, env_id: str, values: Mapping[str, Array], seeds: Array) -> Array:
    """(M, E) returns of a policy in each of M variants."""
    variants = len(next(iter(values.values())))
    rows = {name: np.repeat(column, len(seeds)) for name, column in values.items()}
    batch = run_episodes(policy, env_id, np.tile(seeds, variants), parameters=rows, device="cpu")
    if batch.diverged.any():
        where = int(batch.diverged.argmax()) // len(seeds)
        given = ", ".join(f"{name}={column[where]:g}" for name, column in values.items())
        raise SurefootError(f"{env_id} with {given}: the simulation broke down; vary the constants less")
    return batch.returns.reshape(variants, len(seeds))
