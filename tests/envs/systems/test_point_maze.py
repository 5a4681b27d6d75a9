from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from surefoot.envs.systems.point_maze import FREE, GRAZE, MAZE, RADIUS, PointMaze, routes

SYSTEM = PointMaze()
NAMES = [parameter.name for parameter in SYSTEM.parameters]
NOISE = torch.zeros(1, 2, dtype=torch.float64)


def parameters(**changed: float) -> torch.Tensor:
    values = SYSTEM.default_parameters()
    for name, value in changed.items():
        values[NAMES.index(name)] = value
    return values[None]


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


FRICTIONLESS = {"drag": 0.0, "gain": 1.0}  # a push of 1 accelerates by 1 m/s^2


def drive(state: list[float], pushes: list[tuple[float, float]], **changed: float) -> np.ndarray:
    """(steps + 1, 4) states under the pushes."""
    states, p = [rows(state)], parameters(**changed)
    for push in pushes:
        states.append(SYSTEM.step(states[-1], rows(list(push)), p, NOISE).state)
    return torch.cat(states).numpy()


def is_wall(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether points lie in a wall, from the drawing itself."""
    drawn = np.array([list(row) for row in MAZE]) == "#"
    return drawn[np.floor(y).astype(int), np.floor(x).astype(int)]


def test_away_from_walls_a_control_step_is_the_exact_solution() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        values = dict(zip(("mass", "gain", "drag", "wind_x", "wind_y"), generator.uniform(0.5, 2, 5), strict=True))
        m, gain, drag, wx, wy = values.values()
        start = np.array([2.5, 2.5, *generator.uniform(-2, 2, 2)])  # the nearest wall is 0.4 m away
        ux, uy = generator.uniform(-1, 1, 2)

        def derivative(
            _: float, s: np.ndarray, m: float = m, d: float = drag, f: tuple = (gain * ux + wx, gain * uy + wy)
        ) -> list[float]:
            return [s[2], s[3], (f[0] - d * s[2]) / m, (f[1] - d * s[3]) / m]

        exact = solve_ivp(derivative, (0, 0.1), start, method="DOP853", rtol=1e-13, atol=1e-13).y[:, -1]
        stepped = SYSTEM.step(torch.tensor(start)[None], rows([ux, uy]), parameters(**values), NOISE).state[0]
        np.testing.assert_allclose(stepped, exact, rtol=0, atol=1e-9)  # the series ends at z^6, z = drag h / m <= 0.2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_ball_is_ever_in_a_wall_or_through_one_however_it_is_pushed(dtype: torch.dtype) -> None:
    count, steps = 240, 700
    generator = torch.Generator().manual_seed(0)
    kinds = [
        parameters(),
        parameters(restitution=1.0, drag=0.0),
        parameters(restitution=0.5, wind_x=5.0, wind_y=-5.0),
        parameters(mass=0.2, gain=20.0, drag=0.1),  # 100 m/s^2
    ]
    p = torch.cat([kind.expand(count // 4, -1) for kind in kinds]).to(dtype)
    state = SYSTEM.reset(torch.rand(count, 3, generator=generator).to(dtype), p)
    push = torch.zeros(count, 2, dtype=dtype)
    seen = set()
    for t in range(steps):
        if t % 5 == 0:  # held for a while, so that walls are met at speed; often straight, along walls
            push = torch.randint(-1, 2, (count, 2), generator=generator).to(dtype)
        before = state
        state = SYSTEM.step(state, push, p, NOISE.to(dtype)).state
        x, y = state[:, 0].double().numpy(), state[:, 1].double().numpy()
        for dx, dy in itertools.product((-1, 1), (-1, 1)):
            # the square of the ball, less the overlap that counts as none, and rounding
            assert not is_wall(x + dx * (RADIUS - GRAZE - 1e-6), y + dy * (RADIUS - GRAZE - 1e-6)).any()
        old = np.floor(before[:, :2].numpy()).astype(int)
        new = np.floor(state[:, :2].numpy()).astype(int)
        apart = np.abs(new - old).sum(1)
        assert apart.max() <= 2
        for (i, j), (k, m) in zip(old[apart == 2], new[apart == 2], strict=True):
            assert MAZE[j][k] == " " or MAZE[m][i] == " "  # round the corner, not through it
        seen |= set(map(tuple, new))
    assert seen == set(FREE)  # and they do get everywhere


def test_a_ball_pushed_at_a_wall_stops_exactly_at_it() -> None:
    states = drive([1.5, 1.5, 0.0, 0.0], [(-1, 0)] * 30, **FRICTIONLESS)
    # 0.4 m at 1 m/s^2: t = sqrt(0.8) = 0.894 s, so x follows t^2 / 2 for 8 steps and is 1 + 0.1 from the 9th on
    np.testing.assert_allclose(states[:9, 0], 1.5 - 0.5 * (0.1 * np.arange(9)) ** 2, atol=1e-12)
    np.testing.assert_array_equal(states[9:, 0], 1.1)
    np.testing.assert_array_equal(states[9:, 2], 0.0)
    np.testing.assert_array_equal(states[:, 1], 1.5)


def test_a_perfectly_elastic_ball_runs_on_a_triangle_wave_between_two_walls() -> None:
    # cells (1, 1) and (2, 1): x is free from 1.1 to 2.9; unfolded, it moves on at 1.3 m/s
    states = drive([1.5, 1.5, 1.3, 0.0], [(0, 0)] * 200, restitution=1.0, **FRICTIONLESS)
    unfolded = 1.5 - 1.1 + 1.3 * 0.1 * np.arange(201)
    expected = 1.1 + 1.8 - np.abs(unfolded % 3.6 - 1.8)
    np.testing.assert_allclose(states[:, 0], expected, atol=1e-9)
    np.testing.assert_allclose(np.abs(states[:, 2]), 1.3, atol=1e-12)  # its energy stays


def test_a_ball_that_bounces_with_restitution_a_half_leaves_at_half_the_speed() -> None:
    # reaches 2.9 after 0.4 m at 2 m/s, 0.2 s; then 0.1 s at -1 m/s
    states = drive([2.5, 1.5, 2.0, 0.0], [(0, 0)] * 3, restitution=0.5, **FRICTIONLESS)
    np.testing.assert_allclose(states[:, 0], [2.5, 2.7, 2.9, 2.8], atol=1e-9)
    assert states[3, 2] == pytest.approx(-1.0)


def test_a_ball_slides_along_a_wall_over_the_seams_of_its_cells_as_if_they_were_not_there() -> None:
    # the bottom corridor, cells (1, 6), (2, 6), (3, 6), pressed against the rim below at y = 6.9
    states = drive([1.5, 6.9, 0.0, 0.0], [(1, 1)] * 20, **FRICTIONLESS)
    np.testing.assert_allclose(states[:, 0], 1.5 + 0.5 * (0.1 * np.arange(21)) ** 2, atol=1e-9)  # to 3.5 m
    np.testing.assert_array_equal(states[:, 1], 6.9)


def test_a_way_through_a_corridor_worked_out_by_hand() -> None:
    # right for 1 s and back to rest in 1 s: 0.5 + 0.5 m. Then down for 2 s: 2 m and 2 m/s. Then let go: at the wall
    # below cell (2, 4), y = 4.9, after 0.7 s, 1.4 m on
    pushes = [(1, 0)] * 10 + [(-1, 0)] * 10 + [(0, 1)] * 20 + [(0, 0)] * 10
    states = drive([1.5, 1.5, 0.0, 0.0], pushes, **FRICTIONLESS)
    np.testing.assert_allclose(states[10], [2.0, 1.5, 1.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(states[20], [2.5, 1.5, 0.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(states[40], [2.5, 3.5, 0.0, 2.0], atol=1e-9)
    np.testing.assert_allclose(states[46], [2.5, 4.7, 0.0, 2.0], atol=1e-9)
    np.testing.assert_allclose(states[48:], [[2.5, 4.9, 0.0, 0.0]] * 3, atol=1e-9)


def test_reward_is_one_within_0_45_m_of_the_goal_and_nothing_ends_an_episode() -> None:
    still = rows([6.5, 6.06, 0, 0], [6.5, 6.04, 0, 0], [6.2, 6.2, 0, 0], [1.5, 1.5, 0, 0])
    step = SYSTEM.step(still, torch.zeros(4, 2).double(), parameters(), NOISE)
    assert step.reward.tolist() == [1, 0, 1, 0]  # 0.44, 0.46 and 0.42 m
    assert not step.terminated.any()


def test_the_margin_is_the_signed_distance_to_the_hazard_square() -> None:
    still = rows([3.5, 3.5, 0, 0], [3.5, 3.9, 0, 0], [2.5, 3.5, 0, 0], [4.3, 4.4, 0, 0], [2.7, 2.6, 0, 0])
    step = SYSTEM.step(still, torch.zeros(5, 2).double(), parameters(), NOISE)
    assert step.margin.tolist() == pytest.approx([-0.5, -0.1, 0.5, 0.5, 0.5])  # corners: 0.3, 0.4 -> 0.5


def test_resets_reach_every_free_cell_equally_often_and_no_wall() -> None:
    draws = torch.tensor(np.random.default_rng(0).random((26_000, 3)))
    state = SYSTEM.reset(draws, parameters()).numpy()
    cells, counts = np.unique(np.floor(state[:, :2]).astype(int), axis=0, return_counts=True)
    assert set(map(tuple, cells)) == {(i, j) for j, row in enumerate(MAZE) for i, c in enumerate(row) if c == " "}
    assert abs(counts - 1000).max() < 5 * np.sqrt(1000)
    assert np.abs(state[:, :2] % 1 - 0.5).max() <= 0.2
    assert (state[:, 2:] == 0).all()
    edge = SYSTEM.reset(rows([1 - 2**-24, 0.5, 0.5]), parameters())  # the largest draw
    assert edge[0, :2].tolist() == [6.5, 6.5]


def way(start: tuple[int, int], closed: tuple[tuple[int, int], ...] = ()) -> list[tuple[int, int]]:
    cells = [start]
    while cells[-1] != (6, 6):
        cells.append(tuple(routes(closed)[(6, 6, *cells[-1])].tolist()))
        assert len(cells) < 30
    return cells


def test_the_shortest_way_leads_through_the_hazard_and_the_detour_is_six_cells_longer() -> None:
    # by hand: (1,1) .. (2,3) in 3 moves, (3,3) (4,3) (4,4) in 3 or the loop below in 9, then 5 to (6,6) less one
    short, long = way((1, 1)), way((1, 1), ((3, 3),))
    assert len(short) == 11
    assert (3, 3) in short
    assert len(long) == 17
    assert (3, 3) not in long
    for cells in (short, long):
        assert all(cell in FREE for cell in cells)
        assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in itertools.pairwise(cells))


def episodes(behaviour: str, count: int = 150) -> tuple[float, float]:
    """Mean return, and share of the episodes that begin outside the hazard and enter it."""
    generator = np.random.default_rng(3)
    p = parameters().expand(count, -1)
    state = SYSTEM.reset(torch.tensor(generator.random((count, 3))), p)
    outside = SYSTEM.step(state, torch.zeros(count, 2).double(), p, NOISE).margin > 0
    total, entered = torch.zeros(count).double(), torch.zeros(count).bool()
    for _ in range(SYSTEM.max_steps):
        action = torch.tensor(SYSTEM.behaviours[behaviour](SYSTEM.observe(state, p).numpy(), generator))
        assert bool((action.abs() <= 1).all())
        step = SYSTEM.step(state, action, p, NOISE)
        total += step.reward
        entered |= step.margin < 0
        state = step.state
    return total.mean().item(), (entered & outside).double().mean().item()


def test_expert_beats_medium_beats_random_and_the_detour_enters_no_hazard() -> None:
    expert, medium, random, detour = (episodes(name) for name in ("expert", "medium", "random", "detour"))
    assert expert[0] > 160
    assert expert[0] > 2 * medium[0] > 4 * random[0]
    assert expert[1] > 0.15
    assert detour[1] == 0
    assert detour[0] > 150
