"""Datasets recorded by trained policies: whole episodes, in order, of the policies that were named."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import torch

from surefoot import data
from surefoot.cli import main
from surefoot.core.actors.greedy_actor import GreedyActor
from surefoot.core.actors.heads import DeterministicActor, GaussianActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.envs.episodes import episode_seeds, run_episodes
from surefoot.play.actors import Actor
from surefoot.play.record import record

OBSTACLES = "native/dubins-obstacles"


def acting(head: type = DeterministicActor, env_id: str = OBSTACLES, sizes: tuple[int, int] = (0, 0)) -> Actor:
    from surefoot.envs.systems import system

    if not any(sizes):
        known = system(env_id)
        sizes = len(known.observations), len(known.actions)
        low, high = (torch.tensor(side) for side in (known.action_low, known.action_high))
    else:
        low, high = -torch.ones(sizes[1]), torch.ones(sizes[1])
    return Actor(Policy.of(head(*sizes, (8,)), Normalizer(sizes[0]), low, high), head.__name__, env_id)


def test_episodes_are_those_that_the_policy_runs_and_follow_each_other() -> None:
    """More than there are rows side by side; returns and costs are those of the native loop from the same starts."""
    one, episodes = acting(), 23
    found = record([one], episodes, seed=4)
    expected = run_episodes(one.policy, OBSTACLES, episode_seeds(4, 0, episodes))
    assert found.costs is not None
    for name, column in (("returns", found.rewards), ("costs", found.costs)):
        sums = np.zeros(episodes)
        np.add.at(sums, found.episode_ids, column)
        np.testing.assert_allclose(sums, getattr(expected, name), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.bincount(found.episode_ids), expected.lengths)
    inside = found.episode_ids[1:] == found.episode_ids[:-1]
    np.testing.assert_array_equal(found.next_observations[:-1][inside], found.observations[1:][inside])
    first = found.observations[np.append(True, ~inside)]
    assert len(np.unique(first, axis=0)) == episodes
    with torch.no_grad():
        np.testing.assert_allclose(found.actions, one.policy(torch.from_numpy(found.observations)).numpy(), atol=1e-5)


def test_policies_stand_one_after_another_and_drawn_actions_differ_from_mean_ones() -> None:
    first, second = acting(GaussianActor), acting()
    drawn = Actor(first.policy.sampled(), "drawn", OBSTACLES)
    found = record([drawn, second], 3)
    assert json.loads(found.attributes["policies"]) == ["drawn", "DeterministicActor"]
    assert found.attributes["policy_episodes"] == 3
    owner = found.episode_ids // 3
    with torch.no_grad():
        for k, policy in enumerate((first.policy, second.policy)):
            mean = policy(torch.from_numpy(found.observations[owner == k])).numpy()
            assert (np.abs(mean - found.actions[owner == k]).max() < 1e-4) == (k == 1)


def test_choices_and_time_limits_are_recorded_as_such() -> None:
    found = record([acting(GreedyActor, "CartPole-v1", (4, 2))], 2, seed=1)
    assert found.choices == 2
    assert found.env_id == "CartPole-v1"
    assert set(np.unique(found.actions)) == {0.0, 1.0}
    assert found.terminations.sum() == 2  # a pole that is let fall
    cut = record([acting(DeterministicActor, "Pendulum-v1", (3, 1))], 2)
    assert cut.truncations.sum() == 2
    assert not cut.terminations.any()
    assert cut.costs is None
    low, high = cut.action_range or (None, None)
    assert low is not None
    assert high is not None
    assert (low[0], high[0]) == (-2.0, 2.0)


def test_the_command_records_all_seeds_of_a_run_and_refuses_what_it_can_not(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recorded.hdf5"
    assert main(["datasets", "record", str(finished_run), "-o", str(out), "--episodes", "2"]) == 0
    told = capsys.readouterr()
    assert "no distribution" in told.err  # BC's policy
    found = data.load(out)
    assert len(np.unique(found.episode_ids)) == 4  # seeds 0 and 5
    assert found.env_id == "surefoot/Pendulum-v0"
    assert main(["datasets", "record", str(finished_run), "-o", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="acts in"):
        record([acting(), acting(DeterministicActor, "Pendulum-v1", (3, 1))], 1)
    with pytest.raises(ConfigError, match="at least 1 episode"):
        record([acting()], 0)


def test_what_a_person_did_instead_is_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnasium.envs.classic_control.pendulum import PendulumEnv

    step = PendulumEnv.step

    def helped(self: PendulumEnv, action: np.ndarray) -> object:
        shown, self.count = np.array([1.5], np.float32), getattr(self, "count", 0) + 1
        if self.count % 4:
            return step(self, action)
        *numbers, info = step(self, shown)
        return *numbers, {**info, "intervene_action": shown}

    monkeypatch.setattr(PendulumEnv, "step", helped)
    found = record([acting(DeterministicActor, "Pendulum-v1", (3, 1))], 1)
    np.testing.assert_array_equal(found.extras["intervened"], np.arange(1, 201) % 4 == 0)
    assert set(found.actions[3::4, 0]) == {np.float32(1.5)}
    assert 1.5 not in found.actions[found.extras["intervened"] == 0]
