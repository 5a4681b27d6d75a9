"""Options: each is declared once, and its check, its help and its documentation come of that::

    @dataclasses.dataclass(frozen=True)
    class IQLConfig(Options):
        expectile: float = option(0.7, "expectile of the value loss", range="(0, 1)")
        actor: str = option("gaussian", "kind of the policy", choices=("gaussian", "deterministic"))

The annotation gives the type. A subclass that only changes a default writes `expectile: float = 0.9`; what `option`
leaves out there is as in the class that declared it. `__post_init__` is for rules between fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import re
import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, TypeVar

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.schema import Kind, Maybe, Record, Wrong, kind_of, shown

T = TypeVar("T")
ALGORITHM_OF: dict[type, str] = {}
"""Class of options -> the name of the algorithm, or of what else has them."""
_KEY = "surefoot.option"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?inf"
_BETWEEN = re.compile(rf"([\[(])({_NUMBER}), ({_NUMBER})([\])])")
_BEYOND = re.compile(rf"(>=|>|<=|<) ({_NUMBER})")


@dataclasses.dataclass(frozen=True)
class Interval:
    """Numbers that an option may have, as mathematics writes them: "(0, 1]", ">= 0"."""

    text: str
    low: float
    high: float
    with_low: bool
    with_high: bool

    @classmethod
    @functools.cache
    def of(cls, text: str) -> Interval:
        """The interval of a text.

        Raises:
            TypeError: it is none.

        >>> 1 in Interval.of("(0, 1]"), 0 in Interval.of("(0, 1]"), 7 in Interval.of(">= 0")
        (True, False, True)
        """
        if found := _BETWEEN.fullmatch(text):
            opening, low, high, closing = found.groups()
            return cls(f"in {text}", float(low), float(high), opening == "[", closing == "]")
        if found := _BEYOND.fullmatch(text):
            sign, bound = found[1], float(found[2])
            low, high = (bound, math.inf) if sign[0] == ">" else (-math.inf, bound)
            return cls(text, low, high, sign == ">=", sign == "<=")
        raise TypeError(f"{text!r} is no range; write it as '(0, 1]' or '>= 0'")

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, numbers.Real):
            return False
        number = float(value)
        above = self.low < number or (self.with_low and number == self.low)
        return above and (number < self.high or (self.with_high and number == self.high))

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Option:
    """What is declared of an option beside its type and default; None: as the class has it that declared it first."""

    help: str | None = None
    """A sentence without a full stop: what it does, with its unit or symbol, and what None means."""
    range: Interval | None = None
    """Of the number, or of each number of a list."""
    choices: tuple[str, ...] | None = None
    """The words that it may be."""
    rising: bool | None = None
    """Of a list of two: whether the first must be below the second."""

    @property
    def sentence(self) -> str:
        """The help, with the range, and with those choices that it does not name."""
        words = [] if self.choices is None else [word for word in self.choices if word not in (self.help or "")]
        listed = f" ({', '.join(self.choices or ())})" if words else ""
        return f"{self.help or ''}{listed}{'' if self.range is None else f'; {self.range}'}"

    def kind(self, hint: Any) -> Kind:
        """What a value must be, by its type and this."""
        return kind_of(hint, None if self.range is None else (self.range, str(self.range)), self.choices or ())


def option(
    default: T,
    help: str | None = None,  # as argparse calls it
    *,
    range: str | None = None,
    choices: Collection[str] | None = None,
    rising: bool | None = None,
) -> T:
    """A field of a dataclass of options.

    Args:
        default: its value where none is given.
        help: a sentence without a full stop, for `--help` and the documentation.
        range: numbers that it may have: "(0, 1)", "[0, 1)", ">= 0", "> 0"; of a list, each of its numbers.
        choices: words that it may be.
        rising: of a list of two numbers, whether the first must be below the second.
    """
    words = None if choices is None else tuple(sorted(choices) if isinstance(choices, set | frozenset) else choices)
    declared = Option(help, None if range is None else Interval.of(range), words, rising)
    return dataclasses.field(default=default, metadata={_KEY: declared})


@dataclasses.dataclass(frozen=True)
class Declared:
    """An option of a class, with all that its bases declare of it."""

    name: str
    default: Any
    hint: Any
    option: Option
    kind: Kind

    def check(self, value: Any, owner: str) -> None:
        """Raise a ConfigError unless a value may be this option's; `owner` is the algorithm that the message names."""
        if isinstance(self.hint, type) and dataclasses.is_dataclass(self.hint) and isinstance(value, self.hint):
            return  # options of its own, which were checked when it was made
        place = f"{owner}.{self.name}" if owner else self.name
        try:
            self.kind.check(value, place)
        except Wrong as wrong:
            raise ConfigError(f"{_or_null(wrong, self.kind, place)}", field=self.name, code=wrong.code) from None
        if self.option.rising and value is not None and not value[0] < value[1]:
            raise ConfigError(f"{place} is {shown(value)}, must be (lowest, highest)", field=self.name, code="range")


