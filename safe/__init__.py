"""Safe: reinforcement learning under constraints, from data and by acting, and what says whether it holds."""

from surefoot.core.agent import Agent
from surefoot.safe.bc_safe import BCSafe
from surefoot.safe.bcq_lag import BCQLag
from surefoot.safe.bear_lag import BEARLag
from surefoot.safe.coptidice import COptiDICE
from surefoot.safe.cpq import CPQ

ALGORITHMS: dict[str, type[Agent]] = {
    BCQLag.name: BCQLag,
    BCSafe.name: BCSafe,
    BEARLag.name: BEARLag,
    COptiDICE.name: COptiDICE,
    CPQ.name: CPQ,
}
"""Name on the command line -> agent."""

__all__ = ["ALGORITHMS", "CPQ", "BCQLag", "BCSafe", "BEARLag", "COptiDICE"]
