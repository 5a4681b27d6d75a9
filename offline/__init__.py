"""Offline reinforcement learning: policies from a fixed dataset. One algorithm a file."""

from surefoot.core.engine.agent import Agent
from surefoot.offline.aligndiff import AlignDiff, AlignDiffConfig
from surefoot.offline.awac import AWAC, AWACConfig
from surefoot.offline.awr_flow import AWRFlow, AWRFlowConfig, RAFTFlow, RAFTFlowConfig
from surefoot.offline.bc import BC, BCConfig
from surefoot.offline.bisim_iql import BisimIQL, BisimIQLConfig
from surefoot.offline.calql import CalQL, CalQLConfig
from surefoot.offline.cql import CQL, CQLConfig
from surefoot.offline.decision_transformer import DT, DTConfig
from surefoot.offline.diffusion_bc import DiffusionBC, DiffusionBCConfig
from surefoot.offline.dvl import DVL, DVLConfig
from surefoot.offline.edac import EDAC, SACN, EDACConfig, SACNConfig
from surefoot.offline.famo2o import FamO2O, FamO2OConfig
from surefoot.offline.famo2o_cql import FamO2OCQL, FamO2OCQLConfig
from surefoot.offline.flow_bc import FlowBC, FlowBCConfig
from surefoot.offline.fql import FQL, FQLConfig
from surefoot.offline.idql import IDQL, IDQLConfig
from surefoot.offline.ifql import IFQL, IFQLConfig
from surefoot.offline.iql import IQL, IQLConfig
from surefoot.offline.mcq import MCQ, MCQConfig
from surefoot.offline.msg import MSG, MSGConfig
from surefoot.offline.qam import QAM, QAMF, QAMConfig, QAMFConfig
from surefoot.offline.qam_e import QAME, QAMEConfig
from surefoot.offline.qc import QC, QCFQL, QCConfig, QCFQLConfig
from surefoot.offline.rcsl import RCSL, RCSLConfig
from surefoot.offline.rebrac import ReBRAC, ReBRACConfig
from surefoot.offline.recoil import ReCOIL, ReCOILConfig
from surefoot.offline.riql import RIQL, RIQLConfig
from surefoot.offline.td3_bc import TD3BC, TD3BCConfig
from surefoot.offline.xql import XQL, XQLConfig

_AGENTS: tuple[type[Agent], ...] = (AWRFlow, BC, CQL, CalQL, DT, DiffusionBC, FamO2O, FamO2OCQL, FlowBC, FQL, IDQL)
_AGENTS += (IFQL, IQL, QAM, QAME, QAMF, QC, QCFQL, RAFTFlow, RCSL, RIQL, ReBRAC, TD3BC)
_AGENTS += (AlignDiff, AWAC, BisimIQL, DVL, EDAC, MCQ, MSG, ReCOIL, SACN, XQL)
ALGORITHMS: dict[str, type[Agent]] = {agent.name: agent for agent in _AGENTS}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "AWAC",
    "BC",
    "CQL",
    "DT",
    "DVL",
    "EDAC",
    "FQL",
    "IDQL",
    "IFQL",
    "IQL",
    "MCQ",
    "MSG",
    "QAM",
    "QAME",
    "QAMF",
    "QC",
    "QCFQL",
    "RCSL",
    "RIQL",
    "SACN",
    "TD3BC",
    "XQL",
    "AWACConfig",
    "AWRFlow",
    "AWRFlowConfig",
    "AlignDiff",
    "AlignDiffConfig",
    "BCConfig",
    "BisimIQL",
    "BisimIQLConfig",
    "CQLConfig",
    "CalQL",
    "CalQLConfig",
    "DTConfig",
    "DVLConfig",
    "DiffusionBC",
    "DiffusionBCConfig",
    "EDACConfig",
    "FQLConfig",
    "FamO2O",
    "FamO2OCQL",
    "FamO2OCQLConfig",
    "FamO2OConfig",
    "FlowBC",
    "FlowBCConfig",
    "IDQLConfig",
    "IFQLConfig",
    "IQLConfig",
    "MCQConfig",
    "MSGConfig",
    "QAMConfig",
    "QAMEConfig",
    "QAMFConfig",
    "QCConfig",
    "QCFQLConfig",
    "RAFTFlow",
    "RAFTFlowConfig",
    "RCSLConfig",
    "RIQLConfig",
    "ReBRAC",
    "ReBRACConfig",
    "ReCOIL",
    "ReCOILConfig",
    "SACNConfig",
    "TD3BCConfig",
    "XQLConfig",
]
