"""What runs in the other python: environments behind two pipes and one block of shared memory. Needs numpy alone.

Python 3.8 or newer; imports nothing of surefoot. The first line on the standard input is JSON and says what to make;
the answer, and every error, is JSON too. After that a byte is a command, and numbers go through the shared memory.

Steps of four values (`done`; gym before 0.26), of five, and of six (with a cost, as Safety-Gymnasium) are read, resets
with and without an info, and seeds by `reset(seed=)` or `seed()`.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import platform
import signal
import sys
import threading
import time
import traceback
from typing import Any

RESET, STEP, NAMES, CLOSE, DONE, FAILED = b"R", b"S", b"N", b"C", b".", b"!"
TERMINATED, TRUNCATED = 1, 2
EXTRAS = ("cost", "margin", "success", "is_success")
"""Entries of a step's info that surefoot reads, where they are numbers."""
MOST = 32
"""Other numbers of an info that are handed on, the first ones that are met."""
TAKEN = ("valid", "diverged", "steps", "final_obs", "final_info", "TimeLimit.truncated")
"""Names that mean something else to surefoot."""


AWAKE = 2e-4
"""Seconds that either side looks for the other's byte before it sleeps: to be woken takes longer than most steps."""


class RefusedError(Exception):
    """An error that is a sentence already."""


def soon(file: int, seconds: float) -> bytes | None:
    """A byte of a pipe that does not block, b"" where the other side is gone; None where none comes in time."""
    until = time.perf_counter() + seconds
    while True:
        try:
            return os.read(file, 1)
        except BlockingIOError:
            if time.perf_counter() > until:
                return None
            os.sched_yield()


class Pipe:
    """The two pipes to the process that started this one; what an environment prints goes to the standard error."""

    def __init__(self) -> None:
        self.inward, self.outward = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)

    def line(self) -> bytes | None:
        """One line, or None where the other side is gone."""
        found = b""
        while not found.endswith(b"\n"):
            part = os.read(self.inward, 1)
            if not part:
                return None
            found += part
        return found

    def command(self) -> bytes:
        """The next command; b"" where the other side is gone."""
        found = soon(self.inward, AWAKE)
        if found is None:
            os.set_blocking(self.inward, True)
            found = os.read(self.inward, 1)
            os.set_blocking(self.inward, False)
        return found

    def send(self, value: Any) -> None:
        """JSON with its length before it."""
        text = json.dumps(value).encode()
        data = len(text).to_bytes(4, "little") + text
        while data:
            data = data[os.write(self.outward, data) :]


def described(space: Any, np: Any) -> dict[str, Any]:
    """A space as JSON; the two gyms have classes of the same names."""
    kind = type(space).__name__
    if kind == "Box":
        low, high = np.asarray(space.low, dtype=np.float64), np.asarray(space.high, dtype=np.float64)
        return {
            "kind": "Box",
            "shape": [int(n) for n in space.shape],
            "dtype": np.dtype(space.dtype).name,
            "low": bounds(low),
            "high": bounds(high),
        }
    if kind == "Discrete":
        return {"kind": "Discrete", "n": int(space.n), "start": int(getattr(space, "start", 0))}
    if kind == "Dict":
        return {"kind": "Dict", "spaces": {str(key): described(one, np) for key, one in space.spaces.items()}}
    raise RefusedError("a space of kind " + kind + " is not read; Box, Discrete and Dict of Boxes are")


def bounds(values: Any) -> Any:
    """All numbers, or one where they are equal."""
    return float(values.flat[0]) if values.size and (values == values.flat[0]).all() else values.ravel().tolist()


