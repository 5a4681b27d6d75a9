"""Tensors of a simulator stay on its device through acting, normalizing, storing and learning: nothing goes to numpy.

No GPU is needed: what would copy a GPU's tensor to the host (`numpy()`, `cpu()`, numpy's own conversion, and `tolist()`
or `item()` of more than a few numbers) is counted, on tensors of any device.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor

from surefoot.envs import make_vec
from surefoot.envs.adapters import PhysicsTask, from_isaac_gym, from_isaac_lab
from surefoot.envs.adapters.physics import Fields, Outcome, PhysicsVectorEnv
from surefoot.envs.adapters.shared import takes_turns
from surefoot.online import ALGORITHMS, spec_of
from surefoot.online.loops.loop import acting_of, make_loop

ROWS = 8
FEW = 4
"""Numbers that may be read at once: a loss of each seed, a counter."""
ON_A_CPU_ALONE = {"RunningMoments.scale", "LossLog.__init__"}
"""What reads through numpy behind a test of `device.type == "cpu"`, where that copies nothing."""
OPTIONS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": ROWS, "horizon": 16, "hidden": (8, 6), "epochs": 2, "minibatches": 2},
    "sac": {"num_envs": ROWS, "hidden": (8, 6), "initial_steps": 64, "replay_capacity": 1024, "updates_per_step": 0.25},
}


class Glide(PhysicsTask):
    """A point on a line, pushed; terminates beyond 1, truncated after 12 steps; rewarded at 0."""

    observation_dim, max_steps, uniforms = 2, 12, 1

    def begin(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        return uniform - 0.5, torch.zeros_like(uniform)

    def observe(self, data: Fields) -> Tensor:
        return torch.cat([data["qpos"], data["qvel"]], 1)

    def outcome(self, before: Fields, after: Fields, actions: Tensor) -> Outcome:
        place = after["qpos"][:, 0]
        return Outcome(1 - place.abs(), place.abs() > 1)


class Line:
    """The engine of it."""

    name, device = "line", torch.device("cpu")

    def __init__(self) -> None:
        self.position, self.velocity = torch.zeros(ROWS, 1), torch.zeros(ROWS, 1)

    def data(self) -> Fields:
        return {"qpos": self.position, "qvel": self.velocity}

    def advance(self, actions: Tensor, substeps: int) -> None:
        self.velocity.mul_(0.8).add_(0.1 * actions)
        self.position.add_(self.velocity)

    def place(self, rows: Tensor, positions: Tensor, velocities: Tensor) -> None:
        self.position[rows], self.velocity[rows] = positions, velocities


class LabTask:
    """The same as `DirectRLEnv` steps it, without its final observations."""

    num_envs, device = ROWS, "cpu"
    single_observation_space = Box(-10.0, 10.0, (2,), np.float32)
    single_action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.state, self.steps = torch.zeros(ROWS, 2), torch.zeros(ROWS, dtype=torch.int64)

    def reset(self, seed: int | None = None) -> Any:
        self.state.zero_()
        self.steps.zero_()
        return {"policy": self.state}, {}

    def step(self, action: Tensor) -> Any:
        velocity = 0.8 * self.state[:, 1:] + 0.1 * action
        self.state = torch.cat([self.state[:, :1] + velocity, velocity], 1)
        self.steps += 1
        fell, late = self.state[:, 0].abs() > 1, self.steps >= 12
        reward = 1 - self.state[:, 0].abs()
        self.state = torch.where((fell | late)[:, None], 0.0, self.state)
        self.steps[fell | late] = 0
        return {"policy": self.state}, reward, fell, late & ~fell, {}

    def close(self) -> None: ...


class GymTask(LabTask):
    """The same as `VecTask` steps it."""

    observation_space, action_space, rl_device = LabTask.single_observation_space, LabTask.single_action_space, "cpu"

    def __init__(self) -> None:
        super().__init__()
        self.reset_buf = torch.ones(ROWS, dtype=torch.int64)

    def reset(self, seed: int | None = None) -> Any:
        return {"obs": self.state}

    def step(self, action: Tensor) -> Any:
        begun = self.reset_buf > 0
        velocity = 0.8 * self.state[:, 1:] + 0.1 * action
        moved = torch.cat([self.state[:, :1] + velocity, velocity], 1)
        self.state = torch.where(begun[:, None], 0.0, moved)
        self.steps = torch.where(begun, 0, self.steps + 1)
        late = self.steps >= 12
        self.reset_buf = (late | (self.state[:, 0].abs() > 1)).long()
        return {"obs": self.state}, 1 - self.state[:, 0].abs(), self.reset_buf, {"time_outs": late}


ENVIRONMENTS: dict[str, Any] = {
    "physics": lambda: PhysicsVectorEnv(Line(), Glide(), ROWS, np.array([[-1.0, 1.0]]), "torch"),
    "isaac_lab": lambda: from_isaac_lab(LabTask()),
    "isaac_gym": lambda: from_isaac_gym(GymTask()),
}


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[collections.Counter[str]]:
    """Counts what would bring numbers from a device to the host."""
    found: collections.Counter[str] = collections.Counter()

    def watched(name: str, least: int) -> Any:
        own = getattr(Tensor, name)

        def call(self: Tensor, *arguments: Any, **named: Any) -> Any:
            if sys._getframe(1).f_code.co_qualname not in ON_A_CPU_ALONE:
                found[name] += self.numel() > least
            return own(self, *arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for name, least in (("numpy", 0), ("cpu", 0), ("__array__", 0), ("tolist", FEW)):
            patched.setattr(Tensor, name, watched(name, least))
        yield found


def loop_on(algorithm: str, env: Any) -> Any:
    kind: Any = ALGORITHMS[algorithm]
    agent = kind(spec_of(env), kind.configure(**OPTIONS[algorithm])).fresh(0)
    return make_loop([agent], [0], env, planned_steps=4096, batch_size=32)


@pytest.mark.parametrize("algorithm", OPTIONS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_simulator_s_tensors_never_leave_its_device_in_a_loop(
    algorithm: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_on(algorithm, ENVIRONMENTS[name]())
    with counted(monkeypatch) as found:
        result = loop.run(512)
    assert {name: count for name, count in found.items() if count} == {}
    assert np.isfinite(result["episode_return"]).all()  # episodes ended meanwhile
    assert loop.learner.step > 0


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_the_counter_sees_what_an_environment_of_arrays_costs(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_on(algorithm, make_vec("Pendulum-v1", ROWS))
    with counted(monkeypatch) as found:
        loop.run(512)
    assert found["numpy"] >= 512 // ROWS  # the actions of each step


def test_steps_of_a_physics_engine_and_resets_of_its_rows_read_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ENVIRONMENTS["physics"]()
    env.reset(seed=3)
    ended = 0
    with counted(monkeypatch) as found:
        for _ in range(13):
            ended += int(env.step(torch.ones(ROWS, 1))[2].sum())
    assert ended >= ROWS
    assert not any(found.values())


def test_training_begins_new_episodes_where_others_have_stepped_its_only_simulator() -> None:
    only = from_isaac_lab(LabTask())
    for algorithm in OPTIONS:
        training, evaluation = copy.deepcopy(only), copy.deepcopy(only)
        assert takes_turns(training)
        loop = loop_on(algorithm, training)
        loop.run(160)
        evaluation.reset(seed=5)
        for _ in range(3):
            evaluation.step(torch.ones(ROWS, 1))
        evaluation.close()  # which leaves the simulator to training
        loop.begin_episodes()
        acting = acting_of(loop)
        assert torch.equal(acting.received, torch.zeros(ROWS, 2))  # every episode's first observation
        assert not acting.episodes.lengths.any()
        if algorithm == "sac":  # no sequence of rows runs from the old episode into the new one
            assert loop.experience.buffer.state_dict()["newest_done"].all()
        loop.run(160)
    assert not takes_turns(make_vec("Pendulum-v1", 1))
