"""Objects that are built again from JSON: a constructor's signature says what their description holds.

A description has the constructor's arguments by name, each of which the object keeps as an attribute of that name:

    class Head(Described):
        def __init__(self, observation_dim: int, action_dim: int, network: Network, steps: int = 4) -> None: ...

    Head(3, 2, Network(...)).description()  # {what `Network.write` says, "steps": 4}

The sizes of observation and action are not among them: whoever holds the description knows them. Numbers, texts, flags
and lists are written as they are, and checked against the argument's type when they are read; an argument that is an
object itself, a `Part`, says what is written of it.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.schema import Kind, Record, Text, check, kind_of

SIZES = ("observation_dim", "action_dim")
"""Arguments that a description does not hold."""


class Part:
    """An object that is an argument of others' constructors, and says what their descriptions hold of it."""

    @classmethod
    def write(cls, part: Self, name: str) -> dict[str, Any]:
        """Keys and JSON values of a part that is kept as `name`."""
        raise TypeError(f"{cls.__name__} must define write")

    @classmethod
    def read(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self | None:
        """The part, its weights drawn anew, of which `write` wrote these `options`; None where there is none.

        Raises:
            KeyError, TypeError, ConfigError: options that are missing, or of another type or range.
        """
        raise TypeError(f"{cls.__name__} must define read")


class Argument(NamedTuple):
    """What a constructor's signature says of one of its arguments."""

    kind: Kind
    """Of the JSON value, of one that is no part."""
    part: type[Part] | None
    default: Any


class Described(Part):
    """An object whose description is its constructor's arguments."""

    kind: ClassVar[str]
    """What files call it."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Arguments that descriptions do not hold where they have their default; in older files they may be missing."""
    unwritten: ClassVar[tuple[str, ...]] = ()
    """Arguments that descriptions never hold: they say how weights begin, and files have the weights."""
    order: ClassVar[tuple[str, ...]] = ()
    """The arguments that a description has first, where that is not the signature's order."""

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """The arguments that a description holds, in its order."""
        names = (name for name in _arguments(cls) if name not in (*SIZES, *cls.unwritten))
        return tuple(sorted(names, key=lambda name: cls.order.index(name) if name in cls.order else len(cls.order)))

    def leaves_out(self, name: str) -> bool:
        """Whether the description does not hold this argument."""
        return name in self.optional and bool(getattr(self, name) == _arguments(type(self))[name].default)

    def description(self) -> dict[str, Any]:
        """Its arguments as JSON values: enough, with the sizes of observation and action, to build it again.

        Raises:
            TypeError: an argument is no attribute.
        """
        found: dict[str, Any] = {}
        for name in self.option_names():
            part = _arguments(type(self))[name].part
            if not hasattr(self, name):
                words = f"{type(self).__name__} must keep its argument {name!r} as an attribute of that name"
                raise TypeError(f"{words}, or define description and from_description")
            value = getattr(self, name)
            if part is not None:
                found |= {} if value is None else part.write(value, name)
            elif not self.leaves_out(name):
                found[name] = as_json(value)
        return found

    @classmethod
    def from_description(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """The object, its weights drawn anew, that `description` describes; more keys than those do no harm.

        Raises:
            KeyError, TypeError, ConfigError: options that are missing or of another type or range.
        """
        arguments, names = _arguments(cls), cls.option_names()
        plain = {name: arguments[name].kind for name in names if arguments[name].part is None}
        found = {name: options[name] for name in plain if name in options}
        needed = {name: kind for name, kind in plain.items() if name not in cls.optional}
        check(found, Record(needed, plain), f"the description of {cls.__name__}", ConfigError)
        given = {name: as_argument(value) for name, value in found.items()}
        for name in names:
            part = arguments[name].part
            if part is not None:
                given[name] = part.read(name, *cls.sizes_of(name, observation_dim, action_dim, found), options)
        sizes = zip(SIZES, (observation_dim, action_dim), strict=True)
        return cls(**{name: size for name, size in sizes if name in arguments}, **given)

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """Sizes of observation and action of the part `name`: this object's own, where a subclass says no other."""
        return observation_dim, action_dim

    @classmethod
    def write(cls, part: Self, name: str) -> dict[str, Any]:
        """As `Part.write`: the description under the name."""
        return {name: part.description()}

    @classmethod
    def read(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `Part.read`."""
        return cls.from_description(observation_dim, action_dim, options[name])


class DescribedInPlace(Described):
    """An object of one of many kinds, whose description stands among its holder's, behind its kind."""

    @classmethod
    def of_kind(cls, kind: str) -> type[Self]:
        """The class of a kind.

        Raises:
            ConfigError: nothing is of this kind.
        """
        raise TypeError(f"{cls.__name__} must define of_kind")

    @classmethod
    def write(cls, part: Self, name: str) -> dict[str, Any]:
        """As `Part.write`: the kind under the name, and the description."""
        return {name: part.kind, **part.description()}

    @classmethod
    def read(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `Part.read`."""
        check({name: options[name]}, Record({name: Text(200)}), f"the description of a {cls.__name__}", ConfigError)
        return cls.of_kind(options[name]).from_description(observation_dim, action_dim, options)


def as_json(value: Any) -> Any:
    """A value as JSON has it: tuples as lists."""
    return list(value) if isinstance(value, tuple) else value


def as_argument(value: Any) -> Any:
    """A JSON value as constructors take it: lists as tuples."""
    return tuple(value) if isinstance(value, list) else value


def _arguments(described: type) -> dict[str, Argument]:
    """Name -> argument of the constructor; of one that hands all it is given to its parent's, of that one."""
    own = (vars(cls)["__init__"] for cls in described.__mro__ if "__init__" in vars(cls))
    return next(found for one in own if (found := _read(one)) is not None)


@functools.cache
def _read(constructor: Callable[..., None]) -> dict[str, Argument] | None:
    """What a constructor's signature says; None where it takes whatever there is."""
    _, *signature = inspect.signature(constructor).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in signature):
        return None
    hints = typing.get_type_hints(constructor)
    named = [one for one in signature if one.kind is not one.VAR_KEYWORD]
    return {one.name: Argument(*_kinds(hints.get(one.name, Any)), one.default) for one in named}


def _kinds(hint: Any) -> tuple[Kind, type[Part] | None]:
    among = [hint, *typing.get_args(hint)]
    part = next((one for one in among if isinstance(one, type) and issubclass(one, Part)), None)
    return kind_of(hint), part
