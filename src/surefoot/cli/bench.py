"""`surefoot bench`: named suites of tasks, with a leaderboard of what was trained on them."""

from __future__ import annotations

import argparse
import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.cli.support.ahead import SKIP_HELP
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.cli.support.training import Style
    from surefoot.studies.leaderboard import Suite

NOT_OF_AN_ENTRY = ("preset", "envs", "init", "reward", "gap", "batch_size", "jacobian_penalty")
"""What a study may say beside options of algo. that changes what is learned, and an entry does not take over."""
COMMANDS = ("list", "policy", "run")
"""Parts of `surefoot bench`."""


def add_parsers(commands: Any) -> None:
    """Register the commands."""
    parser = commands.add_parser("bench", help="benchmarks: suites with a leaderboard (surefoot bench --help)")
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=type(parser))

    listing = parts.add_parser("list", help="list the suites")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)

    suite = parts.add_parser("run", help="train and score a suite, or continue it, and write its leaderboard")
    suite.add_argument("suite", metavar="SUITE", help="name of a suite, or a .yaml file of your own")
    suite.add_argument("settings", nargs="*", metavar="name=value", help="algo= and algo.* of an entry of your own")
    suite.add_argument("--entry", metavar="NAME", help="what the entry of your own is called (default: its algorithm)")
    suite.add_argument(
        "--tuned", metavar="STUDY", help="folder of surefoot tune: the entry has its incumbent's options"
    )
    suite.add_argument("--tasks", metavar="A,B", help="only these tasks of the suite")
    suite.add_argument(
        "-o", "--output", metavar="FOLDER", help="default: runs/bench-SUITE-vN; one that is there continues"
    )
    suite.add_argument("--skip-failing", action="store_true", help=SKIP_HELP.replace("jobs", "runs"))
    output.add_trust(suite)
    suite.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
    suite.add_argument("--json", action="store_true", help="the leaderboard's lines as JSON")
    suite.set_defaults(run=_run)

    latency = parts.add_parser("policy", help="how long one action of a policy takes: python, onnxruntime, C++")
    latency.add_argument("folder", metavar="RUN", help="run folder, or a policy's .safetensors")
    latency.add_argument("--policy-seed", type=int, metavar="K", help="which of RUN's policies (default: its first)")
    output.add_renamed(latency, "--seed", "--policy-seed")
    latency.add_argument("--calls", type=int, default=20_000, help="single calls of each way (default 20,000)")
    latency.add_argument("--json", action="store_true", help="print JSON")
    latency.set_defaults(run=_policy)


def readable(arguments: Sequence[str]) -> list[str]:
    """The arguments after `bench`, with what may be left out: `bench SUITE` is `bench run SUITE`."""
    if arguments[:1] == ["--list"]:
        return ["list", *arguments[1:]]
    if arguments and not arguments[0].startswith("-"):
        from surefoot.core.base.errors import nearest
        from surefoot.studies.leaderboard import names

        if arguments[0] in names() or arguments[0].endswith(".yaml"):
            return ["run", *arguments]
        if arguments[0] not in COMMANDS:
            known = [*COMMANDS, *names()]
            raise ConfigError(f"there is no suite or command {arguments[0]!r}: {nearest(arguments[0], known)}")
    return list(arguments)


def _policy(arguments: argparse.Namespace) -> int:
    """The latency table of one policy."""
    import surefoot
    from surefoot.play import latency

    if not 100 <= arguments.calls <= 10**8:
        raise ConfigError(f"--calls is {arguments.calls}; it must be from 100 to 100,000,000")
    rows = latency.measure(surefoot.load_policy(arguments.folder, seed=arguments.policy_seed), arguments.calls)
    if arguments.json:
        output.print_json(rows)
        return 0
    shown = [
        {"way": row["way"], "median": _us(row, "microseconds"), "99 %": _us(row, "p99"), "note": row.get("note", "")}
        for row in rows
    ]
    output.print_rows(shown, ["way", "median", "99 %", "note"], "microseconds of one action, one thread")
    return 0


def _us(row: Mapping[str, Any], key: str) -> str:
    return f"{row[key]:.1f}" if key in row else "-"


