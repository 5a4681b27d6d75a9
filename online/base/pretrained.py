"""Fine-tuning a cloned flow: options that follow the clone's run, its network, and how an agent starts from it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.flow_chains import ConsistencyActor, FlowChainActor, FlowSDEActor, ReinFlowActor
from surefoot.core.actors.memory_actors import ChunkActor, HistoryActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import Options, option
from surefoot.core.engine.agent import Agent
from surefoot.core.engine.encoder_config import followed
from surefoot.core.nn.velocity import VelocityNetwork

SETTLED = (
    "chunk",
    "flow_steps",
    "network",
    "velocity_hidden",
    "velocity_activation",
    "time_embedding",
    "condition_hidden",
    "clip_each",
)
"""Options of `FlowOptions`, and of algorithms that play a clone as it is."""


@dataclasses.dataclass(frozen=True)
class FlowOptions(Options):
    """What a flow policy is made of; null: as in the run that it starts from."""

    chunk: int | None = option(None, "actions that are decided on at once; null: as the clone, 1 without one")
    flow_steps: int | None = option(None, "Euler steps of the flow, K; null: as the clone, 4 without one")
    network: str | None = option(None, "network of the velocity: mlp, embedded, shortcut or unet; null: as the clone")
    velocity_hidden: tuple[int, ...] | None = option(
        None, "widths of the velocity network's hidden layers; null: as the clone"
    )
    velocity_activation: str | None = option(None, "activation of the velocity network; null: as the clone")
    time_embedding: int | None = option(None, "width of the embedding of flow times; null: as the clone")
    condition_hidden: tuple[int, ...] | None = option(
        None, "widths of the layers that read the observation; null: as the clone"
    )


Head = TypeVar("Head", bound=Actor)

STEPS = 4
"""K by default."""
TRANSITIONS = ("reinflow", "flow_sde", "consistency")
"""Kinds of chains of `chain_of`."""


def velocity_network(config: Any, observation_dim: int, size: int) -> VelocityNetwork:
    """The network of `FlowOptions`, for actions of `size` numbers; what they leave open is the network's default."""
    kind = VelocityNetwork.of_kind(config.network or "mlp")
    chosen = {name: getattr(config, name, None) for name in kind.option_names()}
    return kind(observation_dim, size, **{name: value for name, value in chosen.items() if value is not None})


def chain_of(config: Any, network: VelocityNetwork, size: int, steps: int) -> FlowChainActor:
    """The chain of a config of ReinFlow or RLCM, along a flow of K `steps` for actions of `size` numbers.

    Where it is not stated whether each step is clipped, only the steps of `reinflow` are, as in its authors' code.
    """
    c = config
    if c.transition == "flow_sde":
        return FlowSDEActor(network, size, steps, amount=c.sde_noise, clip_each=bool(c.clip_each))
    if c.transition == "consistency":
        return ConsistencyActor(network, size, steps, floor=c.noise_floor)
    noise: dict[str, Any] = {"low": c.noise_low, "high": c.noise_high, "noise": c.noise, "timed": c.noise_timed}
    noise |= {"explorer_hidden": c.noise_hidden, "trained": c.trained_steps}
    return ReinFlowActor(network, size, steps, **noise, clip_each=c.clip_each is not False)


def clone_of(source: Agent, name: str, kind: type[Head], what: str, advice: str) -> tuple[Head, int]:
    """The head by which an agent's policy acts, a copy, and the actions C that it plans at once.

    Args:
        source: the agent of the run that it starts from.
        name: of the algorithm that asks.
        kind: of heads that it can take.
        what: the message calls that kind.
        advice: the runs that the message asks for.

    Raises:
        ConfigError: its policy is of another kind, or reads a history.
    """
    actor: Actor = source.policy().actor
    chunk = 1
    if isinstance(actor, HistoryActor):
        raise ConfigError(
            f"{name} reads the present observation alone, and {source.name} was trained with history={actor.length}: "
            "clone with algo.history=1, or stack frames in the environment"
        )
    if isinstance(actor, ChunkActor):
        chunk = actor.chunk
        actor = actor.inner
    if not isinstance(actor, kind):
        raise ConfigError(
            f"{name} fine-tunes a {what}, and the policy of {source.name} is a {actor.kind} one: give init= a run of "
            f"{advice}"
        )
    return actor, chunk


