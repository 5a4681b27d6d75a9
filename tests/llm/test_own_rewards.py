"""Rewards that read the policy, come late, or learn beside it: RLPR, GRPO-CARE, DSDR, URPO and Cooper."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import threading
from typing import Any

import pytest
import torch

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.llm import LMPolicy, Loop, Prompt, TrainConfig, evaluate, method, scores, train
from surefoot.llm.characters import character_policy
from surefoot.llm.cooper import Cooper
from surefoot.llm.losses import diversity_weights, embedding_diversity, formula_diversity
from surefoot.llm.own_rewards import OWN, Answers, answer_begins, formulas, verdict, verdict_prompt
from surefoot.llm.reader import PolicyReader
from surefoot.llm.reward_models import RewardModel, RewardTraining
from surefoot.llm.rewards import later
from surefoot.llm.supervised import supervise

PROMPTS = [Prompt(f"{n}+", {"answer": str(n), "kind": "known"}) for n in (1, 23, 4, 56)]
SMALL = TrainConfig(
    steps=4, prompts_per_step=4, group=4, max_new_tokens=5, learning_rate=1e-3, checkpoint_every=2, evaluate_every=4
)


def tiny(seed: int = 0, context: int = 24) -> LMPolicy:
    return character_policy("0123456789=+|?", layers=1, width=32, heads=2, context=context, seed=seed)


def sevens(completions: list[str], **columns: Any) -> list[float]:
    return [float("7" in text) for text in completions]


def by_hand(policy: LMPolicy, context: str, answer: str) -> list[float]:
    """Log-probabilities of an answer's characters, one forward pass a character, without padding."""
    found, ids = [], policy.encode([context])[0]
    for number in policy.tokenizer(answer, add_special_tokens=False)["input_ids"]:
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[0, -1] / policy.temperature
        found.append(float(logits.log_softmax(-1)[number]))
        ids = [*ids, number]
    return found


def given(policy: LMPolicy, rows: list[tuple[Prompt, str]], returns: list[float] | None, group: int) -> Answers:
    reader = PolicyReader(policy)
    return Answers(
        [prompt for prompt, _ in rows],
        policy.encode([prompt.text for prompt, _ in rows]),
        reader.tokens([text for _, text in rows]),
        [text for _, text in rows],
        None if returns is None else torch.tensor(returns),
        group,
    )


def test_a_reader_gives_the_log_probabilities_of_any_answer() -> None:
    policy, other = tiny(), tiny(1)
    reader = PolicyReader(policy, other, at_once=2)
    asked = [("1+", "23"), ("456+7=", "8"), ("2=", "")]
    for slow, one in ((False, policy), (True, other)):
        found, mask = reader.log_probs([a for a, _ in asked], [b for _, b in asked], slow)
        assert mask.tolist() == [[1, 1], [1, 0], [0, 0]]
        for row, pair in enumerate(asked):
            wanted = [*by_hand(one, *pair), 0.0, 0.0][:2]
            torch.testing.assert_close(found[row], torch.tensor(wanted), rtol=0, atol=1e-5)
    with pytest.raises(ConfigError, match="answer 1 has 24 tokens behind 2, more than the model's context of 24"):
        reader.log_probs(["1+", "1+"], ["1", "1" * 24])
    with pytest.raises(ConfigError, match="keeps no slow copy"):
        PolicyReader(policy).log_probs(["1+"], ["2"], slow=True)


def test_rlprs_reward_is_what_the_reasoning_adds_to_the_mean_probability_of_the_reference() -> None:
    policy = tiny()
    one = method("rlpr", answer_mark="=")
    prompt = Prompt("1+", {"answer": "23"})
    texts = ["5=23", "77=1", "999", "="]
    found, _ = OWN["probability"](one, PolicyReader(policy), given(policy, [(prompt, t) for t in texts], None, 4))

    def likely(context: str) -> float:
        return sum(map(math.exp, by_hand(policy, context, "23"))) / 2

    alone = likely("1+=")
    wanted = [max(0.0, likely("1+" + text) - alone) if text else 0.0 for text in ("5=", "77=", "", "=")]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)
    assert max(wanted) > 0
    form = [1.0, 0.0, 1.0, 0.0]
    mixed, _ = OWN["probability"](one, PolicyReader(policy), given(policy, [(prompt, t) for t in texts], form, 4))
    assert mixed.tolist() == pytest.approx([0.9 * w + 0.1 * f for w, f in zip(wanted, form, strict=True)], abs=1e-6)
    assert answer_begins(PolicyReader(policy), [], "") == 0


