"""AlignDiff: comparisons, the attribute model, both losses by hand, and a policy that does as it is asked."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from capture_guard import CaptureGuard
from test_mbrcsl import dataset_of, learner_of, random_data

from surefoot.core.actors.attribute_planner import AttributePlanner
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.engine.agent import Spec
from surefoot.core.losses.attributes import AttributeModel, measured, preference_loss
from surefoot.core.nn.transformer import Block
from surefoot.core.policy.policy import Policy
from surefoot.data.comparisons import compared, read_comparisons, starts
from surefoot.offline import AlignDiff
from surefoot.runs.trainers.offline import validation_losses

SMALL: dict[str, Any] = {
    "attributes": ("abs:1", "change:0"), "horizon": 3, "pairs": 50, "attribute_updates": 3, "attribute_width": 8,
    "attribute_heads": 2, "attribute_members": 2, "hidden": (8,), "diffusion_steps": 4, "sampler_steps": 2,
    "candidates": 3,
}  # fmt: skip


def test_preferences_by_hand() -> None:
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 3.0]])
    loss = preference_loss(first, second, torch.tensor([[1.0, 0.5]]))
    by_hand = -math.log(1 / (1 + math.exp(-2))) - 0.5 * (
        math.log(1 / (1 + math.exp(3))) + math.log(1 / (1 + math.exp(-3)))
    )
    assert float(loss) == pytest.approx(by_hand / 2)
    assert float(preference_loss(first, first, torch.tensor([[1.0, 0.0]]))) == pytest.approx(math.log(2))


def test_words_measure_stretches_and_others_are_refused() -> None:
    windows = torch.tensor([[[1.0, -2.0], [2.0, 2.0], [6.0, -5.0]]])
    found = measured(("mean:0", "abs:1", "change:0", "deviation:1"), windows)
    assert found[0].tolist() == pytest.approx([3.0, 3.0, 5.0, math.sqrt(74 / 9)])
    for word in ("speed:0", "abs", "abs:2", "abs:-1"):
        with pytest.raises(ConfigError, match=f"attribute '{word}': give one of mean, abs, deviation, change"):
            measured((word,), windows)


def test_comparisons_are_of_whole_stretches_and_say_which_has_more() -> None:
    segments = np.repeat([0, 1, 2], [5, 2, 4])
    rows = starts(segments, 3)
    assert rows.tolist() == [0, 1, 2, 7, 8]  # none crosses an episode's end
    observations = torch.arange(11.0).unsqueeze(-1)
    first, second, preferred = compared(rows, observations**2, 3, ("change:0",), 200)
    assert set(first[:, 0, 0].sqrt().tolist()) == {0, 1, 2, 7, 8}
    assert preferred[:, 0].tolist() == (0.5 * (torch.sign(first[:, 0, 0] - second[:, 0, 0]) + 1)).tolist()
    assert len(starts(segments, 6)) == 0
    with pytest.raises(DataError, match=r"made up: its longest episode has 3 steps, and a plan 4: lower algo\.horizon"):
        AlignDiff(random_data(), **{**SMALL, "horizon": 4}).prepare(random_data())


def test_comparisons_by_people_are_read_and_files_that_are_none_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "labels.npz"
    good: dict[str, Any] = {"first": np.ones((2, 3, 3)), "second": np.zeros((2, 3, 3)), "preferred": [[1, 0.5], [0, 1]]}

    def read(**changed: Any) -> Any:
        np.savez(path, **{name: np.array(value) for name, value in {**good, **changed}.items()})
        return read_comparisons(path, 3, 3, 2)

    assert read().preferred.tolist() == good["preferred"]
    data = random_data()
    agent = AlignDiff(data, **SMALL, labels=str(path)).fresh(0)
    learner = learner_of([agent], data, [0], 5)
    batch = learner.sources["pairs"].gather(torch.tensor([1]))
    units = batch["first"] * agent.normalizer.scale + agent.normalizer.mean
    torch.testing.assert_close(units, torch.ones(1, 3, 3))
    learner.run(5)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"preferred": [[1, 0.5], [0, 2]]}, r"preferred\[1\] is .* must be in \[0, 1\]"),
        ({"preferred": [1, 0]}, r"preferred is \(2,\), must be \('P', 2\)"),
        ({"second": np.full((2, 3, 3), np.nan)}, r"second\[0\] is not finite"),
        ({"first": np.ones((2, 4, 3))}, r"first is \(2, 4, 3\), must be \('P', 3, 3\)"),
    ]
    for changed, message in wrong:
        with pytest.raises(DataError, match=message):
            read(**changed)
    np.savez(path, first=np.array([0]))
    with pytest.raises(DataError, match=r"labels\.npz: has no array 'second'"):
        read_comparisons(path, 3, 3, 2)
    for content in (b"no archive", b"PK\x03\x04 half of one", b"\x93NUMPY"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"labels\.npz: is a damaged NPZ file"):
            read_comparisons(path, 3, 3, 2)
    with pytest.raises(DataError, match=r"none\.npz: is no \.npz file"):
        read_comparisons(tmp_path / "none.npz", 3, 3, 2)


def test_data_that_a_run_holds_out_changes_no_bounds_and_may_be_short() -> None:
    data = data_of(np.linspace(0.1, 1, 4), 6)
    agent = AlignDiff(data, **SMALL).fresh(0)
    agent.prepare(data)
    low = agent.state_low.clone()
    losses = validation_losses(agent, data_of(np.array([3.0, -3.0]), 2))
    assert torch.equal(agent.state_low, low)
    assert losses == {"noise_loss": 0.0}  # neither a comparison nor a whole plan
    assert set(validation_losses(agent, data)) == {"attribute_loss", "noise_loss"}


def test_numbers_that_never_change_have_a_place_in_plans() -> None:
    data = data_of(np.linspace(0.1, 1, 4), 6)
    constant = np.concatenate([data.observations, np.full((len(data), 1), 1e4, np.float32)], 1)
    data = dataset_of(constant, data.actions, data.rewards, constant, 6)
    agent = AlignDiff(data, **SMALL, normalization="none").fresh(0)
    learner_of([agent], data, [0], 8).run(8)  # losses are finite, or it stops
    assert bool((agent.state_high > agent.state_low).all())


def data_of(speeds: np.ndarray, length: int = 30, seed: int = 0) -> Any:
    """A point (x, v) that is driven: each episode at a speed of its own, v' = v + .3 a and x' = x + .1 v'."""
    numbers = np.random.default_rng(seed)
    x, v = np.zeros(len(speeds)), 0.5 * speeds
    rows: list[list[np.ndarray]] = [[], [], []]
    for _ in range(length):
        action = np.clip(2 * (speeds - v) + 0.2 * numbers.normal(size=len(v)), -1, 1)
        rows[0].append(np.stack([x, v], -1))
        v = v + 0.3 * action
        x = x + 0.1 * v
        rows[1].append(action[:, None])
        rows[2].append(np.stack([x, v], -1))
    flat = [np.stack(part, 1).reshape(-1, part[0].shape[-1]) for part in rows]
    return dataset_of(flat[0], flat[1], np.zeros(len(flat[0])), flat[2], length)


