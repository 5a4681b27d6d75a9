from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.core.actors.memory import Memory, Reactive
from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import Episodes, Safety, evaluate, load_runs, safety, tables
from surefoot.evaluation.report import render
from surefoot.evaluation.run_warnings import limit_lines

MakeRun = Callable[..., pathlib.Path]


class Toll(gymnasium.Env):
    """Episodes of 3 to 8 steps; a step costs 2 where the action is above 0.5; reward is the step's number."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1000, 1000, (2,), np.float64)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(3, 9))
        return np.array([0.0, self.length]), {"cost": 0.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        info = {"cost": 2.0 if action[0] > 0.5 else 0.0}
        return np.array([self.t, self.length], float), float(self.t), self.t == self.length, False, info


gymnasium.register("SurefootToll-v0", entry_point=Toll)


class Counter:
    """Violates in odd steps of each episode, and knows them only by what it is given: it reads no observation."""

    def __init__(self) -> None:
        self.heard: list[tuple[list[float], list[float], list[bool]]] = []

    def begin(self, rows: int) -> Memory:
        return {"steps": torch.zeros(rows)}

    def act(self, observations: torch.Tensor, memory: Memory) -> tuple[torch.Tensor, Memory]:
        return (memory["steps"] % 2).unsqueeze(1), memory

    def observe_outcome(
        self, memory: Memory, rewards: torch.Tensor, costs: torch.Tensor, ended: torch.Tensor
    ) -> Memory:
        assert (rewards.dtype, costs.dtype, ended.dtype) == (torch.float32, torch.float32, torch.bool)
        self.heard.append((rewards.tolist(), costs.tolist(), ended.tolist()))
        return {"steps": torch.where(ended, torch.zeros(()), memory["steps"] + 1)}


def test_a_policy_with_a_memory_hears_of_each_step_and_each_new_episode() -> None:
    policy = Counter()
    (found,) = evaluate([policy], "SurefootToll-v0", episodes=7, num_envs=3)
    expected = found.lengths // 2  # steps 1, 3, 5, ... of each episode, counted from 0
    assert found.violations is not None
    assert found.costs is not None
    np.testing.assert_array_equal(found.violations, expected)
    np.testing.assert_array_equal(found.costs, 2.0 * expected)
    assert len(set(found.lengths.tolist())) > 1  # rows did not end together
    rewards, costs, ended = policy.heard[1]
    assert rewards == [2.0, 2.0, 2.0]
    assert costs == [2.0, 2.0, 2.0]
    assert ended == [False] * 3


def test_policies_with_and_without_a_memory_stand_side_by_side() -> None:
    class Still(Reactive):
        def actions(self, observations: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(observations), 1)

    alone = evaluate([Counter()], "SurefootToll-v0", episodes=5, num_envs=2)[0]
    still, beside = evaluate([Still(), Counter()], "SurefootToll-v0", episodes=5, num_envs=2)
    np.testing.assert_array_equal(beside.costs, alone.costs)
    assert still.costs is not None
    assert not still.costs.any()


def made() -> list[Episodes]:
    """Twenty episodes of two seeds; costs 0, ..., 0, 4, 6 and 0, ..., 0, 100."""
    first, second = np.zeros(10), np.zeros(10)
    first[8:], second[9] = (4.0, 6.0), 100.0
    lengths = np.full(10, 50)
    return [
        Episodes(np.zeros(10), lengths, first, (first / 2).astype(int)),
        Episodes(np.zeros(10), lengths, second, (second / 2).astype(int)),
    ]


def test_the_numbers_are_those_of_all_episodes_together() -> None:
    found = safety(made(), limit=5.0)
    assert found is not None
    assert found.mean == 5.5
    assert found.percentile_95 == pytest.approx(6 + 0.05 * 94)  # between the 19th and 20th of 20
    assert (found.largest, found.violated) == (100.0, 0.15)
    assert found.per_episode == (2 + 3 + 50) / 20
    assert found.per_step == (2 + 3 + 50) / 1000
    assert found.normalized == pytest.approx(1.1)
    assert found.over_limit == 0.1
    assert "normalised cost 1.1 at the limit 5" in found.sentence()


def test_a_limit_of_zero_adds_one_to_both() -> None:
    found = safety(made(), limit=0.0)
    assert found is not None
    assert found.normalized == 6.5


def test_without_costs_there_are_no_numbers_and_without_a_limit_no_normalised_one() -> None:
    assert safety([Episodes(np.zeros(2), np.ones(2, int))], 5.0) is None
    found = safety(made())
    assert found is not None
    assert found.normalized is found.over_limit is None
    assert "limit" not in found.sentence()


@pytest.mark.parametrize("limit", [-1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match="cost limit"):
        safety(made(), limit)


def test_episodes_written_before_violations_were_counted_are_read() -> None:
    value = made()[0].to_json()
    del value["violations"]
    again = Episodes.from_json(value)
    assert again.violations is None
    found = safety([again])
    assert found is not None
    assert found.per_step is None


def run_with_costs(make_run: MakeRun, name: str = "run", limit: float | None = 5.0) -> pathlib.Path:
    found = safety(made(), limit)
    assert found is not None
    cost = {"mean": 5.5, "low": 1.0, "high": 9.0}
    return make_run(name, algorithm=name, cost=cost, per_seed_costs=[1.0, 5.5, 10.0], safety=found.to_json())


def test_tables_print_the_limit_beside_the_normalised_cost(make_run: MakeRun) -> None:
    text = tables.to_text(tables.rows(load_runs([run_with_costs(make_run)])), details=True)
    assert "1.10 (limit 5)" in text
    assert "5.5 %, 2.75 an episode" in text
    assert "15 %" in text


def test_a_reader_may_judge_by_another_limit(make_run: MakeRun) -> None:
    (run,) = load_runs([run_with_costs(make_run)])
    other = run.judged_by(11.0)
    assert other.safety is not None
    assert (other.cost_limit, other.safety.normalized, other.safety.over_limit) == (11.0, 0.5, None)
    assert run.judged_by(None) is run


def test_the_report_draws_return_against_cost_with_the_limit(make_run: MakeRun) -> None:
    runs = load_runs([run_with_costs(make_run, "careful"), run_with_costs(make_run, "plain", limit=None)])
    page = render(runs)
    assert "Return against cost" in page or "A small mark is a seed" in page
    assert "The dash-dotted line is the cost limit, 5 an episode." in page
    assert page.count("the cost limit of 5 was not kept") == 1
    without = render([runs[0].judged_by(None), *load_runs([make_run("none")])])
    assert "No run has a cost limit" not in without
    assert "A small mark" not in render(load_runs([make_run("alone")]))


def test_safety_is_read_back_as_it_was_written() -> None:
    found = safety(made(), 5.0)
    assert found is not None
    assert Safety.from_json(found.to_json()) == found


def test_a_run_whose_last_policies_cost_more_than_the_limit_says_so_and_whether_any_before_did_not(
    make_run: MakeRun,
) -> None:
    folder = run_with_costs(make_run)  # 5.5 with a limit of 5
    evaluated = [(0, 0, 2.0), (1, 0, 6.0), (0, 500, 8.0), (1, 500, 8.0), (0, 900, 5.0), (1, 900, 7.0)]
    lines = [
        {"seed": seed, "step": step, "kind": "eval", "values": {"return_mean": 0.0, "cost_mean": cost, "costs": [cost]}}
        for seed, step, cost in evaluated
    ]
    lines += [{"seed": 0, "step": 950, "kind": "train", "values": {"episode_cost": 4.25}}]

    def said(chosen: list[dict[str, Any]]) -> list[str]:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in chosen))
        return limit_lines(load_runs([folder])[0])

    begin = "the cost limit of 5 was not kept: an episode of the last evaluation costs 5.5 [1.0, 9.0], "
    begin += "more than that in 2 of 3 seeds; "
    kept = "1 of 3 evaluations while it trained kept it, last that at step 0; its last training episodes cost 4.2"
    assert said(lines) == [begin + kept]
    assert said(lines[2:6]) == [begin + "nor was it in any of 2 while it trained (least 6.0, at step 900)"]
    assert limit_lines(load_runs([folder])[0].judged_by(5.5)) == []
    assert limit_lines(load_runs([run_with_costs(make_run, "free", limit=None)])[0]) == []


def test_the_reports_curve_of_the_cost_has_the_limit_and_the_final_evaluation(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_with_costs(make_run, limit=50.0)
    lines = [
        {"seed": seed, "step": step, "kind": "eval", "values": {"return_mean": 1.0, "cost_mean": 2.0, "costs": [1, 3]}}
        for seed in range(3)
        for step in (0, 5000)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = []
    monkeypatch.setattr("surefoot.evaluation.plots.to_svg", lambda figure: drawn.append(figure) or "<svg></svg>")
    page = render(load_runs([folder]))
    (costs,) = [figure.axes[0] for figure in drawn if figure.axes[0].get_title("left") == "Cost"]
    limit = next(line for line in costs.lines if line.get_label() == "cost limit 50")
    assert set(limit.get_ydata()) == {50.0}
    assert costs.get_ylim()[0] < 2 < 50 < costs.get_ylim()[1]
    (final,) = [line for line in costs.lines if line.get_marker() == "D" and len(line.get_xdata()) == 1]
    assert final.get_ydata()[0] == 5.5
    assert page.count("The dash-dotted line is the cost limit, 50 an episode.") == 2
