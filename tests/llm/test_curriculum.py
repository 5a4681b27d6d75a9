"""Prompts that stay weak and get worse come more often, and a run with them is resumed bit for bit."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import ConfigError
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


def test_ranges() -> None:
    for share in (-0.1, 0.01, 1.1):
        with pytest.raises(ConfigError, match="weak_share"):
            TrainConfig(weak_share=share)
