"""Grid reachability against closed forms and reference values, in this room's sign: V <= 0 is safe."""

import itertools
import math

import pytest
import torch
from reach_problems import braking_truth

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.safe.reachability import (
    Axis,
    Grid,
    GridValue,
    Problem,
    closed_forms,
    compare,
    measures,
    problems,
    reverse_expectile,
    solve,
    solve_expectile,
)
from surefoot.safe.reachability.solver import Transitions, avoid_backup, smallest


def disc_truth(grid, radius):
    return closed_forms.dubins_disc(*grid.states().unbind(-1), radius).reshape(grid.shape)


def test_multilinear_functions_are_interpolated_exactly_and_angles_wrap():
    grid = Grid((Axis("x", -1.0, 2.0, 7), Axis("y", 0.0, 1.0, 4), Axis("angle", -math.pi, math.pi, 8, periodic=True)))
    x, y, angle = grid.states().unbind(-1)
    value = GridValue(grid, (1 + 2 * x - 3 * y + x * y).reshape(grid.shape))
    points = torch.rand(100, 3, dtype=torch.float64) * torch.tensor([3.0, 1.0, 20.0]) + torch.tensor([-1.0, 0.0, -9.0])
    a, b, _ = points.unbind(-1)
    assert torch.allclose(value(points), 1 + 2 * a - 3 * b + a * b, atol=1e-12)
    wave = GridValue(grid, angle.cos().reshape(grid.shape))
    turned = points + torch.tensor([0.0, 0.0, 2 * math.pi])
    assert torch.allclose(wave(points), wave(turned), atol=1e-12)
    last = math.pi - grid.spacings[2] / 2  # between the last point and the first again
    assert wave(torch.tensor([0.0, 0.0, last], dtype=torch.float64)) == pytest.approx(
        (math.cos(math.pi) + math.cos(math.pi - grid.spacings[2])) / 2
    )


def test_beyond_an_edge_the_value_is_that_of_the_edge():
    grid = Grid((Axis("x", 0.0, 1.0, 3),))
    value = GridValue(grid, torch.tensor([1.0, 2.0, 5.0]))
    assert value(torch.tensor([[-7.0], [0.75], [9.0]])).tolist() == [1.0, 3.5, 5.0]
    assert value.values.tolist() == [1.0, 2.0, 5.0]


def test_a_state_of_nan_is_refused_by_name():
    value = GridValue(Grid((Axis("x", 0.0, 1.0, 3),)), torch.tensor([1.0, 2.0, 5.0]))
    with pytest.raises(EnvironmentMismatchError, match=r"state 1 is \[nan\], and NaN has no value"):
        value(torch.tensor([[0.5], [math.nan]]))


def test_the_double_integrators_safe_set_is_the_closed_form():
    grid = problems.double_integrator_grid(161)
    solution = solve(problems.double_integrator(), grid)
    found = compare(solution.values, braking_truth(grid))
    assert solution.converged
    assert found.iou > 0.997
    assert found.false_safe == 0.0
    assert found.sup_error < 0.0055
    assert found.mean_error < 0.001
    area = measures.volume(solution.values, grid.cell_volume)
    assert area == pytest.approx(16 / 3, abs=0.03)
    assert closed_forms.double_integrator_area() == pytest.approx(5.33333, abs=1e-5)


@pytest.mark.parametrize(("wall", "push", "area"), [(1.0, 1.0, 5.3333), (1.0, 2.0, 7.5425), (2.0, 1.0, 15.0849)])
def test_areas_of_braking_sets_are_those_of_the_closed_form(wall, push, area):
    assert closed_forms.double_integrator_area(wall, push) == pytest.approx(area, abs=1e-4)
    grid = Grid((Axis("x", -2.2, 2.2, 1101), Axis("v", -3.2, 3.2, 1101)))
    values = closed_forms.double_integrator(*grid.states().unbind(-1), wall, push)
    assert measures.volume(values, grid.cell_volume) == pytest.approx(area, rel=3e-3)


