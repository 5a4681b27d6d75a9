"""CUDA graphs without a GPU: what is done in `torch.cuda.graph` is kept, undone, and done again in the same memory."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FakeGraph(TorchDispatchMode):
    """Keeps the operations of its block; `replay` takes them again and writes what they give over what they gave.

    What they change in place is as before when the block ends, since a capture computes nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0
        self._changed: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = kwargs.get(argument.name, args[place] if place < len(args) else None)
                self._changed += [(one, one.detach().clone()) for one in tree_leaves(given) if isinstance(one, Tensor)]
        found = func(*args, **kwargs)
        self.kept.append((func, args, kwargs, found))
        return found

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        with torch._C._AutoDispatchBelowAutograd():
            for tensor, before in reversed(self._changed):
                tensor.copy_(before)

    def replay(self) -> None:
        """Once more."""
        self.replays += 1
        with torch._C._AutoDispatchBelowAutograd():  # the tensors of a backward pass are kept, and its graph is not
            for func, args, kwargs, found in self.kept:
                again = func(*args, **kwargs)
                for held, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                    if isinstance(held, Tensor) and held.data_ptr() != new.data_ptr():
                        held.copy_(new)


def install(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    """In place of torch's; gives the graphs that are made."""
    made: list[FakeGraph] = []

    def make() -> FakeGraph:
        made.append(FakeGraph())
        return made[-1]

    stream = types.SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", make)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda one: contextlib.nullcontext())
    return made
