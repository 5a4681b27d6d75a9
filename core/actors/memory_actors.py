"""Policy heads with a memory, around any other head: histories, recurrent states, chunks of actions, held noise.

They may be put into each other, for example a history around chunks; each uses its own names in the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, Evaluation
from surefoot.core.actors.memory import Memory, in_rows
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.recurrent import GRU, LSTM, Gates


class WrappingActor(Actor):
    """What heads around an `inner` head share: the inner one draws, and its memory stands beside the wrapper's."""

    inner: Actor

    def __init__(self, inner: Actor, **sizes: int) -> None:
        """Keep the inner head, and each of `sizes` as an attribute."""
        super().__init__()
        self.inner = inner
        for name, value in sizes.items():
            setattr(self, name, value)
        self.always_samples = inner.always_samples
        self.discrete, self.needs_outcomes = inner.discrete, inner.needs_outcomes
        both = set(inner.begin(1)) & set(self._begin(1))
        if both:
            raise ConfigError(f"both {self.kind} and the head within it remember {sorted(both)}; use one of the two")

    @property
    def noise_dim(self) -> int:
        """The inner head's."""
        return self.inner.noise_dim

    def begin(self, rows: int) -> Memory:
        """The inner head's memory and this one's."""
        return {**self.inner.begin(rows), **self._begin(rows)}

    def _begin(self, rows: int) -> Memory:
        raise TypeError(f"{type(self).__name__} must define _begin")

    def _zeros(self, *shape: int) -> Tensor:
        return next(self.parameters()).new_zeros(shape)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the first step of an episode."""
        return self.step(observations, self.begin(len(observations)), noise)[0]

    def executed(self, memory: Memory, actions: Tensor) -> Memory:
        """As the inner head takes it."""
        return self.inner.executed(memory, actions)

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """As the inner head takes it; rows that ended begin anew."""
        return super().observe_outcome(self.inner.observe_outcome(memory, rewards, costs, ended), rewards, costs, ended)


class HistoryActor(WrappingActor):
    """A head that reads the last L observations, oldest first; those before an episode's first are zeros.

    Normalised observations are remembered, so a zero is the data's mean. Features of images, of which none means
    nothing, are repeated instead: the first stands for those before it.
    """

    kind = "history"
    order = ("length", "inner")
    optional = ("repeats",)
    observation_dim: int
    length: int
    repeats: bool

    def __init__(self, inner: Actor, observation_dim: int, length: int, repeats: bool = False) -> None:
        """Wrap a head of `length` (at least 2) times `observation_dim` inputs; whether the first one is repeated."""
        if length < 2:
            raise ConfigError(f"length is {length}; a history has at least 2 observations")
        super().__init__(inner, observation_dim=observation_dim, length=length, repeats=repeats)

    def _begin(self, rows: int) -> Memory:
        past = {"past": self._zeros(rows, self.length - 1, self.observation_dim)}
        return past | ({"started": self._zeros(rows)} if self.repeats else {})

    def forward(self, windows: Tensor, mask: Tensor | None = None) -> Any:
        """What the inner head gives for (B, L, O) windows, the last step the present one.

        Args:
            windows: normalised observations.
            mask: (B, L), 0 on padding before an episode's first step.
        """
        return self.inner(self.flat(windows, mask))

    def log_density(self, windows: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,) log-density of (B, A) actions of the present step, as the inner head gives it, in nats."""
        inner: Any = self.inner
        return inner.log_density(self.flat(windows, mask), actions)

    def flat(self, windows: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, L O) what the inner head reads of the windows of `forward`: for its `log_density` or `sample`."""
        return (windows if mask is None else windows * mask.unsqueeze(-1)).flatten(-2)

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`; the oldest observation leaves the memory."""
        past, present = memory["past"], observations.unsqueeze(1)
        if self.repeats:
            started = memory["started"]
            memory = {**memory, "started": torch.ones_like(started)}
            past = torch.where(started.view(-1, 1, 1) > 0, past, present)
        window = torch.cat([past, present], 1)
        actions, memory = self.inner.step(self.flat(window), memory, noise)
        return actions, {**memory, "past": window[:, 1:]}

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """As `Described.sizes_of`: the inner head reads all observations at once."""
        return options["length"] * observation_dim, action_dim


