"""What loops do in numpy and by prepared calls, where a CPU steps few environments, is to the bit what torch makes."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from block_rows import HELD
from on_policy_problems import QUICK, agents
from on_policy_problems import loop as on_policy_loop
from online_problems import Regulator

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import DataError, DivergenceError
from surefoot.core.nn.native import native
from surefoot.core.nn.normalizer import RunningMoments, normalised
from surefoot.data import ring
from surefoot.data.collect import TransitionBuffer
from surefoot.envs import make_vec
from surefoot.online import ALGORITHMS, spec_of
from surefoot.online.loops.blocks import Blocks
from surefoot.online.loops.experience import Experience
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.on_policy import OnPolicyLoop

built = pytest.mark.skipif(native.library() is None, reason="the native module was not built")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that turns numpy and prepared calls off for loops that are made from then on."""

    def turn_off() -> None:
        monkeypatch.setattr(Blocks, "_is_plain", lambda self: False)
        monkeypatch.setattr(Experience, "_is_plain", lambda self, done: False)
        monkeypatch.setattr(OffPolicyLoop, "_prepared", lambda self: None)
        monkeypatch.setattr(ring, "_arrays", lambda tensors: None)

    return turn_off


def assert_same(first: Any, second: Any) -> None:
    for position in range(len(first.learner.seeds)):
        one, other = first.state(position), second.state(position)
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(value.nan_to_num(nan=1e30), other[name].nan_to_num(nan=1e30)), name


ON_POLICY: dict[str, tuple[str, str, tuple[int, ...], dict[str, Any]]] = {
    "one": ("ppo", "Hopper-v5", (3,), {"num_envs": 1, "horizon": 80}),
    "three": ("a2c", "Hopper-v5", (0,), {"num_envs": 3, "horizon": 30}),
    "two seeds": ("a2c", "Hopper-v5", (4, 9), {"num_envs": 1, "horizon": 40}),
    "held noise": ("ppo", "Hopper-v5", (1,), {**HELD, "num_envs": 1, "normalize_observations": False}),
    "choices": ("ppo", "CartPole-v1", (2,), {"num_envs": 2, "horizon": 32}),
    "constraint": ("ppo_lag", "surefoot/HopperVelocity-v5", (1,), {"num_envs": 1, "horizon": 64}),
}


def block_loop(kind: str) -> OnPolicyLoop:
    algorithm, env_id, seeds, options = ON_POLICY[kind]
    if algorithm in QUICK:
        return on_policy_loop(algorithm, env_id, seeds, **options)
    from surefoot.safe import ALGORITHMS as SAFE

    env = make_vec(env_id, options["num_envs"])
    made: Any = SAFE[algorithm]
    agent = made(spec_of(env), made.configure(hidden=(8, 6), epochs=2, minibatches=2, **options)).fresh(seeds[0])
    return OnPolicyLoop([agent], list(seeds), env, planned_steps=4096, kernels=True)


@pytest.mark.parametrize("kind", ON_POLICY)
def test_blocks_are_the_same_bits_across_episodes_and_from_a_file(
    kind: str, plain: Any, tmp_path: pathlib.Path
) -> None:
    quick = block_loop(kind)
    assert quick.blocks._plain
    block = quick.blocks.horizon * quick.blocks.num_envs
    quick.run(2 * block)
    for position in range(len(quick.learner.seeds)):
        checkpoint.save(tmp_path / f"{position}.safetensors", quick.state(position), {})
    lengths = quick.blocks.episodes.lengths
    assert float(lengths.max()) < 2 * block / quick.blocks.num_envs  # an episode has ended
    later = quick.run(block)
    plain()
    general = block_loop(kind)
    assert not general.blocks._plain
    general.run(2 * block)
    resumed = block_loop(kind)
    saved = [checkpoint.load(tmp_path / f"{position}.safetensors")[0] for position in range(len(quick.learner.seeds))]
    resumed.restore(saved, general.step)
    np.testing.assert_equal(general.run(block), later)
    assert_same(general, quick)
    if "CartPole" not in ON_POLICY[kind][1]:  # whose state can't be had
        resumed.run(block)
        assert_same(resumed, quick)


