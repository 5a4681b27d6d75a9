"""A person beside the policy: what is carried out and given, and what keys and gamepads command."""

from __future__ import annotations

import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MissingExtraError
from surefoot.envs.takeover import AXES, Command, Gamepad, Keyboard, Keys, Scripted, Takeover


class Line(gymnasium.Env[Any, Any]):
    """Remembers what was carried out; bounds 0 to 4 and -1 to 1."""

    observation_space = Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.action_space: Any = Box(np.float32([0, -1]), np.float32([4, 1]))
        self.done: list[list[float]] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.done.append(np.asarray(action).tolist())
        return np.full(1, len(self.done) / 10, np.float32), 0.5, False, False, {"own": 1}


def test_the_devices_action_is_carried_out_in_the_environments_units_and_told() -> None:
    seen: list[float] = []

    def person(observation: np.ndarray) -> Any:
        seen.append(float(observation[0]))
        return [0.5, -3.0] if len(seen) == 2 else None

    env = Line()
    around = Takeover(env, Scripted(person))
    around.reset()
    infos = [around.step(np.array([1.0, 0.25], np.float32))[4] for _ in range(3)]
    assert env.done == [[1.0, 0.25], [3.0, -1.0], [1.0, 0.25]]
    assert ["intervene_action" in info for info in infos] == [False, True, False]
    assert infos[1]["intervene_action"].tolist() == [3.0, -1.0]
    assert infos[1]["own"] == 1
    np.testing.assert_allclose(seen, [0, 0.1, 0.2], rtol=1e-6)


@pytest.mark.parametrize(
    ("end", "reward", "terminated", "truncated"),
    [
        ("success", 1.0, True, False),
        ("failure", 0.0, True, False),
        ("again", 0.5, False, True),
        (None, 0.5, False, False),
    ],
)
def test_a_person_ends_an_episode(end: str | None, reward: float, terminated: bool, truncated: bool) -> None:
    around = Takeover(Line(), Scripted(lambda observation: Command(None, end)))
    around.reset()
    _, *found, info = around.step(np.zeros(2))
    assert found == [reward, terminated, truncated]
    assert info.get("success") == {"success": True, "failure": False}.get(str(end))
    assert info.get("discard", False) == (end == "again")


def test_keys_command_axes_a_gripper_and_ends_and_strokes_count_once() -> None:
    keys = Keys(AXES[:2], "space")
    assert keys.command() == Command(None, None)
    keys.press("right")
    keys.press("down")
    assert keys.command().action.tolist() == [1, -1, -1]
    keys.press("left")
    keys.release("down")
    assert keys.command().action.tolist() == [0, 0, -1]  # both ways at once
    keys.release("left")
    keys.release("right")
    assert keys.command().action is None
    keys.press("space")
    keys.press("space")  # as a held key repeats itself
    assert keys.command().action.tolist() == [0, 0, 1]
    assert keys.command().action is None
    keys.press("tab")  # takes over without moving, until it is struck again
    keys.release("tab")
    assert [keys.command().action.tolist() for _ in range(2)] == [[0, 0, 1]] * 2
    keys.press("enter")
    assert keys.command().end == "success"
    assert keys.command().end is None
    keys.press("tab")
    assert keys.command() == Command(None, None)
    with pytest.raises(ConfigError, match="the key 'left' has two meanings"):
        Keys(AXES[:1], "left")


def test_the_keyboard_is_read_by_pynput_and_its_absence_named(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners: list[Any] = []

    class Listener:
        def __init__(self, on_press: Any, on_release: Any) -> None:
            self.on_press, self.on_release, self.state = on_press, on_release, "made"
            listeners.append(self)

        def start(self) -> None:
            self.state = "started"

        def stop(self) -> None:
            self.state = "stopped"

    module = types.ModuleType("pynput")
    module.keyboard = types.SimpleNamespace(Listener=Listener)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynput", module)
    device = Keyboard(4)
    assert listeners[0].state == "started"
    listeners[0].on_press(types.SimpleNamespace(char="D"))
    listeners[0].on_press(types.SimpleNamespace(name="left"))
    assert device.read(None).action.tolist() == [-1, 0, 0, 1]
    device.close()
    assert listeners[0].state == "stopped"
    with pytest.raises(ConfigError, match="7 axes, and keys are known for 6"):
        Keyboard(7)
    monkeypatch.setitem(sys.modules, "pynput", None)
    with pytest.raises(MissingExtraError, match=r"surefoot\[teleop\]"):
        Keyboard(2)


def test_a_gamepad_acts_while_its_shoulder_button_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    buttons, axes = dict.fromkeys(range(8), 0), [0.05, -0.7]
    pad = types.SimpleNamespace(
        get_numaxes=lambda: 2, get_axis=axes.__getitem__, get_button=buttons.__getitem__, quit=lambda: None
    )
    module = types.ModuleType("pygame")
    module.display = types.SimpleNamespace(init=lambda: None)  # type: ignore[attr-defined]
    module.event = types.SimpleNamespace(pump=lambda: None)  # type: ignore[attr-defined]
    module.joystick = types.SimpleNamespace(  # type: ignore[attr-defined]
        init=lambda: None, get_count=lambda: 1, Joystick=lambda index: pad
    )
    monkeypatch.setitem(sys.modules, "pygame", module)
    device = Gamepad(3, gripper=True)
    assert device.read(None).action is None
    buttons[5] = 1
    assert device.read(None).action.tolist() == [0, -0.7, -1]
    buttons[4], buttons[1] = 1, 1
    found = device.read(None)
    assert found.action.tolist() == [0, -0.7, 1]
    assert found.end == "failure"
    with pytest.raises(ConfigError, match="the gamepad has 2 axes, and 3 are asked for"):
        Gamepad(3)
    with pytest.raises(ConfigError, match="there are 1 gamepads, and number 1 is asked for"):
        Gamepad(2, index=1)


def test_mistakes_are_named() -> None:
    discrete = Line()
    discrete.action_space = Discrete(2)
    with pytest.raises(EnvironmentMismatchError, match=r"Discrete\(2\), and a person takes over bounded vectors"):
        Takeover(discrete, Scripted(lambda observation: None))
    for command, words in (
        (Command([1.0]), r"the device gives \[1.0\], and Line takes 2 finite numbers"),
        (Command([1.0, float("nan")]), "takes 2 finite numbers"),
        (Command(None, "done"), "end='done': must be success, failure, again or None"),
    ):
        around = Takeover(Line(), Scripted(lambda observation, command=command: command))
        around.reset()
        with pytest.raises(ConfigError, match=words):
            around.step(np.zeros(2))
