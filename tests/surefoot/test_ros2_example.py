"""The ROS 2 node template, against a stub of rclpy: what it sends at each tick, and when it holds."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "ros2_policy.py"


class StubNode:
    """What the template uses of `rclpy.node.Node`; the test moves the clock and calls the timer."""

    given: dict[str, Any] = {}  # noqa: RUF012
    time = 0.0

    def __init__(self, name: str) -> None:
        self.values: dict[str, Any] = {}
        self.published: list[list[float]] = []
        self.stated: list[str] = []

    def declare_parameter(self, name: str, value: Any) -> None:
        self.values[name] = self.given.get(name, value)

    def get_parameter(self, name: str) -> Any:
        return types.SimpleNamespace(value=self.values[name])

    def create_publisher(self, kind: Any, topic: str, depth: int) -> Any:
        return types.SimpleNamespace(publish=lambda message: self.published.append(list(message.data)))

    def create_subscription(self, kind: Any, topic: str, call: Any, depth: int) -> None:
        self.heard = call

    def create_timer(self, period: float, call: Any) -> None:
        self.period, self.timer = period, call

    def get_clock(self) -> Any:
        now = types.SimpleNamespace(nanoseconds=round(self.time * 1e9))
        return types.SimpleNamespace(now=lambda: now)

    def get_logger(self) -> Any:
        def say(text: str, **options: Any) -> None:
            self.stated.append(text)

        return types.SimpleNamespace(warn=say, error=say)


@pytest.fixture
def node(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The template's node, on a policy of two joints."""
    torch.manual_seed(0)
    policy = Policy.of(DeterministicActor(4, 2, (8,)), Normalizer(4), torch.full((2,), -5.0), torch.full((2,), 5.0))
    policy.save(tmp_path / "policy.safetensors")
    for name, held in {
        "rclpy": {},
        "rclpy.node": {"Node": StubNode},
        "sensor_msgs": {},
        "sensor_msgs.msg": {"JointState": types.SimpleNamespace},
        "std_msgs": {},
        "std_msgs.msg": {"Float64MultiArray": types.SimpleNamespace},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(held)
        monkeypatch.setitem(sys.modules, name, module)
    StubNode.given = {
        "policy": str(tmp_path / "policy.safetensors"),
        "joints": ["shoulder", "elbow"],
        "hold": [0.5],
        "step": 0.25,
    }
    spec = importlib.util.spec_from_file_location("ros2_policy", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PolicyNode()


def joints(position: list[float]) -> Any:
    """A message whose joints stand in another order than the policy's."""
    return types.SimpleNamespace(name=["elbow", "shoulder"], position=position[::-1], velocity=[0.2, 0.1])


def test_each_tick_sends_the_policys_action_for_the_last_message_within_its_step(node: Any) -> None:
    assert node.period == pytest.approx(0.02)
    node.heard(joints([1.0, 2.0]))
    for _ in range(60):
        node.timer()
    wanted = node.policy.select_action(np.array([1.0, 2.0, 0.1, 0.2], np.float32))
    np.testing.assert_allclose(node.published[0], 0.5 + np.clip(wanted - 0.5, -0.25, 0.25), rtol=1e-6)
    np.testing.assert_allclose(node.published[-1], wanted, rtol=1e-6)
    assert np.abs(np.diff(np.array(node.published), axis=0)).max() <= 0.25 + 1e-6


def test_it_holds_without_a_message_with_an_old_one_and_with_a_broken_sensor(node: Any) -> None:
    node.timer()
    assert node.published == [[0.5, 0.5]]
    node.heard(joints([1.0, 2.0]))
    node.timer()
    assert node.published[-1] != [0.5, 0.5]
    node.time = 0.2  # the message is now older than 0.1 s
    node.timer()
    assert node.published[-1] == [0.5, 0.5]
    node.heard(joints([float("nan"), 2.0]))
    node.timer()
    assert node.published[-1] == [0.5, 0.5]
    node.heard(types.SimpleNamespace(name=["elbow"], position=[0.0], velocity=[0.0]))
    assert any("lacks a joint" in text for text in node.stated)
    assert any("no fresh joint_states" in text for text in node.stated)


def test_each_episode_has_its_own_noise_and_holding_does_not_wait(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, reset = [], node.policy.reset

    def noted(seed: int = 0) -> None:
        seeds.append(seed)
        reset(seed)

    monkeypatch.setattr(node.policy, "reset", noted)
    for episode in range(3):
        node.time = float(episode)
        node.heard(joints([1.0, 2.0]))
        for _ in range(60):
            node.timer()
        moved = node.published[-1]
        node.time += 0.5
        node.timer()
        assert node.published[-1] == [0.5, 0.5]
        assert np.abs(np.subtract(moved, 0.5)).max() > 0.25  # farther than a step
    assert seeds == [0, 1, 2]
