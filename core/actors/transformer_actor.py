"""A decoder-only transformer over an episode's last steps: a policy head conditioned on return and cost to go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import Actor, Evaluation
from surefoot.core.actors.memory import Memory, begun_anew
from surefoot.core.losses.distributions import gaussian_entropy, gaussian_log_density
from surefoot.core.nn.transformer import HIDDEN, Block, dropped_out

LOG_STD_RANGE = (-5.0, 2.0)
LONGEST = 10_000.0
"""Period, in steps, of the slowest time feature, over 2 pi."""

Window = Mapping[str, Tensor]
"""K steps, the last the present one: observations (B, K, O), actions (B, K, A), returns_to_go, costs_to_go, timesteps
and mask, (B, K) each; mask is 0 on padding, which stands before the first step."""


class DecisionTransformerActor(Actor):
    """Normal distribution of the next action given the last K steps and what is still to be earned and spent.

    A step is four tokens, of return and cost to go, observation and action, or without costs three. The observation's
    gives the action, and the action's the odds that the step violates. Time is encoded by sines and cosines of the
    step's number, so episodes of any length have one. Dropout masks are the same for all tokens of a row (Gal and
    Ghahramani, "A Theoretically Grounded Application of Dropout").
    Source: Chen et al., "Decision Transformer"; Liu et al., "Constrained Decision Transformer".
    """

    kind = "decision_transformer"
    optional = ("costs",)
    needs_outcomes = True
    return_scale: Tensor
    cost_scale: Tensor
    target_return: Tensor
    """() undiscounted return that an episode is asked for, in the environment's units; may be written anew."""
    target_cost: Tensor
    """() undiscounted cost that it may have."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        context: int = 10,
        width: int = 128,
        layers: int = 3,
        heads: int = 8,
        costs: bool = True,
    ) -> None:
        """Build it; returns and costs are divided by scales that training sets, as it sets the targets."""
        super().__init__()
        self.costs, self.tokens = costs, 4 if costs else 3
        self.action_dim, self.context, self.width, self.layers, self.heads = action_dim, context, width, layers, heads
        self.of_return = nn.Linear(1, width)
        self.of_cost = nn.Linear(1, width) if costs else None
        self.of_observation, self.of_action = nn.Linear(observation_dim, width), nn.Linear(action_dim, width)
        self.of_time = nn.Linear(16, width)
        self.enter, self.leave = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.action_head = nn.Linear(width, 2 * action_dim)
        self.cost_head = nn.Linear(width, 1) if costs else None
        for name in ("return_scale", "cost_scale", "target_return", "target_cost"):
            self.register_buffer(name, torch.ones(()))

    @property
    def noise_dim(self) -> int:
        """A."""
        return self.action_dim

    @property
    def masks_dim(self) -> int:
        """Numbers per row of the dropout masks: of the tokens as they enter, and of two parts a layer."""
        return self.width * (1 + 2 * self.layers)

    def description(self) -> dict[str, Any]:
        """Context, width, layers and heads, and the targets that an episode begins with."""
        targets = {"target_return": float(self.target_return), "target_cost": float(self.target_cost)}
        return {**super().description(), **targets}

    def forward(self, window: Window, masks: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and log standard deviation of each step's action, (B, K, A), and (B, K) log-odds of its cost, or 0.

        Args:
            window: observations normalised, actions in [-1, 1], returns and costs in the environment's units.
            masks: (B, masks_dim) dropout masks, divided by the keep probability.
        """
        tokens = self._tokens(window)
        dropped = [None] * (1 + self.layers) if masks is None else self._split(masks)
        tokens = dropped_out(tokens, None if dropped[0] is None else dropped[0].unsqueeze(1))
        scores = _visible(window["mask"], self.tokens)
        for block, mask in zip(self.blocks, dropped[1:], strict=True):
            tokens = block(tokens, scores, mask)
        by_step = self.leave(tokens).unflatten(1, (-1, self.tokens))
        mean, log_std = self.action_head(by_step[:, :, -2]).chunk(2, -1)
        acted = by_step[:, :, -1]
        odds = acted[..., 0] * 0 if self.cost_head is None else self.cost_head(acted).squeeze(-1)
        return mean, log_std.clamp(*LOG_STD_RANGE), odds

    def _split(self, masks: Tensor) -> list[Tensor]:
        return list(masks.split([self.width, *[2 * self.width] * self.layers], -1))

    def _tokens(self, window: Window) -> Tensor:
        """(B, 4 K, W) or (B, 3 K, W) in the order of time."""
        time = self.of_time(time_features(window["timesteps"]))
        to_go = (window["returns_to_go"] / self.return_scale).unsqueeze(-1)
        parts = [self.of_return(to_go)]
        if self.of_cost is not None:
            parts.append(self.of_cost((window["costs_to_go"] / self.cost_scale).unsqueeze(-1)))
        parts += [self.of_observation(window["observations"]), self.of_action(window["actions"])]
        return self.enter(torch.stack([part + time for part in parts], 2).flatten(1, 2))

    def act_in(self, window: Window, noise: Tensor | None = None) -> Tensor:
        """(B, A) mean actions of the present step, or samples from (B, A) standard normal noise; in [-1, 1]."""
        mean, log_std, _ = self(window)
        mean, log_std = mean[:, -1], log_std[:, -1]
        return (mean if noise is None else mean + log_std.exp() * noise).clamp(-1, 1)

    def evaluate(self, observations: Tensor, actions: Tensor, sample_aux: Mapping[str, Tensor]) -> Evaluation:
        """Density and entropy, in nats, of the normal distribution that `step` samples and clips.

        Args:
            observations: (B, O) of the present step, normalised.
            actions: (B, A), not clipped.
            sample_aux: the memory that `step` was given; empty at the first step of an episode.
        """
        memory = sample_aux or self.begin(len(observations))
        mean, log_std, _ = self({**memory, "observations": _with_last(memory["observations"], observations)})
        mean, log_std = mean[:, -1], log_std[:, -1]
        return Evaluation(gaussian_log_density(actions, mean, log_std), gaussian_entropy(log_std), (mean, log_std))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the first step of an episode."""
        return self.step(observations, self.begin(len(observations)), noise)[0]

    def begin(self, rows: int) -> Memory:
        """A `Window` whose only step is the present one, without its observation and action, and all targets left."""
        zeros = self.target_return.new_zeros((rows, self.context))
        return {
            "observations": zeros.new_zeros((rows, self.context, self.of_observation.in_features)),
            "actions": zeros.new_zeros((rows, self.context, self.action_dim)),
            "returns_to_go": zeros + self.target_return,
            "costs_to_go": zeros + self.target_cost,
            "timesteps": zeros,
            "mask": torch.cat([zeros[:, 1:], zeros[:, :1] + 1], 1),
        }

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """(B, A) actions for the present (B, O) normalised observations, which enter the window."""
        memory = {**memory, "observations": _with_last(memory["observations"], observations)}
        return self.act_in(memory, noise), memory

    def executed(self, memory: Memory, actions: Tensor) -> Memory:
        """The window with the present step's action."""
        return {**memory, "actions": _with_last(memory["actions"], actions)}

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The window of the next step: what was earned and spent is subtracted from what is left."""
        left = memory["returns_to_go"][:, -1] - rewards
        cost_left = (memory["costs_to_go"][:, -1] - costs).clamp(min=0)
        following = {"returns_to_go": left, "costs_to_go": cost_left, "timesteps": memory["timesteps"][:, -1] + 1}
        following |= {"mask": torch.ones_like(left)}
        following |= {name: torch.zeros_like(memory[name][:, -1]) for name in ("observations", "actions")}
        rolled = {name: torch.cat([memory[name][:, 1:], value.unsqueeze(1)], 1) for name, value in following.items()}
        return begun_anew({**memory, **rolled}, self.begin(1), ended)


def _with_last(values: Tensor, last: Tensor) -> Tensor:
    return torch.cat([values[:, :-1], last.unsqueeze(1)], 1)


def time_features(timesteps: Tensor) -> Tensor:
    """(..., 16) sines and cosines of step numbers, of periods from 2 pi to 2 pi `LONGEST` in a geometric row."""
    powers = torch.arange(8, dtype=timesteps.dtype, device=timesteps.device) / 7
    angles = timesteps.unsqueeze(-1) * torch.exp(-math.log(LONGEST) * powers)
    return torch.cat([angles.sin(), angles.cos()], -1)


def _visible(mask: Tensor, tokens: int) -> Tensor:
    """(B, 1, n K, n K) 0 where a token, of n a step, may see another of the same or an earlier place; else `HIDDEN`."""
    length = mask.shape[-1] * tokens
    places = torch.arange(length, device=mask.device)
    there = mask.unsqueeze(-1).expand(-1, -1, tokens).flatten(1)  # (B, n K)
    allowed = (places.unsqueeze(0) <= places.unsqueeze(1)).to(mask.dtype) * there.unsqueeze(1)
    return ((1 - allowed) * HIDDEN).unsqueeze(1)