def _list(arguments: argparse.Namespace) -> int:
    from surefoot.studies import leaderboard

    suites = [leaderboard.suite(name) for name in leaderboard.names()]
    if arguments.json:
        output.print_json([{"name": s.name, "version": s.version, "what": s.what, "seeds": list(s.seeds),
                            "run": dict(s.run), "tasks": {k: dict(v) for k, v in s.tasks.items()},
                            "algorithms": list(s.algorithms)} for s in suites])  # fmt: skip
        return 0
    rows = [{"suite": s.name, "version": s.version, "tasks": ", ".join(s.tasks), "algorithms": ", ".join(s.algorithms),
             "seeds": len(s.seeds), "steps": s.run["steps"], "what": s.what} for s in suites]  # fmt: skip
    output.print_rows(rows, list(rows[0]))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from surefoot.cli.support import file_overrides as received
    from surefoot.cli.support.ahead import reasons, reported
    from surefoot.cli.support.training import Style
    from surefoot.core.base.files import write_json
    from surefoot.runs.folders import Claim, claim_begun, claim_new
    from surefoot.runs.processes.stopping import resumable
    from surefoot.studies import leaderboard

    suite = leaderboard.suite(arguments.suite)
    tasks = _tasks(suite, arguments.tasks)
    if arguments.suite not in leaderboard.names():  # a file, and who gives it may not be who wrote it
        for stated in (*map(suite.overrides, tasks), [f"algo={name}" for name in suite.algorithms]):
            received.check(stated, arguments.suite, arguments.trust)
    entries = _entries(suite, arguments)
    style = Style(arguments.quiet, arguments.json)
    place = pathlib.Path(arguments.output or f"runs/bench-{suite.label}")
    started = (place / leaderboard.RUNS).is_dir()
    given_up = _checked(suite, entries, tasks, place / leaderboard.RUNS, style, arguments)
    claim: Claim = claim_begun(place) if started else claim_new(place)
    with claim, resumable(claim.folder, lambda: arguments.line):
        for name, facts in entries.items():
            home = claim.folder / leaderboard.RUNS / name
            if (home / leaderboard.ENTRY).is_file():
                _refuse_another(home, facts)
            else:
                write_json(home / leaderboard.ENTRY, facts)
            for task in tasks:
                if (name, task) not in given_up:
                    _train(suite, task, home / task, name, facts["overrides"], style, arguments.trust)
        board = leaderboard.lines(suite, claim.folder)
        path = claim.folder / leaderboard.BOARD
        leaderboard.write(board, path)
    if arguments.json:
        output.print_json(board)
    else:
        show(suite, board)
        output.say(f"\nleaderboard: {output.short(path)}")
    for reason, labels in reasons((_label(*which), why) for which, why in given_up.items()).items():
        output.say(f"{reported(labels, 'run')} given up: {reason}", stderr=arguments.json)
    return 2 if given_up else 0


def _label(name: str, task: str) -> str:
    return f"{name} on {task}"


def _checked(
    suite: Suite,
    entries: Mapping[str, Mapping[str, Any]],
    tasks: Sequence[str],
    home: pathlib.Path,
    style: Style,
    arguments: argparse.Namespace,
) -> dict[tuple[str, str], str]:
    """(entry, task) -> why it is given up, of runs that are not started.

    Raises:
        ConfigError: some can't be trained, and `--skip-failing` is not stated, or all can't.
    """
    from surefoot.cli.support.ahead import check_jobs, refusal
    from surefoot.core.base.errors import SurefootError

    every = [(name, task) for name in entries for task in tasks if not (home / name / task / "config.json").is_file()]
    by_label, requests, failed = {_label(*which): which for which in every}, {}, dict[str, SurefootError]()
    for label, (name, task) in by_label.items():
        try:
            requests[label] = _request(suite, task, entries[name]["overrides"])
        except ConfigError as error:
            failed[label] = error
    failed |= check_jobs(requests, style, arguments.trust)
    if failed and (not arguments.skip_failing or len(failed) == len(every)):
        raise refusal(failed, len(every), "run")
    return {by_label[label]: str(error) for label, error in failed.items()}


def _tasks(suite: Suite, stated: str | None) -> list[str]:
    from surefoot.core.base.errors import nearest

    asked = list(suite.tasks) if stated is None else stated.split(",")
    for task in asked:
        if task not in suite.tasks:
            raise ConfigError(f"--tasks {task}: {suite.name} has no such task; {nearest(task, list(suite.tasks))}")
    return asked


