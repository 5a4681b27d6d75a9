"""Formulas over propositions: a small grammar, and formulas in negation normal form.

From the weakest operator to the strongest::

    a -> b                   implies, to the right
    a | b                    or
    a & b                    and
    a U b, a R b             until, release, to the right
    !a  X a  N a  F a  G a   not, next, weak next, eventually, always
    name, true, false, (a)

Words are read whole: `mail` and `mailbox` are two names. `guard` reads formulas without the operators of time.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal, NoReturn

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.schema import shown

Kind = Literal["true", "false", "atom", "not", "and", "or", "next", "weak", "until", "release"]

MOST_ATOMS = 12
"""Propositions of a formula or machine: tables have a column for each of 2^n sets of them."""
LONGEST, DEEPEST = 4_000, 100
"""Characters of a formula, and how deep it may be nested."""
RESERVED = ("X", "N", "F", "G", "U", "R", "true", "false")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"\s*(->|[!&|()]|[A-Za-z_][A-Za-z0-9_]*)")
_UNARY = ("!", "X", "N", "F", "G")


@dataclasses.dataclass(frozen=True)
class Formula:
    """A formula in negation normal form: `not` is of an atom."""

    kind: Kind
    parts: tuple[Formula, ...] = ()
    name: str = ""
    """Of an atom."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.kind, self.parts, self.name)))

    def __hash__(self) -> int:  # counted once, not for every formula in it again
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def atoms(self) -> frozenset[str]:
        """Names of the propositions in it."""
        own = frozenset([self.name] if self.kind == "atom" else [])
        return own.union(*(part.atoms() for part in self.parts))

    def __str__(self) -> str:
        if self.kind in ("true", "false"):
            return self.kind
        if self.kind == "atom":
            return self.name
        inner = [str(part) for part in self.parts]
        if self.kind in ("not", "next", "weak"):
            return f"{ {'not': '!', 'next': 'X ', 'weak': 'N '}[self.kind] }{inner[0]}"
        sign = {"and": " & ", "or": " | ", "until": " U ", "release": " R "}[self.kind]
        return f"({sign.join(inner)})"


TRUE, FALSE = Formula("true"), Formula("false")
_DUAL: Mapping[str, Kind] = {
    "true": "false",
    "false": "true",
    "and": "or",
    "or": "and",
    "next": "weak",
    "weak": "next",
    "until": "release",
    "release": "until",
}


def negated(formula: Formula) -> Formula:
    """The negation, in negation normal form."""
    if formula.kind == "atom":
        return Formula("not", (formula,))
    if formula.kind == "not":
        return formula.parts[0]
    return Formula(_DUAL[formula.kind], tuple(negated(part) for part in formula.parts))


def parse(text: str, source: str = "objective") -> Formula:
    """Read a formula.

    Args:
        text: in the grammar above.
        source: what messages call it.

    Raises:
        ConfigError: it is none (the message has the place), is too long, or has more than `MOST_ATOMS` propositions.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ConfigError(f"{source} is {shown(text)}: a formula is a text of at most {LONGEST:,} characters")
    found = _Parser(text, source).whole()
    atoms = found.atoms()
    if len(atoms) > MOST_ATOMS:
        raise ConfigError(
            f"{source}: {len(atoms)} propositions, at most {MOST_ATOMS}: combine some in the labelling function",
            field=source,
            code="length",
        )
    return found


def guard(text: str, source: str) -> Formula:
    """Read a formula without the operators of time, as guards of machines are.

    Raises:
        ConfigError: as `parse`, and where one of them is in it.
    """
    found = parse(text, source)
    if _timed(found):
        raise ConfigError(f"{source}: {text!r} has an operator of time; a guard has only !, &, | and ->")
    return found


def _timed(formula: Formula) -> bool:
    return formula.kind in ("next", "weak", "until", "release") or any(map(_timed, formula.parts))


def holds(formula: Formula, letter: frozenset[str]) -> bool:
    """Whether a guard holds where exactly the propositions of `letter` do."""
    kind = formula.kind
    if kind == "atom":
        return formula.name in letter
    if kind == "not":
        return not holds(formula.parts[0], letter)
    if kind in ("and", "or"):
        inner = (holds(part, letter) for part in formula.parts)
        return all(inner) if kind == "and" else any(inner)
    return kind == "true"


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self.text, self.source, self.depth = text, source, 0
        self.tokens: list[tuple[str, int]] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                self._refuse(place + len(text[place:]) - len(text[place:].lstrip()), "is no part of a formula")
            self.tokens.append((found[1], found.start(1)))
            place = found.end()
        self.at = 0

    def whole(self) -> Formula:
        found = self._implies()
        if self.at < len(self.tokens):
            self._refuse(self.tokens[self.at][1], "is not expected here: an operator is missing before it")
        return found

    def _refuse(self, place: int, what: str) -> NoReturn:
        here = self.text[place : place + 12]
        raise ConfigError(
            f"{self.source}: {shown(self.text)}, character {place + 1}: "
            f"{shown(here) if here else 'its end'} {what} (docs/objectives.md has the grammar)",
            field=self.source,
            code="text",
        )

    def _next(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def _take(self, token: str) -> bool:
        if self._next() != token:
            return False
        self.at += 1
        return True

    def _implies(self) -> Formula:
        left = self._or()
        if self._take("->"):
            with _Deeper(self):
                return Formula("or", (negated(left), self._implies()))
        return left

    def _or(self) -> Formula:
        parts = [self._and()]
        while self._take("|"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Formula("or", tuple(parts))

    def _and(self) -> Formula:
        parts = [self._until()]
        while self._take("&"):
            parts.append(self._until())
        return parts[0] if len(parts) == 1 else Formula("and", tuple(parts))

    def _until(self) -> Formula:
        left = self._unary()
        for sign, kind in (("U", "until"), ("R", "release")):
            if self._take(sign):
                with _Deeper(self):
                    return Formula(kind, (left, self._until()))  # type: ignore[arg-type]
        return left

    def _unary(self) -> Formula:
        token, place = self._next(), self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
        self.at += 1
        if token in _UNARY:
            with _Deeper(self):
                inner = self._unary()
            if token == "!":
                return negated(inner)
            if token in "XN":
                return Formula("next" if token == "X" else "weak", (inner,))
            return Formula("until", (TRUE, inner)) if token == "F" else Formula("release", (FALSE, inner))
        if token == "(":
            with _Deeper(self):
                inner = self._implies()
            if not self._take(")"):
                place = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
                self._refuse(place, "stands where a ) is missing")
            return inner
        if token in ("true", "false"):
            return TRUE if token == "true" else FALSE
        if not NAME.fullmatch(token) or token in RESERVED:
            self._refuse(place, "stands where a proposition or ( is expected")
        return Formula("atom", name=token)


class _Deeper:
    """One level of nesting more, within bounds."""

    def __init__(self, parser: _Parser) -> None:
        self.parser = parser

    def __enter__(self) -> None:
        self.parser.depth += 1
        if self.parser.depth > DEEPEST:
            self.parser._refuse(0, f"starts a formula that is nested deeper than {DEEPEST} levels")

    def __exit__(self, *_: object) -> None:
        self.parser.depth -= 1
