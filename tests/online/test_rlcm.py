"""RLCM and pi_RL: the ratio of each step of a chain, its clipping, and what is learned by it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from flow_problems import TwoModes, clone_two_modes, flow_loop, share_above
from refusals import refused

from surefoot.online import RLCM


def constant_velocity(agent: Any, value: list[float]) -> None:
    with torch.no_grad():
        for weight in agent.actor.network.mlp.weights:
            weight.zero_()
        agent.actor.network.mlp.biases[-1].copy_(torch.tensor(value))


@pytest.mark.parametrize("options", [{"preset": "rlcm"}, {"preset": "pi_rl"}, {"transition": "reinflow"}])
@pytest.mark.parametrize("steps", [2, 5])
def test_each_step_s_ratio_is_one_before_the_first_update(options: dict[str, Any], steps: int) -> None:
    made = flow_loop("rlcm", flow_steps=steps, **options)
    block = made.blocks.fill(0)
    block |= {name: torch.ones_like(block["rewards"]) for name in ("progress", "moving")}
    made._write(block)
    batch = made.store.gather(torch.arange(16))  # other rows at once than when the columns were made
    assert batch["behaviour_log_prob"].shape == (16, steps)
    with torch.no_grad():
        _, metrics = made.agent.policy_loss(batch, {})  # type: ignore[attr-defined]
    assert float(metrics["ratio_max"]) == pytest.approx(1, abs=1e-5)
    assert float(metrics["ratio_far"]) == 0


def test_errors_name_rlcm_and_not_its_ancestor() -> None:
    with refused("noise_low", "conflict"):
        RLCM.configure(noise_low=0.0)


def test_steps_are_clipped_one_by_one_by_hand() -> None:
    """A chain .2, .3, .5 whose velocity goes from .4 to .6: the first step's mean is .3, then .4, of deviation .5; the
    second's is .5, then .6, of deviation .1. So the ratios are exp(-.02) and exp(-.5); only the second is clipped."""
    agent: Any = flow_loop("rlcm", flow_steps=2, chunk=1, clip=0.05).agent.double()
    constant_velocity(agent, [0.4])
    chain = torch.tensor([[[0.2], [0.3], [0.5]]] * 2, dtype=torch.float64)
    batch = {"observations": torch.zeros(2, 3, dtype=torch.float64), "actions": chain[:, -1], "kept/chain": chain}
    batch["advantages"] = torch.tensor([1.0, -1.0], dtype=torch.float64)  # of deviation sqrt 2
    batch["behaviour_log_prob"] = agent.evaluate(batch).outputs.log_densities.detach()
    plain = -0.5 * math.log(2 * math.pi)
    assert batch["behaviour_log_prob"][0].tolist() == pytest.approx([plain - math.log(0.5), plain - math.log(0.1)])
    constant_velocity(agent, [0.6])
    loss, metrics = agent.policy_loss(batch, {})
    first, second = math.exp(-0.02), math.exp(-0.5)
    terms = [first, second, -first, -0.95]  # of the worse row the second step stays at what it is clipped to
    assert float(loss.detach()) == pytest.approx(-sum(terms) / math.sqrt(2) / 4, abs=1e-7)
    assert float(metrics["clip_fraction"]) == 0.5
    assert float(metrics["ratio_far"]) == 0.5
    masked, _ = agent.policy_loss({**batch, "mask": torch.tensor([1.0, 0.0], dtype=torch.float64)}, {})
    assert float(masked.detach()) == 0  # one row has no spread of advantages


