"""Elementwise functions as one kernel each on a GPU, where every operation costs a launch.

A decorator::

    @pointwise
    def squared_error(value: Tensor, target: Tensor) -> Tensor:
        return (value - target).square()

On a processor the function is called as it stands. On a GPU its operations are joined: they are recorded once, written
as C++ (`core.base.pointwise_source`) and compiled by torch (`torch.cuda.jiterator`). Its gradients by all inputs are
one more kernel, which starts from the inputs again and so keeps nothing else. The meta device counts them so. Under
`torch.compile` the function stands as it is: that compiler joins it with what is around.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from surefoot.core.base.pointwise_source import Kernel, recorded

P = ParamSpec("P")
R = TypeVar("R")
JOINED = ("cuda", "meta")
"""Devices on which a function is one kernel."""
MOST_INPUTS = 8
"""Of one kernel, for `torch.cuda.jiterator`."""
_anywhere = threading.local()


def pointwise(function: Callable[P, R]) -> Callable[P, R]:
    """A function of tensors that broadcast, and of numbers, to a tensor or a tuple of them, element by element.

    Args:
        function: plain torch operations of which `pointwise_source` has a C++ form. It is joined where all its
            arguments are given by position, and all its tensors are of one type and device.
    """

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if named or not tensors or not _is_joined(tensors):
            return function(*arguments, **named)
        numbers = tuple(None if isinstance(argument, Tensor) else argument for argument in arguments)
        found = _Joined.apply(_call(function, numbers), *tensors)
        return found[0] if len(found) == 1 else found  # type: ignore[return-value]

    return call


@pointwise
def squared_difference(first: Tensor, second: Tensor) -> Tensor:
    """(first - second)^2, of shapes that broadcast."""
    return (first - second).square()


@contextlib.contextmanager
def joined_anywhere() -> Iterator[None]:
    """Take the functions of this thread on a processor too as they are taken on a GPU: to check them without one."""
    _anywhere.on = True
    try:
        yield
    finally:
        _anywhere.on = False


def _is_joined(tensors: Sequence[Tensor]) -> bool:
    first = tensors[0]
    if first.device.type not in JOINED and not getattr(_anywhere, "on", False):
        return False
    alike = all(one.device == first.device and one.dtype == first.dtype for one in tensors)
    return alike and first.dtype.is_floating_point and not torch.compiler.is_compiling()


class Call:
    """A function with its numbers put in: of tensors alone, with the kernels of it and of its gradients."""

    def __init__(self, function: Callable[..., Any], numbers: tuple[Any, ...], name: str) -> None:
        self.function, self.numbers, self.name = function, numbers, name
        self.inputs = sum(number is None for number in numbers)
        self._kernels: dict[Any, Kernel] = {}
        self._gradients: dict[tuple[bool, ...], Call] = {}

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """By plain operations."""
        left = iter(tensors)
        found = self.function(*(next(left) if number is None else number for number in self.numbers))
        return found if isinstance(found, tuple) else (found,)

    def kernel(self, dtype: torch.dtype) -> Kernel:
        """Of numbers of this type; recorded at the first call."""
        if dtype not in self._kernels:
            self._kernels[dtype] = _kept(recorded(self, self.inputs, dtype, self.name))
        return self._kernels[dtype]

    def gradients(self, needs: tuple[bool, ...]) -> Call:
        """Of inputs and of the outputs' gradients, to the gradients by the inputs that need one."""
        if needs not in self._gradients:
            tag = "".join("01"[need] for need in needs)

            def pulled(*given: Tensor) -> tuple[Tensor, ...]:
                inputs = given[: self.inputs]
                pull = torch.func.vjp(self, *inputs)[1]
                return tuple(one for one, need in zip(pull(tuple(given[self.inputs :])), needs, strict=True) if need)

            found = Call(pulled, (), f"{self.name}_by_{tag}")
            outputs = len(self(*torch.zeros(self.inputs, 1, device="cpu").unbind()))
            found.numbers = (None,) * (self.inputs + outputs)
            found.inputs = self.inputs + outputs
            self._gradients[needs] = found
        return self._gradients[needs]


@functools.lru_cache(maxsize=4096)
def _call(function: Callable[..., Any], numbers: tuple[Any, ...]) -> Call:
    return Call(function, numbers, function.__name__.strip("_"))


