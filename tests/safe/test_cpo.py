"""CPO's closed-form step against a generic solver, and the published slip in its sign."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch

from surefoot.safe.cpo import cpo_step

SIZE, DELTA = 5, 0.01


def problem(seed: int, over: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """A random SPD H, gradients g and b, and how far the constraint is broken, in trust regions."""
    source = np.random.default_rng(seed)
    root = source.normal(size=(SIZE, SIZE))
    h = root @ root.T + 0.5 * np.eye(SIZE)
    g, b = source.normal(size=(2, SIZE))
    return h, g, b, over * math.sqrt(2 * DELTA * b @ np.linalg.solve(h, b))


def analytic(h: np.ndarray, g: np.ndarray, b: np.ndarray, over: float) -> tuple[np.ndarray, int]:
    given = (g, b, np.linalg.solve(h, g), np.linalg.solve(h, b))
    step, case = cpo_step(*(torch.from_numpy(one) for one in given), over, DELTA)
    return step.numpy(), case


def solved(h: np.ndarray, g: np.ndarray, b: np.ndarray, over: float) -> np.ndarray:
    """By sequential quadratic programming in coordinates in which the trust region is a unit ball."""
    shape = math.sqrt(2 * DELTA) * np.linalg.inv(np.linalg.cholesky(h)).T  # x = shape y
    along, across = shape.T @ g, shape.T @ b
    scale, room = np.linalg.norm(along), np.linalg.norm(across)
    found = scipy.optimize.minimize(
        lambda y: -(along @ y) / scale,
        -across / room * min(1.0, max(0.0, 1.0 * over / room)),
        jac=lambda y: -along / scale,
        constraints=[
            {"type": "ineq", "fun": lambda y: -(across @ y + over) / room, "jac": lambda y: -across / room},
            {"type": "ineq", "fun": lambda y: (1 - y @ y) / 2, "jac": lambda y: -y},
        ],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return shape @ found.x


@pytest.mark.parametrize("over", [-0.9, -0.5, -0.1, 0.0, 0.1, 0.5, 0.9])
def test_the_step_is_that_of_a_generic_solver(over: float) -> None:
    for seed in range(12):
        h, g, b, c = problem(seed, over)
        step, case = analytic(h, g, b, c)
        assert case == (2 if over < 0 else 1)
        expected = solved(h, g, b, c)
        assert g @ step == pytest.approx(g @ expected, abs=1e-6 * np.linalg.norm(g))
        np.testing.assert_allclose(step, expected, rtol=0, atol=1e-5)
        assert b @ step + c <= 1e-9
        assert step @ h @ step / 2 <= DELTA * (1 + 1e-9)


def test_where_the_constraint_can_not_be_met_the_cost_falls_to_the_edge_of_the_trust_region() -> None:
    for seed in range(10):
        h, g, b, c = problem(seed, 1.5)
        step, case = analytic(h, g, b, c)
        assert case == 0
        assert b @ step < 0
        assert step @ h @ step / 2 == pytest.approx(DELTA, rel=1e-9)
        assert b @ step == pytest.approx(-math.sqrt(2 * DELTA * b @ np.linalg.solve(h, b)), rel=1e-9)  # no lower one


def test_where_the_constraint_is_far_the_step_is_the_natural_one() -> None:
    for seed in range(5):
        h, g, b, c = problem(seed, -1.5)
        natural = np.linalg.solve(h, g)
        natural *= math.sqrt(2 * DELTA / (g @ natural))
        step, case = analytic(h, g, b, c)
        assert case == 3
        np.testing.assert_allclose(step, natural, rtol=1e-10)
        step, case = analytic(h, g, 1e-5 * b, -1.0)
        assert case == 4
        np.testing.assert_allclose(step, natural, rtol=1e-10)


def published(h: np.ndarray, g: np.ndarray, b: np.ndarray, over: float) -> np.ndarray:
    """Cases 1 and 2 with r = +g'p, as the published code has it."""
    v, p = np.linalg.solve(h, g), np.linalg.solve(h, b)
    q, r, s = g @ v, g @ p, b @ p
    a, room = q - r * r / s, 2 * DELTA - over**2 / s
    lengths = [math.sqrt(a / room), math.sqrt(q / (2 * DELTA))]
    spans = [(0.0, r / over), (r / over, math.inf)] if over < 0 else [(r / over, math.inf), (0.0, r / over)]
    la, lb = (max(low, min(one, high)) for one, (low, high) in zip(lengths, spans, strict=True))
    fa = -(a / la + room * la) / 2 - r * over / s if la > 0 else -math.inf
    fb = -(q / lb + 2 * DELTA * lb) / 2 if lb > 0 else -math.inf
    length = la if fa >= fb else lb
    return (v - max(0.0, length * over - r) / s * p) / length


def test_the_published_sign_breaks_the_constraint_that_the_step_keeps() -> None:
    broken = 0
    for seed in range(40):
        for over in (-0.3, 0.3):
            h, g, b, c = problem(seed, over)
            with np.errstate(all="ignore"):
                wrong = published(h, g, b, c)
            broken += bool(b @ wrong + c > 1e-6)
            assert b @ analytic(h, g, b, c)[0] + c <= 1e-9
    assert broken > 20


def test_gradients_along_each_other_and_none_are_no_trouble() -> None:
    h, g, b, _ = problem(1, 0.5)
    edge = math.sqrt(2 * DELTA * b @ np.linalg.solve(h, b))
    for over in (-0.5, 0.0, 0.5):
        c = over * edge
        step, _ = analytic(h, 2 * b, b, c)  # the more return, the more cost: to the constraint and no further
        assert b @ step + c == pytest.approx(0, abs=1e-9)
        step, _ = analytic(h, -b, b, c)  # both at once: as far as the trust region goes
        assert step @ h @ step / 2 == pytest.approx(DELTA, rel=1e-6)
        assert b @ step < 0
        step, _ = analytic(h, 0 * b, b, c)
        assert b @ step == pytest.approx(-max(c, 0), abs=1e-9)
    assert not analytic(h, g, 0 * b, 1.0)[0].any()  # a cost that nothing changes
