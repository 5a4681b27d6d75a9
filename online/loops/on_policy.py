"""`OnPolicyLoop`: act for a block, learn from it, forget it. The one loop of all on-policy agents."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import drawn
from surefoot.core.engine.agent import Rule, in_groups
from surefoot.core.engine.capture import STEPS_PER_GRAPH
from surefoot.core.engine.features import MOVED, move_noise
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.share import Share
from surefoot.core.engine.sources import MAIN, Source
from surefoot.core.losses.policy_gradient import adaptive_lr, kl_stop
from surefoot.core.losses.value_learning import explained_variance
from surefoot.data.dataset import NAMED, Dataset
from surefoot.data.store import OBSERVATION_ACTIONS, Store, store_from_dataset
from surefoot.envs.acting import check_rows, check_spec
from surefoot.envs.chunked import Chunked
from surefoot.online.base.on_policy_agent import BEGINS, KEPT, MEMORY, OnPolicyAgent
from surefoot.online.loops.blocks import Block, Blocks
from surefoot.online.loops.minibatches import Minibatches, RewardScale, WholeBlock
from surefoot.online.remote.team import Elsewhere
from surefoot.online.remote.team_blocks import TeamBlocks


class OnPolicyLoop:
    """Trains S agents of one kind on blocks of T steps in N environments each."""

    pause: Callable[[], None] | None = None
    """Called between steps, where `state` may be; `run` is left by what it raises."""

    def __init__(
        self,
        agents: Sequence[OnPolicyAgent],
        seeds: Sequence[int],
        env: Any,
        *,
        planned_steps: int,
        device: str | torch.device = "cpu",
        kernels: bool = False,
        compiled: bool = False,
        dataset: Dataset | None = None,
        jacobian_penalty: float = 0.0,
        share: Share | None = None,
        steps_per_graph: int = STEPS_PER_GRAPH,
    ) -> None:
        """Take over the agents and begin the first episodes.

        Args:
            agents: S agents of one class and config.
            seeds: S numbers that fix each agent's environments, actions and minibatches.
            env: contract vector environment of S N rows, row s N + e environment e of seed s; of agents that decide in
                chunks, the plain one too.
            planned_steps: environment steps of each seed that the run is to take: where schedules end.
            device: of parameters and blocks.
            kernels: run networks and updates in the native module, on a CPU.
            compiled: pass each loss through `torch.compile`.
            dataset: what `agent.prepare` returned, for agents that learn from data beside their blocks.
            jacobian_penalty: weight of the squared Jacobian of the policy's mean action.
            share: of each minibatch, where other processes act and learn likewise.
            steps_per_graph: as of `Learner`.

        Raises:
            ConfigError: environments, agents and seeds don't go together; a dataset that the agent does not read, or
                none where it does.
            EnvironmentMismatchError: the environment's spaces don't fit the agent.
        """
        self.agent, self.config = agents[0], agents[0].config
        self.seeds, self.device = list(seeds), torch.device(device)
        c = self.config
        check_rows(env, len(seeds), c.num_envs)
        check_spec(env, self.agent.spec, self.agent.name)
        elsewhere = isinstance(env, Elsewhere)
        if self.agent.chunk > 1 and not elsewhere:
            env = Chunked(env, self.agent.chunk)
        if (dataset is None) == bool(self.agent.required_columns):
            does = "learns from data beside its blocks: give dataset=" if dataset is None else "reads no dataset"
            raise ConfigError(f"{self.agent.name} {does}")
        self.data = None if dataset is None else store_from_dataset(dataset, self.agent.required_columns, self.device)
        """Rows beside the blocks, in the dataset's own units but for the actions."""
        self.step = 0
        """Environment steps so far, of each seed; of agents that decide in chunks, of the seed that took the fewest."""
        self.blocks_done = 0
        inserts_rows = bool(getattr(env, "inserts_rows", False))
        shapes = _column_shapes(self.agent, inserts_rows)
        self.store = Store.allocate(len(seeds) * c.rows, shapes, self.device)
        self.minibatches = Minibatches(self.store, c.rows, c.parts, c.num_envs, c.sequence_steps)
        self.planned_blocks = math.ceil(planned_steps / (c.rows * self.agent.chunk))
        self.groups = len(in_groups(self.agent.updates())[0])
        sources: dict[str, Source] = {MAIN: self.minibatches, "block": WholeBlock(self.minibatches)}
        rows = c.rows // c.parts
        if share is not None:
            if inserts_rows or getattr(c, "target_kl", None) is not None:
                raise ConfigError(
                    f"{self.agent.name}: with target_kl, or rows that are no steps, processes can't share"
                )
            sources, rows = share.sources({MAIN: self.minibatches}, self.agent), share.check(self.agent, rows)
        self.learner = Learner(
            agents,
            seeds,
            sources,
            batch_size=rows,
            planned_steps=self.planned_blocks * c.steps_per_block * self.groups,
            device=self.device,
            kernels=kernels,
            compiled=compiled,
            jacobian_penalty=jacobian_penalty,
            steps_per_graph=steps_per_graph,
        )
        if share is not None:
            share.lead(self.learner)
        self._adapts = any(update.optimizer.schedule == "adaptive" for update in self.learner.updates)
        targets = [self.agent.stop_at(group) for group in range(self.groups)]
        self._stops = not self._adapts and any(target is not None for target in targets)
        if self.learner.stacked and (self._adapts or self._stops):
            for optimizer in self.learner.optimizers:
                optimizer.by_seed()
        self.rewards = RewardScale(len(seeds), c.num_envs, c.discount, c.reward_limit, self.device)
        self.blocks = (TeamBlocks if elsewhere else Blocks)(env, self.learner, c.length, self.device)

    def run(self, steps: int) -> dict[str, list[float]]:
        """Continue, a block at a time, until at least `steps` more environment steps of each seed are taken.

        Returns:
            Name -> a number per seed: losses and metrics averaged over the blocks, and `episode_return`,
            `episode_length` (and `episode_cost`), the means of the training episodes that ended meanwhile.

        Raises:
            DivergenceError: a loss, or what the environment gave, was not finite.
        """
        target, sums, count = self.step + steps, dict[str, list[float]](), 0
        while self.step < target:
            if self.pause is not None:
                self.pause()
            self.blocks.warm_up()
            result = self._block()
            count += 1
            for name, values in result.items():
                before = sums.get(name, [0.0] * len(values))
                sums[name] = [a + b for a, b in zip(before, values, strict=True)]
        means = {name: [value / count for value in values] for name, values in sums.items()}
        return means | self.blocks.episodes.take()

    def _block(self) -> dict[str, list[float]]:
        """Fill a block and learn from it."""
        c = self.config
        block = self.blocks.fill(self.blocks_done)
        if c.normalize_rewards:
            block["rewards"] = self.rewards(block)
        if self.blocks.recent is not None:  # before the policy's steps
            self.learner.episodes_ended(*self.blocks.recent.means())
        block |= self._data_rows() | self._noise()
        if self.agent.anneals:
            done = min(self._blocks_gone(), self.planned_blocks - 1) / self.planned_blocks
            block["progress"] = torch.full_like(block["rewards"], done)
        if self.agent.warm_up_blocks:
            moving = float(self.blocks_done >= self.agent.warm_up_blocks)
            block["moving"] = torch.full_like(block["rewards"], moving)
        block |= self._view(block)
        columns = self._write(block)
        result = self._explained(columns)
        for entry in self.learner.sequence:
            if isinstance(entry, Rule):
                result |= self._obey(entry, block)
            else:
                ending = f"_{entry + 1}" if entry else ""
                result |= {f"{name}{ending}": values for name, values in self._learn(entry).items()}
        if "multiplier.value" in self.learner.buffers:
            result["multiplier"] = self.learner.buffers["multiplier.value"].tolist()
        self.blocks_done += 1
        if self.blocks_done <= self.agent.warm_up_blocks:
            self._forget_steps()
        self.step = int(self.blocks.taken.min())
        return result

    def _blocks_gone(self) -> int:
        """What schedules go by: the steps so far as whole blocks. With a block that was taken for statistics alone they
        are one more than were learned from; where episodes' ends cut chunks short, fewer."""
        return self.step // (self.config.rows * self.agent.chunk)

    def _forget_steps(self) -> None:
        """What does not learn yet has taken no step: its gradients were 0, and Adam's moments are so still."""
        for update, optimizer in zip(self.learner.updates, self.learner.optimizers, strict=True):
            if "value" not in update.trains:
                for count in optimizer.counts:
                    count.zero_()

    def _data_rows(self) -> Block:
        """As many rows of the data as the block has, in its layout and through its maps; names begin with `data_`."""
        if self.data is None:
            return {}
        c, shape = self.config, (self.config.num_envs, self.config.length)
        count = len(self.data)
        chosen = drawn(
            self.seeds, "data_rows", self.blocks_done, self.device, lambda source: source.integers(0, count, shape)
        )
        rows = self.data.gather(chosen.transpose(1, 2).flatten())
        found = {n: v.unflatten(0, (len(self.seeds), c.length, c.num_envs)).clone() for n, v in rows.items()}
        found.pop(OBSERVATION_ACTIONS, None)
        for name in ("observations", "next_observations"):
            found[name] = self.blocks.normalised(found[name])
        if c.normalize_rewards:
            found["rewards"] = self.rewards.scaled(found["rewards"])
        return {f"data_{name}": value for name, value in found.items()}

    def _noise(self) -> Block:
        """(S, T, N, width) random numbers that the agent's columns read; those of environment e are its own."""
        shape, found = (self.config.num_envs, self.config.length), {}
        for name, noise in self.agent.column_noise().items():
            numbers = drawn(self.seeds, name, self.blocks_done, self.device, lambda source: noise.draw(source, shape))  # noqa: B023
            found[name] = numbers.transpose(1, 2)
        return found

    def _view(self, block: Block) -> Block:
        """How the block's images are moved: (S, T, N, ...) numbers, one draw a row, which every loss then sees it by.

        The features of the block become those of moved images; what followed is seen as it is.
        """
        shape, moves = (self.config.num_envs, self.config.length), {}
        for name, noise in move_noise(self.agent).items():
            draw = functools.partial(noise.draw, shape=shape)
            numbers = drawn(self.seeds, f"view {name}", self.blocks_done, self.device, draw)
            moves[name] = numbers.transpose(1, 2).to(block["rewards"].dtype)
        if not moves:
            return {}
        features = []
        for time in range(block["rewards"].shape[1]):
            arrays = {key: block[f"{NAMED}{key}"][:, time] for key in self.agent.spec.observations}
            features.append(self.learner.apply("encode_moved", arrays, {n: v[:, time] for n, v in moves.items()}))
        return {"observations": torch.stack(features, 1), **{f"{MOVED}{name}": v for name, v in moves.items()}}

    def _explained(self, columns: Block) -> dict[str, list[float]]:
        """How much of the returns' variance the critic predicted, of each seed; nothing where there is none."""
        if not {"values", "returns"} <= columns.keys():
            return {}
        names = ["values", "returns", *(["mask"] if "mask" in columns else [])]
        each = zip(*(columns[name] for name in names), strict=True)
        return {"explained_variance": torch.stack([explained_variance(*one) for one in each]).tolist()}

    def _write(self, block: Block) -> Block:
        """Columns that the losses read into the store: row s T N + t N + e is step t of environment e of seed s."""
        columns: Block = self.learner.apply("columns", block)
        if self.agent.encodes_anew:  # the losses read features that are encoded anew
            del columns["observations"]
            columns |= {name: value for name, value in block.items() if name.startswith((NAMED, MOVED))}
        for name, column in columns.items():
            self.store[name].copy_(column.flatten(0, 2))
        return columns

    def _obey(self, rule: Rule, block: Block) -> dict[str, list[float]]:
        """Take a rule on the block, or on the columns that the losses read, which it may change."""
        keys = [key for key in self.store.keys if key != OBSERVATION_ACTIONS]
        columns = {key: self.store[key].unflatten(0, (len(self.seeds), -1)) for key in keys}
        changed, metrics = self.learner.apply_rule(rule, block if rule.source == "block" else columns)
        for name, value in changed.items():
            if name not in columns:
                raise ConfigError(f"{self.agent.name}: {rule.name} gives {name!r}, which is no tensor or column of it")
            columns[name].copy_(value)
        return {name: value.tolist() for name, value in metrics.items()}

    def _learn(self, group: int) -> dict[str, list[float]]:
        """All epochs of a group of updates on what the store holds.

        Returns:
            Name -> a number per seed: each loss averaged over the epochs that the seed took, each metric at the end of
            the last of them.
        """
        c, learner = self.config, self.learner
        epochs = c.steps_per_block // c.parts
        self.minibatches.begin(learner.step, (self.blocks_done * self.groups + group) * epochs)
        done = self._blocks_gone() * self.groups + group
        for update, optimizer in zip(learner.updates, learner.optimizers, strict=True):
            optimizer.taken = done * c.steps_per_block // update.every  # whatever was stopped early
            if optimizer.active is not None:
                optimizer.active.fill_(True)
        before = self._adapt if self._adapts else None
        if not self._stops:
            taken = learner.run(c.steps_per_block, before, group)
            if self._adapts:
                self._adapt()
            return taken
        losses = {update.name for update in learner.updates}
        result, counts = dict[str, list[float]](), dict[str, list[int]]()
        going = [True] * len(self.seeds)
        for epoch in range(epochs):
            found = learner.run(c.parts, before, group)
            for name, values in found.items():
                counts[name] = [n + on for n, on in zip(counts.get(name, [0] * len(going)), going, strict=True)]
                each = zip(values, result.get(name, values), counts[name], going, strict=True)
                if name in losses:
                    result[name] = [old + (new - old) / n if on else old for new, old, n, on in each]
                else:
                    result[name] = [new if on else old for new, old, _, on in each]
            stopped = kl_stop(learner.metric("kl_k3"), self.agent.stop_at(group))
            going = [on and not stop for on, stop in zip(going, stopped.tolist(), strict=True)]
            if epoch + 1 < epochs and not any(going):
                break
            for optimizer in learner.optimizers:
                if optimizer.active is not None:
                    optimizer.active.copy_(torch.tensor(going))
        return result

    def _adapt(self) -> None:
        """Set the rates by the divergence that the last minibatch met; in a block's first one it is 0 by itself.

        The minibatch's own step was taken by the rate before, and the next one's is by this: rsl_rl changes it for the
        minibatch itself.
        """
        if self.learner.step == self.minibatches.first:
            return
        divergence, target = self.learner.metric("kl").double(), self.agent.stop_at(0)
        assert target is not None
        for optimizer in self.learner.optimizers:
            optimizer.rates.copy_(adaptive_lr(divergence, optimizer.rates, target))

    def begin_episodes(self) -> None:
        """New episodes in all environments, as where others have stepped them since; after a whole block."""
        self.blocks.begin_episodes(self.blocks_done)

    # -- what is saved -----------------------------------------------------------------------------------

    def state(self, position: int) -> dict[str, Tensor]:
        """Everything that seed `position` needs to continue bit for bit, after a whole block."""
        counters = torch.tensor([self.step, self.blocks_done, self.learner.step])
        scale = {f"rewards/{name}": value for name, value in self.rewards.state(position).items()}
        return {**self.learner.state(position), **self.blocks.state(position), **scale, "loop/counters": counters}

    def restore(self, states: Sequence[Mapping[str, Tensor]], step: int) -> str | None:
        """Continue from what `state` gave after `step` environment steps, one mapping a seed.

        Returns:
            None, or one sentence where the environment's state can't be restored: new episodes begin then.

        Raises:
            CheckpointError: another algorithm or other sizes.
        """
        self.step, self.blocks_done, taken = states[0]["loop/counters"].tolist()
        self.learner.restore(states, taken)
        for position, given in enumerate(states):
            self.rewards.restore(position, given)
        return self.blocks.restore(states, self.blocks_done)


