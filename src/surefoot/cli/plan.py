"""`surefoot plan`: a planner in an exact world or in a run's learned model, over whole episodes."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from surefoot.cli.support import output, planning
from surefoot.cli.support.episodes import outcome
from surefoot.core.base.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("plan", help="plan actions in the exact simulator, or in a run's learned model")
    parser.add_argument("world", metavar="ENV|RUN", help="native/<system>, a MuJoCo id, or a run folder with a model")
    parser.add_argument(
        "--env", help="environment in which a RUN's plans are executed (default: its own, or its data's)"
    )
    parser.add_argument(
        "--planner", default="mppi", help="cem, icem, mppi, ilqr, shooting, gorp or gumbel (default mppi)"
    )
    planning.add_planning(parser)
    parser.add_argument("--episodes", type=int, help="whole episodes (default: one for each environment)")
    parser.add_argument("--seed", type=int, default=2, help="of initial states and plans (default 2, as evaluate)")
    parser.add_argument("--policy-seed", type=int, metavar="K", help="which of RUN's models (default: its first)")
    parser.add_argument("--threads", type=int, default=1, help="of plans in native systems (default 1)")
    output.add_trust(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Episodes of the planner, and what they came to."""
    from surefoot.play.plan import plan_episodes, world_for
    from surefoot.runs.trust import allow

    for name, value, least in (
        ("episodes", arguments.episodes, 1),
        ("threads", arguments.threads, 1),
        ("seed", arguments.seed, 0),
    ):
        if value is not None and value < least:
            raise ConfigError(f"--{name} is {value}; it must be at least {least}")
    envs = planning.side_by_side(arguments)
    planner, objective = planning.planner_of(arguments), planning.objective_of(arguments)
    allow(arguments.env)
    if not pathlib.Path(arguments.world).is_dir():
        allow(arguments.world)
    world = world_for(arguments.world, arguments.env, arguments.policy_seed, arguments.trust, arguments.threads)
    episodes = arguments.episodes or envs
    with output.plans_line(arguments.quiet or arguments.json) as progress:
        facts = plan_episodes(world, planner, objective, episodes, envs, arguments.seed, progress)
    if arguments.json:
        output.print_json(facts)
    else:
        print_summary(facts)
    return 0


def print_summary(facts: dict[str, Any]) -> None:
    """The same for people."""
    shown: dict[str, Any] = {name: facts[name] for name in ("world", "environment", "planner")}
    shown["objective"] = facts["objective"]
    shown |= outcome(facts)
    shown["speed"] = f"{facts['plans_per_second']:,.0f} plans/s ({facts['plans']:,} in {facts['planning']:.2f} s)"
    output.print_facts(shown)
