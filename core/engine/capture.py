"""How training steps are repeated: from a CPU tape, as a CUDA graph, or as they stand.

A step is given as two functions: `gather` makes batches of the numbers of their rows, `work` takes updates on them. It
is captured for each set of updates that are due together, and asked to be a function of parameters, rows and noise.
Numbers are the same within rounding, whichever repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import STEPS_PER_BLOCK
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
Several = Callable[[Numbers, Numbers, tuple[Due, ...]], tuple[Metrics, Tensor]]


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

    def forget(self) -> None:
        """What batches are gathered from has moved: what holds its addresses is made again."""


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


STEPS_PER_GRAPH = 8
"""Training steps that are one CUDA graph, by default: the host then has an eighth of the launches."""


def check_steps_per_graph(steps: int) -> None:
    """Raise ConfigError where a CUDA graph can't have so many training steps: blocks of random numbers have 32."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1 or STEPS_PER_BLOCK % steps:
        raise ConfigError(f"steps_per_graph={steps}: must be 1, 2, 4, 8, 16 or 32")


MOST_OF_SEVERAL = 8
"""Graphs of several steps that are made: updates that are due in more ways are taken step by step."""


class Graphed(Capture):
    """Steps on a GPU: a CUDA graph for each set of due updates, since small networks are launch-bound.

    Several steps are one graph where nothing happens between them: the host has one launch for all.
    """

    how = "CUDA graph"

    def __init__(self, gather: Gather, work: Work, several: Several | None = None) -> None:
        """As `Capture`.

        Args:
            gather: rows -> batches.
            work: takes the updates that are due and gives their metrics.
            several: rows and noise of several steps, and what is due at each -> metrics, and losses of each.
        """
        super().__init__(gather, work)
        self._graphs: dict[Due, Graph] = {}
        self._several = several
        self._of_several: dict[tuple[Due, ...], Graph] = {}

    def takes(self, dues: tuple[Due, ...]) -> bool:
        """Whether steps at which these updates are due can be taken at once."""
        if self._several is None:
            return False
        return dues in self._of_several or len(self._of_several) < MOST_OF_SEVERAL

    def steps(self, rows: Numbers, noise: Numbers, dues: tuple[Due, ...]) -> tuple[Metrics, Tensor]:
        """Several training steps.

        Args:
            rows: as of `step`, with one more dimension for the steps, behind that of the seeds.
            noise: likewise.
            dues: of each step.

        Returns:
            Metrics, each of the last step that gave it, and (steps, updates, seeds) losses; the next call may overwrite
            both.
        """
        several = self._several
        assert several is not None
        if dues not in self._of_several:
            self._of_several[dues] = Graph(lambda rows, noise: several(rows, noise, dues), (rows, noise))
        found: tuple[Metrics, Tensor] = self._of_several[dues](rows, noise)
        return found

    def forget(self) -> None:
        """As `Capture.forget`."""
        self._graphs.clear()
        self._of_several.clear()

    def step(self, rows: Numbers, noise: Numbers, due: Due) -> Metrics:
        """As `Capture.step`."""
        if due not in self._graphs:
            self._graphs[due] = Graph(lambda rows, noise: self.work(self.gather(rows), noise, due), (rows, noise))
        metrics: Metrics = self._graphs[due](rows, noise)
        return metrics


class Graph:
    """A function of tensors on a GPU, as a CUDA graph from its fourth call on.

    It must be a function of these tensors and of others that are changed in place alone: numbers of the host stay as
    they were at the fourth call.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Repeat a function.

        Args:
            function: of trees of tensors, to a tree of tensors.
            arguments: of the sizes that all calls have.
        """
        self.function = function
        self.arguments = tree_map(Tensor.clone, arguments)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.found: Any = None
        self._warm = 0

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives; tensors that the next call overwrites."""
        for held, given in zip(tree_leaves(self.arguments), tree_leaves(arguments), strict=True):
            held.copy_(given)
        if self._warm < 3:  # a capture wants lazily made handles and allocations to be there already
            self._warm += 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                found = self.function(*self.arguments)
            torch.cuda.current_stream().wait_stream(side)
            return found
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.found = self.function(*self.arguments)
        self.graph.replay()
        return self.found


class GraphedCalls:
    """Calls of functions that are made again and again, by a graph for each name and each sizes of arguments."""

    def __init__(self) -> None:
        self._graphs: dict[Any, Graph] = {}

    def __call__(self, name: Hashable, function: Callable[..., Any], *arguments: Any) -> Any:
        """What `function` gives, which is the same at each call of a name; copies, which the next call leaves alone."""
        leaves = tree_leaves(arguments)
        key = (name, *((tuple(leaf.shape), leaf.dtype) for leaf in leaves))
        if key not in self._graphs:
            self._graphs[key] = Graph(function, arguments)
        return tree_map(Tensor.clone, self._graphs[key](*arguments))
