"""`surefoot evaluate | report | export`: what can be done with a finished run."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli import output
from surefoot.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from surefoot.core.policy import Policy
    from surefoot.evaluation.tables import Row
    from surefoot.experiment.run import Run
    from surefoot.tools.shield import Shield


def add_parsers(commands: Any) -> None:
    """Register the three commands."""
    parser = commands.add_parser("evaluate", help="run a run's policies in a simulator again")
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument("--episodes", type=int, help="per seed (default 100; with --until at most, default 10,000)")
    parser.add_argument("--env", help="another environment than the run's")
    parser.add_argument(
        "--until",
        type=float,
        metavar="W",
        help="stop once the mean success of these policies is known to +-W (95 %%, holds at every look)",
    )
    parser.add_argument(
        "--vary",
        metavar="NAME=LOW:HIGH",
        action="append",
        help="in variants of a native system whose constants are drawn from ranges, as mass=0.5:2,gravity=8:12: mean, "
        "CVaR and worst case over the family, with --episodes of each variant (default 20)",
    )
    parser.add_argument("--variants", type=int, help="of --vary (default 50)")
    parser.add_argument("--share", type=float, help="of --vary: the worst share that CVaR is the mean of (default 0.1)")
    parser.add_argument("--range", metavar="LOW,HIGH", help="with --until: of the return, cut to this, not of success")
    parser.add_argument("--cost-limit", type=float, help="of an episode's cost (default: the algorithm's cost_limit)")
    parser.add_argument("--seed", type=int, default=2, help="of the initial states (default 2; training uses 0 and 1)")
    output.add_trust(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=evaluate)

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


def evaluate(arguments: argparse.Namespace) -> int:
    """Episodes of all seeds' policies, as one row of the table."""
    import torch

    from surefoot.core.smoothness import measured
    from surefoot.envs import check_spaces
    from surefoot.evaluation import Met, evaluate_until, smoothness, tables
    from surefoot.evaluation import evaluate as roll_out
    from surefoot.evaluation.safety import check_limit
    from surefoot.experiment.run import Run
    from surefoot.experiment.trust import allow, demand

    run = Run.open(arguments.folder)
    check_limit(arguments.cost_limit)
    limit = run.plan.cost_limit if arguments.cost_limit is None else arguments.cost_limit
    env = arguments.env or run.plan.environment
    allow(arguments.env)
    for name in (run.plan.algorithm, env):
        demand(name, run.folder / "config.json", arguments.trust)
    if env is None:
        raise ConfigError(f"{arguments.folder}: was trained without a simulator; name one with --env ID")
    policies = run.policies()
    first = policies[run.plan.seeds[0]]
    check_spaces(env, first.arrays, first.action_dim, first.discrete)
    if arguments.vary is not None:
        return _evaluate_variants(arguments, env, list(policies.values()))
    for name in ("variants", "share"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} is of --vary: add it, or leave --{name} out")
    met, known = Met(len(policies)), None
    wanted = arguments.episodes if arguments.episodes is not None else 100 if arguments.until is None else 10_000
    cut = _range(arguments)
    with output.episodes_bar(arguments.quiet, lines=False) as progress:
        acting, seed = list(policies.values()), arguments.seed
        if arguments.until is None:
            found = roll_out(acting, env, wanted, seed, progress=progress, watch=met)
        else:
            half = arguments.until
            found, known = evaluate_until(acting, env, half, wanted, seed, cut, progress=progress, watch=met)
    norms = [measured(policy, torch.from_numpy(met.of(p))) for p, policy in enumerate(policies.values())]
    row = _row(run, env, len(found[0].returns), found, limit)
    row = dataclasses.replace(row, smoothness=smoothness(found, norms))
    if arguments.json:
        listed = {str(seed): episodes.to_json() for seed, episodes in zip(policies, found, strict=True)}
        shown = {"run": str(run.folder), "rows": [row.to_json()], "seed": arguments.seed, "episodes": listed}
        output.print_json(shown if known is None else {**shown, "until": known.to_json()})
        return 0
    output.print_table([row], details=True)
    if known is not None:
        what = "success" if cut is None else f"return cut to [{cut[0]:g}, {cut[1]:g}]"
        output.say(
            f"mean {what} of these {len(found)} policies: {known.estimate:.4g} [{known.low:.4g}, {known.high:.4g}] "
            f"after {len(found[0].returns):,} episodes each (95 %, holds at every look; it says nothing of other seeds)"
        )
    for seed, episodes in zip(policies, found, strict=True):
        lengths = f"{episodes.lengths.mean():.0f} steps"
        solved = "" if episodes.successes is None else f", {100 * episodes.successes.mean():.0f} % of them solved"
        output.say(
            f"seed {seed}: mean return {episodes.returns.mean():.1f} over {len(episodes.returns)} episodes of {lengths}"
            f"{solved}"
        )
    if row.safety is not None:
        output.say(row.safety.sentence())
    if row.smoothness is not None and row.smoothness["jacobian"] is not None:
        norm = tables.format_small(row.smoothness["jacobian"])
        output.say(f"squared norm of the policy's Jacobian: {norm} (mean over observations met)")
    return 0


