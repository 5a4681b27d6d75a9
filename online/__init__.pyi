"""What `surefoot.online` offers: each name is imported when it is first used."""

import surefoot.core.base.lazy
import surefoot.core.engine.agent
import surefoot.envs.acting

from .a2c import A2C as A2C, A2CConfig as A2CConfig
from .base.dynamics_gap import GapEstimate as GapEstimate, estimate_gap as estimate_gap
from .calql_online import CalQLOnline as CalQLOnline, CalQLOnlineConfig as CalQLOnlineConfig
from .darc import DARC as DARC, DARCConfig as DARCConfig
from .dppo import DPPO as DPPO, DPPOConfig as DPPOConfig
from .dqn import DQN as DQN, DQNConfig as DQNConfig
from .droq import DroQ as DroQ, DroQConfig as DroQConfig
from .dsrl import DSRL as DSRL, DSRLConfig as DSRLConfig
from .dsrl_na import DSRLNA as DSRLNA, DSRLNAConfig as DSRLNAConfig
from .famo2o_cql_online import FamO2OCQLOnline as FamO2OCQLOnline, FamO2OCQLOnlineConfig as FamO2OCQLOnlineConfig
from .famo2o_online import FamO2OOnline as FamO2OOnline, FamO2OOnlineConfig as FamO2OOnlineConfig
from .fpo import FPO as FPO, FPOConfig as FPOConfig
from .fql_online import FQLOnline as FQLOnline, FQLOnlineConfig as FQLOnlineConfig
from .h2o import H2O as H2O, H2OConfig as H2OConfig
from .hil import HIL as HIL, HILConfig as HILConfig
from .hnpg import HNPG as HNPG, HNPGConfig as HNPGConfig
from .iql_online import IQLOnline as IQLOnline, IQLOnlineConfig as IQLOnlineConfig
from .mappo import MAPPO as MAPPO, MAPPOConfig as MAPPOConfig
from .mdpo import MDPO as MDPO, MDPOConfig as MDPOConfig
from .mdpo_off_policy import MDPOOffPolicy as MDPOOffPolicy, MDPOOffPolicyConfig as MDPOOffPolicyConfig
from .moorl import MOORL as MOORL, MOORLConfig as MOORLConfig
from .ppo import PPO as PPO, PPOConfig as PPOConfig
from .ppo_trees import PPOTrees as PPOTrees, PPOTreesConfig as PPOTreesConfig
from .qc_online import QCOnline as QCOnline, QCOnlineConfig as QCOnlineConfig
from .qmix import QMIX as QMIX, QMIXConfig as QMIXConfig
from .recurrent_ppo import RecurrentPPO as RecurrentPPO, RecurrentPPOConfig as RecurrentPPOConfig
from .redq import REDQ as REDQ, REDQConfig as REDQConfig
from .reinflow import ReinFlow as ReinFlow, ReinFlowConfig as ReinFlowConfig
from .reinforce import Reinforce as Reinforce, ReinforceConfig as ReinforceConfig
from .residual import Residual as Residual, ResidualConfig as ResidualConfig
from .residual_ppo import ResidualPPO as ResidualPPO, ResidualPPOConfig as ResidualPPOConfig
from .rlcm import RLCM as RLCM, RLCMConfig as RLCMConfig
from .rlpd import RLPD as RLPD, RLPDConfig as RLPDConfig
from .sac import SAC as SAC, SACConfig as SACConfig
from .srl import SRL as SRL, SRLConfig as SRLConfig
from .td3 import TD3 as TD3, TD3Config as TD3Config
from .trpo import TRPO as TRPO, TRPOConfig as TRPOConfig
from .vdn import VDN as VDN, VDNConfig as VDNConfig
from .wsrl import WSRL as WSRL, WSRLConfig as WSRLConfig

ALGORITHMS: surefoot.core.base.lazy.Lazy[surefoot.core.engine.agent.Agent]
spec_of = surefoot.envs.acting.spec_of
