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
from device_stand_ins import ENVIRONMENTS, ROWS, LabTask
from torch import Tensor

from surefoot.envs import make_vec
from surefoot.envs.adapters import from_isaac_lab
from surefoot.envs.adapters.shared import takes_turns
from surefoot.online import ALGORITHMS, spec_of
from surefoot.online.loops.loop import acting_of, make_loop

FEW = 4
"""Numbers that may be read at once: a loss of each seed, a counter."""
ON_A_CPU_ALONE = {
    "RunningMoments.scale",
    "RunningMoments.numbers",
    "LossLog.__init__",
    "EpisodeMeans.add_step",
    "EpisodeMeans.add_arrays",
    "RingBuffer._write_arrays",
    "TransitionBuffer.add",
    "_in_memory",
}
"""What reads through numpy behind a test of `device.type == "cpu"`, where that copies nothing."""
OPTIONS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": ROWS, "horizon": 16, "hidden": (8, 6), "epochs": 2, "minibatches": 2},
    "sac": {"num_envs": ROWS, "hidden": (8, 6), "initial_steps": 64, "replay_capacity": 1024, "updates_per_step": 0.25},
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
