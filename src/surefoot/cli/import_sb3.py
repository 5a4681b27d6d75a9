"""`surefoot import`: policies and training logs of other libraries as ours."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

LAST = 100
"""Training episodes whose mean judges a seed, as many as stable-baselines3's own running mean has."""


def add_parser(commands: Any) -> None:
    """Register the command and its own commands."""
    parser = commands.add_parser("import", help="import a policy or training logs of another library")
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    made = own.add_parser("sb3", help="a policy of stable-baselines3", description="A policy of stable-baselines3.")
    made.add_argument("file", metavar="FILE.zip", help="what model.save wrote; it is unpickled, so --trust is needed")
    made.add_argument("-o", "--output", required=True, help="policy.safetensors; a .json is written beside it")
    made.add_argument("--algorithm", help="a2c, ddpg, dqn, ppo, sac or td3 (default: what the file says)")
    made.add_argument("--vecnormalize", metavar="FILE", help="what VecNormalize.save wrote beside it")
    made.add_argument("--trust", action="store_true", help="execute what is pickled in these files")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.set_defaults(run=sb3)
    logs = own.add_parser(
        "runs",
        help="training logs of stable-baselines3 and CleanRL, for results and compare",
        description="Training logs as finished run folders, one for each algorithm and environment: "
        "stable-baselines3's evaluations.npz, monitor.csv and progress.csv, TensorBoard's event files, histories of "
        "Weights & Biases as CSV (Open RL Benchmark).",
    )
    logs.add_argument(
        "paths", metavar="PATH", nargs="+", help="a log, a folder with one seed's logs, or with many such"
    )
    logs.add_argument("-o", "--output", metavar="FOLDER", required=True, help="of the run folders")
    logs.add_argument("--algorithm", help="of all (default: what names of folders and runs say)")
    logs.add_argument("--env", help="of all (default: what the logs or their names say)")
    logs.add_argument(
        "--seeds", metavar="A,B,...", help="one for each log in the order of names (default: what names say)"
    )
    which = "which returns (default: of evaluations where there are some, else of training)"
    logs.add_argument("--score", choices=["evaluation", "training"], help=which)
    judging = f"training episodes that judge a seed (default {LAST})"
    logs.add_argument("--last", type=int, default=LAST, metavar="N", help=judging)
    logs.add_argument("--json", action="store_true", help="print JSON")
    logs.set_defaults(run=runs)


def sb3(arguments: argparse.Namespace) -> int:
    """Convert, compare and write."""
    from surefoot.interop import sb3 as tool

    path = pathlib.Path(arguments.output)
    if path.suffix != ".safetensors":
        raise ConfigError(f"{path}: a policy is written as .safetensors; export it from there to .onnx, .pt2 or .hpp")
    policy = tool.load(
        arguments.file, trust=arguments.trust, algorithm=arguments.algorithm, statistics=arguments.vecnormalize
    )
    policy.save(path)
    if arguments.json:
        output.print_json({"output": str(path), **policy.description()})
        return 0
    acts = f"{policy.action_dim} {'choices' if policy.discrete else 'numbers'}"
    output.say(
        f"policy: {output.short(path)} and {output.short(path.with_suffix('.json'))}\n"
        f"{policy.observation_dim} numbers -> {acts}; {policy.actor.kind}; acts as in stable-baselines3"
    )
    return 0


def runs(arguments: argparse.Namespace) -> int:
    """Read, group and write; show what was made."""
    from surefoot.interop.training_logs.found import seeds_in
    from surefoot.interop.training_logs.write import stated, write

    if arguments.last < 1:
        raise ConfigError(f"--last is {arguments.last}; it must be at least 1")
    logs = stated(
        seeds_in(arguments.paths, arguments.score, arguments.last),
        arguments.algorithm,
        arguments.env,
        None if arguments.seeds is None else _seeds(arguments.seeds),
    )
    folders = write(logs, arguments.output)
    if arguments.json:
        read = [{"source": str(log.source), "algorithm": log.algorithm, "environment": log.environment,
                 "seed": log.seed, "score": log.score, "judged": log.judged, "return": log.final, "steps": log.steps}
                for log in logs]  # fmt: skip
        output.print_json({"runs": [str(folder) for folder in folders], "seeds": read})
        return 0
    for log in logs:
        output.say(
            f"{log.source}: {log.algorithm} in {log.environment}, seed {log.seed}: {log.final:,.1f}, {log.judged}"
        )
    output.say()
    output.print_runs(folders)
    for folder in folders:
        output.say(f"run folder: {output.short(folder)}")
    output.say(f"\nnext:\n  surefoot results {output.typed(pathlib.Path(arguments.output))} runs/")
    return 0


def _seeds(text: str) -> list[int]:
    """The seeds that `--seeds` lists."""
    try:
        seeds = [int(part) for part in text.strip("[]").split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--seeds {text}: give whole numbers with commas between them, as in --seeds 0,1,2"
        ) from error
    if min(seeds) < 0:
        raise ConfigError(f"--seeds {text}: seeds are from 0 on")
    return seeds