def one_of(module_name: str, name: str, options: dict[str, Any]) -> Any:
    """One environment of a module: what it calls `name`, what its own `make` makes, or an id of either gym."""
    module = importlib.import_module(module_name)
    found: Any = module
    for part in name.split(".") if all(part.isidentifier() for part in name.split(".")) else ():
        found = getattr(found, part, None)
    if found is not module and callable(found):
        return found(**options)
    tried = []
    for maker in (module_name, "gymnasium", "gym"):
        try:
            make = importlib.import_module(maker).make
        except (ImportError, AttributeError) as error:
            tried.append(maker + ": " + str(error))
            continue
        try:
            return make(name, **options)
        except Exception as error:  # of either gym: an id that is not registered has another class in each
            unknown = type(error).__name__ in ("NameNotFound", "NamespaceNotFound", "VersionNotFound", "Unregistered")
            if not (unknown or type(error).__name__ in ("UnregisteredEnv", "Error", "KeyError")):
                raise
            tried.append(maker + ".make: " + (str(error).strip().splitlines() or [type(error).__name__])[0])
    names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    raise RefusedError(
        "the module " + module_name + " has nothing called " + name + " that makes an environment, and no gym knows "
        "the id (" + "; ".join(tried) + "). It has: " + (", ".join(sorted(names)[:20]) or "nothing")
    )


def limit_of(env: Any) -> int | None:
    """The time limit that an environment has, or None."""
    spec = getattr(env, "spec", None)
    found = getattr(spec, "max_episode_steps", None)
    around = env
    while found is None and around is not None:
        found = getattr(around, "_max_episode_steps", None)
        around = around.__dict__.get("env") if hasattr(around, "__dict__") else None
    return None if found is None else int(found)


class Row:
    """One environment, in either form of the interface."""

    def __init__(self, env: Any, limit: int | None, np: Any) -> None:
        self.env, self.limit, self.np = env, limit, np
        self.steps = 0
        self.by_argument: bool | None = None
        self.discrete = type(env.action_space).__name__ == "Discrete"

    def reset(self, seed: int | None) -> Any:
        """The first observation of an episode."""
        self.steps = 0
        if seed is not None and self.by_argument is not False:
            try:
                found = self.env.reset(seed=seed)
                self.by_argument = True
                return self.observation(found)
            except TypeError:
                if self.by_argument:
                    raise
                self.by_argument = False
        if seed is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)
            if hasattr(self.env.action_space, "seed"):
                self.env.action_space.seed(seed)
        return self.observation(self.env.reset())

    @staticmethod
    def observation(found: Any) -> Any:
        """Without the info of newer gyms."""
        return found[0] if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict) else found

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, float], dict[str, Any]]:
        """Observation, reward, whether it terminated and was truncated, {name: number} of the extras, and the info."""
        result = self.env.step(int(action) if self.discrete else self.np.array(action))
        if not isinstance(result, tuple) or len(result) not in (4, 5, 6):
            raise RefusedError("step gave " + type(result).__name__ + ", not a tuple of 4, 5 or 6 values")
        self.steps += 1
        cost = None
        if len(result) == 4:
            observation, reward, done, info = result
            truncated = bool(info.get("TimeLimit.truncated", False))
            terminated = bool(done) and not truncated
        elif len(result) == 5:
            observation, reward, terminated, truncated, info = result
        else:
            observation, reward, cost, terminated, truncated, info = result
        extras: dict[str, float] = {}
        info = info if isinstance(info, dict) else {}
        for name in EXTRAS:
            value = info.get(name)
            if value is not None and self.np.ndim(value) == 0:
                extras[name] = float(value)
        if cost is not None:
            extras["cost"] = float(cost)
        if self.limit is not None and self.steps >= self.limit and not terminated:
            truncated = True
        return observation, float(reward), bool(terminated), bool(truncated), extras, info


