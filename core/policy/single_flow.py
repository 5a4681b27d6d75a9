"""One action at a time of a flow policy: one native call for scaling, noise, all steps of the flow and its memory.

Torch's calls cost several microseconds each by themselves, and a flow of four steps takes a hundred of them. Without
the native module, or with an activation that it lacks, products are numpy's and activations torch's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.actors.flow_actor import FlowActor, OneStepActor
from surefoot.core.actors.memory import Memory
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.counter import purpose_word
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.losses.flow import times
from surefoot.core.nn.native.native import RowFlow, RowNetwork, RowPolicy
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.residual import ResidualMLP
from surefoot.core.nn.velocity import EmbeddedVelocity, PlainVelocity, ShortcutVelocity
from surefoot.core.policy.control_loop import as_array
from surefoot.core.policy.policy_module import NOISE, PolicyModule, policy_noise

Array = np.ndarray[Any, Any]
ONE = np.ones((), np.float32)
IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "silu": lambda x: nn.functional.silu(x, inplace=True),
    "mish": lambda x: nn.functional.mish(x, inplace=True),
    "gelu": lambda x: torch.ops.aten.gelu.out(x, approximate="none", out=x),
    "gelu_tanh": lambda x: torch.ops.aten.gelu.out(x, approximate="tanh", out=x),
    "leaky_relu": lambda x: nn.functional.leaky_relu(x, inplace=True),
}
"""Activation -> the same on a buffer."""


class _Layer:
    """x W' + b of one row, into a buffer of its own that numpy and torch both see."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.times: Callable[..., Any] = weight.detach().numpy().dot
        self.bias, self.out = bias.detach().numpy(), np.empty(len(bias), np.float32)
        self.tensor = torch.from_numpy(self.out)

    def __call__(self, value: Array) -> Array:
        self.times(value, self.out)
        np.add(self.out, self.bias, self.out)
        return self.out


class _Plain:
    """An MLP of one row, in numpy."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str) -> None:
        self.layers = [_Layer(w, b) for w, b in zip(weights, biases, strict=True)]
        self.last, self.act = self.layers.pop(), IN_PLACE[activation]

    def __call__(self, value: Array) -> Array:
        for layer in self.layers:
            value = layer(value)
            self.act(layer.tensor)
        return self.last(value)


class _Residual:
    """A residual MLP of one row, in numpy."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str) -> None:
        self.first, *blocks, self.last = (_Layer(w, b) for w, b in zip(weights, biases, strict=True))
        self.blocks = list(zip(blocks[::2], blocks[1::2], strict=True))
        self.act, self.active = IN_PLACE[activation], np.empty(len(biases[0]), np.float32)
        self.tensor = torch.from_numpy(self.active)

    def __call__(self, value: Array) -> Array:
        x = self.first(value)
        for one, two in self.blocks:
            np.copyto(self.active, x)
            self.act(self.tensor)
            one(self.active)
            self.act(one.tensor)
            np.add(x, two(one.out), x)
        return self.last(x)


class _Numpy:
    """What `core.nn.native.native.RowPolicy` does, in numpy."""

    def __init__(self, flow: RowFlow, memory: Memory, observation: Array, action: Array) -> None:
        self.flow, self.observation, self.action = flow, observation, action
        self.memory = {name: value.numpy() for name, value in memory.items()}
        self.body = _body(flow.network)
        self.condition = None if flow.condition is None else _body(flow.condition)
        self.mean, self.scale, self.low, self.high = (t.numpy() for t in (*flow.normalizer, *flow.bounds))
        self.inputs = np.zeros(flow.network.weights[0].shape[1], np.float32)
        self.width = len(flow.network.biases[-1])

    def act(self) -> int:
        seen = (self.observation - self.mean) / self.scale
        if not np.isfinite(seen).all():
            return 1
        memory, count = self.memory, len(self.action)
        plays = "queue" in memory and memory["queued"][0] > 0
        planned = memory["queue"].reshape(-1).copy() if plays else self._planned(seen)
        np.multiply((self.high - self.low) / 2, planned[:count], out=self.action)
        self.action += (self.high + self.low) / 2
        np.minimum(np.maximum(self.action, self.low), self.high, out=self.action)  # rounding may lead beyond a bound
        if not np.isfinite(self.action).all():
            return 2
        memory["draws"][0, 1] += 1
        if "queue" in memory:
            queue = memory["queue"].reshape(-1)
            queue[: self.width - count], queue[self.width - count :] = planned[count:], 0
            memory["queued"][:] = (memory["queued"] if plays else self.flow.execute) - 1
        return 0

    def _planned(self, seen: Array) -> Array:
        flow, given, seed_and_count = self.flow, self.inputs, self.memory["draws"][0].tolist()
        noise = policy_noise(1, self.width, *seed_and_count)[0].numpy()
        condition = seen if self.condition is None else self.condition(seen)
        features = flow.features + condition if flow.summed else flow.features
        at, place, feature_place = flow.places
        if not flow.summed:
            given[at : at + len(condition)] = condition
        x = noise
        for row in features:
            given[place : place + len(x)] = x
            given[feature_place : feature_place + len(row)] = row
            x = x + np.float32(1 / len(features)) * self.body(given)
            if flow.clip_each:
                x = np.minimum(np.maximum(x, -ONE), ONE)
        if len(features) == 0:
            given[place : place + len(x)] = x
            x = self.body(given)
        return np.minimum(np.maximum(x, -ONE), ONE)


def _body(network: RowNetwork) -> Callable[[Array], Array]:
    kind = _Residual if network.residual else _Plain
    return kind(network.weights, network.biases, network.activation)


