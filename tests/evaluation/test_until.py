from __future__ import annotations

import numpy as np
import pytest

from surefoot.evaluation import until
from surefoot.evaluation.rollout import Episodes


def test_returns_that_are_cut_at_an_end_stay_in_the_range_when_policies_are_averaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert np.mean([0.1, 0.1, 0.1]) > 0.1  # what is to be allowed for

    def evaluate(policies: list[object], env_id: str, count: int, *unused: object, **options: object) -> list[Episodes]:
        return [Episodes(np.full(count, 7.0), np.ones(count, np.int64)) for _ in policies]

    monkeypatch.setattr(until, "evaluate", evaluate)
    found, interval = until.evaluate_until([None] * 3, "e", 0.1, 100, score_range=(-0.3, 0.1))  # type: ignore[list-item]
    assert len(found) == 3
    assert (interval.estimate, interval.high) == pytest.approx((0.1, 0.1))
