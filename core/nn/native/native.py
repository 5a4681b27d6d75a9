"""The native MLP and Adam of `cuda_ext`, for tensors.

Float32 on a CPU, one thread, the same bits for the same inputs. `core.nn.native.kernels` says where it is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.compiled import library as library
from surefoot.core.base.compiled import why_not as why_not


class Network(NamedTuple):
    """An MLP as native code takes it."""

    parts: tuple[list[int], int, int, int, list[int], list[int], list[int], list[int]]
    """Widths, members, rows, place in HIDDEN, and the addresses of weights, biases, gains and shifts, in this order."""
    how: tuple[bool, float, int]
    """Whether norms come after the activations, what they add to the variance, and what masks multiply: 0 for none."""


class Norms(NamedTuple):
    """Layer norms of the hidden layers."""

    gains: Sequence[Tensor] = ()
    """Of each hidden layer, (width,) or (E, width); none where there are no norms."""
    shifts: Sequence[Tensor] = ()
    """Likewise."""
    after: bool = False
    """Of the activations, instead of what they are of."""
    epsilon: float = 1e-5
    """Added to the variance."""


class Dropout(NamedTuple):
    """Dropout masks of the hidden layers."""

    masks: Tensor
    """(B, sum of hidden widths) or, for each member its own, (E, B, sum of hidden widths); not differentiated."""
    sums: bool
    """Whether they multiply the layers' weighted sums, instead of what the layers give."""


class Recording(Protocol):
    """Who writes down the calls of this module, before they are made (`core.nn.native.tape.Recorder`)."""

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
        """Of `forward`."""
        ...

    def mlp_backward(
        self,
        network: Network,
        given: tuple[Tensor, Tensor, Tensor],
        strides: tuple[int, int, int],
        gradients: Sequence[Sequence[Tensor | None]],
        input_gradients: Tensor | None,
    ) -> None:
        """Of `backward`."""
        ...

    def adam(self, numbers: tuple[Any, ...], changed: list[Tensor], read: list[Tensor]) -> None:
        """Of `adam`."""
        ...

    def stepped(self, tensors: Sequence[Tensor]) -> None:
        """What an optimizer's step has written whose length does not hang on the gradient's."""
        ...


NO_NORMS = Norms()
HIDDEN = ("relu", "tanh", "gelu_tanh", "silu")
"""Activations of hidden layers, in the order of native/dense.h."""


ROW_HIDDEN = ("relu", "tanh", "silu", "gelu_tanh", "mish")
"""Activations of hidden layers of a `RowNetwork`, in the order of native/one_row.h."""


def name() -> str:
    """What numbers depend on: instruction set and revision of the arithmetic; empty without the module."""
    module = library()
    return "" if module is None else f"native-{module.level()}-{module.dense_revision}"


def fits(
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    norms: Norms = NO_NORMS,
    dropout: Dropout | None = None,
) -> bool:
    """Whether the native MLP can be run on these: contiguous float32 on the CPU, with rows for all members or for each.

    Rows of another width than the first layer's are for plain PyTorch too, which says so: native code would read past
    their ends. So are masks for other rows, members or units.

    What `vmap` and its like give to a function has no memory, and is for plain PyTorch.
    """
    parameters = (*weights, *biases, *norms.gains, *norms.shifts)
    if (
        inputs.dim() not in (2, 3)
        or inputs.shape[-1] != weights[0].shape[-1]
        or not all(t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in parameters)
    ):
        return False
    masks = [] if dropout is None else [dropout.masks]
    if not all(_are_masks(mask, inputs, weights) for mask in masks):
        return False
    try:
        return all(t.data_ptr() is not None for t in (inputs, *parameters, *masks))
    except RuntimeError:
        return False


