"""`surefoot watch`: learning curves of runs while they train, and episodes of policies that are trained."""

from __future__ import annotations

import argparse
import contextlib
import html
import pathlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from surefoot.runs.run import Run

BLOCKS = "▁▂▃▄▅▆▇█"
MOST_POINTS = 24
"""Evaluations in a line of the terminal."""
EVERY = 2.0
"""Seconds between two looks."""
EPISODES = 12
"""Of a native system; environments that draw themselves are shown with fewer."""
SEED = 2
"""Of initial states, as `surefoot evaluate` has it."""
FRAMES = (".mp4", ".gif")


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("watch", help="learning curves of runs while they train; episodes of a trained policy")
    parser.add_argument("folders", metavar="RUN", nargs="+", help="run folders, or folders that hold some")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=".html: a page (of runs that train it reloads itself); .mp4, .gif or .rrd: episodes of one run",
    )
    parser.add_argument("--curves", action="store_true", help="learning curves, also of one run that is complete")
    parser.add_argument("--once", action="store_true", help="look once, and don't wait for the runs to end")
    parser.add_argument("--every", type=float, default=EVERY, help=f"seconds between looks (default {EVERY:g})")
    parser.add_argument("--episodes", type=int, help=f"episodes to play (default {EPISODES}; 1 in a video)")
    parser.add_argument("--policy-seed", type=int, metavar="K", help="which of the run's policies (default: its first)")
    parser.add_argument("--env", help="another environment than the run's")
    parser.add_argument(
        "--filter", default="none", help="safety filter of actions: none, reach or cbf (native systems)"
    )
    parser.add_argument("--seed", type=int, help=f"of the initial states (default {SEED})")
    output.add_trust(parser)
    parser.set_defaults(run=watch)


def watch(arguments: argparse.Namespace) -> int:
    """Play episodes of one complete run, or show how far runs are."""
    from surefoot.evaluation.results import run_folders
    from surefoot.runs.run import Run, is_language

    if arguments.every <= 0 or (arguments.episodes is not None and arguments.episodes < 1):
        raise ConfigError("--every and --episodes must be above 0")
    ending = pathlib.Path(arguments.output or "").suffix
    if arguments.output is not None and ending not in (".html", ".rrd", *FRAMES):
        raise ConfigError(f"{arguments.output}: its ending names nothing to write; give .html, .mp4, .gif or .rrd")
    folders = [folder for folder in run_folders(arguments.folders) if (folder / "config.json").is_file()]
    if not folders and arguments.once:
        raise ConfigError(f"{', '.join(arguments.folders)}: holds no run")
    if len(folders) == 1 and not is_language(folders[0]):
        alone = Run.open(folders[0])
        if alone.complete and not arguments.curves:
            return _play(alone, arguments)
    if ending in (".rrd", *FRAMES):
        raise ConfigError(f"{arguments.output}: shows episodes of one complete run; name that run alone")
    for name in ("episodes", "policy_seed", "env", "filter", "seed"):
        if getattr(arguments, name) not in (None, "none"):
            raise ConfigError(
                f"--{name.replace('_', '-')} is of the episodes of one complete run: name that run alone, without "
                "--curves, or leave it out"
            )
    return _follow(arguments)


# -- runs that train ---------------------------------------------------------------------------------------


def _follow(arguments: argparse.Namespace) -> int:
    """Look again and again until all runs are complete, or until Ctrl-C."""
    from rich.live import Live

    console = output.console()
    page = None if arguments.output is None else pathlib.Path(arguments.output)
    if page is not None:
        output.say(f"page: {output.short(page)} (it reloads itself; Ctrl-C ends the watching, not the runs)")
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not arguments.once else None
    states: list[dict[str, Any]] = []
    damaged, given, shown = list[str](), set[str](), table_of([])
    with live or contextlib.nullcontext(), contextlib.suppress(KeyboardInterrupt):
        while True:
            states, damaged = look(arguments.folders)
            shown = table_of(states, console.width)
            for sentence in damaged:
                if sentence not in given:
                    output.say(f"left out: {sentence}", stderr=True)
            if not states and not damaged and not given:
                output.say(f"{', '.join(arguments.folders)}: holds no run yet; waiting for one", stderr=True)
            given |= {"", *damaged}
            if live is not None:
                live.update(shown, refresh=True)
            done = all(state["complete"] for state in states) and bool(states or damaged)
            if page is not None:
                _write_page(states, page, None if done or arguments.once else arguments.every)
            if done or arguments.once:
                break
            time.sleep(arguments.every)
    if live is None:
        console.print(shown)
    return 2 if damaged and not states else 0


