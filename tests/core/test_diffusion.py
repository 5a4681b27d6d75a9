"""Diffusion over actions: the schedule's numbers, what the sampler makes of exact noise, and the policy as a file."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from diffusion_heads import ROWS, VP, actor, exact
from torch import Tensor

from surefoot.core.actors.diffusion import (
    DiffusionActor,
    Schedule,
    ancestral,
)
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.native import kernels
from surefoot.core.nn.networks import Critic
from surefoot.core.nn.noise_networks import (
    FourierFeatures,
    NoiseNetwork,
    PlainNoise,
    ResidualBlock,
    ResidualNoise,
    lecun_normal,
)
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy


def test_the_schedule_has_the_published_numbers() -> None:
    assert VP.alphas == pytest.approx([0.80413, 0.54118, 0.36422, 0.24512, 0.16497], abs=1e-5)
    assert VP.betas == pytest.approx([0.19587, 0.45882, 0.63578, 0.75488, 0.83503], abs=1e-5)
    assert VP.products == pytest.approx([0.804125, 0.435178, 0.158500, 0.038852, 0.006409], abs=1e-6)


def test_steps_are_equally_likely_and_every_noisy_action_has_the_variance_of_its_step() -> None:
    uniform = torch.arange(0, 1, 1 / 1000)
    steps = VP.step_of(uniform)
    assert steps.unique(return_counts=True)[1].tolist() == [200] * 5
    assert steps[[0, 199, 200, 999]].tolist() == [0, 0, 1, 4]
    actions, noise = torch.full((1000, 2), 0.5), torch.full((1000, 2), -2.0)
    for step, product in enumerate(VP.products):
        expected = math.sqrt(product) * 0.5 - 2 * math.sqrt(1 - product)
        torch.testing.assert_close(VP.noisy(actions, noise, steps)[steps == step], torch.full((200, 2), expected))


@pytest.mark.parametrize(
    ("mean", "deviation", "limit", "found"),
    [
        (0.3, 0.2, None, (0.300, 0.114)),
        (0.3, 0.2, 1.0, (0.291, 0.093)),
        (0.0, 0.5, None, (0.000, 0.443)),
        (0.0, 0.5, 1.0, (0.000, 0.353)),
        (-0.6, 0.1, None, (-0.600, 0.032)),
        (-0.6, 0.1, 1.0, (-0.594, 0.024)),
    ],
)
def test_the_sampler_with_exact_noise_gives_the_reference_mean_and_deviation(
    mean: float, deviation: float, limit: float | None, found: tuple[float, float]
) -> None:
    drawn = ancestral(exact(mean, deviation), torch.randn(ROWS, 5, 1), VP, limit)
    assert float(drawn.mean()) == pytest.approx(found[0], abs=0.005)
    assert float(drawn.std()) == pytest.approx(found[1], abs=0.004)


def two_points(weight: float) -> Callable[[Tensor, int], Tensor]:
    """Exact noise of data at -1/2 and +1/2, of which the second counts `weight` and the first 1 - weight."""

    def predict(x: Tensor, step: int) -> Tensor:
        product = VP.products[step]
        places = torch.tensor([-0.5, 0.5])
        logits = (
            -((x - math.sqrt(product) * places) ** 2) / (2 * (1 - product)) + torch.tensor([1 - weight, weight]).log()
        )
        mean = (logits.softmax(-1) * places).sum(-1, keepdim=True)
        return (x - math.sqrt(product) * mean) / math.sqrt(1 - product)

    return predict


@pytest.mark.parametrize(("weight", "share"), [(0.1, 0.126), (0.3, 0.315), (0.5, 0.5), (0.8, 0.778), (0.0, 0.0)])
def test_five_steps_draw_the_share_of_a_mode_towards_a_half_but_a_weight_of_0_removes_it(
    weight: float, share: float
) -> None:
    drawn = ancestral(two_points(weight), torch.randn(ROWS, 5, 1), VP)
    found = float((drawn > 0).float().mean())
    assert found == (0.0 if weight == 0 else pytest.approx(share, abs=0.005))


def test_the_sampler_by_hand() -> None:
    """Two steps of a schedule of round numbers, with noise predicted as twice the action."""
    schedule = Schedule((0.64, 0.25))  # abar 0.64 and 0.16
    noise = torch.tensor([[[0.8], [-0.5]]])
    first = (0.8 - 0.75 / math.sqrt(0.84) * 1.6) / 0.5 + math.sqrt(0.75) * -0.5
    first = max(-1.0, min(1.0, first))
    last = (first - 0.36 / 0.6 * 2 * first) / 0.8
    drawn = ancestral(lambda x, step: 2 * x, noise, schedule)
    assert drawn.item() == pytest.approx(max(-1.0, min(1.0, last)), abs=1e-6)
    smaller = ancestral(lambda x, step: 2 * x, noise, schedule, limit=None).item()
    assert abs(smaller - drawn.item()) > 1e-3  # clipping did something


def train(network: NoiseNetwork, actions: Tensor, weights: Tensor, steps: int = 700) -> None:
    """Weighted denoising, as the algorithms do it, of one-dimensional actions without observation."""
    adam = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(actions), (256,))
        noise, uniform = torch.randn(256, 1), torch.rand(256)
        t = VP.step_of(uniform)
        predicted = network(VP.noisy(actions[rows], noise, t), torch.zeros(256, 1), t)
        loss = (weights[rows] * (predicted - noise).square().sum(-1)).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()


def test_a_trained_network_draws_the_modes_as_exact_noise_does_and_never_one_of_weight_0() -> None:
    actions = torch.tensor([-0.5, 0.5]).repeat(200).unsqueeze(1)
    for weight, share in ((0.8, 0.778), (0.0, 0.0)):
        network = PlainNoise(1, 1, (64, 64))
        train(network, actions, torch.tensor([1 - weight, weight]).repeat(200))
        actor = DiffusionActor(network, VP, 1)
        with torch.no_grad():
            drawn = actor.act(torch.zeros(20_000, 1), torch.randn(20_000, actor.noise_dim))
        assert float((drawn > 0).float().mean()) == pytest.approx(share, abs=0.05 if weight else 1e-3)


def test_fourier_features_are_cosines_and_sines_of_whole_turns() -> None:
    features = FourierFeatures(2)
    with torch.no_grad():
        features.frequencies.copy_(torch.tensor([0.25, 0.5]))
    torch.testing.assert_close(
        features(torch.tensor([0.0, 1.0])), torch.tensor([[1.0, 1.0, 0, 0], [0.0, -1.0, 1.0, 0]]), atol=1e-6, rtol=0
    )


def test_the_residual_network_is_the_one_of_the_paper_step_by_step() -> None:
    network = ResidualNoise(3, 2, width=8, blocks=2, frequencies=4, time_hidden=6).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tensors = network.state_dict()
    actions, observations = torch.randn(5, 2).double(), torch.randn(5, 3).double()
    steps, masks = torch.tensor([0.0, 1, 4, 2, 3]).double(), (torch.rand(5, 16) < 0.9).double() / 0.9

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def mish(x: Tensor) -> Tensor:
        return x * torch.tanh(torch.log(1 + torch.exp(x)))

    angles = 2 * math.pi * steps[:, None] * tensors["time.frequencies"]
    time = linear("embed.1", mish(linear("embed.0", torch.cat([angles.cos(), angles.sin()], 1))))
    x = linear("first", torch.cat([actions, observations, time], 1))
    for block in range(2):
        dropped = x * masks[:, 8 * block : 8 * block + 8]
        middle, spread = dropped.mean(1, keepdim=True), dropped.var(1, keepdim=True, unbiased=False)
        normal = (dropped - middle) / (spread + 1e-6).sqrt()
        normal = normal * tensors[f"stack.{block}.norm.weight"] + tensors[f"stack.{block}.norm.bias"]
        x = x + linear(f"stack.{block}.down", mish(linear(f"stack.{block}.up", normal)))
    expected = linear("last", mish(x))
    torch.testing.assert_close(network(actions, observations, steps, masks), expected, rtol=1e-12, atol=1e-12)
    without = network(actions, observations, steps)
    assert (without - expected).abs().max() > 1e-3  # no masks, no dropout
    one = network(actions, observations, steps[2:3])  # a step for all rows
    torch.testing.assert_close(one, network(actions, observations, steps[2].expand(5)))


def test_the_layer_norms_have_the_epsilon_of_flax() -> None:
    """On rows that hardly vary torch's own 1e-5 gives clearly other numbers."""
    block, row = ResidualBlock(4), 1e-3 * torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    assert block.norm(row).abs()[0, 0].item() == pytest.approx(1e-3 / math.sqrt(1e-6 + 1e-6), rel=1e-4)
    slipped = torch.nn.LayerNorm(4)(row).abs()[0, 0].item()
    assert slipped == pytest.approx(1e-3 / math.sqrt(1e-6 + 1e-5), rel=1e-4)


