"""Latent consistency models: what they must give on problems whose answer is known, and how plans are made in them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.latent.elites import drawn_elite, gumbel, refit, shifted
from surefoot.world_models.latent.latent import Bins, LatentCritic, LatentModel, kept_units
from surefoot.world_models.latent.planner import NETWORKS, SEARCH, LatentPlanner, networks

SIZES: dict[str, Any] = {
    **NETWORKS, **SEARCH, "encoder_hidden": (7,), "latent_dim": 8, "hidden": (9, 6), "group": 4, "bins": 21,
    "critics": 3, "samples": 12, "prior_samples": 4, "elites": 5, "iterations": 3,
}  # fmt: skip


def planner(**options: Any) -> LatentPlanner:
    """In float64, with rewards and values that differ from state to state."""
    torch.manual_seed(3)
    found = {**SIZES, **options}
    head = LatentPlanner(*networks(3, 2, found), found).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return head


# -- elites ----------------------------------------------------------------------------------------------------


def test_refit_by_hand() -> None:
    returns = torch.tensor([1.0, 3.0, math.nan, 3.0 - math.log(3.0)], dtype=torch.float64)
    actions = torch.tensor([9.0, 1.0, 7.0, -1.0], dtype=torch.float64).view(4, 1, 1)
    found = refit(returns, actions, 2, 1.0, (0.05, 2.0))
    assert found.weights.tolist() == pytest.approx([0.75, 0.25])
    assert found.elites.flatten().tolist() == [1.0, -1.0]
    assert float(found.mean) == pytest.approx(0.5)
    assert float(found.std) == pytest.approx(math.sqrt(0.75 * 0.25 + 0.25 * 2.25))
    assert float(refit(returns, actions, 1, 1.0, (0.05, 2.0)).std) == pytest.approx(0.05)
    assert float(refit(returns, actions, 2, 1.0, (0.05, 0.2)).std) == pytest.approx(0.2)


def test_plans_that_are_not_numbers_are_last_and_weigh_alike_among_themselves() -> None:
    actions = torch.arange(3.0).view(3, 1, 1)
    assert float(refit(torch.tensor([math.nan, -5e9, math.nan]), actions, 1, 0.5, (0.05, 2.0)).mean) == 1.0
    assert float(refit(torch.full((3,), math.nan), actions, 3, 0.5, (0.05, 2.0)).mean) == 1.0


def test_elites_are_drawn_by_their_weights() -> None:
    weights = torch.tensor([0.6, 0.3, 0.1])
    found = refit(weights.log() / 2, torch.arange(3.0).view(3, 1, 1), 3, 2.0, (0.05, 2.0))
    rows = type(found)(*(value.expand(20_000, *value.shape) for value in found))
    drawn = drawn_elite(rows, torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0))).flatten().long()
    assert (drawn.bincount(minlength=3) / 20_000).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.015)


def test_gumbel_numbers_have_gumbels_mean_and_variance() -> None:
    found = gumbel(torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert float(found.mean()) == pytest.approx(0.5772157, abs=0.01)
    assert float(found.var()) == pytest.approx(math.pi**2 / 6, rel=0.02)


def test_a_shifted_plan_ends_with_nothing() -> None:
    assert shifted(torch.arange(6.0).view(3, 2)).tolist() == [[2, 3], [4, 5], [0, 0]]


# -- the model ---------------------------------------------------------------------------------------------------


def test_states_lie_on_simplices() -> None:
    model = LatentModel(8, 2, (9, 6), 4)
    outcome = model.step(torch.rand(5, 3, 8), torch.rand(5, 3, 2), StepNoise())
    torch.testing.assert_close(outcome.states.unflatten(-1, (2, 4)).sum(-1), torch.ones(5, 3, 2))
    assert outcome.rewards.shape == outcome.ended.shape == (5, 3)


def test_rewards_and_values_begin_at_nothing() -> None:
    pairs = torch.rand(5, 10)
    assert not LatentModel(8, 2, (9, 6), 4).step(pairs[:, :8], pairs[:, 8:], StepNoise()).rewards.any()
    assert not LatentCritic(8, 2, (9, 6), 3).values(pairs).any()


def test_bins_give_back_rewards_and_their_loss_is_least_there() -> None:
    bins = Bins().double()
    rewards = torch.tensor([-12.0, 0.0, 0.3, 500.0], dtype=torch.float64)
    logits = torch.zeros(4, 101, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], 0.3)
    for _ in range(400):
        optimizer.zero_grad()
        bins.loss(logits, rewards).sum().backward()
        optimizer.step()
    torch.testing.assert_close(bins.mean(logits.detach()), rewards, rtol=0.01, atol=0.01)


def test_terminations_end_a_plans_rewards() -> None:
    head = planner(terminates=True, horizon=2)
    head.model.termination.biases[-1].data.fill_(50.0)  # always
    states, actions = torch.rand(1, 8, dtype=torch.float64), torch.rand(1, 6, 2, 2, dtype=torch.float64)
    found = head.returns(states, actions, torch.zeros(1, 1, 2, dtype=torch.float64))
    first = head.model.step(states.expand(6, -1), actions[0, :, 0], StepNoise())
    assert bool(first.ended.all())
    torch.testing.assert_close(found[0], first.rewards)


def test_the_first_members_alone_give_what_they_give_among_all() -> None:
    critic = LatentCritic(8, 2, (9, 6), 3).double()
    for parameter in critic.parameters():
        torch.nn.init.normal_(parameter)
    pairs = torch.randn(5, 10, dtype=torch.float64)
    masks = torch.rand(3, 5, 9, dtype=torch.float64)
    whole = critic(pairs, masks=masks)
    torch.testing.assert_close(critic(pairs, slice(0, 2), masks[:2]), whole[:2])
    torch.testing.assert_close(critic(pairs, torch.tensor([2, 0]), masks[[2, 0]]), whole[[2, 0]])


def test_dropout_masks_of_members_are_one_moved_on() -> None:
    mask = torch.arange(8.0).view(4, 2)
    found = kept_units(mask, 3)
    assert found.shape == (3, 4, 2)
    assert found[:, 0, 0].tolist() == [0.0, 6.0, 4.0]
    assert all(sorted(copy.flatten().tolist()) == sorted(mask.flatten().tolist()) for copy in found)


# -- plans -------------------------------------------------------------------------------------------------------


def test_returns_are_discounted_rewards_and_a_value_behind_them() -> None:
    head = planner(horizon=3, discount=0.9).requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    states = torch.rand(1, 8, generator=generator, dtype=torch.float64)
    actions = torch.rand(1, 1, 3, 2, generator=generator, dtype=torch.float64)
    behind = torch.randn(1, 1, 2, generator=generator, dtype=torch.float64)
    found = float(head.returns(states, actions, behind))
    z, total = states, 0.0
    for time in range(3):
        outcome = head.model.step(z, actions[0, :, time], StepNoise())
        total += 0.9**time * float(outcome.rewards)
        z = outcome.states
    mean, log_std = head.prior(z)
    last = torch.tanh(mean + log_std.exp() * behind[0])
    values = [float(head.critic.values(torch.cat([z, last], -1))[i]) for i in (0, 1)]
    assert found == pytest.approx(total + 0.9**3 * sum(values) / 2, abs=1e-10)


def test_rows_planned_together_equal_rows_planned_alone() -> None:
    head = planner()
    generator = torch.Generator().manual_seed(0)
    observations = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(5, head.noise_dim, generator=generator, dtype=torch.float64)
    memory = {"plan": torch.rand(5, 3, 2, generator=generator, dtype=torch.float64) - 0.5}
    actions, after = head.step(observations, memory, noise)
    for row in range(5):
        own = slice(row, row + 1)
        alone, left = head.step(observations[own], {"plan": memory["plan"][own]}, noise[own])
        torch.testing.assert_close(actions[own], alone, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(after["plan"][own], left["plan"], rtol=1e-9, atol=1e-9)


def test_more_rows_than_a_part_are_planned_in_parts() -> None:
    head = planner()
    observations, noise = torch.randn(35, 3).double(), torch.randn(35, head.noise_dim).double()
    actions = head.act(observations, noise)
    torch.testing.assert_close(actions[20:21], head.act(observations[20:21], noise[20:21]), rtol=1e-9, atol=1e-9)


def test_a_search_begins_at_the_plan_that_is_remembered() -> None:
    head = planner(std_range=(1e-6, 1e-6), prior_samples=0)
    observations, noise = torch.randn(2, 3).double(), torch.randn(2, head.noise_dim).double()
    plan = torch.rand(2, 3, 2).double() - 0.5
    actions, after = head.step(observations, {"plan": plan}, noise)
    torch.testing.assert_close(actions, plan[:, 0], rtol=0, atol=1e-4)
    torch.testing.assert_close(after["plan"], shifted(plan), rtol=0, atol=1e-4)


def test_a_search_finds_the_best_action_of_a_reward_that_is_known() -> None:
    """Rewards are -(a - 0.4)^2 of every step, so the best plan is 0.4 throughout."""
    head = planner(horizon=2, samples=256, prior_samples=8, elites=16, iterations=6, temperature=5.0, discount=1.0)

    def known(states: Tensor, actions: Tensor, behind: Tensor) -> Tensor:
        return -(actions - 0.4).square().sum((-1, -2))

    head.returns = known  # type: ignore[method-assign]
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(4, head.noise_dim, generator=generator, dtype=torch.float64)
    found = head.plan(torch.zeros(4, 3).double(), torch.zeros(4, 2, 2).double(), noise)
    torch.testing.assert_close(found.mean, torch.full_like(found.mean, 0.4), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"elites": 13}, "13 elites and 4 plans of the prior among 12 samples"),
        ({"prior_samples": 12}, "12 plans of the prior among 12 samples"),
        ({"horizon": 0}, "horizon is 0"),
        ({"group": 3}, "group is 3, which does not divide latent_dim, 8"),
        ({"critics": 1}, "critics is 1, must be at least 2"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planner(**options)


def test_planning_without_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="planning draws its samples from noise"):
        planner().act(torch.zeros(1, 3).double())
