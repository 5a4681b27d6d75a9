r"""Gumbel-MuZero's search: a tree over choices that improves a policy even with few simulations.

With Gumbel draws :math:`g_a` at the root, the m choices with the highest :math:`g_a + \text{logits}_a` are considered,
and Sequential Halving shares n simulations among them; everywhere else visits are kept in proportion to the improved
policy:

.. math::
    \sigma(\hat q) &= (c_\text{visit} + \max_b N_b)\, c_\text{scale}\, \hat q,
        \quad \hat q \text{ rescaled to } [0, 1] \text{ over choices} \\
    \hat q_a &= q_a \text{ where visited, else } v_\text{mix} = \tfrac{1}{N + 1} \big( v + N
        \tfrac{\sum_{N_b > 0} p_b q_b}{\sum_{N_b > 0} p_b} \big) \\
    \text{root:}\; & \arg\max_a\, g_a + \text{logits}_a + \sigma(\hat q_a)
        \text{ among those with the scheduled visits} \\
    \text{inside:}\; & \arg\max_a\, \text{softmax}(\text{logits} + \sigma(\hat q))_a - N_a / (1 + N)

The choice that is taken is the best at the root among the most visited; the improved policy is
:math:`\text{softmax}(\text{logits} + \sigma(\hat q))`. Source: Danihelka, Guez, Schrittwieser and Silver, "Policy
improvement by planning with Gumbel" (ICLR 2022).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.world_models.dynamics import Dynamics, StepNoise
from surefoot.world_models.futures import Objective
from surefoot.world_models.planners.base import PLAN, BasePlanner, counted_on, sampled
from surefoot.world_models.planners.choices import drawn_choices, grid_of_choices

LOWEST = -1e9
"""Score of a considered choice, at least."""
SMALLEST_RANGE = 1e-8
"""Of values that are rescaled."""


class Expanded(NamedTuple):
    """What a step to a new node gives, of B rows."""

    states: Tensor
    """(B, S)."""
    rewards: Tensor
    """(B,) of the step."""
    discounts: Tensor
    """(B,) of what follows; 0 where the episode ended."""
    logits: Tensor
    """(B, A) of the prior policy in the new node."""
    values: Tensor
    """(B,) of the new node, as it is judged without search."""


Expand = Callable[[Tensor, Tensor, Tensor, int], Expanded]
"""(B, S) states, (B,) int64 choices, (B,) int64 depths of the new nodes, number of the simulation -> the nodes."""


class Searched(NamedTuple):
    """What a search found at the root."""

    choices: Tensor
    """(B,) int64 that is taken."""
    weights: Tensor
    """(B, A) the improved policy."""
    visits: Tensor
    """(B, A) int64."""
    values: Tensor
    """(B, A) of the choices that were visited, 0 of others."""
    tree: Tree
    """The whole tree."""


@dataclasses.dataclass
class Tree:
    """n + 1 nodes of each of B rows; node 0 is the root."""

    states: Tensor
    """(B, n + 1, S)."""
    raw_values: Tensor
    """(B, n + 1) without search."""
    values: Tensor
    """(B, n + 1) means of what was backed up."""
    counts: Tensor
    """(B, n + 1) of it."""
    children: Tensor
    """(B, n + 1, A) int64 nodes; -1 where there is none."""
    visits: Tensor
    """(B, n + 1, A) int64."""
    logits: Tensor
    """(B, n + 1, A)."""
    rewards: Tensor
    """(B, n + 1, A)."""
    discounts: Tensor
    """(B, n + 1, A)."""

    @classmethod
    def of(cls, states: Tensor, logits: Tensor, values: Tensor, simulations: int) -> Tree:
        """A tree of roots."""
        rows, choices = logits.shape
        nodes = simulations + 1

        def empty(*shape: int) -> Tensor:
            return values.new_zeros(rows, nodes, *shape)

        tree = cls(
            states=states[:, None].expand(-1, nodes, -1).clone(),
            raw_values=empty(),
            values=empty(),
            counts=empty(),
            children=torch.full((rows, nodes, choices), -1, device=values.device),
            visits=torch.zeros(rows, nodes, choices, dtype=torch.int64, device=values.device),
            logits=empty(choices),
            rewards=empty(choices),
            discounts=empty(choices),
        )
        tree.raw_values[:, 0] = tree.values[:, 0] = values
        tree.counts[:, 0] = 1
        tree.logits[:, 0] = logits
        return tree

    def q(self, nodes: Tensor) -> Tensor:
        """(B, A) values of the choices in (B,) nodes, 0 of those without a child."""
        rows = torch.arange(len(nodes), device=nodes.device)
        children = self.children[rows, nodes]
        after = self.values.gather(1, children.clamp(min=0))
        found = self.rewards[rows, nodes] + self.discounts[rows, nodes] * after
        return torch.where(children >= 0, found, 0)

    def completed(self, nodes: Tensor, visit_offset: float, scale: float) -> Tensor:
        """(B, A) sigma of the completed values in (B,) nodes."""
        rows = torch.arange(len(nodes), device=nodes.device)
        q, visits = self.q(nodes), self.visits[rows, nodes]
        seen = visits > 0
        prior = torch.softmax(self.logits[rows, nodes], -1).clamp(min=torch.finfo(q.dtype).tiny)
        shares = torch.where(seen, prior, 0)
        mean = (shares * q).sum(-1) / torch.where(seen.any(-1), shares.sum(-1), 1)
        total = visits.sum(-1)
        mixed = (self.raw_values[rows, nodes] + total * mean) / (total + 1)
        full = torch.where(seen, q, mixed[:, None])
        low, high = full.amin(-1, keepdim=True), full.amax(-1, keepdim=True)
        rescaled = (full - low) / (high - low).clamp(min=SMALLEST_RANGE)
        return (visit_offset + visits.amax(-1, keepdim=True)) * scale * rescaled


def schedule(considered: int, simulations: int) -> list[int]:
    """Visits that a considered choice has when it is simulated next, simulation by simulation (Sequential Halving)."""
    if considered <= 1:
        return list(range(simulations))
    phases = math.ceil(math.log2(considered))
    found: list[int] = []
    visits, left = [0] * considered, considered
    while len(found) < simulations:
        for _ in range(max(1, simulations // (phases * left))):
            found += visits[:left]
            visits[:left] = [count + 1 for count in visits[:left]]
        left = max(2, left // 2)
    return found[:simulations]


def search(
    states: Tensor,
    logits: Tensor,
    values: Tensor,
    expand: Expand,
    gumbels: Tensor,
    *,
    simulations: int,
    considered: int = 16,
    valid: Tensor | None = None,
    most_depth: int | None = None,
    visit_offset: float = 50.0,
    scale: float = 0.1,
) -> Searched:
    """Search from B roots at once.

    Args:
        states: (B, S) of the roots.
        logits: (B, A) of the prior policy there.
        values: (B,) of the roots, without search.
        expand: makes new nodes.
        gumbels: (B, A) Gumbel draws; zeros: the root's choice is not explored beyond the prior.
        simulations: n, at least 1.
        considered: m, choices at the root that may be simulated, at most A.
        valid: (B, A) bool of choices that are allowed at the root, at least one a row; None: all.
        most_depth: of a node; a simulation that comes to one so deep backs its value up again.
        visit_offset: c_visit.
        scale: c_scale.

    Returns:
        As `Searched`.

    Raises:
        ConfigError: fewer than one simulation, or a row without an allowed choice.
    """
    if simulations < 1:
        raise ConfigError(f"simulations is {simulations}; it must be at least 1", field="simulations", code="range")
    if valid is not None:
        if not bool(valid.any(-1).all()):
            raise ConfigError("a row allows no choice: at least one must be valid", field="valid", code="range")
        logits = torch.where(valid, logits - logits.amax(-1, keepdim=True), torch.finfo(logits.dtype).min)
    rows = torch.arange(len(states), device=states.device)
    tree = Tree.of(states, logits, values, simulations)
    allowed = torch.full_like(rows, logits.shape[-1]) if valid is None else valid.sum(-1)
    counts = allowed.clamp(max=max(1, considered))
    tables = {count: schedule(count, simulations) for count in counts.tolist()}
    planned = torch.tensor([tables[count] for count in counts.tolist()], device=states.device)  # (B, n)
    root = torch.zeros_like(rows)
    top = logits - logits.amax(-1, keepdim=True)

    def scores(wanted: Tensor) -> Tensor:
        """(B, A) of the root's choices with so many visits; minus infinity of others."""
        found = (gumbels + top + tree.completed(root, visit_offset, scale)).clamp(min=LOWEST)
        found = torch.where(tree.visits[:, 0] == wanted[:, None], found, -torch.inf)
        return found if valid is None else torch.where(valid, found, -torch.inf)

    limit = simulations if most_depth is None else most_depth
    for simulation in range(simulations):
        choice = scores(planned[:, simulation]).argmax(-1)
        path: list[tuple[Tensor, Tensor, Tensor]] = []  # node, choice, whether the row still goes down
        node, going = root, torch.ones_like(rows, dtype=torch.bool)
        leaf, leaf_choice, depth = root, choice, torch.ones_like(rows)
        while True:
            path.append((node, choice, going))
            leaf, leaf_choice = torch.where(going, node, leaf), torch.where(going, choice, leaf_choice)
            child = tree.children[rows, node, choice]
            going = going & (child >= 0) & (depth < limit)
            if not bool(going.any()):
                break
            node, depth = torch.where(going, child, node), torch.where(going, depth + 1, depth)
            visits = tree.visits[rows, node]
            improved = torch.softmax(tree.logits[rows, node] + tree.completed(node, visit_offset, scale), -1)
            choice = (improved - visits / (1 + visits.sum(-1, keepdim=True))).argmax(-1)
        made = expand(tree.states[rows, leaf], leaf_choice, depth, simulation)
        known = tree.children[rows, leaf, leaf_choice]
        new = torch.where(known >= 0, known, simulation + 1)
        fresh = known < 0
        tree.states[rows, new] = torch.where(fresh[:, None], made.states, tree.states[rows, new])
        tree.logits[rows, new] = torch.where(fresh[:, None], made.logits, tree.logits[rows, new])
        for target, value in ((tree.rewards, made.rewards), (tree.discounts, made.discounts)):
            target[rows, leaf, leaf_choice] = torch.where(fresh, value, target[rows, leaf, leaf_choice])
        tree.raw_values[rows, new] = torch.where(fresh, made.values, tree.raw_values[rows, new])
        tree.children[rows, leaf, leaf_choice] = new
        backed = tree.raw_values[rows, new]
        _take(tree, rows, new, backed, torch.ones_like(fresh))
        for node, choice, there in reversed(path):
            step = tree.rewards[rows, node, choice] + tree.discounts[rows, node, choice] * backed
            backed = torch.where(there, step, backed)
            _take(tree, rows, node, backed, there)
            tree.visits[rows, node, choice] += there.long()
    visits = tree.visits[:, 0]
    sigma = tree.completed(root, visit_offset, scale)
    chosen = scores(visits.amax(-1)).argmax(-1)
    return Searched(chosen, torch.softmax(logits + sigma, -1), visits, tree.q(root), tree)