class GatedActor(WrappingActor, Gates):
    """A head that reads the state of a recurrent unit, which takes in each observation (`core.nn.recurrent`)."""

    order = ("width", "inner")
    optional = ("passed",)
    passed: int

    def __init__(self, inner: Actor, observation_dim: int, width: int, passed: int = 0) -> None:
        """Wrap a head of `width` inputs, or more: the last `passed` numbers of an observation, such as a mask of
        actions, are handed to it beside the state."""
        super().__init__(inner, width=width, passed=passed)
        self.make_gates(observation_dim, width)

    def head_inputs(self, states: Tensor, observations: Tensor) -> Tensor:
        """(..., W + passed) what the inner head reads of (..., W) outputs of states, and of the observations."""
        if self.passed == 0:
            return states
        return torch.cat([states, observations[..., -self.passed :]], -1)

    def _begin(self, rows: int) -> Memory:
        return {"state": self._zeros(rows, self.state_width)}

    def states(self, windows: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, L, W) what the inner head reads at each step of (B, L, O) windows of normalised observations.

        The first step's state before is zero, as at an episode's beginning, and so it is after padding.

        Args:
            windows: steps in the order of time.
            mask: (B, L), 0 on padding.
        """
        first, begins = windows.new_zeros((len(windows), self.state_width)), torch.zeros_like(windows[..., 0])
        if mask is None:
            return self.unrolled(windows, first, begins)
        begins = torch.cat([begins[:, :1], 1 - mask[:, :-1]], 1)
        return self.unrolled(windows, first, begins) * mask.unsqueeze(-1)

    def forward(self, windows: Tensor, mask: Tensor | None = None) -> Any:
        """What the inner head gives at the last step of (B, L, O) windows."""
        return self.inner(self.head_inputs(self.states(windows, mask)[:, -1], windows[:, -1]))

    def log_density(self, windows: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,) log-density of (B, A) actions of the last step, as the inner head gives it, in nats."""
        inner: Any = self.inner
        return inner.log_density(self.head_inputs(self.states(windows, mask)[:, -1], windows[:, -1]), actions)

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`; the state takes in the observation."""
        state = self.cell(observations, memory["state"])
        actions, memory = self.inner.step(self.head_inputs(self.output(state), observations), memory, noise)
        return actions, {**memory, "state": state}

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """As `Described.sizes_of`: the inner head reads the state, and what is passed."""
        return options["width"] + options.get("passed", 0), action_dim


class GRUActor(GatedActor, GRU):
    """A head that reads the state of a gated recurrent unit."""

    kind = "gru"


class LSTMActor(GatedActor, LSTM):
    """A head that reads the state of a long short-term memory."""

    kind = "lstm"


class ChunkActor(WrappingActor):
    """A head that plans C actions at once and plays one a step; it plans anew when so many are played, or at an end.

    Source: Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (action chunking); Chi et
    al., "Diffusion Policy" (receding horizon: `execute` of C actions are played).
    """

    kind = "chunk"
    order: ClassVar[tuple[str, ...]] = ("chunk", "execute", "inner")
    sliding: ClassVar[tuple[str, ...]] = ("queue",)
    """What is remembered of the steps ahead, (B, C, ...)."""
    branches: bool = True
    """Whether it plans only where a row needs it; else in each step, as where several agents act in one call."""
    chunk: int
    action_dim: int
    execute: int

    def __init__(self, inner: Actor, chunk: int, action_dim: int, execute: int | None = None) -> None:
        """Wrap a head that gives C A numbers in [-1, 1] for an observation; None: all C are played."""
        if chunk < 1:
            raise ConfigError(f"chunk is {chunk}; it is at least 1 action")
        execute = chunk if execute is None else execute
        if not 1 <= execute <= chunk:
            raise ConfigError(f"execute is {execute}; of a chunk of {chunk} actions, 1 to {chunk} can be played")
        if inner.discrete:
            raise ConfigError("a chunk has vectors for its actions; the head within it chooses among numbers")
        super().__init__(inner, chunk=chunk, action_dim=action_dim, execute=execute)

    def _begin(self, rows: int) -> Memory:
        return {"queue": self._zeros(rows, self.chunk, self.action_dim), "queued": self._zeros(rows)}

    def forward(self, observations: Tensor) -> Any:
        """What the inner head gives for (B, O) normalised observations."""
        return self.inner(observations)

    def evaluate(self, observations: Tensor, actions: Tensor, sample_aux: Mapping[str, Tensor]) -> Evaluation:
        """Density and entropy of whole (B, C, A) chunks, as the inner head gives them."""
        return self.inner.evaluate(observations, actions.flatten(-2), sample_aux)

    def plan(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, C, A) actions of the next C steps, or samples from (B, `noise_dim`) standard normal noise."""
        return self._as_chunk(self.inner.act(observations, noise))

    def _as_chunk(self, numbers: Tensor) -> Tensor:
        return numbers.unflatten(-1, (self.chunk, self.action_dim))

    def joined(self, memory: Memory, planned: Tensor) -> Memory:
        """The queue once (B, C, A) actions were planned for the present step and those after it, and how many count."""
        return {"queue": planned, "queued": torch.full_like(memory["queued"], float(self.execute))}

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`; the first of the queued actions, after planning in rows that have none."""
        empty = memory["queued"] == 0
        if torch.compiler.is_compiling() or not self.branches or self.inner.has_memory or bool(empty.any()):
            planned, memory = self.inner.step(observations, memory, noise)
            memory = in_rows(memory, self.joined(memory, self._as_chunk(planned)), empty)
        rest = {
            name: torch.cat([memory[name][:, 1:], torch.zeros_like(memory[name][:, :1])], 1) for name in self.sliding
        }
        return memory["queue"][:, 0], {**memory, **rest, "queued": memory["queued"] - 1}

    def executed(self, memory: Memory, actions: Tensor) -> Memory:
        """The plan stays as it is, whatever of it is carried out."""
        return memory

    def leaves_out(self, name: str) -> bool:
        """As `Described.leaves_out`; how many actions are played is written where not all are."""
        return self.execute == self.chunk if name == "execute" else super().leaves_out(name)

    @classmethod
    def from_description(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `Described.from_description`."""
        return super().from_description(observation_dim, action_dim, {"execute": options["chunk"], **options})

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """As `Described.sizes_of`: the inner head gives all actions at once."""
        return observation_dim, options["chunk"] * action_dim


