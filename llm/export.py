"""Our methods for engines that outgrow one machine: functions with the signatures of verl and TRL.

verl has registries. Import a module that calls `register_verl()` in the workers (`actor_rollout_ref.model.external_lib`
of its configuration) and in the process that runs its trainer; then `surefoot_dapo_clip` is a name for its
`actor_rollout_ref.actor.policy_loss.loss_mode`, and `surefoot_batchstd` for `algorithm.adv_estimator`. TRL has none:
`trl_trainer("dapo_clip")` is its GRPOTrainer with our loss (tested with TRL 1.16 and verl 0.9). What a method needs
beyond its loss (groups drawn again, penalties, advantages) is set there: docs/llm.md has the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, MissingExtraError
from surefoot.core.losses.masked import masked_mean
from surefoot.llm.losses import method as losses
from surefoot.llm.losses.advantages import BASELINES, group_numbers
from surefoot.llm.losses.method import ADVANTAGES, GROUPED, Batch, Method
from surefoot.llm.methods import METHODS, method

BEYOND = ("advantages", "mixed_groups", "overlong_share", "drop_truncated", "nucleus")
"""Settings that a loss does not read, or for which the engines do not tell it what it needs."""
OF_VERL = ("kl", "kl_coefficient", "entropy_coefficient", "weight_cap")
"""Settings in whose place verl has its own."""
OF_ENTROPY = ("high_entropy", "spurious")
"""Choices of tokens that read their entropy."""


def _batch(one: Method, log_prob: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor, **more: Tensor) -> Batch:
    mask = mask.to(log_prob.dtype)
    if advantages.dim() == 1:
        advantages = advantages.unsqueeze(1)
    if one.of_sequences:  # engines give each token its answer's
        advantages = masked_mean(advantages.expand_as(mask), mask, -1, keepdim=True)
    rows = torch.arange(len(mask), device=mask.device)
    entropy = more.pop("entropy", torch.zeros_like(mask))
    behaviour = more.pop("behaviour", proximal)
    return Batch(log_prob, proximal, behaviour, mask, mask, advantages, rows.to(mask.dtype), rows, entropy, **more)


def _exportable(name: str, **changes: Any) -> Method:
    for field in BEYOND:
        if field in changes:
            raise ConfigError(
                f"method.{field}={changes[field]!r} has no effect in a loss alone: leave it out, and set what the "
                "engine has for it (docs/llm.md says what each method needs)"
            )
    one = method(name, **changes)
    if one.surrogate in GROUPED:
        raise ConfigError(
            f"method {name!r} reads rewards of whole groups, which no engine gives to a loss; train it here"
        )
    if one.of_sequences and one.ratio == "sequence" and one.reduction == "sequence_mean":
        # engines aggregate tokens: the same value and, with equal advantages, the same gradient
        one = dataclasses.replace(one, ratio="sequence_of_units")
    return one


def verl_policy_loss(name: str, **changes: Any) -> Callable[..., tuple[Tensor, dict[str, Any]]]:
    """A method's loss with the signature of verl's `register_policy_loss`.

    `rollout_is_weights` multiply the advantages. VESPO's own weight stands in their place: leave `rollout_is` off. KL
    and entropy terms are verl's own (`use_kl_loss`, `entropy_coeff`). The method's own reduction counts, with the
    batch's tokens and rows in `config.global_batch_info`.

    Raises:
        ConfigError: the method reads rewards of whole groups, or the entropy of tokens; or a change of what is verl's
            or has no effect in a loss.
    """
    for field in OF_VERL:
        if field in changes:
            raise ConfigError(
                f"method.{field}={changes[field]!r}: KL, entropy and the weights of the sampler are verl's own; leave "
                "it out, and set use_kl_loss and kl_loss_coef, entropy_coeff or rollout_is there"
            )
    one = _exportable(name, kl="none", kl_coefficient=0.0, entropy_coefficient=0.0, weight_cap=0.0, **changes)
    if one.units in OF_ENTROPY:
        raise ConfigError(f"method {name!r} reads the entropy of tokens, which verl does not give to a loss")

    def policy_loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        about = dict(getattr(config, "global_batch_info", None) or {})
        share = about.get("dp_size") or 1
        weighted = advantages if rollout_is_weights is None else advantages * rollout_is_weights
        batch = _batch(one, log_prob, old_log_prob, weighted, response_mask)
        batch = dataclasses.replace(batch, units=losses.selected(one, batch, batch.mask.any(1)))
        tokens, rows, _ = losses.denominators(one, batch)
        tokens = tokens if about.get("batch_num_tokens") is None else about["batch_num_tokens"] / share
        rows = rows if about.get("global_batch_size") is None else about["global_batch_size"] / share
        longest = about.get("loss_scale_factor") or response_mask.shape[1]
        found, metrics = losses.loss(one, batch, longest, tokens, rows)
        return found, {f"actor/{key}": float(value) for key, value in metrics.items()}

    policy_loss.__name__ = f"surefoot_{name}"
    return policy_loss


def verl_advantages(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Advantages by a name of `llm.losses.method.ADVANTAGES`, with the signature of verl's `register_adv_est`."""
    if name not in ADVANTAGES:
        raise ConfigError(f"unknown advantages {name!r}; known: {', '.join(ADVANTAGES)}")

    def estimator(
        token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, index: Any = None, **unused: Any
    ) -> tuple[Tensor, Tensor]:
        returns, mask = token_level_rewards.sum(-1), response_mask.to(token_level_rewards.dtype)
        numbers: dict[Any, int] = {}
        groups = [numbers.setdefault(one, len(numbers)) for one in (range(len(mask)) if index is None else list(index))]
        rows = group_numbers(returns, torch.tensor(groups, device=mask.device))
        found = losses.advantages(Method("", "", advantages=name), returns, rows, mask) * mask
        return found, found

    estimator.__name__ = f"surefoot_{name}"
    return estimator


