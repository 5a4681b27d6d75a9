"""Our methods for engines that outgrow one machine: functions with the signatures of verl and TRL.

verl has registries. Import a module that calls `register_verl()` in the workers (`actor_rollout_ref.model.external_lib`
of its configuration) and in the process that runs its trainer; then `surefoot_dapo_clip` is a name for its
`actor_rollout_ref.actor.policy_loss.loss_mode`, and `surefoot_batchstd` for `algorithm.adv_estimator`. TRL has none:
`trl_trainer("vespo")` is its GRPOTrainer with our loss (tested with TRL 1.16 and verl 0.9). A method is exported
where the engine can do all of it, and refused where not; what the engine does by settings of its own (advantages,
groups drawn again, penalties) is checked where the engine shows them: docs/llm.md has the table.
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
from surefoot.llm.losses.advantages import group_numbers
from surefoot.llm.losses.method import ADVANTAGES, GROUPED, Batch, Method
from surefoot.llm.methods import METHODS, method
from surefoot.llm.models import missing_of

BEYOND = ("advantages", "mixed_groups", "overlong_share", "drop_truncated", "nucleus", "lagged")
"""Settings that a loss does not read, or for which the engines do not tell it what it needs."""
LEFT_OUT = {"mixed_groups": False, "overlong_share": 0.0}
"""Those that one may leave out of an exported method, by these values."""
OF_VERL = ("kl", "kl_coefficient", "entropy_coefficient", "weight_cap", "drop_above_cap")
"""Settings in whose place verl has its own."""
OF_ENTROPY = ("high_entropy", "spurious")
"""Choices of tokens that read their entropy."""
SCALES_OF_TRL = {"meanstd": "group", "batchstd": "batch", "mean": "none"}
"""Advantages that TRL computes -> its `scale_rewards`."""
UNREAD_BY_TRL = {
    "multi_objective_aggregation": "sum_then_normalize",
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "delta": None,
}
"""Settings of GRPOConfig that change TRL's own loss or advantages, which ours does not read -> their value for off."""
PICTURES = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
"""Inputs of models that see, which TRL hands to the forward pass."""


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
        if field in changes and not (field in LEFT_OUT and changes[field] == LEFT_OUT[field]):
            raise ConfigError(
                f"method.{field}={changes[field]!r} has no effect in a loss alone: leave it out, and set what the "
                "engine has for it (docs/llm.md says what each method needs)"
            )
    one = method(name, **changes)
    if one.surrogate in GROUPED:
        raise ConfigError(
            f"method {name!r} reads rewards of whole groups, which no engine gives to a loss; train it here"
        )
    if one.reads != "none":
        raise ConfigError(
            f"method {name!r} has a reward of its own that reads the policy, which no engine shows one; train it here"
        )
    if one.sage:
        raise ConfigError("method.sage draws answers as no engine does; train it here")
    if one.nucleus:
        raise ConfigError(
            f"method {name!r} samples from the nucleus of a mask policy, which no engine does; train it here"
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
    own = {"kl": "none", "kl_coefficient": 0.0, "entropy_coefficient": 0.0, "weight_cap": 0.0, "drop_above_cap": False}
    one = _exportable(name, **own, **changes)
    if one.advantages == losses.GAE:
        raise ConfigError(
            f"method {name!r} has a critic, and verl trains its own: set algorithm.adv_estimator=gae there, whose "
            "advantages and value loss are ours, with the loss that it has"
        )
    if one.advantages not in ADVANTAGES:
        raise ConfigError(f"method {name!r} reads rewards of steps, which verl does not give to its advantages")
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


def exported_to_verl() -> list[str]:
    """Names of the methods whose loss and advantages verl can be given."""
    return [
        name
        for name, one in METHODS.items()
        if one.surrogate not in GROUPED
        and one.units not in OF_ENTROPY
        and one.advantages in ADVANTAGES
        and not one.nucleus
        and one.reads == "none"
    ]


def register_verl(names: Sequence[str] | None = None) -> list[str]:
    """Register losses as `surefoot_NAME` and advantages as `surefoot_NAME` with verl; gives what was registered.

    Args:
        names: of methods; None for all of `exported_to_verl`.

    Raises:
        ConfigError: a method that is not among them.
        MissingExtraError: verl is not installed.
    """
    try:
        from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss
    except ImportError as error:
        raise MissingExtraError(missing_of(error, "verl"), None, f"registering with verl ({error})") from error
    made = {name: verl_policy_loss(name) for name in (exported_to_verl() if names is None else names)}
    for name, policy_loss in made.items():
        register_policy_loss(f"surefoot_{name}")(policy_loss)
    for name in ADVANTAGES:
        register_adv_est(f"surefoot_{name}")(verl_advantages(name))
    return [f"surefoot_{name}" for name in [*made, *ADVANTAGES]]


def _for_trl(name: str, **changes: Any) -> Method:
    """A method that TRL's trainer can do all of.

    Raises:
        ConfigError: what TRL lacks for it.
    """
    one = _exportable(name, **changes)
    if one.advantages not in SCALES_OF_TRL:
        raise ConfigError(
            f"method {name!r} has the advantages {one.advantages!r}, and TRL's GRPOTrainer those of "
            f"{', '.join(SCALES_OF_TRL)}: train it here, or with verl"
        )
    if one.kl == "reward":
        raise ConfigError(
            f"method {name!r} takes the KL from the reward, which TRL's GRPOTrainer does not: say kl='k3'"
        )
    if one.mixed_groups:
        raise ConfigError(
            f"method {name!r} draws groups again whose rewards are all the same, which TRL does not: "
            f"trl_trainer({name!r}, mixed_groups=False) is the method without it"
        )
    if one.overlong_share:
        raise ConfigError(
            f"method {name!r} takes a penalty from the reward of overlong answers: add "
            "trl.rewards.get_soft_overlong_punishment to the reward functions, and say overlong_share=0.0 here"
        )
    return one


def check_trl(one: Method, args: Any) -> None:
    """Refuse settings of TRL's GRPOConfig that are not the method's, or that its loss would pass over.

    Args:
        one: the method.
        args: a GRPOConfig.

    Raises:
        ConfigError: names the setting and what to write.
    """
    scale = SCALES_OF_TRL[one.advantages]
    found = {True: "group", False: "none"}.get(args.scale_rewards, args.scale_rewards)
    if found != scale:
        raise ConfigError(
            f"scale_rewards={args.scale_rewards!r} of GRPOConfig: {one.title} needs scale_rewards={scale!r}"
        )
    if args.beta != one.kl_coefficient:
        raise ConfigError(
            f"beta={args.beta} of GRPOConfig, by which TRL loads a reference: {one.title} has a KL coefficient of "
            f"{one.kl_coefficient}; give the same to both (trl_trainer(..., kl_coefficient=...))"
        )
    for field, off in UNREAD_BY_TRL.items():
        if getattr(args, field, off) != off:
            raise ConfigError(
                f"{field}={getattr(args, field)!r} of GRPOConfig changes TRL's own loss, which {one.title} does not "
                f"use: leave it at {off!r}"
            )
    weighted = one.kl == "k3_weighted"
    if one.kl_coefficient and getattr(args, "use_bias_correction_kl", weighted) != weighted:
        raise ConfigError(
            f"use_bias_correction_kl={args.use_bias_correction_kl} of GRPOConfig: {one.title} has kl={one.kl!r} here; "
            f"say use_bias_correction_kl={weighted}, or change the method's kl (k3_weighted has the correction)"
        )
    corrected = getattr(args, "use_vllm", False) and getattr(args, "vllm_importance_sampling_correction", False)
    if corrected and (one.weight_cap or one.of_sequences):
        why = "has weights of its own for the sampler" if one.weight_cap else "has one term for each answer"
        raise ConfigError(
            f"vllm_importance_sampling_correction of GRPOConfig weighs tokens, and {one.title} {why}: set it to False"
        )


def trl_trainer(name: str, **changes: Any) -> Any:
    """TRL's GRPOTrainer with our loss in the place of its own: a class, to be used as it is.

    Advantages, rewards and sampling are TRL's, and its GRPOConfig must say what the method has (`scale_rewards`,
    `beta`); `loss_type`, `epsilon` and `epsilon_high` are the method's. Weights of a sampler in vLLM multiply the
    advantages, pictures reach the model, and a router's auxiliary loss is added, as in TRL's own loss.

    Raises:
        ConfigError: TRL can't do all of the method, or a change has no effect; when the trainer is made, a setting of
            its GRPOConfig that the method does not have, or does not read.
        MissingExtraError: TRL is not installed, or does not import.
    """
    one = _for_trl(name, **changes)
    try:
        from trl import GRPOTrainer
    except ImportError as error:
        raise MissingExtraError(missing_of(error, "trl"), None, f"a trainer of TRL ({error})") from error

    class SurefootTrainer(GRPOTrainer):
        """GRPOTrainer with a loss of surefoot's."""

        def __init__(self, *given: Any, args: Any = None, **more: Any) -> None:
            if args is not None:
                check_trl(one, args)
            super().__init__(*given, args=args, **more)
            check_trl(one, self.args)

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            width = inputs["completion_ids"].shape[1]
            with_router = bool(getattr(self, "aux_loss_enabled", False))
            seen = {key: inputs[key] for key in PICTURES if inputs.get(key) is not None}
            if with_router:
                seen["compute_aux_loss"] = True
            log_prob, entropy, auxiliary = self._get_per_token_logps_and_entropies(
                model, ids, attention, width, compute_entropy=True, **seen
            )
            old = inputs.get("old_per_token_logps")
            old = log_prob.detach() if old is None else old
            more = {"entropy": entropy, "behaviour": inputs.get("sampling_per_token_logps", old)}
            if inputs.get("ref_per_token_logps") is not None:
                more["reference"] = inputs["ref_per_token_logps"]
            advantages = inputs["advantages"]
            weights = inputs.get("importance_sampling_ratio")
            if weights is not None and one.surrogate not in losses.TO_THE_SAMPLER:  # terms are linear in advantages
                advantages = (advantages.unsqueeze(1) if advantages.dim() == 1 else advantages) * weights
            batch = _batch(one, log_prob, old, advantages, mask, **more)
            batch = dataclasses.replace(batch, units=losses.selected(one, batch, mask.any(1)))
            training = self.model.training
            parts = self.current_gradient_accumulation_steps if training else 1
            tokens: Any = inputs["num_items_in_batch"] / self.accelerator.num_processes
            if training:
                tokens = tokens * parts / self.args.steps_per_generation
            found, metrics = losses.loss(one, batch, self.max_completion_length, tokens, len(mask) * parts, tokens)
            for key, value in metrics.items():
                self._metrics["train" if training else "eval"][f"surefoot/{key}"].append(float(value))
            return found + self.router_aux_loss_coef * auxiliary / parts if with_router else found

    SurefootTrainer.__name__ = f"Surefoot{name.title().replace('_', '')}Trainer"
    return SurefootTrainer
