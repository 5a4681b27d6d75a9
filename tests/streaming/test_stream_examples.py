"""The examples run: the robot's loop once as a user starts it, the ROS 2 node on a stand-in for ROS."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
import types
from typing import Any

import forking
import numpy as np
import pytest

from surefoot.streaming import StreamAC

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def started(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=120
    )


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forking.run([str(EXAMPLES / name), *arguments])


def test_the_robots_loop_learns_saves_and_goes_on(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "robot.safetensors")
    done = started("stream_on_robot.py", "--steps", "2000", "--rate", "0", "--save", path)
    assert done.returncode == 0, done.stderr
    assert re.match(r"2000 steps; mean return of the last 10 episodes -\d+\n", done.stdout)
    assert done.stdout.count("durations: median") == 2
    assert re.search(r"\d+ ticks took more than 2000 us; 0 samples were skipped", done.stdout)
    assert int(StreamAC.open(path).learned) == 2000
    again = run("stream_on_robot.py", "--steps", "200", "--rate", "2000", "--resume", path, "--save", path)
    assert again.returncode == 0, again.stderr
    assert int(StreamAC.open(path).learned) == 2200
    assert again.stdout.startswith("200 steps; mean return of the last 1 episodes")


def test_the_robots_loop_may_end_before_an_episode_and_refuses_odd_numbers() -> None:
    done = run("stream_on_robot.py", "--steps", "20", "--rate", "0")
    assert done.stdout.startswith("20 steps; no episode has ended yet\n")
    assert "nan" not in done.stdout + done.stderr
    for option, value in (("--steps", "0"), ("--rate", "-1"), ("--rate", "nan")):
        refused = run("stream_on_robot.py", option, value)
        assert refused.returncode == 2
        assert f"{option} is {value}" in refused.stderr


def test_the_pages_example_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (EXAMPLES.parent / "docs" / "streaming.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "streaming.md", "exec"), {})
    assert {path.name for path in tmp_path.iterdir()} == {"agent.safetensors", "policy.safetensors", "policy.json"}


def example() -> Any:
    spec = importlib.util.spec_from_file_location("stream_ros2", EXAMPLES / "stream_ros2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(importlib.util.find_spec("rclpy") is not None, reason="ROS 2 is installed")
def test_without_ros_the_node_says_where_it_comes_from() -> None:
    done = run("stream_ros2.py")
    assert done.returncode == 1
    assert "this node needs ROS 2" in done.stderr
    assert "setup.bash" in done.stderr
    assert run("stream_ros2.py", "--joints", "a", "--targets", "1", "2").returncode == 2


class Arm:
    """Stands for ROS and a robot: two joints with names in another order, messages that are lost now and then."""

    def __init__(self, ticks: int, fails: bool = False) -> None:
        self.ticks, self.fails = ticks, fails
        self.sent: list[list[float]] = []
        self.calls: list[Any] = []
        self.positions, self.velocities = np.array([0.5, -0.5]), np.zeros(2)

    def modules(self) -> dict[str, types.ModuleType]:
        arm = self

        class Node:
            def __init__(self, name: str) -> None:
                self.name = name

            def create_publisher(self, kind: type, topic: str, depth: int) -> Any:
                return types.SimpleNamespace(publish=lambda message: arm.sent.append(message.data))

            def create_subscription(self, kind: type, topic: str, receive: Any, depth: int) -> None:
                arm.receive = receive

            def create_timer(self, period: float, tick: Any) -> None:
                arm.tick = tick

            def get_logger(self) -> Any:
                return types.SimpleNamespace(info=lambda text: None)

            def destroy_node(self) -> None:
                arm.calls.append("destroy_node")

        def message(**values: Any) -> Any:
            return types.SimpleNamespace(**values)

        made = {
            name: types.ModuleType(name)
            for name in ("rclpy", "rclpy.node", "rclpy.signals", "sensor_msgs.msg", "std_msgs.msg")
        }
        made.update({name: types.ModuleType(name) for name in ("sensor_msgs", "std_msgs")})
        made["rclpy"].init = lambda signal_handler_options: arm.calls.append(signal_handler_options)  # type: ignore[attr-defined]
        made["rclpy"].spin, made["rclpy"].shutdown = self.spin, lambda: arm.calls.append("shutdown")  # type: ignore[attr-defined]
        made["rclpy.signals"].SignalHandlerOptions = types.SimpleNamespace(NO="no handlers")  # type: ignore[attr-defined]
        made["rclpy.node"].Node = Node  # type: ignore[attr-defined]
        made["sensor_msgs.msg"].JointState = made["std_msgs.msg"].Float64MultiArray = message  # type: ignore[attr-defined]
        return made

    def spin(self, node: Any) -> None:
        self.tick()  # before the first message
        for tick in range(self.ticks):
            if tick % 10 != 3:
                self.receive(types.SimpleNamespace(name=["b", "a"], position=self.positions, velocity=self.velocities))
            elif tick % 20 == 3:  # from another publisher, or without velocities
                odd = {"name": ["wheel"], "velocity": [0.0]} if tick % 40 == 3 else {"name": ["b", "a"], "velocity": []}
                self.receive(types.SimpleNamespace(position=self.positions, **odd))
            self.tick()
            self.velocities = 0.9 * self.velocities + 0.1 * np.array(self.sent[-1])[::-1]
            self.positions = self.positions + 0.1 * self.velocities
        raise RuntimeError("a fault") if self.fails else KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:a joint state of")
def test_the_ros_node_learns_misses_and_goes_on(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.safetensors"
    options = ["--joints", "a", "b", "--targets", "0.1", "0.2", "--episode", "40", "--agent", str(path)]
    for learned in (80, 160):
        arm = Arm(101)
        for name, module in arm.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        example().main([*options, "--effort", "2.0"])
        assert len(arm.sent) == 102  # none before the first message
        assert arm.sent.pop() == [0.0, 0.0]
        assert arm.calls == ["no handlers", "destroy_node", "shutdown"]
        assert all(len(command) == 2 and max(map(abs, command)) <= 2 for command in arm.sent)
        agent = StreamAC.open(path)
        # 101 ticks: 10 misses, a beginning, and a gap's second transition after each miss
        assert agent.learned.tolist() == [learned]
        assert agent.report()["missed"] == [10 * learned // 80]
    with pytest.raises(SystemExit, match=r"agent\.safetensors learned Spec.*give another --agent"):
        example().main([*options, "--effort", "1.0"])  # the file's agent may do more


@pytest.mark.filterwarnings("ignore:a joint state of")
def test_the_ros_node_sends_zeros_and_keeps_the_agent_when_something_fails(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = Arm(30, fails=True)
    for name, module in arm.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(RuntimeError, match="a fault"):
        example().main(["--joints", "a", "b", "--agent", str(tmp_path / "agent.safetensors")])
    assert arm.sent[-1] == [0.0, 0.0]
    assert arm.calls[-2:] == ["destroy_node", "shutdown"]
    assert int(StreamAC.open(tmp_path / "agent.safetensors").learned) == 23  # 30 ticks, as above


def test_a_joint_state_without_a_joint_or_its_velocity_is_a_missed_sample() -> None:
    module = example()
    task = module.Task([0.0, 0.0], 1.0, 100)
    controller = module.Controller(StreamAC(task.problem), task, ["a", "b"])
    for message in (
        types.SimpleNamespace(name=["a"], position=[1.0], velocity=[0.0]),
        types.SimpleNamespace(name=["a", "b"], position=[1.0, 2.0], velocity=[]),
        types.SimpleNamespace(name=["a", "b"], position=[1.0], velocity=[0.0, 0.0]),
    ):
        controller.receive(message)
        with pytest.warns(UserWarning, match="lacks one of"):
            assert controller.tick() is None
    controller.receive(types.SimpleNamespace(name=["b", "a"], position=[1.0, 2.0], velocity=[3.0, 4.0]))
    assert controller.tick().shape == (2,)
    np.testing.assert_array_equal(controller.agent.in_observations[0], [2.0, 1.0, 4.0, 3.0])