def register_verl(names: Sequence[str] | None = None) -> list[str]:
    """Register losses as `surefoot_NAME` and advantages as `surefoot_NAME` with verl; gives what was registered.

    Raises:
        MissingExtraError: verl is not installed.
    """
    try:
        from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss
    except ImportError as error:
        raise MissingExtraError("verl", None, f"registering with verl ({error})") from error
    wanted = [
        name
        for name in names or METHODS
        if METHODS[name].surrogate not in GROUPED and METHODS[name].units not in OF_ENTROPY
    ]
    for name in wanted:
        register_policy_loss(f"surefoot_{name}")(verl_policy_loss(name))
    estimators = [*BASELINES, "whitened_to_go", "whitened_group_mean", "filtered_to_go"]
    for name in estimators:
        register_adv_est(f"surefoot_{name}")(verl_advantages(name))
    return [f"surefoot_{name}" for name in [*wanted, *estimators]]


def trl_trainer(name: str, **changes: Any) -> Any:
    """TRL's GRPOTrainer with our loss in the place of its own: a class, to be used as it is.

    Advantages, rewards and sampling are TRL's (`scale_rewards`, `beta`, `num_generations` of its GRPOConfig); the
    reference's log-probabilities are there where `beta` is above 0, and our method's own coefficient weighs them.

    Raises:
        ConfigError: the method reads rewards of whole groups, or a change that has no effect in a loss.
        MissingExtraError: TRL is not installed.
    """
    try:
        from trl import GRPOTrainer
    except ImportError as error:
        raise MissingExtraError("trl", None, "a trainer of TRL") from error
    one = _exportable(name, **changes)

    class SurefootTrainer(GRPOTrainer):
        """GRPOTrainer with a loss of surefoot's."""

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            width = inputs["completion_ids"].shape[1]
            log_prob, entropy, _ = self._get_per_token_logps_and_entropies(
                model, ids, attention, width, compute_entropy=True
            )
            old = inputs.get("old_per_token_logps")
            old = log_prob.detach() if old is None else old
            more = {"entropy": entropy, "behaviour": inputs.get("sampling_per_token_logps", old)}
            if inputs.get("ref_per_token_logps") is not None:
                more["reference"] = inputs["ref_per_token_logps"]
            batch = _batch(one, log_prob, old, inputs["advantages"], mask, **more)
            batch = dataclasses.replace(batch, units=losses.selected(one, batch, mask.any(1)))
            training = self.model.training
            parts = self.current_gradient_accumulation_steps if training else 1
            tokens: Any = inputs["num_items_in_batch"] / self.accelerator.num_processes
            if training:
                tokens = tokens * parts / self.args.steps_per_generation
            found, metrics = losses.loss(one, batch, self.max_completion_length, tokens, len(mask) * parts, tokens)
            for key, value in metrics.items():
                self._metrics["train" if training else "eval"][f"surefoot/{key}"].append(float(value))
            return found

    SurefootTrainer.__name__ = f"Surefoot{name.title().replace('_', '')}Trainer"
    return SurefootTrainer
