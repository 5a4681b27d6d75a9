"""Curricula: which of several tasks each training episode is about, by what the returns say of them.

A task is a cell of a simulator's constants (`VariedParameters`), or a cluster of snapshots that episodes start from
(`envs.snapshots`). A teacher of each seed draws them, and hears what each episode returned:

* uniform: all alike, which for constants is domain randomization;
* progress: where returns change most, whatever the direction. With means m of a task's returns that follow fast and
  slowly, p_i = (1 - eta) |m_fast - m_slow|_i / sum_j |m_fast - m_slow|_j + eta / K. Source: Kanitscheider et al.,
  "Multi-task curriculum learning in a complex, visual, hard-exploration domain" (2021), on absolute learning progress
  (Portelas et al., "Teacher algorithms for curriculum learning of deep RL", 2019);
* improvement: a bandit by mirror descent with weights that are forgotten, w_i <- 0.99 w_i + step u / p_i for the
  improvement u that an episode of task i brought, p = (1 - eta) softmax(w) + eta / K. Source: exponential weights, Auer
  et al., "The nonstochastic multiarmed bandit problem" (2002); the improvement as utility after Gu et al.,
  "Actor-Curator" (2026), of which the abstract was read.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, nearest
from surefoot.envs.drawn_episodes import DrawnEpisodes
from surefoot.envs.interface import (
    Array,
    Numbers,
    as_numpy,
    check_contract,
    reset_mask,
    valid_rows,
)
from surefoot.envs.parameters import Ranges
from surefoot.envs.side_by_side import name_of

EXPLORED = 0.1
"""eta: part of the draws that is uniform."""
FAST, SLOW = 0.1, 0.02
"""Rates, an episode, of the means of a task's returns."""
TRIED = 5
"""Episodes of a task below which it counts as one of the most progress."""
CALM = 1e-3
"""Part of the range of returns that each task's change is raised by, so that tasks are alike where none changes."""
FORGOTTEN, STEP = 0.99, 0.2
"""What is left of the weights after an episode, and their step."""
LEAST = 0.01
"""Improvements below this part of the range of returns are not scaled up."""
MOST_TASKS = 10_000


class Teacher:
    """Draws K tasks uniformly; the other teachers inherit what it remembers of returns.

    Args:
        tasks: K, at least 1.
    """

    name: ClassVar[str] = "uniform"
    remembered: ClassVar[tuple[str, ...]] = ("counts", "fast", "slow", "weights", "scale", "lowest", "highest")
    """Attributes that a checkpoint holds, (K,) each."""

    def __init__(self, tasks: int) -> None:
        """Begin without having heard of any task."""
        self.tasks = tasks
        self.counts, self.fast, self.slow, self.weights = np.zeros((4, tasks))
        self.scale, self.lowest, self.highest = np.zeros((3, tasks))
        """The scale of improvements, and the least and the greatest return; the same in all tasks."""

    def probabilities(self) -> Array:
        """(K,) of the next draw."""
        return np.full(self.tasks, 1 / self.tasks)

    def observe_outcome(self, task: int, score: float) -> None:
        """Take what an episode of a task returned; one that is not finite says nothing."""
        if not np.isfinite(score):
            return
        first = not self.counts.any()
        self.lowest[:] = score if first else min(self.lowest[0], score)
        self.highest[:] = score if first else max(self.highest[0], score)
        if self.counts[task] == 0:
            self.fast[task] = self.slow[task] = score
        before, p = float(self.fast[task]), float(self.probabilities()[task])
        self.counts[task] += 1
        self.fast[task] += FAST * (score - self.fast[task])
        self.slow[task] += SLOW * (score - self.slow[task])
        self._improved(task, float(self.fast[task]) - before, p)

    def _improved(self, task: int, improvement: float, p: float) -> None:
        """Take how far an episode of a task, drawn with probability p, moved the mean of its returns."""


class Progress(Teacher):
    """Draws tasks by how much their returns change, up or down."""

    name = "progress"

    def probabilities(self) -> Array:
        """As `Teacher.probabilities`."""
        changes = np.abs(self.fast - self.slow) + CALM * (self.highest - self.lowest)
        new = self.counts < TRIED
        changes = np.where(new, changes.max() if changes.any() else 1.0, changes)
        total = changes.sum()
        shares = changes / total if total > 0 else np.full(self.tasks, 1 / self.tasks)
        return np.asarray((1 - EXPLORED) * shares + EXPLORED / self.tasks)


