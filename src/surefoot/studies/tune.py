"""Hyperparameter search whose winner is judged on seeds, and from initial states, that did not choose it.

A study has a folder: `tune.json`, written before the first trial, fixes the space, the budget, and two disjoint lists
of seeds. `trials/NNN.json` has the values of a trial and `trials/NNN` its run. These are the truth: Optuna's SQLite
file `study.db` is made again from them wherever the two differ, so that a kill loses no trial and none is counted
twice. The sampler's seed is that of the study and the trial's number, so an interrupted study asks for the same values.

Protocol: Eimer, Lindauer and Raileanu, "Hyperparameters in reinforcement learning and how to tune them" (2023).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DivergenceError, MissingExtraError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.schema import Many, Number, Plain, Record, Table, Text
from surefoot.core.base.settings import read_settings
from surefoot.evaluation.deciding import LOOK_PLAN, Look, LookPlan
from surefoot.evaluation.results import TUNING
from surefoot.evaluation.selection import expected_maximum
from surefoot.runs.run import Run
from surefoot.studies.compare import METRICS, Arm, Comparison, carry_out, pairs_json, scores_of
from surefoot.studies.states import fresh_scores, over_states

if TYPE_CHECKING:
    from optuna import Study, Trial

RESULT, DATABASE = "tuned.json", "study.db"
INCUMBENT, DEFAULT = "incumbent", "default"
MAY_VARY = ("batch_size", "jacobian_penalty")
"""Of a run's fields; options of the algorithm begin with `algo.`. What is learned from, for how long, and how it is
judged are the same for all trials."""
START_UP = 10
"""Trials at random before the sampler (tree-structured Parzen estimators, Bergstra et al., 2011) learns from them."""


class ImpossibleError(ConfigError):
    """Settings of a trial that don't go together, each within its range: the trial counts as failed."""


_SEEDS = Many(Number(0, whole=True), 1)
_SPACE = Table(Plain(finite=True))
STUDY = Record(
    {
        "format": Number(1, 1, whole=True),
        "overrides": Many(Text(10_000)),
        "space": _SPACE,
        "trials": Number(1, 10**6, whole=True),
        "seeds": _SEEDS,
        "test_seeds": _SEEDS,
        "sampler_seed": Number(0, whole=True),
        "metric": Text(among=tuple(METRICS)),
        "looks": LOOK_PLAN,
        "written": Text(),
    },
    {"folder": Text(10_000)},
)
"""What tune.json holds."""
TRIAL = Record({"values": Table(Plain(finite=True))}, {"error": Text(10_000)})
"""What NNN.json holds; `error` where training diverged, or the values don't go together."""

