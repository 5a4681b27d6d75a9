"""Constrained on-policy algorithms against a linear programme, quickly; in full size: benchmarks/safe_gridworld.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gridworld import OPTIONS, STEERED, Grid, GridWorld, SteeredGridWorld, move_chances

from surefoot.online import spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.on_policy import OnPolicyLoop
from surefoot.safe import ALGORITHMS

GRID = Grid(size=4, budget=0.8)


def late(algorithm: str, blocks: int, seed: int = 0, **options: Any) -> np.ndarray:
    """Exact value and cost, averaged over the policies of the last third of the blocks."""
    kind: Any = ALGORITHMS[algorithm]
    config = kind.configure(**{**OPTIONS[algorithm], "hidden": (32,), "cost_limit": GRID.budget, **options})
    env = GridWorld(GRID, config.num_envs)
    agent = kind(spec_of(env), config).fresh(seed)
    loop = OnPolicyLoop([agent], [seed], env, planned_steps=blocks * config.rows, kernels=True)
    values = []
    for _ in range(blocks):
        loop.run(1)
        with torch.no_grad():
            values.append(GRID.value(agent.actor(torch.eye(GRID.cells)).exp().double().numpy()))
    found: np.ndarray = np.asarray(values)[-(blocks // 3) :].mean(0)
    return found


def test_the_programme_agrees_with_simulated_episodes_and_its_dual_with_a_difference() -> None:
    value, cost, dual = GRID.best()
    assert cost == pytest.approx(GRID.budget)
    assert GRID.best(1e9)[1] > 2 * GRID.budget  # the best policy without a limit breaks it by far
    more, less = GRID.best(GRID.budget + 1e-4)[0], GRID.best(GRID.budget - 1e-4)[0]
    assert less < value < more
    assert (more - value) / 1e-4 <= dual * (1 + 1e-6)
    assert (value - less) / 1e-4 >= dual * (1 - 1e-6)
    rows = 3000
    source, env = np.random.default_rng(1), GridWorld(GRID, rows)
    policy = source.dirichlet(np.ones(4), GRID.cells)
    env.reset(seed=0)
    sums, going = np.zeros((2, rows)), np.ones(rows, bool)
    while going.any():  # one episode a row: those that end soon must not count more
        actions = (source.random(rows)[:, None] < policy[env.cells].cumsum(1)).argmax(1)
        _, rewards, ended, _, info = env.step(actions)
        sums += going * np.stack([rewards, info["cost"]])
        going &= ~ended
    assert sums.mean(1) == pytest.approx(np.array(GRID.value(policy)), rel=0.05)


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_it_comes_near_the_value_of_the_programme_within_the_budget(algorithm: str) -> None:
    options = {"multiplier_rate": 0.02} if algorithm == "trpo_lag" else {}  # faster than in 400 blocks
    blocks, (best, _, _) = 60 if algorithm == "cpo" else 120, GRID.best()
    swings = algorithm in {"cup", "ppo_pid"}  # about the budget, for longer than 120 blocks: one seed is chance
    seeds = range(3 if swings else 1)
    found = np.mean([late(algorithm, blocks, seed, **options) for seed in seeds], 0)
    assert found[0] > 0.9 * best
    spare = 0.15 if algorithm == "ppo_pid" else 0.06  # 0.77 to 0.90 in five seeds; without a limit more than twice 0.8
    assert found[1] < (1 + spare) * GRID.budget


def test_chances_of_moves_are_those_of_drawn_actions() -> None:
    source = np.random.default_rng(0)
    mean, deviation = source.normal(size=(5, 2)), np.exp(source.normal(size=(5, 2)))
    env, drawn = SteeredGridWorld(GRID, 5), np.zeros((5, 4))
    moves: list[np.ndarray] = []
    env.move = lambda chosen: moves.append(chosen)  # type: ignore[method-assign, assignment]
    for _ in range(20_000):
        env.step(np.tanh(mean + deviation * source.normal(size=(5, 2))))
    for move in range(4):
        drawn[:, move] = (np.asarray(moves) == move).mean(0)
    np.testing.assert_allclose(move_chances(mean, deviation), drawn, rtol=0, atol=0.02)


def test_sac_lag_comes_near_the_value_of_the_programme_within_the_budget() -> None:
    kind: Any = ALGORITHMS["sac_lag"]
    options = {**STEERED, "hidden": (32, 32), "multiplier_rate": 0.003, "initial_steps": 512}
    env = SteeredGridWorld(GRID, STEERED["num_envs"])
    agent = kind(spec_of(env), kind.configure(**options, cost_limit=GRID.budget)).fresh(0)
    loop = OffPolicyLoop([agent], [0], env, planned_steps=30_000, batch_size=64, kernels=True)
    values = []
    for _ in range(60):
        loop.run(500)
        with torch.no_grad():
            mean, log_std = agent.actor(torch.eye(GRID.cells))
        values.append(GRID.value(move_chances(mean.double().numpy(), log_std.exp().double().numpy())))
    found, (best, _, _) = np.asarray(values)[-20:].mean(0), GRID.best()
    assert found[0] > 0.9 * best
    assert found[1] < 1.06 * GRID.budget


def test_costs_of_the_wrong_sign_fail() -> None:
    class Flipped(GridWorld):
        def step(self, actions: Any) -> Any:
            *rest, info = super().step(actions)
            return (*rest, {**info, "cost": 1 - info["cost"]})  # of at most 1: negative ones are refused

    assert flipped(Flipped, "ppo_pid")[1] > 2 * GRID.budget
    assert flipped(Flipped, "cpo")[1] > 2 * GRID.budget


def flipped(kind: Any, algorithm: str) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "GridWorld", kind)
        return late(algorithm, 40)
