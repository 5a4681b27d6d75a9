"""`Takeover`: any gymnasium environment with a person beside the policy, by a keyboard, a gamepad or another device.

A device says at each step whether somebody acts, and how. Keyboards are read by pynput and gamepads by pygame, which
the extra `teleop` installs; anything with a `read` is a device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np

from surefoot.core.base.actions import middle_and_half
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MissingExtraError
from surefoot.envs.interface import Array
from surefoot.envs.returned import EXECUTED
from surefoot.envs.side_by_side import name_of

SUCCESS, FAILURE, AGAIN = "success", "failure", "again"
ENDS = (SUCCESS, FAILURE, AGAIN)
"""What a person may say of an episode, which ends it: it is done, it failed, or it is to be forgotten."""
DISCARD = "discard"
"""Entry of a step's info: the episode is to be forgotten."""


@dataclasses.dataclass(frozen=True)
class Command:
    """What a person does at one step."""

    action: Any = None
    """(A,) in [-1, 1], scaled to the environment's bounds; None: the policy acts."""
    end: str | None = None
    """One of `ENDS`, or None: the episode continues."""


class Device(Protocol):
    """What a person acts by."""

    def read(self, observation: Any) -> Command:
        """What the person does at this step, without waiting for him; who asks knows the last observation."""
        ...

    def close(self) -> None:
        """Let go of the hardware."""
        ...


class Takeover(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment in which a device's action, where it gives one, is carried out in place of the policy's.

    The step's info then has the action as `intervene_action`, in the environment's units, so that off-policy agents
    store it, and datasets that are recorded. A success that the person calls ends the episode with a termination and a
    reward of 1, a failure with a termination and 0; an episode that is to be forgotten is cut off, with
    `info["discard"]`.

    Args:
        env: single environment whose actions are a bounded vector.
        device: of the person.

    Raises:
        EnvironmentMismatchError: other actions.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], device: Device) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
            raise EnvironmentMismatchError(
                f"{name_of(env)}: actions are {space}, and a person takes over bounded vectors: declare a Box of one "
                "dimension with finite bounds"
            )
        self.device = device
        self._middle, self._half = middle_and_half(space.low.astype(np.float64), space.high.astype(np.float64))
        self._observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment resets."""
        self._observation, info = self.env.reset(seed=seed, options=options)
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step by the person's action or by the policy's.

        Raises:
            ConfigError: the device gives an action of another width, one that is not finite, or an unknown end.
        """
        command = self.device.read(self._observation)
        taken = None if command.action is None else self._scaled(command.action)
        done = self.env.step(action if taken is None else taken)
        self._observation, reward, terminated, truncated, given = done
        info: dict[str, Any] = dict(given)
        if taken is not None:
            info[EXECUTED] = taken
        if command.end is not None:
            if command.end not in ENDS:
                raise ConfigError(f"the device says end={command.end!r}: must be {', '.join(ENDS)} or None")
            if command.end == AGAIN:
                truncated, info[DISCARD] = True, True
            else:
                success = command.end == SUCCESS
                reward, terminated, info["success"] = float(success), True, success
        return self._observation, reward, bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Close both."""
        self.device.close()
        super().close()

    def _scaled(self, action: Any) -> Array:
        found = np.asarray(action, np.float64)
        space: Any = self.env.action_space
        if found.shape != space.shape or not np.isfinite(found).all():
            raise ConfigError(
                f"the device gives {found.tolist()}, and {name_of(self.env)} takes {space.shape[0]} finite numbers: "
                "give the device that many axes"
            )
        scaled = self._middle + self._half * found.clip(-1, 1)
        return np.clip(scaled, space.low, space.high).astype(space.dtype)


class Scripted:
    """A device that is a function: of the observation, an action in [-1, 1] or None."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def read(self, observation: Any) -> Command:
        """What the function says."""
        found = self.function(observation)
        return found if isinstance(found, Command) else Command(found)

    def close(self) -> None:
        """Nothing is held."""


AXES = (("left", "right"), ("down", "up"), ("page_down", "page_up"), ("a", "d"), ("s", "w"), ("q", "e"))
"""Keys that move an action to -1 and to 1, axis by axis."""


