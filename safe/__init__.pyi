"""What `surefoot.safe` offers: each name is imported when it is first used."""

import surefoot.core.base.lazy
import surefoot.core.engine.agent

from .bc_safe import BCSafe as BCSafe, BCSafeConfig as BCSafeConfig
from .bcq_lag import BCQLag as BCQLag, BCQLagConfig as BCQLagConfig
from .bear_lag import BEARLag as BEARLag, BEARLagConfig as BEARLagConfig
from .cdt import CDT as CDT, CDTConfig as CDTConfig
from .coptidice import COptiDICE as COptiDICE, COptiDICEConfig as COptiDICEConfig
from .cpo import CPO as CPO, CPOConfig as CPOConfig
from .cpq import CPQ as CPQ, CPQConfig as CPQConfig
from .cup import CUP as CUP, CUPConfig as CUPConfig
from .fisor import FISOR as FISOR, FISORConfig as FISORConfig
from .focops import FOCOPS as FOCOPS, FOCOPSConfig as FOCOPSConfig
from .ppo_lag import PPOPID as PPOPID, PPOLag as PPOLag, PPOLagConfig as PPOLagConfig, PPOPIDConfig as PPOPIDConfig
from .sac_lag import SACLag as SACLag, SACLagConfig as SACLagConfig
from .trpo_lag import (
    TRPOPID as TRPOPID,
    TRPOLag as TRPOLag,
    TRPOLagConfig as TRPOLagConfig,
    TRPOPIDConfig as TRPOPIDConfig,
)

ALGORITHMS: surefoot.core.base.lazy.Lazy[surefoot.core.engine.agent.Agent]
