"""Policies act in the environment's units, and come back from disk as they were."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import time
from typing import Any

import numpy as np
import pytest
import torch
from policies import KINDS, observations, policy

from surefoot.core.actors.heads import ACTORS, DeterministicActor, TanhGaussianActor
from surefoot.core.base import checkpoint
from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import CheckpointError, ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import Array
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy

CONTINUOUS = [kind for kind in KINDS if not ACTORS[kind].discrete]


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_actions_are_normalised_observations_through_the_actor_scaled_to_the_bounds(kind: str) -> None:
    tested, rows = policy(kind), observations(20)
    normal = (rows - torch.tensor([1.0, -20.0, 300.0])) / torch.tensor([0.5, 3.0, 100.0])
    inner = tested.actor.act(normal)
    expected = torch.stack([2 * inner[:, 0], 5 + 5 * inner[:, 1]], 1)  # [-2, 2] and [0, 10]
    torch.testing.assert_close(tested(rows), expected)


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_actions_never_leave_the_bounds_whatever_the_noise(kind: str) -> None:
    actions = policy(kind)(observations(200) * 10, torch.randn(200, 2) * 10)
    assert (actions[:, 0].abs() <= 2).all()
    assert ((actions[:, 1] >= 0) & (actions[:, 1] <= 10)).all()


def test_a_policy_of_choices_gives_the_number_of_the_likeliest() -> None:
    tested, rows = policy("categorical"), observations(20)
    normal = (rows - torch.tensor([1.0, -20.0, 300.0])) / torch.tensor([0.5, 3.0, 100.0])
    choices = tested(rows)
    assert choices.dtype == torch.int64
    assert torch.equal(choices, tested.actor(normal).argmax(-1))
    assert set(choices.tolist()) == {0, 1}


def test_an_action_at_the_middle_by_hand() -> None:
    actor = DeterministicActor(1, 1, (1,))
    with torch.no_grad():
        actor.mlp.weights[0].fill_(1)
        actor.mlp.weights[1].fill_(0.5 * np.log(3))  # tanh(log(3) / 2) = 1/2
        for bias in actor.mlp.biases:
            bias.zero_()
    normalizer = Normalizer(1)
    normalizer.mean.fill_(10)
    normalizer.scale.fill_(2)
    tested = Policy.of(actor, normalizer, torch.tensor([-1.0]), torch.tensor([3.0]))
    assert tested.select_action(np.array([12.0])).tolist() == [pytest.approx(2.0)]  # 1 + 2 * 1/2
    assert tested.select_action(np.array([10.0])).tolist() == [pytest.approx(1.0)]


def test_select_action_is_one_row_of_act_as_float32() -> None:
    tested, rows = policy("gaussian"), observations(5)
    tested.reset()
    for row in rows:
        for given in (row.numpy(), row.numpy().astype(np.float64), row.tolist()):
            action = tested.select_action(given)
            assert action.shape == (2,)
            assert action.dtype == np.float32
            np.testing.assert_allclose(action, tested(row.unsqueeze(0))[0].numpy(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(2,), (4,), (1, 3), (), (0,)])
def test_an_observation_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"trained on \(3,\)"):
        policy("deterministic").select_action(np.zeros(shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_an_observation_that_is_not_finite_is_refused_by_index(value: float) -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"observation\[1\] is .*check that sensor"):
        policy("deterministic").select_action(np.array([0.0, value, 0.0]))


def test_a_sampled_policy_draws_by_the_seed_what_its_head_makes_of_noise(tmp_path: pathlib.Path) -> None:
    def drawn(count: int, call: int) -> torch.Tensor:
        return CounterGenerator([3], "policy", call, torch.device("cpu")).standard_normal((count, 2))[0]

    made, rows = policy("gaussian"), observations(5)
    drawing = made.sampled()
    actions, memory = drawing.act(rows, drawing.begin(5, seed=3))
    later, _ = drawing.act(rows, memory)
    noise = [drawn(5, n) for n in (0, 1)]
    torch.testing.assert_close(actions, made(rows, noise[0]))
    torch.testing.assert_close(later, made(rows, noise[1]))
    drawing.reset(3)
    alone = [drawing.select_action(rows[0].numpy()) for _ in range(2)]
    again = made(rows[:1].expand(2, -1), torch.cat([drawn(1, n) for n in (0, 1)]))
    torch.testing.assert_close(torch.from_numpy(np.stack(alone)), again)
    torch.testing.assert_close(made.act(rows, made.begin(5))[0], made(rows))  # the one that it was made of does not
    drawing.save(tmp_path / "kept")
    torch.testing.assert_close(Policy.load(tmp_path / "kept")(rows), made(rows))
    with pytest.raises(ConfigError, match="is deterministic"):
        policy("deterministic").sampled()


def test_a_policy_is_a_copy_that_training_does_not_change() -> None:
    actor = DeterministicActor(3, 2, (8,))
    taken = Policy.of(actor, Normalizer(3), torch.full((2,), -1.0), torch.ones(2))
    rows = torch.randn(4, 3)
    before = taken(rows)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(1)
    assert torch.equal(taken(rows), before)
    assert not any(parameter.requires_grad for parameter in taken.parameters())
    assert all(parameter.requires_grad for parameter in actor.parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["p", "p.safetensors", "p.json", "policy.v1"])
def test_a_saved_policy_acts_the_same_bit_for_bit(kind: str, name: str, tmp_path: pathlib.Path) -> None:
    saved, rows, noise = policy(kind), observations(30), torch.randn(30, 2)
    saved.save(tmp_path / name)
    stem = "policy.v1" if name == "policy.v1" else "p"
    assert sorted(os.listdir(tmp_path)) == [f"{stem}.json", f"{stem}.safetensors"]
    loaded = Policy.load(tmp_path / name)
    assert torch.equal(loaded(rows), saved(rows))
    assert torch.equal(loaded(rows, noise), saved(rows, noise))
    assert loaded.description() == saved.description() == json.loads((tmp_path / f"{stem}.json").read_text())


def test_names_of_what_a_policy_reads_and_gives_go_into_its_files(tmp_path: pathlib.Path) -> None:
    one = policy("deterministic")
    named = [f"q{k}" for k in range(one.observation_dim)]
    one.named(named, ["too few"] if one.action_dim > 1 else []).save(tmp_path / "p")
    told = json.loads((tmp_path / "p.json").read_text())
    assert (told["observation_names"], told.get("action_names")) == (named, None)
    assert Policy.load(tmp_path / "p").names == {"observation_names": named}
    path = written(tmp_path, {"observation_names": ["q0"]})
    with pytest.raises(CheckpointError, match="its observation_names is"):
        Policy.load(path)


def test_a_policy_that_is_saved_again_while_it_is_read_is_read_whole(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors are new already, and its description not yet."""
    stem = tmp_path / "p"
    new = policy("deterministic")
    new.save(stem)
    tensors, description = (stem.with_suffix(ending).read_bytes() for ending in (".safetensors", ".json"))
    policy("gaussian").save(stem)
    stem.with_suffix(".safetensors").write_bytes(tensors)
    monkeypatch.setattr(time, "sleep", lambda seconds: stem.with_suffix(".json").write_bytes(description))
    assert Policy.load(stem).description() == new.description()


