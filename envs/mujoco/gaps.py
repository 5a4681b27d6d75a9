"""Dynamics gaps between a simulator and "reality", as presets: "gravity2", "friction0.3", "noise1", "wind".

After H2O (Niu et al., "When to Trust Your Simulator", 2022), which alters gravity, friction and joint noise;
wind is ours. A preset is a name and a number, so "gravity0.5" works as well, and "gravity2+noise0.1" is both.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest

Array = np.ndarray[Any, Any]

GAPS = {
    "gravity2": "gravity twice as strong",
    "friction0.3": "all contact friction coefficients times 0.3",
    "noise1": "Gaussian noise of standard deviation 1 on every action, clipped to the action bounds",
    "wind": "headwind along -x: 10 m/s in air, 0.1 m/s in a model with a medium of its own (Swimmer)",
}
"""Preset -> what it does."""

AIR_DENSITY, AIR_VISCOSITY = 1.2, 1.8e-5  # kg/m^3 and Pa s, at 20 degrees Celsius and sea level


@dataclasses.dataclass(frozen=True)
class Gap:
    """The changes of one preset, relative to the model."""

    gravity: float = 1.0
    friction: float = 1.0
    noise: float = 0.0
    """Standard deviation, in units of the action."""
    wind: float = 0.0
    """Headwind in m/s in air."""

    def changes(self, model: Any) -> dict[str, Array]:
        """Model field -> its new value for one simulation, where it differs.

        Raises:
            ConfigError: the model has nothing that the gap could change.
        """
        for what, wanted, there in (
            ("gravity", self.gravity != 1.0, gravity_pulls),
            ("contact friction", self.friction != 1.0, geoms_touch),
        ):
            if wanted and not there(model):
                raise ConfigError(
                    f"gap: the model has no {what} that acts, so this would change nothing; choose another of "
                    f"{', '.join(GAPS)}"
                )
        changed: dict[str, Array] = {}
        if self.gravity != 1.0:
            changed["opt.gravity"] = model.opt.gravity * self.gravity
        if self.friction != 1.0:
            changed["geom_friction"] = model.geom_friction * self.friction
        if self.wind != 0.0:
            medium = model.opt.density > 0
            speed = self.wind * 0.01 if medium else self.wind
            changed["opt.wind"] = np.array([-speed, 0.0, 0.0])
            if not medium:
                changed["opt.density"] = np.array(AIR_DENSITY)
                changed["opt.viscosity"] = np.array(AIR_VISCOSITY)
        return changed


def geoms_touch(model: Any) -> bool:
    """Whether the masks let any two geoms of different bodies collide."""
    may = (model.geom_contype[:, None] & model.geom_conaffinity[None, :]) != 0
    return bool(((may | may.T) & (model.geom_bodyid[:, None] != model.geom_bodyid[None, :])).any())


def gravity_pulls(model: Any) -> bool:
    """Whether gravity exerts a force on any joint in any of some postures at rest."""
    import mujoco

    data = mujoco.MjData(model)
    source = np.random.default_rng(0)
    for _ in range(4):
        mujoco.mj_resetData(model, data)
        mujoco.mj_integratePos(model, data.qpos, source.normal(size=model.nv), 1.0)
        mujoco.mj_forward(model, data)
        if np.abs(data.qfrc_bias).max(initial=0.0) > 1e-9:  # at rest there are no velocity's forces
            return True
    return False


def parse(name: str | None) -> Gap:
    """The gap of a preset's name; None is none.

    Raises:
        ConfigError: unknown name, or a number out of range.
    """
    gap = Gap()
    for part in (name or "").split("+") if name else []:
        found = re.fullmatch(r"(gravity|friction|noise|wind)(\d+(?:\.\d+)?)?", part.strip())
        if found is None or (found[2] is None and found[1] != "wind"):
            raise ConfigError(f"unknown gap {part!r}; {nearest(part, list(GAPS))}, each with any number")
        gap = dataclasses.replace(gap, **{found[1]: float(found[2]) if found[2] else 10.0})
    return gap


def parse_all(names: str | list[str | None] | tuple[str | None, ...] | None, num_envs: int) -> list[Gap]:
    """One gap per simulation: from one name for all, or a list of `num_envs` names."""
    if names is None or isinstance(names, str):
        return [parse(names)] * num_envs
    if len(names) != num_envs:
        raise ConfigError(f"gap= lists {len(names)} names for {num_envs} environments; give one name, or one for each")
    return [parse(name) for name in names]


def noise_generator(seed: int | None) -> np.random.Generator:
    """The generator of action noise: a stream beside that of the resets, so that a gap keeps the initial states."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1,))))


def noisy(action: Array, std: float, generator: np.random.Generator, low: Array, high: Array) -> Array:
    """(A,) action plus Gaussian noise, clipped to the bounds, in the action's own dtype."""
    noise = np.asarray(generator.normal(0.0, std, action.shape), action.dtype)
    return np.clip(action + noise, low, high)
