"""Counts what a GPU's host waits for, without one: tensors of the meta device stand in for the GPU's.

A number read back is an error at the line that reads it, since tensors of the meta device hold none; copies to and from
the host are counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)


def _kinds(values: Any) -> set[str]:
    return {value.device.type for value in tree_leaves(values) if isinstance(value, Tensor)}


class _Made(TorchFunctionMode):
    """Tensors of the device that are made of the host's numbers."""

    def __init__(self, copies: list[str]) -> None:
        super().__init__()
        self.copies = copies

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _MAKERS and _kinds(found) == {"meta"} and not isinstance(args[0], Tensor):
            self.copies.append(f"{func.__name__} of the host's numbers")
        elif func is Tensor.new_tensor and _kinds(found) == {"meta"}:
            self.copies.append("new_tensor of the host's numbers")
        return found


class _Copied(TorchDispatchMode):
    """Copies between the host and the device."""

    def __init__(self, copies: list[str]) -> None:
        super().__init__()
        self.copies = copies

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "copy_") and _kinds((args, kwargs, found)) == {"cpu", "meta"}:
            self.copies.append(f"{name} of {tuple(found.shape)}")
        return found


class Copies:
    """`with Copies() as copies:` a list of what was copied between the host and the device."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._modes = (_Made(self.found), _Copied(self.found))

    def __enter__(self) -> list[str]:
        for mode in self._modes:
            mode.__enter__()
        return self.found

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
