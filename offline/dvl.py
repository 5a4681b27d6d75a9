"""f-DVL: implicit Q-learning whose values come from the dual of RL regularised by an f-divergence."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.losses.implicit_maxima import chi_square_loss, total_variation_loss
from surefoot.offline.xql import ANTMAZE, XQL, ImplicitConfig

DIVERGENCES = ("total_variation", "chi_square", "chi_square_exact")


@dataclasses.dataclass(frozen=True)
class DVLConfig(ImplicitConfig):
    """Settings of f-DVL."""

    divergence: str = option(
        "total_variation",
        "the f-divergence: total_variation, chi_square (authors' code) or chi_square_exact",
        choices=DIVERGENCES,
    )
    weight: float = option(
        0.8, "weight of the conjugate against the pull on V, lambda; nearer 1 is nearer the maximum", range="(0.5, 1]"
    )


class DVL(XQL):
    r"""f-DVL of Sikchi, Zheng, Zhang and Niekum, "Dual RL" (ICLR 2024).

    .. math::
        L_V = E\, [\lambda f^*(u) - (1 - \lambda) u], \quad u = \min_i \hat Q_i(s, a) - V(s)

    and everything else as in XQL, which is the same for the reverse KL divergence, but without exponentials of values.
    For total variation f* = max(u, 0), and V is the quantile of Q at 1 - (1 - lambda) / lambda. For chi-square the
    authors' code has f* = max(u + u^2 / 4, 0), flat for u in (-4, 0) and rising again below; `chi_square_exact` is
    the conjugate over positive densities. With lambda = 1, which their README has for locomotion, the second term is
    gone: V is only pushed up.
    """

    name = "dvl"
    Config: ClassVar[type] = DVLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "total_variation": {},
        "official": {"divergence": "chi_square", "weight": 1.0, "random_actions": 1},
        "antmaze": {**ANTMAZE, "divergence": "total_variation", "weight": 0.8},
    }

    def implicit(self, advantage: Tensor) -> Tensor:
        """Loss per row for (..., B) Q - V."""
        c = self.config
        if c.divergence == "total_variation":
            return total_variation_loss(advantage, c.weight)
        return chi_square_loss(advantage, c.weight, exact=c.divergence == "chi_square_exact")
