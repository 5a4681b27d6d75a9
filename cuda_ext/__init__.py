"""Everything native: batched rollouts, fused networks, and the plain torch twin of each."""

from __future__ import annotations

import os
from types import ModuleType

__all__ = ["INTERFACE", "StaleModuleError", "native", "why_not_native"]

INTERFACE = 2
"""Of the functions and classes in the compiled module; `native/module.cpp` has the number that it was built with."""


class StaleModuleError(ImportError):
    """The compiled module was built from other sources than those beside it; the message says what to do."""


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get("SUREFOOT_NATIVE") == "0":
        return None, "SUREFOOT_NATIVE=0 is set"
    try:
        import _surefoot_native
    except ImportError as error:
        return None, f"it was not built when surefoot was installed ({error}); see docs/packaging.md"
    return _surefoot_native, ""


def _stale(module: ModuleType | None) -> str:
    """Why a compiled module can't be used by these sources, as a sentence; empty where it can."""
    found = INTERFACE if module is None else getattr(module, "interface", 0)
    if found == INTERFACE:
        return ""
    where = getattr(module, "__file__", None) or "_surefoot_native"
    return (
        f"{where}: the compiled module has interface {found}, and the sources of surefoot beside it need {INTERFACE}: "
        "build it again (in a checkout `make .venv/.dev` or "
        "`pip install -e .`, else `pip install --force-reinstall --no-deps surefoot`), or set SUREFOOT_NATIVE=0 to go "
        "without it"
    )


_module, _reason = _load()
_refusal = _stale(_module)


def native() -> ModuleType | None:
    """The compiled module `_surefoot_native`, or None where it was not built or `SUREFOOT_NATIVE=0` refuses it.

    Raises:
        StaleModuleError: it was built from sources with another `INTERFACE`.
    """
    if _refusal:
        raise StaleModuleError(_refusal)
    return _module


def why_not_native() -> str:
    """Why `native()` is None, as a clause for a sentence; empty where it is there."""
    return _reason
