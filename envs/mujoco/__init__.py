"""Batched MuJoCo: gymnasium's v5 tasks, their velocity-limited variants and any MJCF, many simulations a call.

Nothing here imports the package `mujoco` before an environment is made.
"""

from surefoot.envs.mujoco.factory import make
from surefoot.envs.mujoco.gaps import GAPS
from surefoot.envs.mujoco.task import MjcfTask, Simulations, Task
from surefoot.envs.mujoco.tasks import TASKS, VELOCITY_LIMITS, make_task
from surefoot.envs.mujoco.vector_env import MujocoVectorEnv

__all__ = [
    "GAPS",
    "TASKS",
    "VELOCITY_LIMITS",
    "MjcfTask",
    "MujocoVectorEnv",
    "Simulations",
    "Task",
    "make",
    "make_task",
]
