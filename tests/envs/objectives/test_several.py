"""Several objectives: weights in observations and rewards, fronts and hypervolumes by hand."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from tugs import Tug

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MissingExtraError
from surefoot.envs.make import names_in, without_objective
from surefoot.envs.objectives.several import ScalarRewards, WeightedEnv, simplex
from surefoot.envs.side_by_side import PausingVectorEnv
from surefoot.envs.training import make_training
from surefoot.envs.vector import make_vec
from surefoot.evaluation.pareto import hypervolume, pareto_front

NAME = "weighted:tugs:Tug?objectives=2"


def tugs(weights: Any = None, rows: int = 3) -> WeightedEnv:
    return WeightedEnv(PausingVectorEnv([Tug] * rows), 2, weights)


def test_rewards_are_weighted_and_the_agent_sees_the_weights() -> None:
    env = tugs([0.25, 0.75])
    seen, _ = env.reset(seed=0)
    assert env.single_observation_space.shape == (3,)
    assert seen.tolist() == [[0, 0.25, 0.75]] * 3
    seen, rewards, _, _, info = env.step(np.array([[1], [-1], [0]], np.float32))
    assert rewards.tolist() == [-3, -1, -1]
    assert info["objectives"].tolist() == [[0, -4], [-4, 0], [-1, -1]]
    assert info["reward_terms"]["objective/1"].tolist() == [-4, 0, -1]
    assert not any(key.startswith("objectives/") for key in info)


def test_weights_are_new_in_each_episode_and_repeat_with_its_seed() -> None:
    env, again = tugs(), tugs()
    first = env.reset(seed=[5, 6, 7])[0][:, 1:]
    assert first.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert len(np.unique(first[:, 0])) == 3
    for _ in range(3):
        assert np.array_equal(env.step(np.zeros((3, 1), np.float32))[0][:, 1:], first)
    env.next_seeds = [7, None, 5]
    seen, _, _, truncated, info = env.step(np.zeros((3, 1), np.float32))
    assert truncated.all()
    assert np.array_equal(info["final_obs"][:, 1:], first)  # what a target bootstraps by
    assert np.array_equal(seen[[0, 2], 1:], first[[2, 0]])
    assert not np.array_equal(seen[1, 1:], first[1])
    assert np.array_equal(again.reset(seed=[5, 6, 7])[0][:, 1:], first)
    kept = again.reset(options={"reset_mask": np.array([True, False, False])})[0][:, 1:]
    assert np.array_equal(kept[1:], first[1:])
    assert not np.array_equal(kept[0], first[0])


def test_weights_are_uniform_on_the_simplex() -> None:
    env = tugs(rows=1)
    drawn = np.array([env.reset()[0][0, 1] for _ in range(2000)])
    assert np.histogram(drawn, bins=4, range=(0, 1))[0].tolist() == pytest.approx([500] * 4, abs=80)


@pytest.mark.parametrize(
    ("objectives", "weights"),
    [(2, [0.5, 0.6]), (2, [1.5, -0.5]), (2, [1.0]), (2, "heavy"), (1, None), (2.0, None), (99, None)],
)
def test_weights_that_are_none_are_refused(objectives: Any, weights: Any) -> None:
    with pytest.raises(ConfigError, match=r"weights are|objectives is"):
        WeightedEnv(PausingVectorEnv([Tug]), objectives, weights)


def test_environments_without_such_objectives_are_refused() -> None:
    for count in (1, 3):
        env = WeightedEnv(PausingVectorEnv([Tug]), 3 if count == 3 else 2)
        env.env.envs[0].step = lambda action, count=count: (
            np.zeros(1, np.float32),
            0.0,
            False,
            False,
            {"objectives/0": 1.0},
        )
        env.reset(seed=0)
        with pytest.raises(EnvironmentMismatchError, match=r"info\['objectives'\] must be"):
            env.step(np.zeros((1, 1), np.float32))


def test_names() -> None:
    assert without_objective(f"{NAME}&limit=3&weights=[0.5,0.5]") == "tugs:Tug?limit=3"
    assert names_in(NAME) == (("tugs:Tug",), ())
    nested = "objective:weighted:tugs:Tug?objectives=2&formula=F a&labels=walks:labels"
    assert without_objective(nested) == "tugs:Tug"
    for env in (make_training(NAME, 2), make_vec(f"{NAME}&weights=[1,0]", 2)):
        assert env.reset(seed=0)[0].shape == (2, 3)


def test_vectors_of_rewards_become_numbers_of_the_info() -> None:
    class Vectors(Tug):
        def step(self, action: Any) -> Any:
            seen, _, terminated, truncated, _ = super().step(action)
            return seen, np.array([1.0, -2.0]), terminated, truncated, {}

    env = WeightedEnv(PausingVectorEnv([lambda: ScalarRewards(Vectors())]), 2, [0.5, 0.5])
    env.reset(seed=0)
    _, rewards, _, _, info = env.step(np.zeros((1, 1), np.float32))
    assert (rewards.tolist(), info["objectives"].tolist()) == ([-0.5], [[1, -2]])


def test_mo_gymnasium_is_named_where_it_is_missing() -> None:
    try:
        import mo_gymnasium  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match="pip install mo-gymnasium"):
            make_vec("weighted:mo:deep-sea-treasure-v0?objectives=2", 1)
        return
    env = make_vec("weighted:mo:deep-sea-treasure-v0?objectives=2&weights=[0,1]", 1)
    env.reset(seed=0)
    assert env.step(np.zeros(1, np.int64))[1].tolist() == [-1]  # a step costs one


def test_pictures_are_refused() -> None:
    class Pictures(Tug):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)

    with pytest.raises(EnvironmentMismatchError, match="one vector"):
        WeightedEnv(PausingVectorEnv([Pictures]), 2)


# -- fronts and volumes --------------------------------------------------------------------------------------


def test_fronts_have_what_nothing_dominates() -> None:
    points = [[0, 3, 1], [0, 3, 1], [1, 1, 1], [0, 1, 1], [2, 0, 0]]
    assert pareto_front(points).tolist() == [True, True, True, False, True]  # equal points dominate neither


def test_hypervolumes_by_hand_and_by_inclusion_and_exclusion() -> None:
    assert hypervolume([[1, 3], [2, 2], [3, 1]], [0, 0]) == 6
    assert hypervolume([[1, 3], [2, 2], [3, 1]], [1, 1]) == 1
    assert hypervolume([[5, 5]], [5, 0]) == 0
    assert hypervolume([[2, 2, 2], [3, 1, 1]], [0, 0, 0]) == 8 + 3 - 2
    source = np.random.default_rng(0)
    points = source.random((4, 3))
    total = 0.0
    for subset in range(1, 16):
        chosen = points[[i for i in range(4) if subset >> i & 1]]
        total += (-1) ** (len(chosen) + 1) * float(chosen.min(0).prod())
    assert hypervolume(points, [0, 0, 0]) == pytest.approx(total)


def test_the_simplex_has_all_multiples() -> None:
    assert simplex(2, 2).tolist() == [[0, 1], [0.5, 0.5], [1, 0]]
    assert len(simplex(3, 4)) == 15
    assert simplex(3, 4).sum(1).tolist() == [1] * 15
