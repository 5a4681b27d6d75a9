"""Temporary files that killed processes leave."""

from __future__ import annotations

import pathlib
import subprocess
import sys

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
    remove_asides(tmp_path)  # where nobody else writes
    assert {*tmp_path.iterdir()} == {path, own}
    remove_asides_of_the_dead(tmp_path / "nowhere")
