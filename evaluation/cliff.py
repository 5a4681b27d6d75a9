r"""How far a policy jumps when the reward moves a little: exact on tables, estimated by trained critics.

Where two actions are worth nearly the same, the greedy policy changes from one to the other at the smallest change of
the reward (Xu, "The Policy Cliff", 2025). Three facts, for a discount :math:`\gamma` and a reward that moves by at most
:math:`\varepsilon` in every state and action:

.. math::
    \text{gap}(s) > 2 \varepsilon / (1 - \gamma) &\Rightarrow \text{the greedy action of } s \text{ stays} \\
    \text{radius}(s) &= \text{gap}(s)\, (1 - \gamma) / 2 \\
    \lVert \pi_R(\cdot | s) - \pi_{R'}(\cdot | s) \rVert_1 &\le \varepsilon / (\alpha (1 - \gamma))

The gap is the best action's Q* less that of the second best: Q* moves by at most :math:`\varepsilon / (1 - \gamma)`, a
difference by twice that. The third is of policies with an entropy weight :math:`\alpha`: soft values move by as much,
and a softmax of temperature :math:`\alpha` by no more than that divided by :math:`\alpha`, from the greatest to the sum
of absolute differences. For several weighted rewards read their weighted sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.finite_mdp import FiniteMDP, optimal_values, policy_values, softmax_policy
from surefoot.evaluation.statistics import ANY, Interval, hierarchical_interval

Array = np.ndarray[Any, Any]
TIE = 1e-9
"""Values closer than this share of the largest are equal."""
FARTHEST = 0.5
"""Distance floor at most, in half ranges of the actions: beyond it there are states without a farther action."""
MOST_DIFFERENT = 2.0
"""Sum of absolute differences of two distributions, at most."""
PER_CALL = 256
"""States whose sampled actions are valued at once."""


def gaps(values: Array) -> Array:
    """(S,) best less second best of (S, A) values, 0 where two tie; infinite where there is one action."""
    if values.shape[-1] == 1:
        return np.full(values.shape[:-1], np.inf)
    top = np.sort(values, -1)[..., -2:]
    found = top[..., 1] - top[..., 0]
    return np.asarray(np.where(found <= TIE * max(1.0, float(np.abs(values).max())), 0.0, found))


def radius(gap: Array, discount: float) -> Array:
    """Change of the reward, in every state and action, below which the greedy action of each state stays.

    Args:
        gap: in the unit of rewards.
        discount: in [0, 1).

    Raises:
        ConfigError: a discount outside of that.
    """
    _check_discount(discount)
    return np.asarray(gap) * (1 - discount) / 2


def _check_discount(discount: float) -> None:
    if not 0 <= discount < 1:
        raise ConfigError(f"discount is {discount:g}; the bound needs one in [0, 1)", field="discount", code="range")


def soft_bound(noise: float, temperature: float, discount: float) -> float:
    """Most that a policy with entropy weight `temperature` moves in any state, as a sum of absolute differences.

    Args:
        noise: change of the reward, at most.
        temperature: above 0, in the unit of rewards.
        discount: in [0, 1).

    Raises:
        ConfigError: a number out of range.
    """
    if temperature <= 0:
        raise ConfigError(
            f"temperature is {temperature:g}; the bound is of policies with one above 0",
            field="temperature",
            code="range",
        )
    _check_discount(discount)
    return min(MOST_DIFFERENT, noise / (temperature * (1 - discount)))


# -- tables --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TableCliff:
    """What a table says, exactly, and what happened to its policy in draws of perturbed rewards."""

    gaps: Array
    """(S,) of Q*, in the unit of rewards."""
    visited: Array
    """(S,) bool: states that an episode can come to; all, where the table has no start."""
    radius: Array
    """(S,), as `radius`."""
    discount: float
    noise: float
    """Most that each reward was moved by."""
    changed: Interval | None
    """Share of visited states in which the perturbed optimum takes an action that was not optimal; over draws."""
    lost: Interval | None
    """Return from the start, by the table's own rewards, that acting by the perturbed optimum gives up; over draws."""
    draws: int
    temperature: float | None = None
    soft_moved: float | None = None
    """Most that the soft policy moved in any visited state and draw."""
    soft_limit: float | None = None
    """`soft_bound`."""

    @property
    def certified(self) -> float:
        """Least radius over visited states: no smaller change of the reward changes the greedy policy."""
        return float(self.radius[self.visited].min())

    @property
    def share_within(self) -> float:
        """Share of visited states whose greedy action `noise` may change."""
        return float((self.radius[self.visited] <= self.noise).mean())

    def to_json(self) -> dict[str, Any]:
        """For `json.dumps`; a gap of a state with one action is null."""
        return {
            "states": int(self.visited.sum()),
            "discount": self.discount,
            "certified_radius": _finite(self.certified),
            "gaps": [_finite(gap) for gap in self.gaps],
            "visited": self.visited.tolist(),
            "noise": self.noise,
            "share_within_noise": self.share_within,
            "draws": self.draws,
            "changed": None if self.changed is None else self.changed.to_json(),
            "lost": None if self.lost is None else self.lost.to_json(),
            "temperature": self.temperature,
            "soft_moved": self.soft_moved,
            "soft_limit": self.soft_limit,
        }