def _column_shapes(agent: OnPolicyAgent, inserts_rows: bool) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name -> shape of a row and dtype of the columns that the agent makes of a block, found on a small one."""
    spec, ends = agent.spec, torch.zeros(2, 1, dtype=torch.bool)
    block = {
        "observations": torch.zeros(2, 1, agent.features),
        "next_observations": torch.zeros(2, 1, agent.features),
        "actions": torch.zeros(2, 1, agent.decision_dim),
        "rewards": torch.zeros(2, 1),
        "terminations": ends,
        "truncations": ends,
    }
    if inserts_rows:
        block["mask"] = torch.ones(2, 1)
    for name, there in (("progress", agent.anneals), ("moving", agent.warm_up_blocks)):
        block |= {name: torch.zeros(2, 1)} if there else {}
    if agent.cost_window is not None:
        block["costs"] = torch.zeros(2, 1)
    block |= {f"data_{key}": block[key].float() for key in agent.required_columns}
    block |= {name: torch.zeros(2, 1, noise.width) for name, noise in agent.column_noise().items()}
    with torch.no_grad():
        memory = agent.begin(2)
        if memory:
            block |= {f"{MEMORY}{name}": value.unsqueeze(1) for name, value in memory.items()}
            block[BEGINS] = torch.ones(2, 1)
        seen, noise = torch.zeros(2, agent.features), torch.zeros(2, agent.explore_dim)
        _, kept, _ = agent.decide(seen, memory, noise)
        block |= {f"{KEPT}{name}": value.unsqueeze(1) for name, value in kept.items()}
        columns = agent.columns(block)
    shapes = {name: (tuple(column.shape[2:]), torch.float32) for name, column in columns.items()}
    if not agent.encodes_anew:
        return shapes
    del shapes["observations"]
    shapes |= {f"{MOVED}{name}": ((noise.width,), torch.float32) for name, noise in move_noise(agent).items()}
    return shapes | {name: (shape, getattr(torch, dtype)) for name, (shape, dtype) in spec.columns().items()}
