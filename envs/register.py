"""The ids that surefoot gives gymnasium, `surefoot/<Name>`, for `gymnasium.make` and `gymnasium.make_vec`.

`import surefoot.envs` registers them; so does gymnasium itself for an id written "surefoot.envs:surefoot/<Name>".
(gymnasium dropped the plug-in entry points of gym in its 1.0: it imports no package by itself.) Entry points are
strings, so that registering imports neither mujoco nor a native module.
"""

from __future__ import annotations

import gymnasium

from surefoot.envs.mujoco.tasks import TASKS, VELOCITY_LIMITS


def register() -> None:
    """Register all ids that aren't registered yet; calling it again changes nothing."""
    _register_mujoco()


def _register_mujoco() -> None:
    """`surefoot/Hopper-v5`, ... and, with a cost above a speed limit, `surefoot/HopperVelocity-v5`, ..."""
    for name, task in TASKS.items():
        _add(f"surefoot/{name}-v5", {"task": name}, task.max_episode_steps)
    for name, limit in VELOCITY_LIMITS.items():
        kwargs = {"task": name, "velocity_limit": limit}
        _add(f"surefoot/{name}Velocity-v5", kwargs, TASKS[name].max_episode_steps)


def _add(env_id: str, kwargs: dict[str, object], max_episode_steps: int | None) -> None:
    if env_id in gymnasium.registry:
        return
    gymnasium.register(
        env_id,
        entry_point="surefoot.envs.mujoco.single:make_single",
        vector_entry_point="surefoot.envs.mujoco.factory:make",
        max_episode_steps=max_episode_steps,
        disable_env_checker=True,
        kwargs=kwargs,
    )
