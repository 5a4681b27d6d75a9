"""WSRL: fine-tune a pre-trained policy and its critics online without keeping the data that they came from."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Batch, Rule, Update, require
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import pairs
from surefoot.online.redq import REDQ, REDQConfig


@dataclasses.dataclass(frozen=True)
class WSRLConfig(REDQConfig):
    """Settings of WSRL: those of zhouzypaul/wsrl, with the two plain critics of `CQLConfig`'s default."""

    initial_steps: int = option(
        5_000, "environment steps before the first update: a warm-up by the pre-trained policy, frozen"
    )
    initial_actions: str = option("policy", "actions of the initial steps: the policy's own, and nothing else")
    replay_capacity: int = 2_000_000
    critics: int = 2
    subset_replacement: bool = option(False, "draw the subset with replacement, as zhouzypaul/wsrl does")
    critic_steps: int = 4
    critic_loss_over: str = "mean"
    entropy_backup: bool = False
    backup_actions: int = option(
        1, "next actions that are drawn for a target, which takes the best of their values", range=">= 1"
    )
    actor_value: str = "min"
    actor_rows: str = "all"
    temperature_form: str = "softplus"
    temperature_at: str = "next_observations"
    actor_learning_rate: float = 1e-4
    temperature_learning_rate: float = 1e-4
    layer_norm_epsilon: float = option(1e-6, "number that both layer norms add to the variance; flax's")
    log_std_range: tuple[float, float] = (math.log(1e-5), math.log(10.0))
    initialization: str = "orthogonal"

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        needed = "policy: random actions would throw away what the pre-training is for"
        require(self.initial_actions == "policy", "wsrl", "initial_actions", self.initial_actions, needed)
        whole = not self.subset_replacement or self.subset == int(self.subset)
        require(whole, "wsrl", "subset", self.subset, "a whole number with subset_replacement")
        alone = self.backup_actions == 1 or not self.entropy_backup
        require(alone, "wsrl", "backup_actions", self.backup_actions, "1, or entropy_backup false")


ENSEMBLE: dict[str, Any] = {"critics": 10, "layer_norm_actor": True, "layer_norm_critic": True}
"""What zhouzypaul/wsrl adds in every domain."""


class WSRL(REDQ):
    r"""WSRL of Zhou et al., "Efficient Online RL Fine-Tuning Need Not Retain Offline Data" (ICLR 2025).

    A run of `cql` or `calql` with the same preset gives all networks: actor, critics, their targets and the
    temperature (`init=RUN`). Its stochastic policy, frozen, first fills an empty replay buffer; then it is SAC with
    four critic steps on 256 rows each and one actor step on all 1,024:

    .. math::
        y = r + \gamma (1 - d)\, \min_{i \in S} \hat Q_i(s', a'), \qquad
        L_\pi = E\, [\alpha \log\pi(a|s) - \min_i Q_i(s, a)]

    No conservatism, no entropy in the target, no offline data. As with the authors' checkpoint, optimisers continue
    the moments that they had. On AntMaze the target is the best of ten next actions, as in pre-training. The authors'
    agent has a deviation there that does not depend on the state: `wsrl-antmaze` has not. Nor do last hidden layers
    begin small, and every critic has an output layer of its own, where the authors' share one. In their code a step of
    some networks hands the others' Adam gradients of zero, so that momentum keeps moving them: the actor is moved
    five times for each of its gradients, which in the long run takes it sqrt(5) times as far as the same rate does
    here, and the critics sqrt(5 / 4) times.
    """

    name = "wsrl"
    Config = WSRLConfig
    requires = Requires(run=True)
    warm_start = WarmStart(
        networks=("actor", "normalizer", "critic", "target_critic", "temperature"), moments=("cql", "calql", "wsrl")
    )
    PRESETS = {  # noqa: RUF012
        "locomotion": {},
        "wsrl-locomotion": ENSEMBLE,
        "wsrl-kitchen": {**ENSEMBLE, "hidden": (512, 512, 512)},
        "wsrl-adroit": {**ENSEMBLE, "hidden": (512, 512), "critic_hidden": (512, 512, 512)},
        "wsrl-antmaze": {**ENSEMBLE, "critic_hidden": (256, 256, 256, 256), "backup_actions": 10},
        "repository": {**ENSEMBLE, "subset_replacement": True},  # with its draw of critics, some of them twice
    }
    config: WSRLConfig

    def subset_noise(self) -> dict[str, Noise]:
        """What `members` reads."""
        c = self.config
        return ensembles.subset_noise(c.critics, c.subset, c.subset_replacement)

    def members(self, noise: dict[str, Tensor]) -> Tensor | None:
        """As REDQ's; with replacement, where it is asked for."""
        c = self.config
        return ensembles.subset(noise["subset"], c.subset, c.subset_replacement) if "subset" in noise else None

    def next_values(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) value of a next action, or the best of some, valued by the lowest of some critics."""
        c, following = self.config, batch["next_observations"]
        if c.backup_actions == 1:
            return super().next_values(batch, noise)
        draws = noise["next_action"].unflatten(-1, (c.backup_actions, -1)).movedim(-2, 0)
        actions, _ = self.actor.draw(following, draws)
        return ensembles.lowest(self.target_critic, pairs(following, actions), self.members(noise)).amax(0)

    def updates(self) -> list[Update | Rule]:
        """REDQ's, with the noise of several next actions."""
        critic, *others = super().updates()
        assert isinstance(critic, Update)
        several = Noise("normal", self.config.backup_actions * self.spec.action_dim)
        return [dataclasses.replace(critic, noise={**critic.noise, "next_action": several}), *others]
