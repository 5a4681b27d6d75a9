"""ACT: sizes, losses by hand, what is masked, what each layer learns, pictures, and how it leaves."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.core.nn.act_network import ACTNetwork, in_line, in_plane
from surefoot.core.nn.image_encoders import encoder_class, normed_places
from surefoot.core.policy.chunk_playing import played
from surefoot.core.policy.policy import Policy
from surefoot.data.arrays import from_arrays
from surefoot.data.store import store_from_dataset
from surefoot.offline import ACT
from surefoot.offline.act import masked_distance, style_divergence

SMALL: dict[str, Any] = {
    "chunk": 4, "width": 8, "heads": 2, "feed_forward": 12, "style_layers": 1, "layers": 2, "latent_dim": 3,
    "dropout": 0.0, "learning_rate": 1e-3,
}  # fmt: skip
PROBLEM = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))


def data(lengths: tuple[int, ...] = (5, 3), pictures: bool = False) -> Any:
    """Action k of the data is (k, -k) / 100: it says which row it is of."""
    count = sum(lengths)
    number = np.arange(count, dtype=np.float32)
    ends = np.isin(np.arange(count), np.cumsum(lengths) - 1)
    seen: Any = np.stack([number, number**2, np.ones(count)], 1).astype(np.float32)
    if pictures:
        rows = np.arange(36)[:, None, None] * np.ones((36, 36, 3), int)
        shade = (number[:, None, None, None] * rows * 9 % 256).astype(np.uint8)
        seen = {"one": shade, "two": shade.copy(), "state": seen}
    actions = np.stack([number, -number], 1) / 100
    return from_arrays(seen, actions.astype(np.float32), np.zeros(count, np.float32), ends & False, ends)


def learner(dataset: Any, seeds: tuple[int, ...] = (0,), batch_size: int = 6, **options: Any) -> Learner:
    agents = [ACT(dataset, **{**SMALL, **options}).fresh(seed) for seed in seeds]
    for agent in agents:
        prepared = agent.prepare(dataset)
    store = store_from_dataset(prepared, agents[0].required_columns)
    sources = agents[0].sources(Stores(prepared, store, None))
    return Learner(agents, list(seeds), sources, batch_size=batch_size, planned_steps=100, device="cpu")


def test_the_published_sizes_have_the_published_number_of_parameters() -> None:
    """51,613,582 with ResNet-18 without its last layer and norms, 11,176,512 - 9,600: for any map of 512 channels."""
    for cells in (9, 49):
        network = ACTNetwork(14 + 512 * cells, 14, 100, (512, int(cells**0.5), int(cells**0.5)))
        assert sum(p.numel() for p in network.parameters()) + 11_166_912 == 51_613_582


def test_a_layer_is_detr_s() -> None:
    """Against PyTorch's own layer with norms behind, whose places are 0."""
    network = ACTNetwork(3, 2, 4, width=8, heads=2, feed_forward=12, style_layers=1, layers=1, decoder_layers=1)
    layer = network.encoder[0]
    reference = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    parts = [getattr(layer.attention, name) for name in ("query", "key", "value")]
    with torch.no_grad():
        reference.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        reference.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        for mine, theirs in (
            (layer.attention.out, reference.self_attn.out_proj), (layer.widen, reference.linear1),
            (layer.narrow, reference.linear2),
        ):  # fmt: skip
            theirs.load_state_dict(mine.state_dict())
    tokens = torch.randn(2, 5, 8)
    found = layer(tokens, torch.zeros(1, 5, 8), [None, None], None)
    torch.testing.assert_close(found, reference(tokens), rtol=1e-5, atol=1e-6)


