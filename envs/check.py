"""What is wrong with a user's environment, in words: `check_environment`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from surefoot.core.base.errors import EnvironmentMismatchError, MainGuardError
from surefoot.core.base.spec import MASK
from surefoot.envs import suites
from surefoot.envs.check_vector import GOES_ON, Finding, Findings, RaisedError, check_vector
from surefoot.envs.choices import numbered
from surefoot.envs.interface import Array
from surefoot.envs.make import scheme_of, split_options
from surefoot.envs.masks import given_mask
from surefoot.envs.returned import AGREE, FLAGS, NUMBERS, kind, reset_parts, step_parts
from surefoot.envs.spaces import arrays_of
from surefoot.envs.vector import BOUND, DISCRETE_SPACES, make_vec

STEPS = 300
ROWS = 3  # of a vector environment made from an id
RESET = "write def reset(self, *, seed=None, options=None), call super().reset(seed=seed), return obs, info"


def check_environment(
    env: str | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], steps: int = STEPS, seed: int = 0
) -> list[Finding]:
    """Step an environment with random actions and say what is wrong with it.

    Args:
        env: a gymnasium id ("Id" or "module:Id"), a single environment or a vector environment. One made from an id
            is closed at the end. Of an id with a vector entry point, both kinds are checked.
        steps: number of random steps.
        seed: of the environment and of the actions.

    Returns:
        Findings, errors first; empty where nothing is wrong.

    Raises:
        ConfigError, EnvironmentMismatchError, MissingExtraError: the id is unknown or can't be made.
    """
    if isinstance(env, str) and scheme_of(split_options(env)[0]) is not None:
        simulated: Any = make_vec(env, ROWS)
        return _sorted(_closing(simulated, lambda: check_vector(simulated, steps, seed)))
    if isinstance(env, str):
        suites.ensure_registered(env.rpartition(":")[2])
    else:
        return _sorted(check_vector(env, steps, seed) if isinstance(env, VectorEnv) else _single(env, steps, seed))
    spec = gymnasium.registry.get(env.rpartition(":")[2])
    findings: list[Finding] = []
    if spec is None or spec.entry_point is not None:
        made = _made(env)
        findings += _closing(made, lambda: _single(made, steps, seed))
    spec = gymnasium.registry.get(env.rpartition(":")[2])
    if spec is not None and spec.vector_entry_point is not None:
        rows = gymnasium.make_vec(env, ROWS, vectorization_mode="vector_entry_point")
        findings += _closing(rows, lambda: check_vector(rows, steps, seed))
    return _sorted(findings)


def _sorted(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.level)


def _made(env_id: str) -> gymnasium.Env[Any, Any]:
    """The environment as its author wrote it, without gymnasium's own checker in the way."""
    try:
        return gymnasium.make(env_id, disable_env_checker=True)
    except MainGuardError:
        raise
    except Exception as error:
        make_vec(env_id, 1).close()  # says in one sentence what is the matter with an id
        raise EnvironmentMismatchError(f"{env_id} can't be made ({type(error).__name__}: {error})") from error