def test_a_damaged_or_missing_half_of_a_policy_is_refused(tmp_path: pathlib.Path) -> None:
    stem = tmp_path / "p"
    policy("gaussian").save(stem)
    description, tensors = tmp_path / "p.json", tmp_path / "p.safetensors"
    text, data = description.read_text(), tensors.read_bytes()
    description.write_text(text.replace("gaussian", "deterministic"))
    with pytest.raises(CheckpointError, match="does not describe"):
        Policy.load(stem)
    description.write_text(text[:-5])
    with pytest.raises(CheckpointError, match="not readable as JSON"):
        Policy.load(stem)
    description.unlink()
    with pytest.raises(CheckpointError, match=r"p\.json: there is no such file"):
        Policy.load(stem)
    description.write_text(text)
    tensors.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        Policy.load(stem)
    tensors.unlink()
    with pytest.raises(CheckpointError, match=r"p\.safetensors: there is no such file, and .*p is no run folder"):
        Policy.load(stem)


def written(path: pathlib.Path, change: dict, tensors: dict[str, torch.Tensor] | None = None) -> pathlib.Path:
    """A policy's two files with a changed description or changed tensors, under a checksum that fits."""
    tested = policy("gaussian")
    described = {**tested.description(), **change}
    checkpoint.save(path / "p.safetensors", {**tested.state_dict(), **(tensors or {})}, {"kind": "policy", **described})
    (path / "p.json").write_text(json.dumps(described))
    return path / "p"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"actor": "flux"}, "no actor of kind 'flux'"),
        ({"hidden": [4]}, r"biases.0' is torch.float32 of \(16,\), and torch.float32 of \(4,\) by its description"),
        ({"hidden": "x"}, "hidden is 'x', must be a list"),
        ({"hidden": [-1, 8]}, r"hidden\[0\] is -1, must be a whole number from 1"),
        ({"hidden": [1 << 20] * 64}, "by its description"),  # 256 TiB
        ({"hidden": [4] * 65}, "hidden has 65 entries"),
        ({"observation_dim": 7}, "by its description"),
        ({"observation_dim": 3.0}, "observation_dim is 3.0, must be a whole number"),
        ({"action_low": [0.0]}, "by its description"),
        ({"action_low": [-2.0, 1.0]}, r"its action_low is \[-2.0, 1.0\].*reads it as \[-2.0, 0.0\]"),
        ({"activation": "tanh"}, "its activation is 'tanh', and a 'gaussian' policy reads it as 'relu'"),
        ({"activation": "sinus"}, "activation is 'sinus', must be one of relu"),
        ({"dropout": 0.1}, "its dropout is 0.1, and a 'gaussian' policy knows no such option"),
        ({"log_std_range": [-5.0, None]}, r"log_std_range\[1\] is None, must be a finite number"),
        ({"observation_limit": "5"}, "observation_limit is '5', must be a finite number"),
        ({"format": "surefoot-policy-9"}, "is written as 'surefoot-policy-9', and this .* reads 'surefoot-policy-1'"),
        ({"actor": "gaus\x1b[2Jsian"}, r"actor is 'gaus\\x1b\[2Jsian', must be a text without control characters"),
    ],
)
def test_a_description_that_does_not_fit_its_tensors_is_refused(
    change: dict, sentence: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(CheckpointError, match=sentence) as caught:
        Policy.load(written(tmp_path, change))
    assert "p.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("actor.mlp.weights.1", float("nan"), r"'actor.mlp.weights.1' holds nan at \[0, 0\] .*must be finite"),
        ("actor.log_std", float("-inf"), r"'actor.log_std' holds -inf at \[0\]"),
        ("action_high", float("nan"), "'action_high' holds nan"),
        ("action_high", -2.0, r"'action_low' holds -2 at \[0\].*must be below action_high"),
        ("normalizer.scale", 0.0, "'normalizer.scale' holds 0 .*must be above 0"),
        ("normalizer.scale", -1.0, "'normalizer.scale' holds -1 .*must be above 0"),
        ("normalizer.mean", float("inf"), "'normalizer.mean' holds inf"),
    ],
)
def test_a_number_that_nothing_can_be_computed_with_is_refused_by_tensor_and_place(
    name: str, value: float, sentence: str, tmp_path: pathlib.Path
) -> None:
    tensor = policy("gaussian").state_dict()[name].clone()
    tensor.reshape(-1)[0] = value
    with pytest.raises(CheckpointError, match=sentence):
        Policy.load(written(tmp_path, {}, {name: tensor}))


