"""What processes that surefoot starts get from this one."""

from __future__ import annotations

import os


def environment(**more: str) -> dict[str, str]:
    """Environment variables for a process of python: ours, and `more`.

    Empty entries of PYTHONPATH are left out: they mean the working directory, where a file may have any module's name.
    """
    path = os.pathsep.join(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    return {**os.environ, "PYTHONPATH": path, **more}
