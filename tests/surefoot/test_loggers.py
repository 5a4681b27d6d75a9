"""Metrics reach TensorBoard, Weights & Biases (offline) and MLflow (files); an extra that is absent is named."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import shutil
import struct
import threading
import time
from typing import Any

import pytest
from small_runs import TINY

from surefoot.cli import main
from surefoot.cli.support.config import compose
from surefoot.cli.support.config_file import overrides_of
from surefoot.runs import loggers
from surefoot.runs.trackers.background import Background


def trained(name: str, dataset: pathlib.Path, out: pathlib.Path) -> float:
    """Train a small run with a logger; its return at the last evaluation during training."""
    command = ["train", "-q", "algo=bc", f"dataset={dataset}", "seeds=1", f"out={out}", f"logger={name}", *TINY]
    assert main(command) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return float([line["values"]["return_mean"] for line in lines if line["kind"] == "eval"][-1])


@pytest.mark.usefixtures("in_process")
def test_tensorboard_has_the_evaluations(dataset_path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorboard")
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    wanted = trained("tensorboard", dataset_path, tmp_path / "run")
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "seed0"))
    events.Reload()
    (scalar,) = events.Scalars("eval/return_mean")
    assert (scalar.step, scalar.value) == (20, pytest.approx(wanted, rel=1e-6))


def test_what_tensorboard_heard_outlives_a_kill(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorboard")
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    logger = loggers.make_logger("tensorboard", tmp_path)
    logger({"kind": "eval", "seed": 0, "step": 20, "return_mean": 1.5})
    logger({"kind": "progress", "seed": 0, "step": 30, "rate": 2.0})  # and is not closed
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / "seed0"))
    events.Reload()
    assert [events.Scalars(name)[0].value for name in ("eval/return_mean", "progress/rate")] == [1.5, 2.0]


@pytest.fixture
def wandb_offline(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, with none of the machine's own settings."""
    wandb = pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return wandb


def kept_by_wandb(folder: pathlib.Path) -> dict[str, list[Any]]:
    """Run id -> the records that W&B wrote of it offline, in order, also where it wrote several files.

    A `.wandb` file is a header of 7 bytes and a log of LevelDB's format: blocks of 32 KiB, in them pieces of records,
    each behind a checksum of 4 bytes, a length of 2 and a type, 1 and 4 of which end a record.
    """
    record_type = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    found: dict[str, list[Any]] = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda one: one.stat().st_mtime):
        content, place, whole = path.read_bytes(), 7, b""
        assert content[:4] == b":W&B"
        records = found.setdefault(path.stem.removeprefix("run-"), [])
        while place + 7 <= len(content):
            if 32768 - place % 32768 < 7:
                place += 32768 - place % 32768
                continue
            _, length, kind = struct.unpack("<IHB", content[place : place + 7])
            whole += content[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):
                record = record_type()
                record.ParseFromString(whole)
                records.append(record)
                whole = b""
    return found


