"""Algorithms that learn a model of the world, or plan with one. One algorithm a file."""

from surefoot.core.agent import Agent
from surefoot.model_based.alarm import Alarm, AlarmConfig
from surefoot.model_based.dynamics import DynamicsConfig, LearnedDynamics
from surefoot.model_based.imagined_sac import ImaginedSAC, ImaginedSACConfig
from surefoot.model_based.ravl import RAVL, RAVLConfig
from surefoot.model_based.tdmpc2 import TDMPC2, TDMPC2Config

_AGENTS: tuple[type[Agent], ...] = (LearnedDynamics, TDMPC2)
ALGORITHMS: dict[str, type[Agent]] = {agent.name: agent for agent in _AGENTS}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "RAVL",
    "TDMPC2",
    "Alarm",
    "AlarmConfig",
    "DynamicsConfig",
    "ImaginedSAC",
    "ImaginedSACConfig",
    "LearnedDynamics",
    "RAVLConfig",
    "TDMPC2Config",
]
