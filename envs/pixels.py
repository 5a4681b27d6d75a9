"""Native systems seen by a camera: greyscale images, drawn for all environments at once, in place of the state.

`surefoot/PendulumPixels-v0` gives three stacked frames of 64 x 64 pixels; `surefoot/PendulumCamera-v0` a Dict of one
frame and the velocity, which a single frame does not show. Likewise for the cart-pole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, RenderModeError, nearest
from surefoot.core.base.spec import mapped
from surefoot.envs.interface import Array, Tensors, VectorEnvironment, as_numpy
from surefoot.envs.names import refuse_side_by_side
from surefoot.envs.native import SEEDS, NativeVectorEnv
from surefoot.envs.systems import system as find_system

Strokes = list[tuple[Tensor, Tensor, float]]
"""Ends of segments, (N, 2) each, and half their width: x right and y down, in units of the image's width."""


def pendulum(observations: Tensor) -> Strokes:
    """The rod, from the middle of the image."""
    cosine, sine = observations[:, 0], observations[:, 1]
    middle = torch.full_like(observations[:, :2], 0.5)
    return [(middle, middle + 0.38 * torch.stack([sine, -cosine], 1), 0.045)]


def cartpole(observations: Tensor) -> Strokes:
    """The cart on a track of 5.2 m, and the pole."""
    position, angle = observations[:, 0], observations[:, 2]
    x = 0.5 + position / 5.2
    level = torch.full_like(x, 0.8)
    half = torch.full_like(x, 0.08)
    foot = torch.stack([x, level], 1)
    pole = torch.stack([torch.sin(angle), -torch.cos(angle)], 1)
    cart = torch.stack([x - half, level], 1), torch.stack([x + half, level], 1), 0.04
    return [cart, (foot, foot + 0.6 * pole, 0.025)]


SCENES: dict[str, tuple[Callable[[Tensor], Strokes], tuple[int, ...]]] = {
    "pendulum": (pendulum, (2,)),
    "cartpole_balance": (cartpole, (1, 3)),
}
"""System -> what is drawn of its observations, and which of these are velocities."""


def draw(strokes: Strokes, size: int) -> Tensor:
    """(N, size, size) uint8: segments with round ends, white on black, their edges smoothed over one pixel."""
    axis = (torch.arange(size) + 0.5) / size
    brightness: Tensor | None = None
    for first, last, half in strokes:
        along = last - first
        length = along.square().sum(1).clamp(min=1e-12).view(-1, 1, 1)
        x, y = (axis - first[:, :1]).unsqueeze(1), (axis - first[:, 1:]).unsqueeze(2)  # (N, 1, size), (N, size, 1)
        dx, dy = along[:, 0].view(-1, 1, 1), along[:, 1].view(-1, 1, 1)
        place = ((x * dx + y * dy) / length).clamp_(0, 1)
        distance = ((x - place * dx).square_() + (y - place * dy).square_()).sqrt_()
        own = ((half - distance) * size + 0.5).clamp_(0, 1)
        brightness = own if brightness is None else torch.maximum(brightness, own)
    assert brightness is not None
    return (brightness * 255 + 0.5).to(torch.uint8)


def images_of(
    env_id: str, observations: Array, next_observations: Array, starts: Array, velocities: bool, size: int = 64
) -> dict[str, Array]:
    """Recorded transitions of a native system as `PixelVectorEnv` gives them: columns of a `data.Dataset`'s extras.

    Args:
        env_id: of the camera's environment, such as surefoot/PendulumPixels-v0.
        observations: (N, O) of the system, in episode order.
        next_observations: (N, O).
        starts: (N,) bool, where episodes begin.
        velocities: one frame and the velocities, instead of three frames.
        size: height and width of a frame.
    """
    scene, chosen = SCENES[find_system(gymnasium.spec(env_id).kwargs["system"]).name]
    parts = [torch.from_numpy(values).split(1024) for values in (observations, next_observations)]
    now, after = (np.concatenate([draw(scene(part), size).numpy() for part in rows]) for rows in parts)
    if velocities:
        found = {"observations/image": now, "next_observations/image": after}
        for name, values in (("observations", observations), ("next_observations", next_observations)):
            found[f"{name}/velocity"] = np.ascontiguousarray(values[:, list(chosen)])
        return found
    first = np.maximum.accumulate(np.where(starts, np.arange(len(now)), 0))
    older = [np.maximum(np.arange(len(now)) - back, first) for back in (2, 1)]
    stacked = np.stack([now[older[0]], now[older[1]], now], 1)
    return {
        "observations/image": stacked,
        "next_observations/image": np.concatenate([stacked[:, 1:], after[:, None]], 1),
    }


