"""Isaac Lab and Isaac Gym tasks keep the contract: fakes with their episode ends."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from counting import expected, transitions
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.data.collect import replay_buffer
from surefoot.envs.acting import Stepping
from surefoot.envs.adapters import KeepFinalObservations, from_isaac_gym, from_isaac_lab

SPACE = gymnasium.spaces.Box(0.0, 1000.0, (3,), np.float32)
ACTION = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
LENGTHS = torch.tensor([3, 4])


class Counters:
    """The numbers of `counting.Counting`, batched in tensors: steps, episode, row."""

    num_envs, device = 2, "cpu"
    single_action_space = ACTION

    def __init__(self) -> None:
        self.count, self.episode = torch.zeros(2), torch.full((2,), -1.0)
        self.row = torch.arange(2.0)

    def numbers(self) -> Tensor:
        return torch.stack([self.count, self.episode, self.row], 1)

    def begin(self, ids: Tensor) -> None:
        self.count[ids] = 0
        self.episode[ids] += 1


class LabTask(Counters):
    """The order of events of `DirectRLEnv.step`: dones and rewards, reset of the ended rows, then observations."""

    single_observation_space = gymnasium.spaces.Dict({"policy": SPACE, "critic": SPACE})

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.episode.fill_(-1)
        self._reset_idx(torch.arange(2))
        return self._get_observations(), {}

    def step(self, action: Tensor) -> Any:
        self.count += 1
        ended, even = self.count >= LENGTHS, self.episode % 2 == 0
        reward, margin = 10 * self.count + self.row, 1.5 - self.count
        if len(ids := ended.nonzero().squeeze(1)):
            self._reset_idx(ids)
        extras = {"margin": margin, "log": {"anything": 1}}
        return self._get_observations(), reward, ended & even, ended & ~even, extras

    def _get_observations(self) -> dict[str, Tensor]:
        return {"policy": self.numbers(), "critic": -self.numbers()}

    def _reset_idx(self, env_ids: Tensor) -> None:
        self.begin(env_ids)

    def close(self) -> None: ...


class KeptLabTask(KeepFinalObservations, LabTask):
    pass


class GymTask(Counters):
    """The order of events of `VecTask.step`: physics, then reset of rows marked in the last step, then the rest."""

    observation_space, action_space, rl_device = SPACE, ACTION, "cpu"

    def __init__(self) -> None:
        super().__init__()
        self.reset_buf = torch.ones(2, dtype=torch.long)
        self.time_outs = torch.zeros(2, dtype=torch.bool)

    def reset(self) -> Any:  # gives zeros: a task computes its first observations in the first step
        return {"obs": torch.zeros(2, 3)}

    def step(self, actions: Tensor) -> Any:
        self.count += 1  # physics moves on, also in rows that are about to be reset
        if len(ids := self.reset_buf.nonzero().squeeze(1)):
            self.begin(ids)
        ended, even = self.count >= LENGTHS, self.episode % 2 == 0
        self.reset_buf, self.time_outs = ended.long(), ended & ~even
        reward = 10 * self.count + self.row
        extras = {"time_outs": self.time_outs, "margin": 1.5 - self.count}
        return {"obs": self.numbers(), "states": -self.numbers()}, reward, self.reset_buf, extras


class Unseeded:
    """`transitions` seeds its environment, which Isaac Gym can't."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seed: int) -> Any:
        return self.env.reset()


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_isaac_lab_with_the_mixin_gives_the_transitions_worked_out_by_hand(tensors: Any) -> None:
    env = from_isaac_lab(KeptLabTask(), tensors=tensors)
    assert env.exact_final_obs
    assert transitions(env, 20) == [expected(0, 20), expected(1, 20)]


def test_the_mixin_asks_for_observations_again_only_where_an_episode_ended() -> None:
    task = KeptLabTask()
    asked: list[int] = []
    ask = task._get_observations
    task._get_observations = lambda: asked.append(1) or ask()  # type: ignore[method-assign, func-returns-value]
    env = from_isaac_lab(task)
    env.reset(seed=0)
    assert len(asked) == 1
    counts = []
    for _ in range(4):
        asked.clear()
        env.step(torch.zeros(2, 2))
        counts.append(len(asked))
    assert counts == [1, 1, 2, 2]


def test_isaac_lab_without_the_mixin_bootstraps_from_the_observation_before_the_last_action() -> None:
    env = from_isaac_lab(LabTask())
    assert not env.exact_final_obs
    env.reset(seed=0)
    for _ in range(3):
        observations, _, terminations, _, info = env.step(torch.zeros(2, 2))
    assert terminations.tolist() == [True, False]
    assert torch.as_tensor(observations).tolist() == [[0, 1, 0], [3, 0, 1]]
    assert info["final_obs"].tolist() == [[2, 0, 0], [3, 0, 1]]
    assert info["margin"].tolist() == [-1.5, -1.5]
    assert info["cost"].tolist() == [1, 1]
    assert info["observations"]["critic"].tolist() == [[0, -1, 0], [-3, 0, -1]]


