"""Overrides that stand in a file and not on the command line: who gives the file may not be who wrote it.

Some name modules, which would be imported, and settings of Hydra's own name classes and shell commands (`_target_`,
callbacks, what a cluster's job begins with). They take effect only where the user trusts the file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from surefoot.cli.support import grammar
from surefoot.core.base.errors import ConfigError
from surefoot.envs.make import FUNCTION
from surefoot.runs.trust import FUNCTIONS, FunctionName, module_of, require_trust

CALLED = ("reward", "labels", "listener", *(f"algo.{option}" for option in FUNCTIONS))
"""Keys whose values may be `module:function`."""
NAMING = ("algo", "env", *CALLED)
"""Keys whose values may be `module:name`."""
ARGUMENT = "env_options."
"""Beginning of the keys that are an environment's arguments."""
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")
"""Of OmegaConf: a value that is another one's, or the outcome of a function."""


@contextlib.contextmanager
def said_by(source: object) -> Iterator[None]:
    """Put the file in front of what is wrong with something that it says."""
    try:
        yield
    except ConfigError as error:
        raise error.inside(source, ConfigError) from error


def check(overrides: Sequence[str], source: object, trust: bool) -> None:
    """Ask for trust where overrides would have something executed.

    Args:
        overrides: as the file has them.
        source: the file, for the message.
        trust: the user trusts it.

    Raises:
        ConfigError: they name a module, refer to other values or set something of Hydra's beyond the launcher's name
            and numbers, and are not trusted; or they add or remove keys.
    """
    with said_by(source):
        parsed = grammar.parse(overrides)
    for item in parsed:
        if item.changes_keys:
            raise ConfigError(f"{source}: {item.text}: options can't be added or removed, only set")
        if not trust and _executes(item):
            raise ConfigError(
                f"{source} has {item.text}, by which Hydra may execute what it names; if you trust it, add --trust, or "
                "give it on the command line"
            )
        for name in _names(item):
            require_trust(name, source, trust)


def needs_trust(overrides: Sequence[str]) -> bool:
    """Whether `check` asks for trust in a process whose user has named nothing of his own."""
    return any(_executes(item) or any(map(module_of, _names(item))) for item in grammar.parse(overrides))


def check_preset(
    fields: Mapping[str, Any], options: Mapping[str, Any], given: set[str], source: str, trust: bool
) -> None:
    """As `check`, for a preset of one's own.

    Args:
        fields: of the command, that it sets.
        options: of the algorithm.
        given: keys that the command line sets, which count more.
        source: path of its file.
        trust: the user trusts it.
    """
    named = {**fields, **{f"algo.{key}": value for key, value in options.items()}}
    named |= {f"{ARGUMENT}{key}": value for key, value in dict(fields.get("env_options") or {}).items()}
    for key, value in named.items():
        if key not in given and isinstance(value, str) and _may_name(key, value):
            require_trust(_as_named(key, value), source, trust)


def _names(item: grammar.Parsed) -> list[str]:
    """What an override says that may be `module:name`."""
    values = [value.replace("\\:", ":") for value in item.values]
    return [_as_named(item.key, value) for value in values if _may_name(item.key, value)]


def _may_name(key: str, value: str) -> bool:
    """Whether the value of a key is one of a module's names; an environment's argument may be a function."""
    return key in NAMING or (key.startswith(ARGUMENT) and FUNCTION.fullmatch(value.strip("'\"")) is not None)


def _as_named(key: str, value: str) -> str:
    """The value of one of the keys `NAMING`: of a function, which is called, or of an agent or environment."""
    return FunctionName(value.strip("'\"")) if key in CALLED or key.startswith(ARGUMENT) else value


def _executes(item: grammar.Parsed) -> bool:
    """Whether Hydra may execute what an override names."""
    return bool(_REFERENCE.search(item.text)) or not _harmless(item)


def _harmless(item: grammar.Parsed) -> bool:
    """Whether an override is none of Hydra's own, names a launcher, which is one of a list, or sets a number."""
    if re.split(r"[./]", item.key)[0] != "hydra" or item.key == "hydra/launcher":
        return True
    return all(re.fullmatch(r"-?\d+(\.\d+)?", value) for value in item.values)
