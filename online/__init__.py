"""Online reinforcement learning: policies that learn from what they do. One algorithm a file."""

from surefoot.core.agent import Agent
from surefoot.online.environment import spec_of
from surefoot.online.ppo import PPO, PPOConfig

ALGORITHMS: dict[str, type[Agent]] = {agent.name: agent for agent in (PPO,)}
"""Name on the command line -> agent."""

__all__ = ["ALGORITHMS", "PPO", "PPOConfig", "spec_of"]
