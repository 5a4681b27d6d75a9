"""Prompts that stay weak and get worse come more often, and a run with them is resumed bit for bit."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.llm import LMPolicy, Loop, Prompt, TrainConfig, method, train
from surefoot.llm.characters import character_policy
from surefoot.llm.curriculum import Weakness
from surefoot.llm.supervised import Stopped

PROMPTS = [Prompt(f"{n}=") for n in range(8)]
CONFIG = TrainConfig(
    steps=6, prompts_per_step=4, group=4, max_new_tokens=2, learning_rate=1e-3, weak_share=0.5, checkpoint_every=3
)


def tiny() -> LMPolicy:
    return character_policy("0123456789=", layers=1, width=16, heads=2, context=12)


def sevens(completions: list[str], **columns: Any) -> list[float]:
    return [float("7" in text or "3" in text) for text in completions]


def test_weak_is_what_a_fitted_line_says() -> None:
    random, one, shares = np.random.default_rng(0), Weakness(60), list[np.ndarray]()
    for prompt in range(60):
        shares.append(random.integers(0, 5, size=random.integers(1, 6)) / 8)
        for share in shares[-1]:
            one.note(prompt, share)
    expected = [
        prompt
        for prompt, a in enumerate(shares)
        if len(a) > 1 and a.max() < 0.5 and np.polyfit(np.arange(len(a)), a, 1)[0] < -1e-9
    ]
    assert one.weak() == expected
    assert 5 < len(expected) < 55
    drawn = one.draw(4, [0])
    assert len(set(drawn)) == 4
    assert set(drawn) <= set(expected)
    assert sorted(one.draw(100, [1])) == expected


def test_a_batch_begins_with_weak_prompts_up_to_the_share() -> None:
    loop = Loop(tiny(), PROMPTS, sevens, method("dr_grpo"), CONFIG)
    assert loop.weakness is not None
    for prompt in (2, 5, 6):
        for share in (0.25, 0.0):
            loop.weakness.note(prompt, share)
    _, _, metrics = loop.collect()
    asked = [loop.prompts.index(prompt) for prompt in loop.answered[:: CONFIG.group]]
    assert set(asked[:2]) <= {2, 5, 6}
    assert loop.drawn == 2
    assert metrics["weak"] <= 3
    assert loop.weakness.sums[0].sum() == 6 + 4


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: pathlib.Path) -> None:
    whole, again, seen = tiny(), tiny(), list[int]()
    config = dataclasses.replace(CONFIG, steps=10)
    lines = train(whole, PROMPTS, sevens, method("dr_grpo"), config)
    assert max(line["weak"] for line in lines) > 0
    with pytest.raises(Stopped):
        train(
            tiny(), PROMPTS, sevens, method("dr_grpo"), config, tmp_path,
            progress=lambda _: seen.append(1), stopping=lambda: len(seen) == 7,
        )  # fmt: skip
    train(again, PROMPTS, sevens, method("dr_grpo"), config, tmp_path)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_new_problems_stand_in_for_weak_prompts_and_are_not_noted() -> None:
    prompts, asked = [Prompt(f"{n}=", {"answer": str(n)}) for n in range(8)], list[dict[str, Any]]()

    def like(**given: Any) -> list[dict[str, Any] | None]:
        asked.append(given)
        return [None if text == "5=" else {"prompt": "1" + text, "answer": "x"} for text in given["prompts"]]

    seen: list[tuple[str, str]] = []

    def reward(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        seen.extend(zip(prompts, answer, strict=True))
        return [float("7" in text) for text in completions]

    loop = Loop(tiny(), prompts, reward, method("dr_grpo"), CONFIG, write=like)
    assert loop.weakness is not None
    for prompt in (2, 5):
        for share in (0.25, 0.0):
            loop.weakness.note(prompt, share)
    _, _, metrics = loop.collect()
    assert sorted(asked[0]["prompts"]) == ["2=", "5="]
    assert sorted(asked[0]["answer"]) == ["2", "5"]
    texts = {str(prompt.text) for prompt in loop.answered[: 2 * CONFIG.group]}
    assert texts == {"12=", "5="}
    assert ("12=", "x") in seen
    assert metrics["written"] == 1
    assert loop.weakness.sums[0].sum() == 4 + 3  # the new one is not counted
    for wrong, said in (
        ([], "gave 0 problems for 2"),
        ([{"answer": "1"}] * 2, 'problem 0: has no "prompt"'),
        ([{"prompt": "1="}] * 2, "has the columns"),
        ([{"prompt": "1" * 12, "answer": "1"}] * 2, "context of 12"),
    ):
        loop = Loop(tiny(), prompts, reward, method("dr_grpo"), CONFIG, write=lambda wrong=wrong, **_: wrong)
        assert loop.weakness is not None
        for prompt in (2, 5):
            for share in (0.25, 0.0):
                loop.weakness.note(prompt, share)
        with pytest.raises((DataError, ConfigError), match=said):
            loop.collect()
    with pytest.raises(ConfigError, match="say their share of a batch"):
        Loop(tiny(), prompts, reward, method("dr_grpo"), dataclasses.replace(CONFIG, weak_share=0.0), write=like)


def test_problems_are_written_from_the_command_line_and_runs_are_resumed_bit_for_bit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tiny().save("tiny")
    pathlib.Path("prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"{n}="}) for n in range(8)))
    pathlib.Path("my_problems.py").write_text(
        "def sevens(completions, **columns):\n    return [float('7' in text) for text in completions]\n\n"
        "def like(prompts, seed, **columns):\n    return [{'prompt': str(seed % 9) + text} for text in prompts]\n"
    )
    given = ["llm", "train", "model=tiny", "prompts=prompts.jsonl", "reward=my_problems:sevens", "method=dr_grpo"]
    given += ["prompts_per_step=4", "group=4", "max_new_tokens=2", "weak_share=0.5", "checkpoint_every=4", "-q"]
    given += ["write=my_problems:like", "learning_rate=1e-3"]
    assert main([*given, "out=run", "steps=12"]) == 0
    lines = [json.loads(line)["values"] for line in pathlib.Path("run/metrics.jsonl").read_text().splitlines()]
    assert sum(line["written"] for line in lines) > 0
    whole = pathlib.Path("run/seeds/0/model/model.safetensors").read_bytes()
    kept, advance = list[bytes](), Loop.advance

    def stopped(self: Loop) -> dict[str, float]:
        if self.step == 9 and not kept:
            kept.append(b"")
            raise KeyboardInterrupt
        return advance(self)

    monkeypatch.setattr(Loop, "advance", stopped)
    assert main([*given, "out=part", "steps=12"]) != 0
    assert main(["llm", "train", "--resume", "part", "--trust", "-q"]) == 0
    assert pathlib.Path("part/seeds/0/model/model.safetensors").read_bytes() == whole
    capsys.readouterr()
    assert main([*given, "out=wrong", "steps=2", "weak_share=0"]) == 2
    assert "say their share of a batch" in capsys.readouterr().err
    assert not pathlib.Path("wrong").exists()


def test_ranges() -> None:
    for share in (-0.1, 0.01, 1.1):
        with pytest.raises(ConfigError, match="weak_share"):
            TrainConfig(weak_share=share)
