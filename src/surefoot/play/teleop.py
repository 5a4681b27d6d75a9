"""Episodes that a person plays, or corrects a policy in, as a dataset."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import VECTOR, unnamed
from surefoot.core.policy.control_loop import ControlLoop
from surefoot.data.arrays import from_arrays
from surefoot.data.dataset import Dataset
from surefoot.envs.acting.interventions import COLUMN as INTERVENED
from surefoot.envs.episodes import episode_seeds
from surefoot.envs.interface import SUCCESS, Array
from surefoot.envs.returned import EXECUTED
from surefoot.envs.spaces import arrays_of
from surefoot.envs.takeover import DISCARD, Device, Gamepad, Keyboard, Takeover
from surefoot.envs.vector import make_env
from surefoot.runs.trust import FunctionName, allow, function_of

DEVICES: dict[str, Callable[..., Device]] = {"keyboard": Keyboard, "gamepad": Gamepad}


def device_of(name: str, actions: int, gripper: bool) -> Device:
    """A device by its name, or what `module:function` gives for the number of actions and whether the last grips.

    Raises:
        ConfigError: there is none of that name.
        MissingExtraError: its package is not installed.
    """
    if name in DEVICES:
        return DEVICES[name](actions, gripper)
    if ":" not in name:
        raise ConfigError(f"--device {name}: give {', '.join(DEVICES)}, or module:function that makes a device")
    allow(FunctionName(name))
    device = function_of(name, "--device")(actions, gripper)
    if not callable(getattr(device, "read", None)) or not callable(getattr(device, "close", None)):
        raise ConfigError(f"--device {name} gave a {type(device).__name__}: a device has read and close")
    return device  # type: ignore[no-any-return]


def play(
    env_id: str,
    device: Device | Callable[[int], Device],
    episodes: int,
    *,
    policy: ControlLoop | None = None,
    seed: int = 0,
    rate: float | None = None,
    env: gymnasium.Env[Any, Any] | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> Dataset:
    """Record episodes of a person, alone or beside a policy; those that he discards are played again.

    Where no one acts, the policy does; without one the action is the middle of its bounds. `extras["intervened"]` says
    in which steps the person acted, whose action is what is recorded, and `extras["success"]` what was given of
    success, where the person or the environment reported anything.

    Args:
        env_id: of the environment, as for training.
        device: of the person, or what makes it of the number of actions.
        episodes: at least 1.
        policy: in the environment's units.
        seed: of the episodes' initial states.
        rate: steps a second that are not exceeded; None: as fast as the environment steps.
        env: made already, by that name.
        notify: called with a sentence as each episode ends.

    Raises:
        ConfigError: no episode is asked for, or a rate of 0 or below.
        EnvironmentMismatchError: actions that no one can take over.
    """
    if episodes < 1 or (rate is not None and not rate > 0):
        raise ConfigError(f"episodes is {episodes} and rate {rate}; at least 1 episode, and a rate above 0, are needed")
    inner = make_env(env_id) if env is None else env
    space: Any = inner.action_space
    shape = getattr(space, "shape", None) or (0,)
    around = Takeover(inner, device(shape[0]) if callable(device) else device)
    arrays = arrays_of(around.observation_space, env_id)
    middle = ((space.low.astype(np.float64) + space.high) / 2).astype(space.dtype)
    kept: list[dict[str, list[Any]]] = []
    seeds, tries = episode_seeds(seed, 0, 1000 * episodes), 0
    try:
        while len(kept) < episodes:
            columns: dict[str, list[Any]] = {}
            seen, _ = around.reset(seed=int(seeds[tries % len(seeds)]))
            tries += 1
            if policy is not None:
                policy.reset(seed=tries)
            over, discarded, due = False, False, time.monotonic()
            while not over:
                action = middle if policy is None else policy.select_action(seen)
                after, reward, terminated, truncated, info = around.step(action)
                if policy is not None:
                    policy.observe(float(reward), float(info.get("cost", 0.0)))
                done = np.asarray(info.get(EXECUTED, action), np.float32)
                given = next((info[name] for name in SUCCESS if name in info), None)
                step = {"actions": done, "rewards": reward, "terminations": terminated, "truncations": truncated}
                step |= {INTERVENED: EXECUTED in info, "success": np.nan if given is None else float(given)}
                step |= _named("observations", seen, arrays) | _named("next_observations", after, arrays)
                for name, value in step.items():
                    columns.setdefault(name, []).append(value)
                seen, over = after, bool(terminated or truncated)
                discarded = bool(info.get(DISCARD, False))
                due = _wait(due, rate)
            length, helped = len(columns["rewards"]), sum(columns[INTERVENED])
            if discarded:
                notify(f"an episode of {length} steps is discarded")
                continue
            kept.append(columns)
            notify(
                f"episode {len(kept)} of {episodes}: {length} steps, {helped} by the person, return "
                f"{float(np.sum(columns['rewards'])):.4g}"
            )
    finally:
        around.close()
    return _dataset(kept, env_id, space, rate)


def _named(column: str, observation: Any, arrays: Mapping[str, Any]) -> dict[str, Array]:
    if VECTOR in arrays:
        return {column: np.array(observation, np.float32)}
    parts = observation if isinstance(observation, Mapping) else dict.fromkeys(arrays, observation)
    kinds = {key: np.uint8 if array.dtype == "uint8" else np.float32 for key, array in arrays.items()}
    return {f"{column}/{key}": np.array(parts[key], kinds[key]) for key in arrays}


def _wait(due: float, rate: float | None) -> float:
    """Sleep until the next step is due; when that is. Steps that are late are not caught up on."""
    if rate is None:
        return due
    due = max(due + 1 / rate, time.monotonic())
    time.sleep(max(0.0, due - time.monotonic()))
    return due


def _dataset(kept: list[dict[str, list[Any]]], env_id: str, space: Any, rate: float | None) -> Dataset:
    columns = {name: np.stack([value for one in kept for value in one[name]]) for name in kept[0]}
    lengths = [len(one["rewards"]) for one in kept]
    last = np.zeros(sum(lengths), np.bool_)
    last[np.cumsum(lengths) - 1] = True
    terminations = columns["terminations"].astype(np.bool_) & last
    made = from_arrays(
        unnamed("observations", columns),
        columns["actions"],
        columns["rewards"].astype(np.float32),
        terminations=terminations,
        truncations=last & ~terminations,
        next_observations=unnamed("next_observations", columns),
        env_id=env_id,
        name=env_id,
        action_low=space.low.astype(np.float64),
        action_high=space.high.astype(np.float64),
    )
    extras = {**made.extras, INTERVENED: columns[INTERVENED].astype(np.bool_)}
    success = columns["success"]
    if not np.isnan(success).all():
        extras["success"] = np.nan_to_num(success) > 0
    attributes = {**made.attributes, "source": "recorded by surefoot from a person"}
    return made.replace(extras=extras, attributes=attributes | ({} if rate is None else {"fps": rate}))
