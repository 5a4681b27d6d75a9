"""The instruction sets that the native module can be run at on this machine."""

from __future__ import annotations

from surefoot.cuda_ext import native

LIBRARY = native()
_best = "" if LIBRARY is None else LIBRARY.level()
LEVELS = ["generic"] if _best == "generic" else [level for level in ("v2", "v3", "v4") if level <= _best]
