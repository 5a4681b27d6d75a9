"""`surefoot reach`: the largest safe set of a native or python system, as a file and a picture."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.cli.support.filters import Sweeps
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.safety.reach import SafeSet


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("reach", help="the largest safe set of a native or python system, on a grid")
    parser.add_argument(
        "env",
        metavar="ENV",
        help="native/<system> of at most 4 states, such as native/dubins-obstacles, or module:python/NAME-v0",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the set as .npz")
    parser.add_argument(
        "--plot", nargs="?", const="", metavar="FILE", help="draw its slices: .png, .svg or .pdf (default: beside -o)"
    )
    parser.add_argument("--points", metavar="N,N,...", help="points along each state (default: the system's own)")
    parser.add_argument(
        "--discount", type=float, default=1.0, help="1 gives the safe set itself (default); below: larger"
    )
    parser.add_argument("--gap", metavar="NAME", help="preset of perturbed dynamics")
    parser.add_argument(
        "--tolerance", type=float, default=1e-6, help="stop when no value changes by more (default 1e-6)"
    )
    parser.add_argument("--max-sweeps", type=int, default=10_000, help="stop after so many (default 10,000)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float64", help="float64 or float32")
    parser.add_argument("--compare", metavar="RUN", help="a run whose agent learned a feasible value, such as fisor's")
    parser.add_argument("--policy-seed", type=int, metavar="K", help="which of RUN's agents (default: its first)")
    output.add_trust(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Solve, compare, write, draw."""
    from surefoot.runs.trust import allow
    from surefoot.safe.reachability.files import check_name
    from surefoot.safe.reachability.pictures import check_picture
    from surefoot.safety.reach import comparison, draw, feasible_agent, reach

    if arguments.policy_seed is not None and arguments.compare is None:
        raise ConfigError("--policy-seed is of --compare RUN: add it, or leave the option out")
    if arguments.output is not None:
        check_name(arguments.output)
    picture = None if arguments.plot is None else check_picture(_picture(arguments))
    allow(arguments.env)
    compared = arguments.compare
    agent = (
        None if compared is None else feasible_agent(arguments.env, compared, arguments.policy_seed, arguments.trust)
    )
    with Sweeps(arguments.quiet or arguments.json) as progress:
        found = reach(
            arguments.env,
            points=_points(arguments.points),
            discount=arguments.discount,
            gap=arguments.gap,
            device=arguments.device,
            dtype=arguments.dtype,
            tolerance=arguments.tolerance,
            max_sweeps=arguments.max_sweeps,
            progress=progress,
        )
    others: dict[str, Tensor] = {}
    known = found.closed_form()
    if known is not None:
        others["closed form"] = known
    if agent is not None:
        others["learned"] = found.learned(agent)
    if arguments.output is not None:
        found.save(arguments.output)
    if picture is not None:
        draw(found, picture, others)
    facts = dict(found.facts)
    if known is not None:  # here the closed form is the truth, and the grid what is judged
        from surefoot.safe.reachability import compare

        facts["against_closed_form"] = dataclasses.asdict(compare(found.solution.values, known))
    if "learned" in others:
        facts["learned_against_grid"] = dataclasses.asdict(comparison(found, others["learned"]))
    facts |= {"written": arguments.output, "picture": None if picture is None else str(picture)}
    if arguments.json:
        output.print_json(facts)
    else:
        _print(found, facts)
    return 0


def _points(given: str | None) -> list[int] | None:
    if given is None:
        return None
    try:
        return [int(part) for part in given.split(",")]
    except ValueError as error:
        raise ConfigError(f"--points is {given!r}; it must be whole numbers with commas, such as 61,61,48") from error


def _picture(arguments: argparse.Namespace) -> pathlib.Path:
    if arguments.plot:
        return pathlib.Path(arguments.plot)
    if arguments.output is None:
        raise ConfigError("--plot without a name draws beside -o FILE.npz; give one of the two names")
    return pathlib.Path(arguments.output).with_suffix(".png")


def _print(found: SafeSet, facts: dict[str, Any]) -> None:
    from surefoot.safe.reachability import Comparison

    axes = [
        f"{axis.name} {axis.low:.4g} to {axis.high:.4g}{', periodic' if axis.periodic else ''} ({axis.points})"
        for axis in found.solution.grid.axes
    ]
    altered = f" with {facts['gap']}" if facts["gap"] else ""
    shown = {
        "environment": f"{facts['environment']}{altered}",
        "grid": f"{facts['points']:,} points: {'; '.join(axes)}",
        "actions": facts["actions"],
        "discount": f"{facts['discount']:g}",
        "sweeps": f"{facts['sweeps']} in {facts['seconds']:.1f} s, last change {facts['change']:.1e}"
        + ("" if facts["converged"] else ": NOT converged"),
        "safe set": f"{facts['safe_share']:.2%} of the box (volume {facts['safe_volume']:.5g}); the constraint itself "
        f"is kept in {facts['kept_now_share']:.2%}",
    }
    for key, name in (
        ("against_closed_form", "grid against closed form"),
        ("learned_against_grid", "learned against grid"),
    ):
        if key in facts:
            shown[name] = Comparison(**facts[key]).sentence()
    for key in ("written", "picture"):
        if facts[key] is not None:
            shown[key] = output.short(facts[key])
    output.print_facts(shown)
