"""Each method's loss and gradient against a second implementation, written out answer by answer in float64."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from plain_losses import (
    EXPECTED,
    FINISHED,
    LENGTHS,
    LONGEST,
    RETURNS,
    Answers,
    by_group,
    clipped,
    everywhere,
    ppo,
)
from refusals import refused

from surefoot.core.base.errors import ConfigError
from surefoot.llm import METHODS, method
from surefoot.llm.losses.method import denominators, loss
from surefoot.llm.losses.reward_shaping import overlong_penalty
from surefoot.llm.losses.selection import mixed_groups


def test_every_method_has_a_second_implementation() -> None:
    assert set(EXPECTED) == set(METHODS)


@pytest.mark.parametrize("gap", [0.01, 0.5])
@pytest.mark.parametrize("name", METHODS)
def test_loss_and_gradient_are_those_of_the_second_implementation(name: str, gap: float) -> None:
    answers = Answers(3, gap)
    if name == "stapo":  # so that there are rare tokens
        answers.old[0, :2] -= 7
        answers.new.data[0, :2] -= 7
    one = method(name)
    found, metrics = loss(one, answers.batch(one), LONGEST)
    wanted = EXPECTED[name](answers)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    gradients = [torch.autograd.grad(value, answers.new, allow_unused=True)[0] for value in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
    assert gradients[0] is not None
    assert not bool((gradients[0] * (1 - answers.mask)).any())
    assert all(not value.requires_grad and value.isfinite() for value in metrics.values())


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_in_parts_of_whole_groups_has_the_loss_of_the_whole(name: str) -> None:
    answers, one = Answers(5), method(name)
    batch = answers.batch(one)
    whole, _ = loss(one, batch, LONGEST)
    count = denominators(one, batch)
    parts = [loss(one, batch.rows(rows), LONGEST, *count)[0] for rows in (torch.arange(4), torch.arange(4, 8))]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name not in ("rwr", "rrhf", "process", "dsdr", "ppo", "nlpo")]
)
def test_equal_rewards_teach_nothing(name: str) -> None:
    """But where an answer is imitated for its reward (RWR) or for being first (RRHF, RAFT), DSDR's entropy, critics."""
    one = method(name, kl="none", kl_coefficient=0.0)
    answers = Answers(6)
    answers.returns = torch.full((8,), 0.4, dtype=torch.float64)
    answers.new = answers.old.clone().requires_grad_()
    answers.beh = answers.old
    found, _ = loss(one, answers.batch(one), LONGEST)
    gradient = torch.autograd.grad(found, answers.new)[0]
    if name == "raft":
        assert bool(gradient.any())
        return
    if name == "pacs":  # pushes all answers alike, against each other's mean
        gradient = gradient.sum(0)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-6)


def test_answers_without_a_score_count_for_nothing() -> None:
    names = ("grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "stable_reinforce", "oapl", "pacs", "raft", "rwr")
    for name in names:
        answers, one = Answers(8), method(name)
        answers.returns[2] = math.nan
        found, _ = loss(one, answers.batch(one), LONGEST)
        gradient = torch.autograd.grad(found, answers.new)[0]
        assert found.isfinite(), name
        if one.kl != "k3":
            assert not bool(gradient[2].any()), name


def test_an_answer_without_a_score_does_not_change_what_pacs_teaches_its_group() -> None:
    answers, one = Answers(8), method("pacs")
    without = torch.tensor([0, 1, 3, 4, 5, 6, 7])
    alone, _ = loss(one, answers.batch(one).rows(without), LONGEST)
    answers.returns[2] = math.nan
    found, _ = loss(one, answers.batch(one), LONGEST)
    assert float(8 * found.detach()) == pytest.approx(float(7 * alone.detach()), rel=1e-12)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("vespo", "oapl")])
