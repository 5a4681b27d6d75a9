"""Many futures of one plan: where their spread comes from, what they return and cost, and an objective of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import Options, option
from surefoot.world_models import draws as drawn
from surefoot.world_models.dynamics import Dynamics, StepNoise
from surefoot.world_models.risk import Mean, Risk, cost_at_risk, counted

SPREADS = ("both", "epistemic", "aleatoric", "none")
PROPAGATIONS = ("tsinf", "ts1")


@dataclasses.dataclass(frozen=True)
class Objective(Options):
    """What a plan is to be good at.

    Raises:
        ConfigError: a value of another kind or out of range, or an unknown name.
    """

    futures: int = option(
        1, "trajectories of each candidate, F; all candidates share their random numbers", range=">= 1"
    )
    spread: str = option(
        "both",
        "what differs between futures: epistemic (which member is right), aleatoric (the world's noise), both or none; "
        "with one kind only, the other is at its mean",
        choices=SPREADS,
    )
    propagation: str = option(
        "tsinf",
        "tsinf: a future keeps its member; ts1: it draws one anew at each step, which averages out what a wrong member "
        "would do (Chua et al., 2018)",
        choices=PROPAGATIONS,
    )
    risk: Risk = dataclasses.field(default_factory=Mean)
    """Of the futures' returns, and of their costs."""
    cost_limit: float | None = option(
        None,
        "most cost of a plan, at that risk: plans within it come first, by return, then the others by cost, equal ones "
        "by return; null: any cost",
        range=">= 0",
    )
    discount: float = option(1.0, "discount factor of a step", range="(0, 1]")

    def __post_init__(self) -> None:
        """Refuse what is no measure of risk."""
        super().__post_init__()
        if not callable(getattr(self.risk, "of", None)):
            raise ConfigError(
                f"risk is {self.risk!r}; it is a measure, such as CVaR(0.1) or what parse_risk makes of its name",
                field="risk",
                code="type",
            )

    @property
    def plain(self) -> bool:
        """Whether one mean future and its return are all that counts."""
        return self.futures == 1 and self.cost_limit is None and isinstance(self.risk, Mean)


class Members(Protocol):
    """What has members, of which each future of a plan keeps or draws one."""

    members: int


def future_member(dynamics: Members, objective: Objective, draws: Tensor, t: int) -> Tensor | None:
    """(F, B) int64 members of step t of F futures; None: the mean of all that are asked, or there is one.

    Futures of "tsinf" keep the members one after another, so that each has an equal share; those of "ts1" draw one at
    each step. Of a world with `elites` only these are asked. One future, and "none", are the mean outcome.
    """
    futures, rows = objective.futures, len(draws)
    if futures == 1 or objective.spread not in ("both", "epistemic"):
        return None
    asked = getattr(dynamics, "elites", torch.arange(dynamics.members, device=draws.device))
    count = len(asked)
    if count == 1:
        return None
    if objective.propagation == "ts1":
        place = (drawn.future_shares(draws, futures, t) * count).long()
    else:
        place = (torch.arange(futures, device=draws.device) % count)[:, None].expand(-1, rows)
    member: Tensor = asked[place]
    return member


def check_futures(dynamics: Dynamics, objective: Objective) -> None:
    """Refuse futures that are all the same, and a risk of a single one, whatever a plan would make of them.

    Raises:
        ConfigError: such an objective in this world.
    """
    if objective.futures == 1:
        if not isinstance(objective.risk, Mean):
            raise ConfigError(
                f"the risk is {objective.risk} of 1 future, which is the mean outcome: give more futures, such as 50"
            )
        return
    several = members_asked(dynamics) > 1 and objective.spread in ("both", "epistemic")
    if not several and not noisy_futures(dynamics, objective):
        raise ConfigError(
            f"{objective.futures} futures of {type(dynamics).__name__} with spread {objective.spread!r} are all the "
            "same: nothing in it is random, or the spread leaves that out; leave futures and risk out, or plan in "
            "several worlds, in one with noise (certify --planner-gap) or in a model that a run learned"
        )


def members_asked(dynamics: Dynamics) -> int:
    """How many members futures are of: the elites, where there are such."""
    return len(getattr(dynamics, "elites", range(dynamics.members)))