def test_the_loss_of_plans_by_hand() -> None:
    data = data_of(np.linspace(0.1, 1, 4), 6)
    agent: Any = AlignDiff(data, **SMALL, action_weight=10.0).fresh(0)
    agent.prepare(data)
    agent.double()
    source = torch.Generator().manual_seed(0)
    batch = {"observations": torch.randn(2, 3, 2, generator=source).double(), "mask": torch.ones(2, 3).double(),
             "actions": torch.rand(2, 3, 1, generator=source).double()}  # fmt: skip
    batch["mask"][1, 2] = 0  # an end cuts it
    noise = {"noise": torch.randn(2, 5, generator=source).double(), "step": torch.tensor([[0.6], [0.1]]).double(),
             "asked": torch.tensor([[0.9, 0.1], [0.1, 0.1]]).double()}  # fmt: skip
    loss, _ = agent.noise_loss(batch, noise)
    scores = agent.attribute_model(batch["observations"][:1]).mean(0)[0]
    strength = (scores + 1) / 2  # bounds are -1 and 1 until they are measured
    low, high = agent.state_low, agent.state_high
    ahead = [2 * (batch["observations"][0, k] - low) / (high - low) - 1 for k in (1, 2)]
    plan = torch.cat([batch["actions"][0, 0], *ahead])
    kept = math.prod(agent.noise_schedule.alphas[:3])  # u = .6 of 4 steps is step 2
    noisy = math.sqrt(kept) * plan + math.sqrt(1 - kept) * noise["noise"][0]
    given = torch.cat([batch["observations"][0, 0], torch.tensor([0.0, 1.0]) * strength, torch.tensor([0.0, 1.0])])
    predicted = agent.noise_network(noisy[None], given[None], torch.tensor([2.0]).double())[0]
    errors = (predicted - noise["noise"][0]).square()
    assert float(loss.detach()) == pytest.approx(float((10 * errors[0] + errors[1:].sum()).detach() / 5), rel=1e-9)


