"""`Tape`: a training step recorded once and run again by the native module, without python and without torch.

The losses' own arithmetic is some hundred operations on a few hundred numbers each; in eager PyTorch they
cost as much as a network's matrix products. A `Recorder` watches one step: every operation that torch
dispatches, backward included, and every call of `core.native`. The tape repeats them at the same addresses
on other batches, as a CUDA graph does on a GPU, and asks the same of a loss: that it is a function of parameters,
batch and noise. What a tape can't do (`core.tape_operations` has what it can) is named, and the step stays eager.
"""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from surefoot.core import native, tape_operations
from surefoot.core.native import Network

Place = tuple[int, int]
"""(0, address), or (number of the input from 1, bytes from the start of its storage)."""
AGREEMENT = 1e-3
"""A tape must leave what eager PyTorch leaves, to this fraction of its norm: rounding, after one step of Adam."""


class Tape:
    """A recorded step; holds every tensor that it works on."""

    def __init__(self, native_tape: Any, inputs: list[Tensor], storages: Sequence[int], kept: list[Any]) -> None:
        self._tape, self._kept = native_tape, kept
        self._calls: Counter[str] = Counter()
        starts = [value.untyped_storage().data_ptr() for value in inputs]
        self._offsets = [value.data_ptr() - start for value, start in zip(inputs, starts, strict=True)]
        self._numbers = [storages.index(start) for start in starts]
        self._first = [self._numbers.index(number) for number in range(len(storages))]
        self._layouts = [_layout(value) for value in inputs]
        self._last, self._bases = inputs, list(storages)

    def __len__(self) -> int:
        """Calls of the native module in one run."""
        return len(self._tape)

    @property
    def calls(self) -> dict[str, int]:
        """How many of which kind."""
        return dict(self._calls)

    def run(self, inputs: list[Tensor]) -> bool:
        """Repeat the step on other inputs; False, with nothing done, where they lie otherwise than at recording."""
        if not all(map(operator.is_, inputs, self._last)):
            if [_layout(value) for value in inputs] != self._layouts:
                return False
            starts = [value.data_ptr() - offset for value, offset in zip(inputs, self._offsets, strict=True)]
            bases = [starts[first] for first in self._first]
            if [bases[number] for number in self._numbers] != starts:
                return False
            self._last, self._bases = inputs, bases
        self._tape.run(self._bases)
        return True


