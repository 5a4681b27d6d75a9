"""Flow policies: what they draw, how a critic chooses, and the files that they leave as."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.actors.flow_actor import FlowActor, OneStepActor, best_of
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.actors.steered import EditedActor
from surefoot.core.base.errors import CheckpointError, ConfigError, EnvironmentMismatchError
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Spec, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.losses.flow import (
    REST,
    Stretch,
    draw_mean_flow,
    draw_shortcut,
    euler,
    flow_matching_loss,
    interpolate,
    mean_flow_target,
    shortcut_rows,
    shortcut_target,
)
from surefoot.core.nn.ensembles import aggregate
from surefoot.core.nn.networks import Critic
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.unet import UNetVelocity
from surefoot.core.nn.velocity import EmbeddedVelocity, PlainVelocity, ShortcutVelocity, VelocityNetwork
from surefoot.core.policy import single_flow
from surefoot.core.policy.policy import Policy

OBSERVATIONS, ACTIONS = 3, 2


def network(kind: str = "mlp", action_dim: int = ACTIONS) -> VelocityNetwork:
    if kind == "mlp":
        return PlainVelocity(OBSERVATIONS, action_dim, (16, 16))
    if kind == "embedded":
        return EmbeddedVelocity(OBSERVATIONS, action_dim, (16, 16, 16), "mish", 6)
    return ShortcutVelocity(OBSERVATIONS, action_dim, (16, 16, 16), "mish", 6, (8, 6))


def critic(action_dim: int = ACTIONS) -> Critic:
    return Critic(OBSERVATIONS, action_dim, (16, 16), 3, "xavier", layer_norm="after", activation="gelu_tanh")


def policy(actor: Any) -> Policy:
    normalizer = Normalizer(OBSERVATIONS)
    normalizer.mean.copy_(torch.tensor([1.0, -20.0, 300.0]))
    normalizer.scale.copy_(torch.tensor([0.5, 3.0, 100.0]))
    return Policy.of(actor, normalizer, torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 10.0]))


def observations(rows: int) -> Tensor:
    return torch.randn(rows, 3) * torch.tensor([0.5, 3.0, 100.0]) + torch.tensor([1.0, -20.0, 300.0])


def test_a_flow_policy_follows_its_network_on_the_grid_and_clips_the_last_place() -> None:
    actor = FlowActor(network(), ACTIONS, 3)
    seen, noise = torch.randn(5, OBSERVATIONS), 3 * torch.randn(5, ACTIONS)
    x = noise
    for k in range(3):
        x = x + actor.network(seen, x, torch.full((5,), k / 3)) / 3
    assert float(x.detach().abs().max()) > 1
    torch.testing.assert_close(actor.act(seen, noise), x.clamp(-1, 1))
    each = FlowActor(actor.network, ACTIONS, 3, clip_each=True)
    expected = euler(lambda x, t: actor.network(seen, x, t), noise, 3, 1.0, True)
    torch.testing.assert_close(each.act(seen, noise), expected)


def test_a_shortcut_network_is_asked_for_steps_of_1_over_K() -> None:
    actor = FlowActor(network("shortcut"), ACTIONS, 4)
    seen, noise = torch.randn(5, OBSERVATIONS), torch.randn(5, ACTIONS)
    x = noise
    for k in range(4):
        x = x + actor.network(seen, x, torch.full((5,), k / 4), torch.full((5,), 0.25)) / 4
    torch.testing.assert_close(actor.act(seen, noise), x.clamp(-1, 1))


@pytest.mark.parametrize("rows", [1, 2, 4, 7])
@pytest.mark.parametrize("aggregate", ["min", "mean"])
def test_every_row_of_a_batch_of_any_size_gets_the_best_of_its_own_candidates(rows: int, aggregate: str) -> None:
    """A batch of as many rows as candidates is the case in which a flat argmax gives wrong actions without a word."""
    actor = FlowActor(network(), ACTIONS, 2, samples=4, critic=critic(), aggregate=aggregate)
    seen, noise = torch.randn(rows, OBSERVATIONS), torch.randn(rows, 4 * ACTIONS)
    found = actor.act(seen, noise)
    for row in range(rows):
        one = seen[row].expand(4, -1)
        drawn = euler(lambda x, t, one=one: actor.network(one, x, t), noise[row].view(4, ACTIONS), 2, 1.0)
        values = actor.critic(torch.cat([one, drawn], -1))
        best = (values.amin(0) if aggregate == "min" else values.mean(0)).argmax()
        torch.testing.assert_close(found[row], drawn[best])


def test_critics_count_by_their_minimum_or_by_their_mean_less_deviations() -> None:
    values = torch.tensor([[1.0, 5.0], [3.0, 4.0]])
    assert aggregate(values, "min").tolist() == [1.0, 4.0]
    assert aggregate(values).tolist() == [2.0, 4.5]
    assert aggregate(values, "mean", 2.0).tolist() == [0.0, 3.5]
    assert best_of(torch.arange(6.0).view(1, 3, 2), torch.tensor([[1.0, 2.0, 2.0]])).tolist() == [[2.0, 3.0]]
    with pytest.raises(ConfigError, match="aggregate"):
        aggregate(values, "max")


def test_what_a_flow_policy_can_not_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="critic to choose"):
        FlowActor(network(), ACTIONS, samples=2)
    with pytest.raises(ConfigError, match="1 or more"):
        FlowActor(network(), ACTIONS, 0)
    for actor in (FlowActor(network(), ACTIONS), OneStepActor(OBSERVATIONS, ACTIONS, (8,))):
        with pytest.raises(ConfigError, match="without noise"):
            actor.act(torch.zeros(1, OBSERVATIONS))


ACTORS: dict[str, Any] = {
    "flow 1": lambda: FlowActor(network(), ACTIONS, 1),
    "flow 4": lambda: FlowActor(network("embedded"), ACTIONS, 4, clip_each=True),
    "shortcut 4": lambda: FlowActor(network("shortcut"), ACTIONS, 4),
    "best of 5": lambda: FlowActor(network(), ACTIONS, 2, samples=5, critic=critic(), deviations=0.5),
    "one step": lambda: OneStepActor(OBSERVATIONS, ACTIONS, (16, 16)),
    "one step, normalised": lambda: OneStepActor(OBSERVATIONS, ACTIONS, (16, 16), layer_norm="after"),
    "chunk of 4, convolutions": lambda: ChunkActor(FlowActor(UNetVelocity(OBSERVATIONS, 8, 4, 8), 8, 2), 4, ACTIONS),
    "chunk of 3, two played": lambda: ChunkActor(OneStepActor(OBSERVATIONS, 3 * ACTIONS, (16, 16)), 3, ACTIONS, 2),
    "edited": lambda: EditedActor(
        FlowActor(network(), ACTIONS, 3), TanhGaussianActor(OBSERVATIONS + ACTIONS, ACTIONS, (16,)), 0.2
    ),
    "chunk of 3": lambda: ChunkActor(FlowActor(network("mlp", 3 * ACTIONS), 3 * ACTIONS, 2), 3, ACTIONS),
}


@pytest.mark.parametrize("name", ACTORS)
def test_a_policy_is_read_again_as_it_was_written(name: str, tmp_path: pathlib.Path) -> None:
    tested, rows = policy(ACTORS[name]()), observations(6)
    tested.save(tmp_path / "policy")
    again = Policy.load(tmp_path / "policy")
    noise = torch.randn(6, tested.noise_dim)
    assert torch.equal(again(rows, noise), tested(rows, noise))
    memory = tested.begin(6, seed=3)
    assert torch.equal(again.act(rows, memory)[0], tested.act(rows, memory)[0])


def test_a_description_that_is_not_the_tensors_is_refused(tmp_path: pathlib.Path) -> None:
    tested = policy(ACTORS["best of 5"]())
    tested.save(tmp_path / "policy")
    words = (tmp_path / "policy.json").read_text()
    (tmp_path / "policy.json").write_text(words.replace('"aggregate": "mean"', '"aggregate": "most"'))
    with pytest.raises(CheckpointError):
        Policy.load(tmp_path / "policy")


QUICK = {"flow 1", "flow 4", "shortcut 4", "one step", "chunk of 3", "chunk of 3, two played"}


@pytest.mark.parametrize("name", ACTORS)
def test_single_actions_are_those_of_the_batch_with_the_noise_that_the_policy_draws(name: str) -> None:
    tested, rows = policy(ACTORS[name]()), observations(5)
    assert single_flow.fits(tested) == (name in QUICK)
    tested.reset(seed=7)
    memory = tested.begin(1, seed=7)
    for row in [*rows, *rows]:
        expected, memory = tested.act(row.unsqueeze(0), memory)
        np.testing.assert_allclose(tested.select_action(row.numpy()), expected[0].numpy(), rtol=0, atol=2e-5)
    state = tested.state()
    assert set(state) == set(memory)
    for key, value in state.items():
        torch.testing.assert_close(value, memory[key], rtol=0, atol=2e-5)


RUN_ONNX = """
import sys
for name in ("surefoot", "torch"):
    sys.modules[name] = None
