"""A curriculum by weakness: prompts that stay below one half and get worse are drawn more often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.llm.prompts import Prompt, prompt_of

Write = Callable[..., Sequence[Mapping[str, Any] | None]]
"""`write(prompts, seed, **columns)`: a new problem like each of these weak prompts, as a line of a file of prompts has
it ({"prompt": ..., more columns}), or None."""


def written(write: Write, weak: Sequence[Prompt], seed: int) -> list[Prompt | None]:
    """New problems by the user's function, one or none for each weak prompt.

    Source: Liang et al., "SwS" (2506.08989): new problems are shared out by where the failures are, and weak prompts
    that are drawn at random do that. The paper has one phase that finds weaknesses and one with the new problems.

    Raises:
        DataError: the function raised, or gave something else.
    """
    name = getattr(write, "__name__", "write")
    columns = {column: [one.columns.get(column) for one in weak] for column in weak[0].columns}
    try:
        found = list(write(prompts=[one.text for one in weak], seed=seed, **columns))
    except Exception as error:
        raise DataError(f"{name}, which writes problems, raised {type(error).__name__}: {error}") from error
    if len(found) != len(weak):
        raise DataError(f"{name} gave {len(found)} problems for {len(weak)} prompts; give one or None for each")
    made = [None if one is None else prompt_of(one, f"{name}, problem {row}") for row, one in enumerate(found)]
    for row, one in enumerate(made):
        if one is not None and set(one.columns) != set(columns):
            raise DataError(
                f"{name}, problem {row}: has the columns {sorted(one.columns)}, and the prompts {sorted(columns)}"
            )
    return made


class Weakness:
    """How each prompt's share of right answers went, from one time that it was drawn to the next.

    Source: Liang et al., "SwS: Self-aware Weakness-driven Problem Synthesis" (2506.08989), whose criterion this is: a
    prompt is weak where its share was never one half or more and its least-squares slope is below 0. The weak prompts
    come again, or new ones that are `written` in their place.
    """

    def __init__(self, prompts: int) -> None:
        """Begin; nothing is known of any."""
        self.sums = torch.zeros(4, prompts, dtype=torch.float64)
        """Times n, sum of shares a, sum of a t with t = 0, 1, ..., and the highest a."""

    def note(self, prompt: int, share: float) -> None:
        """A prompt's share of right answers in one group."""
        times, total, moment, highest = self.sums[:, prompt].tolist()
        now = [times + 1, total + share, moment + share * times, max(highest, share)]
        self.sums[:, prompt] = torch.tensor(now, dtype=torch.float64)

    def weak(self) -> list[int]:
        """The weak prompts of now, in order."""
        times, total, moment, highest = self.sums
        slope = times * moment - total * times * (times - 1) / 2  # times a positive number
        return torch.nonzero((highest < 0.5) & (slope < -1e-9)).flatten().tolist()

    def draw(self, count: int, seed: list[int]) -> list[int]:
        """Up to `count` weak prompts, all different, at random."""
        weak = self.weak()
        return np.random.default_rng(seed).permutation(weak)[:count].astype(int).tolist() if weak else []

    def load(self, sums: Tensor) -> None:
        """Continue from earlier `sums`."""
        self.sums = sums.to("cpu", torch.float64)
