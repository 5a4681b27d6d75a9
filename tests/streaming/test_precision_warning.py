"""A streaming agent on a robot warns of what float32 loses of its first samples."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from surefoot.core.agent import Spec
from surefoot.streaming import StreamAC


def drive(agent: StreamAC, offset: float) -> None:
    """300 samples of a robot that moves by an eighth of a metre."""
    agent.begin(np.array([0.0, offset]))
    for t in range(1, 300):
        agent.step(np.array([np.sin(t), offset + t / 8]), 0.5, False, False)


def test_observations_with_a_large_offset_are_warned_of_once() -> None:
    """Of 256 eighths float32 holds every fourth at 5,400,000: t = 4, 8, ..., 256, and 1 and 2 are rounded to 0."""
    sentence = (
        r"stream_ac, its first 256 steps: values of observations\[1\] rounded to float32 \(subtract 5,400,000 in the "
        r"environment\): 65 of 256 different ones are left, errors up to 0.25 \(0.027 standard deviations\)"
    )
    with pytest.warns(RuntimeWarning, match=sentence) as caught:
        drive(StreamAC(Spec(2, 1, (-1.0,), (1.0,)), hidden=(8,)), 5.4e6)
    assert len(caught) == 1


@pytest.mark.parametrize(("dtype", "offset"), [(torch.float32, 0.0), (torch.float64, 5.4e6)])
def test_samples_that_the_agent_holds_are_not_warned_of(dtype: torch.dtype, offset: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drive(StreamAC(Spec(2, 1, (-1.0,), (1.0,)), hidden=(8,), dtype=dtype), offset)
