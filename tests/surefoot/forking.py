"""Processes for tests, forked from one that has imported everything: an import of torch takes 2 s each.

`python -P forking.py SOCKET` is that process: it trains nothing itself, as autograd can't be used on both sides of a
fork. For each connection it forks a child whose standard streams are the three that were sent along; and it answers
with the child's id, and with its exit code when it has ended. The child is a worker, which runs
`surefoot.runs.processes.worker.main`, or what `python ARGUMENTS` would be, whose workers are forked too.

`Popen` and `run` here are for tests that need a process of its own, to be killed or to print, but not its start. What a
process imports, and from where, must be tested by `subprocess`.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from surefoot.core.base.children import ONE_THREAD, environment

PRELOADED = (
    *("surefoot.runs.algorithms", "surefoot.runs.processes.watchdog", "surefoot.runs.processes.worker"),
    *("surefoot.evaluation", "surefoot.cli.train", "surefoot.studies.compare", "surefoot.runs.trainers.choose"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "pytest"),
)


def serve(path: str) -> None:
    """Fork until standard input closes, that is, until the test session ends."""
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *unused: None)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{path}.new")
    listening.listen(16)
    os.rename(f"{path}.new", path)
    asked: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listening, reading, 0], [], [])
        if 0 in ready:
            return
        if reading in ready:
            os.read(reading, 1000)
        while asked:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            with asked.pop(pid) as connection, contextlib.suppress(OSError):
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        if listening in ready:
            connection, _ = listening.accept()
            text, files, _, _ = socket.recv_fds(connection, 1 << 20, 8)
            pid = os.fork()
            if pid == 0:
                child(path, json.loads(text), files)
            asked[pid] = connection
            for file in files:
                os.close(file)
            connection.sendall(b"%d\n" % pid)


def child(path: str, given: dict[str, Any], files: list[int]) -> None:
    """Be a worker or a program; does not return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(OSError):  # whoever asked may be gone
            os.setpgid(0, given["group"])
        for target in range(3):
            os.dup2(files[target], target)
        os.environ.clear()
        os.environ.update(given["env"])
        os.chdir(given["cwd"])
        arguments = given["arguments"]
        pathlib.Path(f"{path}-{os.getpid()}").write_text("\n".join(arguments))
        if given["worker"]:
            from surefoot.runs.processes import worker

            arguments[2] = str(files[3])  # the lock, under its number here
            sys.argv = ["worker", *arguments]
            code = worker.main(arguments)
        else:
            code = program(path, arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def program(path: str, arguments: list[str]) -> int:
    """Do what `python ARGUMENTS` does; its exit code."""
    import runpy

    from surefoot.runs.processes import workers

    workers.start_python = Server(path).start_python
    for number, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, open(number, "w", buffering=1, encoding="utf-8", closefd=False))  # noqa: SIM115
    sys.path[:0] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            sys.path.insert(0, "")
            exec(arguments[1], {"__name__": "__main__"})
        else:
            sys.argv = arguments
            sys.path.insert(0, os.path.dirname(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class Forked:
    """What tests and `workers` use of `subprocess.Popen`, for a process that the server forks."""

    def __init__(
        self,
        server: str,
        arguments: Sequence[str],
        files: Sequence[int],
        *,
        worker: bool,
        cwd: str | os.PathLike[str] | None = None,
        env: dict[str, str] | None = None,
        group: bool = False,
    ) -> None:
        given = {
            "arguments": list(arguments),
            "worker": worker,
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "group": 0 if group else os.getpgrp(),
        }
        self.args, self.stdin, self.stdout, self.stderr = list(arguments), *[None] * 3
        self._waiting = threading.Lock()  # `workers` waits in two threads
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(server)
        socket.send_fds(self._connection, [json.dumps(given).encode()], array.array("i", files))
        self.pid, self.returncode = int(self._answer()), None

    stdin: Any
    stdout: Any
    stderr: Any
    returncode: int | None

    def _answer(self) -> bytes:
        """A line, and not a byte of what follows it."""
        line = b""
        while not line.endswith(b"\n") and (read := self._connection.recv(1)):
            line += read
        return line

    def poll(self) -> int | None:
        """Its exit code, where it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended."""
        with self._waiting:
            if self.returncode is None:
                if not select.select([self._connection], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                self.returncode = int(self._answer() or b"-9")
                self._connection.close()
            return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """All that it prints, when it has ended."""
        with ThreadPoolExecutor(2) as pool:
            parts = [None if stream is None else pool.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            told = tuple(None if part is None else part.result() for part in parts)
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        return told  # type: ignore[return-value]

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that forks, started when it is first needed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> str:
        """Its socket, when it listens."""
        if not os.path.exists(self.path):
            env = os.environ | ONE_THREAD
            self.process = subprocess.Popen([sys.executable, "-P", __file__, self.path], stdin=subprocess.PIPE, env=env)
            while not os.path.exists(self.path):
                assert self.process.poll() is None
                select.select([], [], [], 0.02)
        return self.path

    def start_python(
        self, *arguments: str, stderr: IO[bytes], inherited: Sequence[int], variables: Mapping[str, str]
    ) -> Any:
        """As `children.start_python` of a worker, whose own arguments follow "-m" and its module."""
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        files = [read_in, write_out, stderr.fileno(), inherited[0]]
        made = Forked(self.begin(), arguments[2:], files, worker=True, env=environment(**variables))
        os.close(read_in)
        os.close(write_out)
        made.stdin, made.stdout = os.fdopen(write_in, "wb", 0), os.fdopen(read_out, "rb")
        return made

    def close(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.communicate()


SERVER = Server("")
"""Of this session; conftest.py puts the real one here."""


def Popen(
    arguments: Sequence[str],
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    stdin: int | None = None,
    **how: Any,
) -> Forked:
    """As `subprocess.Popen([sys.executable, *arguments])` with text; `group` gives it a process group of its own."""
    closing: list[int] = []
    files: list[int] = []
    pipes: list[IO[str] | None] = [None, None]
    for place, asked in enumerate((stdin, stdout, stderr)):
        if asked == subprocess.PIPE:
            read, write = os.pipe()
            files.append(write)
            pipes[place - 1] = os.fdopen(read, encoding="utf-8")
            closing.append(write)
        elif asked is None and place == 0:
            files.append(os.open(os.devnull, os.O_RDONLY))
            closing.append(files[-1])
        else:
            files.append(place if asked is None else asked)
    made = Forked(SERVER.begin(), arguments, files, worker=False, **how)
    for file in closing:
        os.close(file)
    made.stdout, made.stderr = pipes
    return made


def run(arguments: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`."""
    process = Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    told, errors = process.communicate(600)
    return subprocess.CompletedProcess(process.args, process.wait(), told, errors)


def alive() -> dict[int, list[str]]:
    """Arguments of each process that the server has forked and that has not ended."""
    import psutil

    found: dict[int, list[str]] = {}
    folder, name = os.path.split(SERVER.path)
    for path in pathlib.Path(folder).glob(f"{name}-*"):
        pid = int(path.name.rpartition("-")[2])
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found[pid] = path.read_text().splitlines()
    return found


if __name__ == "__main__":
    serve(sys.argv[1])