def _entries(suite: Suite, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Name -> what its entry.json holds: one of the user's own, or those of the suite."""
    from surefoot.cli.support import config, grammar
    from surefoot.cli.support import file_overrides as received

    def facts(overrides: Sequence[str], runs: int) -> dict[str, Any]:
        shown = shlex.join(["surefoot", "bench", "run", arguments.suite, *overrides])
        return {"suite": suite.name, "version": suite.version, "overrides": list(overrides), "tuning_runs": runs,
                "command": shown}  # fmt: skip

    own = grammar.readable(arguments.settings, False)
    if not own and arguments.tuned is None:
        if arguments.entry is not None:
            raise ConfigError("--entry names an entry of your own: give its algorithm too, as in algo=iql")
        return {name: facts([f"algo={name}"], 0) for name in suite.algorithms}
    runs = 0
    if arguments.tuned is not None:
        tuned, runs = _incumbent(suite, pathlib.Path(arguments.tuned))
        received.check(tuned, arguments.tuned, arguments.trust)
        own = [*tuned, *own]
    for item in grammar.parse(own):
        if item.key != "algo" and not item.key.startswith("algo."):
            raise ConfigError(f"{item.text}: the suite fixes everything but the algorithm and its options")
    own = config.respelled(own)
    config.check_overrides(own, False)
    algorithms = [item.values[0] for item in grammar.parse(own) if item.key == "algo"]
    if not algorithms:
        raise ConfigError("name the entry's algorithm, as in algo=iql")
    name = arguments.entry or algorithms[-1].rpartition(":")[2]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ConfigError(f"--entry {name!r}: letters, digits, and . _ - between them")
    return {name: facts(own, runs)}


def _incumbent(suite: Suite, study: pathlib.Path) -> tuple[list[str], int]:
    """The options that a study found, and how many runs that took."""
    from surefoot.cli.support import grammar
    from surefoot.cli.support.file_overrides import said_by
    from surefoot.core.base.files import read_json
    from surefoot.core.base.schema import Number, Plain, Record, Table
    from surefoot.evaluation.results import TUNING
    from surefoot.studies import leaderboard
    from surefoot.studies.tune import RESULT, Tuning

    budget = Record({"runs": Number(0, whole=True)}, others=True)
    found = read_json(study / RESULT, Record({"incumbent": Table(Plain(finite=True)), "budget": budget}, others=True))
    tuning = Tuning.read(study)
    leaderboard.refuse_tuned_on(suite, study, tuning.seeds)
    with said_by(study / TUNING):
        parsed = grammar.parse(tuning.overrides)
    kept = [item.text for item in parsed if item.key == "algo" or item.key.startswith("algo.")]
    not_taken = [item.text for item in parsed if item.key in NOT_OF_AN_ENTRY]
    if not_taken:
        raise ConfigError(
            f"{study}: was tuned with {', '.join(not_taken)}, which an entry does not take over; tune with options of "
            "algo. alone"
        )
    options = {key: value for key, value in found["incumbent"].items() if key.startswith("algo.")}
    if left := sorted(set(found["incumbent"]) - set(options)):
        raise ConfigError(
            f"{study}: tuned {', '.join(left)} too, which {suite.name} fixes; tune options of algo. alone"
        )
    return [*kept, *grammar.texts(options)], int(found["budget"]["runs"])


def _refuse_another(home: pathlib.Path, facts: Mapping[str, Any]) -> None:
    from surefoot.core.base.files import read_json
    from surefoot.studies import leaderboard

    before = read_json(home / leaderboard.ENTRY, leaderboard.LABEL)
    for name in ("suite", "version", "overrides"):
        if before[name] != facts[name]:
            raise ConfigError(
                f"{home}: an entry of this name is there, with {name} {before[name]} and not {facts[name]}; "
                "give this one another name with --entry, or another folder with -o"
            )


def _request(suite: Suite, task: str, overrides: Sequence[str]) -> Any:
    from surefoot.cli.support import config

    try:
        return config.compose([*suite.overrides(task), *overrides])
    except ConfigError as error:
        raise ConfigError(f"{suite.label}, task {task}: {error}") from error


def _train(
    suite: Suite, task: str, place: pathlib.Path, name: str, overrides: Sequence[str], style: Style, trust: bool
) -> None:
    """The run of an entry on a task: finished already, continued, or trained now."""
    from surefoot.cli.support.training import train_or_resume

    train_or_resume(lambda: _request(suite, task, overrides), place, style, label=f"{name} {task} ", trust=trust)


def show(suite: Suite, board: Sequence[Mapping[str, Any]]) -> None:
    """The leaderboard for people."""
    rows = []
    for line in board:
        low, high = line["rank"]
        scores = line["normalised"]
        bounds = "" if line["low"] is None else f" [{line['low']:.4g}, {line['high']:.4g}]"
        rows.append(
            {
                "task": line["task"],
                "rank": str(low) if low == high else f"{low}-{high}",
                "entry": line["entry"],
                "return [95 %]": f"{line['mean']:.4g}{bounds}",
                "normalised": None if scores is None else f"{sum(scores) / len(scores):.1f}",
                "seeds": len(line["seeds"]),
                "tuning runs": line["tuning_runs"],
            }
        )
    if rows:
        output.print_rows(rows, list(rows[0]), f"{suite.name}, version {suite.version}")
        output.say("a rank is a range: entries that these seeds do not separate share it (all pairs of a task, 5 %)")
    if any("undecidable" in line["verdicts"].values() for line in board):
        output.say(
            f"{len(suite.seeds)} seeds of each are too few for that level among so many pairs: nothing is decided"
        )
