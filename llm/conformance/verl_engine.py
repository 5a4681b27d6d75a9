"""verl's registered losses and advantage estimators, called on our tensors: tested with verl 0.9."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import MissingExtraError
from surefoot.llm.conformance.implementation import COMPARED, Case, Implementation
from surefoot.llm.losses.advantages import group_numbers
from surefoot.llm.losses.method import Method
from surefoot.llm.losses.reward_shaping import outcome_rewards
from surefoot.llm.methods import method
from surefoot.llm.models import missing_of

KINDS = {  # our name -> policy loss, aggregation
    "grpo": ("vanilla", "seq-mean-token-mean"),
    "dapo_clip": ("vanilla", "token-mean"),
    "dual_clip": ("vanilla", "token-mean"),
    "token_sum": ("vanilla", "seq-mean-token-sum"),
    "dr_grpo": ("vanilla", "seq-mean-token-sum-norm"),
    "gspo_token": ("gspo", "seq-mean-token-mean"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
}
ESTIMATORS = {
    "meanstd": "grpo",
    "loo": "rloo",
    "whitened_to_go": "reinforce_plus_plus",
    "whitened_group_mean": "reinforce_plus_plus_baseline",
    "gae": "gae",
}


class Verl(Implementation):
    """Its registries of policy losses and advantage estimators, and its KL estimates."""

    name = "verl"
    epsilon = 1e-6
    notes = {  # noqa: RUF012
        f"advantages {name}, an answer without a score": "an answer without a reward spoils its group, or the "
        "batch; ours leaves it out, as TRL does"
        for name in ESTIMATORS
    }

    def __init__(self) -> None:
        """Import it.

        Raises:
            MissingExtraError: verl, or what it needs to be imported, is not installed.
        """
        try:
            import verl
            from verl.trainer.config import AlgoConfig
            from verl.trainer.ppo import core_algos
            from verl.workers.config import ActorConfig
        except ImportError as error:
            raise MissingExtraError(missing_of(error, "verl"), None, f"a comparison with verl ({error})") from error
        self.version, self._core, self._actor, self._algo = verl.__version__, core_algos, ActorConfig, AlgoConfig

    def settings(self, name: str) -> Method:
        """Its clipped loss always has the dual clip, and no KL of its own."""
        ours = COMPARED[name]
        if KINDS.get(name, ("", ""))[0] == "vanilla":
            return method("dapo_clip", dual=3.0, low=ours.low, high=ours.high, reduction=ours.reduction)
        if name == "cispo":
            return method("cispo", cap=1.28)  # and its lower bound out of use, as in the paper
        return ours

    def loss(self, name: str, case: Case) -> Tensor | None:
        """By the policy loss that is registered."""
        if name not in KINDS:
            return None
        kind, mode = KINDS[name]
        ours = self.settings(name)
        config: Any = self._actor(
            strategy="fsdp",
            rollout_n=4,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio=ours.low,
            clip_ratio_low=1.0 if kind == "cispo" else ours.low,
            clip_ratio_high=0.28 if kind == "cispo" else ours.high,
            clip_ratio_c=3.0,
            loss_agg_mode=mode,
        )
        config.global_batch_info.update(
            dp_size=1, batch_num_tokens=case.tokens, global_batch_size=case.rows, loss_scale_factor=case.longest
        )
        function = self._core.get_policy_loss_fn(kind)
        found: Tensor = function(
            old_log_prob=case.proximal,
            log_prob=case.log_prob,
            advantages=case.advantages.expand_as(case.mask),
            response_mask=case.mask,
            loss_agg_mode=mode,
            config=config,
        )[0]
        return found

    def advantages(self, name: str, case: Case) -> Tensor | None:
        """By the estimator that is registered."""
        if name not in ESTIMATORS:
            return None
        if name == "gae":
            settings, rewards = method("ppo"), outcome_rewards(case.returns, case.mask)
            whole: Tensor = self._core.compute_gae_advantage_return(
                rewards, case.values, case.mask, settings.discount, settings.trace
            )[0]
            return whole * case.mask
        function = self._core.get_adv_estimator_fn(ESTIMATORS[name])
        found: Tensor = function(
            token_level_rewards=outcome_rewards(case.returns, case.mask),
            response_mask=case.mask,
            index=group_numbers(case.returns, case.groups).numpy(),
            config=self._algo(),
        )[0]
        return found * case.mask

    def value_loss(self, case: Case) -> Tensor | None:
        """By `compute_value_loss`."""
        found: Tensor = self._core.compute_value_loss(
            case.log_prob, case.values, case.proximal, case.mask, 0.2, dp_size=1, batch_num_tokens=case.tokens
        )[0]
        return found

    def divergence(self, name: str, case: Case) -> Tensor | None:
        """By `kl_penalty`."""
        kind = {"k3_straight": "k3+"}.get(name, name)
        found: Tensor = self._core.kl_penalty(case.log_prob, case.reference, kind)
        return torch.where(case.mask != 0, found, 0.0)