class HeldNoiseActor(WrappingActor):
    """A stochastic head that explores with noise held for some steps, and drawn anew where an episode begins.

    Around a `StateDependentActor` this is gSDE as in training: a function of the state, smooth while it is held.
    """

    kind = "held_noise"
    order = ("hold_steps", "inner")
    hold_steps: int

    def __init__(self, inner: Actor, hold_steps: int) -> None:
        """Hold each draw for `hold_steps` steps, at least 1."""
        if hold_steps < 1 or inner.held_dim == 0 or inner.has_memory:
            raise ConfigError(
                f"hold_steps is {hold_steps} of a {inner.kind} head; at least 1, of a head that draws and has no memory"
            )
        super().__init__(inner, hold_steps=hold_steps)
        self.always_samples = True

    @property
    def noise_dim(self) -> int:
        """Of the noise that is held."""
        return self.inner.held_dim

    def _begin(self, rows: int) -> Memory:
        return {"noise": self._zeros(rows, self.inner.held_dim), "held": self._zeros(rows)}

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`; the (B, `noise_dim`) standard normal `noise` is taken by rows that hold none any more."""
        if noise is None:
            raise ConfigError("a policy with held noise has no action without it; give (B, noise_dim) normal numbers")
        over = memory["held"] == 0
        noise = torch.where(over.unsqueeze(1), noise, memory["noise"])
        held = torch.where(over, float(self.hold_steps), memory["held"]) - 1
        return self.inner.explore(observations, noise), {**memory, "noise": noise, "held": held}
