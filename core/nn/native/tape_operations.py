"""How operations of torch are written on a tape: natively those that losses are made of, float32 and bool.

What is not here is called of torch again by `again`, which costs a few microseconds more and gives torch's own bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Unknown(Exception):
    """An operation, or a form of it, that the native module does not have."""


class Writer(Protocol):
    """Who writes native instructions down (`core.nn.native.tape.Recorder`)."""

    def element(self, name: str, out: Tensor, *operands: Tensor, strides: Sequence[int] | None = None) -> None:
        """Write down out = name(operands), as `Recorder.element`."""
        ...

    def product(self, out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> None:
        """Write down out = a b + bias, as `Recorder.product`."""
        ...

    def rows(self, name: str, columns: int, *operands: Tensor | None, epsilon: float = 0.0) -> None:
        """Write down name(operands), as `Recorder.rows`."""
        ...


def write(to: Writer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Write down `result = func(*args, **kwargs)`, which has been run, as native instructions.

    Raises:
        Unknown: it can't be; some instructions may have been written.
    """
    name = func._schema.name.removeprefix("aten::")
    name = name if name.startswith("_") else name.removesuffix("_")
    if name in WITHOUT_EFFECT:
        return
    how = OPERATIONS.get(name)
    results = [one for one in (result if isinstance(result, tuple) else (result,)) if one is not None]
    if how is None or not all(isinstance(one, Tensor) and one.device.type == "cpu" for one in results):
        raise Unknown(str(func))
    for one in results:
        if one.dtype not in (torch.float32, torch.bool):
            raise Unknown(f"{func} giving {one.dtype}")
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    how(to, result, {**named, **kwargs})


def why_not_again(func: Any, args: tuple[Any, ...], result: Any) -> str:
    """Why the operation can't be repeated on other numbers; empty where it can."""
    named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
    without_dropout = "attention" in str(func) and not named.get("dropout_p")  # of 0 where it is left out
    if torch.Tag.nondeterministic_seeded in func.tags and not without_dropout:
        return f"{func} draws random numbers of its own: read them from `noise`"
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    known = all(value is None or isinstance(value, Tensor) for value in results)
    if torch.Tag.data_dependent_output in func.tags or not known:
        return f"{func} gives python a number of the batch"
    if torch.Tag.dynamic_output_shape in func.tags and not _by_places(func, args):
        return f"{func} gives a shape that depends on the numbers"
    return ""


