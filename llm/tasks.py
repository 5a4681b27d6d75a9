"""Two tasks for a character model that trains in minutes on a CPU: addition after a noisy teacher, and countdown.

In both, supervised training ends where sampled answers are often wrong and one of eight is mostly right, which is what
rewards can improve on. Prompts are held out by a hash of the whole prompt: neither stage sees them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from surefoot.llm.characters import character_policy
from surefoot.llm.policy import LMPolicy
from surefoot.llm.prompts import Prompt
from surefoot.llm.rewards import Late, RewardFunction
from surefoot.llm.supervised import supervise

Random = np.random.Generator
Example = tuple[str, dict[str, Any], str]
"""Prompt, columns for the reward, and what a teacher answers."""


def held_out(prompt: str) -> bool:
    """A tenth of all prompts, whatever their digits."""
    return hashlib.sha256(prompt.encode()).digest()[0] % 10 == 0


@dataclasses.dataclass(frozen=True)
class Task:
    """Prompts without end, a teacher and a reward."""

    alphabet: str
    context: int
    """The most characters of prompt and answer."""
    new: int
    """The most characters that are sampled for an answer, its end included: more than the longest answer has, for
    DAPO's penalty begins where a fifth of them is left."""
    supervised: int
    """Steps of copying the teacher, 128 rows each."""
    draw: Callable[[Random], Example]
    reward: RewardFunction

    def examples(self, random: Random, count: int, held: bool) -> list[Example]:
        """Some whose prompt is held out, or is not."""
        found: list[Example] = []
        while len(found) < count:
            one = self.draw(random)
            if held_out(one[0]) == held:
                found.append(one)
        return found

    def prompts(self, random: Random, count: int, held: bool) -> list[Prompt]:
        """Prompts with the columns that the reward reads."""
        return [Prompt(text, columns) for text, columns, _ in self.examples(random, count, held)]

    def copied(self, seed: int, steps: int | None = None, say: Callable[[int, float], None] | None = None) -> LMPolicy:
        """A policy of 229,000 parameters that has copied the teacher for `steps` (default: `supervised`)."""
        steps = self.supervised if steps is None else steps
        policy = character_policy(self.alphabet, layers=2, width=96, heads=4, context=self.context, seed=seed)
        pairs = [
            (text, answer) for text, _, answer in self.examples(np.random.default_rng([seed, 1]), 128 * steps, False)
        ]
        supervise(policy, pairs, steps=steps, rows=128, learning_rate=1e-3, seed=seed, progress=say)
        return policy


# -- addition: "a+b=", the digits of the answer reversed; half of what the teacher says is wrong -----------------------


def _sum(random: Random) -> Example:
    a, b = (int(number) for number in random.integers(1000, size=2))
    total = stated = a + b
    if random.random() < 0.5:
        off = int(random.choice([1, -1, 10, -10, 100, -100]))
        stated += 1 if total < 100 else off
    return f"{a}+{b}=", {"total": str(total)[::-1]}, str(stated)[::-1]


def exact_sum(completions: list[str], total: list[str], **columns: Any) -> list[float]:
    """1 for the right sum."""
    return [float(text == right) for text, right in zip(completions, total, strict=True)]


# -- countdown: "1234:17=", an expression with + - * that uses each digit once and comes to the number ---------------


def value(expression: str) -> int | None:
    """Of digits with + - * between them, products first; None where it is not of that form."""
    if len(expression) % 2 == 0 or not all(sign in "0123456789" for sign in expression[::2]):
        return None
    total, factor = 0, int(expression[0])
    for operator, digit in zip(expression[1::2], expression[2::2], strict=True):
        if operator == "*":
            factor *= int(digit)
        elif operator in "+-":
            total, factor = total + factor, int(digit) if operator == "+" else -int(digit)
        else:
            return None
    return total + factor


def _countdown(random: Random) -> Example:
    while True:
        digits = random.integers(1, 10, size=4)
        operators, order = random.choice(["+", "-", "*"], size=3), random.permutation(digits)
        expression = "".join(f"{digit}{operator}" for digit, operator in zip(order, [*operators, ""], strict=True))
        target = value(expression)
        if target is not None and 0 <= target < 100:
            given = "".join(map(str, digits))
            return f"{given}:{target}=", {"digits": given, "target": target}, expression


def exact_countdown(completions: list[str], digits: list[str], target: list[int], **columns: Any) -> list[float]:
    """1 for an expression that uses each digit once and comes to the target."""
    rows = zip(completions, digits, target, strict=True)
    return [float(sorted(text[::2]) == sorted(given) and value(text) == wanted) for text, given, wanted in rows]


TASKS = {
    "addition": Task("0123456789+=", 16, 6, 900, _sum, exact_sum),
    "countdown": Task("0123456789:=+-*", 20, 10, 1200, _countdown, exact_countdown),
}
"""Name -> task. Addition is sharpened in a minute; countdown is a search that improves its greedy answers too."""


def shuffled(reward: RewardFunction, seed: int) -> RewardFunction:
    """The same rewards, each batch's given to the wrong answers: the control of which nothing can be learned."""
    random = np.random.default_rng(seed)

    def given(**columns: Any) -> list[float | None]:
        answer = reward(**columns)
        found = list(answer.collect() if isinstance(answer, Late) else answer)
        return [found[place] for place in random.permutation(len(found))]

    return given
