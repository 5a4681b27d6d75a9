"""MSG: deep pessimism by a lower confidence bound over critics that never see each other's targets."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import algorithm_of, require
from surefoot.offline.edac import EDAC, EDACConfig

TARGETS = ("independent", "shared")


@dataclasses.dataclass(frozen=True)
class MSGConfig(EDACConfig):
    """Settings of MSG; the defaults are those of RIQL's authors, who compare with it."""

    diversity: float = option(0.0, "eta of EDAC's term, which MSG does without")
    deviations: float = option(
        4.0, "beta: standard deviations of the critics below their mean that the policy maximises", range=">= 0"
    )
    targets: str = option(
        "independent",
        "targets of the critics: independent, each its own next value; or shared, the lower bound of the next values",
        choices=TARGETS,
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        require(self.critics >= 2, name, "critics", self.critics, ">= 2: one has no deviation")


class MSG(EDAC):
    r"""MSG of Ghasemipour, Gu and Nachum, "Why So Pessimistic?" (NeurIPS 2022): the deep lower confidence bound.

    .. math::
        y_i &= r + \gamma (1 - d)\, (\hat Q_i(s', a') - \alpha \log\pi(a'|s')), \quad a' \sim \pi(s') \\
        L_Q &= \textstyle\sum_i E\, (Q_i(s, a) - y_i)^2 \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - (\mu - \beta \sigma)(Q_1(s, a) ... Q_N(s, a))], \quad a \sim \pi(s)

    Each critic bootstraps from its own target, so that N critics are N independent fits whose spread, over N - 1, says
    how little the data determine a value; with a shared target the spread of a single step is all that is left. The
    minimum of N is near a bound too, of .56 deviations for N = 2, 1.16 for 5 and 1.54 for 10. The rest is as in EDAC.
    The paper adds CQL's term on some tasks, which is not here.
    """

    name = "msg"
    Config: ClassVar[type] = MSGConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"riql": {}, "shared": {"targets": "shared"}}

    def pessimistic(self, values: Tensor) -> Tensor:
        """(B,) mean of (N, B) critics' values less some of their deviations."""
        return values.mean(0) - self.config.deviations * values.std(0)

    def next_values(self, values: Tensor) -> Tensor:
        """(N, B) each critic's own next value, or their lower bound, (B,), for all."""
        return values if self.config.targets == "independent" else self.pessimistic(values)
