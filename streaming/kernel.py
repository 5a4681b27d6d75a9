"""The one door to the native kernel of `cuda_ext`: whether it is there, and one made for an agent's buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.core.base.errors import ConfigError
from surefoot.cuda_ext import stream, why_not_native
from surefoot.cuda_ext.stream import (
    ACT,
    ACT_BEFORE,
    LEARN,
    MOST_HIDDEN,
    OBSERVE,
    OPTIMIZERS,
    RESET,
    SHIFT,
    TRACE_CUTS,
    StreamKernel,
    parameter_rows,
)

if TYPE_CHECKING:
    from surefoot.streaming.agent import StreamingAgent

__all__ = [
    "ACT",
    "ACT_BEFORE",
    "LEARN",
    "OBSERVE",
    "OPTIMIZERS",
    "RESET",
    "SHIFT",
    "TRACE_CUTS",
    "StreamKernel",
    "make",
    "parameter_rows",
    "settings_of",
    "wanted",
    "why_not",
]


def why_not(hidden: int = 0) -> str:
    """Why there is no native kernel for so many hidden layers, as a clause; empty where there is one."""
    if hidden > MOST_HIDDEN:
        return f"the native kernel takes up to {MOST_HIDDEN} hidden layers, not {hidden}"
    if stream.native_stream():
        return ""
    return f"the native kernel is not there: {why_not_native() or 'the native module was built before it'}"


def wanted(agent: StreamingAgent, native: bool | None) -> bool:
    """Whether the agent learns in the kernel: where it is asked for, or where nothing is said and there is one.

    Raises:
        ConfigError: it was asked for and is not there.
    """
    missing = why_not(len(agent.hidden)) if agent.kind else f"{agent.name} has no native kernel"
    if native and missing:
        raise ConfigError(f"{agent.name}: native=True was asked for, but {missing}; leave it out to use plain torch")
    return not missing if native is None else native


def settings_of(agent: StreamingAgent) -> stream.StreamSettings:
    """The agent's config and problem as the kernel takes them."""
    known = ("kappa_actor", "entropy", "trace_cut")  # not every config has these
    own = {name: getattr(agent.config, name) for name in known if hasattr(agent.config, name)}
    c = agent.config
    return stream.StreamSettings(
        kind=agent.kind,
        discrete=agent.spec.discrete,
        observation_dim=agent.spec.observation_dim,
        action_dim=agent.spec.action_dim,
        hidden=agent.hidden,
        discount=c.discount,
        decay=c.decay,
        kappa_critic=c.kappa_critic,
        step_size=c.step_size,
        optimizer=c.optimizer,
        beta2=c.beta2,
        epsilon_adaptive=c.epsilon_adaptive,
        learning_rate=c.learning_rate,
        layer_norm=c.layer_norm,
        normalise_observations=c.normalise_observations,
        scale_rewards=c.scale_rewards,
        official_time_limit=c.official_time_limit,
        clear_before_add=c.clear_before_add,
        **own,
    )


def make(agent: StreamingAgent) -> StreamKernel:
    """The kernel that works on the agent's own buffers."""
    settings = settings_of(agent)
    dtype = str(agent.dtype).removeprefix("torch.")
    names = stream.layout(settings, len(agent.seeds), dtype)
    return StreamKernel(settings, {name: getattr(agent, name) for name in names})
