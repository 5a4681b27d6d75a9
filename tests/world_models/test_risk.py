"""Risk measures: values by hand, and the axioms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surefoot.core.base.errors import ConfigError
from surefoot.world_models.risk import CVaR, Deviation, Entropic, Mean, Risk, WorstCase, cost_at_risk, parse_risk

ONE_TO_TEN = torch.arange(1.0, 11, dtype=torch.float64)
numbers = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)
coherent = st.one_of(st.just(Mean()), st.just(WorstCase()), st.floats(0.01, 1).map(CVaR))
monotone = st.one_of(coherent, st.floats(0.001, 1).map(Entropic))


def test_values_by_hand() -> None:
    assert CVaR(0.2).of(ONE_TO_TEN) == 1.5
    assert CVaR(0.3).of(ONE_TO_TEN) == 2.0  # 0.3 * 10 is no more than 3 of them, whatever the rounding
    assert CVaR(0.21).of(ONE_TO_TEN) == 2.0
    assert CVaR(1.0).of(ONE_TO_TEN) == Mean().of(ONE_TO_TEN) == 5.5
    assert WorstCase().of(ONE_TO_TEN) == 1
    assert Deviation(2.0).of(torch.tensor([1.0, 3.0])) == 0
    assert cost_at_risk(ONE_TO_TEN, CVaR(0.2)) == 9.5
    two = torch.tensor([0.0, 2.0], dtype=torch.float64)
    assert Entropic(1.0).of(two) == pytest.approx(-math.log((1 + math.exp(-2)) / 2), abs=1e-12)
    assert Entropic(1e-6).of(ONE_TO_TEN) == pytest.approx(5.5 - 0.5e-6 * 8.25, abs=1e-9)


@pytest.mark.parametrize("risk", [Mean(), CVaR(0.5), WorstCase(), Entropic(0.5), Entropic(-0.5), Deviation(1.0)])
def test_a_future_that_is_no_number_is_the_worst(risk: Risk) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        assert risk.of(torch.tensor([[5.0], [bad], [1.0]])).item() == -math.inf


@given(numbers, monotone, st.floats(0, 100))
def test_more_is_never_worse(values: list[float], risk: Risk, more: float) -> None:
    returns = torch.tensor(values, dtype=torch.float64)
    raised = returns.clone()
    raised[0] += more
    assert risk.of(raised) >= risk.of(returns) - 1e-9


@given(numbers, monotone, st.floats(-100, 100))
def test_a_sure_amount_is_added(values: list[float], risk: Risk, sure: float) -> None:
    returns = torch.tensor(values, dtype=torch.float64)
    assert risk.of(returns + sure) == pytest.approx(float(risk.of(returns)) + sure, abs=1e-6)


@given(numbers, coherent, st.floats(0.01, 100))
def test_coherent_measures_scale(values: list[float], risk: Risk, factor: float) -> None:
    returns = torch.tensor(values, dtype=torch.float64)
    assert risk.of(factor * returns) == pytest.approx(factor * float(risk.of(returns)), rel=1e-9, abs=1e-6)


@given(st.data(), coherent)
def test_two_together_are_no_worse_than_apart(data: st.DataObject, risk: Risk) -> None:
    size = data.draw(st.integers(2, 20))
    one, two = (
        torch.tensor(data.draw(st.lists(st.floats(-1e3, 1e3), min_size=size, max_size=size)), dtype=torch.float64)
        for _ in range(2)
    )
    assert risk.of(one + two) >= risk.of(one) + risk.of(two) - 1e-6


def test_names_of_the_command_line() -> None:
    assert parse_risk("mean") == Mean()
    assert parse_risk("worst") == WorstCase()
    assert parse_risk("CVaR:0.1") == CVaR(0.1)
    assert parse_risk("entropic:2") == Entropic(2.0)
    assert parse_risk("std:1.5") == Deviation(1.5)
    for wrong in (
        "cvar",
        "cvar:0",
        "cvar:2",
        "cvar:x",
        "mean:1",
        "median",
        "entropic:0",
        "std:nan",
        "entropic:inf",
        "",
    ):
        with pytest.raises(ConfigError):
            parse_risk(wrong)
