"""IQL over histories with a bisimulation loss: the loss by hand, updates against plain torch, what it is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_layers import layers
from plain_updates import DISCOUNT, RATE, batches, feeding, prepared
from problems import relative
from refusals import refused
from torch import Tensor, nn

from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.nn.networks import MLP
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.offline import BisimIQL


def test_the_loss_is_the_squared_gap_between_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = BisimIQL(Spec(2, 1, (-1.0,), (1.0,)), discount=0.5, latent=2, hidden=(4,))
    means, deviations = torch.tensor([[0.0, 0.0], [0.0, 6.0]]), torch.tensor([[1.0, 1.0], [1.0, 9.0]])
    monkeypatch.setattr(agent, "predicted", lambda *_: (means, deviations.log()))
    batch = {"latents": torch.zeros(2, 2), "actions": torch.zeros(2, 1), "rewards": torch.tensor([1.0, 3.0])}
    agent.reward_deviation.fill_(0.25)
    latents = torch.tensor([[0.0, 0.0], [3.0, 4.0]])  # 5 apart; rewards 2, what follows 10: 0.5 * 8 + 0.5 * 10 = 9
    assert float(agent.bisimulation_loss(latents, batch)) == pytest.approx(16.0)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_loss_is_that_of_rewards_in_other_units(scale: float) -> None:
    data = distracted(200)
    losses = []
    for factor in (1.0, scale):
        torch.manual_seed(0)
        agent = BisimIQL(Spec(3, 1, (-1.0,), (1.0,)), latent=4, hidden=(8,), history=1, normalization="none")
        ready = agent.prepare(data.replace(rewards=np.float32(factor) * data.rewards))
        batch = {name: torch.from_numpy(getattr(ready, name)).float() for name in agent.required_columns}
        batch["latents"] = agent.encoded(batch["observations"])
        losses.append(float(agent.bisimulation_loss(batch["latents"], batch).detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_held_out_rows_are_judged_in_the_units_of_the_training_data() -> None:
    data = distracted(200)
    agent = BisimIQL(Spec(3, 1, (-1.0,), (1.0,)), latent=4, hidden=(8,), history=1)
    agent.prepare(data)
    scale = float(agent.reward_deviation)
    assert scale == pytest.approx(float(data.rewards.std()), rel=1e-5)
    agent.rewards_fixed = True  # as where held-out losses are computed
    agent.prepare(data.replace(rewards=10 * data.rewards))
    assert float(agent.reward_deviation) == scale


def test_a_representation_of_long_episodes_stays_small_whatever_its_rewards() -> None:
    agent = lasting(1_000.0)
    with torch.no_grad():
        latents = agent.encoded(torch.tensor([[-1.0], [1.0]]))
    # of two states that last for ever, of rewards 2,000 apart: the loss asks for 2, or 20,000 with rewards as they are
    assert 1 < float((latents[0] - latents[1]).norm()) < 20


def test_full_updates_equal_the_second_implementation() -> None:
    agent = prepared(BisimIQL, history=1, latent=3, bisimulation=0.7, expectile=0.8, temperature=2.0)
    single = {name: layers(getattr(agent, name)) for name in ("representation", "target_representation", "dynamics")}
    single |= {"value": layers(agent.value.mlp), "actor": layers(agent.actor.mlp)}
    twins = {name: [layers(getattr(agent, name).mlp, i) for i in range(2)] for name in ("critic", "target_critic")}
    phi, slow, dynamics, value, actor = single.values()
    log_std = nn.Parameter(agent.actor.log_std.detach().clone())
    trained = {
        "value": [*value.parameters()],
        "actor": [*actor.parameters(), log_std, *phi.parameters()],
        "dynamics": [*dynamics.parameters()],
        "critic": [*phi.parameters(), *(p for q in twins["critic"] for p in q.parameters())],
    }
    adams = {name: torch.optim.Adam(parameters, lr=RATE) for name, parameters in trained.items()}

    def descend(name: str, loss: Tensor) -> None:
        adams[name].zero_grad()
        loss.backward()
        adams[name].step()

    scale = 1.7
    agent.reward_deviation.fill_(scale)
    rows = batches(3)
    learner = feeding(agent, rows)
    for step, row in enumerate(rows):
        for adam in adams.values():
            adam.param_groups[0]["lr"] = RATE * 0.5 * (1 + np.cos(np.pi * step / 8))
        o, a, r, d = (row[name] for name in ("observations", "actions", "rewards", "terminations"))
        z, following = slow(o).relu().detach(), slow(row["next_observations"]).relu().detach()
        q = torch.stack([net(torch.cat([z, a], 1)).squeeze(1) for net in twins["target_critic"]]).min(0)[0].detach()
        u = q - value(z).squeeze(1)
        descend("value", (torch.where(u > 0, 0.8, 0.2) * u**2).mean())
        weight = (2.0 * (q - value(z).squeeze(1))).exp().clamp(max=100).detach()
        normal = torch.distributions.Normal(torch.tanh(actor(phi(o).relu())), log_std.exp())
        descend("actor", -(weight * normal.log_prob(a).sum(1)).mean())
        mean, log_deviation = dynamics(torch.cat([z, a], 1)).split(3, 1)
        normal = torch.distributions.Normal(mean, log_deviation.clamp(-5, 2).exp())
        descend("dynamics", -normal.log_prob(following).sum(1).mean())
        mean, log_deviation = (part.detach() for part in dynamics(torch.cat([z, a], 1)).split(3, 1))
        deviation, live, gap = log_deviation.clamp(-5, 2).exp(), phi(o).relu(), torch.zeros((), dtype=torch.float64)
        for i in range(len(o)):
            j = i - 1
            apart = ((mean[i] - mean[j]) ** 2).sum() + ((deviation[i] - deviation[j]) ** 2).sum()
            wanted = (1 - DISCOUNT) * (r[i] - r[j]).abs() / scale + DISCOUNT * apart.sqrt()
            gap = gap + (torch.linalg.vector_norm(live[i] - live[j]) - wanted) ** 2 / len(o)
        target = r + DISCOUNT * (1 - d) * value(following).squeeze(1).detach()
        errors = [((net(torch.cat([live, a], 1)).squeeze(1) - target) ** 2).mean() for net in twins["critic"]]
        descend("critic", sum(errors) / scale**2 + 0.7 * gap)
        with torch.no_grad():
            for old, new in zip([*twins["target_critic"], slow], [*twins["critic"], phi], strict=True):
                for one, other in zip(old.parameters(), new.parameters(), strict=True):
                    one.copy_(0.995 * one + 0.005 * other)
        learner.run(1)
        found: list[tuple[MLP, list[nn.Sequential]]] = [(agent.representation, [phi]), (agent.dynamics, [dynamics])]
        found += [(agent.target_representation, [slow])]
        found += [(agent.value.mlp, [value]), (agent.actor.mlp, [actor])]
        found += [(getattr(agent, name).mlp, nets) for name, nets in twins.items()]
        for mlp, nets in found:
            for layer, (w, b) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
                linears = [[m for m in net if isinstance(m, nn.Linear)][layer] for net in nets]
                assert relative(w.detach(), torch.stack([m.weight for m in linears]).reshape(w.shape)) < 1e-10
                assert relative(b.detach(), torch.stack([m.bias for m in linears]).reshape(b.shape)) < 1e-10
        assert relative(agent.actor.log_std.detach(), log_std.detach()) < 1e-10


def distracted(rows: int = 1_200) -> Dataset:
    """One step: the first number is the sign that the action should have; two others are noise of the same size."""
    numbers = np.random.default_rng(0)
    sign = numbers.choice([-1.0, 1.0], rows)
    seen = np.stack([sign, *numbers.choice([-1.0, 1.0], (2, rows))], 1).astype(np.float32)
    actions = numbers.uniform(-1, 1, (rows, 1)).astype(np.float32)
    return Dataset(
        observations=seen,
        actions=actions,
        rewards=(0.2 * sign * np.sign(actions[:, 0]) + 2 * sign).astype(np.float32),
        next_observations=np.zeros_like(seen),
        terminations=np.ones(rows, bool),
        truncations=np.zeros(rows, bool),
        episode_ids=np.arange(rows),
        valid=np.ones(rows, bool),
        name="distracted",
    )


def lasting(reward: float, rows: int = 400) -> BisimIQL:
    """Trained on two states that lead to themselves, -1 and 1, of rewards -`reward` and `reward`."""
    torch.manual_seed(0)
    numbers = np.random.default_rng(0)
    seen = numbers.choice([-1.0, 1.0], (rows, 1)).astype(np.float32)
    data = Dataset(
        observations=seen,
        actions=numbers.uniform(-1, 1, (rows, 1)).astype(np.float32),
        rewards=np.float32(reward) * seen[:, 0],
        next_observations=seen,
        terminations=np.zeros(rows, bool),
        truncations=np.ones(rows, bool),
        episode_ids=np.arange(rows),
        valid=np.ones(rows, bool),
        name="lasting",
    )
    agent = BisimIQL(
        Spec(1, 1, (-1.0,), (1.0,)), hidden=(16,), latent=4, history=1, bisimulation=1.0, learning_rate=3e-3,
        discount=0.9, normalization="none",
    )  # fmt: skip
    ready = agent.prepare(data)
    sources = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns, "cpu")))
    Learner([agent], [0], sources, batch_size=64, planned_steps=1_500, kernels=True).run(1_500)
    return agent


def trained(weight: float) -> BisimIQL:
    torch.manual_seed(0)
    agent = BisimIQL(
        Spec(3, 1, (-1.0,), (1.0,)),
        hidden=(32,),
        latent=8,
        history=1,
        bisimulation=weight,
        temperature=10.0,
        learning_rate=3e-3,
        discount=0.5,
        normalization="none",
    )
    ready = agent.prepare(distracted())
    rows = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns, "cpu")))
    Learner([agent], [0], rows, batch_size=64, planned_steps=800, kernels=True).run(800)
    return agent


def spreads(agent: BisimIQL) -> tuple[float, float]:
    """Distance of representations of the two signs, and mean distance of those of one sign with other noise."""
    noise = torch.tensor([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)])
    with torch.no_grad():
        low, high = (agent.encoded(torch.cat([torch.full((4, 1), sign), noise], 1)) for sign in (-1.0, 1.0))
    within = (low - low.mean(0)).norm(dim=1).mean() + (high - high.mean(0)).norm(dim=1).mean()
    return float((low.mean(0) - high.mean(0)).norm()), float(within) / 2


def test_histories_that_earn_alike_come_together_and_others_stay_apart() -> None:
    agent = trained(1.0)
    between, within = spreads(agent)
    assert between == pytest.approx(1, abs=0.1)  # half as far as their rewards, in the mean, in deviations: 0.5 * 4 / 2
    assert within < 0.1
    before, noise = spreads(agent.fresh(0))
    assert noise > 0.5 * before
    assert abs(spreads(trained(0.0))[0] - 1) > 0.2, "the critics alone put them elsewhere"
    observations = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])
    actions = agent.act(observations)[:, 0]
    assert float(actions[0]) > 0.2 > -0.2 > float(actions[1])
    left, _ = agent.policy().act(observations, agent.policy().begin(2))
    torch.testing.assert_close(left[:, 0], actions.detach())


def test_settings_out_of_range_are_refused() -> None:
    for options, words in (({"latent": 0}, ("latent", "range")), ({"bisimulation": -1.0}, ("bisimulation", "range"))):
        with refused(*words):
            BisimIQL(Spec(3, 1, (-1.0,), (1.0,)), **options)
