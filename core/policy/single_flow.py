"""One action at a time of a flow policy: one native call for all steps of a flow, and buffers that are used again.

Torch's calls cost several microseconds each by themselves, and a flow of four steps takes a hundred of them. Without
the native module, or with an activation that it lacks, products are numpy's and activations torch's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.actors.flow_actor import FlowActor, OneStepActor
from surefoot.core.actors.memory import Memory
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.losses.flow import times
from surefoot.core.nn.native.native import OneRow
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.residual import ResidualMLP
from surefoot.core.nn.velocity import EmbeddedVelocity, PlainVelocity, ShortcutVelocity
from surefoot.core.policy.control_loop import as_array
from surefoot.core.policy.scaling import Scaling

if TYPE_CHECKING:
    from surefoot.core.policy.policy_module import PolicyModule

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
    """What `core.nn.native.native.OneRow` does, in numpy."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str, residual: bool) -> None:
        self.body = (_Residual if residual else _Plain)(weights, biases, activation)
        self.inputs, self.outputs = (np.zeros(width, np.float32) for width in (weights[0].shape[1], len(biases[-1])))

    def forward(self) -> None:
        np.copyto(self.outputs, self.body(self.inputs))

    def follow(self, steps: int, clip: bool, place: int, features: int, at: int) -> Array:
        self.clip, self.place, self.at = clip, place, at
        self.features, self.size = np.zeros((steps, features), np.float32), np.float32(1 / steps)
        return self.features

    def flow(self) -> None:
        x, given = self.outputs, self.inputs
        for row in self.features:
            given[self.place : self.place + len(x)] = x
            given[self.at : self.at + len(row)] = row
            x += self.size * self.body(given)
            if self.clip:
                np.minimum(np.maximum(x, -ONE, out=x), ONE, out=x)


def one_row(network: MLP | ResidualMLP) -> OneRow | _Numpy:
    """The quickest that there is of a network without norms."""
    if isinstance(network, ResidualMLP):
        linear: list[Any] = [network.first, *network.blocks, network.last]
        weights, biases = [one.weight.detach() for one in linear], [one.bias.detach() for one in linear]
    else:
        weights, biases = [w.detach() for w in network.weights], [b.detach() for b in network.biases]
    how = (network.activation, isinstance(network, ResidualMLP))
    return OneRow.of(weights, biases, *how) or _Numpy(weights, biases, *how)


class _Straight:
    """A flow whose network reads [observation, x, time]."""

    def __init__(self, actor: FlowActor, network: PlainVelocity, seen: int) -> None:
        self.row, self.seen = one_row(network.mlp), seen
        table = self.row.follow(actor.steps, actor.clip_each, seen, 1, seen + actor.action_dim)
        table[:, 0] = times(actor.steps)

    def __call__(self, seen: Array, noise: Array) -> Array:
        row = self.row
        row.inputs[: self.seen], row.outputs[:] = seen, noise
        row.flow()
        return row.outputs


class _Embedded:
    """A flow whose network reads [x, embedding of the time, embedding of the observation], or the sum of both."""

    def __init__(self, actor: FlowActor, network: EmbeddedVelocity) -> None:
        self.network, self.summed = network, isinstance(network, ShortcutVelocity)
        self.row = one_row(network.body)
        self.condition = None if network.encode is None else one_row(network.encode)
        self.table = self.row.follow(actor.steps, actor.clip_each, 0, network.time_width, actor.action_dim)
        self.times = torch.tensor(times(actor.steps))
        self.sizes = torch.full_like(self.times, 1 / actor.steps)
        self.read = [network.sinusoids.frequencies, *network.embed.parameters()]
        self.version, self.embedded = -1, self.table.copy()

    def __call__(self, seen: Array, noise: Array) -> Array:
        version = sum(tensor._version for tensor in self.read)
        if version != self.version:  # the times' embedding is the same at each call, until its weights are changed
            with torch.no_grad():
                both = (self.times, self.sizes) if self.summed else (self.times,)
                self.embedded[:] = self.network.time_features(*both).numpy()
            self.table[:], self.version = self.embedded, version
        row, condition = self.row, seen
        if self.condition is not None:
            self.condition.inputs[:] = seen
            self.condition.forward()
            condition = self.condition.outputs
        if self.summed:
            np.add(self.embedded, condition, out=self.table)
        else:
            row.inputs[-len(condition) :] = condition
        row.outputs[:] = noise
        row.flow()
        return row.outputs


