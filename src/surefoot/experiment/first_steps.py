"""What float32 loses of what an environment gives, said once in a run, after its first steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from surefoot.core.precision import FirstSteps
from surefoot.envs.acting import Stepping
from surefoot.experiment.plan import Plan


def look_at_first_steps(stepping: Stepping, plan: Plan, seeds: Sequence[int]) -> None:
    """Have the first steps looked at where these seeds have the run's first one among them: one says it for all."""
    if seeds[0] == plan.seeds[0]:
        stepping.first_steps = FirstSteps(str(plan.environment))


def say_precision(stepping: Stepping, send: Callable[[dict[str, Any]], None]) -> None:
    """Send what is known of them by now, and has not been sent yet."""
    for text in () if stepping.first_steps is None else stepping.first_steps.notes():
        send({"kind": "note", "text": text})
