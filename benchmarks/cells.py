"""The results of a study in one file: a line of JSON for each cell, `{"cell": NAME, "result": {...}}`.

Lines are appended as cells finish, under a lock, so that several processes may fill one file. A line that a killed
process left half-written is ignored by readers and removed by the next writer. Standard library only: the peers'
environments (benchmarks/peers) write such files too.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
from typing import Any, BinaryIO

Results = dict[str, dict[str, Any]]
"""Name of a cell -> its result, in the order of the file."""


def read_cells(path: pathlib.Path) -> Results:
    """The finished cells of a study; none where there is no file yet.

    Raises:
        SystemExit: a line other than an unfinished last one is no cell, or a cell is there twice.
    """
    if not path.is_file():
        return {}
    return _parsed(path, path.read_bytes())


def append_cell(path: pathlib.Path, name: str, result: dict[str, Any]) -> bool:
    """Write a cell at the end of the file; False where another process has written this cell in the meantime.

    Raises:
        ValueError: the result holds NaN or infinity, which JSON doesn't have.
        SystemExit: the file is damaged, as in `read_cells`.
    """
    line = json.dumps({"cell": name, "result": result}, separators=(",", ":"), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        if name in _whole_lines(path, file):
            return False
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return True


def _whole_lines(path: pathlib.Path, file: BinaryIO) -> Results:
    """The cells of an open file, after an unfinished last line has been cut off."""
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)
    return _parsed(path, content)


def _parsed(path: pathlib.Path, content: bytes) -> Results:
    found: Results = {}
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            one = json.loads(line)
            name, result = one["cell"], one["result"]
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}, line {number}: not a cell; remove the line to compute it again") from error
        if name in found:
            raise SystemExit(f"{path}, line {number}: cell {name} is there twice; remove one of its lines")
        found[name] = result
    return found
