"""Optimisers of language models, and how fast they go: AdamW or Muon, warm-up and schedules of the learning rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, DivergenceError
from surefoot.core.base.options import Options, option

OPTIMIZERS = ("adamw", "muon")
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda left: 1.0,
    "linear": lambda left: left,
    "cosine": lambda left: (1 + math.cos(math.pi * (1 - left))) / 2,
}
"""The share of the learning rate, by the share of the fall that is left: 1 where it begins, 0 at its end."""


@dataclasses.dataclass(frozen=True)
class Pace(Options):
    """Settings of the optimiser that all trainings share."""

    owner = ""
    optimizer: str = option(
        "adamw",
        "optimizer: adamw or muon, for the hidden layers' matrices; all else stays with adamw",
        choices=OPTIMIZERS,
    )
    warm_up: int = option(0, "first steps, in which the learning rate rises linearly", range=">= 0")
    schedule: str = option(
        "constant",
        "schedule of the learning rate behind the warm-up: constant, or linear or cosine, which fall to 0",
        choices=tuple(SCHEDULES),
    )
    decay_share: float = option(
        1.0, "share of all steps in which the learning rate falls, the last ones; it is constant before", range="(0, 1]"
    )

    def share(self, step: int, steps: int) -> float:
        """Of the learning rate, in one of `steps` steps, counted from 1."""
        if step <= self.warm_up:
            return step / self.warm_up
        fall = min(self.decay_share * steps, steps - self.warm_up)
        return SCHEDULES[self.schedule](max(0.0, min(1.0, (steps - step + 1) / fall)) if fall > 0 else 1.0)


class Optimizer:
    """Of all weights of a model that are trained; its state goes through checkpoints."""

    def __init__(self, model: torch.nn.Module, kind: str, learning_rate: float, weight_decay: float) -> None:
        """Begin.

        Args:
            model: whose parameters with `requires_grad` are trained.
            kind: "adamw", or "muon": matrices but those of embeddings and of the output are Muon's, all else AdamW's.
                Muon's steps are scaled to have AdamW's usual size, so that both have one learning rate and decay.
            learning_rate: of both.
            weight_decay: of both.

        Raises:
            ConfigError: `kind` is "muon", and no matrix is trained.

        Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization"; Jordan et al., "Muon" (2024), with the
        scale 0.2 sqrt(max(rows, columns)) of Liu et al., "Muon is Scalable for LLM Training", section 2.2.
        """
        self.learning_rate = learning_rate
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        matrices = hidden_matrices(model) if kind == "muon" else {}
        if kind == "muon" and not matrices:
            raise ConfigError("optimizer=muon is for matrices of hidden layers, and none is trained: take adamw")
        rest = [p for name, p in self.parameters.items() if name not in matrices]
        self._parts: dict[str, torch.optim.Optimizer] = {}
        if matrices:
            self._parts["muon"] = torch.optim.Muon(
                matrices.values(), lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
            )
        if rest:
            self._parts["adam"] = torch.optim.AdamW(rest, lr=learning_rate, weight_decay=weight_decay)

    def zero_grad(self) -> None:
        """Before a backward pass."""
        for part in self._parts.values():
            part.zero_grad()

    def step(self, total: Tensor, max_gradient_norm: float, share: float = 1.0, where: str = "") -> float:
        """One step along the gradients that the parameters have; gives their norm before it was cut.

        Args:
            total: the loss, to be looked at.
            max_gradient_norm: gradients longer than this are shortened.
            share: of the learning rate.
            where: for the error.

        Raises:
            DivergenceError: loss or gradient is not finite; nothing is changed then.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), max_gradient_norm)
        if not torch.isfinite(norm) or not torch.isfinite(total):
            raise DivergenceError(
                f"{where}: the loss or its gradient stopped being finite; the last checkpoint is kept. Lower "
                "learning_rate, or max_gradient_norm"
            )
        for part in self._parts.values():
            for group in part.param_groups:
                group["lr"] = self.learning_rate * share
            part.step()
        return float(norm)

    def clear(self) -> None:
        """Forget all moments."""
        for part in self._parts.values():
            part.state.clear()

    @property
    def moments(self) -> bool:
        """Whether it has any."""
        return any(part.state for part in self._parts.values())

    def tensors(self) -> dict[str, Tensor]:
        """Its state, for a checkpoint."""
        found: dict[str, Tensor] = {}
        for kind, part in self._parts.items():
            for name, parameter in self.parameters.items():
                for key, value in part.state.get(parameter, {}).items():
                    found[f"{kind}/{key}/{name}"] = value
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """What `tensors` gave, among others."""
        for kind, part in self._parts.items():
            states: dict[str, dict[str, Any]] = {}
            for full, value in tensors.items():
                first, _, rest = full.partition("/")
                key, _, name = rest.partition("/")
                if first == kind and name in self.parameters:
                    device = self.parameters[name].device
                    states.setdefault(name, {})[key] = value if key == "step" else value.to(device)
            part.state.clear()
            part.state.update({self.parameters[name]: state for name, state in states.items()})


def hidden_matrices(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Trained parameters of two dimensions, but those of embeddings (of positions too) and of the output."""
    left_out = {id(p) for one in model.modules() if isinstance(one, torch.nn.Embedding) for p in one.parameters()}
    adapted: Any = model
    inner: Any = adapted.get_base_model() if hasattr(model, "get_base_model") else model
    head = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    left_out |= {id(p) for p in head.parameters()} if head is not None else set()
    return {
        name: p for name, p in model.named_parameters() if p.requires_grad and p.ndim == 2 and id(p) not in left_out
    }