def test_block_layers_start_as_cut_off_normals_of_variance_one_over_inputs() -> None:
    weight = torch.empty(400, 500)
    lecun_normal(weight)
    assert float(weight.std()) == pytest.approx(1 / math.sqrt(500), rel=0.01)
    assert float(weight.abs().max()) <= 2 / math.sqrt(500) / 0.8796 + 1e-6


@pytest.mark.parametrize("prefer", ["lowest", "highest"])
def test_the_action_taken_is_the_one_that_the_critics_like_best(prefer: str) -> None:
    tested, seen = actor("mlp", 6, prefer), torch.randn(50, 3)
    noise = torch.randn(50, tested.noise_dim)
    assert tested.noise_dim == 6 * 5 * 2
    taken = tested.act(seen, noise)
    assert tested.critic is not None
    for row in range(50):
        singles = []
        for sample in noise[row].view(6, 1, 5, 2):  # each sample alone
            one = DiffusionActor(tested.network, VP, 2)
            singles.append(one.act(seen[row : row + 1], sample.reshape(1, -1))[0])
        candidates = torch.stack(singles)
        values = tested.critic(torch.cat([seen[row].expand(6, -1), candidates], 1))
        best = values.max(0).values.argmin() if prefer == "lowest" else values.min(0).values.argmax()
        torch.testing.assert_close(taken[row], candidates[best])


