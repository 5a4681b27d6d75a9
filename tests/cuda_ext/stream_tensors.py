"""Settings, tensors and inputs that tests of the native streaming update share; skips them where it is not built."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.cuda_ext import stream, why_not_native
from surefoot.cuda_ext.stream import ACT, ACT_BEFORE, LEARN, OBSERVE, RESET, SHIFT, StreamSettings

if not stream.native_stream():
    pytest.skip(f"no native module: {why_not_native()}", allow_module_level=True)

STEP = OBSERVE | LEARN | RESET | ACT | SHIFT
Tensors = dict[str, Tensor]

TD = StreamSettings("td", False, 18, 0, (33, 16))
Q = StreamSettings("q", True, 5, 3, (17, 20))
SARSA = StreamSettings("sarsa", True, 12, 4, (9, 32))
SOFTMAX = StreamSettings("ac", True, 4, 5, (32, 32))
NORMAL = StreamSettings("ac", False, 18, 6, (40, 24))
CASES = {
    "td": TD,
    "td linear": dataclasses.replace(TD, hidden=()),
    "td of one number": dataclasses.replace(TD, observation_dim=1, hidden=(1, 2, 3)),
    "q watkins": Q,
    "q official": dataclasses.replace(Q, trace_cut="official", official_time_limit=True),
    "q wide": dataclasses.replace(Q, observation_dim=130, hidden=(64, 128)),
    "sarsa": SARSA,
    "sarsa without normalisers": dataclasses.replace(SARSA, normalize_observations=False, scale_rewards=False),
    "softmax": SOFTMAX,
    "softmax without layer norm": dataclasses.replace(SOFTMAX, layer_norm=False, clear_before_add=False),
    "normal": NORMAL,
    "normal of one number": dataclasses.replace(NORMAL, observation_dim=3, action_dim=1, entropy=0.3),
    "normal linear": dataclasses.replace(NORMAL, hidden=()),
    "normal of five layers": dataclasses.replace(NORMAL, hidden=(8, 19, 3, 35)),
}
CASES |= {
    f"{name} {optimizer}": dataclasses.replace(CASES[name], optimizer=optimizer)
    for name in ("td", "q watkins", "sarsa", "softmax", "normal")
    for optimizer in ("adaptive", "sgd")
}
every_case = pytest.mark.parametrize("settings", CASES.values(), ids=CASES.keys())


def tensors_for(settings: StreamSettings, streams: int, dtype: str = "float64") -> Tensors:
    """Zeros, but random sparse weights; all streams are active."""
    table = stream.layout(settings, streams, dtype)
    tensors = {name: torch.zeros(shape, dtype=getattr(torch, kind)) for name, (shape, kind) in table.items()}
    for name in ("critic_weights", "actor_weights"):
        if name in tensors:
            random = torch.randn(tensors[name].shape, dtype=torch.float64) * 0.3
            tensors[name].copy_(random * (torch.rand(random.shape) < 0.6))
    tensors["in_active"].fill_(1)
    return tensors


def phases_of(settings: StreamSettings) -> int:
    return STEP | ACT_BEFORE if settings.kind == "sarsa" else STEP


def draw_inputs(tensors: Tensors, generator: np.random.Generator, ends: float = 0.2, missing: float = 0.1) -> None:
    streams = len(tensors["in_active"])
    done = generator.random(streams) < ends
    terminated = generator.random(streams) < 0.5
    inputs = {
        "in_observations": generator.normal(3, 2, tuple(tensors["in_observations"].shape)),
        "in_first": generator.normal(3, 2, tuple(tensors["in_first"].shape)),
        "in_rewards": generator.normal(1, 2, streams),
        "in_terminated": done & terminated,
        "in_truncated": done & ~terminated,
        "in_ended_with_first": done & (generator.random(streams) < 0.7),
        "in_active": generator.random(streams) >= missing,
        "in_epsilon": np.array(0.4),
    }
    if "in_noise" in tensors:
        shape, normal = tuple(tensors["in_noise"].shape), tensors["chosen"].is_floating_point()
        inputs["in_noise"] = generator.normal(size=shape) if normal else generator.random(shape)
    for name in inputs.keys() & tensors.keys():
        tensors[name].copy_(torch.as_tensor(np.asarray(inputs[name])))


def one_stream(tensors: Tensors, k: int) -> Tensors:
    """Copies of stream k's part, floats in float64."""
    parts = {name: (value[k] if value.ndim else value).clone() for name, value in tensors.items()}
    return {name: value.double() if value.is_floating_point() else value for name, value in parts.items()}


def copy_into(to: Tensors, values: Tensors) -> None:
    for name, value in values.items():
        to[name].copy_(value)


def assert_near(tensors: Tensors, expected: list[Tensors], tolerance: float) -> None:
    for k, one in enumerate(expected):
        for name, value in one.items():
            found = tensors[name][k] if tensors[name].ndim else tensors[name]
            scale = max(
                1.0 if name == "out_td" else 1e-3, float(value.double().abs().max())
            )  # numbers of order 1 cancel
            assert found.shape == value.shape
            off = float((found.double() - value.double()).abs().max())
            assert off <= tolerance * scale, f"{name} of stream {k} is off by {off}: {found} instead of {value}"
