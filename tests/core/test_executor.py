"""The executor: every planned action is accounted for, jumps are bounded, and late chunks are counted and bridged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from executor_runs import Counting, Table, conserved, immediate, observations, policy, run, taking
from test_chunk_actors import Coin

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.memory_actors import ChunkActor, HistoryActor
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import Array
from surefoot.core.execution.executor import Execution, Executor, simulated
from surefoot.core.execution.inference import PolicyPlanner
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.chunk_playing import played
from surefoot.core.policy.policy import Policy

RATE = 50.0
SPIKE = 0.7  # s


# -- many ticks ------------------------------------------------------------------------------------------


def random_latencies(count: int, seed: int) -> np.ndarray:
    """Seconds: 40 ms and some more, and one spike in fifty."""
    draw = np.random.default_rng(seed)
    return np.where(draw.random(count) < 0.02, SPIKE, 0.04 + draw.exponential(0.02, count))


def check_many_ticks(count: int, mode: str, late: str, max_rate: float) -> None:
    planner, latencies = Table(), random_latencies(count // 4, 1)
    asked: list[float] = []

    def latency(measured: float) -> float:
        asked.append(latencies[len(asked)])
        return asked[-1]

    settings = Execution(
        rate=RATE, mode=mode, late=late, deadline=0.08, max_rate=max_rate, safe_action=(0.0, 0.0), execute=8
    )
    executor = simulated(planner, settings, latency)
    actions, sources = np.empty((count, 2)), np.empty((count, 2), np.int64)
    for tick in range(count):
        actions[tick] = executor.select_action(None)
        sources[tick] = executor.source or (-1, -1)
    counts, played = executor.counts, sources[:, 0] >= 0

    step = max_rate / RATE
    jumps = np.abs(np.diff(actions, axis=0))
    assert jumps.max() <= step * (1 + 1e-6)
    assert counts.limited > count / 10
    assert np.abs(actions).max() <= 1
    one = sources[played, 0] * 100 + sources[played, 1]
    assert len(np.unique(one)) == played.sum() == counts.played  # none twice
    assert (played == (sources[:, 1] >= 0)).all()
    if mode == "asynchronous":
        assert (sources[played].sum(1) == np.flatnonzero(played)).all()  # each at the tick that it was planned for
        wanted = planner.rows[sources[played, 0] % 997, sources[played, 1]]
        before = np.concatenate([actions[:1], actions[:-1]])[played]
        bounded = before + np.clip(wanted - before, -step, step)
        bounded[0] = wanted[0]
        assert np.abs(bounded - actions[played]).max() < 1e-6
    assert conserved(executor)

    first = 1  # waited for, while the robot rests
    over = len(asked) - (executor._asked is not None)
    overdue = np.ceil(np.array(asked[first:over]) * RATE - 1e-9) > settings.delay
    assert counts.late - (executor._asked is not None and executor._late) == overdue.sum() > count / 500
    assert counts.asked == len(asked)
    assert counts.held > 0
    if mode != "synchronous":
        assert 0 < counts.expired < counts.late  # a spike is longer than a chunk of 16 ticks
    assert float(np.max(executor.latencies)) == SPIKE


@pytest.mark.slow
def test_200_000_ticks_with_spikes_lose_no_action_play_none_twice_and_never_jump() -> None:
    check_many_ticks(200_000, "asynchronous", "continue", 5.0)


@pytest.mark.parametrize("late", ["continue", "hold", "decelerate"])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "blend", "ensemble"])
def test_many_ticks_with_spikes_lose_no_action_play_none_twice_and_never_jump(mode: str, late: str) -> None:
    check_many_ticks(10_000, mode, late, 5.0)


def test_episodes_that_end_at_any_time_lose_no_action() -> None:
    draw, latencies = np.random.default_rng(3), iter(random_latencies(100_000, 2))
    for first in ("wait", "safe"):
        settings = Execution(mode="blend", deadline=0.06, first=first, safe_action=(0.5, -0.5), execute=4)
        executor = simulated(Table(), settings, lambda measured: next(latencies))
        for _ in range(300):
            for _ in range(int(draw.integers(1, 60))):
                executor.select_action(None)
                assert conserved(executor)
            executor.reset(None)
            assert conserved(executor)
            assert executor._plan.ahead == 0
        assert executor.counts.dropped > 0


@pytest.mark.parametrize(
    ("settings", "way", "options"),
    [
        ({"mode": "synchronous"}, "chunk", {}),
        ({"mode": "synchronous", "execute": 2}, "chunk", {"execute": 2}),
        ({"mode": "asynchronous", "execute": 4}, "chunk", {"execute": 4}),
        ({"mode": "ensemble", "decay": 0.2}, "ensemble", {"decay": 0.2}),
        ({"mode": "ensemble", "decay": -0.2, "execute": 2}, "ensemble", {"decay": -0.2, "execute": 2}),
        ({"mode": "blend", "fade_ticks": 2, "execute": 3}, "blend", {"fade_ticks": 2, "execute": 3}),
        (
            {"mode": "blend", "fade_ticks": 4, "execute": 1, "fade": "cosine"},
            "blend",
            {"fade_ticks": 4, "execute": 1, "fade": "cosine"},
        ),
    ],
)
def test_without_a_latency_it_gives_the_actions_of_the_policys_own_memory(
    settings: dict[str, Any], way: str, options: dict[str, Any]
) -> None:
    made, executor = played(policy(), way, **options), immediate(policy(), **settings)
    for episode in range(2):
        made.reset()
        executor.reset()
        for observation in observations(23 + episode):
            found = executor.select_action(observation)
            np.testing.assert_allclose(found, made.select_action(observation), atol=2e-5)
            assert found.dtype == np.float32
    assert executor.counts.held == executor.counts.late == 0


def test_a_history_of_observations_is_kept_while_chunks_are_played() -> None:
    head = HistoryActor(ChunkActor(DeterministicActor(9, 8, (16,)), 4, 2), 3, 3)
    made = Policy.of(head, Normalizer(3), torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]))
    executor = immediate(made, mode="synchronous")
    for _ in range(2):
        made.reset()
        executor.reset()
        for observation in observations(11):
            np.testing.assert_allclose(executor.select_action(observation), made.select_action(observation), atol=1e-6)


def test_images_and_several_arrays_are_planned_on() -> None:
    arrays = {"camera": Array((36, 36), "uint8"), "state": Array((2,))}
    torch.manual_seed(0)
    encoder = Encoder(arrays, "small", 8)
    head = ChunkActor(DeterministicActor(encoder.width, 6, (8,)), 3, 2)
    made = Policy.of(head, Normalizer(2), torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]), encoder)
    draw, executor = np.random.default_rng(0), immediate(made, mode="synchronous")
    for _ in range(7):
        camera = draw.integers(0, 255, (36, 36), dtype=np.uint8)
        observation = {"camera": camera, "state": draw.normal(size=2).astype(np.float32)}
        found = executor.select_action(observation)
        np.testing.assert_allclose(found, made.select_action(observation), atol=1e-6)
    with pytest.raises(EnvironmentMismatchError, match="state"):
        executor.select_action({"camera": camera})


def test_noise_is_that_which_the_policy_draws_for_itself() -> None:
    made = Policy.of(ChunkActor(Coin(4), 4, 1), Normalizer(1), torch.tensor([-1.0]), torch.tensor([1.0]))
    executor = immediate(made, mode="synchronous")
    one, found = np.zeros(1, np.float32), []
    for seed in (0, 7):
        made.reset(seed)
        executor.reset(seed)
        found.append([float(executor.select_action(one)[0]) for _ in range(40)])
        assert found[-1] == [float(made.select_action(one)[0]) for _ in range(40)]
    assert found[0] != found[1]
    executor.reset(0)
    again = [float(executor.select_action(one)[0]) for _ in range(20)]
    executor.reset(None)  # an episode ends, and the noise continues
    assert again + [float(executor.select_action(one)[0]) for _ in range(20)] == found[0]


# -- worked out by hand ---------------------------------------------------------------------------------------


def test_a_chunk_takes_over_at_its_deadline_and_skips_what_is_stale() -> None:
    settings = Execution(rate=10.0, deadline=0.2, execute=3)
    executor = simulated(Counting(6), settings, taking(0.2))
    # asked at 0 (waited for), 3, 6, 9; each later one takes over 2 ticks after, at its third action
    assert run(executor, 12) == [0, 1, 2, 3, 4, 32, 33, 34, 62, 63, 64, 92]
    assert executor.source == (9, 2)
    assert executor.counts.stale == 3 * 2
    assert executor.counts.late == executor.counts.held == 0
    early = simulated(Counting(6), settings, taking(0.2, 0.01, 0.1, 0.15))
    assert run(early, 12) == [0, 1, 2, 3, 4, 32, 33, 34, 62, 63, 64, 92]  # being early changes nothing
    assert list(early.latencies) == [0.2, 0.01, 0.1, 0.15]


def test_a_late_chunk_is_bridged_as_the_option_says() -> None:
    def given(late: str, **more: Any) -> tuple[list[float], Executor]:
        settings = Execution(rate=10.0, deadline=0.1, execute=3, late=late, **more)
        executor = simulated(Counting(6), settings, taking(0.0, 0.5, 0.1))  # asked at 3, due at 4, there at 8
        return run(executor, 11), executor

    found, executor = given("continue")
    assert found == [0, 1, 2, 3, 4, 5, 5, 5, 35, 81, 82]  # the older chunk ends at tick 5, then its last is held
    assert (executor.counts.late, executor.counts.held, executor.counts.stale) == (1, 2, 5 + 1)
    found, executor = given("hold")
    assert found == [0, 1, 2, 3, 3, 3, 3, 3, 35, 81, 82]
    assert (executor.counts.late, executor.counts.held, executor.counts.stale) == (1, 4, 2 + 5 + 1)
    found, executor = given("decelerate", safe_action=(-1.0,), stop_time=0.2)
    assert found == [0, 1, 2, 3, -48.5, -100, -100, -100, 35, 81, 82]
    found, executor = given("continue", safe_action=(-1.0,), stop_time=0.2)
    assert found == [0, 1, 2, 3, 4, 5, -47.5, -100, 35, 81, 82]
    assert (executor.counts.late, executor.counts.held) == (1, 2)


def test_a_chunk_that_comes_when_all_of_it_is_over_is_not_played_and_another_one_is_asked_for() -> None:
    settings = Execution(rate=10.0, deadline=0.1, execute=2)
    executor = simulated(Counting(3), settings, taking(0.0, 0.5, 0.1))  # asked at 2, there at 7: all is over
    assert run(executor, 10) == [0, 1, 2, 2, 2, 2, 2, 2, 71, 72]  # asked again at 7, there at 8
    assert (executor.counts.late, executor.counts.expired) == (1, 1)
    assert conserved(executor)


def test_a_synchronous_robot_waits_for_each_chunk_and_plays_it_from_its_beginning() -> None:
    executor = simulated(Counting(6), Execution(rate=10.0, mode="synchronous", execute=3, deadline=0.2), taking(0.2))
    assert run(executor, 11) == [0, 1, 2, 2, 2, 30, 31, 32, 32, 32, 80]
    assert (executor.counts.held, executor.counts.late) == (4, 0)
    hurried = simulated(Counting(6), Execution(rate=10.0, mode="synchronous", execute=3, deadline=0.1), taking(0.2))
    assert run(hurried, 11) == run(simulated(Counting(6), executor.settings, taking(0.2)), 11)
    assert hurried.counts.late == 2


def test_a_blend_fades_from_the_older_chunk_or_from_what_was_held() -> None:
    settings = Execution(rate=10.0, mode="blend", deadline=0.1, execute=3, fade_ticks=2)
    executor = simulated(Counting(6), settings, taking(0.1))  # asked at 3, due at 4
    assert run(executor, 7) == pytest.approx([0, 1, 2, 3, (2 * 4 + 31) / 3, (5 + 2 * 32) / 3, 33], abs=1e-3)
    assert executor.counts.mixed == 2
    late = simulated(Counting(6), settings, taking(0.0, 0.5))  # there at 8, after two held ticks
    assert run(late, 11)[5:] == pytest.approx([5, 5, 5, (2 * 5 + 35) / 3, 15, 15], abs=1e-3)


def test_an_ensemble_averages_the_chunks_that_have_come_in_time() -> None:
    settings = Execution(rate=10.0, mode="ensemble", deadline=0.1, decay=0.0)
    executor = simulated(Counting(4), settings, taking(0.1))
    # asked at 0 (waited for), 1, 2, ...; each takes over a tick later and has two actions beyond the stale one
    # [0], [1], [2, 11], [3, 12, 21], [13, 22, 31], [23, 32, 41]
    assert run(executor, 6) == pytest.approx([0, 1, 6.5, 12, 22, 32], abs=1e-3)


def test_a_rate_bound_holds_in_each_dimension_and_the_plan_is_caught_up_with() -> None:
    planner = Table(8, 2)
    planner.rows[:] = [0.9, -0.1]
    planner.rows[0] = 0.0
    settings = Execution(rate=10.0, mode="synchronous", max_rate=(2.0, 0.5))
    executor = simulated(planner, settings, taking(0.0))
    found = [executor.select_action(None).tolist() for _ in range(15)]
    assert found[7] == [0, 0]
    np.testing.assert_allclose(found[8:14], [[0.2, -0.05], [0.4, -0.1], [0.6, -0.1], [0.8, -0.1], *[[0.9, -0.1]] * 2])
    assert executor.counts.limited == 4
    executor.reset(last=(0.5, 0.2))  # the action in force when an episode begins
    np.testing.assert_allclose(executor.select_action(None), [0.3, 0.15], atol=1e-6)
    assert executor.counts.largest_jump == pytest.approx(0.2)


def test_actions_stay_within_the_bounds() -> None:
    executor = simulated(Table(8, 2, scale=3.0), Execution(mode="synchronous"), taking(0.0))
    found = np.stack([executor.select_action(None) for _ in range(100)])
    assert found.min() == -1
    assert found.max() == 1


@pytest.mark.parametrize("bound", [0.7, 0.3, 0.9, 1.4, 2.6])
def test_a_safe_action_may_lie_at_the_bound_that_was_declared(bound: float) -> None:
    made = Policy.of(DeterministicActor(3, 1, (8,)), Normalizer(3), torch.tensor([-bound]), torch.tensor([bound]))
    for sign in (-1, 1):
        settings = Execution(mode="synchronous", late="decelerate", safe_action=(sign * bound,))
        executor = simulated(PolicyPlanner(made), settings, taking(0.0))
        executor.reset(last=(sign * bound,))
        assert -executor.high[0] <= executor._safe[0] <= executor.high[0]  # type: ignore[index]
        for wrong in (sign * (bound + 1e-6), np.nan, 1e300):
            with pytest.raises(ConfigError, match="must have 1 numbers within the action bounds"):
                executor.reset(last=(wrong,))


def test_an_episode_may_begin_with_the_safe_action_until_the_first_chunk_is_there() -> None:
    settings = Execution(rate=10.0, deadline=0.3, first="safe", safe_action=(7.0,), execute=3)
    executor = simulated(Counting(8), settings, taking(0.2))
    assert run(executor, 4) == [700, 700, 2, 3]
    assert executor.counts.held == 2


def test_the_gap_tells_beforehand_that_chunks_are_too_short_for_the_deadline() -> None:
    assert simulated(Counting(5), Execution(deadline=0.08), taking(0.08)).gap == 3
    assert simulated(Counting(8), Execution(deadline=0.08), taking(0.08)).gap == 0
    assert simulated(Counting(8), Execution(deadline=0.08, execute=6), taking(0.08)).gap == 2
    assert simulated(Counting(8), Execution(deadline=0.08, mode="synchronous"), taking(0.08)).gap == 4
    short = simulated(Counting(5), Execution(rate=50.0, deadline=0.08), taking(0.08))
    run(short, 5)
    held = []
    for _ in range(8):
        short.select_action(None)
        held.append(short.source is None)
    assert held == [False, True, True, True] * 2
