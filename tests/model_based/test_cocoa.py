"""COCOA: the transduced network, anchors and the policy that seeks them, and the algorithms around which it is put."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from plain_layers import layers
from plane import plane_data
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent, Spec, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.transduction import TransducedMLP
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.model_based import ALGORITHMS, COCOAIQL
from surefoot.model_based.cocoa import SEEKING
from surefoot.world_models.ensemble.gaussian import Prediction

KINDS = ("cocoa_iql", "cocoa_cql", "cocoa_mopo", "cocoa_mobile")
SMALL: dict[str, Any] = {
    "model_updates": 4, "seeker_updates": 3, "reverse_starts": 20, "reverse_steps": 2, "transducer": (6, 5),
    "embedding": 3, "seeker_hidden": (5,), "hidden": (8, 6), "model_hidden": (7, 5), "model_decays": (),
    "model_members": 3, "model_elites": 2, "model_rows": 16,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "cocoa_iql": {"rewards": "none"},
    "cocoa_cql": {"sampled_actions": 2},
    "cocoa_mopo": {"rollouts": 20, "rollout_length": 2, "imagine_every": 4},
    "cocoa_mobile": {"rollouts": 20, "rollout_length": 2, "imagine_every": 4, "samples": 2},
}


def learner(name: str, seeds: list[int], dtype: torch.dtype, **options: Any) -> tuple[Learner, Dataset]:
    data = plane_data(120)
    made = [ALGORITHMS[name](data, **{**SMALL, **MORE[name], **options}).fresh(seed) for seed in seeds]
    ready, *_ = (agent.prepare(data) for agent in made)
    store = store_from_dataset(ready, made[0].required_columns, "cpu", dtype=dtype)
    sources = made[0].sources(Stores(ready, store))
    return Learner(made, seeds, sources, batch_size=20, planned_steps=60, dtype=dtype), ready


# -- the network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [None, 2])
def test_a_transduced_network_is_the_sum_of_products_then_an_mlp(members: int | None) -> None:
    torch.manual_seed(0)
    net = TransducedMLP(MLP(5, 2, (7,), members=members), 3, (6, 4), 3).double()
    net.anchored_by(lambda states: 0.3 * states)
    inputs = torch.randn(9, 5, dtype=torch.float64)
    state, rest = inputs[:, :3], inputs[:, 3:]
    f = net.of_difference(torch.cat([0.7 * state, rest], 1))
    g = net.of_anchor(torch.cat([0.3 * state, rest], 1))
    features = torch.stack([sum(f[..., 3 * j + d] * g[..., 3 * j + d] for d in range(3)) for j in range(4)], -1)
    torch.testing.assert_close(net(inputs), net.backbone(features))
    assert net(inputs).shape == ((9, 2) if members is None else (2, 9, 2))
    if members is not None:
        torch.testing.assert_close(net.member(inputs, 1), net(inputs)[1])


def test_features_are_linear_in_f_for_a_fixed_anchor() -> None:
    torch.manual_seed(1)
    net = TransducedMLP(MLP(3, 1, (4,)), 3, (5,), 2)
    difference, anchor = torch.randn(6, 3), torch.randn(6, 3)
    once = net.features(difference, anchor)
    with torch.no_grad():
        net.of_difference.weights[-1].mul_(2.5)
        net.of_difference.biases[-1].mul_(2.5)
    torch.testing.assert_close(net.features(difference, anchor), 2.5 * once)


def test_without_steps_a_state_is_its_own_anchor_and_the_difference_is_0() -> None:
    agent = COCOAIQL(Spec(2, 2, (-1.0,) * 2, (1.0,) * 2), **SMALL, anchor_steps=0)
    states = torch.randn(4, 2)
    assert torch.equal(agent.anchors(states), states)
    difference, anchor = agent.value.mlp._parts(states)
    assert not difference.any()
    assert torch.equal(anchor, states)


# -- anchors ----------------------------------------------------------------------------------------------------------


def test_anchors_are_the_models_mean_over_the_elites_after_the_seekers_steps() -> None:
    agent = COCOAIQL(Spec(2, 2, (-1.0,) * 2, (1.0,) * 2), **SMALL, anchor_steps=2).double()
    states = expected = torch.randn(5, 2, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(2):
            actions = torch.tanh(agent.seeker(expected))
            means = agent.model.predict_all(expected, actions).mean[agent.model.elites]
            expected = expected + (means[0] + means[1])[:, :2] / 2
    found = agent.anchors(states)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad


def test_steps_back_follow_the_reverse_model_by_a_direction_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = COCOAIQL(Spec(2, 2, (-1.0,) * 2, (1.0,) * 2), **SMALL)

    def exact(states: Tensor, actions: Tensor, member: Tensor) -> Prediction:  # of s' = s + a
        mean = torch.cat([-actions, torch.zeros(len(states), 1)], 1)
        return Prediction(mean, torch.full_like(mean, -200.0))

    monkeypatch.setattr(agent.reverse, "predict", exact)
    batch = {"next_observations": torch.zeros(2, 2), "actions": torch.tensor([[1.0, 0.5], [-0.5, 0.25]])}
    noise = {"around": torch.zeros(2, 4), "reverse": torch.randn(2, 6), "reverse_member": torch.rand(2, 2)}
    noise["around"][0] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    rows = agent.steps_back(batch, noise)[0][SEEKING]
    # directions are the other row's actions times 0.8; the first has 0.1 more in its second number at the first step
    expected = [[-0.4, 0.3], [0.8, 0.4], [-0.4, 0.2], [0.8, 0.4]]
    torch.testing.assert_close(rows["actions"], torch.tensor(expected))
    back = [[0.4, -0.3], [-0.8, -0.4], [0.8, -0.5], [-1.6, -0.8]]
    torch.testing.assert_close(rows["observations"], torch.tensor(back))
    assert rows["valid"].all()


def test_on_the_plane_the_seeker_leads_back_to_the_data() -> None:
    """Data in the unit box, s' = s + a: from two units outside the anchor is nearer to it by about 0.8."""
    data = plane_data(2000)
    options = {"model_updates": 250, "seeker_updates": 250, "reverse_starts": 2000, "reverse_steps": 4}
    sizes = {"model_hidden": (32,), "seeker_hidden": (32, 32), "model_members": 2, "model_elites": 2, "rewards": "none"}
    agent = COCOAIQL(data, **{**SMALL, **options, **sizes}).fresh(0)
    ready = agent.prepare(data)
    store = store_from_dataset(ready, agent.required_columns, "cpu")
    sources = agent.sources(Stores(ready, store))
    found = Learner([agent], [0], sources, batch_size=128, planned_steps=600, kernels=True)
    found.run(501)
    trained = found.extract(0)
    angle = torch.arange(32) * (2 * torch.pi / 32)
    outside = 3 * torch.stack([angle.cos(), angle.sin()], 1)
    before, after = outside.norm(dim=1), trained.anchors(outside).norm(dim=1)
    assert float((before - after).mean()) > 0.3
    assert float((before - after).min()) > 0