def cliff_of_table(
    mdp: FiniteMDP,
    discount: float,
    noise: float = 0.0,
    draws: int = 0,
    temperature: float | None = None,
    seed: int = 0,
) -> TableCliff:
    """Gaps and radii of a table's optimal policy, and how far it moved in draws of perturbed rewards.

    Args:
        mdp: the table.
        discount: in [0, 1).
        noise: each reward moves by a uniform draw from [-noise, noise], in the unit of rewards.
        draws: perturbed tables that are solved; 0: none.
        temperature: also compares the policies with this entropy weight; None: it does not.
        seed: of the draws.

    Raises:
        ConfigError: a number out of range.
        DataError: values that don't converge.
    """
    check_noise(noise, draws)
    values = optimal_values(mdp, discount)
    found = gaps(values)
    radii = radius(found, discount)
    visited = np.ones(mdp.states, bool) if mdp.start is None else mdp.reachable()
    limit = None if temperature is None else soft_bound(noise, temperature, discount)
    if draws == 0:
        return TableCliff(found, visited, radii, discount, noise, None, None, 0, temperature, None, limit)
    generator = np.random.default_rng(seed)
    best = values.max(-1)
    optimal = values >= (best - TIE * max(1.0, float(np.abs(values).max())))[:, None]
    own = float(mdp.first @ best)
    soft = None if temperature is None else softmax_policy(optimal_values(mdp, discount, temperature), temperature)
    changed, lost, moved = [], [], 0.0
    for _ in range(draws):
        rewards = mdp.rewards + generator.uniform(-noise, noise, mdp.rewards.shape)
        other = dataclasses.replace(mdp, rewards=rewards)
        chosen = optimal_values(other, discount).argmax(-1)
        taken = np.eye(mdp.actions)[chosen]
        changed.append(1 - (optimal & (taken > 0)).any(-1)[visited].mean())
        lost.append(own - float(mdp.first @ policy_values(mdp, taken, discount)))
        if soft is not None and temperature is not None:
            again = softmax_policy(optimal_values(other, discount, temperature), temperature)
            moved = max(moved, float(np.abs(again - soft).sum(-1)[visited].max()))
    return TableCliff(
        found,
        visited,
        radii,
        discount,
        noise,
        _over_draws(changed, (0.0, 1.0)),
        _over_draws(lost),
        draws,
        temperature,
        None if soft is None else moved,
        limit,
    )


def _over_draws(found: list[float], bounds: tuple[float, float] = ANY) -> Interval:
    made = hierarchical_interval([np.array(found)], bounds=bounds)
    return dataclasses.replace(made, method="Student's t over perturbed rewards")


def check_noise(noise: float, draws: int) -> None:
    """Raise ConfigError for a change of rewards or a number of perturbed ones that makes no sense."""
    if not (math.isfinite(noise) and noise >= 0):
        raise ConfigError(
            f"noise is {noise:g}; it must be 0 or more, in the unit of rewards", field="noise", code="range"
        )
    if draws < 0:
        raise ConfigError(f"{draws} perturbed rewards; give 0 or more", field="draws", code="range")
    if draws > 0 and noise == 0:
        raise ConfigError(
            "rewards are perturbed by noise, which is 0: give how much they move", field="noise", code="range"
        )


# -- critics -------------------------------------------------------------------------------------------------


class ActionGaps(NamedTuple):
    """Of each of B states, in the unit of what the critics were trained on."""

    gap: Array
    """(B,) how much better the best action is than the others, by the critic that says the least; below 0 where
    critics disagree on which is the best."""
    lost: Array | None
    """(B,) most that is lost within the distance floor around the best action; None of choices."""


