"""The checks for a GPU's machine, rehearsed without one: their tasks, their order in time, and what they predict."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools" / "gpu"
sys.path.append(str(TOOLS))

import check  # noqa: E402
import first_contact  # noqa: E402
import part  # noqa: E402
import predict  # noqa: E402
import real_data  # noqa: E402
from measuring import Bench, read_rows  # noqa: E402

from surefoot.cuda_ext import native  # noqa: E402

NATIVE = ("small", "rollouts", "planners")
QUICK = ("facts", "sanitizer", "jax_rollouts", "jax_learners", "ppo", "ncu", "compiled", *NATIVE)
"""Tasks that take a second or so in a rehearsal; those of the native module last."""


def bench(tmp_path: pathlib.Path, task: str = "made", **more: Any) -> Bench:
    return Bench(task, "cpu", tmp_path, **more)


@pytest.mark.parametrize("name", QUICK)
def test_a_rehearsed_task_ends_with_rows_that_are_no_errors(name: str, tmp_path: pathlib.Path) -> None:
    if name in NATIVE and native() is None:
        pytest.skip("the native module is not built")
    task = check.TASKS[name]
    task.function(bench(tmp_path, task.rows or name))
    rows = read_rows(tmp_path / "rows.jsonl")
    assert rows
    assert [row["error"] for row in rows if "error" in row] == []
    assert all(row["value"] is not None or row["unit"].startswith("needs") or "packages" in row for row in rows)


@pytest.mark.skipif(native() is None, reason="the native module is not built")
def test_a_rollout_is_compared_with_the_processors(tmp_path: pathlib.Path) -> None:
    first_contact._beside_processor(bench(tmp_path), "pendulum", 50)
    (row,) = read_rows(tmp_path / "rows.jsonl")
    assert (row["name"], row["value"]) == ("rollout pendulum 50", 0.0)


def test_what_a_task_raises_is_a_row_and_it_continues(tmp_path: pathlib.Path) -> None:
    made = bench(tmp_path, done=frozenset({"made/old"}))
    made.attempt("wrong", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    made.attempt("old", lambda: made.row("old", 1.0))
    made.attempt("right", lambda: made.row("right: a part", 2.0, "steps/s"))
    wrong, right = read_rows(tmp_path / "rows.jsonl")
    assert wrong["error"].startswith("ZeroDivisionError")
    assert "test_gpu_tools" in wrong["where"]
    assert right["value"] == 2.0
    assert check.done_names(tmp_path / "rows.jsonl") == {"made/right"}
    lines = check.table([wrong, right], {"made/right: a part": 4.0})
    assert "FAILED ZeroDivisionError" in lines[1]
    assert re.search(r"2 +4 +0\.50 steps/s", lines[2])


def test_a_stage_without_time_says_so_of_each_task_and_fails(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, str(TOOLS / "check.py"), "--stage", "2", "--device", "cpu", "--seconds", "1"]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    rows = read_rows(tmp_path / "rows.jsonl")
    assert [row["task"] for row in rows] == list(check.STAGES[2])
    assert {row["error"] for row in rows} == {"no time was left"}


def test_a_task_whose_time_is_over_is_ended_and_one_may_run_beside_another(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick, beside = (check.Task(lambda _: None, seconds) for seconds in (2.0, 30.0, 30.0))
    tasks = {"first": slow, "second": quick, "third": check.Task(beside.function, 30.0, beside="second")}
    monkeypatch.setattr(check, "STAGES", {1: tasks})
    started: list[tuple[str, list[str]]] = []
    programs = {"first": "import time; time.sleep(60)", "second": "import time; time.sleep(1)", "third": "exit(3)"}

    def start(self: Any, name: str, seconds: float) -> Any:
        started.append((name, list(self.running)))
        process = subprocess.Popen([sys.executable, "-c", programs[name]], start_new_session=True)
        return check.Running(process, time.monotonic() + seconds)

    monkeypatch.setattr(check.Stage, "_start", start)
    check.Stage(argparse.Namespace(stage=1, seconds=60.0, out=tmp_path)).run()
    assert started == [("first", []), ("second", []), ("third", ["second"])]
    errors = {row["task"]: row["error"] for row in read_rows(tmp_path / "rows.jsonl")}
    assert errors == {"first": "out of time", "third": "its process ended with 3"}


def test_a_long_run_starts_once_and_the_next_call_resumes_it(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    calls: list[list[str]] = []

    def trained(bench: Bench, name: str, arguments: list[str], run: pathlib.Path) -> real_data.Ended:
        calls.append(arguments)
        run.mkdir(exist_ok=True)
        (run / "config.json").write_text("{}")
        with (run / "metrics.jsonl").open("a") as lines:
            lines.write(json.dumps({"step": 10 * len(calls), "values": {"critic_loss": 1.0}}) + "\n")
        return real_data.Ended(0, real_data._steps(run), real_data._last_rows(run), 2.0)

    monkeypatch.setattr(real_data, "_trained", trained)
    for _ in range(2):
        real_data.puzzle(bench(tmp_path, "puzzle"))
    assert calls[0][:2] == ["algo=rebrac", "algo.preset=fql"]
    assert "algo.critics=10" in calls[0]
    assert calls[1] == ["--resume", str(tmp_path / "puzzle-run")]
    rows = [(row["name"], row["value"]) for row in read_rows(tmp_path / "rows.jsonl")]
    assert rows == [("steps", 10), ("rate", 5.0), ("steps", 20), ("rate", 5.0)]


def test_a_part_has_as_many_episodes_as_fit(tmp_path: pathlib.Path) -> None:
    from surefoot.data import save
    from surefoot.runs.embedded import generate

    whole = generate("native/double-integrator", 0, 2000, "mixed")
    count, sizes = len(whole.episode_lengths), []
    for episodes in (3, 4):
        path = tmp_path / f"{episodes}.hdf5"
        save(whole.select_episodes(np.arange(episodes)), path)
        sizes.append(path.stat().st_size)
    assert count > 4
    found = part.first_episodes(whole, sizes[0], tmp_path)
    assert found is not None
    assert len(found.episode_lengths) == (3 if sizes[1] > sizes[0] else 4)
    assert part.first_episodes(whole, 10, tmp_path) is None
    everything = part.first_episodes(whole, 1e9, tmp_path)
    assert everything is not None
    assert len(everything.episode_lengths) == count


def test_predictions_are_what_the_program_counts_and_estimates() -> None:
    rows = json.loads(predict.PREDICTED.read_text())
    estimates = {name: (row["value"], row["unit"]) for name, row in rows.items() if row["how"] == "estimate"}
    assert estimates == predict.ESTIMATES
    wanted = {f"learners/{name} x{seeds}: graph" for name, counts in predict.COUNTED.items() for seeds in counts}
    assert wanted <= {name for name, row in rows.items() if row["how"] == "counted"}
    for name, seeds in (("iql", 4), ("dynamics", 1)):
        rate = predict.counted(name, seeds).graph_rate
        found = rows[f"learners/{name} x{seeds}: graph"]["value"]
        assert found == pytest.approx(rate, rel=0.03), "run tools/gpu/predict.py: a training step has changed"


@pytest.mark.parametrize(("name", "most"), [("iql", 104), ("sac", 120), ("fql", 366), ("tdmpc2", 582)])
def test_a_training_step_has_no_more_kernels_than_were_counted(name: str, most: int) -> None:
    assert predict.counted(name, 1).kernels <= most


def test_matrix_products_are_counted_as_their_multiply_adds() -> None:
    import torch

    x, w, b = (torch.empty(*shape, device="meta") for shape in ((16, 256, 17), (16, 17, 256), (16, 1, 256)))
    with predict.Kernels() as count:
        torch.baddbmm(b, x, w)
    assert (count.kernels, count.operations) == (1, 2 * 16 * 256 * 17 * 256)
    assert count.bytes == 4 * 16 * (256 * 17 + 17 * 256 + 256 + 256 * 256)
    assert count.seconds == max(predict.LEAST, count.operations / predict.PEAK, count.bytes / predict.BANDWIDTH)


def test_the_page_has_the_table_of_predictions_and_names_rows_of_tasks() -> None:
    rows, page = json.loads(predict.PREDICTED.read_text()), predict.PAGE.read_text()
    assert predict.with_table(page, rows) == page, "run tools/gpu/predict.py"
    assert {name.partition("/")[0] for name in rows} <= {task.rows or name for name, task in check.TASKS.items()}


def test_carried_wheels_have_versions_and_the_digest_is_of_the_tree() -> None:
    text, pins = (TOOLS / "wheels.sh").read_text(), (ROOT / "constraints.txt").read_text()
    names = [name for group in re.findall(r"names\+?=\(([^)]*)\)", text) for name in group.split()]
    assert len(names) == 9
    for name in [*names, "antlr4-python3-runtime"]:
        assert re.search(rf"^{re.escape(name)}==", pins, re.MULTILINE), name
    digests = {
        subprocess.run(["bash", str(TOOLS / "digest.sh")], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    (digest,) = digests
    assert re.fullmatch(r"[0-9a-f]{16}\n", digest)
    for script in ("check.sh", "wheels.sh", "digest.sh"):
        assert subprocess.run(["bash", "-n", str(TOOLS / script)], check=False).returncode == 0


def test_files_of_gpu_tests_are_there() -> None:
    for name in first_contact.TESTS:
        assert "pytest.mark.gpu" in (ROOT / name).read_text(), name
