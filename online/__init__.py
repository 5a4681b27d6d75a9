"""Online reinforcement learning: policies from an environment. One algorithm a file."""

from surefoot.core.agent import Agent
from surefoot.online.darc import DARC, DARCConfig
from surefoot.online.dynamics_gap import GapEstimate, estimate_gap
from surefoot.online.environment import spec_of
from surefoot.online.h2o import H2O, H2OConfig
from surefoot.online.moorl import MOORL, MOORLConfig
from surefoot.online.ppo import PPO, PPOConfig
from surefoot.online.sac import SAC, SACConfig
from surefoot.online.td3 import TD3, TD3Config

ALGORITHMS: dict[str, type[Agent]] = {
    DARC.name: DARC,
    H2O.name: H2O,
    MOORL.name: MOORL,
    PPO.name: PPO,
    SAC.name: SAC,
    TD3.name: TD3,
}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "DARC",
    "H2O",
    "MOORL",
    "PPO",
    "SAC",
    "TD3",
    "DARCConfig",
    "GapEstimate",
    "H2OConfig",
    "MOORLConfig",
    "PPOConfig",
    "SACConfig",
    "TD3Config",
    "estimate_gap",
    "spec_of",
]
