"""An MJCF file by its path as an environment: `walker.xml?reward=my_module:reward`."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.envs.make import FUNCTION, LIMIT, import_module, refuse_unknown, steps_of
from surefoot.envs.mujoco.task import Array, MjcfTask, Simulations
from surefoot.envs.mujoco.vector_env import MujocoVectorEnv

FUNCTIONS = {
    "reward": "reward",
    "observation": "observation",
    "termination": "terminated",
    "cost": "cost",
    "margin": "margin",
    "reset": "initial",
}
"""Options that name a function of a module, and what `MjcfTask` calls it."""
TAKES = {
    "reward": ("sim", "actions"),
    "observation": ("sim",),
    "termination": ("sim",),
    "cost": ("sim", "actions"),
    "margin": ("sim",),
    "reset": ("model", "generator"),
}
"""What each is called with."""
PLAIN = ("frame_skip", "reads", "remembers", "cfrc_ext")
"""Further options of `MjcfTask`."""
EXAMPLE = (
    "def reward(sim, actions): return sim.qvel[:, 0] - 0.01 * (actions**2).sum(1)  # (N,), of N simulations "
    "(docs/environments_of_your_own.md)"
)


def make(
    rest: str,
    num_envs: int,
    *,
    gap: str | None = None,
    threads: int = 1,
    **options: Any,
) -> MujocoVectorEnv:
    """`num_envs` simulations of an MJCF file.

    Args:
        rest: path of the file.
        num_envs: at least 1.
        gap: preset of altered dynamics.
        threads: of the physics; no result depends on it.
        options: `reward`, which there must be, and maybe `observation`, `termination`, `cost`, `margin` and `reset`,
            each `module:function` of what `MjcfTask` takes; `frame_skip`, `reads`, `remembers`, `cfrc_ext` as there;
            `max_episode_steps`. Without `observation` it is positions and velocities, (N, nq + nv).

    Raises:
        ConfigError: no such file, no reward, an option that is none, or a function that can't be imported.
    """
    path = pathlib.Path(rest).expanduser()
    if not path.is_file():
        raise ConfigError(f"environment {rest!r}: there is no such file")
    refuse_unknown(path.name, options, [*FUNCTIONS, *PLAIN, LIMIT])
    if "reward" not in options:
        raise ConfigError(
            f"{path.name} needs a reward: write a function of all simulations into a module, such as my_module.py, and "
            f"give env_options.reward=my_module:reward. {EXAMPLE}"
        )
    given: dict[str, Any] = {"observation": everything}
    given |= {FUNCTIONS[key]: _function(key, options[key]) for key in FUNCTIONS if key in options}
    given |= {key: _plain(path.name, key, options[key]) for key in PLAIN if key in options}
    if LIMIT in options:
        given["episode"] = steps_of(options[LIMIT], path.name)
    env = MujocoVectorEnv(MjcfTask(xml_file=path, **given), num_envs, gap=gap, threads=threads)
    env.called = path.name
    return env


def everything(sim: Simulations) -> Array:
    """(N, nq + nv): positions and velocities."""
    return np.concatenate([sim.qpos, sim.qvel], axis=1)


def _function(option: str, name: Any) -> Callable[..., Any]:
    """What an option names."""
    if not isinstance(name, str) or not FUNCTION.fullmatch(name):
        raise ConfigError(
            f"env_options.{option}={name!r} names no function; give module:function, as in my_module:{option}"
        )
    module, _, attribute = name.rpartition(":")
    found: Any = import_module(name, module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(f"env_options.{option}={name}: the module {module} has no function {attribute}")
    wanted = TAKES[option]
    try:
        inspect.signature(found).bind(*wanted)
    except TypeError as error:
        raise ConfigError(
            f"env_options.{option}={name}: takes other arguments than ({', '.join(wanted)}), which it is called with"
        ) from error
    return found  # type: ignore[no-any-return]


def _plain(name: str, option: str, value: Any) -> Any:
    """An option that is no function, of the type that `MjcfTask` takes."""
    if option == "frame_skip":
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}: frame_skip is {value!r}; it must be a whole number from 1 on")
        return value
    if option == "cfrc_ext":
        if not isinstance(value, bool):
            raise ConfigError(f"{name}: cfrc_ext is {value!r}; it must be true or false")
        return value
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(one, str) for one in names):
        raise ConfigError(
            f"{name}: {option} is {value!r}; it must be a list of fields of MjData, as in [xpos,sensordata]"
        )
    return tuple(names)
