"""Operations of torch on single numbers, recorded and written as one C++ function.

The form is that of `torch.cuda.jiterator`: a template of the number's type. No ">" stands in it, by which that module
would look for the end of the template's parameters.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An elementwise function as it was recorded."""

    name: str
    """As a C++ name."""
    source: str
    """C++: `template <typename T> void name(T x0, ..., T& y0, ...)`."""
    reads: tuple[int, ...]
    """Inputs of the function that it needs; only these are its own."""
    outputs: int
    gives: tuple[tuple[bool, int], ...]
    """Of each output of the function: True and which of its own it is, or False and which input."""
    graph: Callable[..., Any]
    """Of all inputs of the function, to all its outputs, by torch's operations."""
    inputs: int
    """Of the function."""
    dtype: torch.dtype
    """Of the numbers that it was recorded with: its operations may make such."""

    @property
    def key(self) -> str:
        """Differs where the source or the type of numbers does."""
        return f"{self.name}:{self.dtype}:{hashlib.sha256(self.source.encode()).hexdigest()[:16]}"

    def run(self, own: Sequence[Tensor]) -> Sequence[Tensor]:
        """Its own outputs by torch's operations, from the inputs that it reads."""
        given: list[Tensor] = [own[0]] * self.inputs
        for place, tensor in zip(self.reads, own, strict=True):
            given[place] = tensor
        found = {
            number: value for (is_own, number), value in zip(self.gives, self.graph(*given), strict=True) if is_own
        }
        return [found[number] for number in range(self.outputs)]


