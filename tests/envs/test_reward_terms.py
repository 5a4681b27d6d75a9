"""Rewards by term: what counts as one, their sums by hand, and that the terms of real tasks add up to the return."""

from __future__ import annotations

import json
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from reward_walk import Walk

from surefoot.envs.acting import Acting
from surefoot.envs.adapters import from_brax, from_isaac_lab
from surefoot.envs.chunked import Chunked
from surefoot.envs.reward_terms import reward_terms
from surefoot.envs.term_sums import TermSums
from surefoot.envs.training import make_training
from surefoot.evaluation import Episodes, RandomPolicy, evaluate
from surefoot.evaluation.until import joined


def test_terms_are_numbers_of_each_row_by_prefix_or_declared() -> None:
    rows = np.arange(2.0)
    info: dict[str, Any] = {"reward_ctrl": rows, "reward/pose": rows + 1, "_reward_ctrl": rows > 0, "x": rows}
    info |= {"reward_terms": {"own": rows + 2, "_own": rows > 0}}
    info |= {"reward_weights": np.ones(3), "reward_name": "a", "rewarded": rows}  # which are none
    found = {name: np.asarray(value).tolist() for name, value in reward_terms(info, 2).items()}
    assert found == {"ctrl": [0, 1], "pose": [1, 2], "own": [2, 3]}


def test_sums_over_episodes_are_those_worked_out_by_hand() -> None:
    """Two seeds of two rows. Seed 0: row 0 ends with 1 + 2, row 1 with 4 + 8 + 16; seed 1: row 1's sum is infinite."""
    sums = TermSums(2, 2)
    nothing = np.zeros(4, np.bool_)
    assert sums.take() == {}
    sums.add_step({"reward_a": np.array([1.0, 4.0, 9.0, math.inf])}, nothing)
    sums.add_step({"reward_a": np.array([2.0, 8.0, 9.0, 1.0])}, np.array([True, False, False, False]))
    kept = [sums.state(position) for position in range(2)]
    valid = np.array([False, True, True, True])  # a row that is no transition
    late = {"reward_a": np.array([5.0, 16.0, 9.0, 1.0]), "reward_b": np.array([0.0, 6.0, 0.0, 7.0]), "valid": valid}
    ends = np.array([False, True, False, True])
    sums.add_step(late, ends)
    assert sums.take() == {"reward/a": [pytest.approx(15.5), pytest.approx(math.nan, nan_ok=True)], "reward/b": [6, 7]}
    assert all(math.isnan(value) for values in sums.take().values() for value in values)
    again = TermSums(2, 2)
    for position, state in enumerate(kept):
        again.restore(position, state)
    again.add_step(late, ends)
    assert again.take()["reward/a"][0] == 15.5


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Pusher-v5"])
def test_the_terms_of_a_mujoco_task_add_up_to_the_return_in_training_and_evaluation(env_id: str) -> None:
    env = make_training(env_id, 4)
    space: Any = env.single_action_space
    low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
    acting = Acting(env, [0, 1], (low, high), torch.device("cpu"))
    acting.begin(0)
    generator = torch.Generator().manual_seed(0)
    while True:
        done = acting.act(2 * torch.rand(4, len(low), generator=generator) - 1)
        ended = done.terminations | done.truncations
        zeros = torch.zeros(4)
        acting.episodes.add_step(torch.as_tensor(done.rewards), torch.as_tensor(ended), None, zeros)
        if acting.steps >= 120:
            break
    found = acting.episodes.take()
    env.close()
    terms = {name: values for name, values in found.items() if name.startswith("reward/")}
    assert terms.keys() >= {"reward/ctrl"}
    assert np.sum(list(terms.values()), 0) == pytest.approx(found["episode_return"], rel=1e-5)
    policy = RandomPolicy(space.low, space.high)
    (episodes,) = evaluate([policy], env_id, 3, num_envs=2)
    assert np.sum(list(episodes.reward_terms.values()), 0) == pytest.approx(episodes.returns, rel=1e-9)
    read = Episodes.from_json(json.loads(json.dumps(episodes.to_json())))
    assert read.reward_terms["ctrl"] == pytest.approx(episodes.reward_terms["ctrl"])
    assert len(joined(episodes, read).reward_terms["ctrl"]) == 6


def test_a_chunk_of_actions_has_the_sum_of_its_steps_terms() -> None:
    gymnasium.register("TermsOfOnes-v0", entry_point=lambda **unused: Walk())
    try:
        env = Chunked(make_training("TermsOfOnes-v0", 2), 3)
        env.reset(seed=0)
        first, second = (env.step(np.zeros((2, 3), np.float32)) for _ in range(2))
    finally:
        del gymnasium.registry["TermsOfOnes-v0"]
    terms = [{name: value.tolist() for name, value in reward_terms(step[4], 2).items()} for step in (first, second)]
    assert terms == [{"near": [-3, -3], "bonus": [1, 1]}, {"near": [-2, -2], "bonus": [0.5, 0.5]}]  # of 3 and 2 steps
    env.close()


def test_what_isaac_lab_sums_up_is_weighed_by_the_episodes_that_ended() -> None:
    from test_isaac_adapters import LabTask

    class Logging(LabTask):
        """Row 0 ends at steps 3, 6, ..., row 1 at 4, 8, ...; its log stays where none ended."""

        steps = 0

        def step(self, action: Any) -> Any:
            *numbers, extras = super().step(action)
            self.steps += 1
            extras["log"] = {"Episode_Reward/track": torch.tensor(float(self.steps // 3)), "Curriculum/level": 9}
            return *numbers, extras | {"reward_own": torch.ones(2)}

    env = from_isaac_lab(Logging())
    acting = Acting(env, [0], (-torch.ones(2), torch.ones(2)), torch.device("cpu"))
    acting.begin(0)
    for _ in range(6):
        acting.act(torch.zeros(2, 2))
    found = acting.episodes.take()
    assert found["reward/track"] == [pytest.approx((1 + 1 + 2) / 3)]  # at steps 3, 4 and 6
    assert found["reward/own"] == [pytest.approx((3 + 4 + 3) / 3)]
    assert not [name for name in found if "level" in name]


def test_metrics_of_a_brax_state_that_are_terms_are_passed_on() -> None:
    from test_adapters_brax import AutoResetWrapper

    class AutoResetTold(AutoResetWrapper):
        def step(self, state: Any, action: Any) -> Any:
            after = super().step(state, action)
            after.metrics = {"reward/pose": np.array([2.0, 3.0]), "x_position": np.zeros(2)}
            return after

    env = from_brax(AutoResetTold(), 2, tensors="numpy", keys=np.asarray, jit=False)
    env.reset(seed=0)
    info = env.step(np.zeros((2, 2), np.float32))[4]
    assert {name: value.tolist() for name, value in reward_terms(info, 2).items()} == {"pose": [2, 3]}
    assert "x_position" not in info
