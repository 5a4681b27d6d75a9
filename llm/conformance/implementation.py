"""What is compared: a batch, and an implementation of some of the functions that a training step is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.core.losses.masked import reduce
from surefoot.core.losses.value_learning import value_loss
from surefoot.llm.losses.advantages import BASELINES, group_baseline
from surefoot.llm.losses.method import GAE, Batch, Method, advantages, critic_advantages, loss
from surefoot.llm.losses.selection import completion_mask, high_entropy_mask
from surefoot.llm.methods import METHODS, method
from surefoot.llm.policy import LMPolicy, Rollout


@dataclasses.dataclass(frozen=True)
class Case:
    """A part of a batch: B answers of at most C tokens."""

    name: str
    log_prob: Tensor
    """(B, C) float32 with gradient."""
    proximal: Tensor
    reference: Tensor
    mask: Tensor
    entropy: Tensor
    advantages: Tensor
    """(B, 1)."""
    returns: Tensor
    """(B,)."""
    groups: Tensor
    """(B,), in any order."""
    parts: int
    """How many such parts the whole batch has."""
    tokens: float
    """Of the whole batch."""
    longest: int
    """The most tokens of an answer, more than C."""
    values: Tensor
    """(B, C), a critic's, before each token."""

    @property
    def rows(self) -> int:
        """Of the whole batch."""
        return len(self.mask) * self.parts

    def batch(self) -> Batch:
        """As `llm.losses.method` reads it; the policy that sampled is the proximal one."""
        return Batch(
            log_prob=self.log_prob,
            proximal=self.proximal,
            behaviour=self.proximal,
            mask=self.mask,
            units=self.mask,
            advantages=self.advantages,
            returns=self.returns,
            groups=self.groups,
            entropy=self.entropy,
            reference=self.reference,
        )


COMPARED: dict[str, Method] = {
    **{name: METHODS[name] for name in ("dapo_clip", "dr_grpo", "gspo_token", "luspo", "cispo", "sapo", "vespo")},
    "grpo": method("grpo", kl_coefficient=0.04),
    "grpo_weighted_kl": method("grpo", kl="k3_weighted", kl_coefficient=0.04),
    "gspo": method("gspo"),
    "dual_clip": method("dapo_clip", dual=3.0),
    "token_sum": method("dapo_clip", reduction="token_sum"),
    "high_entropy": method("entropy_tokens", share=0.3),
    "rloo": method("rloo", kl="none", kl_coefficient=0.0),
}
"""What may be asked of an implementation's `loss`."""
ADVANTAGES = ("meanstd", "mean", "loo", "batchstd", "whitened_to_go", "whitened_group_mean", "gae")
"""What may be asked of its `advantages`."""
DIVERGENCES = ("k1", "k2", "k3", "k3_straight")
"""What may be asked of its `divergence`."""


class Implementation:
    """Functions of a training step. What one does not have gives None, and is not compared."""

    name = ""
    version = ""
    notes: dict[str, str] = {}  # noqa: RUF012
    """Known differences: "check" or "check, case" -> what differs, and which side follows the paper."""
    epsilon: float = 1e-4
    """What it adds to a standard deviation of rewards."""

    def settings(self, name: str) -> Method:
        """The method in the settings in which `loss` computes it."""
        return COMPARED[name]

    def loss(self, name: str, case: Case) -> Tensor | None:
        """A method's loss of a part, with gradient to `case.log_prob`; `name` is one of `COMPARED`."""
        return None

    def advantages(self, name: str, case: Case) -> Tensor | None:
        """(B, C), 0 where masked; `name` is one of `ADVANTAGES`."""
        return None

    def value_loss(self, case: Case) -> Tensor | None:
        """A critic's loss of a part, a mean over tokens with changes clipped at 0.2.

        The critic gives `case.log_prob` now, with gradient, and gave `case.proximal`; its targets are `case.values`.
        """
        return None

    def divergence(self, name: str, case: Case) -> Tensor | None:
        """Terms (B, C) of an estimate of KL to the reference, with gradient; `name` is one of `DIVERGENCES`."""
        return None

    def log_probs(self, policy: LMPolicy, rollout: Rollout) -> Tensor | None:
        """(B, C) of the answers' tokens."""
        return None

    def completion_mask(self, tokens: Tensor, ends: Sequence[int]) -> Tensor | None:
        """(B, C), 1 at the tokens that are trained."""
        return None


