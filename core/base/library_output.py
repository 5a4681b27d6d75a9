"""What libraries print while they read a received file: held back, and shown without what a terminal would obey."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator

from surefoot.core.base.errors import printable

LONGEST = 500
"""Characters of it that are shown."""


class _Kept(io.StringIO):
    """Its first `LONGEST` characters and a few more; a file can make a library print without end."""

    def write(self, text: str) -> int:
        """Keep what there is room for; says that all of it was written, as streams do."""
        super().write(text[: max(0, 2 * LONGEST - self.tell())])
        return len(text)


@contextlib.contextmanager
def held_output(name: object) -> Iterator[None]:
    """In the block nothing that python code prints reaches the terminal; after it that is one warning, in one line.

    Names in a received file can hold escape sequences, and libraries print them as they are. Where the block raises
    an error, that says what is wrong, and nothing else is shown. Streams are the process's, so other threads are held
    back too.

    Args:
        name: of the file, for the warning.
    """
    kept = _Kept()
    with contextlib.redirect_stdout(kept), contextlib.redirect_stderr(kept):
        yield
    text = " ".join(printable(kept.getvalue()).split())
    if text:
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
        warnings.warn(f"{name}: a library that reads it printed: {shown}", stacklevel=3)
