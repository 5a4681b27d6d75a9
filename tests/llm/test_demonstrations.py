"""Rewards learned from demonstrations, and advantages that are scaled by difficulty."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import pytest
import torch

from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError
from surefoot.llm import LMPolicy, Loop, Prompt, TrainConfig, method
from surefoot.llm.characters import character_policy
from surefoot.llm.feedback import Pair
from surefoot.llm.losses import demonstration_terms, difficulty_scales
from surefoot.llm.reward_models import RewardLearner, RewardModel, RewardTraining, train_reward_model

SMALL = TrainConfig(steps=2, prompts_per_step=2, group=4, max_new_tokens=4, learning_rate=1e-3)


def tiny(seed: int = 0) -> LMPolicy:
    return character_policy("0123456789=", layers=1, width=32, heads=2, context=16, seed=seed)


def sevens(completions: list[str], **columns: Any) -> list[float]:
    return [text.count("7") / 4 for text in completions]


def test_the_reward_of_a_table_is_the_closed_form() -> None:
    """(p - q) / (2 c (p + q)) for a text that demonstrations have with probability p and samples with q."""
    p, q, centre = torch.tensor([0.6, 0.3, 0.1, 0.0]), torch.tensor([0.1, 0.3, 0.2, 0.4]), 0.5
    reward = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([reward], lr=0.5)
    for _ in range(300):
        optimizer.zero_grad()
        terms = demonstration_terms(reward.unsqueeze(1).expand(4, 4), reward.unsqueeze(0).expand(4, 4), centre)
        (terms * p.unsqueeze(1) * q.unsqueeze(0)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(reward.detach(), (p - q) / (2 * centre * (p + q)), atol=1e-4, rtol=0)


def test_scales_by_hand() -> None:
    def sigma(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    gaps = torch.tensor([0.0, 1.0, 5.0, math.nan])
    found = difficulty_scales(torch.tensor([1.0, 0.0, 0.5, 0.5]), gaps, 4.0)  # mean gap 2, deviations 4, 1 and 9
    of_gaps = sigma(0.5) / sigma(2.0)
    wanted = [sigma(d) / sigma(0.5) * of_gaps for d in (0.0, 1.0, 0.5, 0.5)]
    torch.testing.assert_close(found, torch.tensor(wanted))
    assert difficulty_scales(torch.full((3,), 0.2), torch.full((3,), 0.7), 1.0).tolist() == pytest.approx([1, 1, 1])
    nothing = torch.full((2,), math.nan)
    assert difficulty_scales(torch.tensor([0.3, 0.3]), nothing, 1.0).tolist() == pytest.approx([1, 1])


def test_a_model_learns_the_demonstrated_answers_within_its_bounds() -> None:
    pairs = [Pair("1=", "7", "2"), Pair("2=", "7", "3"), Pair("3=", "8", "3"), Pair("4=", "7", "1")]
    model = RewardModel(tiny())
    training = RewardTraining(steps=80, rows=16, learning_rate=1e-2, loss="demonstration", center=0.5)
    found = train_reward_model(model, pairs, training)
    assert found["accuracy"] == 1
    scores = model(["1=", "2=", "1=", "2="], ["7", "7", "2", "3"])
    assert scores == pytest.approx([1, 1, -1, -1], abs=0.15)
    for wrong in ({"loss": "irl"}, {"loss": "demonstration", "center": 0.0}):
        with pytest.raises(ConfigError, match=r"loss(=| is )"):
            RewardTraining(**wrong)
    with pytest.raises(ConfigError, match="is of pairs, and this reward model is of steps"):
        RewardLearner(RewardModel(tiny(), "steps"), training)


def test_advantages_are_grpos_times_the_scales() -> None:
    prompts = [Prompt(f"{n}=", {"demonstration": "777"}) for n in range(4)]
    plain = Loop(tiny(), prompts, sevens, method("grpo"), SMALL)
    scaled = Loop(tiny(), prompts, sevens, method("grpo_s", gap_limit=0.01), SMALL)
    found = []
    for loop in (plain, scaled):
        rollout, returns, _ = loop.collect()
        log_prob, entropy = (part.detach() for part in loop._first(rollout))
        found.append((rollout, returns, loop.prepare(rollout, returns, log_prob, entropy).advantages))
    (_, returns, advantages), (rollout, again, changed) = found
    assert torch.equal(returns, again)
    slow = scaled.slow
    assert slow is not None
    hidden = []
    for ids in [*rollout.answers(), scaled.reader.tokens(["777"])[0]]:  # by a forward pass of each alone
        end = slow.tokenizer.eos_token_id
        with torch.no_grad():
            seen = slow.model.base_model(torch.tensor([[end, *ids, end]])).last_hidden_state[0, 1:]
        hidden.append(seen.mean(0))
    cosine = torch.stack([torch.cosine_similarity(one, hidden[-1], 0) for one in hidden[:-1]])
    wanted = advantages * difficulty_scales(cosine, 0.75 - returns, 0.01).unsqueeze(1)
    torch.testing.assert_close(changed, wanted, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(changed, advantages)
    with pytest.raises(ConfigError, match="prompt 0 has no column 'demonstration'"):
        Loop(tiny(), [Prompt("1=")], sevens, method("grpo_s"), SMALL)


def test_dr_irl_from_the_command_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny().save("tiny")
    lines = [{"prompt": f"{n}=", "chosen": "77", "rejected": str(n)} for n in range(10)]
    pathlib.Path("pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    pathlib.Path("prompts.jsonl").write_text(
        "\n".join(json.dumps({"prompt": f"{n}=", "demonstration": "77"}) for n in range(4))
    )
    learned = ["llm", "reward", "model=tiny", "data=pairs.jsonl", "steps=2", "-q"]
    assert main([*learned, "out=judge", "loss=demonstration", "center=0.5"]) == 0
    given = ["llm", "train", "model=tiny", "prompts=prompts.jsonl", "reward=judge", "method=grpo_s", "steps=2"]
    assert main([*given, "prompts_per_step=2", "group=2", "max_new_tokens=3", "out=run", "-q"]) == 0
    assert main(["llm", "train", "--resume", "run", "-q"]) == 0
    capsys.readouterr()
    assert main([*learned, "out=wrong", "loss=demonstration", "center=0"]) == 2
    assert "needs centre above 0" in capsys.readouterr().err
    assert not pathlib.Path("wrong").exists()
