"""`surefoot train --config FILE`: what a command says, as a file."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence
from typing import Any

from surefoot.cli.support import file_overrides, grammar
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.settings import read_settings

PLAIN, WORDS = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*"), ("true", "false", "null", "nan", "inf")
"""Texts that Hydra's grammar reads as they are, and those of them that it reads as something else."""
SAME = ("envs", "algo.num_envs")
"""Two names of one option."""


def read_mapping(path: pathlib.Path) -> dict[str, Any]:
    """A YAML file with names and values.

    Raises:
        ConfigError: it can't be read, or holds something else.
    """
    value = read_settings(path)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold names and values, as in `steps: 20000`, one a line")
    return value


def overrides_of(path: str, given: Sequence[str], trust: bool = False) -> list[str]:
    """What a file says as overrides, without what the command line says itself; its relative paths are the shell's.

    `algo` is a name, or names and values with `name` among them; options may also stand as `algo.expectile: 0.9`.

    Args:
        path: of the file.
        given: what the command line says, as `grammar.readable` gives it.
        trust: the file may name modules.

    Raises:
        ConfigError: an entry that is no option's value, or a module that the file names without `--trust`.
    """
    stated = {item.key for item in grammar.parse(given)}
    stated |= set(SAME) if stated & set(SAME) else set()
    entries: dict[str, Any] = {}
    for key, value in read_mapping(pathlib.Path(path)).items():
        if key == "algo" and isinstance(value, dict):
            entries |= {"algo" if name == "name" else f"algo.{name}": one for name, one in value.items()}
        elif key in ("env_options", "logger_options") and isinstance(value, dict):
            entries |= {f"{key}.{name}": one for name, one in value.items()}
        else:
            entries[key] = value
    own = [f"{key}={_value(path, key, value)}" for key, value in entries.items() if key not in stated]
    file_overrides.check(own, path, trust)
    return own


def _value(path: str, key: str, value: Any) -> str:
    """A value as Hydra's grammar reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and key in grammar.WHOLE_NUMBERS:
        return f"{value:.0f}"  # 1e5
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        value = str(pathlib.Path(value).expanduser()) if value.startswith("~/") else value  # as a shell does
        return value if PLAIN.fullmatch(value) and value.lower() not in WORDS else grammar.quoted(value)
    if isinstance(value, list) and not any(isinstance(part, dict) for part in value):
        return f"[{','.join(_value(path, key, part) for part in value)}]"
    raise ConfigError(f"{path}: {key} is {value!r}; a value is a number, a text, true, false, null or a list of them")