def flow_of(source: Agent, name: str) -> tuple[FlowActor, int]:
    """The flow by which an agent's policy acts, as `clone_of`."""
    return clone_of(source, name, FlowActor, "flow", "flow_bc, or of an algorithm whose policy is a flow")


def said_in(source: Agent) -> dict[str, Any]:
    """The options of an agent that are not left open."""
    return {name: value for name, value in vars(source.config).items() if value is not None}


def inherit_options(cls: type[Agent], config: Mapping[str, Any], source: Agent) -> dict[str, Any]:
    """Options of `FlowOptions` that a config leaves open, as the source's flow has them.

    A run of the same algorithm continues whatever it acts by; its own options say of what that is made.

    Returns:
        The clone's chunk, steps and network, and how it clips where the algorithm leaves that open, by option.
    """
    if type(source) is cls:
        found = said_in(source)
    else:
        flow, chunk = flow_of(source, cls.name)
        found = {"chunk": chunk, "flow_steps": flow.steps, "clip_each": flow.clip_each, **flow.description()}
    known = {field.name for field in dataclasses.fields(cls.Config)}
    if config.get("transition") == "consistency":  # its jumps are clipped, whatever the clone does
        known.discard("clip_each")
    open_ones = [option for option in SETTLED if option in known and config.get(option) is None]
    settled = {option: found[option] for option in open_ones if option in found}
    return settled | followed(cls.Config, config, source.config)


def take_encoder(agent: Agent, source: Agent) -> list[str]:
    """Start from the encoder by which a clone acts.

    Returns:
        Its name, or nothing where observations are one vector.

    Raises:
        ConfigError: its encoder is of another kind or size.
    """
    if agent.encoder is None or source.acting_encoder is None:
        return []
    theirs, mine = source.acting_encoder, agent.encoder
    shapes = [{name: value.shape for name, value in one.state_dict().items()} for one in (theirs, mine)]
    if shapes[0] != shapes[1] or theirs.description() != mine.description():
        raise ConfigError(
            f"the encoder of {source.name} is {theirs.description()}, and {agent.name} is configured with "
            f"{mine.description()}: leave algo.encoder and its options out, so that they follow the run"
        )
    mine.load_state_dict(copy.deepcopy(theirs.state_dict()))
    return ["encoder"]


def chosen_of(source: Agent) -> int:
    """How many draws of its flow an agent's policy chooses the best of; 1 where it plays the only one."""
    actor = source.policy().actor
    head = actor.inner if isinstance(actor, ChunkActor) else actor
    return head.samples if isinstance(head, FlowActor) else 1


def take_clone(agent: Any, source: Agent, network: nn.Module, steps: int) -> None:
    """Copy the source's velocity network into `network`.

    Raises:
        ConfigError: chunks, steps or sizes differ.
    """
    flow, chunk = flow_of(source, agent.name)
    theirs, mine = flow.network.state_dict(), network.state_dict()
    for what, there, here in (("chunk", chunk, agent.chunk), ("flow_steps", flow.steps, steps)):
        if there != here:
            raise ConfigError(
                f"{agent.name}.{what} is {here}, and {source.name} was trained with {there}: leave it out"
            )
    same = type(flow.network) is type(network) and {n: v.shape for n, v in theirs.items()} == {
        n: v.shape for n, v in mine.items()
    }
    if not same:
        raise ConfigError(
            f"the velocity network of {source.name} ({flow.network.kind}) is not the one that {agent.name} is "
            "configured with: leave algo.network and its sizes out, so that they follow the run"
        )
    network.load_state_dict(copy.deepcopy(theirs))


def check_clone_is_kept(agent: Any, source: Agent) -> None:
    """Refuse to stay near a clone that a run of the same algorithm has not kept.

    Raises:
        ConfigError: a `clone_coefficient` above 0, and no `reference` in the source.
    """
    coefficient = agent.config.clone_coefficient
    if coefficient > 0 and not hasattr(source, "reference"):
        raise ConfigError(
            f"clone_coefficient is {coefficient:g}, and the run that {agent.name} starts from keeps no clone to stay "
            "near: start from the clone's run, or train that one with a coefficient too"
        )
