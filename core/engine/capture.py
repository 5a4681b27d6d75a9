"""How training steps are repeated: from a CPU tape, as a CUDA graph, or as they stand.

A step is given as two functions: `gather` makes batches of the numbers of their rows, `work` takes updates on them. It
is captured for each set of updates that are due together, and asked to be a function of parameters, rows and noise.
Numbers are the same within rounding, whichever repeats it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from surefoot.core.engine.agent import Metrics
from surefoot.core.engine.sources import Batch
from surefoot.core.nn.native import native
from surefoot.core.nn.native.tape import Recorder, Tape

Numbers = dict[str, Tensor]
"""Source -> numbers of rows, or name -> noise: (S, rows, ...), or (rows, ...) of a lone agent."""
Batches = dict[str, Batch]
"""Source -> batch of one training step."""
Due = tuple[int, ...]
"""Numbers of the updates that are taken, in order."""
Gather = Callable[[Numbers], Batches]
Work = Callable[[Batches, Numbers, Due], Metrics]


def why_eager(
    device: torch.device, dtype: torch.dtype, kernels: bool, stacked: bool, compiled: bool, mixed_precision: bool
) -> str:
    """Why networks, Adam and steps on a CPU are not the native module's; empty where they are."""
    reasons = {
        "the device is not a CPU": device.type != "cpu",
        "kernels are off": not kernels,
        "agents are stacked": stacked,
        "parameters are not float32": dtype != torch.float32,
        "matrix products are in bfloat16": mixed_precision,
        "losses are compiled": compiled,
        native.why_not(): native.library() is None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class Capture:
    """Steps are run as they stand: eager PyTorch."""

    how = "eager"

    def __init__(self, gather: Gather, work: Work, because: str = "") -> None:
        """Run `work(gather(rows), noise, due)` at every step.

        Args:
            gather: rows -> batches.
            work: takes the updates that are due and gives their metrics.
            because: why steps are not repeated by something faster.
        """
        self.gather, self.work = gather, work
        self.eager: dict[Due, str] = {(): because} if because else {}
        """Updates that are due together -> why they run as they stand; () are all."""

    def step(self, rows: Numbers, noise: Numbers, due: Due) -> Metrics:
        """One training step; the metrics' tensors may be overwritten by the next."""
        return self.work(self.gather(rows), noise, due)


class Taped(Capture):
    """Steps of a lone agent on a CPU: recorded when they are first due, repeated by `core.nn.native.tape`."""

    how = "tape"

    def __init__(self, gather: Gather, work: Work) -> None:
        super().__init__(gather, work)
        self._tapes: dict[Due, tuple[Tape | None, Metrics]] = {}

    def step(self, rows: Numbers, noise: Numbers, due: Due) -> Metrics:
        """As `Capture.step`."""
        batches = self.gather(rows)
        inputs = [*(value for batch in batches.values() for value in batch.values()), *noise.values()]
        if due not in self._tapes:
            self._tapes[due] = self._recorded(inputs, batches, noise, due)
        tape, metrics = self._tapes[due]
        if tape is None or not tape.run(inputs):
            return self.work(batches, noise, due)
        return metrics

    def _recorded(
        self, inputs: list[Tensor], batches: Batches, noise: Numbers, due: Due
    ) -> tuple[Tape | None, Metrics]:
        """The tape of this step, and the metrics that it writes; the step is not taken."""
        recorder = Recorder(inputs)
        with recorder.watching():
            metrics = self.work(batches, noise, due)
        tape = recorder.tape()
        if tape is None:
            self.eager[due] = recorder.problem
        return tape, metrics


class Graphed(Capture):
    """Steps on a GPU: a CUDA graph for each set of due updates, since small networks are launch-bound."""

    how = "CUDA graph"

    def __init__(self, gather: Gather, work: Work) -> None:
        super().__init__(gather, work)
        self._graphs: dict[Due, _Graph] = {}

    def step(self, rows: Numbers, noise: Numbers, due: Due) -> Metrics:
        """As `Capture.step`."""
        if due not in self._graphs:
            self._graphs[due] = _Graph(_copied(rows), _copied(noise))
        graph = self._graphs[due]
        for held, given in ((graph.rows, rows), (graph.noise, noise)):
            for name, value in given.items():
                held[name].copy_(value)
        if graph.warm < 3:  # a capture wants lazily made handles and allocations to be there already
            graph.warm += 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                metrics = super().step(graph.rows, graph.noise, due)
            torch.cuda.current_stream().wait_stream(side)
            return metrics
        if graph.graph is None:
            graph.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph.graph):
                graph.metrics = super().step(graph.rows, graph.noise, due)
        graph.graph.replay()
        return graph.metrics


class _Graph:
    """A captured training step and the memory that it reads."""

    def __init__(self, rows: Numbers, noise: Numbers) -> None:
        self.rows, self.noise = rows, noise
        self.graph: torch.cuda.CUDAGraph | None = None
        self.metrics: Metrics = {}
        self.warm = 0


def _copied(values: Numbers) -> Numbers:
    return {name: value.clone() for name, value in values.items()}
