"""Environments in another python, behind the contract: processes that are started, asked, watched and ended here."""

from __future__ import annotations

import collections
import contextlib
import json
import mmap
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, SimulatorError
from surefoot.envs.interface import SUCCESS, Array, Numbers, VectorEnvironment, as_numpy, reset_mask, row_seeds
from surefoot.envs.make import LIMIT, steps_of
from surefoot.envs.other import server

SERVER = pathlib.Path(server.__file__)
PREFIX = "other:"
EXAMPLE = "other:/opt/old/bin/python:safety_gymnasium:SafetyPointGoal1-v0"
PATIENCE = 300.0
"""Seconds that a call of the other process may take."""
LINES = 20
"""Of the other process's last output that an error shows."""
OWN = ("processes", "patience", LIMIT)
"""Arguments that are read here; all others are the environment's."""


def parts(rest: str) -> tuple[str, str, str]:
    """Python, module and id of `PYTHON:MODULE:ID`.

    Raises:
        ConfigError: it has another form.
    """
    python, _, named = rest.partition(":")
    module, _, name = named.partition(":")
    if not python or not module or not name:
        raise ConfigError(f"environment {PREFIX + rest!r}: write other:PYTHON:MODULE:ID, as in {EXAMPLE}")
    return python, module, name


def make(rest: str, num_envs: int, **options: Any) -> OtherVectorEnv:
    """`num_envs` environments of `PYTHON:MODULE:ID`.

    Args:
        rest: ID is an id of gymnasium's or gym's in that python, or a class or function of MODULE.
        num_envs: rows.
        options: `processes` (1), among which the rows are shared; `patience` (300), seconds that a call may take;
            `max_episode_steps`, a time limit; all others are handed to the environment.

    Raises:
        ConfigError: another form, no such python, or an option out of its range.
        EnvironmentMismatchError: the environment can't be made there; the message has its words.
    """
    python, module, name = parts(rest)
    processes, patience = options.get("processes", 1), options.get("patience", PATIENCE)
    if not isinstance(processes, int) or isinstance(processes, bool) or processes < 1:
        raise ConfigError(f"env_options.processes={processes!r}: must be a whole number from 1 on")
    if not isinstance(patience, int | float) or isinstance(patience, bool) or not patience > 0:
        raise ConfigError(f"env_options.patience={patience!r}: must be seconds above 0")
    limit = None if options.get(LIMIT) is None else steps_of(options[LIMIT], rest)
    given = {key: value for key, value in options.items() if key not in OWN}
    return OtherVectorEnv(python, module, name, num_envs, given, limit, min(processes, num_envs), float(patience))


