"""Snapshots of simulators, clusters of their values, and episodes that start from them."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.errors import CheckpointError, ConfigError, EnvironmentMismatchError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.envs.adapters.gym_in import adapt
from surefoot.envs.k_means import k_means
from surefoot.envs.native import NativeVectorEnv
from surefoot.envs.placing import fitting, placing
from surefoot.envs.side_by_side import PausingVectorEnv
from surefoot.envs.snapshots import Snapshots, SnapshotStarts
from surefoot.envs.training import make_training

VALUES = np.array([5.0, 0.1, 9.0, 0.0, 5.1, 0.2])


def spread(values: np.ndarray, labels: np.ndarray) -> float:
    return float(sum(((values[labels == one] - values[labels == one].mean()) ** 2).sum() for one in np.unique(labels)))


def snapshots(env: Any, values: Any) -> Snapshots:
    """Of the state of row 0, changed a little from one to the next."""
    count = len(values)
    read = {name: np.repeat(value[:1], count, 0) for name, value in placing(env).read().items()}
    for value in read.values():
        value[:, 0] += 0.01 * np.arange(count)
    return Snapshots(read, np.asarray(values, np.float64))


def test_the_clusters_are_those_of_the_least_squared_distances() -> None:
    assert k_means(VALUES, 3).tolist() == [1, 0, 2, 0, 1, 0]
    generator = np.random.default_rng(0)
    for count, most in ((7, 2), (8, 3), (9, 4)):
        values = generator.normal(size=count).round(1)  # some of them equal
        order = np.sort(values)
        best = min(
            spread(order, np.searchsorted(breaks, np.arange(count), side="right"))
            for breaks in itertools.combinations(range(1, count), most - 1)
        )
        assert spread(values, k_means(values, most)) == pytest.approx(best, abs=1e-12)


def test_equal_values_are_in_one_cluster_and_no_cluster_is_empty() -> None:
    assert k_means(np.array([1.0, 2.0, 1.0]), 6).tolist() == [0, 1, 0]
    assert k_means(np.full(5, 1e9), 3).tolist() == [0] * 5
    with pytest.raises(ConfigError):
        k_means(np.array([0.0, np.nan]), 2)


def test_a_cluster_is_drawn_uniformly_and_then_a_snapshot_in_it() -> None:
    env = NativeVectorEnv("native/pendulum", 1)
    env.reset(seed=0)
    starts = SnapshotStarts(env, snapshots(env, VALUES), clusters=3)
    starts.reset(seed=3)
    drawn = []
    for number in range(9000):
        starts._draws[0] = number
        drawn.append(starts._drawn(0))
    shares = np.bincount(drawn, minlength=6) / len(drawn)
    wanted = np.array([1 / 6, 1 / 9, 1 / 3, 1 / 9, 1 / 6, 1 / 9])  # 5 and 5.1; 0, .1 and .2; 9
    assert np.abs(shares - wanted).max() < 4 * np.sqrt(0.25 / 9000)


@pytest.mark.parametrize("name", ["native/cartpole-swingup", "HalfCheetah-v5", "Pendulum-v1", "Swimmer-v5"])
def test_from_a_state_that_is_set_the_same_actions_give_the_same_rewards(name: str) -> None:
    env: Any = make_training(name, 2)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(30)]
    env.reset(seed=1)
    for now in actions[:10]:
        env.step(now)
    where = placing(env)
    state, started = where.read(), where.observations()
    first = [env.step(now)[:2] for now in actions[10:]]
    env.reset(seed=7)
    for now in actions[:3]:  # whatever was before
        env.step(now)
    env.reset(seed=8)
    where.place(np.arange(2), state)
    assert np.allclose(where.observations(), started, atol=1e-6)
    for (observations, rewards), now in zip(first, actions[10:], strict=True):
        again = env.step(now)[:2]
        assert (again[1] == rewards).all()
        assert (again[0] == observations).all()


def test_to_set_one_row_leaves_the_others_as_they_are() -> None:
    for name in ("native/cartpole-swingup", "Walker2d-v5", "CartPole-v1"):
        one, other = (make_training(name, 3) for _ in range(2))
        for env in (one, other):
            env.action_space.seed(0)
            env.reset(seed=1)
        actions = [one.action_space.sample() for _ in range(8)]
        for now in actions[:4]:
            one.step(now)
            other.step(now)
        placing(one).place(np.array([1]), {key: value[:1] for key, value in placing(one).read().items()})
        for now in actions[4:]:
            found, wanted = one.step(now), other.step(now)
            for row in (0, 2):
                assert (found[0][row] == wanted[0][row]).all()
                assert found[1][row] == wanted[1][row]


def test_an_episode_from_a_snapshot_is_truncated_and_the_others_are_the_environments_own() -> None:
    env = NativeVectorEnv("native/pendulum", 2, max_episode_steps=9)
    plain = NativeVectorEnv("native/pendulum", 2, max_episode_steps=9)
    env.reset(seed=0)
    plain.reset(seed=5)
    own = SnapshotStarts(env, snapshots(env, [0.0]), truncate=4, until=20)  # ten steps of each row
    own.reset(seed=5)
    assert own.where.read()["state"].tolist() == [own.snapshots.states["state"][0].tolist()] * 2
    ends, still = [], np.zeros((2, 1))
    for step in range(1, 25):
        before = own.where.read()["state"]
        following = own.step(still)
        if following[3].any():
            ends.append(step)
            assert not following[2].any()
            assert following[3].all()
            assert not np.allclose(following[4]["final_obs"], following[0])
            assert (before != own.where.read()["state"]).any()
    assert ends == [4, 8, 10, 19]  # 4 after each start, at the phase's end, and at the time limit of 9
    assert not own.placed.any()


def test_a_truncated_row_bootstraps_from_the_state_that_it_reached() -> None:
    env = NativeVectorEnv("native/pendulum", 1)
    env.reset(seed=0)
    found = snapshots(env, [0.0, 1.0])
    starts, free = SnapshotStarts(env, found, truncate=3), NativeVectorEnv("native/pendulum", 1)
    starts.reset(seed=4)
    free.reset(seed=4)
    free.state = starts.where.read()["state"]
    push = np.array([[0.7]])
    for _ in range(3):
        given, wanted = starts.step(push), free.step(push)
    assert given[3].tolist() == [True]
    assert given[2].tolist() == [False]
    assert (given[4]["final_obs"] == wanted[0]).all()
    assert given[1].tolist() == wanted[1].tolist()


def test_rows_draw_by_their_own_seeds_and_go_on_from_a_saved_state() -> None:
    def made(rows: int) -> SnapshotStarts:
        env = NativeVectorEnv("native/pendulum", rows)
        env.reset(seed=0)
        return SnapshotStarts(env, snapshots(env, VALUES), clusters=3, truncate=5, until=60, rows_each=1)

    def played(starts: SnapshotStarts, steps: int) -> list[np.ndarray]:
        return [starts.step(np.full((starts.num_envs, 1), 0.3))[0] for _ in range(steps)]

    together, alone = made(3), made(1)
    together.reset(seed=[4, 9, 2])
    alone.reset(seed=[9])
    both = zip(played(together, 20), played(alone, 20), strict=True)
    assert all((many[1] == one[0]).all() for many, one in both)
    saved = together.get_state()
    later = played(together, 60)  # beyond the phase
    other = made(3)
    other.reset(seed=[1, 1, 1])
    other.set_state(saved)
    assert all((a == b).all() for a, b in zip(later, played(other, 60), strict=True))
    with pytest.raises(EnvironmentMismatchError, match="of another run"):
        made(2).set_state(saved)


def test_a_teachers_states_come_back_from_a_file(tmp_path: pathlib.Path) -> None:
    actor = TanhGaussianActor(3, 1, (4,))
    policy = Policy(actor, Normalizer(3), torch.tensor([-2.0]), torch.tensor([2.0]))
    found = Snapshots.record(policy, "native/pendulum", episodes=3, every=50, discount=0.5)
    assert len(found) == 3 * 4
    assert found.environment == "surefoot/Pendulum-v0"
    found.save(tmp_path / "s.npz")
    again = Snapshots.load(tmp_path / "s.npz")
    assert (again.states["state"] == found.states["state"]).all()
    assert (again.values == found.values).all()
    assert (again.value, again.source) == ("returns", found.source)
    env = NativeVectorEnv("native/pendulum", 1)
    env.reset(seed=0)
    env.state = found.states["state"][1:2]
    total, memory = 0.0, policy.begin(1)
    for step in range(60):
        actions, memory = policy.act(torch.from_numpy(env.observations), memory)
        total += 0.5**step * float(env.step(actions.detach().numpy())[1][0])
    assert found.values[1] == pytest.approx(total, rel=1e-4)
    worth = Snapshots.record(policy, "native/pendulum", episodes=1, every=50, value=lambda seen: seen[:, 0].numpy())
    assert worth.value == "critic"
    assert np.allclose(worth.values, np.cos(worth.states["state"][:, 0]), atol=1e-5)


def test_the_positions_of_a_log_start_gymnasiums_tasks_as_gymnasium_sets_them() -> None:
    env: Any = make_training("Hopper-v5", 1)
    env.reset(seed=0)
    qpos, qvel = np.array([[0.1, 1.3, 0.05, -0.1, -0.2, 0.1]]), np.full((1, 6), 0.2)
    starts = SnapshotStarts(env, Snapshots({"qpos": qpos, "qvel": qvel}, np.zeros(1)))
    observations, _ = starts.reset(seed=1)
    theirs: Any = gymnasium.make("Hopper-v5").unwrapped
    theirs.reset(seed=1)
    theirs.set_state(qpos[0], qvel[0])
    assert np.allclose(observations[0], theirs._get_obs())
    push = np.array([[0.1, 0.2, -0.3]])
    assert starts.step(push)[1][0] == pytest.approx(theirs.step(push[0])[1], abs=1e-9)


def test_what_cannot_be_set_is_refused_in_one_sentence(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EnvironmentMismatchError, match="PendulumPixels-v0: its simulator's state can't be set"):
        placing(make_training("native/pendulum-pixels", 1))
    env = NativeVectorEnv("native/pendulum", 1)
    env.reset(seed=0)
    wrong = Snapshots({"state": np.zeros((2, 3))}, np.zeros(2))
    with pytest.raises(EnvironmentMismatchError, match=r"'state' of 3 numbers a state, and .* needs 'state' of 2"):
        SnapshotStarts(env, wrong).reset(seed=0)
    with pytest.raises(EnvironmentMismatchError, match="needs 'state' of 2"):
        fitting(placing(env), {"qpos": np.zeros((1, 2))}, "it", "log")
    with pytest.raises(ConfigError, match="row 1 is not"):
        Snapshots({"state": np.array([[0.0], [np.nan]])}, np.zeros(2))
    with pytest.raises(ConfigError, match=r"\.npz"):
        wrong.save(tmp_path / "s.json")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(CheckpointError, match="holds no snapshots"):
        Snapshots.load(tmp_path / "other.npz")
    wrong.save(tmp_path / "s.npz")
    whole = (tmp_path / "s.npz").read_bytes()
    (tmp_path / "s.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        Snapshots.load(tmp_path / "s.npz")


def test_an_observation_that_a_state_does_not_give_is_refused() -> None:
    pytest.importorskip("gymnasium_robotics", reason="needs the extra robotics: pip install 'surefoot[robotics]'")
    for name, words in (
        ("gantry-pick", "its simulator's state can't be set"),
        ("PointMaze_UMaze-v3", "nothing of it gives the observation"),
        ("FetchReach-v4", "a mocap body pulls its robot"),
    ):
        env: Any = make_training(name, 1)
        env.reset(seed=0)
        with pytest.raises(EnvironmentMismatchError, match=words):
            placing(env)
        env.close()


def test_a_wrapper_that_hides_the_state_is_refused() -> None:
    stacked = gymnasium.wrappers.FrameStackObservation(gymnasium.make("Pendulum-v1"), 3)
    flat = gymnasium.wrappers.FlattenObservation(stacked)
    env = adapt(PausingVectorEnv([lambda: flat]))
    env.reset(seed=0)
    with pytest.raises(EnvironmentMismatchError, match="its wrapper FrameStackObservation"):
        placing(env)
