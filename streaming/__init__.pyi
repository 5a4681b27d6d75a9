"""What `surefoot.streaming` offers: each name is imported when it is first used."""

import surefoot.core.base.lazy
import surefoot.core.engine.agent

from .agent import StreamingAgent as StreamingAgent
from .avg import AVG as AVG, AVGConfig as AVGConfig
from .intentional import (
    IntentionalAC as IntentionalAC,
    IntentionalACConfig as IntentionalACConfig,
    IntentionalQ as IntentionalQ,
    IntentionalQConfig as IntentionalQConfig,
)
from .latency import Latency as Latency
from .stream_ac import StreamAC as StreamAC, StreamACConfig as StreamACConfig
from .stream_q import StreamQ as StreamQ, StreamQConfig as StreamQConfig
from .stream_sarsa import StreamSARSA as StreamSARSA, StreamSARSAConfig as StreamSARSAConfig
from .stream_td import StreamTD as StreamTD, StreamTDConfig as StreamTDConfig

ALGORITHMS: surefoot.core.base.lazy.Lazy[surefoot.core.engine.agent.Agent]
