"""A robot that learns as it goes, at 500 Hz, from nothing: python examples/stream_on_robot.py

The robot is gymnasium's pendulum; put your own behind `Robot`. Each tick reads the sensors, sends the action, and only
then learns, so that the command leaves some tens of microseconds after the reading. Learning can be stopped at any
time and continue later: --save robot.safetensors, then --resume robot.safetensors.

python examples/stream_on_robot.py --steps 2000 --rate 0    # as fast as it can, for a quick look
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import numpy as np

from surefoot.core.engine.agent import Spec
from surefoot.streaming import StreamAC


class Robot:
    """What a loop needs: `start` and `exchange`, which sends an action and waits for the next sensor readings."""

    problem = Spec(observations=3, action_dim=1, action_low=(-2.0,), action_high=(2.0,))

    def __init__(self, seed: int) -> None:
        self.env = gymnasium.make("Pendulum-v1")
        self.seed: int | None = seed

    def start(self) -> np.ndarray:
        """Move the robot to the start of an episode, and read its sensors."""
        observation, _ = self.env.reset(seed=self.seed)
        self.seed = None  # reset continues from the generator after that
        return observation

    def exchange(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Observation, reward, whether the task ended, whether the episode was stopped."""
        observation, reward, terminated, truncated, _ = self.env.step(action.astype(np.float32))
        return observation, float(reward), terminated, truncated


def wait_until(deadline: float) -> None:
    """Sleep, and spin for the last fifth of a millisecond, which sleep is too coarse for."""
    while (left := deadline - time.perf_counter()) > 0:
        if left > 2e-4:
            time.sleep(left - 2e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=500.0, help="ticks a second; 0 does not wait")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="file to keep the agent in at the end")
    parser.add_argument("--resume", help="file to continue from")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps is {arguments.steps}; at least 1 is needed")
    if not 0 <= arguments.rate < float("inf"):
        parser.error(f"--rate is {arguments.rate}; ticks a second are needed, or 0")

    robot = Robot(arguments.seed)
    budget_us = 1e6 / arguments.rate if arguments.rate else 2000.0
    if arguments.resume:
        agent = StreamAC.open(arguments.resume, budget_us=budget_us)
    else:
        agent = StreamAC(robot.problem, seeds=[arguments.seed], budget_us=budget_us)

    returns, total = [], 0.0
    action = agent.begin(robot.start())
    deadline = time.perf_counter()
    for _ in range(arguments.steps):
        if arguments.rate:
            deadline += 1 / arguments.rate
            wait_until(deadline)
        observation, reward, terminated, truncated = robot.exchange(action)
        action = agent.act(observation, reward, terminated, truncated)  # on a robot: send it now
        agent.learn()  # and learn in what is left of the tick
        total += reward
        if terminated or truncated:
            returns.append(total)
            total, action = 0.0, agent.begin(robot.start())
            deadline = time.perf_counter()  # bringing the robot back took its time

    last = returns[-10:]
    learned = (
        f"mean return of the last {len(last)} episodes {np.mean(last):.0f}" if last else "no episode has ended yet"
    )
    print(f"{arguments.steps} steps; {learned}")
    print(f"\nfrom observation to action:\n{agent.latency['act']}")
    print(f"\nlearning:\n{agent.latency['learn']}")
    report = agent.report()
    print(
        f"\n{report['overruns']} ticks took more than {budget_us:.0f} us; {report['skipped'][0]} samples were skipped"
    )
    if arguments.save:
        agent.save(arguments.save)


if __name__ == "__main__":
    main()
