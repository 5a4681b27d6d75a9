"""MLflow: one run a seed, all seeds of a run folder with one tag `group`."""

from __future__ import annotations

import importlib
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from surefoot.runs.progress_events import Event
from surefoot.runs.trackers.ids import KeptIds
from surefoot.runs.trackers.numbers import finals, numbers, require
from surefoot.runs.trackers.options import DEFAULT_PROJECT, settled
from surefoot.runs.trackers.reach import unreachable

MOST_PARAMETERS, LONGEST = 100, 500
"""Parameters that MLflow takes in one call, and the characters of one."""
URI, EXPERIMENT_ID = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID"


class MlflowListener:
    """Writes progress, losses and evaluations of each seed, and at the end what its last policy scores.

    Where MLFLOW_TRACKING_URI names a server or database it goes there, else into files under RUN/mlruns.
    """

    note: Callable[[str], None]

    def __init__(self, folder: pathlib.Path, resumed: bool = False, options: Mapping[str, Any] | None = None) -> None:
        """Prepare to write; raises MissingExtraError without mlflow.

        Args:
            folder: of the run.
            resumed: without effect: a run whose ids are kept continues.
            options: experiment, group, tags (each KEY or KEY:VALUE) and name; what is not there comes from MLflow's own
                variables.
        """
        require("mlflow", "mlflow", "logger=mlflow")
        self.folder, self.options = folder, dict(options or {})
        self.note = lambda text: None
        self._client: Any = None
        self._experiment = ""
        self._plan: Mapping[str, Any] = {}
        self._ids: KeptIds | None = None
        self._open: dict[int, str] = {}

    def __call__(self, event: Event) -> None:
        """Write the numbers of one event; the plan becomes the runs' parameters and the artifact plan.json."""
        if event["kind"] == "start":
            self._start(event["plan"])
        if self._client is None:
            return
        if found := dict(numbers(event)):
            self._log(int(event["seed"]), found, int(event["step"]))
        if event["kind"] == "summary":
            summary = event["summary"]
            for seed in summary["seeds"]:
                self._log(seed, finals(summary, seed), int(summary["steps"]))
                self._client.log_dict(self._open[seed], dict(summary), "summary.json")
            self._finish("FINISHED")

    def close(self) -> None:
        """End what is open: of a run that was interrupted, as killed, until it is resumed."""
        self._finish("KILLED")

    def _start(self, plan: Mapping[str, Any]) -> None:
        mlflow = importlib.import_module("mlflow")
        self._plan, self._ids = plan, KeptIds(self.folder, "mlflow")
        if self._ids.copied_from is not None:
            self.note(f"this folder is a copy of {self._ids.copied_from}: it gets runs of its own at MLflow")
        uri = os.environ.get(URI)
        if not uri:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which newer versions ask for
            uri = (self.folder.resolve() / "mlruns").as_uri()
        if why := unreachable(uri):
            raise ConnectionError(why)
        client = mlflow.MlflowClient(tracking_uri=uri)
        name, number = settled("mlflow", "experiment", self.options), os.environ.get(EXPERIMENT_ID)
        if name is None and number:
            self._experiment = client.get_experiment(number).experiment_id
        else:
            name = name or DEFAULT_PROJECT
            there = client.get_experiment_by_name(name)
            self._experiment = client.create_experiment(name) if there is None else there.experiment_id
        self._client = client

    def _run(self, seed: int) -> str:
        if seed not in self._open:
            assert self._ids is not None
            known = self._ids.get(seed)
            if known is None or not self._continued(known):
                known = self._made(seed)
                self._ids.keep(seed, known)
            self._open[seed] = known
        return self._open[seed]

    def _continued(self, known: str) -> bool:
        """Whether the run of this id is there and open again."""
        exceptions = importlib.import_module("mlflow.exceptions")
        try:
            self._client.update_run(known, status="RUNNING")
        except exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            self.note(f"MLflow has no run {known} there, as {URI} is now: a new one is made")
            return False
        return True

    def _made(self, seed: int) -> str:
        entities = importlib.import_module("mlflow.entities")
        group = settled("mlflow", "group", self.options) or self.folder.name
        name = settled("mlflow", "name", self.options) or self.folder.name
        words = settled("mlflow", "tags", self.options) or []
        tags = {"group": group, "seed": str(seed), "folder": str(self.folder.resolve())}
        tags |= {key: value for key, _, value in (word.partition(":") for word in words)}
        made: str = self._client.create_run(self._experiment, run_name=f"{name}-seed{seed}", tags=tags).info.run_id
        plain = {key: value for key, value in self._plan.items() if key != "config"}
        flat = {**plain, **dict(self._plan["config"]), "seed": seed}
        parameters = [entities.Param(key, str(value)[:LONGEST]) for key, value in flat.items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(made, params=parameters[start : start + MOST_PARAMETERS])
        self._client.log_dict(made, {**self._plan, "seed": seed}, "plan.json")  # whole, however long a value is
        return made

    def _log(self, seed: int, found: Mapping[str, float], step: int) -> None:
        entities, now = importlib.import_module("mlflow.entities"), int(time.time() * 1000)
        metrics = [entities.Metric(name, value, now, step) for name, value in found.items()]
        self._client.log_batch(self._run(seed), metrics=metrics)

    def _finish(self, status: str) -> None:
        for run in self._open.values():
            self._client.set_terminated(run, status)
        self._open.clear()
