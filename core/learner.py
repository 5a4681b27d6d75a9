"""`Learner`: everything of training that is not the algorithm, once for all agents.

It owns the parameters' storage, the optimisers (`core.optimizer`), the random streams and the order of steps.
S agents of one kind train together, stacked by `torch.func` (what a GPU wants); one agent alone on a CPU runs
its losses over the kernels of `core.kernels`, and records a training step to run it again without python
(`core.tape`: what a core wants). All give the same numbers within rounding.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._pytree import tree_map

from surefoot.core import kernels, native
from surefoot.core.agent import Agent, Metrics, Rule, Update, in_groups
from surefoot.core.errors import CheckpointError, ConfigError, DivergenceError
from surefoot.core.features import encoded, training_encoder
from surefoot.core.optimizer import Network, Optimizer
from surefoot.core.random import Noise, Stream
from surefoot.core.smoothness import penalised
from surefoot.core.sources import MAIN, Batch, Source, as_sources
from surefoot.core.tape import Recorder, Tape

Batches = dict[str, Batch]
"""Source -> batch of one training step."""


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
        table: kernels.KernelTable | None = None,
        stacked: bool | None = None,
        compiled: bool = False,
        mixed_precision: bool = False,
        jacobian_penalty: float = 0.0,
        log_length: int = 1024,
    ) -> None:
        """Take over the agents' parameters.

        Args:
            agents: S agents of one class and config.
            seeds: S numbers that fix each agent's batches and noise.
            sources: where rows come from, by the names that the updates use; one alone is the main one. A source
                with `workspace(rows)` is handed one on a CPU, and so fills the same memory at every step.
            batch_size: rows per update, unless the update says otherwise.
            planned_steps: training steps that the schedules count on.
            device: where parameters live.
            dtype: of parameters and noise.
            table: measured kernels for the CPU; None runs plain PyTorch.
            stacked: stack agents with `vmap`; None: only for several agents or on a GPU.
            compiled: pass each loss through `torch.compile` (needs a compiler on a CPU).
            mixed_precision: matrix products in bfloat16; parameters and optimisers stay as they are.
            jacobian_penalty: weight of the squared Jacobian of the policy's mean action (`core.smoothness`).
            log_length: training steps between checks that all losses are finite, at most.

        Raises:
            ConfigError: agents and seeds, or updates, networks and sources, that don't go together.
        """
        self.agent, self.seeds = agents[0], list(seeds)
        self.device, self.dtype = torch.device(device), dtype
        self.mixed_precision = mixed_precision
        self.stacked = stacked if stacked is not None else len(agents) > 1 or self.device.type == "cuda"
        if len(agents) != len(self.seeds) or (len(agents) > 1 and not self.stacked):
            raise ConfigError(f"{len(agents)} agents and {len(self.seeds)} seeds don't go together")
        for agent in agents:
            agent.to(self.device, dtype)
        self.order = training_encoder(self.agent, penalised(self.agent, self.agent.updates(), jacobian_penalty))
        """Updates and rules as the agent gives them; an update may stand there twice."""
        self.updates: list[Update] = []
        for entry in self.order:
            if isinstance(entry, Update) and entry not in self.updates:
                self.updates.append(entry)
        self.batch_size, self.planned_steps, self.log_length = batch_size, planned_steps, log_length
        self.step = 0
        self.networks, self._buffers = self._take_over(agents)
        self._check_names()
        self._bind()
        plain = self.stacked or self.device.type != "cpu" or dtype != torch.float32 or mixed_precision or compiled
        self.slots = None if table is None or plain else kernels.Slots(table)
        fused = self.slots is not None and native.library() is not None
        self.optimizers = [
            Optimizer(u.optimizer, [self.networks[n] for n in u.trains], planned_steps // u.every * u.repeat, fused)
            for u in self.updates
        ]
        self.sources = as_sources(sources)
        self._rows_of = self._count_rows()
        for name, rows in self._rows_of.items():
            self.sources[name].bind(self.seeds, rows, self.device)
        self.stream = self._noise_stream()
        groups, self.sequence = in_groups(self.order)
        """What is done with a block: groups of updates by their numbers, for `run`, and rules on blocks."""
        self._groups = [[self.updates.index(e) if isinstance(e, Update) else e for e in group] for group in groups]
        self._compute = [self._loss_function(u) for u in self.updates]
        if compiled:
            self._compute = [torch.compile(f) for f in self._compute]
        self._annotate_stacked = vmap(self._annotate_one)
        self._losses = torch.zeros(len(self.updates), len(agents), dtype=dtype, device=self.device)
        self._metrics: dict[str, Tensor] = {}
        self._graphs: dict[int, _Graph] = {}
        self._tapes: dict[int, _Taped] | None = {} if fused else None
        makers = {name: getattr(self.sources[name], "workspace", None) if fused else None for name in self._rows_of}
        self._spaces = {name: maker(self._rows_of[name]) for name, maker in makers.items() if maker is not None}

    def _take_over(self, agents: Sequence[Agent]) -> tuple[dict[str, Network], dict[str, Tensor]]:
        """The agents' networks in flat storage, by attribute name, and their (S, ...) buffers."""
        parameters, buffers = stack_module_state(list(agents))
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in parameters.items():
            groups.setdefault(name.split(".")[0], {})[name] = value
        if not self.stacked:  # a lone agent's own, which its forward passes read
            buffers = {name: value.unsqueeze(0) for name, value in self.agent.named_buffers()}
        return {name: Network(group) for name, group in groups.items()}, {n: v.detach() for n, v in buffers.items()}

    def _count_rows(self) -> dict[str, int]:
        """Source -> rows that it gives a training step: the most that one of its readers sees."""
        found: dict[str, int] = {}
        for entry in self.order:
            repeat = entry.repeat if isinstance(entry, Update) else 1
            for name in entry.sources:
                if name not in self.sources:
                    raise ConfigError(
                        f"{self.agent.name}: {entry.name} reads the source {name!r}; there are {sorted(self.sources)}"
                    )
                found[name] = max(found.get(name, 0), (entry.rows or self.batch_size) * repeat)
        return found

    def _noise_stream(self) -> Stream:
        """The random numbers of all entries by name, as many rows as the entry with the most reads."""
        noises: dict[str, Noise] = {}
        rows: dict[str, int] = {}
        for entry in self.order:
            repeat = entry.repeat if isinstance(entry, Update) else 1
            for name, noise in entry.noise.items():
                if noises.setdefault(name, noise) != noise:
                    raise ConfigError(
                        f"{self.agent.name}: {entry.name} reads {name!r} as {noise}, and another update as "
                        f"{noises[name]}; give one of them another name"
                    )
                rows[name] = max(rows.get(name, 0), (entry.rows or self.batch_size) * repeat * len(entry.sources))
        return Stream(self.seeds, rows, noises, self.device, self.dtype)

    def _check_names(self) -> None:
        for entry in self.order:
            known = set(self.networks)
            names = [*entry.then, *(source for source, _ in entry.then.values())]
            if isinstance(entry, Update):
                names += entry.trains
            else:
                names += entry.changes
                known |= {name.split(".")[0] for name in self._buffers}
            for name in names:
                if name not in known:
                    raise ConfigError(f"{entry.name}: no network {name!r}; there are {sorted(self.networks)}")
        names = [update.name for update in self.updates]
        if len(set(names)) < len(names):  # reports and saved optimisers go by the loss's name
            raise ConfigError(f"{self.agent.name}: two updates have the same loss, {sorted(names)}")
        group: set[str] = set()
        for update in self.updates:
            group = group if update.together else set()
            if group & set(update.trains):  # a network has room for one gradient
                raise ConfigError(f"{update.name}: {sorted(group & set(update.trains))} is trained twice together")
            group |= set(update.trains)

    def _bind(self) -> None:
        """Point the agent's parameters (alone) or the stacked leaves (stacked) at the flat storage."""
        own = dict(self.agent.named_parameters())
        self._parameters: dict[str, list[Tensor]] = {}
        self._slots: dict[str, list[Tensor]] = {}
        for name, network in self.networks.items():
            views, slots = network.views(network.value), network.views(network.gradient)
            if self.stacked:
                self._parameters[name] = [view.detach() for view in views]
                self._slots[name] = slots
            else:
                for full, view in zip(network.names, views, strict=True):
                    own[full].data = view[0]
                self._parameters[name] = [own[full] for full in network.names]
                self._slots[name] = [slot[0] for slot in slots]
        for group in self._parameters.values():
            for parameter in group:
                parameter.requires_grad_(False)
        self._trained: tuple[str, ...] = ()

    # -- one training step -------------------------------------------------------------------------------

    def _loss_function(self, update: Update) -> Callable[..., tuple[Tensor, Metrics]]:
        if not self.stacked:
            return update.loss

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch, noise: Any) -> Any:
            return functional_call(self.agent, {**parameters, **buffers}, (update.loss, batch, noise))

        return vmap(one)

    def _annotate_one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch, noise: Any) -> Any:
        return functional_call(self.agent, {**parameters, **buffers}, (self._annotated, batch, noise))

    def _annotated(self, batch: Batch, noise: dict[str, Tensor]) -> Batch:
        return self.agent.annotate(encoded(self.agent, batch, noise))

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Full name -> (S, ...) buffer as the losses read it, such as "normalizer.mean"; write into it to change it."""
        return self._buffers

    def metric(self, name: str) -> Tensor:
        """(S,) mean of a metric of the last training step, on the device."""
        return self._metrics[name].reshape(len(self.seeds), -1).mean(1)

    def apply(self, method: str, *arguments: Any, fused: bool = True) -> Any:
        """What a method of each agent gives, without gradient: for (S, ...) arguments (S, ...) tensors.

        Args:
            method: name of the agent's method.
            arguments: tensors, or trees of them.
            fused: over the kernels, as the losses; plain PyTorch is quicker for a few rows.
        """
        with torch.no_grad(), kernels.use(self.slots if fused else None):
            if not self.stacked:
                found = getattr(self.agent, method)(*(_each(_first, argument) for argument in arguments))
                return _each(_alone, found)

            def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], *given: Any) -> Any:
                return functional_call(self.agent, {**parameters, **buffers}, (method, *given))

            return vmap(one)(self._named(), self._buffers, *arguments)

    def episodes_ended(self, cost: Tensor, length: Tensor) -> None:
        """Take the rules on episodes, by (S,) mean cost and length of each agent's last ones; NaN where none ended."""
        for entry in self.order:
            if isinstance(entry, Rule) and entry.on == "episodes":
                self.obey(entry, {"cost": cost, "length": length})

    @torch.no_grad()
    def obey(
        self, rule: Rule, batch: Mapping[str, Tensor], noise: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Any], Metrics]:
        """Take a rule, seed by seed: it may decide by the numbers that it sees.

        Args:
            rule: of the agent.
            batch: name -> (S, ...).
            noise: name -> (S, ...).

        Returns:
            What it gave that is no tensor of the agent, such as columns of a block or a batch to add to a source, and
            its metrics: name -> (S, ...).
        """
        rest: dict[str, list[Any]] = {}
        told: dict[str, list[Tensor]] = {}
        if rule.change is not None:
            for position in range(len(self.seeds)):
                one = {name: value[position] for name, value in batch.items()}
                numbers = {name: value[position] for name, value in (noise or {}).items()}
                own = self.agents_parameters(position)
                with kernels.use(self.slots):
                    changed, metrics = functional_call(self.agent, own, (rule.change, one, numbers))
                for name, value in changed.items():
                    if name not in own:
                        rest.setdefault(name, []).append(value)
                    elif name.split(".")[0] in rule.changes:
                        own[name].copy_(value)
                    else:
                        raise ConfigError(f"{self.agent.name}: {name!r} is not among what {rule.name} says it changes")
                for name, value in metrics.items():
                    told.setdefault(name, []).append(value)
        for target, (source, rate) in rule.then.items():
            self.networks[target].value.lerp_(self.networks[source].value, rate)
        stacked = {name: tree_map(lambda *values: torch.stack(values), *given) for name, given in rest.items()}
        return stacked, {name: torch.stack(values) for name, values in told.items()}

    def _named(self) -> dict[str, Tensor]:
        return {
            full: value
            for name, network in self.networks.items()
            for full, value in zip(network.names, self._parameters[name], strict=True)
        }

    def _only(self, names: tuple[str, ...]) -> list[Tensor]:
        """The parameters of these networks, after making them the only ones that get a gradient."""
        if names != self._trained:
            for wanted, group in ((False, self._trained), (True, names)):
                for name in group:
                    for parameter in self._parameters[name]:
                        parameter.requires_grad_(wanted)
            self._trained = names
        return [p for name in names for p in self._parameters[name]]

    def _gradients(self, index: int, batch: Any, noise: dict[str, Tensor]) -> None:
        """Evaluate loss `index` and leave its gradients in the networks' storage."""
        update = self.updates[index]
        trained = self._only(update.trains)
        if self.stacked:
            loss, metrics = self._compute[index](self._named(), self._buffers, batch, noise)
        else:
            loss, metrics = self._compute[index](batch, noise)
        slots = [slot for name in update.trains for slot in self._slots[name]]
        if self.slots is not None:
            self.slots.gradients = {p.data_ptr(): s for p, s in zip(trained, slots, strict=True)}
        found = torch.autograd.grad(loss.sum(), trained, materialize_grads=True)
        with torch.no_grad():
            for slot, gradient in zip(slots, found, strict=True):
                if slot.data_ptr() != gradient.data_ptr():
                    slot.copy_(gradient)
            self._losses[index].copy_(loss)
        for name, value in metrics.items():  # a tape goes on writing what it made, but a batch comes and goes
            self._metrics[name] = value.detach() if native.recorder() is None else value.detach().clone()

    def _apply(self, index: int) -> None:
        """Step the optimiser of update `index` and average its targets."""
        with torch.no_grad():
            then = self.updates[index].then.items()
            averages = [(self.networks[target], self.networks[source], rate) for target, (source, rate) in then]
            self.optimizers[index].step(averages)

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

    def _one_step(self, indices: dict[str, Tensor], noise: dict[str, Tensor], due: Sequence[int]) -> None:
        """Updates that are due one after another, on the rows that each source's `indices` (S, rows) name."""
        batches = self._gathered(indices)
        if not self.stacked:
            noise = {name: value[0] for name, value in noise.items()}
        if self._tapes is None or not self._repeat(batches, noise, due):
            self._work(batches, noise, due)

    def _gathered(self, indices: dict[str, Tensor]) -> Batches:
        """The batch of each source; in memory of its own, where the source has some."""
        found = {}
        for name, rows in indices.items():
            own = rows if self.stacked else rows[0]
            space = self._spaces.get(name)
            gather = self.sources[name].gather
            found[name] = gather(own) if space is None else gather(own, space)
        return found

    def _repeat(self, batches: Batches, noise: dict[str, Tensor], due: Sequence[int]) -> bool:
        """Run the tape of these updates, recorded when they are first due; False where there is none."""
        assert self._tapes is not None
        key = sum(1 << index for index in due)
        inputs = [*(value for batch in batches.values() for value in batch.values()), *noise.values()]
        taped = self._tapes.get(key)
        if taped is None:
            before = self._metrics
            self._metrics = {}
            recorder = Recorder(inputs)
            with recorder.watching():
                self._work(batches, noise, due)
            taped = self._tapes[key] = _Taped(recorder.tape(), self._metrics, recorder.problem)
            self._metrics = before
        if taped.tape is None or not taped.tape.run(inputs):
            return False
        self._metrics.update(taped.metrics)
        return True

    def eager_because(self) -> dict[str, str]:
        """Updates that are due together -> why they are not repeated from a tape; empty where all are."""
        if self._tapes is None:
            return {"all": native.why_not() or "kernels are off, or agents are stacked, compiled or not float32"}
        named = {
            ", ".join(u.name for i, u in enumerate(self.updates) if key >> i & 1): taped.problem
            for key, taped in self._tapes.items()
        }
        return {names: problem for names, problem in named.items() if problem}

    def _work(self, batches: Batches, noise: dict[str, Tensor], due: Sequence[int]) -> None:
        """Updates that are due one after another, on the batches of their sources."""
        if MAIN in batches:
            with torch.no_grad():
                main = batches[MAIN]
                if self.stacked:
                    shift = {} if self.agent.encoder is None else noise
                    main = self._annotate_stacked(self._named(), self._buffers, main, shift)
                else:
                    main = self._annotated(main, noise)
            batches = {**batches, MAIN: main}
        waiting: list[int] = []
        for index in due:
            update = self.updates[index]
            if waiting and not update.together:
                self._flush(waiting)
            rows = (update.rows or self.batch_size) * len(update.sources)
            for turn in range(update.repeat):
                numbers = {name: noise[name] for name in update.noise}
                if turn > 0:
                    self._flush(waiting)
                self._gradients(index, self._part(update, batches, turn), self._slice(numbers, turn * rows, rows))
                waiting.append(index)
        self._flush(waiting)

    def _flush(self, waiting: list[int]) -> None:
        for index in waiting:
            self._apply(index)
        waiting.clear()

    def run(self, steps: int, before: Callable[[], None] | None = None, group: int = 0) -> dict[str, list[float]]:
        """Take `steps` training steps.

        Args:
            steps: how many.
            before: called before each of them, e.g. to act in an environment and to add to what is sampled.
            group: which updates, where rules on blocks part them into several groups: a number of `sequence`.

        Returns:
            Name -> a number per seed: each loss averaged over these steps, each metric at the last one.

        Raises:
            DivergenceError: a loss was not finite; says which, when and for which seed.
        """
        log = torch.zeros(min(steps, self.log_length), *self._losses.shape, dtype=self.dtype, device=self.device)
        rows: Any = log
        losses: Any = self._losses
        if self.device.type == "cpu" and self.dtype in {torch.float32, torch.float64}:
            rows, losses = log.numpy(), self._losses.numpy()  # the same memory, and quicker to copy
        total = torch.zeros_like(self._losses, dtype=torch.float64)
        counts = torch.zeros(len(self.updates), 1, dtype=torch.float64, device=self.device)
        done, subnormals = 0, _SubnormalsAreZero(self.device.type == "cpu")
        with kernels.use(self.slots), self._autocast(), _without_collection():
            while done < steps:
                part = min(steps - done, self.log_length)
                taken = []
                for row in range(part):
                    if before is not None:
                        before()
                    with subnormals:
                        taken.append(self._advance(group))
                    rows[row] = losses
                self._check_finite(log[:part], self.step - part)
                mask = torch.tensor(taken, dtype=torch.float64, device=self.device).unsqueeze(-1)
                total += (log[:part] * mask).sum(0)
                counts += mask.sum(0)
                done += part
            averages = total / counts.clamp(min=1)
            result = {u.name: averages[i].tolist() for i, u in enumerate(self.updates) if counts[i] > 0}
            for name, value in self._metrics.items():
                result[name] = value.reshape(len(self.seeds), -1).double().mean(1).tolist()
        return result

    def _advance(self, group: int) -> list[bool]:
        """One training step: what is due of a group, in its order; says which updates were."""
        number = self.step + 1
        due: list[list[int] | Rule] = []  # updates that follow each other are taken at once
        for entry in self._groups[group]:
            if isinstance(entry, Rule):
                if number % entry.every == 0:
                    due.append(entry)
            elif number % self.updates[entry].every == 0:
                if due and isinstance(due[-1], list):
                    due[-1].append(entry)
                else:
                    due.append([entry])
        noise = self.stream.at(self.step)
        taken = [False] * len(self.updates)
        for part in due:
            if isinstance(part, Rule):
                self._obey_in_step(part, noise)
                continue
            for index in part:
                self.optimizers[index].before()
                taken[index] = True
            names = {name: None for index in part for name in self.updates[index].sources}
            indices = {name: self.sources[name].rows(self.step) for name in names}
            if self.device.type == "cuda":
                self._replay(indices, noise, part)
            else:
                self._one_step(indices, noise, part)
            for index in part:
                self.optimizers[index].taken += self.updates[index].repeat
        self.step = number
        return taken

    def _obey_in_step(self, rule: Rule, noise: dict[str, Tensor]) -> None:
        """Take a rule of training steps on rows of its source."""
        batch: Batch = {}
        if rule.change is not None:
            rows = rule.rows or self.batch_size
            indices = self.sources[rule.source].rows(self.step)[:, :rows]
            batch = self.sources[rule.source].gather(indices if self.stacked else indices[0])
            noise = {name: noise[name][:, :rows] for name in rule.noise}
            if not self.stacked:
                batch = {name: value.unsqueeze(0) for name, value in batch.items()}
        rest, metrics = self.obey(rule, batch, noise)
        for name, value in rest.items():
            add = getattr(self.sources.get(name), "add", None)
            if add is None:
                raise ConfigError(
                    f"{self.agent.name}: the rule {rule.name} gives {name!r}, which is neither a tensor of the agent "
                    "nor a source that rows can be added to"
                )
            add(value)
        self._metrics.update(metrics)

    def _replay(self, indices: dict[str, Tensor], noise: dict[str, Tensor], due: Sequence[int]) -> None:
        """On a GPU a training step is one CUDA graph per set of due updates: small networks are launch-bound."""
        key = sum(1 << index for index in due)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = _Graph(indices, noise)
        graph.run(self, indices, noise, due)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if not self.mixed_precision:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)  # a graph must not keep a cast

    def _check_finite(self, log: Tensor, first_step: int) -> None:
        if bool(log.isfinite().all()):
            return
        row, index, seed = (~log.isfinite()).nonzero()[0].tolist()
        raise DivergenceError(
            f"{self.agent.name}: {self.updates[index].name} became {log[row, index, seed].item()} at step "
            f"{first_step + row + 1} (seed {self.seeds[seed]}); lower the learning rate or check the data. The "
            "last good checkpoint is kept"
        )

    # -- what is saved -----------------------------------------------------------------------------------

    def agents_parameters(self, position: int) -> dict[str, Tensor]:
        """Parameters and buffers of agent `position`, by their full names; views, not copies."""
        tensors = {name: value[position] if self.stacked else value for name, value in self._named().items()}
        tensors.update({name: value[position] for name, value in self._buffers.items()})
        return {name: value.detach() for name, value in tensors.items()}

    def extract(self, position: int) -> Agent:
        """Agent `position` with its present parameters, apart from the Learner's storage, on the CPU."""
        agent = self.agent.fresh(self.seeds[position])
        agent.to(dtype=self.dtype)
        agent.load_state_dict({name: v.cpu() for name, v in self.agents_parameters(position).items()})
        return agent

    def state(self, position: int) -> dict[str, Tensor]:
        """Everything that training of seed `position` needs to go on, as named tensors (views, not copies)."""
        tensors = {f"agent/{name}": value for name, value in self.agents_parameters(position).items()}
        for update, optimizer in zip(self.updates, self.optimizers, strict=True):
            for index, name in enumerate(update.trains):
                if not optimizer.first:  # plain descent has nothing to remember
                    continue
                stem = f"adam/{update.name}/{name}"
                tensors[f"{stem}/first"] = optimizer.first[index][position]
                tensors[f"{stem}/second"] = optimizer.second[index][position]
                tensors[f"{stem}/count"] = optimizer.count(index, position)
            if update.optimizer.schedule == "adaptive":
                tensors[f"adam/{update.name}/rate"] = optimizer.rates[position]
        return tensors

    def take_moments(self, position: int, given: Mapping[str, Tensor]) -> None:
        """Let optimisers of seed `position` go on from moments that `state` gave of another run; schedules don't.

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
        """Go on from what `state` gave, one mapping a seed.

        Raises:
            CheckpointError: a tensor is missing or of another shape: another algorithm or other sizes.
        """
        if len(states) != len(self.seeds):
            raise CheckpointError(f"{len(states)} states for {len(self.seeds)} seeds: restore one for each")
        for position, given in enumerate(states):  # all are checked before the first is taken
            wanted = self.state(position)
            odd = sorted(set(wanted) ^ set(given))
            odd += [n for n in wanted if n in given and wanted[n].shape != given[n].shape]
            if odd:
                raise CheckpointError(
                    f"the checkpoint does not fit {self.agent.name} as configured: {odd[0]} differs "
                    f"(and {len(odd) - 1} more); it is from another algorithm or other network sizes"
                )
        with torch.no_grad():
            for position, given in enumerate(states):
                for name, value in self.state(position).items():
                    value.copy_(given[name])
        self.step = step
        for update, optimizer in zip(self.updates, self.optimizers, strict=True):
            optimizer.taken = step // update.every * update.repeat


def _each(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A tensor, or the tensors of a tree, through a function; trees cost ten microseconds each."""
    return function(value) if isinstance(value, Tensor) else tree_map(function, value)


