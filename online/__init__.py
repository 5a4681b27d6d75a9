"""Online reinforcement learning: policies from an environment. One algorithm a file."""

from surefoot.core.agent import Agent
from surefoot.online.sac import SAC, SACConfig
from surefoot.online.td3 import TD3, TD3Config

ALGORITHMS: dict[str, type[Agent]] = {
    SAC.name: SAC,
    TD3.name: TD3,
}
"""Name on the command line -> agent."""

__all__ = ["ALGORITHMS", "SAC", "TD3", "SACConfig", "TD3Config"]
