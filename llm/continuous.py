"""Sampling by transformers' continuous batching: an answer that ends makes room for the next, the cache is in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.llm.models import transformers_module

MEMORY = 0.1
"""Share of the free memory that the cache may take."""


def continuous_batch(policy: Any, prompts: Sequence[Sequence[int]], new: int) -> list[tuple[list[int], list[float]]]:
    """Tokens of an answer to each prompt, in the order of the prompts, and their log-probabilities.

    Args:
        policy: an `LMPolicy`.
        prompts: tokens of each.
        new: the most tokens of an answer.

    Raises:
        ConfigError: the installed transformers has no continuous batching that records log-probabilities, or not for
            this model.
    """
    transformers = transformers_module()
    if not hasattr(transformers, "ContinuousBatchingConfig"):
        raise ConfigError(
            f"transformers {transformers.__version__} has no continuous batching that records log-probabilities: "
            "leave out continuous=true, or install a later one"
        )
    settings = transformers.GenerationConfig(
        max_new_tokens=new,
        do_sample=True,
        temperature=policy.temperature,
        top_k=0,
        top_p=1.0,
        eos_token_id=policy.ends,
        pad_token_id=policy.pad,
    )
    batching = transformers.ContinuousBatchingConfig(return_logprobs=True, max_memory_percent=MEMORY)
    try:
        found = policy._inner.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=settings,
            continuous_batching_config=batching,
            warmup=False,
        )
    except Exception as error:  # of whatever the model lacks
        raise ConfigError(f"continuous batching can't sample from this model ({error}): leave it out") from error
    rows = []
    for row in range(len(prompts)):
        one = found.get(f"req_{row}")
        if one is None or one.error is not None or len(one.logprobs) != len(one.generated_tokens):
            why = "it was not answered" if one is None else one.error or "log-probabilities are missing"
            raise SurefootError(f"continuous batching failed at prompt {row}: {why}")
        rows.append((list(one.generated_tokens), list(one.logprobs)))
    return rows
