"""Rewards of steps, groups of pairwise judgements, and answers drawn from another policy's nucleus."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import pytest
import torch

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.llm import LMPolicy, Loop, Prompt, TrainConfig, method, train
from surefoot.llm.characters import character_policy
from surefoot.llm.losses import advantages
from surefoot.llm.nucleus import Nucleus
from surefoot.llm.policy import log_prob_and_entropy
from surefoot.llm.rewards import pairwise, step_scores

PROMPTS = [Prompt(text) for text in ("1=", "23=", "4=", "567=")]
SMALL = TrainConfig(steps=4, prompts_per_step=4, group=4, max_new_tokens=4, learning_rate=1e-3)


def tiny(rotary: bool = False, seed: int = 0) -> LMPolicy:
    return character_policy("0123456789=", layers=1, width=32, heads=2, context=16, rotary=rotary, seed=seed)


class Sevens:
    """Every token is a step, 1 where it is a seven."""

    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        return [text.count("7") / 4 for text in completions]

    def step_rewards(self, completion_ids: list[list[int]], **columns: Any) -> list[dict[int, float]]:
        return [{place: float(token == 9) for place, token in enumerate([*ids, 0])} for ids in completion_ids]


def test_advantages_of_steps_by_hand() -> None:
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    ends = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    found = advantages(method("process"), torch.zeros(2), torch.zeros(2).long(), mask, None, (rewards, ends))
    scale = torch.tensor([1.0, 0.0, 3.0]).std().item() + 1e-4
    low, middle, high = ((value - 4 / 3) / scale for value in (0.0, 1.0, 3.0))
    expected = [[middle, middle, 0.0], [low + high, high, high]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_rewards_of_steps_are_put_at_their_ends_and_learned_from() -> None:
    config = TrainConfig(steps=30, prompts_per_step=4, group=8, max_new_tokens=4, learning_rate=1e-2)
    policy, one = tiny(), method("process", kl="none", kl_coefficient=0.0)
    lines = train(policy, PROMPTS, Sevens(), one, config)
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.5
    with pytest.raises(ConfigError, match="give a reward with step_rewards"):
        Loop(policy, PROMPTS, lambda **_: [0.0], one, config)
    with pytest.raises(ConfigError, match="advantages of steps need a reward of steps"):
        advantages(one, torch.zeros(2), torch.zeros(2).long(), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{5: 1.0}], "at place 5 of answer 0"),
        ([{0: math.nan}], "gave nan"),
        ([{}], "no step of answer 0"),
        ([], "of 0"),
        ([{0: None}], "gave None at place 0 of answer 0"),
        ([{"0": 1.0}], "at place '0' of answer 0"),
        ([[1.0]], r"gave \[1.0\], no step of answer 0"),
        ([None], "gave None, no step of answer 0"),
    ],
)
def test_wrong_rewards_of_steps_are_named(given: list[Any], said: str) -> None:
    class Wrong:
        def step_rewards(self, **columns: Any) -> list[Any]:
            return given

    with pytest.raises(DataError, match=said):
        step_scores(Wrong(), [Prompt("1=")], ["12"], [[3, 4]], torch.ones(1, 3))


def test_rewards_of_steps_get_answers_to_messages_as_other_rewards_do() -> None:
    class Lengths:
        def step_rewards(self, completions: list[Any], **columns: Any) -> list[dict[int, float]]:
            return [{0: float(len(answer[-1]["content"]))} for answer in completions]

    chat = [Prompt([{"role": "user", "content": "1="}])]
    found, ends = step_scores(Lengths(), chat, ["12"], [[3, 4]], torch.ones(1, 3))
    assert (found.tolist(), ends.tolist()) == ([[2, 0, 0]], [[1, 0, 0]])


def test_pairs_are_judged_in_both_orders_against_the_first_of_the_group() -> None:
    reward = pairwise(lambda prompt, first, second: len(first) >= len(second), 4)
    judged = reward(prompts=["1="] * 4, completions=["22", "333", "44", "5"])
    assert judged == [0, 1, -1, -1]  # a tie wins in both orders, and so in neither
    groups, mask = torch.zeros(4).long(), torch.ones(4, 2)
    found = advantages(method("brpo"), torch.tensor(judged), groups, mask)
    assert found.tolist() == [[0], [1], [-1], [-1]]
    unscored = advantages(method("brpo"), torch.tensor([0.0, 1.0, math.nan, -1.0]), groups, mask)
    assert unscored.tolist() == [[0], [1], [0], [-1]]
    one_sided = advantages(method("brpo"), torch.tensor([0.0, 1.0, 1.0, 1.0]), groups, mask)
    assert one_sided.tolist() == [[0]] * 4


@pytest.mark.parametrize("rotary", [False, True])
def test_answers_stay_in_the_nucleus_and_are_trained_by_the_distribution_they_came_from(rotary: bool) -> None:
    policy, other = tiny(rotary), tiny(rotary, seed=1)
    prompts = policy.encode(["1=", "2345="])
    rollout = policy.generate(prompts, 16, 4, seed=0, within=Nucleus(other, 0.5))
    allowed, kept = rollout.kept["allowed"], rollout.completion_mask != 0
    assert allowed.shape == (32, rollout.completion_ids.shape[1], policy.vocabulary)
    assert bool(allowed.gather(2, rollout.completion_ids.unsqueeze(-1))[kept].all())
    assert 0.1 < float(allowed[kept].float().mean()) < 0.8
    found, entropy = policy.log_probs(rollout)
    torch.testing.assert_close(found, rollout.log_prob, atol=2e-5, rtol=1e-5)
    assert float(entropy.max()) <= math.log(float(allowed[kept].sum(-1).max())) + 1e-5
    plain = dataclasses.replace(rollout, kept={})  # without the mask it would be another policy's probability
    assert float((policy.log_probs(plain)[0] - rollout.log_prob)[kept].detach().max()) < -0.1
    parts = [rollout.rows(slice(0, 7)), rollout.rows(slice(7, 32))]
    assert torch.equal(torch.cat([part.kept["allowed"] for part in parts]), allowed)

    ends = other.ends[0]  # the first token's mask, computed here from the other policy alone
    logits = other.model(torch.tensor([prompts[0]])).logits[0, -1]
    probabilities, order = logits.softmax(-1).sort(descending=True)
    wanted = set(order[: int((probabilities.cumsum(0) < 0.5).sum()) + 1].tolist()) | {ends}
    assert set(allowed[0, 0].nonzero().flatten().tolist()) == wanted


def test_masked_entropy_has_a_finite_gradient() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    allowed = torch.tensor([[1, 1, 0, 0, 1], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    log_prob, entropy = log_prob_and_entropy(logits, torch.zeros(3).long(), 1.0, True, allowed)
    assert log_prob[1] == 0
    assert entropy[1] == 0
    (entropy.sum() + log_prob.sum()).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    assert not bool(logits.grad[~allowed].any())


def test_the_mask_policy_follows_every_few_steps_and_through_a_checkpoint(tmp_path: pathlib.Path) -> None:
    one, config = method("nlpo"), dataclasses.replace(SMALL, nucleus_every=3, checkpoint_every=2)
    whole = tiny()
    train(whole, PROMPTS, Sevens(), one, config)
    train(tiny(), PROMPTS, Sevens(), one, dataclasses.replace(config, steps=2), tmp_path)
    again = tiny()
    train(again, PROMPTS, Sevens(), one, config, tmp_path)
    for first, second in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(first, second)
    with pytest.raises(ConfigError, match="takes more than 4 GB"):
        Nucleus(whole, 0.9).check_size(1 << 20, 1 << 12)
