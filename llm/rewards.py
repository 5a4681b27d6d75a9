"""Reward functions, by the convention of TRL: the same function runs there.

`reward(prompts, completions, completion_ids, **columns) -> list of float or None`, one for each answer; None is an
answer that can't be scored. Answers to a prompt that is a list of messages are lists of one message.

A reward with a true attribute `reads_policy` also gets `policy=`, a `PolicyReader`. One that takes long may give a
`Late` in place of its list: the loop continues with what needs no rewards, and collects them before its update; `later`
makes such a one of any function.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, DataError, SurefootError
from surefoot.llm.losses.reward_shaping import gated_reward
from surefoot.llm.prompts import Prompt
from surefoot.llm.reader import PolicyReader


@runtime_checkable
class Late(Protocol):
    """Rewards that are on their way."""

    def collect(self) -> Sequence[float | None]:
        """Wait for them; one for each answer."""
        ...


@runtime_checkable
class Learning(Protocol):
    """A reward that is trained beside the policy, and whose state goes into the run's checkpoint."""

    def learn(self, prompts: Sequence[Prompt], completions: Sequence[str], group: int) -> dict[str, float]:
        """From a step's answers, after the policy's update; metrics. `group` of them in a row are to one prompt."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All that decides how it continues."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from it."""
        ...


RewardFunction = Callable[..., Sequence[float | None] | Late]


def text_of(completion: Any) -> str:
    """Of an answer that is a text, or a list of one message."""
    return str(completion if isinstance(completion, str) else completion[-1]["content"])


def scores(
    reward: RewardFunction,
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    policy: PolicyReader | None = None,
) -> Tensor:
    """Rewards of answers, waited for: (B,) float32, NaN where the function gave None. Arguments as of `ask`."""
    return ask(reward, prompts, completions, completion_ids, policy)()


def ask(
    reward: RewardFunction,
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    policy: PolicyReader | None = None,
) -> Asked:
    """Call a reward; what it gives is checked when it is called for, after which late rewards have been waited for.

    Args:
        reward: the function.
        prompts: of each answer.
        completions: texts without special tokens.
        completion_ids: tokens, the end token left out.
        policy: for rewards that read it.

    Raises:
        DataError: the function raised; and where the rewards are called for, it raised, gave another number of
            rewards, or one that is not a finite number.
    """
    name, given = getattr(reward, "__name__", "the reward"), _as_asked(prompts, completions)
    columns = {column: [prompt.columns.get(column) for prompt in prompts] for column in prompts[0].columns}
    more: dict[str, Any] = {"policy": policy} if getattr(reward, "reads_policy", False) else {}
    for column in more.keys() & columns.keys():
        raise DataError(f"the prompts have a column {column!r}, which {name} gets from the loop: rename the column")
    try:
        found = reward(
            prompts=[prompt.text for prompt in prompts],
            completions=given,
            completion_ids=[list(ids) for ids in completion_ids],
            **columns,
            **more,
        )
        return Asked(name, found if isinstance(found, Late) else list(found), completions)
    except SurefootError:
        raise
    except Exception as error:
        given_by = f"; the prompts have the columns {sorted(columns)}" if isinstance(error, TypeError) else ""
        raise DataError(f"reward function {name} raised {type(error).__name__}: {error}{given_by}") from error


class Asked:
    """Rewards that were asked for: calling it gives them, (B,) float32."""

    def __init__(self, name: str, given: Late | list[Any], completions: Sequence[str]) -> None:
        self._name, self._given, self._completions = name, given, completions

    @property
    def late(self) -> bool:
        """Whether they are still on their way."""
        return isinstance(self._given, Late)

    def __call__(self) -> Tensor:
        """Wait for them, and check them; errors as of `ask`."""
        found = self._given
        if isinstance(found, Late):
            try:
                found = list(found.collect())
            except SurefootError:
                raise
            except Exception as error:
                raise DataError(f"reward function {self._name} raised {type(error).__name__}: {error}") from error
        return _checked(self._name, found, self._completions)


