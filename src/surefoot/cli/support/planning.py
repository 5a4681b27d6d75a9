"""Options of commands that plan: `surefoot plan`, and `surefoot certify --planner`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import EARLIER_SPELLINGS

if TYPE_CHECKING:
    from surefoot.world_models.futures import Objective
    from surefoot.world_models.planners import Planner

SETTINGS = {
    "horizon": (int, "steps looked ahead"),
    "samples": (int, "candidates in each iteration"),
    "iterations": (int, "fits of the candidates' distribution, or steps of descent"),
    "sigma": (float, "deviation of the noise, in half ranges of the action"),
    "temperature": (float, "of mppi, in units of return"),
    "color": (float, "exponent of the noise's spectrum over time: 0 white, 2 a random walk's"),
    "elites": (float, "share of the candidates that cem and icem fit to"),
    "momentum": (float, "share of the old mean and deviation that cem and icem keep"),
    "starts": (int, "of shooting"),
    "depth": (int, "choices that gorp tries in all sequences"),
    "simulations": (int, "nodes of gumbel's tree"),
    "considered": (int, "choices at the root that gumbel simulates"),
    "bins": (int, "values of each action dimension, of gorp and gumbel"),
}
"""Option -> type and meaning, of planners that have it; left out, it is the planner's own."""
AIMS = {
    "futures": (int, "trajectories of each candidate (default 1: the mean)"),
    "spread": (str, "both, epistemic, aleatoric or none (default both)"),
    "propagation": (str, "tsinf or ts1: who draws members anew (default tsinf)"),
    "risk": (str, "mean, worst, cvar:BETA, entropic:THETA, std:C (default mean)"),
    "cost-limit": (float, "most cost within the horizon, at that risk"),
    "discount": (float, "of rewards within the horizon (default 1)"),
}
"""Likewise of the objective; left out, it is `Objective`'s own."""
SIDE_BY_SIDE = 10


def add_planning(parser: argparse.ArgumentParser) -> None:
    """Options of the planner, of what it plans for, and how many environments it acts in."""
    how = parser.add_argument_group("settings of the planner (its own by default)")
    for name, (kind, meaning) in SETTINGS.items():
        earlier = [f"--{old}" for old, now in EARLIER_SPELLINGS.items() if now == name]
        how.add_argument("--" + name, *earlier, type=kind, help=meaning)
    what = parser.add_argument_group("what is planned for (docs/world_models.md)")
    for name, (kind, meaning) in AIMS.items():
        what.add_argument("--" + name, type=kind, help=meaning)
    parser.add_argument(
        "--envs", type=int, help=f"environments in which plans are made side by side (default {SIDE_BY_SIDE})"
    )


def planner_of(arguments: argparse.Namespace) -> Planner:
    """The planner that the options describe."""
    from surefoot.world_models.planners import make_planner

    return make_planner(arguments.planner, **{name: getattr(arguments, name) for name in SETTINGS})


def objective_of(arguments: argparse.Namespace) -> Objective:
    """What it plans for."""
    from surefoot.world_models.futures import Objective
    from surefoot.world_models.risk import parse_risk

    names = [name.replace("-", "_") for name in AIMS]
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    for name in ("spread", "propagation"):
        if name in given and given.get("futures", 1) == 1:
            raise ConfigError(f"--{name} is of several futures: add --futures, or leave it out")
    if "risk" in given:
        given["risk"] = parse_risk(given["risk"])
    return Objective(**given)


def side_by_side(arguments: argparse.Namespace) -> int:
    """How many environments."""
    envs: int = SIDE_BY_SIDE if arguments.envs is None else arguments.envs
    if envs < 1:
        raise ConfigError(f"--envs is {envs}; it must be at least 1")
    return envs


def refuse_planning(arguments: argparse.Namespace) -> None:
    """Raise ConfigError where an option of plans stands without a planner."""
    for name in (*SETTINGS, *AIMS, "envs"):
        if getattr(arguments, name.replace("-", "_")) is not None:
            raise ConfigError(
                f"--{name} is of plans: add --planner cem, icem, mppi, ilqr, shooting, gorp or gumbel, or leave it out"
            )
