"""The main job, `surefoot train` without arguments: learning from data, then keeping a constraint, in a few minutes.

IQL and BC learn from recorded flights. Then PPO learns to drive to a goal, which it does fastest through the obstacles,
and the same policy drives behind a filter that knows from which states the obstacles can still be avoided.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output

if TYPE_CHECKING:
    from surefoot.cli.support.training import Style
    from surefoot.evaluation.certificates import Certificate
    from surefoot.runs.run import Run
    from surefoot.safety.certify import Certified

STEPS = 6_000
"""Enough for IQL to rise well above behaviour and BC on the embedded data, in a minute or two on two cores."""
RIVAL = "bc"
"""What is trained beside IQL, in a folder inside IQL's."""
CONSTRAINED = "native/dubins-obstacles"
ACTING_STEPS = 300_000
"""Enough for PPO to reach the goal nearly always."""
EPISODES = 10_000
"""In which violations are counted, without the filter and behind it."""
SHOWN = 40
"""Episodes in the picture."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """What became of the constraint."""

    run: Run
    alone: Certified
    filtered: Certified
    safe_set: pathlib.Path


def main_job(overrides: list[str], given: set[str], style: Style) -> int:
    """IQL and BC on the embedded data; with nothing but the plainest settings asked for, the constraint too."""
    from surefoot.cli.support import config, training
    from surefoot.runs.folders import claim_new
    from surefoot.runs.summary import draw_curves

    settings = [f"steps={STEPS}"] if "steps" not in given else []
    request = config.compose(["algo=iql", *settings, *overrides])
    rival = config.compose([f"algo={RIVAL}", *settings, *overrides])
    with training.claimed(request) as claim:
        dataset = training.load(request, style)
        finished = training.train_one(request, style, claim, dataset)
    with claim_new(finished.folder / RIVAL) as claim:
        other = training.train_one(rival, style, claim, dataset)
    picture = None
    if finished.plan.environment is not None:
        picture = finished.folder / "comparison.png"
        draw_curves([finished, other], picture)
    if given - {
        "seeds",
        "out",
        "device",
        "logger",
        "logger_options",
    }:  # asked for something else than the demonstration
        training.present([other.folder, finished.folder], finished, style, picture)
        return 0
    kept = constrained(finished.folder / "ppo", style)
    picture = finished.folder / "demo.png"
    draw(finished, other, kept, picture)
    folders = [other.folder, finished.folder]
    training.present(folders, finished, style, picture, lambda: print_policies(kept), kept_json(kept))
    return 0


def constrained(
    folder: pathlib.Path,
    style: Style,
    steps: int = ACTING_STEPS,
    episodes: int = EPISODES,
    points: Sequence[int] | None = None,
) -> Kept:
    """PPO where the shortest way breaks the constraint, and the same policy behind the filter of the safe set.

    Args:
        folder: of the run.
        style: how to talk.
        steps: of PPO.
        episodes: in which violations are counted.
        points: of the safe set's grid; None: the system's own.
    """
    from surefoot.cli.support import config, training
    from surefoot.play.actors import actor
    from surefoot.runs.folders import claim_new
    from surefoot.safety.certify import certify, store
    from surefoot.safety.reach import reach
    from surefoot.safety.shield import TOLERANCE, shield

    style.say(f"\nand a constraint, in {CONSTRAINED}: drive to a goal, touch no obstacle")
    options = [f"steps={steps}", "seeds=1", f"envs={64 if steps >= ACTING_STEPS else 4}"]
    request = config.compose(["algo=ppo", f"env={CONSTRAINED}", *options])
    with claim_new(folder) as claim:
        run = training.train_one(request, style, claim)
    style.say("computing from which states the obstacles can still be avoided")
    safe_set = folder / "safe_set.npz"
    reach(CONSTRAINED, points=points, tolerance=TOLERANCE).save(safe_set)
    chosen, made = actor(str(folder), None, None), shield("reach", CONSTRAINED, safe_set=safe_set)
    style.say(f"{episodes:,} episodes of the policy, and {episodes:,} behind a filter that keeps it inside that set")
    alone, filtered = certify(chosen, episodes), certify(chosen, episodes, shield=made)
    for certified in (alone, filtered):
        store(certified, folder)
    return Kept(run, alone, filtered, safe_set)


def print_policies(kept: Kept) -> None:
    """Both policies, a line each."""
    from surefoot.evaluation.tables import format_bounds

    steps = kept.run.summary["steps"]
    lines = [("policy", "return [95 %]", "episodes that hit an obstacle")]
    for name, certified in ((f"ppo, {steps:,} steps", kept.alone), ("the same behind a filter", kept.filtered)):
        lines.append((name, format_bounds(certified.returns), _share(certified.certificate)))
    widths = [max(len(line[i]) for line in lines) for i in range(2)]
    output.say(f"\n{CONSTRAINED}:")
    for name, returns, share in lines:
        output.say(f"{name.ljust(widths[0])}  {returns.rjust(widths[1])}  {share}")


def _share(found: Certificate) -> str:
    if found.violations == 0:
        return f"0 of {found.episodes:,} (upper bound {found.upper:.2g}, 95 % confidence)"
    return f"{100 * found.rate:.3g} % ({found.violations:,} of {found.episodes:,})"


def kept_json(kept: Kept) -> dict[str, Any]:
    """The same as JSON values."""
    return {"constraint": {"alone": kept.alone.to_json(), "filtered": kept.filtered.to_json()}}


def draw(learned: Run, rival: Run, kept: Kept, path: pathlib.Path) -> None:
    """Three panels: what was learned from the data, the paths of PPO, and its paths behind the filter."""
    from surefoot.evaluation import RunData, plots, trajectories
    from surefoot.play import film
    from surefoot.safety.shield import shield

    policy = kept.run.policy()
    made = shield("reach", CONSTRAINED, safe_set=kept.safe_set, margin=kept.filtered.to_json()["filter"]["margin"])
    ground = film.obstacles(CONSTRAINED)
    figure, axes = plots.beside("", (13.2, 4.2), 3)
    data = [RunData.load(run.folder) for run in (learned, rival)]
    for i, run in enumerate(data):
        points = run.learning_curve()
        steps, means = [p.step for p in points], [p.mean for p in points]
        axes[0].plot(steps, means, color=plots.COLOURS[i], marker=plots.MARKERS[i], markersize=4, label=run.algorithm)
    if data[0].behaviour is not None:
        mean = data[0].behaviour["mean"]
        axes[0].axhline(mean, color=plots.GREY, linestyle="--", linewidth=1, label="its data")
    axes[0].legend(frameon=False, fontsize=8)
    axes[0].set_title("learned from recorded flights: better than its data", fontsize=9)
    axes[0].set_xlabel("gradient steps", fontsize=8)
    axes[0].set_ylabel("return", fontsize=8)
    axes[0].grid(axis="y", alpha=0.25)
    free = film.native_episodes(policy, CONSTRAINED, SHOWN)
    guarded = film.native_episodes(made.around(policy), CONSTRAINED, SHOWN)
    hit, safe = kept.alone.certificate, kept.filtered.certificate
    title = f"PPO: {100 * hit.rate:.0f} % of {hit.episodes:,} episodes hit an obstacle"
    trajectories.draw_paths(axes[1], free, ground, title)
    title = f"the same policy behind a filter: {safe.violations:,} of {safe.episodes:,}"
    trajectories.draw_paths(axes[2], guarded, ground, title)
    for at in axes[1:]:
        at.set_aspect("equal", adjustable="box")  # limits of one's own, so matplotlib may not move them
        at.set_xlim(-4, 4)
        at.set_ylim(-3, 3)
    plots.save_png(figure, path)
