"""Safe: reinforcement learning under constraints, from data and by acting, and what says whether it holds."""

from surefoot.core.agent import Agent
from surefoot.safe.cpo import CPO, CPOConfig
from surefoot.safe.cup import CUP, CUPConfig
from surefoot.safe.focops import FOCOPS, FOCOPSConfig
from surefoot.safe.ppo_lag import PPOPID, PPOLag, PPOLagConfig, PPOPIDConfig
from surefoot.safe.sac_lag import SACLag, SACLagConfig
from surefoot.safe.trpo_lag import TRPOPID, TRPOLag, TRPOLagConfig, TRPOPIDConfig

ALGORITHMS: dict[str, type[Agent]] = {
    CPO.name: CPO,
    CUP.name: CUP,
    FOCOPS.name: FOCOPS,
    PPOLag.name: PPOLag,
    PPOPID.name: PPOPID,
    SACLag.name: SACLag,
    TRPOLag.name: TRPOLag,
    TRPOPID.name: TRPOPID,
}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "CPO",
    "CUP",
    "FOCOPS",
    "PPOPID",
    "TRPOPID",
    "CPOConfig",
    "CUPConfig",
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
