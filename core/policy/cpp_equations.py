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

from surefoot.core.base.errors import ExportError

Row = np.ndarray[Any, Any]
"""C++ expressions, an object array of strings: names of statements, elements of arguments, or numbers."""

FORMS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
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
FLOORED = ("remainder", "floor_divide")
SAME = ("clone", "_to_copy", "detach", "alias", "lift_fresh_copy", "contiguous", "to")
CONSTANT = ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like", "new_empty", "empty_like")
WHOLE = (torch.int32, torch.int64)
PROBES, SCALES = 8, (0.1, 1.0, 10.0)
"""Rows that a recorded function is compared at with the function itself, of each standard deviation."""
REDUCTIONS = {"sum": "add", "mean": "add", "amin": "minimum", "amax": "maximum"}


def cpp_function(name: str, function: Callable[..., Tensor], widths: Sequence[int]) -> str:
    """The C++ of `function`, which takes (1, width) float64 tensors and gives (1, outputs) numbers.

    Args:
        name: of the C++ function, `void NAME(const double* a0, const double* a1, ..., double* out)`.
        function: without branches that depend on its arguments' values.
        widths: of its arguments.

    Raises:
        ExportError: it uses an operator that is not known here, can't be recorded, or leaves torch.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    def failed(error: Exception) -> ExportError:
        return ExportError(f"the equations of {name} can't be written in C++: {error}; export to .onnx")

    try:
        recorded = make_fx(lambda *rows: function(*rows))(
            *(torch.full((1, width), 0.5, dtype=torch.float64) for width in widths)
        )
        followed = all(_agree(recorded(*(row.clone() for row in rows)), function(*rows)) for rows in _probes(widths))
    except Exception as error:
        raise failed(error) from error
    if not followed:
        raise ExportError(
            f"the equations of {name} leave torch: numpy, numba or plain python computes a part of them, which a file "
            "would hold as a constant. Write that part in torch's operators, or run the filter in python"
        )
    recorded.graph.eliminate_dead_code()
    writer = _Writer(recorded, name)
    arguments = [
        np.array([[f"a{k}[{i}]" for i in range(width)]], object).reshape(1, width) for k, width in enumerate(widths)
    ]
    try:
        result = writer.row(writer.run(*arguments, enable_io_processing=False)).reshape(-1)
    except ExportError:
        raise
    except Exception as error:
        raise failed(error) from error
    lines = [f"  const double {kept} = {text};" for kept, text in writer.needed(result)]
    lines += [f"  out[{i}] = {value};" for i, value in enumerate(result)]
    taken = ", ".join(f"const double* a{k}" for k in range(len(widths)))
    return f"inline void {name}({taken}, double* out) {{\n" + "\n".join(lines) + "\n}\n"


def _probes(widths: Sequence[int]) -> list[list[Tensor]]:
    """Arguments to compare at, always the same ones."""
    drawn = torch.Generator().manual_seed(0)
    return [
        [scale * torch.randn(1, width, dtype=torch.float64, generator=drawn) for width in widths]
        for scale in SCALES
        for _ in range(PROBES)
    ]


def _agree(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), 1e-9, 1e-12, equal_nan=True)


class _Writer(fx.Interpreter):
    """Carries out a recorded function on rows of expressions."""

    def __init__(self, module: fx.GraphModule, name: str) -> None:
        super().__init__(module)
        self.name, self.extra_traceback = name, False
        self.given: torch.dtype | None = None
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
        named = dict(zip((argument.name for argument in target._schema.arguments), args)) | kwargs
        if kind in CONSTANT:
            like = torch.zeros(args[0].shape, dtype=torch.float64)
            return target(like, *args[1:], **{**kwargs, "dtype": self.given})
        if kind in SAME:
            return self._cast(args[0], named.get("dtype"))
        if kind == "clamp":
            low, high = named.get("min"), named.get("max")
            found = args[0] if low is None else self._each("clamp_min", args[0], low)
            return found if high is None else self._each("clamp_max", found, high)
        if kind in REDUCTIONS:
            return self._reduced(kind, self._cast(args[0], kwargs.get("dtype")), *args[1:], **kwargs)
        if kind in FORMS or kind in FLOORED:
            return self._operator(kind, named)
        if kind in SHAPES:
            return SHAPES[kind](*(self._rows(value) for value in args), **kwargs)
        raise self._unknown(kind)

    def run_node(self, node: fx.Node) -> Any:
        """As of any interpreter; the type of what it gives is known meanwhile."""
        value = node.meta.get("val")
        self.given = value.dtype if isinstance(value, Tensor) else None
        return super().run_node(node)

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

    def _unknown(self, what: str) -> ExportError:
        return ExportError(
            f"the equations of {self.name} use torch's {what}, which can't be written in C++ here; export to .onnx"
        )

    def _cast(self, value: Any, dtype: torch.dtype | None) -> Any:
        """As another type: numbers are doubles here, so that only what is lost is written."""
        if dtype is None or dtype.is_floating_point:
            return value
        if dtype != torch.bool and dtype not in WHOLE:
            raise self._unknown(f"cast to {dtype}")
        return self._each("ne", value, 0.0) if dtype == torch.bool else self._each("trunc", value)

    def _operator(self, kind: str, named: dict[str, Any]) -> Row:
        """One of `FORMS` or `FLOORED` with the arguments of torch's."""
        alpha, rounding_mode = named.pop("alpha", 1), named.pop("rounding_mode", None)
        operands = list(named.values())
        if len(operands) != (2 if kind in FLOORED else len(set(re.findall(r"{\d}", FORMS[kind])))):
            raise self._unknown(f"{kind} with {', '.join(n for n in named if n != 'self')}")
        if kind.startswith("bitwise") and self.given != torch.bool:
            raise self._unknown(f"{kind} of whole numbers")
        if alpha != 1:
            scaled = 0 if kind == "rsub" else 1
            operands[scaled] = self._each("mul", operands[scaled], alpha)
        if kind in FLOORED or rounding_mode == "floor":
            return self._floored(operands[0], operands[1], rest=kind == "remainder")
        if kind == "pow" and isinstance(operands[1], int | float) and operands[1] == 2:
            return self._each("mul", operands[0], operands[0])
        found = self._each(kind, *operands)
        if rounding_mode is not None:
            return self._each(rounding_mode, found)
        return self._cast(found, torch.bool) if kind == "add" and self.given == torch.bool else found

    def _floored(self, a: Any, b: Any, rest: bool) -> Row:
        """The quotient rounded down, or what it leaves, of b's sign: by fmod, as torch, since a / b may round up."""
        left = self._each("fmod", a, b)
        other = self._each("ne", self._each("lt", left, 0.0), self._each("lt", b, 0.0))
        beyond = self._each("logical_and", left, other)
        if rest:
            return self._each("where", beyond, self._each("add", left, b), left)
        whole = self._each("sub", self._each("div", self._each("sub", a, left), b), beyond)
        return self._each("where", b, self._each("round", whole), self._each("div", a, b))

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


