"""Where episodes end, by the full id of the environment: what a learned model of observations can't know.

Each function takes (..., O) next observations in the environment's units and gives (...) bool; a number that is not
finite ends an episode wherever the environment checks its state. Ids are compared whole, with their version: `Ant-v4`
is not any name that has "ant" in it.

Sources: gymnasium's classes of these versions (envs/mujoco and envs/classic_control), and of v2 openai/gym's.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.names import is_native, short_name
from surefoot.world_models.dynamics import Terminates

AUTO, NONE = "auto", "none"
"""Words for the function of the environment's id, and for none."""


def never(following: Tensor) -> Tensor:
    """Nothing ends."""
    return torch.zeros_like(following[..., 0], dtype=torch.bool)


def hopper(following: Tensor) -> Tensor:
    """Height 0.7 or less, an angle of 0.2 or more, or any other number of 100 or more, on either side."""
    height, angle, others = following[..., 0], following[..., 1], following[..., 1:]
    return ~((others.abs() < 100).all(-1) & (height > 0.7) & height.isfinite() & (angle.abs() < 0.2))


def walker2d(following: Tensor) -> Tensor:
    """Height not in (0.8, 2), or an angle not in (-1, 1)."""
    height, angle = following[..., 0], following[..., 1]
    return ~((height > 0.8) & (height < 2.0) & (angle.abs() < 1.0))


def ant(following: Tensor) -> Tensor:
    """Height not in [0.2, 1], or a number that is not finite."""
    height = following[..., 0]
    return ~(following.isfinite().all(-1) & (height >= 0.2) & (height <= 1.0))


def humanoid(following: Tensor) -> Tensor:
    """Height not in (1, 2), from version 3 on."""
    return ~((following[..., 0] > 1.0) & (following[..., 0] < 2.0))


def humanoid_v2(following: Tensor) -> Tensor:
    """Height below 1 or above 2."""
    return (following[..., 0] < 1.0) | (following[..., 0] > 2.0)


def inverted_pendulum(following: Tensor) -> Tensor:
    """An angle beyond 0.2, or a number that is not finite."""
    return ~(following.isfinite().all(-1) & (following[..., 1].abs() <= 0.2))


def inverted_double_pendulum(following: Tensor) -> Tensor:
    """Tip of the two poles of 0.6 m at a height of 1 m or less, from sines and cosines of both angles."""
    sine_1, sine_2, cosine_1, cosine_2 = following[..., 1:5].unbind(-1)
    return 0.6 * (cosine_1 + cosine_1 * cosine_2 - sine_1 * sine_2) <= 1.0


def cartpole(following: Tensor) -> Tensor:
    """Cart more than 2.4 m off, or the pole more than 12 degrees."""
    return (following[..., 0].abs() > 2.4) | (following[..., 2].abs() > math.radians(12))


def mountain_car_continuous(following: Tensor) -> Tensor:
    """On the hill, 0.45, and not rolling back."""
    return (following[..., 0] >= 0.45) & (following[..., 1] >= 0)


def _versions(name: str, function: Terminates, first: int, last: int) -> dict[str, Terminates]:
    return {f"{name}-v{version}": function for version in range(first, last + 1)}


KNOWN: dict[str, Terminates] = {
    **_versions("Hopper", hopper, 2, 5),
    **_versions("Walker2d", walker2d, 2, 5),
    **_versions("HalfCheetah", never, 2, 5),
    **_versions("Ant", ant, 2, 5),
    **_versions("Humanoid", humanoid, 3, 5),
    "Humanoid-v2": humanoid_v2,
    **_versions("HumanoidStandup", never, 2, 5),
    **_versions("Swimmer", never, 2, 5),
    **_versions("Reacher", never, 2, 5),
    **_versions("Pusher", never, 2, 5),
    **_versions("InvertedPendulum", inverted_pendulum, 2, 5),
    **_versions("InvertedDoublePendulum", inverted_double_pendulum, 2, 5),
    **_versions("CartPole", cartpole, 0, 1),
    "Pendulum-v1": never,
    "MountainCarContinuous-v0": mountain_car_continuous,
}
"""Gymnasium id -> function, of the observations that the environment gives by default."""


