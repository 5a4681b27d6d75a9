"""What processes that surefoot starts get from this one, and what the modules that they import must not do."""

from __future__ import annotations

import os
import sys
from types import FrameType

from surefoot.core.errors import MainGuardError

OWN = "surefoot"
REIMPORTED = "__mp_main__"
"""What multiprocessing calls the main script of a program that a fresh process of it imports again."""


def environment(**more: str) -> dict[str, str]:
    """Environment variables for a process of python: ours, and `more`.

    Empty entries of PYTHONPATH are left out: they mean the working directory, where a file may have any module's name.
    """
    path = os.pathsep.join(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    return {**os.environ, "PYTHONPATH": path, **more}


def refuse_at_import(what: str) -> None:
    """Refuse what starts work where it is called by a module's body that surefoot, or a fresh process, is importing.

    A run imports the user's module in each of its processes. A script that names itself, as `script:Id-v0`, and has no
    main guard would train again in each of them, whose processes would train again, without end. What the user imports
    himself may train: only modules that are imported because surefoot was given a name are refused, which the call
    stack shows: surefoot called the import, whose module's body called surefoot.

    Args:
        what: a verb for the sentence, such as "trains".

    Raises:
        MainGuardError: names the module's file and the line that called.
    """
    body: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        own = name.partition(".")[0] == OWN
        if body is None:
            if frame.f_code.co_name == "<module>" and not own and name != "__main__" and name in sys.modules:
                body = frame
                if name == REIMPORTED:
                    break
        elif own:
            break
        frame = frame.f_back
    if body is None or frame is None:
        return
    raise MainGuardError(
        f"{body.f_code.co_filename}, line {body.f_lineno}: the module {body.f_globals['__name__']!r} {what} while it "
        "is imported, and each process of a run imports it, so that this would repeat without end; put this line and "
        'what follows under if __name__ == "__main__": and leave outside of it what registers the environment'
    )
