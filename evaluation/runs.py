"""`RunData`: what a finished run folder says about itself, read back for tables and reports."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.errors import CheckpointError
from surefoot.core.files import read_json
from surefoot.envs.names import short_name
from surefoot.evaluation.safety import Safety, with_limit
from surefoot.evaluation.statistics import hierarchical_interval

Json = Mapping[str, Any]
CERTIFICATE_KEYS = ("sentence", "policy", "environment", "violations", "episodes", "upper", "confidence")
FILTER_KEYS = ("kind", "margin", "changed", "actions", "broken", "cases")


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """One point of a learning curve, averaged over seeds; nan bounds where one return is all there is."""

    step: int
    mean: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class RunData:
    """A run: the fields of its `summary.json`, its resolved config and its metrics.

    `returns`, `normalized` and `cost` are mappings with `mean`, `low`, `high` (95 % interval), or None where
    there was no simulator, no reference score or no cost.
    """

    name: str  # of the run folder
    algorithm: str
    dataset: str | None  # None: it learned by acting alone
    environment: str | None  # under its short name: surefoot/Quadrotor2D-v0 is native/quadrotor-2d
    steps: int  # of the kind that `steps_of` says
    seeds: tuple[int, ...]
    episodes: int  # evaluation episodes per seed
    per_seed_returns: tuple[float, ...] = ()
    returns: Json | None = None
    normalized: Json | None = None
    behaviour: Json | None = None  # mean, low, high, episodes, normalized (a number or None) of the dataset
    cost: Json | None = None
    per_seed_costs: tuple[float, ...] = ()  # mean cost of an episode
    safety: Safety | None = None  # how the costs were distributed, and the limit
    smoothness: Json | None = None  # action_change and jacobian, each a mapping as `returns`, or None
    updates_per_second: float | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    date: str = ""
    config: Json = dataclasses.field(default_factory=dict)
    metrics: tuple[Json, ...] = ()  # lines of metrics.jsonl; of repeated (seed, step, kind) the last
    certificates: tuple[Json, ...] = ()  # of certificate*.json, which `surefoot certify` wrote
    steps_of: str = "gradient steps"  # or environment steps, where the algorithm acts while it trains
    preset: str | None = None  # of the algorithm, where it has several and the run's options are those of one

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> RunData:
        """Read `summary.json`, `config.json` and `metrics.jsonl` of a run folder.

        Raises:
            CheckpointError: not a run folder, an unfinished run, or a damaged file, which is named.
        """
        path = pathlib.Path(folder)
        if not path.is_dir():
            raise CheckpointError(f"{path} is not a run folder; give one that surefoot train wrote")
        if not (path / "summary.json").is_file():
            raise CheckpointError(
                f"{path} has no summary.json: it is not a run folder, or its run has not finished (resume it)"
            )
        summary, config = _read_object(path / "summary.json"), _read_object(path / "config.json")
        source = path / "summary.json"
        try:
            return cls(
                name=path.resolve().name,
                algorithm=str(summary["algorithm"]),
                dataset=_optional(str, summary["dataset"]),
                environment=_optional(_environment, summary["environment"]),
                steps=int(summary["steps"]),
                seeds=tuple(int(seed) for seed in summary["seeds"]),
                episodes=int(summary["episodes"] or 0),
                per_seed_returns=tuple(float(value) for value in summary["per_seed_returns"] or ()),
                returns=_interval(summary["returns"]),
                normalized=_interval(summary["normalized"]),
                behaviour=_interval(summary["behaviour"]),
                cost=_interval(summary["cost"]),
                per_seed_costs=tuple(float(value) for value in summary.get("per_seed_costs") or ()),
                safety=None if summary.get("safety") is None else Safety.from_json(summary["safety"]),
                smoothness=_smoothness(summary.get("smoothness")),
                updates_per_second=_optional(float, summary["updates_per_second"]),
                versions={str(key): str(value) for key, value in summary["versions"].items()},
                date=str(summary["date"]),
                config=config,
                metrics=_read_metrics(path / "metrics.jsonl"),
                certificates=tuple(_certificate(found) for found in sorted(path.glob("certificate*.json"))),
                steps_of=str(summary.get("steps_of", "gradient steps")),
                preset=_optional(str, summary.get("preset")),
            )
        except KeyError as error:
            raise CheckpointError(f"{source} has no key {error}; it is damaged or of another version") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{source} holds a value of the wrong kind ({error}); it is damaged") from error

    @property
    def label(self) -> str:
        """The algorithm, with its preset where it has several."""
        return labelled(self.algorithm, self.preset)

    @property
    def task(self) -> str:
        """Dataset and environment in a few words."""
        return task_name(self.dataset, self.environment)

    @staticmethod
    def steps_of_all(runs: Sequence[RunData]) -> str:
        """What is counted along the curves of several runs."""
        return " or ".join(sorted({run.steps_of for run in runs}))

    @property
    def cost_limit(self) -> float | None:
        """The limit of an episode's cost that it was trained or is judged for."""
        return None if self.safety is None else self.safety.limit

    def judged_by(self, limit: float | None) -> RunData:
        """The run beside a cost limit of the reader's; as it is where it has no costs, or None is given."""
        if limit is None or self.safety is None or limit == self.safety.limit:
            return self
        return dataclasses.replace(self, safety=with_limit(self.safety, limit))

    def learning_curve(self) -> list[CurvePoint]:
        """Mean evaluation return over seeds at each evaluated step, with its 95 % interval.

        Where every seed logged its per-episode `returns` the interval is `hierarchical_interval`'s; else
        Student's t over the seeds' `return_mean`. Steps that only some seeds have reached are left out.
        """
        by_step: dict[int, dict[int, Json]] = {}
        for line in self.metrics:
            if line["kind"] == "eval" and "return_mean" in line["values"]:
                by_step.setdefault(int(line["step"]), {})[int(line["seed"])] = line["values"]
        seeds = set().union(*by_step.values()) if by_step else set()
        complete = [(step, list(rows.values())) for step, rows in by_step.items() if set(rows) == seeds]
        return [_point(step, rows) for step, rows in sorted(complete, key=lambda pair: pair[0])]


