"""SAGE: answers whose reasoning stops where the model is sure of it, drawn beside plain ones into each group.

Chains of reasoning grow by a step at a time. Of each chain that is kept 2m continuations are drawn, and the m chains
are kept that are likeliest so far: by Phi, the mean log-probability of all their tokens. A chain whose reasoning ends
is an answer if it is among the first of all candidates by Phi, and is dropped if not; what follows the end is drawn
plainly. Nothing else of the method changes: rewards and losses are those of any group.

Source: SAGE-RL (2602.08354), from summaries and one independent implementation. Ours: where the budget of tokens ends
before there are enough answers, the likeliest chains that are left are taken as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from surefoot.core.base.errors import ConfigError
from surefoot.llm.policy import LMPolicy, Rollout


@dataclasses.dataclass(frozen=True)
class Sage:
    """Settings of the sampler."""

    answers: int = 2  # r, of each group
    width: int = 2  # m, chains that are kept
    tolerance: float = 1.0  # TR: round(TR 2m) candidates by Phi may end
    step: str = "\n\n"  # text that ends a step
    end: str = "</think>"  # text that ends the reasoning

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: names the setting.
        """
        if self.width < 1 or not self.tolerance > 0:
            raise ConfigError("method.sage_width and method.sage_tolerance must be above 0")
        if not self.step or not self.end:
            raise ConfigError("method.step_mark and method.think_mark must have a text: where steps and reasoning end")


@dataclasses.dataclass
class Chain:
    """Reasoning so far."""

    ids: list[int]
    logs: list[float]
    finished: bool = False

    @property
    def confidence(self) -> float:
        """Phi, the mean log-probability of a token, in nats; 0 for none."""
        return sum(self.logs) / len(self.logs) if self.logs else 0.0


