"""Online reinforcement learning: policies from an environment. One algorithm a file."""

from surefoot.core.agent import Agent
from surefoot.online.environment import spec_of
from surefoot.online.iql_online import IQLOnline, IQLOnlineConfig
from surefoot.online.ppo import PPO, PPOConfig
from surefoot.online.redq import REDQ, REDQConfig
from surefoot.online.rlpd import RLPD, RLPDConfig
from surefoot.online.sac import SAC, SACConfig
from surefoot.online.td3 import TD3, TD3Config
from surefoot.online.wsrl import WSRL, WSRLConfig

ALGORITHMS: dict[str, type[Agent]] = {
    IQLOnline.name: IQLOnline,
    PPO.name: PPO,
    REDQ.name: REDQ,
    RLPD.name: RLPD,
    SAC.name: SAC,
    TD3.name: TD3,
    WSRL.name: WSRL,
}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "PPO",
    "REDQ",
    "RLPD",
    "SAC",
    "TD3",
    "WSRL",
    "IQLOnline",
    "IQLOnlineConfig",
    "PPOConfig",
    "REDQConfig",
    "RLPDConfig",
    "SACConfig",
    "TD3Config",
    "WSRLConfig",
    "spec_of",
]
