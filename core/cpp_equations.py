"""Equations that are written in torch, as C++: a function of single rows becomes statements about doubles.

The function is recorded once (`make_fx`). What depends on no argument is computed then, so that physical constants
become numbers; of the rest each element is a statement, equal ones are one, and what no output needs is left out.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from surefoot.core.errors import ExportError

Row = np.ndarray[Any, Any]
"""C++ expressions, an object array of strings: names of statements, elements of arguments, or numbers."""

FORMS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "remainder": "{0} - {1} * std::floor({0} / {1})",
    "fmod": "std::fmod({0}, {1})",
    "pow": "std::pow({0}, {1})",
    "atan2": "std::atan2({0}, {1})",
    "hypot": "std::hypot({0}, {1})",
    "copysign": "std::copysign({0}, {1})",
    "maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",  # NaN if either is, as torch's
    "minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "clamp_min": "{0} < {1} ? {1} : {0}",
    "clamp_max": "{0} > {1} ? {1} : {0}",
    "neg": "-{0}",
    "reciprocal": "1.0 / {0}",
    "rsqrt": "1.0 / std::sqrt({0})",
    "sign": "({0} > 0.0 ? 1.0 : 0.0) - ({0} < 0.0 ? 1.0 : 0.0)",
    "sigmoid": "1.0 / (1.0 + std::exp(-{0}))",
    "relu": "{0} < 0.0 ? 0.0 : {0}",
    "abs": "std::fabs({0})",
    "round": "std::nearbyint({0})",
    **{name: f"std::{name}({{0}})" for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")},
    **{name: f"std::{name}({{0}})" for name in ("exp", "expm1", "log", "log1p", "sqrt", "floor", "ceil", "trunc")},
    **{
        name: f"{{0}} {sign} {{1}} ? 1.0 : 0.0"
        for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="))
    },
    "logical_and": "{0} != 0.0 && {1} != 0.0 ? 1.0 : 0.0",
    "logical_or": "{0} != 0.0 || {1} != 0.0 ? 1.0 : 0.0",
    "logical_not": "{0} != 0.0 ? 0.0 : 1.0",
    "where": "{0} != 0.0 ? {1} : {2}",
}
"""Operator -> its expression of elements; what is true is 1."""
FORMS |= {f"bitwise_{name}": FORMS[f"logical_{name}"] for name in ("and", "or", "not")}  # of bool tensors
SAME = ("clone", "_to_copy", "detach", "alias", "lift_fresh_copy", "contiguous", "to")
CONSTANT = ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like", "new_empty", "empty_like")
REDUCTIONS = {"sum": "add", "mean": "add", "amin": "minimum", "amax": "maximum"}


def cpp_function(name: str, function: Callable[..., Tensor], widths: Sequence[int]) -> str:
    """The C++ of `function`, which takes (1, width) float64 tensors and gives (1, outputs) numbers.

    Args:
        name: of the C++ function, `void NAME(const double* a0, const double* a1, ..., double* out)`.
        function: without branches that depend on its arguments' values.
        widths: of its arguments.

    Raises:
        ExportError: it uses an operator that is not known here, or can't be recorded.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        recorded = make_fx(lambda *rows: function(*rows))(
            *(torch.full((1, width), 0.5, dtype=torch.float64) for width in widths)
        )
    except Exception as error:
        raise ExportError(f"the equations of {name} can't be written in C++: {error}; export to .onnx") from error
    recorded.graph.eliminate_dead_code()
    writer = _Writer(recorded, name)
    arguments = [
        np.array([[f"a{k}[{i}]" for i in range(width)]], object).reshape(1, width) for k, width in enumerate(widths)
    ]
    result = writer.row(writer.run(*arguments, enable_io_processing=False)).reshape(-1)
    lines = [f"  const double {kept} = {text};" for kept, text in writer.needed(result)]
    lines += [f"  out[{i}] = {value};" for i, value in enumerate(result)]
    taken = ", ".join(f"const double* a{k}" for k in range(len(widths)))
    return f"inline void {name}({taken}, double* out) {{\n" + "\n".join(lines) + "\n}\n"


