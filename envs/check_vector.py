"""What is wrong with a vector environment, in words; `surefoot.envs.check.check_environment` calls it."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from surefoot.core.base.errors import SurefootError
from surefoot.envs.interface import Array, as_numpy, autoreset_mode, final_observations, step_values
from surefoot.envs.returned import WrongReturnError, step_parts
from surefoot.envs.spaces import mapped

GOES_ON = "terminate or truncate an episode that can't continue, and raise nothing"
Level = Literal["error", "warning"]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and what to do about it."""

    level: Level
    """An error breaks training or evaluation; a warning makes them worse than they need be."""
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.level}: {self.what}; {self.advice}"


def check_vector(env: VectorEnv[Any, Any, Any], steps: int, seed: int) -> list[Finding]:
    """What is wrong with a vector environment; arguments as `surefoot.envs.check.check_environment`."""
    checker = VectorChecker(env, steps, seed)
    with contextlib.suppress(RaisedError):
        checker.run()
    return checker.findings


class RaisedError(Exception):
    """A call of the environment raised, which is among the findings: there is nothing more to check."""


class Findings:
    """What a checker has found in an environment, at most one finding of a kind."""

    def __init__(self, env: Any, steps: int, seed: int) -> None:
        self.env, self.steps, self.seed = env, steps, seed
        self.findings: list[Finding] = []
        self.random = np.random.default_rng(seed)

    def say(self, level: Level, what: str, advice: str) -> None:
        """Remember a finding unless its advice, so its kind, has been given already."""
        if all(finding.advice != advice for finding in self.findings):
            self.findings.append(Finding(level, what, advice))

    def checked(self, who: str, check: Callable[..., T], *given: Any) -> T | None:
        """What a check of `envs.returned` gives; None, and a finding, where it raises."""
        try:
            return check(*given)
        except WrongReturnError as wrong:
            self.say("error", f"{who} gives {wrong.what}", wrong.advice)
            return None

    def ask(self, call: str, function: Callable[..., T], refused: str = GOES_ON, /, *given: Any, **named: Any) -> T:
        """What a call of the environment gives; `refused` is the advice where it does not take what it is given.

        Raises:
            RaisedError: it raised something.
        """
        try:
            return function(*given, **named)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            if isinstance(error, TypeError) and refused != GOES_ON:
                self.say("error", f"{call} is refused ({error})", refused)
            else:
                what = f"raised {type(error).__name__}: {error} ({at.filename}:{at.lineno})"
                self.say("error", f"{call} {what}", GOES_ON)
            raise RaisedError from error

    def check_agreement(self, cost: Any, margin: Any, where: str) -> None:
        """A cost of 1 exactly where the margin is negative."""
        if bool(cost) != (margin < 0):
            self.say("error", f"{where} the cost is {cost} and the margin {margin}",
                     "make the cost 1 exactly where the margin is negative (safe if >= 0)")  # fmt: skip