@pytest.mark.parametrize("ratio", ["mean", "joint"])
def test_loss_and_gradient_of_the_stochastic_equation_equal_a_second_implementation(ratio: str) -> None:
    steps, size, amount = 3, 2, 0.5
    made = flow_loop("rlcm", preset="pi_rl", flow_steps=steps, chunk=size, clip=0.1, ratio_normalization=ratio)
    agent: Any = made.agent.double()
    constant_velocity(agent, [0.2, -0.1])
    source = torch.Generator().manual_seed(4)
    chain = 0.4 * torch.randn(12, steps + 1, size, dtype=torch.float64, generator=source)
    advantages = torch.randn(12, dtype=torch.float64, generator=source)
    batch = {"observations": torch.zeros(12, 3, dtype=torch.float64), "actions": chain[:, -1], "kept/chain": chain}
    found = agent.columns({name: v.unflatten(0, (3, 4)) for name, v in batch.items()} | block_of(12))
    batch |= {"advantages": advantages, "behaviour_log_prob": found["behaviour_log_prob"].flatten(0, 1)}
    constant_velocity(agent, [0.25, 0.05])
    velocity = agent.actor.network.mlp.biases[-1].requires_grad_(True)
    loss, _ = agent.policy_loss(batch, {})
    (gradient,) = torch.autograd.grad(loss, velocity)

    def log_densities(v: torch.Tensor) -> torch.Tensor:
        """As pi_RL writes it: its time t runs from 1, noise, to 0, and its velocity is noise minus data."""
        logs, delta = [], 1 / steps
        for k in range(steps):
            t, x, u = 1 - k / steps, chain[:, k], -v
            sigma = amount * math.sqrt(t / (1 - (t if t < 1 else t - delta)))
            data, noise = x - t * u, x + (1 - t) * u
            mean = data * (1 - (t - delta)) + noise * (t - delta - sigma**2 * delta / (2 * t))
            normal = torch.distributions.Normal(mean, sigma * math.sqrt(delta))
            logs.append(normal.log_prob(chain[:, k + 1]).sum(-1))
        return torch.stack(logs, -1) / (size if ratio == "mean" else 1)

    moved = velocity.detach().flatten().clone().requires_grad_(True)
    old = log_densities(torch.tensor([0.2, -0.1], dtype=torch.float64))
    torch.testing.assert_close(batch["behaviour_log_prob"], old, rtol=1e-6, atol=1e-6)
    ratio = torch.exp(log_densities(moved) - old)
    standard = ((advantages - advantages.mean()) / advantages.std()).unsqueeze(-1)
    expected = torch.maximum(-standard * ratio, -standard * ratio.clamp(0.9, 1.1)).mean()
    (wanted,) = torch.autograd.grad(expected, moved)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    torch.testing.assert_close(gradient.flatten(), wanted, rtol=1e-5, atol=1e-7)


def block_of(rows: int) -> dict[str, torch.Tensor]:
    """What advantages are made of, which this file does not look at."""
    zeros = torch.zeros(3, rows // 3, dtype=torch.float64)
    names = ("rewards", "terminations", "truncations")
    return {**dict.fromkeys(names, zeros), "next_observations": torch.zeros(3, rows // 3, 3, dtype=torch.float64)}


def test_stacked_seeds_are_single_seeds() -> None:
    options: dict[str, Any] = {"critic_warmup": 1, "learning_rate": 1e-3, "flow_steps": 3, "clone_coefficient": 0.5}
    both = flow_loop("rlcm", seeds=(3, 5), **options)
    both.run(192)
    for position, seed in enumerate((3, 5)):
        alone = flow_loop("rlcm", seeds=(seed,), kernels=False, **options)
        alone.run(192)
        mine, theirs = both.learner.agents_parameters(position), alone.learner.agents_parameters(0)
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=2e-5)


def test_a_clone_of_two_modes_moves_to_the_better() -> None:
    made = flow_loop("rlcm", TwoModes(64), preset="pi_rl", num_envs=64, horizon=8, epochs=4, minibatches=4, chunk=1,
                     flow_steps=4, velocity_hidden=(64, 64), normalize_rewards=False, normalize_observations=False,
                     learning_rate=1e-3, value_learning_rate=1e-2, planned=20_000)  # fmt: skip
    clone_two_modes(made.agent.actor.network)
    before, _ = share_above(made.agent.policy())
    assert 0.35 < before < 0.65
    made.run(20_000)
    better, worse = share_above(made.agent.policy())
    assert better > 0.8, (better, worse)
