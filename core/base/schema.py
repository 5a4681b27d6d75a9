"""Received JSON, checked before anything is done with it: what it must hold is declared once, next to who reads it.

    POINT = Record({"step": Number(0, whole=True), "kind": Text(among=("train", "eval"))}, {"note": Maybe(Text())})
    check(parse(text, path), POINT, path)

A refusal is one sentence that names the file and the place in it: `run/config.json: plan.seeds[1] is 'x', must be a
whole number`. `Record.of(SomeDataclass)` takes names, types and defaults from the fields of a dataclass.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import reprlib
import types
import typing
from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

from surefoot.core.base.errors import CheckpointError, Code, ConfigError, SurefootError, nearest, printable

MOST_BYTES = 128 << 20
"""Of a JSON text. Nothing that surefoot writes comes near it: it is read into memory whole."""
MOST_MEMORY = 256 << 20
"""What the values of a JSON text may take in memory, as `memory` estimates it: 6 million numbers, 2 million keys."""
DEEPEST = 32
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlevel = 60, 60, 2


class Wrong(ValueError):
    """A value that is not what it must be; the text is a clause that names its place, `code` the kind of mistake."""

    def __init__(self, clause: str, code: Code, place: str) -> None:
        super().__init__(clause)
        self.code = code
        self.place = place


class Kind(Protocol):
    """What a value must be."""

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where the value at `place` is something else."""
        ...


@dataclasses.dataclass(frozen=True)
class Number:
    """A number in [low, high], not a truth value; without `nan` a finite one."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    nan: bool = False

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is not such a number."""
        right = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        if not right:  # numpy's numbers
            right = isinstance(value, numbers.Integral if self.whole else numbers.Real) and not isinstance(value, bool)
        if not right:
            raise Wrong(f"{place} is {shown(value)}, must be {self}", "type", place)
        if isinstance(value, int):
            right = abs(value) < 2**63  # further on it becomes an int64 or a float
        if right and not (self.nan and not math.isfinite(value)):
            right = math.isfinite(value) and self.low <= value <= self.high
        if not right:
            raise Wrong(f"{place} is {shown(value)}, must be {self}", "range", place)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number" if self.nan else "a finite number"
        low, high = self.low > -math.inf, self.high < math.inf
        if low and high:
            return f"{kind} from {self.low:.15g} to {self.high:.15g}"
        return f"{kind} of at least {self.low:.15g}" if low else f"{kind} of at most {self.high:.15g}" if high else kind


@dataclasses.dataclass(frozen=True)
class Text:
    """A string that can be shown in a terminal, or one of a few words."""

    longest: int = 20_000
    among: tuple[str, ...] = ()

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is not such a text."""
        if not isinstance(value, str):
            raise Wrong(f"{place} is {shown(value)}, must be a text", "type", place)
        if self.among and value not in self.among:
            raise Wrong(f"{place} is {shown(value)}, must be one of {', '.join(self.among)}", "choice", place)
        if len(value) > self.longest:
            raise Wrong(f"{place} has {len(value)} characters, must have at most {self.longest}", "length", place)
        if printable(value) != value:
            raise Wrong(f"{place} is {shown(value)}, must be a text without control characters", "text", place)


@dataclasses.dataclass(frozen=True)
class Within:
    """A number of a kind that lies in a container of numbers."""

    kind: Kind
    numbers: Container[float]
    stated: str
    """How a message says which these are."""

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is no such number."""
        self.kind.check(value, place)
        if value not in self.numbers:
            raise Wrong(f"{place} is {shown(value)}, must be {self.stated}", "range", place)


@dataclasses.dataclass(frozen=True)
class Flag:
    """true or false."""

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is neither."""
        if not isinstance(value, bool):
            raise Wrong(f"{place} is {shown(value)}, must be true or false", "type", place)


@dataclasses.dataclass(frozen=True)
class FlagOr:
    """True or false, or another kind."""

    other: Kind

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is neither."""
        if not isinstance(value, bool):
            self.other.check(value, place)


