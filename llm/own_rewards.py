"""Rewards that belong to a method and read the policy: `method.reads` names one, and the loop adds it.

`probability` is RLPR's, `consistency` GRPO-CARE's, `diversity` DSDR's, `choice` URPO's and `demonstration` GRPO-S's.
Where an answer stands in a completion `method.answer_mark` tells: it begins behind the mark's first occurrence.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.llm.losses.diversity import diversity_weights, embedding_diversity, formula_diversity
from surefoot.llm.losses.reward_shaping import consistency_bonus, difficulty_scales, probability_reward
from surefoot.llm.prompts import Prompt
from surefoot.llm.reader import PolicyReader
from surefoot.llm.rewards import RewardFunction, scores

ANSWER, KIND, DEMONSTRATION = "answer", "kind", "demonstration"
"""Columns: of the reference answer, of what a prompt is to URPO, and of the demonstrated answer."""
KINDS = ("known", "pair", "open")
"""A prompt with a known answer; a pair of answers of which the better is to be named; one that the model judges."""
RIGHT = 1.0
"""A reward from which on an answer is right."""
FORMULA = re.compile(r"\$+([^$]+)\$+|\\\((.+?)\\\)|\\\[(.+?)\\\]|([^\s=$]+(?:\s*[-+*/^]\s*[^\s=$]+)*\s*=\s*[^\s=$]+)")
"""What counts as a formula: between dollars or TeX's brackets, or an equation."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """What is scored: B answers, `group` in a row to one prompt."""

    prompts: Sequence[Prompt]
    """Of each answer."""
    prompt_ids: Sequence[list[int]]
    """Tokens of each answer's prompt, without padding."""
    completion_ids: Sequence[list[int]]
    """Tokens of each, without an end."""
    texts: Sequence[str]
    returns: Tensor | None
    """(B,), what the reward function gave; None where there is none."""
    group: int
    reward: RewardFunction | None = None
    """What gave them."""


Found = tuple[Tensor, dict[str, Tensor]]
"""Returns (B,), and what else training reads of each answer: `entropy_weights`, `scales` (B,)."""


def answer_begins(reader: PolicyReader, ids: Sequence[int], mark: str) -> int | None:
    """The number of tokens up to the mark's end, None where it does not occur; without a mark, all of them."""
    if not mark:
        return len(ids)
    text = ""
    for place, piece in enumerate(reader.pieces(ids)):
        text += piece
        if mark in text:
            return place + 1
    return None


def _probability(method: Any, reader: PolicyReader, given: Answers) -> Found:
    """RLPR: how much likelier the reference answer is with the reasoning than without."""
    references = reader.tokens([str(prompt.columns[ANSWER]) for prompt in given.prompts])
    begins = [answer_begins(reader, ids, method.answer_mark) for ids in given.completion_ids]
    behind = [
        prompt + ids[: begin or 0]
        for prompt, ids, begin in zip(given.prompt_ids, given.completion_ids, begins, strict=True)
    ]
    thought, mask = reader.log_probs(behind, references)
    mark, firsts = reader.tokens([method.answer_mark])[0], range(0, len(behind), given.group)
    alone, _ = reader.log_probs([given.prompt_ids[n] + mark for n in firsts], [references[n] for n in firsts])
    alone = alone.repeat_interleave(given.group, 0)
    form = None if given.returns is None or not method.form_share else given.returns.cpu()
    found = probability_reward(thought, alone, mask * _column(begins), form, method.form_share)
    return found, {}


def _column(begins: Sequence[int | None]) -> Tensor:
    return torch.tensor([[float(begin is not None)] for begin in begins])


def _consistency(method: Any, reader: PolicyReader, given: Answers) -> Found:
    """GRPO-CARE: a bonus for right answers that a slow copy finds likely behind their reasoning."""
    assert given.returns is not None
    begins = [answer_begins(reader, ids, method.answer_mark) for ids in given.completion_ids]
    rows = list(zip(given.prompt_ids, given.completion_ids, begins, strict=True))
    stated = [[] if begin is None else ids[begin:] for _, ids, begin in rows]
    logs, mask = reader.log_probs([prompt + ids[: begin or 0] for prompt, ids, begin in rows], stated, slow=True)
    has_one = torch.tensor([float(bool(one)) for one in stated])
    accuracy = given.returns.cpu()
    bonus = consistency_bonus(accuracy.nan_to_num(nan=0.0) * has_one, logs, mask, given.group)
    return accuracy + bonus, {}


def _diversity(method: Any, reader: PolicyReader, given: Answers) -> Found:
    """DSDR: a bonus for right answers that differ from their group's, and weights of their entropy."""
    assert given.returns is not None
    returns, group = given.returns.cpu(), given.group
    meaning = embedding_diversity(reader.embeddings(given.completion_ids, slow=True), group)
    different = (meaning + formula_diversity([formulas(text) for text in given.texts], group)) / 2
    right = returns >= RIGHT
    weights = diversity_weights(different, right, group)
    return returns + method.diversity_bonus * torch.where(right, different, 0.0), {"entropy_weights": group * weights}


