"""Worker processes for tests, forked from a process that has imported everything: an import of torch takes 2 s each.

`python -P forking.py SOCKET` is that process: it trains nothing itself, as autograd can't be used on both sides of a
fork. For each connection it forks a child whose standard streams are the three that were sent along, which runs
`surefoot.experiment.worker.main`; and it answers with the child's id, and with its exit code when it has ended.
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
from typing import Any

PRELOADED = ("acting_trainer", "algorithms", "offline_trainer", "streaming_trainer", "trainer", "watchdog", "worker")


def serve(path: str) -> None:
    """Fork until standard input closes, that is, until the test session ends."""
    import importlib

    for name in PRELOADED:
        importlib.import_module(f"surefoot.experiment.{name}")
    importlib.import_module("surefoot.evaluation")
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
                child(json.loads(text), files)
            asked[pid] = connection
            for file in files:
                os.close(file)
            connection.sendall(b"%d\n" % pid)


def child(given: dict[str, Any], files: list[int]) -> None:
    """Be the worker; does not return."""
    from surefoot.experiment import worker

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target in range(3):
            os.dup2(files[target], target)
        os.environ.clear()
        os.environ.update(given["env"])
        os.chdir(given["cwd"])
        arguments = given["arguments"]
        arguments[2] = str(files[3])  # the lock, under its number here
        sys.argv = ["worker", *arguments]
        code = worker.main(arguments)
        sys.stderr.flush()
    finally:
        os._exit(code)


class Forked:
    """What `workers` uses of `subprocess.Popen`, for a worker that the server forks."""

    def __init__(self, server: str, command: list[str], log: Any, lock: int, env: dict[str, str]) -> None:
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        given = {"arguments": command[4:], "env": env, "cwd": os.getcwd()}
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(server)
        socket.send_fds(
            self._connection, [json.dumps(given).encode()], array.array("i", [read_in, write_out, log.fileno(), lock])
        )
        os.close(read_in)
        os.close(write_out)
        self.stdin, self.stdout = os.fdopen(write_in, "wb", 0), os.fdopen(read_out, "rb")
        self._answers = self._connection.makefile("rb")
        self.pid, self.returncode = int(self._answers.readline()), None

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        if self.returncode is None:
            self.returncode = int(self._answers.readline() or b"-9")
            self._connection.close()
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Server:
    """The process that forks, started when it is first needed."""

    PIPE = subprocess.PIPE

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = str(folder / "fork")
        self.process: subprocess.Popen[bytes] | None = None

    def Popen(
        self, command: list[str], *, stderr: Any, pass_fds: tuple[int, ...], env: dict[str, str], **unused: Any
    ) -> Forked:
        """As `subprocess.Popen` of a worker."""
        if self.process is None:
            self.process = subprocess.Popen([sys.executable, "-P", __file__, self.path], stdin=subprocess.PIPE, env=env)
            while not os.path.exists(self.path):
                assert self.process.poll() is None
                select.select([], [], [], 0.02)
        return Forked(self.path, command, stderr, pass_fds[0], env)

    def close(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.communicate()


if __name__ == "__main__":
    serve(sys.argv[1])
