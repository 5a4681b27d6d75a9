"""Native systems seen by a camera: what is drawn, stacked, paused and restored; the system beneath is the same."""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import surefoot.envs  # noqa: F401  registers the ids
from surefoot.core.base.errors import ConfigError, RenderModeError
from surefoot.core.base.spec import Array
from surefoot.envs import describe, make_vec
from surefoot.envs.check import check_environment
from surefoot.envs.interface import final_observations
from surefoot.envs.names import PIXELS
from surefoot.envs.native import NativeVectorEnv
from surefoot.envs.pixels import PixelVectorEnv, draw, images_of, pendulum
from surefoot.envs.spaces import mapped


@pytest.mark.parametrize("name", list(PIXELS))
def test_every_id_keeps_the_contract_as_one_environment_and_as_many(name: str) -> None:
    assert check_environment(PIXELS[name][0], steps=210) == []


def test_ids_say_which_arrays_they_give() -> None:
    assert describe("native/pendulum-pixels").observations == {"image": Array((3, 64, 64), "uint8")}
    both = describe("native/pendulum-camera")
    assert both.observations == {"image": Array((64, 64), "uint8"), "velocity": Array((1,))}
    assert both.observation_dim is None
    assert gymnasium.make("surefoot/PendulumPixels-v0").reset(seed=0)[0].shape == (3, 64, 64)


@pytest.mark.parametrize("name", ["surefoot/PendulumPixels-v0", "surefoot/PendulumCamera-v0"])
def test_a_camera_renders_its_newest_frame_in_grey_also_of_the_last_step(name: str) -> None:
    env = gymnasium.make(name, render_mode="rgb_array", max_episode_steps=3)
    assert env.render_mode == "rgb_array"
    assert env.metadata["render_modes"] == ["rgb_array"]
    assert env.metadata["render_fps"] == 20
    observation: Any = env.reset(seed=3)[0]
    for step in range(4):
        frame: Any = env.render()
        newest = observation["image"] if isinstance(observation, dict) else observation[-1]
        assert frame.shape == (64, 64, 3)
        assert frame.dtype == np.uint8
        assert (frame == newest[:, :, None]).all()
        if step < 3:
            observation = env.step(np.ones(1, np.float32))[0]


def test_what_can_not_be_rendered_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"'human'; .*'rgb_array' alone"):
        gymnasium.make("surefoot/PendulumCamera-v0", render_mode="human")
    with pytest.raises(ConfigError, match=r"needs render_mode='rgb_array'"):
        gymnasium.make("surefoot/PendulumCamera-v0").unwrapped.render()
    with pytest.raises(ConfigError, match=r"call reset\(\) first"):
        gymnasium.make("surefoot/PendulumCamera-v0", render_mode="rgb_array").unwrapped.render()
    with pytest.raises(ConfigError, match=r"native/pendulum draws no frames: `surefoot watch .*pendulum-camera draw"):
        gymnasium.make("surefoot/Pendulum-v0", render_mode="rgb_array")
    with pytest.raises(TypeError):  # after which stable-baselines3 makes it without one
        gymnasium.make("surefoot/Pendulum-v0", render_mode="rgb_array")
    plain = gymnasium.make("surefoot/Quadrotor2D-v0", render_mode=None)
    with pytest.raises(ConfigError, match=r"render\(\) was called, and native/quadrotor-2d draws no frames"):
        plain.unwrapped.render()


@pytest.mark.parametrize("name", ["Pendulum-v0", "PendulumPixels-v0", "Hopper-v5"])
def test_environments_side_by_side_take_no_render_mode_and_refuse_any_other(name: str) -> None:
    if name == "Hopper-v5":
        pytest.importorskip("mujoco")
    made, plain = (gymnasium.make_vec(f"surefoot/{name}", 2, **given) for given in ({"render_mode": None}, {}))
    assert type(made) is type(plain)
    with pytest.raises(RenderModeError, match=r"render_mode is 'rgb_array', and .* draws? no frames"):
        gymnasium.make_vec(f"surefoot/{name}", 2, render_mode="rgb_array")
    several = gymnasium.make_vec(f"surefoot/{name}", 2, vectorization_mode="sync", render_mode=None)
    assert several.single_observation_space == gymnasium.make(f"surefoot/{name}").observation_space


