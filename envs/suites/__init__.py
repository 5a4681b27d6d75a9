"""Environments of OGBench, OCBench, MBRCSL and gymnasium-robotics by name; their packages are extras."""

from surefoot.envs.suites.names import OCBenchName, OGBenchName, PointMazeName, is_benchmark, parse
from surefoot.envs.suites.registration import ensure_registered
from surefoot.envs.suites.robotics import finished

__all__ = ["OCBenchName", "OGBenchName", "PointMazeName", "ensure_registered", "finished", "is_benchmark", "parse"]
