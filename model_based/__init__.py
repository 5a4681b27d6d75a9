"""Algorithms that learn a model of the world, or plan with one. One algorithm a file."""

from surefoot.core.agent import Agent

_AGENTS: tuple[type[Agent], ...] = ()
ALGORITHMS: dict[str, type[Agent]] = {agent.name: agent for agent in _AGENTS}
"""Name on the command line -> agent."""

__all__ = ["ALGORITHMS"]
