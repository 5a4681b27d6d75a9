"""`surefoot llm`: language models are trained and evaluated, methods listed, engines compared."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from typing import Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

GIVEN = {"sft": "train a model on given answers", "dpo": "train a model on pairs of a better and a worse answer (DPO)"}


def add_parsers(commands: Any) -> None:
    """Register the commands."""
    parser = commands.add_parser("llm", help="train and evaluate language models (surefoot llm --help)")
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=type(parser))

    train = parts.add_parser("train", help="train a model by rewards", add_help=False)
    train.add_argument("-h", "--help", nargs=0, action=_Help, help="show this, and all settings")
    train.add_argument("settings", nargs="*", metavar="name=value", help="settings, below")
    train.add_argument("--resume", metavar="RUN", help="continue a run that was interrupted")
    output.add_trust(train)
    train.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
    train.add_argument("--json", action="store_true", help="the result as JSON")
    train.set_defaults(run=_train)

    reward = parts.add_parser("reward", help="train a reward model on pairs or labelled steps", add_help=False)
    reward.add_argument("-h", "--help", nargs=0, action=_RewardHelp, help="show this, and all settings")
    reward.add_argument("settings", nargs="*", metavar="name=value", help="settings, below")
    reward.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
    reward.add_argument("--json", action="store_true", help="the result as JSON")
    reward.set_defaults(run=_reward)

    for name, what in GIVEN.items():
        given = parts.add_parser(name, help=what, add_help=False)
        given.add_argument("-h", "--help", nargs=0, action=_GivenHelp, help="show this, and all settings")
        given.add_argument("settings", nargs="*", metavar="name=value", help="settings, below")
        given.add_argument("--resume", metavar="FOLDER", help="continue a training that was interrupted")
        given.add_argument("--trust", action="store_true", help="continue in a folder with symbolic links in it")
        given.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
        given.add_argument("--json", action="store_true", help="the result as JSON")
        given.set_defaults(run=_given, command=name)

    judge = parts.add_parser("evaluate", help="greedy, pass@1 and pass@k of a model or run on prompts")
    judge.add_argument("model", metavar="MODEL", help="folder of a model, or of a run")
    judge.add_argument("prompts", metavar="PROMPTS", help=".jsonl")
    judge.add_argument("reward", metavar="MODULE:FUNCTION", help="what judges the answers")
    judge.add_argument("--solved", type=float, default=1.0, help="the reward from which on one is right (default 1)")
    judge.add_argument("--best", action="store_true", help="a run's best model on its held-out prompts, not its last")
    judge.add_argument("--samples", type=int, default=8, help="k of pass@k (default 8)")
    judge.add_argument("--max-new-tokens", type=int, default=64, help="the most tokens of an answer (default 64)")
    judge.add_argument("--environment", metavar="MODULE:FUNCTION", help="what replies between turns, with --turns")
    judge.add_argument("--turns", type=int, default=1, help="the most turns of an answer (default 1)")
    judge.add_argument("--temperature", type=float, default=1.0, help="of sampling (default 1)")
    judge.add_argument("--seed", type=int, default=0, help="of sampling (default 0)")
    judge.add_argument("--policy-seed", type=int, metavar="K", help="which of a run's models (default: its first)")
    judge.add_argument("--device", default="cpu", help="cpu or cuda")
    judge.add_argument("--json", action="store_true", help="print JSON")
    judge.set_defaults(run=_evaluate)

    compare = parts.add_parser("check", help="compare an installed engine's losses and gradients with ours")
    compare.add_argument("engine", metavar="ENGINE", help="trl or verl")
    compare.add_argument("--seed", type=int, default=0, help="of the random batches (default 0)")
    compare.add_argument("--json", action="store_true", help="print JSON")
    compare.set_defaults(run=_check)

    names = parts.add_parser("methods", help="list methods, or show one's settings")
    names.add_argument("name", nargs="?", help="a method")
    names.add_argument("--json", action="store_true", help="print JSON")
    names.set_defaults(run=_methods)


class _Help(argparse.Action):
    """The options, and the settings, which are read from their own classes."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> None:
        """Print and end."""
        print(parser.format_help() + "\n" + _settings())
        parser.exit()


class _RewardHelp(argparse.Action):
    """The options, and the settings of reward models."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> None:
        """Print and end."""
        from surefoot.language.plan import RewardPlan
        from surefoot.llm.reward_models import RewardTraining

        _print_help(parser, RewardPlan, RewardTraining)


class _GivenHelp(argparse.Action):
    """The options, and the settings of trainings on given answers."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> None:
        """Print and end."""
        from surefoot.language.given import GivenPlan
        from surefoot.llm.supervised import GivenTraining

        _print_help(parser, GivenPlan, GivenTraining)


