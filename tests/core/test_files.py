"""Temporary files that killed processes leave."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from surefoot.core.base import files
from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.files import ASIDE, remove_asides, remove_asides_of_the_dead, written_aside

KILLED = """
import os, signal, sys
from surefoot.core.base.files import written_aside
with written_aside(sys.argv[1]) as aside:
    aside.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_and_what_others_may_be_writing_is_not(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data.hdf5"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert ASIDE.fullmatch(left.name)
    assert not path.exists()
    elsewhere = left.with_name(left.name.replace(left.name.split(".")[2][:8], "01234567"))
    old, own = tmp_path / ".data.0123abcd.hdf5", tmp_path / ".hidden"
    for other in (elsewhere, old, own):
        other.write_text("of others")
    with written_aside(path) as living:
        living.write_text("whole")
        remove_asides_of_the_dead(tmp_path)
        assert {*tmp_path.iterdir()} == {living, elsewhere, old, own}
    assert path.read_text() == "whole"
    remove_asides(tmp_path)  # where no one else writes
    assert {*tmp_path.iterdir()} == {path, own}
    remove_asides_of_the_dead(tmp_path / "nowhere")


def test_neither_pipes_nor_devices_are_read_as_files(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        with pytest.raises(OSError, match="a device or a pipe"):
            files.read_regular(tmp_path / name, 10)
        with pytest.raises(OSError, match="a device or a pipe"):
            files.read_lines(tmp_path / name)
        with pytest.raises(CheckpointError, match=rf"{name}: .*a device or a pipe"):
            files.read_json(tmp_path / name)
    (tmp_path / "text").write_text("0123456789ab")
    assert files.read_regular(tmp_path / "text", 10) == b"0123456789a"
    assert files.read_regular(tmp_path / "text", 20) == b"0123456789ab"
