"""Online reinforcement learning: policies from an environment. One algorithm a file."""

from surefoot.core.agent import Agent
from surefoot.online.environment import spec_of
from surefoot.online.ppo import PPO, PPOConfig
from surefoot.online.sac import SAC, SACConfig
from surefoot.online.td3 import TD3, TD3Config

ALGORITHMS: dict[str, type[Agent]] = {
    PPO.name: PPO,
    SAC.name: SAC,
    TD3.name: TD3,
}
"""Name on the command line -> agent."""

__all__ = ["ALGORITHMS", "PPO", "SAC", "TD3", "PPOConfig", "SACConfig", "TD3Config", "spec_of"]
