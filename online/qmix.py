"""QMIX: values of each agent, mixed into the team's by a network that is monotone in each of them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

from torch import Tensor, nn

from surefoot.core.base.options import option
from surefoot.core.engine.traits import Teams
from surefoot.core.nn.mixing import MonotoneMixing
from surefoot.online.base.team_rows import state_part, state_width
from surefoot.online.vdn import VDN, VDNConfig


@dataclasses.dataclass(frozen=True)
class QMIXConfig(VDNConfig):
    """Settings of QMIX: VDN's, and those of the mixing network."""

    mixing_width: int = option(32, "units of the mixing network", range=">= 1")
    mixing_hidden: int = option(128, "units of the perceptrons that give its weights", range=">= 1")
    mixing_scale: float = option(1.0, "factor on the last layers of these perceptrons at the start", range="> 0")


class QMIX(VDN):
    r"""QMIX of Rashid et al., "QMIX: Monotonic Value Function Factorisation" (2018).

    .. math::
        Q_{tot}(s, a) = w_2(s)^\top \mathrm{elu}(W_1(s)\, q + b_1(s)) + b_2(s), \quad q_i = Q(o^i, i, a^i)

    with W_1, w_2 >= 0, so that the best choices of the agents by their own values are the best together. Everything
    else is VDN's, whose sum is one such function: the target mixes the target's values by a target of the mixing
    network. The preset's scale is JaxMARL's, whose networks of an agent are recurrent; these are not.
    """

    name = "qmix"
    Config = QMIXConfig
    teams = Teams(trains=True, reads_state=True)
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"mpe": {**VDN.PRESETS["mpe"], "mixing_scale": 0.001}}
    config: QMIXConfig

    def build_mixing(self) -> None:
        """The mixing network and its target."""
        c, spec = self.config, self.spec
        width = state_width(spec) if spec.state_dim else self.features
        self.mixing = MonotoneMixing(spec.agents, width, c.mixing_width, c.mixing_hidden, c.mixing_scale)
        self.target_mixing = copy.deepcopy(self.mixing).requires_grad_(False)

    @property
    def trained(self) -> tuple[str, ...]:
        """Networks that the loss trains."""
        return ("critic", "mixing")

    @property
    def mixings(self) -> tuple[nn.Module | None, nn.Module | None]:
        """The mixing network and its target."""
        return self.mixing, self.target_mixing

    def mix(self, values: Tensor, observations: Tensor, mixing: nn.Module | None) -> Tensor:
        """(B,) values of the team for (B, A) of its agents at (B, A, O) rows, all of which show its state."""
        assert mixing is not None
        row = observations[..., 0, :]
        state = state_part(row, self.spec) if self.spec.state_dim else row
        mixed: Tensor = mixing(values, state)
        return mixed
