"""A boat that must stay in its channel, as plain python functions, simulated by the thousand.

python examples/python_system.py
"""

import importlib.util
import math
import sys

from surefoot.envs.native_rollout import rollout
from surefoot.envs.python_system import PythonSystem

if importlib.util.find_spec("numba") is None:
    sys.exit("this example needs numba, which compiles its functions: pip install 'surefoot[numba]'")


def derivative(y, heading, rate, rudder, speed, current):
    """Per second, one for each state."""
    return speed * math.sin(heading) + current, rate, 2 * rudder - rate


def reward(y, heading, rudder):
    """Middle of the channel, straight ahead, little rudder."""
    return -(y**2) - 0.1 * heading**2 - 0.01 * rudder**2


def margin(y):
    """Safe if >= 0: metres to the nearer bank."""
    return 5 - abs(y)


def reset(uniforms):
    """From numbers in [0, 1), one for each state."""
    return 8 * uniforms[0] - 4, uniforms[1] - 0.5, 0.0


boat = PythonSystem(
    "boat",
    states=("y", "heading", "rate"),
    actions={"rudder": (-1, 1)},
    parameters={"speed": 2.0, "current": 0.1},
    derivative=derivative,
    reward=reward,
    margin=margin,
    reset=reset,
    time_step=0.1,
    max_steps=100,
)

if __name__ == "__main__":
    found = rollout("random", boat, envs=10_000)
    print(f"return {found.returns.mean():.1f}, out of the channel {(found.costs > 0).float().mean():.1%}")
