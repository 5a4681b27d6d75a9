"""`Stepping`: one step of every row, checked and resolved; `Acting`: the same in the units of agents that learn."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.actions import middle_and_half
from surefoot.core.base.errors import ConfigError, DivergenceError, EnvironmentMismatchError
from surefoot.core.base.precision import FirstSteps
from surefoot.core.base.random import generator
from surefoot.core.base.spec import MASK, VECTOR, mapped, named, unnamed
from surefoot.envs.acting.interventions import speaks_of, taken_over
from surefoot.envs.acting.sums import EpisodeMeans, RecentEpisodes
from surefoot.envs.interface import Numbers, as_numpy, check_contract, final_observations, valid_rows
from surefoot.envs.side_by_side import name_of
from surefoot.envs.spaces import arrays_of

State = dict[str, Tensor]

STORED = ("rewards", "terminations", "truncations", "next_observations")
PROBE = 1.0
"""Seconds that `check_costs` acts for at most, where no episode ends before."""
CONSTRAINTS = {"costs": "cost", "margins": "margin"}
"""Column of a batch -> entry of a step's info."""

_under_way: tuple[str, float] | None = None


def waiting_for() -> tuple[str, float] | None:
    """The environment's call that is under way, in words, and the `time.monotonic()` of its beginning; None: none."""
    return _under_way


@dataclasses.dataclass(slots=True)
class Step:
    """What one step of all N rows came to, in the kind of numbers that the environment gives."""

    observations: Numbers
    """(N, O) what the next actions are chosen by."""
    next_observations: Numbers
    """(N, O) what the actions led to: the final observation where an episode ended."""
    rewards: Numbers
    """(N,)."""
    terminations: Numbers
    """(N,) bool."""
    truncations: Numbers
    """(N,) bool."""
    info: Mapping[str, Any]
    """As the environment gave it."""

    def batch(self, observations: Numbers, actions: Numbers) -> dict[str, Numbers]:
        """The columns of these transitions, and which rows are some: what a replay buffer's `add` takes.

        Args:
            observations: (N, O) what the actions were chosen by.
            actions: (N, ...).
        """
        columns = {"observations": observations, "actions": actions}
        columns |= {name: getattr(self, name) for name in STORED}
        columns |= {column: self.info[key] for column, key in CONSTRAINTS.items() if key in self.info}
        valid = self.info.get("valid")
        return columns if valid is None or bool(valid.all()) else columns | {"valid": valid}


