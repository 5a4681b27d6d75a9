"""Curricula: what teachers draw, constants that episodes draw, and both from checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.curriculum import TEACHERS, Lessons, VariedParameters
from surefoot.envs.native import NativeVectorEnv
from surefoot.envs.snapshots import Snapshots, SnapshotStarts
from surefoot.envs.training import make_training


def taught(kind: str, noise: float, episodes: int) -> np.ndarray:
    """(episodes,) share of a task that is learned in 400 episodes of it, beside one that never and one that always
    succeeds."""
    teacher, generator, done, shares = TEACHERS[kind](3), np.random.default_rng(0), 0, []
    for _ in range(episodes):
        p = teacher.probabilities()
        assert p.sum() == pytest.approx(1)
        assert p.min() > 0
        task = int(generator.choice(3, p=p))
        done += task == 1
        teacher.observe_outcome(task, [0.0, min(1.0, done / 400), 1.0][task] + noise * generator.normal())
        shares.append(p[1])
    return np.array(shares)


@pytest.mark.parametrize("kind", ["progress", "improvement"])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_task_that_is_being_learned_is_drawn_most_until_it_is_solved(kind: str, noise: float) -> None:
    shares = taught(kind, noise, 2500)
    assert shares[100:400].mean() > 0.8
    assert shares[-300:].mean() < 0.5
    assert (taught("uniform", noise, 10) == 1 / 3).all()


def test_progress_is_the_distance_of_two_means_by_hand() -> None:
    teacher = TEACHERS["progress"](2)
    for _ in range(5):  # of both, so that none is new
        teacher.observe_outcome(0, 1.0)
        teacher.observe_outcome(1, 0.0)
    teacher.observe_outcome(1, 1.0)  # fast 0.1, slow 0.02
    changes = np.array([0.001, 0.081])  # each raised by a thousandth of the range, 1
    assert np.allclose(teacher.probabilities(), 0.9 * changes / changes.sum() + 0.05)


def test_improvement_is_weighed_by_the_chance_of_its_task_by_hand() -> None:
    teacher = TEACHERS["improvement"](2)
    teacher.observe_outcome(0, 0.0)
    teacher.observe_outcome(0, 1.0)  # the mean moves by 0.1, the scale's square is 0.02 of its square, p is 1/2
    unit = np.sqrt(0.02) * 0.1
    assert teacher.weights.tolist() == [pytest.approx(min(1.0, 0.2 * 0.1 / unit / 0.5)), 0.0]
    first = float(teacher.weights[0])
    teacher.observe_outcome(1, 0.0)  # no improvement: weights are forgotten
    assert teacher.weights[0] == pytest.approx(0.99 * first)
    share = 0.9 / (1 + np.exp(-0.99 * first)) + 0.05
    assert teacher.probabilities()[0] == pytest.approx(share)
    teacher.observe_outcome(0, float("nan"))
    assert teacher.counts.tolist() == [2, 1]


def varied(rows: int, kind: str = "progress", each: int | None = 1, **options: Any) -> VariedParameters:
    env = NativeVectorEnv("native/pendulum", rows, max_episode_steps=5)
    ranges = {"mass": (0.5, 2.5), "gravity": (5.0, 13.0)}
    return VariedParameters(env, ranges, cells=2, curriculum=kind, rows_each=each, **options)


def played(env: VariedParameters, steps: int) -> list[np.ndarray]:
    return [env.step(np.full((env.num_envs, 1), 0.5))[0] for _ in range(steps)]


def test_each_episode_has_constants_of_its_cell() -> None:
    env = varied(4)
    env.reset(seed=3)
    seen = set()
    for _ in range(40):
        constants = {name: np.asarray(value).copy() for name, value in env.parameters.items()}
        tasks = env.lessons.task.copy()
        for row in range(4):
            mass, gravity = env.cells[tasks[row]]
            assert 0.5 + mass <= constants["mass"][row] <= 1.5 + mass
            assert 5 + 4 * gravity <= constants["gravity"][row] <= 9 + 4 * gravity
        seen |= set(tasks.tolist())
        for step in range(5):
            _, _, terminations, truncations, _ = env.step(np.zeros((4, 1)))
            assert bool((terminations | truncations).all()) == (step == 4)
            if step < 4:  # they stay as they are within an episode
                assert (np.asarray(env.parameters["mass"]) == constants["mass"]).all()
    assert seen == {0, 1, 2, 3}
    assert sum(teacher.counts.sum() for teacher in env.lessons.teachers) == 4 * 40


def test_a_teacher_hears_the_sum_of_an_episodes_rewards() -> None:
    env = varied(1)
    env.reset(seed=1)
    task = int(env.lessons.task[0])
    total = sum(float(env.step(np.full((1, 1), 0.5))[1][0]) for _ in range(5))
    assert env.lessons.teachers[0].fast[task] == pytest.approx(total)
    env.step(np.zeros((1, 1)))
    env.reset(seed=2)  # an episode that is broken off says nothing
    assert env.lessons.teachers[0].counts.sum() == 1


def test_seeds_draw_alone_what_they_draw_together_and_continue_from_a_saved_state() -> None:
    together, alone = varied(3), varied(1)
    together.reset(seed=[4, 9, 2])
    alone.reset(seed=[9])
    for many, one in zip(played(together, 60), played(alone, 60), strict=True):
        assert (many[1] == one[0]).all()
    saved = together.get_state()
    later = played(together, 60)
    other = varied(3)
    other.reset(seed=[1, 1, 1])
    other.set_state(saved)
    assert all((a == b).all() for a, b in zip(later, played(other, 60), strict=True))
    with pytest.raises(EnvironmentMismatchError, match="of another run"):
        varied(2).set_state(saved)


def test_clusters_of_snapshots_are_tasks_too() -> None:
    def made() -> SnapshotStarts:
        env = NativeVectorEnv("native/pendulum", 2)
        angles = np.array([0.0, 0.1, 3.0, 3.1])
        found = Snapshots({"state": np.stack([angles, np.zeros(4)], 1)}, np.array([1.0, 1.0, 0.0, 0.0]))
        return SnapshotStarts(env, found, clusters=2, truncate=4, curriculum="improvement")

    first, second = made(), made()
    first.reset(seed=5)
    for _ in range(40):
        first.step(np.zeros((2, 1)))
    teacher = first.lessons.teachers[0]
    assert teacher.counts.sum() == 20
    assert teacher.fast[1] > teacher.fast[0]  # upright is worth more
    second.reset(seed=6)
    second.set_state(first.get_state())
    assert second.lessons.teachers[0].weights.tolist() == teacher.weights.tolist()
    assert (first.step(np.zeros((2, 1)))[0] == second.step(np.zeros((2, 1)))[0]).all()


def test_constants_may_vary_where_episodes_start_from_snapshots() -> None:
    env = varied(2, "uniform")
    found = Snapshots({"state": np.array([[0.3, 0.0]])}, np.zeros(1))
    starts = SnapshotStarts(env, found, truncate=3)
    observations, _ = starts.reset(seed=1)
    assert np.allclose(observations[:, 0], np.cos(0.3))
    masses = {float(np.asarray(env.parameters["mass"])[0])}
    for _ in range(6):
        starts.step(np.zeros((2, 1)))
        masses.add(float(np.asarray(env.parameters["mass"])[0]))
    assert len(masses) == 3


def test_what_has_no_constants_or_tasks_is_refused() -> None:
    with pytest.raises(EnvironmentMismatchError, match="Hopper-v5: its physical constants can't be set"):
        VariedParameters(make_training("Hopper-v5", 1), {"mass": (1.0, 2.0)})
    with pytest.raises(ConfigError, match="did you mean 'progress'"):
        Lessons("progres", 3, 1, 1)
    with pytest.raises(ConfigError, match="10,001"):
        Lessons("uniform", 10_001, 1, 1)
    env = NativeVectorEnv("native/pendulum", 1)
    with pytest.raises(ConfigError, match="mass is"):
        VariedParameters(env, {"mass": (1e6, 2e6)}).reset(seed=0)