def later(reward: RewardFunction, workers: int = 1) -> RewardFunction:
    """A reward that runs in a thread beside the loop: for one that waits for a judge, a sandbox or a service.

    Args:
        reward: a function by the convention above, that need not be late itself.
        workers: threads; batches that are scored at the same time.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="reward")

    class OnItsWay:
        def __init__(self, given: dict[str, Any]) -> None:
            self._future = pool.submit(reward, **given)

        def collect(self) -> Sequence[float | None]:
            found = self._future.result()
            return found.collect() if isinstance(found, Late) else found

    def starts(**given: Any) -> Late:
        return OnItsWay(given)

    starts.__name__ = getattr(reward, "__name__", "the reward")
    starts.reads_policy = getattr(reward, "reads_policy", False)  # type: ignore[attr-defined]
    return starts


class Weighted:
    """A weighted sum of several rewards; where one gives None, of the others, and None where all do."""

    def __init__(self, parts: Sequence[RewardFunction], shares: Sequence[float], gate: float | None = None) -> None:
        """Put them together.

        Args:
            parts: by the convention above.
            shares: the weight of each; may be negative.
            gate: the first counts in any case, and the others where it is this or more, before its weight (G-RA).

        Raises:
            ConfigError: there is not a finite weight for each, or one is trained beside the policy.
        """
        if any(isinstance(part, Learning) for part in parts):
            raise ConfigError("a reward that learns beside the policy stands alone: it can't be one of a sum")
        if len(parts) != len(shares) or not all(math.isfinite(share) for share in shares):
            raise ConfigError(f"reward_shares={list(shares)} must be {len(parts)} numbers, one for each reward")
        self.shares, self.gate = list(shares), gate
        self.parts: dict[str, RewardFunction] = {}
        for part in parts:
            name = str(getattr(part, "__name__", type(part).__name__)).replace(" ", "_")
            self.parts[name if name not in self.parts else f"{name}_{len(self.parts) + 1}"] = part
        self.reads_policy = any(getattr(part, "reads_policy", False) for part in parts)
        self.means: dict[str, float] = {}
        """Of the last answers, before they are weighed."""
        self.__name__ = "+".join(self.parts)

    def __call__(self, completions: Sequence[Any], **given: Any) -> Sequence[float | None] | Late:
        """Ask all; late where one of them is."""
        policy = given.pop("policy", None)
        asked = {}
        for name, part in self.parts.items():
            more = {"policy": policy} if getattr(part, "reads_policy", False) else {}
            found = part(completions=completions, **given, **more)
            asked[name] = Asked(name, found if isinstance(found, Late) else list(found), completions)
        return _Sum(self, asked) if any(one.late for one in asked.values()) else self._sum(asked)

    def _sum(self, asked: Mapping[str, Asked]) -> list[float | None]:
        columns = {name: one() for name, one in asked.items()}
        self.means = {name: float(one.nanmean()) for name, one in columns.items() if not one.isnan().all()}
        table = torch.stack(list(columns.values())).double()
        weighed = table * torch.tensor(self.shares, dtype=torch.float64).unsqueeze(1)
        if self.gate is None:
            total = weighed.nansum(0)
        else:  # by the first before its weight; where that can't score the gate is closed
            first = table[0].nan_to_num(nan=-torch.inf)
            dense = gated_reward(first, weighed[1:].nan_to_num(nan=0.0).T, self.gate) - first
            total = weighed[0].nan_to_num(nan=0.0) + dense.nan_to_num(nan=0.0)
        none = table.isnan().all(0).tolist()
        return [None if lacking else value for value, lacking in zip(total.tolist(), none, strict=True)]


class _Sum:
    """On its way."""

    def __init__(self, whole: Weighted, asked: Mapping[str, Asked]) -> None:
        self._whole, self._asked = whole, asked

    def collect(self) -> Sequence[float | None]:
        return self._whole._sum(self._asked)


def _checked(name: str, found: list[Any], completions: Sequence[str]) -> Tensor:
    if len(found) != len(completions):
        raise DataError(f"reward function {name} gave {len(found)} rewards for {len(completions)} answers")
    for row, value in enumerate(found):
        if value is None:
            continue
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise DataError(f"reward function {name} gave {value!r} for answer {row}, which is no number") from error
        if not math.isfinite(number):
            raise DataError(
                f"reward function {name} gave {number} for the answer {completions[row]!r}; give None where an answer "
                "can't be scored"
            )
        found[row] = number
    return torch.tensor([math.nan if value is None else value for value in found], dtype=torch.float32)


def _as_asked(prompts: Sequence[Prompt], completions: Sequence[str]) -> list[Any]:
    """Answers as rewards get them: texts, or lists of one message where the prompt is one of messages."""
    return [
        [{"role": "assistant", "content": text}] if isinstance(prompt.text, list) else text
        for prompt, text in zip(prompts, completions, strict=True)
    ]


def step_scores(
    reward: Any,
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    mask: Tensor,
) -> tuple[Tensor, Tensor]:
    """Rewards of steps and where those end: (B, C) float32 each.

    Args:
        reward: has `step_rewards`, which is called as a reward function is, and gives for each answer a dict: place of
            a step's last token -> reward; the place of the end token is the answer's length.
        prompts: of each answer.
        completions: texts without special tokens.
        completion_ids: tokens, the end token left out.
        mask: (B, C). A step that would end after an answer that was cut off ends with its last token.

    Raises:
        DataError: the function raised, or gave something else, or nothing for an answer.
    """
    columns = {column: [prompt.columns.get(column) for prompt in prompts] for column in prompts[0].columns}
    texts, answers = [prompt.text for prompt in prompts], _as_asked(prompts, completions)
    try:
        given = list(reward.step_rewards(prompts=texts, completions=answers, completion_ids=completion_ids, **columns))
    except Exception as error:
        raise DataError(f"step_rewards raised {type(error).__name__}: {error}") from error
    if len(given) != len(completions):
        raise DataError(f"step_rewards gave rewards of {len(given)} answers, and there are {len(completions)}")
    found, ends = torch.zeros(mask.shape), torch.zeros(mask.shape)
    for row, (steps, length) in enumerate(zip(given, mask.sum(-1).long().tolist(), strict=True)):
        if not isinstance(steps, Mapping) or not steps:
            raise DataError(
                f"step_rewards gave {steps!r}, no step of answer {row}; an answer has one or more, as a dict: place of "
                "a step's last token -> reward"
            )
        for place, value in steps.items():
            known = isinstance(place, numbers.Integral) and 0 <= int(place) <= len(completion_ids[row])
            if not known or not _finite(value):
                raise DataError(
                    f"step_rewards gave {value!r} at place {place!r} of answer {row}, which has "
                    f"{len(completion_ids[row])} tokens; finite rewards at places from 0 to that are needed"
                )
            last = min(int(place), length - 1)
            found[row, last], ends[row, last] = float(value), 1
    return found, ends


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:  # None, text
        return False


def pairwise(judge: Callable[[Any, Any, Any], bool], group: int) -> RewardFunction:
    """A reward for `method=brpo` out of a judge of two answers: 1 where an answer beats its group's first, else -1.

    It has to win in both orders. The first itself, which the others are compared with, gets 0.

    Args:
        judge: (prompt, first, second) -> whether the first is better.
        group: answers to each prompt, as in the loop's settings.

    Source: Jia et al., "Writing-Zero" (BRPO), from summaries of the paper.
    """

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        found = []
        for row, (prompt, answer) in enumerate(zip(prompts, completions, strict=True)):
            other = completions[row // group * group]
            better = row % group != 0 and judge(prompt, answer, other) and not judge(prompt, other, answer)
            found.append(0.0 if row % group == 0 else 1.0 if better else -1.0)
        return found

    return reward
