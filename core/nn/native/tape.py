"""`Tape`: a training step recorded once and run again by the native module, without python's and autograd's overhead.

The losses' own arithmetic is some hundred operations on a few hundred numbers each; in eager PyTorch they
cost as much as a network's matrix products. A `Recorder` watches one step: every operation that torch
dispatches, backward included, and every call of `core.nn.native.native`. The tape repeats them at the same addresses
on other batches, as a CUDA graph does on a GPU, and asks the same of a loss: that it is a function of parameters,
batch and noise. Elementwise arithmetic, products, softmax and layer norms are the native module's
(`core.nn.native.tape_operations` has the list); any other operation (indices, sorting, convolutions) is called of
torch again, on the tensors that it had. What can't be repeated, such as drawing random numbers or reading a number in
python, is named: the step stays eager.
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
from torch.utils._pytree import tree_map_only

from surefoot.core.nn.native import native, tape_operations
from surefoot.core.nn.native.native import Network

Place = tuple[int, int]
"""(0, address), or (number of the input from 1, bytes from the start of its storage)."""
AGREEMENT = 1e-3
"""A tape must leave what eager PyTorch leaves, to this fraction of its norm: rounding, after one step of Adam."""
STEPPED_SHARE = 0.9
"""Of the numbers that an optimizer has stepped, how many must agree."""


class Tape:
    """A recorded step; holds every tensor that it works on."""

    def __init__(self, recorder: Recorder, parts: Sequence[Any]) -> None:
        """Bind what `recorder` saw.

        Args:
            recorder: its inputs and the tensors that it kept.
            parts: native tapes, and functions to be called between them, in order.
        """
        inputs = recorder.inputs
        self._parts = [(part, not callable(part)) for part in parts]
        self._kept, self._stand_ins = recorder.kept, recorder.stand_ins
        self._calls = Counter(method for method, _ in recorder.calls)
        starts = [value.untyped_storage().data_ptr() for value in inputs]
        self._offsets = [value.data_ptr() - start for value, start in zip(inputs, starts, strict=True)]
        self._numbers = [recorder.storages.index(start) for start in starts]
        self._first = [self._numbers.index(number) for number in range(len(recorder.storages))]
        self._layouts = [_layout(value) for value in inputs]
        self._last, self._bases = inputs, list(recorder.storages)

    def __len__(self) -> int:
        """Calls in one run."""
        return self._calls.total()

    @property
    def calls(self) -> dict[str, int]:
        """How many of which kind; those of "torch" are not the native module's."""
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
            for tensor, number, place in self._stand_ins:
                storage = inputs[self._first[number]].untyped_storage()
                there = (bases[number] + place - storage.data_ptr()) // tensor.itemsize
                tensor.set_(storage, there, tensor.shape, tensor.stride())
        with torch.no_grad():
            for part, native_part in self._parts:
                if native_part:
                    part.run(self._bases)
                else:
                    part()
        return True


