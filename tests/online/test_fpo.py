"""FPO and FPO++: golden numbers, the ratio before the first update, what is learned, and how a run continues."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flow_problems import TwoModes, clone_two_modes, flow_loop, share_above
from refusals import refused

from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.losses.policy_gradient import log_ratio, ratio, spo_surrogate
from surefoot.online.fpo import _cut, fpo_loss

OLD, NEW = torch.tensor([[1.2, 0.8, 1.0]], dtype=torch.float64), torch.tensor([[1.1, 0.9, 0.7]], dtype=torch.float64)


def test_golden_ratios_and_losses() -> None:
    assert float(ratio(log_ratio(-NEW, -OLD, level="sequence"))) == pytest.approx(1.105170918)
    logs = log_ratio(-NEW, -OLD)
    assert ratio(logs)[0].tolist() == pytest.approx([1.105170918, 0.904837418, 1.349858808])
    one = torch.ones(1, 1, dtype=torch.float64)
    assert float(fpo_loss(logs, one, 0.05, True)[0]) == pytest.approx(-1.0016124727)
    assert float(fpo_loss(logs, -one, 0.05, True)[0]) == pytest.approx(1.5950157954)
    plain = float(fpo_loss(logs, -one, 0.05, False)[0])
    assert plain == pytest.approx((1.105170918 + 0.95 + 1.349858808) / 3)


def test_the_pull_back_is_best_at_one_plus_epsilon_and_has_a_gradient_beyond() -> None:
    logs = torch.tensor([0.5], dtype=torch.float64).expm1().log1p().requires_grad_(True)  # far beyond
    terms, far = spo_surrogate(logs, torch.tensor([1.0], dtype=torch.float64), 0.1)
    (gradient,) = torch.autograd.grad(terms.sum(), logs)
    assert float(gradient) > 0  # down the loss, the ratio falls
    assert bool(far)
    best = torch.tensor([1.1], dtype=torch.float64).log().requires_grad_(True)
    (at_best,) = torch.autograd.grad(spo_surrogate(best, torch.tensor([1.0]), 0.1)[0].sum(), best)
    assert float(at_best) == pytest.approx(0, abs=1e-12)


def test_a_cut_keeps_the_gradient() -> None:
    value = torch.tensor([0.5, 3.0], requires_grad=True)
    cut = _cut(value, None, 1.0)
    cut.sum().backward()
    assert cut.tolist() == [0.5, 1.0]
    assert value.grad.tolist() == [1, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("preset", ["fpo", "fpo++"])
def test_the_ratio_is_one_before_the_first_update_and_errors_are_of_the_velocity_that_acted(preset: str) -> None:
    made = flow_loop("fpo", preset=preset)
    agent: Any = made.agent
    block = made.blocks.fill(0)
    made._write(block)
    batch = made.store.gather(torch.arange(16))
    with torch.no_grad():
        _, metrics = agent.policy_loss(batch, {})
    assert float(metrics["ratio_max"]) == pytest.approx(1, abs=1e-5)
    assert abs(float(metrics["kl_k1"])) < 1e-6
    times = batch["kept/time"]
    assert set((times * agent.actor.steps).unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}
    row, pair = 3, 2  # the noise that the velocity implies, by hand
    t, noise, action = times[row, pair], batch["kept/noise"][row, pair], batch["actions"][row]
    x = (1 - t) * noise + t * action
    with torch.no_grad():
        velocity = agent.actor.network(batch["observations"][row : row + 1], x[None], t[None])[0]
    wrong = (noise - (x - t * velocity)).square()
    expected = wrong.sum() if preset == "fpo++" else wrong.mean()
    assert float(batch["kept/error"][row, pair]) == pytest.approx(float(expected), rel=1e-4)


def test_a_flow_of_one_step_has_errors_that_tell_something_and_stretches_need_two() -> None:
    made = flow_loop("fpo", flow_steps=1, times=10)
    block = made.blocks.fill(0)
    assert float((block["kept/error"] > 0).float().mean()) > 0.8  # a tenth of the pairs are at the time 0
    with refused("flow_steps", "conflict"):
        flow_loop("fpo", flow_steps=1)
    with refused("flow_steps", "conflict"):
        flow_loop("fpo", flow_steps=1, times=10, network="shortcut", velocity_hidden=(16, 16, 16))


def test_a_run_that_goes_on_from_one_of_its_kind_takes_the_critic_too() -> None:
    source: Any = flow_loop("fpo").agent
    assert source.fresh(1).load_from(source) is None


def test_stacked_seeds_are_single_seeds() -> None:
    both = flow_loop("fpo", seeds=(3, 5))
    both.run(192)
    for position, seed in enumerate((3, 5)):
        alone = flow_loop("fpo", seeds=(seed,), kernels=False)
        alone.run(192)
        mine, theirs = both.learner.agents_parameters(position), alone.learner.agents_parameters(0)
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=2e-5)


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    whole = flow_loop("fpo", "native/cartpole-balance")
    whole.run(200)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    whole.run(200)
    other = flow_loop("fpo", "native/cartpole-balance")
    assert other.restore([state], step) is None
    other.run(200)
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name


@pytest.mark.parametrize("preset", ["fpo", "fpo++"])
def test_a_clone_of_two_modes_moves_to_the_better(preset: str) -> None:
    options: dict[str, Any] = {"clip": 0.2} if preset == "fpo++" else {}
    made = flow_loop("fpo", TwoModes(64), num_envs=64, horizon=8, epochs=4, minibatches=4, chunk=1, preset=preset,
                     velocity_hidden=(64, 64), normalize_rewards=False, normalize_observations=False,
                     learning_rate=1e-3, value_learning_rate=1e-2, planned=20_000, **options)  # fmt: skip
    assert isinstance(made.agent.actor, FlowActor)
    clone_two_modes(made.agent.actor.network, 800)
    made.run(20_000)
    better, worse = share_above(made.agent.policy())
    assert better > 0.8, (better, worse)
