"""The alarm: each signal by itself, patience, thresholds of the user, and what rewards allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from refusals import refused

from surefoot.core.base.errors import ConfigError
from surefoot.model_based.base.alarm import SIGNALS, WINDOW, Alarm, AlarmConfig, Limits, value_growth
from surefoot.model_based.base.signals import imagined_signals, met_limits, met_signals, value_signals
from surefoot.world_models.imagine import Rollouts

USUAL = AlarmConfig()


@pytest.mark.parametrize("signal", [signal for signal in SIGNALS if signal.metric != "value_growth"])
def test_each_signal_rings_beyond_its_threshold_and_only_there(signal) -> None:  # type: ignore[no-untyped-def]
    threshold = getattr(USUAL, signal.option)
    beyond, within = (threshold + sign * 1e-4 for sign in ((1, -1) if signal.above else (-1, 1)))
    for value, wanted in ((beyond, 1), (within, 0)):
        alarm = Alarm(USUAL)
        for step in range(1, 6):
            alarm.observe_outcome(100 * step, {signal.metric: value + 1e-9 * step})
        assert len(alarm.rings) == wanted, value
    for value in (threshold, math.nan):
        assert not Alarm(AlarmConfig(alarm_patience=1)).observe_outcome(7, {signal.metric: value})
    ring = Alarm(AlarmConfig(alarm_patience=1)).observe_outcome(7, {signal.metric: beyond})[0]
    assert (ring.step, ring.signal, ring.threshold) == (7, signal.metric, threshold)
    assert signal.meaning in str(ring)
    assert not Alarm(AlarmConfig(alarm_patience=1, **{signal.option: None})).observe_outcome(7, {signal.metric: beyond})


def test_it_rings_once_after_as_many_in_a_row_as_patience_says() -> None:
    alarm = Alarm(AlarmConfig(alarm_patience=3))
    values = [1, 1.1, 0, 1, 1.2, 1.3, 1.4, 0, 1, 1.1, 1.2]
    heard = [len(alarm.observe_outcome(step, {"edge_share": value})) for step, value in enumerate(values)]
    assert heard == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_infinite_values_ring_too() -> None:
    assert Alarm(AlarmConfig(alarm_patience=1)).observe_outcome(1, {"value_excess": math.inf})


def test_growth_is_the_slope_of_log10_per_thousand_steps_above_the_datas_best() -> None:
    lines = [(500 * i, {"q": 10 ** (0.3 * i), "value_over_best": 2.0}) for i in range(WINDOW + 3)]
    assert value_growth(lines) == pytest.approx(0.6)
    assert value_growth(lines[: WINDOW - 1]) is None
    below = [*lines[:-1], (lines[-1][0], {"q": 1.0, "value_over_best": 0.9})]
    assert value_growth(below) is None
    alarm = Alarm(AlarmConfig(alarm_patience=1))
    rung = [step for step, line in lines if alarm.observe_outcome(step, line)]
    assert rung == [500 * (WINDOW - 1)]
    assert alarm.rings[0].signal == "value_growth"


def test_thresholds_come_from_any_config_that_has_some() -> None:
    class Other:
        alarm_edge_share = 0.5

    assert Alarm(Other()).config == AlarmConfig(alarm_edge_share=0.5)
    assert Alarm().config == USUAL
    with refused("alarm_patience", "range"):
        AlarmConfig(alarm_patience=0)
    for signal in SIGNALS:
        with pytest.raises(ConfigError, match=f"{signal.option} is nan, must be a finite number or null"):
            AlarmConfig(**{signal.option: math.nan})


def test_limits_of_values_by_hand() -> None:
    rewards = np.array([1.0, 2.0, -3.0, 4.0])
    found = Limits.of(rewards, np.array([0, 2, 4]), np.array([True, False]), 0.5, (-3.0, 4.0))
    assert (found.low, found.high) == (-6, 8)
    assert found.best == pytest.approx(max(1 + 0.5 * 2, (-3 + 0.5 * 4) / (1 - 0.25)))
    positive = Limits.of(np.array([2.0, 3.0]), np.array([0, 2]), np.array([False]), 0.5, (2.0, 3.0))
    assert (positive.low, positive.high) == (0, 6)  # an episode may end
    assert positive.best == pytest.approx((2 + 1.5) / 0.75)


def test_a_reward_that_never_varies_is_no_promise_and_half_more_is_one() -> None:
    def excess(reward: float) -> float:
        one = torch.full((2, 3), reward)
        nothing = torch.zeros(2, 3)
        found = Rollouts(torch.rand(2, 3, 1), torch.rand(2, 3, 1), one, nothing, nothing, torch.rand(2, 3, 1), one > 0)
        return float(imagined_signals(found, torch.tensor([1.0, 1.0]), 0.0)["reward_excess"])

    assert excess(1.001) < AlarmConfig().alarm_reward_excess < excess(1.5)  # type: ignore[operator]


def test_an_end_that_a_method_makes_has_no_reward_of_the_models() -> None:
    rewards, ends = torch.tensor([[2.0, 90.0]]), torch.tensor([[0.0, 1.0]])
    found = Rollouts(
        torch.rand(1, 2, 1), torch.rand(1, 2, 1), rewards, ends * 0, ends, torch.rand(1, 2, 1), rewards > 0
    )
    told = imagined_signals(found, torch.tensor([0.0, 4.0]), 0.0)
    assert float(told["imagined_reward"]) == 2
    assert float(told["reward_excess"]) == pytest.approx(-0.5)


def test_values_may_hold_as_much_entropy_as_actions_can_have() -> None:
    limits = torch.tensor([0.0, 10.0, 5.0])
    told = value_signals(torch.tensor([[12.0, 14.0]]), limits, 0.9, torch.tensor(0.5), 2)
    high = 10 + 10 * 0.5 * 2 * math.log(2)
    assert float(told["value_excess"]) == pytest.approx((13 - high) / high, rel=1e-5)
    assert float(told["value_over_best"]) == pytest.approx(13 / 5, rel=1e-5)


def test_an_agent_that_acts_is_judged_by_the_rewards_that_it_has_met() -> None:
    rewards = torch.tensor([-1.0, 3.0])
    assert met_limits(*rewards, 0.9).tolist() == pytest.approx([-10, 30, 30, -1, 3])
    assert met_limits(*-rewards.flip(0), 0.9).tolist() == pytest.approx([-30, 10, 10, -3, 1])
    assert met_limits(torch.tensor(2.0), torch.tensor(3.0), 0.9).tolist() == pytest.approx([0, 30, 30, 2, 3])
    told = met_signals(torch.tensor([[32.0, 36.0]]), rewards, (torch.tensor(-2.0), torch.tensor(0.0)), 0.9)
    assert (float(told["lowest_reward"]), float(told["highest_reward"])) == (-2, 3)
    assert float(told["value_excess"]) == pytest.approx((34 - 30) / 50)
    assert float(told["value_over_best"]) == pytest.approx(54 / 50)


def test_values_of_rewards_that_were_all_0_have_nothing_to_be_compared_with() -> None:
    nothing = torch.zeros(())
    told = met_signals(torch.full((1, 2), 1e-3), torch.zeros(2), (nothing, nothing), 0.9)
    assert math.isnan(told["value_excess"])
    assert math.isnan(told["value_over_best"])
    assert not Alarm(AlarmConfig(alarm_patience=1)).observe_outcome(1, {"value_excess": float(told["value_excess"])})


def test_a_number_that_is_only_logged_again_is_not_heard_again_but_that_nothing_was_accepted_is() -> None:
    alarm = Alarm(USUAL)
    assert not any(alarm.observe_outcome(step, {"calibration_drift": 5.0}) for step in range(9))
    assert [len(alarm.observe_outcome(step, {"calibration_drift": 5.0 + step})) for step in (10, 11)] == [0, 1]
    assert [len(alarm.observe_outcome(step, {"acceptance": 0.0})) for step in range(3)] == [0, 0, 1]


def test_what_a_whole_phase_measured_rings_at_its_first_number_which_is_the_only_one() -> None:
    alarm = Alarm(USUAL)
    assert [len(alarm.observe_outcome(step, {"model_return_over_best": 5.0})) for step in range(4)] == [1, 0, 0, 0]
    assert alarm.rings[0].step == 0
    assert not Alarm(USUAL).observe_outcome(0, {"model_return_over_best": 2.9})


def test_it_knows_which_signals_it_was_given_and_can_ring_for() -> None:
    alarm = Alarm(AlarmConfig(alarm_edge_share=None))
    assert alarm.watched == []
    alarm.observe_outcome(1, {"loss": 1.0, "edge_share": 0.5, "q": 1.0})
    assert alarm.watched == []
    alarm.observe_outcome(2, {"reward_excess": -1.0, "q": 1.0, "value_over_best": 0.1, "value_excess": -0.9})
    alarm.observe_outcome(3, {"loss": 1.0})
    assert alarm.watched == ["value_excess", "value_growth", "reward_excess"]
