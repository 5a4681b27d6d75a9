"""Run folders from elsewhere: values of the wrong type, other versions, weights that nothing can be computed with."""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.cli.support import output
from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, SurefootError, printable
from surefoot.core.base.files import read_json
from surefoot.core.base.spec import Spec
from surefoot.data.dataset import Dataset
from surefoot.evaluation import RunData
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.machine import KERNELS
from surefoot.runs.plan import Plan, agent_class, options_from_json
from surefoot.runs.processes.worker import Log
from surefoot.runs.run import Run, load_agent, read_columns, write_columns
from surefoot.runs.summary import sum_up

SPEC = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))


def folder(
    path: pathlib.Path, plan: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **weights: Any
) -> Run:
    """A run folder with the checkpoint of one seed, with changes."""
    kind = agent_class("iql")
    config = dataclasses.asdict(kind.configure(hidden=(4, 4)))
    made = Plan("iql", config, dataset="a.hdf5", environment="Pendulum-v1", seeds=(0,))
    agent = kind(SPEC, kind.configure(**config))
    told = {"plan": {**made.to_json(), **(plan or {})}, "spec": {**SPEC.to_json(), **(spec or {})}, "dataset": None}
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(told))
    tensors = {f"agent/{name}": value for name, value in {**agent.state_dict(), **weights}.items()}
    checkpoint.save(path / "seeds/0/checkpoint.safetensors", tensors, {"kind": "checkpoint"})
    return Run(path, made)


def test_a_sound_run_opens_and_its_agent_has_its_weights(tmp_path: pathlib.Path) -> None:
    run = folder(tmp_path)
    assert Run.open(tmp_path).plan == Plan.from_json(json.loads(json.dumps(run.plan.to_json())))
    assert load_agent(Run.open(tmp_path)).config.hidden == (4, 4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": "many"}, "plan.steps is 'many', must be a whole number"),
        ({"steps": 2**63}, "plan.steps is 9223372036854775808, must be a whole number"),
        ({"steps": -1}, r"plan\.steps is -1, must be in \[1, 1e12\]"),
        ({"seeds": [True]}, r"plan.seeds\[0\] is True"),
        ({"seeds": 3}, "plan.seeds is 3, must be a list"),
        ({"config": []}, r"plan.config is \[\], must be an object"),
        ({"environment": 7}, "plan.environment is 7, must be a text"),
        ({"algorithm": "iql\x1b[2J"}, r"plan.algorithm is 'iql\\x1b\[2J', must be a text without control"),
        ({"kernels": "no"}, "plan.kernels is 'no', must be true or false"),
        ({"jacobian_penalty": None}, "plan.jacobian_penalty is None, must be a finite number"),
        ({"stepz": 1}, "plan has the key 'stepz', which is not known; did you mean 'steps'"),
    ],
)
def test_a_plan_of_other_types_is_refused_by_field(
    tmp_path: pathlib.Path, change: dict[str, Any], sentence: str
) -> None:
    folder(tmp_path, change)
    with pytest.raises(CheckpointError, match=rf"config\.json: {sentence}"):
        Run.open(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"observation_dim": "3"},
        {"observation_dim": 2**40},
        {"action_low": 1},
        {"action_high": [None, 1]},
        {"discrete": "no"},
        {"action_dim": -1},
        {"action_low": [5, 5]},
        {"more": 1},
    ],
)
def test_a_problem_of_other_types_is_refused(tmp_path: pathlib.Path, change: dict[str, Any]) -> None:
    folder(tmp_path, spec=change)
    with pytest.raises(CheckpointError):
        load_agent(Run.open(tmp_path))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"hidden": "wide"}, "iql.hidden is 'wide', must be a list"),
        ({"hidden": [4, "x"]}, r"iql.hidden\[1\] is 'x', must be a whole number"),
        ({"discount": "high"}, "iql.discount is 'high', must be a finite number"),
        ({"hidden": [1 << 16, 1 << 16]}, "does not fit the run's configuration: agent/.* differs"),  # 17 GB a network
    ],
)
def test_options_of_other_types_or_sizes_are_refused_before_networks_are_made(
    tmp_path: pathlib.Path, config: dict[str, Any], sentence: str
) -> None:
    folder(tmp_path)
    value = json.loads((tmp_path / "config.json").read_text())
    value["plan"]["config"] |= config
    (tmp_path / "config.json").write_text(json.dumps(value))
    with pytest.raises(SurefootError, match=sentence):
        load_agent(Run.open(tmp_path))


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: pathlib.Path) -> None:
    weights = agent_class("iql")(SPEC, agent_class("iql").configure(hidden=(4, 4))).state_dict()
    name = next(name for name in weights if "weights" in name)
    folder(tmp_path, **{name: torch.full_like(weights[name], float("nan"))})
    with pytest.raises(CheckpointError, match=f"the tensor 'agent/{name}' holds nan"):
        load_agent(Run.open(tmp_path))


