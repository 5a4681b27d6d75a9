"""Answers of several turns: what the policy writes goes to an environment, whose reply it reads and is not trained on.

A turn ends with the end token. Tool calls and replies are text, and an environment is a function of the text so far,
so that nothing of it has to be kept where a run is resumed.

Source: Chen et al., "Reinforcement Learning for Long-Horizon Interactive LLM Agents" (LOOP, 2502.01600), in which a
whole rollout has one return and only the policy's own tokens count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from surefoot.core.base.errors import DataError
from surefoot.llm.policy import OWN, LMPolicy, Rollout, joined
from surefoot.llm.prompts import Prompt

Environment = Callable[..., Sequence[str | None]]
"""`environment(prompts, completions, **columns)`: what it writes behind each text so far, or None where it is over."""


class Turns:
    """Sampling with an environment."""

    def __init__(self, environment: Environment, most: int) -> None:
        """Take an environment, and the most turns of the policy in one answer."""
        self.environment, self.most = environment, most

    def generate(
        self,
        policy: LMPolicy,
        prompts: Sequence[Prompt],
        encoded: Sequence[Sequence[int]],
        count: int,
        new: int,
        seed: int,
        *,
        greedy: bool = False,
        at_once: int = 256,
    ) -> Rollout:
        """Sample `count` answers to each prompt, turn by turn.

        An answer ends where the environment has nothing to say, where a turn is cut off by `new`, after `most` turns,
        or where the model's context has no room for another turn.

        Args:
            policy: that writes.
            prompts: N of them, for their columns.
            encoded: their tokens.
            count: answers to each.
            new: the most tokens of a turn.
            seed: of the sampling.
            greedy: the likeliest tokens instead.
            at_once: rows that are generated together.

        Returns:
            N * count rows; `kept[OWN]` (B, C) is 1 at the policy's tokens, its end tokens included, 0 at replies.

        Raises:
            DataError: the environment raised, or gave something else than a text or None for each answer.
        """
        rows = [prompt for prompt in prompts for _ in range(count)]
        starts = [list(ids) for ids in encoded for _ in range(count)]
        stated, own, logs = ([list[float]() for _ in rows] for _ in range(3))
        finished, going = [False] * len(rows), list(range(len(rows)))
        for turn in range(self.most):
            turn_seed = int(np.random.SeedSequence([seed, turn]).generate_state(1)[0]) if turn else seed
            given = [starts[row] + [int(token) for token in stated[row]] for row in going]
            part = policy.generate(given, 1, new, turn_seed, greedy=greedy, at_once=at_once)
            lengths = part.completion_mask.sum(-1).long().tolist()
            for place, row in enumerate(going):
                stated[row] += part.completion_ids[place, : lengths[place]].tolist()
                logs[row] += part.log_prob[place, : lengths[place]].tolist()
                own[row] += [1.0] * lengths[place]
                finished[row] = bool(part.finished[place])
            going = [row for row in going if finished[row]]
            if turn + 1 == self.most or not going:
                break
            texts = [policy.tokenizer.decode([int(t) for t in stated[row]], skip_special_tokens=True) for row in going]
            replies, before, going = self._ask([rows[row] for row in going], texts), going, []
            for row, reply in zip(before, replies, strict=True):
                ids = [] if reply is None else policy.tokenizer(reply, add_special_tokens=False)["input_ids"]
                length = len(starts[row]) + len(stated[row]) + len(ids) + new
                if reply is not None and (policy.context is None or length <= policy.context):
                    stated[row], own[row] = stated[row] + list(ids), own[row] + [0.0] * len(ids)
                    logs[row] = logs[row] + [0.0] * len(ids)
                    going.append(row)
            if not going:
                break
        parts = [_row(policy, *row) for row in zip(starts, stated, own, logs, finished, strict=True)]
        return joined(parts, policy.pad)

    def _ask(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[str | None]:
        name = getattr(self.environment, "__name__", "the environment")
        columns = {column: [prompt.columns.get(column) for prompt in prompts] for column in prompts[0].columns}
        try:
            found = list(
                self.environment(prompts=[prompt.text for prompt in prompts], completions=list(texts), **columns)
            )
        except Exception as error:
            raise DataError(f"environment {name} raised {type(error).__name__}: {error}") from error
        if len(found) != len(texts):
            raise DataError(f"environment {name} gave {len(found)} replies to {len(texts)} answers")
        for row, one in enumerate(found):
            if one is not None and not isinstance(one, str):
                raise DataError(f"environment {name} gave {one!r} to answer {row}; a reply is a text, or None")
        return found


def _row(
    policy: LMPolicy,
    start: Sequence[int],
    stated: Sequence[float],
    own: Sequence[float],
    logs: Sequence[float],
    finished: bool,
) -> Rollout:
    device = policy.device
    ids, tokens = (torch.tensor([list(map(int, part))], device=device) for part in (start, stated))
    kept, log_prob = (torch.tensor([part], dtype=torch.float32, device=device) for part in (own, logs))
    done = torch.tensor([finished], device=device)
    read = torch.ones_like(ids, dtype=torch.float32)
    return Rollout(ids, read, tokens, torch.ones_like(kept), log_prob, done, {OWN: kept})