def test_places() -> None:
    """In line: sines of k and of k / 100 for a width of 4. In a plane: row i of H at 2 pi (i + 1) / H."""
    assert in_line(3, 4)[2].tolist() == pytest.approx([math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)])
    cell = in_plane(2, 4, 8)[1 * 4 + 0]  # row 1 of 2, column 0 of 4
    row, column = 2 * math.pi, math.pi / 2
    expected = [f(v / wave) for v in (row, column) for wave in (1, 100) for f in (math.sin, math.cos)]
    assert cell.tolist() == pytest.approx(expected, abs=1e-5)


def test_the_divergence_of_styles() -> None:
    """0 of a standard normal; 16 of 32 numbers of mean 1; of a variance of e by hand."""
    zero = torch.zeros(1, 32)
    assert style_divergence(zero, zero).item() == 0
    assert style_divergence(zero + 1, zero).item() == pytest.approx(16)
    assert style_divergence(zero, zero + 1).item() == pytest.approx(16 * (math.e - 2), rel=1e-5)


def test_padded_steps_neither_count_nor_divide() -> None:
    """Errors of 1 on 3 real steps and of 100 on 5 padded ones: 1, and not 3 / 8 of it, and not summed over actions."""
    there = torch.tensor([[1.0, 1, 0, 0], [1, 0, 0, 0]])
    predicted = torch.where(there.bool(), 1.0, 100.0).unsqueeze(-1).expand(-1, -1, 2)
    assert masked_distance(predicted, torch.zeros(2, 4, 2), there).item() == pytest.approx(1)


def test_a_style_does_not_see_padding_and_an_action_of_0_is_seen() -> None:
    network = ACTNetwork(3, 2, 4, width=8, heads=2, feed_forward=12, style_layers=2, layers=1)
    seen, actions, there = torch.randn(1, 3), torch.randn(1, 4, 2), torch.tensor([[1.0, 1, 0, 0]])
    other = actions.clone()
    other[:, 2:] = 7.0
    for one, two in zip(network.styles(seen, actions, there), network.styles(seen, other, there), strict=True):
        torch.testing.assert_close(one, two)
    actions[:, 1] = 0.0
    fewer = torch.tensor([[1.0, 0, 0, 0]])
    assert not torch.allclose(network.styles(seen, actions, there)[0], network.styles(seen, actions, fewer)[0])


def test_every_layer_of_the_decoder_learns() -> None:
    agent = ACT(PROBLEM, **SMALL, decoder_layers=3).fresh(0)
    batch = {"observations": torch.randn(5, 3), "actions": torch.randn(5, 8), "mask": torch.ones(5, 8)}
    agent.loss(batch, {"latent": torch.randn(5, 3)})[0].backward()
    for layer in agent.actor.network.decoder:
        assert all(float(p.grad.abs().sum()) > 0 for p in layer.across.value.parameters())


def test_chunks_begin_at_the_row_that_is_seen_and_end_with_its_episode() -> None:
    dataset = data()
    stores = Stores(dataset, store_from_dataset(dataset, ACT.required_columns), None)
    source: Any = ACT(dataset, **SMALL).sources(stores)[MAIN]
    batch = ACT(dataset, **SMALL).annotate(source.gather(torch.tensor([0, 3, 7])))
    assert batch["observations"][:, 0].tolist() == [0, 3, 7]
    numbers = (batch["actions"].unflatten(-1, (4, 2))[..., 0] * 100).round()
    assert [
        [int(n) for n, m in zip(*row, strict=True) if m] for row in zip(numbers, batch["mask"][:, ::2], strict=True)
    ] == [
        [0, 1, 2, 3],
        [3, 4],
        [7],
    ]


def test_the_loss_is_the_sum_of_both_parts_and_the_style_is_drawn_by_the_noise() -> None:
    agent = ACT(PROBLEM, **SMALL).fresh(0)
    batch = {"observations": torch.randn(5, 3), "actions": torch.randn(5, 8), "mask": torch.ones(5, 8)}
    noise = {"latent": torch.randn(5, 3)}
    loss, metrics = agent.loss(batch, noise)
    network, actions = agent.actor.network, batch["actions"].view(5, 4, 2)
    mean, log_variance = network.styles(batch["observations"], actions, torch.ones(5, 4))
    predicted = network(batch["observations"], mean + log_variance.exp().sqrt() * noise["latent"])
    expected = (predicted - actions).abs().mean() + 10 * style_divergence(mean, log_variance).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert set(metrics) == {"distance", "divergence"}
    acted = agent.actor.act(batch["observations"])
    torch.testing.assert_close(acted, network(batch["observations"], torch.zeros(5, 3)).flatten(1))