def test_a_tensor_of_another_type_is_refused(tmp_path: pathlib.Path) -> None:
    tensor = policy("gaussian").state_dict()["actor.log_std"].long()
    with pytest.raises(CheckpointError, match=r"'actor.log_std' is torch.int64 of"):
        Policy.load(written(tmp_path, {}, {"actor.log_std": tensor}))


def test_a_checkpoint_of_another_kind_is_not_a_policy(tmp_path: pathlib.Path) -> None:
    checkpoint.save(tmp_path / "p.safetensors", {"x": torch.zeros(1)}, {"kind": "learner"})
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds a 'learner', where a 'policy' is needed"):
        Policy.load(tmp_path / "p")


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_a_policy_with_layer_norms_is_the_same_after_saving(tmp_path: pathlib.Path, epsilon: float) -> None:
    torch.manual_seed(0)
    actor = TanhGaussianActor(3, 2, (5, 4), layer_norm=True, norm_epsilon=epsilon)
    with torch.no_grad():
        for scale in actor.mlp.scales:
            scale.uniform_(0.5, 2)
    policy = Policy.of(actor, Normalizer(3), torch.tensor([-1.0, -1]), torch.tensor([1.0, 2]))
    policy.save(tmp_path / "policy")
    observations = 1e-3 * torch.randn(7, 3)
    again = Policy.load(tmp_path / "policy")
    assert torch.equal(again(observations), policy(observations))
    told = "norm_epsilon" in (tmp_path / "policy.json").read_text()
    assert told == (epsilon != 1e-5)  # files without it, older ones too, have torch's default


OLD_OPTIONS = {
    "deterministic": {"hidden": [16, 8], "activation": "relu"},
    "gaussian": {"hidden": [16, 8], "activation": "relu", "log_std_range": [-5.0, 2.0]},
    "state_dependent": {"hidden": [16, 8], "activation": "tanh", "log_std_range": [-20.0, 2.0]},
    "tanh_gaussian": {"hidden": [16, 8], "activation": "relu", "log_std_range": [-5.0, 2.0]},
    "unbounded_gaussian": {"hidden": [16, 8], "activation": "tanh", "log_std_range": [-20.0, 2.0]},
    "softplus_gaussian": {"hidden": [16, 8], "activation": "leaky_relu"},
    "categorical": {"hidden": [16, 8], "activation": "tanh"},
    "greedy": {"hidden": [16, 8], "activation": "relu"},
    "family": {
        "hidden": [16, 8],
        "activation": "relu",
        "log_std_range": [-5.0, 2.0],
        "coefficients": [1.0, 5.0],
    },
    "tanh_family": {
        "hidden": [16, 8],
        "activation": "relu",
        "log_std_range": [-5.0, 2.0],
        "coefficients": [1.0, 5.0],
    },
}
"""What policy files held before actors described themselves."""


