"""A replay buffer holds exactly the transitions that happened: no reset, no inserted row, final observations kept."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.data.collect import TransitionBuffer, replay_buffer
from surefoot.data.samplers import Windows
from surefoot.envs.acting import Stepping
from surefoot.envs.adapters import adapt
from surefoot.envs.vector import make_vec


class Walk(gymnasium.Env[Any, Any]):
    """Observes (steps, episode); reward = steps; ends after `length`, by turns terminated and truncated."""

    observation_space = gymnasium.spaces.Box(0, 1000, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 1, (1,), np.float32)

    def __init__(self, length: int = 3) -> None:
        self.length, self.episode = length, -1

    def _observe(self) -> Any:
        return np.array([self.count, self.episode], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count, self.episode = 0, 0 if seed is not None else self.episode + 1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        ended, even = self.count == self.length, self.episode % 2 == 0
        info = {"cost": float(self.count == 2), "margin": 1.0 - 2.0 * (self.count == 2)}
        return self._observe(), float(self.count), ended and even, ended and not even, info


def walks(mode: AutoresetMode = AutoresetMode.SAME_STEP, tensors: Any = "torch") -> Any:
    return adapt(SyncVectorEnv([lambda: Walk(3), lambda: Walk(4)], autoreset_mode=mode), tensors=tensors)


def act(observations: torch.Tensor) -> torch.Tensor:
    return -0.5 * observations[:, :1]


def fill(buffer: TransitionBuffer, stepping: Stepping, steps: int, observations: Any = None) -> Any:
    """Add that many steps of every row; gives the observations that come next."""
    observations = stepping.reset(range(stepping.env.num_envs)) if observations is None else observations
    for _ in range(steps):
        actions = act(torch.as_tensor(observations))
        done = stepping.step(actions)
        buffer.add(done.batch(observations, actions))
        observations = done.observations
    return observations


MODES = pytest.mark.parametrize("mode", list(AutoresetMode))


@MODES
@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_every_sampled_row_is_a_transition_that_happened(mode: AutoresetMode, tensors: Any) -> None:
    env = walks(mode, tensors)
    buffer = replay_buffer(env, 41, constraints=True)
    assert buffer.capacity == 40
    fill(buffer, Stepping(env), 30)
    uniform = torch.rand(4000, dtype=torch.float64)
    rows = buffer.rows(uniform)
    batch = buffer.gather(rows)
    before, after = batch["observations"], batch["next_observations"]
    assert (after[:, 0] == before[:, 0] + 1).all()
    assert (after[:, 1] == before[:, 1]).all()
    assert (batch["rewards"] == after[:, 0]).all()
    assert (batch["actions"] == act(before)).all()
    assert (batch["costs"] == (after[:, 0] == 2)).all()
    assert (batch["margins"] == 1 - 2 * batch["costs"]).all()
    length = torch.where(rows % 2 == 0, 3, 4)
    assert (batch["terminations"].bool() == ((after[:, 0] == length) & (after[:, 1] % 2 == 0))).all()
    assert {3.0, 4.0} <= set(after[:, 0].tolist())  # final observations are there


def test_inserted_rows_are_never_drawn_and_end_sequences() -> None:
    env = walks(AutoresetMode.NEXT_STEP)
    buffer = replay_buffer(env, 60)
    fill(buffer, Stepping(env), 30)
    drawn = set(buffer.rows(torch.rand(20000, dtype=torch.float64)).tolist())
    inserted = {row for row in range(60) if buffer["observations"][row, 1] != buffer["next_observations"][row, 1]}
    stands_still = {r for r in range(60) if buffer["next_observations"][r, 0] == 0}
    assert stands_still == inserted
    assert len(inserted) == 30 // 4 + 30 // 5
    assert drawn == set(range(60)) - inserted
    window = Windows(3, "right")(torch.tensor(sorted(drawn)), buffer.chain)
    batch = buffer.gather(window.rows)
    episodes = batch["observations"][..., 1]
    assert (episodes == episodes[:, :1])[window.mask].all()
    assert not set(window.rows[window.mask].tolist()) & inserted


def test_a_buffer_with_inserted_rows_resumes_with_the_same_rows() -> None:
    env = walks(AutoresetMode.NEXT_STEP)
    buffer = replay_buffer(env, 20)
    fill(buffer, Stepping(env), 17)
    other = replay_buffer(env, 20)
    other.load_state_dict(buffer.state_dict())
    uniform = torch.rand(100, dtype=torch.float64)
    assert torch.equal(buffer.rows(uniform), other.rows(uniform))
    state = buffer.state_dict()
    del state["valid"]
    with pytest.raises(CheckpointError, match="which of its rows"):
        other.load_state_dict(state)


def test_without_inserted_rows_the_draw_is_the_plain_uniform_one() -> None:
    buffer = TransitionBuffer(4, {"rewards": ()}, num_envs=2)
    flags = {"terminations": torch.zeros(2), "truncations": torch.zeros(2)}
    with pytest.raises(DataError, match="no rows"):
        buffer.rows(torch.zeros(1, dtype=torch.float64))
    buffer.add({"rewards": torch.ones(2), **flags})
    assert buffer.rows(torch.tensor([0.0, 0.5, 0.99], dtype=torch.float64)).tolist() == [0, 1, 1]


def test_rows_that_stand_still_are_not_drawn_either() -> None:
    env = make_vec("Pendulum-v1", 2)
    stepping, buffer = Stepping(env), replay_buffer(env, 40)
    observations = fill(buffer, stepping, 5)
    env.active[1] = False
    fill(buffer, stepping, 5, observations)
    drawn = set(buffer.rows(torch.rand(2000, dtype=torch.float64)).tolist())
    assert drawn == set(range(20)) - {11, 13, 15, 17, 19}


def test_tensors_that_the_environment_writes_again_are_not_mixed_up() -> None:
    class Reusing:
        """A torch environment with one observation tensor for all steps."""

        num_envs, tensors, device = 1, "torch", "cpu"
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
        single_observation_space = single_action_space = gymnasium.spaces.Box(-1, 99, (1,))
        memory = torch.zeros(1, 1)
        no = torch.zeros(1, dtype=torch.bool)

        def reset(self, seed: Any = None) -> Any:
            return self.memory.zero_(), {}

        def step(self, actions: Any) -> Any:
            return self.memory.add_(1), torch.ones(1), self.no, self.no, {}

    stepping = Stepping(Reusing())
    seen = [stepping.reset([0])] + [stepping.step(torch.zeros(1, 1)).observations for _ in range(3)]
    assert torch.cat(seen).flatten().tolist() == [0, 1, 2, 3]


def test_integer_observations_keep_their_type() -> None:
    env = walks()
    env.single_observation_space = gymnasium.spaces.Box(0, 255, (4, 4), np.uint8)
    assert replay_buffer(env, 4)["observations"].dtype == torch.uint8


def test_misuse_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="capacity 1"):
        replay_buffer(walks(), 1)