def _evaluate_variants(arguments: argparse.Namespace, env: str, policies: list[Policy]) -> int:
    """What --vary asks for."""
    from surefoot.evaluation.tables import format_bounds
    from surefoot.tools.variants import evaluate_variants, ranges_of

    for name in ("until", "range", "cost_limit"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} does not go with --vary: leave one of them out")
    settings = {"variants": arguments.variants, "share": arguments.share, "episodes": arguments.episodes}
    given = {name: value for name, value in settings.items() if value is not None}
    varied = evaluate_variants(policies, env, ranges_of(arguments.vary, env), seed=arguments.seed, **given)
    if arguments.json:
        output.print_json({"run": arguments.folder, **varied.to_json()})
        return 0
    found, count = varied.found, varied.scores.shape[1]
    where = {name: float(column[found.worst_variant]) for name, column in varied.values.items()}
    said = ", ".join(f"{name}={value:.4g}" for name, value in where.items())
    low = "" if found.too_low is None else f"; of equal variants it would be {found.too_low:.3g} too low"
    shown = {
        "environment": f"{env}, {count:,} variants, {varied.episodes:,} episodes of each for {len(policies)} seeds",
        "mean return": format_bounds(found.mean.to_json()),
        f"{100 * found.share:g} % quantile": format_bounds(found.quantile.to_json()),
        f"CVaR, worst {100 * found.share:g} %": format_bounds(found.cvar.to_json()),
        "worst variant of each seed": f"{format_bounds(found.worst.to_json())}{low}",
        f"at {said}": f"{format_bounds(varied.again.to_json())} in fresh episodes: the worst variant over all seeds",
    }
    output.print_facts(shown)
    output.say("Each figure is of each training seed first; in brackets 95 % intervals over seeds.")
    return 0


def _range(arguments: argparse.Namespace) -> tuple[float, float] | None:
    """What --range says."""
    if arguments.range is None:
        return None
    if arguments.until is None:
        raise ConfigError("--range is of --until: add it, or leave the range out")
    try:
        low, high = map(float, arguments.range.split(","))
    except ValueError:
        raise ConfigError(f"--range {arguments.range}: give two numbers, as in --range=-1000,0") from None
    if not -float("inf") < low < high < float("inf"):
        raise ConfigError(f"--range {arguments.range}: the second number must be above the first")
    return low, high


def _row(run: Run, env: str, count: int, found: list[Any], limit: float | None) -> Row:
    """The row of this evaluation, with intervals over seeds and initial states."""
    from surefoot.data import normalized_score, reference_scores
    from surefoot.evaluation import cost_interval, hierarchical_interval, safety, success_rate, tables
    from surefoot.experiment.plan import told_options

    returns = hierarchical_interval([episodes.returns for episodes in found]).to_json()
    reference = reference_scores(env)
    normalized = None
    if reference is not None:
        normalized = {
            key: None if returns[key] is None else float(normalized_score(returns[key], reference))
            for key in ("mean", "low", "high")
        }
    costs = [episodes.costs for episodes in found if episodes.costs is not None]
    preset, options = told_options(run.plan.algorithm, run.plan.config)
    return tables.Row(
        algorithm=run.plan.algorithm,
        preset=preset,
        options=options,
        dataset=output.short_dataset(run.plan.dataset),
        environment=env,
        steps=run.plan.steps,
        seeds=len(found),
        episodes=count,
        returns=returns,
        normalized=normalized,
        cost=cost_interval(costs).to_json() if len(costs) == len(found) else None,
        updates_per_second=None,
        safety=safety(found, limit),
        success=None if (solved := success_rate(found)) is None else solved.to_json(),
    )


def report(arguments: argparse.Namespace) -> int:
    """Write the page, and print its table."""
    from surefoot.evaluation import broken_promise, filter_words, load_runs, tables, where_certified, write_report
    from surefoot.evaluation.alarms import alarm_lines
    from surefoot.evaluation.estimates import estimate_lines
    from surefoot.evaluation.passes import pass_lines
    from surefoot.evaluation.safety import check_limit

    path = pathlib.Path(arguments.output)
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file, as in -o report.html")
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
        for line in (*estimate_lines(run), *pass_lines(run)):
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
    from surefoot.experiment.run import is_language

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
    from surefoot.cli.rollouts import shield_of
    from surefoot.envs import check_spaces
    from surefoot.envs.names import gymnasium_id
    from surefoot.experiment.run import Run

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
    from surefoot.core.cpp import name_of as cpp_name
    from surefoot.core.export import example

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
