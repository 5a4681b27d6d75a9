"""Answers to learn from: given ones, preferred and rejected ones, or ones whose steps are labelled; lines of JSON."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from surefoot.core.base.errors import DataError
from surefoot.core.base.files import read_json_lines

Text = str | list[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """A prompt with an answer that is to be learned."""

    prompt: Text
    answer: str


@dataclasses.dataclass(frozen=True)
class Pair:
    """A prompt with a better and a worse answer."""

    prompt: Text
    chosen: str
    rejected: str


@dataclasses.dataclass(frozen=True)
class LabelledSteps:
    """A prompt with an answer in steps, and for each whether it is right (or how probably)."""

    prompt: Text
    steps: tuple[str, ...]
    labels: tuple[float, ...]


def read_feedback(path: str | pathlib.Path) -> list[Demonstration] | list[Pair] | list[LabelledSteps]:
    """Feedback of a .jsonl file, with the column names of TRL's datasets.

    Each line is {"prompt": ..., "completion": text}, {"prompt": ..., "chosen": text, "rejected": text}, or {"prompt":
    ..., "completions": texts of steps, "labels": 0 or 1 of each}. A file holds one kind.

    Raises:
        DataError: there is no such file, or a line is none of them; the line is named.
    """
    path = pathlib.Path(path).expanduser()
    found: list[Any] = []
    for number, row in read_json_lines(path, DataError):
        try:
            found.append(_read(row))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise DataError(
                f'{path}, line {number}: is neither {{"prompt", "chosen", "rejected"}} nor {{"prompt", "completion"}} '
                f'nor {{"prompt", "completions", "labels"}} with a label in [0, 1] for each step ({error})'
            ) from error
        if type(found[-1]) is not type(found[0]):
            raise DataError(f"{path}, line {number}: is of another kind than the lines before")
    if not found:
        raise DataError(f"{path}: has no lines")
    return found


def _read(row: dict[str, Any]) -> Demonstration | Pair | LabelledSteps:
    prompt = row["prompt"]
    if not isinstance(prompt, str | list) or not prompt:
        raise ValueError("the prompt is neither text nor messages")
    if "completion" in row:
        if not isinstance(row["completion"], str) or not row["completion"]:
            raise ValueError("the completion is not text")
        return Demonstration(prompt, row["completion"])
    if "chosen" in row:
        pair = Pair(prompt, row["chosen"], row["rejected"])
        if not isinstance(pair.chosen, str) or not isinstance(pair.rejected, str):
            raise ValueError("an answer is not text")
        if pair.chosen == pair.rejected:
            raise ValueError("both answers are the same")
        return pair
    steps, labels = tuple(row["completions"]), tuple(float(label) for label in row["labels"])
    if not steps or len(steps) != len(labels) or not all(isinstance(step, str) and step for step in steps):
        raise ValueError(f"{len(steps)} steps have {len(labels)} labels")
    if not all(0 <= label <= 1 for label in labels):
        raise ValueError("a label is not in [0, 1]")
    return LabelledSteps(prompt, steps, labels)