def _print_help(parser: argparse.ArgumentParser, *kinds: type) -> None:
    from surefoot.cli.support import config

    rows = [row for kind in kinds for row in config.described(kind)]
    shown = [(f"{row['name']}={row['default']}".replace("\n", "\\n"), row["what"]) for row in rows]
    lines = [f"  {setting:<24}{what}" for setting, what in shown]
    print("\n".join([parser.format_help(), "settings:", *lines]))
    parser.exit()


def _settings() -> str:
    from surefoot.cli.support import config
    from surefoot.language.plan import Plan
    from surefoot.llm import METHODS, Method, TrainConfig

    lines = ["settings:"]
    for kind, prefix in ((Plan, ""), (TrainConfig, ""), (Method, "method.")):
        for row in config.described(kind):
            if row["name"] not in ("changes", "loop", "title", "source"):
                shown = f"{prefix}{row['name']}={row['default']}".replace("\n", "\\n")
                lines.append(f"  {shown:<36}{row['what']}")
    return "\n".join([*lines, "", f"methods: {', '.join(METHODS)}"])


def _train(arguments: argparse.Namespace) -> int:
    from surefoot.language.plan import plan
    from surefoot.language.runs import begin, resume

    show = None if arguments.quiet else _show
    if arguments.resume is not None:
        if arguments.settings:
            raise ConfigError("--resume continues the run's own settings: leave out the others")
        folder = resume(arguments.resume, arguments.trust, show)
    else:
        words = dict(_word(text) for text in arguments.settings)
        folder = begin(*plan(words), show)
    _present(folder, arguments.json)
    return 0


def _reward(arguments: argparse.Namespace) -> int:
    from surefoot.language.plan import train_reward

    def show(line: dict[str, Any]) -> None:
        if line["step"] == 1 or line["step"] % 20 == 0:
            stated = f"step {line['step']:.0f}: loss {line['loss']:.3f}, accuracy {line['accuracy']:.3f}"
            print(stated, file=sys.stderr, flush=True)

    facts = train_reward(dict(_word(text) for text in arguments.settings), None if arguments.quiet else show)
    if arguments.json:
        output.print_json(facts)
        return 0
    what = "pairs" if facts["kind"] == "pairs" else "steps"
    output.print_facts(
        {
            "reward model": output.short(pathlib.Path(facts["folder"])),
            "trained on": f"{facts['trained']} lines of {what}; loss {facts['loss']:.3f} in the last 20 steps",
            "held out": f"{facts['held_out_accuracy']:.3f} of {facts['held_out_compared']} {what} ordered correctly",
        }
    )
    return 0


def _given(arguments: argparse.Namespace) -> int:
    from surefoot.language.given import begin_given, resume_given

    def show(line: dict[str, Any]) -> None:
        if line["step"] == 1 or line["step"] % 20 == 0:
            reported = f", accuracy {line['accuracy']:.3f}, margin {line['margin']:.3f}" if "accuracy" in line else ""
            print(f"step {line['step']:.0f}: loss {line['loss']:.3f}{reported}", file=sys.stderr, flush=True)

    heard = None if arguments.quiet else show
    if arguments.resume is not None:
        if arguments.settings:
            raise ConfigError("--resume continues the training's own settings: leave out the others")
        facts = resume_given(arguments.command, arguments.resume, heard, arguments.trust)
    else:
        facts = begin_given(arguments.command, dict(_word(text) for text in arguments.settings), heard)
    if arguments.json:
        output.print_json(facts)
        return 0
    shown = {
        "model": output.short(pathlib.Path(facts["folder"])),
        "trained on": f"{facts['lines']} lines; loss {facts['loss']:.3f} in the last 20 steps",
    }
    for when in ("before", "after"):
        if when in facts:
            reported = ", ".join(f"{name} {value:.3f}" for name, value in facts[when].items())
            shown[f"held out, {when}"] = f"{facts['held_out']} lines: {reported}"
    output.print_facts(shown)
    return 0


