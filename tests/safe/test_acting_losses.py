"""Losses of constrained agents that act, against loops over samples, and the bandit that their multipliers solve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from acting import Bandit, Walk, loop
from acting_blocks import block
from torch import Tensor

from surefoot.core.losses.value_learning import gae
from surefoot.envs import make_vec
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.safe import cpo
from surefoot.safe.constraint.constrained import cost_advantages
from surefoot.safe.constraint.multipliers import HeldMultiplier
from surefoot.safe.cpo import cpo_step
from surefoot.safe.focops import focops_terms


def test_cost_advantages_have_their_own_discount_and_are_centred_only() -> None:
    made = loop("ppo_lag", Walk(4), cost_discount=0.9, cost_gae_lambda=0.5)
    found = block(made)
    with torch.no_grad():
        advantages, returns = cost_advantages(made.agent, found)
        values, following = (
            made.agent.cost_value(found[name].flatten(0, 1)).view_as(found["costs"])
            for name in ("observations", "next_observations")
        )
    ends = (found["terminations"], found["truncations"])
    plain, expected = gae(found["costs"], values, following, *ends, 0.9, 0.5)
    torch.testing.assert_close(advantages, plain - plain.mean())
    torch.testing.assert_close(returns, expected)
    standardised = (plain - plain.mean()) / plain.std()
    assert not torch.allclose(advantages, standardised, rtol=0.05)


@pytest.mark.parametrize("name", ["ppo_lag", "ppo_pid", "cup"])
def test_costs_of_an_older_policy_are_corrected_as_rewards_are(name: str) -> None:
    made = loop(name, Walk(4))
    agent: Any = made.agent
    found = block(made)
    found["rewards"] = found["costs"]
    with torch.no_grad():
        agent.cost_value.load_state_dict(agent.value.state_dict())
        same = dict(agent.config.__dict__) | {"cost_discount": agent.config.discount}
        agent.config = type(agent.config)(**same | {"cost_gae_lambda": agent.config.gae_lambda})
        noise = torch.randn(found["costs"].shape, generator=torch.Generator().manual_seed(0))
        for block_ in (found, found | {"behaviour_log_prob": agent.log_prob(found) + noise}):
            rewards = OnPolicyAgent.advantages(agent, block_)
            costs, returns = cost_advantages(agent, block_)
            torch.testing.assert_close(returns, rewards["returns"])
            torch.testing.assert_close(costs, rewards["advantages"] - rewards["advantages"].mean())
    assert agent.corrects_staleness


def test_focops_learns_from_its_newest_policy_only() -> None:
    assert not loop("focops", Walk(4)).agent.corrects_staleness


def test_costs_are_never_scaled_and_rewards_may_be() -> None:
    made = loop("ppo_lag", Walk(4))
    found = made.blocks.fill(0)
    assert set(found["costs"].unique().tolist()) <= {0.0, 1.0}
    assert made.config.normalize_rewards


def test_the_penalised_advantage_is_what_the_policy_learns_from() -> None:
    made = loop("ppo_lag", Walk(4), initial_multiplier=3.0)
    found = block(made)
    with torch.no_grad():
        columns = made.agent.columns(found)
        values = made.agent.values(found["observations"])
        following = made.agent.values(found["next_observations"])
        plain, _ = gae(found["rewards"], values, following, found["terminations"], found["truncations"], 0.99, 0.95)
        costs, _ = cost_advantages(made.agent, found)
    expected = ((plain - plain.mean()) / (plain.std() + 1e-8) - 3 * costs) / 4
    torch.testing.assert_close(columns["advantages"], expected, rtol=1e-4, atol=1e-5)


def focops_batch() -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    divergence = 0.03 * torch.rand(7, generator=source)
    return divergence, 0.2 * torch.randn(7, generator=source), torch.randn(7, generator=source)


def test_focops_terms_are_those_of_a_loop_over_samples() -> None:
    divergence, logs, advantages = focops_batch()
    found = focops_terms(divergence, logs, advantages, 0.02, 1.5)
    assert found.shape == (7,)
    for i in range(7):
        inside = float(divergence[i]) <= 0.02
        alone = divergence[i] - logs[i].exp() * advantages[i] / 1.5 if inside else torch.zeros(())
        torch.testing.assert_close(found[i], alone)
    assert 0 < int((divergence <= 0.02).sum()) < 7


def test_focops_gradient_is_per_sample_and_the_published_broadcast_has_another() -> None:
    divergence, logs, advantages = focops_batch()
    logs.requires_grad_()
    own = torch.autograd.grad(focops_terms(divergence, logs, advantages, 0.02, 1.5).mean(), logs)[0]
    inside = (divergence <= 0.02).float()
    torch.testing.assert_close(own, -inside * logs.detach().exp() * advantages / 1.5 / 7)
    column = divergence.unsqueeze(1)  # (B, 1) as published: B x B terms
    slipped = (column <= 0.02).float() * (column - logs.exp() * advantages / 1.5)
    assert slipped.shape == (7, 7)
    other = torch.autograd.grad(slipped.mean(), logs)[0]
    assert float(other[inside == 0].abs().min()) > 0  # samples outside the trust region still pull
    assert not torch.allclose(own, other, rtol=0.1)


def projected(agent: Any, columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """The columns (T, N, ...) that CUP's projection begins with, beside the others."""
    flat = {name: value.flatten(0, 1) for name, value in columns.items()}
    shape = columns["projecting"].shape
    return {name: value.unflatten(0, shape) for name, value in agent.begin_projection(flat, {})[0].items()}


