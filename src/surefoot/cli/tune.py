"""`surefoot tune`: search for options, and judge the winner on seeds that did not choose it."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import file_overrides as received
from surefoot.cli.support import output
from surefoot.cli.support.parser import Parser
from surefoot.core.base.errors import ConfigError, DataError

if TYPE_CHECKING:
    import argparse

    from surefoot.cli.support.config import Request
    from surefoot.cli.support.training import Style
    from surefoot.data import Dataset
    from surefoot.evaluation.deciding import Look
    from surefoot.runs.run import Run
    from surefoot.studies.tune import Tuning

USAGE = """\
usage: surefoot tune [name=value ...] --trials N --space FILE [test_seeds=10] [--metric return] [--quiet] [--json]
       surefoot tune --resume FOLDER

Tries N settings of an algorithm on the tuning seeds (seeds=3), then trains the best one and the default on the test
seeds, which share none with them, and says whether it is better. Values are those of surefoot train. FILE is YAML:

  algo.expectile: {low: 0.6, high: 0.95}
  algo.learning_rate: {low: 1e-5, high: 1e-3, log: true}
  batch_size: [64, 256, 1024]

  --trials N        settings to try
  --space FILE      what varies
  --metric NAME     return or success, of the last policies
  --sampler-seed K  of the search (default 0)
  --resume FOLDER   continue a study that was interrupted
  --trust           as of surefoot train
  -q, --quiet       no progress
  --json            the result as JSON
"""
TEST_SEEDS = 10

Loader = Callable[[], "Dataset | None"]


def run(arguments: Sequence[str]) -> int:
    """Read the arguments and tune; the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        output.say(USAGE)
        return 0
    from surefoot.cli.support.training import Style
    from surefoot.core.base.files import write_json
    from surefoot.runs.folders import claim_begun, claim_named, claim_new
    from surefoot.runs.trust import refuse_links_to_runs
    from surefoot.studies.tune import TUNING, Tuning

    known = parser().parse_intermixed_args(list(arguments))
    style = Style(known.quiet, known.json)
    if known.resume is not None:
        if known.overrides or known.trials is not None or known.space is not None:
            raise ConfigError("--resume continues the study's own settings: leave out the others")
        folder = pathlib.Path(known.resume).resolve()
        tuning = Tuning.read(folder)
        received.check(tuning.overrides, folder / TUNING, known.trust)  # a file says them, and not who resumes
        refuse_links_to_runs(folder, known.trust)
        if not pathlib.Path(tuning.folder).is_dir():
            raise ConfigError(
                f"{folder}: was started in {tuning.folder}, which its relative paths are meant from and which is not "
                "there any more; make it again"
            )
        with claim_begun(folder) as claim:
            later = functools.cache(lambda: _dataset(tuning, style, known.trust))
            return _carry_out(tuning, claim.folder, style, known, later)
    tuning, out = _asked(known)
    dataset = _dataset(tuning, style, known.trust)  # a file that can't be read is given before a study is started
    _check_metric(tuning, dataset, known.trust)
    _check_ends(tuning, dataset, known)
    with claim_named("tune") if out is None else claim_new(out) as claim:
        write_json(claim.folder / TUNING, tuning.to_json())
        return _carry_out(tuning, claim.folder, style, known, lambda: dataset)


def parser() -> argparse.ArgumentParser:
    """The options; overrides may stand anywhere among them."""
    made = Parser(prog="surefoot tune", add_help=False)
    made.add_argument("overrides", nargs="*")
    made.add_argument("--trials", type=int, help="runs to try")
    made.add_argument("--space", help="YAML file of the options to search, and where")
    made.add_argument("--metric", default="return", help="what is maximized")
    made.add_argument("--sampler-seed", type=int, default=0, help="seed of the search")
    made.add_argument("--resume", metavar="FOLDER", help="continue a study that was interrupted")
    made.add_argument("--trust", action="store_true", help="import modules that a run or dataset names")
    made.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
    made.add_argument("--json", action="store_true", help="the result as JSON")
    return made


