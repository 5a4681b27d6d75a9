"""Too little memory, as an error that says so: libraries raise it in several ways."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from surefoot.core.base.errors import SurefootError

ADVICE = "free some, raise its limit (ulimit -v), or ask for less at once"


def short_of_memory(error: BaseException) -> bool:
    """Whether an error is one of too little memory: python's and numpy's, the system's, or torch's RuntimeError."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("allocate memory" in text or "CUDA out of memory" in text)


@contextlib.contextmanager
def enough_memory(name: object, error: type[SurefootError]) -> Iterator[None]:
    """Where the block needs more memory than there is, an error of the kind `error` that names what was read."""
    try:
        yield
    except Exception as failure:
        if isinstance(failure, SurefootError) or not short_of_memory(failure):
            raise
        raise error(f"{name}: the memory is not enough to read it; {ADVICE}") from failure
