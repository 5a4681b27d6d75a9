"""How a safe set compares with the true one: overlap, and the two ways of being wrong, of which one is dangerous."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A value function against the true one on the same states; safe is V <= 0 in both."""

    iou: float
    """Intersection over union of the two safe sets; 1 where both are empty."""
    false_safe: float
    """States wrongly called safe, as a share of the true safe set: the dangerous error."""
    false_unsafe: float
    """States of the true safe set that are called unsafe, as a share of it."""
    sup_error: float
    """Largest |difference| of the values inside the true safe set."""
    mean_error: float
    """Mean |difference| there."""
    safe_share: float
    """Of all states, those called safe."""
    true_share: float
    """Of all states, the truly safe."""

    def sentence(self) -> str:
        """For people."""
        return (
            f"intersection over union {self.iou:.4f}, false-safe {self.false_safe:.4f}, false-unsafe "
            f"{self.false_unsafe:.4f} of the true set; error inside it at most {self.sup_error:.4g}, mean "
            f"{self.mean_error:.4g}"
        )


def compare(values: Tensor, truth: Tensor) -> Comparison:
    """Compare `values` with `truth`, any one shape, V <= 0 safe. Shares of an empty true set count one state."""
    safe, true = values <= 0, truth <= 0
    both, either = int((safe & true).sum()), int((safe | true).sum())
    count = max(1, int(true.sum()))
    errors = (values - truth).abs()[true]
    return Comparison(
        iou=both / either if either else 1.0,
        false_safe=int((safe & ~true).sum()) / count,
        false_unsafe=int((~safe & true).sum()) / count,
        sup_error=float(errors.max()) if len(errors) else 0.0,
        mean_error=float(errors.mean()) if len(errors) else 0.0,
        safe_share=float(safe.double().mean()),
        true_share=float(true.double().mean()),
    )


def unsafe_iou(values: Tensor, truth: Tensor) -> float:
    """Intersection over union of the unsafe sets, where the safe ones have no bounds."""
    unsafe, true = values > 0, truth > 0
    either = int((unsafe | true).sum())
    return int((unsafe & true).sum()) / either if either else 1.0


def missed_unsafe(values: Tensor, truth: Tensor) -> float:
    """Share of the truly unsafe states that are called safe."""
    true = truth > 0
    return int((true & (values <= 0)).sum()) / max(1, int(true.sum()))


def volume(values: Tensor, cell_volume: float) -> float:
    """Volume of {V <= 0}, a cell for each point."""
    return int((values <= 0).sum()) * cell_volume
