"""`surefoot certify`: bound how often a policy breaks its constraint."""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.cli.support.actors import actor_of, add_actor, check_numbers
from surefoot.cli.support.filters import shield_of
from surefoot.cli.support.planning import add_planning, objective_of, planner_of, refuse_planning, side_by_side
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.play.actors import Actor


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("certify", help="bound how often a policy breaks its constraint")
    add_actor(parser)
    parser.add_argument("--episodes", type=int, default=1_000_000, help="independent episodes (default 1,000,000)")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the bounds (default 0.95)")
    parser.add_argument(
        "--until", type=float, metavar="P", help="stop once violations are known to be rarer, or more frequent, than P"
    )
    parser.add_argument(
        "--filter", default="none", help="safety filter of every action: none, reach or cbf (default none)"
    )
    parser.add_argument(
        "--safe-set", metavar="FILE", help="the filter's safe set, from surefoot reach (default: computed now)"
    )
    parser.add_argument("--margin", type=float, help="the filter's margin (default: as large as needed)")
    parser.add_argument(
        "--vary",
        metavar="NAME=LOW:HIGH",
        action="append",
        help="each episode of a native system draws its constants from ranges, as mass=0.5:2,gravity=8:12",
    )
    parser.add_argument(
        "--planner",
        help="cem, icem, mppi, ilqr, shooting, gorp or gumbel plans at every step, in RUN's model or, where "
        "native/<system> or a MuJoCo id stands for RUN, in the exact world",
    )
    parser.add_argument(
        "--worlds", type=int, metavar="M", help="of --planner and --vary: it plans in M worlds drawn from the ranges"
    )
    parser.add_argument(
        "--planner-gap",
        metavar="NAME",
        help="of --planner: the perturbed dynamics that it plans in, as --gap's, which it doesn't know otherwise",
    )
    add_planning(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=certify)


def certify(arguments: argparse.Namespace) -> int:
    """Count violations, bound their probability, and keep the result in the run folder."""
    from surefoot.evaluation import where_certified
    from surefoot.evaluation.tables import format_bounds
    from surefoot.safety import certify as certification
    from surefoot.safety.variants import ranges_of

    if arguments.planner is None:
        refuse_planning(arguments)
        if arguments.worlds is not None:
            raise ConfigError("--worlds are those that a planner plans in: add --planner, or leave --worlds out")
        if arguments.planner_gap is not None:
            raise ConfigError("--planner-gap is of the world that is planned in: add --planner, or leave it out")
    certification.check_device(arguments.device, arguments.filter != "none")
    bar = _CertifyBar(arguments.quiet or arguments.json)
    chosen = actor_of(arguments) if arguments.planner is None else _planning_actor(arguments, bar.notify)
    ranges = None if arguments.vary is None else ranges_of(arguments.vary, chosen.env_id)
    certification.check_numbers(arguments.episodes, arguments.seed, arguments.confidence, arguments.until)
    shield = shield_of(arguments, chosen.env_id)
    with bar as progress:
        certified = certification.certify(
            chosen,
            arguments.episodes,
            confidence=arguments.confidence,
            seed=arguments.seed,
            steps=arguments.steps,
            gap=arguments.gap,
            threads=arguments.threads,
            device=arguments.device,
            shield=shield,
            progress=progress,
            until=arguments.until,
            ranges=ranges,
            side_by_side=None if arguments.planner is None else side_by_side(arguments),
        )
    path = None
    if arguments.policy_run is not None and pathlib.Path(arguments.policy_run).is_dir():
        path = certification.store(certified, pathlib.Path(arguments.policy_run))
    if arguments.json:
        output.print_json({**certified.to_json(), "stored": None if path is None else str(path)})
        return 0
    found = certified.certificate
    output.say(f"{certified.policy}; in {where_certified(certified.to_json())}:")
    output.say(certified.sentence())
    kind = "holds at every look" if found.sequential else "Clopper-Pearson"
    output.say(f"rate {found.rate:.4g}, two-sided interval [{found.low:.4g}, {found.high:.4g}] ({kind})")
    if arguments.until is not None:
        known = "rarer than" if found.upper <= arguments.until else (
            "more frequent than" if found.low >= arguments.until else "not yet known to be rarer or more frequent than"
        )  # fmt: skip
        output.say(
            f"violations are {known} {arguments.until:g}, after {found.episodes:,} of {arguments.episodes:,} episodes"
        )
    if certified.returns is not None:
        why = certified.returns["method"].removeprefix("none: ")
        interval = f"no interval: {why}" if certified.returns["low"] is None else "95 % interval"
        output.say(f"mean return {format_bounds(certified.returns)} ({interval})")
    if certified.filter is not None:
        _print_filter(certified.to_json())
    if certified.diverged:
        output.say(f"{certified.diverged:,} of the violations are episodes whose simulation diverged")
    output.say(f"{certified.steps_per_episode:.1f} steps an episode, {certified.seconds:.1f} s on {certified.device}")
    if path is not None:
        output.say(f"kept in {output.short(path)}; `surefoot report {output.typed(arguments.policy_run)}` shows it")
    return 0


