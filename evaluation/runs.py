"""`RunData`: what a finished run folder says about itself, read back for tables and reports."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.files import read_json, read_regular
from surefoot.core.base.schema import (
    MOST_BYTES,
    Flag,
    Many,
    Maybe,
    Number,
    Plain,
    Record,
    Table,
    Text,
    check,
    parse,
    refuse_large,
)
from surefoot.envs.acting import short_name
from surefoot.evaluation.curves import LOGGED, CurvePoint, curve_of, grouped
from surefoot.evaluation.label import labelled
from surefoot.evaluation.model_calibration import MODEL, MOST, refuse_uneven
from surefoot.evaluation.safety import Safety, with_limit

Json = Mapping[str, Any]
CONFIG_FORMAT = SUMMARY_FORMAT = METRICS_FORMAT = 1
"""Versions of the formats of config.json, summary.json and a line of metrics.jsonl: raised with every change that
earlier versions of surefoot would read wrongly."""
_COUNT, _BOUND = Number(0, whole=True), Maybe(Number())
_FINITE = Plain(finite=True)  # tables are given as JSON, which has no other numbers
INTERVAL = Record({"mean": _BOUND, "low": _BOUND, "high": _BOUND}, others=True, rest=_FINITE)
METRICS_LINE = Record(
    {
        "seed": _COUNT,
        "step": _COUNT,
        "kind": Text(100),
        "values": Record(
            {},
            {
                "return_mean": Number(nan=True),
                "cost_mean": Number(nan=True),
                "length_mean": Number(0),
                "success_mean": Number(0, 1),
                "returns": Many(Number(nan=True)),
                "costs": Many(Number(nan=True)),
                "successes": Many(Number(0, 1)),
                "greedy_mean": Number(0, 1),
                "pass_k_mean": Number(0, 1),
                "passes": Many(Number(0, 1)),
            },
            others=True,
        ),
    },
    others=True,
    newest=METRICS_FORMAT,
)
ALARM = Record(
    {
        "rings": Many(
            Record(
                {
                    "seed": _COUNT,
                    "step": _COUNT,
                    "signal": Text(100),
                    "value": Number(nan=True),
                    "threshold": Number(),
                    "meaning": Text(),
                },
                others=True,
            )
        ),
        "supported": Many(
            Record(
                {"seed": _COUNT, "policy": Text(), "step": Maybe(_COUNT), "mean": _BOUND, "of": Text(100)},
                {"last": _BOUND, "data": _BOUND},
                others=True,
            )
        ),
    },
    {"watched": Many(Text(100))},
)
"""Of a run that learned a model: what rang, the policies from before, and the signals that could ring."""
SHARES = Record({"greedy": INTERVAL, "pass_1": INTERVAL, "pass_k": INTERVAL})
PASSES = Record({"samples": Number(1, whole=True), "before": SHARES, "after": SHARES, "change": SHARES})
"""Of a language model: shares of right answers on prompts that were held out; `samples` is k."""
BEST = Record(
    {
        "per_seed_steps": Many(_COUNT, 1),
        "per_seed_chosen_by": Many(Number(), 1),
        "chosen_by": Number(),
        "chosen_by_episodes": Number(1, whole=True),
        "per_seed_returns": Many(Number(), 1),
        "returns": INTERVAL,
        "normalized": Maybe(INTERVAL),
        "safety": Maybe(Record.of(Safety)),
    },
    {
        "cost": INTERVAL,
        "per_seed_costs": Many(Number()),
        "success": INTERVAL,
        "per_seed_success": Many(Number(0, 1)),
    },
)
"""Of a run that kept its best policies: which steps they are of, what chose them, and their own scores."""
SUMMARY = Record(
    {
        "algorithm": Text(),
        "dataset": Maybe(Text()),
        "environment": Maybe(Text()),
        "steps": _COUNT,
        "seeds": Many(_COUNT, 1),
        "episodes": Maybe(_COUNT),
        "per_seed_returns": Maybe(Many(Number())),
        "returns": Maybe(INTERVAL),
        "normalized": Maybe(INTERVAL),
        "behaviour": Maybe(
            Record(
                {"mean": _BOUND, "low": _BOUND, "high": _BOUND},
                {"episodes": _COUNT, "normalized": _BOUND, "cost": Maybe(INTERVAL)},
                others=True,
            )
        ),
        "cost": Maybe(INTERVAL),
        "updates_per_second": Maybe(Number(0)),
        "versions": Table(Text()),
        "date": Text(),
    },
    {
        "per_seed_costs": Maybe(Many(Number())),
        "success": Maybe(INTERVAL),
        "per_seed_success": Maybe(Many(Number(0, 1))),
        "passes": Maybe(PASSES),
        "per_seed_pass_k": Maybe(Many(Number(0, 1))),
        "safety": Maybe(Record.of(Safety)),
        "smoothness": Maybe(Record({"action_change": Maybe(INTERVAL), "jacobian": Maybe(INTERVAL)}, others=True)),
        "steps_of": Text(),
        "return_bounds": Maybe(Many(Maybe(Number()), 2, 2)),
        "preset": Maybe(Text()),
        "options": Table(_FINITE),
        "alarm": Maybe(ALARM),
        "models": Many(MODEL, 1, MOST),
        "best": BEST,
        "missing": Many(Text()),
        "validation": Table(Maybe(Number(nan=True))),
        "fitted_q": Maybe(Record({"mean": _BOUND, "low": _BOUND, "high": _BOUND}, {"drift": _BOUND}, others=True)),
        "data_discounted_return": Record(
            {"mean": Number(), "best": Number(), "discount": Number(0, 1)}, {"past_time_limits": Flag()}, others=True
        ),
    },
    others=True,
    newest=SUMMARY_FORMAT,
)
ANY_CONFIG = Record({}, others=True, newest=CONFIG_FORMAT)
"""What a report shows of config.json, whatever was trained."""
CERTIFICATE = Record(
    {
        "sentence": Text(),
        "policy": Text(),
        "environment": Text(),
        "violations": _COUNT,
        "episodes": Number(1, whole=True),
        "upper": Number(0, 1),
        "confidence": Number(0, 1),
    },
    {
        "gap": Maybe(Text()),
        "steps": Maybe(Number(1, whole=True)),
        "varied": Maybe(Table(Many(Number(), 2, 2))),
        "returns": Maybe(INTERVAL),
        "filter": Maybe(
            Record(
                {
                    "kind": Text(),
                    "margin": Number(),
                    "changed": _COUNT,
                    "actions": _COUNT,
                    "broken": _COUNT,
                    "cases": Many(Text()),
                },
                others=True,
            )
        ),
    },
    others=True,
)


LAST, BEST_ONES = "last", "best"


@dataclasses.dataclass(frozen=True)
class RunData:
    """A run: the fields of its `summary.json`, its resolved config and its metrics.

    `returns`, `normalized` and `cost` are mappings with `mean`, `low`, `high` (95 % interval), or None where
    there was no simulator, no reference score or no cost.
    """

    name: str  # of the run folder
    algorithm: str
    dataset: str | None  # None: it learned online alone
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
    options: Json = dataclasses.field(
        default_factory=dict
    )  # of the algorithm, that differ from the preset's or default
    success: Json | None = None  # share of the episodes that end solved; None where the environment says nothing of it
    per_seed_success: tuple[float, ...] = ()
    passes: Json | None = None  # of a language model: samples, and before, after and change of greedy, pass_1, pass_k
    per_seed_pass_k: tuple[float, ...] = ()
    alarm: Json | None = None  # rings and supported; None where no model was learned
    validation: Json = dataclasses.field(
        default_factory=dict
    )  # loss -> mean over seeds on episodes held out; None: not finite
    fitted_q: Json | None = (
        None  # of runs without a simulator: mean, low, high of the estimated discounted return, drift
    )
    data_discounted_return: Json | None = None  # mean, best, discount of the data, to hold that against
    missing: tuple[str, ...] = ()  # sentences: what could not be estimated, of which seeds and why
    best: Json | None = None  # scores of the best policies by evaluations in training, where the run kept them
    policies: str = LAST  # whose scores these are: the last policies', or with `of_best` the best ones'
    models: tuple[Json, ...] = ()  # how far the world that each seed learned is to be believed
    folder: pathlib.Path | None = None  # where the run lies
    return_bounds: tuple[float | None, float | None] | None = None  # of an episode, as the environment declares them

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
        source = path / "summary.json"
        summary, config = read_json(source, SUMMARY), read_json(path / "config.json", ANY_CONFIG)
        refuse_uneven(summary.get("models", ()), source)
        counts = {key: len(summary[key]) for key in summary if key.startswith("per_seed_") and summary[key]}
        if len(set(counts.values())) > 1:
            raise CheckpointError(f"{source}: holds {counts} numbers, which must be one a seed; it is damaged")
        fields = {field.name for field in dataclasses.fields(cls)} & summary.keys()
        found = {
            key: tuple(value) if isinstance(value, list) else value for key, value in summary.items() if key in fields
        }
        try:
            costs = None if summary.get("safety") is None else Safety.from_json(summary["safety"])
        except CheckpointError as error:
            raise CheckpointError(f"{source}: {error}") from error
        return cls(
            **{
                **found,
                "name": path.resolve().name,
                "folder": path,
                "environment": summary["environment"] and short_name(summary["environment"]),  # one of its two names
                "episodes": summary["episodes"] or 0,
                "per_seed_returns": tuple(summary["per_seed_returns"] or ()),
                "per_seed_costs": tuple(summary.get("per_seed_costs") or ()),
                "per_seed_success": tuple(summary.get("per_seed_success") or ()),
                "per_seed_pass_k": tuple(summary.get("per_seed_pass_k") or ()),
                "safety": costs,
                "config": config,
                "metrics": _read_metrics(path / "metrics.jsonl"),
                "certificates": tuple(map(_certificate, sorted(path.glob("certificate*.json")))),
            }
        )

    @property
    def label(self) -> str:
        """The algorithm, with its preset where it has several, or the options that were changed."""
        return labelled(self.algorithm, self.preset, self.options)

    @property
    def task(self) -> str:
        """Dataset and environment in a few words."""
        return task_name(self.dataset, self.environment)

    @staticmethod
    def steps_of_all(runs: Sequence[RunData]) -> str:
        """What is counted along the curves of several runs."""
        return " or ".join(sorted({run.steps_of for run in runs}))

    @property
    def bounds(self) -> tuple[float, float]:
        """What an episode's return lies within; infinite where the environment declares nothing."""
        low, high = self.return_bounds or (None, None)
        return -math.inf if low is None else low, math.inf if high is None else high

    @property
    def cost_limit(self) -> float | None:
        """The limit of an episode's cost that it was trained or is judged for."""
        return None if self.safety is None else self.safety.limit

    def judged_by(self, limit: float | None) -> RunData:
        """The run beside a cost limit of the reader's; as it is where it has no costs, or None is given."""
        if limit is None or self.safety is None or limit == self.safety.limit:
            return self
        return dataclasses.replace(self, safety=with_limit(self.safety, limit))

    def of_best(self) -> RunData:
        """The run with the scores of its best policies in the place of the last ones'.

        They are of episodes that did not choose those policies. Curves, and what is known of the last policies alone,
        stay or are left out.

        Raises:
            CheckpointError: it did not keep them.
        """
        if self.best is None:
            raise CheckpointError(
                f"{self.folder or self.name}: kept its last policies alone; keep_best=true keeps the best ones too"
            )
        found = self.best
        safety = None if found["safety"] is None else Safety.from_json(found["safety"])
        return dataclasses.replace(
            self,
            policies=BEST_ONES,
            per_seed_returns=tuple(found["per_seed_returns"]),
            returns=found["returns"],
            normalized=found["normalized"],
            cost=found.get("cost"),
            per_seed_costs=tuple(found.get("per_seed_costs", ())),
            success=found.get("success"),
            per_seed_success=tuple(found.get("per_seed_success", ())),
            safety=safety,
            smoothness=None,
            certificates=(),
        )

    def learning_curve(self) -> list[CurvePoint]:
        """Mean evaluation return over seeds at each evaluated step, with its 95 % interval.

        Where every seed logged its per-episode `returns` the interval is `hierarchical_interval`'s; else
        Student's t over the seeds' `return_mean`. Steps that only some seeds have reached are left out; where seeds
        count steps of their own, since they decide in chunks, their evaluations stand beside each other in order.
        """
        return self._curve("return")

    def success_curve(self) -> list[CurvePoint]:
        """The same of the share of episodes that end solved; empty where the environment says nothing of it."""
        return self._curve("success")

    def cost_curve(self) -> list[CurvePoint]:
        """The same of an episode's summed cost; empty where the environment gives none."""
        return self._curve("cost")

    def pass_curve(self) -> list[CurvePoint]:
        """The same of pass@k, the share of prompts of which at least one of k answers is right."""
        return self._curve("pass_k")

    def logged(self, metric: str) -> dict[int, dict[int, Json]]:
        """Seed -> step -> the values of its evaluation while it trained, where these have the metric (`LOGGED`)."""
        found: dict[int, dict[int, Json]] = {}
        for line in self.metrics:
            if line["kind"] == "eval" and LOGGED[metric].mean in line["values"]:
                found.setdefault(int(line["seed"]), {})[int(line["step"])] = line["values"]
        return found

    def last_evaluations(self) -> list[Json]:
        """The values of each seed's last evaluation while it trained."""
        return [points[max(points)] for points in self.logged("return").values()]

    def _curve(self, metric: str) -> list[CurvePoint]:
        return curve_of(self.logged(metric), metric, self.bounds)

    def training_curves(self) -> dict[str, list[tuple[int, float]]]:
        """Name of each loss and metric -> (step, mean over the seeds that have it) along training.

        Of seeds that count steps of their own, the mean of what stands side by side.
        """
        found: dict[str, dict[int, dict[int, float]]] = {}
        for line in self.metrics:
            if line["kind"] == "train":
                for name, value in line["values"].items():
                    if isinstance(value, int | float) and abs(value) <= sys.float_info.max:  # whole numbers have no end
                        found.setdefault(name, {}).setdefault(int(line["seed"]), {})[int(line["step"])] = float(value)
        return {name: [(step, float(np.mean(values))) for step, values in grouped(by_seed)]
                for name, by_seed in found.items()}  # fmt: skip


