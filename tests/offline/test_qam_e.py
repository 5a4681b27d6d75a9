"""QAM-E's editing policy against its equations in numpy, in float64, from numbers that are written down here.

Source: Li and Levine, "Q-learning with Adjoint Matching" (2026) and its official code: hidden layers with GELU in its
tanh form, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); Glorot's uniform weights, zero biases; a log standard
deviation within [-20, 2].
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from problems import spec
from refusals import refused

from surefoot.offline import QAME

Array = NDArray[np.float64]
Layers = list[tuple[Array, Array]]
ROWS, STEPS, SCALE, ALPHA = 5, 3, 0.4, 0.7
OBSERVATIONS, ACTIONS, HIDDEN, CRITICS = 3, 2, (4, 3), 2


def numbers(*shape: int, first: float) -> Array:
    """Numbers in [-1, 1] that no generator has to draw."""
    return np.sin(first + 1.7 * np.arange(math.prod(shape))).reshape(shape)


def layers(inputs: int, outputs: int, first: float) -> Layers:
    sizes = [inputs, *HIDDEN, outputs]
    return [
        (numbers(out, into, first=first + i), numbers(out, first=first - i))
        for i, (into, out) in enumerate(itertools.pairwise(sizes))
    ]


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def forward(network: Layers, x: Array, norms: bool = False) -> Array:
    for weight, bias in network[:-1]:
        x = gelu(x @ weight.T + bias)
        if norms:
            x = x - x.mean(-1, keepdims=True)
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return x @ network[-1][0].T + network[-1][1]


IMPROVED = layers(OBSERVATIONS + ACTIONS + 1, ACTIONS, 0.3)
EDIT = layers(OBSERVATIONS + ACTIONS, 2 * ACTIONS, 1.1)
EDIT[-1][1][ACTIONS:] = (-9.0, 0.5)  # of the deviations: one far below exp(-5)
JUDGES = [layers(OBSERVATIONS + ACTIONS, 1, 2.0 + i) for i in range(CRITICS)]
SEEN, START, DRAWN = (numbers(ROWS, n, first=f) for n, f in ((OBSERVATIONS, 5.0), (ACTIONS, 6.0), (ACTIONS, 7.0)))


def flowed() -> Array:
    x = START
    for k in range(STEPS):
        x = x + forward(IMPROVED, np.concatenate([SEEN, x, np.full((ROWS, 1), k / STEPS)], -1)) / STEPS
    return x.clip(-1, 1)


def edited(before: Array) -> tuple[Array, Array]:
    """(B, A) edited actions, not clipped, and log-densities of the edits."""
    mean, log_std = np.split(forward(EDIT, np.concatenate([SEEN, before], -1)), 2, -1)
    log_std = log_std.clip(-20, 2)
    edit = np.tanh(mean + np.exp(log_std) * DRAWN)
    normal = -0.5 * DRAWN**2 - log_std - 0.5 * math.log(2 * math.pi)
    return before + SCALE * edit, (normal - np.log(1 - edit**2)).sum(-1)


def value(actions: Array) -> Array:
    return np.mean([forward(one, np.concatenate([SEEN, actions], -1), True)[:, 0] for one in JUDGES], 0)


def loss_by_hand() -> tuple[float, float]:
    """Loss of the edits and their temperature, with the value's slope times the action, and the entropy."""
    action, density = edited(flowed())
    slope = np.empty_like(action)
    for number in range(ACTIONS):  # a complex step gives the slope to the last digit
        step = np.zeros(ACTIONS, complex)
        step[number] = 1e-30j
        slope[:, number] = value(action.clip(-1, 1) + step).imag / 1e-30
    slope[np.abs(action) > 1] = 0
    target = -0.5 * ACTIONS
    policy = (ALPHA * density - (slope * action).sum(-1)).mean()
    return float(policy + ALPHA * (-density.mean() - target)), float(-density.mean())


def agent_of_these_numbers() -> QAME:
    options = {"flow_steps": STEPS, "edit_scale": SCALE, "critics": CRITICS, "temperature": ALPHA}
    agent = QAME(spec(OBSERVATIONS, ACTIONS), hidden=HIDDEN, **options).double()
    with torch.no_grad():
        agent.temperature.set(ALPHA)
        for network, ours in ((IMPROVED, agent.improved.mlp), (EDIT, agent.edit.mlp)):
            for (weight, bias), w, b in zip(network, ours.weights, ours.biases, strict=True):
                w.copy_(torch.from_numpy(weight))
                b.copy_(torch.from_numpy(bias))
        for i, judge in enumerate(JUDGES):
            for (weight, bias), w, b in zip(judge, agent.critic.mlp.weights, agent.critic.mlp.biases, strict=True):
                w[i].copy_(torch.from_numpy(weight))
                b[i].copy_(torch.from_numpy(bias))
    return agent


def test_edits_of_given_weights_are_those_of_the_equations() -> None:
    agent, (action, density) = agent_of_these_numbers(), edited(flowed())
    seen, start, drawn = (torch.from_numpy(one) for one in (SEEN, START, DRAWN))
    flows = agent.head.act(seen, start)
    np.testing.assert_allclose(flows.detach(), flowed(), rtol=1e-12, atol=1e-13)
    found, log_density = agent.editor.edited(seen, flows, drawn)
    np.testing.assert_allclose(found.detach(), action, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(log_density.detach(), density, rtol=1e-10)


def test_the_edits_loss_and_entropy_are_those_of_the_equations() -> None:
    agent, (loss, entropy) = agent_of_these_numbers(), loss_by_hand()
    noise = {"policy": torch.from_numpy(START), "edit": torch.from_numpy(DRAWN)}
    found, metrics = agent.edit_loss({"observations": torch.from_numpy(SEEN)}, noise)
    assert float(found.detach()) == pytest.approx(loss, rel=1e-10)
    assert float(metrics["edit_entropy"].detach().mean()) == pytest.approx(entropy, rel=1e-10)


def test_weights_of_the_editing_policy_start_within_glorots_bounds_of_each_layer() -> None:
    agent = QAME(spec(30, 10), hidden=(200, 100)).fresh(3)
    mlp, widths = agent.edit.mlp, [40, 200, 100]
    mean, deviation = mlp.weights[-1].detach().chunk(2)
    matrices = [*(w.detach() for w in mlp.weights[:-1]), mean, deviation]
    for matrix, (into, out) in zip(matrices, [*itertools.pairwise(widths), (100, 10), (100, 10)]):
        bound = math.sqrt(6 / (into + out))
        assert tuple(matrix.shape) == (out, into)
        assert 0.97 * bound < float(matrix.abs().max()) <= bound
        assert float(matrix.square().mean()) == pytest.approx(bound**2 / 3, rel=0.1)
    assert all(float(bias.detach().abs().max()) == 0 for bias in mlp.biases)


def test_a_range_of_deviations_the_wrong_way_round_is_refused() -> None:
    with refused("edit_log_std_range", "range"):
        QAME.configure(edit_log_std_range=(2.0, -20.0))
