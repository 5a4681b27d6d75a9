"""Safe: reinforcement learning under constraints, from data and online; reachability and safety filters.

Names are imported at their first use; `__init__.pyi` beside this file says which there are and where.
"""

from __future__ import annotations

import lazy_loader

from surefoot.core.base.lazy import Lazy
from surefoot.core.engine.agent import Agent

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
ALGORITHMS: Lazy[Agent] = Lazy(
    {
        "bc_safe": f"{__name__}:BCSafe",
        "bcq_lag": f"{__name__}:BCQLag",
        "bear_lag": f"{__name__}:BEARLag",
        "cdt": f"{__name__}:CDT",
        "coptidice": f"{__name__}:COptiDICE",
        "cpo": f"{__name__}:CPO",
        "cpq": f"{__name__}:CPQ",
        "cup": f"{__name__}:CUP",
        "fisor": f"{__name__}:FISOR",
        "focops": f"{__name__}:FOCOPS",
        "ppo_lag": f"{__name__}:PPOLag",
        "ppo_pid": f"{__name__}:PPOPID",
        "sac_lag": f"{__name__}:SACLag",
        "trpo_lag": f"{__name__}:TRPOLag",
        "trpo_pid": f"{__name__}:TRPOPID",
    }
)
"""Name on the command line -> agent."""

__all__ = ["ALGORITHMS", *_names]
