"""`algo=auto`: train a few algorithms on one dataset and hand over the one that the data support, else the clone.

A run folder of it holds `auto.json`, written first, the portfolio's runs below `portfolio/`, and at the end, beside
`selection.json` with the reasons, all that the chosen algorithm's run holds: it then is a run like any other.
config.json is put there last, so that a folder without it continues where it was.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from surefoot.core.base.errors import CheckpointError, ConfigError, nearest
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.options import record_of
from surefoot.core.base.schema import Many, Number, Record, Text
from surefoot.core.base.spec import Spec
from surefoot.data import Dataset
from surefoot.evaluation.plots import save_png
from surefoot.evaluation.results import AUTO_FILE as FILE
from surefoot.evaluation.results import AUTO_RUNS as RUNS
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.finishing import FAILURES, why
from surefoot.runs.folders import LOCK, claim_new
from surefoot.runs.inputs import inputs_of
from surefoot.runs.plan import Plan
from surefoot.runs.progress_events import Listener
from surefoot.runs.run import Run
from surefoot.runs.start import resume, train
from surefoot.studies.select import Estimate, Selection, candidates, check_data, interval, judgeable, select
from surefoot.studies.select_model import select_by_model
from surefoot.studies.select_picture import picture

CLONE = "bc"
"""What is handed over where nothing is better with confidence."""
PORTFOLIO = (CLONE, "iql", "td3bc", "rebrac")
OPTIONS: dict[str, dict[str, Any]] = {
    "iql": {"preset": "corl"},
    "rebrac": {"normalization": "observations", "learning_rate": 3e-4},
}
"""Options of the portfolio's algorithms where they are not the usual ones: all see normalised observations."""
JUDGES = {"critics": "its discounted return is", "model": "its return in a model learned from them is"}
"""How policies are judged (docs/choosing.md), and what an answer then calls the value."""
FLATTERED = "All were judged on data that they were trained on, which flatter them"
ANSWER, PICTURE = "selection.json", "selection.png"
AUTO = Record(
    {"format": Number(1, 1, whole=True), "portfolio": Many(Text(), 2), "plan": record_of(Plan)},
    {"judge": Text()},
)
"""What auto.json holds; the plan is that of the clone."""


@dataclasses.dataclass(frozen=True)
class Auto:
    """A portfolio, and what all of its runs share."""

    plan: Plan
    """Of the clone; the others differ in algorithm and options."""
    portfolio: tuple[str, ...] = PORTFOLIO
    judge: str = "critics"  # of `JUDGES`

    def __post_init__(self) -> None:
        """Refuse a portfolio that can't be trained, or that has nothing to fall back on."""
        if self.judge not in JUDGES:
            raise ConfigError(f"algo.judge={self.judge}: {nearest(self.judge, list(JUDGES))}")
        for name in self.portfolio:
            kind = ALGORITHMS.get(name)
            if kind is None:
                raise ConfigError(f"algo.portfolio: unknown algorithm {name!r}: {nearest(name, list(ALGORITHMS))}")
            if kind.requires.online or not kind.requires.policy:
                raise ConfigError(f"algo.portfolio: {name} does not learn a policy from data alone; leave it out")
        if CLONE not in self.portfolio or len(set(self.portfolio)) != len(self.portfolio) or len(self.portfolio) < 2:
            raise ConfigError(
                f"algo.portfolio={list(self.portfolio)}: give different algorithms with {CLONE} among them, which is "
                "handed over where no other is better with confidence"
            )

    def plan_of(self, name: str) -> Plan:
        """The run of one algorithm."""
        config = dataclasses.asdict(ALGORITHMS[name].configure(**OPTIONS.get(name, {})))
        return dataclasses.replace(self.plan, algorithm=name, config=config)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"format": 1, "portfolio": list(self.portfolio), "judge": self.judge, "plan": self.plan.to_json()}

    @classmethod
    def read(cls, folder: pathlib.Path) -> Auto:
        """What was started in a folder.

        Raises:
            CheckpointError: nothing, or its file is damaged.
        """
        value = read_json(folder / FILE, AUTO)
        try:
            return cls(Plan.from_json(value["plan"]), tuple(value["portfolio"]), value.get("judge", "critics"))
        except ConfigError as error:
            raise error.inside(folder / FILE, CheckpointError) from error


