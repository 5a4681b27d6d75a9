"""What a training run passes through, counted by running it: `python tools/walk.py [--list]`.

Prints in how many of our files a function runs during `surefoot train algo=iql` of 20 steps, in the command's process
and in its worker, and how many of our functions a dataset enters, or is returned by, on its way from `surefoot.fit` to
the Learner. Functions that are called count; what a module does while it is imported does not.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import importlib.util
import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from types import FrameType
from typing import Any

FOLDER = "SUREFOOT_WALK"
"""Environment variable: where each python process of the run writes what it called."""
STEPS = 20
DATASET = "native/quadrotor-2d-mixed"
MOST_FILES, MOST_STOPS = 65, 25
"""What is wanted: at most so many."""
COMMAND = ["-m", "surefoot", "train", "algo=iql", f"steps={STEPS}", "seeds=1", f"dataset={DATASET}", "--quiet"]
SCRIPT = f"""
import surefoot
from surefoot.runs.embedded import load
dataset = load({DATASET!r})
agent = surefoot.offline.IQL(dataset)
surefoot.fit(agent, dataset, steps={STEPS}, seeds=1, out="run", progress=False)
"""
OPENING = {"fit", "seed_trainer"}
"""Functions with which a dataset's way begins, in a script's process and in a worker's."""
CLOSING = {"work", "Learner.__init__"}
"""Functions with which it ends there: workers read it from a file."""

Place = tuple[str, str]
"""A file, from surefoot's folder on, and a function in it."""


class Record:
    """The functions of ours that this process calls."""

    def __init__(self, root: pathlib.Path) -> None:
        """Begin with none; `root` is the folder of the package."""
        self._root = f"{root}{os.sep}"
        self._called: dict[Place, int] = collections.Counter()
        self._stops: dict[Place, None] = {}  # a set that keeps the order
        self._under_way = False
        self._importing: dict[int, int] = collections.Counter()  # thread -> bodies of modules and classes that run

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Note a call or a return, as `sys.setprofile` gives them."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self._root):
            return
        thread = threading.get_ident()
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or a class; the main one imports nothing
            if frame.f_globals.get("__name__") == "__main__":
                return
            self._importing[thread] += 1 if event == "call" else -1
            return
        if self._importing[thread] or code.co_name.startswith("<"):  # comprehensions and lambdas are part of a function
            return
        place = code.co_filename.removeprefix(self._root), code.co_qualname.replace(".<locals>", "")
        if event == "call":
            self._called[place] += 1
            if code.co_name in OPENING:
                self._under_way = True
        if self._under_way and (place[1] in CLOSING or _has_dataset(frame, event, value)):
            self._stops[place] = None
        if place[1] in CLOSING:
            self._under_way = False

    def write(self, folder: pathlib.Path) -> None:
        """Keep what was noted, as JSON."""
        sys.setprofile(None)
        content = {"called": [[*place, times] for place, times in self._called.items()], "stops": list(self._stops)}
        (folder / f"{os.getpid()}.json").write_text(json.dumps(content), encoding="utf-8")


def _has_dataset(frame: FrameType, event: str, value: Any) -> bool:
    """Whether a dataset is among the arguments of a call, or is what is returned; its own methods don't move it."""
    kind = getattr(sys.modules.get("surefoot.data.dataset"), "Dataset", None)
    if kind is None:
        return False
    given = frame.f_locals
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if names[:1] in (("self",), ("cls",)) and (isinstance(given.get(names[0]), kind) or given.get(names[0]) is kind):
        return False
    return isinstance(value, kind) if event == "return" else any(isinstance(given.get(name), kind) for name in names)


def record() -> None:
    """Note what this process calls from here on; a worker ends by `os._exit`, which is heard too."""
    spec = importlib.util.find_spec("surefoot")
    assert spec is not None
    assert spec.origin is not None
    noted, folder, leave = Record(pathlib.Path(spec.origin).parent), pathlib.Path(os.environ[FOLDER]), os._exit

    def leave_noted(code: int) -> None:
        noted.write(folder)
        leave(code)

    os._exit = leave_noted  # type: ignore[assignment]
    atexit.register(noted.write, folder)
    threading.setprofile(noted)
    sys.setprofile(noted)


def walked(arguments: list[str]) -> tuple[dict[Place, int], dict[Place, None]]:
    """(calls of our functions, stops of a dataset) of a python command and the processes that it starts."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        here = str(pathlib.Path(__file__).parent)
        begin = f"import sys\nsys.path.insert(0, {here!r})\nimport walk\nsys.path.pop(0)\nwalk.record()\n"
        (folder / "sitecustomize.py").write_text(begin, encoding="utf-8")
        (folder / "noted").mkdir()
        path = os.pathsep.join(filter(None, [name, os.environ.get("PYTHONPATH")]))
        variables = {**os.environ, "PYTHONPATH": path, FOLDER: str(folder / "noted")}
        subprocess.run([sys.executable, *arguments], cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)
        called: dict[Place, int] = collections.Counter()
        stops: dict[Place, None] = {}
        files = sorted((folder / "noted").iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
        assert len(files) > 1  # the worker has written before its parent, but is behind it on the way
        for file in files:
            content = json.loads(file.read_text(encoding="utf-8"))
            for path, function, times in content["called"]:
                called[path, function] += times
            stops |= {(path, function): None for path, function in content["stops"]}
    return called, stops


def main() -> None:
    """Walk, and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the files and the stops too")
    listed = parser.parse_args().list
    made = f"from surefoot.runs.embedded import load; load({DATASET!r})"  # once, and kept for the next time
    subprocess.run([sys.executable, "-c", made], check=True)
    called, _ = walked(COMMAND)
    _, stops = walked(["-c", SCRIPT])
    per_file = collections.Counter(path for path, _ in called)
    if listed:
        print("\n".join(f"{path}: {count} functions" for path, count in sorted(per_file.items())))
        print("\n".join(f"stop {number}: {place[0]} {place[1]}" for number, place in enumerate(stops, 1)))
    print(f"surefoot train algo=iql, {STEPS} steps: functions of {len(per_file)} of our files ran "
          f"(wanted: at most {MOST_FILES}), {len(called)} functions, {called.total()} calls")  # fmt: skip
    print(f"a dataset makes {len(stops)} stops from fit to the Learner (wanted: at most {MOST_STOPS})")


if __name__ == "__main__":
    main()