Values = dict[str, Any]
TrainRun = Callable[[Mapping[str, Any], Sequence[int], pathlib.Path, str], Run]
"""(values, seeds, folder, label) -> the run, trained now, continued, or finished already."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What is fixed before the first trial."""

    overrides: tuple[str, ...]
    """Of all runs, as after `surefoot train`."""
    space: dict[str, Any]
    trials: int
    seeds: tuple[int, ...]
    test_seeds: tuple[int, ...]
    metric: str = "return"
    sampler_seed: int = 0
    folder: str = ""
    """The working folder that relative paths in `overrides` are meant from; studies of before it was kept have none."""
    planned: LookPlan | None = None
    """How incumbent and default are compared, as the study's file says; None: `looks` plans it."""

    def __post_init__(self) -> None:
        """Check all; raises ConfigError."""
        both = sorted(set(self.seeds) & set(self.test_seeds))
        if both:
            raise ConfigError(
                f"seeds {both} are in seeds= and in test_seeds=: a score on seeds that chose the winner is too high; "
                "give two lists that share none"
            )
        if self.trials < 1:
            raise ConfigError(f"--trials is {self.trials}; there must be at least 1")
        if not 0 <= self.sampler_seed < 2**63:
            raise ConfigError(f"--sampler-seed is {self.sampler_seed}; it must be a whole number from 0 on")
        if self.metric not in ("return", "success"):
            raise ConfigError(f"--metric {self.metric}: what is raised is the return, or success")
        assert self.looks

    @property
    def looks(self) -> LookPlan:
        """How incumbent and default are compared: in stages of at least 5 seeds, or in one; a rest is not used."""
        if self.planned is not None:
            return self.planned
        count = len(self.test_seeds)
        if count < 4:
            raise ConfigError(f"with {count} test seeds nothing can be decided: give at least 4, better 10")
        stages = max(1, count // 5)
        return LookPlan(count // stages, stages)

    def to_json(self) -> dict[str, Any]:
        """The study as JSON values, with the time."""
        own = {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}
        del own["planned"]
        return {"format": 1, **own, "looks": self.looks.to_json(),
                "written": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}  # fmt: skip

    @classmethod
    def read(cls, folder: pathlib.Path) -> Tuning:
        """The study of a folder.

        Raises:
            CheckpointError: it holds none, or a damaged one.
        """
        value = read_json(folder / TUNING, STUDY)
        names = [field.name for field in dataclasses.fields(cls) if field.name in value]
        own: dict[str, Any] = {n: tuple(value[n]) if isinstance(value[n], list) else value[n] for n in names}
        own["space"] = _space(value["space"], folder / TUNING)
        return cls(**own, planned=LookPlan.from_json(value["looks"], folder / TUNING))


def read_space(path: str | pathlib.Path) -> dict[str, Any]:
    """The space of a YAML file: name -> {low, high} with log or step, or a list of choices.

    Raises:
        ConfigError: a name that may not vary, or a range that is none.
    """
    return _space(read_settings(path), path)


def _space(found: Any, path: object) -> dict[str, Any]:
    """As `read_space`, of what a file says."""
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"{path}: must name what varies, as in algo.expectile: {{low: 0.6, high: 0.9}}")
    space: dict[str, Any] = {}
    for name, given in found.items():
        where = f"{path}: {name}"
        if not (name.startswith("algo.") or name in MAY_VARY):
            raise ConfigError(f"{where}: may not vary; options begin with algo., and {' and '.join(MAY_VARY)} may")
        space[name] = _choices(given, where) if isinstance(given, list) else _range(given, where)
    return space


def _choices(given: list[Any], where: str) -> list[Any]:
    if len(given) < 2 or any(isinstance(one, dict) for one in given):
        raise ConfigError(f"{where}: give at least two choices, as in [1, 3, 10]")
    return [str(one).replace(" ", "") if isinstance(one, list) else one for one in given]


def _range(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not {"low", "high"} <= set(given) <= {"low", "high", "log", "step"}:
        raise ConfigError(f"{where}: give {{low: ..., high: ...}}, maybe with log: true or step:, or a list of choices")
    numbers = [given[key] for key in ("low", "high", "step") if key in given]
    if any(isinstance(n, bool) or not isinstance(n, int | float) or not _in_reach(n) for n in numbers):
        raise ConfigError(f"{where}: low, high and step must be finite numbers, whole ones within 64 bits")
    if not given["low"] < given["high"] or given.get("step", 1) <= 0:
        raise ConfigError(f"{where}: low must be below high, and step above 0")
    if given.get("log") and (given["low"] <= 0 or "step" in given):
        raise ConfigError(f"{where}: with log: true, low must be above 0 and step is left out")
    return dict(given)


def _in_reach(number: float) -> bool:
    """Whether Optuna can sample up to here: floats that are finite, whole numbers of 64 bits."""
    return abs(number) < 2**63 if isinstance(number, int) else math.isfinite(number)


def corners(space: Mapping[str, Any]) -> list[Values]:
    """The ends of each range and each choice alone, to check them before the first trial."""
    return [
        {name: value}
        for name, given in space.items()
        for value in (given if isinstance(given, list) else (given["low"], given["high"]))
    ]


def distributions(space: Mapping[str, Any]) -> dict[str, Any]:
    """Optuna's distributions of a space."""
    optuna = _optuna()
    made: dict[str, Any] = {}
    for name, given in space.items():
        if isinstance(given, list):
            made[name] = optuna.distributions.CategoricalDistribution(given)
            continue
        low, high, log, step = given["low"], given["high"], bool(given.get("log")), given.get("step")
        if all(isinstance(n, int) for n in (low, high, step or 1)):
            made[name] = optuna.distributions.IntDistribution(low, high, log=log, step=step or 1)
        else:
            made[name] = optuna.distributions.FloatDistribution(low, high, log=log, step=step)
    return made


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("optuna", "tune", "surefoot tune") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def outcome(folder: pathlib.Path, number: int, metric: str) -> tuple[Values, list[float] | None] | None:
    """(values, scores of the tuning seeds, None where training diverged) of a trial that is over, else None."""
    path = folder / "trials" / f"{number:03}.json"
    if not path.is_file():
        return None
    record = read_json(path, TRIAL)
    if "error" in record:
        return record["values"], None
    run = folder / "trials" / f"{number:03}"
    if not (run / "summary.json").is_file():
        return None
    return record["values"], list(scores_of(Run.open(run), metric).values())


def failures(folder: pathlib.Path, tuning: Tuning) -> list[tuple[int, str]]:
    """(number, why) of the trials that failed: training diverged, or the values don't go together."""
    paths = {number: folder / "trials" / f"{number:03}.json" for number in range(tuning.trials)}
    records = {number: read_json(path, TRIAL) for number, path in paths.items() if path.is_file()}
    return [(number, str(record["error"])) for number, record in records.items() if "error" in record]


def study_of(folder: pathlib.Path, tuning: Tuning) -> Study:
    """Optuna's study with exactly the trials that are over, made again from the run folders where it differs."""
    optuna = _optuna()
    found = []
    for number in range(tuning.trials):
        over = outcome(folder, number, tuning.metric)
        if over is None:
            break
        found.append(over)
    url = f"sqlite:///{(folder / DATABASE).resolve()}"
    if (folder / DATABASE).is_file():
        try:
            study = optuna.load_study(study_name="surefoot", storage=url)
            known = [(t.params, t.value if t.state.name == "COMPLETE" else None, t.state.name) for t in study.trials]
        except Exception:  # damaged, or of another version
            known = None
        if known == [(v, _mean(s), "FAIL" if s is None else "COMPLETE") for v, s in found]:
            return study
        for path in folder.glob(f"{DATABASE}*"):
            path.unlink()
    study = optuna.create_study(study_name="surefoot", storage=url, direction="maximize")
    made = distributions(tuning.space)
    for values, scores in found:
        state = optuna.trial.TrialState.FAIL if scores is None else optuna.trial.TrialState.COMPLETE
        study.add_trial(optuna.trial.create_trial(state=state, params=values, distributions=made, value=_mean(scores)))
    return study


def _mean(scores: Sequence[float] | None) -> float | None:
    return None if scores is None else float(np.mean(scores))


def search(
    folder: pathlib.Path, tuning: Tuning, train_run: TrainRun, notify: Callable[[int, Values, list[float] | None], None]
) -> list[tuple[Values, list[float] | None]]:
    """Carry out the trials that are missing; all of them, in their order."""
    optuna = _optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate TPE is called experimental
        study, made = study_of(folder, tuning), distributions(tuning.space)
        for number in range(len(study.trials), tuning.trials):
            path = folder / "trials" / f"{number:03}.json"
            if path.is_file():  # it was under way
                study.enqueue_trial(read_json(path, TRIAL)["values"])
            seed = int(np.random.SeedSequence((tuning.sampler_seed, number)).generate_state(1)[0])
            study.sampler = optuna.samplers.TPESampler(n_startup_trials=START_UP, multivariate=True, seed=seed)
            trial: Trial = study.ask(made)
            values = dict(trial.params)
            write_json(path, {"values": values})
            scores: list[float] | None = None
            try:
                run = train_run(values, tuning.seeds, folder / "trials" / f"{number:03}", f"#{number} ")
                scores = list(scores_of(run, tuning.metric).values())
            except (DivergenceError, ImpossibleError) as error:
                write_json(path, {"values": values, "error": str(error)})
            if scores is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, _mean(scores))
            notify(number, values, scores)
    found = [outcome(folder, number, tuning.metric) for number in range(tuning.trials)]
    return [one for one in found if one is not None]


def judge(
    folder: pathlib.Path,
    tuning: Tuning,
    found: Sequence[tuple[Values, list[float] | None]],
    train_run: TrainRun,
    notify: Callable[[str, str, Look], None],
) -> dict[str, Any]:
    """Train incumbent and default on the test seeds and compare them; what `tuned.json` then holds.

    Raises:
        ConfigError: all trials failed.
        DivergenceError: the incumbent or the default diverged on test seeds; which, and where the trials' scores are.
    """
    scored = [(values, scores) for values, scores in found if scores is not None]
    if not scored:
        stated = read_json(folder / "trials" / f"{len(found) - 1:03}.json", TRIAL)["error"]
        raise ConfigError(
            f"{folder}: all {len(found)} trials failed, the last one so: {stated}. Narrow the space, above all its "
            "learning rates"
        )
    means = [float(np.mean(scores)) for _, scores in scored]
    best = int(np.argmax(means))
    chosen = scored[best][0]
    settings: dict[str, Values] = {INCUMBENT: chosen, DEFAULT: {}}
    seeds = {name: tuning.test_seeds for name in settings}
    fixed = Comparison("group-sequential", tuning.looks, tuning.metric, seeds, dict.fromkeys(settings, 0), "")
    runs: dict[str, list[Run]] = {name: [] for name in settings}

    def train_seeds(arm: Arm, wanted: tuple[int, ...]) -> Run:
        place = folder / "test" / arm.label / f"seeds-{'-'.join(map(str, wanted))}"
        try:
            run = train_run(settings[arm.label], wanted, place, f"{arm.label} ")
        except DivergenceError as error:
            which = f"the {arm.label} ({json.dumps(settings[arm.label])})"
            raise DivergenceError(
                f"{which} diverged on test seeds {', '.join(map(str, wanted))}: {error}. There is no decision; the "
                f"scores of all trials are in {folder / 'trials'}"
            ) from error
        runs[arm.label].append(run)
        return run

    (folder / "test").mkdir(exist_ok=True)

    def fresh(run: Run, metric: str) -> dict[int, float]:
        return {seed: float(scores.mean()) for seed, scores in fresh_scores(run, metric).items()}

    seen = carry_out(fixed, [Arm(name, (), None) for name in settings], folder / "test", notify, train_seeds, fresh)
    episodes: dict[str, dict[int, np.ndarray[Any, Any]]] = {name: {} for name in settings}
    for name, some in runs.items():
        for run in some:
            episodes[name] |= fresh_scores(run, tuning.metric)
    tested = {name: [float(scores.mean()) for scores in found.values()] for name, found in episodes.items()}
    wide = over_states(episodes[INCUMBENT], episodes[DEFAULT])
    spread = [float(np.var(scores, ddof=1)) for _, scores in scored if len(scores) > 1]
    steps = runs[INCUMBENT][0].plan.steps
    luck = None
    if spread:
        luck = math.sqrt(float(np.mean(spread)) / len(tuning.seeds)) * expected_maximum(len(scored))
    result = {
        "incumbent": chosen,
        "metric": tuning.metric,
        "tuning": {"scores": scored[best][1], "mean": means[best], "seeds": list(tuning.seeds)},
        "test": {name: {"scores": tested[name], "mean": float(np.mean(tested[name])), "seeds": len(tested[name])}
                 for name in settings},
        "winners_curse": {"measured": means[best] - float(np.mean(tested[INCUMBENT])), "expected_of_equal_ones": luck},
        "budget": {"trials": len(found), "diverged": len(found) - len(scored), "seeds": len(tuning.seeds),
                   "runs": len(found) * len(tuning.seeds), "steps_each": steps},
        "decision": pairs_json(seen)[0],
        "over_states": None if wide is None else wide.to_json(),
    }  # fmt: skip
    write_json(folder / RESULT, result)
    return result