def policy(kind: str) -> Policy:
    normalizer = Normalizer(3)
    normalizer.mean.copy_(torch.tensor([1.0, -20.0, 300.0]))
    normalizer.scale.copy_(torch.tensor([0.5, 3.0, 100.0]))
    made = actor(kind)
    if kind == "mlp":  # with all that an actor can have
        reward, options = Critic(3, 2, (8,), 2), {"samples": 4, "prefer": "best", "reserve": 0.25}
        made = DiffusionActor(made.network, VP, 2, made.critic, reward_critic=reward, **options)  # type: ignore[arg-type]
    return Policy.of(made, normalizer, torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 10.0]))


def seen_by(rows: int) -> Tensor:
    return torch.randn(rows, 3) * torch.tensor([0.5, 3.0, 100.0]) + torch.tensor([1.0, -20.0, 300.0])


@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_the_policy_draws_its_own_noise_by_seed_and_call(kind: str) -> None:
    tested, rows = policy(kind), seen_by(2000)
    first, memory = tested.act(rows, tested.begin(2000))
    second, _ = tested.act(rows, memory)
    assert (first - second).abs().max() > 0.1
    assert torch.equal(tested.act(rows, tested.begin(2000))[0], first)
    assert (tested.act(rows, tested.begin(2000, seed=1))[0] - first).abs().max() > 0.1
    tested.reset(0)
    actions = np.stack([tested.select_action(rows[0].numpy()) for _ in range(100)])
    assert actions.shape == (100, 2)
    assert len(np.unique(actions, axis=0)) > 5  # every call draws anew; some are clipped to the same corner
    assert ((first >= torch.tensor([-2.0, 0.0])) & (first <= torch.tensor([2.0, 10.0]))).all()


