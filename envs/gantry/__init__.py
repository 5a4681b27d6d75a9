"""`gantry-pick`: a task of manipulation that is seen by two cameras, with a scripted expert and a scripted person.

Nothing here imports the package `mujoco` before an environment is made.
"""

from surefoot.envs.gantry.expert import Expert
from surefoot.envs.gantry.person import Person
from surefoot.envs.gantry.task import VARIANTS, Gantry
from surefoot.envs.gantry.vector_env import GantryVectorEnv, make

__all__ = ["VARIANTS", "Expert", "Gantry", "GantryVectorEnv", "Person", "make"]
