"""Parameters and buffers of S agents in flat storage, and the calls of the agents' methods: alone, or stacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._pytree import tree_map

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent, Metrics, Rule, Update
from surefoot.core.engine.optimizer import Network


def checked_loss(update: Update) -> Callable[..., tuple[Tensor, Metrics]]:
    """The loss of an update, held to what a loss gives: one number, and metrics that are tensors.

    Raises:
        ConfigError: by the function that is given: the loss gave something else; says what, and what to write.
    """

    def loss(*arguments: Any) -> tuple[Tensor, Metrics]:
        found: Any = update.loss(*arguments)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            raise ConfigError(
                f"{update.name} gives a {type(found).__name__}; a loss gives (scalar, metrics), such as (loss, {{}})"
            )
        value, metrics = found
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ConfigError(f"{update.name} gives a loss that is {what}; it must be one number: the mean() over rows")
        for name, metric in metrics.items():
            if not isinstance(metric, Tensor):
                kind = type(metric).__name__
                raise ConfigError(f"{update.name}: metric {name!r} is a {kind}; it must be a tensor: leave out .item()")
        return value, metrics

    return loss


class Parameters:
    """Takes over the parameters of S agents of one kind.

    A lone agent's own parameters become views of the storage, and its methods run as they stand. Stacked agents are
    one agent whose tensors have a dimension for the seeds in front; `torch.func` calls its methods for all of them.
    """

    def __init__(self, agents: Sequence[Agent], stacked: bool) -> None:
        """Copy what the agents hold into storage of our own."""
        self.agent, self.seeds, self.stacked = agents[0], len(agents), stacked
        parameters, buffers = stack_module_state(list(agents))
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in parameters.items():
            groups.setdefault(name.split(".")[0], {})[name] = value
        if not stacked:  # a lone agent's own, which its forward passes read
            buffers = {name: value.unsqueeze(0) for name, value in self.agent.named_buffers()}
        self.networks = {name: Network(group) for name, group in groups.items()}
        """Flat storage, by attribute name."""
        self.buffers = {name: value.detach() for name, value in buffers.items()}
        """Full name -> (S, ...) buffer as the losses read it."""
        self._views: dict[str, list[Tensor]] = {}
        self._slots: dict[str, list[Tensor]] = {}
        own = dict(self.agent.named_parameters())
        for name, network in self.networks.items():
            views, slots = network.views(network.value), network.views(network.gradient)
            if stacked:
                self._views[name], self._slots[name] = [view.detach() for view in views], slots
                continue
            for full, view in zip(network.names, views, strict=True):
                own[full].data = view[0]
            self._views[name] = [own[full] for full in network.names]
            self._slots[name] = [slot[0] for slot in slots]
        for group in self._views.values():
            for parameter in group:
                parameter.requires_grad_(False)
        self._trained: tuple[str, ...] = ()

    def named(self) -> dict[str, Tensor]:
        """Full name -> parameter as the losses read it."""
        return {
            full: value
            for name, network in self.networks.items()
            for full, value in zip(network.names, self._views[name], strict=True)
        }

    def trained(self, names: tuple[str, ...]) -> list[Tensor]:
        """The parameters of these networks, after making them the only ones that get a gradient."""
        if names != self._trained:
            for wanted, group in ((False, self._trained), (True, names)):
                for name in group:
                    for parameter in self._views[name]:
                        parameter.requires_grad_(wanted)
            self._trained = names
        return [parameter for name in names for parameter in self._views[name]]

    def slots(self, names: tuple[str, ...]) -> list[Tensor]:
        """Where the gradients of these networks' parameters are stored."""
        return [slot for name in names for slot in self._slots[name]]

    def store_gradients(self, names: tuple[str, ...], found: Sequence[Tensor]) -> None:
        """Store gradients of these networks' parameters where the optimisers read them, by one kernel a network."""
        left = iter(found)
        for name in names:
            own = [next(left).reshape(self.seeds, -1) for _ in self._slots[name]]
            torch.cat(own, 1, out=self.networks[name].gradient)

    def of(self, position: int) -> dict[str, Tensor]:
        """Parameters and buffers of agent `position`, by their full names; views, not copies."""
        tensors = {name: value[position] if self.stacked else value for name, value in self.named().items()}
        tensors.update({name: value[position] for name, value in self.buffers.items()})
        return {name: value.detach() for name, value in tensors.items()}

    @torch.no_grad()
    def follow(self, update: Update, metrics: Metrics) -> None:
        """Move the buffers that follow metrics of an update's loss."""
        for name, (metric, rate) in update.follows.items():
            buffer = self.buffers[name]  # of float32 also where losses are of mixed precision
            buffer.lerp_(metrics[metric].detach().reshape(buffer.shape).to(buffer.dtype), rate)

    def bound(self, method: str | Callable[..., Any], compiled: bool = False) -> Callable[..., Any]:
        """A method of each agent with its present parameters, or its name; stacked ones take and give (S, ...)."""
        if not self.stacked:
            function = getattr(self.agent, method) if isinstance(method, str) else method
            return torch.compile(function) if compiled else function

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], *arguments: Any) -> Any:
            return functional_call(self.agent, {**parameters, **buffers}, (method, *arguments))

        together = torch.compile(vmap(one)) if compiled else vmap(one)
        return lambda *arguments: together(self.named(), self.buffers, *arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of each agent gives, for (S, ...) arguments (S, ...) tensors; tensors or trees of them."""
        if self.stacked:
            return self.bound(method)(*arguments)
        found = getattr(self.agent, method)(*(_each(_first, argument) for argument in arguments))
        return _each(_alone, found)

    @torch.no_grad()
    def apply_rule(
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

        Raises:
            ConfigError: it gave a tensor of the agent that it does not say it changes.
        """
        rest: dict[str, list[Any]] = {}
        reported: dict[str, list[Tensor]] = {}
        for position in range(self.seeds if rule.change is not None else 0):
            one = {name: value[position] for name, value in batch.items()}
            numbers = {name: value[position] for name, value in (noise or {}).items()}
            own = self.of(position)
            changed, metrics = functional_call(self.agent, own, (rule.change, one, numbers))
            for name, value in changed.items():
                if name not in own:
                    rest.setdefault(name, []).append(value)
                elif name.split(".")[0] in rule.changes:
                    own[name].copy_(value)
                else:
                    raise ConfigError(f"{self.agent.name}: {name!r} is not among what {rule.name} says it changes")
            for name, value in metrics.items():
                reported.setdefault(name, []).append(value)
        for target, (source, rate) in rule.target_updates.items():
            self.networks[target].value.lerp_(self.networks[source].value, rate)
        stacked = {name: tree_map(lambda *values: torch.stack(values), *given) for name, given in rest.items()}
        return stacked, {name: torch.stack(values) for name, values in reported.items()}


def _each(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A tensor, or the tensors of a tree, through a function; torch's own way costs ten microseconds a tree."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) is tuple:
        return tuple([_each(function, one) for one in value])
    if type(value) is dict:
        return {name: _each(function, one) for name, one in value.items()}
    return tree_map(function, value)


def _first(value: Tensor) -> Tensor:
    """The only seed's part."""
    return value[0]


def _alone(value: Tensor) -> Tensor:
    """As the part of the only seed."""
    return value.unsqueeze(0)
