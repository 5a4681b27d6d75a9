"""`StreamKernel`: one native call learns from one transition of K streaming agents, on tensors that the caller owns."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext import native, why_not_native

OBSERVE, ACT_BEFORE, LEARN, RESET, ACT, SHIFT = (1 << bit for bit in range(6))
"""The phases of a call, in the order in which they happen; `StreamKernel.run` says what each does."""

KINDS = ("td", "q", "sarsa", "ac")
OPTIMIZERS = ("obgd", "adaptive", "sgd")
TRACE_CUTS = ("watkins", "official")
PARAMETERS = ("weights", "traces", "second")
MOST_HIDDEN = 16
NOT_READ = frozenset({"acted", "skipped"})
"""Names of an agent's state that no kernel touches."""

Array = Tensor | np.ndarray


def native_stream() -> bool:
    """Whether there is a native module that holds this kernel."""
    return hasattr(native(), "StreamFloat32")


@dataclasses.dataclass(frozen=True)
class StreamSettings:
    """What a streaming agent is, beside its tensors; the defaults are those of stream-x (Elsayed et al., 2024)."""

    kind: str
    """td (v, no actions), q, sarsa (q of choices), or ac (policy and v)."""
    discrete: bool
    """Whether actions are choices; needed by q and sarsa, without meaning for td."""
    observation_dim: int
    action_dim: int
    """Numbers of an action, or choices; 0 for td."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths, 0 to 16 of them; the last layer is linear."""
    discount: float = 0.99
    decay: float = 0.8
    """lambda: a trace keeps discount * decay of itself in a step."""
    kappa_critic: float = 2.0
    kappa_actor: float = 3.0
    step_size: float = 1.0
    """alpha of ObGD."""
    entropy: float = 0.01
    """tau, the entropy's weight in the actor's gradient."""
    optimizer: str = "obgd"
    """obgd, adaptive (adaptive ObGD) or sgd (weights += learning_rate * TD error * trace)."""
    beta2: float = 0.999
    """Of adaptive ObGD's second moment."""
    epsilon_adaptive: float = 1e-8
    """Under adaptive ObGD's root."""
    learning_rate: float = 1e-3
    """Of sgd."""
    layer_norm: bool = True
    normalize_observations: bool = True
    scale_rewards: bool = True
    official_time_limit: bool = False
    """Whether truncation ends bootstrapping as termination does."""
    clear_before_add: bool = True
    """Whether the last reward of an episode starts the next one's discounted sum, as in the official code."""
    trace_cut: str = "watkins"
    """Of q: no trace reaches back over an exploratory action (watkins), or it is cut one step later (official)."""

    def __post_init__(self) -> None:
        for name, known in (("kind", KINDS), ("optimizer", OPTIMIZERS), ("trace_cut", TRACE_CUTS)):
            if getattr(self, name) not in known:
                raise ValueError(f"StreamSettings.{name} is {getattr(self, name)!r}: it can be {', '.join(known)}")
        if self.kind in ("q", "sarsa") and not self.discrete:
            raise ValueError(f"StreamSettings.discrete is False: {self.kind} needs choices")
        if self.observation_dim < 1:
            raise ValueError(f"StreamSettings.observation_dim is {self.observation_dim}: at least 1 is needed")
        if self.action_dim < (self.kind != "td"):
            raise ValueError(f"StreamSettings.action_dim is {self.action_dim}: {self.kind} needs at least 1")
        if len(self.hidden) > MOST_HIDDEN or any(width < 1 for width in self.hidden):
            raise ValueError(f"StreamSettings.hidden is {self.hidden}: 0 to {MOST_HIDDEN} positive widths are needed")

    @property
    def critic_widths(self) -> tuple[int, ...]:
        """Of the inputs and of every layer's outputs."""
        return (self.observation_dim, *self.hidden, self.action_dim if self.kind in ("q", "sarsa") else 1)

    @property
    def actor_widths(self) -> tuple[int, ...]:
        """Of ac: outputs are logits, or A means and A numbers whose softplus is the standard deviation."""
        return (self.observation_dim, *self.hidden, self.action_dim if self.discrete else 2 * self.action_dim)

    @property
    def noise_dim(self) -> int:
        """Numbers of noise for an action: A normals, 1 uniform for a softmax, 2 for epsilon-greedy; 0 for td."""
        if self.kind == "td":
            return 0
        return self.action_dim if not self.discrete else 1 if self.kind == "ac" else 2


