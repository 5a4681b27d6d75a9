"""What commands show in a terminal of 80 columns, in a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pathlib
import pty
import re
import struct
import termios

import forking
import pytest

from surefoot.envs.names import native_ids

COLUMNS = 80


def in_terminal(*arguments: str) -> list[str]:
    """The lines that a command shows there, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    environment["TERM"] = "xterm"
    process = forking.Popen(["-m", "surefoot", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "").splitlines()


@pytest.mark.parametrize("arguments", [("train", "--help"), ("envs", "list")])
def test_no_line_is_wider_than_the_terminal(arguments: tuple[str, ...]) -> None:
    shown = in_terminal(*arguments)
    assert max(map(len, shown)) <= COLUMNS
    if arguments[0] == "envs":
        assert set(native_ids()) <= {word for line in shown for word in line.split()}  # no name is broken


def test_numbers_of_a_table_are_never_cut(finished_run: pathlib.Path) -> None:
    shown = in_terminal("report", str(finished_run), "-o", str(finished_run / "terminal.html"))
    table = shown[: next(i for i, line in enumerate(shown) if "cost of an episode" in line)]  # sentences follow
    assert "…" not in "".join(table)
    assert all(line.count("[") == line.count("]") for line in table)
    assert max(map(len, table)) <= COLUMNS
    assert all(name in "".join(table) for name in ("return", "normalised", "cost", "episodes", "seeds", "steps"))
