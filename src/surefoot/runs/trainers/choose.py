"""Which trainer a run has."""

from __future__ import annotations

from collections.abc import Callable

from surefoot.core.engine.share import Share
from surefoot.runs.plan import agent_class
from surefoot.runs.run import Run
from surefoot.runs.trainers.offline import DataTrainer
from surefoot.runs.trainers.online import ActingTrainer
from surefoot.runs.trainers.streaming import StreamingTrainer
from surefoot.runs.trainers.trainer import SeedTrainer, Send, never
from surefoot.streaming.agent import StreamingAgent


def seed_trainer(
    run: Run, seeds: list[int], send: Send, asked_to_stop: Callable[[], bool] = never, share: Share | None = None
) -> SeedTrainer:
    """The trainer for the kind of algorithm that a run has."""
    agent = agent_class(run.plan.algorithm)
    if issubclass(agent, StreamingAgent):
        return StreamingTrainer(run, seeds, send, asked_to_stop)
    return (ActingTrainer if agent.requires.online else DataTrainer)(run, seeds, send, asked_to_stop, share)
