"""OGBench's, OCBench's and gymnasium-robotics' environments as everything else sees them: by name."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from surefoot.envs import describe, make_vec
from surefoot.envs.suites.names import BASES, parse

MAZE = "ogbench/pointmaze-medium-navigate-singletask-task1-v0"


def ogbench() -> Any:
    return pytest.importorskip("ogbench", reason="needs the extra ogbench: pip install 'surefoot[ogbench]'")


def ocbench() -> Any:
    return pytest.importorskip("ocbench", reason="needs the extra ocbench: pip install 'surefoot[ocbench]'")


def robotics() -> Any:
    return pytest.importorskip(
        "gymnasium_robotics", reason="needs the extra robotics: pip install 'surefoot[robotics]'"
    )


def rollout(env_id: str, seed: int, steps: int = 20) -> np.ndarray:
    """Observations of one row under fixed actions."""
    vector = make_vec(env_id, 1)
    width = vector.single_action_space.shape[0]
    actions = np.random.default_rng(1).uniform(-1, 1, (steps, 1, width)).astype(np.float32)
    seen = [vector.reset(seed=[seed])[0]]
    seen += [vector.step(action)[0] for action in actions]
    vector.close()
    return np.concatenate(seen)


def test_a_seeded_reset_of_a_maze_is_exact_whatever_drew_from_numpy_before() -> None:
    ogbench()
    np.random.seed(1)  # noqa: NPY002
    first = rollout(MAZE, 5)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    second = rollout(MAZE, 5)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0], rollout(MAZE, 6)[0])
    np.random.seed(1)  # noqa: NPY002
    rollout(MAZE, 5)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002  no one's numbers are disturbed


def test_rows_of_a_maze_have_numbers_of_their_own() -> None:
    ogbench()
    vector = make_vec(MAZE, 3)
    first, _ = vector.reset(seed=[7, 8, 7])
    np.testing.assert_array_equal(first[0], first[2])
    assert not np.array_equal(first[0], first[1])
    vector.close()


def walk(env_id: str) -> tuple[list[float], list[bool], list[bool]]:
    """Rewards, successes and ends of a point that is set beside its goal and goes there."""
    vector = make_vec(env_id, 1)
    vector.reset(seed=[0])
    inner: Any = vector.envs[0].unwrapped  # type: ignore[attr-defined]
    inner.set_xy(np.array(inner.cur_goal_xy) + [1.15, 0.0])
    rewards, successes, ends = [], [], []
    for _ in range(3):
        _, reward, terminated, _, info = vector.step(np.array([[-1.0, 0.0]], np.float32))
        rewards.append(float(reward[0]))
        successes.append(bool(info["success"][0]))
        ends.append(bool(terminated[0]))
        if ends[-1]:
            break
    vector.close()
    return rewards, successes, ends


def test_success_is_judged_before_the_action_or_after_it_as_the_name_says() -> None:
    ogbench()
    assert walk(MAZE) == ([-1.0, 0.0], [False, True], [False, True])  # one step after arrival
    assert walk(MAZE.replace("-v0", "-post-v0")) == ([0.0], [True], [True])


def test_the_facts_of_the_table_are_those_of_the_environments() -> None:
    ogbench()
    for base in ("pointmaze-medium", "pointmaze-teleport"):
        found = describe(f"ogbench/{base}-singletask-task1-v0")
        facts = BASES[base]
        assert (found.observation_dim, found.action_dim, found.max_episode_steps) == (
            facts.observations, facts.actions, facts.steps
        )  # fmt: skip
        assert found.simulator is not None
        assert found.simulator.startswith("mujoco")


@pytest.mark.slow
def test_the_facts_of_the_table_are_those_of_all_environments() -> None:
    ogbench()
    for base, facts in BASES.items():
        name = parse(f"ogbench/{base}-singletask-v0")
        env = gymnasium.make(name.gym_id.replace(f"-task{facts.default}", ""))
        (observations,), (actions,) = env.observation_space.shape, env.action_space.shape
        assert (base, observations, actions, env.spec.max_episode_steps) == (
            base, facts.observations, facts.actions, facts.steps
        )  # fmt: skip
        assert env.unwrapped._reward_task_id == facts.default
        env.close()


@pytest.mark.slow
def test_a_manipulation_task_is_exact_and_its_sparse_reward_is_minus_one() -> None:
    ogbench()
    name = "ogbench/cube-double-play-singletask-task2"
    first, second = rollout(f"{name}-v0", 3), rollout(f"{name}-v0", 3)
    np.testing.assert_array_equal(first, second)
    rewards = {}
    for kind in ("", "-sparse"):
        vector = make_vec(f"{name}{kind}-v0", 1)
        vector.reset(seed=[0])
        rewards[kind] = float(vector.step(np.zeros((1, 5), np.float32))[1][0])
        vector.close()
    assert rewards == {"": -2.0, "-sparse": -1.0}


def test_a_block_of_ocbench_is_described_and_says_whether_it_succeeded() -> None:
    ocbench()
    found = describe("ocbench/block-lite-v0")
    assert (found.observation_dim, found.action_dim, found.max_episode_steps) == (28, 7, 200)
    vector = make_vec("ocbench/block-lite-v0", 1)
    first, _ = vector.reset(seed=[4])
    again, _ = vector.reset(seed=[4])
    np.testing.assert_array_equal(first, again)
    *_, info = vector.step(np.zeros((1, 7), np.float32))
    assert not info["success"][0]
    vector.close()


def test_fetch_runs_beside_todays_mujoco_and_the_package_stays_as_it_is() -> None:
    robotics()
    import mujoco

    vector = make_vec("FetchReach-v4", 2)
    observations, _ = vector.reset(seed=[1, 1])
    assert observations.shape == (2, 10 + 3 + 3)  # observation, achieved and desired goal
    np.testing.assert_array_equal(observations[0], observations[1])
    _, rewards, _, _, info = vector.step(np.zeros((2, 4), np.float32))
    assert rewards.tolist() == [-1.0, -1.0]
    assert info["is_success"].tolist() == [0.0, 0.0]
    vector.close()
    assert type(mujoco.mjtJoint.mjJNT_HINGE) is mujoco.mjtJoint  # mujoco itself was not touched


def test_the_shim_does_nothing_where_joint_types_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    package = robotics()
    from types import SimpleNamespace

    from gymnasium_robotics.utils import mujoco_utils

    from surefoot.envs.suites.robotics import JOINTS, prepare

    able = SimpleNamespace(mjtJoint=SimpleNamespace(**{name: np.int32(i) for i, name in enumerate(JOINTS)}))
    monkeypatch.setattr(mujoco_utils, "mujoco", able)
    prepare(package, "FetchReach-v4")
    assert mujoco_utils.mujoco is able


def test_kitchen_says_how_many_sub_tasks_are_done_and_when_all_are() -> None:
    robotics()
    from surefoot.envs.suites.robotics import KitchenSuccess

    class Kitchen(gymnasium.Env[Any, Any]):
        goal = {"kettle": 0, "microwave": 0}  # noqa: RUF012
        done: list[str] = []  # noqa: RUF012

        def step(self, action: str) -> Any:
            self.done.append(action)
            return 0, 1.0, False, False, {"episode_task_completions": self.done}

    env = KitchenSuccess(Kitchen())
    assert [(info["completions"], info["success"]) for *_, info in (env.step("kettle"), env.step("microwave"))] == [
        (1.0, False),
        (2.0, True),
    ]


@pytest.mark.slow
def test_all_families_of_gymnasium_robotics_run() -> None:
    robotics()
    widths = {
        "FrankaKitchen-v1": (93, 9), "PointMaze_UMaze-v3": (8, 2), "AntMaze_UMaze-v5": (109, 8),
        "AdroitHandDoor-v1": (39, 28), "FetchPush-v4": (31, 4), "HandReach-v3": (93, 20),
    }  # fmt: skip
    for env_id, sizes in widths.items():
        found = describe(env_id)
        assert (env_id, (found.observation_dim, found.action_dim)) == (env_id, sizes)
        assert np.isfinite(rollout(env_id, 0, 3)).all()
