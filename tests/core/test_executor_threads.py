"""The executor beside a thread that infers: no tick waits for it, its errors surface; what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from executor_runs import Counting, conserved, immediate, observations, policy, run, taking

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.memory_actors import ChunkActor, GRUActor
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, ExecutionError
from surefoot.core.execution.executor import Execution, Executor, simulated
from surefoot.core.execution.inference import PolicyPlanner, Request
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy

# -- threads, and what goes wrong -----------------------------------------------------------------------------


class Slow(Counting):
    """Every third chunk takes long."""

    def __init__(self) -> None:
        super().__init__(20)
        self.calls, self.threads = 0, set[str]()

    def plan(self, request: Request) -> Any:
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        time.sleep(0.03 if self.calls % 3 == 0 else 0.003)
        return super().plan(request)


def test_a_thread_plans_while_actions_are_given() -> None:
    planner = Slow()
    with Executor(planner, Execution(rate=500.0, deadline=0.01, execute=5, max_rate=100.0)) as executor:
        for _ in range(3):
            executor.reset()
            for tick in range(100):
                action = executor.select_action(None)
                if executor.source is not None:
                    assert sum(executor.source) == tick
                assert np.isfinite(action).all()
                time.sleep(0.002)
            assert conserved(executor)
    assert planner.threads == {"surefoot inference"}
    assert executor.counts.received >= 10
    assert executor.counts.largest_jump <= 100 / 500 * (1 + 1e-6)


def test_no_tick_waits_for_an_inference_that_hangs() -> None:
    going = threading.Event()

    class Hanging(Counting):
        def plan(self, request: Request) -> Any:
            if request.tick > 0:
                going.wait(60)  # longer than the test may take
            return super().plan(request)

    settings = Execution(rate=100.0, deadline=0.02, execute=2, safe_action=(7.0,), stop_time=0.04)
    with Executor(Hanging(6), settings) as executor:  # asked at 2, due at 4; the plan ends at 5
        assert run(executor, 12) == [0, 1, 2, 3, 4, 5, *(5 + 695 * k / 4 for k in (1, 2, 3, 4)), 700, 700]
        assert (executor.counts.late, executor.counts.held) == (1, 6)
        going.set()
        while executor.source is None:
            executor.select_action(None)
            time.sleep(0.001)
        assert executor.counts.expired >= 1  # the one that hung; another one was asked for at once
        assert conserved(executor)


def wait_for_error(executor: Executor) -> None:
    for _ in range(400):
        executor.select_action(None)
        time.sleep(0.005)


def test_an_inference_that_ends_its_thread_is_an_error_and_not_waited_for() -> None:
    class Leaving(Counting):
        def plan(self, request: Request) -> Any:
            raise SystemExit(3)

    settings = Execution(mode="synchronous", execute=4)
    with (
        Executor(Leaving(6), settings) as executor,
        pytest.raises(ExecutionError, match=r"tick 0 raised SystemExit: 3"),
    ):
        wait_for_error(executor)


@pytest.mark.parametrize("threaded", [False, True])
def test_an_error_of_the_inference_surfaces_with_its_tick_and_a_reset_goes_on(threaded: bool) -> None:
    class Failing(Counting):
        def plan(self, request: Request) -> Any:
            if request.tick == 4 and not self.fixed:
                raise ValueError("no camera")
            return super().plan(request)

        fixed = False

    planner, settings = Failing(6), Execution(mode="synchronous", execute=4)
    with Executor(planner, settings) if threaded else simulated(planner, settings, taking(0.0)) as executor:
        with pytest.raises(
            ExecutionError, match="inference for the observation of tick 4 raised ValueError: no camera"
        ):
            wait_for_error(executor)
        planner.fixed = True
        executor.reset()
        assert run(executor, 2) == [0, 1]


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (np.array([[0.0], [np.nan], [0.0]]), r"tick 0 is not finite: action 1, dimension 0 is nan"),
        (np.zeros((2, 1)), r"tick 0 has shape \(2, 1\), where \(3, 1\) is due"),
    ],
)
def test_chunks_that_no_robot_can_play_are_refused(chunk: np.ndarray, message: str) -> None:
    planner = Counting(3)
    planner.plan = lambda request: chunk  # type: ignore[method-assign]
    with pytest.raises(ExecutionError, match=message):
        simulated(planner, Execution(), taking(0.0)).select_action(None)


def test_an_observation_that_the_policy_cannot_read_is_refused_at_any_tick() -> None:
    executor = immediate(policy(), mode="synchronous")
    executor.select_action(observations(1)[0])
    with pytest.raises(EnvironmentMismatchError, match=r"observation\[1\] is nan"):
        executor.select_action(np.array([0.0, np.nan, 0.0]))


def test_a_closed_executor_says_so_and_leaves_no_thread() -> None:
    before = threading.active_count()
    executor = Executor(Counting(4), Execution())
    executor.select_action(None)
    executor.close()
    executor.close()
    assert threading.active_count() == before
    with pytest.raises(ConfigError, match="closed"):
        executor.select_action(None)


def test_what_is_under_way_at_a_reset_is_thrown_away() -> None:
    release = threading.Event()  # the first chunk that is asked for at tick 1 hangs until then

    class Held(Counting):
        def plan(self, request: Request) -> Any:
            if request.tick == 1 and not release.is_set():
                release.wait(5)
                return np.full((4, 1), 99.0)
            return super().plan(request)

    with Executor(Held(4), Execution(execute=1, deadline=0.02)) as executor:
        run(executor, 3)
        executor.reset()
        release.set()
        assert run(executor, 1) == [0]
        for _ in range(20):
            assert float(executor.select_action(None)[0]) < 90
            time.sleep(0.002)
        assert conserved(executor)


def test_settings_that_do_not_fit_are_refused() -> None:
    cases: Iterable[tuple[dict[str, Any], str]] = [
        ({"mode": "async"}, "mode is 'async'; did you mean 'asynchronous'"),
        ({"late": "stop"}, "late is 'stop'"),
        ({"first": "now"}, "first is 'now'"),
        ({"rate": 0.0}, "rate is 0.0"),
        ({"deadline": -1.0}, "deadline is -1.0"),
        ({"stop_time": 0.0}, "stop_time is 0.0"),
        ({"execute": 0}, "execute is 0"),
        ({"execute": 9}, "execute is 9; a chunk has 8 actions"),
        ({"late": "decelerate"}, "late is 'decelerate', and no safe_action is given"),
        ({"first": "safe"}, "first is 'safe', and no safe_action"),
        ({"safe_action": (1.0, 2.0)}, r"safe_action is \[1.0, 2.0\]; it must have 1 numbers within"),
        ({"safe_action": (200.0,)}, r"safe_action is \[200.0\]"),
        ({"max_rate": 0.0}, "max_rate is 0.0"),
        ({"max_rate": (1.0, 1.0)}, r"max_rate is \(1.0, 1.0\); it is one number above 0, or 1 of them"),
        ({"deadline": 0.16}, "the deadline is 8 ticks after the observation, and a chunk has 8 actions"),
        ({"mode": "blend", "fade_ticks": -1}, "fade_ticks is -1"),
        ({"mode": "ensemble", "decay": 11.0}, "decay is 11.0"),
    ]
    for settings, message in cases:
        with pytest.raises(ConfigError, match=message):
            simulated(Counting(8), Execution(**settings), taking(0.0))
    with pytest.raises(ConfigError, match="latency of an inference is nan"):
        simulated(Counting(8), Execution(), taking(float("nan"))).select_action(None)


def test_policies_whose_memory_takes_in_each_observation_are_refused() -> None:
    head = GRUActor(ChunkActor(DeterministicActor(8, 4, (8,)), 4, 1), 3, 8)
    made = Policy.of(head, Normalizer(3), torch.tensor([-1.0]), torch.tensor([1.0]))
    with pytest.raises(ConfigError, match=r"remembers \['state'\]"):
        PolicyPlanner(made)


def test_a_policy_of_single_actions_can_be_executed_with_a_robot_that_waits() -> None:
    head = DeterministicActor(3, 2, (8,))
    made = Policy.of(head, Normalizer(3), torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]))
    executor = simulated(PolicyPlanner(made), Execution(mode="synchronous", deadline=0.04), taking(0.04))
    given = [executor.select_action(one) for one in observations(7)]
    for tick in (0, 3, 6):  # two ticks of waiting, after the first
        np.testing.assert_allclose(given[tick], made.select_action(observations(7)[max(0, tick - 2)]), atol=1e-6)
    assert executor.counts.held == 4
