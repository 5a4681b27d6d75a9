"""`EpisodePolicy`: a policy that remembers the episode's last steps and what is left to earn and to spend."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actor import Actor
from surefoot.core.errors import ConfigError
from surefoot.core.normalizer import Normalizer
from surefoot.core.policy import Policy
from surefoot.core.transformer import DecisionTransformerActor

WINDOW = ("observations", "past_actions", "returns_to_go", "costs_to_go", "timesteps", "mask")
"""Inputs of one step, in order: of `forward` and of exported files."""


class EpisodePolicy(Policy):
    """Acts on the last K steps of each row's episode.

    In a loop: `reset()`, then by turns `select_action(observation)` and `observe(reward, cost)`. For batches: `begin`,
    then by turns `act` and `after_step`. It begins with `target_return` and `target_cost` to go, and subtracts what it
    hears. Writing other targets into those two tensors is how one policy is asked for more or less caution.
    """

    actor: DecisionTransformerActor

    def __init__(self, actor: Actor, normalizer: Normalizer, action_low: Tensor, action_high: Tensor) -> None:
        super().__init__(actor, normalizer, action_low, action_high)
        self.reset()

    @property
    def target_return(self) -> Tensor:
        """() undiscounted return that an episode is asked for, in the environment's units."""
        return self.actor.target_return

    @property
    def target_cost(self) -> Tensor:
        """() undiscounted cost that it may have."""
        return self.actor.target_cost

    def reset(self, seed: int = 0) -> None:
        """Forget all episodes; the next `act` begins new ones, as many as it is given rows."""
        super().reset(seed)
        self._window: dict[str, Tensor] | None = None
        self._left: list[Tensor] = []
        self._awaiting = False

    def begin(self, rows: int) -> None:
        """All of `rows` rows are at the first step of an episode."""
        actor, context = self.actor, self.actor.context
        zeros = self.action_low.new_zeros((rows, context))
        self._window = {
            "observations": zeros.new_zeros((rows, context, self.observation_dim)),
            "past_actions": zeros.new_zeros((rows, context, self.action_dim)),
            "returns_to_go": zeros + actor.target_return,
            "costs_to_go": zeros + actor.target_cost,
            "timesteps": zeros.clone(),
            "mask": zeros.clone(),
        }
        self._left = [zeros[:, 0] + actor.target_return, zeros[:, 0] + actor.target_cost, zeros[:, 0].clone()]
        self._awaiting = False

    @torch.no_grad()
    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions for the present (B, O) observations; samples from (B, A) standard normal `noise`.

        Raises:
            ConfigError: it has not been told what the last actions brought, or the rows are others than those it began.
        """
        if self._window is None:
            self.begin(len(observations))
        window = self._window
        assert window is not None
        if self._awaiting or len(observations) != len(window["mask"]):
            raise ConfigError(
                f"this policy remembers {len(window['mask'])} episodes and was given {len(observations)} observations"
                + (
                    " before it heard what its last actions brought: call after_step or observe"
                    if self._awaiting
                    else ""
                )
            )
        present = (observations, self.action_low.new_zeros((len(observations), self.action_dim)), *self._left)
        for name, value in zip(WINDOW[:5], present, strict=True):
            window[name] = torch.cat([window[name][:, 1:], value.unsqueeze(1)], 1)
        window["mask"] = torch.cat([window["mask"][:, 1:], torch.ones_like(window["mask"][:, :1])], 1)
        actions = self(*(window[name] for name in WINDOW), noise=noise)
        window["past_actions"][:, -1] = actions
        self._awaiting = True
        return actions  # type: ignore[no-any-return]

    def after_step(self, rewards: Tensor, costs: Tensor, ended: Tensor) -> None:
        """What the last actions brought: (B,) rewards and costs, and (B,) bool where a new episode begins."""
        if self._window is None or not self._awaiting:
            return  # rows that have all ended are not acted for
        self._awaiting = False
        left, cost_left, time = self._left
        actor = self.actor
        self._left = [
            torch.where(ended, actor.target_return, left - rewards),
            torch.where(ended, actor.target_cost, (cost_left - costs).clamp(min=0)),
            torch.where(ended, 0.0, time + 1),
        ]
        self._window["mask"] = torch.where(ended.unsqueeze(1), 0.0, self._window["mask"])

    def observe(self, reward: float, cost: float = 0.0) -> None:
        """What the last action of `select_action` brought; `reset` begins the next episode."""
        one = torch.tensor([[reward], [cost]], dtype=torch.float32)
        self.after_step(one[0], one[1], torch.zeros(1, dtype=torch.bool))

    def forward(  # type: ignore[override]  # a step of it has a window for its input
        self,
        observations: Tensor,
        past_actions: Tensor,
        returns_to_go: Tensor,
        costs_to_go: Tensor,
        timesteps: Tensor,
        mask: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        """(B, A) actions of the present step, the last of K; all in the environment's units.

        Args:
            observations: (B, K, O).
            past_actions: (B, K, A); the present step's is not read.
            returns_to_go: (B, K) what was left of the target before each step.
            costs_to_go: (B, K).
            timesteps: (B, K) number of the step in its episode, from 0.
            mask: (B, K) 1 on steps, 0 on padding before the first.
            noise: (B, A) standard normal, for a sample.
        """
        middle, half = (self.action_high + self.action_low) / 2, (self.action_high - self.action_low) / 2
        there = mask.unsqueeze(-1)
        seen = self.normalizer(observations.flatten(0, 1)).unflatten(0, observations.shape[:2])
        window = {
            "observations": seen * there,
            "actions": (past_actions - middle) / half * there,
            "returns_to_go": returns_to_go,
            "costs_to_go": costs_to_go,
            "timesteps": timesteps,
            "mask": mask,
        }
        return middle + half * self.actor.act_in(window, noise)

    def example(self, rows: int = 2) -> dict[str, Tensor]:
        """Inputs of one step by name, for exporters."""
        context = self.actor.context
        widths: dict[str, Any] = {"observations": (self.observation_dim,), "past_actions": (self.action_dim,)}
        return {name: torch.ones(rows, context, *widths.get(name, ())) for name in WINDOW}

    def select_action(self, observation: np.ndarray) -> np.ndarray:
        """One action (A,) float32 for one observation (O,): for a control loop, with `observe` after each step.

        Raises:
            EnvironmentMismatchError: an observation of another shape, or one that is not finite.
            ConfigError: `observe` was not called since the last action.
        """
        return super().select_action(observation)

    def export(self, path: str | os.PathLike[str], *, sampling: bool = False) -> None:
        """Write one step as ONNX (.onnx) or as a `torch.export` program (.pt2), by the path's ending.

        Inputs, float32, K being the context: `observations` (batch, K, O), `past_actions` (batch, K, A), and
        `returns_to_go`, `costs_to_go`, `timesteps`, `mask` (batch, K), as in `forward`; and `noise` (batch, A) with
        `sampling`. Output: `actions` (batch, A). Whoever runs it keeps the window: the last K steps, padded in front
        with mask 0, and what is left of the targets, which the file's metadata name.

        Raises:
            ExportError: another ending, or the exporter failed.
            MissingExtraError: the ONNX packages are not installed.
        """
        super().export(path, sampling=sampling)

    def description(self) -> dict[str, Any]:
        """As of any policy, and the targets that an episode begins with."""
        targets = {"target_return": float(self.target_return), "target_cost": float(self.target_cost)}
        return {**super().description(), **targets}
