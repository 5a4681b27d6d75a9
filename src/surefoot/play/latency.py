"""How long one action of a policy takes: in python, in onnxruntime, and as the C++ header that it exports to."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from surefoot.core.actors.goal_actor import GoalActor
from surefoot.core.actors.memory import GOAL, TASK
from surefoot.core.actors.task_actor import TaskActor
from surefoot.core.base.errors import ExportError, MissingExtraError
from surefoot.core.base.spec import VECTOR, mapped
from surefoot.core.base.threads import one_torch_thread
from surefoot.core.policy import cpp
from surefoot.core.policy.policy import Policy

Array = np.ndarray[Any, Any]

ROWS, IMAGES = 1000, 100
"""Observations that are gone through in turn: vectors, or images and other arrays."""
WARMING = 200
SECONDS = 120.0
"""That a compiler may take."""
PROGRAM = r"""
#include "policy.hpp"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

int main(int, char** argument) {
  const int rows = std::atoi(argument[2]), calls = std::atoi(argument[3]);
  std::vector<float> seen(static_cast<std::size_t>(rows) * policy::observation_size);
  FILE* file = std::fopen(argument[1], "rb");
  if (!file || std::fread(seen.data(), sizeof(float), seen.size(), file) != seen.size()) return 1;
  std::fclose(file);
  static policy::Policy one;
  @AIM@
  float action[policy::action_size] = {0};
  std::vector<double> taken;
  for (int call = -@WARMING@; call < calls; ++call) {
    const float* observation = &seen[static_cast<std::size_t>((call + rows) % rows) * policy::observation_size];
    const auto start = std::chrono::steady_clock::now();
    @CALL@;
    const auto stop = std::chrono::steady_clock::now();
    if (call >= 0) taken.push_back(std::chrono::duration<double, std::micro>(stop - start).count());
  }
  std::sort(taken.begin(), taken.end());
  one.reset();
  @AIM@
  @FIRST@;
  std::printf("%.9g %.9g", taken[taken.size() / 2], taken[taken.size() * 99 / 100]);
  for (float value : action) std::printf(" %.9g", value);
  return 0;
}
"""
CALLS = {
    False: ("if (!one.act(observation, action)) return 2", "if (!one.act(&seen[0], action)) return 2"),
    True: ("action[0] = one.choose(observation)", "action[0] = one.choose(&seen[0])"),
}
"""By whether the policy chooses among numbers."""


def compiler() -> str | None:
    """The C++ compiler: what CXX names, or c++, g++ or clang++; None where there is none."""
    wanted = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    return next((found for name in wanted if name and (found := shutil.which(name))), None)


def measure(policy: Policy, calls: int = 20_000, seed: int = 0) -> list[dict[str, Any]]:
    """One row for each way of acting: `way`, median and 99 % of single calls in `microseconds` and `p99`, or a `note`.

    Observations are drawn around the normaliser's mean, the pixels of images uniformly. One thread; the first calls are
    not counted.

    Raises:
        ExportError: the compiled header acts otherwise than the policy does.
    """
    if policy.encoder is None:
        rows = policy.normalizer.inverse(torch.from_numpy(_normal(ROWS, policy.observation_dim, seed))).numpy()
    else:
        rows = _of_arrays(policy, seed)
    with one_torch_thread():
        return [
            {"way": "python (select_action)", **_timed(_python(policy), rows, calls)},
            {"way": "torch", **_timed(_torch(policy), rows, max(200, calls // 10))},
            {"way": "onnxruntime", **_onnxruntime(policy, rows, calls)},
            {"way": "C++ header", **_cpp(policy, rows, calls)},
        ]


def _normal(rows: int, width: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def _of_arrays(policy: Policy, seed: int) -> Any:
    """`IMAGES` observations of a policy that reads images or several arrays, each a mapping by name."""
    generator = np.random.default_rng(seed)

    def drawn(shape: tuple[int, ...], kind: str) -> Array:
        whole = np.issubdtype(np.dtype(kind), np.integer)
        return (generator.integers(0, 256, shape) if whole else generator.standard_normal(shape)).astype(kind)

    return [{key: drawn(one.shape, one.dtype) for key, one in policy.arrays.items()} for _ in range(IMAGES)]


def aims(policy: Policy, seed: int = 0) -> dict[str, Any]:
    """A goal or a task, as `Policy.reset` takes it, of a policy that needs one and has none of its own.

    A goal is drawn around its normaliser's mean, a task uniformly among directions.
    """
    found, memory = dict[str, Any](), policy.begin(1)
    for name, kind in ((GOAL, GoalActor), (TASK, TaskActor)):
        if name in memory and bool(memory[name].isnan().any()):
            drawn = _normal(1, memory[name].shape[1], seed)
            part: Any = next(part for part in policy.actor.modules() if isinstance(part, kind))
            found[name] = (part.normalizer.inverse(torch.from_numpy(drawn)).numpy() if name == GOAL else drawn)[0]
    return found


def _python(policy: Policy) -> Callable[[Any], Any]:
    policy.reset(**aims(policy))
    return policy.select_action


def _torch(policy: Policy) -> Callable[[Any], Any]:
    memory = policy.begin(1)
    memory |= {name: torch.from_numpy(value)[None] for name, value in aims(policy).items()}

    def act(row: Any) -> Any:
        nonlocal memory
        action, memory = policy.act(mapped(lambda values: torch.from_numpy(values)[None], row), memory)
        return action

    return act


def _timed(act: Callable[[Any], Any], rows: Any, calls: int) -> dict[str, float]:
    taken = np.empty(WARMING + calls)
    for call in range(len(taken)):
        row = rows[call % len(rows)]
        start = time.perf_counter_ns()
        act(row)
        taken[call] = time.perf_counter_ns() - start
    taken = taken[WARMING:]
    return {"microseconds": float(np.median(taken)) / 1000, "p99": float(np.percentile(taken, 99)) / 1000}


def _onnxruntime(policy: Policy, rows: Any, calls: int) -> dict[str, Any]:
    """The exported file, without the checks that `select_action` makes; of memories and noise zeros."""
    try:
        import onnxruntime
    except ImportError:
        return {"note": "not installed: pip install 'surefoot[onnx]'"}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "policy.onnx"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the exporter's own, about torch's internals
                policy.export(path)
        except MissingExtraError as error:
            return {"note": str(error)}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        kinds = {"tensor(bool)": np.bool_, "tensor(uint8)": np.uint8}
        given = {
            one.name: np.zeros((1, *one.shape[1:]), kinds.get(one.type, np.float32))
            for one in session.get_inputs()
            if one.name not in policy.arrays
        }

        def act(row: Any) -> Any:
            named = row if policy.encoder is not None else {VECTOR: row}
            return session.run(None, {**{name: values[None] for name, values in named.items()}, **given})

        return _timed(act, rows, calls)


def _cpp(policy: Policy, rows: Any, calls: int) -> dict[str, Any]:
    """The exported header, compiled here; its first action is compared with the policy's."""
    found = compiler()
    try:
        text = cpp.header(policy)
    except ExportError as error:
        return {"note": str(error)}
    if found is None:
        return {"note": "there is no C++ compiler (c++, g++, clang++); CXX names another"}
    every, first = CALLS[policy.discrete]
    aim = aims(policy)
    numbers = ", ".join(f"{float(value):.9g}" for value in aim.get(GOAL, ()))
    reported = f"const float goal[] = {{{numbers}}}; one.set_goal(goal)" if numbers else ""
    program = PROGRAM.replace("@WARMING@", str(WARMING)).replace("@CALL@", every).replace("@FIRST@", first)
    program = program.replace("@AIM@", f"{{ {reported}; }}" if reported else "")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        (place / "policy.hpp").write_text(text)
        (place / "main.cpp").write_text("#include <cstdlib>\n" + program)
        rows.tofile(place / "rows")
        flags = ["-std=c++11", "-O3", "-march=native"]
        try:
            made = [found, *flags, "-o", str(place / "main"), str(place / "main.cpp")]
            subprocess.run(made, check=True, capture_output=True, text=True, timeout=SECONDS)
            command = [str(place / "main"), str(place / "rows"), str(len(rows)), str(calls)]
            output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS).stdout
        except subprocess.SubprocessError as error:
            stated = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            return {"note": f"{pathlib.Path(found).name} failed: {stated[0] if stated else error}"}
    median, high, *action = map(float, output.split())
    policy.reset(**aim)
    expected = np.atleast_1d(policy.select_action(rows[0])).astype(np.float64)
    difference = float(np.abs(np.asarray(action)[: len(expected)] - expected).max())
    reach = 1.0 if policy.discrete else float((policy.action_high - policy.action_low).max())
    if difference > 1e-5 * max(1.0, reach):
        raise ExportError(f"the compiled header's action differs by {difference:.2g} from the policy's")
    return {"microseconds": median, "p99": high, "difference": difference}