@pytest.mark.parametrize(
    ("radius", "turning", "area"), [(0.5, 1.0, 1.16707), (1.0, 1.0, 4.02754), (0.25, 1.0, 0.353645)]
)
def test_areas_of_unsafe_sets_of_a_car_are_those_of_the_closed_form(radius, turning, area):
    assert closed_forms.dubins_disc_area(radius, turning) == pytest.approx(area, abs=1e-5)
    grid = problems.dubins_disc_grid(1501, 2.5)
    values = closed_forms.dubins_disc(*grid.states().unbind(-1), radius, turning)
    assert measures.volume(-values, grid.cell_volume) == pytest.approx(area, rel=3e-3)


@pytest.mark.parametrize(("radius", "area"), [(0.5, 1.16707), (1.0, 4.02754)])
def test_a_car_before_a_disc_is_solved(radius, area):
    grid = problems.dubins_disc_grid(121)
    solution = solve(problems.dubins_disc(radius), grid)
    assert measures.unsafe_iou(solution.values, disc_truth(grid, radius)) > 0.995
    unsafe = grid.size * grid.cell_volume - measures.volume(solution.values, grid.cell_volume)
    assert unsafe == pytest.approx(area, rel=0.03)


def test_errors_fall_at_first_order_where_the_period_is_refined_with_the_grid():
    """The scheme errs by O(period) + O(spacing^2 / period)."""
    braking, turning = [], []
    for points, period in ((81, 0.1), (161, 0.05), (321, 0.025)):
        grid = problems.double_integrator_grid(points)
        solution = solve(problems.double_integrator(period), grid)
        braking.append(compare(solution.values, braking_truth(grid)).sup_error)
    for points, period in ((51, 0.2), (101, 0.1), (201, 0.05)):
        grid = problems.dubins_disc_grid(points)
        near = grid.states().norm(dim=-1).reshape(grid.shape) < 2.2
        solution = solve(problems.dubins_disc(1.0, period), grid)
        turning.append(float((solution.values - disc_truth(grid, 1.0)).abs()[near].max()))
    for errors in (braking, turning):
        orders = [math.log2(before / after) for before, after in itertools.pairwise(errors)]
        assert all(0.85 < order < 1.2 for order in orders), orders


def test_errors_fall_at_second_order_in_the_spacing_at_one_period():
    errors = []
    for points in (41, 81):
        grid = problems.double_integrator_grid(points)
        errors.append(compare(solve(problems.double_integrator(), grid).values, braking_truth(grid)).mean_error)
    assert 1.8 < math.log2(errors[0] / errors[1]) < 2.6


@pytest.mark.parametrize("discount", [0.5, 0.99, 1.0])
def test_whoever_can_stand_still_has_the_value_h_at_any_discount(discount):
    grid = Grid((Axis("x", -1.5, 1.5, 61),))
    solution = solve(problems.pure_integrator(), grid, discount=discount)
    assert (solution.values - solution.h).abs().max() < 1e-6


def test_a_point_driven_to_a_wall_has_the_discounted_closed_form():
    period, discount, wall = 0.1, 0.9, 0.0
    grid = Grid((Axis("x", -2.0, 60.0, 621), Axis("v", -1.0, 1.0, 3)))

    def step(states, action):
        return states + period * torch.stack((states[:, 1], torch.zeros(len(states), dtype=states.dtype)), -1)

    problem = Problem(step, lambda states: states[:, 0] - wall, torch.zeros(1, 1))
    solution = solve(problem, grid, discount=discount, tolerance=1e-12)
    x, v = grid.states().unbind(-1)
    truth = closed_forms.constant_velocity(x, v, wall, period, discount).reshape(grid.shape)
    inside = (x < 20).reshape(grid.shape)  # far from the edge, where h stops to rise
    assert (solution.values - truth).abs()[inside].max() < 1e-9


def test_backups_along_a_chain_are_those_worked_out_by_hand():
    chain = closed_forms.chain(torch.tensor([-1.0, -1.0, 25.0], dtype=torch.float64), 0.99)
    assert chain.tolist() == pytest.approx([24.4826, 24.74, 25.0], abs=1e-9)
    assert closed_forms.chain(torch.tensor([-1.0, -1.0, 1.0]).double(), 0.99).tolist() == pytest.approx(
        [0.9602, 0.98, 1.0]
    )
    for magnitude, steps in ((25.0, 324), (1.0, 68)):
        path = torch.full((400,), -1.0, dtype=torch.float64)
        path[-1] = magnitude
        values = closed_forms.chain(path, 0.99)
        assert values[399 - steps] > 0
        assert values[398 - steps] <= 0
    assert (closed_forms.chain(torch.full((9,), -1.0), 0.99) == -1).all()