def look(roots: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """How far the runs below some folders are.

    Returns:
        For each: name, label, steps taken (the mean over seeds) and planned, whether it is complete, evaluations as
        (step, return) and (step, cost), the cost limit, losses; of a language model `last` as a text, and pass@1 or
        rewards for returns. Then what is wrong with each folder that can't be read.
    """
    from surefoot.core.base.errors import SurefootError
    from surefoot.evaluation.curves import side_by_side
    from surefoot.evaluation.label import labelled
    from surefoot.evaluation.results import run_folders
    from surefoot.runs.loggers import read_live
    from surefoot.runs.run import Run, is_language

    found, damaged = [], []
    for folder in run_folders(roots):
        if not (folder / "config.json").is_file():
            continue
        try:
            if is_language(folder):
                from surefoot.language import runs as language_runs

                found.append(language_runs.look(folder))
                continue
            run = Run.open(folder)
            label = labelled(run.plan.algorithm, *run.reported)
        except SurefootError as error:
            damaged.append(str(error))
            continue
        lines = read_live(folder)
        means: dict[str, dict[int, dict[int, float]]] = {"return_mean": {}, "cost_mean": {}}
        for line in lines:
            for name, found_means in means.items():
                if line["kind"] == "eval" and name in line["values"]:
                    mine = found_means.setdefault(int(line["seed"]), {})
                    mine[int(line["step"])] = float(line["values"][name])
        evaluations = {
            name: [(step, sum(values) / len(values)) for step, values in side_by_side(some)]
            for name, some in means.items()
        }
        losses: dict[str, Any] = next((line["values"] for line in reversed(lines) if line["kind"] == "train"), {})
        reached: dict[int, int] = {}
        for line in lines:
            reached[line["seed"]] = max(reached.get(line["seed"], 0), int(line["step"]))
        found.append(
            {
                "name": str(folder),
                "label": label,
                "task": run.plan.environment or run.plan.dataset,
                "step": sum(reached.get(seed, 0) for seed in run.plan.seeds) // len(run.plan.seeds),
                "steps": run.plan.steps,
                "complete": run.complete,
                "returns": evaluations["return_mean"],
                "costs": evaluations["cost_mean"],
                "limit": run.plan.cost_limit,
                "losses": {name: value for name, value in losses.items() if "loss" in name},
            }
        )
    return found, damaged


def table_of(states: Sequence[dict[str, Any]], width: int = 120) -> Table:
    """A line per run: how far it is, its evaluations as a small curve, the last return or losses."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for heading in ("run", "algorithm", "step", "returns", "last"):
        right: Any = "right" if heading in ("step", "last") else "left"
        table.add_column(heading, justify=right, overflow="fold", no_wrap=heading not in ("run", "algorithm"))
    most = 12 if width < 100 else MOST_POINTS
    for state, name in zip(states, names_of(states), strict=True):
        values = [value for _, value in state["returns"]]
        last = last_of(state)
        if not values and state["losses"]:
            loss, value = next(iter(state["losses"].items()))
            last = f"{loss} {value:.3g}"
        far = "done" if state["complete"] else f"{100 * state['step'] / state['steps']:.0f} %"
        table.add_row(escape(name), escape(state["label"]), far, curve(values, most), last)
    return table


def last_of(state: dict[str, Any]) -> str:
    """The last evaluation of a run: its return, and beside a limit its cost."""
    if state.get("last") or not state["returns"]:
        return str(state.get("last") or "-")
    text = f"{state['returns'][-1][1]:,.1f}"
    if state.get("limit") is None or not state.get("costs"):
        return text
    return f"{text}, cost {state['costs'][-1][1]:,.1f} (limit {state['limit']:g})"


def names_of(states: Sequence[dict[str, Any]]) -> list[str]:
    """What runs are called: their folders' names, and the whole paths of those that share one."""
    names = [pathlib.Path(state["name"]).name for state in states]
    return [name if names.count(name) == 1 else str(state["name"]) for name, state in zip(names, states, strict=True)]


def curve(values: Sequence[float], most: int = MOST_POINTS) -> str:
    """Numbers as blocks of rising height.

    >>> curve([0.0, 1.0, 2.0, 4.0])
    '▁▃▄█'
    """
    import math

    shown = [value for value in values if math.isfinite(value)]
    if len(shown) > most:
        shown = [shown[round(i * (len(shown) - 1) / (most - 1))] for i in range(most)]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((value - low) / span * len(BLOCKS)))] for value in shown)


