"""The machine that a speed benchmark runs on and how busy it is, for its records and its page."""

from __future__ import annotations

import os
import pathlib
import platform
from typing import Any


def processor() -> str:
    """Kind of processor and how many cores it has."""
    kind, facts = platform.processor() or platform.machine(), pathlib.Path("/proc/cpuinfo")
    for line in facts.read_text(encoding="ascii", errors="replace").splitlines() if facts.is_file() else ():
        if line.startswith("model name"):
            kind = line.split(":", 1)[1].strip()
            break
    return f"{kind}, {os.cpu_count()} cores"


def load() -> float:
    """Processes that want a core, the benchmark's own included, averaged over the last minute."""
    return round(os.getloadavg()[0], 1)


def record(loads: list[float]) -> dict[str, Any]:
    """What a result file keeps of the machine; `loads` were read while the benchmark ran."""
    return {"processor": processor(), "load": loads}


def sentence(machine: dict[str, Any]) -> str:
    """How a page names the machine of a record."""
    low, high = min(machine["load"]), max(machine["load"])
    return f"{machine['processor']}, shared with other work: a load of {low:g} to {high:g} while this was measured."


def first_core() -> int:
    """The core that measurements are pinned to: the lowest that this process may use."""
    return min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
