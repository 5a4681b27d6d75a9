"""Every system's C++ header says what its torch twin says."""

from __future__ import annotations

import pytest
import torch
from agreement import compare

from surefoot import cuda_ext
from surefoot.envs.systems import SYSTEMS, system

needs_native = pytest.mark.skipif(cuda_ext.native() is None, reason=cuda_ext.why_not_native())


@needs_native
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_reset_observation_and_step_agree_with_the_torch_twin(name: str, dtype: torch.dtype) -> None:
    compare(system(name), dtype)


@needs_native
def test_every_python_system_has_a_header_and_every_header_a_python_system() -> None:
    module = cuda_ext.native()
    assert module is not None
    assert set(module.systems()) == set(SYSTEMS)


@needs_native
@pytest.mark.parametrize("name", SYSTEMS)
def test_header_and_description_have_the_same_widths(name: str) -> None:
    module = cuda_ext.native()
    assert module is not None
    s = system(name)
    described = (len(s.states), len(s.actions), len(s.observations), len(s.parameters), s.uniforms, s.normals)
    widths = module.systems()[name]
    assert widths == described or widths == (0,) * 6  # zeros: chosen at run time


@pytest.mark.parametrize("name", SYSTEMS)
def test_bounds_names_and_presets_of_a_system_fit_each_other(name: str) -> None:
    s = system(name)
    assert len(s.action_low) == len(s.action_high) == len(s.actions)
    assert len(s.observation_low) == len(s.observation_high) == len(s.observations)
    assert all(p.low <= p.default <= p.high for p in s.parameters)
    names = {p.name for p in s.parameters}
    assert all(set(preset) <= names for preset in s.gaps.values())
    assert {"random", "medium", "expert"} <= set(s.behaviours)
    assert "mixed" in s.mixtures
    for shares in s.mixtures.values():
        assert set(shares) <= set(s.behaviours)
        assert sum(shares.values()) == pytest.approx(1.0)