def _asked(known: argparse.Namespace) -> tuple[Tuning, str | None]:
    """The study that the arguments ask for, all of it checked before anything is written."""
    from surefoot.cli.support import config, grammar
    from surefoot.cli.support.sweep import sweep_out
    from surefoot.studies.tune import Tuning, corners, distributions, read_space

    if known.trials is None or known.space is None:
        raise ConfigError("--trials N and --space FILE are needed; `surefoot tune --help` shows a space")
    space = read_space(known.space)
    tested = [text for text in known.overrides if text.startswith("test_seeds=")]
    mine = [text for text in known.overrides if text not in tested]
    overrides = grammar.readable(mine, False)
    out, overrides = sweep_out(overrides)
    request = config.compose(overrides, known.trust)
    seeds = request.fields["seeds"]
    overrides = [text for text in overrides if not text.startswith("seeds=")]
    given = tested[-1].partition("=")[2] if tested else str(TEST_SEEDS)
    test_seeds = config.compose([*overrides, f"seeds={given}"], known.trust).fields["seeds"]
    if given.strip().isdigit():  # how many: the next ones
        test_seeds = tuple(range(max(seeds) + 1, max(seeds) + 1 + int(given)))
    if any(text.lower() in ("env=none", "env=null") for text in overrides):
        raise ConfigError("env=none: settings are chosen by scores in a simulator; name one with env=")
    tuning = Tuning(
        tuple(overrides), space, known.trials, seeds, test_seeds, known.metric, known.sampler_seed, os.getcwd()
    )
    distributions(space)
    for values in corners(space):
        names = [text.partition("=")[0] for text in overrides]
        if (name := next(iter(values))) in names:
            raise ConfigError(f"{name}: is set on the command line and varies in {known.space}; leave out one of them")
        received.check(grammar.texts(values), known.space, known.trust)
        try:
            corner = config.compose([*overrides, *grammar.texts(values)], known.trust)
        except ConfigError as error:
            raise error.inside(known.space, ConfigError) from error
        if isinstance(space[name], dict) and isinstance({**corner.fields, **_options(corner)}.get(name), float):
            space[name] |= {end: float(space[name][end]) for end in ("low", "high")}  # fractions between whole ends too
    return tuning, out


def _check_ends(tuning: Tuning, dataset: Dataset | None, known: argparse.Namespace) -> None:
    """Refuse a study whose default, or an end of whose space, can't be trained.

    Raises:
        SurefootError: says what, each reason once.
    """
    from surefoot.cli.support import grammar
    from surefoot.cli.support.ahead import reasons
    from surefoot.core.base.errors import SurefootError
    from surefoot.studies.tune import corners

    try:
        _check(tuning, {}, dataset, known.trust)
    except (ConfigError, DataError) as error:
        raise ConfigError(f"the default, which the best trial is compared with, can't be trained: {error}") from error
    failed = []
    for values in corners(tuning.space):
        try:
            _check(tuning, values, dataset, known.trust)
        except SurefootError as error:
            failed.append((" ".join(grammar.texts(values)), str(error)))
    if failed:
        lines = [f"{', '.join(labels)}: {reason}" for reason, labels in reasons(failed).items()]
        raise ConfigError(f"{known.space}: can't be trained with all that it holds:\n  " + "\n  ".join(lines))


def _check(tuning: Tuning, values: Mapping[str, Any], dataset: Dataset | None, trust: bool) -> None:
    """Refuse values that `train` would refuse before its first step."""
    from surefoot.cli.support import config, grammar
    from surefoot.cli.support.training import plan_of
    from surefoot.runs.start import check

    seeds = f"seeds=[{','.join(map(str, tuning.seeds))}]"
    check(
        plan_of(config.compose([*tuning.overrides, *grammar.texts(values), seeds], trust), dataset, trust),
        dataset,
        trust,
    )


def _options(request: Request) -> dict[str, Any]:
    """Of the algorithm, as they are reported on the command line."""
    return {f"algo.{name}": value for name, value in request.options.items()}


def _carry_out(tuning: Tuning, folder: pathlib.Path, style: Style, known: argparse.Namespace, loaded: Loader) -> int:
    from surefoot.cli.support import grammar
    from surefoot.runs.processes.stopping import resumable
    from surefoot.studies import tune as tuner

    counts = f"{tuning.trials} trials of {len(tuning.seeds)} seeds, then {tuning.looks.seeds} test seeds"
    if left := len(tuning.test_seeds) - tuning.looks.seeds:
        counts += f" in {tuning.looks.stages} stages, which leave {left} of {len(tuning.test_seeds)}"
    style.say(f"study: {output.short(folder)}; {counts}")

    def train_run(values: Mapping[str, Any], seeds: Sequence[int], place: pathlib.Path, label: str) -> Run:
        received.check(grammar.texts(values), folder, known.trust)  # of its files, or of the space's
        return _train(tuning, values, seeds, place, label, style, known.trust, loaded)

    given: dict[str, int] = {}  # why a trial failed, and the first that did

    def tried(number: int, values: Mapping[str, Any], scores: list[float] | None) -> None:
        if scores is None:
            reason = dict(tuner.failures(folder, tuning))[number]
            first = given.setdefault(reason, number)
            mean = f"failed: {reason}" if first == number else f"failed as trial {first + 1} did"
        else:
            mean = f"{tuning.metric} {sum(scores) / len(scores):.4g}"
        shown = ", ".join(f"{name}={v:.4g}" if isinstance(v, float) else f"{name}={v}" for name, v in values.items())
        style.say(f"trial {number + 1} of {tuning.trials}: {mean} ({shown})")

    def notify(first: str, second: str, look: Look) -> None:
        style.say(f"look {look.stage}: {look.sentence(first, second, tuning.metric)}")

    trusted = " --trust" if known.trust or received.needs_trust(tuning.overrides) else ""
    resumed = resumable(folder, lambda: f"surefoot tune --resume {output.typed(folder)}{trusted}")
    with resumed, contextlib.chdir(tuning.folder or os.getcwd()):
        found = tuner.search(folder, tuning, train_run, tried)
        result = tuner.judge(folder, tuning, found, train_run, notify)
    if known.json:
        output.print_json({"study": str(folder), **result})
    else:
        _present(tuning, folder, result)
    return 0


