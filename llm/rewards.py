"""Reward functions, by the convention of TRL: the same function runs there.

`reward(prompts, completions, completion_ids, **columns) -> list of float or None`, one for each answer; None is an
answer that can't be scored. Answers to a prompt that is a list of messages are lists of one message.
"""

from __future__ import annotations

import importlib
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.errors import ConfigError, DataError
from surefoot.llm.prompts import Prompt

RewardFunction = Callable[..., Sequence[float | None]]


def text_of(completion: Any) -> str:
    """Of an answer that is a text, or a list of one message."""
    return str(completion if isinstance(completion, str) else completion[-1]["content"])


def load_reward(name: str, device: str = "cpu") -> RewardFunction:
    """The function that "module:function" names, the module being one that python finds, or a folder's reward model.

    Raises:
        CheckpointError: a reward model that is damaged.
        ConfigError: the name is not of that form, or there is no such module or function.
    """
    if (pathlib.Path(name).expanduser() / "config.json").is_file():
        from surefoot.llm.reward_models import load_reward_model

        return load_reward_model(name, device)
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise ConfigError(
            f"reward={name!r} is not of the form module:function, as in my_rewards:exact, nor a reward model's folder"
        )
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ConfigError(f"reward={name!r}: the module can't be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"reward={name!r}: the module {module} has no function {function!r}")
    reward: RewardFunction = found
    return reward


def scores(
    reward: RewardFunction,
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
) -> Tensor:
    """Rewards of answers: (B,) float32, NaN where the function gave None.

    Args:
        reward: the function.
        prompts: of each answer.
        completions: texts without special tokens.
        completion_ids: tokens, the end token left out.

    Raises:
        DataError: the function raised, gave another number of rewards, or one that is not a finite number.
    """
    name = getattr(reward, "__name__", "the reward")
    chats = [isinstance(prompt.text, list) for prompt in prompts]
    given: list[Any] = [
        [{"role": "assistant", "content": text}] if chat else text
        for text, chat in zip(completions, chats, strict=True)
    ]
    columns = {column: [prompt.columns.get(column) for prompt in prompts] for column in prompts[0].columns}
    try:
        found = list(
            reward(
                prompts=[prompt.text for prompt in prompts],
                completions=given,
                completion_ids=[list(ids) for ids in completion_ids],
                **columns,
            )
        )
    except Exception as error:
        raise DataError(f"reward function {name} raised {type(error).__name__}: {error}") from error
    if len(found) != len(given):
        raise DataError(f"reward function {name} gave {len(found)} rewards for {len(given)} answers")
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
