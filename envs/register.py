"""The ids that surefoot gives gymnasium, `surefoot/<Name>`, for `gymnasium.make` and `gymnasium.make_vec`.

`import surefoot` registers them (surefoot/registration.py), and an id written "surefoot:surefoot/<Name>" makes
gymnasium import us, as its documentation has it. The classes are named by strings, so that registering imports neither
mujoco nor torch nor a native module.
"""

from __future__ import annotations

import gymnasium

from surefoot.envs.mujoco.tasks import TASKS, VELOCITY_LIMITS
from surefoot.envs.names import GANTRY, PIXELS, STATE, gantry_ids, native_ids


def register() -> None:
    """Register all ids that aren't registered yet; calling it again changes nothing."""
    _register_native()
    _register_pixels()
    _register_mujoco()
    _register_gantry()


def _register_pixels() -> None:
    """`surefoot/PendulumPixels-v0`, ...: native systems seen by a camera; `...Camera`: one frame and velocities."""
    for gym_id, system, velocities in PIXELS.values():
        kwargs = {"system": system, "velocities": velocities, "frames": 1 if velocities else 3}
        _add(gym_id, kwargs, None, "surefoot.envs.pixels:make_single", "surefoot.envs.pixels:make")


def _register_native() -> None:
    """`surefoot/Pendulum-v0`, ...: each file of `envs/systems`. They truncate their episodes by themselves."""
    for gym_id in native_ids().values():
        _add(gym_id, {"system": gym_id}, None, "surefoot.envs.native_single:make_single", "surefoot.envs.native:make")


def _register_mujoco() -> None:
    """`surefoot/Hopper-v5`, ... and, with a cost above a speed limit, `surefoot/HopperVelocity-v5`, ..."""
    classes = "surefoot.envs.mujoco.single:make_single", "surefoot.envs.mujoco.factory:make"
    for name, task in TASKS.items():
        _add(f"surefoot/{name}-v5", {"task": name}, task.max_episode_steps, *classes)
    for name, limit in VELOCITY_LIMITS.items():
        kwargs = {"task": name, "velocity_limit": limit}
        _add(f"surefoot/{name}Velocity-v5", kwargs, TASKS[name].max_episode_steps, *classes)


def _register_gantry() -> None:
    """`surefoot/GantryPick-v0`, ... and `surefoot/GantryPickState-v0`, ...: without pictures."""
    classes = "surefoot.envs.gantry.single:make_single", "surefoot.envs.gantry.vector_env:make"
    ids = gantry_ids()
    for name, (_, variant, steps) in GANTRY.items():
        _add(ids[name], {"variant": variant, "pictures": True}, steps, *classes)
        _add(ids[name + STATE], {"variant": variant, "pictures": False}, steps, *classes)


def _add(env_id: str, kwargs: dict[str, object], max_episode_steps: int | None, single: str, vector: str) -> None:
    if env_id in gymnasium.registry:
        return
    gymnasium.register(
        env_id,
        entry_point=single,
        vector_entry_point=vector,
        max_episode_steps=max_episode_steps,
        disable_env_checker=True,
        kwargs=kwargs,
    )
