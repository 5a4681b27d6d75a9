r"""How a policy does when it decides more rarely than the environment steps, and one number for all frequencies.

.. math::
    \text{FAS} = \frac{1}{(L_n - L_1)\, R_\text{max}} \sum_{i<n} \tfrac12 (R_i + R_{i+1}) (L_{i+1} - L_i)

R_i is the mean return of a policy that reads an observation every L_i steps: the mean over L of a curve that is linear
between the L_i. Source: Patel and Siegelmann, "Overcoming Slow Decision Frequencies in Continuous Control" (ICLR 2025),
whose code divides by L_n instead of L_n - L_1, so that no policy reaches 1 there (`as_published`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.held_actor import HeldActor
from surefoot.core.actors.sequence_actor import SequenceActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.policy.policy import Policy
from surefoot.evaluation.rollout import Episodes, evaluate
from surefoot.evaluation.statistics import Interval, bounded_interval, hierarchical_interval

Array = np.ndarray[Any, Any]


class Scale(NamedTuple):
    """Of a task's returns."""

    best: float
    """R_max, of returns that `added` was added to."""
    added: float = 0.0


PUBLISHED: dict[str, Scale] = {
    "Pendulum-v1": Scale(1350, 1550),
    "LunarLanderContinuous-v3": Scale(300),
    "Hopper-v4": Scale(3600),
    "Hopper-v5": Scale(3600),
    "Walker2d-v4": Scale(5000),
    "Walker2d-v5": Scale(5000),
    "Ant-v4": Scale(6500),
    "Ant-v5": Scale(6500),
    "HalfCheetah-v4": Scale(17000),
    "HalfCheetah-v5": Scale(17000),
    "Humanoid-v4": Scale(10500),
    "Humanoid-v5": Scale(10500),
    "InvertedPendulum-v4": Scale(1000),
    "InvertedPendulum-v5": Scale(1000),
    "InvertedDoublePendulum-v4": Scale(9400),
    "InvertedDoublePendulum-v5": Scale(9400),
    "Reacher-v4": Scale(60, 65),
    "Reacher-v5": Scale(60, 65),
    "Swimmer-v4": Scale(350),
    "Swimmer-v5": Scale(350),
}
"""Gymnasium's id -> what the paper's code divides by there."""


def mean_over_steps(steps: Sequence[int], returns: Array) -> Array:
    """Mean over L in [L_1, L_n] of curves that are linear between the L_i.

    Args:
        steps: n increasing numbers L_i, at least two.
        returns: (n, ...) values at these.

    Returns:
        (...) float64, in the unit of `returns`.

    Raises:
        ConfigError: fewer than two numbers, or numbers that don't increase.
    """
    lengths = np.asarray(steps, dtype=np.float64)
    if len(lengths) < 2 or (np.diff(lengths) <= 0).any():
        raise ConfigError(f"decision steps {list(steps)}: give two or more numbers that increase, as 1,2,4,8,16")
    return np.asarray(np.trapezoid(returns, lengths, axis=0) / (lengths[-1] - lengths[0]))


def as_published(steps: Sequence[int], returns: Array, scale: Scale) -> float:
    """The frequency-averaged score as the paper's code has it, for comparison with its tables.

    Args:
        steps: n increasing L_i; there 1, 2, 4, 6, ..., 30.
        returns: (n,) mean returns in the environment's units.
        scale: of the task, as in `PUBLISHED`.
    """
    mean = float(mean_over_steps(steps, np.asarray(returns) + scale.added))
    return mean * (steps[-1] - steps[0]) / (steps[-1] * scale.best)


def deciding_every(policy: Policy, decision_steps: int) -> Policy:
    """A copy of a policy that reads an observation every so many steps (`core.actors.held_actor`).

    A head of sequences (`core.actors.sequence_actor`) emits one of that length for each observation.

    Raises:
        ConfigError: fewer than 1, or a policy that holds its actions already.
    """
    head: Actor = policy.actor
    if isinstance(head, SequenceActor):
        held: Actor = head.playing(decision_steps)
    else:
        held = HeldActor(head, policy.action_dim, decision_steps)
    low, high = policy.action_low, policy.action_high
    made = Policy.of(held, policy.normalizer, low, high, policy.encoder)
    made = made.named(policy.names.get("observation_names"), policy.names.get("action_names"))
    return made.sampled() if policy.always_samples and not made.always_samples else made


@dataclasses.dataclass(frozen=True)
class Frequencies:
    """Returns of P policies at n frequencies, in the same E episodes."""

    steps: tuple[int, ...]  # n increasing L_i
    episodes: tuple[tuple[Episodes, ...], ...]  # (n, P)
    returns: tuple[Interval, ...]  # (n,) over seeds and initial states
    lost: tuple[Interval, ...]  # (n,) return at L_1 less that at L_i, episode by episode
    average: Interval | None  # mean over L in [L_1, L_n], of the same unit; None of a single frequency
    published: float | None  # `as_published`, where the paper has the task and average is not None

    def to_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        at = [
            {"decision_steps": steps, "return": found.to_json(), "lost": lost.to_json()}
            for steps, found, lost in zip(self.steps, self.returns, self.lost, strict=True)
        ]
        average = None if self.average is None else self.average.to_json()
        return {"frequencies": at, "average": average, "published_score": self.published}


def evaluate_frequencies(
    policies: Sequence[Policy],
    env_id: str,
    steps: Sequence[int],
    episodes: int = 50,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Frequencies:
    """Evaluate policies that decide every L steps, for each of several L, from the same initial states.

    Args:
        policies: P, one a training seed.
        env_id: gymnasium id, `module:Id` included.
        steps: increasing numbers L of environment steps from one decision to the next.
        episodes: of each policy at each L.
        seed: of the initial states.
        progress: called with (finished, all) episodes.
        env_kwargs: arguments of the environment.
        bounds: of an episode's return, which intervals stay within.

    Raises:
        ConfigError: numbers below 1 or that don't increase; what `evaluate` raises.
    """
    if not steps or min(steps) < 1 or any(b <= a for a, b in itertools.pairwise(steps)):
        raise ConfigError(f"decision steps {list(steps)}: give numbers from 1 on that increase, as 1,2,4,8,16")
    found: list[tuple[Episodes, ...]] = []
    total = len(steps) * len(policies) * episodes
    for number, decision_steps in enumerate(steps):
        acting = [deciding_every(policy, decision_steps) for policy in policies]
        before = number * len(policies) * episodes
        shown = None if progress is None else lambda done, _, before=before: progress(before + done, total)
        found.append(tuple(evaluate(acting, env_id, episodes, seed, env_kwargs=env_kwargs, progress=shown)))
    table = np.array([[one.returns for one in at] for at in found])  # (n, P, E)
    averaged = mean_over_steps(steps, table) if len(steps) > 1 else None
    scale = PUBLISHED.get(env_id)
    return Frequencies(
        tuple(steps),
        tuple(found),
        tuple(bounded_interval(list(at), bounds) for at in table),
        tuple(hierarchical_interval(list(table[0] - at)) for at in table),
        None if averaged is None else bounded_interval(list(averaged), bounds),
        None if scale is None or averaged is None else as_published(steps, table.mean((1, 2)), scale),
    )
