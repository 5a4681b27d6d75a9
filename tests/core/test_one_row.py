"""One row through a network in native code is what torch makes of it, and threads that share a policy take turns."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.actors.flow_actor import FlowActor, OneStepActor
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.nn.activations import ACTIVATIONS
from surefoot.core.nn.native import native
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.residual import ResidualMLP
from surefoot.core.nn.velocity import EmbeddedVelocity, PlainVelocity
from surefoot.core.policy.policy import Policy
from surefoot.core.policy.single_flow import _Numpy, one_row

built = pytest.mark.skipif(native.library() is None, reason="the native module was not built")


def by_hand(network: Any, x: torch.Tensor, residual: bool) -> torch.Tensor:
    """In float64, from the layers' definition."""
    act = ACTIVATIONS[network.activation]
    if residual:
        layers = [(one.weight.double(), one.bias.double()) for one in (network.first, *network.blocks, network.last)]
        x = layers[0][0] @ x + layers[0][1]
        for (w1, b1), (w2, b2) in zip(layers[1:-1:2], layers[2:-1:2], strict=True):
            x = x + w2 @ act(w1 @ act(x) + b1) + b2
        return layers[-1][0] @ x + layers[-1][1]
    pairs = [(w.double(), b.double()) for w, b in zip(network.weights, network.biases, strict=True)]
    for w, b in pairs[:-1]:
        x = act(w @ x + b)
    return pairs[-1][0] @ x + pairs[-1][1]


@built
@pytest.mark.parametrize("activation", native.ROW_HIDDEN)
@pytest.mark.parametrize("residual", [False, True])
def test_a_row_is_what_the_layers_are_defined_as(activation: str, residual: bool) -> None:
    for hidden, inputs, outputs in (((37,) * 3, 23, 5), ((64,) * 5, 1, 9), ((7,), 70, 1)):
        network = (ResidualMLP if residual else MLP)(inputs, outputs, hidden, activation=activation)
        row = one_row(network)
        assert isinstance(row, native.OneRow)
        for scale in (1.0, 30.0):  # where activations are cut or have saturated
            x = scale * torch.randn(inputs)
            row.inputs[:] = x.numpy()
            row.forward()
            expected = by_hand(network, x.double(), residual).detach().numpy()
            np.testing.assert_allclose(row.outputs, expected, rtol=0, atol=3e-6 * max(1.0, np.abs(expected).max()))


@built
def test_every_instruction_set_gives_the_same_up_to_rounding() -> None:
    module: Any = native.library()
    network, highest, found = MLP(50, 7, (90, 33), activation="mish"), module.level(), []
    row = one_row(network)
    row.inputs[:] = np.linspace(-2, 2, 50, dtype=np.float32)
    try:
        for level in ("generic",) if highest == "generic" else ("v2", "v3", "v4")[: int(highest[1:]) - 1]:
            module.set_level(level)
            row.forward()
            found.append(row.outputs.copy())
    finally:
        module.set_level(highest)
    for other in found:
        np.testing.assert_allclose(other, found[0], rtol=0, atol=1e-6)


@built
@pytest.mark.parametrize("clip", [False, True])
def test_a_flow_is_followed_as_without_the_module(clip: bool) -> None:
    network = PlainVelocity(5, 3, (40, 40))
    weights, biases = list(network.mlp.weights), list(network.mlp.biases)
    ways: list[Any] = [one_row(network.mlp), _Numpy(weights, biases, "gelu_tanh", False)]
    seen, noise = np.linspace(-1, 1, 5, dtype=np.float32), np.array([2.0, -1.5, 0.1], np.float32)
    for way in ways:
        table = way.follow(4, clip, 5, 1, 8)
        table[:, 0] = [0, 0.25, 0.5, 0.75]
        way.inputs[:5], way.outputs[:] = seen, noise
        way.flow()
    np.testing.assert_allclose(ways[0].outputs, ways[1].outputs, rtol=0, atol=2e-6)
    assert (np.abs(ways[0].outputs) <= 1).all() or not clip


@built
def test_numbers_that_would_lie_outside_of_the_input_are_refused() -> None:
    row = one_row(MLP(6, 3, (8,)))
    for place, features, at in ((4, 1, 0), (-1, 1, 0), (0, 2, 5), (0, 1, -1)):
        row.follow(2, False, place, features, at)
        with pytest.raises(ValueError, match="outside"):
            row.flow()
    module: Any = native.library()
    with pytest.raises(ValueError, match="reads what"):
        module.OneRow([3, 5], [4, 2], [0, 0], [0, 0], 0, False)
    with pytest.raises(ValueError, match="blocks of two"):
        module.OneRow([3, 4, 4], [4, 4, 2], [0, 0, 0], [0, 0, 0], 0, True)


KINDS: dict[str, Any] = {
    "mean action": lambda: TanhGaussianActor(17, 6, (256, 256)),
    "one step": lambda: OneStepActor(17, 6, (256, 256)),
    "flow": lambda: FlowActor(PlainVelocity(17, 6, (256, 256)), 6, 2),
    "embedded": lambda: FlowActor(EmbeddedVelocity(17, 6, (256,) * 3, "mish", 6), 6, 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_share_a_policy_get_actions_of_their_own_observations(kind: str) -> None:
    """Of a policy that draws noise: the noise of some call, each call's once."""
    policy = Policy.of(KINDS[kind](), Normalizer(17), -torch.ones(6), torch.ones(6))
    calls, each = 4, 60 if kind != "mean action" else 1000
    seen = torch.randn(calls, 17)
    policy.reset(seed=3)
    memory, expected = policy.begin(1, seed=3), []
    for _ in range(calls * each if policy.always_samples else 1):
        alone = [policy.act(one.unsqueeze(0), memory) for one in seen]
        expected.append(np.stack([action[0].numpy() for action, _ in alone]))  # (calls, A) with this noise
        memory = alone[0][1]
    wanted: Any = np.stack(expected)
    wrong, used = [], []

    def ask(row: int) -> None:
        observation = seen[row].numpy()
        for _ in range(each):
            action = policy.select_action(observation)
            apart = np.abs(wanted[:, row] - action).max(-1)
            used.append(int(apart.argmin()))
            if apart.min() > 1e-4:
                wrong.append(row)

    threads = [threading.Thread(target=ask, args=(row,)) for row in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(used) == calls * each
    assert not policy.always_samples or sorted(used) == list(range(calls * each))
