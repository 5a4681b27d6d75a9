"""Adapters alone are trained, the reference is the model without them, and what is saved is one model."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
import torch

from surefoot.core.base.errors import ConfigError, MissingExtraError
from surefoot.llm import Prompt, TrainConfig, load_policy, method, train
from surefoot.llm.adapters import with_lora
from surefoot.llm.characters import character_policy
from surefoot.llm.loop import Loop
from surefoot.llm.policy import LMPolicy

PROMPTS = [Prompt(text) for text in ("1=", "23=", "4=", "567=")]
SMALL = TrainConfig(steps=4, prompts_per_step=4, group=4, max_new_tokens=4, learning_rate=1e-2, checkpoint_every=2)
needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="peft, the extra lora, is not installed"
)


def tiny(rotary: bool = False) -> LMPolicy:
    return character_policy("0123456789=", layers=1, width=32, heads=2, context=16, rotary=rotary)


def sevens(completions: list[str], **columns: object) -> list[float]:
    return [text.count("7") / 4 for text in completions]


@pytest.mark.skipif(importlib.util.find_spec("peft") is not None, reason="peft is installed")
def test_without_peft_the_extra_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"surefoot\[lora\]"):
        with_lora(tiny(), 4)


def test_a_rank_of_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank of adapters must be at least 1"):
        with_lora(tiny(), 0)


@needs_peft
@pytest.mark.parametrize("rotary", [False, True])
def test_adapters_alone_move_and_the_reference_shares_the_rest(rotary: bool, tmp_path: pathlib.Path) -> None:
    plain, policy = tiny(rotary), with_lora(tiny(rotary), 4)
    assert all("lora" in name for name, p in policy.model.named_parameters() if p.requires_grad)
    rollout = plain.generate(plain.encode(["1=", "234="]), 2, 4, seed=0)
    torch.testing.assert_close(policy.log_probs(rollout)[0], plain.log_probs(rollout)[0])  # B = 0
    loop = Loop(policy, PROMPTS, sevens, method("grpo"), SMALL)
    assert loop.reference is not None
    theirs = dict(loop.reference.model.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert (theirs[name] is parameter) == (not parameter.requires_grad)

    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    train(policy, PROMPTS, sevens, method("grpo"), SMALL, tmp_path)
    moved = {name for name, p in policy.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all("lora" in name for name in moved)
    saved = load_policy(tmp_path / "model")
    torch.testing.assert_close(saved.log_probs(rollout)[0], policy.log_probs(rollout)[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(saved.log_probs(rollout)[0], plain.log_probs(rollout)[0], atol=1e-3)

    again = with_lora(tiny(rotary), 4)
    resumed = Loop(again, PROMPTS, sevens, method("grpo"), SMALL)
    resumed.load(tmp_path / "checkpoint.safetensors")
    torch.testing.assert_close(again.log_probs(rollout)[0], policy.log_probs(rollout)[0])
    with pytest.raises(ConfigError, match="lora_targets='nowhere'"):
        with_lora(tiny(rotary), 4, targets="nowhere")
