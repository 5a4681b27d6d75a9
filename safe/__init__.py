"""Safe: reinforcement learning under constraints, from data and by acting; reachability and safety filters."""

from surefoot.core.engine.agent import Agent
from surefoot.safe.bc_safe import BCSafe, BCSafeConfig
from surefoot.safe.bcq_lag import BCQLag, BCQLagConfig
from surefoot.safe.bear_lag import BEARLag, BEARLagConfig
from surefoot.safe.cdt import CDT, CDTConfig
from surefoot.safe.coptidice import COptiDICE, COptiDICEConfig
from surefoot.safe.cpo import CPO, CPOConfig
from surefoot.safe.cpq import CPQ, CPQConfig
from surefoot.safe.cup import CUP, CUPConfig
from surefoot.safe.fisor import FISOR, FISORConfig
from surefoot.safe.focops import FOCOPS, FOCOPSConfig
from surefoot.safe.ppo_lag import PPOPID, PPOLag, PPOLagConfig, PPOPIDConfig
from surefoot.safe.sac_lag import SACLag, SACLagConfig
from surefoot.safe.trpo_lag import TRPOPID, TRPOLag, TRPOLagConfig, TRPOPIDConfig

_AGENTS: tuple[type[Agent], ...] = (BCSafe, BCQLag, BEARLag, CDT, COptiDICE, CPO, CPQ, CUP, FISOR, FOCOPS, PPOLag)
_AGENTS += (PPOPID, SACLag, TRPOLag, TRPOPID)
ALGORITHMS: dict[str, type[Agent]] = {agent.name: agent for agent in _AGENTS}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "CDT",
    "CPO",
    "CPQ",
    "CUP",
    "FISOR",
    "FOCOPS",
    "PPOPID",
    "TRPOPID",
    "BCQLag",
    "BCQLagConfig",
    "BCSafe",
    "BCSafeConfig",
    "BEARLag",
    "BEARLagConfig",
    "CDTConfig",
    "COptiDICE",
    "COptiDICEConfig",
    "CPOConfig",
    "CPQConfig",
    "CUPConfig",
    "FISORConfig",
    "FOCOPSConfig",
    "PPOLag",
    "PPOLagConfig",
    "PPOPIDConfig",
    "SACLag",
    "SACLagConfig",
    "TRPOLag",
    "TRPOLagConfig",
    "TRPOPIDConfig",
]
