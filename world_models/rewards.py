"""What a step earns, by the full id of the environment, for models that need not learn it.

Each function takes (..., O) observations, (..., A) actions in [-1, 1] and (..., O) next observations, both in the
environment's units, and gives (...) rewards. A learned reward is extrapolated where a plan leaves the data, and a
search finds where it is too high; PETS (Chua et al., 2018) plans with the task's own.

Sources: the systems' own files (envs/systems), and gymnasium's envs/classic_control/pendulum.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from surefoot.core.actions import to_agent, to_environment
from surefoot.core.placed import Placed
from surefoot.envs.names import is_native, short_name
from surefoot.world_models.dynamics import RewardsOf
from surefoot.world_models.terminations import AUTO, checked, imported

LEARNED = "learned"
"""Word for a reward that the model predicts, as it does next states."""
OPTION = "reward_function"


def pendulum(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
    """Of `Pendulum-v1`: squares of the angle from upright, of the speed and of the torque, of at most 2."""
    cosine, sine, velocity = now.unbind(-1)
    return -(torch.atan2(sine, cosine) ** 2 + 0.1 * velocity**2 + 0.001 * (2 * actions[..., 0]) ** 2)


def ones(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
    """Of `CartPole`: 1 a step, the last too."""
    return torch.ones_like(following[..., 0])


KNOWN: dict[str, RewardsOf] = {"Pendulum-v1": pendulum, "CartPole-v0": ones, "CartPole-v1": ones}
"""Gymnasium id -> function, of the observations that the environment gives by default."""


def _native(env_id: str) -> RewardsOf | None:
    """Of a native system with its usual parameters; None where observations don't tell it."""
    from surefoot.envs.systems import cartpole_swingup, dubins_obstacles, point_maze, system

    known = system(env_id)
    defaults, p = known.default_parameters(), {parameter.name: parameter.default for parameter in known.parameters}
    table_of, (low, high) = Placed(defaults), _placed((known.action_low, known.action_high))

    def forces(actions: Tensor) -> Tensor:
        return to_environment(actions.clamp(-1, 1), low(actions), high(actions))

    def of_the_present(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        lead = following.shape[:-1]
        rows, given = (x.expand(*lead, x.shape[-1]).reshape(-1, x.shape[-1]) for x in (now, forces(actions)))
        table = table_of(rows).expand(len(rows), -1)
        calm = rows.new_zeros(len(rows), max(1, known.normals))
        return known.step(known.state_of(rows, table), given, table, calm).reward.view(lead)

    def acrobot(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        cosine_1, sine_1, cosine_2, sine_2 = following[..., :4].unbind(-1)
        tip = -p["length_1"] * cosine_1 - p["length_2"] * (cosine_1 * cosine_2 - sine_1 * sine_2)
        return torch.where(tip > p["goal_height"], 0.0, -1.0).to(following)

    def swingup(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        away, rate = following[..., 0].abs(), following[..., 4]
        force = forces(actions)[..., 0] / cartpole_swingup.MAX_FORCE
        gentle = (4 + (1 - force**2).clamp(min=0)) / 5
        upright, centred = (1 + following[..., 2]) / 2, (1 + 0.1 ** ((away / 2) ** 2)) / 2
        return upright * centred * gentle * (1 + 0.1 ** ((rate / 5) ** 2)) / 2

    def dubins(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        before, after = now[..., :2].norm(dim=-1), following[..., :2].norm(dim=-1)
        return before - after + dubins_obstacles.ARRIVAL_BONUS * (after < dubins_obstacles.GOAL_RADIUS).to(before)

    def maze(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        return (following[..., 4:6].norm(dim=-1) <= point_maze.GOAL_REACH).to(following)

    def planar(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        x, z, rate = following[..., 0], following[..., 2], following[..., 5]
        return 1 / (1 + 4 * (x * x + z * z) + 0.01 * rate * rate)

    def quadrotor(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        distance, rate = following[..., :3].norm(dim=-1), following[..., 15:18].norm(dim=-1)
        return (torch.exp(-distance) - 0.002 * rate).clamp_min(0)

    def reacher(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        return -10 * following[..., 8:10].norm(dim=-1) - 0.05 * forces(actions).square().sum(-1)

    found: dict[str, RewardsOf] = {
        "acrobot": acrobot,
        "cartpole_balance": ones,
        "cartpole_swingup": swingup,
        "double_integrator": of_the_present,
        "dubins_obstacles": dubins,
        "linear_quadratic": of_the_present,
        "pendulum": of_the_present,
        "point_maze": maze,
        "quadrotor_2d": planar,
        "quadrotor_3d": quadrotor,
        "reacher": reacher,
    }
    return found.get(known.name)


def reward_of(env_id: str | None) -> RewardsOf | None:
    """The function of an environment, by its full id; None where it is not known."""
    if env_id is None:
        return None
    return _native(short_name(env_id)) if is_native(env_id) else KNOWN.get(env_id)


Bounds = tuple[Sequence[float], Sequence[float]]
"""(A,) lowest and highest action, in the environment's units."""


def _placed(bounds: Sequence[Sequence[float]]) -> list[Placed]:
    """Bounds of actions, on whatever device actions are."""
    return [Placed(torch.tensor(tuple(bound))) for bound in bounds]


def in_range(function: RewardsOf | None, env_id: str | None, bounds: Bounds) -> RewardsOf | None:
    """The function of an environment for actions whose -1 and 1 stand for other bounds than the environment's."""
    if function is None or env_id is None or KNOWN.get(env_id) is ones:
        return function
    own: Bounds = ((-2.0,), (2.0,))  # of Pendulum-v1, the one of gymnasium's whose reward reads actions
    if is_native(env_id):
        from surefoot.envs.systems import system

        known = system(short_name(env_id))
        own = (known.action_low, known.action_high)
    if all(tuple(one) == tuple(other) for one, other in zip(own, bounds, strict=True)):
        return function

    places = _placed((*bounds, *own))

    def rescaled(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        low, high, least, most = (place(actions) for place in places)
        return function(now, to_agent(to_environment(actions, low, high), least, most).clamp(-1, 1), following)

    return rescaled


def named(word: str, env_id: str | None, bounds: Bounds | None = None) -> RewardsOf | None:
    """What the option `reward_function` means: "learned"; "auto", by the environment's id; or `module:function`.

    None: it is learned. Who builds an agent from a file asks the user first whether the module may be imported.

    Args:
        word: the option.
        env_id: the environment's full id.
        bounds: what -1 and 1 of an action stand for, which "auto" takes into account; None: the environment's bounds.

    Raises:
        ConfigError: the function can't be imported.
    """
    if word == LEARNED:
        return None
    if word == AUTO:
        return reward_of(env_id) if bounds is None else in_range(reward_of(env_id), env_id, bounds)
    function = imported(OPTION, word, (LEARNED, AUTO))
    return checked(function, OPTION, word, "floating-point", Tensor.is_floating_point)


def behind(function: RewardsOf | None, units: Callable[[Tensor], Tensor]) -> RewardsOf | None:
    """The same of states in other units, which `units` takes to the environment's."""
    return None if function is None else lambda now, actions, after: function(units(now), actions, units(after))


def notes(word: str, env_id: str | None) -> list[str]:
    """What a user should hear: that rewards are learned because the environment's are not known."""
    if word != AUTO or reward_of(env_id) is not None:
        return []
    place = "the environment is not known" if env_id is None else f"the reward of {env_id} is not known"
    return [f"{place}: it is learned, and plans may be misled by it; give it with algo.{OPTION}=module:function"]
