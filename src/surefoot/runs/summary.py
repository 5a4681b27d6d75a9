"""What a finished run says about itself: scores with intervals, metrics, learning curves."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.files import read_json, write_json, written_aside
from surefoot.core.base.schema import Many, Maybe, Number, Record, Table, Text
from surefoot.core.base.spec import Spec
from surefoot.data import normalized_score, reference_scores
from surefoot.data.conventions import scored
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import discounted_returns
from surefoot.envs.return_bounds import return_bounds
from surefoot.evaluation import (
    Episodes,
    Interval,
    bounded_interval,
    cost_interval,
    hierarchical_interval,
    names,
    plots,
    safety,
    smoothness,
    success_rate,
)
from surefoot.evaluation.model_calibration import MODEL, picture
from surefoot.evaluation.rollout import EPISODES
from surefoot.evaluation.runs import INTERVAL, METRICS_FORMAT, METRICS_LINE, SUMMARY_FORMAT, task_name
from surefoot.offline.evaluation.least_squares_q import (
    LEAST_EPISODES,
    LeastSquaresJudge,
    LeastSquaresQConfig,
    OwnReturns,
    own_returns,
)
from surefoot.runs.finishing import DATA, ESTIMATES, FITTED_Q, MISSING, NAMES, all_missing, attempted
from surefoot.runs.plan import agent_class, told_options
from surefoot.runs.run import (
    CONFIG,
    IN_MEMORY,
    RESULT_FORMAT,
    Run,
    describe_machine,
    episodes_apart,
    read_columns,
)

Array = np.ndarray[Any, Any]

DISCOUNT = 0.99
"""Of returns where no simulator judges."""
ENGINE = Record({}, {"steps": Text(), "eager": Table(Text()), "products": Text(among=("tf32",))})
"""How training steps were repeated, and why some were not; empty where a sample is one call. `products` where matrix
products were not float32's."""
ALARM_OF_SEED = Record(
    {"rings": Many(Record({"step": Number(0, whole=True), "signal": Text(), "meaning": Text()}, others=True))},
    {
        "supported": Maybe(
            Record({"policy": Text()}, {"returns": Many(Number()), "fitted_q": Maybe(Many(Number()))}, others=True)
        ),
        "watched": Many(Text()),
    },
)
"""What rang, and what the policy from before is worth (`runs.trainers.alarm_monitor`)."""
RESULT = Record(
    {
        "seed": Number(0, whole=True),
        "updates_per_second": Number(0),
        "steps_per_second": Number(0),
        "metrics": Many(METRICS_LINE),
        "evaluation": Maybe(EPISODES),
    },
    {
        "steps": Number(0, whole=True),
        "jacobian": Maybe(Number(0)),
        "fitted_q": Maybe(Many(Number())),  # null, as what follows: not finite
        "fitted_q_drift": Maybe(Number()),
        "validation": Table(Maybe(Number())),
        MISSING: Table(Text()),  # what could not be estimated, and why
        "engine": ENGINE,
        "alarm": ALARM_OF_SEED,
        "model": MODEL,
        "best": Record(
            {"step": Number(0, whole=True), "policy": Text(), "chosen_by": INTERVAL, "evaluation": EPISODES},
            others=True,
        ),
    },
    others=True,
    newest=RESULT_FORMAT,
)
"""What a seed's result.json holds."""
MACHINE = Record({"versions": Table(Text())}, others=True)
"""What environment.json holds."""


def _interval_json(interval: Interval, reference: tuple[float, float] | None = None) -> dict[str, Any]:
    value = interval.to_json()
    if reference is not None:
        for key in ("mean", "low", "high"):
            value[key] = None if value[key] is None else float(normalized_score(value[key], reference))
    return value


def behaviour(dataset: Dataset, reference: tuple[float, float] | None) -> dict[str, Any]:
    """Return and cost of the data itself, with the interval of their means over episodes."""
    returns = dataset.episode_returns
    interval = hierarchical_interval([returns]).to_json()
    mean = None if reference is None else float(normalized_score(scored(dataset).mean(), reference))
    costs = dataset.episode_costs
    cost = None if costs is None else cost_interval([costs]).to_json()
    return {**interval, "episodes": len(returns), "normalized": mean, "cost": cost}


