"""`Experience`: the environments of S seeds, stepped together, and the replay buffer that they fill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import VECTOR, named
from surefoot.core.nn.encoders import on_vectors
from surefoot.core.nn.normalizer import normalised
from surefoot.data.collect import TransitionBuffer
from surefoot.data.followed import joined, part_of
from surefoot.data.ring import row_bytes
from surefoot.envs.acting import Acting, EpisodeMeans, Step, bad_costs
from surefoot.envs.acting.interventions import COLUMN as INTERVENED
from surefoot.envs.acting.interventions import speaks_of
from surefoot.envs.objectives.wrapper import FACTS

COLUMNS = (
    "observations",
    "actions",
    "rewards",
    "terminations",
    "next_observations",
    "costs",
    "returns_to_go",
    "penalties",
    "objective",
)
"""What an environment can fill; returns-to-go at the end of an episode, and NaN until then."""
PENALTIES = ("grasp_penalty", "discrete_penalty")
"""Entries of a step's info that are its column `penalties`: HIL-SERL's and LeRobot's. Where there is none it is 0."""
RAW = "raw_rewards"
"""Beside the columns of a step that a collector sends on: rewards as the environment gave them."""
ReturnsToGo = Callable[[Tensor, Tensor], Tensor]
"""(L,) rewards and terminations of an episode -> (L,) what each step brought from there on."""


