"""No action leaves its bounds, though middle + half width is rounded: by each way in which a policy acts."""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import torch

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.heads import DeterministicActor, UnboundedGaussianActor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.actions import to_bounds, to_environment
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.core.policy.policy import Policy

LOW, HIGH = torch.tensor([-2.0, -0.1, -1.4]), torch.tensor([-0.8, 0.7, 4.3])
"""Of which (high + low) / 2 + (high - low) / 2 is above `high` once, and (high + low) / 2 - (high - low) / 2 below."""
ACTORS = {
    "deterministic": lambda: DeterministicActor(3, 3, (8,)),
    "clipped": lambda: UnboundedGaussianActor(3, 3, (8,)),
    "flow": lambda: FlowActor(PlainVelocity(3, 3, (8,)), 3, 4),
    "chunk": lambda: ChunkActor(DeterministicActor(3, 6, (8,)), 2, 3),
}


def far(actor: Actor, sign: float) -> Policy:
    """A policy whose actions are all at one end."""
    inner = getattr(actor, "inner", actor)
    mlp = inner.network.mlp if isinstance(inner, FlowActor) else inner.mlp
    with torch.no_grad():
        mlp.biases[-1].fill_(50.0 * sign)
    return Policy.of(actor, Normalizer(3), LOW, HIGH)


def test_middle_and_half_width_leave_the_bounds_when_they_are_rounded() -> None:
    ends = torch.stack([to_environment(sign * torch.ones(3), LOW, HIGH) for sign in (-1, 1)])
    assert bool((ends[0] < LOW).any() or (ends[1] > HIGH).any())  # else the tests below show nothing


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", list(ACTORS))
def test_actions_at_the_end_are_the_bounds_to_the_bit(name: str, sign: float) -> None:
    tested, bound = far(ACTORS[name](), sign), (HIGH if sign > 0 else LOW).numpy()
    seen = np.zeros(3, np.float32)
    one = tested.select_action(seen)
    assert tested._single is not None or name == "chunk"
    np.testing.assert_array_equal(np.clip(one, LOW.numpy(), HIGH.numpy()), one)
    np.testing.assert_allclose(one, bound, rtol=1e-6)
    batch = tested.act(torch.zeros(4, 3), tested.begin(4))[0].numpy()
    np.testing.assert_array_equal(np.clip(batch, LOW.numpy(), HIGH.numpy()), batch)
    np.testing.assert_allclose(batch, np.tile(bound, (4, 1)), rtol=1e-6)


def test_numbers_within_the_bounds_are_those_of_the_scaling_to_the_bit() -> None:
    actions = torch.rand(1000, 3, generator=torch.Generator().manual_seed(0)) * 1.998 - 0.999
    assert torch.equal(to_bounds(actions, LOW, HIGH), to_environment(actions, LOW, HIGH))
    even, wide = HIGH.abs(), 2 * actions
    assert torch.equal(to_bounds(wide, -even, even), to_environment(wide.clamp(-1, 1), -even, even))
    assert bool(to_bounds(torch.tensor([torch.nan]), LOW[:1], HIGH[:1]).isnan())  # which who acts must notice


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_exported_files_stay_within_the_bounds(sign: float, tmp_path: pathlib.Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    tested = far(DeterministicActor(3, 3, (8,)), sign)
    for ending in ("onnx", "pt2"):
        tested.export(tmp_path / f"policy.{ending}")
    running = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    module = torch.export.load(tmp_path / "policy.pt2").module()
    rows = torch.zeros(3, 3)
    for found in (running.run(None, {"observations": rows.numpy()})[0], module(rows).numpy()):
        np.testing.assert_array_equal(np.clip(found, LOW.numpy(), HIGH.numpy()), found)
    assert np.isnan(running.run(None, {"observations": np.full((1, 3), np.nan, np.float32)})[0]).all()


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler (c++)")
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_headers_stay_within_the_bounds(sign: float, tmp_path: pathlib.Path) -> None:
    far(ACTORS["chunk"](), sign).export(tmp_path / "arm.hpp")
    source = '#include "arm.hpp"\nextern "C" bool act(const float* x, float* a) { static arm::Policy p; '
    (tmp_path / "arm.cpp").write_text(source + "return p.act(x, a); }\n")
    subprocess.run(["c++", "-std=c++11", "-O2", "-shared", "-fPIC", "-oarm.so", "arm.cpp"], check=True, cwd=tmp_path)
    library, pointer = ctypes.CDLL(str(tmp_path / "arm.so")), ctypes.POINTER(ctypes.c_float)
    library.act.restype = ctypes.c_bool
    seen, found = np.zeros(3, np.float32), np.full(3, 77, np.float32)
    for _ in range(3):
        assert library.act(seen.ctypes.data_as(pointer), found.ctypes.data_as(pointer))
        np.testing.assert_array_equal(np.clip(found, LOW.numpy(), HIGH.numpy()), found)
        np.testing.assert_allclose(found, (HIGH if sign > 0 else LOW).numpy(), rtol=1e-6)
