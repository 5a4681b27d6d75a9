"""Prompts from files, and reward functions by TRL's convention."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import pytest
import torch

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.llm import Prompt, load_reward, pass_at, read_prompts, scores
from surefoot.llm.feedback import Pair, read_feedback


def test_columns_of_a_prompt_come_to_the_reward_by_name() -> None:
    seen: dict[str, Any] = {}

    def reward(prompts: list, completions: list, completion_ids: list, **columns: Any) -> list[float | None]:
        seen.update(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
        return [1, None]

    chat = [{"role": "user", "content": "2+2"}]
    found = scores(reward, [Prompt("1+1=", {"answer": "2"}), Prompt(chat, {"answer": "4"})], ["2", "5"], [[7], [8]])
    assert found[0] == 1
    assert math.isnan(found[1])
    assert seen["prompts"] == ["1+1=", chat]
    assert seen["completions"] == ["2", [{"role": "assistant", "content": "5"}]]
    assert seen["completion_ids"] == [[7], [8]]
    assert seen["answer"] == ["2", "4"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda **_: [1.0], "gave 1 rewards for 2 answers"),
        (lambda **_: [1.0, math.nan], "gave nan for the answer 'b'; give None"),
        (lambda **_: [1.0, math.inf], "gave inf"),
        (lambda **_: [1.0, "high"], "gave 'high' for answer 1"),
        (lambda **_: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda **_: None, "raised TypeError"),
        (lambda answer, **_: [1.0, 1.0], r"'answer'; the prompts have the columns \['total'\]"),
    ],
)
def test_a_reward_that_can_not_be_used_is_one_sentence(given: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        scores(given, [Prompt("1", {"total": 1}), Prompt("2", {"total": 2})], ["a", "b"], [[1], [2]])


def test_rewards_are_named_as_module_and_function() -> None:
    assert load_reward("math:fsum") is math.fsum
    for name, said in (
        ("fsum", "not of the form module:function"),
        ("math:none", "has no function 'none'"),
        ("no_such_module:f", "can't be imported"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_reward(name)


def test_prompts_are_lines_of_json(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "1+1=", "answer": 2}\n\n{"prompt": "2+2=", "answer": 4}\n')
    assert read_prompts(path) == [Prompt("1+1=", {"answer": 2}), Prompt("2+2=", {"answer": 4})]
    for text, said in (
        ("{", "line 1: not readable as JSON"),
        ("[" * 100_000, "line 1: not readable as JSON"),
        ('{"prompt": "1"}\n{"prompt": ' + "1" * 5_000 + "}", "line 2: not readable as JSON"),
        ('{"question": "1"}', 'line 1: has no "prompt"'),
        ('{"prompt": 3}', "neither a text nor messages"),
        ('{"prompt": "1"}\n{"prompt": "1", "answer": 2}', "line 2: has the columns"),
        ("\n", "has no prompts"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            read_prompts(path)
    with pytest.raises(DataError, match="no such file"):
        read_prompts(tmp_path / "none.jsonl")


def test_feedback_of_any_json_is_read_or_refused_with_its_line(tmp_path: pathlib.Path) -> None:
    path, sound = tmp_path / "feedback.jsonl", '{"prompt": "1", "completions": ["a"], "labels": [1]}\n'
    for text in ("[" * 100_000, "[]", "3", '{"prompt": "1", "completions": ["a"], "labels": [1%s]}' % ("0" * 400)):
        path.write_text(sound + text)
        with pytest.raises(DataError, match=r"feedback\.jsonl, line 2: "):
            read_feedback(path)
    path.unlink()
    path.mkdir()
    for read in (read_feedback, read_prompts):
        with pytest.raises(DataError, match=r"feedback\.jsonl: can't be read: it is a folder"):
            read(path)


@pytest.mark.parametrize("letter", ["\u2028", "\u2029", "\x85"])
def test_texts_hold_any_letter_that_json_allows(letter: str, tmp_path: pathlib.Path) -> None:
    path, text = tmp_path / "lines.jsonl", f"one{letter}two"

    def write(**row: str) -> None:
        path.write_bytes(2 * (json.dumps(row, ensure_ascii=False) + "\r\n").encode())

    write(prompt=text, answer=text)
    assert read_prompts(path) == 2 * [Prompt(text, {"answer": text})]
    write(prompt=text, chosen=text, rejected="")
    assert read_feedback(path) == 2 * [Pair(text, text, "")]


def test_pass_at_k_is_the_share_of_choices_with_a_right_answer() -> None:
    assert pass_at(1, torch.tensor([0, 2, 8]), 8).tolist() == [0, 0.25, 1]
    assert pass_at(2, torch.tensor([1, 2]), 4).tolist() == [0.5, 1 - 1 / 6]
    assert pass_at(8, torch.tensor([0, 1]), 8).tolist() == [0, 1]
    with pytest.raises(ConfigError, match="needs at least 9"):
        pass_at(9, torch.tensor([0]), 8)
