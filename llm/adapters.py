"""Adapters of low rank (LoRA), by peft: few parameters are trained, and the model that they adapt stays as it was."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from surefoot.core.base.errors import ConfigError, MissingExtraError
from surefoot.llm.models import missing_of
from surefoot.llm.policy import LMPolicy


def with_lora(policy: LMPolicy, rank: int, alpha: float = 0.0, targets: str = "all-linear", seed: int = 0) -> LMPolicy:
    """A policy whose model has new adapters, W + alpha / rank B A with B = 0, which alone are trained.

    Args:
        policy: whose model is changed in place.
        rank: of the adapters.
        alpha: scale; 0 for twice the rank.
        targets: names of the layers that get one, with commas between; "all-linear" for all but the head.
        seed: of A.

    Raises:
        ConfigError: a rank below 1, or layers that the model does not have.
        MissingExtraError: peft is not installed.

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models".
    """
    if rank < 1:
        raise ConfigError(f"lora={rank}: the rank of adapters must be at least 1")
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError(missing_of(error, "peft"), "lora", f"lora= ({error})") from error
    names: Any = targets if targets == "all-linear" else [name.strip() for name in targets.split(",")]
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha or 2 * rank, lora_dropout=0.0, target_modules=names, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng([]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft, about layouts that it corrects by itself
        torch.manual_seed(seed)
        try:
            adapted = peft.get_peft_model(policy.model, config)
        except ValueError as error:
            raise ConfigError(f"lora_targets={targets!r}: {str(error).splitlines()[0]}") from error
    return LMPolicy(adapted, policy.tokenizer, policy.temperature)
