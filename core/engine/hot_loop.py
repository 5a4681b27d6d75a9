"""What must not cost time while training steps follow each other: losses, python's collector, numbers below 1e-38."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class LossLog:
    """Losses of training steps, kept where they are computed and taken out many at a time: a look waits for a GPU."""

    def __init__(self, losses: Tensor, length: int) -> None:
        """Keep what stands in `losses`.

        Args:
            losses: (U, S) that each step writes, of U updates and S seeds.
            length: steps that are kept at most.
        """
        self._log = torch.zeros(length, *losses.shape, dtype=losses.dtype, device=losses.device)
        self._to: Any = self._log
        self._from: Any = losses
        if losses.device.type == "cpu" and losses.dtype in {torch.float32, torch.float64}:
            self._to, self._from = self._log.numpy(), losses.numpy()  # the same memory, and quicker to copy
        self._taken: list[Sequence[bool]] = []
        self._total = torch.zeros_like(losses, dtype=torch.float64)
        self._counts = torch.zeros(len(losses), 1, dtype=torch.float64, device=losses.device)

    def add(self, taken: Sequence[bool]) -> bool:
        """Keep the losses of one more step, which took these updates; True when there is no room for another."""
        self._to[len(self._taken)] = self._from
        self._taken.append(taken)
        return len(self._taken) == len(self._log)

    @property
    def room(self) -> int:
        """Steps that it can still keep."""
        return len(self._log) - len(self._taken)

    def add_several(self, losses: Tensor, taken: Sequence[Sequence[bool]]) -> bool:
        """Keep (K, U, S) losses of K steps at once, as `add`."""
        start = len(self._taken)
        self._log[start : start + len(taken)] = losses
        self._taken.extend(taken)
        return self.room == 0

    def take(self) -> Tensor:
        """(steps, U, S) losses since the last call."""
        part = self._log[: len(self._taken)]
        mask = torch.tensor(self._taken, dtype=torch.float64, device=part.device).unsqueeze(-1)
        self._total += (part * mask).sum(0)
        self._counts += mask.sum(0)
        self._taken = []
        return part

    def averages(self) -> dict[int, list[float]]:
        """Number of an update that was taken -> its mean loss of each seed, over all that was taken out."""
        averages = self._total / self._counts.clamp(min=1)
        return {index: averages[index].tolist() for index in range(len(averages)) if self._counts[index] > 0}


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Keep python's cycle collector out of the hot loop: it takes up to a tenth of the time of an update."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class SubnormalsAreZero:
    """While it is entered numbers below 1e-38 count as 0 in this thread, in PyTorch and in native code.

    Gradients through a soft maximum or a saturated unit, and moments of Adam that decay, get there, and a processor
    takes a hundred times as long over them: CQL with values in the hundreds slows to a fifteenth.
    """

    def __init__(self, wanted: bool) -> None:
        """Do so if `wanted`: on a CPU."""
        self.wanted = wanted
        tiny = torch.full((), 1e-39, dtype=torch.float32, device="cpu")
        self.before = bool(tiny * 1 == 0)  # PyTorch sets it, and does not tell

    def __enter__(self) -> None:
        if self.wanted:
            torch.set_flush_denormal(True)

    def __exit__(self, *unused: object) -> None:
        if self.wanted:
            torch.set_flush_denormal(self.before)
