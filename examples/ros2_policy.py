"""A ROS 2 node that runs a policy at a fixed rate.

    python examples/ros2_policy.py --ros-args -p policy:=RUN -p rate:=50.0

It reads `sensor_msgs/JointState` (positions, then velocities, of `joints` in that order) and writes
`std_msgs/Float64MultiArray`. Change `observe` and `publish` to what your robot speaks. It takes care of this:

- at each tick the policy sees the last message, and nothing older than `stale` seconds;
- without a fresh message, or with one that the policy refuses (a broken sensor), it sends `hold` and begins the
  policy's episode anew once messages are good again: what was planned before a gap is not played after it;
- each action of the policy changes by at most `step` from the last command sent. `hold` does not: a stop must not wait,
  so it is sent at once. Where commands are positions, give `hold`, a pose that is safe to be sent from anywhere: zeros,
  which are the default, hold a robot still only where commands are velocities or torques;
- each episode of a policy that samples has noise of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

import surefoot
from surefoot.core.base.errors import SurefootError


class PolicyNode(Node):
    """Plays one policy."""

    def __init__(self) -> None:
        super().__init__("surefoot_policy")
        self.declare_parameter("policy", "policy.safetensors")
        self.declare_parameter("rate", 50.0)
        self.declare_parameter("stale", 0.1)
        self.declare_parameter("joints", [""])
        self.declare_parameter("hold", [0.0])
        self.declare_parameter("step", float("inf"))
        self.policy = surefoot.load_policy(self.value("policy"))
        self.joints = [name for name in self.value("joints") if name]
        self.hold = np.broadcast_to(np.asarray(self.value("hold"), np.float32), (self.policy.action_dim,))
        self.seen: np.ndarray | None = None
        self.seen_at = 0.0
        self.running, self.episodes = False, 0
        self.sent = self.hold.copy()
        self.commands = self.create_publisher(Float64MultiArray, "command", 1)
        self.create_subscription(JointState, "joint_states", self.observe, 1)
        self.create_timer(1.0 / self.value("rate"), self.tick)

    def value(self, name: str) -> Any:
        """A parameter."""
        return self.get_parameter(name).value

    def now(self) -> float:
        """Seconds."""
        return self.get_clock().now().nanoseconds / 1e9

    def observe(self, message: JointState) -> None:
        """Keep what the robot says."""
        names = list(message.name)
        try:
            order = [names.index(joint) for joint in self.joints] or list(range(len(names)))
            values = [message.position[k] for k in order] + [message.velocity[k] for k in order]
        except (ValueError, IndexError):
            self.get_logger().warn("joint_states lacks a joint, or its position or velocity", throttle_duration_sec=1.0)
            return
        self.seen, self.seen_at = np.asarray(values, np.float32), self.now()

    def tick(self) -> None:
        """Send one action."""
        if self.seen is None or self.now() - self.seen_at > self.value("stale"):
            self.stop("no fresh joint_states")
            return
        if not self.running:
            self.policy.reset(self.episodes)  # the seed of its noise
            self.running, self.episodes = True, self.episodes + 1
        try:
            action = self.policy.select_action(self.seen)
        except SurefootError as error:
            self.stop(str(error))
            return
        step = self.value("step")
        self.publish(np.clip(action, self.sent - step, self.sent + step))

    def stop(self, why: str) -> None:
        """Send what holds the robot still."""
        if self.running:
            self.get_logger().error(f"holding: {why}")
        self.running = False
        self.publish(self.hold)

    def publish(self, action: np.ndarray) -> None:
        """Send a command."""
        self.sent = np.asarray(action, np.float32)
        self.commands.publish(Float64MultiArray(data=[float(number) for number in action]))


def main() -> None:
    rclpy.init()
    node = PolicyNode()
    try:
        rclpy.spin(node)
    finally:
        node.publish(node.hold)
        node.destroy_node()
        rclpy.shutdown()


if __name__ == "__main__":
    main()