def started(folder: pathlib.Path) -> bool:
    """Whether this is a folder of `algo=auto` that is not finished."""
    return (folder / FILE).is_file() and not (folder / "config.json").is_file()


def carry_out(
    auto: Auto,
    folder: pathlib.Path,
    dataset: Dataset,
    listener: Callable[[str], Listener | None] = lambda name: None,
    trust: bool = False,
) -> dict[str, Any]:
    """Train what is missing, choose, and hand over; what selection.json then holds.

    Args:
        auto: what to do.
        folder: of the run, claimed by the caller.
        dataset: to learn from and to judge by.
        listener: gives that of an algorithm's training.
        trust: as of `train`.

    Where judging fails for want of memory or by numbers, the clone is handed over, and the answer says why.

    Raises:
        SurefootError: as `train` and `select`.
    """
    inputs = inputs_of(auto.plan, dataset, lambda _: None)  # with the rewards that the runs learn from
    judged = inputs.dataset
    assert judged is not None
    check_data(judged)
    refuse_policies_that_remember(auto, inputs.spec)
    write_json(folder / FILE, auto.to_json())
    runs = {}
    for name in auto.portfolio:
        place = folder / RUNS / name
        if (place / "config.json").is_file():
            runs[name] = resume(place, listener(name), trust)
            continue
        with claim_new(place) as claim:
            runs[name] = train(auto.plan_of(name), claim, dataset=dataset, listener=listener(name), trust=trust)
    judge = select_by_model if auto.judge == "model" else select
    policies = candidates([str(run.folder) for run in runs.values()])
    try:
        found = judge(policies, judged)
    except FAILURES as error:  # the portfolio is trained, and must not be lost with what chooses from it
        traceback.print_exc()
        return hand_over_unjudged(auto, runs[CLONE], folder, why(error))
    groups = {name: str(run.folder) for name, run in runs.items()}
    chosen, compared = choose(found, groups)
    words = in_words(chosen, compared, doubted(found, groups), auto.judge)
    answer = {
        "algorithm": chosen,
        "answer": words,
        "judge": auto.judge,
        "differences": {name: {"mean": mean, "low": low, "high": high} for name, (mean, low, high) in compared.items()},
        "data": {"value": found.data_value, "estimate": found.data_estimate, "best": found.best_in_data},
        "discount": found.discount,
        "widened_by": found.factor,
        "policies": [one.to_json() for one in found.estimates],
    }  # fmt: skip
    save_png(picture(found, dataset.name), folder / PICTURE)
    write_json(folder / ANSWER, answer)
    hand_over(runs[chosen], folder, words)
    return answer


def hand_over_unjudged(auto: Auto, clone: Run, folder: pathlib.Path, reason: str) -> dict[str, Any]:
    """Hand the clone over where nothing could be chosen by the data; what selection.json then holds."""
    words = (
        f"the clone ({CLONE}) is handed over: the policies could not be judged by the data: {reason}. All of them are "
        f"in {folder / RUNS}; choose by surefoot select, or by a few real episodes of each"
    )
    answer: dict[str, Any] = {"algorithm": CLONE, "answer": words, "judge": auto.judge, "differences": {}, "data": None}
    answer |= {"discount": None, "widened_by": None, "policies": []}
    write_json(folder / ANSWER, answer)
    hand_over(clone, folder, words)
    return answer


def refuse_policies_that_remember(auto: Auto, spec: Spec) -> None:
    """Say before training what would end the choice after it.

    Raises:
        ConfigError: an algorithm whose policies data alone can't judge.
    """
    with torch.random.fork_rng(devices=[]):
        for name in auto.portfolio:
            agent = ALGORITHMS[name](spec, ALGORITHMS[name].configure(**OPTIONS.get(name, {})))
            if not judgeable(agent.policy()):
                raise ConfigError(
                    f"algo.portfolio: policies of {name} remember, and data alone judge what acts on one observation; "
                    "leave it out"
                )


