"""Objectives that are no function of the state: reward machines and formulas over time (docs/objectives.md)."""

from surefoot.envs.objectives.ltlf import objective
from surefoot.envs.objectives.machine import Machine, machine_of, read_machine
from surefoot.envs.objectives.wrapper import ObjectiveEnv

__all__ = ["Machine", "ObjectiveEnv", "machine_of", "objective", "read_machine"]
