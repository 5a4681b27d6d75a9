"""What tests of loop share."""

from __future__ import annotations

import torch
from stream_problems import EXTENSIONS, STREAM_X, buffers

from surefoot.streaming import StreamingAgent

ALL = [*STREAM_X, *EXTENSIONS]


def same(agent: StreamingAgent, other: StreamingAgent) -> None:
    own = buffers(agent)
    for name, value in buffers(other).items():
        assert torch.equal(own[name], value), name
