"""`Blocks`: what policies do in their environments, T steps at a time, ready to be learned from.

A block is a dict of (S, T, N, ...) tensors for S seeds of N environments: observations as the policies saw them
(normalised), their own actions (not clipped, or one-hot), raw rewards, both kinds of ends, and the observations that
followed, final ones where an episode ended. Where the environment has policies inside its own loop, a block is one
call; elsewhere it is stepped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.heads import UnboundedGaussianActor
from surefoot.core.actors.memory import Memory, begun_anew
from surefoot.core.base.errors import DivergenceError, EnvironmentMismatchError
from surefoot.core.base.random import drawn
from surefoot.core.base.spec import VECTOR, named
from surefoot.core.engine.learner import Learner
from surefoot.core.nn.encoders import on_vectors
from surefoot.core.nn.native.native import RunningNormalizer
from surefoot.core.nn.normalizer import RunningMoments, normalised
from surefoot.core.policy.policy import Policy
from surefoot.envs.acting import Acting, EpisodeMeans, RecentEpisodes, bad_costs, under
from surefoot.envs.interface import Array, PolicyBlock, RollsOut
from surefoot.online.base.on_policy_agent import BEGINS, KEPT, MEMORY, OnPolicyAgent

Block = dict[str, Tensor]
OWN_ACTIONS = "this agent learns from the densities of its own actions alone"
"""Why no one may take over."""
COUNTED = ("costs", "terminations", "truncations")
"""Columns of a block that are all that `RecentEpisodes` reads of steps that are one each."""


class Blocks:
    """Fills blocks from a contract environment of S * N rows; row s * N + e is environment e of seed s."""

    meanwhile: Callable[[int], None] | None = None
    """Called while a block is filled step by step, with the environment steps of each seed that it has."""

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
        self.learner, self.horizon, self.device = learner, horizon, device
        self.agent: OnPolicyAgent = learner.agent  # type: ignore[assignment]
        agent, config = self.agent, self.agent.config
        chunk = int(getattr(env, "chunk", 1))
        bounds = None if agent.spec.discrete else (agent.action_low.repeat(chunk), agent.action_high.repeat(chunk))
        self.acting = Acting(env, learner.seeds, bounds, device, agent.cost_window)
        self.env, self.seeds, self.num_envs = env, len(learner.seeds), self.acting.num_envs
        width = agent.spec.vector_dim
        self.learns_statistics = bool(config.normalize_observations) and not agent.normalizer.fixed and width > 0
        self.moments = RunningMoments(self.seeds, width, device)
        self._policies = self._inside()
        self._plain = self._is_plain()
        self._warm = False
        self.taken = torch.zeros(self.seeds, dtype=torch.int64)
        """(S,) environment steps of each seed so far; unequal only where episodes cut chunks short."""
        self.memory: Memory = {}
        """Of agents that remember: name -> (S, N, ...), of the steps of the episodes under way."""
        self.begins = torch.zeros(0)
        """Of agents that remember: (S, N), 1 where the next step is the first of an episode."""
        self._begin(0)

    @property
    def inside(self) -> bool:
        """Whether the environment has the policies inside its own loop."""
        return self._policies is not None

    @property
    def episodes(self) -> EpisodeMeans:
        """Means of the training episodes."""
        return self.acting.episodes

    @property
    def recent(self) -> RecentEpisodes | None:
        """Of agents with a constraint: the episodes that its multiplier follows."""
        return self.acting.recent

    def _begin(self, number: int) -> None:
        """New episodes in all rows, by the row seeds that belong to block `number`."""
        self.begin_episodes(number)
        if not self.inside:
            self._learn_statistics(self.acting.received, None)

    def begin_episodes(self, number: int) -> None:
        """New episodes in all rows, by the row seeds that belong to block `number`; statistics stay as they are."""
        self.acting.begin(number)
        self.memory = self._first_memory()
        self.begins = torch.ones(self.seeds, self.num_envs, device=self.device)

    def _first_memory(self) -> Memory:
        """Of agents that remember, all rows at the first step of an episode."""
        first = self.agent.begin(self.num_envs)
        return {n: v.to(self.device, torch.float32).expand(self.seeds, *v.shape).clone() for n, v in first.items()}

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
        steps = block.get("steps")
        self.taken += self.horizon * self.num_envs if steps is None else steps.sum((1, 2)).long().cpu()
        if self.recent is None:
            block.pop("costs", None)
        elif "costs" not in block:
            raise self.acting.no_costs(self.agent.name)
        else:
            self._check_costs(block, number)
            self.recent.add_block(block)
        block.pop("steps", None)
        return block

    def warm_up(self) -> Block | None:
        """Take a block of steps for the sake of the first observation statistics alone, where they need it.

        Policies inside a loop keep theirs for a whole block, and the first would see raw observations. Episodes
        continue from it in the first block, so `recent` takes it in too.

        Returns:
            What `recent` took in; None where there was nothing to do, or no constraint.

        Source: Burda et al., "Exploration by Random Network Distillation", section 2.4.
        """
        if self._warm or self._policies is None or not self.learns_statistics:
            return None
        self._warm = True
        block = self._rolled(self._policies)
        self.taken += self.horizon * self.num_envs
        if self.recent is None:
            return None
        self.recent.add_block(block)
        return {name: block[name] for name in COUNTED}

    # -- inside the environment's loop -------------------------------------------------------------------

    def _inside(self) -> list[Policy] | None:
        """A policy for each seed that the environment can evaluate, or None."""
        if not isinstance(self.env, RollsOut) or self.agent.spec.discrete or self.agent.encoder is not None:
            return None
        if type(self.agent).decide is not OnPolicyAgent.decide:  # it acts by more than its actor
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
            actions, kept = self._sampled(observations, self._split(found.noise))
            block = {
                "observations": observations,
                "actions": actions,
                **kept,
                "rewards": self._split(found.rewards),
                "terminations": self._split(found.terminations),
                "truncations": self._split(found.truncations),
                "next_observations": self.normalised(self._split(found.next_observations)),
                "costs": self._split(found.costs),
            }
            self.episodes.add_sums(found, self.horizon)
            self._learn_statistics(found.next_observations.movedim(1, 0).flatten(0, 1), None)
        return block

    def _sampled(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Block]:
        """The actions of all steps at once, by the same network that learns, (S, T, N, A), and what is kept of them."""
        actions, kept = self.learner.apply("sample", observations.flatten(1, 2), noise.flatten(1, 2))
        shape = observations.shape[1:3]
        return actions.unflatten(1, shape), {f"{KEPT}{name}": v.unflatten(1, shape) for name, v in kept.items()}

    # -- step by step ------------------------------------------------------------------------------------

    @torch.no_grad()
    def _stepped(self, number: int) -> Block:
        if self._plain:
            return self._stepped_here(number)
        acting, block = self.acting, Block()
        noise, held = self._noise(number), self.agent.config.held
        seen = self.normalised(acting.rows(acting.received))
        for time in range(self.horizon):
            if self.meanwhile is not None:
                self.meanwhile(time * self.num_envs)
            features = self.encoded(seen)
            captured = (
                not self.memory
            )  # a captured call keeps its results in memory of its own, which a memory outlives
            actions, kept, memory = self.learner.apply(
                "decide", features, self.memory, noise[time // held], again=captured
            )
            done = acting.act(actions.flatten(0, 1))
            acting.refuse_people(done, OWN_ACTIONS)
            valid = self._valid(done.info)
            received = acting.observed(done.observations)
            if isinstance(received, Tensor) and not bool((fine := received.isfinite().all(-1)).all()):
                raise acting.not_finite(
                    int((~fine).nonzero()[0]), number * self.horizon + time
                )  # before it is acted on
            self._learn_statistics(received, valid)
            following = self.normalised(acting.rows(received))
            step = {
                "observations": features,
                "actions": actions,
                **{f"{KEPT}{name}": value for name, value in kept.items()},
                "rewards": acting.rows(acting.tensor(done.rewards)),
                "terminations": acting.rows(acting.tensor(done.terminations)),
                "truncations": acting.rows(acting.tensor(done.truncations)),
            }
            after = following
            if done.next_observations is not done.observations:
                after = self.normalised(acting.rows(acting.observed(done.next_observations)))
            step["next_observations"] = self.encoded(after)
            if self.agent.encodes_anew:  # which the losses encode anew
                step |= named("observations", seen)
            if self.memory:
                step |= {f"{MEMORY}{name}": value for name, value in self.memory.items()} | {BEGINS: self.begins}
                self._remember(memory, step["terminations"] | step["truncations"], valid)
            if valid is not None:
                step["mask"] = acting.rows(valid).float()
            if "steps" in done.info:  # decisions of several steps each
                step["steps"] = acting.rows(acting.tensor(done.info["steps"]))
            if "cost" in done.info:
                step["costs"] = acting.rows(acting.tensor(done.info["cost"]))
            self._write(block, step, time)
            acting.received, seen = received, following
        if self.episodes.has_costs and "costs" not in block:
            block["costs"] = torch.zeros_like(block["rewards"])
        self.episodes.add_block(block)
        return block

    def _is_plain(self) -> bool:
        """Whether a step is no more than one vector, an action and a reward a row, in numpy's memory on a CPU."""
        acting, agent = self.acting, self.agent
        inserts = acting.inserts_rows or getattr(self.env, "chunk", 1) > 1
        vectors = VECTOR in acting.arrays and agent.encoder is None and not acting.as_torch
        return self.device.type == "cpu" and vectors and not inserts and not agent.begin(1)

    def _stepped_here(self, number: int) -> Block:
        """As `_stepped`, in numpy: torch's calls take several times as long as these few numbers."""
        acting, horizon, rows = self.acting, self.horizon, (self.seeds, self.num_envs)
        noise, held, decide = self._noise(number), self.agent.config.held, self._decision()
        statistics = self._statistics_by_one()
        made: Block = {}
        columns: dict[str, Array] = {}

        def write(name: str, value: Array, time: int) -> None:
            if name not in columns:
                if time > 0 and name != "costs":
                    raise _other_columns(acting.name, time, [*columns, name], list(columns))
                array = np.zeros((self.seeds, horizon, *value.shape[1:]), value.dtype)
                made[name], columns[name] = torch.from_numpy(array), array.swapaxes(0, 1)
            columns[name][time] = value

        seen = self._normalised_here(acting.received.numpy().reshape(*rows, -1))
        for time in range(horizon):
            if self.meanwhile is not None:
                self.meanwhile(time * self.num_envs)
            actions, kept = decide(seen, noise[time // held])
            done = acting.act(actions.flatten(0, 1))
            acting.refuse_people(done, OWN_ACTIONS)
            received = np.asarray(done.observations, np.float32)
            following = self._observed_here(received, statistics, number * horizon + time)
            after = following
            if done.next_observations is not done.observations:
                after = self._normalised_here(np.asarray(done.next_observations, np.float32).reshape(seen.shape))
            write("observations", seen, time)
            write("actions", actions.numpy(), time)
            for name, value in kept.items():
                write(f"{KEPT}{name}", value.numpy(), time)
            write("rewards", np.asarray(done.rewards, np.float32).reshape(rows), time)
            write("terminations", np.asarray(done.terminations).reshape(rows), time)
            write("truncations", np.asarray(done.truncations).reshape(rows), time)
            write("next_observations", after, time)
            if "cost" in done.info:
                write("costs", np.asarray(done.info["cost"], np.float32).reshape(rows), time)
            elif "costs" in columns:
                raise _other_columns(acting.name, time, [one for one in columns if one != "costs"], list(columns))
            acting.received, seen = torch.from_numpy(received), following
        if self.episodes.has_costs and "costs" not in made:
            made["costs"] = torch.zeros_like(made["rewards"])
        self.episodes.add_block(made)
        return made

    def _decision(self) -> Callable[[Array, Tensor], tuple[Tensor, Block]]:
        """What the policies decide in this block, for (S, N, O) normalised observations and noise, to the same bits.

        Of a network and a deviation that observations do not change one native call is prepared; parameters stay as
        they are until the block is full.
        """
        agent, learner = self.agent, self.learner

        def general(seen: Array, noise: Tensor) -> tuple[Tensor, Block]:
            actions, kept, _ = learner.apply("decide", torch.from_numpy(seen), self.memory, noise)
            return actions, kept

        actor, base = agent.actor, OnPolicyAgent
        usual = type(agent).decide is base.decide and type(agent).sample is base.sample
        if learner.stacked or learner.slots is None or not usual or type(actor) is not UnboundedGaussianActor:
            return general
        network = actor.mlp.prepared(self.num_envs)
        if network is None:
            return general
        deviation = actor.log_std.clamp(*actor.log_std_range).exp().numpy()

        def quick(seen: Array, noise: Tensor) -> tuple[Tensor, Block]:
            network.inputs[:] = seen[0]
            network()
            actions = network.outputs + deviation * noise.numpy()
            return torch.from_numpy(actions), {}

        return quick

    def _statistics_by_one(self) -> RunningNormalizer | None:
        """What takes the observations of a lone environment of each seed into the statistics and normalises them."""
        if not self.learns_statistics or self.num_envs > 1:
            return None
        mean, scale = (self.learner.buffers[f"normalizer.{name}"] for name in ("mean", "scale"))
        return self.moments.by_one(mean, scale, self.agent.normalizer.limit)

    def _observed_here(self, received: Array, statistics: RunningNormalizer | None, step: int) -> Array:
        """(S, N, O) normalised observations, after the statistics have learned from them."""
        shape = (self.seeds, self.num_envs, -1)
        if statistics is not None:
            statistics.values[:] = received
            if statistics.take():
                return statistics.normalised.reshape(shape).copy()
        if not (fine := np.isfinite(received).all(-1)).all():  # before it is acted on
            raise self.acting.not_finite(int(np.flatnonzero(~fine)[0]), step)
        self._learn_statistics(torch.from_numpy(received), None)
        return self._normalised_here(received.reshape(shape))

    def _normalised_here(self, observations: Array) -> Array:
        """(S, N, O) as `normalised`."""
        buffers, limit = self.learner.buffers, self.agent.normalizer.limit
        mean, scale = (buffers[f"normalizer.{name}"].numpy().reshape(self.seeds, 1, -1) for name in ("mean", "scale"))
        found = (observations - mean) / scale
        return found if limit == math.inf else np.clip(found, -limit, limit)

    def _remember(self, memory: Memory, ended: Tensor, valid: Tensor | None) -> None:
        """Take up the memory after a step, started anew where an episode begins: behind an end, or an inserted row."""
        if valid is not None:
            ended = ended | ~self.acting.rows(valid)
        flat = {name: value.flatten(0, 1) for name, value in memory.items()}
        first = {name: value[0, :1] for name, value in self._first_memory().items()}
        self.memory = {n: self.acting.rows(v) for n, v in begun_anew(flat, first, ended.flatten()).items()}
        self.begins = ended.float()

    def _write(self, block: Block, step: Block, time: int) -> None:
        """Put the (S, N, ...) columns of a step into those of the block; costs that begin later were 0 before."""
        if time > 0 and "costs" in step and "costs" not in block:
            block["costs"] = torch.zeros_like(block["rewards"])
        if time == 0:
            for name, value in step.items():
                block[name] = value.new_empty((self.seeds, self.horizon, *value.shape[1:]))
        elif step.keys() != block.keys():
            raise _other_columns(self.acting.name, time, list(step), list(block))
        for name, value in step.items():
            block[name][:, time] = value

    def _noise(self, number: int) -> Tensor:
        """(T / held, S, N, held_dim) standard normal numbers; environment e's depend on seed, block and e only."""
        width: Any = self.agent.explore_dim
        shape = (self.num_envs, -(-self.horizon // self.agent.config.held), width)
        seeds = self.learner.seeds
        numbers = drawn(seeds, "acting", number, self.device, lambda source: source.standard_normal(shape))
        return numbers.permute(2, 0, 1, 3).contiguous()

    def _valid(self, info: Mapping[str, Any]) -> Tensor | None:
        """(S * N,) bool rows that are transitions, where the environment inserts others."""
        if not self.acting.inserts_rows:
            return None
        valid = info.get("valid")
        if valid is None:
            return torch.ones(self.acting.env.num_envs, dtype=torch.bool, device=self.device)
        return self.acting.tensor(valid).bool()

    # -- both --------------------------------------------------------------------------------------------

    def _split(self, values: Tensor) -> Tensor:
        """(T, S * N, ...) as (S, T, N, ...)."""
        return values.view(len(values), self.seeds, self.num_envs, *values.shape[2:]).movedim(1, 0)

    def encoded(self, observations: Any) -> Tensor:
        """(S, ..., O) normalised observations as networks read them: features of several arrays, else themselves."""
        if self.agent.encoder is None:
            return observations
        return self.learner.apply("encode", observations)

    def normalised(self, observations: Any) -> Any:
        """(S, ..., O) raw observations as the agents of each seed see them; images are left as they are."""
        if isinstance(observations, Mapping):
            return on_vectors(self.normalised, observations, self.agent.spec.vector_keys)
        shape = (self.seeds, *[1] * (observations.dim() - 2), -1)
        buffers, limit = self.learner.buffers, self.agent.normalizer.limit
        mean, scale = (buffers[f"normalizer.{name}"].view(shape) for name in ("mean", "scale"))
        return normalised(observations, mean, scale, limit)

    def _learn_statistics(self, observations: Any, valid: Tensor | None) -> None:
        """Take (rows of seed after seed, O) observations into the statistics that the agents normalise by."""
        if not self.learns_statistics:
            return
        if isinstance(observations, Mapping):
            observations = torch.cat([observations[key] for key in self.agent.spec.vector_keys], -1)
        rows = None if valid is None else valid.view(self.seeds, -1)
        self.moments.update(observations.reshape(self.seeds, -1, observations.shape[-1]), rows)
        self.use_moments()

    def use_moments(self) -> None:
        """Let the agents normalise by the statistics as they are now."""
        self.learner.buffers["normalizer.mean"].copy_(self.moments.mean)
        self.learner.buffers["normalizer.scale"].copy_(self.moments.scale())

    def _check_costs(self, block: Block, number: int) -> None:
        costs = block["costs"]
        bad = bad_costs(costs, block.get("mask"))
        if bool(bad.any()):
            seed, time, row = bad.nonzero()[0].tolist()
            where = seed * self.num_envs + row
            raise self.acting.bad_cost(where, number * self.horizon + time, float(costs[seed, time, row]))

    def _check_finite(self, block: Block, number: int) -> None:
        seen, chosen = (torch.isfinite(block[name]).all(-1) for name in ("observations", "actions"))
        fine = torch.isfinite(block["rewards"]) & torch.isfinite(block["next_observations"]).all(-1) & seen & chosen
        if bool(fine.all()):
            return
        seed, time, row = (~fine).nonzero()[0].tolist()
        step = number * self.horizon + time
        if bool(chosen[seed, time, row]) or not bool(seen[seed, time, row]):
            raise self.acting.not_finite(seed * self.num_envs + row, step)
        raise DivergenceError(
            f"{self.agent.name}: the policy of seed {self.learner.seeds[seed]} gave an action that is not finite at "
            f"vector step {step}; lower the learning rate. Checkpoints written before stay"
        )

    # -- what is saved -----------------------------------------------------------------------------------

    def state(self, position: int) -> dict[str, Tensor]:
        """What seed `position` needs to continue: its environments, statistics and sums."""
        tensors = self.acting.state(position, "blocks/", "blocks/received")
        tensors |= {"blocks/warm": torch.tensor(self._warm), "blocks/taken": self.taken[position].clone()}
        tensors |= {f"blocks/memory/{name}": value[position].clone() for name, value in self.memory.items()}
        if self.memory:
            tensors["blocks/begins"] = self.begins[position].clone()
        return tensors | {f"blocks/moments/{name}": value for name, value in self.moments.state(position).items()}

    def restore(self, states: Sequence[Mapping[str, Tensor]], number: int) -> str | None:
        """Continue from what `state` gave before block `number`; None, or a sentence that says what is lost."""
        for position, state in enumerate(states):
            self.moments.restore(position, under(state, "blocks/moments/"))
            older = "blocks/taken" not in state  # as version 0.2.0's is
            self.taken[position] = state["loop/counters"][0] if older else state["blocks/taken"]
        self._warm = bool(states[0]["blocks/warm"])
        lost = self.acting.restore(states, "blocks/", "blocks/received")
        if lost is not None:
            self.begin_episodes(number)  # what these rows are is known already: the statistics don't learn from them
        elif self.memory:
            held = [under(state, "blocks/memory/") for state in states]
            self.memory = {n: torch.stack([one[n] for one in held]).to(self.device) for n in self.memory}
            self.begins = torch.stack([state["blocks/begins"] for state in states]).to(self.device)
        return lost


def _other_columns(name: str, time: int, found: Sequence[str], first: Sequence[str]) -> EnvironmentMismatchError:
    """What to raise where a step of an environment gave other columns than the steps before it."""
    return EnvironmentMismatchError(
        f"{name}: step {time} of a block has {', '.join(found)}, and the first {', '.join(first)}: "
        "give info['cost'] in every step or in none"
    )
