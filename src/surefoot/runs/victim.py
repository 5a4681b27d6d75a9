"""A trained agent as the victim of adversarial corruption of data."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent
from surefoot.core.policy.policy import Policy
from surefoot.runs.run import Run, load_agent


class _Victim:
    """An agent in the dataset's own units, for adversarial corruption."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.policy_module: Policy = agent.policy()

    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        scaled = to_agent(actions, self.agent.action_low, self.agent.action_high)
        pairs = torch.cat([self.agent.normalizer(observations), scaled], -1)
        return self.agent.critic(pairs)  # type: ignore[operator]

    def policy(self, observations: Tensor) -> Tensor:
        return self.policy_module(observations)


def victim(folder: str | os.PathLike[str], seed: int | None = None, trust: bool = False) -> _Victim:
    """A trained agent as the victim of `data.corrupt`: `q_values(observations, actions)` and `policy(observations)`.

    Raises:
        ConfigError: the run's algorithm has no critics, or they read a history.
    """
    run = Run.open(folder)
    agent = load_agent(run, seed, trust)
    if agent.spec != agent.environment_spec:
        raise ConfigError(
            f"{run.folder}: {agent.name} reads a history of observations; attack one that reads a single one"
        )
    if not hasattr(agent, "critic"):
        raise ConfigError(f"{folder}: {run.plan.algorithm} has no critics to attack; train riql, iql or td3bc")
    return _Victim(agent)
