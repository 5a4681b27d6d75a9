"""Everything native: batched rollouts, fused networks, and the plain torch twin of each."""

from __future__ import annotations

import os
from types import ModuleType

__all__ = ["native", "why_not_native"]


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get("SUREFOOT_NATIVE") == "0":
        return None, "SUREFOOT_NATIVE=0 is set"
    try:
        import _surefoot_native
    except ImportError as error:
        return None, f"it was not built when surefoot was installed ({error}); see docs/packaging.md"
    return _surefoot_native, ""


_module, _reason = _load()


def native() -> ModuleType | None:
    """The compiled module `_surefoot_native`, or None where it was not built or `SUREFOOT_NATIVE=0` refuses it."""
    return _module


def why_not_native() -> str:
    """Why `native()` is None, as a clause for a sentence; empty where it is there."""
    return _reason
