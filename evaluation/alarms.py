"""What the alarm of model-based runs found, in sentences."""

from __future__ import annotations

from surefoot.evaluation.runs import RunData


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
        worth = "" if kept["mean"] is None else f", mean of its {kept['of']} {kept['mean']:.1f}"
        step = "" if kept["step"] is None else f" of step {kept['step']:,}"
        lines.append(f"seed {kept['seed']}: the policy{step}, from before the alarm, is {kept['policy']}{worth}")
    without = sorted({r["seed"] for r in run.alarm["rings"]} - {kept["seed"] for kept in run.alarm["supported"]})
    lines += [f"seed {seed}: no policy was saved before the alarm rang; lower evaluate_every" for seed in without]
    return lines
