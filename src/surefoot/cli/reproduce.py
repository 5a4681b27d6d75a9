"""`surefoot reproduce`: published results, their settings, and runs that repeat them."""

from __future__ import annotations

import argparse
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError, nearest

if TYPE_CHECKING:
    from surefoot.cli.support.config import Request
    from surefoot.runs.run import Run
    from surefoot.studies.reproduce import Outcome, Result

ASKED, RESULT = "reproduce.json", "reproduction.json"
"""What a folder of a reproduction was started for, and how it ended."""
PLACE = ("dataset", "env", "env_options", "device", "tf32", "mixed_precision", "compiled", "kernels", "collectors",
         "workers", "staleness", "learners", "patience", "checkpoint_every", "strict", "view", "logger",
         "logger_options", "listener", "keep_best")  # fmt: skip
"""Fields of `surefoot train` that say where a result is repeated, and not what is."""
OWN = {"steps": "--updates N", "seeds": "--seeds N", "out": "-o FOLDER"}
"""Fields of `surefoot train` that are options here."""
EXAMPLES = """\
examples:
  surefoot reproduce                                        what there is, how long it takes, what was run here
  surefoot reproduce --family safe
  surefoot reproduce dqn-cartpole --show                    the exact commands, without running them
  surefoot reproduce dqn-cartpole
  surefoot reproduce iql-hopper-medium device=cuda
  surefoot reproduce td3bc-neorl2-dmsd dataset=dmsd.hdf5 --updates 20000 --seeds 1

The same command continues a run that was interrupted. docs/reproduce.md has all results in one table.
"""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "reproduce",
        help="repeat a published result with its published settings (surefoot reproduce --help)",
        description="Lists results of papers' main tables, or repeats one: the published settings, trained and scored "
        "as the paper has it, then ours with its 95 % interval beside the published number.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="of a result; without it they are listed")
    parser.add_argument(
        "settings", nargs="*", metavar="name=value", help="where: dataset=FILE, env=ID, device=cuda, ... as of train"
    )
    parser.add_argument("--family", metavar="NAME", help="list only this family's, such as safe")
    parser.add_argument("--algo", metavar="NAME", help="list only this algorithm's")
    parser.add_argument("--show", action="store_true", help="print the commands and all options, and run nothing")
    parser.add_argument("--seeds", metavar="N", help="how many seeds, or which, as [0,5] (default: the paper's)")
    parser.add_argument("--updates", metavar="N", help="at most so many updates or steps: a shorter run, labelled so")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="default: runs/reproduce-NAME; continues there")
    output.add_trust(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List, show or repeat."""
    if arguments.name is not None and "=" in arguments.name:
        raise ConfigError(f"{arguments.name}: name the result first, as in surefoot reproduce dqn-cartpole device=cuda")
    if arguments.name is None:
        for option in ("show", "seeds", "updates", "output"):
            if getattr(arguments, option):
                raise ConfigError(f"--{option} is of one result: name it")
        return _list(arguments)
    for option in ("family", "algo"):
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option} filters the list, and {arguments.name} is one result: leave one out")
    from surefoot.studies import reproduce

    published = reproduce.result(arguments.name)
    updates, seeds = _count(arguments.updates, "--updates"), _seeds(arguments.seeds)
    asked = published.shortened(updates, seeds).place(_placed(arguments.settings))
    place = pathlib.Path(arguments.output or f"runs/reproduce-{published.name}").expanduser()
    if arguments.show:
        return _show(asked, published, place, arguments.json)
    return _repeat(asked, published, place, arguments)


def _list(arguments: argparse.Namespace) -> int:
    from surefoot.studies import reproduce

    known = list(reproduce.results().values())
    families = reproduce.families(known)
    if arguments.family is not None and arguments.family not in families:
        raise ConfigError(f"--family {arguments.family}: {nearest(arguments.family, families)}")
    algorithms = sorted({one.algorithm for one in known})
    if arguments.algo is not None and arguments.algo not in algorithms:
        raise ConfigError(f"--algo {arguments.algo}: {nearest(arguments.algo, algorithms)}")
    kept = [one for one in known if arguments.family in (None, one.family) and arguments.algo in (None, one.algorithm)]
    if not kept:
        raise ConfigError(f"no result is of {arguments.algo} and of the family {arguments.family}: leave one out")
    if arguments.json:
        output.print_json([_facts(one) for one in kept])
        return 0
    rows = [
        {
            "name": one.name,
            "algorithm": one.algorithm,
            "task": one.task,
            "published": "; ".join(map(str, one.published)),
            "steps": f"{one.stages['run'].steps:,}",
            "one core": reproduce.duration(reproduce.seconds(one, "core")),
            "GPU": reproduce.duration(reproduce.seconds(one, "gpu")),
            "file": "to be had" if one.data else "-",
            "here": here(one),
        }
        for one in kept
    ]
    output.print_rows(rows, list(rows[0]))
    output.say(
        "\none core: of one seed, by measured rates, without evaluations; GPU: as predicted, not measured; file: to be "
        "had where data have to be fetched or made.\n"
        "surefoot reproduce NAME --show: paper, settings, how the file is had. surefoot reproduce NAME: run it"
    )
    return 0


def here(one: Result) -> str:
    """What was run on a machine of ours, in a few words; a dash where nothing was."""
    from surefoot.studies.reproduce import measured

    found = measured().get(one.name, {}).get("here")
    if found is None:
        return "-"
    reported = []
    for outcome in found["outcomes"]:
        bounds = "" if outcome["low"] is None else f" [{outcome['low']:.4g}, {outcome['high']:.4g}]"
        reported.append(f"{outcome['mean']:.4g}{bounds}, published number {outcome['place']}")
    return ("shorter: " if found["shorter"] else "") + "; ".join(reported)


def _facts(one: Result) -> dict[str, Any]:
    """A result as JSON values."""
    from surefoot.studies import reproduce

    stages = {name: {"command": command(stage.values()), "steps": stage.steps} for name, stage in one.stages.items()}
    numbers = [{key: value for key, value in vars(number).items() if value is not None} for number in one.published]
    return {
        **{key: getattr(one, key) for key in ("name", "family", "algorithm", "task", "paper", "table", "protocol")},
        "published": numbers,
        "stages": stages,
        **{key: getattr(one, key) for key in ("data", "needs", "differs")},
        "seconds_of_one_core": reproduce.seconds(one, "core"),
        "seconds_of_a_gpu_as_predicted": reproduce.seconds(one, "gpu"),
        "here": reproduce.measured().get(one.name, {}).get("here"),
    }


def command(values: Mapping[str, Any]) -> str:
    """`surefoot train` with these fields, as it is typed."""
    from surefoot.cli.support import grammar

    def text(key: str, value: Any) -> str:
        if isinstance(value, str):
            return f"{key}={value}"
        return grammar.texts({key: value})[0].replace(", ", ",")

    return shlex.join(["surefoot", "train", *(text(key, value) for key, value in values.items())])


def stages_of(asked: Result, place: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Stage -> the fields of its run, those of folders among them."""
    found = {}
    for name, stage in asked.stages.items():
        values = stage.values()
        if name == "run" and "before" in asked.stages:
            values["init"] = str(place / "before")
        found[name] = values
    return found


def request(values: Mapping[str, Any], name: str) -> Request:
    """A stage's checked request.

    Raises:
        ConfigError: an option is unknown or out of range.
    """
    from surefoot.cli.support import config, grammar

    given = {key: value for key, value in values.items() if key != "algo"}
    try:
        return config.compose([f"algo={values['algo']}", *grammar.texts(given)])
    except ConfigError as error:
        raise error.inside(name, ConfigError) from error


def _show(asked: Result, published: Result, place: pathlib.Path, as_json: bool) -> int:
    from surefoot.studies import reproduce

    stages = stages_of(asked, place)
    requests = {stage: request(values, asked.name) for stage, values in stages.items()}
    if as_json:
        reported = {stage: {"command": command({**stages[stage], "out": str(place / stage)}), "options": one.options}
                for stage, one in requests.items()}  # fmt: skip
        output.print_json({**_facts(asked), "stages": reported})
        return 0
    output.print_facts(
        {
            "result": asked.name,
            "task": asked.task,
            "published": "; ".join(map(str, asked.published)),
            "paper": f"{asked.paper}, {asked.table}",
            "protocol": asked.protocol,
            "differs": asked.differs,
            "file": asked.data,
            "needs": asked.needs,
            "one core": _of_a_seed(reproduce.seconds(asked, "core")),
            "GPU": _of_a_seed(reproduce.seconds(asked, "gpu"), " (predicted)"),
            "here": None if (found := here(asked)) == "-" else found,
            "shorter": _shorter(asked, published),
        }
    )
    for stage, one in requests.items():
        output.say(f"\n{command({**stages[stage], 'out': str(place / stage)})}")
        output.say("  " + ", ".join(f"{key}={output.cell(value)}" for key, value in one.options.items()))
    return 0


def _of_a_seed(seconds: float | None, more: str = "") -> str | None:
    from surefoot.studies.reproduce import duration

    return None if seconds is None else f"{duration(seconds)} a seed{more}"


def _shorter(asked: Result, published: Result) -> str | None:
    """What is less than published; None where nothing is."""
    given = [
        f"{stage.steps:,} of {published.stages[name].steps:,} steps{' before' if name == 'before' else ''}"
        for name, stage in asked.stages.items()
        if stage.steps < published.stages[name].steps
    ]
    return "; ".join(given) or None


def _repeat(asked: Result, published: Result, place: pathlib.Path, arguments: argparse.Namespace) -> int:
    from surefoot.cli.support.ahead import check_jobs, refusal
    from surefoot.cli.support.training import Style, train_or_resume
    from surefoot.core.base.files import write_json
    from surefoot.runs.folders import Claim, claim_begun, claim_new
    from surefoot.runs.processes.stopping import resumable

    style = Style(arguments.quiet, arguments.json)
    style.say("loading libraries and settings; then the data and the environment")
    place = place.resolve()
    stages = stages_of(asked, place)
    facts = {"name": asked.name, "stages": {stage: _settled(values) for stage, values in stages.items()}}
    started = (place / ASKED).is_file()
    if started:
        _refuse_another(place, facts)
    else:
        _require_files(asked, stages)
        first = next(iter(stages))  # what starts from its run can't be checked before that is there
        if failed := check_jobs({first: request(stages[first], asked.name)}, style, arguments.trust):
            raise _with_needs(asked, refusal(failed, 1, "run"))
    claim: Claim = claim_begun(place) if started else claim_new(place)
    with claim, resumable(claim.folder, lambda: arguments.line):
        write_json(place / ASKED, facts)
        for stage, values in stages.items():
            _allow(values)
            label = "" if len(stages) == 1 else f"{'first run' if stage == 'before' else 'second run'}: "
            done = train_or_resume(
                lambda values=values: request(values, asked.name),  # type: ignore[misc]
                place / stage,
                style,
                label=label,
                trust=arguments.trust,
            )
        found = reproduction(asked, published, done)
        write_json(place / RESULT, found)
    if arguments.json:
        output.print_json(found)
        return 0
    _present(asked, published, found, place)
    return 0


def reproduction(asked: Result, published: Result, done: Run) -> dict[str, Any]:
    """What is kept of a finished reproduction, as JSON values: the outcomes, and all that they depend on."""
    from surefoot.core.base.files import read_json
    from surefoot.evaluation.runs import SUMMARY
    from surefoot.runs.run import CONFIG
    from surefoot.runs.summary import MACHINE
    from surefoot.studies import reproduce

    summary = read_json(done.folder / "summary.json", SUMMARY)
    machine = read_json(done.folder / "environment.json", MACHINE)
    return {
        "name": asked.name,
        "algorithm": asked.algorithm,
        "options": read_json(done.folder / "config.json", CONFIG)["plan"]["config"],
        "dataset": summary["dataset"],
        "environment": summary["environment"],
        "updates": summary["steps"],
        "shorter": _shorter(asked, published) is not None,
        "seeds": summary["seeds"],
        "episodes": summary["episodes"],
        "per_seed_returns": summary["per_seed_returns"],
        "per_seed_costs": summary.get("per_seed_costs"),
        "per_seed_success": summary.get("per_seed_success"),
        "outcomes": [vars(one) for one in reproduce.outcomes(asked, summary)],
        "steps_per_second": summary.get("steps_per_second"),
        "updates_per_second": summary["updates_per_second"],
        "machine": machine.get("machine"),
        "versions": machine["versions"],
        "git": machine.get("git"),
        "date": summary["date"],
    }


def _present(asked: Result, published: Result, found: Mapping[str, Any], place: pathlib.Path) -> None:
    from surefoot.studies.reproduce import Outcome

    short = _shorter(asked, published)
    output.say(f"\n{asked.name}: {asked.task}")
    output.say(f"{asked.paper}, {asked.table}: {'; '.join(map(str, asked.published))}")
    if short is not None:
        output.say(f"*** a shorter run than published: {short}")
    for one in found["outcomes"]:
        outcome: Outcome = Outcome(**one)
        output.say(str(outcome))
    count = len(found["seeds"])
    output.say(f"ours: {output.counted(count, 'seed')}, {found['episodes']} episodes each, last policies")
    output.say(f"scored in the paper: {asked.protocol}")
    if asked.differs:
        output.say(f"differs from the paper: {asked.differs}")
    output.say(f"\nrun folder:      {output.short(place / 'run')}\nresult:          {output.short(place / RESULT)}")


def _settled(values: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's fields as its folder keeps them, a file's path absolute."""
    kept = dict(values)
    if isinstance(kept.get("dataset"), str) and pathlib.Path(kept["dataset"]).exists():
        kept["dataset"] = str(pathlib.Path(kept["dataset"]).resolve())
    return kept


def _refuse_another(place: pathlib.Path, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError where a folder was started with other settings."""
    from surefoot.core.base.files import read_json
    from surefoot.core.base.schema import Plain, Record, Table, Text

    before = read_json(place / ASKED, Record({"name": Text(100), "stages": Table(Table(Plain()))}))
    if before["name"] != facts["name"]:
        raise ConfigError(
            f"{place}: {before['name']} is repeated there, not {facts['name']}; give another folder with -o"
        )
    for stage, values in facts["stages"].items():
        there = before["stages"].get(stage, {})
        for key in sorted({*values, *there}):
            if values.get(key) != there.get(key):
                raise ConfigError(
                    f"{place}: was started with {key}={there.get(key)}, not {values.get(key)}; say that to continue, "
                    "or give another folder with -o"
                )


def _require_files(asked: Result, stages: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError where a file that only the user has is not there."""
    for values in stages.values():
        name = values.get("dataset")
        is_file = isinstance(name, str) and name.endswith((".hdf5", ".npz"))
        if asked.data and is_file and not pathlib.Path(str(name)).exists():
            raise ConfigError(f"{asked.name}: {name} is not here. {asked.data} Then say dataset=FILE")


def _with_needs(asked: Result, error: ConfigError) -> ConfigError:
    """The error with how what is missing is had."""
    reported = " ".join(text for text in (asked.data, asked.needs) if text)
    return ConfigError(f"{error} ({asked.name} needs: {reported})" if reported else str(error))


def _allow(values: Mapping[str, Any]) -> None:
    """Let the environment be followed that the declaration or the command line names."""
    from surefoot.runs.trust import allow

    env = values.get("env")
    if isinstance(env, str):
        allow(env)


def _placed(settings: Sequence[str]) -> dict[str, Any]:
    """What name=value say, of fields that a result leaves open.

    Raises:
        ConfigError: one is fixed by the result, or unknown.
    """
    from surefoot.cli.support import grammar

    found: dict[str, Any] = {}
    for item in grammar.parse(grammar.readable(settings)):
        if item.key in OWN:
            raise ConfigError(f"{item.text}: say {OWN[item.key]}")
        if item.key == "algo" or item.key.startswith("algo."):
            raise ConfigError(f"{item.text}: a result fixes the algorithm and its options; for others: surefoot train")
        if item.key.split(".")[0] not in PLACE:
            raise ConfigError(f"{item.text}: a result fixes this, or it is unknown; open are: {', '.join(PLACE)}")
        found[item.key] = _value(item.values[0])
    return found


def _value(text: str) -> Any:
    """A word of the command line as the JSON value that it means."""
    words = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    return int(text) if text.isdigit() else text


def _count(text: str | None, option: str) -> int | None:
    from surefoot.cli.support import grammar

    if text is None:
        return None
    whole = grammar.readable([f"steps={text}"])[0].removeprefix("steps=")
    if not whole.isdigit() or int(whole) < 1:
        raise ConfigError(f"{option} {text}: must be a whole number from 1 on, as in {option} 20000")
    return int(whole)


def _seeds(text: str | None) -> Any:
    from surefoot.runs.plan import seeds_of

    if text is None:
        return None
    if text.isdigit():
        return len(seeds_of(int(text)))
    parts = text.strip("[]").split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise ConfigError(f"--seeds {text}: give how many, as 3, or which, as [0,5]")
    return list(seeds_of([int(part) for part in parts]))
