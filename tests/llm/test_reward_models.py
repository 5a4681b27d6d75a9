"""Reward models tell better answers and right steps apart, are rewards, and go through files."""

from __future__ import annotations

import json
import math
import pathlib

import numpy as np
import pytest
import torch
from refusals import refused

from surefoot.cli.main import main
from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.llm import Loop, Prompt, TrainConfig, load_reward, method, scores
from surefoot.llm.characters import character_policy
from surefoot.llm.feedback import LabelledSteps, Pair, read_feedback
from surefoot.llm.losses import preference_terms, step_label_terms
from surefoot.llm.policy import LMPolicy
from surefoot.llm.reward_models import HEAD, RewardModel, RewardTraining, accuracy, train_reward_model

QUICK = RewardTraining(steps=60, rows=32, learning_rate=3e-3)


def tiny(rotary: bool = False) -> LMPolicy:
    return character_policy("0123456789=\n", layers=1, width=32, heads=2, context=16, rotary=rotary)


def digits(random: np.random.Generator, among: str, count: int) -> str:
    return "".join(random.choice(list(among), count))


def pairs(count: int, seed: int = 0) -> list[Pair]:
    """An answer with a seven in it is the better one."""
    random = np.random.default_rng(seed)
    return [Pair(f"{n}=", digits(random, "012", 2) + "7", digits(random, "012", 3)) for n in range(count)]


def test_terms_by_hand() -> None:
    found = preference_terms(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0]), 0.1)
    torch.testing.assert_close(found, torch.tensor([math.log(1 + math.exp(-1)) + 0.9, math.log(2)]))
    right = step_label_terms(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(right, torch.tensor([math.log(1 + math.exp(-1)), math.log(1 + math.e)]))


@pytest.mark.parametrize("rotary", [False, True])
def test_pairs_are_told_apart_and_scores_do_not_depend_on_who_stands_beside(
    rotary: bool, tmp_path: pathlib.Path
) -> None:
    model = RewardModel(tiny(rotary))
    unseen = pairs(40, seed=1)
    assert accuracy(model, unseen) == (0.0, 40)  # all scores are 0 at first, and a tie is not right
    train_reward_model(model, pairs(200), QUICK)
    assert accuracy(model, unseen)[0] > 0.9
    together = model(["1=", "1234567="], ["17", "0127"])
    alone = [model([prompt], [text])[0] for prompt, text in (("1=", "17"), ("1234567=", "0127"))]
    np.testing.assert_allclose(together, alone, atol=1e-5)

    model.save(tmp_path / "rm")
    again = load_reward(str(tmp_path / "rm"))
    assert again(["1=", "1234567="], ["17", "0127"]) == together
    found = scores(again, [Prompt("1="), Prompt("2=")], ["17", "11"], [[3], [3, 3]])
    assert found[0] > found[1]
    (tmp_path / "rm" / HEAD).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="reward_head"):
        load_reward(str(tmp_path / "rm"))


def test_right_steps_are_told_from_wrong_ones_at_their_ends() -> None:
    random = np.random.default_rng(0)
    data = []
    for n in range(200):
        steps = tuple(digits(random, "0127", 2) for _ in range(3))
        data.append(LabelledSteps(f"{n}=", steps, tuple(float("7" in step) for step in steps)))
    model = RewardModel(tiny(), "steps")
    answers = model.tokens(["07\n10\n77", "7\n", "12"])
    assert model.step_ends(answers) == [[2, 5, 8], [1], [2]]  # the end token's place is the length
    train_reward_model(model, data[:160], RewardTraining(steps=120, rows=32, learning_rate=3e-3))
    assert accuracy(model, data[160:])[0] > 0.9
    rewards = model.step_rewards(["5="], ["07\n10\n77"])[0]
    assert rewards[2] > 0.7 > 0.3 > rewards[5]
    assert model(["5="], ["07\n10\n77"]) == [pytest.approx(rewards[5])]


