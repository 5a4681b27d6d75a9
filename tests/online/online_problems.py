"""Environments of a few lines for online agents, and loops on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from surefoot.core.engine.agent import Spec
from surefoot.envs.interface import VectorEnvironment, reset_mask, row_seeds
from surefoot.online import ALGORITHMS, spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop


class Scripted(VectorEnvironment):
    """Rows with a state (N, O), a rule for what follows, and a time limit; numpy, no saved state.

    Its random numbers come from a generator for each row, so that a row's future depends on its own seed alone.
    """

    observation_dim, action_dim, limit = 1, 1, 20

    def __init__(self, num_envs: int = 1) -> None:
        low = np.full(self.action_dim, -1.0, np.float32)
        observations = Box(-np.inf, np.inf, (self.observation_dim,), np.float32)
        super().__init__(num_envs, observations, Box(low, -low))
        self.sources = [np.random.default_rng(0) for _ in range(num_envs)]
        self.states = np.zeros((num_envs, self.observation_dim), np.float32)
        self.elapsed = np.zeros(num_envs, np.int64)
        self.steps = 0

    def begin(self, source: np.random.Generator) -> np.ndarray:
        return source.uniform(-1, 1, self.observation_dim)

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Next states, rewards, terminations."""
        raise NotImplementedError

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        mask = reset_mask(options, self.num_envs)
        for row, one in enumerate(row_seeds(seed, self.num_envs)):
            if mask is None or mask[row]:
                if one is not None:
                    self.sources[row] = np.random.default_rng(one)
                self.states[row], self.elapsed[row] = self.begin(self.sources[row]), 0
        return self.states.copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.check_actions(actions)
        following, rewards, terminations = self.follow(self.states, actions)
        self.steps += 1
        self.elapsed += 1
        truncations = self.elapsed >= self.limit
        ended = terminations | truncations
        self.states = following.astype(np.float32)
        info: dict[str, Any] = {}
        if ended.any():
            info = {"final_obs": self.states.copy(), "_final_obs": ended}
            for row in np.flatnonzero(ended):
                self.states[row], self.elapsed[row] = self.begin(self.sources[row]), 0
        return self.states.copy(), rewards.astype(np.float32), terminations, truncations, info


class Constant(Scripted):
    """Reward 1 for ever; only the time limit ends an episode."""

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        count = len(states)
        return np.stack([s.uniform(-1, 1, 1) for s in self.sources]), np.ones(count), np.zeros(count, bool)


class Climb(Scripted):
    """x climbs from -0.2 to 1 by 0.2 and stays there, which pays 1; begins anywhere on the way; a limit of two steps.

    Half of all steps are the last before the limit: what is put behind them decides the values that are learned.
    """

    limit = 2

    def begin(self, source: np.random.Generator) -> np.ndarray:
        return source.integers(-1, 6, 1) / 5

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        following = np.minimum(states + 0.2, 1)
        return following, (following[:, 0] > 0.99).astype(float), np.zeros(len(states), bool)


def climbs_value(discount: float) -> float:
    """Of `Climb` at 0."""
    return discount**4 / (1 - discount)


class EndsEverywhere(Scripted):
    """Wrong: the limit is taken for an end."""

    def step(self, actions: Any) -> Any:
        observations, rewards, ends, cut, info = super().step(actions)
        return observations, rewards, ends | cut, cut, info


class FollowsIntoTheNextEpisode(Scripted):
    """Wrong: what follows the last observation is the first of the next episode."""

    def step(self, actions: Any) -> Any:
        observations, rewards, ends, cut, _ = super().step(actions)
        return observations, rewards, ends, cut, {}


class StaysWhereItWas(Scripted):
    """Wrong: what follows the last step is what came before it, V(s_t) for V(final)."""

    def step(self, actions: Any) -> Any:
        before = self.states.copy()
        observations, rewards, ends, cut, info = super().step(actions)
        return observations, rewards, ends, cut, {**info, "final_obs": before} if info else info


class LimitUntold(Scripted):
    """Wrong: nothing is given of the limit, so that sums continue over it into the next episode."""

    def step(self, actions: Any) -> Any:
        observations, rewards, ends, cut, _ = super().step(actions)
        return observations, rewards, ends, np.zeros_like(cut), {}


def mistaken(mistake: type[Scripted], problem: type[Scripted]) -> type[Scripted]:
    """The problem with its ends given wrongly."""
    return type(f"{mistake.__name__}{problem.__name__}", (mistake, problem), {})


