"""Point-maze: a ball pushed through the corridors of a medium maze, with exact collision against its walls."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext.system import Behaviour, Goal, Parameter, Step, System

Array = np.ndarray[Any, Any]

MAZE = (
    "########",
    "#  ##  #",
    "#  #   #",
    "##   ###",
    "#  #   #",
    "# #  # #",
    "#   #  #",
    "########",
)
"""Row j, column i: the cell i <= x < i + 1, j <= y < j + 1, m."""
FREE = tuple((i, j) for j in range(8) for i in range(8) if MAZE[j][i] == " ")
"""Free cells (column, row) in reading order: 26."""
WALLS = sum(1 << (8 * j + i) for j in range(8) for i in range(8) if MAZE[j][i] == "#")
"""Bit 8 j + i is set where the cell is a wall."""
WALLS_SIGNED = WALLS - (1 << 64)  # the same 64 bits as a signed integer
HAZARD = (3, 3)  # cell of the shortcut
RADIUS = 0.1  # m, of the ball
GRAZE = 1e-4  # m of overlap that does not count as facing a wall, so that sliding along one never catches
GOAL_REACH = 0.45  # m
MAX_SPEED = 5.0  # m/s in each direction
SUBSTEPS = 2


@functools.cache
def routes(closed: tuple[tuple[int, int], ...] = ()) -> Array:
    """(8, 8, 8, 8, 2) next cell of a shortest way, indexed [goal column, goal row, column, row]; `closed` are avoided.

    Breadth first from each goal; a cell with no way, walls and `closed` too, stays where it is.
    """
    following = (
        np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="ij"), -1)[None, None].repeat(8, 0).repeat(8, 1)
    )
    for goal in FREE:
        queue, known = deque([goal]), {goal, *closed}
        while queue:
            i, j = queue.popleft()
            for cell in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                if cell in FREE and cell not in known:
                    known.add(cell)
                    following[(*goal, *cell)] = (i, j)
                    queue.append(cell)
    for cell in closed:  # whoever is there leaves by the open way
        following[:, :, cell[0], cell[1]] = routes()[:, :, cell[0], cell[1]]
    return following


def random_push(observations: Array, generator: np.random.Generator) -> Array:
    """Force drawn uniformly at every step."""
    return generator.uniform(-1.0, 1.0, (len(observations), 2))


def follow(
    observations: Array,
    generator: np.random.Generator,
    gain: float,
    noise: float,
    goal: tuple[float, float] | None = None,
    closed: tuple[tuple[int, int], ...] = (),
) -> Array:
    """From cell centre to cell centre along a shortest way to the observed goal, or to a `goal` of its own, m.

    PD controller, action = gain (waypoint - position) - 0.5 velocity, plus Gaussian `noise`.
    """
    position, velocity = observations[:, 0:2], observations[:, 2:4]
    target = position + observations[:, 4:6] if goal is None else np.broadcast_to(goal, position.shape)
    cell = np.clip(np.floor(position), 0, 7).astype(int)
    goal_cell = np.clip(np.floor(target), 0, 7).astype(int)
    following = routes(closed)[goal_cell[:, 0], goal_cell[:, 1], cell[:, 0], cell[:, 1]]
    arrived = (following == cell).all(axis=1, keepdims=True)
    waypoint = np.where(arrived, target, following + 0.5)
    action = gain * (waypoint - position) - 0.5 * velocity
    return np.clip(action + noise * generator.standard_normal(action.shape), -1.0, 1.0)


class PointMaze(System):
    """Push a ball through a maze to a goal and stay there.

    m v' = gain u + wind - drag v, solved exactly over each of two substeps of 0.05 s; speeds are clipped at 5 m/s.
    For the walls the ball is a square of half its width, 0.1 m, moved along x and then along y. Where it meets a wall
    it stops exactly there (restitution 0), or is mirrored at it with `restitution` times the speed. Reward: 1 at every
    step within 0.45 m of the goal; nothing ends an episode before its time. The shortcut through the hazard cell
    costs; there is a way around it.
    """

    name = "point_maze"
    gym_id = "surefoot/PointMaze-v0"
    title = "Ball in a medium maze"
    source = (
        "Fu et al., 'D4RL', 2020: layout, goal and sparse reward of maze2d-medium; collisions and constants are ours, "
        "so numbers differ from MuJoCo's PointMaze"
    )
    states = ("x", "y", "vx", "vy")
    observations = ("x", "y", "vx", "vy", "goal_dx", "goal_dy")
    actions = ("push_x", "push_y")
    action_low = (-1.0, -1.0)
    action_high = (1.0, 1.0)
    observation_low = (0.0, 0.0, -MAX_SPEED, -MAX_SPEED, -math.inf, -math.inf)
    observation_high = (8.0, 8.0, MAX_SPEED, MAX_SPEED, math.inf, math.inf)
    parameters = (
        Parameter("mass", 1.0, 0.2, 10.0, "kg"),
        Parameter("gain", 5.0, 0.0, 20.0, "N", "force of an action of 1"),
        Parameter("drag", 1.0, 0.0, 2.0, "N s/m"),
        Parameter("wind_x", 0.0, -5.0, 5.0, "N"),
        Parameter("wind_y", 0.0, -5.0, 5.0, "N"),
        Parameter("restitution", 0.0, 0.0, 1.0, "", "speed kept, reversed, at a wall"),
        Parameter("action_noise", 0.0, 0.0, 2.0, "", "standard deviation added to each action, then clipped"),
        Parameter("goal_x", 6.5, 0.0, 8.0, "m"),
        Parameter("goal_y", 6.5, 0.0, 8.0, "m"),
        Parameter("hazard_x", HAZARD[0] + 0.5, 0.0, 8.0, "m", "centre of the square that costs"),
        Parameter("hazard_y", HAZARD[1] + 0.5, 0.0, 8.0, "m"),
        Parameter("hazard_half", 0.5, 0.0, 4.0, "m", "half of its side"),
    )
    uniforms = 3
    normals = 2
    time_step = 0.1
    max_steps = 200
    margin_of = "signed distance of the ball's centre to the hazard square, m"
    state_units = ("m", "m", "m/s", "m/s")
    action_units = ("", "")
    reward_bounds = (0.0, 1.0)
    goal = Goal({"x": "goal_x", "y": "goal_y"}, GOAL_REACH)
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "mass2": {"mass": 2.0},
        "friction0.3": {"drag": 0.3},
        "wind": {"wind_x": -1.5},
        "noise1": {"action_noise": 1.0},
        "bouncy": {"restitution": 0.8},
    }
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": random_push,
        "to_top": functools.partial(follow, gain=1.0, noise=0.5, goal=(6.5, 1.5)),
        "to_left": functools.partial(follow, gain=1.0, noise=0.5, goal=(1.5, 6.5)),
        "detour": functools.partial(follow, gain=2.0, noise=0.2, closed=(HAZARD,)),
        "medium": functools.partial(follow, gain=0.4, noise=0.8),
        "expert": functools.partial(follow, gain=3.0, noise=0.0),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "mixed": {"random": 0.1, "to_top": 0.25, "to_left": 0.25, "medium": 0.25, "detour": 0.1, "expert": 0.05},
    }

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """At rest in a free cell drawn uniformly, within 0.2 m of its middle."""
        cell = (uniforms[..., 0] * len(FREE)).floor().long()
        corner = torch.tensor(FREE, dtype=uniforms.dtype, device=uniforms.device)[cell]
        position = corner + 0.5 + 0.4 * (uniforms[..., 1:3] - 0.5)
        return torch.cat((position, torch.zeros_like(position)), -1)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """The state, and the way to the goal as the crow flies."""
        return torch.cat((state, parameters[..., 7:9] - state[..., 0:2]), -1)

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """Position and velocity."""
        return observations[..., :4]

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """Two substeps of 0.05 s."""
        p = parameters.unbind(-1)
        x, y, vx, vy = state.unbind(-1)
        push_x = (action[..., 0] + p[6] * normals[..., 0]).clamp(-1.0, 1.0)
        push_y = (action[..., 1] + p[6] * normals[..., 1]).clamp(-1.0, 1.0)
        ax = (p[1] * push_x + p[3]) / p[0]
        ay = (p[1] * push_y + p[4]) / p[0]
        for _ in range(SUBSTEPS):
            dx, vx = free_motion(vx, ax, p[2] / p[0], self.time_step / SUBSTEPS)
            dy, vy = free_motion(vy, ay, p[2] / p[0], self.time_step / SUBSTEPS)
            x, vx = move(x, dx, vx, y, p[5], stride=1, other=8)
            y, vy = move(y, dy, vy, x, p[5], stride=8, other=1)

        distance = ((x - p[7]) ** 2 + (y - p[8]) ** 2).sqrt()
        outside_x, outside_y = (x - p[9]).abs() - p[11], (y - p[10]).abs() - p[11]
        outside = (outside_x.clamp(min=0) ** 2 + outside_y.clamp(min=0) ** 2).sqrt()
        return Step(
            state=torch.stack((x, y, vx, vy), -1),
            reward=(distance <= GOAL_REACH).to(x.dtype),
            margin=outside + torch.maximum(outside_x, outside_y).clamp(max=0),
            terminated=torch.zeros_like(x, dtype=torch.bool),
        )


def free_motion(v: Tensor, a: Tensor, rate: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """Displacement and new speed after `h` seconds of v' = a - rate v: the exact solution.

    With z = rate h: phi2 = (z - 1 + e^-z) / z^2 by its series to z^6 (below 3e-6 of it for z <= 0.5, and smooth at 0),
    phi1 = (1 - e^-z) / z = 1 - z phi2.
    """
    z = rate * h
    phi2 = 1 / 2 - z / 6 * (1 - z / 4 * (1 - z / 5 * (1 - z / 6 * (1 - z / 7 * (1 - z / 8)))))
    phi1 = 1 - z * phi2
    return h * (v * phi1 + a * h * phi2), (v + h * phi1 * (a - rate * v)).clamp(-MAX_SPEED, MAX_SPEED)


def move(
    x: Tensor, dx: Tensor, v: Tensor, y: Tensor, restitution: Tensor, stride: int, other: int
) -> tuple[Tensor, Tensor]:
    """Position and speed along one axis after `dx`, while the other coordinate, y, stands still.

    `stride` and `other`: steps in the bits of WALLS for a step along this axis and along the other. Exact as long as
    |dx| + RADIUS < 1: then only the next cell can be met, which is a wall if it is one beside either end of the ball.
    """
    cell = x.floor()
    forward = dx > 0
    ahead = torch.where(forward, cell + 1, cell - 1)
    wall = wall_at(ahead, y - (RADIUS - GRAZE), stride, other) | wall_at(ahead, y + (RADIUS - GRAZE), stride, other)
    bound = torch.where(forward, cell + (1 - RADIUS), cell + RADIUS)
    beyond = x + dx - bound
    hit = wall & torch.where(forward, beyond > 0, beyond < 0)
    return torch.where(hit, bound - restitution * beyond, x + dx), torch.where(hit, -restitution * v, v)


def wall_at(x: Tensor, y: Tensor, stride: int, other: int) -> Tensor:
    """Whether the point lies in a wall; points off the drawing count as its rim."""
    index = x.clamp(0, 7).long() * stride + y.clamp(0, 7).long() * other
    return (torch.bitwise_right_shift(WALLS_SIGNED, index) & 1) > 0
