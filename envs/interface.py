"""What a vector environment of surefoot promises (in short: docs/environments.md), and helpers that read it.

A contract environment is a `gymnasium.vector.VectorEnv` with these promises on top:

* **Autoreset in the same step.** `metadata["autoreset_mode"]` is `SAME_STEP`: where an episode ends, the returned
  observation is the first of the next episode and `info["final_obs"]` holds the last of the old one. `final_obs` is
  dense, (N, ...), and equal to the observations in all other rows; `info["_final_obs"]` (N,) bool marks the rows that
  ended. Both may be absent from a step in which no episode ended. `final_observations` reads either form.
* **Termination is not truncation.** Only termination stops bootstrapping; a time limit truncates. Both may be true in
  one step. A state that stops being finite ends its episode, with finite numbers and `info["diverged"]` (N,) bool.
* **Rows that are no transitions.** `info["valid"]` (N,) bool is False there: the action was ignored, the reward is 0,
  no flag is set. Absent means all True. Sources that insert a row after each episode (gymnasium's NEXT_STEP, Isaac
  Gym) have `inserts_rows = True`: their observation after an end is still the last one, and the inserted row leads
  from it to the first of the next episode. Never store such a row.
* **Constraints.** `info["margin"]` (N,) float, signed, safe if >= 0, and `info["cost"]` (N,) float, 1 where the margin
  is negative: both of the step just taken, at an episode's end of its final state and not of the reset one. In every
  step or in none.
* **Masks of Discrete actions.** A Dict observation may have `action_mask`, (N, A) 1 where an action is allowed and 0
  where it is not, beside at least one other array. Every row that acts on, or is truncated, allows one; only the last
  observation of a terminated episode may allow none.
* **Lost final observations.** `exact_final_obs = False` where a source overwrites the final observation:
  `final_obs` then holds the observation *before* the last action, so that bootstrapping uses V(s_t).
* **Numbers.** numpy by default, as gymnasium's users expect; with `tensors="torch"` everything (N, ...) is a tensor on
  `env.device`, and `step` takes tensors. Arrays are fresh in every step; tensors may be written again by the next
  call, so copy what you keep.
* **Reset.** `reset(seed=..., options={"reset_mask": (N,) bool})`; an int seeds row i with seed + i, a sequence gives
  each row its own; the mask, where supported, resets those rows and returns the observations of all.
* **Planning and domain parameters**, where supported: `Stateful` and `Parametrised` below.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, nearest
from surefoot.core.base.spec import mapped
from surefoot.core.policy.policy import Policy

Array = np.ndarray[Any, Any]
Numbers = Array | Tensor
"""What a contract environment gives: numpy arrays, or tensors on its device."""

Tensors = Literal["numpy", "torch"]
TENSORS: tuple[Tensors, ...] = ("numpy", "torch")


@runtime_checkable
class Stateful(Protocol):
    """An environment whose whole simulator state can be saved and set, for planners, exact resumption and starts.

    With `observations`, (N, ...) of the present states, its episodes can start from snapshots (`envs.placing`).
    """

    @property
    def state(self) -> Any:
        """(N, S) numbers, a copy; everything that the next step depends on but the parameters."""

    @state.setter
    def state(self, value: Any) -> None: ...


@runtime_checkable
class Parametrised(Protocol):
    """An environment whose physical constants differ from row to row."""

    @property
    def parameters(self) -> Mapping[str, Numbers]:
        """Name -> (N,) values in the unit of the parameter; copies."""

    def set_parameters(self, **values: float | Numbers) -> None:
        """Set some parameters, each to one number for all rows or to (N,); from the next step on.

        Raises:
            ConfigError: an unknown name (the message gives the nearest) or a value out of its range.
        """


@dataclasses.dataclass(frozen=True)
class PolicyBlock:
    """What N environments did in T steps under sampling policies; tensors on one device."""

    observations: Tensor
    """(T, N, O) what each action was chosen by."""
    rewards: Tensor
    """(T, N)."""
    terminations: Tensor
    """(T, N) bool."""
    truncations: Tensor
    """(T, N) bool."""
    next_observations: Tensor
    """(T, N, O); where an episode ended, the last one of it."""
    noise: Tensor
    """(T, N, A) standard normal numbers that the policies sampled by."""
    costs: Tensor
    """(T, N), 0 or 1."""
    finished: Tensor
    """(N,) episodes that ended; the next four are sums over them, and over all steps."""
    finished_lengths: Tensor
    finished_returns: Tensor
    finished_costs: Tensor
    returns: Tensor


@runtime_checkable
class RollsOut(Protocol):
    """An environment that has policies inside its own loop: many steps in one call."""

    def rolls_out(self, policy: Policy) -> bool:
        """Whether it can draw the actions of such a policy."""
        ...

    def roll_out(self, policies: Sequence[Policy], horizon: int, device: str | torch.device) -> PolicyBlock:
        """The next `horizon` steps; policy i samples the actions of the i-th of equal parts of the rows."""
        ...


class VectorEnvironment(VectorEnv[Any, Any, Any]):
    """Base of environments that keep the contract: spaces, the kind of numbers given, and their conversion.

    Args:
        num_envs: rows N, at least 1.
        single_observation_space: of one row, without N.
        single_action_space: of one row, without N.
        tensors: "numpy" or "torch": what `reset` and `step` give.
        device: where tensors live.

    Raises:
        ConfigError: fewer rows than 1, or another kind of numbers.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012
    exact_final_obs: bool = True
    """False where the source overwrites final observations; `final_obs` is then the one before the last action."""
    seeding: Literal["rows", "whole", "none"] = "rows"
    """What `reset` takes a seed for: each row, all rows together (one int), or nothing, as where the source draws from
    global generators."""
    inserts_rows: bool = False
    """True where a row with `valid` False follows each episode."""
    constraint_keys: ClassVar[tuple[str, ...]] = ("cost", "margin")

    def __init__(
        self,
        num_envs: int,
        single_observation_space: gymnasium.Space[Any],
        single_action_space: gymnasium.Space[Any],
        tensors: Tensors = "numpy",
        device: str | torch.device = "cpu",
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; a vector environment needs at least 1 row")
        if tensors not in TENSORS:
            raise ConfigError(f"tensors={tensors!r} is no kind of numbers: {nearest(str(tensors), TENSORS)}")
        self.num_envs = num_envs
        self.single_observation_space = single_observation_space
        self.single_action_space = single_action_space
        self.observation_space = batch_space(single_observation_space, num_envs)
        self.action_space = batch_space(single_action_space, num_envs)
        self.tensors: Tensors = tensors
        self.device = torch.device(device)

    def give(self, values: Any) -> Numbers:
        """Values of either kind as the kind that this environment gives; arrays never share a tensor's memory."""
        if not isinstance(values, np.ndarray | Tensor) and isinstance(
            values, Mapping
        ):  # observations of several arrays
            return {key: self.give(value) for key, value in values.items()}  # type: ignore[return-value]
        if self.tensors == "torch":
            return torch.as_tensor(values, device=self.device)
        return values.detach().to("cpu", copy=True).numpy() if isinstance(values, Tensor) else as_numpy(values)

    def give_info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """An info whose numeric (N, ...) entries are of the kind that this environment gives."""
        named = {key for key, value in info.items() if key == "final_obs" and isinstance(value, Mapping)}
        return {key: self.give(value) if key in named or is_numeric(value) else value for key, value in info.items()}

    def check_actions(self, actions: Any) -> None:
        """Make sure that actions have one row for each environment and the width of the action space.

        Raises:
            EnvironmentMismatchError: another shape; the message gives both.
        """
        wanted = tuple(self.action_space.shape or ())
        if tuple(np.shape(actions)) != wanted:
            raise EnvironmentMismatchError(
                f"actions have shape {tuple(np.shape(actions))}; this environment takes {wanted} "
                f"({self.num_envs} rows of {self.single_action_space})"
            )


def check_contract(env: Any) -> None:
    """Make sure that an environment resets in the same step, as all of surefoot's code expects.

    Raises:
        EnvironmentMismatchError: it is no vector environment, or resets otherwise; the message says how to adapt it.
    """
    mode = autoreset_mode(env)
    if not hasattr(env, "num_envs") or mode is not AutoresetMode.SAME_STEP:
        found = "is no vector environment" if not hasattr(env, "num_envs") else f"has autoreset mode {mode}"
        raise EnvironmentMismatchError(
            f"{type(env).__name__} {found}, and surefoot steps vector environments that reset in the same step: "
            "wrap it in surefoot.envs.adapters.adapt"
        )


def autoreset_mode(env: Any) -> AutoresetMode | None:
    """The mode of `env.autoreset_mode` or `env.metadata`, gymnasium's enum or its name; None if it says nothing."""
    mode = getattr(env, "autoreset_mode", None)  # first: gymnasium 1.1 shares the metadata between environments
    if mode is None:
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    return None if mode is None else as_autoreset_mode(mode)


def as_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """A mode from gymnasium's enum, its name ("SAME_STEP") or its value ("SameStep").

    Raises:
        ConfigError: neither; the message gives the nearest name.
    """
    if isinstance(mode, AutoresetMode):
        return mode
    named = {m.name.lower(): m for m in AutoresetMode} | {m.value.lower(): m for m in AutoresetMode}
    if str(mode).lower() not in named:
        raise ConfigError(f"{mode!r} is no autoreset mode: {nearest(str(mode), [m.name for m in AutoresetMode])}")
    return named[str(mode).lower()]


def final_observations(observations: Numbers, info: Mapping[str, Any]) -> Numbers:
    """Each row's observation at the end of the step: the final one where an episode ended.

    Args:
        observations: (N, ...) as `step` gave them.
        info: of the same step; its `final_obs` may be dense or gymnasium's array of objects.

    Returns:
        (N, ...): what a transition's `next_observations` are.
    """
    final = info.get("final_obs")
    if final is None:
        return observations
    if not (isinstance(final, np.ndarray) and final.dtype == object):
        return final
    complete = mapped(lambda rows: np.array(rows, copy=True), observations)
    for row, value in enumerate(final):
        if isinstance(value, Mapping):
            for key, part in value.items():
                complete[key][row] = part
        elif value is not None:
            complete[row] = value
    return complete


def valid_rows(info: Mapping[str, Any], num_envs: int) -> Numbers:
    """(N,) bool: rows of the step that are transitions."""
    valid = info.get("valid")
    return np.ones(num_envs, dtype=np.bool_) if valid is None else valid


def costs_of(margins: Any) -> Any:
    """(N,) float32 costs that margins stand for: 1 where one is negative, and NaN, which is refused, where one is NaN.

    Args:
        margins: (N,) array or tensor; the costs are of the same kind.
    """
    if isinstance(margins, torch.Tensor):
        return torch.where(margins.isnan(), margins, (margins < 0).to(margins.dtype)).to(torch.float32)
    return np.where(np.isnan(margins), np.nan, margins < 0).astype(np.float32)


SUCCESS = ("success", "is_success")
"""Entries of a step's info that say whether the task is solved; the first that is there counts."""


def step_values(info: Mapping[str, Any], key: str, num_envs: int) -> Numbers | None:
    """(N,) values of `info[key]` that belong to the step just taken, or None where the step has none.

    gymnasium's own classes keep the last step's entries in `final_info` and give those of the reset in `info`; ours
    give those of the step. Both are read.
    """
    final = info.get("final_info")
    if not isinstance(final, Mapping) or key not in final:
        return info.get(key)
    here = final.get(f"_{key}")
    ended = np.ones(num_envs, np.bool_) if here is None else as_numpy(here).astype(np.bool_)
    values = info.get(key)
    base = np.zeros(num_envs, as_numpy(final[key]).dtype) if values is None else as_numpy(values)
    return np.where(ended, as_numpy(final[key]), base)


def row_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed for each row, as gymnasium counts them: seed + i from an int.

    Raises:
        ConfigError: a sequence of another length.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + row for row in range(num_envs)]
    if len(seed) != num_envs:
        raise ConfigError(f"{len(seed)} seeds were given for {num_envs} environments: give one each, or an int")
    return [None if one is None else int(one) for one in seed]


def reset_mask(options: Mapping[str, Any] | None, num_envs: int) -> Array | None:
    """(N,) bool rows to reset from `options["reset_mask"]`, or None for all.

    Raises:
        ConfigError: a mask of another shape or dtype.
    """
    mask = (options or {}).get("reset_mask")
    if mask is None:
        return None
    mask = as_numpy(mask)
    if mask.shape != (num_envs,) or mask.dtype != np.bool_:
        raise ConfigError(f"reset_mask is {mask.dtype} of shape {mask.shape}; it must be bool of shape ({num_envs},)")
    return mask


def as_numpy(values: Any) -> Array:
    """Tensors of any device and anything that numpy reads, as a numpy array; no copy where memory allows."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def is_numeric(value: Any) -> bool:
    """Whether a value is an array of numbers or a tensor (and not an array of objects)."""
    return isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")
