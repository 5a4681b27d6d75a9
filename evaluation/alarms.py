"""What the alarm of model-based runs found, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        words = "" if kept["mean"] is None else worth(kept)
        step = "" if kept["step"] is None else f" of step {kept['step']:,}"
        lines.append(f"seed {kept['seed']}: the policy{step}, from before the alarm, is {kept['policy']}{words}")
    without = sorted({r["seed"] for r in run.alarm["rings"]} - {kept["seed"] for kept in run.alarm["supported"]})
    lines += [f"seed {seed}: no policy was saved before the alarm rang; lower evaluate_every" for seed in without]
    return lines


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