OFF_POLICY: dict[str, tuple[str, str, tuple[int, ...], dict[str, Any]]] = {
    "one": ("sac", "Hopper-v5", (3,), {}),
    "native system": ("sac", "native/pendulum", (1,), {"num_envs": 2}),
    "two seeds": ("sac", "Hopper-v5", (0, 5), {"num_envs": 2, "updates_per_step": 0.05}),
    "deterministic": ("td3", "Hopper-v5", (2,), {}),
    "many": ("sac", "native/pendulum", (2,), {"num_envs": 20}),
    "choices": ("dqn", "CartPole-v1", (2,), {}),
}


def replay_loop(kind: str) -> OffPolicyLoop:
    algorithm, env_id, seeds, options = OFF_POLICY[kind]
    options = {
        "num_envs": 1,
        "initial_steps": 40,
        "updates_per_step": 0.2,
        "hidden": (16, 8),
        "replay_capacity": 100,
        **options,
    }
    env = make_vec(env_id, len(seeds) * options["num_envs"])
    made: Any = ALGORITHMS[algorithm]
    found = [made(spec_of(env), made.configure(**options)).fresh(seed) for seed in seeds]
    return OffPolicyLoop(found, list(seeds), env, planned_steps=1000, batch_size=16, kernels=len(seeds) == 1)


@pytest.mark.parametrize("kind", OFF_POLICY)
def test_replay_is_the_same_bits_across_episodes_and_when_it_goes_on(kind: str, plain: Any) -> None:
    quick = replay_loop(kind)
    assert quick.experience._in_numpy
    assert (quick._quick is not None) == (kind in ("one", "native system"))
    quick.run(120)  # the oldest rows are replaced
    seeds = range(len(quick.seeds))
    saved = [{name: value.clone() for name, value in quick.state(position).items()} for position in seeds]
    later = quick.run(20)
    plain()
    general, resumed = replay_loop(kind), replay_loop(kind)
    assert general._quick is None
    general.run(120)
    np.testing.assert_equal(general.run(20), later)
    assert_same(general, quick)
    if "CartPole" not in OFF_POLICY[kind][1]:
        assert resumed.restore(saved, 120) is None
        resumed.run(20)
        assert_same(resumed, quick)


def test_what_data_have_fixed_is_applied_to_the_same_bits(plain: Any) -> None:
    """Normalised observations, scaled and shifted rewards."""
    found = []
    for turned_off in (False, True):
        if turned_off:
            plain()
        made = replay_loop("one")
        width = made.agent.spec.vector_dim
        source = torch.Generator().manual_seed(0)
        numbers = [torch.randn(1, 1, width, generator=source), torch.rand(1, 1, width, generator=source) + 0.3]
        made.experience.transform = (*numbers, torch.tensor([[1.7]]), torch.tensor([[-0.3]]))
        made.run(60)
        found.append(made)
    assert_same(*found)


class Lost(Regulator):
    """Its observation is not a number from the third step on."""

    def follow(self, states: np.ndarray, actions: np.ndarray) -> Any:
        following, rewards, ends = super().follow(states, actions)
        return (np.full_like(following, np.nan) if self.elapsed[0] >= 2 else following), rewards, ends


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_an_observation_that_is_not_finite_is_named_and_learned_from_by_nobody(algorithm: str) -> None:
    env = Lost(1)
    if algorithm == "ppo":
        made: Any = on_policy_loop("ppo", env, num_envs=1)
    else:
        agent: Any = ALGORITHMS["sac"]
        own = agent(spec_of(env), agent.configure(initial_steps=50)).fresh(0)
        made = OffPolicyLoop([own], [0], env, planned_steps=100)
    with pytest.raises(DivergenceError, match=r"environment 0 of seed 0 .* vector step 2"):
        made.run(20)
    if algorithm == "ppo":
        assert made.blocks.moments.mean.isfinite().all()
        assert made.learner.buffers["normalizer.mean"].isfinite().all()
    else:
        assert len(made.experience.buffer) == 2


# -- the parts ---------------------------------------------------------------------------------------------------


