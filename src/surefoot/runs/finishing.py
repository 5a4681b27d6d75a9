"""What follows training: policies are saved first; an estimate that fails leaves them, and a sentence that says why.

A seed's result.json is written twice: with all that costs nothing before the first estimate, marked by `unfinished`,
and with the estimates after them. Where the process was killed in between, as by a system without memory, they are
tried again when the run is resumed, and given up after `MOST_TRIES`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from surefoot.core.base.errors import DivergenceError, SurefootError
from surefoot.core.base.files import read_json
from surefoot.core.base.memory import short_of_memory
from surefoot.core.base.schema import Number, Record
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Array, Dataset
from surefoot.evaluation import Episodes, Met, evaluate
from surefoot.evaluation.smoothness import evenly
from surefoot.runs.plan import FINAL_EVALUATION_SEED, Plan
from surefoot.runs.run import Run

Found = TypeVar("Found")

FAILURES = (MemoryError, OSError, RuntimeError, ArithmeticError, np.linalg.LinAlgError, DivergenceError)
"""Of memory and of numbers: torch raises a RuntimeError where numpy raises a MemoryError."""
MOST_TRIES = 2
"""Processes that may end while they estimate, before the seed goes without."""
MISSING, UNFINISHED = "missing", "unfinished"
"""Keys of a result: what -> why it is not there, and how many processes have started its estimates."""
ESTIMATES, FITTED_Q, VALIDATION, MODEL, JACOBIAN, DATA = (
    "estimates", "fitted_q", "validation", "model", "jacobian", "data"
)  # fmt: skip
NAMES = {
    ESTIMATES: "validation losses and estimates",
    FITTED_Q: "fitted-Q estimate of the policy",
    VALIDATION: "validation losses of the episodes held out",
    MODEL: "calibration of the model on the episodes held out",
    JACOBIAN: "Jacobian of the policy",
    DATA: "discounted return of the data",
}
"""What may be missing, in words."""
_MARK = Record({}, {UNFINISHED: Number(1, whole=True)}, others=True)


def why(error: BaseException) -> str:
    """The reason of a failure, as a clause."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    if isinstance(error, DivergenceError):
        return text.partition(";")[0]
    if short_of_memory(error):
        return f"the memory was not enough ({text[:200]}); free some, or train on fewer rows"
    return text if isinstance(error, SurefootError) else f"{type(error).__name__}: {text[:200]}"


def attempted(what: str, make: Callable[[], Found], instead: Found, missing: dict[str, str]) -> Found:
    """What `make` gives, or `instead` where it fails by memory, by numbers or with an error of ours.

    Args:
        what: a key of `NAMES`.
        make: makes the estimate.
        instead: to have in its place.
        missing: what -> why, to which a failure is added. The traceback goes to standard error, a seed's log.
    """
    try:
        return make()
    except (*FAILURES, SurefootError) as error:
        traceback.print_exc()
        missing[what] = why(error)
        return instead


def tries(run: Run, seed: int) -> int:
    """Processes that have started the estimates of a seed without ending them; 0 where it has no result, or a whole
    one.

    Raises:
        CheckpointError: the result is damaged.
    """
    path = run.seed_folder(seed) / "result.json"
    return int(read_json(path, _MARK).get(UNFINISHED, 0)) if path.is_file() else 0


def finished(run: Run, seed: int) -> bool:
    """Whether a seed's result is whole."""
    return (run.seed_folder(seed) / "result.json").is_file() and not tries(run, seed)


def given_up(count: int) -> dict[str, str]:
    """Why nothing is estimated once so many processes ended while they did; empty where another may try."""
    if count < MOST_TRIES:
        return {}
    return {ESTIMATES: f"{count} processes ended while they made them (killed, or out of memory?)"}


def in_words(what: str, seeds: Sequence[int], reason: str) -> str:
    """That something is missing, of which seeds and why, as a sentence without its full stop."""
    these = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return f"no {NAMES.get(what, what)} of {these}: {reason}"


def all_missing(results: Mapping[int, Mapping[str, Any]], kinds: Collection[str]) -> list[str]:
    """A sentence for each of these kinds that is missing in the results of seeds, and each reason."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for seed, result in results.items():
        for what, reason in result.get(MISSING, {}).items():
            if what in kinds:
                seeds.setdefault((what, reason), []).append(seed)
    return [in_words(what, found, reason) for (what, reason), found in seeds.items()]


def last_evaluation(
    plan: Plan, policies: list[Policy], dataset: Dataset | None, pause: Callable[[], None]
) -> tuple[list[Episodes], list[Array]]:
    """Episodes of each policy, none without a simulator, and the observations to measure each of them at."""
    if not plan.evaluates:
        assert dataset is not None  # an agent learns from one or the other
        return [], [evenly(dataset.observations)] * len(policies)
    met = Met(len(policies))
    found = evaluate(
        policies,
        str(plan.environment),
        plan.episodes,
        seed=FINAL_EVALUATION_SEED,
        watch=met,
        progress=lambda *unused: pause(),
    )
    return list(found), [met.of(position) for position in range(len(policies))]
