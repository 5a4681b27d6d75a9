"""Dreamer's training steps are taped from the first on, so that a resumed run continues the same bits."""

from __future__ import annotations

import pytest
import torch

from surefoot.core.nn.native import native, tape
from surefoot.envs.acting import make_vec, spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.runs.plan import agent_class


def loop() -> OffPolicyLoop:
    env = make_vec("native/pendulum", 1)
    kind = agent_class("dreamer")
    config = kind.configure(preset="tiny", initial_steps=100, windows=2, length=8, imagined=3)
    return OffPolicyLoop([kind(spec_of(env), config).fresh(5)], [5], env, planned_steps=200, kernels=True)


@pytest.mark.skipif(native.library() is None, reason="no native module")
def test_a_resumed_run_goes_on_with_the_same_bits() -> None:
    """LaProp's first step is as long whatever the gradient is: rounding must not decide whether steps are taped."""
    whole, resumed = loop(), loop()
    whole.run(120)
    assert whole.learner.step > 0
    assert whole.learner.eager_because() == {}
    assert resumed.restore([{name: value.clone() for name, value in whole.state(0).items()}], whole.step) is None
    for each in (whole, resumed):
        each.run(12)
    assert resumed.learner.eager_because() == {}
    expected = whole.state(0)
    assert all(torch.equal(value, expected[name]) for name, value in resumed.state(0).items())


def test_what_an_optimizer_has_stepped_may_differ_in_a_few_numbers_and_gradients_may_not() -> None:
    expected = torch.full((1000,), 0.1)
    few, many = expected.clone(), expected.clone()
    few[:20], many[:200] = -0.1, -0.1
    assert tape._agree(few, expected, stepped=True)
    assert not tape._agree(few, expected)
    assert not tape._agree(many, expected, stepped=True)
