"""`surefoot snapshots`: states of a trained policy's episodes, or of recorded data, that other runs start from."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.envs.snapshots import Snapshots


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("snapshots", help="record simulator states from which episodes of other runs start")
    parser.add_argument("source", metavar="RUN", help="run folder of the teacher, or a dataset with simulator states")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="snapshots, as .npz, for starts=FILE")
    parser.add_argument("--env", metavar="ID", help="where they are recorded (default: the RUN's or dataset's)")
    parser.add_argument("--episodes", type=int, metavar="N", help="of the teacher (default 10)")
    parser.add_argument("--every", type=int, metavar="K", help="steps from one snapshot to the next (default 10)")
    parser.add_argument("--seed", type=int, metavar="S", help="of the teacher's initial states (default 0)")
    parser.add_argument("--policy-seed", type=int, metavar="K", help="which of RUN's policies (default: its first)")
    parser.add_argument(
        "--value", choices=("critic", "returns"),
        help="what clusters are made of: RUN's critic, or what followed (default: the critic, where there is one)",
    )  # fmt: skip
    output.add_trust(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Record, write, and say what there is."""
    from surefoot.envs.snapshots import check_name

    path = check_name(arguments.output)
    if arguments.seed is not None and arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; it must be 0 or more")
    found = _found(arguments)
    found.save(path)
    groups = [found.values[members] for members in found.clusters(6)]
    facts = {
        "snapshots": len(found),
        "environment": found.environment,
        "value": found.value,
        "source": found.source,
        "states": {name: int(value.shape[1]) for name, value in found.states.items()},
        "clusters": [
            {"snapshots": len(one), "lowest": float(one.min()), "highest": float(one.max())} for one in groups
        ],
        "file": str(path),
    }
    if arguments.json:
        output.print_json(facts)
        return 0
    output.say(f"{len(found):,} snapshots of {found.source}")
    output.say(f"value ({found.value}) of the clusters that starts= draws from:")
    for one in groups:
        output.say(f"  {one.min():10.4g} to {one.max():10.4g}: {len(one):,}")
    output.say(f"file: {output.short(path)}\n\nnext:\n  surefoot train algo=sac env={found.environment} starts={path}")
    return 0


def _found(arguments: argparse.Namespace) -> Snapshots:
    """The snapshots that the options ask for."""
    from surefoot.runs import starts
    from surefoot.runs.embedded import environment_of, load
    from surefoot.runs.trust import allow

    allow(arguments.env)
    source = pathlib.Path(arguments.source)
    every = starts.EVERY if arguments.every is None else arguments.every
    if source.is_dir() and (source / "config.json").is_file():
        with output.episodes_bar(arguments.quiet or arguments.json, lines=False) as bar:
            return starts.of_run(
                source,
                arguments.env,
                seed=arguments.policy_seed,
                episodes=starts.EPISODES if arguments.episodes is None else arguments.episodes,
                every=every,
                episode_seed=arguments.seed or 0,
                value=arguments.value,
                trust=arguments.trust,
                progress=bar,
            )
    for name in ("episodes", "seed", "policy_seed", "value"):
        if getattr(arguments, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is of a RUN, and {source} is none: of data only --env and --every are asked")
    with output.download_bar(arguments.quiet) as downloading:
        dataset = load(arguments.source, progress=downloading)
    env_id = environment_of(dataset, arguments.env, arguments.trust)
    if env_id is None:
        raise ConfigError("snapshots are states of a simulator: name it with --env ID")
    return starts.of_dataset(dataset, env_id, every)