# -- around the algorithms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_stacked_seeds_equal_each_alone_in_float64_and_all_networks_are_trained(name: str) -> None:
    together, _ = learner(name, [3, 1], torch.float64)
    start = {key: value.clone() for key, value in together.agents_parameters(0).items()}
    together.run(16)
    for position, seed in enumerate([3, 1]):
        alone, _ = learner(name, [seed], torch.float64)
        alone.run(16)
        expected = alone.state(0)
        for key, value in together.state(position).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-8, atol=1e-10, msg=key)
    now = together.agents_parameters(0)
    for part in ("actor", "critic", "target_critic", "reverse", "seeker", "model"):
        assert any(not torch.equal(now[key], start[key]) for key in now if key.startswith(f"{part}.")), part


@pytest.mark.parametrize("name", KINDS)
def test_models_stand_still_while_the_algorithm_learns_and_it_rests_before(name: str) -> None:
    found, _ = learner(name, [0], torch.float32)

    def parts() -> dict[str, Tensor]:
        return {key: value.clone() for key, value in found.agents_parameters(0).items()}

    begun = parts()
    found.run(7)  # models until 4, the seeker until 7
    then = parts()
    found.run(6)
    now = parts()
    for key in now:
        of_models = key.startswith(("model.", "reverse.", "seeker."))
        if not key.startswith("model_best"):
            assert not of_models or torch.equal(then[key], now[key]), key
            assert of_models or torch.equal(begun[key], then[key]), key