def sum_up(run: Run) -> dict[str, Any]:
    """Write metrics.jsonl, summary.json and curves.png of a run whose seeds all have results; the summary."""
    plan = run.plan
    results = [read_json(run.seed_folder(seed) / "result.json", RESULT) for seed in plan.seeds]
    dataset = read_columns(run.columns_path) if run.columns_path.is_file() else None
    reference = reference_scores(plan.environment or (dataset and (dataset.env_id or dataset.name)) or "")
    config = read_json(run.folder / "config.json", CONFIG)
    preset, options = told_options(plan.algorithm, plan.config)
    summary: dict[str, Any] = {
        "format": SUMMARY_FORMAT,
        "algorithm": plan.algorithm,
        "preset": preset,
        "options": options,
        "dataset": (config.get("dataset") or {}).get("name"),
        "environment": plan.environment,
        "steps": max(int(result.get("steps", plan.steps)) for result in results),
        "steps_of": "environment steps" if agent_class(plan.algorithm).requires.online else "gradient steps",
        "seeds": list(plan.seeds),
        "episodes": plan.episodes if plan.evaluates else 0,
        "per_seed_returns": [],
        "returns": None,
        "normalized": None,
        "behaviour": None if dataset is None or not dataset.has_rewards else behaviour(dataset, reference),
        "cost": None,
        "per_seed_costs": [],
        "success": None,
        "per_seed_success": [],
        "safety": None,
        "smoothness": None,
        "updates_per_second": float(np.mean([result["updates_per_second"] for result in results])),
        "steps_per_second": float(np.mean([result["steps_per_second"] for result in results])),
        "engine": results[0].get("engine"),
        "device_choice": config.get("device_choice"),
        "versions": read_json(run.folder / "environment.json", MACHINE)["versions"],
        "date": describe_machine()["date"],
        "alarm": None,
        "stopped": (config.get("stopped") or [None])[-1],  # by a listener, before the steps that were planned
    }
    jacobians = [result.get("jacobian") for result in results]  # not in results of before it was measured
    if plan.evaluates:
        episodes = [Episodes.from_json(result["evaluation"]) for result in results]
        bounds = return_bounds(str(plan.environment))
        summary["return_bounds"] = [bound if math.isfinite(bound) else None for bound in bounds]
        summary |= _scores(episodes, reference, plan.cost_limit, bounds)
        summary["smoothness"] = smoothness(episodes, jacobians)
        if all("best" in result for result in results):
            summary["best"] = _best([result["best"] for result in results], reference, plan.cost_limit, bounds)
    elif dataset is not None:
        summary["smoothness"] = smoothness(None, jacobians)
        _without_simulator(summary, results, dataset, run)
    by_seed = dict(zip(plan.seeds, results, strict=True))
    summary["missing"] = summary.get("missing", []) + all_missing(by_seed, NAMES.keys() - {FITTED_Q})
    summary["alarm"] = _alarm(plan.seeds, results, summary.get("data_discounted_return"))
    modelled = {seed: result["model"] for seed, result in by_seed.items() if "model" in result}
    if modelled:
        summary["models"] = models = list(modelled.values())
        write_json(run.folder / "model.json", {"seeds": list(modelled), "models": models})
        plots.save_png(picture(models, task_name(summary["dataset"], plan.environment)), run.folder / "model.png")
    lines = sorted((line for result in results for line in result["metrics"]), key=lambda line: line["step"])
    with written_aside(run.folder / "metrics.jsonl") as temporary:
        temporary.write_text(
            "".join(json.dumps({"format": METRICS_FORMAT, **line}) + "\n" for line in lines), encoding="utf-8"
        )
    write_json(run.folder / "summary.json", summary)
    if plan.evaluates:
        draw_curves([run], run.folder / "curves.png")
    if plan.dataset != IN_MEMORY:
        run.columns_path.unlink(missing_ok=True)
    shutil.rmtree(run.prepared_path, ignore_errors=True)
    return summary


