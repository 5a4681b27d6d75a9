"""What a finished run has to warn of, in sentences: a cost limit that it did not keep, and alarms that rang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefoot.evaluation.runs import LAST, RunData
from surefoot.evaluation.tables import format_bounds


def limit_lines(run: RunData) -> list[str]:
    """That the last policies cost more than the run's limit, and whether any on the way kept it; empty where they do.

    Empty as well where there is no limit, or no evaluation with costs.
    """
    limit, found = run.cost_limit, run.safety
    if limit is None or found is None or found.mean <= limit:
        return []
    bounds = run.cost or {}
    width = "" if bounds.get("low") is None else f" [{bounds['low']:.1f}, {bounds['high']:.1f}]"
    text = f"the cost limit of {limit:g} was not kept: an episode of the last evaluation costs {found.mean:.1f}{width}"
    above = [seed for seed, cost in zip(run.seeds, run.per_seed_costs, strict=False) if cost > limit]
    if len(run.seeds) > 1:
        text += f", more than that in {len(above)} of {len(run.seeds)} seeds"
    points = run.cost_curve()
    kept = [point for point in points if point.mean <= limit]
    if kept:
        text += (
            f"; {len(kept)} of {len(points)} evaluations while it trained kept it, last that at step {kept[-1].step:,}"
        )
    elif points:
        least = min(points, key=lambda point: point.mean)
        text += (
            f"; nor was it in any of {len(points)} while it trained (least {least.mean:.1f}, at step {least.step:,})"
        )
    training = run.training_curves().get("episode_cost")
    if training:
        text += f"; its last training episodes cost {training[-1][1]:.1f}"
    return [text]


def alarm_lines(run: RunData) -> list[str]:
    """A sentence for each signal that rang, and for each policy that was kept from before; empty where none rang."""
    if run.alarm is None or not run.alarm["rings"]:
        return []
    lines = [
        f"ALARM, seed {ring['seed']}, step {ring['step']:,}: {ring['meaning']} ({ring['signal']} is "
        f"{ring['value']:.3g}, threshold {ring['threshold']:g})"
        for ring in run.alarm["rings"]
    ]
    for kept in run.alarm["supported"]:
        words = "" if kept["mean"] is None else worth(kept)
        step = "" if kept["step"] is None else f" of step {kept['step']:,}"
        lines.append(f"seed {kept['seed']}: the policy{step}, from before the alarm, is {kept['policy']}{words}")
    without = sorted({r["seed"] for r in run.alarm["rings"]} - {kept["seed"] for kept in run.alarm["supported"]})
    lines += [f"seed {seed}: no policy was saved before the alarm rang; lower evaluate_every" for seed in without]
    return lines


def best_lines(run: RunData) -> list[str]:
    """What the best policies are worth, of which steps, beside the last ones; empty where they were not kept."""
    if run.best is None:
        return []
    found, several = run.best, len(run.best["per_seed_steps"]) > 1
    steps = ", ".join(f"{step:,}" for step in found["per_seed_steps"])
    which = f"best policies by evaluations in training, of steps {steps}"
    if not several:
        which = f"best policy by evaluations in training, of step {steps}"
    chosen = f"{found['chosen_by']:.1f} in the {found['chosen_by_episodes']} that chose {'them' if several else 'it'}"
    own = f"return {format_bounds(found['returns'])} in {run.episodes} new episodes{' each' if several else ''}"
    if run.cost_limit is not None and found.get("cost") is not None:
        own += f", cost {format_bounds(found['cost'])} (limit {run.cost_limit:g})"
    last = f"; the last {'ones' if several else 'one'}: {format_bounds(run.returns)}" if run.policies == LAST else ""
    return [f"{which}: {own}, {chosen}, which is too high by luck{last}"]


def worth(kept: Mapping[str, Any]) -> str:
    """What a policy from before the alarm is worth, beside the last one, and whether an estimate speaks for it."""
    words = f", mean of its {kept['of']} {kept['mean']:.1f}"
    if kept.get("last") is not None:
        words += f" (of the last policy's {kept['last']:.1f})"
    if kept.get("data") is None:
        return words
    supports = kept["mean"] >= kept["data"]
    verdict = "the estimate supports it" if supports else "the estimate does not support it"
    return f"{words}, {'at least' if supports else 'below'} the data's mean, {kept['data']:.1f}: {verdict}"
