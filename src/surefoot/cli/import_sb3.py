"""`surefoot import sb3`: policies of other libraries as policies of ours."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Register the command and its own commands."""
    parser = commands.add_parser("import", help="take over a policy of another library")
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    made = own.add_parser("sb3", help="a policy of stable-baselines3", description="A policy of stable-baselines3.")
    made.add_argument("file", metavar="FILE.zip", help="what model.save wrote; it is unpickled, so --trust is needed")
    made.add_argument("-o", "--output", required=True, help="policy.safetensors; a .json is written beside it")
    made.add_argument("--algorithm", help="a2c, ddpg, dqn, ppo, sac or td3 (default: what the file says)")
    made.add_argument("--vecnormalize", metavar="FILE", help="what VecNormalize.save wrote beside it")
    made.add_argument("--trust", action="store_true", help="execute what is pickled in these files")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.set_defaults(run=sb3)


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
