"""Systems written in python and compiled by numba against their C++ and torch twins."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot import cuda_ext
from surefoot.cuda_ext import twin
from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.rollout import RECORDS, SUMS, Rollout, rollout
from surefoot.cuda_ext.simulator import Simulator
from surefoot.envs.systems import system

pytest.importorskip("numba", reason="comes with the extra surefoot[numba]")

import python_twins

N = 70  # more than a block of lanes, and no multiple of one


@functools.cache
def python(name: str) -> Any:
    """The system in python, compiled once for all tests."""
    return getattr(python_twins, name)()


def policy(observations: int, bound: float, **options: Any) -> NativePolicy:
    """Two hidden layers of odd widths, so that every remainder of the unrolled loops is met."""
    generator = torch.Generator().manual_seed(3)
    widths = [observations, 19, 33, 2 if "log_std_range" in options else 1]
    weights = [torch.randn(b, a, generator=generator) / a**0.5 for a, b in itertools.pairwise(widths)]
    biases = [0.1 * torch.randn(b, generator=generator) for b in widths[1:]]
    if options.pop("norm", False):
        options["gains"] = [1 + 0.1 * torch.randn(b, generator=generator) for b in widths[1:-1]]
        options["shifts"] = [0.1 * torch.randn(b, generator=generator) for b in widths[1:-1]]
    mean = 0.1 * torch.randn(observations, generator=generator)
    scale = 1 + torch.rand(observations, generator=generator)
    return NativePolicy(weights, biases, torch.zeros(1), torch.full((1,), bound), mean=mean, scale=scale, **options)


def physics(name: str, seed: int = 0) -> Tensor:
    """(N, P): every second row the default, the others 10 % off, with wind, friction and noise."""
    generator = torch.Generator().manual_seed(seed)
    default = system(name).default_parameters().float().expand(N, -1)
    other = default * (0.9 + 0.2 * torch.rand(default.shape, generator=generator)) + 0.1 * (default == 0)
    return torch.where((torch.arange(N) % 2 == 0)[:, None], default, other)


def agree(mine: Rollout, native: Rollout, tolerance: float) -> None:
    """All sums and records; those of numbers relative to the size that they reach."""
    named = {name: (getattr(mine, name), getattr(native, name)) for name in SUMS}
    named |= {name: (mine.records[name], native.records[name]) for name in native.records}
    named["states"] = mine.carry.states, native.carry.states
    for name, (a, b) in named.items():
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        error = (a.double() - b.double()).abs().max() / max(1.0, float(b.double().abs().max()))
        assert float(error) <= (tolerance if b.is_floating_point() else 0), f"{name}: {float(error):.2g}"


NAMES = ["pendulum", "cartpole_balance"]


@pytest.mark.parametrize("name", NAMES)
def test_in_float64_each_function_agrees_with_the_torch_twin_to_rounding(name: str) -> None:
    mine, other = python(name), system(name)
    generator = torch.Generator().manual_seed(1)
    uniforms = torch.rand(N, other.uniforms, generator=generator, dtype=torch.float64)
    parameters, actions = physics(name).double(), 2 * torch.rand(N, 1, generator=generator, dtype=torch.float64) - 1
    normals = torch.randn(N, 1, generator=generator, dtype=torch.float64)
    states = other.reset(uniforms, parameters)
    torch.testing.assert_close(mine.reset(uniforms, parameters), states, rtol=1e-10, atol=1e-10)
    seen = other.observe(states, parameters)
    torch.testing.assert_close(mine.observe(states, parameters), seen, rtol=1e-10, atol=1e-10)
    for found, expected in zip(
        mine.step(states, actions, parameters, normals), other.step(states, actions, parameters, normals), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(cuda_ext.native() is None, reason=cuda_ext.why_not_native())
class TestAgainstNative:
    """float32 in both; chaos multiplies the rounding of a step by the exponential of the time."""

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(("steps", "tolerance"), [(1, 2e-6), (50, 2e-4)])
    def test_random_actions_on_altered_dynamics_with_noise(self, name: str, steps: int, tolerance: float) -> None:
        given: dict[str, Any] = {"random": True, "seeds": 5, "parameters": physics(name), "horizon": steps}
        agree(rollout(python(name), **given, record=RECORDS), rollout(system(name), **given, record=RECORDS), tolerance)

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        "options",
        [
            {"activation": "relu"},
            {"activation": "tanh", "squash": False},
            {"activation": "silu", "norm": True, "log_std_range": (-3.0, -0.5)},
            {"activation": "tanh", "std": torch.tensor([0.3])},
        ],
        ids=lambda options: "-".join(options) + options["activation"],
    )
    def test_a_policy_in_the_loop(self, name: str, options: dict[str, Any]) -> None:
        other = system(name)
        given: dict[str, Any] = {"policy": policy(len(other.observations), other.action_high[0], **options)}
        given |= {"num_envs": N, "seeds": 7, "horizon": 50, "record": ("observations", "actions", "rewards")}
        agree(rollout(python(name), **given), rollout(other, **given), 5e-4)

    def test_many_short_episodes_with_their_sums(self) -> None:
        given: dict[str, Any] = {"random": True, "num_envs": N, "seeds": 2, "horizon": 60, "max_steps": 13}
        for name in NAMES:
            mine, native = (rollout(one, **given, episodes="many") for one in (python(name), system(name)))
            agree(mine, native, 2e-4)
            assert int(mine.finished.min()) >= 4

    def test_steps_of_the_simulator(self) -> None:
        mine, native = (Simulator(one, N, seeds=4, max_steps=7) for one in (python("pendulum"), system("pendulum")))
        np.testing.assert_allclose(mine.reset(), native.reset(), atol=1e-6)
        generator = np.random.default_rng(0)
        for _ in range(20):
            actions = generator.uniform(-3, 3, (N, 1)).astype(np.float32)
            found, expected = mine.step(actions), native.step(actions)
            for field, a, b in zip(found._fields, found, expected, strict=True):
                np.testing.assert_allclose(a, b, atol=2e-4, err_msg=field)


def test_uniform_draws_have_the_same_bits_as_the_twins() -> None:
    from surefoot.cuda_ext import numba_maths

    seeds = torch.tensor([0, 1, 2**31, 2**32 - 1, 123456789])
    for stream in (1, 2, 3, 4):
        keys = twin.episode_key(seeds, torch.tensor([0, 7, 2**20, 3, 1]), stream)
        expected = twin.uniform(keys, torch.tensor([0, 5, 999, 2**26, 1]), 4, torch.float64)
        normals = twin.normal(keys, torch.tensor([0, 5, 999, 2**26, 1]), 4, torch.float64)
        for row, (seed, episode, step) in enumerate(
            zip(seeds.tolist(), (0, 7, 2**20, 3, 1), (0, 5, 999, 2**26, 1), strict=True)
        ):
            key = numba_maths.episode_key(seed, episode, stream)
            assert [numba_maths.uniform(key, step, k) for k in range(4)] == expected[row].tolist()
            mine = [numba_maths.normal(key, step, k) for k in range(4)]
            assert mine == pytest.approx(normals[row].tolist(), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_random_actions_are_those_of_the_twin_to_one_rounding(name: str) -> None:
    given: dict[str, Any] = {"random": True, "num_envs": N, "seeds": 9, "horizon": 1, "record": ("actions",)}
    mine, other = rollout(python(name), **given), rollout(system(name), **given, backend="twin")
    torch.testing.assert_close(mine.records["actions"], other.records["actions"], rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("threads", [2, 3])
def test_the_result_depends_neither_on_threads_nor_on_the_batch(threads: int) -> None:
    parameters = physics("pendulum").repeat(8, 1)
    seeds = torch.arange(8 * N)
    given: dict[str, Any] = {"policy": policy(3, 2.0, activation="tanh"), "horizon": 20}
    one = rollout(python("pendulum"), **given, seeds=seeds, parameters=parameters, threads=1)
    several = rollout(python("pendulum"), **given, seeds=seeds, parameters=parameters, threads=threads)
    part = rollout(python("pendulum"), **given, seeds=seeds[101:105], parameters=parameters[101:105], threads=1)
    for name in SUMS:
        assert torch.equal(getattr(one, name), getattr(several, name)), name
        assert torch.equal(getattr(one, name)[101:105], getattr(part, name)), name


def test_two_halves_are_a_whole() -> None:
    given: dict[str, Any] = {"random": True, "seeds": torch.arange(N), "episodes": "many", "max_steps": 13}
    whole = rollout(python("cartpole_balance"), **given, horizon=40)
    half = rollout(python("cartpole_balance"), **given, horizon=17)
    rest = rollout(python("cartpole_balance"), **given, horizon=23, carry=half.carry)
    assert torch.equal(whole.carry.states, rest.carry.states)
    assert torch.equal(whole.costs, half.costs + rest.costs)


SIMULATED = """
import json, python_twins, test_python_system_twins as tests
from surefoot.cuda_ext import numba_backend
from surefoot.cuda_ext.rollout import rollout
numba_backend.Batch = numba_backend.CudaBatch
found = rollout(python_twins.pendulum(), **tests.few())
named = {**vars(found), **found.records}
print(json.dumps({name: value.tolist() for name, value in named.items() if hasattr(value, "tolist")}))
"""


def few() -> dict[str, Any]:
    """A rollout with everything in it, small enough for python without a compiler."""
    chosen = policy(3, 2.0, activation="silu", norm=True, std=torch.tensor([0.3]))
    given = {"policy": chosen, "seeds": 5, "horizon": 3, "parameters": physics("pendulum")[:3]}
    return {**given, "episodes": "many", "max_steps": 2, "record": RECORDS}


def test_the_kernels_for_gpus_agree_in_numbas_simulator_of_one() -> None:
    folder = str(pathlib.Path(__file__).parent)
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": folder}
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    gpu = {name: np.array(values) for name, values in json.loads(done.stdout).items()}
    cpu = rollout(python("pendulum"), **few())
    for name, value in {**vars(cpu), **cpu.records}.items():
        if isinstance(value, Tensor):
            np.testing.assert_allclose(gpu.pop(name), value.numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
    assert not gpu
