"""Three lines of python: an algorithm and what it learns from as one object, with the verbs of stable-baselines3.

    from surefoot import PPO
    model = PPO("Hopper-v5")
    model.learn(100_000)

Beneath is `surefoot.fit`: a run folder with evaluations, checkpoints and policies, which the command line reads too.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch

from surefoot.api.fit import named_environment, shown
from surefoot.core.actors.memory import Memory
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, nearest
from surefoot.core.base.random import drawn
from surefoot.core.base.spec import MASK, mapped
from surefoot.core.policy.control_loop import as_array, check_width
from surefoot.core.policy.policy import Policy
from surefoot.data.checks import validate
from surefoot.data.dataset import Dataset
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.embedded import environment_of, load, source_name
from surefoot.runs.extend import extend
from surefoot.runs.plan import OPTIONS, Plan, agent_class, seeds_of
from surefoot.runs.progress_events import Listener
from surefoot.runs.run import IN_MEMORY, Run
from surefoot.runs.start import train


class Model:
    """An algorithm on an environment, a dataset or both; its subclasses carry the algorithms' names."""

    algorithm: ClassVar[str] = ""
    """Name of the algorithm."""

    def __init__(
        self, problem: Any = None, *others: Any, env: Any = None,
        dataset: str | os.PathLike[str] | Dataset | None = None, env_options: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Say what is learned from; nothing is trained yet.

        Args:
            problem: of algorithms that learn from data, the dataset; of others, the environment's id.
            others: nothing; what stable-baselines3 takes there is refused with what to write here.
            env: the environment's id; None with a dataset: the one that it was recorded in; "none": no simulator.
            dataset: path, id or `Dataset`.
            options: of the algorithm, such as `preset="paper"`, `learning_rate=1e-3` or `num_envs=8`.

        Raises:
            ConfigError: an unknown option, nothing to learn from, or something else than a dataset or an id.
            DataError: the dataset breaks what `Dataset` promises.
        """
        called = type(self).__name__
        if others:
            raise ConfigError(
                f"{called}() takes one problem, as {called}({self._example()}): networks are no policy's name but "
                "options, such as hidden=(64, 64); env= and dataset= are given by name"
            )
        kind = agent_class(self.algorithm)
        self.config = dataclasses.asdict(kind.configure(**options))
        if problem is not None:
            is_data = kind.data_with(self.config) == "required" or isinstance(problem, Dataset)
            if (dataset if is_data else env) is not None:
                given = "dataset" if is_data else "env"
                raise ConfigError(f"{called}: {problem!r} and {given}= are two of one: give one of them")
            if is_data:
                dataset = problem
            else:
                env = problem
        self.dataset: Dataset | None
        self._source: str | None = None
        if isinstance(dataset, str | os.PathLike):
            self._source = source_name(os.fspath(dataset))
            self.dataset = load(self._source)
        else:
            self.dataset = dataset
            if dataset is not None:
                validate(dataset)
                self._source = IN_MEMORY
        self.env = environment_of(self.dataset, named_environment(env, env_options, max_episode_steps))
        if self.dataset is None and self.env is None:
            raise ConfigError(f"{called}() learns from nothing: give an environment's id or a dataset")
        self.run: Run | None = None
        """The last training's folder, summary and policies."""
        self._policy: Policy | None = None  # read once: it remembers its episode between calls
        self._drawing: Policy | None = None  # one that draws its actions
        self._calls = 0  # for which it has drawn

    def _example(self) -> str:
        """What the algorithm may be given, as it is typed."""
        return "'data.hdf5'" if agent_class(self.algorithm).requires.data == "required" else "'Pendulum-v1'"

    def learn(
        self, steps: int, *, seeds: int | Sequence[int] = 1, out: str | os.PathLike[str] | None = None,
        progress: bool = True, listener: Listener | None = None, **options: Any,
    ) -> Self:  # fmt: skip
        """Train; called again, continue the same run for as many steps more.

        Args:
            steps: in the environment where the algorithm acts, gradient steps elsewhere; of each seed.
            seeds: how many, or which; of a first call.
            out: run folder, of a first call; None: a new one under runs/.
            progress: show bars, or lines where the output is not a terminal.
            listener: called with each event instead; where it returns False, training of the event's seed ends at its
                next step (docs/training.md#listeners).
            options: further fields of a run, such as `episodes=100`, `view="d4rl"` or `logger="wandb"` with
                `logger_options={"project": "arms"}`; of a first call.

        Raises:
            ConfigError: an option out of range, or one of a first call given again.
            DataError: `strict=True` refuses the dataset.
            DivergenceError: a loss stopped being finite.
        """
        self._policy = self._drawing = None
        with shown(progress, listener) as listener:
            if self.run is not None:
                if options or out is not None:
                    raise ConfigError("learn() continues its run: what is given anew is steps alone")
                self.run = extend(self.run.folder, self.run.plan.steps + steps, listener)
                return self
            listening = {name: options.pop(name, None) for name in ("logger", "logger_options")}
            for name in options:
                if name in ("env", "environment", "dataset"):
                    key = "dataset" if name == "dataset" else "env"
                    raise ConfigError(f"learn() has no option {name!r}: give {key}= to {type(self).__name__}() itself")
                if name not in OPTIONS:
                    raise ConfigError(f"learn() has no option {name!r}; {nearest(name, OPTIONS)}")
            plan = Plan(
                algorithm=self.algorithm,
                config=self.config,
                dataset=self._source,
                environment=self.env,
                steps=steps,
                seeds=seeds_of(seeds if isinstance(seeds, int) else list(seeds)),
                **options,
            )
            self._read_as(plan)
            self.run = train(plan, out, dataset=self.dataset, listener=listener, **listening)
        return self

    def _read_as(self, plan: Plan) -> None:
        """Read the dataset again, where the plan's `view` or `strict` is not what it was read by before it was known.

        Raises:
            ConfigError: another view of a `Dataset` that is read already.
            DataError: the dataset is refused by `strict`.
        """
        if plan.dataset == IN_MEMORY:
            read = None if self.dataset is None else self.dataset.as_read
            if plan.view != Plan.view and read not in (None, plan.view):
                raise ConfigError(
                    f"learn(view={plan.view!r}): the dataset was read with view={read!r} already; give its path or id "
                    f"in its place, or load(..., view={plan.view!r})"
                )
        elif plan.dataset is not None and any(plan.reading[name] != getattr(Plan, name) for name in plan.reading):
            self.dataset = load(plan.dataset, **plan.reading)

    @property
    def policy(self) -> Policy:
        """What was learned, of the first seed.

        Raises:
            ConfigError: nothing was learned yet.
        """
        if self.run is None:
            raise ConfigError(f"{type(self).__name__} has learned nothing yet: call learn(steps) first")
        if self._policy is None:
            self._policy = self.run.policy()
        return self._policy

    def predict(
        self, observation: Any, state: Memory | None = None, deterministic: bool = True, *,
        episode_start: Any = None, action_masks: Any = None,
    ) -> tuple[np.ndarray, Memory | None]:  # fmt: skip
        """The action for (O,) observations, or the actions for (N, O); and what the policy remembers, None of most.

        Args:
            observation: in the environment's units.
            state: of a policy that remembers its episode: what the call before gave beside the action; None at first.
            deterministic: take the mean action; else draw one, by a sequence of noise that begins after `learn`.
            episode_start: of such a policy, (N,) bool: rows whose episode begins, and their memory with it.
            action_masks: of a policy that obeys masks, (A,) or (N, A): 1 where an action is allowed.

        Raises:
            ConfigError: a policy that depends on rewards, samples of a deterministic one, or nothing learned yet.
            EnvironmentMismatchError: observations of another shape, or that are not finite; a mask that is missing or
                of no use.
        """
        policy = self.policy
        if action_masks is not None:
            observation = policy.with_mask(observation, action_masks)
        if policy.has_memory:
            return self._predict_on(policy, observation, state, deterministic, episode_start)
        if isinstance(observation, Mapping) and policy.masked and np.ndim(observation[MASK]) == 2:
            return self._predict_on(policy, observation, {}, deterministic, None)[0], None
        if not deterministic or policy.always_samples:
            if self._drawing is None:
                self._drawing, self._calls = policy.sampled(), 0
            policy = self._drawing
        if policy.encoder is None and (rows := as_array(observation, np.float32)).ndim == 2:
            check_width(rows, policy.observation_dim)
            if not (finite := np.isfinite(rows)).all():
                row, index = map(int, np.argwhere(~finite)[0])
                raise EnvironmentMismatchError(
                    f"row {row}: observation[{index}] is {rows[row, index]}; check that sensor"
                )
            noise = None
            if policy.always_samples:
                noise = self._noise(len(rows), policy.noise_dim)
            with torch.no_grad():
                return policy(torch.from_numpy(rows), noise).numpy(), None
        return policy.select_action(observation), None

    def _predict_on(
        self, policy: Policy, observation: Any, state: Memory | None, deterministic: bool, begins: Any
    ) -> tuple[np.ndarray, Memory]:
        """Actions of a policy that remembers, or of rows of several arrays, and the memory after them."""
        if policy.needs_outcomes:
            raise ConfigError(
                "this policy depends on what its last action brought, which predict() does not know: call "
                "policy.reset(), policy.select_action(observation) and policy.observe(reward, cost)"
            )
        alone = np.ndim(next(iter(observation.values())) if isinstance(observation, Mapping) else observation)
        single = alone == len(next(iter(policy.arrays.values())).shape)
        rows = mapped(lambda part: np.asarray(part)[None] if single else np.asarray(part), observation)
        count = len(next(iter(rows.values())) if isinstance(rows, Mapping) else rows)
        checked = [policy.checked(mapped(lambda part, row=row: part[row], rows)) for row in range(count)]
        seen = mapped(lambda *parts: torch.from_numpy(np.stack(parts)), *checked)
        memory = policy.begin(count) if state is None else state
        if begins is not None and state is not None:
            nothing = torch.zeros(count)
            ended = torch.as_tensor(np.broadcast_to(np.asarray(begins, np.bool_), (count,)).copy())
            memory = policy.observe_outcome(memory, nothing, nothing, ended)
        noise = None
        if not deterministic:
            if self._drawing is None:
                self._drawing, self._calls = policy.sampled(), 0
            noise = self._noise(count, policy.noise_dim)
        actions, memory = policy.act(seen, memory, noise)
        return (actions[0] if single else actions).numpy(), memory

    def _noise(self, rows: int, width: int) -> torch.Tensor:
        """(rows, width) standard normal numbers of the next call that draws."""
        call, self._calls = self._calls, self._calls + 1
        shape = (rows, width)
        return drawn([0], "predict", call, torch.device("cpu"), lambda source: source.standard_normal(shape))[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy as PATH.safetensors and PATH.json; `surefoot.load_policy` reads it."""
        self.policy.save(pathlib.Path(path).with_suffix(".safetensors"))


def model(name: str) -> type[Model] | None:
    """The `Model` of the algorithm whose class has this name, such as PPO, TD3BC or FISOR; None where there is none."""
    algorithm = ALGORITHMS.name_of(name)
    if algorithm is None:
        return None
    about = f"{name} as a model: `learn`, `predict`, `save`.\n\n{ALGORITHMS[algorithm].__doc__ or ''}"
    return type(name, (Model,), {"algorithm": algorithm, "__doc__": about, "__module__": "surefoot"})