def _are_masks(masks: Tensor, inputs: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether they are of these rows, of the members or of all, and of the hidden units."""
    members, units = weights[0].shape[:-2], sum(weight.shape[-2] for weight in weights[:-1])
    rows = (inputs.shape[-2], units)
    fit = masks.dtype == torch.float32 and masks.device.type == "cpu" and masks.shape in (rows, (*members, *rows))
    return fit and not masks.requires_grad


def mlp_sizes(weights: Sequence[Tensor]) -> list[int]:
    """Widths of the layers, the input's first."""
    return [weights[0].shape[-1], *(weight.shape[-2] for weight in weights)]


def forward(
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    keep: bool,
    hidden: str = "relu",
    norms: Norms = NO_NORMS,
    dropout: Dropout | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Outputs of an MLP, and what `backward` needs if `keep`.

    Args:
        inputs: (B, in) float32.
        weights: a layer each, (out, in) or (E, out, in), contiguous.
        biases: a layer each, (out,) or (E, out), contiguous.
        keep: save the hidden activations.
        hidden: activation of the hidden layers, of HIDDEN.
        norms: layer norms before or after the activations.
        dropout: masks before or after them.

    Returns:
        (B, out) or (E, B, out), and a flat tensor or None.
    """
    module, network = _module(), _network(inputs, weights, biases, hidden, norms, dropout)
    sizes, members, rows, place = network.parts[:4]
    inputs, row_stride = _rows(inputs)
    outputs = torch.empty((*weights[0].shape[:-2], rows, sizes[-1]))
    of_layers = (sizes, members, rows, len(norms.gains) > 0, place, norms.after, network.how[-1])
    saved = torch.empty(module.mlp_saved_floats(*of_layers)) if keep else None
    masks, mask_strides = None, (0, 0)
    if dropout is not None:
        masks, mask_stride = _rows(dropout.masks)
        mask_strides = (mask_stride, masks.stride(0) if masks.dim() == 3 else 0)
    if _recorder is not None:
        _recorder.mlp_forward(network, inputs, row_stride, saved, outputs, masks, mask_strides)
    places = (inputs.data_ptr(), row_stride, _address(saved), outputs.data_ptr())
    module.mlp_forward(*network.parts, *places, *network.how, _address(masks), *mask_strides)
    return outputs, saved


def backward(
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    saved: Tensor,
    output_gradients: Tensor,
    weight_gradients: Sequence[Tensor | None],
    bias_gradients: Sequence[Tensor | None],
    inputs_wanted: bool,
    hidden: str = "relu",
    norms: Norms = NO_NORMS,
    norm_gradients: tuple[Sequence[Tensor | None], Sequence[Tensor | None]] = ((), ()),
    dropout: Dropout | None = None,
) -> Tensor | None:
    """Write the gradients of what `forward` computed into the tensors given, None where not wanted.

    Args:
        inputs: as given to `forward`, with `weights` and `biases`.
        weights: of each layer.
        biases: of each layer.
        saved: from `forward`.
        output_gradients: (B, out) or (E, B, out).
        weight_gradients: contiguous, of the weights' shapes; overwritten.
        bias_gradients: contiguous, of the biases' shapes; overwritten.
        inputs_wanted: whether the inputs' gradient is.
        hidden: as given to `forward`.
        norms: as given to `forward`.
        norm_gradients: contiguous, of the gains' and shifts' shapes; overwritten.
        dropout: as given to `forward`; its masks are read from `saved`.

    Returns:
        (B, in), summed over the members, if `inputs_wanted`.
    """
    network = _network(inputs, weights, biases, hidden, norms, dropout)
    inputs, row_stride = _rows(inputs)
    output_gradients, gradient_stride = _rows(output_gradients)
    member_stride = output_gradients.stride(0) if output_gradients.dim() == 3 else 0
    input_gradients = torch.empty(inputs.shape[0], inputs.shape[1]) if inputs_wanted else None
    if _recorder is not None:
        given, wanted = (inputs, saved, output_gradients), (weight_gradients, bias_gradients, *norm_gradients)
        _recorder.mlp_backward(network, given, (row_stride, gradient_stride, member_stride), wanted, input_gradients)
    _module().mlp_backward(
        *network.parts,
        inputs.data_ptr(),
        row_stride,
        saved.data_ptr(),
        output_gradients.data_ptr(),
        gradient_stride,
        member_stride,
        [_address(g) for g in weight_gradients],
        [_address(g) for g in bias_gradients],
        _address(input_gradients),
        [_address(g) for g in norm_gradients[0]],
        [_address(g) for g in norm_gradients[1]],
        *network.how,
    )
    return input_gradients


def adam(
    value: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    count: Tensor,
    rate: Tensor,
    *,
    betas: tuple[float, float],
    epsilon: float,
    decay: float,
    average: Tensor | None = None,
    average_rate: float = 0.0,
) -> None:
    """One Adam step in place on contiguous float32 storage; then average += average_rate * (value - average).

    Args:
        value: parameters.
        gradient: of the loss.
        first: Adam's first moment.
        second: Adam's second moment.
        count: () float32, steps taken so far; 1 is added.
        rate: () float64, the learning rate.
        betas: decay of the moments.
        epsilon: added to the root of the second moment.
        decay: decoupled weight decay.
        average: target network's storage.
        average_rate: in [0, 1].

    Source: Kingma and Ba (2015), algorithm 1.
    """
    changed = [value, first, second, count, *([] if average is None else [average])]
    places = [_address(t) for t in (value, gradient, first, second, average, count, rate)]
    numbers = (value.numel(), *places, *betas, epsilon, decay, average_rate)
    if _recorder is not None:
        _recorder.adam(numbers, changed, [gradient, rate])
    _module().adam(*numbers)


def gather(table: Tensor, indices: Tensor, out: Tensor) -> bool:
    """Copy the rows of `table` at `indices` into `out`, if the native module can.

    Args:
        table: (N, ...) on any device.
        indices: (B,) int64, each in [0, N).
        out: (B, ...) contiguous, of the table's type.

    Returns:
        Whether it has been done.

    Raises:
        IndexError: an index is out of range.
    """
    module = library()
    if module is None or table.device.type != "cpu" or not (table.is_contiguous() and indices.is_contiguous()):
        return False
    row_bytes = table.stride(0) * table.itemsize
    module.gather_rows(table.data_ptr(), len(table), row_bytes, indices.data_ptr(), len(indices), out.data_ptr())
    return True


class Forward:
    """What `forward` gives of an MLP without norms for a fixed number of rows again and again: its call is prepared.

    Parameters are read where they lie, so that changes in place count at once.
    """

    inputs: np.ndarray
    """(B, in) float32, which the caller fills."""
    outputs: np.ndarray
    """(B, out), which each call overwrites."""

    def __init__(self, rows: int, weights: Sequence[Tensor], biases: Sequence[Tensor], hidden: str) -> None:
        """Of tensors that `fits` holds for."""
        inputs = torch.zeros(rows, weights[0].shape[-1])
        outputs = torch.zeros(rows, weights[-1].shape[-2])
        network = _network(inputs, weights, biases, hidden, NO_NORMS, None)
        self._kept = (*weights, *biases)
        self._call, places = _module().mlp_forward, (inputs.data_ptr(), inputs.stride(0), 0, outputs.data_ptr())
        self._arguments = (*network.parts, *places, *network.how, 0, 0, 0)
        self.inputs, self.outputs = inputs.numpy(), outputs.numpy()

    def __call__(self) -> None:
        """Fill `outputs`."""
        self._call(*self._arguments)


class RunningNormalizer:
    """Takes one value of each of S streams into running moments, and normalises it by them, in one call.

    The same bits as `core.nn.normalizer.RunningMoments` and `normalised` on a CPU.
    """

    values: np.ndarray
    """(S, width) float32, which the caller fills."""
    normalised: np.ndarray
    """(S, width) float32, which each call overwrites."""

    def __init__(
        self, moments: tuple[Tensor, Tensor, Tensor], used: tuple[Tensor, Tensor], epsilon: float, limit: float
    ) -> None:
        """Of memory that is changed in place.

        Args:
            moments: (S, 1) count, (S, width) mean and sum of squared deviations, float64.
            used: (S, width) float32 mean and scale that follow them.
            epsilon: added to the variance.
            limit: normalised values are clipped to +- this; infinite for none.
        """
        streams, width = moments[1].shape
        values, out = torch.zeros(streams, width), torch.zeros(streams, width)
        self._kept = (*moments, *used)
        self.values, self.normalised = values.numpy(), out.numpy()
        places = (values.data_ptr(), *(one.data_ptr() for one in moments))
        self._arguments = (streams, width, *places, epsilon, limit, *(one.data_ptr() for one in used), out.data_ptr())
        self._take = _module().take_one

    @staticmethod
    def fits(moments: Sequence[Tensor], used: Sequence[Tensor]) -> bool:
        """Whether native code was built and these are as it takes them."""
        kinds = [torch.float64] * 3 + [torch.float32] * 2
        tensors = (*moments, *used)
        plain = all(t.is_contiguous() and t.device.type == "cpu" for t in tensors)
        return library() is not None and plain and [t.dtype for t in tensors] == kinds

    def take(self) -> bool:
        """Take `values` in; False, with nothing changed, where one is not finite."""
        return bool(self._take(*self._arguments))


class RowNetwork(NamedTuple):
    """A network for one row at a time."""

    weights: Sequence[Tensor]
    """(out, in) of each layer, float32 on the CPU."""
    biases: Sequence[Tensor]
    """(out,) of each."""
    activation: str
    """Of the hidden layers."""
    residual: bool = False
    """Whether the layers are those of a `core.nn.residual.ResidualMLP`."""

    @property
    def fits(self) -> bool:
        """Whether native code was built and can run it."""
        tensors = (*self.weights, *self.biases)
        plain = all(t.is_contiguous() and t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        return library() is not None and self.activation in ROW_HIDDEN and plain

    def native(self) -> Any:
        """As native code takes it; of one that `fits`, whose memory must outlive it."""
        shapes = [tuple(weight.shape) for weight in self.weights]
        places = ([t.data_ptr() for t in self.weights], [t.data_ptr() for t in self.biases])
        widths = ([inputs for _, inputs in shapes], [outputs for outputs, _ in shapes])
        return _module().OneRow(*widths, *places, ROW_HIDDEN.index(self.activation), self.residual)


@dataclasses.dataclass(frozen=True)
class RowFlow:
    """How a policy makes an action of one observation and of noise that it draws."""

    network: RowNetwork
    """Reads the observation, a noisy action and features of each step, and gives a velocity; without steps, an action
    itself. Of a chunk these are all its actions, one after the other."""
    condition: RowNetwork | None
    """What makes the input of the observation that the network reads; without one it is the observation itself."""
    summed: bool
    """Whether that is added to each step's features, instead of standing beside them."""
    clip_each: bool
    """To [-1, 1] after each step, not only after the last one."""
    places: tuple[int, int, int]
    """Where in the network's input the observation, the noisy action and the features begin."""
    features: np.ndarray
    """(K, F) float32, of each of K steps; K is 0 of a network that makes an action itself."""
    normalizer: tuple[Tensor, Tensor]
    """(O,) mean and scale of observations."""
    bounds: tuple[Tensor, Tensor]
    """(A,) lowest and highest action."""
    purpose: int
    """A word: what the noise is for, as `core.base.counter` has it."""
    execute: int = 0
    """How many actions of a chunk are played."""

    @property
    def fits(self) -> bool:
        """Whether native code was built and can run it."""
        return self.network.fits and (self.condition is None or self.condition.fits)


class RowPolicy:
    """What `RowFlow` describes, in one native call; it reads parameters and features where they lie.

    For one thread at a time.
    """

    def __init__(
        self, flow: RowFlow, memory: Mapping[str, Tensor], observation: np.ndarray, action: np.ndarray
    ) -> None:
        """Of a flow that `fits`.

        Args:
            flow: what is computed.
            memory: of one row: "draws", and of a chunk "queue" and "queued"; changed in place where an action is made.
            observation: (O,) float32, which the caller fills.
            action: (A,) float32, which `act` fills.
        """
        self._kept = (flow, dict(memory), observation, action)  # their memory must outlive the addresses
        seen, place, feature_place = flow.places
        read = [*(t.data_ptr() for t in (*flow.normalizer, *flow.bounds)), flow.features.ctypes.data]
        self._native = _module().RowPolicy(
            network=flow.network.native(),
            condition=None if flow.condition is None else flow.condition.native(),
            observations=len(observation),
            actions=len(action),
            steps=len(flow.features),
            clip_each=flow.clip_each,
            summed=flow.summed,
            seen_place=seen,
            place=place,
            feature_place=feature_place,
            feature_count=flow.features.shape[1],
            purpose=flow.purpose,
            execute=flow.execute,
            read=read,
            draws=memory["draws"].data_ptr(),
            queue=_address(memory.get("queue")),
            queued=_address(memory.get("queued")),
            observation=observation.ctypes.data,
            action=action.ctypes.data,
        )
        self.act: Callable[[], int] = self._native.act
        """Makes an action and gives 0; or 1 or 2, with the memory as it was, where the observation or the action is not
        finite."""


_recorder: Recording | None = None


def recorder() -> Recording | None:
    """Who records just now."""
    return _recorder


@contextlib.contextmanager
def recording(by: Recording) -> Iterator[None]:
    """Report every call to `by` while the block runs."""
    global _recorder
    before, _recorder = _recorder, by
    try:
        yield
    finally:
        _recorder = before


def _network(
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    hidden: str,
    norms: Norms,
    dropout: Dropout | None,
) -> Network:
    members = 1 if weights[0].dim() == 2 else weights[0].shape[0]
    weight, bias, gain, shift = (
        [t.data_ptr() for t in group] for group in (weights, biases, norms.gains, norms.shifts)
    )
    sizes = (mlp_sizes(weights), members, inputs.shape[0], HIDDEN.index(hidden))
    masked = 0 if dropout is None else 1 + dropout.sums  # as native/dense.h counts them
    return Network((*sizes, weight, bias, gain, shift), (norms.after, norms.epsilon, masked))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _module() -> ModuleType:
    module = library()
    assert module is not None
    return module


def _rows(tensor: Tensor) -> tuple[Tensor, int]:
    """The tensor with adjacent numbers in its rows, copied if need be, and the stride of its rows."""
    if tensor.shape[-1] != 1 and tensor.stride(-1) != 1:
        tensor = tensor.contiguous()
    return tensor, tensor.stride(-2)