import numpy, onnxruntime
given = numpy.load({inputs!r})
session = onnxruntime.InferenceSession({path!r}, providers=["CPUExecutionProvider"])
numpy.save({output!r}, session.run(["actions"], {{"observations": given["observations"], "noise": given["noise"]}})[0])
"""


def exported(name: str, folder: pathlib.Path) -> tuple[Policy, str]:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    tested = policy(ACTORS[name]())
    tested.export(folder / "policy.onnx")
    return tested, str(folder / "policy.onnx")


@pytest.mark.parametrize("name", ["flow 4", "shortcut 4", "best of 5", "one step, normalised", "edited"])
def test_onnx_gives_the_same_actions_of_the_same_noise(name: str, tmp_path: pathlib.Path) -> None:
    tested, path = exported(name, tmp_path)
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for rows in (1, 5):
        seen, noise = observations(rows), torch.randn(rows, tested.noise_dim)
        found = session.run(["actions"], {"observations": seen.numpy(), "noise": noise.numpy()})[0]
        np.testing.assert_allclose(found, tested(seen, noise).numpy(), rtol=0, atol=1e-5)


def test_an_exported_flow_runs_where_neither_surefoot_nor_torch_is(tmp_path: pathlib.Path) -> None:
    tested, path = exported("flow 4", tmp_path)
    seen, noise = observations(3), torch.randn(3, tested.noise_dim)
    np.savez(tmp_path / "in.npz", observations=seen.numpy(), noise=noise.numpy())
    code = RUN_ONNX.format(inputs=str(tmp_path / "in.npz"), path=path, output=str(tmp_path / "out.npy"))
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=120)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), tested(seen, noise).numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["flow 4", "chunk of 3", "chunk of 4, convolutions"])
def test_torch_export_gives_the_same_actions(name: str, tmp_path: pathlib.Path) -> None:
    tested, path = policy(ACTORS[name]()), tmp_path / "policy.pt2"
    tested.export(path)
    module = torch.export.load(path).module()
    seen, noise = observations(5), torch.randn(5, tested.noise_dim)
    if tested.has_memory:
        memory = {n: v for n, v in tested.begin(5).items() if n == "queue" or n == "queued"}
        found = module(observations=seen, memory=memory, ended=torch.zeros(5, dtype=torch.bool), noise=noise)[0]
    else:
        found = module(seen, noise)
    torch.testing.assert_close(found, tested(seen, noise), rtol=0, atol=1e-5)


# -- in a training step ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FlowQConfig:
    """Nothing to set."""


class FlowQ(Agent):
    """The three losses of flow Q-learning, in one update: what a tape must be able to repeat."""

    name = "test_flow_q"
    Config = FlowQConfig
    required_columns = ("observations", "actions", "rewards", "next_observations")

    def build(self) -> None:
        sizes = (self.spec.observation_dim, self.spec.action_dim)
        self.velocity, self.student = PlainVelocity(*sizes, (16, 16)), OneStepActor(*sizes, (16, 16))
        self.critic = Critic(*sizes, (16, 16), 2, "xavier", layer_norm="after", activation="gelu_tanh")
        self.target = Critic(*sizes, (16, 16), 2, "xavier", layer_norm="after", activation="gelu_tanh")
        self.target.load_state_dict(self.critic.state_dict())

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The sum of all."""
        seen, actions = batch["observations"], batch["actions"]
        x, velocity = interpolate(noise["x"], actions, noise["time"].squeeze(-1))
        cloning = flow_matching_loss(self.velocity(seen, x, noise["time"].squeeze(-1)), velocity)
        with torch.no_grad():
            end = FlowActor(self.velocity, actions.shape[-1], 4).act(seen, noise["z"])
            best = FlowActor(self.velocity, actions.shape[-1], 2, samples=2, critic=self.critic)
            following = best.act(batch["next_observations"], torch.cat([noise["z"], noise["x"]], -1))
            target = batch["rewards"] + 0.9 * self.target(torch.cat([batch["next_observations"], following], -1)).mean(
                0
            )
        made = self.student(seen, noise["z"])
        distilled = (made - end).square().mean()
        value = self.critic(torch.cat([seen, made.clamp(-1, 1)], -1)).mean()
        values = self.critic(torch.cat([seen, actions], -1))
        critic_loss = (values - target).square().mean()
        return cloning + distilled - 0.1 * value + critic_loss, {"value": value}

    def updates(self) -> list[Update]:
        width = self.spec.action_dim
        noise = {"x": Noise("normal", width), "z": Noise("normal", width), "time": Noise("uniform", 1)}
        then = {"target": ("critic", 0.005)}
        return [Update(self.loss, ("velocity", "student", "critic"), Adam(3e-4), noise=noise, target_updates=then)]