def gaps_of_choices(values: Tensor) -> ActionGaps:
    """Of (E, B, A) values by E critics: the best by their mean, less the best of the others by each critic."""
    best = values.mean(0).argmax(-1)  # (B,)
    here = values.gather(-1, best.expand(len(values), -1)[..., None]).squeeze(-1)
    others = values.scatter(-1, best.expand(len(values), -1)[..., None], -torch.inf).amax(-1)
    return ActionGaps((here - others).amin(0).double().numpy(), None)


def gaps_of_actions(
    critic: Callable[[Tensor], Tensor],
    observations: Tensor,
    policy_actions: Tensor,
    generator: torch.Generator,
    distance: float = 0.1,
    samples: int = 64,
) -> ActionGaps:
    """Of continuous actions: the best action against actions that are at least a distance away, all of them sampled.

    The best is the highest by the critics' mean among the policy's action and `samples` uniform ones. It stands for its
    neighbourhood: the gap is each critic's highest value within the distance (of as many samples there), less its
    highest farther away. With few samples a gap is too large rather than too small: the best far action is missed.

    Args:
        critic: (n, O + A) observations and actions -> (E, n) values.
        observations: (B, O) as the critic reads them.
        policy_actions: (B, A) in [-1, 1].
        generator: of the samples.
        distance: the floor: greatest difference of any action dimension, in half ranges, in (0, 0.5].
        samples: of each state, uniform and near.

    Raises:
        ConfigError: a number out of range.
    """
    if not 0 < distance <= FARTHEST:
        raise ConfigError(
            f"distance is {distance:g}; it is in half ranges of the actions, above 0 and at most {FARTHEST:g}",
            field="distance",
            code="range",
        )
    if samples < 2:
        raise ConfigError(f"samples is {samples}; take at least 2", field="samples", code="range")
    gap, lost = [], []
    for here, own in zip(observations.split(PER_CALL), policy_actions.split(PER_CALL), strict=True):
        uniform = torch.rand((len(here), samples, own.shape[-1]), generator=generator) * 2 - 1
        offered = torch.cat([own[:, None].clamp(-1, 1), uniform], 1)
        values = _values(critic, here, offered)  # (E, B, 1 + n)
        best = values.mean(0).argmax(-1)
        around = offered[torch.arange(len(here)), best]
        moves = (torch.rand((len(here), samples, own.shape[-1]), generator=generator) * 2 - 1) * distance
        near = _values(critic, here, (around[:, None] + moves).clamp(-1, 1))
        own_values = values.gather(-1, best.expand(len(values), -1)[..., None])
        far = ((offered - around[:, None]).abs().amax(-1) >= distance).expand_as(values)
        away = values.masked_fill(~far, -torch.inf).amax(-1)
        gap.append((torch.cat([own_values, near], -1).amax(-1) - away).amin(0))
        lost.append((own_values - near).amax(-1).amax(0).clamp_min(0))
    return ActionGaps(torch.cat(gap).double().numpy(), torch.cat(lost).double().numpy())


def _values(critic: Callable[[Tensor], Tensor], observations: Tensor, actions: Tensor) -> Tensor:
    """(E, B, n) values of (B, n, A) actions at (B, O) observations."""
    states, count = actions.shape[:2]
    pairs = torch.cat([observations[:, None].expand(-1, count, -1), actions], -1)
    values = critic(pairs.reshape(states * count, -1))
    return values.reshape(-1, states, count)


def smooth_noise(observations: Array, actions: Array, noise: float, seed: int) -> Array:
    """(N,) a smooth function of observation and action, within [-noise, noise], drawn from `seed`.

    A sine along a random direction of the standardised observations and actions, of a random phase: neighbours move
    alike, as by a reward that is a little other, where noise of each row by itself would average out.
    """
    generator = np.random.default_rng(seed)
    both = np.concatenate([observations, actions], -1).astype(np.float64)
    spread: Array = both.std(0)
    standard: Array = (both - both.mean(0)) / np.where(spread > 0, spread, 1.0)
    direction = generator.normal(size=both.shape[1])
    direction *= math.pi / float(np.linalg.norm(direction))  # half a wave a standard deviation
    return np.asarray(noise * np.sin(standard @ direction + generator.uniform(0, 2 * math.pi)))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
