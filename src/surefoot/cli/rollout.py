"""`surefoot rollout`: a policy in very many environments at once."""

from __future__ import annotations

import argparse
from typing import Any

from surefoot.cli.support import output
from surefoot.cli.support.actors import actor_of, add_actor
from surefoot.cli.support.episodes import outcome, summary
from surefoot.core.base.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("rollout", help="one episode of a policy in each of many environments")
    add_actor(parser)
    parser.add_argument("--envs", type=int, default=4096, help="environments, one episode each (default 4096)")
    parser.set_defaults(run=rollout)


def rollout(arguments: argparse.Namespace) -> int:
    """Episodes side by side, and what they came to."""
    from surefoot.envs.episodes import episode_seeds, run_episodes

    if arguments.envs < 1:
        raise ConfigError(f"--envs is {arguments.envs}; there must be at least 1 environment")
    chosen = actor_of(arguments)
    batch = run_episodes(
        chosen.policy,
        chosen.env_id,
        episode_seeds(arguments.seed, 0, arguments.envs),
        steps=arguments.steps,
        gap=arguments.gap,
        threads=arguments.threads,
        device=arguments.device,
    )
    facts = {
        "policy": chosen.label,
        "environment": chosen.env_id,
        "gap": arguments.gap,
        **summary(batch, chosen.env_id),
    }
    if arguments.json:
        output.print_json({**facts, "seed": arguments.seed})
    else:
        print_summary(facts)
    return 0


def print_summary(facts: dict[str, Any]) -> None:
    """The same for people."""
    shown: dict[str, Any] = {key: facts[key] for key in ("policy", "environment", "gap")}
    shown |= outcome(facts)
    if facts["margin_min"] is not None:
        shown["lowest_margin"] = f"{facts['margin_min']:.4g}"
    left_out = " (not in the return)" if facts["diverged"] else ""
    shown["diverged_episodes"] = f"{facts['diverged']:,}{left_out}"
    shown["speed"] = f"{facts['steps_per_second']:,.0f} steps/s ({facts['steps']:,} in {facts['seconds']:.2f} s)"
    shown["device"] = facts["device"]
    output.print_facts(shown)
