"""Policies that decide more rarely than they act, and the mean over frequencies."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.held_actor import HeldActor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.evaluation.frequency import Scale, as_published, deciding_every, evaluate_frequencies, mean_over_steps

PAPERS = (1, *range(2, 31, 2))
"""The 16 lengths of Patel and Siegelmann's code."""


class Ahead(Actor):
    """Plans s/10, (s + 1)/10, ...: what it saw, and how long ago, can be read off an action."""

    kind = "ahead_in_frequency_tests"

    def __init__(self, observation_dim: int, action_dim: int) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(0.1))
        self.observation_dim, self.action_dim = observation_dim, action_dim

    @property
    def noise_dim(self) -> int:
        return 0

    def act(self, observations: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        return self.gain * (observations + torch.arange(float(self.action_dim)))


def acted(actor: Actor, steps: int, ends: int | None = None) -> list[int]:
    """Ten times what it does at observations 0, 1, 2, ...; an episode ends after `ends` steps."""
    memory, found = actor.begin(1), []
    for step in range(steps):
        action, memory = actor.step(torch.tensor([[float(step)]]), memory)
        memory = actor.executed(memory, action)
        ended = torch.tensor([step + 1 == ends])
        memory = actor.observe_outcome(memory, torch.zeros(1), torch.zeros(1), ended)
        found.append(round(10 * action.item()))
    return found


def test_a_single_action_is_held_until_the_next_decision() -> None:
    assert acted(HeldActor(Ahead(1, 1), 1, 3), 8) == [0, 0, 0, 3, 3, 3, 6, 6]


def test_an_episodes_first_step_is_a_decision() -> None:
    assert acted(HeldActor(Ahead(1, 1), 1, 3), 8, ends=4) == [0, 0, 0, 3, 4, 4, 4, 7]


def test_a_chunk_is_planned_anew_at_each_decision() -> None:
    assert acted(HeldActor(ChunkActor(Ahead(1, 4), 4, 1), 1, 2), 6) == [0, 1, 2, 3, 4, 5]


def test_the_last_action_of_a_chunk_is_held_where_it_ends_before_the_next_decision() -> None:
    assert acted(HeldActor(ChunkActor(Ahead(1, 2), 2, 1), 1, 4), 9) == [0, 1, 1, 1, 4, 5, 5, 5, 8]


def test_deciding_at_each_step_changes_nothing() -> None:
    assert acted(HeldActor(Ahead(1, 1), 1, 1), 5) == acted(Ahead(1, 1), 5) == [0, 1, 2, 3, 4]


def test_the_mean_over_frequencies_and_the_papers_score_of_a_line() -> None:
    """Returns that fall in equal parts from 1000 to 100: 970 over a step of 1, then 910, 850, ..., 130 over 2 each."""
    returns = np.linspace(1000, 100, 16)
    assert mean_over_steps(PAPERS, returns) == pytest.approx(535.5172, abs=1e-4)
    assert as_published(PAPERS, returns, Scale(1000)) == pytest.approx(0.5176667, abs=1e-7)
    assert as_published(PAPERS, np.full(16, 1000.0), Scale(1000)) == pytest.approx(29 / 30)  # what is best there


def test_numbers_that_do_not_increase_are_refused() -> None:
    with pytest.raises(ConfigError, match="1,2,4,8,16"):
        mean_over_steps([1, 1], np.zeros(2))
    with pytest.raises(ConfigError, match="from 1 on"):
        evaluate_frequencies([], "native/pendulum", [0, 2])
    with pytest.raises(ConfigError, match="decision_steps is 0"):
        HeldActor(Ahead(1, 1), 1, 0)


class Count(gymnasium.Env[np.ndarray, np.ndarray]):
    """Shows how many steps were taken; a reward is 1 where the action is a tenth of that, for 8 steps."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, object]]:
        super().reset(seed=seed)
        self.taken = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        right = abs(float(action[0]) - self.taken) < 1e-3
        self.taken += 1
        return np.full(1, self.taken, np.float32), float(right), False, self.taken >= 8, {}


gymnasium.register("surefoot-tests/Count-v0", entry_point=Count)


def test_a_policy_that_must_see_each_step_earns_one_reward_a_decision_and_says_so_in_a_file(tmp_path) -> None:
    policy = Policy.of(Ahead(1, 1), Normalizer(1), torch.tensor([-10.0]), torch.tensor([10.0]))
    found = evaluate_frequencies([policy, policy], "surefoot-tests/Count-v0", [1, 2, 4], episodes=3)
    assert [one.estimate for one in found.returns] == [8, 4, 2]
    assert [one.estimate for one in found.lost] == [0, 4, 6]
    assert found.average is not None
    assert found.average.estimate == pytest.approx((6 + 2 * 3) / 3)  # trapezoids of 1 and 2 steps
    assert found.published is None
    held = deciding_every(policy, 4)
    held.save(tmp_path / "held")
    again = Policy.load(tmp_path / "held.safetensors")
    assert [round(float(again.select_action(np.float32([step]))[0])) for step in range(9)] == [0] * 4 + [4] * 4 + [8]
