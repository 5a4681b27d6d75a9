"""`OffPolicyLoop`: act, store, learn. The one loop of all off-policy agents, for S seeds of N environments each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.masked_actors import masked
from surefoot.core.actors.memory import Memory, begun_anew
from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import STEPS_PER_BLOCK, drawn
from surefoot.core.engine.agent import Agent
from surefoot.core.engine.capture import STEPS_PER_GRAPH
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.envs.acting import check_rows, check_spec
from surefoot.envs.chunked import Chunked
from surefoot.envs.hindsight import hindsight_of
from surefoot.envs.objectives.relabel import COLUMN, counterfactuals_of
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.online.loops.experience import Experience
from surefoot.online.loops.relabelling import Relabelling
from surefoot.online.remote.team import Elsewhere
from surefoot.online.remote.team_experience import TeamSteps, check_agent, store

FEW_ROWS = 16
"""Below it the native MLP, which works on panels of 32 rows, is slower than plain PyTorch."""


NO_PEOPLE = "this agent decides on chunks of actions or on noise, so that what a person did is no action of its own"
"""Why no one may take over from agents that act in chunks."""


class OffPolicyLoop:
    """Trains S agents of one kind from what they do in their environments.

    One vector step moves all N environments of each seed; after it come as many training steps as keep
    `updates_per_step` per transition since the first `initial_steps`. Which of both comes next follows from how many
    were taken, so that it does not matter in what portions `run` is called.
    """

    pause: Callable[[], None] | None = None
    """Called between steps, where `state` may be; `run` is left by what it raises."""

    def __init__(
        self,
        agents: Sequence[OffPolicyAgent],
        seeds: Sequence[int],
        env: Any,
        *,
        planned_steps: int,
        batch_size: int = 256,
        device: str | torch.device = "cpu",
        kernels: bool = False,
        compiled: bool = False,
        mixed_precision: bool = False,
        dataset: Dataset | None = None,
        jacobian_penalty: float = 0.0,
        collect_steps: int | None = 32,
        steps_per_graph: int = STEPS_PER_GRAPH,
    ) -> None:
        """Take over the agents and begin the first episodes.

        Args:
            agents: S agents of one class and config.
            seeds: S numbers that fix each agent's environments, actions, batches and noise.
            env: contract vector environment of S * N rows, row s * N + e environment e of seed s.
            planned_steps: environment steps of each seed that the run is to take: bounds the replay buffer, and
                learning-rate schedules end there.
            batch_size: rows of one critic step.
            device: of parameters and replay buffer.
            kernels: run networks and updates in the native module, on a CPU.
            compiled: pass each loss through `torch.compile`.
            mixed_precision: matrix products of the losses in bfloat16; acting stays in float32.
            dataset: what `agent.prepare` returned, for agents whose sources are made of data too.
            jacobian_penalty: weight of the squared Jacobian of the policy's mean action.
            collect_steps: where `env` is a team's (`online.remote.team`): vector steps that it takes by one policy;
                None: an episode of its one environment.
            steps_per_graph: as of `Learner`.

        Raises:
            ConfigError: environments, agents and seeds don't go together; a dataset that the agent does not keep, or
                none where it does.
            EnvironmentMismatchError: the environment's spaces don't fit the agent.
        """
        self.agent, self.seeds, self.device = agents[0], list(seeds), torch.device(device)
        self.config = self.agent.config
        self.num_envs, self.step = self.config.num_envs, 0
        check_rows(env, len(seeds), self.num_envs)
        check_spec(env, self.agent.spec, self.agent.name)
        self.team_steps = TeamSteps(env.team, collect_steps) if isinstance(env, Elsewhere) else None
        """What collectors have met, where they act."""
        if self.team_steps is not None:
            check_agent(self.agent)
        chunk = self.agent.chunk
        self.in_chunks = self.agent.acting.acts_in_chunks and chunk > 1
        if self.in_chunks:
            env = Chunked(env, chunk)
        for agent in agents:
            agent.batch_size = batch_size
        whole_steps = -(-planned_steps // self.num_envs) * self.num_envs
        bounds = None if self.agent.spec.discrete else (self.agent.action_low, self.agent.action_high)
        if self.in_chunks and bounds is not None:
            bounds = (bounds[0].repeat(chunk), bounds[1].repeat(chunk))
        capacity = min(self.config.replay_capacity, whole_steps)
        reads = (
            (*self.agent.required_columns, COLUMN)
            if getattr(self.config, "counterfactual", False)
            else self.agent.required_columns
        )
        relabelling = self._relabelling(env)
        self.experience = Experience(
            env,
            seeds,
            reads,
            bounds,
            capacity,
            self.device,
            self.agent.returns_to_go,
            self.agent.cost_window,
            self.agent.spec.vector_keys,
            min(self.agent.corrections, capacity),
            NO_PEOPLE if self.agent.acting.acts_in_chunks else "",
            self.config.replay_memory,
        )
        data = None if dataset is None else store_from_dataset(dataset, reads, self.device)
        self.learner = Learner(
            agents,
            seeds,
            self.agent.sources(Stores(dataset, data, self.experience.buffer, self.experience.corrections, relabelling)),
            batch_size=batch_size,
            planned_steps=max(1, self.config.training_steps(whole_steps // (chunk if self.in_chunks else 1))),
            device=self.device,
            kernels=kernels,
            compiled=compiled,
            mixed_precision=mixed_precision,
            jacobian_penalty=jacobian_penalty,
            steps_per_graph=steps_per_graph,
        )
        self.decisions = 0
        """Rows of experience of each seed so far: its steps, or its chunks where the agent acts in chunks."""
        shape = (len(seeds), self.num_envs)
        self.queue = torch.zeros(
            *shape, chunk if self.agent.acting.queues_chunks else 1, self.agent.spec.action_dim, device=self.device
        )
        """(S, N, C, A) actions that agents which plan have still to play, the next one first."""
        self.queued = torch.zeros(*shape, dtype=torch.int64, device=self.device)
        """(S, N) how many."""
        self.memory = self._begun() if self.agent.acting.stateful else {}
        """Name -> (S, N, ...) what agents whose acting is `stateful` act by."""
        self._drawn: dict[str, tuple[int, Tensor]] = {}
        self._moved = self.experience.moved
        self._quick = self._prepared()
        self.read_transforms()

    def _relabelling(self, env: Any) -> Relabelling | None:
        """What makes many rows of one transition, where the agent asks for it.

        Raises:
            ConfigError: the environment has no goals or no objective, or rows are not as the environment gave them.
        """
        agent, goals = self.agent, int(getattr(self.config, "hindsight", 0))
        crm = bool(getattr(self.config, "counterfactual", False))
        if goals == 0 and not crm:
            return None
        asked, off = (
            (f"{agent.name}.counterfactual is true", "false") if crm else (f"{agent.name}.hindsight is {goals}", "0")
        )
        plain = not agent.normalizer.mean.any() and bool((agent.normalizer.scale == 1).all())
        if not plain or agent.reward_scale != 1 or agent.reward_shift != 0:
            raise ConfigError(
                f"{asked}, must be {off} where observations or rewards are scaled: what rows are worth is computed in "
                "the environment's own units"
            )
        if crm:
            if self.team_steps is not None:
                raise ConfigError(f"{asked}, must be {off} with collectors=, which send no labels")
            return counterfactuals_of(env, agent.name, self.device)
        if self.device.type != "cpu":
            raise ConfigError(f"{asked}: the environment's compute_reward runs on the CPU; give device=cpu")
        return hindsight_of(env, goals, agent.name)

    def run(self, steps: int) -> dict[str, list[float]]:
        """Continue until at least `steps` more environment steps of each seed are taken.

        Returns:
            Name -> a number per seed: losses averaged over the training steps, metrics of the last one, and
            `episode_return`, `episode_length` (and `episode_cost`), the means of the training episodes that ended
            meanwhile, NaN where none did; `diverged_episodes` of all seeds since the beginning.

        Raises:
            DivergenceError: a loss, or what the environment gave, was not finite.
        """
        if self.in_chunks:
            result = self._run_decisions(self.step + steps)
            return self._with_episodes(result)
        target = self.step + -(-steps // self.num_envs) * self.num_envs
        while self.step < min(target, self.config.initial_steps):
            self.act()
        training = self.config.training_steps(target) - self.learner.step
        result = self.learner.run(training, self._act_until_due) if training > 0 else {}
        while self.step < target:
            self.act()
        return self._with_episodes(result)

    def _run_decisions(self, target: int) -> dict[str, list[float]]:
        """Decide and learn until `target` steps of the environment are taken: how many decisions that is, is seen then.

        Losses are those of the last training steps.
        """
        result: dict[str, list[float]] = {}
        while self.step < target:
            self.act()
            due = self.config.training_steps(self.decisions) - self.learner.step
            if due > 0:
                result = self.learner.run(due)
        return result

    def _with_episodes(self, result: dict[str, list[float]]) -> dict[str, list[float]]:
        """Results of training steps, and those of the episodes that ended meanwhile."""
        self.experience.check()
        result |= self.experience.episodes.take()
        if "multiplier.value" in self.learner.buffers:
            result["multiplier"] = self.learner.buffers["multiplier.value"].tolist()
        if self.team_steps is not None:
            result["updates_per_row"] = [self.learner.step / max(1, self.decisions)]
        if self.experience.told_of_people:
            result["intervened_steps"] = self.experience.intervened.double().tolist()
        result["diverged_episodes"] = [float(self.experience.diverged)] * len(self.seeds)
        return result

    def _act_until_due(self) -> None:
        while self.config.training_steps(self.step) <= self.learner.step:
            self.act()

    @torch.no_grad()
    def act(self) -> None:
        """One step of every environment."""
        if self.pause is not None:
            self.pause()
        number, agent = self.decisions // self.num_envs, self.agent
        if self.team_steps is not None:
            store(self.experience, self.team_steps.take(number, self.learner))
            self._count()
            return
        width = agent.decision_dim if self.in_chunks else agent.spec.action_dim
        if self._random(self.decisions):
            uniform = self._draw("initial_actions", number, width)
            actions = agent.first_actions(masked(uniform, self._seen()) if agent.spec.masked else uniform)
        elif agent.acting.queues_chunks:
            actions = self._next_planned(number)
        elif agent.acting.stateful:
            noise = self._draw("acting", number, agent.explore_dim)
            actions, self.memory = self._explore(self._seen(), noise, "explore_on", self.memory)
        else:
            actions = self._explore(self._seen(), self._draw("acting", number, agent.explore_dim))
        played = None
        if agent.acting.acts_in_chunks:
            played = self.learner.apply("played", self._seen(), actions).reshape(-1, width)
            actions = played if agent.acting.stores_played else actions
        before = self.experience.intervened.clone() if agent.acting.queues_chunks else None
        ended = self.experience.step(actions.reshape(-1, width), number, played)
        if before is not None:
            self.queued[self.experience.acting.rows(ended)] = 0
            self.queued[before != self.experience.intervened] = 0  # what was planned is of another course
        if self.memory:
            over = self.experience.acting.rows(ended).flatten()
            flat = {name: value.flatten(0, 1) for name, value in self.memory.items()}
            started = begun_anew(flat, agent.begin(1), over)
            self.memory = {name: value.view_as(self.memory[name]) for name, value in started.items()}
        self._count()

    def _random(self, decisions: int) -> bool:
        """Whether actions are random ones, of no policy, after so many decisions."""
        return decisions < self.config.initial_steps and self.config.initial_actions == "uniform"

    def _count(self) -> None:
        """A vector step is taken."""
        moved = self.experience.moved
        if moved != self._moved:
            self._moved = moved
            self.learner.capture.forget()
        self.decisions += self.num_envs
        if "decisions" in self.learner.buffers:  # of agents that act by how many were taken
            self.learner.buffers["decisions"].fill_(self.decisions)
        self.step = int(self.experience.taken.min()) if self.in_chunks else self.decisions
        costs = self.experience.fresh_costs()
        if costs is not None and self.step > self.config.initial_steps:
            self.learner.episodes_ended(*costs)
        recent, last = self.experience.acting.recent, self.decisions - self.num_envs
        if recent is not None and self._random(last) and not self._random(self.decisions):
            recent.forget()

    def _next_planned(self, number: int) -> Tensor:
        """(S, N, A) the next actions of the plans, after planning in the rows whose plan is played."""
        empty = self.queued == 0
        if bool(empty.any()):
            planned = self._explore(self._seen(), self._draw("acting", number, self.agent.explore_dim))
            planned = planned.unflatten(-1, (self.agent.chunk, -1))
            self.queue = torch.where(empty[..., None, None], planned, self.queue)
            self.queued = torch.where(empty, self.agent.chunk, self.queued)
        actions = self.queue[:, :, 0]
        self.queue, self.queued = self.queue.roll(-1, 2), self.queued - 1
        return actions

    def _seen(self) -> Tensor:
        """(S, N, O) observations as the networks read them."""
        observations = self.experience.observations
        if self.agent.encoder is None:
            return observations
        with self._full_precision():
            return self.learner.apply("encode", observations)

    def _explore(self, observations: Tensor, noise: Tensor, method: str = "explore", *memory: Memory) -> Any:
        """(S, N, A) actions by the same kernels inside and outside of training steps, and never in half precision."""
        if method == "explore" and self._quick is not None:
            return self._quick(observations[0], noise[0]).unsqueeze(0)
        many = self.num_envs * self.agent.acting.rows >= FEW_ROWS
        with self._full_precision():
            again = method == "explore"  # a network, with nothing that is decided on the host, as planners do
            return self.learner.apply(method, observations, *memory, noise, fused=many, again=again)

    def _prepared(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """`explore` of a lone agent that draws from a squashed normal for few rows, without what is looked up at each
        call; None of others. The Learner keeps parameters where they are."""
        agent, learner = self.agent, self.learner
        usual = type(agent).explore is OffPolicyAgent.explore and type(agent).act is Agent.act
        few = self.num_envs * agent.acting.rows < FEW_ROWS and self.device.type == "cpu"
        if not usual or not few or learner.stacked or learner.mixed_precision:
            return None
        return agent.actor.in_torch() if type(agent.actor) is TanhGaussianActor else None

    def _begun(self) -> Memory:
        """(S, N, ...) the memory at the first steps of episodes."""
        seeds = len(self.seeds)
        return {n: v.unsqueeze(0).repeat(seeds, *[1] * v.dim()) for n, v in self.agent.begin(self.num_envs).items()}

    def _full_precision(self) -> contextlib.AbstractContextManager[Any]:
        if not self.learner.mixed_precision:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, enabled=False)

    def _draw(self, purpose: str, number: int, width: int) -> Tensor:
        """(S, N, width) of vector step `number`: uniform on [-1, 1) for the first actions, normal for exploration."""
        block, offset = divmod(number, STEPS_PER_BLOCK)
        held = self._drawn.get(purpose)
        if held is None or held[0] != block:
            shape = (STEPS_PER_BLOCK, self.num_envs, width)

            def draw(source: CounterGenerator) -> Tensor:
                if purpose == "acting":
                    return source.standard_normal(shape)
                return 2 * source.random(shape, np.float32) - 1

            numbers = drawn(self.seeds, purpose, block, self.device, draw)
            held = self._drawn[purpose] = (block, numbers.transpose(0, 1).contiguous())
        return held[1][offset]

    def read_transforms(self) -> None:
        """Tell the buffer how the agents normalise observations and scale rewards."""
        found = [self.learner.agents_parameters(position) for position in range(len(self.seeds))]
        mean, scale, reward_scale, reward_shift = (
            torch.stack([one[name] for one in found])
            for name in ("normalizer.mean", "normalizer.scale", "reward_scale", "reward_shift")
        )
        plain = not mean.any() and bool((scale == 1).all() and (reward_scale == 1).all()) and not reward_shift.any()
        self.experience.transform = (
            None if plain else (mean[:, None], scale[:, None], reward_scale[:, None], reward_shift[:, None])
        )

    def begin_episodes(self) -> None:
        """New episodes in all environments, as where others have stepped them since."""
        self.experience.begin(1 + self.step)
        self._forget_episodes()

    def _forget_episodes(self) -> None:
        """What was planned for, and remembered of, the episodes so far."""
        self.queued.zero_()
        self.memory = self._begun() if self.memory else {}

    # -- what is saved -----------------------------------------------------------------------------------

    def state(self, position: int) -> dict[str, Tensor]:
        """Everything that seed `position` needs to continue bit for bit: learner, replay buffer, environments, sums."""
        tensors = {**self.learner.state(position), **self.experience.state(position)}
        tensors["loop/decisions"] = torch.tensor(self.decisions)
        if self.team_steps is not None:
            tensors |= self.team_steps.state()
        if self.agent.acting.queues_chunks:
            tensors |= {"loop/queue": self.queue[position].clone(), "loop/queued": self.queued[position].clone()}
        tensors |= {f"loop/memory/{name}": value[position].clone() for name, value in self.memory.items()}
        return tensors

    def restore(self, states: Sequence[Mapping[str, Tensor]], step: int) -> str | None:
        """Continue from what `state` gave after `step` environment steps, one mapping a seed.

        Returns:
            None, or one sentence where the environment's state can't be restored: new episodes begin then.

        Raises:
            CheckpointError: another algorithm, sizes or replay buffer.
        """
        self.decisions, self.step = int(states[0].get("loop/decisions", torch.tensor(step))), step
        self.learner.restore(states, self.config.training_steps(self.decisions))
        if self.agent.acting.queues_chunks:
            self.queue, self.queued = (
                torch.stack([one[f"loop/{name}"] for one in states]).to(self.device) for name in ("queue", "queued")
            )
        self.memory = {
            name: torch.stack([one[f"loop/memory/{name}"] for one in states]).to(self.device) for name in self.memory
        }
        self.read_transforms()
        lost = self.experience.restore(states, block=1 + step)
        if self.team_steps is not None:
            self.team_steps.restore(states[0])
        if lost is not None:
            self._forget_episodes()
        return lost
