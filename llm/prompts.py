"""Prompts: lines of JSON with a "prompt", whose other columns a reward function gets."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from surefoot.core.base.errors import DataError
from surefoot.core.base.files import read_json_lines


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt, and what belongs to it."""

    text: str | list[dict[str, str]]
    """A text, or messages with "role" and "content"."""
    columns: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Given to the reward function by name, as a list with one entry for each answer."""


def read_prompts(path: str | pathlib.Path) -> list[Prompt]:
    """Prompts of a .jsonl file, each line {"prompt": text or messages, ...}.

    Raises:
        DataError: there is no such file, or a line is not that; the line is named.
    """
    path = pathlib.Path(path).expanduser()
    found, names = [], None
    for number, row in read_json_lines(path, DataError):
        one = prompt_of(row, f"{path}, line {number}")
        if names is not None and set(one.columns) != names:
            raise DataError(
                f"{path}, line {number}: has the columns {sorted(one.columns)}, and the lines before {sorted(names)}"
            )
        names = set(one.columns)
        found.append(one)
    if not found:
        raise DataError(f"{path}: has no prompts")
    return found


def prompt_of(row: Any, where: str) -> Prompt:
    """A prompt from {"prompt": text or messages, ...}.

    Raises:
        DataError: it is not that; begins with `where`.
    """
    if not isinstance(row, Mapping) or "prompt" not in row:
        raise DataError(f'{where}: has no "prompt"; a line is {{"prompt": "2+2=", "answer": "4"}}')
    if not (isinstance(row["prompt"], str) or _messages(row["prompt"])):
        raise DataError(f'{where}: "prompt" is neither a text nor messages with role and content')
    return Prompt(row["prompt"], {name: value for name, value in row.items() if name != "prompt"})


def _messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and {"role", "content"} <= set(one) for one in value)
    )