def test_the_backup_contracts_by_the_discount_and_reaches_it_for_a_constant_difference():
    grid = problems.double_integrator_grid(31)
    problem = problems.double_integrator()
    states = grid.states()
    h = problem.h(states)
    transitions = Transitions(problem, grid, states)

    def backup(values):
        return avoid_backup(h, transitions.backed_up(values, h, smallest), 0.9)

    first, second = torch.randn(grid.size, dtype=torch.float64), torch.randn(grid.size, dtype=torch.float64)
    assert (backup(first) - backup(second)).abs().max() <= 0.9 * (first - second).abs().max() + 1e-12
    high = first.abs() + 10
    assert (backup(high + 2) - backup(high)).abs().max() == pytest.approx(1.8)
    assert (backup(first) >= h - 1e-12).all()


def test_with_the_sign_of_h_turned_the_safe_set_would_be_the_other_one():
    grid = problems.double_integrator_grid(41)
    problem = problems.double_integrator()
    turned = Problem(problem.step, lambda states: -problem.h(states), problem.actions)
    truth = braking_truth(grid)
    assert compare(solve(problem, grid).values, truth).iou > 0.95
    assert compare(solve(turned, grid).values, truth).iou < 0.05


def straight_cars(period, capture):
    """Air3D without turning: the pursuer passes by at constant relative velocity."""
    problem = problems.air3d(period=period, capture=capture)
    zero = torch.zeros(1, 1)
    return Problem(problem.step, problem.h, zero, zero)


def test_two_cars_that_go_straight_come_as_close_as_geometry_says():
    grid = Grid((Axis("x", -10, 10, 81), Axis("y", -10, 10, 81), Axis("psi", 0, 2 * math.pi, 8, periodic=True)))
    solution = solve(straight_cars(0.05, 2.0), grid, max_sweeps=60)
    x, y, psi = grid.states().unbind(-1)
    velocity = torch.stack((-5 + 5 * psi.cos(), 5 * psi.sin()), -1)
    place = torch.stack((x, y), -1)
    speed = (velocity**2).sum(-1).clamp_min(1e-12)
    when = (-(place * velocity).sum(-1) / speed).clamp(0, 3.0)
    truth = (2.0 - (place + when[:, None] * velocity).norm(dim=-1)).reshape(grid.shape)
    inside = ((place.abs() < 7).all(-1) & ((place + 3 * velocity).abs().amax(-1) < 25)).reshape(grid.shape)
    errors = (solution.values - truth).abs()[inside]
    assert errors.mean() < 0.12
    assert measures.unsafe_iou(solution.values[inside], truth[inside]) > 0.93


def test_air3d_is_symmetric_holds_the_capture_disc_and_is_worse_with_a_pursuer_that_turns():
    grid = problems.air3d_grid((27, 21, 20))
    problem = problems.air3d()
    played = solve(problem, grid, max_sweeps=56).values
    mirrored = played.flip(1)[:, :, torch.arange(20).neg() % 20]
    assert (played - mirrored).abs().max() < 1e-9
    x, y, _ = grid.states().unbind(-1)
    assert (played.reshape(-1)[torch.hypot(x, y) < 5] > 0).all()
    straight = solve(Problem(problem.step, problem.h, problem.actions, torch.zeros(1, 1)), grid, max_sweeps=56).values
    assert (played >= straight - 1e-12).all()
    assert (played > straight + 0.1).any()
    helpless = solve(Problem(problem.step, problem.h, torch.zeros(1, 1), problem.disturbances), grid, max_sweeps=56)
    assert (played <= helpless.values + 1e-12).all()
    assert (played < helpless.values - 0.1).any()


