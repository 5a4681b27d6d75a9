"""Training one sample at a time: the worker's part of a streaming run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import DivergenceError
from surefoot.core.policy.policy import Policy
from surefoot.envs.acting import EpisodeMeans, Stepping, row_seeds, under
from surefoot.runs.inputs import training_environment
from surefoot.runs.run import Run
from surefoot.runs.starts import snapshots_in
from surefoot.runs.trainers.trainer import SeedTrainer
from surefoot.runs.warm_start import initialise_from
from surefoot.streaming.agent import StreamingAgent
from surefoot.streaming.samples import LARGEST

BARREN = 50
"""Steps in a row without a sample that could be learned, after which a run ends."""


class StreamingTrainer(SeedTrainer):
    """Trains one stream for each seed in an environment of its own, one sample at a time."""

    agent: StreamingAgent
    actions: Any
    """(S, ...) what comes next in each environment."""

    def begin(self) -> None:
        """Make the streams and their environments, and begin the first episodes."""
        planned: Any = self.run.agent()
        self.agent = type(planned)(self.spec, planned.config, seeds=self.seeds)
        self.agent.plan(self.plan.steps)
        if self.plan.init is not None:
            for position, seed in enumerate(self.seeds):
                initialise_from(self.agent, Run.open(self.plan.init), seed, position)
        self.kernels()  # numbers depend on the machine that began the run
        self.stepping = Stepping(training_environment(self.plan, self.agent, len(self.seeds), snapshots_in(self.run)))
        self.look_at_first_steps(self.stepping)
        self.agent.samples.first_steps = None  # which would say the same in the log
        self.taken = 0
        self.barren = torch.zeros(len(self.seeds), dtype=torch.int64)
        """(S,) steps in a row without a sample that could be learned."""
        self.episodes = EpisodeMeans(len(self.seeds), 1)
        self._new_episodes(0)

    @property
    def step(self) -> int:
        """Environment steps taken so far by each seed."""
        return self.taken

    @property
    def updates(self) -> int:
        """Samples learned from: one a step."""
        return self.taken

    def engine(self) -> dict[str, Any]:
        """Nothing: a sample is one native call, or plain PyTorch."""
        return {}

    def advance(self, steps: int) -> dict[str, list[float]]:
        """Act and learn for `steps` environment steps.

        Raises:
            DivergenceError: a weight is not finite any more, or no sample can be learned from.
        """
        agent, seeds = self.agent, len(self.seeds)
        learned, skipped = agent.learned.clone(), agent.skipped.clone()
        td_errors = agent.out_td.numpy()  # written anew by each step
        shape = (steps, seeds)
        rewards, errors, costs = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        terminations, truncations = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        has_costs = False
        for t in range(steps):
            done = self.stepping.step(self.actions)
            self.stepping.refuse_people(done, "a stream learns from its own actions alone")
            rewards[t], terminations[t], truncations[t] = done.rewards, done.terminations, done.truncations
            ended = terminations[t].any() or truncations[t].any()
            first = done.observations if ended else None
            self.actions = agent.step(
                done.next_observations, done.rewards, done.terminations, done.truncations, first=first
            )
            errors[t] = td_errors
            self.episodes.terms.add_step(done.info, terminations[t] | truncations[t])
            if "cost" in done.info:
                has_costs, costs[t] = True, done.info["cost"]
            if self.asked_to_stop():
                steps = t + 1
                break
        self.taken += steps
        self.say_precision(self.stepping)
        self._check_finite()
        rewards[~(np.abs(rewards) <= LARGEST)] = np.nan  # such samples are skipped, and their episodes' returns unknown
        block = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
        block |= {"costs": costs} if has_costs else {}
        block, errors = {name: column[:steps] for name, column in block.items()}, errors[:steps]
        self.episodes.add_block({name: torch.from_numpy(v.T.copy()).unsqueeze(-1) for name, v in block.items()})
        found = {"td_error": np.abs(errors).mean(0).tolist(), **self.episodes.take()}
        new = agent.skipped - skipped
        self._check_learning(agent.learned == learned, steps)
        if bool(new.any()):
            found["skipped_samples"] = new.tolist()
        return found

    def extras(self, position: int) -> dict[str, Any]:
        """How many samples of the stream were skipped."""
        return {"skipped_samples": int(self.agent.skipped[position])}

    def state(self, position: int) -> dict[str, Tensor]:
        """Stream, environment, the action that comes next, and the sums of the running episode."""
        sums = self.episodes.state(position)
        return {
            **self.agent.state(position),
            "streaming/action": torch.from_numpy(np.array(self.actions[position])),
            **{f"streaming/episodes/{name}": value for name, value in sums.items()},
            **self.stepping.environment_state(position, len(self.seeds)),
        }

    def go_on(self, states: Sequence[Mapping[str, Tensor]], step: int) -> None:
        """Take up what `state` gave; new episodes begin, and the run says so, where an environment's can't be."""
        for position, state in enumerate(states):
            self.agent.restore(position, state)
        self.taken = step
        lost = self.stepping.restore_environment(states)
        if lost is None:
            self.actions = np.stack([state["streaming/action"].numpy() for state in states])
            for position, state in enumerate(states):
                self.episodes.restore(position, under(state, "streaming/episodes/"))
            return
        self._new_episodes(1 + step)
        self.say_lost(lost)

    def close(self) -> None:
        """Close the environments."""
        self.stepping.env.close()

    def policy(self, position: int) -> Policy:
        """The policy of one stream."""
        return self.agent.policy(position)

    def _new_episodes(self, block: int) -> None:
        observations = self.stepping.reset([one for seed in self.seeds for one in row_seeds(seed, 1, block)])
        self.episodes.begin()
        self.actions = self.agent.begin(observations)

    def _check_learning(self, barren: Tensor, steps: int) -> None:
        """End the run where a stream has learned nothing for long: (S,) `barren` in the last `steps` steps."""
        self.barren = torch.where(barren, self.barren + steps, 0)
        if bool((self.barren >= min(BARREN, self.plan.steps)).any()):
            position = int(self.barren.argmax())
            raise DivergenceError(
                f"{self.agent.name}: seed {self.seeds[position]} learned nothing in its last "
                f"{int(self.barren[position])} steps: all samples hold NaN, infinity, or a number beyond 1e18 or "
                "algo.observation_limit; scale the environment's observations and rewards. Checkpoints written before "
                "stay"
            )

    def _check_finite(self) -> None:
        for name, value in self.agent.state_dict().items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                position = int((~value.isfinite()).reshape(len(self.seeds), -1).any(1).nonzero()[0])
                raise DivergenceError(
                    f"{self.agent.name}: {name} of seed {self.seeds[position]} is not finite after {self.taken} steps; "
                    "checkpoints written before stay"
                )
