"""The critic of a policy's tokens: how much reward is to come before each token of an answer is drawn.

It is a model of its own beside the policy, with a head of one number (`RewardModel`): a copy of the policy with a new
head, or a reward model, as InstructGPT's critic begins.

Source: Ziegler et al., "Fine-Tuning Language Models from Human Preferences"; Ouyang et al., "Training language models
to follow instructions with human feedback", appendix C.4.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.masked import reduce
from surefoot.core.losses.value_learning import explained_variance, value_loss
from surefoot.llm.losses.method import Batch
from surefoot.llm.optimizers import Optimizer
from surefoot.llm.policy import LMPolicy, Rollout
from surefoot.llm.reward_models import RewardModel


class TokenCritic:
    """Values of tokens, and the steps that train them."""

    def __init__(self, model: RewardModel, policy: LMPolicy, learning_rate: float, clip: float, at_once: int) -> None:
        """Begin.

        Args:
            model: of pairs, with the policy's tokens; it is trained.
            policy: whose answers it values.
            learning_rate: of AdamW without weight decay.
            clip: largest change of a value within a batch that counts; 0 for none.
            at_once: answers whose activations are held at once.

        Raises:
            ConfigError: a model of steps, or with another vocabulary; or one that is the policy's own.
        """
        if model.kind != "pairs":
            raise ConfigError("a critic has one number for a text: give a reward model of pairs, not one of steps")
        if model.policy.model is policy.model:
            raise ConfigError("a critic is trained beside the policy: give it a model of its own, as a copy")
        model.check_reads(policy)
        self.model, self.clip, self.at_once = model, clip or None, at_once
        whole = torch.nn.ModuleDict({"model": model.policy.model, "head": model.head})
        self.optimizer = Optimizer(whole, "adamw", learning_rate, 0.0)

    def values(self, rollout: Rollout) -> Tensor:
        """(B, C), in units of the reward, with gradient: before each token of the answers."""
        first = rollout.prompt_ids.shape[1] - 1
        return self.model.of_rows(rollout)[:, first:-1]

    @torch.no_grad()
    def all_values(self, rollout: Rollout) -> Tensor:
        """`values` of as many answers as there are, without gradient."""
        size = self.at_once
        return torch.cat([self.values(rollout.rows(slice(k, k + size))) for k in range(0, len(rollout.finished), size)])

    def update(
        self, rollout: Rollout, batch: Batch, rows: Tensor, max_gradient_norm: float, share: float, where: str
    ) -> dict[str, float]:
        """One step on the clipped squared error of some rows, a mean over their tokens; its metrics before it.

        Args:
            rollout: the whole batch.
            batch: likewise, with `values` and `value_targets`.
            rows: which of them.
            max_gradient_norm: gradients longer than this are shortened.
            share: of the learning rate.
            where: for the error.

        Raises:
            DivergenceError: the loss or its gradient is not finite; nothing is changed then.
        """
        assert batch.values is not None
        assert batch.value_targets is not None
        mask = batch.mask * ~batch.returns.isnan().unsqueeze(-1)
        count, total = mask[rows].sum().clamp(min=1), torch.zeros((), device=mask.device)
        self.optimizer.zero_grad()
        found = []
        for part in rows.split(self.at_once):
            found.append(self.values(rollout.rows(part)))
            terms = value_loss(found[-1], batch.value_targets[part], batch.values[part], self.clip, mask[part])
            loss = reduce(terms, mask[part], "mean", denominator=count)
            loss.backward()
            total += loss.detach()
        explained = explained_variance(torch.cat(found), batch.value_targets[rows], mask[rows])
        self.optimizer.step(total, max_gradient_norm, share, f"{where}, the critic")
        return {"critic_loss": float(total), "explained_variance": float(explained)}

    def tensors(self) -> dict[str, Tensor]:
        """Its state, for a checkpoint."""
        weights = {f"weights/{name}": value.detach() for name, value in self.optimizer.parameters.items()}
        return weights | self.optimizer.tensors()

    def lacks(self, tensors: Mapping[str, Tensor]) -> str | None:
        """The name of a weight that a checkpoint's state of a critic does not have in this shape."""
        for name, value in self.optimizer.parameters.items():
            found = tensors.get(f"weights/{name}")
            if found is None or found.shape != value.shape:
                return name
        return None

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what `tensors` gave, nothing of which it `lacks`."""
        for name, value in self.optimizer.parameters.items():
            value.copy_(tensors[f"weights/{name}"])
        self.optimizer.load(tensors)
