"""Environments of OGBench, OCBench and gymnasium-robotics by name; their packages are extras, imported where needed."""

from surefoot.envs.suites.names import OCBenchName, OGBenchName, is_benchmark, parse
from surefoot.envs.suites.registration import ensure_registered
from surefoot.envs.suites.robotics import finished

__all__ = ["OCBenchName", "OGBenchName", "ensure_registered", "finished", "is_benchmark", "parse"]
