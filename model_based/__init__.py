"""Algorithms that learn a model of the world, or plan with one. One algorithm a file.

Names are imported at their first use; `__init__.pyi` beside this file says which there are and where.
"""

from __future__ import annotations

import lazy_loader

from surefoot.core.base.lazy import Lazy
from surefoot.core.engine.agent import Agent

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
ALGORITHMS: Lazy[Agent] = Lazy(
    {
        "cocoa_cql": f"{__name__}:COCOACQL",
        "cocoa_iql": f"{__name__}:COCOAIQL",
        "cocoa_mobile": f"{__name__}:COCOAMOBILE",
        "cocoa_mopo": f"{__name__}:COCOAMOPO",
        "combo": f"{__name__}:COMBO",
        "dreamer": f"{__name__}:Dreamer",
        "dynamics": f"{__name__}:LearnedDynamics",
        "imagined_sac": f"{__name__}:ImaginedSAC",
        "mac": f"{__name__}:MAC",
        "mbpo": f"{__name__}:MBPO",
        "mbrcsl": f"{__name__}:MBRCSL",
        "mobile": f"{__name__}:MOBILE",
        "mopo": f"{__name__}:MOPO",
        "morel": f"{__name__}:MOReL",
        "pets": f"{__name__}:PETS",
        "rambo": f"{__name__}:RAMBO",
        "ravl": f"{__name__}:RAVL",
        "tdmpc2": f"{__name__}:TDMPC2",
        "token_dynamics": f"{__name__}:LearnedTokenDynamics",
        "trajectory_transformer": f"{__name__}:TrajectoryTransformer",
    }
)
"""Name on the command line -> agent."""

__all__ = ["ALGORITHMS", *_names]
