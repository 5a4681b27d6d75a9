"""`surefoot train --config FILE` and `--config-dir FOLDER`: what a command says, and presets of one's own, as files."""

from __future__ import annotations

import difflib
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from surefoot.cli.support import grammar
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.files import why

ENDINGS = (".yaml", ".yml")
PLAIN, WORDS = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*"), ("true", "false", "null", "nan", "inf")
"""Texts that Hydra's grammar reads as they are, and those of them that it reads as something else."""
SAME = ("envs", "algo.num_envs")
"""Two names of one option."""


def read_mapping(path: pathlib.Path) -> dict[str, Any]:
    """A YAML file with names and values; no tags, so that nothing is executed.

    Raises:
        ConfigError: it can't be read, or holds something else.
    """
    import yaml

    from surefoot.core.base.unique_keys import UniqueKeys

    try:
        with open(path, encoding="utf-8") as file:
            value = yaml.load(file, UniqueKeys)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read ({why(error)})") from error
    except (yaml.YAMLError, RecursionError) as error:
        place = getattr(error, "problem_mark", None)
        line = "" if place is None else f", line {place.line + 1}"
        raise ConfigError(f"{path}{line}: is no YAML ({getattr(error, 'problem', None) or error})") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
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
    from surefoot.cli.support import file_overrides as received

    said = {item.key for item in grammar.parse(given)}
    said |= set(SAME) if said & set(SAME) else set()
    entries: dict[str, Any] = {}
    for key, value in read_mapping(pathlib.Path(path)).items():
        if key == "algo" and isinstance(value, dict):
            entries |= {"algo" if name == "name" else f"algo.{name}": one for name, one in value.items()}
        else:
            entries[key] = value
    own = [f"{key}={_value(path, key, value)}" for key, value in entries.items() if key not in said]
    received.check(own, path, trust)
    return own


def with_own_presets(overrides: Sequence[str], folder: str | None) -> list[str]:
    """Overrides in which `preset=NAME` is the path of NAME.yaml, where it lies in the folder of one's own presets.

    Raises:
        ConfigError: no such folder.
    """
    place = None if folder is None else pathlib.Path(folder).expanduser()
    if place is not None and not place.is_dir():
        raise ConfigError(f"--config-dir {folder}: is no folder; give the one that holds your presets, NAME.yaml each")
    ready = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key == "preset" and value:
            text = "preset=" + ",".join(_preset(name, place) for name in value.split(","))
        ready.append(text)
    return ready


def read_own_preset(name: str, algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields of the command, options of the algorithm) of a preset that is a file: `run` and a mapping per algorithm.

    Raises:
        ConfigError: it can't be read, or says nothing about the algorithm.
    """
    content = read_mapping(pathlib.Path(name))
    for part, values in content.items():
        if values is not None and not isinstance(values, dict):
            raise ConfigError(f"{name}: {part} must hold names and values, as in `{part}: {{expectile: 0.9}}`")
    if algorithm not in content:
        others = sorted(set(content) - {"run"})
        raise ConfigError(f"{name}: has no settings for {algorithm}; {nearest(algorithm, others)}")
    return dict(content.get("run") or {}), dict(content[algorithm] or {})


def is_own(name: str) -> bool:
    """Whether a preset's name is the path of a file."""
    return name.endswith(ENDINGS)


def _preset(name: str, folder: pathlib.Path | None) -> str:
    if is_own(name):
        return grammar.quoted(str(pathlib.Path(name).expanduser().resolve()))
    for ending in ENDINGS if folder is not None else ():
        assert folder is not None
        if (folder / f"{name}{ending}").is_file():
            return grammar.quoted(str((folder / f"{name}{ending}").resolve()))
    if folder is not None:
        from surefoot.cli.support import config

        own = sorted(path.stem for ending in ENDINGS for path in folder.glob(f"*{ending}"))
        if name not in config.presets() and difflib.get_close_matches(name, own):
            raise ConfigError(f"preset={name!r} is not in {folder}: {nearest(name, own)}")
    return name


def _value(path: str, key: str, value: Any) -> str:
    """A value as Hydra's grammar reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str) and key in grammar.WHOLE_NUMBERS:
        return value  # YAML reads 1e5 as a text
    if isinstance(value, str):
        value = str(pathlib.Path(value).expanduser()) if value.startswith("~/") else value  # as a shell does
        return value if PLAIN.fullmatch(value) and value.lower() not in WORDS else grammar.quoted(value)
    if isinstance(value, list) and not any(isinstance(part, dict) for part in value):
        return f"[{','.join(_value(path, key, part) for part in value)}]"
    raise ConfigError(f"{path}: {key} is {value!r}; a value is a number, a text, true, false, null or a list of them")
