"""`Blocks`: what policies do in their environments, T steps at a time, ready to be learned from.

A block is a dict of (S, T, N, ...) tensors for S seeds of N environments: observations as the policies saw them
(normalised), their own actions (not clipped, or one-hot), raw rewards, both kinds of ends, and the observations that
followed, final ones where an episode ended. Where the environment has policies inside its own loop, a block is one
call; elsewhere it is stepped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.agent import Agent
from surefoot.core.errors import DivergenceError
from surefoot.core.learner import Learner
from surefoot.core.normalizer import RunningMoments
from surefoot.core.policy import Policy
from surefoot.core.random import generator
from surefoot.envs.interface import PolicyBlock, RollsOut, check_contract, final_observations
from surefoot.online.environment import (
    EpisodeMeans,
    RecentEpisodes,
    bad_cost,
    bad_costs,
    environment_state,
    need_costs,
    restore_environment,
    row_seeds,
    under,
)

Block = dict[str, Tensor]


class Blocks:
    """Fills blocks from a contract environment of S * N rows; row s * N + e is environment e of seed s."""

    def __init__(self, env: Any, learner: Learner, horizon: int, device: torch.device) -> None:
        """Begin the first episodes.

        Args:
            env: vector environment (contract: docs/environments.md).
            learner: of the S agents that act.
            horizon: T.
            device: of the blocks.

        Raises:
            EnvironmentMismatchError: the environment does not keep the contract.
        """
        check_contract(env)
        self.env, self.learner, self.horizon, self.device = env, learner, horizon, device
        self.agent: Agent = learner.agent
        self.seeds = len(learner.seeds)
        self.num_envs: int = env.num_envs // self.seeds
        self.as_torch = getattr(env, "tensors", "numpy") == "torch"
        self.inserts_rows = bool(getattr(env, "inserts_rows", False))
        config, width = self.agent.config, self.agent.spec.observation_dim
        self.learns_statistics = bool(config.normalise_observations) and not self.agent.normalizer.fixed
        self.moments = RunningMoments(self.seeds, width, device)
        self.episodes = EpisodeMeans(self.seeds, self.num_envs, device)
        window: int | None = self.agent.cost_window
        self.recent = None if window is None else RecentEpisodes(self.seeds, self.num_envs, window, device)
        """Of agents with a constraint: the episodes that its multiplier follows."""
        self._policies = self._inside()
        self._warm = False
        self.begin(0)

    @property
    def inside(self) -> bool:
        """Whether the environment has the policies inside its own loop."""
        return self._policies is not None

    def begin(self, number: int) -> None:
        """New episodes in all rows, by the row seeds that belong to block `number`."""
        seeds = [one for seed in self.learner.seeds for one in row_seeds(seed, self.num_envs, number)]
        self._received = self._tensor(self.env.reset(seed=seeds)[0])
        self.episodes.begin()
        if self.recent is not None:
            self.recent.begin()
        if not self.inside:
            self._learn_statistics(self._received, None)

    def fill(self, number: int) -> Block:
        """The next T steps: (S, T, N, ...) tensors, `costs` for agents with a constraint, and `mask` where the
        environment inserts rows.

        Args:
            number: of the block, which fixes the noise of its actions.

        Raises:
            DivergenceError: an observation, reward or action is not finite.
            EnvironmentMismatchError: there is no cost for an agent that needs it, or one that is negative.
        """
        block = self._stepped(number) if self._policies is None else self._rolled(self._policies)
        self._check_finite(block, number)
        if self.recent is None:
            block.pop("costs", None)
        elif "costs" not in block:
            raise need_costs(self.env, self.agent.name)
        else:
            self._check_costs(block, number)
            self.recent.add_block(block)
        return block

    def warm_up(self) -> int:
        """Steps of each row that are taken for the sake of the first observation statistics alone.

        Policies inside a loop keep theirs for a whole block, and the first would see raw observations.
        Source: Burda et al., "Exploration by Random Network Distillation", section 2.4.
        """
        if self._warm or self._policies is None or not self.learns_statistics:
            return 0
        self._warm = True
        self._rolled(self._policies)
        return self.horizon

    # -- inside the environment's loop -------------------------------------------------------------------

    def _inside(self) -> list[Policy] | None:
        """A policy for each seed that the environment can evaluate, or None."""
        if not isinstance(self.env, RollsOut) or self.agent.spec.discrete:
            return None
        policies = []
        for position in range(self.seeds):
            agent = self.agent if not self.learner.stacked else self.learner.extract(position).to(self.device)
            policies.append(Policy(agent.actor, agent.normalizer, agent.action_low, agent.action_high))
        return policies if all(map(self.env.rolls_out, policies)) else None

    def _rolled(self, policies: list[Policy]) -> Block:
        if self.learner.stacked:  # the Learner's parameters are in storage of its own
            for position, policy in enumerate(policies):
                now = self.learner.agents_parameters(position)
                for name, value in policy.state_dict().items():
                    value.copy_(now[name])
        with torch.no_grad():
            found: PolicyBlock = self.env.roll_out(policies, self.horizon, self.device)
            observations = self.normalised(self._split(found.observations))
            block = {
                "observations": observations,
                "actions": self._sampled(observations, self._split(found.noise)),
                "rewards": self._split(found.rewards),
                "terminations": self._split(found.terminations),
                "truncations": self._split(found.truncations),
                "next_observations": self.normalised(self._split(found.next_observations)),
                "costs": self._split(found.costs),
            }
            self.episodes.add_sums(found, self.horizon)
            self._learn_statistics(found.next_observations.movedim(1, 0).flatten(0, 1), None)
        return block

    def _sampled(self, observations: Tensor, noise: Tensor) -> Tensor:
        """The actions of all steps at once, by the same network that learns: (S, T, N, A)."""
        flat = self.learner.apply("sample", observations.flatten(1, 2), noise.flatten(1, 2))
        return flat.view(*observations.shape[:-1], -1)

    # -- step by step ------------------------------------------------------------------------------------

    @torch.no_grad()
    def _stepped(self, number: int) -> Block:
        steps: list[dict[str, Tensor]] = []
        noise, held = self._noise(number), self.agent.config.held
        for time in range(self.horizon):
            seen = self.normalised(self._rows(self._received))
            actions = self.learner.apply("sample", seen, noise[time // held])
            after, rewards, terminations, truncations, info = self.env.step(self._own(actions))
            final = self._tensor(final_observations(after, info))
            valid = self._valid(info)
            self._received = self._tensor(after) if "final_obs" in info else final
            self._learn_statistics(self._received, valid)
            step = {
                "observations": seen,
                "actions": actions,
                "rewards": self._rows(self._tensor(rewards)),
                "terminations": self._rows(self._tensor(terminations)),
                "truncations": self._rows(self._tensor(truncations)),
                "next_observations": self.normalised(self._rows(final)),
            }
            if valid is not None:
                step["mask"] = self._rows(valid).float()
            if "cost" in info:
                step["costs"] = self._rows(self._tensor(info["cost"]))
            steps.append(step)
        block = {name: torch.stack([step[name] for step in steps], 1) for name in steps[0]}
        self.episodes.add_block(block)
        return block

    def _noise(self, number: int) -> Tensor:
        """(T / held, S, N, held_dim) standard normal numbers; environment e's depend on seed, block and e only."""
        shape = (self.num_envs, -(-self.horizon // self.agent.config.held), self.agent.actor.held_dim)
        drawn = [generator(s, "acting", number).standard_normal(shape, np.float32) for s in self.learner.seeds]
        return torch.from_numpy(np.stack(drawn)).to(self.device).permute(2, 0, 1, 3).contiguous()

    def _own(self, actions: Tensor) -> Any:
        """(S, N, A) actions of the agents as the environment takes them."""
        agent, flat = self.agent, actions.flatten(0, 1)
        if agent.spec.discrete:
            own = flat.argmax(-1)
        else:
            middle, half = (agent.action_high + agent.action_low) / 2, (agent.action_high - agent.action_low) / 2
            own = torch.addcmul(middle, half, flat.clamp(-1, 1))
        return own if self.as_torch else own.cpu().numpy()

    def _valid(self, info: Mapping[str, Any]) -> Tensor | None:
        """(S * N,) bool rows that are transitions, where the environment inserts others."""
        if self.inserts_rows:
            valid = info.get("valid")
            return (
                torch.ones_like(self._received[:, 0], dtype=torch.bool) if valid is None else self._tensor(valid).bool()
            )
        return None

    # -- both --------------------------------------------------------------------------------------------

    def _tensor(self, values: Any) -> Tensor:
        """On the device, numbers as float32, and not memory that the environment writes again."""
        value = torch.as_tensor(values, device=self.device)
        if value.dtype not in (torch.float32, torch.bool):
            return value.float()
        return value.clone() if self.as_torch else value

    def _rows(self, values: Tensor) -> Tensor:
        """(S * N, ...) as (S, N, ...)."""
        return values.view(self.seeds, self.num_envs, *values.shape[1:])

    def _split(self, values: Tensor) -> Tensor:
        """(T, S * N, ...) as (S, T, N, ...)."""
        return values.view(len(values), self.seeds, self.num_envs, *values.shape[2:]).movedim(1, 0)

    def normalised(self, observations: Tensor) -> Tensor:
        """(S, ..., O) raw observations as the agents of each seed see them."""
        shape = (self.seeds, *[1] * (observations.dim() - 2), -1)
        buffers, limit = self.learner.buffers, self.agent.normalizer.limit
        mean, scale = (buffers[f"normalizer.{name}"].view(shape) for name in ("mean", "scale"))
        normalised = (observations - mean) / scale
        return normalised if limit == math.inf else normalised.clamp_(-limit, limit)

    def _learn_statistics(self, observations: Tensor, valid: Tensor | None) -> None:
        """Take (rows of seed after seed, O) observations into the statistics that the agents normalise by."""
        if not self.learns_statistics:
            return
        rows = None if valid is None else valid.view(self.seeds, -1)
        self.moments.update(observations.reshape(self.seeds, -1, observations.shape[-1]), rows)
        self.learner.buffers["normalizer.mean"].copy_(self.moments.mean)
        self.learner.buffers["normalizer.scale"].copy_(self.moments.scale())

    def _check_costs(self, block: Block, number: int) -> None:
        costs = block["costs"]
        bad = bad_costs(costs, block.get("mask"))
        if bool(bad.any()):
            seed, time, row = bad.nonzero()[0].tolist()
            step = number * self.horizon + time
            raise bad_cost(row, self.learner.seeds[seed], step, float(costs[seed, time, row]))

    def _check_finite(self, block: Block, number: int) -> None:
        fine = torch.isfinite(block["rewards"])
        for name in ("observations", "next_observations", "actions"):
            fine = fine & torch.isfinite(block[name]).all(-1)
        if not bool(fine.all()):
            seed, time, row = (~fine).nonzero()[0].tolist()
            step = number * self.horizon + time
            what = "action" if not bool(torch.isfinite(block["actions"][seed, time, row]).all()) else "environment"
            if what == "action" and bool(torch.isfinite(block["observations"][seed, time, row]).all()):
                raise DivergenceError(
                    f"{self.agent.name}: the policy of seed {self.learner.seeds[seed]} gave an action that is not "
                    f"finite at vector step {step}; lower the learning rate. The last good checkpoint is kept"
                )
            raise DivergenceError(
                f"environment {row} of seed {self.learner.seeds[seed]} gave an observation or reward that is not "
                f"finite at vector step {step}; lower its time step or bound its state. The last good checkpoint is "
                "kept"
            )

    # -- what is saved -----------------------------------------------------------------------------------

    def state(self, position: int) -> dict[str, Tensor]:
        """What seed `position` needs to go on: its environments, statistics and sums."""
        mine = slice(position * self.num_envs, (position + 1) * self.num_envs)
        tensors = {"blocks/received": self._received[mine], "blocks/warm": torch.tensor(self._warm)}
        tensors |= {f"blocks/moments/{name}": value for name, value in self.moments.state(position).items()}
        tensors |= {f"blocks/episodes/{name}": value for name, value in self.episodes.state(position).items()}
        if self.recent is not None:
            tensors |= {f"blocks/recent/{name}": value for name, value in self.recent.state(position).items()}
        return tensors | environment_state(self.env, position, self.seeds)

    def restore(self, states: Sequence[Mapping[str, Tensor]], number: int) -> str | None:
        """Go on from what `state` gave before block `number`; None, or a sentence that says what is lost."""
        for position, state in enumerate(states):
            self.moments.restore(position, under(state, "blocks/moments/"))
            self.episodes.restore(position, under(state, "blocks/episodes/"))
            if self.recent is not None:
                self.recent.restore(position, under(state, "blocks/recent/"))
        self._warm = bool(states[0]["blocks/warm"])
        problem = restore_environment(self.env, states)
        if problem is not None:
            learns, self.learns_statistics = self.learns_statistics, False
            self.begin(number)
            self.learns_statistics = learns
            return problem
        self._received = torch.cat([state["blocks/received"] for state in states]).to(self.device).clone()
        return None