def _first(value: Tensor) -> Tensor:
    """The only seed's part."""
    return value[0]


def _alone(value: Tensor) -> Tensor:
    """As the part of the only seed."""
    return value.unsqueeze(0)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Keep python's cycle collector out of the hot loop: it takes up to a tenth of the time of an update."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _SubnormalsAreZero:
    """While it is entered numbers below 1e-38 count as 0 in this thread, in PyTorch and in native code.

    Gradients through a soft maximum or a saturated unit, and moments of Adam that decay, get there, and a processor
    takes a hundred times as long over them: CQL with values in the hundreds slows to a fifteenth.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        tiny = torch.full((), 1e-39, dtype=torch.float32, device="cpu")
        self.before = bool(tiny * 1 == 0)  # PyTorch sets it, and does not tell

    def __enter__(self) -> None:
        if self.wanted:
            torch.set_flush_denormal(True)

    def __exit__(self, *unused: object) -> None:
        if self.wanted:
            torch.set_flush_denormal(self.before)


class _Taped(NamedTuple):
    """What became of recording a training step."""

    tape: Tape | None
    metrics: Metrics
    """Tensors that the tape writes."""
    problem: str


class _Graph:
    """A captured training step: static inputs, replayed."""

    def __init__(self, indices: dict[str, Tensor], noise: dict[str, Tensor]) -> None:
        self.indices = {name: value.clone() for name, value in indices.items()}
        self.noise = {name: value.clone() for name, value in noise.items()}
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = 0

    def run(self, learner: Learner, indices: dict[str, Tensor], noise: dict[str, Tensor], due: Sequence[int]) -> None:
        for name, value in indices.items():
            self.indices[name].copy_(value)
        for name, value in noise.items():
            self.noise[name].copy_(value)
        if self.graph is not None:
            self.graph.replay()
            return
        if self.warm < 3:  # a capture wants lazily made handles and allocations to be there already
            self.warm += 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                learner._one_step(self.indices, self.noise, due)
            torch.cuda.current_stream().wait_stream(side)
            return
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            learner._one_step(self.indices, self.noise, due)
        self.graph.replay()
