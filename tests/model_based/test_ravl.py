"""RAVL: diversity of critics by closed forms, losses against a second implementation, and the edge of reach."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plane import PlaneBase, PlaneRAVL, plane_data
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.data.dataset import Dataset
from surefoot.data.sources import BesideAdded
from surefoot.data.store import store_from_dataset
from surefoot.model_based.imagined_sac import ImaginedSAC
from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise

GAMMA = 0.9
SMALL = {"rollouts": 20, "rollout_length": 3, "imagine_every": 4, "hidden": (8, 6)}


@pytest.mark.parametrize("members", [2, 5, 10])
def test_identical_critics_have_diversity_n_and_orthogonal_ones_0(members: int) -> None:
    gradient = torch.randn(1, 7, members, dtype=torch.float64)
    same = ensembles.diversity(gradient.expand(members, -1, -1))
    assert float(same) == pytest.approx(members, rel=1e-8)
    orthogonal = torch.eye(members, dtype=torch.float64).unsqueeze(1).expand(-1, 7, -1) * torch.rand(7, 1) * 5
    assert float(ensembles.diversity(orthogonal)) == pytest.approx(0, abs=1e-12)
    opposed = torch.stack([gradient[0], -gradient[0]])
    assert float(ensembles.diversity(opposed)) == pytest.approx(-2, rel=1e-8)


def test_a_gradient_of_0_has_no_direction_and_can_be_differentiated() -> None:
    gradient = torch.zeros(3, 4, 2, dtype=torch.float64, requires_grad=True)
    found = ensembles.diversity(gradient)
    assert float(found.detach()) == 0
    assert bool(torch.autograd.grad(found, gradient)[0].isfinite().all())


def by_autograd(critic: Critic, pairs: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Values and their gradients by the actions, differentiated twice by autograd itself."""
    given = pairs.clone().requires_grad_(True)
    values = critic(given)
    found = [torch.autograd.grad(value.sum(), given, create_graph=True)[0][:, -size:] for value in values]
    return values, torch.stack(found)


def test_gradients_by_the_actions_and_their_gradients_by_the_weights_are_autograds() -> None:
    torch.manual_seed(0)
    critic = Critic(3, 2, (9, 8, 7), 4, "edac").double()
    pairs = torch.randn(11, 5, dtype=torch.float64)
    found = critic.with_action_gradient(pairs, 2)
    wanted = by_autograd(critic, pairs, 2)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    names, weights = zip(*critic.named_parameters(), strict=True)
    own, theirs = (
        torch.autograd.grad(ensembles.diversity(gradients), weights, materialize_grads=True)
        for _, gradients in (found, wanted)
    )
    for name, one, other in zip(names, own, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12, msg=name)


def test_a_network_whose_gradient_is_no_product_of_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match="relu ensembles"):
        Critic(2, 1, (4,), 2, activation="silu").with_action_gradient(torch.zeros(1, 3), 1)


def trained(kind: type, steps: int, dtype: torch.dtype = torch.float64, seed: int = 3, **options: object) -> Learner:
    data = plane_data(200)
    agent = kind(data, **{**SMALL, **options}).fresh(seed)
    ready = agent.prepare(data)
    store = store_from_dataset(ready, agent.required_columns, dtype=dtype)
    found = Learner([agent], [seed], agent.sources(Stores(ready, store)), batch_size=16, dtype=dtype)
    found.run(steps)
    return found


def test_one_update_equals_a_second_implementation_in_float64() -> None:
    """Temperature, actor and critics, each by a plain Adam, with the diversity differentiated by autograd."""
    eta, critics = 0.7, 3
    learner = trained(PlaneRAVL, 1, critics=critics, diversity=eta, real_ratio=0.25)
    agent = PlaneRAVL(plane_data(200), critics=critics, diversity=eta, real_ratio=0.25, **SMALL).fresh(3).double()
    batch = learner.sources["batch"].gather(learner.sources["batch"].rows(0)[0])
    noise = {name: value[0] for name, value in learner.stream.at(0).items()}
    state, following = batch["observations"], batch["next_observations"]

    def adam(parameters: list[Tensor], loss: Tensor, rate: float = 3e-4) -> None:
        found = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, found, strict=True):
                parameter -= rate * gradient / (gradient.abs() + 1e-8)  # the first step of Adam

    alpha = agent.temperature.rho
    density = agent.actor.draw(state, noise["action"])[1].detach()
    adam([alpha], -(alpha * (density - 2.0)).mean())
    action, density = agent.actor.draw(state, noise["action"])
    value = agent.critic(torch.cat([state, action], -1)).min(0).values
    adam(list(agent.actor.parameters()), (alpha.exp().detach() * density - value).mean())
    with torch.no_grad():
        action, density = agent.actor.draw(following, noise["next_action"])
        value = agent.target_critic(torch.cat([following, action], -1)).min(0).values
        target = batch["rewards"] + 0.99 * (1 - batch["terminations"]) * (value - alpha.exp() * density)
    q, gradient = by_autograd(agent.critic, torch.cat([state, batch["actions"]], -1), 2)
    unit = gradient / (gradient.norm(dim=-1, keepdim=True) + 1e-10)
    inner = torch.einsum("ibk,jbk->bij", unit, unit)
    agreement = (inner.sum((1, 2)) - inner.diagonal(dim1=1, dim2=2).sum(-1)).mean() / (critics - 1)
    adam(list(agent.critic.parameters()), (q - target).square().mean(1).sum() + eta * agreement)
    found = learner.agents_parameters(0)
    for name, wanted in agent.named_parameters():
        if not name.startswith("target"):
            torch.testing.assert_close(found[name], wanted.detach(), rtol=1e-8, atol=1e-9, msg=name)
    for name, slow in agent.target_critic.named_parameters():
        fast = dict(agent.critic.named_parameters())[name]
        torch.testing.assert_close(
            found[f"target_critic.{name}"], slow + 0.005 * (fast - slow).detach(), rtol=1e-9, atol=1e-12, msg=name
        )


