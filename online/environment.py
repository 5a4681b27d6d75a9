"""What the loops know of environments: what problem they pose, their seeds, their saved state, and episodes' means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot.core.agent import Spec
from surefoot.core.errors import EnvironmentMismatchError
from surefoot.core.random import generator
from surefoot.envs.interface import PolicyBlock
from surefoot.envs.spaces import arrays_of


def spec_of(env: Any) -> Spec:
    """The problem that a vector environment poses to an agent.

    Raises:
        EnvironmentMismatchError: observations that are neither vectors, uint8 images nor a Dict of them; actions that
            are neither bounded vectors nor choices counted from 0.
    """
    observations, action = arrays_of(env.single_observation_space), env.single_action_space
    if isinstance(action, gymnasium.spaces.Discrete):
        if int(action.start) != 0:
            raise EnvironmentMismatchError(f"the choices of {action} must be counted from 0: wrap the environment")
        return Spec.of_choices(observations, int(action.n))
    if not isinstance(action, gymnasium.spaces.Box) or len(action.shape) != 1:
        raise EnvironmentMismatchError(
            f"actions are {action}, and agents give vectors or one number of a choice: wrap the environment so that "
            "its actions are a one-dimensional Box or Discrete"
        )
    if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        raise EnvironmentMismatchError(
            f"the action space {action} has no finite bounds to scale a policy by: declare them, or wrap the "
            "environment in gymnasium.wrappers.RescaleAction"
        )
    return Spec(observations, int(action.shape[0]), tuple(action.low.tolist()), tuple(action.high.tolist()))


def check_spec(env: Any, spec: Spec, name: str) -> None:
    """Make sure that an environment poses the problem that an agent was made for.

    Raises:
        EnvironmentMismatchError: it poses another; the message says both.
    """
    found = spec_of(env)
    for what, wanted, has in (
        ("kind of actions", _kind(spec), _kind(found)),
        ("observation", spec.described(), found.described()),
        ("number of actions", spec.action_dim, found.action_dim),
        ("lowest action", _rounded(spec.action_low), _rounded(found.action_low)),
        ("highest action", _rounded(spec.action_high), _rounded(found.action_high)),
    ):
        if wanted != has:
            raise EnvironmentMismatchError(
                f"the {what} of this {name} agent is {wanted}, and of the environment {has}: make the agent from "
                "surefoot.online.spec_of(env)"
            )


def _kind(spec: Spec) -> str:
    return "discrete" if spec.discrete else "continuous"


def _rounded(bound: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in bound)


def row_seeds(seed: int, num_envs: int, block: int = 0) -> list[int]:
    """A seed for each environment of an agent's seed, the same alone and beside other agents."""
    return [int(one) for one in generator(seed, "environments", block).integers(0, 2**31, num_envs)]


# -- episodes ----------------------------------------------------------------------------------------------

SUMS = ("return", "length", "cost")