def history(records: list[Any], name: str) -> list[tuple[int, float]]:
    """(gradient step, value) of each line of a run's history that has the metric."""
    lines = [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    return [(line["gradient_steps"], line[name]) for line in lines if name in line]


@pytest.mark.usefixtures("in_process")
def test_wandb_has_a_run_a_seed_in_one_group_over_steps(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, wandb_offline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "of-the-variable")
    monkeypatch.setenv("WANDB_RUN_GROUP", "of-the-variable")
    monkeypatch.setenv("WANDB_TAGS", "bench, v2")
    out = tmp_path / "run"
    given = ["logger=wandb", "logger_options.project=arms", "logger_options.name=bc"]
    command = ["train", "-q", "algo=bc", f"dataset={dataset_path}", "seeds=[0,5]", f"out={out}", *given]
    assert main([*command, *TINY, "evaluate_every=10"]) == 0
    kept = kept_by_wandb(out)
    runs = {
        id: next(one.run for one in records if one.WhichOneof("record_type") == "run") for id, records in kept.items()
    }
    assert {one.project for one in runs.values()} == {"arms"}  # the option wins
    assert {one.run_group for one in runs.values()} == {"of-the-variable"}
    assert {tuple(one.tags) for one in runs.values()} == {("bench", "v2")}
    assert sorted(one.display_name for one in runs.values()) == ["bc-seed0", "bc-seed5"]
    summary = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    ids = json.loads((out / "logger_ids.json").read_text())["ids"]["wandb"]
    assert sorted(ids) == ["0", "5"]
    for place, seed in enumerate(summary["seeds"]):
        records = kept[ids[str(seed)]]
        wanted = [(x["step"], x["values"]["return_mean"]) for x in lines if x["kind"] == "eval" and x["seed"] == seed]
        assert history(records, "eval/return_mean") == wanted
        assert [step for step, _ in wanted] == [10, 20]
        assert history(records, "final/return") == [(20, summary["per_seed_returns"][place])]
        config = {item.key: json.loads(item.value_json) for item in runs[ids[str(seed)]].config.update}
        assert (config["seed"], config["algorithm"], config["config"]["hidden"]) == (seed, "bc", [8, 8])
        metrics = [one.metric for one in records if one.WhichOneof("record_type") == "metric"]
        assert any(one.name == "gradient_steps" for one in metrics)
        assert any((one.glob_name, one.step_metric) == ("*", "gradient_steps") for one in metrics)


@pytest.mark.usefixtures("in_process")
def test_a_moved_folder_continues_its_runs_and_a_copy_gets_its_own(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, wandb_offline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("wandb", dataset_path, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (tmp_path / "run").rename(tmp_path / "moved")
    (first,) = kept_by_wandb(tmp_path / "moved")
    for name in ("moved", "copy"):
        assert main(["train", "--resume", str(tmp_path / name), "steps=40"]) == 0
        assert ("is a copy of" in capsys.readouterr().out) == (name == "copy")
    assert set(kept_by_wandb(tmp_path / "moved")) == {first}
    assert [step for step, _ in history(kept_by_wandb(tmp_path / "moved")[first], "eval/return_mean")] == [20, 40]
    (other,) = set(kept_by_wandb(tmp_path / "copy")) - {first}
    assert [step for step, _ in history(kept_by_wandb(tmp_path / "copy")[other], "eval/return_mean")] == [40]


@pytest.mark.usefixtures("in_process")
def test_who_is_not_logged_in_keeps_wandb_offline_and_reads_how_to_send_it(
    dataset_path: pathlib.Path,
    tmp_path: pathlib.Path,
    wandb_offline: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(wandb_offline, "login", lambda **options: False)
    command = ["train", "algo=bc", f"dataset={dataset_path}", "seeds=2", f"out={tmp_path / 'run'}", "logger=wandb"]
    assert main([*command, *TINY]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("no one is logged in to W&B") == 1
    assert "wandb sync" in said
    assert len(kept_by_wandb(tmp_path / "run")) == 2


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("where", ["as it starts", "at an evaluation"])
def test_a_logger_that_fails_is_one_note_and_training_ends_as_ever(
    where: str, dataset_path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    class Failing:
        note: Any

        def __init__(self, *unused: Any) -> None: ...

        def __call__(self, event: dict[str, Any]) -> None:
            if event["kind"] == ("start" if where == "as it starts" else "eval"):
                raise OSError("no route to host\nand a long trace")

        def close(self) -> None: ...

    monkeypatch.setitem(loggers.LOGGERS, "wandb", Failing)
    command = ["train", "algo=bc", f"dataset={dataset_path}", "seeds=2", f"out={tmp_path / 'run'}", "logger=wandb"]
    assert main([*command, *TINY]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("logger=wandb gave up (OSError: no route to host): training continues without it") == 1
    assert (tmp_path / "run" / "summary.json").is_file()


def test_a_logger_that_hangs_is_left_behind_at_the_end() -> None:
    heard: list[str] = []
    free = threading.Event()

    class Hanging:
        note: Any

        def __call__(self, event: dict[str, Any]) -> None:
            free.wait(30)

        def close(self) -> None: ...

    listener = Background("wandb", Hanging(), lambda event: heard.append(event["text"]), wait=0.1)
    began = time.monotonic()
    listener({"kind": "start"})
    listener({"kind": "eval", "seed": 0, "step": 1, "return_mean": 1.0})
    listener.close()
    free.set()
    assert time.monotonic() - began < 5
    assert [text.split(":")[0] for text in heard] == ["logger=wandb was not done 0 s after the run"]


@pytest.mark.usefixtures("in_process")
def test_mlflow_has_a_run_a_seed_with_evaluations_and_the_plan(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "arms")
    out = tmp_path / "run"
    given = ["logger=mlflow", "logger_options.tags=[stage:test,draft]", "logger_options.group=g"]
    command = ["train", "-q", "algo=bc", f"dataset={dataset_path}", "seeds=2", f"out={out}", *given, *TINY]
    assert main(command) == 0
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("arms").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert sorted(runs) == ["run-seed0", "run-seed1"]
    summary = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for seed in (0, 1):
        run = runs[f"run-seed{seed}"]
        (wanted,) = [x["values"]["return_mean"] for x in lines if x["kind"] == "eval" and x["seed"] == seed]
        (metric,) = client.get_metric_history(run.info.run_id, "eval/return_mean")
        assert (metric.step, metric.value) == (20, wanted)
        (metric,) = client.get_metric_history(run.info.run_id, "final/return")
        assert (metric.step, metric.value) == (20, summary["per_seed_returns"][seed])
        assert run.data.params["hidden"] == "[8, 8]"
        assert [run.data.tags[name] for name in ("group", "seed", "stage", "draft")] == ["g", str(seed), "test", ""]
        assert run.info.status == "FINISHED"
        assert sorted(one.path for one in client.list_artifacts(run.info.run_id)) == ["plan.json", "summary.json"]
    assert main(["train", "-q", "--resume", str(out), "steps=40"]) == 0
    assert len(client.search_runs([experiment])) == 2
    history = client.get_metric_history(runs["run-seed0"].info.run_id, "eval/return_mean")
    assert [one.step for one in history] == [20, 40]


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (["logger_options.project=arms"], "logger_options.project is an option of a logger: give logger= too"),
        (["logger=wandb", "logger_options.projects=arms"], "wandb has no such option; did you mean 'project'"),
        (["logger=tensorboard", "logger_options.project=arms"], "tensorboard has no such option; it has none"),
        (["logger=wandb", "logger_options.mode=ofline"], "did you mean 'offline'"),
        (["logger=wandb", "logger_options.tags={a: 1}"], "give texts, as in logger_options.tags=[arm,v2]"),
        (["logger=wandb", "logger_options=arms"], "give each option of the logger by its name"),
    ],
)
def test_a_wrong_option_of_a_logger_is_refused(given: list[str], wrong: str, capsys: Any) -> None:
    assert main(["train", "algo=bc", *given]) == 2
    assert wrong in " ".join(capsys.readouterr().err.split())


def test_options_of_a_logger_stand_in_a_file_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.yaml").write_text("logger: wandb\nlogger_options: {project: arms, tags: [a, b]}\n")
    found = compose(overrides_of(str(tmp_path / "run.yaml"), ["logger_options.tags=[c]"]) + ["logger_options.tags=[c]"])
    assert found.fields["logger_options"] == {"project": "arms", "tags": ["c"]}


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_an_absent_package_is_named_with_its_extra_before_anything_is_written(
    name: str, dataset_path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    found = importlib.import_module

    def absent(module: str, package: str | None = None) -> Any:
        if module == name:
            raise ImportError(module)
        return found(module, package)

    monkeypatch.setattr(importlib, "import_module", absent)
    command = ["train", "algo=bc", f"dataset={dataset_path}", f"out={tmp_path / 'run'}", f"logger={name}", *TINY]
    assert main(command) == 2
    assert f"surefoot[{name}]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
