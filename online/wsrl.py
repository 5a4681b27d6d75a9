"""WSRL: fine-tune a pre-trained policy and its critics online without keeping the data that they came from."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from surefoot.core.agent import require
from surefoot.online.sac import SAC, SACConfig


@dataclasses.dataclass(frozen=True)
class WSRLConfig(SACConfig):
    """Settings of WSRL: those of zhouzypaul/wsrl, with the two plain critics of `CQLConfig`'s default."""

    initial_steps: int = 5_000  # warm-up by the pre-trained policy, frozen
    initial_actions: str = "policy"  # and nothing else
    replay_capacity: int = 2_000_000
    critic_steps: int = 4
    critic_loss_over: str = "mean"
    entropy_backup: bool = False
    actor_rows: str = "all"
    temperature_form: str = "softplus"
    temperature_at: str = "next_observations"
    actor_learning_rate: float = 1e-4
    temperature_learning_rate: float = 1e-4
    log_std_range: tuple[float, float] = (math.log(1e-5), math.log(10.0))
    initialisation: str = "orthogonal"

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        needed = "policy: random actions would throw away what the pre-training is for"
        require(self.initial_actions == "policy", "wsrl", "initial_actions", self.initial_actions, needed)


ENSEMBLE: dict[str, Any] = {"critics": 10, "layer_norm_actor": True, "layer_norm_critic": True}
"""What zhouzypaul/wsrl adds in every domain."""


class WSRL(SAC):
    r"""WSRL of Zhou et al., "Efficient Online RL Fine-Tuning Need Not Retain Offline Data" (ICLR 2025).

    A run of `cql` or `calql` with the same preset gives all networks: actor, critics, their targets and the
    temperature (`init=RUN`). Its stochastic policy, frozen, first fills an empty replay buffer; then it is SAC with
    four critic steps on 256 rows each and one actor step on all 1,024:

    .. math::
        y = r + \gamma (1 - d)\, \min_{i \in S} \hat Q_i(s', a'), \qquad
        L_\pi = E\, [\alpha \log\pi(a|s) - \min_i Q_i(s, a)]

    No conservatism, no entropy in the target, no offline data. As with the authors' checkpoint, optimisers go on with
    the moments that they had. On AntMaze the target is the best of ten next actions, as in pre-training. The authors'
    agent has a deviation there that does not depend on the state: `wsrl-antmaze` has not. Nor do last hidden layers
    begin small.
    """

    name = "wsrl"
    Config = WSRLConfig
    needs_init = True
    inherits = ("actor", "normalizer", "critic", "target_critic", "temperature")
    inherits_moments = ("cql", "calql", "wsrl")
    PRESETS = {  # noqa: RUF012
        "locomotion": {},
        "wsrl-locomotion": ENSEMBLE,
        "wsrl-kitchen": {**ENSEMBLE, "hidden": (512, 512, 512)},
        "wsrl-adroit": {**ENSEMBLE, "hidden": (512, 512), "critic_hidden": (512, 512, 512)},
        "wsrl-antmaze": {**ENSEMBLE, "critic_hidden": (256, 256, 256, 256), "backup_actions": 10},
        "repository": {**ENSEMBLE, "subset_replacement": True},  # with its draw of critics, some of them twice
    }
