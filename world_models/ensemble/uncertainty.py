"""How much an ensemble's prediction is to be trusted: penalties and thresholds of offline model-based learning.

Every function takes what `GaussianEnsemble.predict_all` or `predict_elites` gives, member first, and is pure. Names say
where the spread comes from: aleatoric is the noise that members predict, epistemic their disagreement.
"""

from __future__ import annotations

import torch
from torch import Tensor


def max_aleatoric(stds: Tensor) -> Tensor:
    r"""(...) :math:`\max_e \lVert \sigma_e \rVert_2` of (E, ..., D) standard deviations, rewards included.

    Source: Yu et al., "MOPO: Model-based Offline Policy Optimization" (2020), section 4.3.
    """
    return stds.norm(dim=-1).amax(0)


def pairwise_difference(means: Tensor) -> Tensor:
    r"""(...) :math:`\max_e \lVert \mu_e - \bar\mu \rVert_2` of (E, ..., D) means: the farthest from their average.

    Source: Lu, Ball, Parker-Holder, Osborne and Roberts, "Revisiting Design Choices in Offline Model Based
    Reinforcement Learning" (2022); there of the next states alone, without rewards.
    """
    return (means - means.mean(0)).norm(dim=-1).amax(0)


def largest_distance(means: Tensor) -> Tensor:
    r"""(...) :math:`\max_{i, j} \lVert \mu_i - \mu_j \rVert_2` of (E, ..., D) means: MOReL's disagreement.

    Source: Kidambi, Rajeswaran, Netrapalli and Joachims, "MOReL" (2020), equation 2.
    """
    members = range(1, len(means))
    return torch.stack([(means - means.roll(shift, 0)).norm(dim=-1).amax(0) for shift in members]).amax(0)


def ensemble_std(means: Tensor) -> Tensor:
    r"""(...) :math:`\sqrt{\mathrm{mean}_d \mathrm{var}_e \mu_e}` of (E, ..., D) means, with 1 / E.

    Source: as `pairwise_difference`.
    """
    return means.var(0, correction=0).mean(-1).sqrt()


def ensemble_variance(means: Tensor, stds: Tensor) -> Tensor:
    r"""(...) 2-norm of the mixture's deviations, both spreads: :math:`E (\sigma_e^2 + \mu_e^2) - \bar\mu^2`.

    Source: Lakshminarayanan, Pritzel and Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles" (2017), section 2.4.
    """
    return (stds.square().mean(0) + means.var(0, correction=0)).sqrt().norm(dim=-1)


def bellman_inconsistency(values: Tensor, correction: int = 1) -> Tensor:
    """(...) standard deviation over members of the mean value of the states that each of them samples.

    Args:
        values: (E, M, ...) of M states sampled from each of E members: the least of the target critics at an action of
            the policy's.
        correction: 1 divides the variance by E - 1, as torch does by default; 0 by E.

    Source: Sun, Zhang, Jia, Lin, Ye and Yu, "Model-Bellman Inconsistency for Model-based Offline Reinforcement
    Learning" (MOBILE, 2023), equation 6.
    """
    return values.mean(1).std(0, correction=correction)