class OtherVectorEnv(VectorEnvironment):
    """Rows that are stepped in another python.

    Actions, observations, rewards and flags lie in memory that both processes map; a byte through a pipe says that it
    is the other's turn. Nothing is pickled, and the memory's file has no name once both have mapped it.

    Args:
        python: its executable, found on PATH where it is a name alone.
        module, name: what to import there, and what to make.
        num_envs: rows.
        options: the environment's arguments, JSON values.
        limit: steps after which an episode is truncated, or None for the environment's own limit.
        processes: how many to start; each has an equal part of the rows.
        patience: seconds that a call may take.

    Raises:
        ConfigError: there is no such python.
        EnvironmentMismatchError: the environment can't be made there.
    """

    def __init__(
        self,
        python: str,
        module: str,
        name: str,
        num_envs: int,
        options: Mapping[str, Any] | None = None,
        limit: int | None = None,
        processes: int = 1,
        patience: float = PATIENCE,
    ) -> None:
        self.called = f"{PREFIX}{python}:{module}:{name}"
        found = executable(python)
        cuts = np.linspace(0, num_envs, processes + 1).astype(int)
        ranges = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
        wanted = {"module": module, "name": name, "options": dict(options or {}), "limit": limit, "path": [os.getcwd()]}
        self._processes: list[_Process] = []
        self._end = weakref.finalize(self, _end, self._processes)
        try:
            for begin, end in ranges:
                asked = {**wanted, "rows": end - begin}
                self._processes.append(_Process(found, self.called, asked, patience))
            about = [one.answer() for one in self._processes]
            observations, actions = space_of(about[0]["observations"]), space_of(about[0]["actions"])
            if isinstance(actions, gymnasium.spaces.Dict):
                raise EnvironmentMismatchError(f"{self.called}: actions are a Dict; a Box or Discrete is needed")
            super().__init__(num_envs, observations, actions)
            self.max_episode_steps: int | None = about[0]["limit"]
            self.python: str = about[0]["python"]
            self._ranges = ranges
            self._arrays = self._share(ranges)
        except BaseException:
            self._end()
            raise
        self._named = isinstance(observations, gymnasium.spaces.Dict)
        self._given: set[str] | None = None
        self._began = False

    def _share(self, ranges: Sequence[tuple[int, int]]) -> dict[str, Array]:
        """Make the memory, hand it to the processes, and take away its name."""
        rows = self.num_envs
        wanted: dict[str, tuple[str, tuple[int, ...]]] = {
            "marked": ("uint8", (rows,)),
            "seeds": ("int64", (rows,)),
            "flags": ("uint8", (rows,)),
            "rewards": ("float64", (rows,)),
            **{name: ("float64", (rows,)) for name in server.EXTRAS},
            "more": ("float64", (rows, server.MOST)),
            "names": ("uint8", (rows,)),
        }
        space = self.single_action_space
        wanted["actions"] = (np.dtype(space.dtype).name, (rows, *(space.shape or ())))
        for key, box in _boxes(self.single_observation_space).items():
            for where in ("obs", "final"):
                wanted[f"{where}/{key}"] = (np.dtype(box.dtype).name, (rows, *(box.shape or ())))
        places: dict[str, tuple[int, str, tuple[int, ...]]] = {}
        total = 0
        for name, (dtype, shape) in wanted.items():
            places[name] = (total, dtype, shape)
            total += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64
        shared = pathlib.Path("/dev/shm")
        folder = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
        try:
            file, path = tempfile.mkstemp(prefix="surefoot-other-", dir=folder)
        except OSError as error:
            raise SimulatorError(f"{self.called}: no memory can be shared ({error.strerror or error})") from error
        try:
            os.posix_fallocate(file, 0, total) if hasattr(os, "posix_fallocate") else os.truncate(file, total)
            memory = mmap.mmap(file, total)
            for one, part in zip(self._processes, ranges, strict=True):
                one.send({"path": path, "bytes": total, "arrays": places, "rows": part})
            for one in self._processes:
                one.wait()
        except OSError as error:
            raise SimulatorError(
                f"{self.called}: {total:,} bytes of memory can't be shared ({error.strerror or error})"
            ) from error
        finally:
            os.close(file)
            os.unlink(path)
        return {
            name: np.frombuffer(memory, dtype, int(np.prod(shape)), offset).reshape(shape)
            for name, (offset, dtype, shape) in places.items()
        }

    def _ask(self, command: bytes) -> None:
        """One command for all processes, which work side by side."""
        for one in self._processes:
            one.begin(command)
        for one in self._processes:
            one.wait()

    def _observations(self, where: str) -> Any:
        if self._named:
            return {key: self._arrays[f"{where}/{key}"].copy() for key in _boxes(self.single_observation_space)}
        return self._arrays[f"{where}/"].copy()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Begin new episodes in all rows, or in those of `options["reset_mask"]`."""
        mask = reset_mask(options, self.num_envs)
        if mask is not None and not mask.any():
            raise ConfigError("reset_mask selects no row: leave the call out")
        if mask is not None and not self._began and not mask.all():
            raise EnvironmentMismatchError(f"{self.called}: the first reset is of all rows; leave reset_mask out")
        self._arrays["marked"][:] = 1 if mask is None else mask
        self._arrays["seeds"][:] = [-1 if one is None else one for one in row_seeds(seed, self.num_envs)]
        self._ask(server.RESET)
        self._began = True
        return self.give(self._observations("obs")), {}

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step of every row: (N, ...) observations, (N,) rewards, terminations, truncations, and info.

        Raises:
            SimulatorError: the environment fails, its process has ended, or it does not answer in time.
        """
        if not self._began:
            raise EnvironmentMismatchError("step was called before the first reset: call reset first")
        self.check_actions(actions)
        arrays = self._arrays
        arrays["actions"][...] = as_numpy(actions)
        self._ask(server.STEP)
        flags = arrays["flags"]
        terminations, truncations = (flags & server.TERMINATED) != 0, (flags & server.TRUNCATED) != 0
        observations, info = self._observations("obs"), self._info()
        ended = terminations | truncations
        if ended.any():
            final = self._observations("final")
            for key in _boxes(self.single_observation_space):
                rows, last = (observations[key], final[key]) if self._named else (observations, final)
                last[~ended] = rows[~ended]
            info |= {"final_obs": final, "_final_obs": ended}
        numbers = (observations, arrays["rewards"].copy(), terminations, truncations)
        return *(self.give(value) for value in numbers), self.give_info(info)  # type: ignore[return-value]

    def _info(self) -> dict[str, Any]:
        """Costs and margins of the step, in every step or in none, and successes."""
        missing = {name: np.isnan(self._arrays[name]) for name in server.EXTRAS}
        if self._given is None:
            self._given = {name for name in server.EXTRAS if not missing[name].all()}
        self._given |= {name for name in SUCCESS if not missing[name].all()}  # many say it at an episode's end alone
        info: dict[str, Any] = {}
        for name in sorted(self._given):
            values = self._arrays[name]
            if name in SUCCESS:
                info[name] = ~missing[name] & (values != 0)
                continue
            if missing[name].any():
                row = int(np.flatnonzero(missing[name])[0])
                raise EnvironmentMismatchError(
                    f"{self.called}: the first step has a {name}, and a later step of row {row} has none, or NaN; give "
                    "it in every step"
                )
            info[name] = values.astype(np.float32)
        return info | self._more()

    def _more(self) -> dict[str, Array]:
        """Other numbers of the infos, name -> (N,) float64; NaN in a row that does not say it."""
        found: dict[str, Array] = {}
        for one, (begin, end) in zip(self._processes, self._ranges, strict=True):
            if self._arrays["names"][begin] != len(one.names):  # it has met another
                one.begin(server.NAMES)
                one.names = one.answer()["names"]
            for slot, name in enumerate(one.names):
                if name not in found:
                    found[name] = np.full(self.num_envs, np.nan)
                found[name][begin:end] = self._arrays["more"][begin:end, slot]
        return found

    def close_extras(self, **unused: Any) -> None:
        """End the processes."""
        self._end()


