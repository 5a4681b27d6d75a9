"""`Learner`: everything of training that is not the algorithm, once for all agents.

It owns the parameters' storage (`core.engine.parameters`), the optimisers (`core.engine.optimizer`), the random streams
and the order of steps. S agents of one kind train stacked by `torch.func` (efficient on a GPU); one alone on a CPU runs
its losses over the native module (`core.nn.native.kernels`). `core.engine.capture` repeats steps. All give the same
numbers within rounding.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, ConfigError, DivergenceError
from surefoot.core.base.random import Stream
from surefoot.core.engine.agent import Agent, Metrics, Rule, Update, in_groups, times_due
from surefoot.core.engine.capture import (
    STEPS_PER_GRAPH,
    Batches,
    Capture,
    Due,
    Graphed,
    GraphedCalls,
    Numbers,
    Taped,
    check_steps_per_graph,
    why_eager,
)
from surefoot.core.engine.features import encoded, encodes_twice, training_encoder
from surefoot.core.engine.hot_loop import LossLog, SubnormalsAreZero, without_collection
from surefoot.core.engine.optimizer import Optimizer
from surefoot.core.engine.order import (
    check_names,
    check_switches,
    check_writes,
    due_at,
    noise_of,
    rows_of_sources,
    switched_off,
    updates_of,
)
from surefoot.core.engine.parameters import Parameters, checked_loss
from surefoot.core.engine.smoothness import penalised
from surefoot.core.engine.sources import MAIN, Batch, Source, as_sources
from surefoot.core.nn.native import native
from surefoot.core.nn.native.kernels import Slots, use

OWN = ("agent/", "adam/", "source/")
"""What the names of a Learner's state begin with; a loop's stand beside them in a checkpoint."""


class Learner:
    """Trains S agents that differ in nothing but their seed."""

    def __init__(
        self,
        agents: Sequence[Agent],
        seeds: Sequence[int],
        sources: Mapping[str, Source] | Source,
        *,
        batch_size: int = 256,
        planned_steps: int = 1_000_000,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        kernels: bool = False,
        stacked: bool | None = None,
        compiled: bool = False,
        mixed_precision: bool = False,
        jacobian_penalty: float = 0.0,
        log_length: int = 1024,
        steps_per_graph: int = STEPS_PER_GRAPH,
    ) -> None:
        """Take over the agents' parameters.

        Args:
            agents: S agents of one class and config.
            seeds: S numbers that fix each agent's batches and noise.
            sources: where rows come from, by the names that the updates use; one alone is the main one. A source
                with `workspace(rows)` is handed one on a CPU, and so fills the same memory at every step.
            batch_size: rows per update, unless the update says otherwise.
            planned_steps: training steps that the schedules count on.
            device: where parameters live; on "meta" nothing is computed, and only shapes and devices are checked.
            dtype: of parameters and noise.
            kernels: on a CPU, networks and Adam by the native module, and steps from a tape; plain PyTorch where the
                module was not built, and for stacked agents.
            stacked: stack agents with `vmap`; None: only for several agents or on a GPU.
            compiled: pass each loss through `torch.compile` (needs a compiler on a CPU).
            mixed_precision: matrix products in bfloat16; parameters and optimisers stay as they are.
            jacobian_penalty: weight of the squared Jacobian of the policy's mean action (`core.engine.smoothness`).
            log_length: training steps between checks that all losses are finite, at most.
            steps_per_graph: on a GPU, training steps that are one CUDA graph where nothing happens between them; 1, 2,
                4, 8, 16 or 32.

        Raises:
            ConfigError: agents and seeds, or updates, networks and sources, that don't go together.
        """
        self.agent, self.seeds = agents[0], list(seeds)
        self.device, self.dtype = torch.device(device), dtype
        self.mixed_precision = mixed_precision
        self.stacked = stacked if stacked is not None else len(agents) > 1 or self.device.type == "cuda"
        if len(agents) != len(self.seeds) or (len(agents) > 1 and not self.stacked):
            raise ConfigError(f"{len(agents)} agents and {len(self.seeds)} seeds don't go together")
        if kernels and len(agents) > 1 and self.device.type == "cpu":
            raise ConfigError(
                f"{len(agents)} agents stacked on a CPU train at a third to a half of the rate of a process each: "
                "train one a process, as surefoot train does; with kernels=False they are stacked all the same"
            )
        for agent in agents:
            agent.to(self.device, dtype)
        self.order = training_encoder(self.agent, penalised(self.agent, self.agent.updates(), jacobian_penalty))
        """Updates and rules as the agent gives them; an update may stand there twice."""
        self.updates = updates_of(self.order)
        self.batch_size, self.planned_steps, self.log_length = batch_size, planned_steps, log_length
        self.step = 0
        self.parameters = Parameters(agents, self.stacked)
        self.networks = self.parameters.networks
        check_names(self.agent.name, self.order, self.networks, self.buffers)
        check_switches(self.agent.name, self.updates, self.buffers)
        self._off = switched_off(self.updates, self.buffers)
        eager = why_eager(self.device, dtype, kernels, self.stacked, compiled, mixed_precision)
        self.slots = None if eager else Slots()
        self.optimizers = [Optimizer.of(update, self.networks, planned_steps, not eager) for update in self.updates]
        self.sources = as_sources(sources)
        wanted = rows_of_sources(self.agent.name, self.order, self.sources, batch_size)
        check_writes(self.agent.name, self.updates, self.sources)
        for name, rows in wanted.items():
            self.sources[name].bind(self.seeds, rows, self.device)
        noises, rows_of_noise = noise_of(self.agent.name, self.order, batch_size)
        self.stream = Stream(self.seeds, rows_of_noise, noises, self.device, dtype)
        groups, self.sequence = in_groups(self.order)
        """What is done with a block: groups of updates by their numbers, for `run`, and rules on blocks."""
        self._groups = [[self.updates.index(e) if isinstance(e, Update) else e for e in group] for group in groups]
        self._compute = [self.parameters.bound(checked_loss(u), compiled) for u in self.updates]
        self._twice = encodes_twice(self.updates, self._annotates())
        self._annotate = self.parameters.bound(self._annotated)
        self._ones = torch.ones(len(agents), dtype=dtype, device=self.device)
        self._losses = torch.zeros(len(self.updates), len(agents), dtype=dtype, device=self.device)
        self._losses_of_step = self._losses
        self._metrics: dict[str, Tensor] = {}
        makers = {name: None if eager else getattr(self.sources[name], "workspace", None) for name in wanted}
        self._spaces = {name: maker(wanted[name]) for name, maker in makers.items() if maker is not None}
        check_steps_per_graph(steps_per_graph)
        self.steps_per_graph = steps_per_graph
        plain = Capture(self._gather, self._work, eager)
        self.capture: Capture = plain if eager else Taped(self._gather, self._work)
        if self.device.type == "cuda":
            self.capture_graphs()
        self._calls = GraphedCalls()

    def capture_graphs(self) -> None:
        """Repeat steps as CUDA graphs from now on, as on a GPU."""
        self.capture = Graphed(self._gather, self._work, self._work_several)
        self._losses_of_steps = self._losses.repeat(self.steps_per_graph, 1, 1)
        for optimizer in self.optimizers:
            optimizer.hold_rates(self.steps_per_graph)

    def eager_because(self) -> dict[str, str]:
        """Updates that are due together, or "all" -> why they run as they stand; empty where all are captured."""
        names = {due: ", ".join(self.updates[index].name for index in due) for due in self.capture.eager}
        return {names[due] or "all": reason for due, reason in self.capture.eager.items()}

    # -- what is done with the agents' tensors -----------------------------------------------------------

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Full name -> (S, ...) buffer as the losses read it, such as "normalizer.mean"; write into it to change it."""
        return self.parameters.buffers

    def metric(self, name: str) -> Tensor:
        """(S,) mean of a metric of the last training step, on the device."""
        return self._metrics[name].reshape(len(self.seeds), -1).mean(1)

    def apply(self, method: str, *arguments: Any, fused: bool = True, again: bool = False) -> Any:
        """What a method of each agent gives, without gradient: for (S, ...) arguments (S, ...) tensors.

        Args:
            method: name of the agent's method.
            arguments: tensors, or trees of them.
            fused: over the kernels, as the losses; plain PyTorch is quicker for a few rows.
            again: it is called with such sizes again and again, as while acting, and could be captured as a loss is:
                on a GPU it becomes a CUDA graph.
        """
        with torch.no_grad(), use(self.slots if fused else None):
            if again and self.device.type == "cuda" and self.stacked:
                return self._calls(method, functools.partial(self.parameters.call, method), *arguments)
            return self.parameters.call(method, *arguments)

    def episodes_ended(self, cost: Tensor, length: Tensor) -> None:
        """Take the rules on episodes, by (S,) mean cost and length of each agent's last ones; NaN where none ended."""
        for entry in self.order:
            if isinstance(entry, Rule) and entry.on == "episodes":
                self.apply_rule(entry, {"cost": cost, "length": length})

    def apply_rule(
        self, rule: Rule, batch: Mapping[str, Tensor], noise: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Any], Metrics]:
        """Take a rule over the kernels, as `Parameters.apply_rule`."""
        with use(self.slots):
            return self.parameters.apply_rule(rule, batch, noise)

    # -- one training step -------------------------------------------------------------------------------

    def _gradients(self, index: int, batch: Any, noise: Numbers) -> Metrics:
        """Evaluate loss `index`, leave its gradients in the networks' storage, and give its metrics."""
        update = self.updates[index]
        trained, slots = self.parameters.trained(update.trains), self.parameters.slots(update.trains)
        loss, metrics = self._compute[index](batch, noise)
        if self.slots is not None:
            self.slots.gradients = {p.data_ptr(): s for p, s in zip(trained, slots, strict=True)}
        if self.stacked:  # each loss counts once: as of their sum
            found = torch.autograd.grad(loss, trained, self._ones.to(loss.dtype), materialize_grads=True)
        else:
            found = torch.autograd.grad(loss.sum(), trained, materialize_grads=True)
        with torch.no_grad():
            if self.device.type == "cpu":
                for slot, gradient in zip(slots, found, strict=True):
                    if slot.data_ptr() != gradient.data_ptr():
                        slot.copy_(gradient)
            else:
                self.parameters.store_gradients(update.trains, found)
            self._losses_of_step[index].copy_(loss)
        self.parameters.follow(update, metrics)
        recorded = native.recorder() is not None  # a tape keeps writing what it made, but a batch comes and goes
        return {name: value.detach().clone() if recorded else value.detach() for name, value in metrics.items()}

    def _slice(self, batch: Batch, start: int, rows: int) -> Batch:
        """Rows from `start` on, of what begins with the rows (after the seeds, where agents are stacked)."""
        dim = 1 if self.stacked else 0
        return {
            key: value if start == 0 and value.shape[dim] == rows else value.narrow(dim, start, rows)
            for key, value in batch.items()
        }

    def _part(self, update: Update, batches: Batches, turn: int) -> Any:
        """What the loss of an update is given at one of its turns."""
        rows = update.rows or self.batch_size
        parts = {name: self._slice(batches[name], turn * rows, rows) for name in update.sources}
        return parts[update.source] if isinstance(update.source, str) else parts

    def _gather(self, rows: Numbers) -> Batches:
        """The batch of each source; in memory of its own, where the source has some."""
        found = {}
        for name, own in rows.items():
            space, gather = self._spaces.get(name), self.sources[name].gather
            found[name] = gather(own) if space is None else gather(own, space)
        return found

    def _annotates(self) -> bool:
        return self.agent.vision.annotates and type(self.agent).annotate is not Agent.annotate

    def _annotated(self, batch: Batch, noise: dict[str, Tensor]) -> Batch:
        return self.agent.annotate(encoded(self.agent, batch, noise, self._twice))

    def _work(self, batches: Batches, noise: Numbers, due: Due) -> Metrics:
        """Updates that are due one after another, on the batches of their sources; gives their metrics."""
        if MAIN in batches:
            with torch.no_grad():
                shift = noise if self.agent.encoder is not None else {}
                batches = {**batches, MAIN: self._annotate(batches[MAIN], shift)}
        waiting: list[int] = []
        metrics: Metrics = {}
        for index in due:
            update = self.updates[index]
            if waiting and not update.simultaneous:
                self._flush(waiting)
            rows = (update.rows or self.batch_size) * len(update.sources)
            for turn in range(update.repeat):
                numbers = {
                    name: self._slice({name: noise[name]}, turn, 1)[name]
                    if kind.whole_batch
                    else self._slice({name: noise[name]}, turn * rows, rows)[name]
                    for name, kind in update.noise.items()
                }
                if turn > 0:
                    self._flush(waiting)
                part = self._part(update, batches, turn)
                metrics |= self._gradients(index, part, numbers)
                waiting.append(index)
        self._flush(waiting)
        return metrics

    def _work_several(self, rows: Numbers, noise: Numbers, dues: tuple[Due, ...]) -> tuple[Metrics, Tensor]:
        """`_work` of several steps, one after another; gives their metrics, and the losses after each step."""
        dim = 1 if self.stacked else 0
        metrics: Metrics = {}
        for turn, due in enumerate(dues):
            names = {name for index in due for name in self.updates[index].sources}
            own, numbers = ({n: value.select(dim, turn) for n, value in group.items()} for group in (rows, noise))
            for optimizer in self.optimizers:
                optimizer.turn = turn
            self._losses_of_step = self._losses_of_steps[turn]
            if due:
                batches = self._gather({name: own[name] for name in rows if name in names})
                metrics |= self._work(batches, numbers, due)
        for optimizer in self.optimizers:
            optimizer.turn = 0
        self._losses_of_step = self._losses
        return metrics, self._losses_of_steps

    @torch.no_grad()
    def _flush(self, waiting: list[int]) -> None:
        """Step the optimisers of these updates and average their targets."""
        for index in waiting:
            for target, (source, rate) in self.updates[index].pre_step_targets.items():
                self.networks[target].value.lerp_(self.networks[source].value, rate)
        for index in waiting:
            then = self.updates[index].target_updates.items()
            averages = [(self.networks[target], self.networks[source], rate) for target, (source, rate) in then]
            self.optimizers[index].step(averages)
        waiting.clear()

    def run(
        self,
        steps: int,
        before: Callable[[], None] | None = None,
        group: int = 0,
        pause: Callable[[], None] | None = None,
    ) -> dict[str, list[float]]:
        """Take `steps` training steps.

        Args:
            steps: how many.
            before: called before each of them, e.g. to act in an environment and to add to what is sampled.
            group: which updates, where rules on blocks part them into several groups: a number of `sequence`.
            pause: called between steps, and changes nothing that they read: several of them may be taken at once.

        Returns:
            Name -> a number per seed: each loss averaged over these steps, each metric at the last one.

        Raises:
            DivergenceError: a loss was not finite; says which, when and for which seed.
        """
        log = LossLog(self._losses, min(steps, self.log_length))
        subnormals = SubnormalsAreZero(self.device.type == "cpu")
        with use(self.slots), self._autocast(), without_collection():
            left = steps
            while left > 0:
                for call in (pause, before):
                    if call is not None:
                        call()
                count = self.steps_per_graph if before is None and min(left, log.room) >= self.steps_per_graph else 1
                with subnormals:
                    several = self._advance_several(group, count)
                    full = log.add(self._advance(group)) if several is None else log.add_several(*several)
                left -= 1 if several is None else count
                if full or left == 0:
                    self._check_finite(log.take())
            result = {self.updates[index].name: values for index, values in log.averages().items()}
            for name, value in self._metrics.items():
                result[name] = value.reshape(len(self.seeds), -1).double().mean(1).tolist()
        return result

    def _advance_several(self, group: int, count: int) -> tuple[Tensor, list[list[bool]]] | None:
        """Take `count` training steps at once, as `_advance` takes one; None: that can't be, and none was taken.

        Returns:
            (count, updates, seeds) losses, and for each step which updates were taken.
        """
        if count == 1 or not isinstance(self.capture, Graphed):
            return None
        steps, dues = range(self.step, self.step + count), list[Due]()
        for step in steps:
            parts = due_at(self._groups[group], self.updates, step + 1, self.planned_steps, self._off)
            updates = [part for part in parts if not isinstance(part, Rule)]
            if len(updates) < len(parts) or any(self.updates[index].writes for part in updates for index in part):
                return None
            dues.append(tuple(index for part in updates for index in part))
        if not self.capture.takes(tuple(dues)):
            return None
        for turn, due in enumerate(dues):
            for index in due:
                self.optimizers[index].before(turn)
                self.optimizers[index].taken += self.updates[index].repeat
        names = {name: None for due in dues for index in due for name in self.updates[index].sources}
        rows = {name: self._stacked([self.sources[name].rows(step) for step in steps]) for name in names}
        numbers = [self.stream.at(step) for step in steps]
        noise = {name: self._stacked([one[name] for one in numbers]) for name in numbers[0]}
        metrics, losses = self.capture.steps(rows, noise, tuple(dues))
        self._metrics.update(metrics)
        self.step += count
        return losses, [[index in due for index in range(len(self.updates))] for due in dues]

    def _stacked(self, values: list[Tensor]) -> Tensor:
        """What several steps read, side by side behind the seeds; of a lone agent without them."""
        found = torch.stack(values, 1)
        return found if self.stacked else found[0]

    def _advance(self, group: int) -> list[bool]:
        """One training step: what is due of a group, in its order; says which updates were."""
        number = self.step + 1
        due = due_at(self._groups[group], self.updates, number, self.planned_steps, self._off)
        noise = self.stream.at(self.step)
        taken = [False] * len(self.updates)
        for part in due:
            if isinstance(part, Rule):
                self._obey_in_step(part)
                self._off = switched_off(self.updates, self.buffers) if part.changes else self._off
                continue
            for index in part:
                self.optimizers[index].before()
                taken[index] = True
            names = {name: None for index in part for name in self.updates[index].sources}
            rows = {name: self._own(self.sources[name].rows(self.step)) for name in names}
            own = {name: self._own(value) for name, value in noise.items()}
            metrics = self.capture.step(rows, own, tuple(part))
            self._metrics.update(metrics)
            for index in part:
                self.optimizers[index].taken += self.updates[index].repeat
                for name, metric in self.updates[index].writes.items():
                    self.sources[name].write(rows[name], metrics[metric])  # type: ignore[attr-defined]
        self.step = number
        return taken

    def _own(self, value: Tensor) -> Tensor:
        """(S, ...) of all agents, or what a lone one has."""
        return value if self.stacked else value[0]

    def _obey_in_step(self, rule: Rule) -> None:
        """Take a rule of training steps on rows of its source."""
        batch: Batch = {}
        noise: dict[str, Tensor] = {}
        if rule.change is not None:
            rows = rule.rows or self.batch_size
            indices = self.sources[rule.source].rows(self.step)[:, :rows]
            batch = self.sources[rule.source].gather(self._own(indices))
            noise = self.stream.once(self.step, rows, rule.noise, rule.name)
            if not self.stacked:
                batch = {name: value.unsqueeze(0) for name, value in batch.items()}
        rest, metrics = self.apply_rule(rule, batch, noise)
        for name, value in rest.items():
            add = getattr(self.sources.get(name), "add", None)
            if add is None:
                raise ConfigError(
                    f"{self.agent.name}: the rule {rule.name} gives {name!r}, which is neither a tensor of the agent "
                    "nor a source that rows can be added to"
                )
            add(value)
        self._metrics.update(metrics)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if not self.mixed_precision:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)  # a graph must not keep a cast

    def _check_finite(self, log: Tensor) -> None:
        if bool(log.isfinite().all()):
            return
        row, index, seed = (~log.isfinite()).nonzero()[0].tolist()
        raise DivergenceError(
            f"{self.agent.name}: {self.updates[index].name} became {log[row, index, seed].item()} at step "
            f"{self.step - len(log) + row + 1} (seed {self.seeds[seed]}); lower the learning rate or check the data. "
            "The last good checkpoint is kept"
        )

    # -- what is saved -----------------------------------------------------------------------------------

    def agents_parameters(self, position: int) -> dict[str, Tensor]:
        """Parameters and buffers of agent `position`, by their full names; views, not copies."""
        return self.parameters.of(position)

    def extract(self, position: int) -> Agent:
        """Agent `position` with its present parameters, apart from the Learner's storage, on the CPU."""
        agent = self.agent.fresh(self.seeds[position])
        agent.to(dtype=self.dtype)
        agent.load_state_dict({name: v.cpu() for name, v in self.agents_parameters(position).items()})
        return agent

    def state(self, position: int) -> dict[str, Tensor]:
        """Everything that training of seed `position` needs to continue, as named tensors (views, not copies)."""
        tensors = {f"agent/{name}": value for name, value in self.agents_parameters(position).items()}
        for update, optimizer in zip(self.updates, self.optimizers, strict=True):
            held = optimizer.state(position, update.trains)
            tensors.update({f"adam/{update.name}/{name}": value for name, value in held.items()})
        for source, rows in self.sources.items():
            if (added := getattr(rows, "rows_added", None)) is not None:
                tensors.update({f"source/{source}/{name}": value for name, value in added(position).items()})
        return tensors

    def take_moments(self, position: int, given: Mapping[str, Tensor]) -> None:
        """Let optimisers of seed `position` continue from moments that `state` gave of another run; schedules don't.

        Where seeds do not stop by themselves they share one count of steps: give all of them the same.

        Raises:
            CheckpointError: a tensor that this learner has not, or of another shape; nothing is taken then.
        """
        mine = self.state(position)
        odd = [name for name, value in given.items() if name not in mine or mine[name].shape != value.shape]
        if odd:
            raise CheckpointError(f"the moments do not fit {self.agent.name} as configured: {odd[0]} differs")
        for name, value in given.items():
            mine[name].copy_(value)

    def restore(self, states: Sequence[Mapping[str, Tensor]], step: int) -> None:
        """Continue from what `state` gave, one mapping a seed; names that are a loop's are left alone.

        Raises:
            CheckpointError: a tensor is missing or of another shape: another algorithm or other sizes.
        """
        states = [{name: value for name, value in given.items() if name.startswith(OWN)} for given in states]
        if len(states) != len(self.seeds):
            raise CheckpointError(f"{len(states)} states for {len(self.seeds)} seeds: restore one for each")
        for position, given in enumerate(states):  # all are checked before the first is taken
            shapes, own = ({n: v.shape for n, v in state.items()} for state in (given, self.state(position)))
            if odd := sorted({name for name, _ in shapes.items() ^ own.items()}):
                raise CheckpointError(
                    f"the checkpoint does not fit {self.agent.name} as configured: {odd[0]} differs "
                    f"(and {len(odd) - 1} more); it is from another algorithm or other network sizes"
                )
        with torch.no_grad():
            for position, given in enumerate(states):
                for name, value in self.state(position).items():
                    value.copy_(given[name])
        self.step, self._off = step, switched_off(self.updates, self.buffers)
        for update, optimizer in zip(self.updates, self.optimizers, strict=True):
            optimizer.taken = times_due(update, step) * update.repeat