class Keys:
    """What held keys command, wherever they are read.

    A person acts while a key of an axis is held, or from the first to the next stroke of `hold`. The gripper's key
    changes its command from one to the other, which stays.
    """

    def __init__(
        self,
        axes: Sequence[tuple[str, str]],
        gripper: str | None = None,
        hold: str = "tab",
        ends: dict[str, str] | None = None,
    ) -> None:
        """Give meaning to keys.

        Args:
            axes: keys of -1 and of 1, of each action without the gripper.
            gripper: key of the last action, which is -1 at first; None: there is no gripper.
            hold: key that takes over, and gives back.
            ends: key -> one of `ENDS`; None: enter, backspace and r.

        Raises:
            ConfigError: a key has two meanings.
        """
        self.axes, self.gripper, self.hold = list(axes), gripper, hold
        self.ends = {"enter": SUCCESS, "backspace": FAILURE, "r": AGAIN} if ends is None else ends
        keys = [key for pair in self.axes for key in pair] + [hold, *self.ends, *([] if gripper is None else [gripper])]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ConfigError(f"the key {twice[0]!r} has two meanings: give each action and each end keys of its own")
        self.held: set[str] = set()
        self.holding, self.grip = False, -1.0
        self._gripped, self._end = False, ""

    def press(self, key: str) -> None:
        """A key goes down; repeats of a held key do nothing."""
        if key in self.held:
            return
        self.held.add(key)
        if key == self.hold:
            self.holding = not self.holding
        elif key == self.gripper:
            self.grip, self._gripped = -self.grip, True
        elif key in self.ends:
            self._end = self.ends[key]

    def release(self, key: str) -> None:
        """A key goes up."""
        self.held.discard(key)

    def command(self) -> Command:
        """What is commanded now; strokes count once."""
        values = [float(up in self.held) - float(down in self.held) for down, up in self.axes]
        moves = any(key in self.held for pair in self.axes for key in pair)
        acts = moves or self.holding or self._gripped
        action = [*values, *([] if self.gripper is None else [self.grip])]
        end, self._end, self._gripped = self._end or None, "", False
        return Command(np.array(action) if acts else None, end)


class Keyboard:
    """The keyboard, read by pynput, of whatever window has the focus."""

    def __init__(self, actions: int, gripper: bool = False, keys: Keys | None = None) -> None:
        """Listen.

        Args:
            actions: A.
            gripper: whether the last action is a gripper's, on the space bar.
            keys: other meanings of keys.

        Raises:
            MissingExtraError: pynput is not installed.
            ConfigError: there is no screen, or more actions than `AXES` has keys for.
        """
        count = actions - gripper
        if keys is None and not 0 <= count <= len(AXES):
            raise ConfigError(f"{count} axes, and keys are known for {len(AXES)}: give Keys of your own")
        self.keys = Keys(AXES[:count], "space" if gripper else None) if keys is None else keys
        try:
            from pynput import keyboard
        except ModuleNotFoundError as error:
            raise MissingExtraError("pynput", "teleop", "the keyboard") from error
        except ImportError as error:
            raise ConfigError(
                f"the keyboard can't be read here: pynput finds no screen or input device ({error})"
            ) from error
        self._listener = keyboard.Listener(
            on_press=lambda key: self.keys.press(_name(key)), on_release=lambda key: self.keys.release(_name(key))
        )
        self._listener.start()

    def read(self, observation: Any) -> Command:
        """What the keys say."""
        return self.keys.command()

    def close(self) -> None:
        """Listen no more."""
        self._listener.stop()


def _name(key: Any) -> str:
    """A key of pynput's by its letter or name."""
    letter = getattr(key, "char", None)
    return str(letter).lower() if letter else str(getattr(key, "name", key))


class Gamepad:
    """A gamepad, read by pygame: sticks act while a shoulder button is held; other buttons end an episode."""

    def __init__(
        self,
        actions: int,
        gripper: bool = False,
        *,
        index: int = 0,
        dead_zone: float = 0.1,
        enable: int = 5,
        grip: int = 4,
        ends: dict[int, str] | None = None,
    ) -> None:
        """Open it.

        Args:
            actions: A; axis i of the gamepad is action i.
            gripper: whether the last action is a gripper's: 1 while the button `grip` is held, else -1.
            index: which of the gamepads.
            dead_zone: deflections below it are 0.
            enable: button that takes over while it is held.
            grip: button of the gripper.
            ends: button -> one of `ENDS`; None: buttons 0, 1 and 3.

        Raises:
            MissingExtraError: pygame is not installed.
            ConfigError: there is no such gamepad, or it has fewer axes.
        """
        try:
            import pygame
        except ImportError as error:
            raise MissingExtraError("pygame", "teleop", "the gamepad") from error
        pygame.display.init()  # events, without the sound that pygame.init would ask for
        pygame.joystick.init()
        if pygame.joystick.get_count() <= index:
            raise ConfigError(f"there are {pygame.joystick.get_count()} gamepads, and number {index} is asked for")
        self.pad, self._pygame = pygame.joystick.Joystick(index), pygame
        self.axes, self.gripper = actions - gripper, gripper
        if self.pad.get_numaxes() < self.axes:
            raise ConfigError(f"the gamepad has {self.pad.get_numaxes()} axes, and {self.axes} are asked for")
        self.dead_zone, self.enable, self.grip = dead_zone, enable, grip
        self.ends = {0: SUCCESS, 1: FAILURE, 3: AGAIN} if ends is None else ends

    def read(self, observation: Any) -> Command:
        """What sticks and buttons say."""
        self._pygame.event.pump()
        end = next((word for button, word in self.ends.items() if self.pad.get_button(button)), None)
        if not self.pad.get_button(self.enable):
            return Command(None, end)
        values = [self.pad.get_axis(axis) for axis in range(self.axes)]
        action = [0.0 if abs(value) < self.dead_zone else value for value in values]
        return Command(np.array([*action, *([self._grip()] if self.gripper else [])]), end)

    def _grip(self) -> float:
        return 1.0 if self.pad.get_button(self.grip) else -1.0

    def close(self) -> None:
        """Let it go."""
        self.pad.quit()
