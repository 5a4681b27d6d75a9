"""Checks of an algorithm's options: what kind of value an annotation admits, and in what range."""

from __future__ import annotations

import math
import numbers
from typing import Any

from surefoot.core.errors import ConfigError

KINDS: dict[str, tuple[Any, str]] = {
    "int": (numbers.Integral, "a whole number"),
    "float": (numbers.Real, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a word"),
    "tuple": ((tuple, list), "a list, as [256, 256]"),
}
"""Annotation of a config field -> what its values are, and how an error says it; others say it themselves."""

RANGES: dict[str, tuple[float, float, str]] = {
    "discount": (0.0, 1.0, "in [0, 1]"),
    "learning_rate": (0.0, math.inf, ">= 0"),
    "target_rate": (0.0, 1.0, "in [0, 1]"),
    "average_rate": (0.0, 1.0, "in [0, 1]"),
    "weight_decay": (0.0, math.inf, ">= 0"),
    "max_gradient_norm": (math.ulp(0.0), math.inf, "> 0"),
    "epsilon": (0.0, math.inf, ">= 0"),
    "value_coefficient": (0.0, math.inf, ">= 0"),
    "log_std_min": (-math.inf, 2.0, "at most 2, where the range ends"),
}
"""End of a config field's name -> least and greatest value, and how an error says it; all that have one are checked."""


def require(condition: bool, algorithm: str, field: str, value: Any, needed: str) -> None:
    """Raise a ConfigError that names a config field whose value is out of range."""
    if not condition:
        raise ConfigError(f"{algorithm}.{field} is {value!r}, must be {needed}")


def needs(entries: list[str]) -> str:
    """How an error says what a list of a fixed length holds."""
    return f"a list of {len(entries)}: " + ", ".join(KINDS[one][1] if one in KINDS else one for one in entries)


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind of `KINDS`; true and false are no numbers."""
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def check_option(algorithm: str, field: str, annotation: str, value: Any) -> None:
    """Raise a ConfigError unless `value` is of its field's kind, finite, and in the range that its name stands for."""
    said = annotation.removesuffix(" | None")
    word = "tuple" if said.startswith("tuple[") and said.endswith("]") else said
    if word in KINDS and not (value is None and said != annotation):
        kind, needed = KINDS[word]
        right = _is_of(value, kind)
        require(right, algorithm, field, value, needed if said == annotation else f"{needed} or null")
    parts = value if isinstance(value, tuple | list) else (value,)
    entries = said[len("tuple[") : -1].split(", ") if word == "tuple" and isinstance(value, tuple | list) else []
    many = entries[1:] == ["..."]
    each = entries[:1] * len(parts) if many else entries
    for entry, part in zip(each, parts):
        if entry in KINDS:
            kind, needed = KINDS[entry]
            right = _is_of(part, kind)
            require(
                right, algorithm, field, value, f"a list each of whose entries is {needed}" if many else needs(each)
            )
    ordered = len(parts) == 2 and parts[0] < parts[1]  # else clamp would take the second
    ordered = ordered or not field.endswith("log_std_range")
    require(ordered, algorithm, field, value, "(lowest, highest)")
    require(not entries or len(parts) == len(each), algorithm, field, value, needs(each))
    finite = all(math.isfinite(part) for part in parts if isinstance(part, float))
    require(finite, algorithm, field, value, "finite")
    for ending, (low, high, needed) in RANGES.items():
        if isinstance(value, numbers.Real) and (field == ending or field.endswith(f"_{ending}")):
            require(low <= float(value) <= high, algorithm, field, value, needed)
