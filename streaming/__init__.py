"""Streaming: reinforcement learning from one sample at a time, on the robot. One algorithm a file."""

from surefoot.core.agent import Agent

ALGORITHMS: dict[str, type[Agent]] = {}
"""Name on the command line -> agent."""
