"""Language models in reports: shares of right answers before and after training, and along it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from surefoot.evaluation import plots
from surefoot.evaluation.curves import CurvePoint
from surefoot.evaluation.runs import RunData
from surefoot.evaluation.tables import format_share

RIGHT = "share of answers that are right"
ONE_OF = "share of prompts with a right answer"
REWARD = "reward of a sampled answer"


def pass_rows(
    named: Sequence[tuple[str, RunData]],
) -> tuple[list[tuple[str, str]], list[tuple[list[str], bool]], str] | None:
    """Head, rows and note of a table of shares before and after; None where no run is of a language model."""
    known = [(label, run, run.passes) for label, run in named if run.passes is not None]
    if not known:
        return None
    head = [("method", "left"), ("of held-out answers", "left"), ("before, in % [95 %]", "right")]
    head += [("after, in % [95 %]", "right"), ("change, in points [95 %]", "right")]
    body = []
    for label, _, found in known:
        given = {"greedy": "greedy", "pass_1": "pass@1", "pass_k": f"pass@{found['samples']}"}
        for which, name in given.items() if found["samples"] > 1 else list(given.items())[:2]:
            cells = [format_share(found[when][which]) for when in ("before", "after", "change")]
            body.append(([label, name, *cells], False))
    note = (
        "pass@1: share of sampled answers that are right; pass@k: share of prompts of which at least one of k sampled "
        "answers is right, by the estimator without bias. Where pass@1 rises and pass@k stays, rewards sharpened what "
        "the model could do already. Intervals are over training seeds and held-out prompts, which all seeds share; "
        "of one seed they are over prompts alone, and say nothing of other seeds."
    )
    return head, body, note


def pass_figures(named: Sequence[tuple[str, RunData]]) -> list[tuple[plots.Figure, str]]:
    """Pictures and their captions: pass@1, pass@k and reward along training; none where nothing was held out."""
    known = [(label, run) for label, run in named if run.passes is not None]
    steps_of = RunData.steps_of_all([run for _, run in known])
    many = sorted({run.passes["samples"] for _, run in known if run.passes is not None})
    over = "over seeds and held-out prompts" if any(len(run.seeds) > 1 for _, run in known) else "over held-out prompts"
    drawn: list[tuple[plots.Figure, str]] = []

    def draw(title: str, label: str, curves: Mapping[str, Sequence[CurvePoint]]) -> None:
        shown = {name: points for name, points in curves.items() if points}
        if shown:
            figure = plots.learning_curves(shown, title, None, steps_of, label)
            drawn.append((figure, f"{title} on prompts that were held out; the band is the 95 % interval {over}."))

    draw("pass@1", RIGHT, {label: run.success_curve() for label, run in known})
    for k in many:
        of_k = {label: run.pass_curve() for label, run in known if run.passes and run.passes["samples"] == k > 1}
        draw(f"pass@{k}", ONE_OF, of_k)
    draw("Reward", REWARD, {label: run.learning_curve() for label, run in known})
    return drawn


def pass_lines(run: RunData) -> list[str]:
    """What a terminal says of a run of a language model, in one sentence; nothing of others."""
    if run.passes is None:
        return []
    named = {"greedy": "greedy", "pass_1": "pass@1", "pass_k": f"pass@{run.passes['samples']}"}
    parts = [
        f"{name} {format_share(run.passes['before'][which])} to {format_share(run.passes['after'][which])} %"
        for which, name in named.items()
        if which != "pass_k" or run.passes["samples"] > 1
    ]
    return [f"{', '.join(parts)} of {run.episodes:,} held-out prompts"]