def assert_value(found: float, value: float, right: bool) -> None:
    """Within a tenth of the true value where all is right; off by a fifth at least where something is wrong."""
    off = abs(found - value) / value
    assert off < 0.1 if right else off > 0.2, f"{found} for {value}"


RICCATI = -1.34427
"""Gain, by the Riccati equation, of the regulator x' = 0.9 x + 0.5 u, cost x^2 + 0.1 u^2, discount 0.95."""


def regulators_gain(agent: Any) -> float:
    """Least squares of the policy's u = 2 a on x in [-1, 1]."""
    x = torch.linspace(-1, 1, 41)[:, None]
    with torch.no_grad():
        u = 2 * agent.act(x)
    return float((u * x).sum() / (x * x).sum())


class Regulator(Scripted):
    """x' = 0.9 x + 0.5 u + noise with u = 2 a, cost x^2 + 0.1 u^2: a linear-quadratic problem.

    The reward is minus ten times the cost, and episodes are cut after five steps, so that x is spread over [-1, 1].
    """

    limit = 5

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, u = states[:, 0].astype(np.float64), 2 * np.clip(actions[:, 0], -1, 1).astype(np.float64)
        noise = np.array([source.normal(0, 0.05) for source in self.sources])
        return (0.9 * x + 0.5 * u + noise)[:, None], -10 * (x**2 + 0.1 * u**2), np.zeros(len(x), bool)


class Counting(Scripted):
    """The observation counts the steps of the episode; an end at step 3 of every second episode, a limit of 5."""

    limit = 5

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.episode = np.zeros(num_envs, np.int64)

    def begin(self, source: np.random.Generator) -> np.ndarray:
        return np.zeros(1)

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        following = states + 1
        ends = (following[:, 0] == 3) & (self.episode % 2 == 1)
        self.episode += ends | (following[:, 0] == self.limit)
        return following, following[:, 0] * 10.0, ends


class Broken(Constant):
    """Row 1 gives NaN as its reward at the seventh step."""

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        following, rewards, ends = super().follow(states, actions)
        if self.steps == 6:
            rewards[1] = np.nan
        return following, rewards, ends


class Inserting(Counting):
    """After each episode a row that is no transition: gymnasium's NEXT_STEP, marked by `info["valid"]`."""

    inserts_rows = True

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.over = np.zeros(num_envs, bool)
        self.real = 0

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        inserted = self.over.copy()
        following, rewards, terminations = self.follow(self.states, actions)
        self.elapsed += ~inserted
        truncations = (self.elapsed >= self.limit) & ~inserted
        terminations &= ~inserted
        self.over = terminations | truncations
        self.states = np.where(inserted[:, None], 0.0, following).astype(np.float32)
        self.elapsed[inserted] = 0
        self.real += int((~inserted).sum())
        return self.states.copy(), np.where(inserted, 0, rewards).astype(np.float32), terminations, truncations, {
            "valid": ~inserted
        }  # fmt: skip


def spec(env: Any) -> Spec:
    return spec_of(env)


def loop(algorithm: str, env: Any, seeds: tuple[int, ...] = (0,), **options: Any) -> OffPolicyLoop:
    """A loop of small networks on an environment."""
    loops = ("kernels", "batch_size", "dataset", "planned_steps", "jacobian_penalty")
    own = {name: options.pop(name) for name in loops if name in options}
    agent = ALGORITHMS[algorithm](spec(env), **{"hidden": (16, 16), "num_envs": env.num_envs // len(seeds), **options})
    return OffPolicyLoop([agent.fresh(seed) for seed in seeds], seeds, env, **{"planned_steps": 1000, **own})


def parameters(of: OffPolicyLoop, position: int = 0) -> torch.Tensor:
    """All weights of one seed in one vector."""
    return torch.cat([v.reshape(-1) for v in of.learner.agents_parameters(position).values()])


def assert_taped_equals_plain(made: list[OffPolicyLoop], steps: int) -> None:
    """A loop with kernels and the same without, after so many steps: all from tapes, and the same weights."""
    if made[0].learner.slots is None:
        pytest.skip("no native module")
    for one in made:
        one.run(steps)
    assert made[0].learner.eager_because() == {}
    torch.testing.assert_close(parameters(made[0]), parameters(made[1]), rtol=1e-3, atol=1e-4)
