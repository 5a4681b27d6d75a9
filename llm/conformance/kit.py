"""The comparison: every function that an implementation has, on every case, values and gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from surefoot.llm.characters import character_policy
from surefoot.llm.conformance.implementation import (
    ADVANTAGES,
    COMPARED,
    DIVERGENCES,
    Case,
    Implementation,
    Ours,
    random_case,
)

TOLERANCE = 1e-6
"""Of values and gradients in float32, relative to the largest of ours where that is above 1."""
FORWARD_TOLERANCE = 1e-4
"""In nats, of log-probabilities that a model's forward pass gives again."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one function came to on one case."""

    check: str
    case: str
    error: float
    """Largest difference in values or gradients, relative where ours is above 1."""
    tolerance: float
    note: str
    """Of a known difference."""

    @property
    def equal(self) -> bool:
        """Whether both agree."""
        return self.error <= self.tolerance

    @property
    def accepted(self) -> bool:
        """Whether they agree or are known not to."""
        return self.equal or bool(self.note)


def cases(seed: int = 0) -> list[Case]:
    """Policies near each other, far from each other, a row without tokens, a part of a larger batch."""
    return [
        random_case("near", seed),
        random_case("far", seed + 1, gap=1.0),
        random_case("an empty row", seed + 2, gap=0.3, empty=True),
        random_case("a part of a batch", seed + 3, gap=0.3, parts=4),
    ]


def check(other: Implementation, seed: int = 0) -> list[Finding]:
    """Compare everything that an implementation has with ours.

    Args:
        other: the implementation.
        seed: of the random batches.

    Returns:
        A finding for each function and case.
    """
    ours, found = Ours(), list[Finding]()
    ours.epsilon = other.epsilon

    def note(name: str, case: str, error: float, tolerance: float = TOLERANCE) -> None:
        about = other.notes.get(f"{name}, {case}", other.notes.get(name, ""))
        found.append(Finding(name, case, error, tolerance, about))

    _check_losses(other, ours, seed, note)
    _check_advantages(other, ours, seed, note)
    _check_divergences(other, ours, seed, note)
    tokens, ends = torch.tensor([[5, 2, 7, 2], [5, 6, 7, 8], [3, 3, 1, 1]]), [2, 3]
    mask, own = other.completion_mask(tokens, ends), ours.completion_mask(tokens, ends)
    if mask is not None and own is not None:
        note("completion mask", "two end tokens", _error((mask,), (own,)))
    if type(other).log_probs is not Implementation.log_probs:
        _check_forward(other, seed, note)
    return found


Note = Callable[..., None]
"""(what, case, error, tolerance): takes down a finding."""


def _check_losses(other: Implementation, ours: Ours, seed: int, note: Note) -> None:
    """Losses of policies and of values, with their gradients."""
    for name in COMPARED:
        for case in cases(seed):
            expected = _with_gradient(ours.loss_as(other.settings(name), case), case)
            theirs = _with_gradient(other.loss(name, case), case)
            if theirs is not None and expected is not None:
                note(f"loss {name}", case.name, _error(theirs, expected))
    for case in cases(seed):
        theirs, expected = _with_gradient(other.value_loss(case), case), _with_gradient(ours.value_loss(case), case)
        if theirs is not None and expected is not None:
            note("value loss", case.name, _error(theirs, expected))


def _check_advantages(other: Implementation, ours: Ours, seed: int, note: Note) -> None:
    """Advantages of groups in mixed order, and with an answer that has no score."""
    scored = [
        random_case("groups in mixed order", seed + 4),
        random_case("an answer without a score", seed + 5, unscored=True),
    ]
    for name in ADVANTAGES:
        for case in scored:
            theirs, own = other.advantages(name, case), ours.advantages(name, case)
            if theirs is not None and own is not None:
                note(f"advantages {name}", case.name, _error((theirs,), (own,)))


def _check_divergences(other: Implementation, ours: Ours, seed: int, note: Note) -> None:
    """Estimates of divergences, with their gradients."""
    for name in DIVERGENCES:
        for case in cases(seed)[:2]:
            terms, own = other.divergence(name, case), ours.divergence(name, case)
            if terms is not None and own is not None:
                kept = _with_gradient((terms * case.mask).sum(), case), _with_gradient((own * case.mask).sum(), case)
                assert kept[0] is not None
                assert kept[1] is not None
                note(f"divergence {name}", case.name, _error(kept[0], kept[1]))


def _check_forward(other: Implementation, seed: int, note: Note) -> None:
    """Log-probabilities of answers that a small model sampled."""
    for kind, rotary in (("learned positions", False), ("rotary positions", True)):
        policy = character_policy("0123456789+=", width=32, context=24, rotary=rotary, temperature=0.7, seed=seed)
        rollout = policy.generate(policy.encode(["1+2=", "123+456=", "9="]), 3, 8, seed=seed)
        with torch.no_grad():
            again = other.log_probs(policy, rollout)
        if again is not None:
            error = _error((again * rollout.completion_mask,), (rollout.log_prob,))
            note("log-probabilities", kind, error, FORWARD_TOLERANCE)


def _with_gradient(value: Tensor | None, case: Case) -> tuple[Tensor, ...] | None:
    if value is None:
        return None
    gradient = torch.autograd.grad(value, case.log_prob, allow_unused=True)[0]
    return value.detach(), torch.zeros_like(case.log_prob) if gradient is None else gradient


def _error(theirs: tuple[Tensor, ...] | None, ours: tuple[Tensor, ...]) -> float:
    if theirs is None:
        return 0.0
    worst = 0.0
    for one, other in zip(theirs, ours, strict=True):
        if one.shape != other.shape or not bool(one.isfinite().all()):
            return float("inf")
        worst = max(worst, float((one - other).abs().max()) / max(1.0, float(other.abs().max())))
    return worst
