"""The pages for users of rsl_rl, skrl, Isaac Lab and OmniSafe: options that they name exist, and their python runs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import pathlib
import re
import textwrap
from typing import Any

import pytest
import torch
from device_stand_ins import GymTask, LabTask

from surefoot.core.policy.policy import Policy
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.plan import Plan

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIGRATING = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
DEVICE = (ROOT / "docs" / "device_simulators.md").read_text(encoding="utf-8")
OF_PLANS = {field.name for field in dataclasses.fields(Plan)}


def section(title: str) -> str:
    return MIGRATING.split(f"## {title}\n")[1].split("\n## ")[0]


def options(*algorithms: str) -> set[str]:
    return {field.name for name in algorithms for field in dataclasses.fields(ALGORITHMS[name].Config)}


@pytest.mark.parametrize(
    ("title", "algorithms"),
    [
        ("rsl_rl and Isaac Lab", ("ppo", "recurrent_ppo")),
        ("skrl", ("ppo", "sac")),
        ("OmniSafe", ("ppo_lag", "cpo")),
    ],
)
def test_options_that_a_section_names_are_options(title: str, algorithms: tuple[str, ...]) -> None:
    text = section(title)
    named = set(re.findall(r"algo\.(\w+)", text)) - {"preset"}
    assert len(named) > 8
    assert named - options(*algorithms) == set()
    taught = set(re.findall(r"algo=(\w+)", text))
    assert taught <= set(ALGORITHMS)
    assert {"steps"} <= OF_PLANS


def test_omnisafe_s_algorithms_are_ours_by_the_names_that_are_given() -> None:
    rows = [line for line in section("OmniSafe").splitlines() if line.startswith("| `")]
    known = next(row for row in rows if "PPOLag`, `TRPOLag`" in row).split("|")
    theirs, ours = (re.findall(r"`(\w+)`", part) for part in known[1:3])
    assert [ALGORITHMS[name].__name__ for name in ours] == theirs
    limit = ALGORITHMS["ppo_lag"].configure()
    assert (limit.cost_limit, limit.initial_multiplier, limit.multiplier_rate) == (25, 0.001, 0.035)


@pytest.mark.parametrize("task", [LabTask, GymTask])
def test_the_page_s_three_lines_train_and_evaluate_in_a_stand_in_of_isaac(
    task: type[LabTask], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("surefoot.envs.make", reason="environments are given by id alone")
    monkeypatch.chdir(tmp_path)
    code = next(block for block in re.findall(r"```python\n(.*?)```", DEVICE, re.DOTALL) if ".learn(" in block)
    made = "from_isaac_lab" if task is LabTask else "from_isaac_gym"
    small = code.replace("episodes=8", "progress=False, episodes=8", 1)
    names: dict[str, Any] = {"task": task()}
    exec(small.replace("from_isaac_lab(", made + "(").replace("import from_isaac_lab", f"import {made}"), names)
    run = names["model"].run
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line["values"] for line in lines if line["kind"] == "eval"]
    assert evaluations[-1]["length_mean"] <= 12  # the stand-in's time limit
    assert (tmp_path / "policy.safetensors").is_file()


@pytest.mark.parametrize("task", [LabTask, GymTask])
def test_the_page_s_loop_trains_in_a_stand_in_of_isaac(
    task: type[LabTask], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = next(block for block in re.findall(r"```python\n(.*?)```", DEVICE, re.DOTALL) if "make_loop" in block)
    made = "from_isaac_lab" if task is LabTask else "from_isaac_gym"
    names = {"task": task()}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(textwrap.dedent(code).replace("from_isaac_lab", made), names)
    assert float(printed.getvalue().strip(" []\n")) > 0  # of the episodes that ended meanwhile
    policy = Policy.load(tmp_path / "policy.safetensors")
    assert policy(torch.zeros(3, 2)).shape == (3, 1)