class OneStep(FlowQ):
    """MeanFlow's loss and a shortcut model's, added up."""

    name = "test_one_step"

    def build(self) -> None:
        self.velocity = network("shortcut")

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        seen, first = batch["observations"], shortcut_rows(len(noise["u"]))
        stretch = draw_mean_flow(noise["u"], 0.5)
        x, velocity = interpolate(noise["x"], batch["actions"], stretch.time)
        target = mean_flow_target(lambda *where: self.velocity(seen, *where), x, velocity, stretch)
        found = flow_matching_loss(self.velocity(seen, x, *stretch), target)
        stretch = draw_shortcut(noise["u"], finest=8)
        consistent = Stretch(stretch.time[:first], stretch.size[:first])
        x, velocity = interpolate(noise["x"], batch["actions"], stretch.time, REST)
        halves = shortcut_target(lambda *where: self.velocity(seen[:first], *where), x[:first], consistent)
        target = torch.cat([halves, velocity[first:]])
        return found + flow_matching_loss(self.velocity(seen, x, *stretch), target), {}

    def updates(self) -> list[Update]:
        noise = {"x": Noise("normal", ACTIONS), "u": Noise("uniform", 3)}
        return [Update(self.loss, ("velocity",), Adam(3e-4), noise=noise)]


def learner(
    kernels: bool, stacked: bool = False, dtype: torch.dtype = torch.float32, kind: type[FlowQ] = FlowQ
) -> Learner:
    spec = Spec(OBSERVATIONS, ACTIONS, (-1.0,) * ACTIONS, (1.0,) * ACTIONS)
    generator = torch.Generator().manual_seed(0)
    table = {
        "observations": torch.randn(256, OBSERVATIONS, generator=generator),
        "actions": torch.rand(256, ACTIONS, generator=generator) * 2 - 1,
        "rewards": torch.randn(256, generator=generator),
        "next_observations": torch.randn(256, OBSERVATIONS, generator=generator),
    }
    agent = kind(spec)
    torch.manual_seed(1)
    agent.build()
    columns = {name: value.to(dtype) for name, value in table.items()}
    source = Uniform(lambda rows: {name: value[rows] for name, value in columns.items()}, 256)
    return Learner(
        [agent], [5], source, batch_size=32, planned_steps=100, dtype=dtype, kernels=kernels, stacked=stacked
    )


