"""Safe: reinforcement learning under constraints, from data and by acting, and what says whether it holds."""

from surefoot.core.agent import Agent

ALGORITHMS: dict[str, type[Agent]] = {}
"""Name on the command line -> agent."""

__all__ = ["ALGORITHMS"]
