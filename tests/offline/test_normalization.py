"""Observations mapped by their range or quantiles: by hand, and the same numbers in the policy's ONNX and C++ files."""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import torch
from refusals import refused

from surefoot.core.policy.cpp import header
from surefoot.core.policy.policy import Policy
from surefoot.data import Dataset, from_arrays
from surefoot.offline import BC

COMPILER = shutil.which("c++") or shutil.which("g++")


def log() -> Dataset:
    """0 to 200 in order, the same with an outlier of 1e6, a constant, and a switch that is on once in 201 steps."""
    steps = np.arange(201.0)
    far, switch = steps.copy(), np.zeros(201)
    far[-1], switch[7] = 1e6, 1
    observations = np.stack([steps, far, np.full(201, 3.0), switch], 1)
    return from_arrays(observations, np.sin(steps)[:, None], timeouts=steps == 200)


def trained(how: str) -> BC:
    agent = BC(log(), normalization=how, hidden=(8,)).fresh(0)
    agent.prepare(log())
    return agent


def test_the_range_becomes_minus_one_to_one() -> None:
    agent = BC(log(), normalization="range", hidden=(8,))
    ready = agent.prepare(log())
    np.testing.assert_allclose(ready.observations[:, 0], np.linspace(-1, 1, 201), atol=1e-6)
    assert (ready.observations[:, 2] == 0).all()
    assert ready.observations[[6, 7, 8], 3].tolist() == [-1, 1, -1]
    assert agent.normalizer.mean.tolist() == [100, 500_000, 3, 0.5]
    assert agent.normalizer.scale.tolist() == [100, 500_000, 1, 0.5]


def test_the_quantiles_become_minus_one_and_one_and_outliers_go_beyond() -> None:
    agent = BC(log(), normalization="quantile", hidden=(8,))
    ready = agent.prepare(log())
    # the 1st and 99th of 201 values in order are at places 2 and 198: 2 and 198
    assert agent.normalizer.mean.tolist() == [100, 100, 3, 0.5]
    assert agent.normalizer.scale.tolist() == [98, 98, 1, 0.5]
    assert ready.observations[[2, 198], 1].tolist() == [-1, 1]
    assert ready.observations[200, 1] == pytest.approx((1e6 - 100) / 98)


def test_an_unknown_word_names_those_that_there_are() -> None:
    with refused("normalization", "choice"):
        BC(log(), normalization="ranges", hidden=(8,)).prepare(log())


@pytest.mark.parametrize("how", ["range", "quantile"])
def test_files_of_a_policy_give_its_actions(how: str, tmp_path: pathlib.Path) -> None:
    policy = trained(how).policy()
    rows = log().observations[::20]
    wanted = policy(torch.from_numpy(rows)).detach().numpy()
    policy.save(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(Policy.load(tmp_path / "p.safetensors")(torch.from_numpy(rows)).detach(), wanted)
    if COMPILER is not None:
        (tmp_path / "p.hpp").write_text(header(policy, "p"))
        call = 'extern "C" int act(const float* o, float* a) { static p::Policy one; return one.act(o, a); }\n'
        (tmp_path / "p.cpp").write_text('#include "p.hpp"\n' + call)
        built = [COMPILER, "-std=c++11", "-shared", "-fPIC", "-o", tmp_path / "p.so", tmp_path / "p.cpp"]
        subprocess.run(built, check=True)
        act, pointer = ctypes.CDLL(str(tmp_path / "p.so")).act, ctypes.POINTER(ctypes.c_float)
        for row, action in zip(rows, wanted, strict=True):
            found = np.zeros(1, np.float32)
            act(np.ascontiguousarray(row).ctypes.data_as(pointer), found.ctypes.data_as(pointer))
            assert found == pytest.approx(action, abs=1e-5)


@pytest.mark.parametrize("how", ["range", "quantile"])
def test_onnx_gives_its_actions(how: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    from surefoot.core.policy.export import export

    policy = trained(how).policy()
    rows = log().observations[::20]
    export(policy, tmp_path / "p.onnx")
    session = runtime.InferenceSession(str(tmp_path / "p.onnx"), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: rows})[0]
    np.testing.assert_allclose(found, policy(torch.from_numpy(rows)).detach().numpy(), atol=1e-5)