def _scores(
    episodes: Sequence[Episodes],
    reference: tuple[float, float] | None,
    cost_limit: float | None,
    bounds: tuple[float, float],
) -> dict[str, Any]:
    """Of a summary: what the episodes of each seed's policy returned and cost, with intervals within `bounds`."""
    returns = bounded_interval([e.returns for e in episodes], bounds)
    scores: dict[str, Any] = {
        "per_seed_returns": [float(e.returns.mean()) for e in episodes],
        "returns": _interval_json(returns),
        "normalized": None if reference is None else _interval_json(returns, reference),
    }
    if all(e.costs is not None for e in episodes):
        costs = [e.costs for e in episodes if e.costs is not None]
        scores["cost"] = _interval_json(cost_interval(costs))
        scores["per_seed_costs"] = [float(cost.mean()) for cost in costs]
    solved = success_rate(episodes)
    if solved is not None:
        scores["success"] = solved.to_json()
        scores["per_seed_success"] = [float(e.successes.mean()) for e in episodes if e.successes is not None]
    found = safety(episodes, cost_limit)
    return scores | {"safety": None if found is None else found.to_json()}


def _best(
    found: Sequence[Mapping[str, Any]],
    reference: tuple[float, float] | None,
    cost_limit: float | None,
    bounds: tuple[float, float],
) -> dict[str, Any]:
    """The same of the best policies, which steps they are of, and the mean return of the evaluations that chose them.

    The latter is too high by luck; `returns` are of episodes that chose nothing.
    """
    chosen = [one["chosen_by"]["mean"] for one in found]
    return {
        "per_seed_steps": [one["step"] for one in found],
        "per_seed_chosen_by": chosen,
        "chosen_by": float(np.mean(chosen)),
        "chosen_by_episodes": found[0]["chosen_by"]["episodes"],
        **_scores([Episodes.from_json(one["evaluation"]) for one in found], reference, cost_limit, bounds),
    }


def _alarm(
    seeds: Sequence[int], results: Sequence[dict[str, Any]], data: dict[str, float] | None
) -> dict[str, Any] | None:
    """What rang in which seed, and what the policies kept from before are worth; None where no model is learned.

    Beside the mean of such a policy stands that of the last one, and of estimates the data's own discounted return.
    """
    if any("alarm" not in result for result in results):
        return None
    rings, supported = [], []
    for seed, result in zip(seeds, results, strict=True):
        rings += [{"seed": seed, **ring} for ring in result["alarm"]["rings"]]
        kept = result["alarm"]["supported"]
        if kept is not None:
            estimated = "returns" not in kept
            mean = _mean(kept.get("fitted_q") if estimated else kept["returns"])
            last = _mean(result.get("fitted_q") if estimated else (result["evaluation"] or {}).get("returns"))
            worth = {"mean": mean, "of": "fitted-Q estimates" if estimated else "returns", "last": last}
            own = data["mean"] if estimated and data is not None else None
            supported.append({"seed": seed, "policy": kept["policy"], "step": kept.get("step"), **worth, "data": own})
    found: dict[str, Any] = {"rings": rings, "supported": supported}
    if all("watched" in result["alarm"] for result in results):  # not in results of before it was given
        found["watched"] = list(dict.fromkeys(name for result in results for name in result["alarm"]["watched"]))
    return found


def _mean(values: Sequence[float] | None) -> float | None:
    return None if not values else float(np.mean(values))


def _without_simulator(summary: dict[str, Any], results: list[dict[str, Any]], dataset: Dataset, run: Run) -> None:
    losses = [result.get("validation", {}) for result in results]
    shared = [name for name in losses[0] if all(name in one for one in losses)]
    summary["validation"] = {
        name: None if any(one[name] is None for one in losses) else float(np.mean([one[name] for one in losses]))
        for name in shared
    }
    if not any(FITTED_Q in result for result in results):
        return
    missing: dict[str, str] = {}
    data = attempted(DATA, lambda: data_return(dataset, run.spec), None, missing)
    if data is None:
        summary["missing"] = [f"no {NAMES[DATA]}: {missing[DATA]}"]
    else:
        summary["data_discounted_return"] = data
    estimates = {seed: result.get(FITTED_Q) for seed, result in zip(summary["seeds"], results, strict=True)}
    if None in estimates.values():
        summary[FITTED_Q] = {
            **dict.fromkeys(("mean", "low", "high", "drift")),
            "method": _no_estimate(estimates, results),
        }
        return
    values = [np.asarray(found) for found in estimates.values()]
    learned, _ = episodes_apart(dataset, agent_class(run.plan.algorithm).required_columns)
    rewards = dataset.rewards[np.isin(dataset.episode_ids, learned)]
    interval = hierarchical_interval(values, bounds=possible_returns(rewards, values))
    summary[FITTED_Q] = _interval_json(interval)
    drifts = [result["fitted_q_drift"] for result in results]
    summary[FITTED_Q]["drift"] = float(np.abs(drifts).mean())  # of seeds that move apart the sum would be near 0


