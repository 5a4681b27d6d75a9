"""How commands end when a signal comes at a bad time, or no one can read what they print."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from surefoot.cli.main import main
from surefoot.cli.support.output import PlainConsole
from surefoot.cli.support.progress import Watcher
from surefoot.core.base.errors import DataError, SurefootError
from surefoot.runs.processes.stopping import Terminated, going_on_told, raise_lost, resumable, terminable

NOTE = {"kind": "note", "text": "hello"}


class Broken(io.StringIO):
    """A stream that can't be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error, self.calls = error, 0

    def write(self, text: str) -> int:
        self.calls += 1
        raise self.error

    def flush(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")])
def test_training_goes_on_in_silence_where_its_lines_can_not_be_written(error: OSError) -> None:
    stream = Broken(error)
    with Watcher(PlainConsole(file=stream), bars=False) as watcher:
        watcher(NOTE)
        tries = stream.calls
        watcher(NOTE)
    assert stream.calls == tries > 0


def test_a_reader_that_has_gone_does_not_end_the_process_by_richs_own_way() -> None:
    with pytest.raises(SystemExit):
        Console(file=Broken(BrokenPipeError())).print("hello")
    with pytest.raises(BrokenPipeError):
        PlainConsole(file=Broken(BrokenPipeError())).print("hello")


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("both", [False, True])
def test_a_full_disk_under_the_output_is_said_in_one_line(both: bool) -> None:
    with open("/dev/full", "w") as full:
        errors: Any = full if both else subprocess.PIPE
        ended = subprocess.run([sys.executable, "-m", "surefoot", "--version"], stdout=full, stderr=errors, text=True)
    assert ended.returncode == 2
    if not both:
        assert ended.stderr == (
            "surefoot: error: the output can't be written: the disk is full (or a quota is); free some space\n"
        )


HALFWAY = """
import os, signal, sys
class Halfway:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.lib" and self in sys.meta_path:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
sys.meta_path.insert(0, Halfway())
from surefoot.cli.main import main
code = main(["train", "algo=td3bc", "dataset=native/pendulum-mixed", "steps=-1"])
assert not any(isinstance(one, Halfway) for one in sys.meta_path)
sys.exit(code)
"""


@pytest.mark.parametrize(("number", "code", "words"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_signal_while_libraries_are_imported_is_not_lost(number: str, code: int, words: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HALFWAY, number],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which background jobs of a shell ignore
    )
    assert (ended.returncode, ended.stderr.strip()) == (code, words)


def test_the_command_line_begins_without_torch() -> None:
    script = "import sys; from surefoot.cli.main import build_parser; build_parser(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_sigterm_raised_is_raised_again_where_it_was_lost() -> None:
    with terminable():
        raise_lost()  # nothing was
        with contextlib.suppress(Terminated):  # as code in C does
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Terminated):
            raise_lost()
    raise_lost()


def test_sigterm_ends_any_command_with_a_word_unless_something_better_was_said(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules[main.__module__], "dispatch", lambda *unused: os.kill(os.getpid(), signal.SIGTERM))
    assert main([]) == 143
    assert capsys.readouterr().err == "terminated\n"

    def of_a_run(*unused: Any) -> None:
        with resumable(tmp_path, lambda: "all of it"):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(sys.modules[main.__module__], "dispatch", of_a_run)
    assert main([]) == 143
    assert capsys.readouterr().err == "terminated; resume with: all of it\n"


def test_what_ends_a_run_from_outside_is_told_with_what_goes_on_with_it(tmp_path: pathlib.Path) -> None:
    told = f"the disk is full; then continue: surefoot train --resume {tmp_path}"
    with pytest.raises(SurefootError, match=told), going_on_told(tmp_path):
        raise SurefootError("the disk is full")
    with pytest.raises(DataError, match=r"^columns differ$"), going_on_told(tmp_path):
        raise DataError("columns differ")


def test_workers_are_asked_to_stop_before_anything_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import queue

    from surefoot.runs.processes import workers

    order: list[str] = []

    class Worker:
        def ask_to_stop(self) -> None:
            order.append("asked")

    one: Any = Worker()
    inbox: queue.Queue[Any] = queue.Queue()
    inbox.put((one, None))
    workers._let_end({one}, inbox, lambda event: order.append("said"))
    assert order == ["asked", "said"]
