"""Environments that misbehave end in one sentence that names them, the call, and what to do."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.core.base.errors import EnvironmentMismatchError, SimulatorError, SurefootError
from surefoot.envs import describe, make_vec
from surefoot.envs.acting import Acting, Stepping, spec_of, waiting_for

SEEN = np.zeros(3, np.float32)


class Odd(gymnasium.Env[Any, Any]):
    """Gives zeros, and in its second step what it was made to give instead."""

    wait: ClassVar[threading.Event | None] = None

    def __init__(self, at: str = "step", **given: Any) -> None:
        self.observation_space = given.pop("observations", spaces.Box(-1, 1, (3,), np.float32))
        self.action_space = given.pop("actions", spaces.Box(-1, 1, (1,), np.float32))
        if "limit" in given:
            self.max_episode_steps = given.pop("limit")
        self.at, self.given, self.count = at, given, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.at == "reset":
            return self.given.get("result", (self.given.get("observation", SEEN), {}))
        return np.zeros(3, self.observation_space.dtype or np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.wait is not None:
            self.wait.wait(10)
        if self.count < 2 or self.at != "step":
            return SEEN, 1.0, False, False, {}
        names = ("observation", "reward", "terminated", "truncated", "info")
        usual = (SEEN, 1.0, False, False, {})
        values = tuple(self.given.get(name, value) for name, value in zip(names, usual, strict=True))
        return self.given.get("result", values)

    def close(self) -> None:
        if self.at == "close":
            raise OSError("the port is gone")


gymnasium.register("SurefootOdd-v0", Odd)
ODD: list[tuple[dict[str, Any], str]] = [
    ({"observation": np.zeros(1)}, r"step gave an observation of shape \(1,\) where \(3,\)"),
    ({"observation": 0.5}, r"step gave an observation of shape \(\) where"),
    ({"observation": np.zeros((3, 1))}, r"shape \(3, 1\)"),
    ({"observation": None}, r"step gave an observation of shape \(\)"),
    ({"observation": [[1.0], [1.0, 2.0]]}, "step raised ValueError"),
    ({"observation": np.zeros(3, complex)}, "observations that are complex128"),
    ({"observation": np.array(["a", "b", "c"])}, "observations that are <U1"),
    ({"reward": None}, r"a reward of None; return float\(reward\)"),
    ({"reward": np.zeros(3)}, r"a reward of float64 of shape \(3,\)"),
    ({"reward": np.zeros(1)}, r"a reward of float64 of shape \(1,\)"),
    ({"reward": 1j}, "a reward of complex"),
    ({"reward": "1"}, "a reward of str"),
    ({"terminated": None}, r"terminated = None; return bool"),
    ({"truncated": np.zeros(2, bool)}, r"truncated = bool of shape \(2,\)"),
    ({"info": None}, "an info of None; return a dict"),
    ({"info": {"cost": None}}, r"info\['cost'\] = None"),
    ({"info": {"cost": np.zeros(2)}}, r"info\['cost'\] = float64 of shape \(2,\)"),
    ({"result": (SEEN, 1.0, False, {})}, "step gave 4 values; return observation, reward"),
    ({"result": None}, "step gave None"),
    ({"at": "reset", "observation": np.zeros(2)}, r"reset gave an observation of shape \(2,\)"),
    ({"at": "reset", "result": SEEN}, r"reset gave float32 of shape \(3,\); return observation and info"),
]


@pytest.mark.parametrize(("odd", "words"), ODD)
def test_what_gymnasium_does_not_allow_is_refused_with_the_call_s_name(odd: dict[str, Any], words: str) -> None:
    env = make_vec("SurefootOdd-v0", 2, **odd)
    with pytest.raises(SimulatorError, match=rf"SurefootOdd-v0: its .*{words}") as caught:  # noqa: PT012
        env.reset(seed=0)
        for _ in range(2):
            env.step(np.zeros((2, 1), np.float32))
    assert "\n" not in str(caught.value)


def test_numbers_that_only_look_odd_are_taken() -> None:
    info = {"object": object(), "text": "a", "path": np.zeros(4), "cost": np.float32(0.5), "good": True}
    env = make_vec("SurefootOdd-v0", 2, reward=np.array(2), terminated=np.int64(1), info=info)
    env.reset(seed=0)
    for _ in range(2):
        _, rewards, terminations, _, given = env.step(np.zeros((2, 1), np.float32))
    assert rewards.tolist() == [2, 2]
    assert terminations.all()
    assert given["cost"].tolist() == [0.5, 0.5]
    assert given["good"].tolist() == [True, True]
    assert not {"object", "text", "path"} & given.keys()


def test_a_cost_that_is_a_whole_number_first_does_not_round_the_next_row_s() -> None:
    env = make_vec("SurefootOdd-v0", 2)
    env.reset(seed=0)
    for env_row, cost in zip(env.envs, (0, 0.5), strict=True):  # type: ignore[attr-defined]
        env_row.unwrapped.count, env_row.unwrapped.given = 1, {"info": {"cost": cost}}
    assert env.step(np.zeros((2, 1), np.float32))[4]["cost"].tolist() == [0, 0.5]


def test_whole_observations_take_no_fractions() -> None:
    space = spaces.Box(-9, 9, (3,), np.int32)
    env = make_vec("SurefootOdd-v0", 1, observations=space, observation=np.array([0.5, 1, 2]))
    env.reset(seed=0)
    env.step(np.zeros((1, 1), np.float32))
    with pytest.raises(SimulatorError, match="observations that are float64 where int32 is declared"):
        env.step(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(-3, 3, (2,), np.int32), "whole numbers.*float32"),
        (spaces.Box(-1, 1, (0,), np.float32), "with a dimension or more"),
        (spaces.Box(-1, np.inf, (1,), np.float32), "no finite bounds"),
        (spaces.Box(-1, 1, (2, 2), np.float32), "one-dimensional Box"),
    ],
)
def test_actions_that_agents_can_t_give_are_refused(space: Any, words: str) -> None:
    with pytest.raises(EnvironmentMismatchError, match=words):
        spec_of(make_vec("SurefootOdd-v0", 1, actions=space))


def test_no_observation_at_all_is_refused() -> None:
    with pytest.raises(EnvironmentMismatchError, match="read vectors"):
        describe("SurefootOdd-v0", observations=spaces.Box(-1, 1, (0,), np.float32))


@pytest.mark.parametrize(("limit", "found"), [(math.inf, None), (None, None), (7, 7), (np.int64(8), 8)])
def test_an_infinite_time_limit_is_none(limit: Any, found: int | None) -> None:
    assert describe("SurefootOdd-v0", limit=limit).max_episode_steps == found
    assert make_vec("SurefootOdd-v0", 1, limit=limit).max_episode_steps == found


@pytest.mark.parametrize("limit", [-3, 0, 2.5, math.nan, "many"])
def test_a_time_limit_that_is_no_number_of_steps_is_refused(limit: Any) -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"max_episode_steps is .*whole number"):
        describe("SurefootOdd-v0", limit=limit)


def test_a_close_that_fails_is_warned_of_and_loses_nothing() -> None:
    env = make_vec("SurefootOdd-v0", 2, at="close")
    with pytest.warns(RuntimeWarning, match="SurefootOdd-v0: its close raised OSError: the port is gone"):
        env.close()
    with pytest.warns(RuntimeWarning, match="close"):
        assert describe("SurefootOdd-v0", at="close").action_dim == 1


def test_a_vector_environment_of_another_shape_than_declared_is_refused() -> None:
    env = make_vec("SurefootOdd-v0", 2)
    stepping = Stepping(env)
    stepping.reset([0, 1])
    step = env.step
    for place, what in ((0, "observations"), (1, "rewards"), (2, "terminations"), (3, "truncations")):

        def changed(actions: Any, place: int = place) -> Any:
            values = list(step(actions))
            values[place] = values[place][:1]
            return tuple(values)

        env.step = changed  # type: ignore[method-assign]
        with pytest.raises(EnvironmentMismatchError, match=rf"SurefootOdd-v0: its step gave {what} of shape \(1"):
            stepping.step(np.zeros((2, 1), np.float32))


def test_the_call_that_is_waited_for_is_known_from_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waiting_for() is None
    go = threading.Event()
    monkeypatch.setattr(Odd, "wait", go)
    acting = Acting(make_vec("SurefootOdd-v0", 1), [0], (-torch.ones(1), torch.ones(1)), torch.device("cpu"))
    acting.begin(0)
    before = time.monotonic()
    thread = threading.Thread(target=acting.act, args=(torch.zeros(1, 1),))
    thread.start()
    while (found := waiting_for()) is None and thread.is_alive():
        time.sleep(0.001)
    go.set()
    thread.join()
    assert found is not None
    assert found[0] == "step 1 of SurefootOdd-v0"
    assert found[1] >= before
    assert waiting_for() is None


def test_a_call_that_fails_is_not_waited_for_any_more() -> None:
    stepping = Stepping(make_vec("SurefootOdd-v0", 1, reward=None))
    stepping.reset([0])
    stepping.step(np.zeros((1, 1), np.float32))
    with pytest.raises(SurefootError):
        stepping.step(np.zeros((1, 1), np.float32))
    assert waiting_for() is None
