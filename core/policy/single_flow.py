"""One action at a time of a flow policy: buffers that are used again, products by numpy, activations by torch.

Torch's calls cost several microseconds each by themselves, and a flow of four steps takes a hundred of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.actors.flow_actor import FlowActor, OneStepActor
from surefoot.core.actors.memory import Memory
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.losses.flow import times
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.residual import ResidualMLP
from surefoot.core.nn.velocity import EmbeddedVelocity, PlainVelocity, ShortcutVelocity
from surefoot.core.policy.control_loop import as_array

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
    """An MLP of one row."""

    def __init__(self, mlp: Any) -> None:
        self.layers = [_Layer(w, b) for w, b in zip(mlp.weights, mlp.biases, strict=True)]
        self.last, self.act = self.layers.pop(), IN_PLACE[mlp.activation]

    def __call__(self, value: Array) -> Array:
        for layer in self.layers:
            value = layer(value)
            self.act(layer.tensor)
        return self.last(value)


class _Residual:
    """A residual MLP of one row."""

    def __init__(self, network: ResidualMLP) -> None:
        linear: list[Any] = [network.first, *network.blocks, network.last]
        self.first, *blocks, self.last = (_Layer(one.weight, one.bias) for one in linear)
        self.blocks = list(zip(blocks[::2], blocks[1::2], strict=True))
        self.act, self.active = IN_PLACE[network.activation], np.empty(network.hidden[0], np.float32)
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


class SingleFlow:
    """(O,) observation -> (A,) float32 action of a flow policy, with the noise that the policy draws; or None.

    It reads the policy's own tensors where they lie, so weights that are changed in place count at once. Its results
    are those of `Policy.act` up to rounding, and the policy's memory goes on as there.
    """

    def __init__(self, policy: PolicyModule) -> None:
        """Take views of the policy's tensors; of a policy for which `fits` is true."""
        self.chunk: Any = policy.actor if isinstance(policy.actor, ChunkActor) else None
        actor: Any = policy.actor if self.chunk is None else self.chunk.inner
        self.policy, self.actor = policy, actor
        self.seen, self.count = (
            policy.observation_dim,
            policy.action_dim * (1 if self.chunk is None else self.chunk.chunk),
        )
        self.mean, self.scale = policy.normalizer.mean.numpy(), policy.normalizer.scale.numpy()
        self.embedded = isinstance(actor, FlowActor) and isinstance(actor.network, EmbeddedVelocity)
        if isinstance(actor, OneStepActor):
            self.body: Callable[[Array], Array] = _Plain(actor.mlp)
            width = self.seen + self.count
        elif self.embedded:
            self.body = _Residual(actor.network.body)
            width = actor.network.body.first.in_features
        else:
            self.body = _Plain(actor.network.mlp)
            width = self.seen + self.count + 1
        self.input, self.no_numbers = np.zeros(width, np.float32), np.zeros(self.seen, np.float32)
        self.no_action = np.zeros(policy.action_dim, np.float32)
        if isinstance(actor, FlowActor):
            self.grid, self.step = times(actor.steps), np.float32(1 / actor.steps)
            self.times = torch.tensor(self.grid)
            self.sizes = torch.full_like(self.times, 1 / actor.steps)

    def __call__(self, observation: Array) -> Array | None:
        """The action; None, with the memory as it was, where the observation or the action is not as it should be."""
        try:
            observation = as_array(observation, np.float32)
        except EnvironmentMismatchError:
            return None
        if observation.shape != self.mean.shape:
            return None
        seen = (observation - self.mean) / self.scale
        if seen.dot(self.no_numbers):  # NaN and infinity times 0 are NaN, which is true
            return None
        policy = self.policy
        before = policy.begin(1, policy._seed) if policy._memory is None else policy._memory
        noise, memory = policy._drawn(1, before)
        if self.chunk is None:
            out = self._made(seen, noise[0].numpy())
        else:
            out, memory = self._played(seen, noise[0].numpy(), memory)
        low, high = policy.action_low.numpy(), policy.action_high.numpy()
        action = (high - low) / 2 * out + (high + low) / 2
        np.minimum(np.maximum(action, low, out=action), high, out=action)  # rounding may leave them by a float
        if action.dot(self.no_action):
            return None
        policy._memory = memory
        return action

    def _played(self, seen: Array, noise: Array, memory: Memory) -> tuple[Array, Memory]:
        """The first action of the queue, after planning where it is empty, and the memory after it."""
        queue, queued = memory["queue"].numpy()[0], float(memory["queued"].numpy()[0])
        if queued == 0:
            queue, queued = self._made(seen, noise).reshape(queue.shape), float(self.chunk.execute)
        rest = np.zeros((1, *queue.shape), np.float32)
        rest[0, :-1] = queue[1:]
        following = {"queue": torch.from_numpy(rest), "queued": torch.full((1,), queued - 1)}
        return queue[0], {**memory, **following}

    def _made(self, seen: Array, noise: Array) -> Array:
        out = self._one_step(seen, noise) if isinstance(self.actor, OneStepActor) else self._flow(seen, noise)
        return np.minimum(np.maximum(out, -ONE, out=out), ONE, out=out)

    def _one_step(self, seen: Array, noise: Array) -> Array:
        self.input[: self.seen], self.input[self.seen :] = seen, noise
        return self.body(self.input)

    def _flow(self, seen: Array, x: Array) -> Array:
        """Where the flow carries noise."""
        given, count, clip = self.input, self.count, self.actor.clip_each
        place, rows = self._before(seen)
        for k in range(len(self.grid)):
            given[place : place + count] = x
            if rows is None:
                given[-1] = self.grid[k]
            else:
                given[count:] = rows[k]
            velocity = self.body(given)
            x = x + self.step * velocity
            if clip:
                np.minimum(np.maximum(x, -ONE, out=x), ONE, out=x)
        return x

    def _before(self, seen: Array) -> tuple[int, Array | None]:
        """Where in the input the noisy action stands; and (K, ...) what follows it, of networks that embed the time."""
        if not self.embedded:
            self.input[: self.seen] = seen
            return self.seen, None
        network = self.actor.network
        with torch.no_grad():
            condition = torch.from_numpy(seen).unsqueeze(0)
            condition = condition if network.encode is None else network.encode(condition)
            if isinstance(network, ShortcutVelocity):
                return 0, (network.time_features(self.times, self.sizes) + condition).numpy()
            rows = [network.time_features(self.times), condition.expand(len(self.grid), -1)]
            return 0, torch.cat(rows, -1).numpy()


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
