"""Files by a path in which `*`, `?` and `[abc]` stand for others, found within a number of looks."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import pathlib
import re

from surefoot.core.base.errors import DataError

MOST_LOOKED_AT = 100_000
"""Entries of folders that one pattern may look through. `/*/*/*/*` is a walk through the whole disk."""
_MAGIC = re.compile(r"[*?\[]")


def files_like(pattern: pathlib.Path, source: object) -> list[pathlib.Path]:
    """What exists at this path, or else what is like it, in the order of names; as a shell does, none that are hidden.

    Args:
        pattern: with signs that stand for others in any of its parts.
        source: the file that names it, for the message.

    Raises:
        DataError: there are more than `MOST_LOOKED_AT` entries to look through, or the path is none.
    """
    try:
        if pattern.exists():
            return [pattern]
    except (OSError, ValueError) as error:  # a name that is too long, or with a null byte
        raise DataError(f"{source}: 'files' names {str(pattern)[:200]!r}, which no file is called ({error})") from error
    found, looks = [pathlib.Path(pattern.parts[0] if pattern.is_absolute() else ".")], 0
    for part in pattern.parts[1 if pattern.is_absolute() else 0 :]:
        if not _MAGIC.search(part):
            # os.path, for pathlib raises an error where it may not look
            found = [one / part for one in found if os.path.exists(one / part)]
            continue
        like, hidden, places, found = re.compile(fnmatch.translate(part)), part.startswith("."), found, []
        for place in places:
            # no folder, or one that may not be read, has nothing in it
            with contextlib.suppress(OSError), os.scandir(place) as entries:
                for entry in entries:
                    looks += 1
                    if looks > MOST_LOOKED_AT:
                        raise DataError(
                            f"{source}: 'files' names {pattern}, for which more than {MOST_LOOKED_AT:,} files and "
                            "folders would be looked through; write fewer of its parts with * and the like"
                        )
                    if like.fullmatch(entry.name) and (hidden or not entry.name.startswith(".")):
                        found.append(place / entry.name)
    return sorted(found)