def test_rlpr_leaves_out_groups_that_deviate_little_from_the_eleventh_step_on() -> None:
    config = dataclasses.replace(SMALL, steps=1, prompts_per_step=2)
    loop = Loop(tiny(), PROMPTS, None, method("rlpr", answer_mark="="), config)
    wide, narrow = [0.0, 0.4, 0.0, 0.4], [0.1, 0.11, 0.1, 0.11]
    deviation = 0.4 / math.sqrt(3)  # of two and two, unbiased
    both = torch.tensor([wide, narrow]).flatten()
    assert loop._spread(both).tolist() == [True, True]
    assert loop.spread == 0
    loop.step = 5  # the sixth
    assert loop._spread(torch.tensor([wide, wide]).flatten()).tolist() == [True, True]
    assert loop.spread == pytest.approx(deviation)
    loop.step = 10  # the eleventh
    assert loop._spread(both).tolist() == [True, False]
    mean = (deviation + 0.01 / math.sqrt(3)) / 2
    assert loop.spread == pytest.approx(0.99 * deviation + 0.01 * mean)


def test_rlpr_learns_without_a_reward_function_and_is_gone_on_with_bit_for_bit(tmp_path: pathlib.Path) -> None:
    policy = tiny()
    supervise(policy, [("1+", "1=1"), ("4+", "4=4"), ("23+", "9=23")], steps=30, rows=16, learning_rate=1e-2)
    begun = {name: value.clone() for name, value in policy.model.state_dict().items()}
    one, config = method("rlpr", answer_mark="=", spread=0.8), dataclasses.replace(SMALL, steps=14)
    lines = train(policy, PROMPTS, None, one, config, tmp_path / "whole")
    assert lines[0]["reward"] > 0
    assert min(line["groups"] for line in lines[10:]) < 4
    assert all(line["groups"] == 4 for line in lines[:10])
    again = tiny()
    again.model.load_state_dict(begun)
    train(again, PROMPTS, None, one, dataclasses.replace(config, steps=12), tmp_path / "parts")
    resumed = tiny()
    train(resumed, PROMPTS, None, one, config, tmp_path / "parts")
    for name, value in policy.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    unmarked = method("rlpr")
    with pytest.warns(UserWarning, match="none of the 16 first answers has '<answer>', behind which RLPR reads"):
        assert train(tiny(), PROMPTS, None, unmarked, dataclasses.replace(SMALL, steps=1))[0]["reward"] == 0
    with pytest.raises(ConfigError, match="held_out needs a reward"):
        train(tiny(), PROMPTS, None, one, SMALL, held_out=PROMPTS)


def test_grpo_cares_bonus_reads_the_slow_copy() -> None:
    policy, slow = tiny(), tiny(2)
    one, prompt = method("care", answer_mark="="), PROMPTS[0]
    texts, accuracy = ["5=7", "6=8", "77", "9=3"], [1.0, 1.0, 1.0, 0.0]
    answers = given(policy, [(prompt, t) for t in texts], accuracy, 4)
    found, _ = OWN["consistency"](one, PolicyReader(policy, slow), answers)
    first, second = (min(0.95, math.exp(by_hand(slow, prompt.text + t[:2], t[2:])[0])) for t in texts[:2])
    # of the right answers that have one; 0.5 is added where it is not below their mean less 0.01
    wanted = [1 + 0.5 * (c >= (first + second) / 2 - 0.01) for c in (first, second)]
    assert found.tolist() == [*wanted, 1.0, 0.0]
    assert sorted(wanted) == [1.0, 1.5]
    loop = Loop(policy, PROMPTS, sevens, one, SMALL)
    assert loop.slow is not None
    before = loop.slow.model.lm_head.weight.clone()
    with torch.no_grad():
        policy.model.lm_head.weight += 1
    loop.step = 9
    loop.end_step()
    torch.testing.assert_close(loop.slow.model.lm_head.weight, before + 0.005)
    with pytest.raises(ConfigError, match="needs the text that an answer follows"):
        Loop(tiny(), PROMPTS, sevens, method("care", answer_mark=""), SMALL)