@dataclasses.dataclass(frozen=True)
class Maybe:
    """null, or a value of a kind."""

    kind: Kind

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is neither."""
        if value is not None:
            self.kind.check(value, place)


@dataclasses.dataclass(frozen=True)
class Many:
    """A list of values of one kind."""

    kind: Kind
    least: int = 0
    most: int = MOST_BYTES

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is no list, has another length, or one of its values is of another kind."""
        if not isinstance(value, list | tuple):
            raise Wrong(f"{place} is {shown(value)}, must be a list", "type", place)
        if not self.least <= len(value) <= self.most:
            many = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
            raise Wrong(f"{place} has {len(value)} entries, must have {many}", "length", place)
        for index, one in enumerate(value):
            self.kind.check(one, f"{place}[{index}]")


@dataclasses.dataclass(frozen=True)
class Each:
    """A list of a fixed length, each of whose values has a kind of its own."""

    kinds: tuple[Kind, ...]

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is no list, has another length, or one of its values is of another kind."""
        Many(Plain(), len(self.kinds), len(self.kinds)).check(value, place)
        for index, (kind, one) in enumerate(zip(self.kinds, value, strict=True)):
            kind.check(one, f"{place}[{index}]")


@dataclasses.dataclass(frozen=True)
class Table:
    """An object whose keys are free and whose values are of one kind."""

    kind: Kind

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is no object, or one of its values is of another kind."""
        _object(value, place)
        for key, one in value.items():
            Text(200).check(key, f"a key of {place}" if place else "a key")
            self.kind.check(one, f"{place}.{key}" if place else key)


@dataclasses.dataclass(frozen=True)
class Plain:
    """Any JSON value that is not nested deeper than `DEEPEST`; what it means is the reader's to check."""

    depth: int = DEEPEST
    finite: bool = False
    """Whether its numbers must be finite."""

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is nested deeper, or a text in it can't be shown."""
        if self.depth == 0:
            raise Wrong(f"{place} is nested deeper than {DEEPEST} levels", "depth", place)
        inner = Plain(self.depth - 1, self.finite)
        if isinstance(value, dict):
            Table(inner).check(value, place)
        elif isinstance(value, list | tuple):
            Many(inner).check(value, place)
        elif isinstance(value, str):
            Text(MOST_BYTES).check(value, place)
        elif self.finite and isinstance(value, float):
            Number().check(value, place)


@dataclasses.dataclass(frozen=True)
class Record:
    """An object with named fields."""

    needed: Mapping[str, Kind]
    optional: Mapping[str, Kind] = dataclasses.field(default_factory=dict)
    others: bool = False
    """Whether it may have more fields than those."""
    rest: Kind = dataclasses.field(default_factory=Plain)
    """What those are."""
    newest: int | None = None
    """The newest version of the format that is read, where a file has one: its field `format`, or 1 without it."""

    def check(self, value: Any, place: str) -> None:
        """Raise Wrong where it is no object, lacks a field, has one of another kind, or one that is not known.

        The version comes first: a newer file may differ in all else.
        """
        _object(value, place)
        inside = f"{place}." if place else ""
        if self.newest is not None:
            version = value.get("format", 1)
            Number(1, whole=True).check(version, f"{inside}format")
            if version > self.newest:
                raise Wrong(
                    f"{inside}format is {version}, and this version of surefoot reads up to {self.newest}",
                    "version",
                    f"{inside}format",
                )
            value = {key: one for key, one in value.items() if key != "format"}
        for key in self.needed:
            if key not in value:
                raise Wrong(f"{place or 'it'} has no key {key!r}", "missing", f"{inside}{key}")
        for key, one in value.items():
            kind = self.needed.get(key) or self.optional.get(key)
            if kind is None and self.others:
                Text(200).check(key, f"a key of {place}" if place else "a key")
            if kind is None and not self.others:
                known = sorted({*self.needed, *self.optional})
                raise Wrong(
                    f"{place or 'it'} has the key {shown(key)}, which is not known; {nearest(key[:100], known)}",
                    "unknown",
                    f"{inside}{printable(key)}",
                )
            (kind or self.rest).check(one, f"{inside}{printable(key)}")

    @classmethod
    def of(cls, kind: type, **own: Kind) -> Record:
        """The fields of a dataclass, those without a default needed; `own` kinds stand in for what the types say."""
        hints = typing.get_type_hints(kind)
        parts: tuple[dict[str, Kind], dict[str, Kind]] = ({}, {})
        for field in dataclasses.fields(kind):
            free = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            parts[free][field.name] = own.get(field.name) or kind_of(hints[field.name])
        return cls(*parts)


