"""Online reinforcement learning: from scratch, from offline to online, and hybrid. One algorithm a file.

Names are imported at their first use; `__init__.pyi` beside this file says which there are and where.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from surefoot.core.base.lazy import Lazy
from surefoot.core.engine.agent import Agent

_own, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
ALGORITHMS: Lazy[Agent] = Lazy(
    {
        "a2c": f"{__name__}:A2C",
        "calql_online": f"{__name__}:CalQLOnline",
        "darc": f"{__name__}:DARC",
        "dppo": f"{__name__}:DPPO",
        "dqn": f"{__name__}:DQN",
        "droq": f"{__name__}:DroQ",
        "dsrl": f"{__name__}:DSRL",
        "dsrl_na": f"{__name__}:DSRLNA",
        "famo2o_cql_online": f"{__name__}:FamO2OCQLOnline",
        "famo2o_online": f"{__name__}:FamO2OOnline",
        "fpo": f"{__name__}:FPO",
        "fql_online": f"{__name__}:FQLOnline",
        "h2o": f"{__name__}:H2O",
        "hil": f"{__name__}:HIL",
        "hnpg": f"{__name__}:HNPG",
        "iql_online": f"{__name__}:IQLOnline",
        "mappo": f"{__name__}:MAPPO",
        "mdpo": f"{__name__}:MDPO",
        "mdpo_off": f"{__name__}:MDPOOffPolicy",
        "moorl": f"{__name__}:MOORL",
        "ppo": f"{__name__}:PPO",
        "ppo_trees": f"{__name__}:PPOTrees",
        "qc_online": f"{__name__}:QCOnline",
        "qmix": f"{__name__}:QMIX",
        "recurrent_ppo": f"{__name__}:RecurrentPPO",
        "redq": f"{__name__}:REDQ",
        "reinflow": f"{__name__}:ReinFlow",
        "reinforce": f"{__name__}:Reinforce",
        "residual": f"{__name__}:Residual",
        "residual_ppo": f"{__name__}:ResidualPPO",
        "rlcm": f"{__name__}:RLCM",
        "rlpd": f"{__name__}:RLPD",
        "sac": f"{__name__}:SAC",
        "srl": f"{__name__}:SRL",
        "td3": f"{__name__}:TD3",
        "trpo": f"{__name__}:TRPO",
        "vdn": f"{__name__}:VDN",
        "wsrl": f"{__name__}:WSRL",
    }
)
"""Name on the command line -> agent."""


def __getattr__(name: str) -> Any:
    """Import what is asked for; what a problem observes and does (`spec_of`) is found by the simulators' room."""
    if name == "spec_of":
        from surefoot.envs.acting import spec_of

        return spec_of
    return _own(name)


__all__ = ["ALGORITHMS", "spec_of", *_names]