def test_dsdrs_parts_by_hand() -> None:
    angles = torch.tensor([0.0, 90.0, 180.0, 30.0]).deg2rad()
    found = embedding_diversity(torch.stack([angles.cos(), angles.sin()], 1), torch.tensor([0, 0, 0, 1]))
    assert found.tolist() == pytest.approx([(0.5 + 1) / 2, 0.5, (1 + 0.5) / 2, 0.0], abs=1e-6)
    sets = [frozenset({"a=b", "c=d"}), frozenset({"a=b"}), frozenset(), frozenset({"e=f"})]
    assert formula_diversity(sets, 4).tolist() == [0.5, 0.0, 0.0, 1.0]
    right = torch.tensor([True, True, False, False, False, False])
    weights = diversity_weights(torch.tensor([0.2, 0.1, 0.9, 0.3, 0.3, 0.3]), right, 3)
    assert weights.tolist() == pytest.approx([1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(0.5)), 0, 0, 0, 0])
    assert formulas(r"so $x + 1$ and \(y\), 2 + 3 = 5") == {"x+1", "y", "2+3=5"}


def test_dsdr_adds_to_right_answers_that_differ_and_weighs_their_entropy() -> None:
    policy, one = tiny(), method("dsdr", diversity_bonus=0.1)
    rows = [(PROMPTS[0], text) for text in ("1=2", "1=2", "3=4", "9=9")] + [(PROMPTS[1], "1")] * 4
    returns = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    found, more = OWN["diversity"](one, PolicyReader(policy, policy), given(policy, rows, returns, 4))
    bonus = (found - torch.tensor(returns)).tolist()
    assert bonus[0] == pytest.approx(bonus[1])
    assert bonus[2] > bonus[0] + 0.04  # its formula is its own: half of 0.1 more
    assert bonus[3:] == [0.0] * 5
    weights = more["entropy_weights"]
    assert float(weights[:4].sum()) == pytest.approx(4.0)
    assert weights[3:].tolist() == [0.0] * 5
    same = [(PROMPTS[0], "1=2")] * 4
    alike, even = OWN["diversity"](one, PolicyReader(policy, policy), given(policy, same, [1.0] * 4, 4))
    assert alike.tolist() == pytest.approx([1.0] * 4)
    assert even["entropy_weights"].tolist() == pytest.approx([1.0] * 4)


def test_urpos_open_answers_are_compared_by_the_model_in_both_orders() -> None:
    policy = tiny(context=32)
    template = "{prompt}{first}|{second}?"
    taught = [(f"4+{a}|{b}?", "1" if a > b else "2") for a in "123" for b in "123" if a != b]
    supervise(policy, taught, steps=150, rows=32, learning_rate=1e-2)
    prompt, known = Prompt("4+", {"kind": "open"}), Prompt("4+", {"kind": "known"})
    answers = given(policy, [(prompt, text) for text in "1233"] + [(known, text) for text in "1233"], [0.25] * 8, 4)
    found, _ = OWN["choice"](method("urpo", judge=template), PolicyReader(policy), answers)
    # 1 against 2, 2 against 3, 3 against 3 (of equal ones it names one of two orders), 3 against 1
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[3] == 1.0
    assert found[4:].tolist() == [0.25] * 4
    assert verdict("the second: 2, not 1") == "2"
    assert verdict("neither") is None
    assert verdict_prompt("{prompt}/{first}/{second}", "{first}", "{second}", "b") == "{first}/{second}/b"
    chat = [{"role": "user", "content": "q"}]
    assert verdict_prompt("{prompt}{first}{second}", chat, "a", "b") == [{"role": "user", "content": "qab"}]
    with pytest.raises(ConfigError, match=r"method.judge='better\?' has no \{prompt\}"):
        method("urpo", judge="better?")


def test_prompts_that_a_methods_own_reward_can_not_read_are_named() -> None:
    bare = [*PROMPTS[:2], Prompt("4+", {"answer": "", "kind": "riddle"})]
    for name, reward, said in (
        ("rlpr", None, "prompt 2 has no column 'answer'"),
        ("urpo", sevens, "prompt 2 has kind='riddle'"),
        ("dsdr", None, "DSDR learns from a reward"),
        ("grpo", None, "GRPO learns from a reward"),
    ):
        with pytest.raises(ConfigError, match=said):
            Loop(tiny(), bare, reward, method(name), SMALL)


class Reads:
    """The policy's own probability of the answer "7"."""

    reads_policy = True

    def __call__(self, prompts: list[str], policy: PolicyReader, **columns: Any) -> list[float]:
        found, _ = policy.log_probs(prompts, ["7"] * len(prompts))
        return found.exp()[:, 0].tolist()


