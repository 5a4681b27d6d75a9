"""One row through a network in native code is what torch makes of it, and threads that share a policy take turns."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.actors.flow_actor import FlowActor, OneStepActor
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.nn.activations import ACTIVATIONS
from surefoot.core.nn.native import native
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.residual import ResidualMLP
from surefoot.core.nn.velocity import EmbeddedVelocity, PlainVelocity, ShortcutVelocity
from surefoot.core.policy.policy import Policy
from surefoot.core.policy.single_flow import SingleFlow, _Numpy, row_network

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


def outputs_of(network: Any, inputs: np.ndarray) -> np.ndarray:
    """Of one row, by native code."""
    row = row_network(network)
    assert row.fits
    outputs = np.zeros(len(row.biases[-1]), np.float32)
    row.native().forward(inputs.ctypes.data, outputs.ctypes.data)
    return outputs


@built
@pytest.mark.parametrize("activation", native.ROW_HIDDEN)
@pytest.mark.parametrize("residual", [False, True])
def test_a_row_is_what_the_layers_are_defined_as(activation: str, residual: bool) -> None:
    for hidden, inputs, outputs in (((37,) * 3, 23, 5), ((64,) * 5, 1, 9), ((7,), 70, 1)):
        network = (ResidualMLP if residual else MLP)(inputs, outputs, hidden, activation=activation)
        for scale in (1.0, 30.0):  # where activations are cut or have saturated
            x = scale * torch.randn(inputs)
            expected = by_hand(network, x.double(), residual).detach().numpy()
            found = outputs_of(network, x.numpy())
            np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * max(1.0, np.abs(expected).max()))


@built
def test_every_instruction_set_gives_the_same_up_to_rounding() -> None:
    module: Any = native.library()
    network, highest, found = MLP(50, 7, (90, 33), activation="mish"), module.level(), []
    inputs = np.linspace(-2, 2, 50, dtype=np.float32)
    try:
        for level in ("generic",) if highest == "generic" else ("v2", "v3", "v4")[: int(highest[1:]) - 1]:
            module.set_level(level)
            found.append(outputs_of(network, inputs))
    finally:
        module.set_level(highest)
    for other in found:
        np.testing.assert_allclose(other, found[0], rtol=0, atol=1e-6)


HEADS: dict[str, Any] = {
    "one step": lambda: OneStepActor(5, 3, (40, 40)),
    "flow": lambda: FlowActor(PlainVelocity(5, 3, (40, 40)), 3, 4),
    "clipped at each step": lambda: FlowActor(PlainVelocity(5, 3, (40, 40)), 3, 4, clip_each=True),
    "embedded": lambda: FlowActor(EmbeddedVelocity(5, 3, (32,) * 3, "mish", 6), 3, 4),
    "conditioned": lambda: FlowActor(EmbeddedVelocity(5, 3, (32,) * 3, "relu", 6, (20, 9)), 3, 4),
    "summed": lambda: FlowActor(ShortcutVelocity(5, 3, (32,) * 3), 3, 4),
    "chunk": lambda: ChunkActor(FlowActor(PlainVelocity(5, 12, (40,)), 12, 2), 4, 3, 2),
}


def flow_policy(kind: str) -> Policy:
    torch.manual_seed(2)
    normalizer = Normalizer(5)
    normalizer.fit(torch.randn(100, 5) * 3 + 1)
    return Policy.of(HEADS[kind](), normalizer, torch.tensor([-1.0, 0.1, -3.0]), torch.tensor([1.0, 0.7, 4.0]))


@built
@pytest.mark.parametrize("kind", HEADS)
def test_a_flow_is_followed_as_without_the_module(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, ways = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32) * 4, []
    for part in (native.RowPolicy, _Numpy):
        with monkeypatch.context() as context:
            context.setattr(native.RowNetwork, "fits", property(lambda self, p=part: p is native.RowPolicy))
            policy = flow_policy(kind)
            policy.reset(seed=2**40 + 3)
            policy.select_action(rows[0])
            single: Any = policy._single
        assert isinstance(single, SingleFlow)
        assert isinstance(single.row, part)
        ways.append((policy, np.stack([policy.select_action(row) for row in rows])))
    np.testing.assert_allclose(ways[0][1], ways[1][1], rtol=0, atol=5e-6)
    assert len(np.unique(ways[0][1].round(3), axis=0)) > 6  # some are cut
    states = [policy.state() for policy, _ in ways]
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=0, atol=5e-6)


@pytest.mark.parametrize("module", [pytest.param(True, marks=built), False])
@pytest.mark.parametrize("kind", ["one step", "chunk"])
def test_ways_of_acting_take_turns_in_one_episode(kind: str, module: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the general way, `restore` and a copy leave is where the quick way continues; none writes in another's."""
    monkeypatch.setattr(native.RowNetwork, "fits", property(lambda self: module))
    policy, rows = flow_policy(kind), np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    policy.reset(seed=5)
    memory, expected = policy.begin(1, seed=5), []
    for row in rows:
        action, memory = policy.act(torch.from_numpy(row)[None], memory)
        expected.append(action[0].numpy())
    found = [policy.select_action(rows[0])]
    state, apart = policy.state(), copy.copy(policy)
    kept = {name: value.clone() for name, value in state.items()}
    found.append(policy.select_action(rows[1]))
    found.append(super(Policy, policy).select_action(rows[2]))
    found += [policy.select_action(row) for row in rows[3:5]]
    assert all(torch.equal(state[name], value) for name, value in kept.items())
    for other in (apart, copy.deepcopy(policy), policy):
        if other is not apart:
            other.restore(state)
        np.testing.assert_allclose(other.select_action(rows[1]), expected[1], rtol=0, atol=2e-6)
        with pytest.raises(EnvironmentMismatchError, match=r"observation\[2\] is nan"):
            other.select_action(np.array([0, 0, np.nan, 0, 0], np.float32))
        found_here = [other.select_action(row) for row in rows[2:]]
        np.testing.assert_allclose(found_here, expected[2:], rtol=0, atol=2e-6)
    np.testing.assert_allclose(found, expected[:5], rtol=0, atol=2e-6)


