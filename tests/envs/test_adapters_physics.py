"""MuJoCo Warp and MJX move a model as MuJoCo does, and a task on any engine keeps the contract."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MissingExtraError
from surefoot.envs.adapters import PhysicsTask, from_mjx, from_mujoco_warp
from surefoot.envs.adapters.physics import Fields, Outcome, PhysicsVectorEnv, uniform_draws

MODEL = """
<mujoco><option timestep="0.01"/>
  <worldbody><body pos="0 0 1"><joint name="hinge" axis="0 1 0" damping="0.1"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.04" mass="1"/><site name="tip" pos="0 0 -0.5"/></body>
  </worldbody>
  <actuator><motor joint="hinge" ctrllimited="true" ctrlrange="-2 1"/></actuator>
  <sensor><framepos objtype="site" objname="tip"/></sensor>
</mujoco>
"""


class Swing(PhysicsTask):
    """Observes (angle, speed, height of the tip); terminates beyond 1 rad, truncated after 40 steps."""

    fields = ("qpos", "qvel", "sensordata")
    observation_dim, substeps, max_steps, uniforms = 3, 2, 40, 1

    def begin(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        return uniform - 0.5, torch.zeros_like(uniform)

    def observe(self, data: Fields) -> Tensor:
        return torch.cat([data["qpos"], data["qvel"], data["sensordata"][:, 2:]], 1)

    def outcome(self, before: Fields, after: Fields, actions: Tensor) -> Outcome:
        angle = after["qpos"][:, 0]
        return Outcome(angle - before["qpos"][:, 0], angle.abs() > 1, 0.9 - angle.abs())


class Decay:
    """An engine of its own, without any library: the position halves and takes the control."""

    name, device = "decay", torch.device("cpu")

    def __init__(self, rows: int = 2) -> None:
        self.position, self.velocity = torch.zeros(rows, 1), torch.zeros(rows, 1)

    def data(self) -> Fields:
        tip = torch.zeros(len(self.position), 3)
        tip[:, 2] = self.position[:, 0]
        return {"qpos": self.position, "qvel": self.velocity, "sensordata": tip}

    def advance(self, actions: Tensor, substeps: int) -> None:
        for _ in range(substeps):
            self.position.mul_(0.5).add_(actions)

    def place(self, rows: Tensor, positions: Tensor, velocities: Tensor) -> None:
        self.position[rows], self.velocity[rows] = positions, velocities


def decay(**kwargs: Any) -> PhysicsVectorEnv:
    return PhysicsVectorEnv(Decay(), Swing(), 2, np.array([[-2.0, 1.0]]), kwargs.get("tensors", "torch"))


def mujoco_model() -> Any:
    return pytest.importorskip("mujoco").MjModel.from_xml_string(MODEL)


def engines() -> list[Any]:
    """The adapters of the libraries that are installed."""
    found = []
    for module, make in (("mujoco_warp", from_mujoco_warp), ("mujoco.mjx", from_mjx)):
        try:
            there = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            there = False
        skip = pytest.mark.skipif(not there, reason=f"{module} is not installed")
        found.append(pytest.param(make, marks=skip, id=module))
    return found


@pytest.mark.parametrize("make", engines())
def test_the_engine_moves_the_model_as_mujoco_does_through_the_ends_of_episodes(
    make: Callable[..., PhysicsVectorEnv],
) -> None:
    model = mujoco_model()
    import mujoco

    env = make(model, Swing(), 3)
    assert env.single_action_space.low.tolist() == [-2]  # type: ignore[attr-defined]
    observations, _ = env.reset(seed=1)
    datas = [mujoco.MjData(model) for _ in range(3)]
    terminated = truncated = 0

    def set_state(row: int, seen: Tensor) -> None:
        mujoco.mj_resetData(model, datas[row])
        datas[row].qpos, datas[row].qvel = seen[0], seen[1]
        mujoco.mj_forward(model, datas[row])

    def agree(row: int, seen: Tensor) -> None:
        data = datas[row]
        np.testing.assert_allclose(seen.numpy(), [data.qpos[0], data.qvel[0], data.sensordata[2]], atol=2e-4)

    for row in range(3):
        set_state(row, torch.as_tensor(observations)[row])
    for step in range(60):
        actions = torch.tensor([[0.0], [-2.0 if step % 40 < 20 else 0.3], [0.5 * np.sin(step)]], dtype=torch.float32)
        observations, rewards, terminations, truncations, info = env.step(actions)
        for row in range(3):
            angle = datas[row].qpos[0]
            datas[row].ctrl[:] = actions[row].numpy()
            mujoco.mj_step(model, datas[row], 2)
            agree(row, info["final_obs"][row])
            assert float(rewards[row]) == pytest.approx(datas[row].qpos[0] - angle, abs=2e-4)
            assert float(info["margin"][row]) == pytest.approx(0.9 - abs(datas[row].qpos[0]), abs=2e-4)
            if terminations[row] or truncations[row]:
                set_state(row, torch.as_tensor(observations)[row])
                agree(row, torch.as_tensor(observations)[row])  # derived fields of the reset row are fresh
                assert abs(float(observations[row, 0])) <= 0.5
        terminated, truncated = terminated + int(terminations.sum()), truncated + int(truncations.sum())
    assert terminated >= 2
    assert truncated >= 2
    assert not info["diverged"].any()


@pytest.mark.parametrize("make", engines())
def test_a_row_does_not_feel_the_reset_of_its_neighbour(make: Callable[..., PhysicsVectorEnv]) -> None:
    env = make(mujoco_model(), Swing(), 2)
    paths = []
    for reset in (False, True):
        env.reset(seed=4)
        path = []
        for step in range(10):
            path.append(torch.as_tensor(env.step(torch.full((2, 1), 0.3))[0])[1].clone())
            if reset and step == 4:
                env.reset(options={"reset_mask": np.array([True, False])})
        paths.append(torch.stack(path))
    assert torch.equal(*paths)


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_a_task_on_any_engine_keeps_the_contract(tensors: Any) -> None:
    env = decay(tensors=tensors)
    first, _ = env.reset(seed=[3, 3])
    assert first[0].tolist() == first[1].tolist()
    actions: Any = np.array([[0.0], [1.0]], np.float32)
    observations, rewards, terminations, truncations, info = env.step(
        actions if tensors == "numpy" else torch.tensor(actions)
    )
    start = float(first[0, 0])
    assert float(info["final_obs"][0, 0]) == pytest.approx(start / 4)
    assert float(info["final_obs"][1, 0]) == pytest.approx(start / 4 + 1.5)
    assert rewards.tolist() == pytest.approx([start / 4 - start, start / 4 + 1.5 - start])
    assert terminations.tolist() == [False, True]
    assert truncations.tolist() == [False, False]
    assert info["cost"].tolist() == [0, 1]
    assert abs(float(observations[1, 0])) <= 0.5
    assert type(rewards) is (np.ndarray if tensors == "numpy" else torch.Tensor)


def test_the_time_limit_truncates_and_a_diverged_row_is_marked_and_ended() -> None:
    env = decay()
    env.reset(seed=0)
    flags = [env.step(torch.zeros(2, 1))[2:4] for _ in range(40)]
    assert [bool(truncated.all()) for _, truncated in flags] == [False] * 39 + [True]
    before = torch.as_tensor(env.step(torch.zeros(2, 1))[0]).clone()
    observations, rewards, terminations, truncations, info = env.step(torch.tensor([[0.0], [float("nan")]]))
    assert info["diverged"].tolist() == [False, True]
    assert truncations.tolist() == [False, True]
    assert terminations.tolist() == [False, False]
    assert rewards[1] == 0
    assert torch.equal(info["final_obs"][1], before[1])
    assert torch.isfinite(torch.as_tensor(observations)).all()
    assert info["margin"].tolist() == [pytest.approx(0.9 - abs(float(info["final_obs"][0, 0]))), -1e6]
    assert info["cost"].tolist() == [0, 1]
    *_, info = env.step(torch.tensor([[float("inf")], [0.0]]))
    assert info["margin"][0] == -1e6  # not minus infinity


def test_initial_draws_follow_from_seed_and_episode_only_and_are_uniform() -> None:
    seeds, episodes = torch.arange(1000), torch.zeros(1000, dtype=torch.int64)
    draws = uniform_draws(seeds, episodes, 20).numpy()
    assert (draws[[7, 3]] == uniform_draws(seeds[[7, 3]], episodes[:2], 20).numpy()).all()
    assert len(np.unique(draws)) == 20_000
    assert len(np.unique(np.concatenate([draws, uniform_draws(seeds, episodes + 1, 20)]))) == 40_000
    counts = np.histogram(draws, bins=10, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # chi-square, 9 degrees, 99.9 %
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 0.11
    env = decay()
    other = decay()
    first, second = env.reset(seed=5)[0], other.reset(seed=[9, 6])[0]
    assert torch.equal(torch.as_tensor(first)[1], torch.as_tensor(second)[1])
    again = env.reset()[0]
    assert not torch.equal(torch.as_tensor(first), torch.as_tensor(again))


def test_misuse_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(Swing):
        observation_dim = 7

    with pytest.raises(ConfigError, match=r"gives \(2, 3\).*\(2, 7\)"):
        PhysicsVectorEnv(Decay(), Wide(), 2, np.array([[-1.0, 1.0]]), "torch").reset()
    with pytest.raises(EnvironmentMismatchError, match="reset first"):
        decay().step(torch.zeros(2, 1))
    model = mujoco_model()
    with pytest.raises(ConfigError, match="at least 1 row"):
        from_mjx(model, Swing(), 0)
    still = pytest.importorskip("mujoco").MjModel.from_xml_string("<mujoco/>")
    with pytest.raises(ConfigError, match="<actuator>"):
        from_mujoco_warp(still, Swing(), 1)
    monkeypatch.setitem(sys.modules, "warp", None)
    with pytest.raises(MissingExtraError, match="'warp-lang'"):
        from_mujoco_warp(model, Swing(), 1)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match="'jax'"):
        from_mjx(model, Swing(), 1)


@pytest.mark.parametrize("make", engines())
def test_a_field_that_the_engine_has_not_is_refused(make: Callable[..., PhysicsVectorEnv]) -> None:
    class Odd(Swing):
        fields = ("qpos", "colour")

    with pytest.raises(ConfigError, match="no colour"):
        make(mujoco_model(), Odd(), 1)
