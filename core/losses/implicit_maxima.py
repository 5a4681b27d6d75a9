r"""Losses whose minimiser over V stands for a soft maximum of Q over the data's actions.

Each reads differences u = Q - V. They are the alternatives to the expectile (`value_learning.expectile_loss`): Gumbel
regression of extreme Q-learning, and the conjugates of f-divergences of dual RL.
"""

from __future__ import annotations

from torch import Tensor


def gumbel_loss(difference: Tensor, temperature: float, limit: float | None = None) -> Tensor:
    r"""Gumbel regression :math:`(e^z - z - 1) e^{-m}`, z = min(u / T, limit), m = max(max z, -1).

    Without the limit its minimiser over predictions is T log E exp(Q / T). Rows at the limit have no gradient, which
    lowers it. The factor exp(-m), which is not differentiated, keeps the exponentials in range: it is a step size that
    falls where some row of the batch lies far above.

    Args:
        difference: u, (..., B); m is taken over the last dimension.
        temperature: T > 0, in the units of u.
        limit: of z; None: no limit.

    Returns:
        Loss per element, the shape of `difference`.

    Source: Garg, Hejna, Geist and Ermon, "Extreme Q-Learning: MaxEnt RL without Entropy" (ICLR 2023), eq. (11) and
    appendix D; the scaling is that of the authors' code.
    """
    z = difference / temperature
    if limit is not None:
        z = z.clamp(max=limit)
    largest = z.detach().amax(-1, keepdim=True).clamp(min=-1.0)
    scale = (-largest).exp()
    return (z - largest).exp() - z * scale - scale


def total_variation_loss(difference: Tensor, weight: float) -> Tensor:
    r"""Dual RL's value loss for total variation, :math:`\lambda \max(u, 0) - (1 - \lambda) u`.

    Its minimiser over predictions is the quantile of Q at the level 1 - (1 - lambda) / lambda, for lambda above 1/2.

    Args:
        difference: u, any shape.
        weight: lambda in (0, 1].

    Returns:
        Loss per element, the shape of `difference`.

    Source: Sikchi, Zheng, Zhang and Niekum, "Dual RL: Unification and New Methods for Reinforcement and Imitation
    Learning" (ICLR 2024).
    """
    return weight * difference.clamp(min=0) - (1 - weight) * difference


def chi_square_loss(difference: Tensor, weight: float, exact: bool = False) -> Tensor:
    r"""Dual RL's value loss for the chi-square divergence, :math:`\lambda f^*(u) - (1 - \lambda) u`.

    Args:
        difference: u, any shape.
        weight: lambda in (0, 1].
        exact: with the conjugate over positive densities, f* = u + u^2 / 4 down to u = -2 and -1 below. The authors'
            code has max(u + u^2 / 4, 0) instead, which is flat between -4 and 0 and rises again below -4.

    Returns:
        Loss per element, the shape of `difference`.

    Source: as `total_variation_loss`.
    """
    if exact:
        above = difference.clamp(min=-2)
        conjugate = above + above.square() / 4
    else:
        conjugate = (difference + difference.square() / 4).clamp(min=0)
    return weight * conjugate - (1 - weight) * difference