class PixelVectorEnv(VectorEnvironment):
    """N environments of a native system, observed as images (contract: docs/environments.md).

    An episode's first observation holds its first frame in all places. All else, infos and random numbers included,
    is that of `NativeVectorEnv`.

    Args:
        system: name of a system in `SCENES`: `native/pendulum`, `native/cartpole-balance`.
        num_envs: N, at least 1.
        size: height and width of a frame, at least 8.
        frames: stacked in an image, the newest last; 1 with `velocities`.
        velocities: observe a Dict of `image` (size, size) and `velocity`, in the system's units.
        tensors: "numpy" or "torch".
        options: of `NativeVectorEnv`.

    Raises:
        ConfigError: a system without a scene, or a value out of its range.
    """

    def __init__(
        self,
        system: str,
        num_envs: int = 1,
        *,
        size: int = 64,
        frames: int = 3,
        velocities: bool = False,
        tensors: Tensors = "numpy",
        **options: Any,
    ) -> None:
        inner = NativeVectorEnv(system, num_envs, **options)
        if inner.system.name not in SCENES:
            raise ConfigError(f"{system} has no scene to draw: {nearest(inner.system.name, list(SCENES))}")
        if size < 8 or frames < 1 or (velocities and frames != 1):
            raise ConfigError(
                f"size is {size} and frames {frames}: use images of 8 pixels or more, one frame or more, and one with "
                "velocities"
            )
        self.inner, self.size, self.frames, self.velocities = inner, size, frames, velocities
        self._scene, self._velocity = SCENES[inner.system.name]
        super().__init__(num_envs, self._space(), inner.single_action_space, tensors)
        self.metadata = {**VectorEnvironment.metadata, "simulator": inner.metadata["simulator"]}
        self.max_episode_steps: int = inner.max_episode_steps
        self._stack = np.zeros((num_envs, frames, size, size), np.uint8)
        self._seen = np.zeros((num_envs, len(inner.system.observations)), np.float32)

    def _space(self) -> gymnasium.Space[Any]:
        if not self.velocities:
            return Box(0, 255, (self.frames, self.size, self.size), np.uint8)
        box = self.inner.single_observation_space
        assert isinstance(box, Box)
        chosen = list(self._velocity)
        parts: dict[str, gymnasium.Space[Any]] = {
            "image": Box(0, 255, (self.size, self.size), np.uint8),
            "velocity": Box(box.low[chosen], box.high[chosen], dtype=np.float32),
        }
        return gymnasium.spaces.Dict(parts)

    @property
    def active(self) -> Array:
        """(N,) bool: rows that `step` moves. Set it freely between steps; `reset` sets all."""
        return self.inner.active

    @property
    def next_seeds(self) -> list[int | None]:
        """Seed of each row's next automatic reset; None continues the row's own random numbers."""
        return self.inner.next_seeds

    @next_seeds.setter
    def next_seeds(self, value: list[int | None]) -> None:
        self.inner.next_seeds = value

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all rows, or in those of `options["reset_mask"]` (the first time in all)."""
        mask = (options or {}).get("reset_mask") if self.inner.started else None
        rows = np.ones(self.num_envs, np.bool_) if mask is None else as_numpy(mask).astype(np.bool_)
        seen, info = self.inner.reset(seed=seed, options=options)
        self._seen = np.asarray(seen)
        self._stack[rows] = self._frames(self._seen[rows])[:, None]
        return self._given(self._stack, self._seen), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance the active rows: as `NativeVectorEnv.step`, with images as observations."""
        seen, rewards, terminations, truncations, info = self.inner.step(as_numpy(actions))
        ended, moved = terminations | truncations, info["valid"]
        frames = self._frames(seen)
        stack = np.concatenate([self._stack[:, 1:], frames[:, None]], 1)
        if ended.any():
            last, final = stack.copy(), np.asarray(info["final_obs"])
            last[ended, -1] = self._frames(final[ended])
            info["final_obs"] = self._given(last, final)
            stack[ended] = frames[ended][:, None]
        self._stack = stack if moved.all() else np.where(moved[:, None, None, None], stack, self._stack)
        self._seen = np.asarray(seen)
        numbers = self.give(rewards), self.give(terminations), self.give(truncations)
        return (self._given(self._stack, self._seen), *numbers, self.give_info(info))

    def _frames(self, observations: Any) -> Array:
        """(N, size, size) uint8 of (N, O) observations of the system."""
        return draw(self._scene(torch.from_numpy(np.ascontiguousarray(observations))), self.size).numpy()

    def _given(self, stack: Array, seen: Array) -> Any:
        if not self.velocities:
            return self.give(stack.copy())
        return {"image": self.give(stack[:, 0].copy()), "velocity": self.give(seen[:, list(self._velocity)])}

    def get_state(self) -> dict[str, Array]:
        """All that the next steps depend on, as named arrays; `set_state` of it continues to the same bits."""
        return {**self.inner.get_state(), "frames": self._stack.copy(), "seen": self._seen.copy()}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a state of `get_state`.

        Raises:
            EnvironmentMismatchError: it is of another system, size or number of environments.
        """
        found = np.shape(state.get("frames", ()))
        if found != self._stack.shape:
            raise EnvironmentMismatchError(
                f"the state's 'frames' are {found}; this environment needs {self._stack.shape}"
            )
        self.inner.set_state(state)
        self._stack, self._seen = np.array(state["frames"], np.uint8), np.array(state["seen"], np.float32)

    def __repr__(self) -> str:
        return f"PixelVectorEnv({self.inner.system.alias}, num_envs={self.num_envs})"


class PixelEnv(gymnasium.Env[Any, Array]):
    """One environment of a native system observed as images, for `gymnasium.make`; arguments as `PixelVectorEnv`'s.

    Raises:
        RenderModeError: a `render_mode` other than "rgb_array" and None; else what `PixelVectorEnv` raises.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, system: str, *, render_mode: str | None = None, **options: Any) -> None:
        if render_mode not in (None, "rgb_array"):
            raise RenderModeError(f"render_mode is {render_mode!r}; a camera's frames are given as 'rgb_array' alone")
        self.render_mode = render_mode
        self._rows = PixelVectorEnv(system, 1, **options)
        self.observation_space, self.action_space = self._rows.single_observation_space, self._rows.single_action_space
        rate = round(1 / self._rows.inner.system.time_step)
        self.metadata = {**self.metadata, "simulator": self._rows.metadata["simulator"], "render_fps": rate}
        self.max_episode_steps = self._rows.max_episode_steps
        """Steps after which it truncates an episode by itself."""
        self._seeded = False
        self._newest: Array | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the observation and an empty info."""
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(SEEDS))
        self._seeded = True
        return self._seen(self._rows.reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One control step under an action (A,); `info` has `cost`, `margin` and `diverged`."""
        observations, rewards, terminations, truncations, info = self._rows.step(np.asarray(action)[None])
        own = {"cost": float(info["cost"][0]), "margin": float(info["margin"][0])}
        own["diverged"] = bool(info["diverged"][0])
        observation = self._seen(info.get("final_obs", observations))
        return observation, float(rewards[0]), bool(terminations[0]), bool(truncations[0]), own

    def render(self) -> Any:
        """The newest frame, (H, W, 3) uint8: its grey three times.

        Raises:
            ConfigError: it was made without render_mode="rgb_array", or no episode has started.
        """
        if self.render_mode is None:
            raise ConfigError("render() needs render_mode='rgb_array': give it to gymnasium.make")
        if self._newest is None:
            raise ConfigError("render() shows an episode: call reset() first")
        return np.repeat(self._newest[:, :, None], 3, 2)

    def _seen(self, observations: Any) -> Any:
        """The only row of an observation, whose newest frame is kept."""
        row = mapped(lambda values: as_numpy(values[0]), observations)
        image = row["image"] if isinstance(row, Mapping) else row
        self._newest = image if image.ndim == 2 else image[-1]
        return mapped(lambda values: values[0], observations)


def make(num_envs: int = 1, *, system: str, render_mode: str | None = None, **options: Any) -> PixelVectorEnv:
    """`PixelVectorEnv` as `gymnasium.make_vec` calls it."""
    refuse_side_by_side(render_mode)
    return PixelVectorEnv(system, num_envs, **options)


def make_single(*, system: str, **options: Any) -> PixelEnv:
    """`PixelEnv` as `gymnasium.make` calls it."""
    return PixelEnv(system, **options)
