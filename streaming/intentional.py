"""Intentional updates: the step is what changes the network's output by as much as was intended."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import algorithm_of, require
from surefoot.streaming import stream_ac
from surefoot.streaming.stream_ac import StreamAC, StreamACConfig
from surefoot.streaming.stream_q import StreamQ, StreamQConfig
from surefoot.streaming.traces import TraceAgent

EPSILON = 1e-8


@dataclasses.dataclass(frozen=True)
class IntentionalACConfig(StreamACConfig):
    """Settings of intentional AC. Those of ObGD (kappa, step_size, optimizer, ...) have no effect."""

    eta_critic: float = option(0.5, "intended share of the TD error that a step removes", range="> 0")
    eta_actor: float = option(
        0.05, "intended change of the log-probability, where the TD error is of average size", range="> 0"
    )
    clip: float = option(20.0, "TD errors are clipped at so many root mean squares of past ones", range="> 0")
    clip_decay: float = option(0.9998, "decay of the averages over past TD errors", range="[0, 1)")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        _check(self)


@dataclasses.dataclass(frozen=True)
class IntentionalQConfig(StreamQConfig):
    """Settings of intentional Q. Those of ObGD (kappa, step_size, optimizer, ...) have no effect."""

    eta_critic: float = option(0.25, "intended share of the TD error that a step removes", range="> 0")
    clip: float = option(20.0, "TD errors are clipped at so many root mean squares of past ones", range="> 0")
    clip_decay: float = option(0.9998, "decay of the averages over past TD errors", range="[0, 1)")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        _check(self)


def _check(config: Any) -> None:
    name = algorithm_of(config)
    plain = config.optimizer == "obgd"
    require(plain, name, "optimizer", config.optimizer, "left alone: intentional updates are the optimiser")
    require(config.discount * config.decay < 1, name, "decay", config.decay, "below 1 where the discount is 1")


def intentional_step(
    traces: Tensor,
    gradient: Tensor,
    second: Tensor,
    sigma: Tensor,
    count: Tensor,
    *,
    eta: float,
    decay: float,
    beta2: float,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""What a trace moves the weights by, for a TD error of 1.

    .. math::
        h &= \sqrt{\hat v} + \epsilon, \quad N = \textstyle\sum g^2 / h, \quad Z = \sum z^2 / h \\
        \sigma &\leftarrow \sigma + (1 - \gamma\lambda)(N - \sigma) \\
        \Delta w &= \frac{\eta}{\sqrt{\hat\sigma Z}} \frac{z}{h}

    with v RMSprop's second moment of g; hats correct the bias of averages that began at 0.

    Args:
        traces: (K, P) z, with g in it.
        gradient: (K, P) g.
        second: (K, P) v before this step.
        sigma: (K,).
        count: (K,) of this step, the first being 1.
        eta: intended change.
        decay: gamma lambda.
        beta2: decay of v.

    Returns:
        The move (K, P), new v and new sigma. The move is 0 where z is.
    """
    n = count.to(traces.dtype)
    second = beta2 * second + (1 - beta2) * gradient.square()
    h = (second / (1 - beta2**n).unsqueeze(-1)).sqrt() + EPSILON
    sigma = sigma + (1 - decay) * ((gradient.square() / h).sum(-1) - sigma)
    product = sigma / (1 - decay**n) * (traces.square() / h).sum(-1)
    step = torch.where(product > 0, eta / product.sqrt(), 0.0)
    return step.unsqueeze(-1) * traces / h, second, sigma


