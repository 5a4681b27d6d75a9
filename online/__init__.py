"""Reinforcement learning by acting: online, from offline to online, and hybrid. One algorithm a file."""

from surefoot.core.engine.agent import Agent
from surefoot.envs.acting import spec_of
from surefoot.online.a2c import A2C, A2CConfig
from surefoot.online.base.dynamics_gap import GapEstimate, estimate_gap
from surefoot.online.calql_online import CalQLOnline, CalQLOnlineConfig
from surefoot.online.darc import DARC, DARCConfig
from surefoot.online.dppo import DPPO, DPPOConfig
from surefoot.online.dqn import DQN, DQNConfig
from surefoot.online.droq import DroQ, DroQConfig
from surefoot.online.dsrl import DSRL, DSRLConfig
from surefoot.online.dsrl_na import DSRLNA, DSRLNAConfig
from surefoot.online.famo2o_cql_online import FamO2OCQLOnline, FamO2OCQLOnlineConfig
from surefoot.online.famo2o_online import FamO2OOnline, FamO2OOnlineConfig
from surefoot.online.fpo import FPO, FPOConfig
from surefoot.online.fql_online import FQLOnline, FQLOnlineConfig
from surefoot.online.h2o import H2O, H2OConfig
from surefoot.online.hnpg import HNPG, HNPGConfig
from surefoot.online.iql_online import IQLOnline, IQLOnlineConfig
from surefoot.online.mdpo import MDPO, MDPOConfig
from surefoot.online.mdpo_off_policy import MDPOOffPolicy, MDPOOffPolicyConfig
from surefoot.online.moorl import MOORL, MOORLConfig
from surefoot.online.ppo import PPO, PPOConfig
from surefoot.online.qc_online import QCOnline, QCOnlineConfig
from surefoot.online.redq import REDQ, REDQConfig
from surefoot.online.reinflow import ReinFlow, ReinFlowConfig
from surefoot.online.reinforce import Reinforce, ReinforceConfig
from surefoot.online.rlcm import RLCM, RLCMConfig
from surefoot.online.rlpd import RLPD, RLPDConfig
from surefoot.online.sac import SAC, SACConfig
from surefoot.online.td3 import TD3, TD3Config
from surefoot.online.trpo import TRPO, TRPOConfig
from surefoot.online.wsrl import WSRL, WSRLConfig

_AGENTS: tuple[type[Agent], ...] = (A2C, CalQLOnline, DARC, DPPO, DQN, DroQ, DSRL, DSRLNA, FamO2OCQLOnline)
_AGENTS += (
    FamO2OOnline,
    FPO,
    FQLOnline,
    H2O,
    HNPG,
    IQLOnline,
    MDPO,
    MDPOOffPolicy,
    MOORL,
    PPO,
    QCOnline,
    REDQ,
    RLCM,
    RLPD,
)
_AGENTS += (RLCM, RLPD, ReinFlow, Reinforce, SAC, TD3, TRPO, WSRL)
ALGORITHMS: dict[str, type[Agent]] = {agent.name: agent for agent in _AGENTS}
"""Name on the command line -> agent."""

__all__ = [
    "A2C",
    "ALGORITHMS",
    "DARC",
    "DPPO",
    "DQN",
    "DSRL",
    "DSRLNA",
    "FPO",
    "H2O",
    "HNPG",
    "MDPO",
    "MOORL",
    "PPO",
    "REDQ",
    "RLCM",
    "RLPD",
    "SAC",
    "TD3",
    "TRPO",
    "WSRL",
    "A2CConfig",
    "CalQLOnline",
    "CalQLOnlineConfig",
    "DARCConfig",
    "DPPOConfig",
    "DQNConfig",
    "DSRLConfig",
    "DSRLNAConfig",
    "DroQ",
    "DroQConfig",
    "FPOConfig",
    "FQLOnline",
    "FQLOnlineConfig",
    "FamO2OCQLOnline",
    "FamO2OCQLOnlineConfig",
    "FamO2OOnline",
    "FamO2OOnlineConfig",
    "GapEstimate",
    "H2OConfig",
    "HNPGConfig",
    "IQLOnline",
    "IQLOnlineConfig",
    "MDPOConfig",
    "MDPOOffPolicy",
    "MDPOOffPolicyConfig",
    "MOORLConfig",
    "PPOConfig",
    "QCOnline",
    "QCOnlineConfig",
    "REDQConfig",
    "RLCMConfig",
    "RLPDConfig",
    "ReinFlow",
    "ReinFlowConfig",
    "Reinforce",
    "ReinforceConfig",
    "SACConfig",
    "TD3Config",
    "TRPOConfig",
    "WSRLConfig",
    "estimate_gap",
    "spec_of",
]