def test_weights_of_one_change_no_loss(name: str) -> None:
    answers = Answers(3)
    answers.beh = answers.old
    plain, weighed = method(name, weight_cap=0.0, drop_above_cap=False), method(name, weight_cap=2.0)
    expected, found = (loss(one, answers.batch(one), LONGEST)[0] for one in (plain, weighed))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_the_weight_of_a_whole_answer_is_the_product_of_its_tokens_up_to_the_cap() -> None:
    answers, one = Answers(3), method("rloo", weight_cap=1.5, kl="none", kl_coefficient=0.0)
    terms = [
        clipped((answers.new[row] - answers.old[row])[: LENGTHS[row]].sum().exp(), value, 0.2, 0.2)
        * min(math.exp(float((answers.old[row] - answers.beh[row])[: LENGTHS[row]].sum())), 1.5)
        for row, value in enumerate(by_group("loo", RETURNS))
    ]
    torch.testing.assert_close(loss(one, answers.batch(one), LONGEST)[0], sum(terms) / 8, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["vespo", "oapl"])
def test_a_loss_with_a_correction_of_its_own_takes_no_weights(name: str) -> None:
    with pytest.raises(ConfigError, match="weight_cap"):
        method(name, weight_cap=2.0)


def test_high_entropy_tokens_of_an_answer_are_divided_by_all_of_its_tokens() -> None:
    answers = Answers(3)
    one = method("grpo", units="high_entropy", share=0.3, kl="none", kl_coefficient=0.0)
    batch = answers.batch(one)
    terms = ppo(answers, by_group("meanstd", RETURNS))
    each = [
        sum((terms(row, t) for t in range(LENGTHS[row]) if batch.units[row, t]), torch.zeros(())) / LENGTHS[row]
        for row in range(8)
    ]
    assert 0 < batch.units.sum() < batch.mask.sum()
    torch.testing.assert_close(loss(one, batch, LONGEST)[0], sum(each) / 8, rtol=1e-9, atol=1e-12)


def test_truncated_answers_are_left_out_and_still_counted() -> None:
    answers, one = Answers(9), method("dapo_clip", drop_truncated=True)
    found, _ = loss(one, answers.batch(one), LONGEST)
    terms = ppo(answers, by_group("meanstd", RETURNS), 0.2, 0.28)
    kept = [place for place in everywhere() if FINISHED[place[0]]]
    torch.testing.assert_close(found, sum(terms(*place) for place in kept) / len(everywhere()))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gspo", "entropy_tokens", "raft", "stapo", "rwr"])
def test_the_entropy_bonus_is_the_mean_over_all_tokens_whichever_are_trained(name: str) -> None:
    answers, plain, one = Answers(5), method(name), method(name, entropy_coefficient=0.1)
    if name == "stapo":  # so that there are rare tokens
        answers.old[0, :2] -= 7
    batch = answers.batch(one)
    count = denominators(one, batch)
    wanted = 0.1 * sum(answers.entropy[place] for place in everywhere()) / len(everywhere())
    torch.testing.assert_close(loss(plain, batch, LONGEST)[0] - loss(one, batch, LONGEST)[0], wanted)
    parts = [batch.rows(rows) for rows in (torch.arange(4), torch.arange(4, 8))]
    found = sum(loss(plain, part, LONGEST, *count)[0] - loss(one, part, LONGEST, *count)[0] for part in parts)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["raft", "rwr", "oapl", "pacs", "rrhf", "brpo"])
def test_a_kl_in_the_reward_is_refused_where_no_advantage_takes_it(name: str) -> None:
    with pytest.raises(ConfigError, match=r"method\.kl=reward takes the KL from advantages, and method\.(surr|adv)"):
        method(name, kl="reward", kl_coefficient=0.05)
    assert method(name, kl="k3", kl_coefficient=0.05).kl == "k3"


