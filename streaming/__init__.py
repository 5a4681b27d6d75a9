"""Streaming: reinforcement learning from one sample at a time, on the robot. One algorithm a file."""

from surefoot.core.engine.agent import Agent
from surefoot.streaming.agent import StreamingAgent
from surefoot.streaming.avg import AVG, AVGConfig
from surefoot.streaming.intentional import IntentionalAC, IntentionalACConfig, IntentionalQ, IntentionalQConfig
from surefoot.streaming.latency import Latency
from surefoot.streaming.stream_ac import StreamAC, StreamACConfig
from surefoot.streaming.stream_q import StreamQ, StreamQConfig
from surefoot.streaming.stream_sarsa import StreamSARSA, StreamSARSAConfig
from surefoot.streaming.stream_td import StreamTD, StreamTDConfig

ALGORITHMS: dict[str, type[Agent]] = {
    AVG.name: AVG,
    IntentionalAC.name: IntentionalAC,
    IntentionalQ.name: IntentionalQ,
    StreamAC.name: StreamAC,
    StreamQ.name: StreamQ,
    StreamSARSA.name: StreamSARSA,
}
"""Name on the command line -> agent. `StreamTD` predicts what another controller's rewards add up to, and is used from
python."""

__all__ = [
    "ALGORITHMS",
    "AVG",
    "AVGConfig",
    "IntentionalAC",
    "IntentionalACConfig",
    "IntentionalQ",
    "IntentionalQConfig",
    "Latency",
    "StreamAC",
    "StreamACConfig",
    "StreamQ",
    "StreamQConfig",
    "StreamSARSA",
    "StreamSARSAConfig",
    "StreamTD",
    "StreamTDConfig",
    "StreamingAgent",
]