def recorded(function: Callable[..., Any], inputs: int, dtype: torch.dtype, name: str) -> Kernel:
    """Record what a function of so many tensors does.

    In a thread of its own, where no mode, transform or guard of the caller's holds.

    Raises:
        ConfigError: an operation that has no C++ form here.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    found: list[Any] = []

    def record() -> None:
        try:
            examples = [torch.full((1,), 0.5, dtype=dtype, device="cpu") for _ in range(inputs)]
            out_of_place = torch.func.functionalize(lambda *given: tuple(function(*given)))
            found.append(make_fx(out_of_place)(*examples))
        except BaseException as error:  # raised where the thread was started
            found.append(error)

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return _written(found[0], name, dtype)


def _written(module: Any, name: str, dtype: torch.dtype) -> Kernel:
    module.graph.eliminate_dead_code()
    module.recompile()
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    reads = tuple(index for index, node in enumerate(places) if node.users) or (0,)
    names: dict[Any, str] = {places[index]: f"x{number}" for number, index in enumerate(reads)}
    names_of_inputs = {names[places[index]]: index for index in reads}
    lines: list[str] = []

    def term(value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return names[value]
        return f"T({float(value)!r})" if isinstance(value, (int, float)) else str(value)

    outputs: Sequence[Any] = ()
    for node in module.graph.nodes:
        if node.op == "output":
            outputs = node.args[0]
        if node.op != "call_function":
            continue
        kind = node.target.overloadpacket.__name__
        if kind in SAME:
            names[node] = term(node.args[0])
            continue
        if kind not in FORMS:
            raise ConfigError(f"{name}: the operation {node.target} has no C++ form in core/base/pointwise_source.py")
        options = {key: value for key, value in node.kwargs.items() if key in ("alpha", "approximate", "min", "max")}
        own = f"t{len(lines)}"
        kind_of = "bool" if kind in TRUTHS else "T"
        lines.append(f"  {kind_of} {own} = {FORMS[kind](*(_argument(arg, term) for arg in node.args), **options)};")
        names[node] = own
    own_terms: list[str] = []
    gives: list[tuple[bool, int]] = []
    for output in outputs:
        found = term(output)
        if found in names_of_inputs:
            gives.append((False, names_of_inputs[found]))
            continue
        if found not in own_terms:
            own_terms.append(found)
        gives.append((True, own_terms.index(found)))
    parameters = [f"T x{number}" for number in range(len(reads))] + [f"T& y{i}" for i in range(len(own_terms))]
    lines += [f"  y{index} = {own};" for index, own in enumerate(own_terms)]
    body = "\n".join(lines)
    source = f"template <typename T> void {name}({', '.join(parameters)}) {{\n{body}\n}}"
    return Kernel(name, source, reads, len(own_terms), tuple(gives), module, len(places), dtype)


def _argument(value: Any, term: Callable[[Any], str]) -> Any:
    """A node as its name, a number as a literal; what is neither as it is."""
    if isinstance(value, torch.fx.Node) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return term(value)
    return value


def _scaled(sign: str) -> Callable[..., str]:
    def form(a: str, b: str, alpha: float = 1) -> str:
        return f"{a} {sign} {b}" if alpha == 1 else f"{a} {sign} T({float(alpha)!r}) * {b}"

    return form


def _power(a: str, exponent: str) -> str:
    special = {"T(1.0)": a, "T(2.0)": f"{a} * {a}", "T(3.0)": f"{a} * {a} * {a}", "T(0.5)": f"sqrt({a})"}
    special |= {"T(-1.0)": f"T(1) / {a}", "T(0.0)": "T(1)", "T(-2.0)": f"T(1) / ({a} * {a})"}
    return special.get(exponent, f"pow({a}, {exponent})")


def _clamped(a: str, low: Any = None, high: Any = None, **named: Any) -> str:
    """A NaN stays one."""
    low, high = (_literal(named.get(key, given)) for key, given in (("min", low), ("max", high)))
    inner = a if low is None else f"({a} < {low} ? {low} : {a})"
    return inner if high is None else f"({high} < {inner} ? {high} : {inner})"


def _literal(value: Any) -> Any:
    return f"T({float(value)!r})" if isinstance(value, (int, float)) else value


def _nan_or(a: str, b: str, chosen: str) -> str:
    return f"({a} != {a} ? {a} : {b} != {b} ? {b} : {chosen})"


def _gelu(a: str, approximate: str = "none") -> str:
    if approximate == "tanh":
        return f"T(0.5) * {a} * (T(1) + tanh({_INNER.format(a=a)}))"
    return f"T(0.5) * {a} * (T(1) + erf({a} * T(0.7071067811865476)))"


_INNER = "T(0.7978845608028654) * ({a} + T(0.044715) * {a} * {a} * {a})"


def _gelu_backward(g: str, a: str, approximate: str = "none") -> str:
    if approximate == "tanh":
        t = f"tanh({_INNER.format(a=a)})"
        slope = f"T(0.7978845608028654) * (T(1) + T(0.134145) * {a} * {a})"
        return f"{g} * (T(0.5) * (T(1) + {t}) + T(0.5) * {a} * (T(1) - {t} * {t}) * {slope})"
    density = f"exp(T(-0.5) * {a} * {a}) * T(0.3989422804014327)"
    return f"{g} * (T(0.5) * (T(1) + erf({a} * T(0.7071067811865476))) + {a} * {density})"


def _softplus(a: str, beta: str = "T(1.0)", threshold: str = "T(20.0)") -> str:
    return f"({threshold} < {a} * {beta} ? {a} : log1p(exp({a} * {beta})) / {beta})"


def _softplus_backward(g: str, a: str, beta: str, threshold: str) -> str:
    z = f"exp({a} * {beta})"
    return f"({threshold} < {a} * {beta} ? {g} : {g} * {z} / ({z} + T(1)))"


def _sigmoid(a: str) -> str:
    return f"T(1) / (T(1) + exp(-{a}))"


def _mish_backward(g: str, a: str) -> str:
    t = f"tanh(log1p(exp({a})))"
    return f"{g} * ({t} + {a} * ({_sigmoid(a)}) * (T(1) - {t} * {t}))"


FORMS: dict[str, Callable[..., str]] = {
    "add": _scaled("+"),
    "sub": _scaled("-"),
    "rsub": lambda a, b, alpha=1: _scaled("-")(b, a, alpha),
    "mul": lambda a, b: f"{a} * {b}",
    "div": lambda a, b: f"{a} / {b}",
    "addcmul": lambda a, b, c: f"{a} + {b} * {c}",
    "neg": lambda a: f"-{a}",
    "abs": lambda a: f"fabs({a})",
    "exp": lambda a: f"exp({a})",
    "expm1": lambda a: f"expm1({a})",
    "log": lambda a: f"log({a})",
    "log1p": lambda a: f"log1p({a})",
    "sqrt": lambda a: f"sqrt({a})",
    "reciprocal": lambda a: f"T(1) / {a}",
    "square": lambda a: f"{a} * {a}",
    "pow": _power,
    "tanh": lambda a: f"tanh({a})",
    "sigmoid": _sigmoid,
    "sgn": lambda a: f"T(T(0) < {a}) - T({a} < T(0))",
    "sign": lambda a: f"T(T(0) < {a}) - T({a} < T(0))",
    "relu": lambda a: f"({a} <= T(0) ? T(0) : {a})",
    "threshold_backward": lambda g, a, limit: f"({a} <= {limit} ? T(0) : {g})",
    "leaky_relu": lambda a, slope="T(0.01)": f"(T(0) < {a} ? {a} : {a} * {slope})",
    "leaky_relu_backward": lambda g, a, slope, result: f"(T(0) < {a} ? {g} : {g} * {slope})",
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "silu": lambda a: f"{a} / (T(1) + exp(-{a}))",
    "silu_backward": lambda g, a: f"{g} * (({_sigmoid(a)}) * (T(1) + {a} * (T(1) - {_sigmoid(a)})))",
    "softplus": _softplus,
    "softplus_backward": _softplus_backward,
    "mish": lambda a: f"{a} * tanh(log1p(exp({a})))",
    "mish_backward": _mish_backward,
    "tanh_backward": lambda g, y: f"{g} * (T(1) - {y} * {y})",
    "sigmoid_backward": lambda g, y: f"{g} * (T(1) - {y}) * {y}",
    "clamp": _clamped,
    "clamp_min": lambda a, low: _clamped(a, low),
    "clamp_max": lambda a, high: _clamped(a, None, high),
    "maximum": lambda a, b: _nan_or(a, b, f"{a} < {b} ? {b} : {a}"),
    "minimum": lambda a, b: _nan_or(a, b, f"{b} < {a} ? {b} : {a}"),
    "where": lambda condition, a, b: f"({condition} ? {a} : {b})",
    "masked_fill": lambda a, condition, b: f"({condition} ? {b} : {a})",
    "gt": lambda a, b: f"{b} < {a}",
    "ge": lambda a, b: f"{b} <= {a}",
    "lt": lambda a, b: f"{a} < {b}",
    "le": lambda a, b: f"{a} <= {b}",
    "eq": lambda a, b: f"{a} == {b}",
    "ne": lambda a, b: f"{a} != {b}",
    "logical_and": lambda a, b: f"{a} && {b}",
    "logical_or": lambda a, b: f"{a} || {b}",
    "logical_not": lambda a: f"!{a}",
    "scalar_tensor": lambda a: a,
    "full_like": lambda _, a: a,
    "fill": lambda _, a: a,
    "empty_like": lambda _: "T(0)",  # which a fill overwrites
    "ones_like": lambda _: "T(1)",
    "zeros_like": lambda _: "T(0)",
}
"""Operation -> its C++ form, of terms."""
SAME = frozenset({"detach", "alias", "expand", "view", "_to_copy", "clone", "lift_fresh_copy", "_unsafe_view"})
"""Operations that leave a number as it is."""
TRUTHS = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "logical_and", "logical_or", "logical_not"})
"""Operations that give a truth value."""
