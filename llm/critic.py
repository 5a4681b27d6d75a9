"""The critic of a team: how much reward is to come, from what the next to speak is given to read.

Messages are the steps of an episode that ends with the last one: generalised advantages are taken over messages, and
each message's tokens share its advantage (`llm.losses.advantages.token_gae` with messages as units).

Source: Liao et al., "MARFT: Multi-Agent Reinforcement Fine-Tuning", whose code has one critic for all members. What the
critic reads and how it is built is ours: a copy of a model with a head of one number (`RewardModel`).
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import ConfigError, DivergenceError
from surefoot.core.base.options import Options, option
from surefoot.core.losses.masked import masked_mean, normalise
from surefoot.llm.losses import token_gae
from surefoot.llm.reward_models import RewardModel

KIND = "team critic"


@dataclasses.dataclass(frozen=True)
class CriticConfig(Options):
    """Settings of the critic."""

    owner = ""
    learning_rate: float = option(1e-5, "learning rate of AdamW without weight decay", range=">= 0")
    updates: int = option(1, "steps of the critic on each batch", range="> 0")
    discount: float = option(1.0, "discount factor from one message to the next", range="[0, 1]")
    trace: float = option(0.95, "lambda of the generalised advantages, over messages", range="[0, 1]")
    max_gradient_norm: float = option(1.0, "gradients longer than this are shortened", range="> 0")


class TeamCritic:
    """One critic for all members of a team."""

    def __init__(self, model: RewardModel, config: CriticConfig | None = None) -> None:
        """Begin.

        Args:
            model: one of pairs that no member trains, such as `RewardModel(load_policy(FOLDER))`; it is trained.
            config: settings.

        Raises:
            ConfigError: it is a model of steps.
        """
        if model.kind != "pairs":
            raise ConfigError("a critic has one number for a text: take a reward model of pairs")
        self.model, self.config = model, config or CriticConfig()
        self._adam = torch.optim.AdamW(model.parameters(), lr=self.config.learning_rate, weight_decay=0.0)

    @torch.no_grad()
    def values(self, texts: Sequence[str]) -> Tensor:
        """(B,) of texts that are read, in units of the reward."""
        size = self.model.at_once
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        return torch.cat([self.model.scores(part, [[]] * len(part)) for part in parts])

    def advantages(self, read: Sequence[Sequence[str]], rewards: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and returns of K messages of B conversations, without gradient.

        Args:
            read: K lists of B texts: what the first to speak was given, the second, ...
            rewards: (B,) of the conversation, given after its last message; NaN where it could not be scored.

        Returns:
            (B, K) each. Advantages have mean 0 and deviation 1 over the batch; 0 where there is no reward.
        """
        values = torch.stack([self.values(texts) for texts in read], 1)
        scored = ~rewards.isnan().unsqueeze(1)
        given = torch.zeros_like(values)
        given[:, -1] = rewards.nan_to_num(nan=0.0)
        found, returns = token_gae(given, values, None, self.config.discount, self.config.trace)
        kept = scored.to(values.dtype).expand_as(values)
        return normalise(found, kept), torch.where(scored, returns, torch.full_like(returns, torch.nan))

    def update(self, read: Sequence[Sequence[str]], returns: Tensor) -> dict[str, float]:
        """Steps on the mean squared error to the returns (B, K); NaNs are left out. Gives the loss before the first.

        Raises:
            DivergenceError: the loss is not finite; nothing is changed by that step then.
        """
        texts, wanted = [text for one in read for text in one], returns.T.reshape(-1)
        kept = (~wanted.isnan()).to(returns.dtype)
        wanted, count, size, first = wanted.nan_to_num(nan=0.0), kept.sum().clamp(min=1), self.model.at_once, None
        for _ in range(self.config.updates):
            self._adam.zero_grad()
            total = torch.zeros((), device=returns.device)
            for start in range(0, len(texts), size):
                part = slice(start, start + size)
                errors = self.model.scores(texts[part], [[]] * len(texts[part])) - wanted[part]
                loss = (errors.square() * kept[part]).sum() / count
                loss.backward()
                total += loss.detach()
            if not torch.isfinite(total):
                raise DivergenceError(f"the critic's loss is {float(total)}; lower its learning_rate")
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_gradient_norm)
            self._adam.step()
            first = float(total) if first is None else first
        spread = float(masked_mean((wanted - masked_mean(wanted, kept)).square(), kept))
        return {"critic_loss": float(first or 0.0), "returns_variance": spread}

    def _named(self) -> dict[str, torch.nn.Parameter]:
        found = {f"model/{n}": p for n, p in self.model.policy.model.named_parameters() if p.requires_grad}
        return found | {f"head/{name}": p for name, p in self.model.head.named_parameters()}

    def save(self, path: pathlib.Path) -> None:
        """Write the whole state."""
        tensors = {name: p.detach() for name, p in self._named().items()}
        for name, parameter in self._named().items():
            for key, value in self._adam.state.get(parameter, {}).items():
                tensors[f"adam/{key}/{name}"] = value
        checkpoint.save(path, tensors, {"kind": KIND})

    def load(self, path: pathlib.Path) -> None:
        """Continue from what `save` wrote.

        Raises:
            CheckpointError: the file is damaged, or of another model.
        """
        tensors, _ = checkpoint.load(path, KIND)
        checkpoint.check_tensors(path, tensors)
        with torch.no_grad():
            for name, parameter in self._named().items():
                if name not in tensors or tensors[name].shape != parameter.shape:
                    raise checkpoint.CheckpointError(f"{path}: is of another critic, it has no {name} of this shape")
                parameter.copy_(tensors[name])
                state = {key: tensors.get(f"adam/{key}/{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
                if state["step"] is not None:
                    self._adam.state[parameter] = state