class SageSampler:
    """Draws answers from a policy by SAGE."""

    def __init__(self, policy: LMPolicy, settings: Sage) -> None:
        """Find the tokens at which steps end.

        Raises:
            ConfigError: no token of the policy's has the text that ends a step.
        """
        self._policy, self._settings = policy, settings
        texts = policy.tokenizer.batch_decode([[number] for number in range(len(policy.tokenizer))])
        marks = (settings.step, settings.end)
        self._stops = [number for number, text in enumerate(texts) if any(mark in text for mark in marks)]
        if not any(settings.step in texts[number] for number in self._stops):
            raise ConfigError(
                f"method.step_mark={settings.step!r}: no token of the model's has this text; name one that ends a step"
            )

    def generate(self, prompts: Sequence[Sequence[int]], new: int, seed: int, at_once: int = 256) -> Rollout:
        """`settings.answers` answers to each prompt, side by side, of at most `new` tokens each."""
        found = self._reason(prompts, new, seed, at_once)
        rows = [(prompt, chain) for prompt, chains in zip(prompts, found, strict=True) for chain in chains]
        open_rows = [row for row, (_, chain) in enumerate(rows) if not chain.finished and len(chain.ids) < new]
        for chains, drawn in self._draw([rows[row] for row in open_rows], 1, new, [seed, 1 << 30], at_once, False):
            chains.ids += drawn[0].ids
            chains.logs += drawn[0].logs
            chains.finished = drawn[0].finished
        return self._rollout(rows)

    def _reason(self, prompts: Sequence[Sequence[int]], new: int, seed: int, at_once: int) -> list[list[Chain]]:
        m, wanted = self._settings.width, self._settings.answers
        kept = [[Chain([], [])] for _ in prompts]
        done: list[list[Chain]] = [[] for _ in prompts]
        last: list[list[Chain]] = [[] for _ in prompts]
        for step in range(new):
            rows = [
                (prompt, chain)
                for n, prompt in enumerate(prompts)
                if len(done[n]) < wanted
                for chain in kept[n]
                if len(chain.ids) < new
            ]
            if not rows:
                break
            drawn = {id(chain): more for chain, more in self._draw(rows, 2 * m, new, [seed, step], at_once, True)}
            for n in range(len(prompts)):
                if len(done[n]) < wanted and any(id(chain) in drawn for chain in kept[n]):
                    grown = [
                        Chain(chain.ids + one.ids, chain.logs + one.logs, one.finished)
                        for chain in kept[n]
                        for one in drawn.get(id(chain), [])
                    ]
                    ended, kept[n] = choose(grown, [self._ends(one) for one in grown], self._settings)
                    done[n] += ended
                    last[n] = kept[n] or last[n] or sorted(grown, key=lambda one: -one.confidence)
        for n, chains in enumerate(done):
            spare = last[n] or [Chain([], [])]
            chains += [dataclasses.replace(spare[k % len(spare)], ids=list(spare[k % len(spare)].ids), logs=list(
                spare[k % len(spare)].logs)) for k in range(wanted - len(chains))]  # fmt: skip
        return [chains[:wanted] for chains in done]

    def _ends(self, chain: Chain) -> bool:
        return chain.finished or self._settings.end in self._policy.tokenizer.decode(chain.ids)

    def _draw(
        self,
        rows: Sequence[tuple[Sequence[int], Chain]],
        count: int,
        new: int,
        seed: Sequence[int],
        at_once: int,
        stop: bool,
    ) -> list[tuple[Chain, list[Chain]]]:
        """`count` continuations of each chain, to the end of a step or of the answer; chains of one length together."""
        found = list[tuple[Chain, list[Chain]]]()
        for length in sorted({len(chain.ids) for _, chain in rows}):
            part = [(prompt, chain) for prompt, chain in rows if len(chain.ids) == length]
            rollout = self._policy.generate(
                [[*prompt, *chain.ids] for prompt, chain in part],
                count,
                new - length,
                int(np.random.SeedSequence([*seed, length]).generate_state(1)[0]),
                at_once=at_once,
                stops=self._stops if stop else (),
            )
            lengths = rollout.completion_mask.sum(-1).long().tolist()
            each = [
                Chain(ids[:n].tolist(), logs[:n].tolist(), int(ids[n - 1]) in self._policy.ends)
                for ids, logs, n in zip(rollout.completion_ids, rollout.log_prob, lengths, strict=True)
            ]
            found += [(chain, each[k * count : (k + 1) * count]) for k, (_, chain) in enumerate(part)]
        return found

    def _rollout(self, rows: Sequence[tuple[Sequence[int], Chain]]) -> Rollout:
        policy, device = self._policy, self._policy.device
        width, longest = max(len(prompt) for prompt, _ in rows), max(len(chain.ids) for _, chain in rows)
        ids, tokens = torch.full((len(rows), width), policy.pad), torch.full((len(rows), longest), policy.pad)
        mask, kept, logs = (
            torch.zeros(len(rows), width),
            torch.zeros(len(rows), longest),
            torch.zeros(len(rows), longest),
        )
        for row, (prompt, chain) in enumerate(rows):
            ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
            tokens[row, : len(chain.ids)], kept[row, : len(chain.ids)] = torch.tensor(chain.ids), 1
            logs[row, : len(chain.ids)] = torch.tensor(chain.logs)
        finished = torch.tensor([chain.finished for _, chain in rows])
        ids, mask, tokens, kept, logs = (part.to(device) for part in (ids, mask, tokens, kept, logs))
        return Rollout(ids, mask, tokens, kept, logs, finished.to(device))


def choose(candidates: Sequence[Chain], ended: Sequence[bool], settings: Sage) -> tuple[list[Chain], list[Chain]]:
    """Those that are answers, and those that are kept; each the likeliest first.

    Args:
        candidates: all continuations of a step.
        ended: whether the reasoning of each has.
        settings: with the width m and the tolerance TR.
    """
    order = sorted(range(len(candidates)), key=lambda n: -candidates[n].confidence)
    first = set(order[: round(settings.tolerance * 2 * settings.width)])
    return (
        [candidates[n] for n in order if ended[n] and n in first],
        [candidates[n] for n in order if not ended[n]][: settings.width],
    )
