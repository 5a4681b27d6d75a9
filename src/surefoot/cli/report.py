"""`surefoot report | export`: what can be done with a finished run."""

from __future__ import annotations

import argparse
import functools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from surefoot.safety.shield import Shield


def add_parsers(commands: Any) -> None:
    """Register the two commands."""
    parser = commands.add_parser("report", help="compare runs in one HTML page that opens from disk")
    parser.add_argument("folders", metavar="RUN", nargs="+", help="run folders")
    parser.add_argument("-o", "--output", default="report.html", help="the page (default report.html)")
    parser.add_argument("--csv", metavar="FILE", help="write the table with all its numbers as CSV too")
    parser.add_argument("--cost-limit", type=float, help="judge all runs by this limit (default: each by its own)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(run=report)

    parser = commands.add_parser("export", help="write a policy as one file for other programs")
    parser.add_argument("folder", metavar="RUN", help="run folder, or a policy's .safetensors")
    parser.add_argument("-o", "--output", required=True, help="policy.onnx, .pt2, .hpp (a C++ header) or .safetensors")
    parser.add_argument("--policy-seed", type=int, metavar="K", help="which of RUN's policies (default: its first)")
    output.add_renamed(parser, "--seed", "--policy-seed")
    parser.add_argument("--sampling", action="store_true", help="with noise as an input, to draw random actions")
    parser.add_argument("--filter", default="none", help="none, reach or cbf: what every action passes (default none)")
    parser.add_argument("--safe-set", metavar="FILE", help="of the filter, made by surefoot reach (default: made now)")
    parser.add_argument("--margin", type=float, help="of the filter (default: as much as it is found to need)")
    parser.add_argument("--env", help="of the filter: native/<system> (default: the one that RUN was evaluated in)")
    parser.set_defaults(run=export, quiet=False, json=False)


def report(arguments: argparse.Namespace) -> int:
    """Write the page, and print its table."""
    from surefoot.evaluation import broken_promise, filter_words, load_runs, tables, where_certified, write_report
    from surefoot.evaluation.alarms import alarm_lines
    from surefoot.evaluation.estimates import estimate_lines
    from surefoot.evaluation.limits import limit_lines
    from surefoot.evaluation.passes import pass_lines
    from surefoot.evaluation.safety import check_limit

    path = pathlib.Path(arguments.output)
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file, as in -o report.html")
    output.check_page(path)
    check_limit(arguments.cost_limit)
    folders, left_out = finished_runs(arguments.folders)
    for why in left_out:
        output.say(f"left out: {why}", stderr=True)
    runs = [run.judged_by(arguments.cost_limit) for run in load_runs(folders)]
    write_report(runs, path)
    if arguments.csv is not None:
        tables.write_csv(tables.rows(runs), arguments.csv)
    certificates = {run.name: list(run.certificates) for run in runs if run.certificates}
    if arguments.json:
        rows = [row.to_json() for row in tables.rows(runs)]
        output.print_json({"report": str(path), "rows": rows, "certificates": certificates, "left_out": left_out})
        return 0
    output.print_table(tables.rows(runs), details=True)
    for run in runs:
        if run.safety is not None:
            output.say(f"{run.name}: {run.safety.sentence()}")
        for line in (*estimate_lines(run), *pass_lines(run), *limit_lines(run)):
            output.say(f"{run.name}: {line}")
        for line in alarm_lines(run):
            output.say(f"*** {run.name}: {line}", stderr=True)
    for name, all_found in certificates.items():
        for found in all_found:
            output.say(
                f"{name}, certified in {where_certified(found)}: {found['sentence']} (filter: {filter_words(found)})"
            )
            for line in broken_promise(found):
                output.say(f"*** {line}", stderr=True)
    output.say(f"\nreport: {output.short(path)}")
    if arguments.csv is not None:
        output.say(f"csv:    {output.short(arguments.csv)}")
    return 0


def finished_runs(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of folders as a shell's * lists them the finished runs, and a sentence for each that is left out.

    A folder of a sweep stands for the runs in it; files beside the runs are passed over.

    Raises:
        CheckpointError: a folder is no run and holds none, or there is no finished one.
    """
    from surefoot.runs.run import is_language

    found: list[str] = []
    left_out: list[str] = []
    for name in given:
        folder = pathlib.Path(name)
        if folder.is_file() and len(given) > 1:
            left_out.append(f"{name} is a file, not a run folder")
            continue
        inside = [] if (folder / "config.json").is_file() else sorted(folder.glob("*/config.json"))
        for run in [path.parent for path in inside] or [folder]:
            unfinished = (run / "config.json").is_file() and not (run / "summary.json").is_file()
            if unfinished:
                train = "llm train" if is_language(run) else "train"
                left_out.append(
                    f"{run} is not finished: surefoot watch {output.typed(run)} shows how far it is, surefoot {train} "
                    f"--resume {output.typed(run)} goes on with it"
                )
            else:
                found.append(str(run))
    if not found:
        raise CheckpointError(left_out[0] if left_out else "no run folder is given")
    return found, left_out


def _filter(arguments: argparse.Namespace, policy: Any, path: pathlib.Path) -> Shield | None:
    """The filter that is exported with the policy; None where none is asked for."""
    from surefoot.cli.rollout import shield_of
    from surefoot.envs import check_spaces
    from surefoot.envs.names import gymnasium_id
    from surefoot.runs.run import Run

    if arguments.filter == "none" and arguments.env is not None:
        raise ConfigError("--env is of a filter; add --filter reach or --filter cbf")
    env = arguments.env
    if arguments.filter != "none":
        if path.suffix == ".hpp" and arguments.filter != "reach":
            raise ConfigError(f"--filter {arguments.filter}: a C++ header holds the reach filter; export to .onnx")
        if env is None and pathlib.Path(arguments.folder).is_dir():
            env = Run.open(arguments.folder).plan.environment
        if env is None:
            raise ConfigError(f"{arguments.folder}: says no system; name the filter's with --env native/<system>")
        check_spaces(gymnasium_id(env), policy.arrays, policy.action_dim, policy.discrete)
    return shield_of(arguments, str(env))


def export(arguments: argparse.Namespace) -> int:
    """Write one policy in the format that the file's ending names."""
    import warnings

    import torch

    import surefoot
    from surefoot.core.policy.cpp import name_of as cpp_name
    from surefoot.core.policy.export import example

    path = pathlib.Path(arguments.output)
    if path.suffix not in (".onnx", ".pt2", ".safetensors", ".hpp"):
        raise ConfigError(
            f"{path}: its ending names no format; a policy is exported to .onnx, .pt2, .hpp (C++) or .safetensors"
        )
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file")
    policy: Any = surefoot.load_policy(arguments.folder, arguments.policy_seed)
    shield = _filter(arguments, policy, path)
    if path.suffix == ".safetensors":
        if arguments.sampling:
            raise ConfigError("--sampling: a .safetensors policy holds both forms already; leave it out")
        (policy.save if shield is None else functools.partial(shield.save, policy))(path)
        beside = "" if shield is None else f", the filter {output.short(path.with_suffix('.filter.npz'))}"
        output.say(f"policy: {output.short(path)} and {output.short(path.with_suffix('.json'))}{beside}")
        return 0
    discrete, kind = policy.discrete, "Policy" if shield is None else "FilteredPolicy"
    policy = policy if shield is None else shield.around(policy)
    if path.suffix == ".hpp":
        if arguments.sampling:
            raise ConfigError("--sampling: a C++ header gives the mean action; export samples to .onnx")
        policy.export(path)
        act = f"{cpp_name(path)}::{kind}::" + ("choose(observation)" if discrete else "act(observation, action)")
        output.say(
            f"policy: {output.short(path)}\n{act}: {policy.observation_dim} numbers -> "
            f"{'a choice' if discrete else f'{policy.action_dim} numbers'}; compile with -O3 -march=native"
        )
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own, about torch's internals
        policy.export(path, sampling=arguments.sampling)
    inputs = example(policy, arguments.sampling)
    memory = {f"memory.{name}": value for name, value in inputs.pop("memory", {}).items()}
    seen = inputs.pop("observations")
    tensors = {**(seen if isinstance(seen, dict) else {"observations": seen}), **inputs, **memory}
    shapes = {name: ", ".join(["batch", *map(str, value.shape[1:])]) for name, value in tensors.items()}
    kinds = {name: ", uint8" if value.dtype == torch.uint8 else "" for name, value in tensors.items()}
    listed = ", ".join(f"{name} ({shape}){kinds[name]}" for name, shape in shapes.items() if name != "noise")
    noise = f" and noise ({shapes['noise']}), standard normal" if "noise" in shapes else ""
    given = "choices (batch), int64" if discrete else f"actions (batch, {policy.action_dim}), float32"
    following = ", " + ", ".join(f"{name}.next" for name in memory) if memory else ""
    output.say(f"policy: {output.short(path)}\n{listed}{noise} -> {given}{following}")
    return 0