@functools.cache
def declared(kind: type) -> dict[str, Declared]:
    """The options of a dataclass by name, in the order of its fields.

    A field without `option` is one too; of it only the type is known, and what a base class declares.
    """
    hints = typing.get_type_hints(kind)
    found = {}
    for field in dataclasses.fields(kind):
        own = [
            vars(base)["__dataclass_fields__"][field.name].metadata.get(_KEY)
            for base in kind.__mro__
            if "__dataclass_fields__" in vars(base) and field.name in inspect.get_annotations(base)
        ]
        parts: dict[str, Any] = {}
        for one in reversed([one for one in own if one is not None]):
            parts |= {key: value for key, value in vars(one).items() if value is not None}
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        merged = Option(**parts)
        hint = hints[field.name]
        found[field.name] = Declared(field.name, default, hint, merged, merged.kind(hint))
    return found


def record_of(kind: type) -> Record:
    """What the JSON object that a dataclass of options is written as must hold; those without a default are needed."""
    parts: tuple[dict[str, Kind], dict[str, Kind]] = ({}, {})
    for name, one in declared(kind).items():
        parts[one.default is not dataclasses.MISSING][name] = one.kind
    return Record(*parts)


def check_options(kind: type, values: Mapping[str, Any], owner: str) -> None:
    """Raise a ConfigError, which names the option, unless all values may be those of a class's options."""
    for name, one in declared(kind).items():
        one.check(values[name], owner)


class Options:
    """Base of a frozen dataclass of options: whoever makes one hears of a value that is out of range."""

    owner: ClassVar[str | None] = None
    """What errors name before the option, where no algorithm has the class; "": the option alone."""

    def __post_init__(self) -> None:
        """Check each option by itself; a subclass calls this first, and then checks what goes together.

        Raises:
            ConfigError: names the option, its value and what it must be.
        """
        check_options(type(self), vars(self), algorithm_of(self))


EARLIER_SPELLINGS = {
    "normalise_observations": "normalize_observations",
    "normalise_rewards": "normalize_rewards",
    "initialisation": "initialization",
    "regularisation": "regularization",
    "normalisation": "ratio_normalization",
    "standardise": "standardize",
    "colour": "color",
    "centre": "center",
    **{
        f"behaviour_{rest}": f"behavior_{rest}"
        for rest in ("updates", "network", "widths", "learning_rate", "weight_decay", "warm_up", "stride")
    },
}
"""Names of options up to 0.3 -> now, in American spelling; run folders, presets and commands may have the earlier."""


def respelled(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Options by their present names, of a config that knows these."""
    found = {}
    for name, value in options.items():
        now = EARLIER_SPELLINGS.get(name, name)
        found[now if name not in known and now in known else name] = value
    return found


def algorithm_of(config: Any) -> str:
    """What errors call the algorithm that options are of: its name, or the class's where no agent has it."""
    kind = type(config)
    if kind in ALGORITHM_OF:
        return ALGORITHM_OF[kind]
    owner = getattr(kind, "owner", None)
    return kind.__name__.removesuffix("Config").lower() if owner is None else str(owner)


def require(condition: bool, algorithm: str, field: str, value: Any, needed: str) -> None:
    """Raise a ConfigError that names an option whose value does not go with the others, or with the problem."""
    if not condition:
        raise ConfigError(f"{algorithm}.{field} is {value!r}, must be {needed}", field=field, code="conflict")


def _or_null(wrong: Wrong, kind: Kind, place: str) -> str:
    """The sentence of a refusal, with null where that may be given too."""
    whole = isinstance(kind, Maybe) and str(wrong).startswith(f"{place} is ")
    return f"{wrong} or null" if whole else str(wrong)