@pytest.mark.parametrize("algorithm", ["focops", "cup"])
def test_terms_have_one_number_a_row_and_the_loss_has_the_gradient_of_a_loop(algorithm: str) -> None:
    wide = {"trust_region": 1e9} if algorithm == "focops" else {}
    made = loop(algorithm, Walk(4), initial_multiplier=0.7, **wide)
    agent = made.agent
    with torch.no_grad():
        columns = agent.columns(block(made))
        if algorithm == "cup":
            columns |= projected(agent, columns)
        agent.actor.log_std.add_(0.1)
    batch = {name: value.flatten(0, 1)[:6] for name, value in columns.items()}
    assert batch["behaviour_log_prob"].shape == batch["advantages"].shape == (6,)
    parameters = list(agent.actor.parameters())
    for parameter in parameters:
        parameter.requires_grad_(True)
    whole = torch.autograd.grad(agent.policy_loss(batch, {})[0], parameters)
    each = [
        torch.autograd.grad(agent.policy_loss({n: v[i : i + 1] for n, v in batch.items()}, {})[0], parameters)
        for i in range(6)
    ]
    for position, gradient in enumerate(whole):
        mean = torch.stack([one[position] for one in each]).mean(0)
        torch.testing.assert_close(gradient, mean, rtol=1e-4, atol=1e-6)


def test_the_projection_of_cup_is_its_formula_and_its_weight_that_of_the_paper() -> None:
    made = loop("cup", Walk(4), initial_multiplier=0.7)
    agent = made.agent
    assert agent.config.weight == pytest.approx((1 - 0.99 * 0.95) / (1 - 0.99))
    with torch.no_grad():
        first = agent.columns(block(made))
        agent.actor.log_std.add_(0.1)  # the improved policy
        columns = first | projected(agent, first)
        agent.actor.log_std.sub_(0.3)
        batch = {name: value.flatten(0, 1) for name, value in columns.items()}
        mean, log_std = agent.actor(batch["observations"])
        old = torch.distributions.Normal(mean, log_std.exp() * torch.tensor(0.3).exp())
        new = torch.distributions.Normal(mean, log_std.exp())
        kl = torch.distributions.kl_divergence(new, old).sum(1)
        rho = (new.log_prob(batch["actions"]).sum(1) - batch["behaviour_log_prob"]).exp()
        expected = (0.7 * agent.config.weight * rho * batch["cost_advantages"] + kl).mean()
        loss, metrics = agent.policy_loss(batch, {})
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(metrics["kl_k3"], kl.mean(), rtol=1e-4, atol=1e-6)
    assert float(first["projecting"].max()) == 0
    assert agent.stop_at(0) == 0.02
    assert agent.stop_at(1) == 0.01


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_cup_learns_from_each_block_twice_with_a_jacobian_penalty_too(weight: float) -> None:
    made = loop("cup", Walk(4), target_kl=None, projection_kl=None, jacobian_penalty=weight)
    result = made.run(64)
    assert ("jacobian" in result, "jacobian_2" in result) == (weight > 0, weight > 0)
    assert made.learner.step == 2 * 2 * 2
    assert "policy_loss_2" in result


def test_cpo_compares_cost_with_the_limit_per_step_and_not_per_episode() -> None:
    made = loop("cpo", Walk(4), cost_limit=1.0)
    made.run(64)
    cost, length = made.blocks.recent.means()
    assert float(made.agent.episode_cost) == pytest.approx(float(cost))
    assert float(made.agent.episode_length) == pytest.approx(float(length))
    assert 5 <= float(length) <= 6