def shares(dynamics: Dynamics, objective: Objective) -> tuple[int, int, int]:
    """Members, the futures that each has at least, and how many have one more; (0, 0, 0) where futures have no member.

    Raises:
        ConfigError: fewer futures than members, some of which no plan would ask.
    """
    members, futures = members_asked(dynamics), objective.futures
    kept = objective.propagation == "tsinf" and objective.spread in ("both", "epistemic")
    if not kept or min(members, futures) == 1:
        return 0, 0, 0
    if futures < members:
        raise ConfigError(
            f"{futures} futures keep their member (tsinf), and of {members} members the plan would ask the first "
            f"{futures} alone: give {members} futures or a multiple of it, or propagation ts1"
        )
    return members, futures // members, futures % members


def noisy_futures(dynamics: Dynamics, objective: Objective) -> bool:
    """Whether the futures differ by the world's own noise."""
    return objective.futures > 1 and objective.spread in ("both", "aleatoric") and dynamics.noise_dim > 0


def future_noise(dynamics: Dynamics, objective: Objective, draws: Tensor, t: int, dtype: torch.dtype) -> StepNoise:
    """The random numbers of step t of F futures: member (F, B), as `future_member`, and normal (F, B, D)."""
    normal = None
    if noisy_futures(dynamics, objective):
        normal = drawn.future_normals(draws, objective.futures, t, dynamics.noise_dim, dtype)
    return StepNoise(future_member(dynamics, objective, draws, t), normal)


def sums_of(
    dynamics: Dynamics, states: Tensor, actions: Tensor, draws: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """(F, B, N) discounted returns and undiscounted costs of (B, N, H, A) candidates; trajectories are not kept.

    After an end nothing is earned, but each step costs what that of the end did: were it free, a plan that can't keep
    its cost limit would crash as soon as it can.

    A world that has `sums_of` of its own gives them where no derivatives are wanted (`world_models.ensemble.rollout`).
    """
    own: Callable[..., tuple[Tensor, Tensor] | None] | None = getattr(dynamics, "sums_of", None)
    found = None if own is None or torch.is_grad_enabled() else own(states, actions, draws, objective)
    if found is not None:
        return found
    shape = (objective.futures, *actions.shape[:2])
    now = states.unsqueeze(1).expand(*shape, states.shape[-1])
    returns = torch.zeros(shape, dtype=states.dtype, device=states.device)
    costs, last = torch.zeros_like(returns), torch.zeros_like(returns)
    done = torch.zeros(shape, dtype=torch.bool, device=states.device)
    scale = 1.0
    for t in range(actions.shape[2]):
        noise = future_noise(dynamics, objective, draws, t, states.dtype)
        shared = StepNoise(*(None if part is None else part.unsqueeze(2) for part in (noise.member, noise.normal)))
        step = dynamics.step(now, actions[:, :, t].expand(*shape, actions.shape[-1]), shared)
        now = torch.where(done.unsqueeze(-1), now, step.states)
        returns = returns + torch.where(done, 0, scale * step.rewards)
        last = torch.where(done, last, step.costs)
        costs = costs + last
        done = done | step.ended
        scale *= objective.discount
    return returns, costs


class Score(NamedTuple):
    """How good candidates are."""

    values: Tensor
    """(B, N) the returns' risk measure; minus infinity where a future is no number."""
    costs: Tensor
    """(B, N) the costs', 0 without a limit."""
    feasible: Tensor
    """(B, N) bool: within the limit, and a finite value."""

    def spent(self) -> Tensor:
        """(B, N) the lower the better, before any value: 0 where feasible, else the cost, infinite for no number."""
        return torch.where(self.values.isfinite(), self.costs, math.inf).masked_fill(self.feasible, 0)

    def ranked(self) -> Tensor:
        """(B, N) positions of the candidates, the best first: by what is spent, equal ones by value, then in order."""
        first = torch.sort(counted(self.values), dim=1, descending=True, stable=True).indices
        return first.gather(1, torch.sort(self.spent().gather(1, first), dim=1, stable=True).indices)

    def fitness(self) -> Tensor:
        """(B, N) one number to weigh by: the value of those that spend least, minus infinity for the others."""
        spent = self.spent()
        return torch.where(spent == spent.amin(1, keepdim=True), counted(self.values), -math.inf)


@torch.no_grad()
def score(dynamics: Dynamics, states: Tensor, actions: Tensor, draws: Tensor, objective: Objective) -> Score:
    """The (B, N, H, A) candidates of (B, S) states, by the objective."""
    returns, costs = sums_of(dynamics, states, actions, draws, objective)
    values = objective.risk.of(returns)
    if objective.cost_limit is None:
        return Score(values, torch.zeros_like(values), counted(values).isfinite())
    spent = cost_at_risk(costs, objective.risk)
    return Score(values, spent, (spent <= objective.cost_limit) & values.isfinite())
