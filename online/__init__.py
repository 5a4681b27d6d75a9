"""Online reinforcement learning: policies from an environment. One algorithm a file."""

from surefoot.core.agent import Agent
from surefoot.online.a2c import A2C, A2CConfig
from surefoot.online.environment import spec_of
from surefoot.online.mdpo import MDPO, MDPOConfig
from surefoot.online.natural_gradient import TRPO, TRPOConfig
from surefoot.online.ppo import PPO, PPOConfig
from surefoot.online.reinforce import Reinforce, ReinforceConfig
from surefoot.online.sac import SAC, SACConfig
from surefoot.online.td3 import TD3, TD3Config

ALGORITHMS: dict[str, type[Agent]] = {
    A2C.name: A2C,
    MDPO.name: MDPO,
    PPO.name: PPO,
    Reinforce.name: Reinforce,
    SAC.name: SAC,
    TD3.name: TD3,
    TRPO.name: TRPO,
}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "A2C",
    "MDPO",
    "PPO",
    "SAC",
    "TD3",
    "TRPO",
    "A2CConfig",
    "MDPOConfig",
    "PPOConfig",
    "Reinforce",
    "ReinforceConfig",
    "SACConfig",
    "TD3Config",
    "TRPOConfig",
    "spec_of",
]
