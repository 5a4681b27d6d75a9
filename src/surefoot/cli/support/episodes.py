"""What a batch of episodes came to, as JSON values and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.envs.episodes import EpisodeBatch


def summary(batch: EpisodeBatch, env_id: str) -> dict[str, Any]:
    """What the episodes came to as JSON values, with intervals; returns are those of episodes that did not diverge."""
    from surefoot.data import normalized_score, reference_scores
    from surefoot.envs.names import gymnasium_id
    from surefoot.evaluation import certificate, cost_interval, hierarchical_interval

    count, finite = len(batch.returns), batch.returns[~batch.diverged]
    returns = hierarchical_interval([finite]).to_json() if len(finite) else None
    reference = reference_scores(gymnasium_id(env_id))
    normalized = None
    if returns is not None and reference is not None:
        normalized = float(normalized_score(returns["mean"], reference))
    return {
        "episodes": count,
        "diverged": int(batch.diverged.sum()),
        "terminated": int(batch.terminated.sum()),
        "length_mean": float(batch.lengths.mean()),
        "returns": returns,
        "normalized": normalized,
        "cost": None if batch.costs is None else cost_interval([batch.costs]).to_json(),
        "margin_min": None if batch.margins is None else float(batch.margins.min()),
        "violations": None if batch.violations is None else certificate(batch.violations, count).to_json(),
        "steps": batch.steps,
        "seconds": batch.seconds,
        "steps_per_second": batch.steps / batch.seconds,
        "device": batch.device,
    }


def outcome(facts: dict[str, Any]) -> dict[str, str]:
    """How many episodes there were and what they came to, for people."""
    from surefoot.evaluation.tables import format_bounds

    shown = {"episodes": f"{facts['episodes']:,} of {facts['length_mean']:.1f} steps on average"}
    if facts["returns"] is not None:
        score = "" if facts["normalized"] is None else f", normalised score {facts['normalized']:.1f}"
        shown["return"] = f"{format_bounds(facts['returns'])}{score}"
    if facts["cost"] is not None:
        shown["cost"] = format_bounds(facts["cost"], digits=3)
    if facts["violations"] is not None:
        found = facts["violations"]
        shown["violation_rate"] = (
            f"{found['rate']:.4g} [{found['low']:.4g}, {found['high']:.4g}] of the episodes (Clopper-Pearson, 95 %)"
        )
    return shown
