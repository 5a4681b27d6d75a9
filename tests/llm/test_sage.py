"""SAGE's sampler: what is kept, what may end, and that its answers are the policy's."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from surefoot.core.base.errors import ConfigError
from surefoot.llm import LMPolicy, Loop, Prompt, TrainConfig, method, train
from surefoot.llm.characters import character_policy
from surefoot.llm.sage import Chain, Sage, SageSampler, choose
from surefoot.llm.supervised import supervise

PROMPTS = [Prompt(text) for text in ("1=", "23=")]
SMALL = TrainConfig(steps=2, prompts_per_step=2, group=4, max_new_tokens=10, learning_rate=1e-3)
MARKS = Sage(step=";", end="!")


def tiny(seed: int = 0) -> LMPolicy:
    return character_policy("0123456789=;!", layers=1, width=32, heads=2, context=16, seed=seed)


def chain(phi: float, length: int = 2) -> Chain:
    return Chain([0] * length, [phi] * length)


def test_phi_is_the_mean_over_the_whole_chain() -> None:
    assert Chain([1, 2, 3], [-1.0, -2.0, -6.0]).confidence == -3
    assert Chain([], []).confidence == 0


@pytest.mark.parametrize(("tolerance", "answers"), [(0.25, 0), (0.5, 1), (0.75, 1), (1.0, 2)])
def test_a_chain_is_an_answer_where_it_ends_among_the_likeliest_candidates(tolerance: float, answers: int) -> None:
    """m = 2: eight candidates, of which the first round(4 TR) may end; the two likeliest that continue are kept."""
    candidates = [chain(-phi) for phi in (5.0, 1.0, 2.0, 7.0, 4.0, 3.0, 8.0, 6.0)]
    ended = [False, False, True, False, True, False, True, False]  # ranks 2, 4 and 8
    found, kept = choose(candidates, ended, dataclasses.replace(MARKS, tolerance=tolerance))
    assert [one.confidence for one in found] == [-2.0, -4.0][:answers]
    assert [one.confidence for one in kept] == [-1.0, -3.0]


def test_answers_are_the_policys_and_of_the_length_that_is_allowed() -> None:
    policy = tiny()
    prompts = policy.encode([prompt.text for prompt in PROMPTS])
    rollout = SageSampler(policy, MARKS).generate(prompts, 10, 3)
    assert len(rollout.completion_ids) == 4
    assert rollout.completion_ids.shape[1] <= 10
    assert torch.equal(rollout.prompt_ids[0], rollout.prompt_ids[1])
    again, _ = policy.log_probs(rollout)
    torch.testing.assert_close(again.detach(), rollout.log_prob, rtol=0, atol=1e-4)
    ends = rollout.completion_mask.sum(-1).long()
    for row, (length, finished) in enumerate(zip(ends.tolist(), rollout.finished.tolist(), strict=True)):
        assert (int(rollout.completion_ids[row, length - 1]) in policy.ends) == finished
        assert finished or length == 10
    same = SageSampler(policy, MARKS).generate(prompts, 10, 3)
    assert torch.equal(same.completion_ids, rollout.completion_ids)


def test_the_likelier_of_two_ways_of_reasoning_is_taken() -> None:
    """After the prompt the model thinks "5;" in 3 of 4 cases and then is sure, else "6;" and then it is not."""
    policy = tiny()
    unsure = [("1=", f"6;{digit};!9") for digit in "0123456789"]
    supervise(policy, unsure + [("1=", "5;5;!7")] * 30, steps=120, rows=40, learning_rate=1e-2)
    prompts = policy.encode(["1="])
    plain = policy.decode(policy.generate(prompts, 200, 10, 0))
    sure = [text for k in range(10) for text in policy.decode(SageSampler(policy, MARKS).generate(prompts, 10, k))]
    assert len(sure) == 20
    share = sum(text.endswith("!7") for text in plain) / 200
    assert 0.6 < share < 0.9
    assert sum(text == "5;5;!7" for text in sure) >= 19


def test_a_groups_last_answers_are_sages_and_train() -> None:
    def sevens(completions: list[str], **columns: Any) -> list[float]:
        return [text.count("7") / 4 for text in completions]

    one = method("dr_grpo", sage=2, step_mark=";", think_mark="!")
    loop = Loop(tiny(), PROMPTS, sevens, one, SMALL)
    prompts = [loop.encoded[0], loop.encoded[1]]
    rollout = loop._answers(PROMPTS, prompts, 5)
    assert loop.sage is not None
    sure = loop.sage.generate(prompts, 10, 5)
    for group in range(2):
        for k in range(2):
            row = rollout.completion_ids[4 * group + 2 + k, : sure.completion_ids.shape[1]]
            assert torch.equal(row, sure.completion_ids[2 * group + k])
    lines = train(tiny(), PROMPTS, sevens, one, SMALL)
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert lines[0]["gap_max"] < 1e-4


def test_settings_of_sage_that_can_not_be_are_named() -> None:
    for changes, said in (
        ({"sage": 4}, "method.sage=4 must be below group=4"),
        ({"sage": 1, "step_mark": "?", "think_mark": "!"}, r"method.step_mark='\?': no token of the model's has this"),
        ({"sage": 1, "step_mark": "", "think_mark": "!"}, "must have a text"),
        ({"sage": 1, "sage_width": 0, "step_mark": ";"}, "must be above 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            Loop(tiny(), PROMPTS, lambda **_: [0.0], method("dr_grpo", **changes), SMALL)
    with pytest.raises(ConfigError, match=r"method.sage draws from all tokens"):
        method("grpo", sage=1, nucleus=0.9)