def test_without_diversity_and_with_two_critics_it_is_the_base_but_for_the_order_of_updates() -> None:
    ours = trained(PlaneRAVL, 1, critics=2, diversity=0.0, initialization="torch")
    base = trained(PlaneBase, 1, actor_learning_rate=3e-4, temperature_learning_rate=3e-4)
    assert [u.name for u in ours.updates] == ["temperature_loss", "actor_loss", "critic_loss"]
    one, other = ours.agents_parameters(0), base.agents_parameters(0)
    assert torch.equal(one["temperature.rho"], other["temperature.rho"])


def test_a_single_critic_has_no_diversity() -> None:
    with pytest.raises(ConfigError, match=r"ravl\.critics is 1"):
        PlaneRAVL(plane_data(10), critics=1)


class Chain(Dynamics):
    """0, 1, 2, ... whatever is done, for a reward of 0; an episode ends at `last`, if there is one."""

    state_dim = action_dim = 1
    noise_dim = 0
    members = 1

    def __init__(self, last: int | None) -> None:
        self.last = last

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        reward, following = torch.zeros_like(states[..., 0]), states + 1
        return Outcome(following, reward, reward, following[..., 0] == (-1 if self.last is None else self.last))


class ChainBase(ImaginedSAC):
    name = "test_chain_base"
    learned = False
    last: int | None = None

    def world(self) -> Dynamics:
        return Chain(self.last)


class Table(torch.nn.Module):
    """(N, B) values of (B, 2) pairs: those of the state, which is the number of a column."""

    def __init__(self, q: Tensor) -> None:
        super().__init__()
        self.q = q

    def forward(self, pairs: Tensor) -> Tensor:
        return self.q[:, pairs[:, 0].long()]


def fitted(q: Tensor, length: int, last: int | None) -> Tensor:
    """(N, S) values after as many fits of a table as rollouts from state 0 have steps, each on all imagined rows."""
    none, every, zeros = np.zeros(4, bool), np.ones(4, bool), np.zeros((4, 1), np.float32)
    data = Dataset(zeros, zeros, zeros[:, 0], zeros + 1, none, every, np.arange(4), every, name="chain")
    options = {**SMALL, "rollout_length": length, "critics": len(q), "discount": GAMMA, "real_ratio": 0.0}
    agent = ChainBase(data, deterministic_backup=True, **options)
    agent.last = last
    agent.target_critic = Table(q)
    source = agent.sources(Stores(data, store_from_dataset(agent.prepare(data), agent.required_columns)))[MAIN]
    assert isinstance(source, BesideAdded)
    source.bind([0], 16, torch.device("cpu"))
    noise = {"imagined": torch.randn(4, length)}
    added, _ = agent.imagine({"observations": torch.zeros(4, 1)}, noise)
    source.add({name: value.unsqueeze(0) for name, value in added[MAIN].items()})
    batch = source.gather(source.offset + torch.arange(source.added))
    for _ in range(length):
        q[:, batch["observations"][:, 0].long()] = agent.targets(batch, {"next_action": torch.randn(source.added, 1)})
    return q


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("length", [1, 4])
def test_values_beyond_reach_stay_what_they_were_and_others_are_its_discounted_image(members: int, length: int) -> None:
    """A chain 0, 1, 2, ... with reward 0, rollouts of k steps from 0, values c_i everywhere at first.

    Q(k) is asked for and never trained; Q(j) = gamma^(k - j) min c_i once fitted: an error that nothing corrects.
    """
    start = torch.tensor([7.0, 3.0, 5.0])[:members]
    before = start.unsqueeze(1).repeat(1, length + 2)
    q = fitted(before.clone(), length, None)
    wanted = [GAMMA ** (length - j) * float(start.min()) for j in range(length)]
    for row in q:
        assert row[:length].tolist() == pytest.approx(wanted)
    assert torch.equal(q[:, length:], before[:, length:])  # never trained
    ended = fitted(before.clone(), length, length)  # nothing is asked for beyond an end
    assert float(ended[:, :length].abs().max()) == 0
    assert torch.equal(ended[:, length:], before[:, length:])