class VectorChecker(Findings):
    """Steps all rows with random actions and compares what comes with the autoreset mode that is declared."""

    def __init__(self, env: VectorEnv[Any, Any, Any], steps: int, seed: int) -> None:
        super().__init__(env, steps, seed)
        self.mode: AutoresetMode | None = None
        self.keys: set[str] | None = None  # constraint keys of the step before

    def run(self) -> None:
        """All checks."""
        self.check_mode()
        observations, _ = self.ask("reset", self.env.reset, seed=self.seed)
        again, _ = self.ask("reset", self.env.reset, seed=self.seed)
        if not _equal(observations, again):
            self.say("error", "two resets with the same seed give other observations",
                     "draw everything from generators that reset(seed=...) seeds")  # fmt: skip
        if not self.check_numbers(again, "the first observations"):
            return
        ended = np.zeros(self.env.num_envs, np.bool_)
        ends = 0
        for step in range(self.steps):
            result = self.ask(f"step {step}", self.env.step, GOES_ON, self.draw())
            if not self.check_step(result, ended, step):
                return
            ended = as_numpy(result[2]).astype(np.bool_) | as_numpy(result[3]).astype(np.bool_)
            ends += int(ended.sum())
            if ended.any() and self.mode is AutoresetMode.DISABLED:
                self.ask(f"the reset after step {step}", self.env.reset, options={"reset_mask": ended})
        if not ends:
            self.say("warning", f"no episode ended in {self.steps} random steps of {self.env.num_envs} rows",
                     "check with more steps: what happens at an end is not checked")  # fmt: skip

    def check_mode(self) -> None:
        """The autoreset mode is declared."""
        advice = "set metadata['autoreset_mode'] to gymnasium.vector.AutoresetMode.SAME_STEP, NEXT_STEP or DISABLED"
        try:
            self.mode = autoreset_mode(self.env)
        except SurefootError as error:
            self.say("error", str(error), advice)
        if self.mode is None:
            self.say("error", "the environment does not say when it resets rows that ended", advice)

    def check_step(self, result: Any, ended: Array, step: int) -> bool:
        """One step's shapes, numbers and behaviour at ends; whether the rest can be checked."""
        parts = self.checked(f"step {step}", step_parts, result)
        if parts is None:
            return False
        observations, rewards, terminations, truncations, info = parts
        rows = (self.env.num_envs,)
        for name, values in (("rewards", rewards), ("terminations", terminations), ("truncations", truncations)):
            if tuple(np.shape(values)) != rows:
                self.say("error", f"{name} of step {step} have shape {tuple(np.shape(values))}",
                         f"return one value a row, shape {rows}")  # fmt: skip
                return False
        for name, flags in (("terminations", terminations), ("truncations", truncations)):
            if as_numpy(flags).dtype != np.bool_:
                self.say("error", f"{name} of step {step} are {as_numpy(flags).dtype}", "return bool flags")
        if not np.isfinite(as_numpy(rewards)).all():
            self.say("error", f"a reward of step {step} is not finite", "return finite rewards")
        if not (self.mode is AutoresetMode.NEXT_STEP and ended.any()):  # a row that resets says what its reset says
            self.check_constraint(info, step)
        self.check_ends(result, ended, step)
        return self.check_numbers(observations, f"the observations of step {step}")

    def check_numbers(self, observations: Any, which: str) -> bool:
        """Shape and finiteness of observations."""
        space = self.env.observation_space
        if isinstance(space, Mapping) and not (isinstance(observations, Mapping) and set(observations) == set(space)):
            self.say("error", f"{which} are no Dict of {', '.join(space)}", "return what the space declares")
            return False
        fine = mapped(lambda own, values: self._check_array(own, values, which), space, observations)
        return all(fine.values()) if isinstance(fine, dict) else bool(fine)

    def _check_array(self, space: Any, values: Any, which: str) -> bool:
        wanted = tuple(space.shape or ())
        if tuple(np.shape(values)) != wanted:
            self.say("error", f"{which} have shape {tuple(np.shape(values))}, and the space has {wanted}",
                     "make observation_space batch_space(single_observation_space, num_envs)")  # fmt: skip
            return False
        if not np.isfinite(as_numpy(values)).all():
            self.say("error", f"{which} are not all finite",
                     "truncate the episode of a row whose simulation diverges")  # fmt: skip
        return True

    def check_ends(self, result: Any, before: Array, step: int) -> None:
        """What the declared mode promises about this step and the one before."""
        observations, rewards, terminations, truncations, info = result
        ended = as_numpy(terminations) | as_numpy(truncations)
        if self.mode is AutoresetMode.NEXT_STEP and before.any():
            wrong = before & ((as_numpy(rewards) != 0) | ended)
            if wrong.any():
                self.say("error", f"row {int(wrong.argmax())} ended before step {step} and step {step} still gives a "
                         "reward or a flag there", "in NEXT_STEP the step after an end resets: reward 0, flags "
                         "False; if it resets in the same step, declare SAME_STEP")  # fmt: skip
        if self.mode is AutoresetMode.NEXT_STEP and "final_obs" in info:
            self.say("error", f"step {step} gives final_obs and the mode is NEXT_STEP", "declare SAME_STEP")
        if self.mode is not AutoresetMode.SAME_STEP or not ended.any():
            return
        if "final_obs" not in info:
            self.say("error", f"row {int(ended.argmax())} ended in step {step} without info['final_obs']",
                     "save the last observation before the reset, all rows in info['final_obs']")  # fmt: skip
            return
        final, observations = mapped(as_numpy, final_observations(observations, info)), mapped(as_numpy, observations)
        if mapped(np.shape, final) != mapped(np.shape, observations):
            self.say("error", f"final_obs of step {step} has shape {mapped(np.shape, final)}",
                     "give one row for each environment")  # fmt: skip
        elif not _equal(final, observations, ~ended):
            self.say("error", f"final_obs of step {step} differs from the observations in rows that did not end",
                     "copy the observations there")  # fmt: skip
        elif _equal(final, observations, ended) and not getattr(self.env, "inserts_rows", 0):
            self.say("warning", f"final_obs of step {step} is the reset observation",
                     "save the last observation before the row is reset")  # fmt: skip

    def check_constraint(self, info: Mapping[str, Any], step: int) -> None:
        """Cost and margin: in every step, a number a row, the cost 1 exactly where the margin is negative."""
        found = {key: step_values(info, key, self.env.num_envs) for key in ("cost", "margin")}
        here = {key for key, value in found.items() if value is not None}
        if self.keys is not None and here != self.keys:
            self.say("error", f"step {step} gives {', '.join(sorted(here)) or 'no constraint'}, and the step before "
                     f"{', '.join(sorted(self.keys)) or 'none'}", "give cost and margin in every step")  # fmt: skip
        self.keys = here
        values = {key: as_numpy(found[key]) for key in here}
        if len(values) == 2 and not np.array_equal(values["cost"] != 0, values["margin"] < 0):
            row = int(((values["cost"] != 0) != (values["margin"] < 0)).argmax())
            self.check_agreement(values["cost"][row], values["margin"][row], f"in row {row} of step {step}")

    def draw(self) -> Any:
        """Random actions of all rows, as the environment takes them."""
        space = self.env.action_space
        space.seed(int(self.random.integers(2**31)))
        actions = space.sample()
        if getattr(self.env, "tensors", "numpy") == "torch":
            import torch

            return torch.as_tensor(actions, device=getattr(self.env, "device", "cpu"))
        return actions


def _equal(first: Any, second: Any, rows: Any = slice(None)) -> bool:
    """Whether two observations of all environments are the same in these rows, in all their arrays."""
    same = mapped(lambda a, b: np.array_equal(as_numpy(a)[rows], as_numpy(b)[rows]), first, second)
    return all(same.values()) if isinstance(same, dict) else bool(same)