def test_a_model_of_steps_is_refused_that_would_read_other_tokens_than_the_policy_wrote() -> None:
    config = TrainConfig(steps=1, prompts_per_step=2, group=4, max_new_tokens=4)
    prompts, one = [Prompt("1="), Prompt("2=")], method("process")
    other = character_policy("-0123456789=\n", layers=1, width=32, heads=2, context=16)
    own, theirs = other.tokenizer("12\n3")["input_ids"], tiny().tokenizer("12\n3")["input_ids"]
    assert tiny().tokenizer.decode(own) != "12\n3" == tiny().tokenizer.decode(theirs)
    said = r"token 3 is '-' to the policy \(15 tokens\) and '0' to the reward model \(14\)"
    with pytest.raises(ConfigError, match=said):
        Loop(other, prompts, RewardModel(tiny(), "steps"), one, config)
    Loop(other, prompts, RewardModel(tiny(), "steps"), method("grpo"), config)  # reads texts
    Loop(tiny(), prompts, RewardModel(tiny(rotary=True), "steps"), one, config).advance()


def test_what_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="of pairs or of steps"):
        RewardModel(tiny(), "triples")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="learns from one line or more"):
        train_reward_model(RewardModel(tiny()), [], QUICK)
    with pytest.raises(ConfigError, match="learns from a list of Pair"):
        train_reward_model(RewardModel(tiny()), [LabelledSteps("1=", ("1",), (1.0,))], QUICK)
    with refused("steps", "range"):
        RewardTraining(steps=0)
    with pytest.raises(ConfigError, match="reward model's context of 16"):
        RewardModel(tiny())(["0123456789="], ["01234"])
    bad = LabelledSteps("1=", ("1\n2", "3"), (1.0, 0.0))
    with pytest.raises(ConfigError, match="has 2 labels, and 3 steps"):
        train_reward_model(RewardModel(tiny(), "steps"), [bad], QUICK)
    with pytest.raises(ConfigError, match="no rewards of steps"):
        RewardModel(tiny()).step_rewards(["1="], ["2"])
    path = tmp_path / "pairs.jsonl"
    good = json.dumps({"prompt": "1=", "chosen": "7", "rejected": "1"})
    for line in (
        '{"prompt": "1="',
        '{"prompt": "1=", "chosen": "7"}',
        '{"prompt": "1=", "chosen": "7", "rejected": "7"}',
    ):
        path.write_text(f"{good}\n{line}\n")
        with pytest.raises(DataError, match=r"pairs\.jsonl, line 2: (is neither|not readable)"):
            read_feedback(path)
    path.write_text(f'{good}\n{{"prompt": "1=", "completions": ["1"], "labels": [1]}}\n')
    with pytest.raises(DataError, match="line 2: is of another kind"):
        read_feedback(path)
    path.write_text('{"prompt": "1=", "completions": ["1", "2"], "labels": [1]}\n')
    with pytest.raises(DataError, match="2 steps have 1 labels"):
        read_feedback(path)


def test_a_reward_model_is_trained_and_used_from_the_command_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny().save("base")
    lines = [json.dumps({"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected}) for p in pairs(60)]
    pathlib.Path("pairs.jsonl").write_text("\n".join(lines))
    pathlib.Path("prompts.jsonl").write_text('{"prompt": "1="}\n{"prompt": "2="}\n')
    words = ["llm", "reward", "model=base", "data=pairs.jsonl", "out=rm", "steps=3", "rows=8", "--json", "-q"]
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["trained"], facts["held_out"]) == ("pairs", 54, 6)
    settings = ["steps=2", "prompts_per_step=2", "group=4", "max_new_tokens=4", "learning_rate=1e-3", "out=run", "-q"]
    assert main(["llm", "train", "model=base", "prompts=prompts.jsonl", "reward=rm", *settings]) == 0
    assert pathlib.Path(json.loads(pathlib.Path("run/config.json").read_text())["plan"]["reward"]) == tmp_path / "rm"
    assert main(["llm", "reward", "model=base", "data=pairs.jsonl", "out=other", "steps=0"]) == 2
    assert "steps is 0, must be > 0" in capsys.readouterr().err
    assert not pathlib.Path("other").exists()