def _layout(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return tensor.shape, tensor.stride(), tensor.dtype


class Recorder(TorchDispatchMode):
    """Writes down what happens while it is active; `tape` gives the tape, or None and `problem` says why."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.inputs = inputs
        self.problem = ""
        self.storages = list(dict.fromkeys(value.untyped_storage().data_ptr() for value in inputs))
        self.kept: list[Any] = [inputs]
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        """Method of the native tape, or "torch", and its arguments."""
        self.stand_ins: list[tuple[Tensor, int, int]] = []
        """What torch reads of inputs: a tensor pointed there, its storage's number, and bytes from its start."""
        self._own: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._stepped: set[int] = set()
        self._known: dict[tuple[float, ...], tuple[Tensor, tuple[int, ...]]] = {}
        """MLP evaluated -> outputs, and the addresses of all that it read and wrote: valid until one is overwritten."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record the block."""
        with self, native.recording(self):
            yield

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: to hide a mode from torch's compiler is to import it, two seconds of every worker's start."""
        return False

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
        if any(tensor._is_zerotensor() for tensor in [*given, *_tensors(result)]):  # zeros without memory
            self.refuse(f"{func} is part of a forward derivative (torch.func.jvp)")
            return result
        self.kept.append((args, kwargs, result))
        there = {t.untyped_storage().data_ptr() for t in given}
        made = [t.untyped_storage().data_ptr() for t in _tensors(result)]
        self._own |= set(made) - there
        if not mutable and made and there.issuperset(made):
            return result  # views
        written = len(self.calls)
        try:
            tape_operations.write(self, func, args, kwargs, result)
        except tape_operations.Unknown:
            del self.calls[written:]
            self._call(func, args, kwargs, result)
        return result

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Write down that torch is asked again."""
        reason = tape_operations.why_not_again(func, args, result)
        if reason:
            self.refuse(reason)
            return
        args, kwargs = tree_map_only(Tensor, self._standing_in, (args, kwargs))
        self.calls.append(("torch", (tape_operations.again(func, args, kwargs, result),)))

    def _standing_in(self, tensor: Tensor) -> Tensor:
        """A tensor that can be pointed at another input's memory, where this is an input's; or itself."""
        number, place = self._place(tensor)
        if number == 0:
            return tensor
        with _disable_current_modes(), torch.no_grad():
            found = torch.empty(0, dtype=tensor.dtype).set_(tensor)  # type: ignore[call-overload]
        self.stand_ins.append((found, number - 1, place))
        return found

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
        self.kept.append((out, operands))
        self.calls.append(("element", (name, list(shape), places, steps)))

    def product(self, out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> None:
        """Write down out = a b + bias, of float32 matrices.

        Args:
            out: (rows, columns) or (members, rows, columns) with adjacent numbers in its rows, overwritten.
            a: (rows, depth) or (members, rows, depth).
            b: (depth, columns) or (members, depth, columns).
            bias: of the shape of `out` with adjacent numbers in its rows, or None.
        """
        operands = [out, a, b, *([] if bias is None else [bias])]
        strides = [[*([0] if tensor.dim() == 2 else []), *tensor.stride()] for tensor in operands]
        sizes = [1 if out.dim() == 2 else len(out), *out.shape[-2:], a.shape[-1]]
        self.kept.append(operands)
        self.calls.append(("product", (sizes, [self._place(tensor) for tensor in operands], strides)))

    def rows(self, name: str, columns: int, *operands: Tensor | None, epsilon: float = 0.0) -> None:
        """Write down name(operands) on rows of `columns` numbers.

        Args:
            name: of the instruction, of native/row_operations.h.
            columns: numbers in a row.
            operands: contiguous float32, those that are written first; None where one is absent.
            epsilon: what a layer norm adds to the variance.
        """
        first = operands[0]
        assert first is not None
        places = [(0, 0) if tensor is None else self._place(tensor) for tensor in operands]
        self.kept.append(operands)
        self.calls.append(("rows", (name, first.numel() // max(columns, 1), columns, epsilon, places)))

    # -- what the native module does -----------------------------------------------------------------------

    def mlp_forward(
        self,
        network: Network,
        inputs: Tensor,
        row_stride: int,
        saved: Tensor | None,
        outputs: Tensor,
        masks: Tensor | None,
        mask_strides: tuple[int, int],
    ) -> None:
        """Write down a call of `native.forward`; one that was made before is not made again, but its outputs copied."""
        sizes, members, rows, hidden, *parameters = network.parts
        read = [inputs] if masks is None else [inputs, masks]
        addresses = (*(tensor.data_ptr() for tensor in read), *(address for group in parameters for address in group))
        call = (*sizes, members, rows, hidden, *network.how, row_stride, *mask_strides, *addresses)
        there = self._known.get(call)
        self.kept.append((read, saved, outputs))
        if saved is None and there is not None:
            self.element("copy", outputs, there[0])
            return
        self._known[call] = (outputs, (*addresses, outputs.data_ptr()))
        places = (self._place(inputs), row_stride, 0 if saved is None else saved.data_ptr(), outputs.data_ptr())
        dropped = ((0, 0) if masks is None else self._place(masks), *mask_strides)
        self.calls.append(("mlp_forward", (*network.parts, *places, *network.how, *dropped)))

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
        self.kept.append((given, written))
        inputs, saved, output_gradients = given
        weights, biases, *norms = [[0 if g is None else g.data_ptr() for g in group] for group in gradients]
        below = 0 if input_gradients is None else input_gradients.data_ptr()
        places = (self._place(inputs), strides[0], saved.data_ptr(), self._place(output_gradients), *strides[1:])
        call = (*network.parts, *places, weights, biases, below, *norms, *network.how)
        self.calls.append(("mlp_backward", call))

    def adam(self, numbers: tuple[Any, ...], changed: list[Tensor], read: list[Tensor]) -> None:
        """Write down a call of `native.adam`."""
        self._will_change(changed)
        self.kept.append((changed, read))
        self.calls.append(("adam", numbers))

    def stepped(self, tensors: Sequence[Tensor]) -> None:
        """Take note of what an optimizer's step has written whose length does not hang on the gradient's."""
        self._stepped |= {tensor.untyped_storage().data_ptr() for tensor in tensors}

    def refuse(self, what: str) -> None:
        """There will be no tape, because of `what`."""
        self.problem = self.problem or what

    # -- afterwards ----------------------------------------------------------------------------------------

    def tape(self) -> Tape | None:
        """The tape of what was recorded, after it has given the same results; the state is as before recording."""
        found = [(start, place, place.clone()) for start, (place, _) in self._before.items()]
        self._restore()
        if self.problem:
            return None
        tape = Tape(self, self._parts())
        tape.run(self.inputs)
        agree = all(_agree(place, expected, start in self._stepped) for start, place, expected in found)
        self._restore()
        if agree:
            return tape
        self.refuse("running it again gave other numbers: a loss is not a function of parameters, batch and noise")
        return None

    def _parts(self) -> list[Any]:
        """Native tapes of the calls between those of torch, and these."""
        module = native.library()
        assert module is not None
        parts: list[Any] = []
        for method, arguments in self.calls:
            if method == "torch":
                parts.append(arguments[0])
                continue
            if not parts or callable(parts[-1]):
                parts.append(module.Tape(len(self.storages)))
            getattr(parts[-1], method)(*arguments)
        return parts

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
        if tensor.numel() == 0:  # torch gives it no address
            return 0, 0
        if start not in self.storages:
            return 0, tensor.data_ptr()
        return 1 + self.storages.index(start), tensor.data_ptr() - start


def _agree(found: Tensor, expected: Tensor, stepped: bool = False) -> bool:
    """Whether two states differ by rounding only; where eager PyTorch's is not finite, the losses will say so.

    Of what an optimizer has `stepped`, most numbers must agree: Adam's first steps are as long whatever the gradient
    is, so that rounding turns round those of numbers whose gradient is next to nothing. Gradients and second moments,
    which are compared too, tell whether gradients agree. (Whether a step is taped must not hang on such a number: a
    resumed run would continue with other last bits.)
    """
    if not found.is_floating_point() or not bool(expected.isfinite().all()):
        return True
    difference, size = found.double() - expected.double(), expected.double()
    if stepped:
        near = AGREEMENT * size.square().mean().sqrt() + 1e-6
        return float((difference.abs() <= near).double().mean()) >= STEPPED_SHARE
    return bool(torch.linalg.vector_norm(difference) <= AGREEMENT * torch.linalg.vector_norm(size) + 1e-6)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