def _planning_actor(arguments: argparse.Namespace, notify: Callable[[str], None]) -> Actor:
    """The planner in RUN's model or in the exact world that stands for RUN."""
    from surefoot.play.plan import planning_actor, world_for
    from surefoot.runs.trust import allow
    from surefoot.safety.variants import drawn, ranges_of

    name, worlds = arguments.policy_run, arguments.worlds
    if name is None or arguments.policy is not None:
        raise ConfigError("say where --planner plans: native/<system>, a MuJoCo id or a RUN, and leave --policy out")
    if arguments.sample:
        raise ConfigError("--sample is of a policy that acts alone: leave it or --planner out")
    if worlds is not None and (worlds < 1 or arguments.vary is None):
        raise ConfigError(
            f"--worlds is {worlds}: it is 1 or more, and --vary gives the ranges that they are drawn from"
        )
    if worlds is not None and worlds > 1 and arguments.futures in (None, 1):
        raise ConfigError(
            f"--worlds is {worlds}, and one future is that of their mean: add --futures {worlds} or a "
            "multiple of it, or leave --worlds out"
        )
    check_numbers(arguments)
    allow(arguments.env)
    constants = None if worlds is None else drawn(ranges_of(arguments.vary, name), worlds, arguments.seed)
    gap = arguments.planner_gap
    world = world_for(name, arguments.env, arguments.policy_seed, arguments.trust, arguments.threads, constants, gap)
    return planning_actor(world, planner_of(arguments), objective_of(arguments), arguments.episodes, notify)


def _print_filter(certified: dict[str, Any]) -> None:
    """What the filter did; a broken promise loudly."""
    from surefoot.evaluation import broken_promise, filter_words

    found = certified["filter"]
    output.say(f"filter {filter_words(certified)}")
    output.say(
        f"{found['promised']:,} of {found['episodes']:,} episodes began where it promises safety: {found['broken']:,} "
        f"violations there, {found['unpromised_violations']:,} in the others"
    )
    if lines := broken_promise(certified):
        for line in [*lines, "give it a larger --margin or a finer --safe-set, or simulate what it knows"]:
            output.say(f"*** {line}", stderr=True)


EVERY = 10.0
"""Seconds between two lines of progress where standard error is no terminal."""


class _CertifyBar:
    """Says the expected time after the first batch, then shows a bar, or a line now and then where is no terminal."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        columns = ("episodes", BarColumn(), MofNCompleteColumn(), "ETA", TimeRemainingColumn())
        hidden = quiet or not sys.stderr.isatty()
        self._quiet, self._console = quiet, output.console(stderr=True)
        self._bar = Progress(*columns, console=self._console, disable=hidden)
        self._task: Any = None
        self._lines = not quiet and hidden
        self._told = time.monotonic()

    def __enter__(self) -> Any:
        """Begin; gives the function to call with (finished, all, seconds left)."""
        self._bar.start()
        return self._show

    def _show(self, done: int, total: int, left: float) -> None:
        if self._task is None:
            self._task = self._bar.add_task("", total=total)
            if not self._quiet and done < total:
                rate = f"{done:,} episodes measured"
                self._console.print(f"{rate}: the other {total - done:,} will take about {_spoken(left)}")
            self._told = time.monotonic()
        elif self._lines and done < total and time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            self._console.print(f"{done:,} of {total:,} episodes, about {_spoken(left)} left")
        self._bar.update(self._task, completed=done, total=total)

    def notify(self, text: str) -> None:
        """A line now and then, of a policy that takes long, until the first batch is done."""
        if not self._quiet and self._task is None and time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            self._console.print(text, highlight=False)

    def __exit__(self, *unused: object) -> None:
        """End."""
        self._bar.stop()


def _spoken(seconds: float) -> str:
    """A duration as one says it.

    >>> _spoken(3.2), _spoken(400)
    ('3 s', '7 minutes')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