def test_noise_that_is_given_decides_alone_in_whatever_parts_it_is_worked_on() -> None:
    tested, rows = policy("mlp"), seen_by(1500)
    noise = torch.randn(1500, tested.noise_dim)
    whole, _ = tested.act(rows, tested.begin(1500), noise)
    assert torch.equal(tested.act(rows, {}, noise)[0], whole)
    torch.testing.assert_close(whole, tested(rows, noise), rtol=1e-5, atol=1e-5)  # in one part
    with pytest.raises(ConfigError, match="no action without noise"):
        tested(rows)


@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_a_saved_diffusion_policy_acts_the_same_bit_for_bit(kind: str, tmp_path: pathlib.Path) -> None:
    saved, rows = policy(kind), seen_by(30)
    saved.save(tmp_path / "p")
    loaded = Policy.load(tmp_path / "p")
    assert torch.equal(loaded.act(rows, loaded.begin(30))[0], saved.act(rows, saved.begin(30))[0])
    assert loaded.description() == saved.description() == json.loads((tmp_path / "p.json").read_text())


@pytest.mark.parametrize(("kind", "sampling"), [("mlp", False), ("residual", True)])
def test_exported_diffusion_policies_take_noise_and_give_the_same_actions(
    kind: str, sampling: bool, tmp_path: pathlib.Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    tested = policy(kind)
    tested.export(tmp_path / "p.onnx", sampling=sampling)
    tested.export(tmp_path / "p.pt2", sampling=sampling)
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"), providers=["CPUExecutionProvider"])
    program = torch.export.load(tmp_path / "p.pt2").module()
    assert [i.name for i in session.get_inputs()] == ["observations", "noise"]
    for batch in (1, 7):
        rows, noise = seen_by(batch), torch.randn(batch, tested.noise_dim)
        expected = tested(rows, noise)
        (found,) = session.run(None, {"observations": rows.numpy(), "noise": noise.numpy()})
        assert found.shape == (batch, 2)
        assert np.abs(found - expected.numpy()).max() < 1e-5
        torch.testing.assert_close(program(rows, noise), expected, rtol=0, atol=1e-5)


def test_a_density_is_refused_and_the_head_that_has_one_is_named() -> None:
    head = DiffusionActor(PlainNoise(2, 1), Schedule.vp(2, 0.1, 10.0), 1)
    with pytest.raises(TypeError, match=r"DenoisingActor \(surefoot.core.actors.denoising_chain\)"):
        head.log_density(torch.zeros(3, 2), torch.zeros(3, 1))


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="critic to choose"):
        DiffusionActor(PlainNoise(3, 2), VP, 2, None, 4)
    with pytest.raises(ConfigError, match="did you mean 'lowest'"):
        actor("mlp", prefer="lowes")
    with pytest.raises(ConfigError, match="best needs that critic"):
        actor("mlp", prefer="best")
    with pytest.raises(ConfigError, match="reserve is -1"):
        DiffusionActor(PlainNoise(3, 2), VP, 2, Critic(3, 2, (8,), 2), 4, reserve=-1)
    with pytest.raises(ConfigError, match="0 steps"):
        Schedule.vp(0)
    with pytest.raises(ConfigError, match="did you mean 'residual'"):
        DiffusionActor.from_description(3, 2, {**actor("mlp").description(), "network": "residul"})


@pytest.mark.parametrize("network", ["mlp", "residual"])
def test_networks_over_the_kernels_give_the_gradients_of_plain_ones(network: str) -> None:
    made: NoiseNetwork = PlainNoise(3, 2, (32, 32)) if network == "mlp" else ResidualNoise(3, 2, 32, 2, 8, 16)
    given = (torch.randn(40, 2), torch.randn(40, 3), torch.randint(5, (40,)).float())
    masks = (torch.rand(40, made.dropped) < 0.9).float() / 0.9 if made.dropped else None
    found = []
    for slots in (None, kernels.Slots()):
        with kernels.use(slots):
            out = made(*given, masks)
            found.append([out, *torch.autograd.grad(out.square().sum(), list(made.parameters()))])
    for plain, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=2e-4, atol=2e-5)