def row_network(network: MLP | ResidualMLP) -> RowNetwork:
    """A network without norms, for one row at a time."""
    if isinstance(network, ResidualMLP):
        linear: list[Any] = [network.first, *network.blocks, network.last]
        weights, biases = [one.weight.detach() for one in linear], [one.bias.detach() for one in linear]
    else:
        weights, biases = [w.detach() for w in network.weights], [b.detach() for b in network.biases]
    return RowNetwork(weights, biases, network.activation, isinstance(network, ResidualMLP))


class _Times:
    """Embeddings of the steps' times: the same at each call, until their weights are changed."""

    def __init__(self, actor: FlowActor, network: EmbeddedVelocity) -> None:
        self.network = network
        self.times = torch.tensor(times(actor.steps))
        sizes = torch.full_like(self.times, 1 / actor.steps)
        self.given = (self.times, sizes) if isinstance(network, ShortcutVelocity) else (self.times,)
        self.read = [network.sinusoids.frequencies, *network.embed.parameters()]
        self.table, self.version = np.zeros((actor.steps, network.time_width), np.float32), -1

    def refresh(self) -> None:
        """Compute `table` anew where a weight has changed."""
        version = 0
        for tensor in self.read:
            version += tensor._version
        if version != self.version:
            with torch.no_grad():
                self.table[:] = self.network.time_features(*self.given).numpy()
            self.version = version


class SingleFlow:
    """(O,) observation -> (A,) float32 action of a flow policy, with the noise that the policy draws; or None.

    It reads the policy's own tensors where they lie, so weights that are changed in place count at once. Its results
    are those of `Policy.act` up to rounding, and the policy's memory continues as there, in tensors that it changes in
    place. Several threads may call it: they take turns, in one episode.
    """

    def __init__(self, policy: PolicyModule) -> None:
        """Take views of the policy's tensors; of a policy for which `fits` is true."""
        self.policy, self.turn = policy, threading.Lock()
        self.observation = np.zeros(policy.observation_dim, np.float32)
        self.action = np.zeros(policy.action_dim, np.float32)
        self.shape = self.observation.shape
        self.memory = policy.begin(1, policy._seed)
        self.times: _Times | None = None
        flow = self._flow()
        kind = RowPolicy if flow.fits else _Numpy
        self.row = kind(flow, self.memory, self.observation, self.action)

    def _flow(self) -> RowFlow:
        policy, chunk = self.policy, self.policy.actor
        actor: Any = chunk.inner if isinstance(chunk, ChunkActor) else chunk
        seen, width = policy.observation_dim, actor.noise_dim
        parts: dict[str, Any]
        if isinstance(actor, OneStepActor):  # reads [observation, noise]
            parts = {
                "network": row_network(actor.mlp),
                "places": (0, seen, 0),
                "features": np.zeros((0, 0), np.float32),
            }
        elif isinstance(
            actor.network, EmbeddedVelocity
        ):  # [x, embedded time, embedded observation], or the sum of both
            network = actor.network
            self.times = _Times(actor, network)
            parts = {
                "network": row_network(network.body),
                "condition": None if network.encode is None else row_network(network.encode),
                "summed": isinstance(network, ShortcutVelocity),
                "places": (width + network.time_width, 0, width),
                "features": self.times.table,
            }
        else:  # [observation, x, time]
            features = np.array(times(actor.steps), np.float32).reshape(-1, 1)
            parts = {"network": row_network(actor.network.mlp), "places": (0, seen, seen + width), "features": features}
        return RowFlow(
            **{"condition": None, "summed": False, **parts},
            clip_each=getattr(actor, "clip_each", False),
            normalizer=(policy.normalizer.mean, policy.normalizer.scale),
            bounds=(policy.action_low, policy.action_high),
            purpose=purpose_word(NOISE),
            execute=chunk.execute if isinstance(chunk, ChunkActor) else 0,
        )

    def __call__(self, observation: Array) -> Array | None:
        """The action; None, with the memory as it was, where the observation or the action is not as it should be."""
        if type(observation) is not np.ndarray or observation.dtype != np.float32:
            try:
                observation = as_array(observation, np.float32)
            except EnvironmentMismatchError:
                return None
        if observation.shape != self.shape:
            return None
        with self.turn:
            if self.policy._memory is not self.memory:
                self._begin()
            if self.times is not None:
                self.times.refresh()
            np.copyto(self.observation, observation)
            return None if self.row.act() else self.action.copy()

    def _begin(self) -> None:
        """Continue from the policy's memory, which another way of acting or `restore` has left, or from none."""
        policy = self.policy
        before = policy.begin(1, policy._seed) if policy._memory is None else policy._memory
        for name, value in self.memory.items():
            value.copy_(before[name])
        policy._memory = self.memory


def fits(policy: PolicyModule) -> bool:
    """Whether `SingleFlow` knows a policy of this kind, or its chunks: float32, on the CPU, one candidate, no norms."""
    actor = policy.actor.inner if type(policy.actor) is ChunkActor else policy.actor
    if policy.encoder is not None or policy.normalizer.limit != float("inf"):
        return False
    mlp: MLP | None = None
    if isinstance(actor, OneStepActor):
        mlp = actor.mlp
    elif type(actor) is FlowActor and actor.samples == 1:
        network = actor.network
        if type(network) not in (PlainVelocity, EmbeddedVelocity, ShortcutVelocity):
            return False
        mlp = network.mlp if isinstance(network, PlainVelocity) else None
    else:
        return False
    plain = mlp is None or (len(mlp.scales) == 0 and not mlp.unit_features)
    return plain and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in policy.state_dict().values())
