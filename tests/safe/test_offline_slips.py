"""The slips of OSRL's code that docs/safe_offline.md lists: for each, a test that fails where it is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safe_problems import agents, random_dataset
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.counter import CounterGenerator
from surefoot.core.engine.agent import Descent
from surefoot.core.engine.optimizer import Network, Optimizer
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.core.losses.distributions import gaussian_log_density
from surefoot.core.nn.networks import MLP
from surefoot.data.store import store_from_dataset
from surefoot.safe import CPQ, COptiDICE
from surefoot.safe.constraint.cost_critics import AssignedMultiplier, mixed
from surefoot.safe.constraint.multipliers import discounted_threshold, pid
from surefoot.safe.coptidice import softchi, softchi_inverse

CRITICS = ("bcq_lag", "bear_lag", "cpq")


def ready(variant: str, **options: Any) -> tuple[Any, dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """An agent, 32 rows of its data, and noise for each of its losses."""
    (agent,) = agents(variant, [3], **options)
    store = store_from_dataset(agent.prepare(random_dataset()), agent.required_columns)
    batch = agent.annotate(store.gather(torch.arange(32)))
    noise = {
        update.name: {
            name: kind.draw(CounterGenerator([0], name, 0, torch.device("cpu")), (32,))[0]
            for name, kind in update.noise.items()
        }
        for update in agent.updates()
    }
    return agent, batch, noise


def constant(mlp: MLP, value: float) -> None:
    """Make a network give one number everywhere."""
    with torch.no_grad():
        for part in (*mlp.weights, *mlp.biases):
            part.zero_()
        mlp.biases[-1].fill_(value)


@pytest.mark.parametrize("variant", CRITICS)
def test_a_cost_backup_stops_at_a_termination_and_only_there(variant: str) -> None:
    """OSRL's continues: what the next state would have cost is then added to a fall's own cost."""
    agent, batch, noise = ready(variant)
    name = "cost_critic_loss" if variant == "cpq" else "critic_loss"
    found = {}
    for ends in (0.0, 1.0):
        for next_cost in (0.0, 10.0):
            constant(agent.target_cost_critic.mlp, next_cost)
            rows = {**batch, "terminations": torch.full((32,), ends)}
            found[ends, next_cost] = float(getattr(agent, name)(rows, noise[name])[0])
    assert found[1.0, 0.0] == pytest.approx(found[1.0, 10.0], rel=1e-6)
    assert abs(found[0.0, 0.0] - found[0.0, 10.0]) > 1.0  # where the slip's two would differ at an end too


@pytest.mark.parametrize("variant", ["bcq_lag", "bear_lag"])
def test_the_next_cost_is_the_mean_over_the_policys_draws_not_the_dearest(variant: str) -> None:
    agent, batch, noise = ready(variant, sampled_actions=10)
    constant(agent.critic.mlp, 0.0)
    constant(agent.target_critic.mlp, 0.0)
    with torch.no_grad():
        for weight in agent.target_cost_critic.mlp.weights:
            weight.mul_(3)
    following = batch["next_observations"]
    if variant == "bcq_lag":
        drawn = agent._drawn(following, noise["critic_loss"]["next_latent"], agent.target_perturbation)
    else:
        drawn = agent._sampled(agent.target_actor, following, noise["critic_loss"]["next_action"]).flatten(0, 1)
    pairs = torch.cat([following.repeat(10, 1), drawn], -1)
    values = mixed(agent.target_cost_critic(pairs), 0.75, lowest=False).unflatten(0, (10, -1))
    rest = agent.critic_loss({**batch, "costs": torch.zeros(32)}, noise["critic_loss"])[0]
    rewards = 2 * batch["rewards"].square().mean()
    alive = 0.99 * (1 - batch["terminations"])
    own = agent.cost_critic(batch["observation_actions"])

    def loss(next_cost: Tensor) -> float:
        return float((own - alive * next_cost).square().mean(-1).sum() + rewards)

    assert float(rest) == pytest.approx(loss(values.mean(0)), rel=1e-5)
    assert abs(loss(values.amax(0)) - float(rest)) > 1e-4  # the slip's


@pytest.mark.parametrize("variant", CRITICS)
def test_of_two_cost_critics_the_larger_is_believed(variant: str) -> None:
    agent, batch, noise = ready(variant)
    bold, *_ = ready(variant, careful_costs=False)
    bold.load_state_dict(agent.state_dict())
    name = "cost_critic_loss" if variant == "cpq" else "critic_loss"
    _, ours = getattr(agent, name)(batch, noise[name])
    low, high = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [5.0]])
    assert float(mixed(torch.cat([low, high], 1), 0.75, lowest=True)[0]) == 1.25
    assert float(mixed(torch.cat([low, high], 1), 0.75, lowest=False)[0]) == 1.75
    assert ours.keys() == getattr(bold, name)(batch, noise[name])[1].keys()
    for each in (agent, bold):  # predictions above all targets: the larger target is the nearer one
        with torch.no_grad():
            each.cost_critic.mlp.biases[-1].fill_(50.0)
    careful_loss, bold_loss = (getattr(each, name)(batch, noise[name])[0] for each in (agent, bold))
    assert float(careful_loss) < float(bold_loss)


def test_cpqs_odd_actions_are_in_the_box_not_draws_before_the_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, batch, noise = ready("cpq")
    with torch.no_grad():
        agent.actor.mlp.biases[-1][:2] = 3.0  # a mean whose draws lie outside of [-1, 1] before the tanh
    seen = []
    divergence = agent.vae.divergence
    monkeypatch.setattr(agent.vae, "divergence", lambda pairs: (seen.append(pairs), divergence(pairs))[1])
    agent.cost_critic_loss(batch, noise["cost_critic_loss"])
    actions = seen[0][:, 3:]
    assert actions.abs().max() < 1
    mean, _ = agent.actor(batch["observations"])
    assert mean.abs().max() > 1.5  # where the slip's would be


def gradient(agent: CPQ, loss: Tensor) -> Tensor:
    parts = torch.autograd.grad(loss, list(agent.cost_critic.parameters()), retain_graph=True)
    return torch.cat([part.reshape(-1) for part in parts])


@pytest.mark.parametrize(("variant", "works"), [("cpq", True), ("cpq-slip", False)])
def test_cpqs_penalty_raises_the_cost_of_odd_actions_but_in_the_slip_it_is_inert(variant: str, works: bool) -> None:
    agent, batch, noise = ready(variant)
    found = []
    for rho in (-5.0, 5.0):  # weights e^-5 and e^5
        with torch.no_grad():
            agent.dual.rho.fill_(rho)
        found.append(gradient(agent, agent.cost_critic_loss(batch, noise["cost_critic_loss"])[0]))
    assert torch.equal(*found) is not works
    if works:
        _, before = agent.cost_critic_loss(batch, noise["cost_critic_loss"])
        with torch.no_grad():
            step = iter(found[1].split([p.numel() for p in agent.cost_critic.parameters()]))
            for parameter in agent.cost_critic.parameters():
                parameter.sub_(1e-4 * next(step).reshape(parameter.shape))
        _, after = agent.cost_critic_loss(batch, noise["cost_critic_loss"])
        assert after["odd_cost_q"] > before["odd_cost_q"]


def test_cpqs_mean_over_odd_actions_leaves_the_others_out() -> None:
    """OSRL counts them as 0, a quarter of the mean."""
    agent, batch, noise = ready("cpq")
    constant(agent.cost_critic.mlp, 2.0)
    _, metrics = agent.cost_critic_loss(batch, noise["cost_critic_loss"])
    assert float(metrics["odd_cost_q"]) == pytest.approx(2.0, rel=1e-6)


def test_coptidices_limit_is_of_a_steps_average_cost() -> None:
    """Data that costs twice the limit, every weight 1: lambda must rise; held to the discounted sum it falls."""
    steps, limit = 1000, 25.0
    threshold = discounted_threshold(limit, 0.99, steps)
    (agent,) = agents("coptidice-plain", [0])
    assert isinstance(agent, COptiDICE)
    agent.cost_threshold.fill_(threshold)
    assert float(agent.step_limit) == pytest.approx(limit / steps, rel=1e-3)
    batch = {"weights": torch.ones(8), "costs": torch.full((8,), 2 * limit / steps)}
    loss, _ = agent.multiplier_loss(batch, {})
    (slope,) = torch.autograd.grad(loss, [agent.multiplier.rho])
    assert slope < 0  # descent raises it
    slip = agent.multiplier() * (agent.cost_threshold - (batch["weights"] * batch["costs"]).mean())
    (slope,) = torch.autograd.grad(slip, [agent.multiplier.rho])
    assert slope > 0


def test_coptidices_density_is_one_over_the_box() -> None:
    """The normal before the tanh, taken at the action after it, is none: it leaves out what lies beyond the box."""
    (agent,) = agents("coptidice", [0])
    agent.actor = TanhGaussianActor(3, 1, (8, 6))
    with torch.no_grad():
        agent.actor.mlp.biases[-1].copy_(torch.tensor([0.8, -0.3]))
    grid = torch.linspace(-1, 1, 20_001)[1:-1].unsqueeze(1)
    observations = torch.zeros(len(grid), 3)
    batch = {"observations": observations, "actions": grid, "weights": torch.ones(len(grid))}
    _, metrics = agent.actor_loss(batch, {})
    assert float(metrics["log_density"].exp().mean() * 2) == pytest.approx(1.0, abs=2e-3)
    slip = gaussian_log_density(grid, *agent.actor(observations))
    assert float(slip.exp().mean() * 2) < 0.7


@pytest.mark.parametrize("variant", ["bcq_lag", "bear_lag", "cpq", "coptidice"])
def test_time_outs_are_no_terminations(variant: str) -> None:
    data, (agent,) = random_dataset(), agents(variant, [0])
    store = store_from_dataset(agent.prepare(data), agent.required_columns)
    flags = store["terminations"].numpy().astype(bool)
    np.testing.assert_array_equal(flags, data.terminations)
    assert (data.truncations & ~flags).sum() == 6


def test_cdt_draws_an_episode_by_what_its_cost_leaves_of_the_ceiling_whatever_its_length() -> None:
    (agent,) = agents("cdt", [0], cost_ceiling=10.0)
    data = random_dataset(2, 20)
    ids = np.repeat([0, 1], [5, 35])
    costs = np.isin(np.arange(40), [0, 1, 10, 11, 12, 13, 14, 15]).astype(np.float32)  # 2 and 6: 8 and 4 are left
    terminations, valid = np.isin(np.arange(40), [4, 39]), np.arange(40) != 30
    ends = {"terminations": terminations, "truncations": np.zeros(40, bool), "episode_ids": ids}
    data = data.replace(costs=costs, valid=valid, **ends)
    ready = agent.prepare(data)
    source: Any = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))[MAIN]
    chances: Any = source.weighted.probabilities.numpy()
    assert chances[:5].sum() == pytest.approx(2 / 3)
    assert np.ptp(chances[:5]) == np.ptp(chances[5:]) == 0


def test_cdt_says_what_it_will_ask_for_and_asks_it_beside_a_run_that_it_starts_from() -> None:
    data = random_dataset(2, 20)
    data = data.replace(costs=np.ones(40, np.float32))
    (agent,) = agents("cdt", [0], cost_limit=30.0)
    best = float(data.episode_returns.max())
    assert f"a target return of {best:.1f} and a target cost of 30;" in agent.notes(data)[-1]
    (other,) = agents("cdt", [0], target_return=2.5, target_cost=4.0, cost_limit=30.0)
    other.rewards_fixed = True  # as after `init=`
    other.prepare(data)
    actor: Any = other.actor
    assert (float(actor.target_return), float(actor.target_cost), float(actor.return_scale)) == (2.5, 4.0, 1.0)


def test_discounted_thresholds_are_those_worked_out_by_hand() -> None:
    assert discounted_threshold(10, 0.99, 1000) == pytest.approx(0.99996, abs=1e-5)
    assert discounted_threshold(10, 0.99, 300) == pytest.approx(3.16986, abs=1e-5)
    (agent,) = agents("bcq_lag", [0])
    agent.prepare(random_dataset())
    assert float(agent.cost_threshold) == pytest.approx(4 * (1 - 0.99**20) / (0.01 * 20))


def test_the_multiplier_replays_osrls_sequence() -> None:
    """Costs 50 x5, 25 x3, 0 x3 at a limit of 25, through the parameters that a Learner steps."""
    multiplier = AssignedMultiplier(pid("osrl"))
    network = Network({"state": multiplier.state.detach().unsqueeze(0)})
    optimizer, seen = Optimizer(Descent(), [network], 11), []
    for cost in [50.0] * 5 + [25.0] * 3 + [0.0] * 3:
        (found,) = torch.autograd.grad(multiplier.loss(torch.tensor(cost), torch.tensor(25.0)), [multiplier.state])
        network.gradient[0].copy_(found)
        optimizer.step()
        with torch.no_grad():
            multiplier.state.copy_(network.value[0])
        seen.append(float(multiplier()))
    assert seen == pytest.approx([2.6, 2.65, 2.725, 2.8, 2.875, 0.375, 0.375, 0.375, 0.3, 0.225, 0.15], abs=1e-5)


def test_the_softchi_inverse_is_smooth_at_zero_and_undoes_the_derivative() -> None:
    at = torch.tensor([-1e-4, 0.0, 1e-4], dtype=torch.float64, requires_grad=True)
    values = softchi_inverse(at)
    (slopes,) = torch.autograd.grad(values.sum(), at)
    torch.testing.assert_close(values, torch.ones(3, dtype=torch.float64), atol=2e-4, rtol=0)
    torch.testing.assert_close(slopes, torch.ones(3, dtype=torch.float64), atol=2e-4, rtol=0)
    weights = torch.linspace(0.05, 4, 80, dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(softchi(weights).sum(), weights)
    torch.testing.assert_close(softchi_inverse(derivative), weights.detach(), atol=1e-9, rtol=1e-9)