@pytest.mark.parametrize("kind", OLD_OPTIONS)
def test_files_written_before_actors_described_themselves_still_load(kind: str, tmp_path: pathlib.Path) -> None:
    tested, rows = policy(kind), observations(5)
    sizes = {"observation_dim": 3, "action_dim": 2, "action_low": [-2.0, 0.0], "action_high": [2.0, 10.0]}
    described = {"format": "surefoot-policy-1", "actor": kind, **sizes, **OLD_OPTIONS[kind]}
    checkpoint.save(tmp_path / "p.safetensors", tested.state_dict(), {"kind": "policy", **described})
    (tmp_path / "p.json").write_text(json.dumps(described))
    loaded = Policy.load(tmp_path / "p")
    assert torch.equal(loaded(rows), tested(rows))
    assert tested.description() == described


@pytest.mark.parametrize("older", [False, True])
def test_arrays_are_read_in_the_order_that_the_policy_was_trained_in(older: bool, tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    normalizer = Normalizer(3)
    normalizer.fit(torch.randn(50, 3) * torch.tensor([1.0, 10.0, 100.0]))
    parts = DeterministicActor(3, 2, (16,)), normalizer, -torch.ones(2), torch.ones(2)
    tested = Policy.of(*parts, Encoder({"velocity": Array((1,)), "angles": Array((2,))}))
    tested.save(tmp_path / "p")
    if older:  # files whose tensors came with the keys sorted
        tensors, meta = checkpoint.load(tmp_path / "p.safetensors")
        checkpoint.save(tmp_path / "p.safetensors", tensors, json.loads(json.dumps(meta, sort_keys=True)))
    loaded = Policy.load(tmp_path / "p")
    seen = {"angles": torch.randn(5, 2), "velocity": torch.randn(5, 1)}
    assert list(loaded.arrays) == ["velocity", "angles"]
    assert torch.equal(loaded(seen), tested(seen))


def test_a_deterministic_policy_reads_no_noise_and_others_a_number_for_each_action_dimension() -> None:
    found = {kind: policy(kind).noise_dim for kind in KINDS}
    assert found == {kind: 0 if kind in ("deterministic", "greedy") else 2 for kind in KINDS}
    assert not any(policy(kind).always_samples for kind in KINDS)


@pytest.mark.parametrize("kind", ["deterministic", "categorical"])
def test_observations_of_the_wrong_kind_are_refused(kind: str) -> None:
    tested, row = policy(kind), np.zeros(3, np.float32)
    with pytest.raises(
        EnvironmentMismatchError, match=r"give the observation alone, observation, info = env.reset\(\)"
    ):
        tested.select_action((row, {}))
    for wrong in ({"observations": row}, ["a", 1, 2]):
        with pytest.raises(EnvironmentMismatchError, match="makes no array of numbers"):
            tested.select_action(wrong)
    for width in (1, 5):
        with pytest.raises(
            EnvironmentMismatchError, match=rf"of shape \(4, {width}\); .* trained on rows of 3 numbers"
        ):
            tested.act(torch.zeros(4, width), {})
    with pytest.raises(EnvironmentMismatchError, match="observations are a dict"):
        tested.act({"observations": torch.zeros(4, 3)}, {})


def test_an_observation_is_of_real_numbers_and_may_require_grad() -> None:
    policy = Policy(DeterministicActor(3, 2, (8,)), Normalizer(3), torch.full((2,), -1.0), torch.ones(2))
    plain = copy.deepcopy(policy)
    plain._single, plain._prepared = None, True
    for one in (policy, plain):
        expected = one.select_action(np.full(3, 0.5, np.float32))
        given: list[Any] = [torch.full((3,), 0.5, requires_grad=True), [0.5] * 3, np.full(3, 0.5, np.float64)]
        for observation in given:
            np.testing.assert_array_equal(one.select_action(observation), expected)
        one.select_action([1, True, np.int8(3)])
        odd: list[Any] = [
            np.full(3, 0.5 + 1j), ["0.5"] * 3, np.array(["0.5"] * 3), np.array(["2026-01-01"] * 3, "datetime64[D]"),
            np.ones(3, "timedelta64[s]"), [None] * 3, [10**30] * 3, np.array([0.5] * 3, object), b"abc",
            torch.full((3,), 0.5 + 1j),
        ]  # fmt: skip
        for observation in odd:
            with pytest.raises(EnvironmentMismatchError, match="makes no array of numbers"):
                one.select_action(observation)