class Stepping:
    """Calls `reset` and `step` of a contract environment (`envs.interface`), and checks what they give.

    Raises, as all methods do:
        EnvironmentMismatchError: the environment does not keep the contract; the message says what to do.
    """

    def __init__(self, env: Any) -> None:
        check_contract(env)
        self.env = env
        self.as_torch = getattr(env, "tensors", "numpy") == "torch"
        self.name = name_of(env)
        self.steps = 0
        """Vector steps taken since the last reset."""
        self.first_steps: FirstSteps | None = None
        """What looks at the first steps before their numbers become float32, where somebody wants to know."""
        discrete = isinstance(env.single_action_space, gymnasium.spaces.Discrete)
        self.masked = discrete and MASK in getattr(env.single_observation_space, "spaces", ())
        """Whether observations say which choices are allowed: that each row has one is checked."""
        self._shape: Any = mapped(lambda space: (env.num_envs, *(space.shape or ())), env.single_observation_space)

    def reset(self, seeds: Sequence[int | None]) -> Numbers:
        """New episodes in all rows, one seed each: (N, O) first observations."""
        global _under_way
        _under_way = (f"reset of {self.name}", time.monotonic())
        try:
            given = None if all(seed is None for seed in seeds) else self._seed(list(seeds))
            observations, _ = self.env.reset(seed=given)
        finally:
            _under_way = None
        self.steps = 0
        self._check("reset", "observations", observations, self._shape)
        if self.masked:
            self._check_masks(observations, np.ones(self.env.num_envs, np.bool_), "after a reset")
        return mapped(torch.clone, observations) if self.as_torch else observations

    def refuse_people(self, done: Step, why: str) -> None:
        """Raise an EnvironmentMismatchError where a person acted in a step, for agents that can't learn from it."""
        if not speaks_of(done.info):
            return
        if taken_over(done.info, self.env.single_action_space, self.env.num_envs, self.name) is not None:
            raise EnvironmentMismatchError(
                f"{self.name}: a person took over at step {self.steps}, and {why}: train an off-policy agent, such as "
                "hil, or leave the takeover out"
            )

    def _seed(self, seeds: list[int | None]) -> list[int | None] | int | None:
        """The seeds of the rows as the environment takes them: it may have one for all of them, or none."""
        kind = getattr(self.env, "seeding", "rows")
        return seeds if kind == "rows" else seeds[0] if kind == "whole" else None

    def step(self, actions: Any) -> Step:
        """Act in all rows; (N, ...) actions in the environment's own units, of either kind of numbers."""
        global _under_way
        if self.as_torch != isinstance(actions, Tensor):
            actions = torch.from_numpy(actions) if self.as_torch else actions.cpu().numpy()
        self.steps += 1
        _under_way = (f"step {self.steps} of {self.name}", time.monotonic())
        try:
            after, rewards, terminations, truncations, info = self.env.step(actions)
        finally:
            _under_way = None
        if self.as_torch:  # the environment may write into its tensors again
            after = mapped(torch.clone, after)
        if self.first_steps is not None:
            self.first_steps.take(after, rewards)
        final: Any = final_observations(after, info)
        if isinstance(self._shape, dict) or after.shape != self._shape or final.shape != self._shape:
            self._check("step", "observations", after, self._shape)
            self._check("step", "final observations", final, self._shape)
        rows = (self.env.num_envs,)
        if not rewards.shape == terminations.shape == truncations.shape == rows:
            for what, values in (("rewards", rewards), ("terminations", terminations), ("truncations", truncations)):
                self._check("step", what, values, rows)
        if self.masked:
            self._check_step_masks(after, final, terminations, truncations, info)
        return Step(after, final, rewards, terminations, truncations, info)

    def _check_step_masks(self, after: Any, final: Any, terminations: Any, truncations: Any, info: Any) -> None:
        """Each row that acts on, or whose value is bootstrapped, must have an action."""
        terminated, truncated = as_numpy(terminations).astype(np.bool_), as_numpy(truncations).astype(np.bool_)
        moved = as_numpy(valid_rows(info, len(terminated))).astype(np.bool_)
        waits = terminated | truncated if getattr(self.env, "inserts_rows", False) else np.zeros_like(moved)
        self._check_masks(after, moved & ~waits, f"after step {self.steps}")
        self._check_masks(final, moved & truncated & ~terminated, f"where an episode is cut off at step {self.steps}")

    def _check_masks(self, observations: Any, rows: np.ndarray[Any, Any], when: str) -> None:
        """That the mask of each of the (N,) bool `rows` allows an action, and is of 0 and 1."""
        masks = as_numpy(observations[MASK])
        allowed = masks == 1
        wrong = rows & ~(allowed | (masks == 0)).all(-1)
        none = rows & ~allowed.any(-1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise EnvironmentMismatchError(
                f"{self.name}: {MASK} of row {row} is {masks[row].tolist()} {when}: it is 1 where an action is allowed "
                "and 0 where it is not"
            )
        if none.any():
            raise EnvironmentMismatchError(
                f"{self.name}: {MASK} of row {int(np.flatnonzero(none)[0])} allows no action {when}: end the episode "
                "with terminated=True where nothing is left to do, or allow an action"
            )

    def _check(self, call: str, what: str, values: Any, shape: Any) -> None:
        named = isinstance(values, Mapping)
        found = mapped(lambda value: tuple(np.shape(value)), values if named or not isinstance(shape, dict) else {})
        if found != shape:
            raise EnvironmentMismatchError(
                f"{self.name}: its {call} gave {what} of shape {found} where {shape} is declared; "
                "make the space and what is returned agree (surefoot envs check says more)"
            )

    # -- what is saved -----------------------------------------------------------------------------------

    def environment_state(self, position: int, seeds: int) -> State:
        """What the rows of seed `position` of `seeds` need to continue; empty where the state can't be had."""
        env = self.env
        if not (hasattr(env, "get_state") and hasattr(env, "set_state")):
            return {}
        rows, found = env.num_envs // seeds, {}
        for name, array in env.get_state().items():
            value = np.array(array)  # a copy
            if seeds > 1 and value.ndim > 0 and len(value) == env.num_envs:
                value = value[position * rows : (position + 1) * rows].copy()
            found[f"environment/{name}"] = torch.from_numpy(value.view(np.int64) if value.dtype == np.uint64 else value)
        return found

    def restore_environment(self, states: Sequence[Mapping[str, Tensor]]) -> str | None:
        """Set what `environment_state` gave, one mapping a seed; None, or a sentence where it can't be.

        Raises:
            EnvironmentMismatchError: it was another environment.
        """
        env = self.env
        if not (hasattr(env, "get_state") and hasattr(env, "set_state")):
            return not_restored(type(env).__name__)
        whole = {}
        for name, own in env.get_state().items():
            key, like = f"environment/{name}", np.asarray(own)
            if key not in states[0]:
                raise EnvironmentMismatchError(f"the checkpoint has no {name!r} of the environment: it was another one")
            parts = [state[key].cpu().contiguous().numpy() for state in states]
            value = np.concatenate(parts) if len(parts) > 1 and like.ndim and len(like) == env.num_envs else parts[0]
            whole[name] = value.view(np.uint64) if like.dtype == np.uint64 else value.astype(like.dtype, copy=False)
        env.set_state(whole)
        unsaved = getattr(env, "unsaved", None)
        return None if unsaved is None else not_restored(unsaved)


class Acting(Stepping):
    """The environments of S seeds, N each: row s * N + e is environment e of seed s.

    Actions come in the units of agents, observations stay in those of the environment. Sums over the training episodes
    are kept, and the episodes that a multiplier follows.
    """

    def __init__(
        self,
        env: Any,
        seeds: Sequence[int],
        bounds: tuple[Tensor, Tensor] | None,
        device: torch.device,
        cost_window: int | None = None,
    ) -> None:
        """Take the environment over; `begin` begins the first episodes.

        Args:
            env: contract environment of S * N rows.
            seeds: S.
            bounds: lowest and highest action (A,), which -1 and 1 stand for; None: actions are one-hot choices.
            device: where `tensor` puts numbers.
            cost_window: episodes of each seed that `recent` looks back on, for agents with a constraint.

        Raises:
            ConfigError: rows that can't be shared among the seeds.
            EnvironmentMismatchError: the environment does not keep the contract.
        """
        super().__init__(env)
        if env.num_envs % len(seeds):
            raise ConfigError(f"{env.num_envs} environments can't be shared equally among {len(seeds)} seeds")
        self.seeds, self.device = list(seeds), device
        self.num_envs: int = env.num_envs // len(seeds)
        self.inserts_rows = bool(getattr(env, "inserts_rows", False))
        self.bounds = None if bounds is None else (*middle_and_half(*bounds), *bounds)
        """Middle, half width, lowest and highest (A,) of the actions."""
        self.episodes = EpisodeMeans(len(seeds), self.num_envs, device)
        self.recent = None if cost_window is None else RecentEpisodes(len(seeds), self.num_envs, cost_window, device)
        """Of agents with a constraint: the episodes that its multiplier follows."""
        self.arrays = arrays_of(env.single_observation_space, self.name)
        self.received: Any = torch.zeros(0)
        """(S * N, O) what the next actions are chosen by, as the environment gave it; key -> (S * N, *shape) of several
        arrays or a lone image."""

    def begin(self, block: int) -> None:
        """New episodes in all rows, with the row seeds of that block."""
        observations = self.reset([one for seed in self.seeds for one in row_seeds(seed, self.num_envs, block)])
        self.received = self.observed(observations)
        self.episodes.begin()
        if self.recent is not None:
            self.recent.begin()

    def act(self, actions: Tensor) -> Step:
        """Step all rows by (S * N, A) actions in [-1, 1], clipped to it, or one-hot choices."""
        if self.bounds is None:
            return self._noted(self.step(actions.argmax(-1)))
        middle, half, low, high = self.bounds
        scaled = torch.addcmul(middle, half, actions.clamp(-1, 1))  # `to_environment`, rounded once
        return self._noted(self.step(scaled.clamp_(low, high)))  # which may be the next float beyond a bound

    def _noted(self, done: Step) -> Step:
        """The step, whose terms of the reward are added to the sums of its episodes."""
        self.episodes.terms.add_step(done.info, done.terminations | done.truncations)
        return done

    def taken_over(self, done: Step) -> tuple[Tensor, Tensor] | None:
        """Where a person acted in a step: (S * N,) bool, and (S * N, A) actions in [-1, 1] or one-hot choices.

        None where no one did. An action beyond the bounds counts as the bound, as of a policy's.
        """
        if not speaks_of(done.info):
            return None
        space = self.env.single_action_space
        found = taken_over(done.info, space, self.env.num_envs, self.name)
        if found is None:
            return None
        rows = torch.from_numpy(found.rows & as_numpy(valid_rows(done.info, self.env.num_envs)).astype(np.bool_))
        actions = torch.from_numpy(found.actions)
        if self.bounds is None:
            chosen = (actions.reshape(-1).nan_to_num() - space.start).long().clamp(0, int(space.n) - 1)
            return rows.to(self.device), torch.nn.functional.one_hot(chosen, int(space.n)).float().to(self.device)
        middle, half = (value.double().cpu() for value in self.bounds[:2])
        units = ((actions - middle) / torch.where(half > 0, half, 1.0)).clamp(-1, 1)
        return rows.to(self.device), units.float().to(self.device)

    def tensor(self, values: Any) -> Tensor:
        """On the device, numbers as float32."""
        value = torch.as_tensor(values, device=self.device)
        return value if value.dtype in (torch.float32, torch.bool) else value.float()

    def observed(self, observations: Any) -> Any:
        """Observations on the device: a vector as float32 numbers; several arrays by key, images as bytes."""
        if VECTOR in self.arrays:
            return self.tensor(observations)
        if not isinstance(observations, Mapping):
            observations = dict.fromkeys(self.arrays, observations)
        return {
            key: as_bytes(torch.as_tensor(observations[key], device=self.device))
            if array.dtype == "uint8"
            else self.tensor(observations[key])
            for key, array in self.arrays.items()
        }

    @property
    def observed_arrays(self) -> Any:
        """Shapes and dtypes of what `observed` gives: one, or key -> each."""
        return self.arrays.get(VECTOR, self.arrays)

    def rows(self, values: Any) -> Any:
        """(S * N, ...) as (S, N, ...)."""
        if isinstance(values, Mapping):
            return {key: self.rows(value) for key, value in values.items()}
        return values.reshape(len(self.seeds), self.num_envs, *values.shape[1:])

    def state(self, position: int, stem: str, received: str) -> State:
        """What seed `position` needs to continue: sums, behind `stem`; what it `received`; environments."""
        mine = slice(position * self.num_envs, (position + 1) * self.num_envs)
        tensors = {column: value[mine] for column, value in named(received, self.received).items()}
        tensors |= {f"{stem}episodes/{name}": value for name, value in self.episodes.state(position).items()}
        if self.recent is not None:
            tensors |= {f"{stem}recent/{name}": value for name, value in self.recent.state(position).items()}
        return tensors | self.environment_state(position, len(self.seeds))

    def restore(self, states: Sequence[Mapping[str, Tensor]], stem: str, received: str) -> str | None:
        """Continue from what `state` gave by the same two names, one mapping a seed.

        Returns:
            None, or a sentence where the environment's state can't be restored: `begin` new episodes then.
        """
        for position, state in enumerate(states):
            self.episodes.restore(position, under(state, f"{stem}episodes/"))
            if self.recent is not None:
                self.recent.restore(position, under(state, f"{stem}recent/"))
        lost = self.restore_environment(states)
        if lost is None:
            whole = [unnamed(received, state) for state in states]
            self.received = mapped(lambda *parts: torch.cat(parts).to(self.device).clone(), *whole)
        return lost

    # -- what is wrong -----------------------------------------------------------------------------------

    def not_finite(self, row: int, number: int) -> DivergenceError:
        """What to raise where an observation or reward of a row is not finite at vector step `number`."""
        seed, environment = divmod(row, self.num_envs)
        return DivergenceError(
            f"environment {environment} of seed {self.seeds[seed]} gave an observation or reward that is not finite at "
            f"vector step {number}; lower its time step or bound its state. Checkpoints written before stay"
        )

    def bad_cost(self, row: int, number: int, cost: float) -> EnvironmentMismatchError:
        """The same where its cost is negative or not finite."""
        seed, environment = divmod(row, self.num_envs)
        return EnvironmentMismatchError(
            f"environment {environment} of seed {self.seeds[seed]} gave a cost of {cost:g} at vector step {number}; "
            "info['cost'] must be 0 on a safe step and a finite number > 0 on a violating one, and info['margin'] "
            "never NaN. Checkpoints written before stay"
        )

    def no_costs(self, agent: str) -> EnvironmentMismatchError:
        """The same where a constrained agent acts in an environment without costs."""
        return no_costs(agent, name_of(self.env))


def as_bytes(images: Tensor) -> Tensor:
    """Images of uint8; masks of truth values as zeros and ones."""
    return images.view(torch.uint8) if images.dtype == torch.bool else images


def no_costs(agent: str, env: str) -> EnvironmentMismatchError:
    """What to raise where a constrained agent acts in an environment without costs."""
    return EnvironmentMismatchError(
        f"{agent} keeps a limit on costs, and {env} gives none: put each step's cost into info['cost'], 0.0 on a safe "
        "step (or a safety margin into info['margin']; docs/safe_online.md has a wrapper that does), or train an "
        "algorithm without a constraint"
    )


def not_restored(name: str) -> str:
    """What to say where the state of an environment's class can't be restored."""
    return (
        f"the state of {name} can't be restored: a new episode begins in each environment, so that the run continues "
        "with other numbers than an uninterrupted one"
    )


def check_costs(env: Any, agent: str, env_id: str) -> None:
    """Act at random until a cost is seen, and at most for an episode or `PROBE` seconds; the environment is used up.

    Raises:
        EnvironmentMismatchError: there is none.
    """
    space, until = env.single_action_space, time.monotonic() + PROBE
    space.seed(0)
    env.reset(seed=[0] * env.num_envs)
    while True:
        *_, terminations, truncations, info = env.step(np.stack([space.sample() for _ in range(env.num_envs)]))
        if "cost" in info or "margin" in info:
            return
        if bool((as_numpy(terminations) | as_numpy(truncations)).any()) or time.monotonic() > until:
            raise no_costs(agent, env_id)


def row_seeds(seed: int, num_envs: int, block: int = 0) -> list[int]:
    """A seed for each environment of an agent's seed, the same alone and beside other agents."""
    return [int(one) for one in generator(seed, "environments", block).integers(0, 2**31, num_envs)]


def bad_costs(costs: Tensor, counted: Tensor | None) -> Tensor:
    """Which costs are negative or not finite, of the rows that are `counted` (None: all)."""
    bad = ~((costs >= 0) & torch.isfinite(costs))
    return bad if counted is None else bad & (counted != 0)


def under(state: Mapping[str, Tensor], stem: str) -> State:
    """The part of a saved state whose names begin with `stem`, without it."""
    return {name.removeprefix(stem): value for name, value in state.items() if name.startswith(stem)}