def _squeeze(row: Row, dim: int | Sequence[int] | None = None) -> Row:
    """Without the dimensions of 1 among these; torch leaves others as they are."""
    dims = range(row.ndim) if dim is None else {d % row.ndim for d in _flat(dim)}
    return np.squeeze(row, tuple(d for d in dims if row.shape[d] == 1))


SHAPES: dict[str, Callable[..., Any]] = {
    "select": lambda row, dim, index: np.asarray(np.take(row, index, dim), object),
    "slice": _slice,
    "expand": _expand,
    "unbind": lambda row, dim=0: [np.asarray(np.take(row, i, dim), object) for i in range(row.shape[dim])],
    "stack": lambda rows, dim=0: np.stack(rows, dim),
    "cat": lambda rows, dim=0: np.concatenate(rows, dim),
    "unsqueeze": lambda row, dim: np.expand_dims(row, dim),
    "squeeze": _squeeze,
    "view": lambda row, shape: row.reshape(shape),
    "_unsafe_view": lambda row, shape: row.reshape(shape),
    "reshape": lambda row, shape: row.reshape(shape),
    "permute": lambda row, dims: row.transpose(dims),
    "transpose": lambda row, a, b: row.swapaxes(a, b),
}
"""Operator -> what it does to the places of elements."""
