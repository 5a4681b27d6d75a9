"""What FISOR's feasible value would be without a network: exact reverse-expectile iteration on a grid.

V(s) is the reverse expectile over the behaviour's actions of Q(s, a) = (1 - g) h(s) + g max(h(s), V(f(s, a))): the
limit of FISOR's two losses when every state and action of the grid is in the data and nothing is approximated.
Source: Zheng et al., "Safe Offline Reinforcement Learning with Feasibility-Guided Diffusion Model", ICLR 2024.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.safe.reachability.grid import Grid, GridValue
from surefoot.safe.reachability.solver import Problem, Solution, Transitions, avoid_backup


def reverse_expectile(values: Tensor, expectile: float) -> Tensor:
    """(...) minimiser over v of sum_i |tau - 1(u_i > 0)| u_i^2, u = values - v, over the last axis of `values`.

    Weighting the k smallest values by tau and the others by 1 - tau gives a weighted mean for each k, and the
    smallest of them is the expectile for tau >= 1/2 (it is a minimum over weights in [1 - tau, tau]).
    """
    if not 0.5 <= expectile < 1:
        raise ConfigError(f"expectile is {expectile}; it must lie in [0.5, 1)")
    count = values.shape[-1]
    below = values.sort(-1).values.cumsum(-1)
    total = below[..., -1:]
    ranks = torch.arange(1, count + 1, dtype=values.dtype, device=values.device)
    weighted = expectile * below + (1 - expectile) * (total - below)
    return (weighted / (expectile * ranks + (1 - expectile) * (count - ranks))).amin(-1)


def solve_expectile(
    problem: Problem,
    grid: Grid,
    *,
    expectile: float,
    discount: float,
    tolerance: float = 1e-6,
    max_sweeps: int = 20_000,
    dtype: torch.dtype = torch.float64,
) -> Solution:
    """The fixed point, with the problem's actions as a uniform behaviour; it begins at V = h.

    Raises:
        ConfigError: the expectile is not in [0.5, 1), or the discount not in [0, 1).
    """
    if not 0 <= discount < 1:
        raise ConfigError(f"discount is {discount}; it must lie in [0, 1)")
    began = time.perf_counter()
    states = grid.states(dtype)
    h = problem.h(states)
    transitions = Transitions(problem, grid, states)
    values, change, sweep = h, float("inf"), 0
    while change > tolerance and sweep < max_sweeps:
        following = transitions.backed_up(values, h, lambda each: torch.stack(list(each), -1))
        new = reverse_expectile(avoid_backup(h[:, None], following, discount), expectile)
        change, values, sweep = float((new - values).abs().max()), new, sweep + 1
    return Solution(
        value=GridValue(grid, values.reshape(grid.shape)),
        h=h.reshape(grid.shape),
        discount=discount,
        sweeps=sweep,
        change=change,
        converged=change <= tolerance,
        seconds=time.perf_counter() - began,
    )