def _by_places(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether this is an indexing by whole numbers, not by a mask."""
    if func.overloadpacket is not torch.ops.aten.index:
        return False
    return all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1])


def again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Callable[[], None]:
    """A function that repeats the operation on these tensors, into the same result."""
    if func._schema.is_mutable or result is None:  # a check, as of a linear system that has no solution
        return functools.partial(func, *args, **kwargs)
    if func.overloadpacket in WITH_OUT:  # by name: torch's search among overloads prints the tensors for its errors
        form = "out" if func._overloadname == "default" else f"{func._overloadname}_out"
        return functools.partial(getattr(func.overloadpacket, form), *args, **kwargs, out=result)
    single = isinstance(result, Tensor)

    def repeat() -> None:
        found = func(*args, **kwargs)
        for to, value in zip([result] if single else result, [found] if single else found, strict=True):
            if to is not None:
                to.copy_(value)

    return repeat


WITH_OUT = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm, torch.ops.aten.mv}
WITH_OUT |= {torch.ops.aten.scatter}
"""Operations whose results are large enough for a copy to matter, written in place."""

Given = dict[str, Any]
"""Arguments by the names of the operation's schema."""
How = Callable[[Writer, Any, Given], None]
"""Writes an operation of the result, or the tuple of results, and the arguments that are given."""


def _number(to: Writer, value: Any) -> Tensor:
    """A float32 operand of a tensor or number."""
    if not isinstance(value, Tensor):
        return torch.tensor(float(value), dtype=torch.float32)
    if value.dtype == torch.float32:
        return value
    if value.dtype == torch.bool:
        converted = torch.empty(value.shape)
        to.element("to_float", converted, value)
        return converted
    raise Unknown(f"an operand of {value.dtype}")


def _truth(value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        return value
    raise Unknown("a condition that is not bool")


def _floats(instruction: str, *names: str, **usual: float) -> How:
    """An instruction of float operands, named as in torch's schema, where the last have usual values."""

    def how(to: Writer, result: Tensor, given: Given) -> None:
        if result.dtype != torch.float32:
            raise Unknown(f"{instruction} giving {result.dtype}")
        operands = [given[name] for name in names]
        operands += [value if given.get(name) is None else given[name] for name, value in usual.items()]
        to.element(instruction, result, *(_number(to, value) for value in operands))

    return how


def _compare(instruction: str) -> How:
    def how(to: Writer, result: Tensor, given: Given) -> None:
        to.element(instruction, result, _number(to, given["self"]), _number(to, given["other"]))

    return how


def _logical(instruction: str) -> How:
    def how(to: Writer, result: Tensor, given: Given) -> None:
        operands = [_truth(given[name]) for name in ("self", "other") if name in given]
        to.element(instruction, result, *operands)

    return how


def _div(to: Writer, result: Tensor, given: Given) -> None:
    if given.get("rounding_mode") is not None:
        raise Unknown("a rounding division")
    _floats("div", "self", "other")(to, result, given)


def _pow(to: Writer, result: Tensor, given: Given) -> None:
    exponent = given["exponent"]
    if not isinstance(exponent, Tensor) and exponent == 2:
        _floats("square", "self")(to, result, given)
    elif not isinstance(exponent, Tensor) and exponent == 1:  # what the gradient of a square has
        _floats("copy", "self")(to, result, given)
    else:
        _floats("pow", "self", "exponent")(to, result, given)


def _copy(to: Writer, result: Tensor, given: Given) -> None:
    source = given["src"] if "src" in given else given["self"]
    if result.dtype == torch.bool:
        to.element("logical_and", result, _truth(source), _truth(source))
    elif source.dtype == torch.bool:
        to.element("to_float", result, source)
    else:
        to.element("copy", result, _number(to, source))


def _chosen(condition: str, there: str, elsewhere: str) -> How:
    """One of two operands where a condition holds, and the other where it does not."""

    def how(to: Writer, result: Tensor, given: Given) -> None:
        if result.dtype != torch.float32:
            raise Unknown(f"where giving {result.dtype}")
        operands = (_number(to, given[name]) for name in (there, elsewhere))
        to.element("where", result, _truth(given[condition]), *operands)

    return how


def _softplus_backward(to: Writer, result: Tensor, given: Given) -> None:
    slope = torch.empty(given["self"].shape)  # beyond the threshold it is 1 within rounding anyway
    to.element("mul", slope, given["self"], _number(to, given["beta"]))
    to.element("sigmoid", slope, slope)
    to.element("mul", result, given["grad_output"], slope)


def _constant(value: float | None = None) -> How:
    """Filled with a number: `value`, or the one given."""

    def how(to: Writer, result: Tensor, given: Given) -> None:
        names = ("fill_value", "value", "s")
        number = value if value is not None else next(given[name] for name in names if name in given)
        if isinstance(number, Tensor):
            raise Unknown("a constant that is a tensor")
        if result.dtype == torch.bool:
            truth = torch.tensor(bool(number))
            to.element("logical_and", result, truth, truth)
            return
        if result.dtype != torch.float32:
            raise Unknown(f"a constant of {result.dtype}")
        to.element("copy", result, _number(to, number))

    return how


def _same_always(to: Writer, result: Tensor, given: Given) -> None:
    """What no input decides: as it is now."""
    to.element("copy", result, result.clone())


def _dims(source: Tensor, given: Given) -> set[int]:
    """The dimensions that are reduced."""
    wanted = given.get("dim")
    if source.dim() == 0:
        return set()
    dims = range(source.dim()) if wanted is None else [wanted] if isinstance(wanted, int) else wanted
    return {dim % source.dim() for dim in dims} or set(range(source.dim()))


def _strides(result: Tensor, source: Tensor, reduced: set[int], keepdim: bool) -> list[int]:
    """Strides of `result` over the shape of `source`: 0 where it is reduced."""
    left = [stride for dim, stride in enumerate(result.stride()) if not (keepdim and dim in reduced)]
    kept = iter(left)
    return [0 if dim in reduced else next(kept) for dim in range(source.dim())]


def _reduction(instruction: str, mean: bool = False) -> How:
    def how(to: Writer, result: Tensor, given: Given) -> None:
        source = _number(to, given["self"])
        if result.dtype != torch.float32:
            raise Unknown(f"{instruction} giving {result.dtype}")
        reduced = _dims(source, given)
        strides = _strides(result, source, reduced, bool(given.get("keepdim")))
        to.element(instruction, result, source, strides=strides)
        if mean:
            to.element("div", result, result, _number(to, _count(source, reduced)))

    return how


def _count(source: Tensor, dims: set[int]) -> int:
    return math.prod(source.shape[dim] for dim in dims)


def _spread(root: bool) -> How:
    """Variance or standard deviation: squares of the distances from the mean, in two passes."""

    def how(to: Writer, result: Tensor, given: Given) -> None:
        source = _number(to, given["self"])
        if given.get("unbiased") is False or result.dtype != torch.float32:
            raise Unknown("a spread in an old form, or not of float32")
        reduced = _dims(source, given)
        degrees = _count(source, reduced) - (1 if given.get("correction") is None else given["correction"])
        mean = torch.empty([1 if dim in reduced else size for dim, size in enumerate(source.shape)])
        _reduction("sum", mean=True)(to, mean, {"self": source, "dim": list(reduced), "keepdim": True})
        distance = torch.empty(source.shape)
        to.element("sub", distance, source, mean, _number(to, 1))
        to.element("square", distance, distance)
        to.element("sum", result, distance, strides=_strides(result, source, reduced, bool(given.get("keepdim"))))
        to.element("div", result, result, _number(to, max(degrees, 0)))
        if root:
            to.element("sqrt", result, result)

    return how


def _log_sum_exp(to: Writer, result: Tensor, given: Given) -> None:
    source = _number(to, given["self"])
    reduced, keepdim = _dims(source, given), bool(given.get("keepdim"))
    highest = torch.empty([1 if dim in reduced else size for dim, size in enumerate(source.shape)])
    _reduction("amax")(to, highest, {"self": source, "dim": list(reduced), "keepdim": True})
    finite, distance = torch.empty(highest.shape, dtype=torch.bool), torch.empty(source.shape)
    size = torch.empty(highest.shape)
    to.element("abs", size, highest)
    to.element("ne", finite, size, _number(to, math.inf))  # of an infinite maximum nothing is taken off
    to.element("where", highest, finite, highest, _number(to, 0))
    to.element("sub", distance, source, highest, _number(to, 1))
    to.element("exp", distance, distance)
    to.element("sum", result, distance, strides=_strides(result, source, reduced, keepdim))
    to.element("log", result, result)
    to.element("add", result, result, highest.view(result.shape), _number(to, 1))


def _cat(to: Writer, result: Tensor, given: Given) -> None:
    dim, start = given.get("dim", 0), 0
    for tensor in given["tensors"]:
        if tensor.numel() == 0:  # torch lets these be of any shape
            continue
        part = result.narrow(dim, start, tensor.shape[dim])
        _copy(to, part, {"src": tensor})
        start += tensor.shape[dim]


def _stack(to: Writer, result: Tensor, given: Given) -> None:
    for position, tensor in enumerate(given["tensors"]):
        _copy(to, result.select(given.get("dim", 0), position), {"src": tensor})


def _select_backward(to: Writer, result: Tensor, given: Given) -> None:
    _constant(0.0)(to, result, given)
    _copy(to, result.select(given["dim"], given["index"]), {"src": given["grad_output"]})


def _slice_backward(to: Writer, result: Tensor, given: Given) -> None:
    _constant(0.0)(to, result, given)
    length = result.shape[given["dim"]]
    where = range(length)[slice(given["start"], given["end"], given["step"])]
    part = result.narrow(given["dim"], where.start, length - where.start) if len(where) else result
    if given["step"] != 1:
        raise Unknown("a slice with steps")
    _copy(to, part.narrow(given["dim"], 0, len(where)), {"src": given["grad_output"]})


def _product(first: str, second: str) -> How:
    """A product of matrices, and what it is added to in torch's `self`, unless that is a factor."""

    def how(to: Writer, result: Tensor, given: Given) -> None:
        a, b = given[first], given[second]
        bias = None if first == "self" else given["self"].expand(result.shape)
        if given.get("alpha", 1) != 1 or given.get("beta", 1) != 1:
            raise Unknown("a product that is scaled")
        if any(matrix.dtype != torch.float32 for matrix in (a, b, result)):
            raise Unknown(f"a product giving {result.dtype}")
        rows = (result,) if bias is None else (result, bias)
        if result.shape[-1] > 1 and any(matrix.stride(-1) != 1 for matrix in rows):
            raise Unknown("a result or bias whose rows' numbers are not adjacent")
        to.product(result, a, b, bias)

    return how


def _gelu(instruction: str, *names: str) -> How:
    def how(to: Writer, result: Tensor, given: Given) -> None:
        if given.get("approximate", "none") != "none":
            raise Unknown("GELU by tanh")
        _floats(instruction, *names)(to, result, given)

    return how


def _in_order(to: Writer, tensor: Tensor | None) -> Tensor | None:
    """The float32 numbers that an operation on rows reads, one row after the other: copied first where they are not."""
    if tensor is None:
        return None
    if tensor.dtype != torch.float32:
        raise Unknown(f"rows of {tensor.dtype}")
    if tensor.is_contiguous():
        return tensor
    copied = torch.empty(tensor.shape)
    to.element("copy", copied, tensor)
    return copied


def _rows(
    to: Writer, name: str, columns: int, results: Sequence[Tensor | None], read: Sequence[Tensor | None], epsilon: float
) -> None:
    """An operation on rows of `columns` numbers, of which the first result is always wanted."""
    if results[0] is None or any(one is not None and not one.is_contiguous() for one in results):
        raise Unknown(f"{name} without its first result, or into rows that do not lie one after the other")
    to.rows(name, columns, *results, *(_in_order(to, tensor) for tensor in read), epsilon=epsilon)


def _softmax(instruction: str, *names: str) -> How:
    """Of the last dimension."""

    def how(to: Writer, result: Tensor, given: Given) -> None:
        if result.dim() == 0 or given["dim"] % result.dim() != result.dim() - 1:
            raise Unknown("softmax of another dimension than the last")
        _rows(to, instruction, result.shape[-1], [result], [given[name] for name in names], 0.0)

    return how


def _layer_norm(instruction: str, *names: str) -> How:
    def how(to: Writer, result: tuple[Tensor | None, ...], given: Given) -> None:
        columns, read = math.prod(given["normalized_shape"]), [given[name] for name in names]
        _rows(to, instruction, columns, result, read, given.get("eps", 0.0))

    return how


WITHOUT_EFFECT = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "resize"}
"""Operations after which no number is another."""

OPERATIONS: dict[str, How] = {
    **{name: _floats(name, "self") for name in ("neg", "abs", "sqrt", "reciprocal", "exp", "log", "log1p")},
    **{name: _floats(name, "self") for name in ("tanh", "sigmoid", "relu", "sign", "sin", "cos")},
    "sgn": _floats("sign", "self"),
    **{name: _floats(name, "self", "other") for name in ("mul", "maximum", "minimum")},
    **{name: _compare(name) for name in ("gt", "ge", "lt", "le", "eq", "ne")},
    **{name: _logical(name) for name in ("logical_and", "logical_or", "logical_not")},
    "bitwise_and": _logical("logical_and"),
    "bitwise_or": _logical("logical_or"),
    "bitwise_not": _logical("logical_not"),
    **{name: _floats(name, "self", "other", alpha=1) for name in ("add", "sub", "rsub")},
    "div": _div,
    "pow": _pow,
    "copy": _copy,
    "clone": _copy,
    "_to_copy": _copy,
    "where": _chosen("condition", "self", "other"),
    "masked_fill": _chosen("mask", "value", "self"),
    **{name: _floats("clamp", "self", min=-math.inf, max=math.inf) for name in ("clamp", "clamp_min", "clamp_max")},
    "lerp": _floats("lerp", "self", "end", "weight"),
    "tanh_backward": _floats("tanh_backward", "grad_output", "output"),
    "sigmoid_backward": _floats("sigmoid_backward", "grad_output", "output"),
    "threshold_backward": _floats("threshold_backward", "grad_output", "self", "threshold"),
    "softplus": _floats("softplus", "self", beta=1, threshold=20),
    "softplus_backward": _softplus_backward,
    "sum": _reduction("sum"),
    "mean": _reduction("sum", mean=True),
    "var": _spread(root=False),
    "std": _spread(root=True),
    "amin": _reduction("amin"),
    "amax": _reduction("amax"),
    "logsumexp": _log_sum_exp,
    **{name: _constant(1.0) for name in ("ones", "ones_like", "new_ones")},
    **{name: _constant(0.0) for name in ("zeros", "zeros_like", "new_zeros", "zero")},
    **{name: _constant() for name in ("full", "full_like", "new_full", "fill", "scalar_tensor")},
    "arange": _same_always,
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "mish": _floats("mish", "self"),
    "mish_backward": _floats("mish_backward", "grad_output", "self"),
    "gelu": _gelu("gelu", "self"),
    "gelu_backward": _gelu("gelu_backward", "grad_output", "self"),
    "_softmax": _softmax("softmax", "self"),
    "_softmax_backward_data": _softmax("softmax_backward", "grad_output", "output"),
    "native_layer_norm": _layer_norm("layer_norm", "input", "weight", "bias"),
    "native_layer_norm_backward": _layer_norm("layer_norm_backward", "grad_out", "input", "mean", "rstd", "weight"),
    "cat": _cat,
    "stack": _stack,
    "select_backward": _select_backward,
    "slice_backward": _slice_backward,
}
"""Name of an operation, in place or not -> how it is written natively."""