def test_the_published_attribute_model_has_the_parameters_that_its_sizes_give() -> None:
    observations, attributes, width, length = 17, 2, 128, 32  # walker
    agent = AlignDiff(Spec(observations, 6, (-1.0,) * 6, (1.0,) * 6), preset="published", attributes=("abs:0", "abs:1"))
    block = 12 * width**2 + 13 * width  # attention 4 W^2 + 4 W, the hidden layer 8 W^2 + 5 W, two norms 4 W
    member = (observations + 1) * width + length * width + width + 2 * block + attributes * width
    assert block == 198_272
    assert sum(value.numel() for value in agent.attribute_model.parameters()) == 3 * member == 1_209_984
    noise = 18 * 384**2 + 15 * 384  # of a block: attention 4 W^2 + 4 W, hidden layer 8 W^2 + 5 W, what norms are given
    known, ends = observations + 2 * attributes, 2 * (observations + 6) * 384 + 2 * 384 + observations + 6
    told = 257 * 384 + (known + 1) * 384 + 2 * (384**2 + 384) + 2 * (384**2 + 384)  # step, condition, last norm
    assert sum(value.numel() for value in agent.noise_network.parameters()) == 12 * noise + ends + told
    assert (agent.config.candidates, agent.config.sampler_steps, agent.config.guidance) == (64, 5, 1.5)


@pytest.mark.parametrize("heads", [1, 4])
def test_the_readout_token_alone_is_what_the_whole_block_gives_it(heads: int) -> None:
    torch.manual_seed(1)
    block = Block(8, heads).double()
    torch.nn.init.normal_(block.attention.bias)
    tokens = torch.randn(5, 7, 8, dtype=torch.float64, requires_grad=True)
    whole = block(tokens, tokens.new_zeros(1, 1, 1, 1), None)[:, -1:]
    torch.testing.assert_close(block.of_last(tokens), whole)
    (expected,), (found,) = (torch.autograd.grad(one.square().sum(), tokens) for one in (whole, block.of_last(tokens)))
    torch.testing.assert_close(found, expected)


class Known(AttributeModel):
    """Score: the mean of the second number."""

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        return windows[..., 1].mean(-1).reshape(1, -1, 1)