def _closing(env: Any, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    finally:
        env.close()


def _single(env: gymnasium.Env[Any, Any], steps: int, seed: int) -> list[Finding]:
    checker = Checker(env, steps, seed)
    with contextlib.suppress(RaisedError):
        checker.run()
    return checker.findings


class Checker(Findings):
    """Runs one single environment and collects findings."""

    def __init__(self, env: gymnasium.Env[Any, Any], steps: int, seed: int) -> None:
        super().__init__(env, steps, seed)
        self.seen: list[set[str]] = []  # constraint keys of each step
        self.lengths: list[tuple[int, bool, bool]] = []  # of the episodes that ended
        self.mask: Any = None  # of the next action, where the environment gives one

    def run(self) -> None:
        """All checks; a later one is left out where an earlier one shows that it can't run."""
        if not self.check_spaces() or not self.check_reset() or not self.check_steps():
            return
        self.check_ends()
        self.check_constraint_keys()
        if self.check_seeds():
            self.check_clipping()

    def check_spaces(self) -> bool:
        """Whether both are gymnasium spaces; says what else surefoot can't use in them."""
        for name in ("observation_space", "action_space"):
            space = getattr(self.env, name, None)
            if not isinstance(space, gymnasium.spaces.Space):
                self.say("error", f"{name} is {type(space).__name__}, no gymnasium space",
                         "set it in __init__ to one of gymnasium.spaces (not of the old package gym)")  # fmt: skip
                return False
        self.check_observation_space(self.env.observation_space)
        self.check_action_space(self.env.action_space)
        return True

    def check_observation_space(self, observation: Any) -> None:
        """Say what surefoot can't use in the space of observations."""
        images = 0
        try:
            images = sum(array.image for array in arrays_of(observation).values())
        except EnvironmentMismatchError as error:
            text, _, advice = str(error).rpartition(": ")
            self.say("error", text, advice)
        several = isinstance(observation, gymnasium.spaces.Dict) and not images
        if several and not (MASK in observation.spaces and len(observation.spaces) == 2):
            self.say("warning", f"observations are a Dict of {', '.join(observation)}",
                     "surefoot concatenates them; wrap it in FlattenObservation to choose the order")  # fmt: skip
        elif observation.dtype == np.float64:
            self.say("warning", "observations are float64, and surefoot stores and learns from float32",
                     "declare and return float32 unless the environment needs more digits")  # fmt: skip

    def check_action_space(self, action: Any) -> None:
        """Say what surefoot can't use in the space of actions."""
        if isinstance(action, gymnasium.spaces.Discrete):
            self.say("warning", f"discrete actions ({action}), which not all algorithms learn",
                     "take one that acts by policy gradients, such as ppo, or a streaming one, such as stream_q; for "
                     "the others offer a version with a Box action space")  # fmt: skip
        elif isinstance(action, DISCRETE_SPACES):
            try:
                numbered(self.env)
            except EnvironmentMismatchError as error:
                text, _, advice = str(error).rpartition(": ")
                self.say("error", text, advice)
            else:
                self.say("warning", f"actions are several choices at once ({action}), which become one number",
                         "take an algorithm that learns choices, such as ppo or stream_q; surefoot.envs.choices says "
                         "how they are counted")  # fmt: skip
        else:
            self.check_vector_space(action)

    def check_vector_space(self, action: Any) -> None:
        """Say what surefoot can't use in a space of actions that are no choices."""
        if not isinstance(action, gymnasium.spaces.Box) or len(action.shape) != 1:
            self.say("error", f"actions are {action}, and surefoot sends vectors (a one-dimensional Box)",
                     "flatten them to one vector")  # fmt: skip
        elif action.dtype.kind != "f":
            self.say("error", f"actions are whole numbers ({action}), and agents give real ones",
                     "declare dtype=np.float32 and round in the environment, or offer Discrete choices")  # fmt: skip
        elif not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
            self.say("error", f"the action space {action} has no finite bounds to scale a policy by",
                     "declare the lowest and highest action that the system takes, or bound it from outside: "
                     f"{BOUND}")  # fmt: skip
        elif not (action.low <= action.high).all() or (action.low == action.high).all():
            at = int(np.flatnonzero(action.low >= action.high)[0])
            self.say("error", f"action {at} has low {action.low[at]} and high {action.high[at]}",
                     "give every action a range, or leave it out")  # fmt: skip
        elif (action.low == action.high).any():
            at = int(np.flatnonzero(action.low == action.high)[0])
            value = action.low[at]
            self.say("warning", f"action {at} has low {value} and high {value}, and so that value always",
                     "give it a range if it is not locked, or leave it out")  # fmt: skip

    def check_reset(self) -> bool:
        """Whether `reset(seed=...)` gives (observation, info)."""
        result = self.ask("reset(seed=...)", self.env.reset, RESET, seed=self.seed)
        parts = self.checked("reset", reset_parts, result)
        if parts is not None:
            self.mask = given_mask(self.env, *parts)
            self.check_observation(parts[0], "the first observation")
        return parts is not None

    def check_steps(self) -> bool:
        """Random steps, with resets after ends; whether `step` gives five values."""
        length, before = 0, None
        for step in range(self.steps):
            action = self.obeying(self.draw())
            kept = np.array(action, copy=True)
            parts = self.checked("step", step_parts, self.ask(f"step {step}", self.env.step, GOES_ON, action))
            if parts is None:
                return False
            observation, reward, terminated, truncated, info = parts
            if not np.array_equal(kept, action):
                self.say("warning", "step changes the action array that it is given", "copy the action first")
            if observation is before and isinstance(observation, np.ndarray):
                self.say("warning", "step returns the same array every time, so stored observations change later",
                         "return a copy")  # fmt: skip
            before = observation
            self.mask = given_mask(self.env, observation, info)
            self.check_observation(observation, f"the observation of step {step}")
            self.check_reward(reward, step)
            self.check_flags(terminated, truncated, step)
            self.check_constraint(info, step)
            length += 1
            if terminated or truncated:
                self.lengths.append((length, bool(terminated), bool(truncated)))
                length, before = 0, None
                parts = self.ask(f"the reset after step {step}", self.env.reset)
                self.mask = given_mask(self.env, *parts) if isinstance(parts, tuple) and len(parts) == 2 else None
        return True

    def check_observation(self, observation: Any, which: str) -> None:
        """Shape, dtype, finite numbers and bounds of one observation."""
        space = self.env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or space.dtype == np.uint8:
            if observation not in space:
                self.say("error", f"{which} is not in {space}", "return what the space declares")
            return
        if not isinstance(observation, np.ndarray):
            self.say("error", f"{which} is {kind(observation)}", f"return np.array(..., dtype=np.{space.dtype})")
            return
        if observation.shape != space.shape:
            self.say("error", f"{which} has shape {observation.shape}, and the space has {space.shape}", AGREE)
            return
        if observation.dtype != space.dtype:
            self.say("warning", f"{which} is {observation.dtype}, and the space is {space.dtype}",
                     f"return observation.astype(np.{space.dtype})")  # fmt: skip
        if not np.isfinite(observation).all():
            self.say("error", f"{which} holds {_first(observation, ~np.isfinite(observation))}",
                     "truncate the episode when the simulation diverges, and return finite numbers")  # fmt: skip
        elif (outside := (observation < space.low) | (observation > space.high)).any():
            at = tuple(int(i[0]) for i in np.nonzero(outside))
            self.say("error", f"{which} holds {_first(observation, outside)}, outside [{space.low[at]}, "
                     f"{space.high[at]}]", "widen the space to what can happen, or clip the observation")  # fmt: skip

    def check_reward(self, reward: Any, step: int) -> None:
        """One finite number."""
        if isinstance(reward, np.ndarray) or not isinstance(reward, NUMBERS):
            self.say("error", f"the reward of step {step} is {kind(reward)}", "return float(reward)")
        elif not np.isfinite(reward):
            self.say("error", f"the reward of step {step} is {reward}", "return a finite reward")

    def check_flags(self, terminated: Any, truncated: Any, step: int) -> None:
        """Two booleans."""
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, FLAGS):
                self.say("error", f"{name} of step {step} is {kind(flag)}, no bool", "return bool(...) for both flags")

    def check_constraint(self, info: Mapping[str, Any], step: int) -> None:
        """Cost 0 or 1, 1 exactly where the margin is negative."""
        found = {key: info[key] for key in ("cost", "margin") if key in info}
        self.seen.append(set(found))
        for key, value in found.items():
            if not isinstance(value, NUMBERS) or not np.isfinite(value):
                self.say("error", f"info['{key}'] of step {step} is {kind(value)}", f"make {key} one finite number")
                return
        cost, margin = found.get("cost"), found.get("margin")
        if "costs" in info:
            self.say("warning", f"info['costs'] of step {step} is read by nothing",
                     "put the step's cost into info['cost'], the sum where there are several constraints")  # fmt: skip
        if cost is not None and cost < 0:
            self.say("error", f"info['cost'] of step {step} is {cost}, below 0",
                     "give 0 on a safe step and a number above 0 on a violating one")  # fmt: skip
        elif cost is not None and cost not in (0, 1):
            self.say("warning", f"info['cost'] of step {step} is {cost}",
                     "give 0 or 1; limits and violation rates count steps")  # fmt: skip
        elif cost is not None and margin is not None:
            self.check_agreement(cost, margin, f"in step {step}")

    def check_constraint_keys(self) -> None:
        """Cost and margin in every step or in none."""
        for key in ("cost", "margin"):
            having = sum(key in keys for keys in self.seen)
            if 0 < having < len(self.seen):
                missing = next(step for step, keys in enumerate(self.seen) if key not in keys)
                self.say("error", f"info['{key}'] is in {having} of {len(self.seen)} steps, not in step {missing}",
                         f"give {key} in every step")  # fmt: skip

    def check_ends(self) -> None:
        """Ends that look like time limits, and episodes that never end."""
        limit = self.env.spec.max_episode_steps if self.env.spec is not None else None
        lengths = {length for length, *_ in self.lengths}
        if not self.lengths and limit is None:
            self.say("warning", f"no episode ended in {self.steps} random steps and there is no time limit",
                     "register it with max_episode_steps=..., or wrap it in gymnasium.wrappers.TimeLimit")  # fmt: skip
        elif len(self.lengths) > 2 and len(lengths) == 1 and all(ended for _, ended, _ in self.lengths):
            self.say("warning", f"all {len(self.lengths)} episodes terminated after exactly {lengths.pop()} steps",
                     "if that is a time limit, return it as truncated: terminated stops bootstrapping")  # fmt: skip
        elif limit is not None and any(length > limit for length in lengths):
            self.say("error", f"an episode took {max(lengths)} steps, above its time limit of {limit}",
                     "let gymnasium.wrappers.TimeLimit count, or truncate at the limit")  # fmt: skip

    def check_seeds(self) -> bool:
        """Whether equal seeds give equal episodes; other seeds and no seed should give others."""
        actions = [self.draw() for _ in range(20)]
        first, second = (self.ask("an episode", self.episode, GOES_ON, self.seed, actions) for _ in range(2))
        if not _same(first, second):
            self.say("error", "two episodes with the same seed and actions differ",
                     "draw everything from self.np_random, which super().reset(seed=seed) seeds")  # fmt: skip
            return False
        others = [self.ask("an episode without a seed", self.episode, GOES_ON, None, actions) for _ in range(2)]
        other_seed = self.ask("an episode", self.episode, GOES_ON, self.seed + 1, actions)
        if _same(first, other_seed):
            self.say(
                "warning", "another seed gives the same episode", "if starts should differ, draw them from np_random"
            )
        elif _same(*others):
            self.say("error", "every reset without a seed gives the same episode",
                     "seed only where a seed is given: super().reset(seed=seed)")  # fmt: skip
        return True

    def check_clipping(self) -> None:
        """What an action outside the bounds does."""
        space = self.env.action_space
        if not isinstance(space, gymnasium.spaces.Box) or not np.isfinite(space.high).all():
            return
        clip = "clip the action at the start of step, or wrap in gymnasium.wrappers.ClipAction"
        try:
            beyond = self.episode(self.seed, [(space.high + (space.high - space.low)).astype(space.dtype)] * 5)
        except Exception as error:
            self.say("warning", f"an action above its bounds raises {type(error).__name__}", clip)
            return
        if not _same(beyond, self.episode(self.seed, [space.high] * 5)):
            self.say("warning", "an action above its bounds does more than the highest action", clip)

    def episode(self, seed: int | None, actions: list[Any]) -> list[Any]:
        """Observations and rewards of a sequence of actions, until the episode ends."""
        first, info = self.env.reset(seed=seed)
        numbers = [copy.deepcopy(first)]
        self.mask = given_mask(self.env, first, info)
        for action in actions:
            taken = self.obeying(copy.deepcopy(action))
            observation, reward, terminated, truncated, info = self.env.step(taken)
            self.mask = given_mask(self.env, observation, info)
            numbers += copy.deepcopy([observation, reward])
            if terminated or truncated:
                break
        return numbers

    def obeying(self, action: Any) -> Any:
        """The action, or an allowed one in place of a choice that the environment's mask forbids."""
        if self.mask is None or not isinstance(self.env.action_space, gymnasium.spaces.Discrete):
            return action
        place = int(action) - int(self.env.action_space.start)
        there = np.flatnonzero(np.asarray(self.mask).reshape(-1))
        return action if place in there or len(there) == 0 else type(action)(action - place + there[place % len(there)])

    def draw(self) -> Any:
        """A random action, from this checker's own generator."""
        space = self.env.action_space
        if isinstance(space, gymnasium.spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all():
            return self.random.uniform(space.low, space.high).astype(space.dtype)
        space.seed(int(self.random.integers(2**31)))
        return space.sample()


def _same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(_equal(a, b) for a, b in zip(first, second, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, str):
        return bool(a == b)
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)


def _first(values: Array, where: Array) -> str:
    at = tuple(int(i[0]) for i in np.nonzero(where))
    return f"{values[at]} at index {at[0] if len(at) == 1 else at}"
