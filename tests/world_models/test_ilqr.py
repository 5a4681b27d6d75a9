"""What iLQR computes anew, and what it keeps."""

from __future__ import annotations

import pytest
import torch
from tests.world_models.worlds import scalar

from surefoot.world_models.planners import ILQR, ilqr
from surefoot.world_models.planners.derivatives import expand


def test_the_world_is_expanded_anew_only_where_a_plan_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(ilqr, "expand", lambda *given: counts.append(1) or expand(*given))
    states, planner = torch.tensor([[1.0], [-2.0]], dtype=torch.float64), ILQR(horizon=20, iterations=12)
    plan, _ = planner.plan(scalar(), states, planner.begin(2, 1))
    assert 2 <= len(counts) < 6  # the regulator is found at once
    torch.testing.assert_close(4.0 * plan[:, 0], -0.618034 * states, rtol=0, atol=1e-5)