def test_any_reward_may_read_the_policy() -> None:
    policy = tiny()
    found = scores(Reads(), PROMPTS[:2], ["1", "2"], [[3], [4]], PolicyReader(policy))
    assert found.tolist() == pytest.approx([math.exp(by_hand(policy, p.text, "7")[0]) for p in PROMPTS[:2]], rel=1e-4)
    line = train(policy, PROMPTS, Reads(), method("grpo"), dataclasses.replace(SMALL, steps=1), held_out=PROMPTS)
    assert 0 < line[1]["reward"] < 1
    with pytest.raises(DataError, match="have a column 'policy'"):
        scores(Reads(), [Prompt("1+", {"policy": "x"})], ["1"], [[3]], PolicyReader(policy))


@pytest.mark.parametrize("name", ["grpo", "dapo_clip", "dsdr"])
def test_late_rewards_train_the_same_and_are_waited_for_before_the_update(name: str) -> None:
    found = []
    for reward in (sevens, later(sevens)):
        policy = tiny()
        lines = train(policy, PROMPTS, reward, method(name), dataclasses.replace(SMALL, steps=3))
        found.append((lines, policy.model.state_dict()))
    for name_, value in found[0][1].items():
        assert torch.equal(value, found[1][1][name_]), name_
    assert [line["reward"] for line in found[0][0]] == [line["reward"] for line in found[1][0]]


def test_the_forward_pass_does_not_wait_for_late_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reward itself waits until the forward pass was started: where the loop waited first, it would never end."""
    begun = threading.Event()

    def waits(completions: list[str], **columns: Any) -> list[float]:
        assert begun.wait(20)
        return sevens(completions)

    loop = Loop(tiny(), PROMPTS, later(waits), method("grpo"), SMALL)
    plain = loop._first

    def first(rollout: Any) -> Any:
        begun.set()
        return plain(rollout)

    monkeypatch.setattr(loop, "_first", first)
    loop.advance()

    def fails(**columns: Any) -> list[float]:
        raise KeyError("no judge")

    with pytest.raises(DataError, match="fails raised KeyError: 'no judge'"):
        train(tiny(), PROMPTS, later(fails), method("grpo"), SMALL)
    with pytest.raises(DataError, match="gave 1 rewards for 16 answers"):
        train(tiny(), PROMPTS, later(lambda **_: [1.0]), method("grpo"), SMALL)


def corrupted(completions: list[str], **columns: Any) -> list[str | None]:
    return [None if text == "7" else text.replace("7", "8") for text in completions]


def test_coopers_pairs_are_right_answers_above_their_corruptions() -> None:
    judge = Cooper(RewardModel(tiny()), sevens, corrupted)
    texts = ["1", "27", "7", "3", "4", "5", "6", "8", "7", "7", "1", "1"]
    found = judge.pairs([PROMPTS[n // 4] for n in range(12)], texts, 4)
    assert [(one.prompt, one.chosen, one.rejected) for one in found] == [("1+", "27", "28")]
    still_right = Cooper(RewardModel(tiny()), sevens, lambda completions, **_: [text + "7" for text in completions])
    assert still_right.pairs([PROMPTS[0]] * 4, texts[:4], 4) == []
    with pytest.raises(DataError, match="corrupt gave"):
        Cooper(RewardModel(tiny()), sevens, lambda **_: ["1", "2", "3"]).pairs([PROMPTS[0]] * 4, texts[:4], 4)
    with pytest.raises(ConfigError, match="one of pairs"):
        Cooper(RewardModel(tiny(), "steps"), sevens, corrupted)


def test_cooper_trains_its_judge_and_is_gone_on_with_bit_for_bit(tmp_path: pathlib.Path) -> None:
    def cooper() -> Cooper:
        return Cooper(RewardModel(tiny(1)), sevens, corrupted, RewardTraining(learning_rate=1e-3))

    config, one = dataclasses.replace(SMALL, steps=6), method("dr_grpo")
    policy, judge = tiny(), cooper()
    lines = train(policy, PROMPTS, judge, one, config, tmp_path / "whole", held_out=PROMPTS)
    assert any(line.get("judge_pairs", 0) > 0 for line in lines)
    assert bool(judge.model.head.weight.any())
    assert (
        lines[0]["evaluation"] == evaluate(tiny(), PROMPTS, sevens, new=5, samples=8, seed=0).to_json()
    )  # by the rule, not by its scores
    train(tiny(), PROMPTS, cooper(), one, dataclasses.replace(config, steps=4), tmp_path / "parts", held_out=PROMPTS)
    resumed, again = tiny(), cooper()
    train(resumed, PROMPTS, again, one, config, tmp_path / "parts", held_out=PROMPTS)
    for first, second in ((policy, resumed), (judge.model.policy, again.model.policy)):
        for name, value in first.model.state_dict().items():
            assert torch.equal(value, second.model.state_dict()[name]), name
