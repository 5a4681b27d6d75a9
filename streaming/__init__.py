"""Streaming: reinforcement learning from one sample at a time, on the robot. One algorithm a file.

Names are imported at their first use; `__init__.pyi` beside this file says which there are and where.
"""

from __future__ import annotations

import lazy_loader

from surefoot.core.base.lazy import Lazy
from surefoot.core.engine.agent import Agent

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
ALGORITHMS: Lazy[Agent] = Lazy(
    {
        "avg": f"{__name__}:AVG",
        "intentional_ac": f"{__name__}:IntentionalAC",
        "intentional_q": f"{__name__}:IntentionalQ",
        "stream_ac": f"{__name__}:StreamAC",
        "stream_q": f"{__name__}:StreamQ",
        "stream_sarsa": f"{__name__}:StreamSARSA",
    }
)
"""Name on the command line -> agent. `StreamTD` predicts what another controller's rewards add up to, and is used from
python."""

__all__ = ["ALGORITHMS", *_names]