def _take(tree: Tree, rows: Tensor, nodes: Tensor, values: Tensor, there: Tensor) -> None:
    """Take (B,) values into the means of (B,) nodes, in rows where that is so."""
    count, mean = tree.counts[rows, nodes], tree.values[rows, nodes]
    tree.values[rows, nodes] = torch.where(there, (mean * count + values) / (count + 1), mean)
    tree.counts[rows, nodes] = count + there.to(count.dtype)


@dataclasses.dataclass(frozen=True)
class Gumbel(BasePlanner):
    """Gumbel-MuZero's search in a world, over `bins` values of each action dimension.

    There is no network: the prior is uniform, and a node is judged by the mean return of `samples` random continuations
    up to `horizon` steps from the present. It plans for the mean outcome.
    """

    name: ClassVar[str] = "gumbel"
    horizon: int = option(30, "steps looked ahead, by the tree and by what judges its nodes", range=">= 1")
    simulations: int = option(64, "nodes of the tree, n of the paper", range=">= 1")
    considered: int = option(16, "choices at the root that are simulated, m of the paper", range=">= 1")
    samples: int = option(4, "random continuations that judge a node", range=">= 1")
    bins: int = option(3, "values of each action dimension", range=">= 2")
    gumbel_scale: float = option(1.0, "weight of the Gumbel draws at the root; 0: none", range=">= 0")

    def plan(
        self,
        dynamics: Dynamics,
        states: Tensor,
        memory: Memory,
        objective: Objective = Objective(),  # noqa: B008  # it is frozen
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """As `Planner.plan`; `noise` is of the root's continuations, of each simulation's, and of the Gumbel draws.

        Behind the first action the plan follows the most visited choices, and is 0 behind the tree.

        Raises:
            ConfigError: several futures or a limit on costs, or too many choices.
        """
        if objective.futures > 1 or objective.cost_limit is not None:
            raise ConfigError("gumbel plans for the mean outcome without a cost limit: leave futures and limit out")
        choices = grid_of_choices(dynamics.action_dim, self.bins).to(states)
        draws, last = memory[DRAWS], memory[PLAN].to(states.dtype)
        rows, each = len(states), self.samples
        drawn = -(-len(choices) // (self.horizon * dynamics.action_dim))  # candidates that give a number a choice
        white = sampled(noise, draws, 0, drawn + each * (self.simulations + 1), last)
        uniform = torch.special.ndtr(white[:, :drawn].reshape(rows, -1)[:, : len(choices)].double())
        gumbels = -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12))).to(states) * self.gumbel_scale
        largest = states.new_zeros(rows)  # reward in size that was met

        def known(rewards: Tensor, left: Tensor) -> Tensor:
            """(B, N) rewards of steps with (B,) steps left; one that is no number costs more than these could."""
            finite = rewards.isfinite()
            largest.copy_(torch.maximum(largest, torch.where(finite, rewards.abs(), 0).amax(1)))
            return torch.where(finite, rewards, (-2 * largest * left)[:, None])

        def judged(now: Tensor, depth: Tensor, number: int) -> Tensor:
            """(B,) mean discounted return of random continuations of (B, S) states at (B,) depths."""
            first = drawn + each * number
            actions = drawn_choices(white[:, first : first + each], self.bins)
            here = now[:, None].expand(-1, each, -1)
            total = now.new_zeros(rows, each)
            done = torch.zeros_like(total, dtype=torch.bool)
            for t in range(self.horizon):
                over = done | (depth + t >= self.horizon)[:, None]
                if bool(over.all()):
                    break
                step = dynamics.step(here, actions[:, :, t], StepNoise())
                reward = known(step.rewards, (self.horizon - depth - t).clamp(min=0))
                total = total + torch.where(over, 0, objective.discount**t * reward)
                here = torch.where((over | step.ended)[..., None], here, step.states)
                done = over | step.ended | ~step.rewards.isfinite()
            return total.mean(1)

        def expand(now: Tensor, choice: Tensor, depth: Tensor, simulation: int) -> Expanded:
            step = dynamics.step(now, choices[choice], StepNoise())
            rewards = known(step.rewards[:, None], self.horizon - depth + 1)[:, 0]
            goes_on = ~step.ended & step.rewards.isfinite()
            after = torch.where(goes_on[:, None], step.states, now)
            value = torch.where(goes_on, judged(after, depth, simulation + 1), 0)
            discounts = goes_on.to(rewards) * objective.discount
            return Expanded(after, rewards, discounts, torch.zeros_like(gumbels), value)

        flat = torch.zeros_like(gumbels)
        found = search(
            states, flat, judged(states, torch.zeros(rows, dtype=torch.int64, device=states.device), 0), expand,
            gumbels, simulations=self.simulations, considered=self.considered, most_depth=self.horizon,
        )  # fmt: skip
        plan = torch.zeros_like(last)
        node, there = torch.zeros_like(found.choices), torch.ones_like(found.choices, dtype=torch.bool)
        index, choice = torch.arange(rows, device=states.device), found.choices
        for t in range(self.horizon):
            plan[:, t] = torch.where(there[:, None], choices[choice], 0)
            node = found.tree.children[index, node, choice]
            there = there & (node >= 0)
            if not bool(there.any()):
                break
            node = node.clamp(min=0)
            visits = found.tree.visits[index, node]
            there = there & (visits.sum(-1) > 0)
            choice = visits.argmax(-1)
        return plan, {PLAN: torch.zeros_like(last), DRAWS: counted_on(draws)}
