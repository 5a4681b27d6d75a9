"""The two tasks: what is drawn is of their form, and rewards know right from wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from surefoot.core.losses import policy_gradient as pg
from surefoot.llm import method
from surefoot.llm.tasks import TASKS, held_out, shuffled, value


@pytest.mark.parametrize(
    ("text", "result"),
    [("3*4-5", 7), ("9", 9), ("1+2*3-4", 3), ("2-3*4", -10), ("1+", None), ("", None), ("1/2", None), ("+12", None)],
)
def test_expressions_come_to_their_value(text: str, result: int | None) -> None:
    assert value(text) == result
    if result is not None:
        assert result == eval(text)


@pytest.mark.parametrize("name", TASKS)
def test_examples_fit_and_are_held_out_by_their_prompt(name: str) -> None:
    task = TASKS[name]
    found = task.examples(np.random.default_rng(0), 300, True)
    columns = {key: [one[1][key] for one in found] for key in found[0][1]}
    rewards = task.reward(prompts=[one[0] for one in found], completions=[one[2] for one in found], **columns)
    assert all(held_out(prompt) for prompt, _, _ in found)
    assert all(len(answer) < task.new and len(prompt) + task.new <= task.context for prompt, _, answer in found)
    assert set("".join(prompt + answer for prompt, _, answer in found)) <= set(task.alphabet)
    assert 0.4 < np.mean([float(r or 0) for r in rewards]) < 0.65 if name == "addition" else min(rewards) == 1
    assert task.reward(completions=["9"] * 300, **columns) == [0.0] * 300


@pytest.mark.parametrize("name", sorted(TASKS))
def test_no_answer_of_the_right_length_is_penalised_for_it(name: str) -> None:
    task, share = TASKS[name], method("dapo_clip").overlong_share
    answers = task.examples(np.random.default_rng(0), 200, False)
    lengths = torch.tensor([float(len(answer) + 1) for _, _, answer in answers])  # with the end
    assert not pg.overlong_penalty(lengths, task.new, max(1, round(share * task.new))).any()


def test_countdown_wants_each_digit_once() -> None:
    reward = TASKS["countdown"].reward
    answers = ["4*8+1+2", "1+2+4*8", "4*8+3", "4*8+1+1", "4*8+1-2", "4*8+1+2+"]
    found = reward(completions=answers, digits=["1284"] * 6, target=[35] * 6)
    assert found == [1, 1, 0, 0, 0, 0]


def test_shuffled_rewards_are_the_same_ones_elsewhere() -> None:
    reward = shuffled(lambda completions, **_: [float(text) for text in completions], 0)
    found = reward(completions=[str(n) for n in range(50)])
    assert sorted(found) == list(range(50))  # type: ignore[type-var]
    assert found != list(range(50))
