"""Hydra's override grammar: values made readable for it, overrides parsed, its errors as one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.schema import DEEPEST

WHOLE_NUMBERS = ("steps", "batch_size", "episodes", "evaluate_every", "checkpoint_every", "evaluate_episodes", "envs")
"""Fields that may also be written as 1e5."""


_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
SHOWN = 60
"""Characters of each end of a value that a message shows."""


@dataclasses.dataclass(frozen=True)
class Parsed:
    """What matters here of one override."""

    text: str
    key: str
    values: list[str]  # several in a sweep
    sweep: bool
    changes_keys: bool  # +key, ++key or ~key
    value: Any = None  # of a key that has one alone, as the grammar reads it


def parse(overrides: Sequence[str]) -> list[Parsed]:
    """Overrides by Hydra's grammar.

    Raises:
        ConfigError: one that the grammar can't read.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, found = OverridesParser.create(), []
    for text in overrides:
        if _depth(text) > DEEPEST:
            raise ConfigError(f"{shortened(text)}: is nested deeper than {DEEPEST} levels")
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            raise ConfigError(unreadable(text)) from error
        except ValueError as error:  # of python, which reads no whole number of thousands of digits
            raise ConfigError(f"{shortened(text)}: has a number of too many digits") from error
        changes = override.is_delete() or override.is_add() or override.is_force_add()
        sweep = override.is_sweep_override()
        chosen: list[str] = []
        if not changes:
            discrete = override.is_discrete_sweep() if sweep else False
            chosen = list(override.sweep_string_iterator()) if discrete else [str(override.value())]
        value = None if sweep or changes else override.value()
        found.append(Parsed(text, override.key_or_group, chosen, sweep, changes, value))
    return found


WORDS = {"true": True, "yes": True, "on": True, "y": True, "false": False, "no": False, "off": False, "n": False}


def typed(hint: Any, value: Any) -> Any:
    """A value of the grammar as an option's type has it, if it can be read so: 1 for a float is 1.0, yes is true."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None or hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return typed(next(one for one in arguments if one is not type(None)), value)
    if origin is tuple and isinstance(value, list | tuple):
        each = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return [typed(one, part) for one, part in zip(each, value)] if len(each) == len(value) else value
    if hint is bool and isinstance(value, int | str):
        return WORDS.get(value.lower(), value) if isinstance(value, str) else {0: False, 1: True}.get(value, value)
    if isinstance(value, bool):
        return str(value).lower() if hint is str else value
    try:
        return hint(value) if hint in (float, str) or (hint is int and isinstance(value, str)) else value
    except (TypeError, ValueError):
        return value


def _depth(text: str) -> int:
    """How deep lists and the like stand in each other in an override, those in quotes not counted."""
    deepest = level = 0
    for sign in _QUOTED.sub("", text):
        level += (sign in "[{(") - (sign in "]})")
        deepest = max(deepest, level)
    return deepest


def shortened(text: str) -> str:
    """A text as a message shows it, the middle of a long one left out."""
    return text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]}...{text[-SHOWN:]}"


def unreadable(text: str) -> str:
    """The sentence for an override that Hydra's grammar can't read."""
    key, found, value = map(shortened, text.partition("="))
    if not found:
        return f"{key!r} is not of the form name=value, as in steps=1000"
    return (
        f"{key}={value}: the value can't be read; where it is one text with signs in it, quote it: {key}=\"'{value}'\""
    )


@contextlib.contextmanager
def hydra_errors() -> Iterator[None]:
    """Hydra's and OmegaConf's errors as one sentence of ours."""
    from hydra.errors import HydraException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(sentence(error)) from error
    except OSError as error:  # Hydra's MissingConfigException is one
        if type(error).__module__ != "hydra.errors":
            raise
        raise ConfigError(sentence(error)) from error


def sentence(error: BaseException) -> str:
    """The one line of a chain of Hydra errors that says most: the innermost cause and where it was."""
    innermost: BaseException = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    lines = [line.strip() for line in f"{innermost}".splitlines() if line.strip()]
    where = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    available = [line for line in f"{error}".splitlines() if line.startswith("\t") and "provider=" not in line]
    text = f"{where}: {lines[0]}" if where else lines[0] if lines else type(innermost).__name__
    return text + (f" (available: {', '.join(line.strip() for line in available)})" if available else "")


def readable(overrides: Sequence[str], multirun: bool = False) -> list[str]:
    """Overrides as Hydra's grammar can read them: paths quoted, whole numbers written as such.

    The values of `dataset=`, `init=` and `starts=` that are existing paths are quoted, and that of `out=`, so that any
    path works; so are those of `vary=` and `objective=`, and without `multirun` that of `env=` with arguments, which
    have signs of the grammar in them. With `multirun`, a list of existing paths
    with commas between them stays a list, each of them quoted. `steps=1e5` becomes `steps=100000`, with `multirun` in a
    list too.
    """
    from surefoot.runs.embedded import exists

    ready = []
    for text in overrides:
        key, found, value = text.partition("=")
        if found and value and key in ("dataset", "init", "starts", "out"):
            home = _expanded(value)
            parts = [_expanded(part) for part in value.split(",")]
            if exists(home) or (key == "out" and value[0] not in "'\""):
                text = f"{key}={quoted(home)}"
            elif multirun and len(parts) > 1 and any(map(exists, parts)):
                text = f"{key}=" + ",".join(quoted(part) if exists(part) else part for part in parts)
        elif key == "vary" and value[:1] not in ("'", '"') and "=" in value:
            text = f"vary={quoted(value)}"
        elif key == "env" and "?" in value and value[0] not in "'\"" and not multirun:
            text = f"{key}={quoted(value)}"
        elif key == "objective" and value and value[0] not in "'\"" and value != "null":
            parts = value.split(",") if multirun else [value]
            text = f"{key}=" + ",".join(map(quoted, parts))
        elif key in WHOLE_NUMBERS:
            numbers = value.split(",") if multirun else [value]
            text = f"{key}{found}" + ",".join(map(_whole, numbers))
        ready.append(text)
    return ready


def _whole(value: str) -> str:
    """1e5 as 100000; anything else as it is."""
    if not re.fullmatch(r"\s*\d+(\.\d*)?e\d{1,2}\s*", value.lower()):
        return value
    return f"{float(value):.0f}" if float(value).is_integer() else value


def _expanded(value: str) -> str:
    return str(pathlib.Path(value).expanduser()) if value.startswith("~/") else value


def quoted(value: str) -> str:
    """A text as Hydra's grammar reads it back, whatever signs are in it."""
    from hydra.core.override_parser.types import Quote, QuotedString

    # OmegaConf reads \${ as ${ and, before it, two backslashes as one.
    escaped = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value)
    return str(QuotedString(escaped, Quote.single).with_quotes())


def texts(values: Mapping[str, Any]) -> list[str]:
    """Values as overrides."""

    def text(value: Any) -> str:
        if value is None or isinstance(value, bool):
            return {None: "null", True: "true", False: "false"}[value]
        if isinstance(value, str) and not value.startswith("["):
            return quoted(value)
        return str(value)

    return [f"{name}={text(value)}" for name, value in values.items()]
