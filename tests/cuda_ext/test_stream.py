"""The native streaming update gives the numbers of autograd, at every instruction set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import plain_stream
import pytest
import torch
from levels import LEVELS, LIBRARY
from stream_tensors import (
    NORMAL,
    STEP,
    Q,
    assert_near,
    copy_into,
    draw_inputs,
    every_case,
    one_stream,
    phases_of,
    tensors_for,
)

from surefoot.cuda_ext import stream
from surefoot.cuda_ext.stream import ACT, LEARN, OBSERVE, RESET, SHIFT, StreamKernel, StreamSettings


@pytest.fixture
def all_levels() -> Iterator[Callable[[str], None]]:
    best = LIBRARY.level()
    yield LIBRARY.set_level
    LIBRARY.set_level(best)


@every_case
def test_long_runs_in_float64_are_autograds(settings: StreamSettings, all_levels: Callable[[str], None]) -> None:
    tensors, generator = tensors_for(settings, 2), np.random.default_rng(5)
    expected = [one_stream(tensors, k) for k in range(2)]
    runs = {level: {name: value.clone() for name, value in tensors.items()} for level in LEVELS}
    kernels = {level: StreamKernel(settings, own) for level, own in runs.items()}
    for _ in range(45):
        draw_inputs(tensors, generator)
        for k, one in enumerate(expected):
            one.update({name: value for name, value in one_stream(tensors, k).items() if name.startswith("in_")})
            plain_stream.run(settings, one, phases_of(settings))
        for level, own in runs.items():
            copy_into(own, {name: value for name, value in tensors.items() if name.startswith("in_")})
            all_levels(level)
            kernels[level].run(phases_of(settings))
            assert_near(own, expected, 1e-9)
    assert all(int(one["learned"]) > 15 for one in expected)


@every_case
def test_each_step_in_float32_is_autograds_to_rounding(
    settings: StreamSettings, all_levels: Callable[[str], None]
) -> None:
    tensors, generator = tensors_for(settings, 1, "float32"), np.random.default_rng(6)
    own = {name: value.clone() for name, value in tensors.items()}
    kernel = StreamKernel(settings, own)
    for _ in range(40):
        draw_inputs(tensors, generator)
        expected = one_stream(tensors, 0)
        plain_stream.run(settings, expected, phases_of(settings))
        for level in LEVELS:
            copy_into(own, tensors)
            all_levels(level)
            kernel.run(phases_of(settings))
            assert_near(own, [expected], 2e-4)
        copy_into(tensors, own)
    assert int(tensors["learned"]) > 15


@every_case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_stream_gives_the_same_bits_alone_and_beside_others(settings: StreamSettings, dtype: str, level: str) -> None:
    together, generator = tensors_for(settings, 3, dtype), np.random.default_rng(7)
    alone = [{n: v[k : k + 1].clone() if v.ndim else v.clone() for n, v in together.items()} for k in range(3)]
    kernel, kernels = StreamKernel(settings, together), [StreamKernel(settings, one) for one in alone]
    for _ in range(25):
        draw_inputs(together, generator)
        for k, one in enumerate(alone):
            for name in (name for name in one if name.startswith("in_")):
                one[name].copy_(together[name][k : k + 1] if one[name].ndim else together[name])
            kernels[k].run(phases_of(settings))
        kernel.run(phases_of(settings))
    for k, one in enumerate(alone):
        for name, value in one.items():
            assert torch.equal(value, together[name][k : k + 1] if value.ndim else together[name]), (k, name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_padded_rows_give_the_bits_of_rows_without_gaps(dtype: str, level: str) -> None:
    dense, generator = tensors_for(NORMAL, 3, dtype), np.random.default_rng(11)
    padded = {name: value.clone() for name, value in dense.items()}
    for name in ("critic_weights", "critic_traces", "actor_weights", "actor_traces"):
        padded[name] = stream.parameter_rows(*dense[name].shape, dense[name].dtype)
        assert all(row.data_ptr() % 64 == 0 for row in padded[name])
        assert padded[name].shape == dense[name].shape
        padded[name].copy_(dense[name])
    one, other = StreamKernel(NORMAL, dense), StreamKernel(NORMAL, padded)
    for _ in range(15):
        draw_inputs(dense, generator)
        copy_into(padded, {name: value for name, value in dense.items() if name.startswith("in_")})
        one.run(STEP)
        other.run(STEP)
    assert all(torch.equal(value, padded[name]) for name, value in dense.items())
    assert dense["actor_traces"].any()


@every_case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_phases_in_calls_of_their_own_give_one_calls_bits(settings: StreamSettings, dtype: str, level: str) -> None:
    joined, generator = tensors_for(settings, 2, dtype), np.random.default_rng(8)
    split = {name: value.clone() for name, value in joined.items()}
    one, other = StreamKernel(settings, joined), StreamKernel(settings, split)
    for _ in range(25):
        draw_inputs(joined, generator)
        for name in (name for name in split if name.startswith("in_")):
            split[name].copy_(joined[name])
        one.run(STEP)
        for phase in (OBSERVE, LEARN, RESET, ACT, SHIFT):
            other.run(phase)
    for name, value in joined.items():
        assert torch.equal(value, split[name]), name


def test_an_inactive_stream_is_left_as_it_is_bit_for_bit() -> None:
    tensors, generator = tensors_for(NORMAL, 3, "float32"), np.random.default_rng(9)
    kernel = StreamKernel(NORMAL, tensors)
    for _ in range(5):
        draw_inputs(tensors, generator, missing=0)
        kernel.run(STEP)
    draw_inputs(tensors, generator, missing=0)
    tensors["in_active"][1] = 0
    tensors["in_observations"][1] = float("nan")
    before = {name: value.clone() for name, value in tensors.items()}
    kernel.run(STEP)
    for name, value in tensors.items():
        assert value[1].numpy().tobytes() == before[name][1].numpy().tobytes(), name
    assert not torch.equal(tensors["critic_weights"][2], before["critic_weights"][2])


@pytest.mark.parametrize("settings", [NORMAL, dataclasses.replace(Q, optimizer="adaptive")], ids=["normal", "q"])
def test_a_first_layer_of_zeros_still_learns_with_the_gradient_of_layer_norm_at_zero(
    settings: StreamSettings, level: str
) -> None:
    tensors, generator = tensors_for(settings, 1), np.random.default_rng(10)
    first = (settings.observation_dim + 1) * settings.hidden[0]
    for name in {"critic_weights", "actor_weights"} & tensors.keys():
        tensors[name][:, :first] = 0
    kernel, expected = StreamKernel(settings, tensors), one_stream(tensors, 0)
    for step in range(12):
        draw_inputs(tensors, generator, missing=0)
        expected.update({n: v for n, v in one_stream(tensors, 0).items() if n.startswith("in_")})
        plain_stream.run(settings, expected, STEP)
        kernel.run(STEP)
        assert_near(tensors, [expected], 1e-9)
        assert step == 0 or float(tensors["critic_weights"][:, :first].abs().max()) > 0