class _Joined(torch.autograd.Function):
    """A `Call` at its tensors."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        """One kernel, which reads the inputs that it needs."""
        kernel = call.kernel(tensors[0].dtype)
        shape = list(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
        return tuple(torch.ops.surefoot.pointwise(kernel.key, [tensors[index] for index in kernel.reads], shape))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the inputs."""
        ctx.call = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """One kernel for all of them; plain operations where they are to be differentiated again."""
        tensors, needs = ctx.saved_tensors, tuple(ctx.needs_input_grad[1:])
        gradient = ctx.call.gradients(needs)
        given = (*tensors, *gradients)
        if torch.is_grad_enabled():
            found = iter(gradient(*torch.broadcast_tensors(*given)))
        else:
            gives = gradient.kernel(tensors[0].dtype).gives
            own = _Joined.apply(gradient, *given) if any(is_own for is_own, _ in gives) else ()
            found = iter([own[number] if is_own else given[number] for is_own, number in gives])
        parts = [next(found).sum_to_size(t.shape) if need else None for t, need in zip(tensors, needs, strict=True)]
        return None, *parts

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        """Forward mode, by plain operations: it may be differentiated again."""
        tensors = ctx.saved_tensors
        moved = tuple(torch.zeros_like(t) if d is None else d for t, d in zip(tensors, tangents, strict=True))
        found: tuple[Tensor, ...] = torch.func.jvp(ctx.call, tensors, moved)[1]
        return found

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], call: Call, *tensors: Tensor) -> tuple[Any, Any]:
        """The batch's dimension comes first, and what has fewer dimensions gets them behind it."""
        ranks = [tensor.dim() - (dim is not None) for tensor, dim in zip(tensors, dims[1:], strict=True)]
        most, front = max(ranks), []
        for tensor, dim, rank in zip(tensors, dims[1:], ranks, strict=True):
            first = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
            front.append(first[(slice(None), *(None,) * (most - rank))])
        found = _Joined.apply(call, *front)
        return found, (0,) * len(found)


# ---- the operation that torch sees: one launch ----

_kernels: dict[str, Kernel] = {}
_compiled: dict[str, Callable[..., Any] | None] = {}
_library = torch.library.Library("surefoot", "DEF")
_library.define("pointwise(str key, Tensor[] inputs, int[] shape) -> Tensor[]")


def _kept(kernel: Kernel) -> Kernel:
    return _kernels.setdefault(kernel.key, kernel)


def _shape_only(key: str, inputs: Sequence[Tensor], shape: Sequence[int]) -> list[Tensor]:
    first = inputs[0]
    return [torch.empty(shape, dtype=first.dtype, device=first.device) for _ in range(_kernels[key].outputs)]


def _by_operations(key: str, inputs: Sequence[Tensor], shape: Sequence[int]) -> list[Tensor]:
    return [one.expand(shape).contiguous() for one in _kernels[key].run(inputs)]


def _on_gpu(key: str, inputs: Sequence[Tensor], shape: Sequence[int]) -> list[Tensor]:
    kernel = _kernels[key]
    if key not in _compiled:
        _compiled[key] = _try_compiled(kernel, inputs)
    compiled = _compiled[key]
    if compiled is None:
        return _by_operations(key, inputs, shape)
    found = compiled(*inputs)
    parts = [found] if isinstance(found, Tensor) else list(found)
    return [one if list(one.shape) == list(shape) else one.expand(shape).contiguous() for one in parts]


def _try_compiled(kernel: Kernel, inputs: Sequence[Tensor]) -> Callable[..., Any] | None:
    """The kernel, after it ran once; None, with a warning, where torch can't make it."""
    if len(inputs) > MOST_INPUTS:
        return None
    try:
        made: Callable[..., Any] = torch.cuda.jiterator._create_multi_output_jit_fn(kernel.source, kernel.outputs)
        made(*inputs)
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"{kernel.name} is not one kernel but its operations: torch can't compile it ({first})", stacklevel=2
        )
        return None
    return made


_library.impl("pointwise", _shape_only, "Meta")
_library.impl("pointwise", _by_operations, "CPU")
_library.impl("pointwise", _on_gpu, "CUDA")