def labelled(algorithm: str, preset: str | None) -> str:
    """`fisor (small)`, or the bare name where no preset is told."""
    return algorithm if preset is None else f"{algorithm} ({preset})"


def task_name(dataset: str | None, environment: str | None) -> str:
    """`native/pendulum-mixed in Pendulum-v1`: of a dataset's file the stem, and only what there is."""
    if dataset is None:
        return str(environment)
    name = pathlib.Path(dataset).stem if pathlib.Path(dataset).suffix else dataset
    return name if environment is None else f"{name} in {environment}"


def load_runs(folders: Sequence[str | os.PathLike[str]]) -> list[RunData]:
    """`RunData.load` of each folder, in their order; raises CheckpointError at the first that is not one."""
    return [RunData.load(folder) for folder in folders]


def _point(step: int, rows: list[Json]) -> CurvePoint:
    episodes = [np.asarray(row.get("returns") or (), dtype=np.float64) for row in rows]
    if len({len(returns) for returns in episodes}) == 1 and len(episodes[0]) > 0:
        interval = hierarchical_interval(episodes)
    else:
        means = [np.array([row["return_mean"]], dtype=np.float64) for row in rows]
        interval = hierarchical_interval(means, shared_episodes=False)
    return CurvePoint(step, interval.estimate, interval.low, interval.high)


def _interval(value: Any) -> Json | None:
    """A mapping with finite-or-None `mean`, `low`, `high`, or None."""
    if value is None:
        return None
    for key in ("mean", "low", "high"):
        if value[key] is not None:
            float(value[key])
    return dict(value)


def _smoothness(value: Any) -> Json | None:
    """Both measures, or None; runs of before they were taken have none."""
    return None if value is None else {name: _interval(value[name]) for name in ("action_change", "jacobian")}


def _certificate(path: pathlib.Path) -> Json:
    """A bound of `surefoot certify`."""
    value = _read_object(path)
    missing = [key for key in CERTIFICATE_KEYS if key not in value]
    if isinstance(filtered := value.get("filter"), dict):
        missing += [key for key in FILTER_KEYS if key not in filtered]
    if missing:
        raise CheckpointError(f"{path} has no key {missing[0]!r}; it is damaged: certify the run again")
    return value | {"environment": _environment(value["environment"])}


def _environment(name: Any) -> str:
    """One name for an environment that has two, so that its runs are compared."""
    return short_name(str(name))


def _optional(kind: Any, value: Any) -> Any:
    return None if value is None else kind(value)


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object and holds a {type(value).__name__}")
    return value


def _read_metrics(path: pathlib.Path) -> tuple[Json, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; the run folder is incomplete, run it again") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read ({error}); the run folder is damaged") from error
    lines: dict[tuple[int, int, str], Json] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            value = json.loads(line)
            key = (int(value["seed"]), int(value["step"]), str(value["kind"]))
            lines[key] = {"seed": key[0], "step": key[1], "kind": key[2], "values": dict(value["values"])}
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path}, line {number}: not a metrics line with seed, step, kind and values ({error}); "
                "the run folder is damaged or still being written"
            ) from error
    return tuple(lines.values())
