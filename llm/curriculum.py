"""A curriculum by weakness: prompts that stay below one half and get worse are drawn more often."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Weakness:
    """How each prompt's share of right answers went, from one time that it was drawn to the next.

    Source: Liang et al., "SwS: Self-aware Weakness-driven Problem Synthesis" (2506.08989), whose criterion this is: a
    prompt is weak where its share was never one half or more and its least-squares slope is below 0. There a model
    writes new problems of the weak ones' categories; here the weak prompts themselves come again.
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
        """Go on from earlier `sums`."""
        self.sums = sums.to("cpu", torch.float64)
