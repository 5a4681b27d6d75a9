"""Prompts: lines of JSON with a "prompt", whose other columns a reward function gets."""

from __future__ import annotations

import dataclasses
import pathlib
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
        if not isinstance(row, dict) or "prompt" not in row:
            raise DataError(f'{path}, line {number}: has no "prompt"; a line is {{"prompt": "2+2=", "answer": "4"}}')
        text = row.pop("prompt")
        if not (isinstance(text, str) or _messages(text)):
            raise DataError(f'{path}, line {number}: "prompt" is neither a text nor messages with role and content')
        if names is not None and set(row) != names:
            raise DataError(
                f"{path}, line {number}: has the columns {sorted(row)}, and the lines before {sorted(names)}"
            )
        names = set(row)
        found.append(Prompt(text, row))
    if not found:
        raise DataError(f"{path}: has no prompts")
    return found


def _messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and {"role", "content"} <= set(one) for one in value)
    )