class Ours(Implementation):
    """surefoot's own functions, as another implementation would be compared."""

    name = "surefoot"

    def loss(self, name: str, case: Case) -> Tensor | None:
        """By `llm.losses.method`."""
        return self.loss_as(self.settings(name), case)

    def loss_as(self, settings: Method, case: Case) -> Tensor:
        """The loss in settings of another."""
        batch = case.batch()
        if settings.units == "high_entropy":
            batch = dataclasses.replace(batch, units=high_entropy_mask(case.entropy, case.mask, settings.share))
        return loss(settings, batch, case.longest, case.tokens, case.rows)[0]

    def advantages(self, name: str, case: Case) -> Tensor | None:
        """By `llm.losses.method`, and `llm.losses.advantages` where an epsilon of its own is asked for."""
        if name in BASELINES:
            return group_baseline(case.returns, case.groups, name, eps=self.epsilon).unsqueeze(-1) * case.mask
        settings = Method("", "", advantages=name)
        if name == GAE:
            return critic_advantages(settings, case.returns, case.mask, case.values)[0]
        return advantages(settings, case.returns, case.groups, case.mask) * case.mask

    def value_loss(self, case: Case) -> Tensor | None:
        """By `core.losses.value_learning`."""
        terms = value_loss(case.log_prob, case.values, case.proximal, 0.2, case.mask)
        return reduce(terms, case.mask, "mean", denominator=case.tokens)

    def divergence(self, name: str, case: Case) -> Tensor | None:
        """By `core.losses.policy_gradient.divergences`."""
        from surefoot.core.losses.policy_gradient import divergences

        terms: Tensor = getattr(divergences, f"kl_{name}")(case.log_prob, case.reference, case.mask)
        return terms

    def log_probs(self, policy: LMPolicy, rollout: Rollout) -> Tensor | None:
        """By `LMPolicy`."""
        return policy.log_probs(rollout)[0]

    def completion_mask(self, tokens: Tensor, ends: Sequence[int]) -> Tensor | None:
        """By `llm.losses.selection`."""
        return completion_mask(tokens, ends)[0]


def random_case(
    name: str, seed: int, *, gap: float = 0.1, parts: int = 1, empty: bool = False, unscored: bool = False
) -> Case:
    """Twelve answers in three groups, in mixed order, with tool answers inside.

    Args:
        name: of the case.
        seed: of its numbers.
        gap: how far the policies are apart, in nats a token.
        parts: how many such parts the whole batch has.
        empty: mask one answer as a whole.
        unscored: one answer has no reward.
    """
    source = torch.Generator().manual_seed(seed)
    rows, width = 12, 9

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    proximal = -draw(rows, width).abs() - 0.05
    lengths = torch.randint(2, width + 1, (rows, 1), generator=source)
    mask = (torch.arange(width) < lengths).float()
    tool = (
        (torch.arange(width) > 1) & (torch.arange(width) < 4) & (torch.arange(rows) % 3 == 0)[:, None] & (lengths > 5)
    )
    mask = torch.where(tool, 0.0, mask)
    if empty:
        mask[4] = 0.0
    returns = (draw(rows) * 2).round() / 2
    groups = torch.randperm(rows, generator=source) % 3
    returns[groups == 1] = 0.5
    if unscored:
        returns[int((groups == 0).nonzero()[0])] = torch.nan
    return Case(
        name=name,
        log_prob=(proximal + gap * draw(rows, width)).requires_grad_(),
        proximal=proximal,
        reference=proximal + 0.3 * draw(rows, width),
        mask=mask,
        entropy=draw(rows, width).abs(),
        advantages=draw(rows, 1),
        returns=returns,
        groups=groups,
        parts=parts,
        tokens=float(mask.sum()) * parts + 7.0 * (parts > 1),
        longest=width + 4,
        values=draw(rows, width),
    )