def test_a_penalty_of_overlong_answers_is_refused_where_steps_alone_are_rewarded() -> None:
    with pytest.raises(ConfigError, match=r"method\.overlong_share=0\.5 takes from the reward of an answer"):
        method("process", overlong_share=0.5)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("share", 1.5, "a share, from 0 to 1"),
        ("share", 0.0, "must be above 0"),
        ("overlong_share", 1.5, "a share, from 0 to 1"),
        ("nucleus", -0.1, "a share, from 0 to 1"),
        ("temperature", 0.0, "must be above 0"),
        ("scale", 0.0, "must be above 0"),
        ("cap", math.nan, "must be above 0"),
        ("entropy_coefficient", -0.1, "must not be below 0"),
        ("log_ratio_bound", -1.0, "must not be below 0"),
    ],
)
def test_settings_out_of_their_range_are_named(field: str, value: float, said: str) -> None:
    with refused(field, "range"):
        method("grpo", **{field: value})


def test_unknown_names_settings_and_the_two_methods_called_dapo_are_named() -> None:
    with pytest.raises(ConfigError, match="dapo_clip is decoupled clip"):
        method("dapo")
    with pytest.raises(ConfigError, match=r"did you mean .*'grpo'"):
        method("gpro")
    with pytest.raises(ConfigError, match="a method has no setting 'clip'"):
        method("grpo", clip=0.1)
    with refused("low", "range"):
        method("grpo", low=-1)
    with refused("surrogate", "choice"):
        method("grpo", surrogate="ppo")
    with pytest.raises(ConfigError, match="say where the KL goes"):
        method("dapo_clip", kl_coefficient=0.1)


BESIDE = (
    "title",
    "source",
    "lagged",
    "nucleus",
    "reads",
    "answer_mark",
    "form_share",
    "spread",
    "gap_limit",
    "judge",
    "verdict_tokens",
    "sage",
)
"""Settings that neither the loss nor a filter reads: what a method is called, and how answers come and are scored."""


class Wide(Answers):
    """A third group, all of whose rewards are the same; ratios beyond every clip range; a rare token, a stale one."""

    def __init__(self) -> None:
        super().__init__(11, 0.5)

        def longer(value: torch.Tensor) -> torch.Tensor:
            return torch.cat([value, value[:4]])

        self.old[0, :2] -= 7
        self.beh[5, 0] = self.old[5, 0] - 2  # a weight of 7.4
        moved = torch.linspace(-2.2, 2.2, 48, dtype=torch.float64)[torch.randperm(48, generator=torch.manual_seed(3))]
        new = self.old + moved.view(8, 6)
        new[2, 0] = self.old[2, 0] + 7.5  # a ratio of 1,800
        self.old, self.beh, self.ref, self.entropy = map(longer, (self.old, self.beh, self.ref, self.entropy))
        self.mask, self.new = longer(self.mask), longer(new).requires_grad_()
        self.returns = torch.cat([self.returns, torch.full((4,), 0.5, dtype=torch.float64)])
        self.groups, self.values = torch.arange(12) // 4, longer(self.values)


def gradient_of(name: str) -> torch.Tensor:
    """Of a step on the wide batch: with penalty of long answers, groups that differ, and answers that end."""
    one, answers = method(name), Wide()
    if one.overlong_share:
        answers.returns = answers.returns + overlong_penalty(answers.mask.sum(-1), 7, round(one.overlong_share * 10))
    rows = torch.arange(12)
    if one.mixed_groups:
        rows = rows[mixed_groups(answers.returns, answers.groups) != 0]
    batch = answers.batch(one)
    found, _ = loss(one, batch.rows(rows), LONGEST)
    return torch.autograd.grad(found, answers.new)[0]


def test_methods_whose_loss_or_filter_differs_differ_in_their_gradients() -> None:
    gradients = {name: gradient_of(name) for name in METHODS}
    alike = set()
    for first, second in itertools.combinations(METHODS, 2):
        told = [[v for k, v in dataclasses.asdict(METHODS[n]).items() if k not in BESIDE] for n in (first, second)]
        same = torch.allclose(gradients[first], gradients[second], rtol=1e-9, atol=1e-12)
        if told[0] == told[1]:
            assert same, (first, second)
            continue
        if same:
            alike.add((first, second))
    assert alike == {("gspo", "gspo_token")}  # equal where all tokens of an answer have one advantage, by its paper
