"""Coefficients and step sizes that follow what the update before them did."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError


def adaptive_lr(
    kl: Tensor, learning_rate: Tensor, target: float, factor: float = 1.5, lowest: float = 1e-5, highest: float = 1e-2
) -> Tensor:
    """The next learning rate: divided by `factor` where KL > 2 target, multiplied where 0 < KL < target / 2.

    A KL of 0 is that of a policy not yet stepped (the first minibatch), and says nothing.

    Args:
        kl: scalar or one per seed, in nats.
        learning_rate: likewise.
        target: in nats.
        factor: above 1.
        lowest: bound.
        highest: bound.

    Source: Schulman et al., "Proximal Policy Optimization", section 4, with the constants of Rudin et al. (rsl_rl).
    """
    down = (learning_rate / factor).clamp(min=lowest)
    up = (learning_rate * factor).clamp(max=highest)
    slow = (kl > 0) & (kl < target / 2)
    return torch.where(kl > 2 * target, down, torch.where(slow, up, learning_rate))


def kl_stop(kl: Tensor, target: float | None) -> Tensor:
    """Bool, like `kl`: whether a policy has gone further than `target` nats, and this batch's updates should end."""
    return torch.zeros_like(kl, dtype=torch.bool) if target is None else kl > target


def adaptive_kl(coefficient: Tensor, kl: Tensor, target: float, horizon: float, count: int) -> Tensor:
    """The next coefficient of a KL penalty: times 1 + clip(KL / target - 1, -0.2, 0.2) count / horizon.

    Args:
        coefficient: scalar.
        kl: scalar, in nats.
        target: in nats, above 0.
        horizon: samples over which the coefficient may change by a fifth.
        count: samples since the last change.

    Source: Ziegler et al., "Fine-Tuning Language Models from Human Preferences", section 2.2.
    """
    error = (kl.detach() / target - 1).clamp(-0.2, 0.2)
    return coefficient * (1 + error * count / horizon)


def adaptive_entropy(
    coefficient: Tensor, entropy: Tensor, target: float, step: float = 5e-3, lowest: float = 0.0, highest: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The next coefficient of an entropy bonus, and the one to apply now: 0 while the entropy is above its target.

    Args:
        coefficient: scalar.
        entropy: scalar, in nats per unit.
        target: in nats per unit.
        step: added where the entropy is no more than its target, else taken away.
        lowest: bound.
        highest: bound.

    Returns:
        The coefficient to keep, and that to multiply the bonus with.

    Source: He et al., "Skywork Open Reasoner 1", adaptive entropy control.
    """
    low = entropy.detach() <= target
    kept = (coefficient + torch.where(low, step, -step)).clamp(lowest, highest)
    return kept, torch.where(low, kept, torch.zeros_like(kept))


def annealed_noise(stage: int, stages: int, first: float = 1e-2, last: float = 1e-4) -> float:
    """Standard deviation of the noise on a sampler's normalisation weights: 0, then falling from `first` to `last`.

    Args:
        stage: 0 to `stages` - 1; training is cut into stages of equal length.
        stages: K >= 3.
        first: of stage 1.
        last: of stage K - 1.

    Returns:
        first (last / first)^((stage - 1) / (K - 2)); 0 for stage 0.

    Raises:
        ConfigError: a stage that there is not, or fewer than three.

    Source: Huang et al., "QeRL", adaptive quantisation noise.
    """
    if stages < 3 or not 0 <= stage < stages:
        raise ConfigError(f"stage {stage} of {stages}: give at least 3 stages, and a stage from 0 to stages - 1")
    return 0.0 if stage == 0 else first * (last / first) ** ((stage - 1) / (stages - 2))
