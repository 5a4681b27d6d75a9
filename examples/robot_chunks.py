"""A robot at 50 Hz with a policy that plans chunks of actions in a thread: python examples/robot_chunks.py POLICY

POLICY is the .safetensors of a policy of chunks for the robot, or a run's folder. The robot here is gymnasium's
pendulum; put your own behind `Robot`. The loop reads the sensors, sends the action, and waits for the next tick, never
for inference. A tick that came too late is not made up for: the next one is a whole tick after it, since a bound on the
change from tick to tick is none in time where ticks follow each other at once. After a long stall it plans anew.

python examples/robot_chunks.py POLICY --rate 0 --ticks 400    # as fast as it can, for a quick look
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import numpy as np

import surefoot
from surefoot.core.execution.executor import Execution, Executor
from surefoot.core.execution.inference import PolicyPlanner

MISSED = 3
"""Ticks that may be missed in a row before what is planned for those after them is thrown away."""


class Robot:
    """What a loop needs: `start`, `read` and `send`, of which only `start` may take long."""

    def __init__(self, seed: int) -> None:
        self.env = gymnasium.make("Pendulum-v1")
        self.seed: int | None = seed

    def start(self) -> None:
        """Move the robot to the start of an episode."""
        self.observation, _ = self.env.reset(seed=self.seed)
        self.over, self.seed = False, None

    def read(self) -> np.ndarray:
        """The sensors, now."""
        return self.observation

    def send(self, action: np.ndarray) -> None:
        """The action of this tick."""
        self.observation, _, terminated, truncated, _ = self.env.step(action)
        self.over = terminated or truncated


def wait_until(deadline: float) -> None:
    """Sleep, and spin for the last fifth of a millisecond, which sleep is too coarse for."""
    while (left := deadline - time.perf_counter()) > 0:
        if left > 2e-4:
            time.sleep(left - 2e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="run folder, or a policy's .safetensors")
    parser.add_argument("--ticks", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=50.0, help="ticks a second; 0 does not wait")
    parser.add_argument("--deadline", type=float, default=0.04, help="seconds: what 99 %% of inferences stay below")
    arguments = parser.parse_args()

    planner = PolicyPlanner(surefoot.load_policy(arguments.policy))
    rate = arguments.rate or 50.0
    settings = Execution(
        rate=rate,
        mode="blend",  # fade into each new chunk
        deadline=arguments.deadline,
        late="continue",  # with the older chunk where one is late, and where that ends ...
        safe_action=(0.0,) * len(planner.low),  # ... decelerate to this: no torque
        stop_time=0.2,
        max_rate=60.0,  # no jump above 60 Nm/s, whatever is planned
    )
    robot, overruns, held_in_a_row = Robot(0), 0, 0
    with Executor(planner, settings) as executor:  # inference runs in a thread, which ends here
        robot.start()
        executor.reset()
        due = time.perf_counter()
        for _ in range(arguments.ticks):
            observation, began = robot.read(), time.perf_counter()
            action = executor.select_action(observation)  # an error of the inference is raised here
            planning = time.perf_counter() - began  # an episode's first chunk is waited for
            robot.send(action)
            held_in_a_row = 0 if executor.source is not None else held_in_a_row + 1
            if held_in_a_row == round(5 * rate):
                raise SystemExit("nothing has been planned for 5 seconds: the robot stands at the safe action")
            if robot.over:
                robot.start()
                executor.reset(None)  # the next episode; the policy's noise continues
                due = time.perf_counter()  # bringing the robot back took its time
            elif arguments.rate:
                due += 1 / rate
                if (late := time.perf_counter() - due) > 0:
                    overruns += 1
                    due += late + 1 / rate
                    if late - planning > MISSED / rate:
                        executor.reset(None, last=action)  # the bound holds from the action that is in force
                wait_until(due)
        counts, latency = executor.counts, 1000 * np.asarray(executor.latencies)
    print(f"{counts.ticks} ticks, {overruns} of them too long; {counts.held} held, {counts.limited} at the rate bound")
    print(
        f"{counts.received} chunks, {counts.late} late; inference took {np.percentile(latency, 50):.2g} ms, 99 % below"
    )
    print(f"{np.percentile(latency, 99):.2g} ms; the largest jump was {counts.largest_jump:.3g} Nm")


if __name__ == "__main__":
    main()
