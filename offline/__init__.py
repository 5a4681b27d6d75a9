"""Offline reinforcement learning: policies from a fixed dataset. One algorithm a file.

Names are imported at their first use; `__init__.pyi` beside this file says which there are and where.
"""

from __future__ import annotations

import lazy_loader

from surefoot.core.base.lazy import Lazy
from surefoot.core.engine.agent import Agent

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
ALGORITHMS: Lazy[Agent] = Lazy(
    {
        "act": f"{__name__}:ACT",
        "aligndiff": f"{__name__}:AlignDiff",
        "awac": f"{__name__}:AWAC",
        "awr_flow": f"{__name__}:AWRFlow",
        "bc": f"{__name__}:BC",
        "bisim_iql": f"{__name__}:BisimIQL",
        "calql": f"{__name__}:CalQL",
        "classifier": f"{__name__}:Classifier",
        "cql": f"{__name__}:CQL",
        "crl": f"{__name__}:CRL",
        "diffusion_bc": f"{__name__}:DiffusionBC",
        "discrete_cql": f"{__name__}:DiscreteCQL",
        "dt": f"{__name__}:DT",
        "dvl": f"{__name__}:DVL",
        "edac": f"{__name__}:EDAC",
        "famo2o": f"{__name__}:FamO2O",
        "famo2o_cql": f"{__name__}:FamO2OCQL",
        "fb": f"{__name__}:FB",
        "flow_bc": f"{__name__}:FlowBC",
        "fql": f"{__name__}:FQL",
        "gcbc": f"{__name__}:GCBC",
        "gciql": f"{__name__}:GCIQL",
        "gcivl": f"{__name__}:GCIVL",
        "hilp": f"{__name__}:HILP",
        "hiql": f"{__name__}:HIQL",
        "idql": f"{__name__}:IDQL",
        "ifql": f"{__name__}:IFQL",
        "iql": f"{__name__}:IQL",
        "mc_fb": f"{__name__}:MCFB",
        "mcq": f"{__name__}:MCQ",
        "msg": f"{__name__}:MSG",
        "preferences": f"{__name__}:Preferences",
        "qam": f"{__name__}:QAM",
        "qam_e": f"{__name__}:QAME",
        "qam_f": f"{__name__}:QAMF",
        "qc": f"{__name__}:QC",
        "qc_fql": f"{__name__}:QCFQL",
        "qrl": f"{__name__}:QRL",
        "raft_flow": f"{__name__}:RAFTFlow",
        "rcsl": f"{__name__}:RCSL",
        "rebrac": f"{__name__}:ReBRAC",
        "recoil": f"{__name__}:ReCOIL",
        "riql": f"{__name__}:RIQL",
        "sac_n": f"{__name__}:SACN",
        "td3bc": f"{__name__}:TD3BC",
        "vc_fb": f"{__name__}:VCFB",
        "xql": f"{__name__}:XQL",
    }
)
"""Name on the command line -> agent."""

__all__ = ["ALGORITHMS", *_names]