def state(of: Learner) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in of.agent.named_parameters()}


@pytest.mark.parametrize("kind", [FlowQ, OneStep])
def test_a_training_step_is_taped_and_leaves_the_same_numbers(kind: type[FlowQ]) -> None:
    taped, plain = learner(kernels=True, kind=kind), learner(kernels=False, kind=kind)
    taped.run(20)
    plain.run(20)
    assert taped.eager_because() == {}
    for name, value in state(plain).items():
        torch.testing.assert_close(state(taped)[name], value, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("kind", [FlowQ, OneStep])
def test_stacked_training_gives_the_numbers_of_one_alone(kind: type[FlowQ]) -> None:
    alone = learner(False, dtype=torch.float64, kind=kind)
    stacked = learner(False, True, torch.float64, kind)
    alone.run(20)
    stacked.run(20)
    for name, value in stacked.parameters.of(0).items():
        if name in (expected := state(alone)):
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-9)


def test_an_observation_that_is_not_finite_is_named_and_the_episode_goes_on_as_before() -> None:
    tested, rows = policy(ACTORS["chunk of 3"]()), observations(3)
    tested.reset(seed=1)
    tested.select_action(rows[0].numpy())
    before = tested.state()
    with pytest.raises(EnvironmentMismatchError, match=r"observation\[1\] is nan"):
        tested.select_action(np.array([0, np.nan, 0], np.float32))
    with pytest.raises(EnvironmentMismatchError, match="shape"):
        tested.select_action(np.zeros(4, np.float32))
    assert all(torch.equal(value, before[key]) for key, value in tested.state().items())
    first = tested.select_action(rows[1].numpy())
    tested.restore(before)
    np.testing.assert_array_equal(tested.select_action(rows[1].numpy()), first)
    tested.actor.inner.network.mlp.biases[-1].add_(10.0)
    tested.reset(seed=1)
    np.testing.assert_allclose(tested.select_action(rows[0].numpy()), tested.action_high.numpy())  # counts at once
