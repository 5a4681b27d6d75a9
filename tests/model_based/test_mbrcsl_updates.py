"""MBRCSL's networks and updates against second implementations; schedules, resuming, stacked seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from mbrcsl_data import SMALL, dataset_of, learner_of, random_data
from refusals import refused
from torch import Tensor, nn

from surefoot.core.base.errors import Code, ConfigError
from surefoot.core.engine.agent import Adam, Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.optimizer import Network, Optimizer
from surefoot.core.nn.noise_unet import UNetNoise
from surefoot.data.dataset import Dataset
from surefoot.model_based.mbrcsl import MBRCSL

# -- the clone ------------------------------------------------------------------------------------------------


def plain_unet(net: UNetNoise, actions: Tensor, observations: Tensor, step: float) -> Tensor:
    """The network written out: blocks by number, with its own weights."""
    f = nn.functional
    frequencies = net.sinusoids.frequencies
    time = torch.cat([(step * frequencies).sin(), (step * frequencies).cos()])
    embed = [layer for layer in net.embed]
    time = embed[1](f.mish(embed[0](time)))
    known = torch.cat([time.expand(len(actions), -1), observations], 1)

    def single(block: Any, x: Tensor) -> Tensor:
        y = x @ block.linear.weight.T + block.linear.bias
        y = (y - y.mean(1, keepdim=True)) / (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        return f.mish(y * block.norm.weight + block.norm.bias)

    def block(one: Any, x: Tensor) -> Tensor:
        gain, shift = (known @ one.modulation.weight.T + one.modulation.bias).chunk(2, 1)
        y = single(one.two, gain * single(one.one, x) + shift)
        return y + (x if one.skip is None else x @ one.skip.weight.T + one.skip.bias)

    down, up = list(net.down), list(net.up)
    first = block(down[0][1], block(down[0][0], actions))
    second = block(down[1][1], block(down[1][0], first))
    third = block(down[2][1], block(down[2][0], second))
    x = block(net.middle[1], block(net.middle[0], third))
    x = block(up[0][1], block(up[0][0], torch.cat([x, third], 1)))
    x = block(up[1][1], block(up[1][0], torch.cat([x, second], 1)))
    return single(net.end, x) @ net.last.weight.T + net.last.bias


def test_the_unet_equals_one_written_out() -> None:
    torch.manual_seed(0)
    net = UNetNoise(3, 2, (8, 12, 16)).double()
    actions, observations = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    found = net(actions, observations, torch.tensor([3.0], dtype=torch.float64))
    torch.testing.assert_close(found, plain_unet(net, actions, observations, 3.0), rtol=1e-10, atol=1e-12)
    with pytest.raises(ConfigError, match="unet_widths are"):
        UNetNoise(3, 2, ())


def test_one_update_of_the_clone_equals_a_second_implementation_in_float64() -> None:
    torch.manual_seed(3)
    options = {**SMALL, "behavior_network": "mlp_unet", "behavior_widths": (8, 12, 16), "model_updates": 1}
    rates = {"behavior_learning_rate": 0.01, "behavior_weight_decay": 0.2, "behavior_warm_up": 0}
    agent = MBRCSL(random_data(), **{**options, **rates, "average_rate": 0.25})
    learner = learner_of([agent], random_data(), [0], 5, dtype=torch.float64)
    learner.run(1)
    other = UNetNoise(3, 2, (8, 12, 16)).double()
    other.load_state_dict(agent.behaviour.state_dict())
    before = {name: value.clone() for name, value in agent.average_behaviour.state_dict().items()}
    rows = learner.sources["batch"].rows(1)[0].numpy()
    noise = {name: value[0] for name, value in learner.stream.at(1).items()}
    learner.run(1)
    steps = (noise["step"][:, 0] * 2).floor()
    f = [np.cos(np.pi / 2 * (n / 2 + 0.008) / 1.008) ** 2 for n in range(3)]
    products = np.cumprod([max(f[n + 1] / f[n], 1e-3) for n in range(2)])
    left = torch.from_numpy(products[steps.long().numpy()]).unsqueeze(1)
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.2)
    data = random_data()
    actions = torch.from_numpy(data.actions[rows]).double()
    noisy = left.sqrt() * actions + (1 - left).sqrt() * noise["noise"]
    seen = torch.from_numpy(data.observations[rows]).double()
    predicted = torch.cat([plain_unet(other, noisy[i : i + 1], seen[i : i + 1], float(steps[i])) for i in range(8)])
    loss = (predicted - noise["noise"]).square().mean()
    loss.backward()
    optimizer.step()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(agent.behaviour.state_dict()[name], value, rtol=1e-8, atol=1e-10)
        averaged = agent.average_behaviour.state_dict()[name]
        torch.testing.assert_close(averaged, 0.75 * before[name] + 0.25 * value, rtol=1e-8, atol=1e-10)


def test_ten_steps_of_diffusion_keep_both_modes() -> None:
    torch.manual_seed(0)
    rows = 512
    signs = np.where(np.arange(rows) % 2 == 0, 0.8, -0.8)[:, None]
    zeros = np.zeros((rows, 1))
    data = dataset_of(zeros, signs, np.zeros(rows), zeros, 4)
    updates = {"behavior_updates": 1500, "behavior_widths": (64, 64), "diffusion_steps": 10, "model_updates": 1}
    agent = MBRCSL(data, **{**SMALL, **updates, "behavior_learning_rate": 3e-3, "average_rate": 0.01})
    learner_of([agent], data, [0], 1504, kernels=True, batch_size=128).run(1501)
    with torch.no_grad():
        drawn = agent.behave(torch.zeros(4000, 1), torch.randn(4000, 10, 1))
    assert float(drawn.abs().max()) <= 1
    assert float((drawn > 0).double().mean()) == pytest.approx(0.5, abs=0.05)
    assert float((drawn.abs() - 0.8).abs().lt(0.25).double().mean()) > 0.88


# -- the run --------------------------------------------------------------------------------------------------


def rates(settings: Adam, planned: int, at: list[int]) -> list[float]:
    optimizer = Optimizer(settings, [Network({"w": torch.zeros(1, 1)})], planned)
    found = []
    for step in at:
        optimizer.taken = step
        found.append(optimizer.learning_rate())
    return found


def test_schedules_warm_up_and_the_published_slip_never_leaves_it() -> None:
    adam = next(e for e in MBRCSL(random_data(), preset="official_schedule").updates() if "behaviour" in _trains(e))
    planned = 38_900
    assert (adam.optimizer.stride, adam.until - adam.after) == (778, planned)
    at = [0, 777, 778, 2 * 778, 49 * 778, planned - 1]
    epochs = [1, 1, 2, 3, 50, 50]
    assert rates(adam.optimizer, planned, at) == pytest.approx([1e-4 * (e - 1) / 500 for e in epochs])
    plain = Adam(2.0, schedule="cosine", warm_up=10)
    cosine = 0.5 * (1 + np.cos(np.pi * 45 / 90))
    assert rates(plain, 100, [0, 5, 10, 55, 100]) == pytest.approx([0, 1, 2, 2 * cosine, 0], abs=1e-12)
    for wrong in ({"warm_up": -1}, {"stride": 0}):
        with pytest.raises(ConfigError, match="must be >= 0 and >= 1"):
            Adam(1.0, schedule="cosine", **wrong)


def _trains(entry: Any) -> tuple[str, ...]:
    return getattr(entry, "trains", ())


@pytest.mark.parametrize("stop", [2, 6, 9, 14])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(stop: int) -> None:
    data = random_data(-1.0)

    def new() -> Learner:
        torch.manual_seed(5)
        return learner_of([Lucky(data, **SMALL)], data, [3], 18, kernels=True)

    whole, before, after = new(), new(), new()
    whole.run(18)
    before.run(stop)
    after.restore([{name: value.clone() for name, value in before.state(0).items()}], stop)
    after.run(18 - stop)
    assert int(whole.agent.accepted) >= 7  # type: ignore[arg-type]
    found, wanted = after.state(0), whole.state(0)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


class Lucky(MBRCSL):
    """Whose paths always beat the data."""

    name = "lucky_mbrcsl"

    def prepare(self, dataset: Dataset) -> Dataset:
        ready = super().prepare(dataset)
        self.threshold.fill_(-1e6)
        return ready


@pytest.mark.parametrize("best", [0.0, -0.0, 2.0])
def test_returns_in_the_model_are_not_set_against_a_best_of_nothing(best: float) -> None:
    data = random_data()
    learner = learner_of([Lucky(data, **SMALL).fresh(0)], data, [0], 9)
    learner.run(8)  # the model's updates and the clone's
    learner.buffers["threshold"].fill_(best)
    learner.buffers["accepted"].fill_(1)
    learner.buffers["actor.target_return"].fill_(5.0)
    metrics = learner.run(1)
    ratio = metrics["model_return_over_best"][0]
    assert math.isnan(ratio) if best == 0 else ratio >= 2.5


def test_stacked_seeds_equal_each_seed_alone() -> None:
    data, seeds = random_data(), [3, 8]

    def agents(chosen: list[int]) -> list[Agent]:
        return [Lucky(data, **SMALL).fresh(seed) for seed in chosen]

    together = learner_of(agents(seeds), data, seeds, 16, dtype=torch.float64)
    together.run(16)
    for position, seed in enumerate(seeds):
        alone = learner_of(agents([seed]), data, [seed], 16, dtype=torch.float64)
        alone.run(16)
        for name, value in alone.state(0).items():
            torch.testing.assert_close(together.state(position)[name], value, rtol=1e-8, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kept": 0}, ("kept", "range")),
        ({"average_rate": 0.0}, ("average_rate", "range")),
        ({"behavior_network": "cnn"}, ("behavior_network", "choice")),
        ({"model_holdout": 1.0}, ("model_holdout", "range")),
        ({"l2": -1.0}, ("l2", "range")),
        ({"history": 2}, ("history", "conflict")),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], match: tuple[str, Code]) -> None:
    with refused(*match):
        MBRCSL(random_data(), **options)