class _Process:
    """One process of another python: the pipes to it, and what it says on its standard error."""

    def __init__(self, python: str, called: str, wanted: Mapping[str, Any], patience: float) -> None:
        self.called, self.patience, self.closed = called, patience, False
        self.names: list[str] = []
        """Of the numbers of its infos that are handed on beside those that surefoot reads."""
        try:
            text = json.dumps(wanted, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{called}: its arguments must be JSON values ({error})") from error
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")}
        life, self.life = os.pipe()  # the other process ends when this one does: no one writes to it
        try:
            self.child = subprocess.Popen(
                [python, "-u", str(SERVER), str(life)],
                pass_fds=(life,),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            os.close(self.life)
            raise ConfigError(f"{called}: {python} can't be started ({error.strerror or error})") from error
        finally:
            os.close(life)
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.out, self.into = self.child.stdin.fileno(), self.child.stdout.fileno()
        os.set_blocking(self.into, False)
        self.poll = select.poll()
        self.poll.register(self.into, select.POLLIN)
        self.lines: collections.deque[str] = collections.deque(maxlen=LINES)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self._write(text.encode() + b"\n")

    def _read(self) -> None:
        assert self.child.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self.child.stderr:
                self.lines.append(line.decode(errors="replace").rstrip()[:500])

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self.out, data) :]
        except OSError as error:
            raise self._gone() from error

    def send(self, value: Any) -> None:
        """A line of JSON."""
        self._write(json.dumps(value).encode() + b"\n")

    def begin(self, command: bytes) -> None:
        """Let it compute; `wait` hears that it has."""
        if self.closed:
            raise SimulatorError(f"{self.called}: is closed")
        self._write(command)

    def _take(self, count: int) -> bytes:
        found = b""
        until = time.monotonic() + self.patience
        while len(found) < count:
            if not self.poll.poll(max(0.0, until - time.monotonic()) * 1000):
                self.end()
                raise SimulatorError(
                    f"{self.called}: did not answer within {self.patience:g} s (env_options.patience) and was ended"
                    f"{self._words()}"
                )
            part = os.read(self.into, count - len(found))
            if not part:
                raise self._gone()
            found += part
        return found

    def answer(self) -> dict[str, Any]:
        """The JSON that it sends.

        Raises:
            EnvironmentMismatchError: it is an error.
        """
        found: dict[str, Any] = json.loads(self._take(int.from_bytes(self._take(4), "little")))
        if "error" in found:
            trace = "\n" + found["trace"].rstrip() if found["trace"] else ""
            raise EnvironmentMismatchError(f"{self.called}: {found['error']} (in the other python){trace}")
        return found

    def wait(self) -> None:
        """Until it has done what `begin` asked for.

        Raises:
            SimulatorError: the environment failed, or the process is gone.
        """
        if (server.soon(self.into, server.AWAKE) or self._take(1)) == server.FAILED:
            try:
                self.answer()
            except EnvironmentMismatchError as error:
                raise SimulatorError(str(error)) from None

    def _gone(self) -> SimulatorError:
        """What to raise where the process has ended."""
        self.end()
        code = self.child.returncode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return SimulatorError(f"{self.called}: its process ended {how}{self._words()}")

    def _words(self) -> str:
        self.reader.join(1.0)
        return "" if not self.lines else "; its last output:\n" + "\n".join(f"  {line}" for line in self.lines)

    def end(self) -> None:
        """Ask it to close, and end it where it does not."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(OSError):
            os.write(self.out, server.CLOSE)
        for act in (lambda: None, self.child.terminate, self.child.kill):
            act()
            try:
                self.child.wait(2.0)
                break
            except subprocess.TimeoutExpired:
                continue
        os.close(self.life)
        for stream in (self.child.stdin, self.child.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def _end(processes: Sequence[_Process]) -> None:
    for one in processes:
        one.end()


def executable(python: str) -> str:
    """The path of a python.

    Raises:
        ConfigError: there is none.
    """
    found = shutil.which(str(pathlib.Path(python).expanduser()))
    if found is None:
        raise ConfigError(
            f"other:{python}: there is no such program; give the path of a python, as /opt/old/bin/python"
        )
    return found


def space_of(described: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """The space that the other python described.

    Raises:
        EnvironmentMismatchError: none that is read.
    """
    kind = described.get("kind")
    if kind == "Box":
        shape, dtype = tuple(described["shape"]), np.dtype(described["dtype"])
        low, high = (
            np.broadcast_to(np.reshape(described[k], shape if isinstance(described[k], list) else ()), shape)
            for k in ("low", "high")
        )
        return gymnasium.spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
    if kind == "Discrete":
        return gymnasium.spaces.Discrete(int(described["n"]), start=int(described["start"]))
    if kind == "Dict" and all(one["kind"] == "Box" for one in described["spaces"].values()):
        return gymnasium.spaces.Dict({key: space_of(one) for key, one in described["spaces"].items()})
    raise EnvironmentMismatchError(f"a space of kind {kind} is not read; Box, Discrete and Dict of Boxes are")


def _boxes(space: gymnasium.Space[Any]) -> dict[str, gymnasium.Space[Any]]:
    """The arrays of an observation by their keys; "" where there is one."""
    return dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {"": space}