def task_name(dataset: str | None, environment: str | None) -> str:
    """`native/pendulum-mixed in Pendulum-v1`: of a dataset's file the stem, and only what there is."""
    if dataset is None:
        return str(environment)
    name = pathlib.Path(dataset).stem if pathlib.Path(dataset).suffix else dataset
    return name if environment is None else f"{name} in {environment}"


def load_runs(folders: Sequence[str | os.PathLike[str]]) -> list[RunData]:
    """`RunData.load` of each folder, in their order; raises CheckpointError at the first that is not one."""
    return [RunData.load(folder) for folder in folders]


def _certificate(path: pathlib.Path) -> Json:
    """A bound of `surefoot certify`."""
    value = read_json(path, CERTIFICATE)
    return {**value, "environment": short_name(value["environment"])}


def _read_metrics(path: pathlib.Path) -> tuple[Json, ...]:
    try:
        content = read_regular(path, MOST_BYTES)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; the run folder is incomplete, run it again") from error
    except OSError as error:
        raise CheckpointError(f"{path} can't be read ({error}); the run folder is damaged") from error
    refuse_large(content, path)
    lines: dict[tuple[int, int, str], Json] = {}
    for number, line in enumerate(io.BytesIO(content), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            value = check(parse(line, where), METRICS_LINE, where)
            lines[value["seed"], value["step"], value["kind"]] = value
    return tuple(lines.values())
