"""Supervised training on pairs of prompt and answer: where reinforcement begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from surefoot.core.base.errors import ConfigError, DivergenceError
from surefoot.core.losses.masked import masked_mean
from surefoot.llm.policy import LMPolicy, Rollout


def answered(policy: LMPolicy, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Rollout:
    """Given answers as a `Rollout`; each is followed by the end token. Its log-probabilities are 0.

    Args:
        policy: for its padding, end and device.
        prompts: tokens of each.
        answers: tokens of each, without an end.
    """
    ended = [[*answer, policy.tokenizer.eos_token_id] for answer in answers]
    width, longest = max(map(len, prompts)), max(map(len, ended))
    ids, tokens = torch.full((len(ended), width), policy.pad), torch.full((len(ended), longest), policy.pad)
    mask, kept = torch.zeros(len(ended), width), torch.zeros(len(ended), longest)
    for row, (prompt, answer) in enumerate(zip(prompts, ended, strict=True)):
        ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
        tokens[row, : len(answer)], kept[row, : len(answer)] = torch.tensor(answer), 1
    device, finished = policy.device, torch.ones(len(ended), dtype=torch.bool)
    ids, mask, tokens, kept = (part.to(device) for part in (ids, mask, tokens, kept))
    return Rollout(ids, mask, tokens, kept, torch.zeros_like(kept), finished.to(device))


def supervise(
    policy: LMPolicy,
    pairs: Sequence[tuple[str, str]],
    *,
    steps: int,
    rows: int = 128,
    learning_rate: float = 1e-3,
    max_gradient_norm: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> None:
    """Train a policy in place on the answers' tokens, end token included.

    Args:
        policy: is changed.
        pairs: prompt and answer.
        steps: of AdamW without weight decay, its learning rate falling linearly to 0 in the last fifth.
        rows: of each batch.
        learning_rate: of AdamW.
        max_gradient_norm: gradients longer than this are shortened.
        seed: of the order of rows.
        progress: called with the step and the loss, every hundred steps.

    Raises:
        ConfigError: there are no pairs, or one is longer than the model's context; its row is named.
        DivergenceError: the loss stopped being finite.
    """
    if not pairs:
        raise ConfigError("there are no pairs of prompt and answer to learn from")
    prompts = policy.encode([prompt for prompt, _ in pairs])
    answers = [policy.tokenizer(answer, add_special_tokens=False)["input_ids"] for _, answer in pairs]
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        if policy.context is not None and len(prompt) + len(answer) >= policy.context:
            raise ConfigError(
                f"pair {row} has a prompt of {len(prompt)} tokens and an answer of {len(answer)} with its end, more "
                f"than the model's context of {policy.context}: shorten them, or take a model with a longer one"
            )
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    random = np.random.default_rng(seed)
    for step in range(1, steps + 1):
        adam.param_groups[0]["lr"] = learning_rate * min(1.0, 5 * (steps - step + 1) / steps)
        chosen = random.integers(len(pairs), size=rows)
        batch = answered(policy, [prompts[n] for n in chosen], [answers[n] for n in chosen])
        log_prob, _ = policy.log_probs(batch)
        loss = -masked_mean(log_prob, batch.completion_mask)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, max_gradient_norm)
        adam.step()
        if step % 100 == 0 or step == steps:
            value = float(loss.detach())
            if not np.isfinite(value):
                raise DivergenceError(f"step {step}: the loss is {value}; lower learning_rate")
            if progress is not None:
                progress(step, value)