@built
@pytest.mark.parametrize("limit", [float("inf"), 1.5])
def test_one_value_of_each_stream_is_taken_natively_to_the_bits_of_numpy(limit: float) -> None:
    ours, theirs = RunningMoments(3, 7), RunningMoments(3, 7)
    mean, scale = torch.zeros(3, 7), torch.ones(3, 7)
    quick = ours.by_one(mean, scale, limit)
    assert quick is not None
    source = torch.Generator().manual_seed(1)
    for step in range(200):
        values = torch.randn(3, 7, generator=source) * 10 ** ((step % 9) - 4.0) + 3
        quick.values[:] = values.numpy()
        assert quick.take()
        theirs.update(values.unsqueeze(1))
        assert torch.equal(ours.count, theirs.count)
        assert torch.equal(ours.mean, theirs.mean)
        assert torch.equal(ours.squares, theirs.squares)
        assert torch.equal(mean, theirs.mean.float())
        assert torch.equal(scale, theirs.scale().float())
        expected = normalised(values, theirs.mean.float(), theirs.scale().float(), limit)
        assert torch.equal(torch.from_numpy(quick.normalised), expected)
    quick.values[1, 3] = np.nan
    before = [value.clone() for value in (ours.count, ours.mean, ours.squares, mean, scale)]
    assert not quick.take()
    for value, kept in zip((ours.count, ours.mean, ours.squares, mean, scale), before, strict=True):
        assert torch.equal(value, kept)
    assert ours.by_one(mean.T, scale, limit) is None  # memory of another order
    assert ours.by_one(mean.double(), scale, limit) is None


@built
def test_a_prepared_network_sees_changes_of_its_parameters() -> None:
    env = make_vec("Hopper-v5", 1)
    (agent,) = agents("ppo", env, [0], num_envs=1)
    network = agent.actor.mlp  # type: ignore[attr-defined]
    quick = network.prepared(2)
    rows = torch.randn(2, network.weights[0].shape[1])
    for _ in range(2):
        quick.inputs[:] = rows.numpy()
        quick()
        with torch.no_grad():
            np.testing.assert_allclose(quick.outputs, network(rows).numpy(), rtol=0, atol=1e-6)
            network.weights[0].mul_(1.5)
    network.activation = "mish"  # which the kernels lack
    assert network.prepared(2) is None


def buffers() -> tuple[TransitionBuffer, TransitionBuffer]:
    shapes: dict[str, tuple[int, ...]] = {"observations": (2,), "rewards": (), "terminations": ()}
    quick, general = (TransitionBuffer(6, shapes, num_envs=2) for _ in range(2))
    general._arrays = None
    return quick, general


def test_a_buffer_takes_arrays_and_tensors_alike() -> None:
    quick, general = buffers()
    assert quick._arrays is not None
    source = np.random.default_rng(0)
    for step in range(5):
        batch = {
            "observations": source.standard_normal((2, 2)),  # float64, stored in float32
            "rewards": source.standard_normal(2).astype(np.float32),
            "terminations": np.array([step == 1, False]),
            "truncations": np.array([False, step == 3]),
            "stated beside": "of no column",
        }
        for buffer, given in ((quick, batch), (general, batch)):
            rows = buffer.add(
                given if step % 2 else {k: torch.tensor(v) for k, v in given.items() if k != "stated beside"}
            )
            assert rows.tolist() == [2 * step % 6, (2 * step + 1) % 6]
        if step == 2:
            quick = copy.deepcopy(quick)  # a copy writes into memory of its own
    assert quick.rewritten == general.rewritten == 2
    assert torch.equal(quick.valid, general.valid)
    first, second = quick.state_dict(), general.state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("as_arrays", [True, False])
def test_a_step_that_does_not_fit_changes_nothing(as_arrays: bool) -> None:
    buffer = buffers()[0 if as_arrays else 1]
    right: dict[str, Any] = {
        "observations": np.ones((2, 2)), "rewards": np.ones(2), "terminations": np.zeros(2, bool),
        "truncations": np.zeros(2, bool),
    }  # fmt: skip
    buffer.add(right)
    before = buffer.state_dict()
    for name, value, words in (
        ("observations", np.ones((2, 3)), r"'observations' of the step has shape \(2, 3\)"),
        ("rewards", np.ones(3), r"'rewards' of the step has shape \(3,\)"),
        ("truncations", None, "no 'truncations'"),
    ):
        wrong = {key: one for key, one in {**right, name: value}.items() if one is not None}
        with pytest.raises(DataError, match=words):
            buffer.add(wrong)
        assert all(torch.equal(one, before[key]) for key, one in buffer.state_dict().items())
        assert buffer.rewritten == 0
        assert int(buffer._valid.sum()) == 2