@pytest.mark.parametrize("name", KINDS)
def test_the_policy_that_leaves_carries_its_anchors(name: str, tmp_path: pathlib.Path) -> None:
    found, _ = learner(name, [0], torch.float32)
    found.run(12)
    agent = found.extract(0)
    policy = agent.policy()
    observations = torch.randn(6, 2)
    seen = agent.normalizer(observations)
    torch.testing.assert_close(policy(observations), agent.act(seen).clamp(-1, 1).detach())
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    assert torch.equal(loaded(observations), policy(observations))
    with torch.no_grad():
        for parameter in loaded.actor.seeker.parameters():
            parameter.add_(1)
    assert not torch.equal(loaded(observations), policy(observations))  # they are what it acts by


def rewarded() -> Dataset:
    """Single steps on the plane: the reward is highest for the action (0.5, -0.5) wherever one is."""
    data = plane_data(2000)
    distance = np.square(data.actions - np.array([0.5, -0.5])).sum(1).astype(np.float32)
    return data.replace(rewards=-distance, terminations=np.ones(2000, bool))


RATES = {"actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3, "temperature_learning_rate": 3e-3}
IMAGINED = {
    **RATES, "temperature": 0.1, "penalty": 0.1, "discount": 0.5, "real_ratio": 0.5, "rollouts": 200,
    "rollout_length": 1, "imagine_every": 50, "model_updates": 150, "model_learning_rate": 1e-2, "model_rows": 64,
}  # fmt: skip
LEARNING: dict[str, dict[str, Any]] = {
    "cocoa_iql": {"temperature": 10.0, "rewards": "none", "learning_rate": 3e-3},
    "cocoa_cql": {**RATES, "cql_weight": 0.1, "sampled_actions": 2},
    "cocoa_mopo": IMAGINED,
    "cocoa_mobile": {**IMAGINED, "samples": 2},
}


@pytest.mark.parametrize("name", KINDS)
def test_each_algorithm_within_it_moves_to_the_rewarded_actions(name: str) -> None:
    data = rewarded()
    options = {"model_updates": 60, "seeker_updates": 60, "reverse_starts": 500, "model_hidden": (16,)}
    more = {"hidden": (32, 32), "transducer": (16, 16), "target_rate": 0.05}
    agent: Agent = ALGORITHMS[name](data, **{**SMALL, **options, **more, **LEARNING[name]}).fresh(0)
    ready = agent.prepare(data)
    store = store_from_dataset(ready, agent.required_columns, "cpu")
    sources = agent.sources(Stores(ready, store))
    found = Learner([agent], [0], sources, batch_size=64, planned_steps=720, kernels=True)
    found.run(720)
    with torch.no_grad():
        actions = found.extract(0).act(torch.rand(300, 2) * 2 - 1).mean(0)
    assert actions.tolist() == pytest.approx([0.5, -0.5], abs=0.17)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("cocoa_iql", {"embedding": 0}, r"cocoa_iql\.embedding is 0, must be >= 1"),
        ("cocoa_iql", {"dropout": 0.1}, r"cocoa_iql\.dropout"),
        ("cocoa_iql", {"history": 2}, r"cocoa_iql\.history is 2, must be 1"),
        ("cocoa_iql", {"expectile": 1.0}, r"cocoa_iql\.expectile"),
        ("cocoa_cql", {"layer_norm_critic": True}, "transduced networks have no layer norms"),
        ("cocoa_mopo", {"anchor_steps": -1}, r"cocoa_mopo\.anchor_steps"),
        ("cocoa_mobile", {"transducer": ()}, r"cocoa_mobile\.transducer"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ALGORITHMS[name].configure(**options)


# -- one update against a second implementation -----------------------------------------------------------------------


def test_one_update_of_iqls_value_and_of_the_seeker_equals_plain_torch_in_float64() -> None:
    torch.manual_seed(4)
    agent = COCOAIQL(Spec(3, 2, (-1.0,) * 2, (1.0,) * 2), **SMALL, rewards="none").double()
    batch = {"observations": torch.randn(7, 3).double(), "actions": torch.rand(7, 2).double()}
    batch["observation_actions"] = torch.cat([batch["observations"], batch["actions"]], 1)
    parts = {name: layers(getattr(agent.value.mlp, name)) for name in ("of_difference", "of_anchor", "backbone")}
    critics = [
        {name: layers(getattr(agent.target_critic.mlp, name), i) for name in parts} for i in range(2)
    ]  # fmt: skip
    seeker = layers(agent.seeker)
    models = [layers(agent.model.network, i) for i in range(SMALL["model_elites"])]
    for model in models:
        for place, module in enumerate(model):
            if isinstance(module, nn.ReLU):
                model[place] = nn.SiLU()

    def value(nets: dict[str, nn.Module], state: Tensor, rest: Tensor) -> Tensor:
        with torch.no_grad():
            inputs = torch.cat([state, torch.tanh(seeker(state))], 1)
            inputs = (inputs - agent.model.input_mean) / agent.model.input_scale
            anchor = state + sum(model(inputs)[:, :3] for model in models) / len(models)
        f = nets["of_difference"](torch.cat([state - anchor, rest], 1))
        g = nets["of_anchor"](torch.cat([anchor, rest], 1))
        return nets["backbone"]((f * g).reshape(len(state), -1, SMALL["embedding"]).sum(-1)).squeeze(1)

    with torch.no_grad():
        target = torch.min(*(value(critic, batch["observations"], batch["actions"]) for critic in critics))
    u = target - value(parts, batch["observations"], batch["actions"][:, :0])
    expected = ((0.7 - (u < 0).double()).abs() * u**2).mean()
    found, _ = agent.value_loss(agent.annotate(batch), {})
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    own = torch.optim.Adam(agent.value.parameters(), lr=3e-4)
    other = torch.optim.Adam([p for part in parts.values() for p in part.parameters()], lr=3e-4)
    found.backward()
    expected.backward()
    own.step()
    other.step()
    for name, part in parts.items():
        linears = [module for module in part if isinstance(module, nn.Linear)]
        for linear, weight in zip(linears, getattr(agent.value.mlp, name).weights, strict=True):
            torch.testing.assert_close(weight, linear.weight, rtol=1e-9, atol=1e-12)
    cloned, _ = agent.seeker_loss(batch, {})
    error = (torch.tanh(seeker(batch["observations"])) - batch["actions"]).square().mean()
    assert float(cloned.detach()) == pytest.approx(float(error.detach()), rel=1e-12)
    (update,) = [one for one in agent.updates() if isinstance(one, Update) and one.trains == ("seeker",)]
    own = torch.optim.Adam(agent.seeker.parameters(), lr=update.optimizer.learning_rate)
    other = torch.optim.Adam(seeker.parameters(), lr=1e-3)
    cloned.backward()
    error.backward()
    own.step()
    other.step()
    linears = [module for module in seeker if isinstance(module, nn.Linear)]
    for linear, weight, bias in zip(linears, agent.seeker.weights, agent.seeker.biases, strict=True):
        torch.testing.assert_close(weight, linear.weight, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(bias, linear.bias, rtol=1e-9, atol=1e-12)