def _write_page(states: Sequence[dict[str, Any]], path: pathlib.Path, every: float | None) -> None:
    """Learning curves as a page that asks the browser to load it again, until the runs are complete."""
    from surefoot.core.base.files import written_aside
    from surefoot.evaluation import CurvePoint, plots
    from surefoot.evaluation.report import STYLE, table

    reload = "" if every is None else f'<meta http-equiv="refresh" content="{max(1, round(every))}">'
    names, rows = names_of(states), []
    for name, state in zip(names, states, strict=True):
        far = "complete" if state["complete"] else f"step {state['step']:,} of {state['steps']:,}"
        losses = ", ".join(f"{loss} {value:.4g}" for loss, value in list(state["losses"].items())[:3])
        last = last_of(state)
        rows.append(([name, state["label"], far, last, losses or "-"], False))
    head = [("run", "left"), ("algorithm", "left"), ("progress", "left"), ("last return", "right"), ("losses", "left")]
    figures = []
    tasks = dict.fromkeys(state["task"] for state in states)
    for task in tasks:
        curves = {
            f"{name}: {state['label']}": [
                CurvePoint(step, value, float("nan"), float("nan")) for step, value in state["returns"]
            ]
            for name, state in zip(names, states, strict=True)
            if state["task"] == task and state["returns"]
        }
        if curves:
            about = next(state for state in states if state["task"] == task)
            steps_of, axis = about.get("steps_of", "steps"), about.get("axis", plots.RETURN)
            figures.append(
                f"<figure>{plots.to_svg(plots.learning_curves(curves, str(task), None, steps_of, axis))}</figure>"
            )
    text = "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">{reload}<title>surefoot watch</title>',
            f"<style>{STYLE}</style></head><body><h1>surefoot watch</h1>",
            f'<p class="note">Mean return of evaluations over seeds, {html.escape(time.strftime("%H:%M:%S"))}.</p>',
            *figures,
            table(head, rows),
            "</body></html>",
            "",
        ]
    )
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


# -- episodes ----------------------------------------------------------------------------------------------


def _play(run: Run, arguments: argparse.Namespace) -> int:
    """Episodes of one policy, as a page, a video, or rerun's recording."""
    from surefoot.envs.make import split_options
    from surefoot.envs.names import beneath, is_native
    from surefoot.play import film
    from surefoot.play.actors import actor
    from surefoot.runs.trust import allow

    allow(arguments.env)
    chosen = actor(str(run.folder), None, arguments.env, arguments.policy_seed, arguments.trust)
    seed = SEED if arguments.seed is None else arguments.seed
    policy: Any = chosen.policy
    base, _ = split_options(chosen.env_id)
    native = is_native(beneath(base))
    camera = native and not is_native(base)
    path = pathlib.Path(arguments.output or run.folder / ("episodes.html" if native else "episodes.mp4"))
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file")
    if arguments.filter != "none":
        from surefoot.safety.shield import shield

        policy = shield(arguments.filter, chosen.env_id).around(policy)
    if native and not (camera and path.suffix in FRAMES):  # a camera's frames are its video
        count = arguments.episodes or (1 if path.suffix in FRAMES else EPISODES)
        episodes = film.native_episodes(policy, chosen.env_id, count, seed)
        ground = film.obstacles(chosen.env_id)
        if path.suffix in FRAMES:
            episodes = [film.animated(episode, ground) for episode in episodes]
    else:
        if arguments.filter != "none":
            raise ConfigError("--filter knows native systems alone")
        if path.suffix == ".html":
            raise ConfigError(f"{path}: pages are of native systems; of {chosen.env_id} write a video, .mp4 or .gif")
        episodes = film.rendered_episodes(policy, chosen.env_id, arguments.episodes or 1, seed)
        ground = None
    if path.suffix in FRAMES:
        film.write_video(episodes, path)
    elif path.suffix == ".rrd":
        film.write_rerun(episodes, path)
    else:
        from surefoot.core.base.files import written_aside
        from surefoot.evaluation import trajectories

        behind = "" if arguments.filter == "none" else f" behind filter {arguments.filter}"
        title = f"{run.folder.name}: {run.plan.algorithm} in {arguments.env or run.plan.environment}{behind}"
        text = trajectories.page(episodes, title, ground)
        with written_aside(path) as aside:
            aside.write_text(text, encoding="utf-8")
    returns = [float(episode.rewards.sum()) for episode in episodes]
    given = f"{output.counted(len(episodes), 'episode')}, mean return {sum(returns) / len(returns):.1f}"
    if episodes[0].costs is not None:
        given += f", {sum(episode.violates for episode in episodes)} break the constraint"
    output.say(f"{given}\n{path.suffix[1:]}: {output.short(path)}")
    return 0
