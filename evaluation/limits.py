"""Whether the policies that a run ended with keep to its cost limit, in a sentence."""

from __future__ import annotations

from surefoot.evaluation.runs import RunData


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
