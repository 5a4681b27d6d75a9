"""What an off-policy agent's team of collectors meets, a vector step at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.learner import Learner
from surefoot.envs.acting import under
from surefoot.envs.acting.interventions import COLUMN as INTERVENED
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.online.loops.experience import RAW, Experience
from surefoot.online.remote.team import ROWS, Team, Tensors, weights


def check_agent(agent: OffPolicyAgent) -> None:
    """Refuse agents that act by more than weights and the observation of the moment.

    Raises:
        ConfigError: says why.
    """
    for name, why in (
        ("queues_chunks", "plays chunks from a queue"),
        ("acts_in_chunks", "decides on chunks"),
        ("stateful", "acts by a memory"),
    ):
        if getattr(agent.acting, name):
            raise ConfigError(f"{agent.name} {why}, which collectors do not do for it: leave out collectors=")


class TeamSteps:
    """The steps that a team takes for one learner, in the order in which a learner alone would have taken them."""

    def __init__(self, team: Team, steps: int | None) -> None:
        """Ask for `steps` vector steps at a time, by one policy each; None: for an episode of the one environment."""
        self.team, self.length = team, steps
        self.rows: Tensors = {}
        """(K, N, ...) the block that is being taken in."""
        self.next = 0
        self.orders = 0
        """Blocks that were taken in so far, the present one included."""

    @property
    def held(self) -> int:
        """Vector steps of the block that is being taken in; 0 before the first."""
        return len(next(iter(self.rows.values()))) if self.rows else 0

    def take(self, number: int, learner: Learner) -> Tensors:
        """(N, ...) columns of vector step `number`, as `Experience.heard` keeps them."""
        if self.next >= self.held:
            order = self.orders if self.length is None else number // self.length
            answers = self.team.collect(order, lambda: ({"steps": self.length}, weights(learner)))
            self.orders = order + 1
            parts = [under(tensors, ROWS) for _, tensors in answers]
            self.rows = joined(parts, lambda columns: torch.cat(columns, 1))
            self.next = 0
        found = {name: column[self.next].to(learner.device) for name, column in self.rows.items()}
        self.next += 1
        return found

    def state(self) -> Tensors:
        """What is left of the block that is being taken in."""
        rows = {f"loop/collected/{name}": value.clone() for name, value in self.rows.items()}
        episodes = {"loop/orders": torch.tensor(self.orders)} if self.length is None else {}
        return {**rows, **episodes, "loop/next_collected": torch.tensor(self.next)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from it."""
        self.rows, self.next = under(state, "loop/collected/"), int(state["loop/next_collected"])
        self.orders = int(state.get("loop/orders", torch.zeros(())))


def store(experience: Experience, step: Tensors) -> None:
    """Take a step that was taken elsewhere into the replay buffer."""
    columns = {name: value for name, value in step.items() if name not in (RAW, "steps", "diverged")}
    over = (step["terminations"] | step["truncations"]).nonzero()[:, 0].tolist()
    experience.store(columns, step[RAW], step.get("steps"), step.get("diverged"), over)


def joined(parts: Sequence[Tensors], join: Callable[[list[Tensor]], Tensor]) -> Tensors:
    """Columns of several steps, or of several collectors' steps; where some lack `valid`, with 1 there, and where some
    lack `costs` or `intervened`, with 0.

    An environment gives `valid` with rows that are no transitions, and may speak of costs from a violation on.
    """

    def column(part: Tensors, name: str) -> Tensor:
        if name in part or name not in ("valid", "costs", INTERVENED):
            return part[name]
        rewards = part["rewards"]
        if name == "costs":
            return torch.zeros_like(rewards)
        return torch.full_like(rewards, name == "valid", dtype=torch.bool)

    names = dict.fromkeys(name for part in parts for name in part)
    return {name: join([column(part, name) for part in parts]) for name in names}