def _train(
    tuning: Tuning, values: Mapping[str, Any], seeds: Sequence[int], place: pathlib.Path, label: str, style: Style,
    trust: bool, loaded: Loader,
) -> Run:  # fmt: skip
    """The run of some values: finished already, continued, or trained now."""
    from surefoot.cli.support import config, grammar
    from surefoot.cli.support.training import train_one
    from surefoot.runs.folders import claim_new
    from surefoot.runs.start import resume
    from surefoot.studies.tune import ImpossibleError

    if (place / "config.json").is_file():
        with style.watcher(label) as watcher:
            return resume(place, listener=watcher, trust=trust)
    settings, dataset = [*tuning.overrides, *grammar.texts(values)], loaded()
    try:
        _check(tuning, values, dataset, trust)
        request = config.compose([*settings, f"seeds=[{','.join(map(str, seeds))}]"], trust)
    except (ConfigError, DataError) as error:  # the default can be trained, so that it is for these values
        raise ImpossibleError(str(error)) from error
    with claim_new(place) as claim:
        return train_one(request, style, claim, dataset, label=label, trust=trust)


def _dataset(tuning: Tuning, style: Style, trust: bool) -> Dataset | None:
    from surefoot.cli.support import config
    from surefoot.cli.support.training import load

    request = config.compose(tuning.overrides, trust)
    return None if request.fields["dataset"] is None else load(request, style)


def _check_metric(tuning: Tuning, dataset: Dataset | None, trust: bool) -> None:
    """Refuse to raise a share of successes where the environment says nothing of success."""
    from surefoot.cli.support import config
    from surefoot.evaluation import says_success
    from surefoot.runs.embedded import environment_of
    from surefoot.runs.trust import allow

    env = config.compose(tuning.overrides, trust).fields["env"]
    allow(env)
    place = env if dataset is None else environment_of(dataset, env, trust)
    if tuning.metric == "success" and place is not None and not says_success(place):
        raise ConfigError(f"--metric success: {place} says nothing of success; tune with --metric return")


def _present(tuning: Tuning, folder: pathlib.Path, result: dict[str, Any]) -> None:
    from surefoot.cli.support import grammar
    from surefoot.cli.support.ahead import reasons, reported
    from surefoot.studies.tune import failures

    budget, curse, test = result["budget"], result["winners_curse"], result["test"]
    look = result["decision"]["looks"][-1]
    low, high = look["difference"]["low"], look["difference"]["high"]
    bounds = "" if low is None else f" [{low:.4g}, {high:.4g}]"
    answer = {
        "larger": "the tuned settings are better than the default",
        "smaller": "the tuned settings are worse than the default",
    }.get(result["decision"]["answer"], "not stated to be better than the default: not separated by these test seeds")
    output.say(f"\ntuned:    {', '.join(grammar.texts(result['incumbent']))}")
    spent = f"{budget['trials']} trials x {budget['seeds']} seeds x {budget['steps_each']:,} steps"
    for name, how in (("incumbent", f"tuned with {spent}"), ("default", "tuned with nothing")):
        output.say(
            f"{name:<9} mean {tuning.metric} {test[name]['mean']:.4g} over {test[name]['seeds']} test seeds ({how})"
        )
    output.say(f"decision: {answer}; difference {look['difference']['mean']:.4g}{bounds}")
    if (wide := result["over_states"]) is not None and wide["low"] is not None:
        held = wide["low"] <= 0 <= wide["high"] and result["decision"]["answer"] != "not separated"
        other = ": from other initial states it may be otherwise; judge in more episodes (episodes=)" if held else ""
        output.say(
            f"over seeds and initial states, as if looked at once: {wide['mean']:.4g} [{wide['low']:.4g}, "
            f"{wide['high']:.4g}]{other}"
        )
    luck = curse["expected_of_equal_ones"]
    known = "" if luck is None else f"; of equally good settings the best would look {luck:.4g} too good by luck alone"
    output.say(
        f"on its tuning seeds the incumbent had {result['tuning']['mean']:.4g}: {curse['measured']:.4g} more than on "
        f"the test seeds, which are judged from other initial states{known}"
    )
    for reason, labels in reasons((str(number + 1), why) for number, why in failures(folder, tuning)).items():
        output.say(f"{reported(labels, 'trial')} of {budget['trials']} failed: {reason}")
    output.say(f"study:    {output.short(folder)}")