class Server:
    """The environments of one process, and its part of the shared memory."""

    def __init__(self, wanted: dict[str, Any], np: Any) -> None:
        self.np = np
        options = dict(wanted["options"])
        made = [one_of(wanted["module"], wanted["name"], options) for _ in range(wanted["rows"])]
        limit = wanted["limit"]
        self.rows = [Row(env, limit, np) for env in made]
        first = made[0]
        self.about = {
            "observations": described(first.observation_space, np),
            "actions": described(first.action_space, np),
            "limit": limit if limit is not None else limit_of(first),
            "python": platform.python_version(),
            "type": type(getattr(first, "unwrapped", first)).__name__,
        }

    def map(self, memory: dict[str, Any]) -> None:
        """Arrays of the shared memory, by name; the file is removed by the other side."""
        file = os.open(memory["path"], os.O_RDWR)
        self.memory = mmap.mmap(file, memory["bytes"])
        os.close(file)
        begin, end = memory["rows"]
        self.arrays: dict[str, Any] = {}
        for name, (offset, dtype, shape) in memory["arrays"].items():
            count = 1
            for n in shape:
                count *= n
            whole = self.np.frombuffer(self.memory, dtype=dtype, count=count, offset=offset).reshape(shape)
            self.arrays[name] = whole[begin:end]
        self.parts = sorted(name[4:] for name in self.arrays if name.startswith("obs/"))
        self.single = self.parts == [""]
        self.slots: dict[str, int] = {}
        self.numbers = (bool, int, float, self.np.number, self.np.bool_)
        self.arrays["more"][:] = self.np.nan

    def write(self, where: str, row: int, observation: Any) -> None:
        """Put an observation into its row, or say what does not fit."""
        for part in self.parts:
            value = observation if self.single else observation[part]
            place = self.arrays[where + "/" + part][row]
            value = self.np.asarray(value)
            if value.shape != place.shape:
                what = "an observation" if self.single else "the observation " + repr(part)
                raise RefusedError(
                    what + " has shape " + str(tuple(value.shape)) + ", and its space says " + str(tuple(place.shape))
                )
            place[...] = value

    def reset(self) -> None:
        """Begin the marked rows anew."""
        arrays = self.arrays
        for number in self.np.flatnonzero(arrays["marked"]):
            seed = int(arrays["seeds"][number])
            self.write("obs", number, self.rows[number].reset(None if seed < 0 else seed))

    def step(self) -> None:
        """A step of every row; where an episode ends, the next one begins."""
        arrays = self.arrays
        for number, row in enumerate(self.rows):
            observation, reward, terminated, truncated, extras, info = row.step(arrays["actions"][number])
            arrays["rewards"][number] = reward
            arrays["flags"][number] = TERMINATED * terminated + TRUNCATED * truncated
            for name in EXTRAS:
                arrays[name][number] = extras.get(name, self.np.nan)
            self.more(number, info)
            if terminated or truncated:
                self.write("final", number, observation)
                observation = row.reset(None)
            self.write("obs", number, observation)

    def more(self, row: int, info: dict[str, Any]) -> None:
        """The other numbers of an info into their places, which their names get as they are met."""
        values = self.arrays["more"][row]
        if self.slots:
            values[:] = self.np.nan
        for name, value in info.items():
            if not isinstance(value, self.numbers):
                continue
            slot = self.slots.get(name)
            if slot is None:
                if name in EXTRAS or name in TAKEN or not isinstance(name, str) or len(self.slots) == MOST:
                    continue
                slot = self.slots[name] = len(self.slots)
                self.arrays["names"][0] = len(self.slots)
            values[slot] = value


def failure(error: BaseException) -> dict[str, str]:
    """What went wrong, in a line, and where."""
    if isinstance(error, RefusedError):
        return {"error": str(error), "trace": ""}
    line = (str(error).strip().splitlines() or ["no message"])[0]
    return {"error": type(error).__name__ + ": " + line, "trace": traceback.format_exc()[-4000:]}


def end_with(life: int) -> None:
    """End this process where the one that started it ends, also while an environment computes.

    Args:
        life: a pipe whose other end that process holds, and no one writes to.
    """

    def wait() -> None:
        os.read(life, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Make what is asked for, then serve commands until the other side is gone."""
    pipe = Pipe()
    end_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    line = pipe.line()
    if line is None:
        return
    wanted = json.loads(line.decode())
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))] + wanted["path"]
    try:
        import numpy as np

        server = Server(wanted, np)
    except BaseException as error:  # whatever it is, the other side shall hear it
        pipe.send(failure(error))
        return
    pipe.send(server.about)
    line = pipe.line()
    if line is None:
        return
    server.map(json.loads(line.decode()))
    os.write(pipe.outward, DONE)
    os.set_blocking(pipe.inward, False)
    acts = {RESET: server.reset, STEP: server.step}
    while True:
        command = pipe.command()
        if command == NAMES:
            pipe.send({"names": list(server.slots)})
            continue
        if command not in acts:
            for row in server.rows:
                if hasattr(row.env, "close"):
                    row.env.close()
            return
        try:
            acts[command]()
        except BaseException as error:
            os.write(pipe.outward, FAILED)
            pipe.send(failure(error))
        else:
            os.write(pipe.outward, DONE)


if __name__ == "__main__":
    main()
