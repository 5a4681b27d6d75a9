"""Options of commands that run a policy in many environments: `surefoot rollout` and `surefoot certify`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.play.actors import Actor


def add_actor(parser: argparse.ArgumentParser) -> None:
    """Add them to a command."""
    parser.add_argument("policy_run", metavar="RUN", nargs="?", help="run folder, or a policy's .safetensors")
    parser.add_argument("--policy", metavar="NAME", help="instead of RUN: random, or a behaviour of the native system")
    parser.add_argument("--policy-seed", type=int, metavar="K", help="which of RUN's policies (default: its first)")
    parser.add_argument(
        "--sample", action="store_true", help="RUN's policy draws its actions, as in training, instead of the mean ones"
    )
    parser.add_argument("--env", help="native/<system> or another id (default: the one that RUN was evaluated in)")
    parser.add_argument(
        "--gap", metavar="NAME", help="preset of perturbed dynamics, as `surefoot envs info ID` lists them"
    )
    parser.add_argument("--steps", type=int, help="cut episodes off after this many (default: the environment's limit)")
    parser.add_argument(
        "--seed", type=int, default=2, help="of initial states and noise, in episodes of its own (default 2)"
    )
    parser.add_argument("--threads", type=int, help="of native code (default: all processors)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda: of a RUN in a native system")
    output.add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def actor_of(arguments: argparse.Namespace) -> Actor:
    """The policy that the options name."""
    from surefoot.play.actors import actor
    from surefoot.runs.trust import allow

    check_numbers(arguments)
    allow(arguments.env)
    named = (arguments.policy_run, arguments.policy, arguments.env, arguments.policy_seed)
    return actor(*named, arguments.trust, arguments.sample)


def check_numbers(arguments: argparse.Namespace) -> None:
    """Refuse threads and seeds that there are not."""
    if arguments.threads is not None and arguments.threads < 1:
        raise ConfigError(f"--threads is {arguments.threads}; it must be at least 1")
    if arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; it must be 0 or more")