@pytest.mark.parametrize("chunk", [1, 2])
def test_cpos_step_is_told_how_far_the_limit_is_passed_in_the_unit_of_the_costs_gradient(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b is the gradient of a mean over decisions, so c = J - d must be one too: the slip hands over a sum."""
    told: list[float] = []

    def watched(g: Tensor, b: Tensor, v: Tensor, p: Tensor, over: float, delta: float) -> tuple[Tensor, int]:
        told.append(over)
        return cpo_step(g, b, v, p, over, delta)

    monkeypatch.setattr(cpo, "cpo_step", watched)
    made = loop("cpo", Walk(4) if chunk == 1 else make_vec("native/dubins-obstacles", 4), cost_limit=0.4, chunk=chunk)
    made.run(64 if chunk == 1 else 6400)
    cost, length = (float(mean) for mean in made.blocks.recent.means())
    assert abs(cost - 0.4) > 0.1
    assert told[-1] == pytest.approx((cost - 0.4) / (length / chunk))


def test_the_loss_of_sac_lag_is_its_formula() -> None:
    made = loop("sac_lag", Walk(2), initial_multiplier=2.0, cost_critics=2)
    made.run(40)
    agent = made.agent
    source = torch.Generator().manual_seed(0)
    observations, noise = (torch.randn(9, 3, generator=source) for _ in range(2))
    with torch.no_grad():
        action, log_density = agent.actor.draw(observations, noise)
        pairs = torch.cat([observations, action], 1)
        q, cost = agent.critic(pairs).min(0).values, agent.cost_critic(pairs).max(0).values
        weight = agent.multiplier()
        expected = ((agent.temperature() * log_density - q + weight * cost) / (1 + weight)).mean()
        loss, _ = agent.actor_loss({"observations": observations}, {"action": noise})
    torch.testing.assert_close(loss, expected)
    assert float(weight) > 1


# -- a bandit with a known multiplier ----------------------------------------------------------------------


BUDGET = 0.16
"""Best action 0.4, multiplier 1 / (2 * 0.4) = 1.25."""


def reached(algorithm: str, steps: int, **options: Any) -> tuple[float, float]:
    """Mean action and multiplier over the last third of a run."""
    made = loop(algorithm, Bandit(options["num_envs"]), planned=steps, cost_limit=BUDGET, **options)
    made.run(2 * steps // 3)
    actions, multipliers = [], []
    for _ in range(20):
        made.run(steps // 60)
        with torch.no_grad():
            actions.append(float(made.agent.act(torch.linspace(-1, 1, 9)[:, None]).clamp(-1, 1).mean()))
        multipliers.append(float(made.agent.multiplier()))
    return sum(actions) / 20, sum(multipliers) / 20


ON_BANDIT: dict[str, Any] = {
    "num_envs": 64, "horizon": 4, "epochs": 4, "minibatches": 4, "learning_rate": 1e-2, "schedule": "constant",
    "hidden": (16,), "normalize_observations": False, "normalize_rewards": False, "standardize": "none",
    "initial_log_std": -2.0, "multiplier": "paper", "gains": (2.0, 0.3, 0.0), "target_kl": 0.05,
}  # fmt: skip


def test_ppo_pid_finds_the_action_and_the_multiplier_of_the_bandit() -> None:
    action, multiplier = reached("ppo_pid", 30_000, **ON_BANDIT)
    assert action == pytest.approx(0.4, abs=0.03)
    assert multiplier == pytest.approx(1.25, rel=0.12)


OFF_BANDIT: dict[str, Any] = {
    "num_envs": 8, "batch_size": 64, "hidden": (32, 32), "initial_steps": 64, "multiplier_rate": 0.03,
    "updates_per_step": 0.25, "actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3, "cost_window": 64,
    "learn_temperature": False, "temperature": 0.002,
}  # fmt: skip


def test_sac_lag_finds_the_action_and_the_multiplier_of_the_bandit() -> None:
    action, multiplier = reached("sac_lag", 6000, **OFF_BANDIT)
    assert action == pytest.approx(0.4, abs=0.05)
    assert multiplier == pytest.approx(1.25, rel=0.2)


def test_a_multiplier_of_the_wrong_sign_fails_the_bandit(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped = HeldMultiplier.stepped

    def wrong(self: HeldMultiplier, cost: Tensor, limit: float) -> Any:
        return stepped(self, 2 * limit - cost, limit)

    monkeypatch.setattr(HeldMultiplier, "stepped", wrong)
    for algorithm, steps, options in (("ppo_pid", 9_000, ON_BANDIT), ("sac_lag", 3_000, OFF_BANDIT)):
        assert reached(algorithm, steps, **options)[0] > 0.6