class _Writer(fx.Interpreter):
    """Carries out a recorded function on rows of expressions."""

    def __init__(self, module: fx.GraphModule, name: str) -> None:
        super().__init__(module)
        self.name, self.extra_traceback = name, False
        self.statements: dict[str, str] = {}
        """Expression -> the name that has it."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """One operator; torch's own where no argument is a row of expressions."""
        given = [*args, *kwargs.values()]
        if not any(isinstance(value, np.ndarray) for one in given for value in _flat(one)):
            return super().call_function(target, args, kwargs)
        if target is operator.getitem:
            return args[0][args[1]]
        kind = target.overloadpacket.__name__
        if kind in CONSTANT:
            like = torch.zeros(args[0].shape, dtype=torch.float64)
            return target(like, *args[1:], **{**kwargs, "dtype": torch.float64})
        if kind in SAME:
            return args[0]
        if kind == "clamp":
            low, high = (*args[1:], None, None)[:2]
            low, high = kwargs.get("min", low), kwargs.get("max", high)
            found = args[0] if low is None else self._each("clamp_min", args[0], low)
            return found if high is None else self._each("clamp_max", found, high)
        if kind in REDUCTIONS:
            return self._reduced(kind, *args, **kwargs)
        if kind == "pow" and isinstance(args[1], int | float) and args[1] == 2:
            return self._each("mul", args[0], args[0])
        if kind in FORMS:
            if (alpha := kwargs.get("alpha", 1)) != 1:
                args = (args[0], self._each("mul", args[1], alpha))
            return self._each(kind, *args)
        if kind in SHAPES:
            return SHAPES[kind](*(self._rows(value) for value in args), **kwargs)
        raise ExportError(
            f"the equations of {self.name} use torch's {kind}, which can't be written in C++ here; export to .onnx"
        )

    def row(self, value: Any) -> Row:
        """Expressions of a tensor or a number; those that are rows already stay."""
        if isinstance(value, np.ndarray):
            return value
        numbers = np.asarray(value.detach().double() if isinstance(value, Tensor) else value, np.float64)
        return np.vectorize(_literal, otypes=[object])(numbers)

    def needed(self, outputs: Row) -> list[tuple[str, str]]:
        """The statements that these expressions need, name and text, in their order."""
        wanted, kept = {name for value in outputs for name in re.findall(r"\bt\d+\b", value)}, []
        for text, name in reversed(self.statements.items()):
            if name in wanted:
                wanted |= set(re.findall(r"\bt\d+\b", text))
                kept.append((name, text))
        return kept[::-1]

    def _rows(self, value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(one, np.ndarray) for one in value):
            return [self.row(one) for one in value]
        return value

    def _each(self, kind: str, *operands: Any) -> Row:
        """The operator on each element, after broadcasting."""
        rows = np.broadcast_arrays(*(self.row(value) for value in operands))
        result = np.empty(rows[0].shape, object)
        for at in np.ndindex(result.shape):
            text = FORMS[kind].format(*(row[at] for row in rows))
            result[at] = self.statements.setdefault(text, f"t{len(self.statements)}")
        return result

    def _reduced(self, kind: str, row: Row, dims: Any = None, keepdim: bool = False, **unused: Any) -> Row:
        """Over some dimensions, all of them where none is named."""
        dims = sorted({d % row.ndim for d in ([dims] if isinstance(dims, int) else dims or range(row.ndim))})
        count, result = 1, row
        for dim in dims:
            parts = [np.take(result, [i], dim) for i in range(row.shape[dim])]
            count *= len(parts)
            result = functools.reduce(lambda a, b: self._each(REDUCTIONS[kind], a, b), parts)
        if kind == "mean":
            result = self._each("div", result, count)
        return result if keepdim else np.squeeze(result, tuple(dims))


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _literal(number: float) -> str:
    """The double as C++ reads it back bit for bit."""
    if not np.isfinite(number):
        return 'std::nan("")' if np.isnan(number) else ("HUGE_VAL" if number > 0 else "(-HUGE_VAL)")
    text = repr(float(number))
    return f"({text})" if number < 0 or text.startswith("-") else text


def _slice(row: Row, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Row:
    return row[(slice(None),) * (dim % row.ndim) + (slice(start, end, step),)]


def _expand(row: Row, sizes: Sequence[int], **unused: Any) -> Row:
    old = (1,) * (len(sizes) - row.ndim) + row.shape
    return np.broadcast_to(row, [there if new == -1 else new for new, there in zip(sizes, old, strict=True)])


SHAPES: dict[str, Callable[..., Any]] = {
    "select": lambda row, dim, index: np.asarray(np.take(row, index, dim), object),
    "slice": _slice,
    "expand": _expand,
    "unbind": lambda row, dim=0: [np.asarray(np.take(row, i, dim), object) for i in range(row.shape[dim])],
    "stack": lambda rows, dim=0: np.stack(rows, dim),
    "cat": lambda rows, dim=0: np.concatenate(rows, dim),
    "unsqueeze": lambda row, dim: np.expand_dims(row, dim),
    "squeeze": lambda row, dim=None: np.squeeze(row, dim),
    "view": lambda row, shape: row.reshape(shape),
    "_unsafe_view": lambda row, shape: row.reshape(shape),
    "reshape": lambda row, shape: row.reshape(shape),
    "permute": lambda row, dims: row.transpose(dims),
    "transpose": lambda row, a, b: row.swapaxes(a, b),
}
"""Operator -> what it does to the places of elements."""