def test_each_algorithms_options_are_those_that_its_config_describes() -> None:
    for kind in ALGORITHMS.values():
        for preset in (None, *kind.PRESETS):
            options = dataclasses.asdict(kind.configure(**({} if preset is None else {"preset": preset})))
            assert options_from_json(kind, json.loads(json.dumps(options))) == options


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "it has no key 'machine'"),
        ({"machine": 1}, "machine is 1, must be a text"),
        ({"machine": "m", "masks": "outside"}, "masks is 'outside', must be"),
        ({"machine": "m", "choices": "no"}, "choices is 'no', must be a list"),
        ({"machine": "m", "choices": [3]}, r"choices\[0\] is 3, must be a list"),
    ],
)
def test_a_damaged_record_of_kernels_is_refused(value: object, sentence: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "kernels.json").write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match=rf"kernels\.json.*{sentence}"):
        read_json(tmp_path / "kernels.json", KERNELS)


def test_columns_that_are_no_dataset_are_refused(tmp_path: pathlib.Path) -> None:
    rows = np.zeros((4, 2), np.float32)
    ends, one = np.array([False, False, False, True]), np.zeros(4, np.float32)
    ids = np.zeros(4, np.int64)
    sound = Dataset(rows, rows, one, rows, ends, ~ends & False, ids, ends | True, attributes={"a": "b"})
    path = tmp_path / "dataset.safetensors"
    write_columns(sound, path)
    assert read_columns(path).attributes == {"a": "b"}
    for change, sentence in (
        ({"rewards": np.full(4, np.nan, np.float32)}, "'rewards' holds nan in row 0"),
        ({"rewards": np.zeros(3, np.float32)}, "has 3 rows"),
        ({"extras": {"x": np.full(4, np.inf)}}, "'extras/x' holds inf"),
        ({"name": "a\x07"}, r"name is 'a\\x07', must be a text without control characters"),
    ):
        write_columns(sound.replace(**change), path)
        with pytest.raises(CheckpointError, match=rf"dataset\.safetensors: .*{sentence}"):
            read_columns(path)


def test_options_that_an_algorithm_had_in_another_version_are_refused_with_both_versions(
    tmp_path: pathlib.Path,
) -> None:
    folder(tmp_path, {"algorithm": "sac", "config": {"hidden": [4, 4], "critics": 2}})
    with pytest.raises(CheckpointError, match=r"config.json: sac has no option 'critics'"):
        load_agent(Run.open(tmp_path))
    (tmp_path / "environment.json").write_text(json.dumps({"versions": {"surefoot": "0.0.1"}}))
    with pytest.raises(CheckpointError, match=r"It was made by surefoot 0.0.1, and this is 0.*: use that version"):
        load_agent(Run.open(tmp_path))


def test_an_unknown_algorithm_is_refused_by_file(tmp_path: pathlib.Path) -> None:
    folder(tmp_path, {"algorithm": "iqx"})
    with pytest.raises(CheckpointError, match=r"config\.json: unknown algorithm 'iqx'"):
        load_agent(Run.open(tmp_path))


def test_all_files_of_a_run_have_the_version_of_their_format(finished_run: pathlib.Path) -> None:
    for name in ("config.json", "summary.json", "seeds/0/result.json"):
        assert json.loads((finished_run / name).read_text())["format"] == 1, name
    lines = (finished_run / "metrics.jsonl").read_text().splitlines()
    assert lines
    assert all(json.loads(line)["format"] == 1 for line in lines)


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl", "seeds/0/result.json"])
def test_a_file_of_a_newer_version_is_refused(name: str, finished_run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished_run, copy)
    path = copy / name
    first = path.read_text().splitlines()[0] if name == "metrics.jsonl" else "{}"  # the version comes before all else
    path.write_text(json.dumps({**json.loads(first), "format": 2}))
    readers: list[Any] = {
        "config.json": [RunData.load, Run.open],
        "summary.json": [RunData.load, lambda run: Run.open(run).summary],
        "metrics.jsonl": [RunData.load],
        "seeds/0/result.json": [lambda run: sum_up(Run.open(run))],
    }[name]
    for read in readers:
        with pytest.raises(CheckpointError, match=rf"{path.name}.*format is 2, and .* reads up to 1"):
            read(copy)


def test_a_worker_writes_its_log_without_what_a_terminal_would_obey() -> None:
    held = io.BytesIO()
    log = Log(held, "utf-8", "backslashreplace", line_buffering=True)
    assert log.write("a\x1b[2Jb\n") == 7
    assert held.getvalue() == b"a\\x1b[2Jb\n"


def test_a_log_on_a_full_disk_does_not_end_the_worker_that_writes_it() -> None:
    with open("/dev/full", "wb") as full:
        log = Log(full, "utf-8", "backslashreplace", line_buffering=True)
        for _ in range(3):
            assert log.write("a line\n" * 5000) == 35_000
            log.flush()
        log.detach()


def test_the_command_line_prints_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;title\x07[bold]\x7f"
    output.say(hostile)
    output.say(hostile, stderr=True)
    output.print_facts({hostile: {"a": hostile}})
    output.print_rows([{"name": hostile}], ["name"])
    output.console().print(hostile, markup=False)
    output.print_json({"name": hostile})
    shown = "".join(capsys.readouterr())
    assert printable(shown) == shown
    assert shown.count("[bold]") == 7
    assert json.loads(shown[shown.rindex("{") : shown.rindex("}") + 1]) == {"name": hostile}