def test_reach_avoid_on_a_line_is_reachable_up_to_the_wall_between():
    """x' = u within |u| <= 1: the target [1, 1.2] can be reached from everywhere but behind the obstacle at 0."""
    grid = Grid((Axis("x", -2.0, 2.0, 201),))

    def target(states):
        return (states[:, 0] - 1.1).abs() - 0.1

    def obstacle(states):
        return 0.2 - states[:, 0].abs()

    def step(states, action):
        return states + 0.05 * action

    found = solve(Problem(step, obstacle, problems.evenly(1.0, 5), target=target), grid)
    x = grid.states()[:, 0]
    reachable = x >= 0.2 - 1e-9
    assert torch.equal(found.values <= 1e-9, reachable)
    discounted = solve(Problem(step, obstacle, problems.evenly(1.0, 5), target=target), grid, discount=0.99)
    assert not bool(((discounted.values <= 0) & ~reachable).any())  # discount shrinks a reach-avoid set


def test_a_step_that_ends_the_episode_ends_the_danger():
    grid = Grid((Axis("x", 0.0, 2.0, 41),))

    def step(states, action):
        return states + 0.1

    def h(states):
        return states[:, 0] - 1.5

    def ends(states, action):
        return states[:, 0] + 0.1 >= 1.0

    open_end = solve(Problem(step, h, torch.zeros(1, 1)), grid).values
    ended = solve(Problem(step, h, torch.zeros(1, 1), ends=ends), grid).values
    assert (open_end > 0).all()
    x = grid.states()[:, 0]
    assert torch.equal(ended <= 1e-9, x <= 1.4 + 1e-9)  # the step itself still counts


@pytest.mark.parametrize(("centre", "arrives"), [(1.0, True), (1.8, False)])
def test_an_episode_that_ends_safely_outside_the_target_has_not_arrived(centre, arrives):
    grid = Grid((Axis("x", 0.0, 2.0, 41),))

    def step(states, action):
        return states + 0.1

    def target(states):
        return (states[:, 0] - centre).abs() - 0.11

    def ends(states, action):
        return states[:, 0] + 0.1 >= 1.0 - 1e-9

    problem = Problem(step, lambda states: states[:, 0] * 0 - 1, torch.zeros(1, 1), target=target, ends=ends)
    found = solve(problem, grid)
    assert bool((found.values[grid.states()[:, 0] < 0.85] <= 0).all()) is arrives
    assert bool((found.values[grid.states()[:, 0] < 0.85] > 0).all()) is not arrives


def test_the_tabular_learner_comes_within_two_percent_of_the_grid():
    grid = problems.double_integrator_grid(121)
    solution = solve_expectile(problems.double_integrator(actions=9), grid, expectile=0.99, discount=0.99)
    found = compare(solution.values, solve(problems.double_integrator(actions=9), grid).values)
    assert found.iou >= 0.98
    assert found.false_safe <= 0.01


@pytest.mark.parametrize(("magnitude", "iou"), [(None, 0.791), (25.0, 0.598)])
def test_fisors_own_expectile_gives_conservative_sets(magnitude, iou):
    grid = problems.double_integrator_grid(121)
    problem = problems.double_integrator(actions=9)
    problem = problem if magnitude is None else problems.binary(problem, magnitude)
    found = compare(solve_expectile(problem, grid, expectile=0.9, discount=0.99).values, braking_truth(grid))
    assert found.iou == pytest.approx(iou, abs=0.005)
    assert found.false_safe == 0.0


@pytest.mark.parametrize(
    ("expectile", "value"), [(0.5, 0.5), (0.7, 0.395644), (0.9, 0.25), (0.95, 0.186605), (0.99, 0.091325)]
)
def test_reverse_expectiles_of_a_uniform_variable_are_those_of_the_closed_form(expectile, value):
    samples = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    assert float(reverse_expectile(samples, expectile)) == pytest.approx(value, abs=1e-5)
    forward = -reverse_expectile(-samples, expectile)
    assert float(forward) == pytest.approx(1 - value, abs=1e-5)


def test_a_reverse_expectile_minimises_its_loss():
    samples = torch.randn(9, dtype=torch.float64)
    found = reverse_expectile(samples, 0.9)

    def loss(value):
        u = samples - value
        return float(((0.9 - (u > 0).double()).abs() * u**2).sum())

    assert loss(found) < min(loss(found + 1e-4), loss(found - 1e-4))
