"""REDQ: SAC with ten critics, of which each target takes the minimum of two, and twenty critic steps a step."""

from __future__ import annotations

import dataclasses

from surefoot.online.sac import SAC, SACConfig


@dataclasses.dataclass(frozen=True)
class REDQConfig(SACConfig):
    """Settings of REDQ; the defaults are those of watchernyu/REDQ, where they differ from SAC's."""

    initial_steps: int = 5_000
    critics: int = 10
    critic_steps: int = 20
    critic_loss_over: str = "sum"
    actor_value: str = "mean"
    initialisation: str = "xavier"


class REDQ(SAC):
    r"""REDQ of Chen, Wang, Zhou and Ross, "Randomized Ensembled Double Q-Learning" (ICLR 2021).

    .. math::
        y &= r + \gamma (1 - d)\, (\min_{i \in S} \hat Q_i(s', a') - \alpha \log\pi(a'|s')), \quad |S| = 2 \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - \tfrac1{10} \textstyle\sum_i Q_i(s, a)]

    Each of the critic steps has a batch and a subset S of its own; actor and temperature learn from the last batch.
    The presets have the target entropies that MBPO and REDQ use for gymnasium's tasks.
    """

    name = "redq"
    Config = REDQConfig
    PRESETS = {  # noqa: RUF012
        "paper": {},
        "hopper": {"target_entropy": -1.0},
        "halfcheetah": {"target_entropy": -3.0},
        "walker2d": {"target_entropy": -3.0},
        "ant": {"target_entropy": -4.0},
        "humanoid": {"target_entropy": -2.0},
    }
