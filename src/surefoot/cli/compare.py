"""`surefoot compare`: which algorithm scores higher, and seeds until that is known."""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.evaluation.deciding import Look, LookPlan
    from surefoot.runs.run import Run
    from surefoot.studies.compare import Arm

PER_STAGE, MOST = 5, 25
"""Seeds of a stage and at most, where the command line does not say."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "compare", help="which algorithm scores higher; with --until decided it trains seeds until that is known"
    )
    parser.add_argument("patterns", metavar="RUNS", nargs="+", help="run folders of an algorithm, as 'runs/iql-*'")
    parser.add_argument("--until", choices=["decided"], help="train further seeds until the comparison is decided")
    parser.add_argument("--max-seeds", type=int, help=f"of each algorithm (default {MOST})")
    parser.add_argument("--per-stage", type=int, help=f"seeds between two looks (default {PER_STAGE})")
    parser.add_argument("--anytime", action="store_true", help="look after every seed (t e-process; takes more seeds)")
    parser.add_argument(
        "--level", type=float, default=0.05, help="probability of a wrong answer, for all pairs together (default 0.05)"
    )
    parser.add_argument("--metric", default="return", help="return, success or cost, of the last policies")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="of the comparison (default runs/compare-A-B)")
    output.add_trust(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=compare)


def compare(arguments: argparse.Namespace) -> int:
    """Look once at what is there, or until it is decided."""
    from surefoot.core.base.errors import nearest
    from surefoot.studies.compare import METRICS, arms_of

    if arguments.metric not in METRICS:
        raise ConfigError(f"--metric {arguments.metric}: {nearest(arguments.metric, list(METRICS))}")
    arms, unfinished = arms_of(arguments.patterns)
    for folder in unfinished:
        output.say(
            f"{output.short(folder)}: not finished, so left out (surefoot train --resume continues)", stderr=True
        )
    _tell_differences(arms)
    if arguments.until is None:
        for name in ("anytime", "max_seeds", "per_stage", "output"):
            given = getattr(arguments, name)
            if given is not None and given is not False:
                option = {"output": "-o"}.get(name, f"--{name.replace('_', '-')}")
                raise ConfigError(f"{option} is of --until decided: add it, or leave the option out")
        return _once(arms, arguments)
    return _until_decided(arms, arguments)


def _tell_differences(arms: Sequence[Arm]) -> None:
    """What arms differ in beside the algorithm and its options, which may be meant."""
    first = arms[0]
    if any(arm.imported for arm in arms):
        for arm in arms:
            output.say(f"note: {arm.label} is judged by: {arm.judged}", stderr=True)
    for arm in arms[1:]:
        imported = first.imported or arm.imported
        for name in ("steps",) if imported else ("dataset", "steps", "batch_size", "gap", "view", "init"):
            mine, theirs = getattr(first.plan, name), getattr(arm.plan, name)
            if mine != theirs:
                output.say(f"note: {first.label} and {arm.label} differ in {name}: {mine} and {theirs}", stderr=True)


def _once(arms: Sequence[Arm], arguments: argparse.Namespace) -> int:
    """One look at all the seeds that there are."""
    from surefoot.evaluation import difference_interval, permutation_p, too_few
    from surefoot.studies.states import episode_scores, holds_zero, over_states

    episodes = {arm.label: episode_scores(arm.runs, arguments.metric) for arm in arms}
    scores = {arm.label: np.array(list(arm.scores(arguments.metric).values())) for arm in arms}
    pairs, level = list(itertools.combinations(scores, 2)), arguments.level
    if not 0 < level < 1:
        raise ConfigError(f"--level is {level}; it must be between 0 and 1, as in 0.05")
    facts: list[dict[str, Any]] = []
    for first, second in pairs:
        x, y = scores[first], scores[second]
        words = too_few(len(x), level / len(pairs), len(y))
        p = None if words else permutation_p(x, y, level=level / len(pairs))
        here = None if p is None or p > level / len(pairs) else "larger" if x.mean() > y.mean() else "smaller"
        wide, sure = (over_states(episodes[first], episodes[second], q) for q in (0.95, 1 - level / len(pairs)))
        answer = None if p is None else "not separated" if here is None or holds_zero(sure) else here
        seeds_alone = difference_interval([[v] for v in x], [[v] for v in y], shared_episodes=False)  # type: ignore[misc]
        facts.append({"first": first, "second": second, "seeds": [len(x), len(y)], "p": p, "answer": answer,
                      "difference": (wide or seeds_alone).to_json(), "over_states": wide is not None,
                      "on_these_states": here, "too_few": words})  # fmt: skip
    if arguments.json:
        output.print_json({"metric": arguments.metric, "level": level, "pairs": facts})
        return 0
    _print_means({name: list(values) for name, values in scores.items()}, arguments.metric)
    for fact in facts:
        first, second, shown = fact["first"], fact["second"], fact["difference"]
        what = "seeds and initial states" if fact["over_states"] else "seeds alone"
        bounds = "" if shown["low"] is None else f" [{shown['low']:.4g}, {shown['high']:.4g}] (95 %, over {what})"
        output.say(f"\n{first} - {second}: difference {shown['mean']:.4g}{bounds}")
        if fact["too_few"]:
            output.say(f"  {fact['too_few']}")
            continue
        seen = fact["on_these_states"]
        words = {
            "larger": f"{first} has a larger {arguments.metric} than {second}",
            "smaller": f"{first} has a smaller {arguments.metric} than {second}",
            "not separated": "not separated: too few seeds for this difference, which does not make them equal"
            if seen is None
            else f"not separated: {seen} from the initial states that all met, and from others perhaps not: judge "
            "them in more episodes (episodes=)",
        }[str(fact["answer"])]
        output.say(f"  {words} (p {fact['p']:.3g}, shuffled labels; level {level / len(pairs):.2g})")
    output.say(
        "\nThis is one look. Adding seeds and looking again until it says yes is wrong far more often than the level;\n"
        "surefoot compare ... --until decided adds seeds by a plan that allows for it."
    )
    return 0


def _print_means(scores: dict[str, list[float]], metric: str) -> None:
    width = max(map(len, scores))
    for name, values in scores.items():
        spread = f", standard deviation {np.std(values, ddof=1):.4g}" if len(values) > 1 else ""
        many = output.counted(len(values), "seed")
        output.say(f"{name.ljust(width)}  mean {metric} {np.mean(values):.4g} over {many}{spread}")


def _looks(arguments: argparse.Namespace, pairs: int) -> LookPlan:
    from surefoot.evaluation import LookPlan

    most = MOST if arguments.max_seeds is None else arguments.max_seeds
    if arguments.anytime:
        if arguments.per_stage is not None:
            raise ConfigError("--per-stage: with --anytime every seed is looked at; leave it out")
        return LookPlan(most, 1, arguments.level, pairs)
    per_stage = PER_STAGE if arguments.per_stage is None else arguments.per_stage
    if per_stage < 2 or most < per_stage:
        raise ConfigError(f"--per-stage is {per_stage} and --max-seeds {most}: at least 2, and at least one stage")
    looks = LookPlan(per_stage, most // per_stage, arguments.level, pairs)
    assert looks.shuffles  # more than a million are refused
    return looks


def _until_decided(arms: Sequence[Arm], arguments: argparse.Namespace) -> int:
    from surefoot.cli.support.training import Style
    from surefoot.runs.processes.stopping import resumable
    from surefoot.studies import compare as comparing
    from surefoot.studies.states import episode_scores, holds_zero, over_states

    folder = pathlib.Path(arguments.output or pathlib.Path("runs", f"compare-{'-'.join(arm.label for arm in arms)}"))
    style = Style(arguments.quiet, arguments.json)
    looks = _looks(arguments, len(arms) * (len(arms) - 1) // 2)
    rule = "anytime" if arguments.anytime else "group-sequential"
    comparing.check_trainable(arms, looks, arguments.metric, arguments.trust)
    fixed = comparing.planned(folder, arms, rule, looks, arguments.metric)
    style.say(f"plan: {fixed.sentence()}, from the {arms[0].plan.episodes} initial states that all runs are judged on")
    had = ", ".join(f"{count} of {name}" for name, count in fixed.had.items())
    style.say(
        f"written {fixed.written} to {output.short(folder / comparing.FILE)}, when these seeds were trained: {had}\n"
    )
    trained = {arm.label: 0 for arm in arms}
    runs = {arm.label: list(arm.runs) for arm in arms}

    def train_seeds(arm: Arm, seeds: tuple[int, ...]) -> Run:
        shown = ", ".join(map(str, seeds))
        with style.watcher(f"{arm.label} ", f"{arm.label}, seeds {shown}") as watcher:
            run = comparing.train_missing(arm, seeds, folder, watcher, arguments.trust)
        trained[arm.label] += len(seeds)
        runs[arm.label].append(run)
        return run

    def notify(first: str, second: str, look: Look) -> None:
        many = output.counted(look.seeds, "seed")
        style.say(f"look {look.stage}, {many} each: {look.sentence(first, second, fixed.metric)}")

    with resumable(folder, lambda: arguments.line):
        found = comparing.carry_out(fixed, arms, folder, notify, train_seeds)
    episodes = {name: episode_scores(some, fixed.metric) for name, some in runs.items()}
    wide = {(a, b): over_states(episodes[a], episodes[b]) for a, b in found}
    if arguments.json:
        pairs = [
            {**one, "over_states": None if (known := wide[one["first"], one["second"]]) is None else known.to_json()}
            for one in comparing.pairs_json(found)
        ]
        output.print_json({"folder": str(folder), "rule": rule, "plan": fixed.plan.to_json(), "metric": fixed.metric,
                           "trained": trained, "pairs": pairs})  # fmt: skip
        return 0
    output.say("\ndecision:")
    for (first, second), seen in found.items():
        output.say(f"  {seen[-1].sentence(first, second, fixed.metric)}")
        if (known := wide[first, second]) is not None and not np.isnan(known.low):
            other = "" if seen[-1].answer not in ("larger", "smaller") or not holds_zero(known) else (
                ": from other initial states it may be otherwise; judge them in more episodes (episodes=)"
            )  # fmt: skip
            output.say(
                f"  over seeds and initial states, as if looked at once: {known.estimate:.4g} [{known.low:.4g}, "
                f"{known.high:.4g}] (95 %){other}"
            )
    if any(seen[-1].stage < looks.stages or rule == "anytime" for seen in found.values()):
        output.say("  (a difference after an early stop is too far from 0 on average; its interval allows for that)")
    steps = ", ".join(
        f"{output.counted(trained[arm.label], 'seed')} of {arm.label}, {arm.plan.steps:,} steps each" for arm in arms
    )
    output.say(f"\nadded for it: {steps}\ncomparison: {output.short(folder)}")
    return 0
