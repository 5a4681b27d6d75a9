"""Safe: reinforcement learning under constraints, from data and by acting, and what says whether it holds."""

from surefoot.core.agent import Agent
from surefoot.safe.fisor import FISOR, FISORConfig

ALGORITHMS: dict[str, type[Agent]] = {
    "fisor": FISOR,
}
"""Name on the command line -> agent."""

__all__ = [
    "ALGORITHMS",
    "FISOR",
    "FISORConfig",
]
