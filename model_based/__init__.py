"""Algorithms that learn a model of the world, or plan with one. One algorithm a file."""

from surefoot.core.engine.agent import Agent
from surefoot.model_based.base.alarm import Alarm, AlarmConfig
from surefoot.model_based.cocoa import COCOACQL, COCOAIQL, COCOAMOBILE, COCOAMOPO
from surefoot.model_based.combo import COMBO, COMBOConfig
from surefoot.model_based.dreamer import Dreamer, DreamerConfig
from surefoot.model_based.dynamics import DynamicsConfig, LearnedDynamics
from surefoot.model_based.imagined_sac import ImaginedSAC, ImaginedSACConfig
from surefoot.model_based.mac import MAC, MACConfig
from surefoot.model_based.mbpo import MBPO, MBPOConfig
from surefoot.model_based.mbrcsl import MBRCSL, MBRCSLConfig
from surefoot.model_based.mobile import MOBILE, MOBILEConfig
from surefoot.model_based.mopo import MOPO, MOPOConfig
from surefoot.model_based.morel import MOReL, MORELConfig
from surefoot.model_based.pets import PETS, PETSConfig
from surefoot.model_based.rambo import RAMBO, RAMBOConfig
from surefoot.model_based.ravl import RAVL, RAVLConfig
from surefoot.model_based.tdmpc2 import TDMPC2, TDMPC2Config
from surefoot.model_based.token_dynamics import LearnedTokenDynamics, TokenDynamicsConfig
from surefoot.model_based.trajectory_transformer import TrajectoryTransformer, TTConfig

_AGENTS: tuple[type[Agent], ...] = (COMBO, ImaginedSAC, LearnedDynamics, MBPO, MBRCSL, MOBILE, MOPO, MOReL, RAMBO, RAVL)
_AGENTS += (COCOACQL, COCOAIQL, COCOAMOBILE, COCOAMOPO)
_AGENTS += (Dreamer, LearnedTokenDynamics, MAC, PETS, TDMPC2, TrajectoryTransformer)
ALGORITHMS: dict[str, type[Agent]] = {agent.name: agent for agent in _AGENTS}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "COCOACQL",
    "COCOAIQL",
    "COCOAMOBILE",
    "COCOAMOPO",
    "COMBO",
    "MAC",
    "MBPO",
    "MBRCSL",
    "MOBILE",
    "MOPO",
    "PETS",
    "RAMBO",
    "RAVL",
    "TDMPC2",
    "Alarm",
    "AlarmConfig",
    "COMBOConfig",
    "Dreamer",
    "DreamerConfig",
    "DynamicsConfig",
    "ImaginedSAC",
    "ImaginedSACConfig",
    "LearnedDynamics",
    "LearnedTokenDynamics",
    "MACConfig",
    "MBPOConfig",
    "MBRCSLConfig",
    "MOBILEConfig",
    "MOPOConfig",
    "MORELConfig",
    "MOReL",
    "PETSConfig",
    "RAMBOConfig",
    "RAVLConfig",
    "TDMPC2Config",
    "TTConfig",
    "TokenDynamicsConfig",
    "TrajectoryTransformer",
]