class Free(torch.nn.Module):
    """A network that sees the noise of plans that are 0 where nothing is asked, and .5 where it is."""

    def forward(self, x: torch.Tensor, given: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        data = 0.5 * given[:, -1:]
        kept = torch.tensor(0.25)
        return (x - kept.sqrt() * data) / (1 - kept).sqrt()


def test_what_is_asked_for_is_put_on_the_device_without_a_copy() -> None:
    made = AlignDiff(Spec(3, 2, (-1.0, -1.0), (1.0, 1.0)), attributes=("abs:0", "abs:1"), wanted=(0.25, 0.5))
    assert made.actor.wanted.tolist() == [0.25, 0.5]  # type: ignore[attr-defined]
    made.to("meta")
    with CaptureGuard():
        assert made.actor.wanted.shape == (2,)  # type: ignore[attr-defined]


def test_guidance_goes_beyond_and_the_nearest_plan_acts() -> None:
    from surefoot.core.actors.diffusion import Schedule

    options = {"horizon": 3, "attribute_width": 8, "attribute_layers": 1, "attribute_heads": 2, "attribute_members": 1,
               "hidden": (8,), "sampler_steps": 1, "guidance": 1.5, "candidates": 4}  # fmt: skip
    bounds = {"strength_low": torch.zeros(1), "strength_high": torch.ones(1),
              "state_low": -2 * torch.ones(2), "state_high": 2 * torch.ones(2)}  # fmt: skip
    network: Any = Free()
    made = AttributePlanner(
        network, Known(2, 3, 1, 8, 1, 2, 1), Schedule((0.25,)), 1, bounds, torch.tensor([0.7]), options
    )
    actions, states = made.plans(torch.zeros(3, 2), torch.randn(3, 5))
    assert actions.flatten().tolist() == pytest.approx([0.75] * 3, abs=1e-6)  # 1.5 x .5 - .5 x 0
    assert states[:, 0].abs().max() == 0
    assert states[:, 1:].flatten().tolist() == pytest.approx([1.5] * 12, abs=1e-5)
    made.asked.zero_()
    assert made.plans(torch.zeros(1, 2), torch.randn(1, 5))[0].abs().max() < 1e-6
    made.asked.fill_(1)
    drawn = torch.tensor([0.1, 0.9, 0.66, 0.5])
    made.plans = lambda seen, noise: (drawn.unsqueeze(-1), drawn.reshape(4, 1, 1).expand(4, 3, 2))  # type: ignore[method-assign]
    assert made.act(torch.zeros(1, 2), torch.zeros(1, 20)).item() == pytest.approx(0.66)
    made.asked.zero_()
    assert made.act(torch.zeros(1, 2), torch.zeros(1, 20)).item() == pytest.approx(0.1)  # all are as near


@pytest.mark.parametrize("network", ["mlp", "transformer"])
def test_the_policy_follows_the_strength_that_is_asked_for_and_loads_again(network: str, tmp_path: Any) -> None:
    data = data_of(np.random.default_rng(3).uniform(0, 1, 150))
    options = {**SMALL, "attributes": ("abs:1",), "horizon": 6, "pairs": 400, "attribute_updates": 100,
               "attribute_width": 16, "hidden": (64, 64), "learning_rate": 2e-3, "average_rate": 0.02,
               "attribute_learning_rate": 3e-3, "diffusion_steps": 10, "sampler_steps": 5,
               "candidates": 8, "wanted": (0.5,), "network": network, "width": 32, "layers": 1,
               "heads": 2}  # fmt: skip
    agent = AlignDiff(data, **options).fresh(0)
    learner = learner_of([agent], data, [0], 500, batch_size=64)
    report = learner.run(100)
    assert report["comparisons_right"][0] > 0.85
    learner.run(400)
    policy = learner.agent.policy()
    policy.save(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors")
    asked = torch.linspace(0.1, 0.9, 5)
    reached = []
    for strength in asked:
        again.actor.wanted.fill_(float(strength))  # type: ignore[operator, union-attr]
        state, memory = torch.zeros(16, 2) + torch.tensor([0.0, 0.4]), again.begin(16, seed=1)
        speeds = []
        for _ in range(15):
            action, memory = again.act(state, memory)
            v = state[:, 1:] + 0.3 * action
            state = torch.cat([state[:, :1] + 0.1 * v, v], -1)
            speeds.append(v.abs().mean())
        reached.append(float(torch.stack(speeds[5:]).mean()))
    ranks = np.argsort(np.argsort(reached))
    correlation = float(np.corrcoef(ranks, np.arange(5))[0, 1])
    assert correlation >= 0.9, reached
    assert reached[-1] - reached[0] > 0.3, reached


def test_settings_out_of_range_are_named() -> None:
    wrong: list[dict[str, Any]] = [{"attributes": ()}, {"wanted": (0.1, 0.2)}, {"horizon": 1}, {"sampler_steps": 21}]
    for options in wrong:
        with pytest.raises(ConfigError, match=rf"aligndiff\.{next(iter(options))} is"):
            AlignDiff.configure(**options)