class EpisodeMeans:
    """Mean return, length and cost of the training episodes that end, for each of S seeds of N environments."""

    def __init__(self, seeds: int, num_envs: int, device: str | torch.device = "cpu") -> None:
        self.seeds, self.num_envs = seeds, num_envs
        self._running = torch.zeros(3, seeds, num_envs, dtype=torch.float64, device=device)
        self._ended = torch.zeros(4, seeds, dtype=torch.float64, device=device)  # sums over episodes, and their count
        self._has_costs = False

    @property
    def lengths(self) -> Tensor:
        """(S, N) steps of the running episodes so far."""
        return self._running[1]

    def begin(self) -> None:
        """All rows begin an episode."""
        self._running.zero_()

    def add_step(
        self, rewards: Tensor, ended: Tensor, valid: Tensor | None = None, costs: Tensor | None = None
    ) -> None:
        """Take in one step of (S * N,) rewards and ends and, where there are, masks and costs."""
        shape = (self.seeds, self.num_envs)
        self._running[0] += rewards.view(shape)
        self._running[1] += 1 if valid is None else valid.view(shape)
        if costs is not None:
            self._has_costs = True
            self._running[2] += costs.view(shape)
        if ended.device.type == "cpu" and not bool(ended.any()):
            return
        there = ended.view(shape).double()
        self._ended[:3] += (self._running * there).sum(2)
        self._ended[3] += there.sum(1)
        self._running *= 1 - there

    def add_block(self, block: Mapping[str, Tensor]) -> None:
        """Take in a block of (S, T, N) rewards, terminations, truncations and, where there are, costs and mask."""
        rewards, mask = block["rewards"].double(), block.get("mask")
        ended = block["terminations"] | block["truncations"]
        steps = torch.ones_like(rewards) if mask is None else mask.double()
        values = [rewards * steps, steps]
        if "costs" in block:
            values.append(block["costs"].double() * steps)
        self._has_costs |= "costs" in block
        for index, value in enumerate(values):
            sums, self._running[index] = sums_of_episodes(value, self._running[index], ended)
            self._ended[index] += (sums * ended).sum((1, 2))
        self._ended[3] += ended.sum((1, 2))

    def add_sums(self, block: PolicyBlock, horizon: int) -> None:
        """Take in the sums of a rollout of `horizon` steps."""
        self._has_costs = True
        finished = block.finished.view(self.seeds, self.num_envs)
        totals = (block.returns, torch.full_like(block.returns, horizon), block.costs.sum(0))
        parts = (block.finished_returns, block.finished_lengths, block.finished_costs)
        for index, (total, part) in enumerate(zip(totals, parts, strict=True)):
            whole, ended = (value.view(self.seeds, self.num_envs).double() for value in (total, part))
            self._ended[index] += torch.where(finished > 0, ended + self._running[index], 0.0).sum(1)
            self._running[index] = whole - ended + torch.where(finished > 0, 0.0, self._running[index])
        self._ended[3] += finished.sum(1)

    def take(self) -> dict[str, list[float]]:
        """The means since the last call, a number per seed; NaN where none ended."""
        sums = self._ended.T.tolist()
        self._ended.zero_()
        names = SUMS if self._has_costs else SUMS[:2]
        return {f"episode_{n}": [row[i] / row[3] if row[3] else math.nan for row in sums] for i, n in enumerate(names)}

    def state(self, position: int) -> dict[str, Tensor]:
        """The sums of one seed, copied."""
        return {"running": self._running[:, position].clone(), "ended": self._ended[:, position].clone()}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        self._running[:, position] = state["running"]
        self._ended[:, position] = state["ended"]


class RecentEpisodes:
    """Costs and lengths of the `window` training episodes that ended last, for each of S seeds of N environments.

    What a multiplier follows: fresh episodes of the policy as it is, not values that a critic has learned.
    """

    def __init__(self, seeds: int, num_envs: int, window: int, device: str | torch.device = "cpu") -> None:
        self.seeds, self.num_envs = seeds, num_envs
        self._running = torch.zeros(2, seeds, num_envs, dtype=torch.float64, device=device)
        self._last = torch.full((2, seeds, window), math.nan, dtype=torch.float64, device=device)  # the newest last

    def begin(self) -> None:
        """All rows begin an episode."""
        self._running.zero_()

    def add_block(self, block: Mapping[str, Tensor]) -> None:
        """Take in (S, T, N) costs, terminations, truncations and, where there is one, mask."""
        costs, mask = block["costs"].double(), block.get("mask")
        ended = block["terminations"] | block["truncations"]
        steps = torch.ones_like(costs) if mask is None else mask.double()
        for index, value in enumerate((costs * steps, steps)):
            sums, self._running[index] = sums_of_episodes(value, self._running[index], ended)
            for seed in range(self.seeds):
                found = torch.cat([self._last[index, seed], sums[seed][ended[seed]]])
                self._last[index, seed] = found[-self._last.shape[2] :]

    def add_step(self, costs: Tensor, terminations: Tensor, truncations: Tensor, valid: Tensor | None = None) -> None:
        """Take in one step of (S * N,) costs and ends."""
        shape = (self.seeds, 1, self.num_envs)
        block = {"costs": costs, "terminations": terminations, "truncations": truncations}
        if valid is not None:
            block["mask"] = valid
        self.add_block({name: value.view(shape) for name, value in block.items()})

    def means(self) -> tuple[Tensor, Tensor]:
        """(S,) float32 mean cost and mean length of these episodes; NaN where none has ended yet."""
        cost, length = self._last.nanmean(2).float()
        return cost, length

    def state(self, position: int) -> dict[str, Tensor]:
        """The numbers of one seed, copied."""
        return {"running": self._running[:, position].clone(), "last": self._last[:, position].clone()}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        self._running[:, position] = state["running"]
        self._last[:, position] = state["last"]


