"""Presets of a domain: ours, and files of one's own."""

from __future__ import annotations

import difflib
import importlib.resources
import pathlib
import typing
from collections.abc import Sequence
from typing import Any

from surefoot.cli.support import grammar
from surefoot.cli.support.config_file import read_mapping
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.settings import parse_settings
from surefoot.runs.plan import agent_class

ENDINGS = (".yaml", ".yml")


def presets() -> dict[str, dict[str, Any]]:
    """Domain presets: name -> {algorithm: what differs, and `run`: fields of the command}."""
    folder = importlib.resources.files("surefoot") / "conf" / "preset"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {
        file.name.removesuffix(".yaml"): typing.cast(dict[str, Any], parse_settings(file.read_bytes(), file))
        for file in files
    }


def read_preset(name: str, algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields of the command, options of the algorithm) that a domain preset changes.

    Raises:
        ConfigError: no such preset, or it says nothing about the algorithm.
    """
    if is_own(name):
        return read_own_preset(name, algorithm)
    known = presets()
    if algorithm not in known.get(name, ()) and name in agent_class(algorithm).PRESETS:
        raise ConfigError(f"preset={name}: is a preset of {algorithm} itself: say algo.preset={name}")
    if name not in known:
        raise ConfigError(
            f"preset={name!r} is unknown: {nearest(name, list(known))}. One of your own is a file: preset=mine.yaml, "
            "or its name with --config-dir FOLDER"
        )
    if algorithm not in known[name]:
        others = sorted(set(known[name]) - {"run"})
        raise ConfigError(f"preset={name} has no settings for {algorithm}; it has some for {', '.join(others)}")
    return dict(known[name].get("run") or {}), dict(known[name][algorithm] or {})


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
        own = sorted(path.stem for ending in ENDINGS for path in folder.glob(f"*{ending}"))
        if name not in presets() and difflib.get_close_matches(name, own):
            raise ConfigError(f"preset={name!r} is not in {folder}: {nearest(name, own)}")
    return name
