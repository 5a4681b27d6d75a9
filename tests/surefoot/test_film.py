"""What watched episodes show of their task: its goal, and units."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from surefoot.core.actors.goal_actor import GoalActor, UnitGaussianActor
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.evaluation import trajectories
from surefoot.play import film


class Push:
    """A policy that always does the same."""

    def __init__(self, action: tuple[float, ...]) -> None:
        self.action = torch.tensor(action)

    def begin(self, rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
        return {}

    def act(self, observations: torch.Tensor, memory: Any) -> tuple[torch.Tensor, Any]:
        return self.action.expand(len(observations), -1), memory

    def observe_outcome(self, memory: Any, *unused: torch.Tensor) -> Any:
        return memory

    def reset(self, seed: int) -> None:
        pass

    def select_action(self, observation: np.ndarray) -> np.ndarray:
        return self.action.numpy()

    def observe(self, reward: float, cost: float) -> None:
        pass


@pytest.fixture(scope="module")
def maze() -> list[film.Episode]:
    policy: Any = Push((0.0, 0.0))
    return film.native_episodes(policy, "native/point-maze?max_episode_steps=3", 2)


def test_episodes_in_a_maze_say_where_its_goal_is_and_their_units(maze: list[film.Episode]) -> None:
    for episode in maze:
        assert episode.goal == {"x": 6.5, "y": 6.5}
        assert episode.goal_radius == 0.45
        assert episode.units == ("m", "m", "m/s", "m/s")
        assert episode.action_names == ("push_x", "push_y")


def test_the_goal_is_a_star_in_the_plane_and_a_line_along_time(maze: list[film.Episode]) -> None:
    paths, x, _, vx, *_ = trajectories.figure(maze, "").axes
    (star,) = [line for line in paths.lines if line.get_marker() == "*"]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (6.5, 6.5)
    (circle,) = paths.patches
    assert circle.get_radius() == 0.45  # type: ignore[attr-defined]
    held = [set(line.get_ydata()) for line in x.lines if line.get_color() == trajectories.GOAL]
    assert held == [{6.5}]
    assert not [line for line in vx.lines if line.get_color() == trajectories.GOAL]
    assert "The green star or line is the goal, the circle where it counts as reached (0.45)." in trajectories.page(
        maze, ""
    )


def test_axes_have_the_units_that_the_system_declares(maze: list[film.Episode]) -> None:
    axes = trajectories.figure(maze, "").axes
    assert (axes[0].get_xlabel(), axes[0].get_ylabel()) == ("x (m)", "y (m)")
    assert [at.get_title("left") or at.get_title() for at in axes[1:7]] == [
        "x (m)", "y (m)", "vx (m/s)", "vy (m/s)", "action: push x", "action: push y",
    ]  # fmt: skip


class Reaching(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """One step to a goal."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    observation_space = gymnasium.spaces.Dict(
        {
            "observation": gymnasium.spaces.Box(-9.0, 9.0, (20,)),
            "achieved_goal": gymnasium.spaces.Box(-9.0, 9.0, (2,)),
            "desired_goal": gymnasium.spaces.Box(-9.0, 9.0, (2,)),
        }
    )

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def _seen(self) -> dict[str, np.ndarray]:
        values = {
            "observation": np.zeros(20),
            "achieved_goal": np.array([1.0, 2.0]),
            "desired_goal": np.array([3.0, 4.0]),
        }
        return {key: value.astype(np.float32) for key, value in values.items()}

    def reset(self, **unused: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        return self._seen(), 0.0, True, False, {}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


def test_episodes_of_a_goal_environment_hold_the_achieved_and_the_desired_goal() -> None:
    gymnasium.register("film/Reaching-v0", entry_point=Reaching, max_episode_steps=5)
    try:
        policy: Any = Push((0.0,))
        (episode,) = film.rendered_episodes(policy, "film/Reaching-v0", 1)
    finally:
        del gymnasium.registry["film/Reaching-v0"]
    assert episode.names == ("achieved goal 0", "achieved goal 1", "desired goal 0", "desired goal 1")
    assert episode.states.tolist() == [[1.0, 2.0, 3.0, 4.0]]


class Told(Reaching):
    """Says its goal at the reset, as OGBench's environments do; observations are one vector."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        return np.zeros(2, np.float32), {"goal": np.array([0.5, -0.25], np.float32)}

    def step(self, action: Any) -> Any:
        _, reward, *others = super().step(action)
        return (np.ones(2, np.float32), reward, *others)


def test_a_policy_is_told_the_goal_of_the_reset_and_it_is_drawn() -> None:
    gymnasium.register("film/Told-v0", entry_point=Told, max_episode_steps=3)
    try:
        head = GoalActor(UnitGaussianActor(4, 1, (8,)), 2)
        policy = Policy.of(head, Normalizer(2), torch.tensor([-1.0]), torch.tensor([1.0]))
        (episode,) = film.rendered_episodes(policy, "film/Told-v0", 1)
        assert episode.goal == {"observation 0": 0.5, "observation 1": -0.25}
        head = GoalActor(UnitGaussianActor(5, 1, (8,)), 3)
        wide = Policy.of(head, Normalizer(2), torch.tensor([-1.0]), torch.tensor([1.0]))
        with pytest.raises(EnvironmentMismatchError, match="asked for goals of 3 numbers"):
            film.rendered_episodes(wide, "film/Told-v0", 1)
    finally:
        del gymnasium.registry["film/Told-v0"]