def _no_estimate(estimates: Mapping[int, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Why there is no fitted-Q estimate of all seeds."""
    absent = {seed: one for (seed, found), one in zip(estimates.items(), results, strict=True) if found is None}
    kinds = (FITTED_Q, ESTIMATES)
    diverged = [seed for seed, one in absent.items() if not one.get(MISSING, {}).keys() & set(kinds)]
    given = [f"the critics that judge seeds {', '.join(map(str, diverged))} diverged"] if diverged else []
    given += all_missing(absent, kinds)
    return f"none: {'; '.join(given)}"


def data_return(dataset: Dataset, spec: Spec) -> dict[str, Any]:
    """Mean and best discounted return of all the data, as `surefoot select` has them: past time limits, as a policy's.

    They are cut off there where episodes are too few for that, or the data's own critics fail, also for want of memory.
    """
    if len(dataset.episode_lengths) >= LEAST_EPISODES:
        low, high = (np.asarray(bounds, np.float64) for bounds in (spec.action_low, spec.action_high))
        own = attempted(DATA, lambda: _own_returns(dataset, low, high), None, {})
        least, most = possible_returns(dataset.rewards, [np.zeros(1)])
        if own is not None and least <= (mean := float(own.reported.mean())) <= own.best <= most:  # also finite
            return {"mean": mean, "best": own.best, "discount": DISCOUNT, "past_time_limits": True}
    cut = discounted_returns(dataset, DISCOUNT)
    return {"mean": float(cut.mean()), "best": float(cut.max()), "discount": DISCOUNT, "past_time_limits": False}


def _own_returns(dataset: Dataset, low: Array, high: Array) -> OwnReturns:
    with np.errstate(over="ignore", invalid="ignore"):
        judge = LeastSquaresJudge(dataset, low, high, config=LeastSquaresQConfig(discount=DISCOUNT))
        return own_returns(judge, dataset)


def possible_returns(rewards: Array, estimates: Sequence[Array]) -> tuple[float, float]:
    """What a discounted return can't be below and above by the rewards in the data, unless an estimate already is.

    Rewards from a to b sum to between min(a, 0) / (1 - DISCOUNT) and max(b, 0) / (1 - DISCOUNT), since episodes end.
    """
    low, high = (bound / (1 - DISCOUNT) for bound in (min(float(rewards.min()), 0), max(float(rewards.max()), 0)))
    return min(low, *(float(one.min()) for one in estimates)), max(high, *(float(one.max()) for one in estimates))


def draw_curves(runs: Sequence[Run], path: pathlib.Path) -> None:
    """Learning curves of complete runs on one dataset, with the behaviour's return as a dashed line; none where no
    evaluation is of all seeds. Where a run has a cost limit, the curves of the cost stand beside them, with the limit.
    """
    from surefoot.evaluation import RunData, plots

    data = [RunData.load(run.folder) for run in runs]
    first = data[0]
    named = dict(zip(names.labels(data), data, strict=True))
    curves = {label: item.learning_curve() for label, item in named.items()}
    if not any(curves.values()):
        return
    behaviour = None if first.behaviour is None else first.behaviour["mean"]
    finals = {label: item.returns for label, item in named.items() if item.returns}
    panels = [plots.Panel(curves, first.task, behaviour=behaviour, finals=finals)]
    limits = sorted({item.cost_limit for item in data if item.cost_limit is not None})
    costs = {label: item.cost_curve() for label, item in named.items()}
    if limits and any(costs.values()):
        ends = {label: item.cost for label, item in named.items() if item.cost}
        panels.append(plots.Panel(costs, "Cost", plots.COST, limits=limits, finals=ends))
    size = (7.2, 3.8) if len(panels) == 1 else (10.0, 3.8)
    plots.save_png(plots.curve_panels(panels, RunData.steps_of_all(data), size), path)
