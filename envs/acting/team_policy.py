"""A policy of one agent as that of a whole team: what evaluation steps where several agents act in an environment."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from surefoot.core.actors.memory import Memory, PolicyLike
from surefoot.core.base.spec import mapped
from surefoot.core.policy.control_loop import ControlLoop


class TeamPolicy:
    """One policy that acts for each of A agents: rows of teams in, their actions one after another out.

    Its memory has a row for each agent; row n A + a is agent a of team n.

    Args:
        policy: of an agent.
        agents: A.
    """

    def __init__(self, policy: PolicyLike, agents: int) -> None:
        self.policy, self.agents = policy, agents

    def begin(self, rows: int, seed: int = 0) -> Memory:
        """The memory of `rows` teams at the first step of an episode; `seed` is of noise that the policy draws."""
        rows = rows * self.agents
        return self.policy.begin(rows, seed) if isinstance(self.policy, ControlLoop) else self.policy.begin(rows)

    def act(self, observations: Any, memory: Memory) -> tuple[Tensor, Memory]:
        """(N, A a) actions, or (N, A) choices, for (N, A O) observations; and the new memory."""
        own = mapped(lambda value: value.reshape(len(value) * self.agents, -1), observations)
        actions, memory = self.policy.act(own, memory)
        return actions.reshape(len(actions) // self.agents, -1), memory

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The memory after each team's reward, cost and end, which are those of its agents."""
        each = (value.repeat_interleave(self.agents) for value in (rewards, costs, ended))
        return self.policy.observe_outcome(memory, *each)


def for_team(policy: Any, vector: Any) -> Any:
    """A policy as one that acts in the rows of an environment: of a team where a row of it is one."""
    team = getattr(vector, "agents_team", None)
    if team is None or team.agents == 1 or not hasattr(vector, "agent_observation_space"):
        return policy
    return policy if isinstance(policy, TeamPolicy) else TeamPolicy(policy, team.agents)


def first_memory(policy: PolicyLike, rows: int, first: int = 0) -> Memory:
    """A policy's memory before the episodes `first` and after."""
    if isinstance(policy, ControlLoop | TeamPolicy):
        return policy.begin(rows, first)
    return policy.begin(rows)
