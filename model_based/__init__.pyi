"""What `surefoot.model_based` offers: each name is imported when it is first used."""

import surefoot.core.base.lazy
import surefoot.core.engine.agent

from .base.alarm import Alarm as Alarm, AlarmConfig as AlarmConfig
from .cocoa import COCOACQL as COCOACQL, COCOAIQL as COCOAIQL, COCOAMOBILE as COCOAMOBILE, COCOAMOPO as COCOAMOPO
from .combo import COMBO as COMBO, COMBOConfig as COMBOConfig
from .dreamer import Dreamer as Dreamer, DreamerConfig as DreamerConfig
from .dynamics import DynamicsConfig as DynamicsConfig, LearnedDynamics as LearnedDynamics
from .imagined_sac import ImaginedSAC as ImaginedSAC, ImaginedSACConfig as ImaginedSACConfig
from .mac import MAC as MAC, MACConfig as MACConfig
from .mbpo import MBPO as MBPO, MBPOConfig as MBPOConfig
from .mbrcsl import MBRCSL as MBRCSL, MBRCSLConfig as MBRCSLConfig
from .mobile import MOBILE as MOBILE, MOBILEConfig as MOBILEConfig
from .mopo import MOPO as MOPO, MOPOConfig as MOPOConfig
from .morel import MOReL as MOReL, MORELConfig as MORELConfig
from .pets import PETS as PETS, PETSConfig as PETSConfig
from .rambo import RAMBO as RAMBO, RAMBOConfig as RAMBOConfig
from .ravl import RAVL as RAVL, RAVLConfig as RAVLConfig
from .tdmpc2 import TDMPC2 as TDMPC2, TDMPC2Config as TDMPC2Config
from .token_dynamics import LearnedTokenDynamics as LearnedTokenDynamics, TokenDynamicsConfig as TokenDynamicsConfig
from .trajectory_transformer import TrajectoryTransformer as TrajectoryTransformer, TTConfig as TTConfig

ALGORITHMS: surefoot.core.base.lazy.Lazy[surefoot.core.engine.agent.Agent]
