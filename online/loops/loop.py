"""`Loop`: training that acts in an environment, as the entry point drives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.capture import STEPS_PER_GRAPH
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.share import Share
from surefoot.data.dataset import Dataset
from surefoot.envs.acting import Acting


class Loop(Protocol):
    """Acts with S agents in S times N environments, and trains them on what they meet."""

    learner: Learner
    step: int
    """Environment steps taken so far by each seed, all its N environments together."""
    pause: Callable[[], None] | None
    """Called between steps, where `state` may be; `run` is left by what it raises."""

    def run(self, steps: int) -> dict[str, list[float]]:
        """Continue until each seed has taken at least `steps` more environment steps.

        Returns:
            Name -> a number per seed: losses, metrics, and `episode_return`, `episode_length` and, where there are
            costs, `episode_cost`: means of the training episodes that ended meanwhile, NaN where none did.

        Raises:
            DivergenceError: a loss, an action or what the environment gave is not finite.
        """
        ...

    def begin_episodes(self) -> None:
        """New episodes in all environments, as where others have stepped them since."""
        ...

    def state(self, position: int) -> dict[str, Tensor]:
        """Everything that seed `position` needs to continue: learner, replay, environments, normalisers."""
        ...

    def restore(self, states: Sequence[Mapping[str, Tensor]], step: int) -> str | None:
        """Continue from what `state` gave, one mapping a seed.

        Returns:
            None, or a sentence that says what could not be taken up, such as the environments' state.

        Raises:
            CheckpointError: the states are of another algorithm, other sizes or other environments.
        """
        ...


def make_loop(
    agents: Sequence[Any],
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
    share: Share | None = None,
    steps_per_graph: int = STEPS_PER_GRAPH,
) -> Loop:
    """The loop that agents of this kind are trained by; arguments are those of `OffPolicyLoop` and `OnPolicyLoop`.

    `batch_size`, `mixed_precision` and `collect_steps` are for agents that learn from a replay buffer, `share` is for
    those that learn from blocks.

    Raises:
        ConfigError: agents that do not act; mixed precision of agents that learn from blocks.
    """
    from surefoot.online.base.agents import OffPolicyAgent
    from surefoot.online.base.on_policy_agent import OnPolicyAgent

    shared: dict[str, Any] = {"planned_steps": planned_steps, "device": device, "kernels": kernels}
    shared |= {"compiled": compiled, "jacobian_penalty": jacobian_penalty, "steps_per_graph": steps_per_graph}
    if isinstance(agents[0], OffPolicyAgent):
        from surefoot.online.loops.off_policy import OffPolicyLoop

        shared |= {"mixed_precision": mixed_precision, "collect_steps": collect_steps}
        return OffPolicyLoop(agents, seeds, env, batch_size=batch_size, dataset=dataset, **shared)
    if mixed_precision:
        refuse_mixed_precision(agents[0])
    if isinstance(agents[0], OnPolicyAgent):
        from surefoot.online.loops.on_policy import OnPolicyLoop

        return OnPolicyLoop(agents, seeds, env, dataset=dataset, share=share, **shared)
    raise ConfigError(f"{agents[0].name} does not act while it trains: give it to a Learner")


def acting_of(loop: Any) -> Acting:
    """What steps the environment of a loop that `make_loop` gave."""
    acting: Acting = (loop.experience if hasattr(loop, "experience") else loop.blocks).acting
    return acting


def refuse_mixed_precision(agent: Any) -> None:
    """Raise a ConfigError where an agent acts and would not heed `mixed_precision`: where it has no replay buffer."""
    from surefoot.online.base.agents import OffPolicyAgent

    if agent.requires.online and not isinstance(agent, OffPolicyAgent):
        raise ConfigError(
            f"mixed_precision is for agents that learn from data or from a replay buffer, and {agent.name} learns from "
            "what it has just met: leave it out"
        )