def _word(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{text!r} is not of the form name=value, as in steps=200")
    return name, value


def _show(line: dict[str, Any]) -> None:
    if "evaluation" in line:
        from surefoot.llm import Report

        text = f"seed {line['seed']}, step {line['step']}, held out: {Report.from_json(line['evaluation'])}"
    elif line["step"] % 10 and line["step"] != 1:
        return
    else:
        rate = line["tokens"] / (line["sampling_seconds"] + line["training_seconds"])
        text = (
            f"seed {line['seed']}, step {line['step']}: "
            f"reward {line['reward']:.3f}, same {line['same']:.2f}, length {line['length']:.1f}, "
            f"entropy {line['entropy']:.2f}, {rate:,.0f} tokens/s"
        )
    print(text, file=sys.stderr, flush=True)


def _present(folder: pathlib.Path, json: bool) -> None:
    from surefoot.core.base.files import read_json
    from surefoot.evaluation import RunData
    from surefoot.evaluation.passes import pass_lines
    from surefoot.evaluation.tables import rows
    from surefoot.language.runs import seed_folder

    run = RunData.load(folder)
    results = {seed: read_json(seed_folder(folder, seed) / "result.json") for seed in run.seeds}
    if json:
        kept = {seed: {key: value for key, value in one.items() if key != "each"} for seed, one in results.items()}
        output.print_json({"folder": str(folder), **read_json(folder / "summary.json"), "results": kept})
        return
    output.print_table(rows([run]))
    for seed, one in results.items():
        output.say(
            f"seed {seed}: reward {one['reward_first_10']:.3f} in the first ten steps, {one['reward_last_10']:.3f} in "
            f"the last; model: {output.short(seed_folder(folder, seed) / 'model')}"
        )
        if (top := one.get("best")) is not None:
            place = seed_folder(folder, seed) / "best"
            where = output.short(place) if place.is_dir() else "not kept" if top["step"] else "the one before training"
            output.say(f"seed {seed}: best on held-out prompts at step {top['step']}, {top['pass_1']:.3f}: {where}")
    for line in pass_lines(run):
        output.say(line)
    output.say(f"run: {output.short(folder)} (a page: surefoot report {output.typed(output.short(folder))})")


def _evaluate(arguments: argparse.Namespace) -> int:
    from surefoot.language.runs import model_of
    from surefoot.llm import evaluate, load_policy, load_reward, read_prompts
    from surefoot.llm.evaluate import warn_unreached
    from surefoot.llm.reward_models import load_function
    from surefoot.llm.turns import Turns
    from surefoot.runs import trust
    from surefoot.runs.run import is_language

    if (arguments.environment is None) != (arguments.turns == 1) or arguments.turns < 1:
        raise ConfigError(f"--turns {arguments.turns} and --environment go together: turns above 1, and what replies")
    trust.allow(arguments.reward)
    if arguments.environment is not None:
        trust.allow(arguments.environment)
    folder = pathlib.Path(arguments.model).expanduser()
    if (folder / "config.json").is_file() and is_language(folder):
        folder = model_of(folder, arguments.policy_seed, arguments.best)
    elif arguments.best:
        raise ConfigError(f"--best is for runs of `surefoot llm train`, and {folder} is none")
    elif (folder / "model" / "config.json").is_file():  # what surefoot.llm.train left in python
        folder = folder / "model"
    reward, prompts = load_reward(arguments.reward), read_prompts(arguments.prompts)
    policy = load_policy(folder, arguments.temperature, arguments.device)
    turns = None
    if arguments.environment is not None:
        environment: Any = load_function(arguments.environment, "environment")
        turns = Turns(environment, arguments.turns)
    found = evaluate(
        policy, prompts, reward, new=arguments.max_new_tokens, samples=arguments.samples, solved=arguments.solved,
        seed=arguments.seed, turns=turns,
    )  # fmt: skip
    warn_unreached(found, arguments.solved)
    if arguments.json:
        output.print_json(found.to_json())
    else:
        output.say(found)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from surefoot.llm.conformance import check, engine

    other = engine(arguments.engine)
    found = check(other, arguments.seed)
    rows = [
        {"function": one.check, "batch": one.case, "largest difference": f"{one.error:.1e}", "note": one.note}
        | {"verdict": "equal" if one.equal else "known difference" if one.note else "DIFFERS"}
        for one in found
    ]
    failed = sum(not one.accepted for one in found)
    if arguments.json:
        output.print_json({"engine": other.name, "version": other.version, "failed": failed, "findings": rows})
        return 1 if failed else 0
    output.print_rows(rows, ["function", "batch", "largest difference", "verdict"], f"{other.name} {other.version}")
    for one in found:
        if not one.equal and one.note:
            output.say(f"known difference, {one.check}, {one.case}: {one.note}")
    output.say(f"{sum(one.equal for one in found)} of {len(found)} equal, {failed} differ and should not")
    return 1 if failed else 0


def _methods(arguments: argparse.Namespace) -> int:
    from surefoot.llm import METHODS, method

    if arguments.name is not None:
        values = dataclasses.asdict(method(arguments.name))
        if arguments.json:
            output.print_json(values)
        else:
            shown = {k: v.replace("\n", "\\n") if isinstance(v, str) else v for k, v in values.items()}
            output.print_facts(shown)
        return 0
    rows = [
        {"name": name, "title": one.title, "advantages": one.advantages, "ratio": one.ratio, "surrogate": one.surrogate}
        | {"reduction": one.reduction, "source": one.source}
        for name, one in METHODS.items()
    ]
    if arguments.json:
        output.print_json(rows)
    else:
        output.print_rows(rows, ["name", "title", "advantages", "ratio", "surrogate", "reduction", "source"])
    return 0
