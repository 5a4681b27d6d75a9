"""Metrics reach TensorBoard, Weights & Biases (offline) and MLflow (files); an extra that is absent is named."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import pytest
from small_runs import TINY

from surefoot.cli import main
from surefoot.runs import loggers


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


@pytest.mark.usefixtures("in_process")
def test_mlflow_has_the_evaluations_and_the_plan_in_files(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    wanted = trained("mlflow", dataset_path, tmp_path / "run")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "run" / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("surefoot").experiment_id])
    (metric,) = client.get_metric_history(run.info.run_id, "seed0/eval/return_mean")
    assert (metric.step, metric.value) == (20, wanted)
    assert run.data.params["algorithm"] == "bc"
    assert run.data.params["hidden"] == "[8, 8]"
    assert run.info.status == "FINISHED"
    again = loggers.make_logger("mlflow", tmp_path / "run", resumed=True)
    again({"kind": "start", "plan": {"algorithm": "bc", "config": {}}})
    again({"kind": "eval", "seed": 0, "step": 40, "return_mean": 1.5})
    (run,) = client.search_runs([client.get_experiment_by_name("surefoot").experiment_id])
    assert [one.step for one in client.get_metric_history(run.info.run_id, "seed0/eval/return_mean")] == [20, 40]


@pytest.mark.usefixtures("in_process")
def test_wandb_keeps_a_run_offline(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    trained("wandb", dataset_path, tmp_path / "run")
    (kept,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert b"return_mean" in kept.read_bytes()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_an_absent_package_is_named_with_its_extra_before_anything_is_written(
    name: str, dataset_path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    found = importlib.import_module

    def absent(module: str, package: str | None = None) -> Any:
        if module == name:
            raise ImportError(module)
        return found(module, package)

    monkeypatch.setattr(loggers.importlib, "import_module", absent)
    command = ["train", "algo=bc", f"dataset={dataset_path}", f"out={tmp_path / 'run'}", f"logger={name}", *TINY]
    assert main(command) == 2
    assert f"surefoot[{name}]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