def sums_of_episodes(values: Tensor, running: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
    """Sums since the beginning of each episode, and those of the episodes that go on.

    Args:
        values: (S, T, N) float64.
        running: (S, N) sums of the running episodes before.
        ended: (S, T, N) bool.

    Returns:
        (S, T, N) sums up to and with each step where an episode ended there (elsewhere since the last end), and (S, N)
        the next `running`.
    """
    count = torch.arange(1, values.shape[1] + 1, device=values.device).view(1, -1, 1)
    last = torch.where(ended, count, 0).cummax(1).values  # steps up to the last end, this step's included
    before = torch.cat([torch.zeros_like(last[:, :1]), last[:, :-1]], 1)
    sums = torch.cat([-running.unsqueeze(1), values.cumsum(1)], 1)
    return sums[:, 1:] - sums.gather(1, before), sums[:, -1] - sums.gather(1, last[:, -1:]).squeeze(1)


def need_costs(env: Any, name: str) -> EnvironmentMismatchError:
    """What is wrong where a constrained agent acts in an environment without costs."""
    return EnvironmentMismatchError(
        f"{name} keeps a limit on costs, and {type(env).__name__} gives none: put each step's cost into info['cost'], "
        "or train an algorithm without a constraint"
    )


def bad_costs(costs: Tensor, counted: Tensor | None) -> Tensor:
    """Which costs are negative or not finite, of the rows that are `counted` (None: all)."""
    bad = ~((costs >= 0) & torch.isfinite(costs))
    return bad if counted is None else bad & (counted != 0)


def bad_cost(row: int, seed: int, step: int, cost: float) -> EnvironmentMismatchError:
    """What is wrong with a cost that is negative or not finite, of environment `row` of a seed at a vector step."""
    return EnvironmentMismatchError(
        f"environment {row} of seed {seed} gave a cost of {cost:g} at vector step {step}; info['cost'] must be 0 on a "
        "safe step and a finite number > 0 on a violating one. The last good checkpoint is kept"
    )


# -- state -------------------------------------------------------------------------------------------------


def environment_state(env: Any, position: int, seeds: int) -> dict[str, Tensor]:
    """What the rows of seed `position` of `seeds` need to go on; empty where the environment's state can't be had."""
    if not (hasattr(env, "get_state") and hasattr(env, "set_state")):
        return {}
    rows = env.num_envs // seeds
    found = {}
    for name, array in env.get_state().items():
        value = np.array(array)  # a copy
        if seeds > 1 and value.ndim > 0 and len(value) == env.num_envs:
            value = value[position * rows : (position + 1) * rows].copy()
        found[f"environment/{name}"] = torch.from_numpy(value.view(np.int64) if value.dtype == np.uint64 else value)
    return found


def restore_environment(env: Any, states: Sequence[Mapping[str, Tensor]]) -> str | None:
    """Set what `environment_state` gave, one mapping a seed; None, or a sentence where it can't be.

    Raises:
        EnvironmentMismatchError: it was another environment.
    """
    if not (hasattr(env, "get_state") and hasattr(env, "set_state")):
        return (
            f"the state of {type(env).__name__} can't be restored: a new episode begins in each environment, so that "
            "the run goes on with other numbers than an uninterrupted one"
        )
    whole = {}
    for name, own in env.get_state().items():
        key, like = f"environment/{name}", np.asarray(own)
        if key not in states[0]:
            raise EnvironmentMismatchError(f"the checkpoint has no {name!r} of the environment: it was another one")
        parts = [state[key].cpu().contiguous().numpy() for state in states]
        value = np.concatenate(parts) if len(parts) > 1 and like.ndim and len(like) == env.num_envs else parts[0]
        whole[name] = value.view(np.uint64) if like.dtype == np.uint64 else value.astype(like.dtype, copy=False)
    env.set_state(whole)
    return None


def under(state: Mapping[str, Tensor], stem: str) -> dict[str, Tensor]:
    """The part of a saved state whose names begin with `stem`, without it."""
    return {name.removeprefix(stem): value for name, value in state.items() if name.startswith(stem)}
