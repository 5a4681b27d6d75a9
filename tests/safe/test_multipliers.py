"""Multipliers against sequences worked out by hand, torch's Adam, and each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from refusals import refused
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.safe import PPOLagConfig
from surefoot.safe.constraint.multipliers import (
    HeldMultiplier,
    Lagrange,
    Multiplier,
    OmniSafePID,
    centred,
    discounted_threshold,
    penalised,
    pid,
)

COSTS = [50.0] * 5 + [25.0] * 3 + [0.0] * 3
SEQUENCES = {
    "omnisafe": [0.4010, 0.7935, 1.1789, 1.5575, 1.9297, 1.9082, 1.8879, 1.8685, 1.4626, 1.0646, 0.6489],
    "fsrl": [3.7625, 1.275, 1.2875, 1.3, 1.3125, 0.0625, 0.0625, 0.0625, 0, 0, 0],
    "osrl": [2.6, 2.65, 2.725, 2.8, 2.875, 0.375, 0.375, 0.375, 0.3, 0.225, 0.15],
}
"""Multipliers after each mean episode cost, for a limit of 25."""


def values(rule: Multiplier, costs: Sequence[float] = COSTS, limit: float = 25.0) -> list[float]:
    state, found = rule.first_state(), []
    for cost in costs:
        state = rule.step(state, torch.tensor(cost), limit)
        found.append(float(state["value"]))
    return found


@pytest.mark.parametrize("form", SEQUENCES)
def test_each_pid_gives_the_sequence_worked_out_by_hand(form: str) -> None:
    assert values(pid(form)) == pytest.approx(SEQUENCES[form], abs=6e-5)


@pytest.mark.parametrize("form", SEQUENCES)
def test_no_pid_gives_the_sequence_of_another(form: str) -> None:
    for other in ("omnisafe", "fsrl", "osrl", "paper"):
        if other != form:
            assert values(pid(other, pid(form).gains)) != pytest.approx(SEQUENCES[form], abs=1e-3)  # type: ignore[attr-defined]


def test_the_papers_pid_takes_its_derivative_from_the_cost_itself() -> None:
    """By hand with gains 1, 0.1, 0.5 and limit 10: costs 12, 15, 4."""
    rule = pid("paper", (1.0, 0.1, 0.5))
    assert values(rule, [12.0, 15.0, 4.0], 10.0) == pytest.approx([2 + 0.2 + 6, 5 + 0.7 + 1.5, 0])
    assert values(pid("fsrl", (1.0, 0.1, 0.5)), [12.0, 15.0], 10.0) == pytest.approx([2 + 0.2 + 1, 5 + 0.7 + 1.5])


def test_the_derivative_of_omnisafe_looks_ten_updates_back() -> None:
    """A constant cost of 40 from zero: C_k = 40 (1 - .95^k); until update 10 it is compared with 0."""
    found = values(OmniSafePID((0.0, 0.0, 1.0), initial=0.0), [40.0] * 14)
    smooth = [40 * (1 - 0.95**k) for k in range(15)]
    expected = [smooth[k] - (smooth[k - 10] if k > 10 else 0) for k in range(1, 15)]
    assert found == pytest.approx(expected, rel=1e-4)


def test_bounds_hold() -> None:
    assert max(values(OmniSafePID(bounded=True), [500.0] * 20)) == 1.0
    assert max(values(Lagrange(rate=1.0, upper=2.0), [500.0] * 20)) == 2.0
    assert min(values(Lagrange(rate=1.0), [0.0] * 20)) == 0.0
    assert max(values(pid("fsrl", upper=3.0))) == 3.0


def test_a_lagrange_multiplier_moves_as_torchs_adam_with_a_projection() -> None:
    parameter = torch.nn.Parameter(torch.tensor(0.02))
    adam = torch.optim.Adam([parameter], lr=0.035)
    costs, expected = [40.0, 10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 80.0], []
    for cost in costs:
        adam.zero_grad()
        (-parameter * (cost - 25)).backward()
        adam.step()
        with torch.no_grad():
            parameter.clamp_(min=0)
        expected.append(parameter.item())
    assert values(Lagrange(initial=0.02), costs) == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert min(expected) == 0  # the projection was met


def test_a_multiplier_that_follows_the_wrong_sign_falls_where_the_limit_is_broken() -> None:
    rule = Lagrange(initial=0.5)
    up = rule.step(rule.first_state(), torch.tensor(30.0), 25.0)["value"]
    down = rule.step(rule.first_state(), torch.tensor(20.0), 25.0)["value"]
    assert float(up) > 0.5 > float(down)


def test_a_held_multiplier_steps_alone_as_stacked_and_stays_where_nothing_was_seen() -> None:
    for rule in (Lagrange(), pid("omnisafe"), pid("fsrl")):
        held = HeldMultiplier(rule)
        costs = torch.tensor([50.0, float("nan"), 10.0])

        def stepped(cost: Tensor, held: HeldMultiplier = held) -> dict[str, Tensor]:
            return held.stepped(cost, 25.0)

        together = torch.func.vmap(stepped)(costs)
        for name in held.names:
            alone = torch.stack([held.stepped(cost, 25.0)[name] for cost in costs])
            torch.testing.assert_close(together[name], alone)
        assert torch.equal(together["value"][1], held())
        assert set(held.state_dict()) == set(held.names)  # saved with the agent


def test_omnisafe_s_pid_begins_where_it_is_told_to() -> None:
    config = PPOLagConfig(multiplier="omnisafe", initial_multiplier=0.5)
    assert float(config.rule.first_state()["integral"]) == 0.5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"multiplier": "paper", "initial_multiplier": 5.0}, "initial_multiplier.* does not read it"),
        ({"multiplier": "omnisafe", "multiplier_rate": 9.0}, "multiplier_rate.*adam would"),
        ({"gains": (9.0, 9.0, 9.0)}, "gains.*multiplier=adam does not read it"),
        ({"initial_multiplier": 5.0, "largest_multiplier": 1.0}, "at most largest_multiplier"),
        ({"initial_multiplier": float("inf")}, "finite"),
        ({"multiplier_rate": float("inf")}, "finite"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PPOLagConfig(**given)


def test_unknown_rules_are_refused() -> None:
    with refused("form", "conflict"):
        pid("pdi")


def test_discounted_thresholds_are_those_worked_out_by_hand() -> None:
    assert discounted_threshold(10, 0.99, 1000) == pytest.approx(0.99996, abs=5e-6)
    assert discounted_threshold(10, 0.99, 300) == pytest.approx(3.16986, abs=5e-6)
    assert discounted_threshold(10, 1.0, 300) == 10


def test_advantages_of_costs_are_centred_and_keep_their_units() -> None:
    costs = torch.tensor([1.0, 3.0, 8.0, 100.0])
    mask = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert centred(costs, mask).tolist() == [-3.0, -1.0, 4.0, 0.0]
    doubled = centred(2 * costs, mask)
    torch.testing.assert_close(doubled, 2 * centred(costs, mask))  # a standardised advantage would not double


def test_the_penalised_advantage_is_a_mean_weighted_by_the_multiplier() -> None:
    found = penalised(torch.tensor([1.0, 2.0]), torch.tensor([4.0, -1.0]), torch.tensor(3.0))
    assert found.tolist() == [(1 - 12) / 4, (2 + 3) / 4]