def parameter_count(widths: tuple[int, ...]) -> int:
    """Numbers of a flat network: per layer W (out, in) row by row, then b (out)."""
    return sum((before + 1) * after for before, after in itertools.pairwise(widths))


def parameter_rows(streams: int, parameters: int, dtype: torch.dtype) -> Tensor:
    """Zeros of shape (streams, parameters) whose rows each begin on a cache line.

    A kernel of many streams is faster by some 15% on these than on rows that follow one another directly. A view, not
    contiguous as a whole: `contiguous()` makes a copy that can be saved.
    """
    line = 64 // dtype.itemsize
    return torch.zeros(streams, -(-parameters // line) * line, dtype=dtype)[:, :parameters]


def layout(settings: StreamSettings, streams: int, dtype: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name -> (shape, dtype) of what a kernel for K `streams` of `dtype` (float32, float64) reads or writes."""
    s, k = settings, streams
    table: dict[str, tuple[tuple[int, ...], str]] = {}
    networks = {"critic": s.critic_widths} | ({"actor": s.actor_widths} if s.kind == "ac" else {})
    for name, widths in networks.items():
        for part in PARAMETERS if s.optimizer == "adaptive" else PARAMETERS[:2]:
            table[f"{name}_{part}"] = ((k, parameter_count(widths)), dtype)
    if s.optimizer == "adaptive":
        table["count"] = ((k,), "int64")
    if s.normalize_observations:
        table["observation_count"] = ((k,), "float64")
        table |= {f"observation_{part}": ((k, s.observation_dim), "float64") for part in ("mean", "squares")}
    if s.scale_rewards:
        table |= {f"reward_{part}": ((k,), "float64") for part in ("trace", "count", "mean", "squares")}
    table |= {name: ((k, s.observation_dim), dtype) for name in ("states", "following")}
    table |= {name: ((k, s.observation_dim), "float64") for name in ("in_observations", "in_first")}
    table |= {name: ((k,), "float64") for name in ("in_rewards", "out_td")}
    table |= {name: ((k,), "uint8") for name in ("in_terminated", "in_truncated", "in_ended_with_first", "in_active")}
    table |= {"ready": ((k,), "bool"), "learned": ((k,), "int64")}
    if s.kind != "td":
        action = ((k,), "int64") if s.discrete else ((k, s.action_dim), dtype)
        table |= {name: action for name in ("chosen", "next_chosen", "out_actions")}
        table |= {name: ((k,), "bool") for name in ("explored", "next_explored")}
        table["in_noise"] = ((k, s.noise_dim), dtype)
    if s.kind in ("q", "sarsa"):
        table["in_epsilon"] = ((), "float64")
    return table


class StreamKernel:
    """K streaming agents on the caller's tensors: `run(phases)` reads inputs, learns, and writes state and actions.

    The tensors (torch on the CPU, or numpy) are those of `layout`, contiguous, of fixed address; the kernel keeps them
    alive. Only rows of parameters may have gaps between them, as `parameter_rows` makes them, the same ones for all
    tensors of a network. Others of an agent that these settings do not need may be among them, and are left alone.
    Streams are done one after another, so that each gives the same bits alone and beside others. Memory is allocated
    here and never in `run`. Subnormal numbers count as zero inside.

    Raises:
        ValueError: a tensor is missing, unknown, of another shape, dtype or device, not contiguous, or read-only.
        RuntimeError: there is no native module with this kernel.
    """

    run: Callable[[int], None]
    """Do a set of phases, joined by `|`, for each stream whose `in_active` is 1, in this order::

        OBSERVE     following := normalised in_observations, after its statistics have counted them
        ACT_BEFORE  next_chosen, out_actions := action at `following` by the weights as they are
        LEARN       where `ready`: reward, TD error, traces and weights; out_td; learned += 1
        RESET       where in_ended_with_first: following := normalised in_first
        ACT         next_chosen, out_actions := action at `following` by the weights as they are now; beside ACT_BEFORE
                    only where in_ended_with_first, since elsewhere the action has been chosen
        SHIFT       states, chosen, explored := following, next_chosen, next_explored; out_actions := next_chosen;
                    ready := not (terminated or truncated), or in_ended_with_first
    """

    def __init__(self, settings: StreamSettings, tensors: Mapping[str, Array]) -> None:
        if not native_stream():
            raise RuntimeError(
                f"StreamKernel needs the native module: {why_not_native() or 'this build is older than the kernel'}"
            )
        weights = tensors.get("critic_weights")
        if weights is None or weights.ndim != 2 or len(weights) < 1:
            raise ValueError("StreamKernel needs critic_weights of shape (streams, parameters)")
        dtype = _dtype(weights)
        if dtype not in ("float32", "float64"):
            raise ValueError(f"StreamKernel: critic_weights is {dtype}; float32 or float64 is needed")
        table = layout(settings, len(weights), dtype)
        self.settings = settings
        self.tensors = dict(tensors)  # keeps them alive
        known = _names() | NOT_READ
        for name in tensors:
            if name not in known:
                raise ValueError(f"StreamKernel knows no tensor {name!r}; it knows {', '.join(sorted(known))}")
        addresses = {"critic_stride": 0, "actor_stride": 0}
        for name, (shape, kind) in table.items():
            if name not in tensors:
                raise ValueError(f"StreamKernel: the tensor {name!r} of shape {shape} and dtype {kind} is missing")
            addresses[name] = _address(name, tensors[name], shape, kind)
            network, _, part = name.partition("_")
            if part in PARAMETERS:
                _check_rows(name, tensors[name], tensors[f"{network}_weights"])
                addresses[f"{network}_stride"] = _apart(tensors[name])
            elif not _contiguous(tensors[name]):
                raise ValueError(f"StreamKernel: {name} is not contiguous")
        module: Any = native()
        make = module.StreamFloat32 if dtype == "float32" else module.StreamFloat64
        flags = dataclasses.asdict(settings)
        flags["normalise_observations"] = flags.pop("normalize_observations")  # as the compiled module has it
        self.run = make(flags, len(weights), addresses).run


def _names() -> set[str]:
    """Of all tensors that some kernel reads or writes."""
    actor = StreamSettings("ac", False, 1, 1, optimizer="adaptive")
    choices = StreamSettings("q", True, 1, 1)
    return set(layout(actor, 1, "float32")) | set(layout(choices, 1, "float32"))


def _dtype(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def _strides(array: Array) -> tuple[int, ...]:
    """In numbers."""
    if isinstance(array, torch.Tensor):
        return array.stride()
    return tuple(step // array.itemsize for step in array.strides)


def _apart(rows: Array) -> int:
    """Numbers from the start of a row to that of the next; a single row's stride means nothing."""
    return _strides(rows)[0] if len(rows) > 1 else rows.shape[1]


def _contiguous(array: Array) -> bool:
    return array.is_contiguous() if isinstance(array, torch.Tensor) else array.flags.c_contiguous


def _check_rows(name: str, array: Array, weights: Array) -> None:
    """Each stream's numbers must be together, and streams as far apart as in the network's other tensors."""
    apart, expected = _apart(array), _apart(weights)
    if (_strides(array)[1] != 1 and array.shape[1] > 1) or apart < array.shape[1]:
        raise ValueError(f"StreamKernel: {name} has rows that are not contiguous")
    if apart != expected:
        raise ValueError(f"StreamKernel: rows of {name} are {apart} numbers apart, those of the weights {expected}")


def _address(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> int:
    """The address of a tensor's first number, after its check."""
    if tuple(array.shape) != shape or _dtype(array) != dtype:
        raise ValueError(
            f"StreamKernel: {name} has shape {tuple(array.shape)} and dtype {_dtype(array)}; "
            f"{shape} and {dtype} are needed"
        )
    if isinstance(array, torch.Tensor):
        if array.device.type != "cpu":
            raise ValueError(f"StreamKernel: {name} is on {array.device}; the kernel runs on the CPU")
        return array.data_ptr()
    if not array.flags.writeable:
        raise ValueError(f"StreamKernel: {name} is read-only")
    return array.ctypes.data