class IntentionalAgent(TraceAgent):
    """What both agents have in common: traces, with the clipped TD error and another step in place of `ascend`.

    Source: Sharifnassab, Elsayed, De Asis, Mahmood and Sutton, "Intentional Updates for Streaming Reinforcement
    Learning" (2026). Their code does not clear traces at truncation; this does. How fast the average of TD errors, by
    which the policy's step is divided, decays, is taken to be as for their squares.
    """

    config: IntentionalACConfig | IntentionalQConfig
    error_squares: Tensor
    error_sizes: Tensor

    def add_buffers(self) -> None:
        """Those of traces, and of the averages."""
        super().add_buffers()
        k = len(self.seeds)
        for name, network in self.networks.items():
            self.add_buffer(f"{name}_second", torch.zeros(k, network.size, dtype=self.dtype))
            self.add_buffer(f"{name}_sigma", torch.zeros(k, dtype=self.dtype))
        self.add_buffer("error_squares", torch.ones(k, dtype=torch.float64))
        self.add_buffer("error_sizes", torch.zeros(k, dtype=torch.float64))

    def clipped(self, delta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """TD error within 20 root mean squares of those so far, and that divided by their average size."""
        c = self.config
        n = (self.learned + 1).double()
        correction = 1 - c.clip_decay**n
        squares = c.clip_decay * self.error_squares + (1 - c.clip_decay) * delta.double().square()
        limit = c.clip * (squares / correction).sqrt()
        clipped = delta.double().clamp(-limit, limit)
        sizes = c.clip_decay * self.error_sizes + (1 - c.clip_decay) * clipped.abs()
        self.put("error_squares", squares, rows)
        self.put("error_sizes", sizes, rows)
        relative = clipped / (sizes / correction).clamp(min=EPSILON)
        return clipped.to(self.dtype), relative.to(self.dtype)

    def move(
        self, name: str, gradient: Tensor, error: Tensor, eta: float, rows: Tensor, kept: Tensor | None = None
    ) -> None:
        """w <- w + error * intentional step, for the streams of (K,) `rows`; as `ascend`, which it replaces."""
        c = self.config
        weights, traces, second, sigma = (
            getattr(self, f"{name}_{part}") for part in ("weights", "traces", "second", "sigma")
        )
        decay = c.discount * c.decay
        traces = (decay if kept is None else decay * kept.unsqueeze(-1)) * traces + gradient
        step, second, sigma = intentional_step(
            traces, gradient, second, sigma, self.learned + 1, eta=eta, decay=decay, beta2=c.beta2
        )
        self.put(f"{name}_weights", weights + error.unsqueeze(-1) * step, rows)
        self.put(f"{name}_traces", traces, rows)
        self.put(f"{name}_second", second, rows)
        self.put(f"{name}_sigma", sigma, rows)


class IntentionalAC(IntentionalAgent, StreamAC):
    r"""Intentional AC(lambda): stream AC's gradients, steps that remove an intended share of the TD error.

    .. math::
        w_v \leftarrow w_v + \delta_c\, \Delta w_v, \quad
        w_\pi \leftarrow w_\pi + \frac{\delta_c}{E|\delta_c|}\, \Delta w_\pi

    with :math:`\Delta w` of `intentional_step` and :math:`\delta_c` the TD error within 20 root mean squares.
    """

    name = "intentional_ac"
    Config = IntentionalACConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    config: IntentionalACConfig
    kind = ""

    def improve(self, rows: Tensor) -> None:
        """One step: as stream AC's, but for the size."""
        delta, value = stream_ac.td_error(self, rows)
        clipped, relative = self.clipped(delta, rows)
        self.move("actor", stream_ac.actor_gradient(self, clipped.sign()), relative, self.config.eta_actor, rows)
        self.move("critic", stream_ac.critic_gradient(self, value), clipped, self.config.eta_critic, rows)
        self.finish(delta, rows)


class IntentionalQ(IntentionalAgent, StreamQ):
    r"""Intentional Q(lambda): stream Q's gradients, steps that remove an intended share of the TD error."""

    name = "intentional_q"
    Config = IntentionalQConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    config: IntentionalQConfig
    kind = ""

    def improve(self, rows: Tensor) -> None:
        """One step: as stream Q's, but for the size."""
        delta, gradient = self.td_error(rows)
        clipped, _ = self.clipped(delta, rows)
        watkins = self.config.trace_cut == "watkins"
        kept = (~self.explored).to(self.dtype) if watkins else None
        self.move("critic", gradient, clipped, self.config.eta_critic, rows, kept)
        self.finish(delta, rows, cut=None if watkins else self.explored)