def choose(found: Selection, groups: dict[str, str]) -> tuple[str, dict[str, tuple[float, float, float]]]:
    """The algorithm to hand over, and each one's advantage over the clone with its interval.

    The interval has the spread of the critics' members, seeds averaged, and that between training seeds. Where the
    clone's own estimate is not believable, nothing is better than it with confidence.

    Args:
        found: estimates of all policies.
        groups: algorithm -> label of its group.
    """
    of = {name: [one for one in found.estimates if one.group == group] for name, group in groups.items()}
    compared = {name: _advantage(of[name], of[CLONE], found.factor) for name in groups if name != CLONE}
    judged = all(one.believable for one in of[CLONE])
    sound = [n for n in compared if judged and all(one.believable for one in of[n]) and compared[n][1] > 0]
    return max(sound, key=lambda name: compared[name][1], default=CLONE), compared


def doubted(found: Selection, groups: dict[str, str]) -> dict[str, str]:
    """Where the estimates lie of algorithms that are not believed, since one is beyond what the data allow."""
    beyond = {
        "above the best return in the data": lambda one: one.implausible,
        "below the least that the data's rewards allow": lambda one: one.impossible,
    }
    reported = {
        name: [words for words, is_so in beyond.items() if any(map(is_so, of))]
        for name, group in groups.items()
        if (of := [one for one in found.estimates if one.group == group])
    }
    return {name: " or ".join(places) for name, places in reported.items() if places}


def _advantage(first: Sequence[Estimate], clone: Sequence[Estimate], factor: float) -> tuple[float, float, float]:
    from scipy.special import stdtrit

    mean, low, _ = interval(
        np.mean([one.members for one in first], 0) - np.mean([one.members for one in clone], 0), factor
    )
    squares, seeds = (mean - low) ** 2, min(len(first), len(clone))
    if seeds > 1:
        between = sum(float(np.var([one.mean for one in side], ddof=1)) / len(side) for side in (first, clone))
        squares += float(stdtrit(2 * seeds - 2, 0.975)) ** 2 * between
    half = float(np.sqrt(squares))
    return mean, mean - half, mean + half


def in_words(
    chosen: str, compared: dict[str, tuple[float, float, float]], unbelieved: Mapping[str, str], judge: str = "critics"
) -> str:
    """What was handed over, and why; `unbelieved` as `doubted` has them."""
    shown = {name: f"{mean:+.4g} [{low:.4g}, {high:.4g}]" for name, (mean, low, high) in compared.items()}
    others = ", ".join(
        f"{name} {shown[name]}{', not believed' * (name in unbelieved)}" for name in compared if name != chosen
    )
    because = ""
    if CLONE in unbelieved:
        because = f". The clone's own estimate lies {unbelieved[CLONE]}, so nothing can be determined"
    places = [f"{name}, whose estimate lies {place}" for name, place in unbelieved.items() if name != CLONE]
    because += f". Not believed: {'; '.join(places)}" if places else ""
    if chosen == CLONE:
        return (
            f"the clone ({CLONE}) is handed over: by this data no other is better with confidence ({others}){because}. "
            f"{FLATTERED}"
        )
    rest = f"; the others: {others}" if others else ""
    return (
        f"{chosen} is handed over: by this data {JUDGES[judge]} {shown[chosen]} against the clone's{rest}{because}. "
        f"{FLATTERED}; a few real episodes of both are worth more than this estimate"
    )


def hand_over(run: Run, folder: pathlib.Path, answer: str) -> None:
    """Copy all of a run into a folder, its configuration last and with the answer among its notes."""
    for source in sorted(run.folder.rglob("*")):
        relative = source.relative_to(run.folder)
        if source.is_file() and relative.name not in (LOCK, "config.json"):
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_name(f".{target.name}.copy")
            shutil.copyfile(source, aside)
            aside.replace(target)
    config = read_json(run.folder / "config.json")
    write_json(folder / "config.json", {**config, "notes": [*config.get("notes", []), answer]})
