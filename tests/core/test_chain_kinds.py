"""Kinds of chains: the stochastic equation, consistency, denoising; what is deployed, written, and taped."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from chain_heads import ACTIONS, MADE, OBSERVATIONS, noise_network, policy, velocity
from torch import Tensor

from surefoot.core.actors.chains import CHAIN
from surefoot.core.actors.denoising_chain import DenoisingActor
from surefoot.core.actors.diffusion import DiffusionActor, Schedule
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.flow_chains import ConsistencyActor, FlowSDEActor, ReinFlowActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Spec, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.core.policy.policy import Policy


def test_what_is_deployed_is_the_flow_whatever_the_noise_network_says(tmp_path: pathlib.Path) -> None:
    actor = ReinFlowActor(velocity("embedded"), ACTIONS, 4)
    seen, noise = torch.randn(5, OBSERVATIONS), torch.randn(5, ACTIONS)
    deployed = actor.deployed()
    assert isinstance(deployed, FlowActor)
    assert {name.split(".")[0] for name, _ in deployed.named_parameters()} == {"network"}
    before = actor.act(seen, noise)
    assert torch.equal(before, deployed.act(seen, noise))
    with torch.no_grad():
        assert actor.explorer is not None
        for parameter in actor.explorer.parameters():
            parameter.normal_()
    assert torch.equal(actor.act(seen, noise), before)
    quiet = ReinFlowActor(actor.network, ACTIONS, 4, noise="const", low=1e-6)
    torch.testing.assert_close(
        quiet.sample(seen, torch.cat([noise, torch.randn(5, 8)], -1))[0], before, atol=1e-4, rtol=0
    )


# -- the others -------------------------------------------------------------------------------------------------


def test_the_stochastic_equation_keeps_the_marginals_of_the_flow() -> None:
    """Of data N(0.5, 0.3^2) the exact velocity is known; with many steps the chain ends at the data's distribution."""

    class Exact(PlainVelocity):
        def forward(self, observations: Tensor, x: Tensor, time: Tensor, size: Tensor | None = None) -> Tensor:
            t = time.unsqueeze(-1)
            variance = (t * 0.3).square() + (1 - t).square()
            return 0.5 + (t * 0.09 - (1 - t)) / variance * (x - t * 0.5)

    rows, steps = 40_000, 64
    actor = FlowSDEActor(Exact(1, 1, (4,)), 1, steps, amount=0.7)
    noise = torch.randn(rows, actor.held_dim, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        last = actor.sample(torch.zeros(rows, 1), noise)[1][CHAIN][:, -1]
    assert float(last.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(last.std()) == pytest.approx(0.3, abs=0.02)
    with pytest.raises(ConfigError, match="at least 2 steps"):
        FlowSDEActor(Exact(1, 1, (4,)), 1, 1)


def test_a_step_of_the_stochastic_equation_by_hand() -> None:
    """In the time of the noise, r = 1 - t, with the velocity's sign turned: as its source writes it."""
    actor = FlowSDEActor(PlainVelocity(1, 1, (4,)), 1, 4, amount=0.5)
    x = torch.tensor([[0.4]])
    for step in range(4):
        velocity = -float(actor.velocity(torch.zeros(1, 1), x, step).detach())
        r, delta = 1 - step / 4, 0.25
        sigma = 0.5 * math.sqrt(r / (1 - r) if step > 0 else 1 / 0.25)
        data, noise = 0.4 - r * velocity, 0.4 + (1 - r) * velocity
        mean = data * (1 - (r - delta)) + noise * (r - delta - sigma**2 * delta / (2 * r))
        found, log_std = actor.transition(torch.zeros(1, 1), x, step)
        assert float(found.detach()) == pytest.approx(mean, abs=1e-6)
        assert float(log_std.exp()) == pytest.approx(sigma * 0.5, abs=1e-6)


def test_a_consistency_chain_jumps_to_the_data_and_back_to_the_next_time() -> None:
    actor = ConsistencyActor(velocity("shortcut"), ACTIONS, 4, floor=0.1)
    seen, x = torch.randn(3, OBSERVATIONS), torch.randn(3, ACTIONS)
    time = torch.full((3,), 0.25)
    there = (x + 0.75 * actor.network(seen, x, time, 1 - time)).clamp(-1, 1)
    mean, log_std = actor.transition(seen, x, 1)
    torch.testing.assert_close(mean, 0.5 * there)
    assert float(log_std.exp()) == pytest.approx(0.5)
    assert float(actor.transition(seen, x, 3)[1].exp()) == pytest.approx(0.1)
    noise = torch.randn(3, actor.noise_dim)
    state = noise[:, :ACTIONS]
    for step in range(3):
        after = (step + 1) / 4
        state = after * actor.jump(seen, state, step) + (1 - after) * noise[:, (step + 1) * ACTIONS :][:, :ACTIONS]
    torch.testing.assert_close(actor.act(seen, noise), actor.jump(seen, state, 3).clamp(-1, 1))


def test_denoising_steps_are_the_posterior_of_ddpm() -> None:
    """Ho et al., equations 6 and 7, of the clipped data that the noise implies."""
    schedule = Schedule.cosine(6)
    actor = DenoisingActor(noise_network(), schedule, ACTIONS, floor=1e-6)
    seen, x = torch.randn(5, OBSERVATIONS), torch.randn(5, ACTIONS)
    for place, step in enumerate(reversed(range(6))):
        alpha, product = schedule.alphas[step], schedule.products[step]
        before = schedule.products[step - 1] if step > 0 else 1.0
        predicted = actor.network(x, seen, torch.full((5,), float(step)))
        data = ((x - math.sqrt(1 - product) * predicted) / math.sqrt(product)).clamp(-1, 1)
        mean = math.sqrt(before) * (1 - alpha) / (1 - product) * data
        mean = mean + math.sqrt(alpha) * (1 - before) / (1 - product) * x
        found, log_std = actor.transition(seen, x, place)
        torch.testing.assert_close(found, mean, rtol=1e-4, atol=1e-5)
        deviation = math.sqrt((1 - alpha) * (1 - before) / (1 - product))
        assert float(log_std.exp()) == pytest.approx(max(deviation, 1e-6), abs=1e-6)


def test_early_steps_are_the_frozen_copys_and_the_trained_ones_move() -> None:
    actor = DenoisingActor(noise_network(), Schedule.cosine(8), ACTIONS, trained=3)
    whole = DenoisingActor(actor.network, actor.schedule, ACTIONS)
    seen, noise = torch.randn(4, OBSERVATIONS), torch.randn(4, whole.held_dim)
    assert actor.held_dim == whole.held_dim
    assert not actor.starts_normal
    with torch.no_grad():
        short, long = actor.sample(seen, noise)[1][CHAIN], whole.sample(seen, noise)[1][CHAIN]
        torch.testing.assert_close(short, long[:, 5:])
        parts = [a.evaluate(seen, c[:, -1], {CHAIN: c}).outputs for a, c in ((actor, short), (whole, long))]
        torch.testing.assert_close(parts[0].log_densities, parts[1].log_densities[:, 5:])
        assert float(parts[0].start.abs().max()) == 0
        for parameter in actor.network.parameters():
            parameter.add_(0.1)
        moved = actor.sample(seen, noise)[1][CHAIN]
    assert torch.equal(moved[:, 0], short[:, 0])
    assert float((moved[:, 1] - short[:, 1]).abs().max()) > 1e-4
    actor.refreeze()
    with torch.no_grad():
        assert float((actor.sample(seen, noise)[1][CHAIN][:, 0] - short[:, 0]).abs().max()) > 1e-4
    with pytest.raises(ConfigError, match="trained"):
        DenoisingActor(noise_network(), Schedule.cosine(8), ACTIONS, trained=9)


def test_what_acts_by_ddim_is_the_diffusion_policy_of_as_many_steps() -> None:
    actor = DenoisingActor(noise_network("embedded"), Schedule.cosine(20), ACTIONS, taken=5)
    clone = DiffusionActor(actor.network, actor.schedule, ACTIONS, implicit=5)
    seen, noise = torch.randn(6, OBSERVATIONS), torch.randn(6, ACTIONS)
    assert actor.noise_dim == clone.noise_dim == ACTIONS
    torch.testing.assert_close(actor.act(seen, noise), clone.act(seen, noise), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MADE)
def test_heads_are_read_again_as_they_were_written_with_all_that_trains_them(name: str, tmp_path: pathlib.Path) -> None:
    tested = policy(MADE[name](4))
    tested.save(tmp_path / "policy")
    again = Policy.load(tmp_path / "policy")
    rows, noise = torch.randn(6, OBSERVATIONS), torch.randn(6, tested.noise_dim)
    assert torch.equal(again(rows, noise), tested(rows, noise))
    held = torch.randn(6, tested.actor.held_dim)
    one, other = tested.actor.sample(rows, held), again.actor.sample(rows, held)
    assert torch.equal(one[1][CHAIN], other[1][CHAIN])
    assert torch.equal(tested.actor.log_density(rows, *one), again.actor.log_density(rows, *one))


@pytest.mark.parametrize("name", ["reinflow", "consistency", "ddpm", "ddim"])
def test_onnx_gives_the_same_actions_of_the_same_noise(name: str, tmp_path: pathlib.Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    actor = MADE[name](4)
    tested, path = policy(actor.deployed()), tmp_path / "policy.onnx"
    tested.export(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert not any("explorer" in one.name for one in __import__("onnx").load(str(path)).graph.initializer)
    for rows in (1, 5):
        seen, noise = torch.randn(rows, OBSERVATIONS), torch.randn(rows, tested.noise_dim)
        found = session.run(["actions"], {"observations": seen.numpy(), "noise": noise.numpy()})[0]
        np.testing.assert_allclose(found, tested(seen, noise).numpy(), rtol=0, atol=1e-5)


# -- in a training step -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """Which head."""

    head: str = "reinflow"


class Fit(Agent):
    """Makes chains that were kept more likely: what a tape, and vmap, must be able to do."""

    name = "test_fit_chain"
    Config = FitConfig
    required_columns = ("observations", CHAIN)

    def build(self) -> None:
        self.actor = MADE[self.config.head](4)

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density and a little entropy, and the cost of what the head would do."""
        found = self.actor.evaluate(batch["observations"], batch[CHAIN][:, -1], {CHAIN: batch[CHAIN]})
        drawn = self.actor.sample(batch["observations"], noise["held"])[0]
        return 0.01 * drawn.square().mean() - (found.log_density + 0.1 * found.entropy).mean(), {}

    def updates(self) -> list[Update]:
        return [Update(self.loss, ("actor",), Adam(1e-3), noise={"held": Noise("normal", self.actor.held_dim)})]


def learner(name: str, kernels: bool, stacked: bool = False, dtype: torch.dtype = torch.float32) -> Learner:
    torch.manual_seed(4)
    agent = Fit(Spec(OBSERVATIONS, ACTIONS, (-1.0,) * ACTIONS, (1.0,) * ACTIONS), head=name)
    columns = {"observations": torch.randn(64, OBSERVATIONS)}
    with torch.no_grad():
        noise = torch.randn(64, agent.actor.held_dim)
        columns[CHAIN] = agent.actor.sample(columns["observations"], noise)[1][CHAIN]
    columns = {key: value.to(dtype) for key, value in columns.items()}
    source = Uniform(lambda rows: {key: value[rows] for key, value in columns.items()}, 64)
    options: dict[str, Any] = {"dtype": dtype, "kernels": kernels, "stacked": stacked}
    return Learner([agent], [5], source, batch_size=16, planned_steps=100, **options)


TAPED = ("reinflow", "reinflow, shortcut", "reinflow, some", "reinflow, unet", "sde", "consistency", "ddim")


@pytest.mark.parametrize("name", TAPED)
def test_training_steps_are_taped_and_stacked_with_the_same_numbers(name: str) -> None:
    taped, plain = learner(name, kernels=True), learner(name, kernels=False)
    taped.run(5)
    plain.run(5)
    assert taped.eager_because() == {}
    for (key, value), expected in zip(taped.agent.state_dict().items(), plain.agent.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4, msg=key)
    alone, stacked = (learner(name, False, stacked, torch.float64) for stacked in (False, True))
    alone.run(5)
    stacked.run(5)
    expected = dict(alone.agent.named_parameters())
    for key, value in stacked.parameters.of(0).items():
        if key in expected:
            torch.testing.assert_close(value, expected[key].detach(), rtol=0, atol=1e-9)
