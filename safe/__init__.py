"""Safe: reinforcement learning under constraints, from data and by acting, and what says whether it holds."""

from surefoot.core.agent import Agent
from surefoot.safe.bc_safe import BCSafe, BCSafeConfig
from surefoot.safe.bcq_lag import BCQLag, BCQLagConfig
from surefoot.safe.bear_lag import BEARLag, BEARLagConfig
from surefoot.safe.cdt import CDT, CDTConfig
from surefoot.safe.coptidice import COptiDICE, COptiDICEConfig
from surefoot.safe.cpq import CPQ, CPQConfig
from surefoot.safe.fisor import FISOR, FISORConfig

ALGORITHMS: dict[str, type[Agent]] = {
    "bc_safe": BCSafe,
    "bcq_lag": BCQLag,
    "bear_lag": BEARLag,
    "cdt": CDT,
    "coptidice": COptiDICE,
    "cpq": CPQ,
    "fisor": FISOR,
}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "CDT",
    "CPQ",
    "FISOR",
    "BCQLag",
    "BCQLagConfig",
    "BCSafe",
    "BCSafeConfig",
    "BEARLag",
    "BEARLagConfig",
    "CDTConfig",
    "COptiDICE",
    "COptiDICEConfig",
    "CPQConfig",
    "FISORConfig",
]