class Improvement(Teacher):
    """Draws tasks by how much episodes of them improved their returns, in exponential weights."""

    name = "improvement"

    def probabilities(self) -> Array:
        """As `Teacher.probabilities`."""
        powers = np.exp(self.weights - self.weights.max())
        return np.asarray((1 - EXPLORED) * powers / powers.sum() + EXPLORED / self.tasks)

    def _improved(self, task: int, improvement: float, p: float) -> None:
        """The task's weight moves by the improvement in units of its usual size, divided by p, and by 1 at most."""
        self.scale[:] += SLOW * (improvement**2 - self.scale[0])
        unit = max(float(np.sqrt(self.scale[0])), LEAST * float(self.highest[0] - self.lowest[0]))
        self.weights *= FORGOTTEN
        if unit > 0:
            self.weights[task] += np.clip(STEP * improvement / unit / p, -1.0, 1.0)


TEACHERS: dict[str, type[Teacher]] = {kind.name: kind for kind in (Teacher, Progress, Improvement)}
"""Name -> teacher, as the setting `curriculum=` has it."""


class Lessons:
    """The teachers of the seeds whose rows an environment has, and the task and the return so far of each row.

    Args:
        kind: name of a teacher.
        tasks: K.
        rows: of all seeds.
        rows_each: of one seed.

    Raises:
        ConfigError: no such teacher, or a number of tasks out of [1, `MOST_TASKS`].
    """

    def __init__(self, kind: str, tasks: int, rows: int, rows_each: int) -> None:
        if kind not in TEACHERS:
            raise ConfigError(f"no curriculum is called {kind!r}; {nearest(kind, list(TEACHERS))}")
        if not 1 <= tasks <= MOST_TASKS:
            raise ConfigError(f"a curriculum of {tasks:,} tasks: give from 1 to {MOST_TASKS:,}, in fewer cells")
        self.rows_each = rows_each
        self.teachers = [TEACHERS[kind](tasks) for _ in range(rows // rows_each)]
        self.task = np.full(rows, -1, np.int64)
        """(N,) of each row's running episode; -1: of none."""
        self.returns = np.zeros(rows)

    def draw(self, row: int, numbers: np.random.Generator) -> int:
        """The task of a row's next episode."""
        shares = self.teachers[row // self.rows_each].probabilities().cumsum()
        task = min(int(np.searchsorted(shares, numbers.random() * shares[-1], side="right")), len(shares) - 1)
        self.task[row] = task
        return task

    def add(self, rewards: Any, moved: Array) -> None:
        """Add the (N,) rewards of a step in the (N,) bool rows that moved."""
        self.returns += np.where(moved, as_numpy(rewards), 0.0)

    def over(self, rows: Array) -> None:
        """Tell the teachers what the episodes of rows returned that are over."""
        for row in rows.tolist():
            if self.task[row] >= 0:
                self.teachers[row // self.rows_each].observe_outcome(int(self.task[row]), float(self.returns[row]))
        self.forget(rows)

    def forget(self, rows: Array) -> None:
        """Rows have no task until the next draw, as where episodes are broken off."""
        self.task[rows], self.returns[rows] = -1, 0.0

    def facts(self, seed: int) -> dict[str, Any]:
        """What the teacher of the seed at a position came to, as JSON values: a number for each task."""
        teacher = self.teachers[seed]
        return {
            "curriculum": teacher.name,
            "episodes": teacher.counts.astype(int).tolist(),
            "returns": [float(v) if n else None for v, n in zip(teacher.fast, teacher.counts, strict=True)],
            "shares": teacher.probabilities().tolist(),
        }

    def get_state(self) -> dict[str, Array]:
        """Arrays with a row for each environment, of which those of one seed say the same of its teacher."""
        found = {"task": self.task.copy(), "returns": self.returns.copy()}
        for name in Teacher.remembered:
            of_seeds = np.stack([getattr(teacher, name) for teacher in self.teachers])
            found[name] = np.repeat(of_seeds, self.rows_each, 0)
        return found

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue from `get_state`.

        Raises:
            EnvironmentMismatchError: it is of other tasks or rows; nothing is changed then.
        """
        for name, own in self.get_state().items():
            if name not in state or np.shape(state[name]) != own.shape:
                raise EnvironmentMismatchError(
                    f"the state's {name!r} of the curriculum is not of {own.shape}: it is of other tasks"
                )
        self.task[:], self.returns[:] = state["task"], state["returns"]
        for seed, teacher in enumerate(self.teachers):
            for name in Teacher.remembered:
                getattr(teacher, name)[:] = state[name][seed * self.rows_each]


class VariedParameters(DrawnEpisodes):
    """An environment whose episodes draw physical constants: a cell of their ranges by a teacher, a point in it evenly.

    Args:
        env: contract environment with `set_parameters`, whose rows can be reset alone.
        ranges: constant -> the least and the most.
        cells: parts that each range is split into: tasks are all combinations, cells ** constants.
        curriculum: name of a teacher.
        rows_each: rows of one seed, which share a teacher; None: all.

    Raises:
        ConfigError: no constants, fewer cells than 1, too many tasks, or no such teacher.
        EnvironmentMismatchError: the environment has no constants that can be set, or resets in steps of its own.
    """

    purpose = "curriculum"

    def __init__(
        self, env: Any, ranges: Ranges, *, cells: int = 4, curriculum: str = "uniform", rows_each: int | None = None
    ) -> None:
        check_contract(env)
        if not ranges or cells < 1:
            raise ConfigError(f"{len(ranges)} constants in {cells} cells each: name at least one, of 1 or more")
        if not hasattr(env, "set_parameters") or getattr(env, "inserts_rows", False):
            raise EnvironmentMismatchError(
                f"{name_of(env)}: its physical constants can't be set for each episode: that takes set_parameters, and "
                "rows that are reset in the step that ends them (docs/environments.md)"
            )
        super().__init__(env)
        self.ranges = dict(ranges)
        places = itertools.product(range(cells), repeat=len(ranges))
        self.cells = np.array(list(itertools.islice(places, MOST_TASKS + 1)))
        """(K, constants) which part of each range a task is."""
        self.parts, rows = cells, env.num_envs
        self.lessons = Lessons(curriculum, len(self.cells), rows, rows if rows_each is None else rows_each)
        self._values: dict[str, Array] = {name: np.full(rows, low) for name, (low, _) in ranges.items()}
        self._started = False

    @property
    def parameters(self) -> Mapping[str, Numbers]:
        """Constant -> (N,) values of the running episodes."""
        return self.env.parameters  # type: ignore[no-any-return]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """New episodes with new constants in all rows, or in those of `options["reset_mask"]`."""
        mask = reset_mask(options, self.num_envs)
        rows = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        if seed is not None or not self._started:
            self.seed_draws(rows, seed)
        self._started = True
        self.lessons.over(rows) if mask is not None else self.lessons.forget(rows)
        self._draw(rows)
        return self.env.reset(seed=seed, options=options)  # type: ignore[no-any-return]

    def step(self, actions: Any) -> tuple[Any, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step; rows whose episode ended begin the next one with other constants.

        Raises:
            EnvironmentMismatchError: the environment can't reset single rows.
        """
        observations, rewards, terminations, truncations, info = self.env.step(actions)
        moved = as_numpy(valid_rows(info, self.num_envs)).astype(np.bool_)
        over = (as_numpy(terminations) | as_numpy(truncations)).astype(np.bool_) & moved
        self.lessons.add(rewards, moved)
        if over.any():
            self.lessons.over(np.flatnonzero(over))
            self._draw(np.flatnonzero(over))
            why = "vary= changes constants from episode to episode"
            observations = self.reset_alone(over, why)  # again: initial states and observations may depend on them
        return observations, rewards, terminations, truncations, info

    def _draw(self, rows: Array) -> None:
        """Draw the constants of rows, and set them."""
        for row in rows.tolist():
            numbers = self.numbers(row)
            cell = self.cells[self.lessons.draw(row, numbers)]
            shares = (cell + numbers.random(len(cell))) / self.parts
            for share, (name, (low, high)) in zip(shares.tolist(), self.ranges.items(), strict=True):
                self._values[name][row] = low + share * (high - low)
        self._draws[rows] += 1
        self.env.set_parameters(**self._values)

    def get_state(self) -> dict[str, Array]:
        """What the next draws depend on, and all of the environment where it can be saved (`unsaved`)."""
        own = {"draws": self._draws.copy(), "seeds": self._seeds.copy()} | self.lessons.get_state()
        own |= {f"value/{name}": value.copy() for name, value in self._values.items()}
        inner = self.env.get_state() if self._saves else {}
        return {**inner, **{f"vary/{name}": value for name, value in own.items()}}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a state of `get_state`.

        Raises:
            EnvironmentMismatchError: it is of another environment, of other constants or rows.
        """
        own = {key.removeprefix("vary/"): value for key, value in state.items() if key.startswith("vary/")}
        for name in ("draws", "seeds", *(f"value/{name}" for name in self._values)):
            if name not in own or np.shape(own[name]) != (self.num_envs,):
                raise EnvironmentMismatchError(f"the state's {name!r} is none of {self.num_envs} rows: of another run")
        self.lessons.set_state(own)
        self._draws[:], self._seeds[:], self._started = own["draws"], own["seeds"], True
        for name, value in self._values.items():
            value[:] = own[f"value/{name}"]
        if self._saves:
            self.env.set_state({key: value for key, value in state.items() if not key.startswith("vary/")})
        else:
            self.env.set_parameters(**self._values)


def lessons_of(env: Any) -> Lessons | None:
    """The lessons of an environment, or of what it is wrapped around; None: it has none."""
    while env is not None:
        found = getattr(env, "__dict__", {}).get("lessons")
        if isinstance(found, Lessons) and len(found.teachers[0].probabilities()) > 1:
            return found
        env = getattr(env, "__dict__", {}).get("env")
    return None
