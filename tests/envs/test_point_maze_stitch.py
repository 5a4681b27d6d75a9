"""MBRCSL's point maze: its rewards and noise, the behaviour that its data are recorded with, and what they return."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.data.prepare import best_return
from surefoot.envs.suites import PointMazeName, parse, stitch
from surefoot.runs import recorded as suites

needs_robotics = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("gymnasium_robotics") is None,
    reason="needs the extra robotics: pip install 'surefoot[robotics]'",
)


@pytest.mark.parametrize(
    ("name", "dataset", "detours"),
    [
        ("pointmaze/stitch-v0", "pointmaze/stitch", 50),
        ("pointmaze/stitch", "pointmaze/stitch", 50),
        ("pointmaze/stitch-detour10", "pointmaze/stitch-detour10", 10),
        ("pointmaze/stitch-detour90-v0", "pointmaze/stitch-detour90", 90),
    ],
)
def test_names_say_the_share_of_detours(name: str, dataset: str, detours: int) -> None:
    found = parse(name)
    assert isinstance(found, PointMazeName)
    assert (found.dataset, found.detours, found.text) == (dataset, detours, "pointmaze/stitch-v0")


@pytest.mark.parametrize("name", ["pointmaze/stitch-detour40", "pointmaze/open", "pointmaze/stitch-v1"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="N one of 10, 30, 50, 70, 90"):
        parse(name)


@pytest.mark.parametrize(("share", "counts"), [(10, (18, 1, 1)), (50, (10, 5, 5)), (90, (2, 9, 9))])
def test_of_every_twenty_episodes_the_share_takes_the_detour(share: int, counts: tuple[int, ...]) -> None:
    kinds = [stitch.kind_of(number, share) for number in range(20, 40)]
    assert tuple(kinds.count(kind) for kind in stitch.ROUTES) == counts
    order = stitch.ordered(40, share)
    assert sorted(order) == list(range(40))
    assert [stitch.kind_of(n, share) for n in order[: 2 * counts[0]]] == ["dead end"] * (2 * counts[0])


def test_cells_and_ways_of_the_maze() -> None:
    assert stitch.centre(stitch.START).tolist() == [-0.5, 0.5]  # x = column - 2.5, y = 1.5 - row
    assert stitch.cell_of(np.array([1.3, -0.7])) == stitch.GOAL
    assert stitch.way(stitch.START, stitch.GOAL) == {(1, 2): (2, 2), (2, 2): (2, 3), (2, 3): (2, 4)}
    assert stitch.way(stitch.START, stitch.B)[stitch.START] == stitch.A  # both ways are as short: left before down


@needs_robotics
def test_an_episode_has_200_steps_whose_rewards_tell_the_hidden_goal() -> None:
    env = stitch.make()
    observation, _ = env.reset(seed=3)
    inner = env.unwrapped
    goal = inner.goal  # type: ignore[attr-defined]
    assert np.abs(observation[:2] - stitch.centre(stitch.START)).max() <= 0.25
    assert np.abs(goal - stitch.centre(stitch.GOAL)).max() <= 0.25
    assert observation.shape == (4,)
    controller = stitch.Controller((stitch.M, stitch.GOAL), np.random.default_rng(0))
    inside = 0
    for _ in range(250):
        observation, reward, terminated, truncated, info = env.step(controller.act(observation))
        distance = np.linalg.norm(observation[:2] - goal)
        assert reward == pytest.approx(np.exp(-distance), abs=1e-6)
        assert not terminated
        assert not truncated
        inside += bool(info["success"])
    assert inside > 50


@needs_robotics
def test_data_are_as_described(tmp_path: pathlib.Path) -> None:
    dataset = suites.generate("pointmaze/stitch", tmp_path / "stitch.hdf5", 40, seed=1)
    assert (len(dataset), set(dataset.episode_lengths.tolist())) == (40 * 199, {199})
    assert not dataset.terminations.any()
    assert int(dataset.truncations.sum()) == 40
    by_episode = dataset.observations.reshape(40, 199, 4)
    assert np.linalg.norm(by_episode[:, 0, :2] - stitch.centre(stitch.START), axis=-1).max() <= 0.25 * 2**0.5 + 1e-6
    to_goal = np.linalg.norm(by_episode[..., :2] - stitch.centre(stitch.GOAL), axis=-1).min(1)
    assert (to_goal[:20] > 1.5).all()
    assert (to_goal[20:] < 0.5).all()
    returns = dataset.episode_returns
    assert returns[:20].mean() == pytest.approx(26.6, abs=0.5)
    assert returns[20:30].mean() == pytest.approx(56.5, abs=6)
    assert returns[30:].mean() == pytest.approx(52.5, abs=6)
    assert ((returns < 30) | (returns > 37)).all()
    assert returns.max() + 0.3 < best_return(dataset) <= returns.max() + 1  # of 200 steps
    assert dataset.env_id == "pointmaze/stitch-v0"


@needs_robotics
def test_an_episode_follows_from_seed_and_number() -> None:
    recorder = stitch.Recorder(PointMazeName())
    first, other = recorder(7, 19), recorder(8, 19)
    again = stitch.Recorder(PointMazeName())(7, 19)
    for key, value in first.items():
        np.testing.assert_array_equal(value, again[key])
    assert not np.array_equal(first["observations"], other["observations"])
    moving = np.abs(np.diff(first["actions"][-20:], axis=0)).mean()
    assert moving > 0.3  # number 19 acts at random once it is there
