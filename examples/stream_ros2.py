"""A ROS 2 node that learns on the robot to hold joints at targets: python examples/stream_ros2.py

It reads sensor_msgs/JointState from /joint_states and sends std_msgs/Float64MultiArray, one effort for each joint, to
/effort_controller/commands, at --rate. A tick without a new message, or with one that lacks a joint or its velocity, is
a missed sample: the last command is sent again, and nothing is learned across the gap. Stopped with Ctrl-C or by an
error, it sends zeros, keeps the agent in --agent, and continues from there the next time. A process that is killed
sends nothing more: let the controller stop the joints when commands cease.

python examples/stream_ros2.py --joints shoulder elbow --targets 0.5 -0.3 --effort 2.0
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.core.engine.agent import Spec
from surefoot.streaming import StreamAC


class Task:
    """The task of the joints: the observation, the reward and when an episode is over. Write your own."""

    def __init__(self, targets: Sequence[float], effort: float, episode: int) -> None:
        joints = len(targets)
        self.targets, self.episode = np.array(targets), episode
        self.problem = Spec(2 * joints, joints, (-effort,) * joints, (effort,) * joints)

    def observation(self, positions: np.ndarray, velocities: np.ndarray) -> np.ndarray:
        """Distances from the targets, and velocities."""
        return np.concatenate([positions - self.targets, velocities])

    def reward(self, observation: np.ndarray, action: np.ndarray) -> float:
        """Higher near the targets and at low velocities."""
        distance, velocity = np.split(observation, 2)
        return -float(distance @ distance + 0.05 * velocity @ velocity + 0.001 * action @ action)


class Controller:
    """One tick of the loop, apart from ROS: the newest message in, a command out."""

    def __init__(self, agent: StreamAC, task: Task, joints: Sequence[str]) -> None:
        self.agent, self.task, self.joints = agent, task, list(joints)
        self.message: Any = None
        self.action: np.ndarray | None = None
        self.ticks = 0

    def receive(self, message: Any) -> None:
        """Keep the newest joint state."""
        self.message = message

    def tick(self) -> np.ndarray | None:
        """The command to send; None until the first message. `learn` comes after it is sent."""
        message, self.message = self.message, None
        sensed = None if message is None else self.sensed(message)
        if sensed is None:
            if self.action is not None:
                self.action = self.agent.miss()
            return self.action
        observation = self.task.observation(*sensed)
        self.ticks += 1
        if self.action is None:
            self.action = self.agent.begin(observation)
            return self.action
        reward = self.task.reward(observation, self.action)
        stopped = self.ticks % self.task.episode == 0  # the next episode begins where this one was stopped
        first = observation if stopped else None
        self.action = self.agent.act(observation, reward, False, stopped, first=first)
        return self.action

    def sensed(self, message: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """Positions and velocities in the order of `joints`; None where the message does not have them all."""
        names = list(message.name)
        try:
            places = [names.index(joint) for joint in self.joints]
            return np.array(message.position)[places], np.array(message.velocity)[places]
        except (ValueError, IndexError):  # another publisher on the topic, or one without velocities
            warnings.warn(f"a joint state of {names} lacks one of {self.joints} or its velocity", stacklevel=2)
            return None

    def learn(self) -> None:
        """The part of a tick's work that comes after the command was sent."""
        self.agent.learn()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--joints", nargs="+", default=["joint_1", "joint_2"])
    parser.add_argument("--targets", nargs="+", type=float, default=[0.0, 0.0])
    parser.add_argument("--effort", type=float, default=1.0, help="largest effort of a joint")
    parser.add_argument("--rate", type=float, default=500.0, help="ticks a second")
    parser.add_argument("--episode", type=int, default=5000, help="ticks after which an episode is stopped")
    parser.add_argument("--agent", type=pathlib.Path, default=pathlib.Path("agent.safetensors"))
    options = parser.parse_args(arguments)
    if len(options.targets) != len(options.joints):
        parser.error(f"{len(options.joints)} joints need as many targets, not {len(options.targets)}")
    try:
        import rclpy
        from rclpy.node import Node
        from rclpy.signals import SignalHandlerOptions
        from sensor_msgs.msg import JointState
        from std_msgs.msg import Float64MultiArray
    except ImportError as error:
        sys.exit(
            f"this node needs ROS 2 ({error}): it is not on PyPI; install it as docs.ros.org says, then "
            "`source /opt/ros/<distribution>/setup.bash` and start again in a python that has surefoot too"
        )

    task = Task(options.targets, options.effort, options.episode)
    budget_us = 1e6 / options.rate
    if options.agent.exists():
        agent = StreamAC.open(options.agent, budget_us=budget_us)
        if agent.spec != task.problem:
            sys.exit(f"{options.agent} learned {agent.spec}, and this is {task.problem}: give another --agent")
    else:
        agent = StreamAC(task.problem, budget_us=budget_us)
    controller = Controller(agent, task, options.joints)

    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)  # ROS's own would close the topic before the zeros
    node = Node("surefoot")
    commands = node.create_publisher(Float64MultiArray, "/effort_controller/commands", 1)
    node.create_subscription(JointState, "/joint_states", controller.receive, 1)

    def send(command: Sequence[float] | np.ndarray) -> None:
        commands.publish(Float64MultiArray(data=[float(value) for value in command]))

    def tick() -> None:
        command = controller.tick()
        if command is not None:
            send(command)
            controller.learn()

    node.create_timer(1 / options.rate, tick)
    with contextlib.ExitStack() as ending:  # from the last to the first, each of them whatever fails
        ending.callback(rclpy.shutdown)
        ending.callback(node.destroy_node)
        ending.callback(lambda: node.get_logger().info(str(agent.report())))
        ending.callback(agent.save, options.agent)
        ending.callback(send, [0.0] * len(options.joints))
        with contextlib.suppress(KeyboardInterrupt):
            rclpy.spin(node)


if __name__ == "__main__":
    main()