def test_isaac_lab_s_groups_of_observations_are_chosen_by_name() -> None:
    env = from_isaac_lab(KeptLabTask(), group="critic")
    env.reset(seed=0)
    for _ in range(3):
        *_, info = env.step(torch.zeros(2, 2))
    assert info["final_obs"].tolist() == [[-3, 0, 0], [-3, 0, -1]]
    with pytest.raises(ConfigError, match="did you mean 'critic'"):
        from_isaac_lab(LabTask(), group="critics")


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_isaac_gym_s_mixed_row_is_no_transition_and_the_rest_is_as_worked_out_by_hand(tensors: Any) -> None:
    env = from_isaac_gym(GymTask(), tensors)
    found = transitions(Unseeded(env), 20)
    for row in range(2):
        assert len(found[row]) in (15, 16)
        assert found[row] == expected(row, len(found[row]))


def test_isaac_gym_begins_at_the_first_observation_and_marks_each_mixed_row() -> None:
    env = from_isaac_gym(GymTask())
    observations, _ = env.reset()
    assert torch.as_tensor(observations).tolist() == [[0, 0, 0], [0, 0, 1]]
    steps = [env.step(torch.zeros(2, 2)) for _ in range(5)]
    assert [step[4]["valid"].tolist() for step in steps] == [[True] * 2] * 3 + [[False, True], [True, False]]
    assert steps[2][0].tolist() == [[3, 0, 0], [3, 0, 1]]  # the final observation itself
    assert steps[3][0].tolist() == [[0, 1, 0], [4, 0, 1]]
    assert steps[3][1].tolist() == [0, 41]  # no reward in the mixed row
    assert [bool(step[2][0]) for step in steps] == [False, False, True, False, False]


def test_an_episode_that_ends_in_its_mixed_row_is_reset_again_without_a_transition() -> None:
    task = GymTask()
    env = from_isaac_gym(task)
    env.reset()
    for _ in range(3):
        env.step(torch.zeros(2, 2))
    original = task.begin
    task.begin = lambda ids: (original(ids), task.count.index_fill_(0, ids, 99.0))  # type: ignore[assignment, func-returns-value, return-value]
    *_, terminations, truncations, info = env.step(torch.zeros(2, 2))
    assert info["valid"].tolist() == [False, True]
    assert not terminations[0]
    assert not truncations[0]
    task.begin = original  # type: ignore[method-assign]
    *_, info = env.step(torch.zeros(2, 2))
    assert info["valid"].tolist() == [False, False]


def test_a_replay_buffer_filled_from_isaac_gym_samples_no_mixed_row() -> None:
    env = from_isaac_gym(GymTask())
    stepping, buffer = Stepping(env), replay_buffer(env, 80)
    observations, actions = stepping.reset([None, None]), torch.zeros(2, 2)
    for _ in range(40):
        done = stepping.step(actions)
        buffer.add(done.batch(observations, actions))
        observations = done.observations
    batch = buffer.gather(buffer.rows(torch.rand(2000, dtype=torch.float64)))
    assert (batch["next_observations"][:, 0] == batch["observations"][:, 0] + 1).all()


def test_objects_of_another_shape_are_refused_in_words() -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"no device, single_observation_space.*DirectRLEnv"):
        from_isaac_lab(_OnlyRows())
    with pytest.raises(EnvironmentMismatchError, match=r"reset_buf.*VecTask"):
        from_isaac_gym(_OnlyRows())
    task = GymTask()
    task.observation_space = None  # type: ignore[assignment]
    with pytest.raises(EnvironmentMismatchError, match="num_obs"):
        from_isaac_gym(task)
    task.num_obs = 3  # type: ignore[attr-defined]
    assert from_isaac_gym(task).single_observation_space.shape == (3,)
    with pytest.raises(EnvironmentMismatchError, match="global generators"):
        from_isaac_gym(GymTask()).reset(seed=1)
    with pytest.raises(EnvironmentMismatchError, match="reset first"):
        from_isaac_gym(GymTask()).step(torch.zeros(2, 2))
    with pytest.raises(EnvironmentMismatchError, match="leave out reset_mask"):
        from_isaac_lab(LabTask()).reset(options={"reset_mask": np.array([True, False])})


def test_a_constraint_of_another_shape_is_refused() -> None:
    class Scalar(LabTask):
        def step(self, action: Tensor) -> Any:
            *rest, _ = super().step(action)
            return *rest, {"cost": torch.zeros(())}

    env = from_isaac_lab(Scalar())
    env.reset(seed=0)
    with pytest.raises(EnvironmentMismatchError, match=r"extras\['cost'\] has shape \(\)"):
        env.step(torch.zeros(2, 2))


class _OnlyRows:
    num_envs = 2

    def reset(self) -> Any: ...

    def step(self, actions: Any) -> Any: ...
