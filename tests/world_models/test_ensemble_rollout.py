"""Whole candidates in an ensemble equal steps of it one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surefoot.core.nn.native import native
from surefoot.world_models.ensemble import rollout as ensemble_rollout
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.futures import Objective, sums_of
from surefoot.world_models.planners import CEM
from surefoot.world_models.risk import CVaR


def beyond(following: Tensor) -> Tensor:
    return following[..., 0] > 1.5


def model(dtype: torch.dtype = torch.float64, costs: bool = True, normalize: bool = True) -> GaussianEnsemble:
    """Five members, of which three in another order are asked, whose inputs and targets are far from 0 and 1."""
    torch.manual_seed(0)
    made = GaussianEnsemble(
        4, 2, members=5, elites=3, hidden=(24, 16), decays=(), costs=costs, normalize_targets=normalize,
        terminates=beyond,
    )  # fmt: skip
    with torch.no_grad():
        for weight in made.network.weights:
            weight.mul_(4)
        made.elites.copy_(torch.tensor([4, 0, 2]))
        made.input_mean.uniform_(-1, 1)
        made.input_scale.uniform_(0.5, 2)
        made.target_mean.uniform_(-0.1, 0.1)
        made.target_scale.uniform_(0.1, 0.5)
        made.max_log_variance.uniform_(-2, 0)
    return made.to(dtype)


def problem(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Three states with seven candidates of eight steps each."""
    source = torch.Generator().manual_seed(1)
    states = torch.randn(3, 4, generator=source).to(dtype)
    actions = (2 * torch.rand(3, 7, 8, 2, generator=source) - 1).to(dtype)
    return states, actions, torch.tensor([[1, 0], [2, 5], [3, 7]])


def both_ways(made: GaussianEnsemble, objective: Objective) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Returns and costs at once, and step by step."""
    given = problem(made.input_mean.dtype)
    with torch.no_grad():
        quick = made.sums_of(*given, objective)
        assert quick is not None
        made.sums_of = lambda *_: None  # type: ignore[method-assign]
        return quick, sums_of(made, *given, objective)


@pytest.mark.parametrize(
    "objective",
    [
        Objective(discount=0.9),
        Objective(7, discount=0.9),
        Objective(6, "epistemic"),
        Objective(7, "both", "ts1"),
        Objective(4, "none"),
    ],
)
@pytest.mark.parametrize("normalize", [False, True])
def test_returns_and_costs_are_those_of_single_steps(objective: Objective, normalize: bool) -> None:
    quick, slow = both_ways(model(normalize=normalize), objective)
    torch.testing.assert_close(quick, slow, rtol=1e-9, atol=1e-9)
    assert slow[0].std() > 0.1
    assert slow[1].std() > 0.1


@pytest.mark.parametrize("objective", [Objective(7, discount=0.9), Objective(7, "both", "ts1"), Objective(4, "none")])
def test_known_rewards_are_those_of_single_steps(objective: Objective) -> None:
    made = model()
    learned, _ = both_ways(made, objective)
    made = model()
    made.rewards_of = lambda now, act, after: now[..., 0] * act[..., 1] + after.square().sum(-1)
    quick, slow = both_ways(made, objective)
    torch.testing.assert_close(quick, slow, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(quick[0], learned[0])
    assert torch.equal(quick[1], learned[1])


def test_parts_of_a_batch_and_of_a_product_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble_rollout, "_FLOATS", 1)
    monkeypatch.setattr(ensemble_rollout, "_ROWS", 5)
    quick, slow = both_ways(model(costs=False), Objective(5, "both", "ts1"))
    torch.testing.assert_close(quick, slow, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(native.library() is None, reason="the native module is not built")
def test_the_native_layers_agree_within_rounding() -> None:
    quick, slow = both_ways(model(torch.float32), Objective(6))
    torch.testing.assert_close(quick, slow, rtol=2e-4, atol=2e-4)


def test_noise_of_a_mixture_is_left_to_single_steps() -> None:
    with torch.no_grad():
        assert model().sums_of(*problem(torch.float64), Objective(4, "aleatoric")) is None


def test_a_planner_asks_at_once_unless_derivatives_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = model(), []
    own = made.sums_of
    monkeypatch.setattr(made, "sums_of", lambda *given: (asked.append(1), own(*given))[1])
    states, actions, draws = problem(torch.float64)
    planner = CEM(horizon=3, samples=8, iterations=2)
    plan, _ = planner.plan(made, states, planner.begin(3, 2), Objective(6, risk=CVaR(0.5)))
    assert len(asked) == 2
    assert not plan.requires_grad
    point = actions.requires_grad_()
    returns, _ = sums_of(made, states, point, draws, Objective(6))
    assert torch.autograd.grad(returns.sum(), point)[0].abs().sum() > 0
    assert len(asked) == 2


def test_states_of_another_dtype_than_the_networks_are_not_read_as_theirs() -> None:
    states, actions, draws = problem(torch.float64)
    with torch.no_grad(), pytest.raises(RuntimeError, match="dtype"):
        sums_of(model(torch.float32), states, actions, draws, Objective(2))
