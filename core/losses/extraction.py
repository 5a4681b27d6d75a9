"""Policies from values: what the actor's loss is once values are known."""

from __future__ import annotations

from torch import Tensor


def ddpg_bc_loss(values: Tensor, log_density: Tensor, cloning: float) -> Tensor:
    r"""Ascend the values, divided by their mean size, and clone: DDPG+BC.

    :math:`L = - E\,Q / \overline{(E |Q| + 10^{-6})} - \alpha\, E \log \pi(a | s)`. The second term is not scaled:
    alpha counts nats of log density.

    Args:
        values: (B,) of the policy's own actions, with gradient.
        log_density: (B,) of the data's actions, in nats.
        cloning: alpha >= 0.

    Source: Park, Frans, Levine and Kumar, "Is Value Learning Really the Main Bottleneck in Offline RL?" (NeurIPS 2024),
    eq. (4), with the scale of Fujimoto and Gu (2021), as seohongpark/ogbench has it.
    """
    size = values.detach().abs().mean() + 1e-6
    return -values.mean() / size - cloning * log_density.mean()
