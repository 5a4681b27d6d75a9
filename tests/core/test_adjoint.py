"""Adjoint matching against a flow that stands still and a Gaussian problem whose fixed point is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surefoot.core.losses.adjoint import adjoints, deviations, matching_loss, memoryless_path
from surefoot.core.losses.flow import euler


def still(x: Tensor, time: Tensor) -> Tensor:
    return torch.zeros_like(x)


def test_the_memoryless_noise_of_four_steps_is_that_by_hand() -> None:
    assert deviations(4) == pytest.approx([10**0.5, 2, 2**0.5, 1])


def test_adjoints_of_a_flow_that_stands_still_grow_with_the_step() -> None:
    path = [torch.randn(3, 2, dtype=torch.float64) for _ in range(5)]
    slope = torch.tensor([1.0, -2.0], dtype=torch.float64)
    found = adjoints(still, lambda a: a @ slope, path, 3.0)
    for k, adjoint in enumerate(found):
        torch.testing.assert_close(adjoint, (-3 * k / 4 * slope).expand(3, 2))


def test_the_best_flow_beside_one_that_stands_still_is_that_by_hand() -> None:
    path = [torch.zeros(1, 1, dtype=torch.float64)] * 5
    found = adjoints(still, lambda a: a.sum(-1), path, 1.0)
    speeds = [torch.full((1, 1), value, dtype=torch.float64, requires_grad=True) for value in (0, 0.5, 0.5, 0.375)]
    loss = matching_loss(lambda x, time: speeds[round(float(time) * 4)], still, path, found)
    assert loss.item() == pytest.approx(0, abs=1e-12)


def test_adjoints_ask_the_flow_one_step_later_than_the_path_did() -> None:
    asked: list[float] = []

    def field(x: Tensor, time: Tensor) -> Tensor:
        asked.append(float(time))
        return torch.zeros_like(x)

    path = memoryless_path(field, field, [torch.zeros(1, 1)] * 4)
    assert asked == [0, 0.25, 0.5, 0.75]
    asked.clear()
    adjoints(field, lambda a: a.sum(-1), path, 1.0)
    assert asked == [1, 0.75, 0.5, 0.25]


def behind(t: float) -> float:
    """b of the exact flow v(x, t) = b x between standard normal noise and standard normal data."""
    return (2 * t - 1) / (t**2 + (1 - t) ** 2)


def fixed_point(steps: int, beta: float) -> list[tuple[float, float]]:
    """(p, q) of each step of the flow u(x, t_k) = p x + q that adjoint matching ends at, for Q = -(a - 2)^2 / 2.

    All maps are affine: A_k = c_k A_K, and the path's end has the mean m + s x of where it is at step k.
    """
    h, c, found = 1 / steps, 1.0, []
    s, m = 1.0, 0.0
    for k in reversed(range(steps)):
        t = k / steps
        c = c + h * (2 * behind(t + h) - 1 / (t + h)) * c
        variance = 2 * (1 - t + h) / (t + h)
        g = variance / 2 * c * beta
        if k == steps - 1:
            s = 1 + h * behind(t)  # the last step is the cloned flow's
            p, q = behind(t) - g * s, 2 * g
        else:
            rest = 1 - h / (t + h)
            scale = 1 + 2 * h * g * s
            p, q = (behind(t) - g * s * rest) / scale, -g * (m - 2) / scale
            s, m = s * (rest + 2 * h * p), m + s * 2 * h * q
        found.append((p, q))
    return found[::-1]


@pytest.mark.parametrize(
    ("steps", "beta", "mean", "variance"),
    [(10, 1.0, 0.86873, 0.39440), (100, 1.0, 0.96963, 0.48915), (1000, 1.0, 0.99526, 0.49892),
     (1000, 3.0, 1.49420, 0.24971)],
)  # fmt: skip
def test_the_fixed_point_of_a_gaussian_problem_draws_the_tilted_distribution(
    steps: int, beta: float, mean: float, variance: float
) -> None:
    p, q = zip(*fixed_point(steps, beta), strict=True)

    def u(x: Tensor, time: Tensor) -> Tensor:
        k = round(float(time) * steps)
        return p[k] * x + q[k]

    ends = euler(u, torch.tensor([[0.0], [1.0]], dtype=torch.float64), steps).squeeze(1)
    assert ends[0].item() == pytest.approx(mean, abs=1e-5)
    assert (ends[1] - ends[0]).square().item() == pytest.approx(variance, abs=1e-5)


def test_paths_and_adjoints_give_that_fixed_point() -> None:
    """Regressed on the place, v - sigma^2 A / 2 along paths of the fixed point is the fixed point."""
    steps, rows = 10, 100_000
    source = torch.Generator().manual_seed(0)
    noise = [torch.randn(rows, 1, generator=source, dtype=torch.float64) for _ in range(steps)]
    known = fixed_point(steps, 1.0)

    def u(x: Tensor, time: Tensor) -> Tensor:
        p, q = known[round(float(time) * steps)]
        return p * x + q

    def v(x: Tensor, time: Tensor) -> Tensor:
        return (2 * time - 1) / (time**2 + (1 - time) ** 2) * x

    path = memoryless_path(u, v, noise)
    adjoint = adjoints(v, lambda a: -(a.squeeze(-1) - 2).square() / 2, path, 1.0)
    for k, sigma in enumerate(deviations(steps)):
        x = path[k]
        target = v(x, torch.tensor([k / steps], dtype=torch.float64)) - sigma**2 * adjoint[k] / 2
        design = torch.cat([x, torch.ones_like(x)], 1)
        p, q = torch.linalg.lstsq(design, target).solution.flatten().tolist()
        assert (p, q) == pytest.approx(known[k], abs=0.03)
