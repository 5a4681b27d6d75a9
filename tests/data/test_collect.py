"""A collector stores exactly the transitions that happened: no reset, no inserted row, final observations kept."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.core.errors import CheckpointError, ConfigError, DataError, DivergenceError, EnvironmentMismatchError
from surefoot.data.collect import Collector, TransitionBuffer, replay_buffer, uniform_actions
from surefoot.data.ring import RingBuffer
from surefoot.data.samplers import Windows
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


MODES = pytest.mark.parametrize("mode", list(AutoresetMode))


@MODES
@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_every_sampled_row_is_a_transition_that_happened(mode: AutoresetMode, tensors: Any) -> None:
    env = walks(mode, tensors)
    collector, buffer = Collector(env), replay_buffer(env, 41, constraints=True)
    assert buffer.capacity == 40
    collector.reset(seed=0)
    assert collector.fill(buffer, act, 30) == 60
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
    collector, buffer = Collector(env), replay_buffer(env, 60)
    collector.reset(seed=0)
    collector.fill(buffer, act, 30)
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
    collector, buffer = Collector(env), replay_buffer(env, 20)
    collector.reset(seed=0)
    collector.fill(buffer, act, 17)
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
    collector, buffer = Collector(env), replay_buffer(env, 40)
    collector.reset(seed=0)
    still = uniform_actions(env, torch.Generator().manual_seed(0))
    collector.fill(buffer, still, 5)
    env.active[1] = False
    collector.fill(buffer, still, 5)
    drawn = set(buffer.rows(torch.rand(2000, dtype=torch.float64)).tolist())
    assert drawn == set(range(20)) - {11, 13, 15, 17, 19}
    plain = RingBuffer(4, {"observations": (3,), "actions": (1,)}, num_envs=2)
    with pytest.raises(ConfigError, match="replay_buffer"):
        collector.fill(plain, still, 1)


@MODES
def test_a_block_has_time_first_and_bootstraps_from_final_observations(mode: AutoresetMode) -> None:
    collector = Collector(walks(mode))
    collector.reset(seed=0)
    block = {key: value.clone() for key, value in collector.block(act, 9).items()}
    assert block["observations"].shape == (9, 2, 2)
    assert block["rewards"].shape == (9, 2)
    valid, before, after = block["valid"], block["observations"], block["next_observations"]
    assert valid.all() == (mode is not AutoresetMode.NEXT_STEP)
    assert (after[valid][:, 0] == before[valid][:, 0] + 1).all()
    ended = block["terminations"] | block["truncations"]
    inside = ~ended[:-1]
    assert (after[:-1][inside] == before[1:][inside]).all()
    assert (after[ended][:, 0] >= 3).all()
    second = collector.block(act, 9)
    if mode is not AutoresetMode.NEXT_STEP:
        assert second["observations"][0].tolist() == [[0, 3], [1, 2]]  # where the first block stopped
    assert collector.block(act, 9)["rewards"].data_ptr() == second["rewards"].data_ptr()


def test_columns_of_the_policy_are_kept_with_the_step_they_belong_to() -> None:
    collector = Collector(walks())
    collector.reset(seed=0)

    def with_value(observations: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return act(observations), {"values": observations.sum(1)}

    block = collector.block(with_value, 5)
    assert torch.equal(block["values"], block["observations"].sum(-1))
    env = walks()
    buffer = replay_buffer(env, 10, more={"values": ()})
    Collector(env).fill(buffer, with_value, 5)
    assert torch.equal(buffer["values"], buffer["observations"].sum(-1))
    with pytest.raises(DataError, match="'values'"):
        Collector(env).fill(buffer, act, 1)


@MODES
def test_finished_episodes_are_counted_with_their_means(mode: AutoresetMode) -> None:
    collector = Collector(walks(mode))
    collector.reset(seed=0)
    assert collector.episodes().count == 0
    steps = 15 if mode is AutoresetMode.NEXT_STEP else 12
    collector.block(act, steps)
    found = collector.episodes()
    assert found.count == 4 + 3
    assert found.mean_return == pytest.approx((4 * 6 + 3 * 10) / 7)
    assert found.mean_length == pytest.approx((4 * 3 + 3 * 4) / 7)
    assert found.mean_cost == 1.0
    assert collector.episodes().count == 0


def test_tensors_that_the_environment_writes_again_are_not_mixed_up() -> None:
    class Reusing:
        """A torch environment with one observation tensor for all steps."""

        num_envs, tensors, device = 1, "torch", "cpu"
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
        single_observation_space = observation_space = gymnasium.spaces.Box(0, 99, (1, 1))
        single_action_space = action_space = gymnasium.spaces.Box(-1, 1, (1, 1))
        memory = torch.zeros(1, 1)
        no = torch.zeros(1, dtype=torch.bool)

        def reset(self, seed: Any = None) -> Any:
            return self.memory.zero_(), {}

        def step(self, actions: Any) -> Any:
            return self.memory.add_(1), torch.ones(1), self.no, self.no, {}

    block = Collector(Reusing()).block(lambda o: o * 0, 3)
    assert block["observations"].flatten().tolist() == [0, 1, 2]
    assert block["next_observations"].flatten().tolist() == [1, 2, 3]


def test_uniform_actions_lie_in_the_bounds_and_repeat_by_seed() -> None:
    env = walks()
    draws = [uniform_actions(env, torch.Generator().manual_seed(5))(torch.zeros(1000, 2)) for _ in range(2)]
    assert torch.equal(*draws)
    assert draws[0].shape == (1000, 1)
    assert draws[0].min() >= -2
    assert draws[0].max() <= 1
    assert draws[0].mean().item() == pytest.approx(-0.5, abs=0.1)
    env.single_action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    with pytest.raises(ConfigError, match="no finite bounds"):
        uniform_actions(env, torch.Generator())


def test_integer_observations_keep_their_type() -> None:
    env = walks()
    env.single_observation_space = gymnasium.spaces.Box(0, 255, (4, 4), np.uint8)
    assert replay_buffer(env, 4)["observations"].dtype == torch.uint8


def test_misuse_is_refused_in_words() -> None:
    env = walks(AutoresetMode.NEXT_STEP)
    shapes: dict[str, tuple[int, ...]] = {"observations": (2,), "actions": (1,)}
    with pytest.raises(ConfigError, match="replay_buffer"):
        Collector(env).fill(RingBuffer(4, shapes, num_envs=2), act, 1)
    with pytest.raises(ConfigError, match="for 4 environments, and these are 2"):
        Collector(env).fill(RingBuffer(4, shapes, num_envs=4), act, 1)
    with pytest.raises(ConfigError, match="capacity 1"):
        replay_buffer(env, 1)
    with pytest.raises(ConfigError, match="horizon is 0"):
        Collector(env).block(act, 0)
    with pytest.raises(DataError, match=r"\(2, 2\).*\(2, 1\)"):
        Collector(env).block(lambda o: o, 1)
    with pytest.raises(DivergenceError, match="not finite"):
        Collector(env).block(lambda o: act(o) * torch.nan, 2)
    with pytest.raises(EnvironmentMismatchError, match="adapt"):
        Collector(SyncVectorEnv([Walk], autoreset_mode=AutoresetMode.NEXT_STEP))
    plain = SyncVectorEnv([Walk], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(DataError, match="array of objects"):
        Collector(plain).block(act, 4)
