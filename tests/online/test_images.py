"""SAC and PPO act on and learn from images and Dicts; their policies are saved, exported and evaluated as such."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import CheckpointError, ConfigError, EnvironmentMismatchError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.spec import mapped
from surefoot.core.policy.policy import Policy
from surefoot.data import ring
from surefoot.envs.acting import spec_of
from surefoot.envs.pixels import PixelVectorEnv
from surefoot.evaluation.rollout import evaluate
from surefoot.online import MOORL, PPO, SAC
from surefoot.online.loops.loop import make_loop
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.on_policy import OnPolicyLoop
from surefoot.safe.cup import CUP
from surefoot.safe.ppo_lag import PPOLag
from surefoot.safe.sac_lag import SACLag

SMALL: dict[str, Any] = {"encoder": "small", "encoder_features": 6, "hidden": (8,), "num_envs": 2}
KINDS = ["pixels", "camera"]


def environment(kind: str, rows: int = 2, **options: Any) -> PixelVectorEnv:
    if kind == "camera":
        options |= {"velocities": True, "frames": 1}
    return PixelVectorEnv("native/pendulum", rows, **options)


def sac(kind: str, seeds: list[int], **options: Any) -> OffPolicyLoop:
    env = environment(kind, 2 * len(seeds))
    agents = [SAC(spec_of(env), initial_steps=20, **SMALL, **options).fresh(seed) for seed in seeds]
    return OffPolicyLoop(agents, seeds, env, planned_steps=100, batch_size=8)


def ppo(kind: str, **options: Any) -> OnPolicyLoop:
    env = environment(kind)
    settings = {"horizon": 8, "minibatches": 4, "epochs": 1, **SMALL, **options}
    return OnPolicyLoop([PPO(spec_of(env), **settings).fresh(0)], [0], env, planned_steps=100)


def with_costs(kind: str, algorithm: Any, **options: Any) -> Any:
    env = environment(kind)
    return make_loop([algorithm(spec_of(env), **SMALL, **options).fresh(0)], [0], env, planned_steps=100, batch_size=8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "make",
    [
        lambda kind: sac(kind, [0]),
        ppo,
        lambda kind: with_costs(kind, SACLag, initial_steps=20),
        lambda kind: with_costs(kind, PPOLag, horizon=8, minibatches=4, epochs=1),
        lambda kind: with_costs(kind, CUP, horizon=8, minibatches=4, epochs=1),
    ],
)
def test_an_agent_that_acts_trains_its_encoder(make: Any, kind: str) -> None:
    loop = make(kind)
    before = {name: value.clone() for name, value in loop.learner.agents_parameters(0).items()}
    loop.run(30)
    after = loop.learner.agents_parameters(0)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "encoder.images.image.convolutions.0.weight" in changed


def test_cup_projects_from_the_policy_of_the_images_features() -> None:
    loop = with_costs("camera", CUP, horizon=8, minibatches=4, epochs=1)
    loop.run(16)
    agent, store = loop.agent, loop.store
    batch = {key: store[key] for key in store.keys if key.startswith("observations/") or key == "projecting"}
    found, _ = agent.begin_projection(batch, {})
    features = agent.encode({key: batch[f"observations/{key}"] for key in agent.encoder.arrays})
    torch.testing.assert_close(found["behaviour"], agent.actor.to_rows(agent.actor(features)))
    assert bool(found["projecting"].all())


def test_the_buffer_holds_what_the_environment_showed() -> None:
    loop, plain = sac("camera", [3]), environment("camera")
    received = loop.experience.acting.received
    assert received["image"].dtype == torch.uint8
    loop.run(6)
    buffer = loop.experience.buffer
    plain.set_state(loop.experience.acting.env.get_state())
    seen = plain.get_state()["frames"][:, -1]
    assert torch.equal(buffer["next_observations/image"][4:6], torch.from_numpy(seen))
    assert torch.equal(buffer["observations/image"][2:4], buffer["next_observations/image"][:2])
    assert buffer["observations/velocity"].shape[1:] == (1,)


@pytest.mark.parametrize("seeds", [[1], [1, 4]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_its_state_to_the_bit(kind: str, seeds: list[int]) -> None:
    small = {"replay_capacity": 24}  # rows are replaced before and after
    whole, begun = sac(kind, seeds, **small), sac(kind, seeds, **small)
    whole.run(40)
    begun.run(28)
    resumed = sac(kind, seeds, **small)
    assert resumed.restore([begun.state(position) for position in range(len(seeds))], begun.step) is None
    resumed.run(12)
    for position in range(len(seeds)):
        for name, value in whole.learner.agents_parameters(position).items():
            assert torch.equal(resumed.learner.agents_parameters(position)[name], value), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_with_each_picture_once_trains_as_one_with_two_in_each_row(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = sac(kind, [2], replay_capacity=24)
    once.run(40)
    monkeypatch.setattr(ring, "seen_and_followed", lambda columns: [])
    twice = sac(kind, [2], replay_capacity=24)
    twice.run(40)
    assert twice.experience.buffer.nbytes > 1.6 * once.experience.buffer.nbytes
    for name, value in twice.learner.agents_parameters(0).items():
        assert torch.equal(once.learner.agents_parameters(0)[name], value), name


def test_a_buffer_takes_no_more_memory_than_it_may_and_says_what_it_takes() -> None:
    whole, half = sac("pixels", [0]), sac("pixels", [0], replay_memory=0.0008)
    each = 3 * 64 * 64 * 17 // 16 + 8 + 64
    assert (whole.experience.buffer.capacity, half.experience.buffer.capacity) == (100, 800_000 // each // 2 * 2)
    assert half.experience.buffer.nbytes < 0.0009e9
    assert "holds 100 transitions in 0.00 GB, each picture of image once" in whole.experience.size
    with pytest.raises(ConfigError, match=r"replay_memory is 1e-05, must be >= 2\.6") as refused:
        sac("pixels", [0], replay_memory=0.00001)
    assert (refused.value.field, refused.value.code) == ("replay_memory", "range")


def test_graphs_are_forgotten_when_what_they_gather_from_has_moved() -> None:
    loop, forgotten = sac("camera", [0], replay_capacity=32), []
    loop.learner.capture.forget = lambda: forgotten.append(loop.step)  # type: ignore[method-assign]
    loop.run(12)
    assert forgotten == []  # nothing ended
    for _ in range(4):
        loop.begin_episodes()
        loop.run(2)
    assert forgotten


def test_ppo_meets_a_ratio_of_one_at_the_first_minibatch() -> None:
    loop = ppo("camera", minibatches=1)
    found = loop.run(16)
    assert found["ratio_max"][0] == pytest.approx(1.0, abs=1e-5)


def test_ppo_normalises_velocities_by_their_running_statistics_and_no_image() -> None:
    loop = ppo("camera", normalize_observations=True)
    loop.run(16)
    assert loop.learner.buffers["normalizer.mean"].shape == (1, 1)
    assert bool(loop.learner.buffers["normalizer.mean"].any())
    assert loop.store["observations/image"].dtype == torch.uint8


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_acts_alone_as_in_a_batch_before_and_after_its_file(kind: str, tmp_path: pathlib.Path) -> None:
    agent = SAC(spec_of(environment(kind)), **SMALL).fresh(0)
    agent.normalizer.mean.fill_(0.5)
    policy = agent.policy()
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    seen, _ = environment(kind, 3).reset(seed=1)
    batch, _ = loaded.act(mapped(torch.from_numpy, seen), loaded.begin(3))
    assert torch.equal(policy.act(mapped(torch.from_numpy, seen), policy.begin(3))[0], batch)
    for row in range(3):
        one = mapped(lambda values, row=row: values[row], seen)
        np.testing.assert_allclose(loaded.select_action(one), batch[row].numpy(), atol=1e-6)


def test_the_policy_of_moorl_reads_images_by_the_encoder() -> None:
    agent = MOORL(spec_of(environment("camera")), **SMALL).fresh(0)
    seen, _ = environment("camera", 3).reset(seed=1)
    policy, rows = agent.policy(), mapped(torch.from_numpy, seen)
    expected = agent.action_high * agent.act(agent.encode(rows))
    torch.testing.assert_close(policy.act(rows, policy.begin(3))[0], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
def test_an_exported_policy_has_an_input_for_each_key(kind: str, ending: str, tmp_path: pathlib.Path) -> None:
    policy = SAC(spec_of(environment(kind)), **SMALL).fresh(0).policy()
    path = tmp_path / f"policy{ending}"
    policy.export(path)
    seen, _ = environment(kind, 3).reset(seed=1)
    expected = policy.act(mapped(torch.from_numpy, seen), policy.begin(3))[0].numpy()
    given = dict(seen) if kind == "camera" else {"image": seen}
    if ending == ".pt2":
        arrays = {key: torch.from_numpy(value) for key, value in given.items()}
        found = torch.export.load(path).module()(observations=arrays).numpy()
    else:
        runtime = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        assert [one.name for one in runtime.get_inputs()] == list(given)
        found = runtime.run(None, given)[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_a_policy_can_not_read_is_refused() -> None:
    policy = SAC(spec_of(environment("camera")), **SMALL).fresh(0).policy()
    image, velocity = np.zeros((64, 64), np.uint8), np.zeros(1, np.float32)
    for observation, message in (
        ({"image": image}, "the observation is .*; this policy reads image .* and velocity"),
        ({"image": image.astype(np.float32), "velocity": velocity}, "image is float32 of shape .* trained on uint8"),
        ({"image": image[:8], "velocity": velocity}, r"image is uint8 of shape \(8, 64\)"),
        ({"image": image, "velocity": velocity * np.nan}, "velocity is not finite"),
    ):
        with pytest.raises(EnvironmentMismatchError, match=message):
            policy.select_action(observation)


def test_a_damaged_description_of_an_encoder_is_refused(tmp_path: pathlib.Path) -> None:
    policy = SAC(spec_of(environment("camera")), **SMALL).fresh(0).policy()
    policy.save(tmp_path / "policy")
    described = read_json(tmp_path / "policy.json")
    described["observations"]["image"]["shape"] = [64, -1]
    write_json(tmp_path / "policy.json", described)
    with pytest.raises(CheckpointError):
        Policy.load(tmp_path / "policy")


def test_a_policy_of_images_is_evaluated_in_whole_episodes() -> None:
    policy = SAC(spec_of(environment("camera")), **SMALL).fresh(0).policy()
    met: list[Any] = []
    found = evaluate([policy], "native/pendulum-camera", episodes=2, num_envs=2, watch=lambda *args: met.append(args))
    assert found[0].lengths.tolist() == [200, 200]
    assert met == []
    with pytest.raises(EnvironmentMismatchError):
        evaluate([policy], "native/pendulum", episodes=1)