def _layout(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return tensor.shape, tensor.stride(), tensor.dtype


class Recorder(TorchDispatchMode):
    """Writes down what happens while it is active; `tape` gives the tape, or None and `problem` says why."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.inputs = inputs
        self.problem = ""
        self._storages = list(dict.fromkeys(value.untyped_storage().data_ptr() for value in inputs))
        self._kept: list[Any] = [inputs]
        self._own: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self._known: dict[tuple[int, ...], tuple[Tensor, tuple[int, ...]]] = {}
        """MLP evaluated -> outputs, and the addresses of all that it read and wrote: valid until one is overwritten."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record the block."""
        with self, native.recording(self):
            yield

    # -- what torch does -----------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and write it down."""
        kwargs = kwargs or {}
        mutable = func._schema.is_mutable
        given = [t for t in _tensors((args, kwargs))]
        if mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._will_change(_tensors(value))
            self._will_change(_tensors(kwargs.get("out", ())))
        result = func(*args, **kwargs)
        self._kept.append((args, kwargs, result))
        there = {t.untyped_storage().data_ptr() for t in given}
        made = [t.untyped_storage().data_ptr() for t in _tensors(result)]
        self._own |= set(made) - there
        if not mutable and made and there.issuperset(made):
            return result  # views
        try:
            tape_operations.write(self, func, args, kwargs, result)
        except tape_operations.Unknown as unknown:
            self.refuse(str(unknown))
        return result

    def element(self, name: str, out: Tensor, *operands: Tensor, strides: Sequence[int] | None = None) -> None:
        """Write down out = name(operands), broadcast to the shape of `out`; sort sorts its last dimension.

        Args:
            name: of the instruction.
            out: float32 or bool, overwritten.
            operands: likewise.
            strides: of `out` over the shape of the one operand, for reductions; 0 where it is reduced.
        """
        shape = tuple(out.shape if strides is None else operands[0].shape)
        if len(shape) > 4:
            raise tape_operations.Unknown(f"{name} on {len(shape)} dimensions")
        expanded = [list(operand.expand(shape).stride()) for operand in operands]
        steps = [list(out.stride() if strides is None else strides), *expanded]
        places = [self._place(tensor) for tensor in (out, *operands)]
        self._kept.append((out, operands))
        self._calls.append(("element", (name, list(shape), places, steps)))

    # -- what the native module does -----------------------------------------------------------------------

    def mlp_forward(
        self, network: Network, inputs: Tensor, row_stride: int, saved: Tensor | None, outputs: Tensor
    ) -> None:
        """Write down a call of `native.forward`; one that was made before is not made again, but its outputs copied."""
        sizes, members, rows, hidden, *parameters = network
        addresses = (inputs.data_ptr(), *(address for group in parameters for address in group))
        call = (*sizes, members, rows, hidden, row_stride, *addresses)
        there = self._known.get(call)
        self._kept.append((inputs, saved, outputs))
        if saved is None and there is not None:
            self.element("copy", outputs, there[0])
            return
        self._known[call] = (outputs, (*addresses, outputs.data_ptr()))
        places = (self._place(inputs), row_stride, 0 if saved is None else saved.data_ptr(), outputs.data_ptr())
        self._calls.append(("mlp_forward", (*network, *places)))

    def mlp_backward(
        self,
        network: Network,
        given: tuple[Tensor, Tensor, Tensor],
        strides: tuple[int, int, int],
        gradients: Sequence[Sequence[Tensor | None]],
        input_gradients: Tensor | None,
    ) -> None:
        """Write down a call of `native.backward`; `gradients` are those of weights, biases, gains and shifts."""
        written = [t for group in (*gradients, (input_gradients,)) for t in group if t is not None]
        self._will_change(written)
        self._kept.append((given, written))
        inputs, saved, output_gradients = given
        weights, biases, *norms = [[0 if g is None else g.data_ptr() for g in group] for group in gradients]
        below = 0 if input_gradients is None else input_gradients.data_ptr()
        call = (self._place(inputs), strides[0], saved.data_ptr(), self._place(output_gradients), *strides[1:])
        self._calls.append(("mlp_backward", (*network, *call, weights, biases, below, *norms)))

    def adam(self, numbers: tuple[Any, ...], changed: list[Tensor], read: list[Tensor]) -> None:
        """Write down a call of `native.adam`."""
        self._will_change(changed)
        self._kept.append((changed, read))
        self._calls.append(("adam", numbers))

    def refuse(self, what: str) -> None:
        """There will be no tape, because of `what`."""
        self.problem = self.problem or what

    # -- afterwards ----------------------------------------------------------------------------------------

    def tape(self) -> Tape | None:
        """The tape of what was recorded, after it has given the same results; the state is as before recording."""
        found = [(place, place.clone()) for place, _ in self._before.values()]
        self._restore()
        if self.problem:
            return None
        module = native.library()
        assert module is not None
        written = module.Tape(len(self._storages))
        for method, arguments in self._calls:
            getattr(written, method)(*arguments)
        tape = Tape(written, self.inputs, self._storages, self._kept)
        tape._calls.update(method for method, _ in self._calls)
        tape.run(self.inputs)
        agree = all(_agree(place, expected) for place, expected in found)
        self._restore()
        if agree:
            return tape
        self.refuse("running it again gave other numbers: a loss is not a function of parameters, batch and noise")
        return None

    def _restore(self) -> None:
        for place, value in self._before.values():
            place.copy_(value)

    def _will_change(self, tensors: Sequence[Tensor]) -> None:
        """Keep what is about to be overwritten, unless it was made while recording."""
        for tensor in tensors:
            start, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
            for call, (_, addresses) in list(self._known.items()):
                if any(start <= address < start + size for address in addresses):
                    del self._known[call]
            if start in self._own or start in self._before:
                continue
            with _disable_current_modes(), torch.no_grad():
                whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                self._before[start] = (whole, whole.clone())

    def _place(self, tensor: Tensor) -> Place:
        start = tensor.untyped_storage().data_ptr()
        if start not in self._storages:
            return 0, tensor.data_ptr()
        return 1 + self._storages.index(start), tensor.data_ptr() - start


def _agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two states differ by rounding only; where eager PyTorch's is not finite, the losses will say so."""
    if not found.is_floating_point() or not bool(expected.isfinite().all()):
        return True
    difference = torch.linalg.vector_norm(found.double() - expected.double())
    return bool(difference <= AGREEMENT * torch.linalg.vector_norm(expected.double()) + 1e-6)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
