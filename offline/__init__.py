"""Offline reinforcement learning: policies from a fixed dataset. One algorithm a file."""

from surefoot.core.agent import Agent
from surefoot.offline.bc import BC, BCConfig
from surefoot.offline.calql import CalQL, CalQLConfig
from surefoot.offline.cql import CQL, CQLConfig
from surefoot.offline.famo2o import FamO2O, FamO2OConfig
from surefoot.offline.famo2o_cql import FamO2OCQL, FamO2OCQLConfig
from surefoot.offline.iql import IQL, IQLConfig
from surefoot.offline.riql import RIQL, RIQLConfig
from surefoot.offline.td3_bc import TD3BC, TD3BCConfig

ALGORITHMS: dict[str, type[Agent]] = {
    agent.name: agent for agent in (BC, CQL, CalQL, FamO2O, FamO2OCQL, IQL, RIQL, TD3BC)
}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "BC",
    "CQL",
    "IQL",
    "RIQL",
    "TD3BC",
    "BCConfig",
    "CQLConfig",
    "CalQL",
    "CalQLConfig",
    "FamO2O",
    "FamO2OCQL",
    "FamO2OCQLConfig",
    "FamO2OConfig",
    "IQLConfig",
    "RIQLConfig",
    "TD3BCConfig",
]