@built
def test_an_action_that_is_not_finite_draws_nothing() -> None:
    policy, row = flow_policy("one step"), np.zeros(5, np.float32)
    policy.reset(seed=1)
    policy.select_action(row)
    before = policy.state()
    policy.actor.mlp.biases[-1][1] = float("nan")
    with pytest.raises(EnvironmentMismatchError, match="not finite"):
        policy.select_action(row)
    assert torch.equal(policy.state()["draws"], before["draws"])


@built
def test_what_does_not_fit_the_network_is_refused() -> None:
    module: Any = native.library()
    network = row_network(MLP(6, 3, (8,))).native()
    right = {
        "network": network, "condition": None, "observations": 2, "actions": 3, "steps": 2, "clip_each": False,
        "summed": False, "seen_place": 0, "place": 2, "feature_place": 5, "feature_count": 1, "purpose": 1,
        "execute": 0.0, "read": [0] * 5, "draws": 0, "queue": 0, "queued": 0, "observation": 0, "action": 0,
    }  # fmt: skip
    module.RowPolicy(**right)
    for wrong in ({"place": 4}, {"place": -1}, {"feature_place": 6}, {"feature_count": -1}, {"seen_place": 5}):
        with pytest.raises(ValueError, match="outside"):
            module.RowPolicy(**right | wrong)
    for wrong in ({"steps": -1}, {"summed": True}, {"condition": network}):
        with pytest.raises(ValueError, match=r"steps or more|outside"):
            module.RowPolicy(**right | wrong)
    for wrong in ({"actions": 2}, {"actions": 1}, {"actions": 0}, {"queue": 8}):
        with pytest.raises(ValueError, match="needs a queue"):
            module.RowPolicy(**right | wrong)
    with pytest.raises(ValueError, match="are read"):
        module.RowPolicy(**right | {"read": [0] * 4})
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
