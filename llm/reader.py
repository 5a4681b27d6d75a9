"""What a reward may read of the policy whose answers it scores: probabilities, activations, and its own opinion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.masked import masked_mean
from surefoot.llm.policy import LMPolicy, positions
from surefoot.llm.supervised import answered


class PolicyReader:
    """The policy of now, and where the method keeps one a slow copy of it. A reward whose `reads_policy` is true gets
    one as `policy=`. Nothing has a gradient, and no weight and no random state changes.
    """

    def __init__(self, policy: LMPolicy, slow: LMPolicy | None = None, at_once: int = 256) -> None:
        """Take the policies.

        Args:
            policy: of now.
            slow: that stays behind; None for none.
            at_once: rows of a forward pass.
        """
        self._policy, self._slow, self._at_once = policy, slow, at_once

    def _of(self, slow: bool) -> LMPolicy:
        if slow and self._slow is None:
            raise ConfigError("this method keeps no slow copy of the policy that a reward could read")
        return self._slow if slow and self._slow is not None else self._policy

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Of answers, without an end."""
        return [list(self._policy.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]

    def text(self, ids: Sequence[int]) -> str:
        """Of tokens."""
        return str(self._policy.tokenizer.decode(list(ids), skip_special_tokens=True))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Of each token."""
        return list(self._policy.tokenizer.batch_decode([[number] for number in ids]))

    @torch.no_grad()
    def log_probs(self, prompts: Sequence[Any], answers: Sequence[Any], slow: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probabilities of answers' tokens, in nats, at the temperature of sampling.

        Args:
            prompts: B of them: texts, messages, or tokens.
            answers: B of them: texts, or tokens; no end token is put behind them.
            slow: of the slow copy.

        Returns:
            (B, U) float32 on the CPU, and (B, U) 1 at tokens; U is 0 where all answers are empty.

        Raises:
            ConfigError: prompt and answer are longer than the model's context, or there is no slow copy.
        """
        policy = self._of(slow)
        contexts = [self._encoded(prompt) for prompt in prompts]
        given = [answer if not isinstance(answer, str) else self.tokens([answer])[0] for answer in answers]
        for row, (context, answer) in enumerate(zip(contexts, given, strict=True)):
            if policy.context is not None and len(context) + len(answer) >= policy.context:
                raise ConfigError(
                    f"answer {row} has {len(answer)} tokens behind {len(context)}, more than the model's context of "
                    f"{policy.context} with an end: lower max_new_tokens, or shorten the reference answers"
                )
        width = max((len(answer) for answer in given), default=0)
        found, mask = torch.zeros(len(given), width), torch.zeros(len(given), width)
        for start in range(0, len(given), self._at_once):
            part = slice(start, start + self._at_once)
            logs, _ = policy.log_probs(answered(policy, contexts[part], given[part]))
            found[part, : logs.shape[1] - 1] = logs[:, : logs.shape[1] - 1].cpu()  # `answered` has an end more
        for row, answer in enumerate(given):
            mask[row, : len(answer)] = 1
        return torch.where(mask != 0, found, 0.0), mask

    def _encoded(self, prompt: Any) -> list[int]:
        tokens = isinstance(prompt, list) and all(isinstance(one, int) for one in prompt)
        return prompt if tokens else self._policy.encode([prompt])[0]

    @torch.no_grad()
    def embeddings(self, answers: Sequence[Sequence[int]], slow: bool = False) -> Tensor:
        """(B, width) float32 on the CPU: the mean of the last activations over an answer's tokens and its end."""
        policy, found = self._of(slow), list[Tensor]()
        for start in range(0, len(answers), self._at_once):
            rows = answered(policy, [[policy.tokenizer.eos_token_id]] * len(answers[start : start + self._at_once]),
                            answers[start : start + self._at_once])  # fmt: skip
            mask = torch.cat([rows.prompt_mask, rows.completion_mask], 1).long()
            ids = torch.cat([rows.prompt_ids, rows.completion_ids], 1)
            hidden = policy._inner.base_model(
                input_ids=ids, attention_mask=mask, position_ids=positions(mask), use_cache=False
            ).last_hidden_state[:, 1:]
            found.append(masked_mean(hidden.float(), rows.completion_mask.unsqueeze(-1), 1).cpu())
        return torch.cat(found)

    def replies(self, prompts: Sequence[Any], new: int) -> list[str]:
        """The likeliest answer of at most `new` tokens to each prompt (a text, or messages)."""
        policy, found = self._policy, list[str]()
        for start in range(0, len(prompts), self._at_once):
            encoded = policy.encode(prompts[start : start + self._at_once])
            found += policy.decode(policy.generate(encoded, 1, new, 0, greedy=True))
        return found