def test_it_learns_chunks_and_stacked_seeds_are_single_seeds() -> None:
    dataset = data((12, 12))
    both = learner(dataset, (0, 1), dropout=0.1)
    losses = [both.run(40)["loss"] for _ in range(3)]
    assert losses[-1][0] < 0.5 * losses[0][0]
    both, alone = learner(dataset, (0, 1), dropout=0.1), learner(dataset, (1,), dropout=0.1)
    both.run(5)
    alone.run(5)
    mine, theirs = (ACT(dataset, **SMALL) for _ in range(2))
    mine.load_state_dict(both.agents_parameters(1))
    theirs.load_state_dict(alone.agents_parameters(0))  # what a softmax does not change with follows rounding alone
    seen = torch.randn(7, 3)
    torch.testing.assert_close(mine.actor.act(seen), theirs.actor.act(seen), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(mine.actor.act(seen), ACT(dataset, **SMALL).fresh(1).actor.act(seen), atol=1e-3)


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() -> None:
    dataset = data((12, 12))
    whole, part, rest = (learner(dataset, dropout=0.1) for _ in range(3))
    whole.run(9)
    part.run(4)
    rest.restore([{name: value.clone() for name, value in part.state(0).items()}], 4)
    rest.run(5)
    found = rest.state(0)
    assert all(torch.equal(value, found[name]) for name, value in whole.state(0).items())


def test_pictures_are_tokens_and_their_trunk_is_trained() -> None:
    dataset = data((6, 6), pictures=True)
    made = learner(dataset, encoder="small", shift=0)
    agent: Any = made.agent
    assert agent.encoder.maps
    assert agent.actor.network.maps == agent.encoder.map_sizes == (32, 3, 3) * 2
    assert agent.features == 2 * 32 * 9 + 3
    before = {name: value.clone() for name, value in agent.encoder.state_dict().items()}
    made.run(3)
    after = made.agents_parameters(0)
    changed = [name for name, value in before.items() if not torch.equal(value, after[f"encoder.{name}"])]
    assert len(changed) == len(before)  # convolutions only: nothing is pooled or normed


def squares(rows: int, seed: int) -> tuple[Any, Any]:
    """Pictures of a square that is little brighter than what all have in common, and where it lies, in [-1, 1]."""
    drawn = np.random.default_rng(seed)
    where, pictures = drawn.uniform(0, 1, (rows, 2)), np.full((rows, 44, 44, 3), 90, np.uint8)
    for picture, (down, right) in zip(pictures, (where * 36).astype(int), strict=True):
        picture[down : down + 8, right : right + 8] += np.array([40, 0, 0], np.uint8)
    return {"one": pictures, "state": drawn.normal(size=(rows, 3)).astype(np.float32)}, (2 * where - 1).astype("f4")


def test_a_small_thing_in_a_picture_is_found_in_fifty_steps() -> None:
    """Of maps that are not normed nothing of it is learned: an error of 0.5, the mean distance from the middle."""
    seen, where = squares(600, 0)
    ends = np.ones(600, bool)
    dataset = from_arrays(seen, where, np.zeros(600, np.float32), ends & False, ends)
    sizes = {"width": 32, "heads": 4, "feed_forward": 64, "chunk": 1, "learning_rate": 1e-3}
    made = learner(dataset, batch_size=32, encoder="small", shift=0, **sizes)
    made.run(50)
    agent: Any = made.agent
    agent.load_state_dict(made.agents_parameters(0))
    other, truth = squares(200, 1)
    policy = agent.policy()
    with torch.no_grad():
        found, _ = policy.act({key: torch.as_tensor(value) for key, value in other.items()}, policy.begin(200))
    assert float((found - torch.as_tensor(truth)).abs().mean()) < 0.25


def test_maps_without_norms_of_their_own_are_normed_over_places() -> None:
    """Of the map (0, 2; 0, 2): -1, 1; a trunk with norms is left alone; one place tells nothing."""
    mapped = torch.tensor([[[[0.0, 2.0], [0.0, 2.0]]]])
    torch.testing.assert_close(normed_places(mapped), mapped - 1, rtol=1e-4, atol=1e-4)
    assert torch.equal(normed_places(torch.full((1, 1, 2, 2), 3.0)), torch.zeros(1, 1, 2, 2))
    assert encoder_class("resnet18").trunk_norms
    assert not encoder_class("small").trunk_norms
    with pytest.raises(ConfigError, match="leave the small encoder's map one place"):
        ACT(Spec.of(from_arrays(
            {"one": np.zeros((2, 20, 20, 3), np.uint8)}, np.zeros((2, 1), np.float32), np.zeros(2, np.float32),
            np.zeros(2, bool), np.ones(2, bool),
        )), **SMALL, encoder="small")  # fmt: skip


def test_a_policy_of_pictures_is_saved_and_exported(tmp_path: pathlib.Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    agent = ACT(data((6, 6), pictures=True), **{**SMALL, "layers": 1}, encoder="small").fresh(0)
    policy = agent.policy()
    policy.save(tmp_path / "policy")
    again = Policy.load(tmp_path / "policy.safetensors")
    seen = {
        "one": torch.randint(0, 255, (5, 36, 36, 3), dtype=torch.uint8),
        "two": torch.randint(0, 255, (5, 36, 36, 3), dtype=torch.uint8),
        "state": torch.randn(5, 3),
    }
    expected = policy.act(seen, policy.begin(5))[0]
    torch.testing.assert_close(again.act(seen, again.begin(5))[0], expected, rtol=0, atol=0)
    policy.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    for rows in (1, 5):
        given = {key: value[:rows].numpy() for key, value in seen.items()}
        given |= {"ended": np.ones(rows, bool)}
        given |= {f"memory.{n}": v.numpy() for n, v in policy.begin(rows).items()}
        found = session.run(["actions"], given)[0]
        assert found == pytest.approx(expected[:rows].numpy(), abs=1e-5)


def test_overlapping_chunks_are_averaged_with_the_oldest_first() -> None:
    """Of 0 (oldest) and 1 with m = 0.01: e^-0.01 / (1 + e^-0.01) = 0.49750."""
    agent = ACT(Spec(1, 1, (-1.0,), (1.0,)), **{**SMALL, "chunk": 2}).fresh(0)
    policy = played(agent.policy(), "ensemble", decay=0.01)
    inner: Any = policy.actor
    memory = policy.begin(1)
    for value in (0.0, 1.0):
        inner.inner.act = lambda seen, noise=None, value=value: torch.full((1, 2), value)
        actions, memory = policy.act(torch.zeros(1, 1), memory)
    assert actions.item() == pytest.approx(0.49750, abs=1e-5)


def test_bad_options_are_named() -> None:
    with pytest.raises(ConfigError, match=r"act\.kl_weight is -1"):
        ACT.configure(kl_weight=-1.0)
    with pytest.raises(ConfigError, match="multiple of 4"):
        ACT(PROBLEM, **{**SMALL, "width": 6})
    with pytest.raises(ConfigError, match="no 3 actions"):
        ACTNetwork.read("network", 3, 4, {"chunk": 3})
    assert "lower algo.chunk" in ACT(PROBLEM, **SMALL).notes(data())[0]
    assert ACT(PROBLEM, **SMALL).notes(data((40,))) == []
