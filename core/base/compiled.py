"""The compiled module of `cuda_ext`: core's one door to that room. `core.nn.native` and `core.base.counter` call it."""

from __future__ import annotations

from types import ModuleType

from surefoot import cuda_ext


def library() -> ModuleType | None:
    """The compiled module, or None where it was not built or is refused."""
    return cuda_ext.native()


def why_not() -> str:
    """Why `library()` is None, as a clause for a sentence."""
    return cuda_ext.why_not_native()
