"""RCSL and DT: losses by another route, what is remembered while acting, and a problem that needs the return."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch import Tensor, nn

from surefoot.core.actors.return_actor import ReturnActor
from surefoot.core.base.errors import Code, ConfigError, DataError
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores, Uniform
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import BEST_RETURN
from surefoot.data.store import store_from_dataset
from surefoot.offline import DT, RCSL

SPEC = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))


def episodes(count: int, length: int, seed: int = 0, **columns: Any) -> Dataset:
    """Episodes of normal observations and uniform actions."""
    numbers, rows = np.random.default_rng(seed), count * length
    ends = np.arange(rows) % length == length - 1
    made = {
        "observations": numbers.normal(size=(rows, 3)).astype(np.float32),
        "actions": numbers.uniform(-0.9, 0.9, (rows, 2)).astype(np.float32),
        "rewards": numbers.normal(size=rows).astype(np.float32),
        "next_observations": numbers.normal(size=(rows, 3)).astype(np.float32),
        **columns,
    }
    return Dataset(
        **made,
        terminations=np.zeros(rows, bool),
        truncations=ends,
        episode_ids=np.arange(rows) // length,
        valid=np.ones(rows, bool),
        env_id=None,
        name="made up",
    )


def trained(agent: Agent, dataset: Dataset, steps: int, **options: Any) -> Learner:
    ready = agent.prepare(dataset)
    store = store_from_dataset(ready, agent.required_columns, "cpu")
    found = Learner([agent], [0], agent.sources(Stores(ready, store)), planned_steps=steps, kernels=True, **options)
    found.run(steps)
    return found


@pytest.mark.parametrize("scaling", ["none", "standardised"])
def test_one_update_of_rcsl_equals_torchs_adam_with_coupled_decay_in_float64(scaling: str) -> None:
    torch.manual_seed(1)
    agent = RCSL(SPEC, hidden=(5, 4), l2=0.3, learning_rate=0.01, returns=scaling, normalization="none")
    other = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    layers = [layer for layer in other if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer, weight, bias in zip(layers, agent.actor.mlp.weights, agent.actor.mlp.biases, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    dataset = episodes(4, 5)
    ready = agent.prepare(dataset)
    store = store_from_dataset(ready, agent.required_columns, "cpu", dtype=torch.float64)
    learner = Learner([agent], [0], agent.sources(Stores(ready, store)), batch_size=8, dtype=torch.float64)
    rows = learner.sources["batch"].rows(0)[0].numpy()
    learner.run(1)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01, weight_decay=0.3)
    rewards = dataset.rewards.reshape(4, 5).astype(np.float64)
    to_go = torch.from_numpy(np.cumsum(rewards[:, ::-1], 1)[:, ::-1].reshape(-1).astype(np.float32).astype(np.float64))
    read = (to_go - to_go.mean()) / to_go.std(correction=0) if scaling == "standardised" else to_go
    inputs = torch.cat([torch.from_numpy(dataset.observations[rows]).double(), read[rows].unsqueeze(1)], 1)
    error = (other(inputs) - torch.from_numpy(dataset.actions[rows]).double()).square().mean()
    error.backward()
    optimizer.step()
    exact = 1e-9 if scaling == "none" else 1e-6  # moments of the returns are kept in float32
    for layer, weight, bias in zip(layers, agent.actor.mlp.weights, agent.actor.mlp.biases, strict=True):
        torch.testing.assert_close(weight, layer.weight, rtol=exact, atol=1e-12)
        torch.testing.assert_close(bias, layer.bias, rtol=exact, atol=1e-12)
    assert float(learner.metric("action_error")) == pytest.approx(float(error.detach()), rel=exact)


def test_a_policy_of_standardised_returns_reads_them_as_they_are_and_does_not_depend_on_their_unit() -> None:
    data, found = episodes(8, 5, rewards=of_two_kinds().rewards[:40] + 0.1), {}
    for unit in (1.0, 1000.0):
        torch.manual_seed(0)
        agent = RCSL(SPEC, hidden=(16,), l2=0.0, learning_rate=3e-3, normalization="none")
        trained(agent, data.replace(rewards=np.float32(unit) * data.rewards), 50, batch_size=16)
        seen, asked = torch.from_numpy(data.observations[:4]), unit * torch.tensor([0.3, 1.0, 2.0, 5.5])
        policy = agent.policy()
        memory = {**policy.begin(4), "returns_to_go": asked}
        found[unit] = policy.act(seen, memory)[0]
        read = (asked - agent.return_mean) / agent.return_deviation
        torch.testing.assert_close(found[unit], agent.actor(seen, read).clamp(-1, 1).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1.0], found[1000.0], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(
        found[1.0], RCSL(SPEC, hidden=(16,), normalization="none").policy().act(seen, memory)[0], atol=1e-2
    )


def test_rcsl_does_not_go_on_from_a_policy_that_reads_returns_on_another_scale() -> None:
    source = RCSL(SPEC, hidden=(16,))
    with pytest.raises(ConfigError, match=r"rcsl.returns is none, and standardised in the run of init=: set it"):
        RCSL(SPEC, hidden=(16,), returns="none").load_from(source)
    assert RCSL(SPEC, hidden=(16,)).load_from(source) is None


def test_a_return_conditioned_policy_counts_what_it_earns_and_is_saved_with_its_target(tmp_path: Any) -> None:
    torch.manual_seed(0)
    actor = ReturnActor(3, 2, (8,))
    with torch.no_grad():
        actor.mlp.weights[-1].normal_(std=0.05)
    actor.target_return.fill_(7.0)
    policy = Policy.of(actor, RCSL(SPEC, hidden=(8,)).normalizer, *_bounds())
    policy.save(tmp_path / "policy")
    policy = Policy.load(tmp_path / "policy")
    observations = torch.randn(2, 3)
    memory = policy.begin(2)
    first, memory = policy.act(observations, memory)
    torch.testing.assert_close(first, actor(observations, torch.tensor([7.0, 7.0])).clamp(-1, 1))
    memory = policy.observe_outcome(memory, torch.tensor([1.5, 2.0]), torch.zeros(2), torch.tensor([False, True]))
    second, _ = policy.act(observations, memory)
    torch.testing.assert_close(second, actor(observations, torch.tensor([5.5, 7.0])).clamp(-1, 1))
    assert (second - first).abs().max() > 1e-3


def _bounds() -> tuple[Tensor, Tensor]:
    return -torch.ones(2), torch.ones(2)


@pytest.mark.parametrize("kind", [RCSL, DT])
def test_the_target_is_the_best_episode_or_what_the_data_or_the_user_say(kind: type[Agent]) -> None:
    dataset = episodes(6, 4)
    best = float(dataset.rewards.reshape(6, 4).sum(1).max())
    assert float(_prepared(kind, dataset)) == pytest.approx(best, rel=1e-5)
    stated = dataset.replace(attributes={BEST_RETURN: 9.5})
    assert float(_prepared(kind, stated)) == 9.5
    assert float(_prepared(kind, stated, target_return=4.0)) == 4.0
    assert float(_prepared(kind, dataset.replace(attributes={BEST_RETURN: "7.25"}))) == 7.25
    with pytest.raises(DataError, match="'best_return' is 'good', and must be a number"):
        kind(SPEC).prepare(dataset.replace(attributes={BEST_RETURN: "good"}))


@pytest.mark.parametrize("kind", [RCSL, DT])
def test_a_target_that_the_user_gives_holds_for_a_policy_that_comes_from_another_run(kind: type[Agent]) -> None:
    dataset = episodes(6, 4)
    best = float(dataset.rewards.reshape(6, 4).sum(1).max())
    for asked, expected in ((4.0, 4.0), (None, best)):
        agent = kind(SPEC, target_return=asked)
        agent.actor.target_return.fill_(3.0)  # type: ignore[operator]
        agent.rewards_fixed = True  # as after `init=`
        assert f"a return of {expected:.1f}" in agent.notes(dataset)[0]
        agent.prepare(dataset)
        assert float(agent.actor.target_return) == pytest.approx(expected, rel=1e-5)  # type: ignore[arg-type]


def _prepared(kind: type[Agent], dataset: Dataset, **options: Any) -> Tensor:
    agent = kind(SPEC, **options)
    agent.prepare(dataset)
    assert f"{float(agent.actor.target_return):.1f}" in agent.notes(dataset)[0]  # type: ignore[arg-type]
    return agent.actor.target_return  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [RCSL, DT])
def test_the_return_to_ask_for_is_the_configs_also_where_networks_came_from_another_run(kind: type[Agent]) -> None:
    data, found = episodes(4, 5), kind(SPEC, target_return=7.0, normalization="none")
    found.normalizer.fixed = found.rewards_fixed = True  # as `init=` leaves it
    found.prepare(data)
    assert float(found.actor.target_return) == 7.0  # type: ignore[arg-type]
    assert "a return of 7.0" in found.notes(data)[0]


def of_two_kinds() -> Dataset:
    """Episodes of one observation, in half of which the action 0.5 earns 1 a step, in half -0.5 earns nothing."""
    rows, good = 400, np.repeat(np.arange(80) % 2 == 0, 5)
    actions = np.where(good, 0.5, -0.5).astype(np.float32)
    return episodes(
        80, 5, observations=np.zeros((rows, 3), np.float32), next_observations=np.zeros((rows, 3), np.float32),
        actions=np.stack([actions, actions], 1), rewards=good.astype(np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("kind", [RCSL, DT])
def test_what_is_asked_for_decides_what_is_done(kind: type[Agent]) -> None:
    small: dict[str, Any] = {"hidden": (32,), "l2": 0.0} if kind is RCSL else {"width": 16, "layers": 1, "context": 3}
    torch.manual_seed(0)
    agent = kind(SPEC, learning_rate=3e-3, **small)
    trained(agent, of_two_kinds(), 300, batch_size=32)
    assert float(agent.actor.target_return) == 5  # type: ignore[arg-type]
    for target, wanted in ((5.0, 0.5), (0.0, -0.5)):
        agent.actor.target_return.fill_(target)  # type: ignore[operator]
        policy = agent.policy()
        action, memory = policy.act(torch.zeros(1, 3), policy.begin(1))
        torch.testing.assert_close(action, torch.full((1, 2), wanted), atol=0.15, rtol=0)
        memory = policy.observe_outcome(memory, torch.tensor([target / 5]), torch.zeros(1), torch.tensor([False]))
        action, _ = policy.act(torch.zeros(1, 3), memory)
        torch.testing.assert_close(action, torch.full((1, 2), wanted), atol=0.2, rtol=0)


def test_the_loss_of_dt_is_the_mean_over_the_steps_that_are_there() -> None:
    torch.manual_seed(2)
    agent = DT(SPEC, width=8, layers=1, context=4, dropout=0.0).double()
    batch = {
        "observations": torch.randn(2, 4, 3, dtype=torch.float64),
        "actions": torch.rand(2, 4, 2, dtype=torch.float64),
        "returns_to_go": torch.randn(2, 4, dtype=torch.float64),
        "timesteps": torch.arange(4, dtype=torch.float64).expand(2, -1),
        "mask": torch.tensor([[0.0, 1, 1, 1], [0, 0, 0, 1]], dtype=torch.float64),
    }
    loss, _ = agent.actor_loss(batch, {})
    mean, _, odds = agent.actor(batch)
    wanted = sum(
        float((mean[b, k] - batch["actions"][b, k]).square().mean()) for b, k in ((0, 1), (0, 2), (0, 3), (1, 3))
    )
    assert float(loss) == pytest.approx(wanted / 4, rel=1e-12)
    assert not odds.any()
    assert agent.actor.tokens == 3
    later = {**batch, "actions": batch["actions"].clone()}
    later["actions"][:, -1] += 1  # the present action is not seen by what predicts it
    there = batch["mask"] > 0
    torch.testing.assert_close(agent.actor(later)[0][there], mean[there])


def plain_dt(weights: dict[str, Tensor], batch: dict[str, Tensor], row: int, heads: int) -> list[tuple[int, Tensor]]:
    """Step and mean action of each step that is there, one token after the other, padding left out."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    there = [k for k in range(batch["mask"].shape[1]) if batch["mask"][row, k] > 0]
    tokens = []
    for k in there:
        angles = [float(batch["timesteps"][row, k]) / 10_000 ** (i / 7) for i in range(8)]
        clock = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        time = linear("of_time", torch.tensor(clock, dtype=torch.float64))
        tokens.append(linear("of_return", batch["returns_to_go"][row, k : k + 1] / weights["return_scale"]) + time)
        tokens.append(linear("of_observation", batch["observations"][row, k]) + time)
        tokens.append(linear("of_action", batch["actions"][row, k]) + time)
    x = norm("enter", torch.stack(tokens))
    for layer in range(2):
        block, width = f"blocks.{layer}", x.shape[1]
        query, key, value = linear(f"{block}.attention", norm(f"{block}.before", x)).split(width, 1)
        mixed = torch.zeros_like(x)
        for h in range(heads):
            part = slice(h * width // heads, (h + 1) * width // heads)
            for i in range(len(x)):
                scores = torch.stack([query[i, part] @ key[j, part] for j in range(i + 1)]) / math.sqrt(width / heads)
                shares = scores.exp() / scores.exp().sum()
                mixed[i, part] = sum(shares[j] * value[j, part] for j in range(i + 1))
        x = x + linear(f"{block}.out", mixed)
        wide = linear(f"{block}.widen", norm(f"{block}.between", x))
        x = x + linear(f"{block}.narrow", wide * (1 + torch.erf(wide / math.sqrt(2))) / 2)
    actions = linear("action_head", norm("leave", x))[:, :2]
    return [(k, actions[3 * place + 1]) for place, k in enumerate(there)]  # given by the observation's token


def test_one_update_of_dt_equals_a_transformer_written_out_in_float64() -> None:
    torch.manual_seed(5)
    agent = DT(SPEC, width=8, heads=2, layers=2, context=4, dropout=0.0, weight_decay=0.1, learning_rate=1e-3).double()
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.normal_(std=0.5)
        agent.actor.return_scale.fill_(3.0)
    batch = {
        "observations": torch.randn(3, 4, 3, dtype=torch.float64),
        "actions": torch.rand(3, 4, 2, dtype=torch.float64) * 2 - 1,
        "returns_to_go": 3 * torch.randn(3, 4, dtype=torch.float64),
        "timesteps": torch.tensor([[7.0, 8, 9, 10], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.float64),
        "mask": torch.tensor([[1.0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.float64),
    }
    weights = {name: value.detach().clone() for name, value in agent.actor.state_dict().items()}
    trained = [weights[name].requires_grad_() for name, _ in agent.actor.named_parameters()]
    learner = Learner([agent], [0], Uniform(lambda _: batch, 100), batch_size=3, dtype=torch.float64)
    learner.run(1)
    errors = [
        (action - batch["actions"][row, k]).square().mean()
        for row in range(3)
        for k, action in plain_dt(weights, batch, row, 2)
    ]
    loss = torch.stack(errors).mean()
    assert len(errors) == 7
    loss.backward()
    assert float(agent.actor_loss(batch, {})[0].detach()) < float(loss.detach())
    assert float(nn.utils.clip_grad_norm_(trained, 0.25)) > 0.25, "so that the clip matters"
    torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.1).step()
    for name, value in agent.actor.named_parameters():
        torch.testing.assert_close(value, weights[name], rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (RCSL, {"l2": -1.0}, ("l2", "range")),
        (RCSL, {"returns": "scaled"}, ("returns", "choice")),
        (DT, {"context": 0}, ("context", "range")),
        (DT, {"heads": 3}, ("heads", "conflict")),
        (DT, {"warm_up": 5}, ("warm_up", "conflict")),
    ],
)
def test_settings_out_of_range_are_refused(kind: type[Agent], options: dict[str, Any], match: tuple[str, Code]) -> None:
    with refused(*match):
        kind(SPEC, **options)


def test_the_rate_of_dt_rises_to_its_height_and_stays_there() -> None:
    torch.manual_seed(3)
    agent = DT(SPEC, preset="corl", warm_up=4, learning_rate=1e-3, width=8, layers=1, context=2)
    learner = trained(agent, episodes(6, 5), 1, batch_size=4)
    seen = []
    for _ in range(6):
        seen.append(learner.optimizers[0].learning_rate())
        learner.run(1)
    assert seen == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])
