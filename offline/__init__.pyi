"""What `surefoot.offline` offers: each name is imported when it is first used."""

import surefoot.core.base.lazy
import surefoot.core.engine.agent

from .act import ACT as ACT, ACTConfig as ACTConfig
from .aligndiff import AlignDiff as AlignDiff, AlignDiffConfig as AlignDiffConfig
from .awac import AWAC as AWAC, AWACConfig as AWACConfig
from .awr_flow import (
    AWRFlow as AWRFlow,
    AWRFlowConfig as AWRFlowConfig,
    RAFTFlow as RAFTFlow,
    RAFTFlowConfig as RAFTFlowConfig,
)
from .bc import BC as BC, BCConfig as BCConfig
from .bisim_iql import BisimIQL as BisimIQL, BisimIQLConfig as BisimIQLConfig
from .calql import CalQL as CalQL, CalQLConfig as CalQLConfig
from .conservative_fb import ConservativeFBConfig as ConservativeFBConfig, MCFB as MCFB, VCFB as VCFB
from .crl import CRL as CRL, CRLConfig as CRLConfig
from .classifier import Classifier as Classifier, ClassifierConfig as ClassifierConfig
from .cql import CQL as CQL, CQLConfig as CQLConfig
from .decision_transformer import DT as DT, DTConfig as DTConfig
from .diffusion_bc import DiffusionBC as DiffusionBC, DiffusionBCConfig as DiffusionBCConfig
from .discrete_cql import DiscreteCQL as DiscreteCQL, DiscreteCQLConfig as DiscreteCQLConfig
from .dvl import DVL as DVL, DVLConfig as DVLConfig
from .edac import EDAC as EDAC, SACN as SACN, EDACConfig as EDACConfig, SACNConfig as SACNConfig
from .famo2o import FamO2O as FamO2O, FamO2OConfig as FamO2OConfig
from .famo2o_cql import FamO2OCQL as FamO2OCQL, FamO2OCQLConfig as FamO2OCQLConfig
from .fb import FB as FB, FBConfig as FBConfig
from .flow_bc import FlowBC as FlowBC, FlowBCConfig as FlowBCConfig
from .fql import FQL as FQL, FQLConfig as FQLConfig
from .gcbc import GCBC as GCBC, GCBCConfig as GCBCConfig
from .gciql import GCIQL as GCIQL, GCIQLConfig as GCIQLConfig
from .gcivl import GCIVL as GCIVL, GCIVLConfig as GCIVLConfig
from .hilp import HILP as HILP, HILPConfig as HILPConfig
from .hiql import HIQL as HIQL, HIQLConfig as HIQLConfig
from .idql import IDQL as IDQL, IDQLConfig as IDQLConfig
from .ifql import IFQL as IFQL, IFQLConfig as IFQLConfig
from .iql import IQL as IQL, IQLConfig as IQLConfig
from .mcq import MCQ as MCQ, MCQConfig as MCQConfig
from .msg import MSG as MSG, MSGConfig as MSGConfig
from .preferences import Preferences as Preferences, PreferencesConfig as PreferencesConfig
from .qam import QAM as QAM, QAMF as QAMF, QAMConfig as QAMConfig, QAMFConfig as QAMFConfig
from .qam_e import QAME as QAME, QAMEConfig as QAMEConfig
from .qc import QC as QC, QCFQL as QCFQL, QCConfig as QCConfig, QCFQLConfig as QCFQLConfig
from .qrl import QRL as QRL, QRLConfig as QRLConfig
from .rcsl import RCSL as RCSL, RCSLConfig as RCSLConfig
from .rebrac import ReBRAC as ReBRAC, ReBRACConfig as ReBRACConfig
from .recoil import ReCOIL as ReCOIL, ReCOILConfig as ReCOILConfig
from .riql import RIQL as RIQL, RIQLConfig as RIQLConfig
from .td3_bc import TD3BC as TD3BC, TD3BCConfig as TD3BCConfig
from .xql import XQL as XQL, XQLConfig as XQLConfig

ALGORITHMS: surefoot.core.base.lazy.Lazy[surefoot.core.engine.agent.Agent]