class Experience:
    """Steps a contract environment of S * N rows, and stores transitions as the agents read them.

    Row s * N + e is environment e of seed s. Stored are normalised observations, actions in [-1, 1] and scaled
    rewards; the observation after a step is the final one where an episode ended, and only termination is stored as
    an end; rows that are no transitions are marked and never sampled.
    """

    def __init__(
        self,
        env: Any,
        seeds: Sequence[int],
        reads: Sequence[str],
        bounds: tuple[Tensor, Tensor] | None,
        capacity: int,
        device: torch.device,
        returns_to_go: ReturnsToGo | None = None,
        cost_window: int | None = None,
        vectors: Sequence[str] = (),
        corrections: int = 0,
        refuses_people: str = "",
        memory: float | None = None,
    ) -> None:
        """Begin the first episodes.

        Args:
            env: vector environment of S * N rows (contract: docs/environments.md).
            seeds: S.
            reads: columns of the buffer, of `COLUMNS`.
            bounds: lowest and highest action (A,), which -1 and 1 stand for; None: actions are one-hot choices.
            capacity: transitions of each seed.
            device: of the buffer.
            returns_to_go: what that column is made by, where it is read.
            cost_window: episodes of each seed that `recent` looks back on, for agents with a constraint.
            vectors: keys of the vectors of several arrays, in the order in which the agents normalise them.
            corrections: transitions of each seed in which a person acted that are kept in a buffer of their own too;
                0: they are in the replay buffer alone.
            refuses_people: why no one may take over; empty: anybody may.
            memory: GB (1e9 bytes) that the rows of each seed may take: `capacity` is lowered to what fits.

        Raises:
            ConfigError: a column that an environment can't fill, rows that can't be shared among the seeds, or memory
                for less than a vector step.
            DataError: more bytes than the device has free.
            EnvironmentMismatchError: the environment does not keep the contract, or takes another number of actions.
        """
        for key in reads:
            if key not in COLUMNS:
                raise ConfigError(f"the agent reads {key!r}, which an environment can't give: it gives {COLUMNS}")
        space = env.single_action_space
        if bounds is not None:
            bounds = (bounds[0].to(device), bounds[1].to(device))
        self.acting = Acting(env, seeds, bounds, device, cost_window)
        self.num_envs, self.device, self.vectors = self.acting.num_envs, device, tuple(vectors)
        sizes = {"actions": (int(space.n),) if bounds is None else tuple(bounds[0].shape), "objective": (len(FACTS),)}
        if bounds is not None and tuple(space.shape or ()) != sizes["actions"]:
            raise EnvironmentMismatchError(
                f"the agent gives {sizes['actions'][0]} actions, and the environment takes {space}"
            )
        shapes, images = dict[str, tuple[int, ...]](), dict[str, torch.dtype]()
        for key in reads:
            seen = key in ("observations", "next_observations")
            for name, array in named(key, self.acting.observed_arrays).items() if seen else ():
                shapes[name] = array.shape
                images |= {name: torch.uint8} if array.dtype == "uint8" else {}
            shapes |= {} if seen else {key: sizes.get(key, ())}
        each = row_bytes({key: (shape, images.get(key, torch.float32)) for key, shape in shapes.items()})
        if memory is not None:
            capacity = min(capacity, int(memory * 1e9) // each)
            if capacity < self.num_envs:
                raise ConfigError(
                    f"replay_memory is {memory:g}, must be >= {each * self.num_envs / 1e9:g}: a transition takes "
                    f"{each:,} bytes, and each step of num_envs={self.num_envs} environments brings as many of them",
                    field="replay_memory",
                    code="range",
                )
        steps = max(1, capacity // self.num_envs)
        self.buffer = TransitionBuffer(steps * env.num_envs, shapes, device, env.num_envs, images)
        self.corrections: TransitionBuffer | None = None
        """The steps in which a person acted, again."""
        if corrections:
            kept = max(1, corrections // self.num_envs) * env.num_envs
            self.corrections = TransitionBuffer(kept, shapes, device, env.num_envs, images)
        self.refuses_people = refuses_people
        self.intervened = torch.zeros(len(seeds), dtype=torch.int64)
        """(S,) steps of each seed so far in which a person acted."""
        self.told_of_people = False
        """Whether the environment has ever spoken of one."""
        self._reads_penalties = "penalties" in reads
        self._reads_objective = "objective" in reads
        self.transform: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        """Mean and scale (S, 1, O) of observations, scale and shift (S, 1) of rewards; None where they do nothing."""
        self.taken = torch.zeros(len(seeds), dtype=torch.int64)
        """(S,) environment steps of each seed so far; unequal only where episodes cut chunks short."""
        self.heard: list[dict[str, Any]] | None = None
        """The steps since it was emptied, of a collector, which sends them on; None: they are not kept beside."""
        self._reads_costs = "costs" in reads
        self._newest = torch.zeros(0, dtype=torch.int64)  # rows of the last step
        self._returns_to_go = returns_to_go if "returns_to_go" in reads else None
        numpy_here = device.type == "cpu" and not self.acting.as_torch and VECTOR in self.acting.arrays
        self._in_numpy = (
            numpy_here and self._returns_to_go is None and self.acting.recent is None and not self._reads_costs
        ) and not (self._reads_penalties or self._reads_objective)
        self._ended = torch.zeros(len(seeds), dtype=torch.bool, device=device)  # in the last step
        self._diverged = torch.zeros((), dtype=torch.int64, device=device)
        self._not_finite = _First(lambda row, number, _: self.acting.not_finite(row, number), device)
        self._bad_cost = _First(self.acting.bad_cost, device)
        self.begin(0)

    def begin(self, block: int) -> None:
        """New episodes in all rows, with the row seeds of that block; those in the buffer end there."""
        lengths = self.episodes.lengths.view(-1)
        if self._returns_to_go is not None and len(self.buffer):  # what was cut off counts as far as it went
            self._look_back(_true(lengths > 0), lengths)
        self.acting.begin(block)
        self.buffer.end_episodes()
        self._check(self.acting.received, torch.zeros((), device=self.device), 0)

    @property
    def moved(self) -> int:
        """How often memory that batches are gathered from has been replaced by larger."""
        return sum(buffer.moved for buffer in self._buffers.values())

    @property
    def size(self) -> str:
        """What the replay buffer takes, in words; empty where it holds no pictures."""
        buffer, seeds = self.buffer, len(self.acting.seeds)
        if not buffer.cameras:
            return ""
        cameras = ", ".join(name.removeprefix("observations/") for name in buffer.cameras)
        rows, size = buffer.capacity // seeds, buffer.nbytes / seeds / 1e9
        return f"the replay buffer holds {rows:,} transitions in {size:.2f} GB, each picture of {cameras} once"

    @property
    def episodes(self) -> EpisodeMeans:
        """Means of the training episodes."""
        return self.acting.episodes

    @property
    def observations(self) -> Any:
        """(S, N, O) that the next actions are chosen by, normalised; of several arrays, a dict of them by key."""
        return self.acting.rows(self._normalised(self.acting.received))

    def step(self, actions: Tensor, number: int, played: Tensor | None = None) -> Tensor:
        """Act in every row once and store what came of it.

        Args:
            actions: (S * N, A) in [-1, 1], or one-hot choices.
            number: of this vector step, for messages.
            played: (S * N, A) what the environment is given, where it is not what is stored. Where a person acts in
                its place, that is stored.

        Returns:
            (S * N,) bool: where an episode ended.

        Raises:
            DivergenceError: an observation or reward is not finite (on a GPU `check` says so later).
            EnvironmentMismatchError: there is no cost for an agent that reads it, or one that is negative (likewise).
        """
        acting = self.acting
        before, done = acting.received, acting.act(actions if played is None else played)
        if self._in_numpy and self.heard is None and self._is_plain(done):
            return self._take_here(before, actions, done, number)
        over = [] if self._returns_to_go is None else _true(done.terminations | done.truncations)
        received = acting.observed(done.observations)
        following = received if done.next_observations is done.observations else acting.observed(done.next_observations)
        rewards, terminations, truncations = map(acting.tensor, (done.rewards, done.terminations, done.truncations))
        self._check(following, rewards, number)
        valid = self._valid(done.info)
        person = self._person(done)
        if person is not None:
            actions = torch.where(person[0].unsqueeze(1), person[1], actions.to(person[1]))
        batch = {
            **named("observations", self._normalised(before)),
            "actions": actions,
            "rewards": self._scaled(rewards),
            "terminations": terminations,
            "truncations": truncations,
            **named("next_observations", self._normalised(following)),
        }
        if valid is not None:
            batch["valid"] = valid
        if person is not None:
            batch[INTERVENED] = person[0]
        if self._reads_penalties:
            batch["penalties"] = self._penalties(done.info)
        if self._reads_objective:
            batch["objective"] = acting.tensor(done.info["objective"])
        if "cost" in done.info:
            batch["costs"] = acting.tensor(done.info["cost"])
            if self._reads_costs:
                self._bad_cost.note(bad_costs(batch["costs"], valid), batch["costs"], number)
        elif self._reads_costs:
            if not acting.episodes.has_costs:
                raise acting.no_costs("the agent")
            batch["costs"] = torch.zeros_like(batch["terminations"], dtype=torch.float32)
        acting.received = received
        steps = acting.tensor(done.info["steps"]) if "steps" in done.info else None
        diverged = acting.tensor(done.info["diverged"]) if "diverged" in done.info else None
        self.store(batch, rewards, steps, diverged, over)
        return terminations | truncations

    def _person(self, done: Step) -> tuple[Tensor, Tensor] | None:
        """As `Acting.taken_over`."""
        if not speaks_of(done.info):
            return None
        self.told_of_people = True
        if self.refuses_people:
            self.acting.refuse_people(done, self.refuses_people)
        return self.acting.taken_over(done)

    def _penalties(self, info: Mapping[str, Any]) -> Tensor:
        """(S * N,) of a step; 0 by default."""
        key = next((name for name in PENALTIES if name in info), None)
        if key is None:
            return torch.zeros(self.buffer.num_envs, device=self.device)
        penalties = self.acting.tensor(info[key]).float()
        given = info.get(f"_{key}")
        penalties = penalties if given is None else penalties.where(self.acting.tensor(given).bool(), 0.0)
        if penalties.shape != (self.buffer.num_envs,) or not bool(penalties.isfinite().all()):
            raise EnvironmentMismatchError(
                f"{self.acting.name}: info[{key!r}] is {info[key]!r}; it must be one finite number a row, 0 or below"
            )
        return penalties

    def _is_plain(self, done: Step) -> bool:
        """Whether all rows are transitions of one step each, without costs."""
        info = done.info
        if "cost" in info or "steps" in info or speaks_of(info):
            return False
        valid = info.get("valid")
        return valid is None or bool(valid.all())

    def _take_here(self, before: Tensor, actions: Tensor, done: Step, number: int) -> Tensor:
        """As the rest of `step` on a CPU, in numpy: torch's calls take several times as long as these few numbers."""
        acting, transform = self.acting, self.transform
        received = following = np.asarray(done.observations, np.float32)
        if done.next_observations is not done.observations:
            following = np.asarray(done.next_observations, np.float32)
        given = rewards = np.asarray(done.rewards, np.float32)
        if not (np.isfinite(following).all() and np.isfinite(rewards).all()):
            self._check(torch.from_numpy(following), torch.from_numpy(rewards), number)
        terminations, truncations = np.asarray(done.terminations), np.asarray(done.truncations)
        seen = before.numpy()
        if transform is not None:
            mean, scale, factor, shift = (value.numpy() for value in transform)
            shape = (len(acting.seeds), self.num_envs, -1)
            seen = ((seen.reshape(shape) - mean) / scale).reshape(seen.shape)
            following = ((following.reshape(shape) - mean) / scale).reshape(following.shape)
            rewards = (rewards.reshape(shape[:2]) * factor + shift).reshape(-1)
        ended = terminations | truncations
        self._newest = self.buffer.add(
            {
                "observations": seen,
                "actions": actions,
                "rewards": rewards,
                "terminations": terminations,
                "truncations": truncations,
                "next_observations": following,
            }
        )
        acting.received = torch.from_numpy(received)
        self.taken += self.num_envs
        self.episodes.add_arrays(given, ended)
        if "diverged" in done.info:
            diverged = int(np.count_nonzero(done.info["diverged"]))
            if diverged:
                self._diverged += diverged
        return torch.from_numpy(ended)

    def store(
        self,
        batch: dict[str, Any],
        rewards: Tensor,
        steps: Tensor | None = None,
        diverged: Tensor | None = None,
        over: Sequence[int] = (),
    ) -> None:
        """Take in one step of all rows.

        Args:
            batch: (S * N, ...) columns as they are stored, `valid` where some rows are no transitions, and `intervened`
                where a person acted in some.
            rewards: (S * N,) as the environment gave them.
            steps: (S * N,) taken in the environment, where that is not one each.
            diverged: (S * N,) whether the environment cut an episode, where it says so.
            over: rows whose episode ended, where returns-to-go are read.
        """
        if self.heard is not None:
            more = {"steps": steps, "diverged": diverged}
            self.heard.append({**batch, RAW: rewards, **{n: v for n, v in more.items() if v is not None}})
        acting, valid = self.acting, batch.get("valid")
        if self._returns_to_go is not None:
            batch["returns_to_go"] = torch.full_like(rewards, math.nan)
        self._newest = self.buffer.add(batch)
        if INTERVENED in batch:
            self._correct(batch)
        if self._returns_to_go is not None:
            self._look_back(over, self.episodes.lengths.view(-1) + 1)
        ended = batch["terminations"] | batch["truncations"]
        self.taken += self.num_envs if steps is None else acting.rows(steps).sum(1).long().cpu()
        self.episodes.add_step(rewards, ended, valid if steps is None else steps, batch.get("costs"))
        if acting.recent is not None:
            acting.recent.add_step(batch["costs"], batch["terminations"], batch["truncations"], valid)
            self._ended = acting.rows(ended).any(1)
        if diverged is not None:
            self._diverged += diverged.sum()

    def _correct(self, batch: dict[str, Any]) -> None:
        """Count the rows of a step in which a person acted, and keep them in their own buffer."""
        rows = batch[INTERVENED] if "valid" not in batch else batch[INTERVENED] & batch["valid"]
        self.told_of_people = True
        self.intervened += self.acting.rows(rows).sum(1).cpu()
        if self.corrections is not None and bool(rows.any()):
            self.corrections.add({**batch, "valid": rows, "truncations": torch.ones_like(rows)})

    def _look_back(self, ended: Sequence[int], lengths: Tensor) -> None:
        """Write the returns-to-go of episodes that ended with the newest step, and of which that many rows are there.

        Args:
            ended: environments, from 0 to S * N - 1.
            lengths: (S * N,) steps of each row's episode, the newest included.
        """
        assert self._returns_to_go is not None
        buffer, count = self.buffer, self.acting.env.num_envs
        for row in ended:
            steps = min(int(lengths[row]), buffer.capacity // count)
            newest = int(self._newest[row])
            rows = (newest - count * torch.arange(steps - 1, -1, -1, device=self.device)) % buffer.capacity
            found = self._returns_to_go(buffer["rewards"][rows], buffer["terminations"][rows])
            buffer.rewrite("returns_to_go", rows, found)

    def fresh_costs(self) -> tuple[Tensor, Tensor] | None:
        """(S,) mean cost and length of each seed's last episodes, NaN for seeds where none ended in the last step;
        None where that holds for all, or where costs are not needed."""
        if self.acting.recent is None or not bool(self._ended.any()):
            return None
        cost, length = self.acting.recent.means()
        return cost.where(self._ended, math.nan), length.where(self._ended, math.nan)

    @property
    def diverged(self) -> int:
        """Episodes so far that the environment cut because its state was not finite any more."""
        return int(self._diverged)

    def check(self) -> None:
        """Raise what `step` on a GPU could not without waiting for it.

        Raises:
            DivergenceError: an observation or reward was not finite.
            EnvironmentMismatchError: so was a cost, or it was negative.
        """
        self._not_finite.check()
        self._bad_cost.check()

    def _normalised(self, observations: Any) -> Any:
        if self.transform is None:
            return observations
        if isinstance(observations, Mapping):
            return on_vectors(self._normalised, observations, self.vectors)
        mean, scale = self.transform[:2]
        return normalised(self.acting.rows(observations), mean, scale).view_as(observations)

    def _scaled(self, rewards: Tensor) -> Tensor:
        if self.transform is None:
            return rewards
        scale, shift = self.transform[2:]
        return (self.acting.rows(rewards) * scale + shift).view(-1)

    def _valid(self, info: Mapping[str, Any]) -> Tensor | None:
        """Which rows are transitions; None where all are, as far as can be determined without waiting for a GPU."""
        valid = info.get("valid")
        if valid is None:
            return None
        if self.device.type != "cpu":
            return self.acting.tensor(valid).bool() if self.acting.inserts_rows else None
        return None if valid.all() else self.acting.tensor(valid).bool()

    def _check(self, observations: Any, rewards: Tensor, number: int) -> None:
        fine = torch.isfinite(rewards)
        for vector in observations.values() if isinstance(observations, Mapping) else (observations,):
            if vector.dtype != torch.uint8:
                fine = torch.isfinite(vector).flatten(1).all(1) & fine
        rows = (self.buffer.num_envs,)
        self._not_finite.note(~fine.expand(rows), rewards.expand(rows), number)

    # -- what is saved -----------------------------------------------------------------------------------

    def state(self, position: int) -> dict[str, Tensor]:
        """What seed `position` needs to continue: its rows of the buffer, of the environment and of the sums."""
        tensors = self.acting.state(position, "experience/", "experience/observations")
        tensors["experience/diverged"] = self._diverged
        tensors["experience/taken"] = self.taken[position].clone()
        for stem, buffer in self._buffers.items():
            found = part_of(buffer.state_dict(), lambda value: self._part(value, position))
            tensors |= {f"{stem}/{name}": value for name, value in found.items()}
        if self.told_of_people:
            tensors["experience/intervened"] = self.intervened[position].clone()
        return tensors

    @property
    def _buffers(self) -> dict[str, TransitionBuffer]:
        """By the names that a checkpoint has for them."""
        return {"replay": self.buffer} | ({} if self.corrections is None else {"corrections": self.corrections})

    def restore(self, states: Sequence[Mapping[str, Tensor]], block: int) -> str | None:
        """Continue from what `state` gave, one mapping a seed; None, or a sentence that says what could not be
        restored.

        Raises:
            CheckpointError: the buffer was another one.
            EnvironmentMismatchError: the environment was another one.
        """
        for stem, buffer in self._buffers.items():
            parts = [
                {name.removeprefix(f"{stem}/"): value for name, value in state.items() if name.startswith(f"{stem}/")}
                for state in states
            ]
            buffer.load_state_dict(joined(parts, self._joined))
        count, first = self.buffer.num_envs, self.buffer.position
        self._newest = torch.arange(first - count, first, device=self.device) % self.buffer.capacity
        for position, state in enumerate(states):
            self.taken[position] = state.get("experience/taken", torch.zeros(()))  # version 0.2.0 did not count
            self.intervened[position] = state.get("experience/intervened", torch.zeros(()))
        self.told_of_people = "experience/intervened" in states[0]
        lost = self.acting.restore(states, "experience/", "experience/observations")
        if lost is not None:
            self.begin(block)
            return lost
        self._diverged.copy_(states[0]["experience/diverged"])
        return None

    def _part(self, value: Tensor, position: int) -> Tensor:
        """The rows of one seed, where a tensor has rows of the environments."""
        seeds, rows = len(self.acting.seeds), self.buffer.num_envs
        if seeds == 1 or value.dim() == 0 or value.shape[0] % rows:
            return value
        return value.view(-1, seeds, self.num_envs, *value.shape[1:])[:, position].flatten(0, 1)

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of `_part`."""
        value = parts[0]
        if len(parts) == 1 or value.dim() == 0:
            return value
        return torch.stack([p.view(-1, self.num_envs, *p.shape[1:]) for p in parts], 1).flatten(0, 2)


class _First:
    """The first row where something is wrong: an error at once on a CPU; on a GPU when it is asked for."""

    def __init__(self, error: Callable[[int, int, float], Exception], device: torch.device) -> None:
        """Raise `error(row, step, number)`."""
        self.error, self.device = error, device
        self._found = torch.full((3,), -1.0, dtype=torch.float64, device=device)  # step, row and number

    def note(self, bad: Tensor, numbers: Tensor, step: int) -> None:
        """Look at which of (rows,) numbers are bad."""
        if self.device.type == "cpu":
            if bool(bad.any()):
                row = int(bad.nonzero()[0])
                raise self.error(row, step, float(numbers[row]))
            return
        worst = bad.long().argmax()
        first = torch.stack([torch.full_like(self._found[0], step), worst.double(), numbers[worst].double()])
        self._found = torch.where((self._found[0] < 0) & bad.any(), first, self._found)

    def check(self) -> None:
        """Raise what `note` on a GPU could not without waiting for it."""
        step, row, number = self._found.tolist()
        if step >= 0:
            raise self.error(int(row), int(step), number)


def _true(mask: Any) -> list[int]:
    """Where a (N,) mask holds; of an array, without asking a GPU."""
    found: list[int] = np.flatnonzero(mask).tolist() if isinstance(mask, np.ndarray) else mask.nonzero()[:, 0].tolist()
    return found