def _native(env_id: str) -> Terminates | None:
    """Of a native system with its usual parameters, as the system's own file has it."""
    from surefoot.envs.systems import bicycle, dubins_obstacles, quadrotor_2d, quadrotor_3d, system

    def acrobot_ends(following: Tensor) -> Tensor:
        cosine_1, sine_1, cosine_2, sine_2 = following[..., :4].unbind(-1)
        tip = -p["length_1"] * cosine_1 - p["length_2"] * (cosine_1 * cosine_2 - sine_1 * sine_2)
        return tip > p["goal_height"]

    def bicycle_ends(following: Tensor) -> Tensor:
        cars = following[..., 4:].unflatten(-1, (3, 2))
        gap = bicycle.distance_to_car(cars[..., 0], cars[..., 1]).amin(-1)
        return (gap < 0) | (1.5 * bicycle.LANE - 0.5 * bicycle.WIDTH - following[..., 0].abs() < -1)

    def dubins_ends(following: Tensor) -> Tensor:
        return following[..., :2].norm(dim=-1) < dubins_obstacles.GOAL_RADIUS

    def swingup_ends(following: Tensor) -> Tensor:
        return following[..., 0].abs() > 2.4

    def quadrotor_3d_ends(following: Tensor) -> Tensor:
        z = following[..., 2] + quadrotor_3d.GOAL_HEIGHT
        room = 2.5 - torch.maximum(following[..., :2].abs().amax(-1), z)
        return (z < 0) | (room < -0.5)

    def quadrotor_2d_ends(following: Tensor) -> Tensor:
        x, z, tilt = following[..., 0] + p["target_x"], following[..., 2] + p["target_z"], following[..., 4]
        out = (z < 0) | (z > quadrotor_2d.CRASH_CEILING) | (x.abs() > quadrotor_2d.CRASH_X)
        return out | (tilt.abs() > quadrotor_2d.CRASH_TILT)

    known = system(env_id)
    p = {parameter.name: parameter.default for parameter in known.parameters}
    found: dict[str, Terminates] = {
        "acrobot": acrobot_ends,
        "bicycle": bicycle_ends,
        "cartpole_balance": cartpole,
        "dubins_obstacles": dubins_ends,
        "cartpole_swingup": swingup_ends,
        "quadrotor_2d": quadrotor_2d_ends,
        "quadrotor_3d": quadrotor_3d_ends,
    }
    endless = ("double_integrator", "linear_quadratic", "pendulum", "point_maze", "reacher")
    return found.get(known.name, never if known.name in endless else None)


def termination_of(env_id: str | None) -> Terminates | None:
    """The function of an environment, by its full id; None where it is not known."""
    if env_id is None:
        return None
    return _native(short_name(env_id)) if is_native(env_id) else KNOWN.get(env_id)


def named(word: str, env_id: str | None) -> Terminates | None:
    """What the option `termination` means: "auto", by the environment's id; "none"; or `module:function`.

    Who builds an agent from a file asks the user first whether the module may be imported.

    Raises:
        ConfigError: the function can't be imported.
    """
    if word == AUTO:
        return termination_of(env_id)
    if word == NONE:
        return None
    function = imported("termination", word, (AUTO, NONE))
    return checked(function, "termination", word, "bool", lambda found: found.dtype == torch.bool)


def behind(function: Terminates | None, units: Callable[[Tensor], Tensor]) -> Terminates | None:
    """The same of states in other units, which `units` takes to the environment's."""
    return None if function is None else lambda following: function(units(following))


def imported(option: str, word: str, others: Sequence[str]) -> Callable[..., Tensor]:
    """The function `module:function` that an option names, which has `others` for values too.

    Raises:
        ConfigError: it can't be imported, or is no function.
    """
    module, _, attribute = word.rpartition(":")
    try:
        found = getattr(importlib.import_module(module), attribute) if module else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{option}={word}: can't be imported ({error})") from error
    if not callable(found):
        raise ConfigError(f"{option}={word!r} is none of {', '.join(others)} and module:function")
    return found


def checked(
    function: Callable[..., Tensor], option: str, word: str, kind: str, fits: Callable[[Tensor], bool]
) -> Callable[..., Tensor]:
    """A user's function, the last of whose arguments are next observations, whose results are looked at."""

    @functools.wraps(function)
    def looked_at(*given: Tensor) -> Tensor:
        found, following = function(*given), given[-1]
        if not isinstance(found, Tensor) or not fits(found) or found.shape != following.shape[:-1]:
            what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise EnvironmentMismatchError(
                f"{option}={word} gave {what} for next observations of shape {tuple(following.shape)}; it is to give a "
                f"{kind} tensor of shape {tuple(following.shape[:-1])}"
            )
        return found

    return looked_at


def end_notes(env_id: str | None, learned: bool) -> list[str]:
    """What a user should hear of a model that learns no ends: that episodes of the environment have some."""
    ends = termination_of(env_id)
    if learned or ends is None or ends is never:
        return []
    return [f"episodes of {env_id} can end, and the model learns no ends: algo.terminates=true is for them"]


def notes(word: str, env_id: str | None) -> list[str]:
    """What a user should hear: that nothing ends in the model because the environment is not known."""
    if word != AUTO or termination_of(env_id) is not None:
        return []
    place = "the environment is not known" if env_id is None else f"how episodes of {env_id} end is not known"
    return [f"{place}: nothing terminates in the model; say how with algo.termination=module:function"]