def kind_of(hint: Any, within: tuple[Container[float], str] | None = None, among: Sequence[str] = ()) -> Kind:
    """The kind of the JSON value that a field of this type is written as.

    Args:
        hint: the type.
        within: where its numbers must lie, and how a message says it.
        among: the words that it may be, if it is one.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union) and type(None) in arguments and len(arguments) == 2:
        return Maybe(kind_of(next(one for one in arguments if one is not type(None)), within, among))
    if origin in (types.UnionType, typing.Union) and bool in arguments and len(arguments) == 2:
        return FlagOr(kind_of(next(one for one in arguments if one is not bool), within, among))
    if origin is typing.Literal and all(isinstance(one, str) for one in arguments):
        return Text(among=arguments)
    if origin in (tuple, list, Sequence):
        if origin is tuple and arguments[-1] is not Ellipsis:
            return Each(tuple(kind_of(one, within, among) for one in arguments))
        return Many(kind_of(arguments[0], within, among))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return Table(kind_of(arguments[1]))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return Record.of(hint)
    simple: dict[Any, Kind] = {bool: Flag(), int: Number(whole=True), float: Number(), str: Text(among=tuple(among))}
    kind = simple.get(hint, Plain())
    return Within(kind, *within) if within is not None and hint in (int, float) else kind


def memory(text: bytes) -> int:
    """Bytes that the values of a JSON text take in memory, roughly and from above, beside the text itself.

    A number or an empty list takes 40 bytes, also where it is two characters long, a string 40 more and a key of its
    own 100 more; one character beyond ASCII makes a whole string take four bytes each, twice while it is read.
    """
    count = text.count
    values = 40 * (count(b",") + count(b"[") + count(b"{")) + 60 * count(b":") + 20 * count(b'"')
    return values + (8 * len(text) if not text.isascii() or b"\\u" in text else 0)


def refuse_large(text: bytes, where: object, error: type[SurefootError] = CheckpointError) -> None:
    """Raise SurefootError, of the kind `error`, where a JSON text is larger than anything that surefoot writes."""
    if len(text) > MOST_BYTES:
        raise error(f"{where}: its JSON has more than {MOST_BYTES >> 20} MiB, more than surefoot ever writes")
    if (needed := memory(text)) > MOST_MEMORY:
        raise error(
            f"{where}: the values of its JSON would take some {needed >> 20} MiB of memory, and may take "
            f"{MOST_MEMORY >> 20}: more than surefoot ever writes"
        )


def parse(text: str | bytes, where: object, error: type[SurefootError] = CheckpointError) -> Any:
    """The value of a JSON text; `where` is the file that it stands in.

    Raises:
        SurefootError: of the kind `error`: it is no JSON, or larger than anything that surefoot writes.
    """
    refuse_large(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text, where, error)
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except (ValueError, RecursionError) as failure:
        raise error(f"{where}: not readable as JSON ({failure}); restore it from a copy") from failure


def check(value: Any, kind: Kind, where: object, error: type[SurefootError] = CheckpointError) -> Any:
    """`value`, if it is of this kind; `where` is the file that it stands in.

    Raises:
        SurefootError: of the kind `error`: it is not, and at which place.
    """
    try:
        kind.check(value, "")
    except Wrong as wrong:
        hint = "" if issubclass(error, ConfigError) else "; it is damaged or of another version"
        raise error(f"{where}: {str(wrong).lstrip()}{hint}", field=wrong.place or None, code=wrong.code) from wrong
    return value


def shown(value: Any) -> str:
    """A received value as messages show it: short, and without what a terminal would obey."""
    return printable(_SHORT.repr(value))


def _object(value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise Wrong(f"{place or 'it'} is {shown(value)}, must be an object", "type", place)