class _OneStep:
    """A network that reads [observation, noise]."""

    def __init__(self, actor: OneStepActor, seen: int) -> None:
        self.row, self.seen = one_row(actor.mlp), seen

    def __call__(self, seen: Array, noise: Array) -> Array:
        row = self.row
        row.inputs[: self.seen], row.inputs[self.seen :] = seen, noise
        row.forward()
        return row.outputs


class SingleFlow:
    """(O,) observation -> (A,) float32 action of a flow policy, with the noise that the policy draws; or None.

    It reads the policy's own tensors where they lie, so weights that are changed in place count at once. Its results
    are those of `Policy.act` up to rounding, and the policy's memory goes on as there. Several threads may call it:
    they take turns, in one episode.
    """

    def __init__(self, policy: PolicyModule) -> None:
        """Take views of the policy's tensors; of a policy for which `fits` is true."""
        self.chunk: Any = policy.actor if isinstance(policy.actor, ChunkActor) else None
        actor: Any = policy.actor if self.chunk is None else self.chunk.inner
        self.policy, seen = policy, policy.observation_dim
        self.mean, self.scale = policy.normalizer.mean.numpy(), policy.normalizer.scale.numpy()
        self.no_numbers, self.scaled, self.turn = np.zeros(seen, np.float32), Scaling(policy), threading.Lock()
        self.made: Callable[[Array, Array], Array]
        if isinstance(actor, OneStepActor):
            self.made = _OneStep(actor, seen)
        elif isinstance(actor.network, EmbeddedVelocity):
            self.made = _Embedded(actor, actor.network)
        else:
            self.made = _Straight(actor, actor.network, seen)

    def __call__(self, observation: Array) -> Array | None:
        """The action; None, with the memory as it was, where the observation or the action is not as it should be."""
        if type(observation) is not np.ndarray or observation.dtype != np.float32:
            try:
                observation = as_array(observation, np.float32)
            except EnvironmentMismatchError:
                return None
        if observation.shape != self.mean.shape:
            return None
        with self.turn:
            return self._next(observation)

    def _next(self, observation: Array) -> Array | None:
        seen = (observation - self.mean) / self.scale
        if seen.dot(self.no_numbers):  # NaN and infinity times 0 are NaN, which is true
            return None
        policy = self.policy
        before = policy.begin(1, policy._seed) if policy._memory is None else policy._memory
        noise, memory = policy._drawn(1, before)
        if self.chunk is None:
            out = self._clipped(seen, noise[0].numpy())
        else:
            out, memory = self._played(seen, noise[0].numpy(), memory)
        action = self.scaled(out)
        if action is not None:
            policy._memory = memory
        return action

    def _played(self, seen: Array, noise: Array, memory: Memory) -> tuple[Array, Memory]:
        """The first action of the queue, after planning where it is empty, and the memory after it."""
        queue, queued = memory["queue"].numpy()[0], float(memory["queued"].numpy()[0])
        if queued == 0:
            queue, queued = self._clipped(seen, noise).reshape(queue.shape), float(self.chunk.execute)
        rest = np.zeros((1, *queue.shape), np.float32)
        rest[0, :-1] = queue[1:]
        following = {"queue": torch.from_numpy(rest), "queued": torch.full((1,), queued - 1)}
        return queue[0], {**memory, **following}

    def _clipped(self, seen: Array, noise: Array) -> Array:
        out = self.made(seen, noise)
        return np.minimum(np.maximum(out, -ONE, out=out), ONE, out=out)


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