def test_rewards_ends_and_velocities_are_those_of_the_system_beneath() -> None:
    seen, plain = PixelVectorEnv("native/pendulum", 3, velocities=True, frames=1), NativeVectorEnv("native/pendulum", 3)
    seen.reset(seed=4)
    plain.reset(seed=4)
    actions = np.random.default_rng(0).uniform(-2, 2, (205, 3, 1)).astype(np.float32)
    for action in actions:
        observations, *numbers, _ = seen.step(action)
        expected, *others, _ = plain.step(action)
        np.testing.assert_array_equal(observations["velocity"], expected[:, 2:])
        for a, b in zip(numbers, others, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("angle", [0.0, 0.7, math.pi / 2, -2.0])
def test_the_rod_is_drawn_where_it_hangs(angle: float) -> None:
    image = draw(pendulum(torch.tensor([[math.cos(angle), math.sin(angle), 0.0]])), 64)[0].double()
    down, right = torch.meshgrid(torch.arange(64) + 0.5, torch.arange(64) + 0.5, indexing="ij")
    weight = image / image.sum()
    centre = (float((right * weight).sum()) / 64, float((down * weight).sum()) / 64)
    assert centre == pytest.approx((0.5 + 0.19 * math.sin(angle), 0.5 - 0.19 * math.cos(angle)), abs=0.01)
    area = 0.38 * 0.09 + math.pi * 0.045**2  # a rectangle with two half discs
    assert float(image.sum()) / 255 / 64**2 == pytest.approx(area, rel=0.02)


def test_frames_are_stacked_from_the_oldest_to_the_newest_and_begin_anew_with_an_episode() -> None:
    env = PixelVectorEnv("native/pendulum", 2, max_episode_steps=4)
    first, _ = env.reset(seed=1)
    assert np.array_equal(first[:, 0], first[:, 2])
    before = first
    for _ in range(4):
        after, _, _, truncations, info = env.step(np.ones((2, 1), np.float32))
        final: Any = final_observations(after, info)
        assert np.array_equal(final[:, :2], before[:, 1:])
        assert not np.array_equal(final[:, 2], before[:, 2])
        before = after
    assert truncations.all()
    assert np.array_equal(after[:, 0], after[:, 2])
    assert not np.array_equal(after, final)


def test_a_paused_row_keeps_its_image() -> None:
    env = PixelVectorEnv("native/pendulum", 2)
    before, _ = env.reset(seed=1)
    env.active[0] = False
    after, *_ = env.step(np.ones((2, 1), np.float32))
    assert np.array_equal(after[0], before[0])
    assert not np.array_equal(after[1], before[1])


def test_a_saved_state_goes_on_to_the_same_images() -> None:
    env, other = (PixelVectorEnv("native/cartpole-balance", 2, tensors="torch") for _ in range(2))
    env.reset(seed=3)
    for _ in range(5):
        env.step(torch.ones(2, 1))
    other.reset(seed=9)
    other.set_state(env.get_state())
    for _ in range(3):
        assert torch.equal(env.step(torch.ones(2, 1))[0], other.step(torch.ones(2, 1))[0])


def test_thousands_of_frames_come_a_second() -> None:
    env = PixelVectorEnv("native/pendulum", 16)
    env.reset(seed=0)
    begun = time.thread_time()
    for _ in range(20):
        env.step(np.zeros((16, 1), np.float32))
    assert 20 * 16 / (time.thread_time() - begun) > 2000


def test_other_systems_and_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no scene to draw"):
        PixelVectorEnv("native/acrobot")
    with pytest.raises(ConfigError, match="size is 4"):
        PixelVectorEnv("native/pendulum", size=4)


class Looking(gymnasium.Env[Any, Any]):
    """Gives an image and a vector, as a user's environment would."""

    observation_space = gymnasium.spaces.Dict(
        {"camera": gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8), "state": gymnasium.spaces.Box(-1, 1, (2,))}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self) -> None:
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._seen(), 0.0, False, self.time == 3, {}

    def _seen(self) -> Any:
        return {"camera": np.full((8, 8, 3), self.time, np.uint8), "state": np.full(2, self.time / 9, np.float32)}


def test_a_users_dict_with_an_image_stays_one_side_by_side() -> None:
    gymnasium.register("Looking-v0", Looking)
    env: Any = make_vec("Looking-v0", 2)
    first, _ = env.reset(seed=0)
    assert mapped(np.shape, first) == {"camera": (2, 8, 8, 3), "state": (2, 2)}
    for time_step in (1, 2, 3):
        after, _, _, truncations, info = env.step(np.zeros((2, 1)))
        final: Any = final_observations(after, info)
        assert (final["camera"] == time_step).all()
    assert truncations.all()
    assert not after["camera"].any()


@pytest.mark.parametrize("velocities", [False, True])
def test_recorded_states_are_seen_as_the_environment_shows_them(velocities: bool) -> None:
    env_id = "surefoot/PendulumCamera-v0" if velocities else "surefoot/PendulumPixels-v0"
    options: Any = {"velocities": True, "frames": 1} if velocities else {}
    plain = NativeVectorEnv("native/pendulum", 1, max_episode_steps=3)
    seen = PixelVectorEnv("native/pendulum", 1, max_episode_steps=3, **options)
    before, image = plain.reset(seed=2)[0], seen.reset(seed=2)[0]
    rows: list[Any] = []
    images: list[Any] = []
    for _ in range(7):
        after, *_, info = plain.step(np.ones((1, 1), np.float32))
        shown, *_, told = seen.step(np.ones((1, 1), np.float32))
        rows.append((before[0], final_observations(after, info)[0]))
        images.append((mapped(lambda v: v[0], image), mapped(lambda v: v[0], final_observations(shown, told))))
        before, image = after, shown
    observations, following = (np.stack([row[i] for row in rows]) for i in (0, 1))
    found = images_of(env_id, observations, following, np.arange(7) % 3 == 0, velocities)
    for i, name in enumerate(("observations", "next_observations")):
        for row in range(7):
            expected = images[row][i] if velocities else {"image": images[row][i]}
            for key, value in expected.items():
                np.testing.assert_array_equal(found[f"{name}/{key}"][row], value)


def test_a_first_reset_with_a_mask_begins_and_draws_all_rows() -> None:
    env, other = PixelVectorEnv("pendulum", 2, size=16), PixelVectorEnv("pendulum", 2, size=16)
    masked, _ = env.reset(seed=3, options={"reset_mask": np.array([True, False])})
    np.testing.assert_array_equal(masked, other.reset(seed=3)[0])