def formulas(text: str) -> frozenset[str]:
    """The formulas of a text, without spaces."""
    return frozenset("".join("".join(found).split()) for found in FORMULA.findall(text))


def _choice(method: Any, reader: PolicyReader, given: Answers) -> Found:
    """URPO: answers to open prompts are compared by the model itself, with the next one of their group, in both orders.

    The share of the two orders in which it names the answer is its reward.
    """
    assert given.returns is not None
    returns, asked, rows = given.returns.cpu().clone(), list[Any](), list[int]()
    for row, (prompt, text) in enumerate(zip(given.prompts, given.texts, strict=True)):
        if prompt.columns[KIND] == "open":
            first = row // given.group * given.group
            other = given.texts[first + (row - first + 1) % given.group]
            asked += [verdict_prompt(method.judge, prompt.text, *pair) for pair in ((text, other), (other, text))]
            rows.append(row)
    try:
        stated = [verdict(reply) for reply in reader.replies(asked, method.verdict_tokens)] if asked else []
    except ConfigError as error:
        raise ConfigError(
            f"a question for the better of two answers (method.judge, method.verdict_tokens): {error}"
        ) from error
    for place, row in enumerate(rows):
        returns[row] = ((stated[2 * place] == "1") + (stated[2 * place + 1] == "2")) / 2
    return returns, {}


def _demonstration(method: Any, reader: PolicyReader, given: Answers) -> Found:
    """GRPO-S: advantages are scaled by how little an answer is like the demonstration, and by the gap in reward."""
    assert given.returns is not None
    assert given.reward is not None
    firsts = [given.prompts[row] for row in range(0, len(given.prompts), given.group)]
    texts = [str(prompt.columns[DEMONSTRATION]) for prompt in firsts]
    ids = reader.tokens(texts)
    shown = scores(given.reward, firsts, texts, ids, reader).repeat_interleave(given.group)
    apart = torch.nn.functional.cosine_similarity(
        reader.embeddings(given.completion_ids, slow=True),
        reader.embeddings(ids, slow=True).repeat_interleave(given.group, 0),
    )
    returns = given.returns.cpu()
    return returns, {"scales": difficulty_scales(apart, shown - returns, method.gap_limit)}


def verdict_prompt(template: str, prompt: str | list[dict[str, str]], first: str, second: str) -> Any:
    """What asks for the better of two answers: a text, or a message where the prompt is one."""
    question = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    stated = {"prompt": question, "first": first, "second": second}
    text = re.sub(r"\{(prompt|first|second)\}", lambda found: stated[found[1]], template)
    return text if isinstance(prompt, str) else [{"role": "user", "content": text}]


def verdict(reply: str) -> str | None:
    """The first of 1 and 2 that a reply names."""
    found = re.search("[12]", reply)
    return None if found is None else found.group()


OWN: dict[str, Callable[[Any, PolicyReader, Answers], Found] | None] = {
    "none": None,
    "probability": _probability,
    "consistency": _consistency,
    "diversity": _diversity,
    "choice": _choice,
    "demonstration": _demonstration,
}
"""`method.reads` -> (method, reader, answers) -> returns, and what training reads of each answer."""
SLOW = ("consistency", "diversity", "demonstration")
"""Those that read a slow copy: the first one that follows, the others one that stays as it began."""
WITHOUT = ("probability",)
"""Those that need no reward function."""


def check_prompts(method: Any, prompts: Sequence[Prompt], has_reward: bool) -> None:
    """Refuse prompts that lack what a method's own reward reads.

    Raises:
        ConfigError: names the prompt and the column, or what else is missing.
    """
    reads = method.reads
    if not has_reward and reads not in WITHOUT:
        raise ConfigError(f"{method.title or 'this method'} learns from a reward: give reward=, as my_rewards:exact")
    if reads == "consistency" and not method.answer_mark:
        raise ConfigError(
            "method.reads=consistency needs the text that an answer follows: method.answer_mark='<answer>'"
        )
    columns = {"probability": (ANSWER, None), "choice": (KIND, KINDS), "demonstration": (DEMONSTRATION, None)}
    column, kinds = columns.get(reads, ("", None))
    for number, prompt in enumerate(prompts):
        value = prompt.columns.get(column) if column else None
        if column and (value is None or value == ""):
            raise ConfigError(f"prompt {number} has no column {column!r}, which {method.title} reads (docs/llm.md)")
        if kinds is not None and value not in kinds:
            raise ConfigError(f"prompt {number} has {column}={value!r}; {method.title} knows {', '.join(kinds)}")
