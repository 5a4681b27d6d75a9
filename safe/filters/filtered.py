"""A policy with its safety filter: it acts, counts interventions, and is exported as one file."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.actors.memory import Memory
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.base.spec import Array
from surefoot.core.nn.encoders import Encoder
from surefoot.core.policy.control_loop import ControlLoop
from surefoot.core.policy.export import export
from surefoot.core.policy.policy import Policy
from surefoot.safe.filters.model import Model
from surefoot.safe.filters.safety_filter import SafetyFilter


class FilteredPolicy(ControlLoop, nn.Module):
    """Any policy behind any filter; used like the policy, whose memory is given the actions that are carried out.

    Counts since construction or `clear`: `actions` taken, `changed` by the filter, `short` where no action kept its
    condition.

    Args:
        policy: whose actions are filtered.
        safety: the filter.
        model: gives the state of an observation; None: the filter reads the observations themselves.
    """

    def __init__(self, policy: Policy, safety: SafetyFilter, model: Model | None) -> None:
        super().__init__()
        self.policy, self.safety, self.model = policy, safety, model
        self.clear()
        self.reset()

    def clear(self) -> None:
        """Set the counts to 0."""
        self.actions = self.changed = self.short = 0

    @property
    def arrays(self) -> dict[str, Array]:
        """What it observes: the policy's."""
        return self.policy.arrays

    @property
    def encoder(self) -> Encoder | None:
        """The policy's, where it reads images or several arrays."""
        return self.policy.encoder

    @property
    def observation_dim(self) -> int:
        """Width of an observation."""
        return self.policy.observation_dim

    @property
    def action_dim(self) -> int:
        """Width of an action."""
        return self.policy.action_dim

    @property
    def noise_dim(self) -> int:
        """Standard normal numbers per row that a sample reads."""
        return self.policy.noise_dim

    @property
    def always_samples(self) -> bool:
        """Whether the policy has no action without noise."""
        return self.policy.always_samples

    @property
    def has_memory(self) -> bool:
        """Whether the policy's actions depend on more than the present observation and noise."""
        return self.policy.has_memory

    @property
    def needs_outcomes(self) -> bool:
        """Whether the policy's next action depends on rewards or costs."""
        return self.policy.needs_outcomes

    def begin(self, rows: int, seed: int = 0) -> Memory:
        """The policy's memory of rows at the first step of an episode."""
        return self.policy.begin(rows, seed)

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The policy's memory after what the actions brought."""
        return self.policy.observe_outcome(memory, rewards, costs, ended)

    def states(self, observations: Tensor) -> Tensor:
        """(N, S) states that the filter sees: float64, and float32 in an exported file, whose runtimes want it."""
        if self.model is None:
            return observations
        return self.model.state_of(observations if torch.compiler.is_compiling() else observations.double())

    def forward(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(N, A) filtered actions at the first step of an episode, without counting."""
        return self._filtered(observations, self.policy(observations, noise))[0]

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """(N, A) filtered actions and the new memory, without counting: what exported files compute."""
        actions, memory = self.policy.step(observations, memory, noise)
        actions = self._filtered(observations, actions)[0]
        return actions, self.policy.executed(memory, actions)

    def _filtered(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states = self.states(observations)
        chosen, changed, short = self.safety(states, actions.to(states.dtype))
        return torch.where(changed[:, None], chosen.to(actions.dtype), actions), changed, short

    @torch.no_grad()
    def act(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """(N, A) actions for (N, O) observations, counted, and the new memory; see `Policy.act`.

        Raises:
            EnvironmentMismatchError: an action is not finite, the policy's or the filter's.
        """
        actions, memory = self.policy.act(observations, memory, noise)
        actions, changed, short = self._filtered(observations, actions)
        if not bool(actions.isfinite().all()):
            row = int((~actions.isfinite()).any(-1).nonzero()[0])
            raise EnvironmentMismatchError(
                f"the filter's action is not finite in row {row}, at the observation {observations[row].tolist()}; "
                "check those sensors, or the filter's values"
            )
        self.actions += len(actions)
        self.changed += int(changed.sum())
        self.short += int(short.sum())
        return actions, self.policy.executed(memory, actions)

    def description(self) -> dict[str, Any]:
        """The policy's, and which filter it carries."""
        facts = {"kind": type(self.safety).__name__, "margin": getattr(self.safety, "margin", None)}
        return {**self.policy.description(), "filter": facts}

    def export(self, path: str | os.PathLike[str], *, sampling: bool = False) -> None:
        """Write policy and filter together as ONNX, a `torch.export` program or a C++ header, as `Policy.export` does.

        The file holds the network, the system's equations and the grid; it has the policy's inputs and output. A header
        (.hpp) has the class `FilteredPolicy` beside `Policy`, for filters that `safe.filters.cpp` can write.

        Raises:
            ExportError: another ending, or the exporter failed.
            MissingExtraError: the ONNX packages are not installed.
        """
        if os.fspath(path).endswith(".hpp") and not sampling:
            from surefoot.safe.filters import cpp

            return cpp.export(self.policy, self.safety, self.model, path)
        export(self, path, sampling=sampling)  # type: ignore[arg-type]
