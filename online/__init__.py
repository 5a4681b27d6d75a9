"""Reinforcement learning by acting: online, from offline to online, and hybrid. One algorithm a file."""

from surefoot.core.agent import Agent

ALGORITHMS: dict[str, type[Agent]] = {}
"""Name on the command line -> agent."""
