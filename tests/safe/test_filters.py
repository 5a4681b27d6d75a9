"""Filters: what passes, what is changed, and the margin below which a shield is none."""

import numpy as np
import pytest
import scipy.optimize
import torch

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.envs.systems import SYSTEMS, system
from surefoot.safe.filters.filtered import FilteredPolicy
from surefoot.safe.filters.margins import needed_margin
from surefoot.safe.filters.model import Model
from surefoot.safe.filters.safety_filter import BarrierQP, LearnedValue, LeastRestrictive, project
from surefoot.safe.reachability import closed_forms, solve
from surefoot.safe.reachability.problems import Line, LineStep

BOXED = [name for name, known in SYSTEMS.items() if known.reach_box]


def value(states):
    return closed_forms.double_integrator(*states.unbind(-1))


def starts(count, generator):
    drawn = torch.rand(6 * count, 2, dtype=torch.float64, generator=generator) * 2 - 1
    drawn = drawn * torch.tensor([1.0, 2.0])
    return drawn[value(drawn) <= -0.1][:count]


def share_violating(shield, episodes=400, steps=1000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    states = starts(episodes, generator)
    assert len(states) == episodes
    broken = torch.zeros(episodes, dtype=torch.bool)
    for _ in range(steps):
        actions = torch.rand(episodes, 1, dtype=torch.float64, generator=generator) * 2 - 1
        states = shield.model(states, shield(states, actions).actions)
        broken |= shield.model.h(states) > 0
    return float(broken.double().mean())


def line_shield(margin):
    line = Line()
    return LeastRestrictive(Model(line), value, margin, fallback=line.braking)


def test_a_shield_without_margin_fails_and_with_the_sampled_systems_margin_never_does():
    """Section 8.2b, smaller: the value is exact in continuous time, the system is sampled."""
    assert closed_forms.sampling_margin(1.0, 0.05) == pytest.approx(3.125e-4)
    assert share_violating(line_shield(0.0)) > 0.7
    assert 0.4 < share_violating(line_shield(1e-4)) < share_violating(line_shield(0.0))
    assert share_violating(line_shield(4e-4)) == 0.0
    assert share_violating(line_shield(1e-3), episodes=200) == 0.0


def test_the_margin_found_for_the_closed_form_is_that_of_the_sampled_system():
    shield = line_shield(0.0)
    grid = shield.model.grid()
    found = needed_margin(shield, grid, states=1000, steps=100, rounds=6)
    exact = closed_forms.sampling_margin(1.0, 0.05)
    assert 0.8 * exact < found.deepest <= exact
    assert share_violating(line_shield(found.value)) == 0.0


class Drift(Line):
    """On the line, pushed towards the wall at 2 m/s whatever is done; the episode ends beyond x = 0.5."""

    def step(self, state, action, parameters, normals):
        after = state + torch.tensor([0.1, 0.0], dtype=state.dtype)
        return LineStep(after, after[:, 0] >= 0.5)


def test_the_fallback_is_followed_to_the_end_of_the_episode_and_no_further():
    model = Model(Drift())
    solution = solve(model.problem(), model.grid((81, 5)))
    assert solution.value(torch.tensor([[0.0, 0.0]], dtype=torch.float64)) < -0.3
    found = needed_margin(LeastRestrictive(model, solution.value, 0.0), solution.grid, states=500, steps=50)
    assert found.deepest == pytest.approx(0, abs=1e-9)  # followed further it would meet the wall from everywhere


class Hall(Line):
    """The line between walls that nothing reaches."""

    def margin(self, state, parameters):
        return 9 - state[..., 0].abs()


def test_a_box_that_lies_deep_inside_the_safe_set_needs_no_margin_and_one_without_safe_states_is_refused():
    model, box = Model(Hall()), Model(Hall()).grid((3, 3))
    found = needed_margin(LeastRestrictive(model, lambda x: -8 + x[:, 0].abs() / 10, 0.0), box, states=50, steps=2)
    assert (found.value, found.states) == (0.0, 50)
    with pytest.raises(ConfigError, match="no state of the box is safe"):
        needed_margin(LeastRestrictive(model, lambda x: 1 + x[:, 0].abs(), 0.0), box, states=50, steps=2)


@pytest.fixture(scope="module")
def line_grid():
    model = Model(Line())
    return model, solve(model.problem(), model.grid((81, 81)))


@pytest.mark.parametrize("kind", [LeastRestrictive, BarrierQP])
def test_a_value_on_a_grid_shields_with_the_margin_that_is_found(kind, line_grid):
    model, solution = line_grid
    margin = needed_margin(LeastRestrictive(model, solution.value, 0.0), solution.grid, states=1000, steps=100)
    assert 0 <= margin.value < 0.05
    assert share_violating(kind(model, solution.value, margin.value), episodes=200, steps=400) == 0.0
    assert str(margin.states // 1000) in margin.sentence()


def test_the_policy_of_least_value_keeps_the_constraint_from_safe_states_and_breaks_it_from_unsafe_ones():
    """Sections 8.2 and 5.5: every state of the grid at least 0.02 within or beyond V = 0, for 200 steps."""
    model = Model(Line())
    grid = model.grid()
    solution = solve(model.problem(), grid)
    values, states = solution.values.reshape(-1), grid.states()
    clear = values.abs() >= 0.02
    states, safe = states[clear], values[clear] <= 0
    assert 7000 < safe.sum() < 9000
    broken = model.h(states) > 0
    greedy = LeastRestrictive(model, solution.value, 0.0)
    for _ in range(200):
        states = model(states, greedy.safest(states))
        broken |= model.h(states) > 0
    assert not broken[safe].any()
    assert broken[~safe].all()


def test_safe_actions_pass_untouched_and_unsafe_ones_are_replaced_by_braking():
    shield = line_shield(4e-4)
    inside = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    passed = shield(inside, torch.tensor([[0.3]], dtype=torch.float64))
    assert passed.actions.tolist() == [[0.3]]
    assert not passed.changed.any()
    edge = torch.tensor([[0.5, 0.99]], dtype=torch.float64)  # V = 0.5 + 0.49 - 1
    stopped = shield(edge, torch.tensor([[1.0]], dtype=torch.float64))
    assert stopped.actions.tolist() == [[-1.0]]
    assert stopped.changed.all()
    assert not stopped.short.any()
    lost = shield(torch.tensor([[0.9, 2.0]], dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64))
    assert lost.short.all()
    assert shield.promises(torch.cat((inside, edge, torch.tensor([[0.9, 2.0]])))).tolist() == [True, True, False]


def test_a_shield_with_the_values_sign_turned_would_let_it_crash():
    turned = LeastRestrictive(Model(Line()), lambda states: -value(states), 4e-4)
    assert share_violating(turned, episodes=100, steps=300) > 0.9


def test_actions_that_are_not_finite_are_replaced():
    shield = line_shield(4e-4)
    found = shield(torch.zeros(1, 2, dtype=torch.float64), torch.full((1, 1), float("nan"), dtype=torch.float64))
    assert found.changed.all()
    assert found.actions.isfinite().all()


def half_space(nominal: torch.Tensor, gain: torch.Tensor, constant: torch.Tensor) -> torch.Tensor:
    """(N, A) nearest actions with gain . u + constant >= 0: u + max(0, -(gain . u + constant)) gain / |gain|^2.

    One constraint without bounds, in closed form; a zero gain leaves the action. `nominal`, `gain` (N, A), `constant`
    (N,).
    """
    missing = (-((gain * nominal).sum(-1) + constant)).clamp_min(0)
    length = (gain**2).sum(-1)
    return nominal + torch.where(length > 0, missing / length.clamp_min(1e-300), 0.0)[:, None] * gain


def test_one_constraint_without_bounds_is_the_closed_form():
    torch.manual_seed(0)
    nominal, gain, constant = torch.randn(50, 3).double(), torch.randn(50, 3).double(), torch.randn(50).double()
    found = half_space(nominal, gain, constant)
    left = (gain * found).sum(-1) + constant
    was = (gain * nominal).sum(-1) + constant
    assert torch.equal(found[was >= 0], nominal[was >= 0])
    assert left[was < 0].abs().max() < 1e-12
    wide = torch.full((3,), 1e6, dtype=torch.float64)
    boxed, feasible = project(nominal, gain, constant, -wide, wide)
    assert feasible.all()
    assert torch.allclose(found, boxed, atol=1e-9)


def test_the_programme_in_a_box_agrees_with_a_generic_solver():
    rng = np.random.default_rng(0)
    low, high = np.array([-1.0, -0.5, -2.0]), np.array([1.0, 0.5, 0.3])
    active = infeasible = 0
    for _ in range(60):
        nominal, gain, constant = rng.uniform(low, high), rng.normal(size=3), rng.normal() * 1.5
        found, feasible = (
            part[0].numpy()
            for part in project(
                *(torch.from_numpy(np.array([x])) for x in (nominal, gain, constant)),
                *map(torch.from_numpy, (low, high)),
            )
        )
        best = np.where(gain > 0, high, low)
        if gain @ best + constant < 0:
            infeasible += 1
            assert not feasible
            assert np.allclose(found, best)
            continue
        assert feasible
        solved = scipy.optimize.minimize(
            lambda u, to=nominal: ((u - to) ** 2).sum(),
            nominal,
            jac=lambda u, to=nominal: 2 * (u - to),
            bounds=list(zip(low, high)),
            constraints={"type": "ineq", "fun": lambda u, g=gain, c=constant: g @ u + c, "jac": lambda u, g=gain: g},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        assert np.allclose(found, solved.x, atol=1e-6)
        if gain @ nominal + constant < 0:
            active += 1
            assert gain @ found + constant == pytest.approx(0, abs=1e-9)
        else:
            assert np.array_equal(found, nominal)
    assert active > 10
    assert infeasible > 5


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_the_barrier_may_fall_by_its_rate_and_bent_actions_use_that_up(rate):
    """Their condition holds with equality, but for the secant: V is quadratic in the action."""
    model = Model(Line())
    generator = torch.Generator().manual_seed(1)
    states = starts(1000, generator)
    actions = torch.rand(1000, 1, dtype=torch.float64, generator=generator) * 2 - 1
    barrier = BarrierQP(model, value, 1e-3, rate=rate)
    found = barrier(states, actions)
    needed = (1 - rate) * barrier.barrier(states)
    assert torch.equal(found.changed, barrier.barrier(model(states, actions)) < needed)
    bent = found.changed & ~found.short & (found.actions != barrier.safest(states)).all(-1)
    assert bent.sum() > 20
    left = barrier.barrier(model(states, found.actions)) - needed
    assert left[bent].abs().max() < 2e-3
    assert torch.equal(found.actions[~found.changed], actions[~found.changed])


def test_whatever_passes_the_barrier_leaves_it_at_zero_or_above_also_from_below_it():
    model = Model(Line())
    generator = torch.Generator().manual_seed(3)
    barrier = BarrierQP(model, value, 0.3, rate=0.2)
    states = starts(5_000, generator)
    states = states[barrier.barrier(states) < 0]
    assert len(states) > 100
    actions = torch.rand(len(states), 1, dtype=torch.float64, generator=generator) * 2 - 1
    found = barrier(states, actions)
    passed = ~found.changed
    reached = barrier.barrier(model(states, found.actions))
    assert passed.sum() > 20
    assert (reached[passed] >= 0).all()
    assert torch.equal(barrier.needed(states), torch.zeros(len(states), dtype=torch.float64))


def test_the_barrier_bends_less_than_the_shield_replaces():
    model = Model(Line())
    generator = torch.Generator().manual_seed(1)
    states = starts(500, generator)
    actions = torch.rand(500, 1, dtype=torch.float64, generator=generator) * 2 - 1
    sharp = BarrierQP(model, value, 1e-3, rate=1.0)(states, actions)
    replaced = LeastRestrictive(model, value, 1e-3)(states, actions)
    assert torch.equal(sharp.changed, replaced.changed)
    bent = (sharp.actions - actions).abs()[sharp.changed]
    assert bent.mean() <= (replaced.actions - actions).abs()[sharp.changed].mean()


def test_a_learned_value_filters_by_its_critic_and_promises_nothing():
    candidates = torch.tensor([[-1.0], [0.0], [1.0]])
    shield = LearnedValue(lambda seen, actions: seen[:, 0] + actions[:, 0], candidates, margin=0.1)
    seen, asked = torch.tensor([[0.5], [-0.5], [2.0]]), torch.tensor([[0.2], [0.2], [0.0]])
    found = shield(seen, asked)
    assert found.actions.flatten().tolist() == pytest.approx([-1.0, 0.2, -1.0])
    assert found.changed.tolist() == [True, False, True]
    assert found.short.tolist() == [False, False, True]
    assert not shield.promises(seen).any()


@pytest.mark.parametrize("name", BOXED)
def test_systems_with_a_grid_say_margin_and_state_as_their_step_and_observation_do(name):
    known = system(name)
    model = Model(known)
    grid = model.grid()
    torch.manual_seed(0)
    low = torch.tensor([axis.low for axis in grid.axes], dtype=torch.float64)
    high = torch.tensor([axis.high for axis in grid.axes], dtype=torch.float64)
    states = low + (high - low) * torch.rand(200, len(low), dtype=torch.float64)
    parameters = known.default_parameters().expand(200, -1)
    back = model.state_of(known.observe(states, parameters))
    assert torch.allclose(back, states, atol=1e-9)
    action = model.candidates()[0].expand(200, -1)
    step = known.step(states, action, parameters, torch.zeros(200, max(1, known.normals), dtype=torch.float64))
    assert torch.equal(-model.h(step.state), step.margin)
    assert torch.equal(model(states, action), step.state)
    assert len(grid.axes) == len(known.states)


@pytest.mark.parametrize("name", [name for name in BOXED if SYSTEMS[name].control_affine])
def test_systems_said_to_be_affine_in_the_action_are_over_a_short_step(name):
    """The rate of change at the middle action is the mean of those at its two extremes, to first order in dt."""
    known = type("Short", (SYSTEMS[name],), {"time_step": 1e-4, "name": name})()
    parameters = known.default_parameters().expand(50, -1)
    torch.manual_seed(1)
    states = torch.rand(50, len(known.states), dtype=torch.float64) - 0.5
    still = torch.zeros(50, max(1, known.normals), dtype=torch.float64)
    low, high = torch.tensor(known.action_low).double(), torch.tensor(known.action_high).double()
    rates = [
        (known.step(states, action.expand(50, -1), parameters, still).state - states) / 1e-4
        for action in (low, (low + high) / 2, high)
    ]
    scale = torch.stack(rates).abs().max()
    assert (rates[0] / 2 + rates[2] / 2 - rates[1]).abs().max() < 1e-3 * scale


def policy(action=1.0, width=2):
    made = Policy.of(DeterministicActor(width, 1, (4,)), Normalizer(width), torch.tensor([-1.0]), torch.tensor([1.0]))
    for parameter in made.actor.parameters():
        parameter.data.fill_(action if parameter.dim() == 1 else 0.0)
    return made


def test_a_filtered_policy_acts_and_counts(line_grid):
    model, solution = line_grid
    both = FilteredPolicy(policy(), LeastRestrictive(model, solution.value, 0.01), model)
    seen = torch.tensor([[0.0, 0.0], [0.5, 0.98]])
    actions = both.act(seen, {})[0]
    assert actions[0] > 0.5
    assert actions[1] == -1.0
    assert (both.actions, both.changed) == (2, 1)
    assert both.select_action(seen[1].numpy()).tolist() == [-1.0]
    assert (both.actions, both.changed) == (3, 2)
    both.clear()
    assert both.actions == 0
    assert both.description()["filter"] == {"kind": "LeastRestrictive", "margin": 0.01}


class BrakingCritic(torch.nn.Module):
    """What a network could have learned of the line: x after braking in full, and a little of the action."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor([1.0, 0.5, 0.3]))

    def forward(self, observations, actions):
        return torch.cat((observations, actions), 1) @ self.weights - 1


FILTERS = {
    "reach": lambda model, value: LeastRestrictive(model, value, 0.01),
    "cbf": lambda model, value: BarrierQP(model, value, 0.01),
    "learned": lambda model, value: LearnedValue(BrakingCritic(), torch.tensor([[-1.0], [0.0], [1.0]]), 0.01),
}


ROUNDING = 1e-4
"""A file works in float32, a filter here in float64; the programme divides by differences of values."""


def behind(kind, line_grid):
    """A policy that always pushes, behind a filter; the learned one looks at observations."""
    model, solution = line_grid
    return FilteredPolicy(policy(), FILTERS[kind](model, solution.value), None if kind == "learned" else model)


def seen_by_the_exported():
    drawn = torch.rand(64, 2, generator=torch.Generator().manual_seed(0))
    return drawn * torch.tensor([1.8, 4.0]) - torch.tensor([0.9, 2.0])


@pytest.mark.parametrize("kind", FILTERS)
def test_a_filter_exported_as_a_program_gives_the_same_actions(kind, line_grid, tmp_path):
    both = behind(kind, line_grid)
    both.export(tmp_path / "both.pt2")
    program = torch.export.load(tmp_path / "both.pt2").module()
    many = seen_by_the_exported()
    acted, _ = both.act(many, {})
    assert 0 < both.changed < 64
    assert torch.allclose(program(many), acted, atol=ROUNDING)


@pytest.mark.parametrize("kind", FILTERS)
def test_a_filter_exported_as_onnx_gives_the_same_actions(kind, line_grid, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    both = behind(kind, line_grid)
    both.export(tmp_path / "both.onnx")
    session = runtime.InferenceSession(tmp_path / "both.onnx")
    many = seen_by_the_exported()
    given = session.run(None, {"observations": many.numpy()})[0]
    acted, _ = both.act(many, {})
    assert 0 < both.changed < 64
    assert np.allclose(given, acted.numpy(), atol=ROUNDING)


def test_what_can_not_filter_is_refused():
    model = Model(Line())
    with pytest.raises(ConfigError, match="margin is -1"):
        LeastRestrictive(model, value, -1.0)
    with pytest.raises(ConfigError, match=r"rate is 0"):
        BarrierQP(model, value, 0.0, rate=0.0)
    maze = system("native/point-maze")
    with pytest.raises(ConfigError, match="native/point-maze does not say the margin"):
        Model(maze)
    stiff = Line()
    stiff.control_affine = False
    with pytest.raises(ConfigError, match="affine in its action"):
        BarrierQP(Model(stiff), value, 0.0)
    with pytest.raises(ConfigError, match="margin is nan"):
        LearnedValue(lambda a, b: a, torch.zeros(1, 1), float("nan"))
    with pytest.raises(ConfigError, match="no state of the box is safe"):
        needed_margin(LeastRestrictive(model, lambda s: s[:, 0] * 0 + 1, 0.0), model.grid())


def test_a_filter_never_lets_out_an_action_that_is_not_finite():
    class Broken(torch.nn.Module):
        def forward(self, states, actions):
            return actions * float("nan"), states[:, 0] > 0.5, states[:, 0] > 9

    both = FilteredPolicy(policy(), Broken(), None)
    assert both.act(torch.zeros(2, 2), {})[0].isfinite().all()
    with pytest.raises(EnvironmentMismatchError, match=r"filter's action is not finite in row 1, at .* \[1.0, 0.0\]"):
        both.act(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), {})
