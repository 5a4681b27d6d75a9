"""Several rewards are weighed, the best model is kept beside the last, and so is a threshold that nothing reaches."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import warnings
from typing import Any

import pytest
import torch

from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError
from surefoot.llm import LMPolicy, Loop, Prompt, TrainConfig, evaluate, load_policy, method, scores, train
from surefoot.llm.characters import character_policy
from surefoot.llm.rewards import Weighted, later

PROMPTS = [Prompt(f"{n}=", {"answer": "7"}) for n in range(4)]
QUICK = TrainConfig(steps=2, prompts_per_step=2, group=4, max_new_tokens=3, learning_rate=1e-3, samples=2)


def tiny() -> LMPolicy:
    return character_policy("0123456789=", layers=1, width=16, heads=2, context=12)


def length(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def exact(completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
    return [None if not text else float(text == right) for text, right in zip(completions, answer, strict=True)]


class Reads:
    """Is shown the policy, and can't tell."""

    reads_policy = True

    def __call__(self, completions: list[str], policy: Any, **columns: Any) -> list[None]:
        assert policy is not None
        return [None] * len(completions)


def given(*texts: str) -> tuple[Any, ...]:
    return PROMPTS[: len(texts)], list(texts), [[1]] * len(texts)


def flat(policy: LMPolicy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


@pytest.mark.parametrize("late", [False, True])
def test_a_weighted_sum_by_hand(late: bool) -> None:
    judge = later(exact) if late else exact
    whole = Weighted([judge, length], [1.0, -0.25])
    torch.testing.assert_close(scores(whole, *given("7", "77", "")), torch.tensor([0.75, -0.5, 0.0]))
    assert whole.means == {"exact": 0.5, "length": 1.0}


def test_no_reward_at_all_is_none() -> None:
    found = scores(Weighted([exact, Reads()], [1.0, 2.0]), *given("7", ""), policy=object())  # type: ignore[arg-type]
    assert found[0] == 1
    assert math.isnan(float(found[1]))


def test_sums_that_do_not_fit_are_refused() -> None:
    for shares in ([1.0], [1.0, math.nan]):
        with pytest.raises(ConfigError, match="must be 2 numbers"):
            Weighted([exact, length], shares)

    class Learns:
        def __call__(self, **given: Any) -> list[float]:
            return []

        def learn(self, *given: Any) -> dict[str, float]:
            return {}

        def state(self) -> dict[str, torch.Tensor]:
            return {}

        def load_state(self, state: Any) -> None:
            return None

    with pytest.raises(ConfigError, match="stands alone"):
        Weighted([Learns(), length], [1.0, 1.0])


def test_the_log_has_the_mean_of_each() -> None:
    words = Weighted([length, length], [1.0, 0.5])
    line = Loop(tiny(), PROMPTS, words, method("grpo"), QUICK).advance()
    assert line["reward"] == pytest.approx(1.5 * line["reward_length"])
    assert line["reward_length"] == line["reward_length_2"]


def test_the_best_model_stays_beside_the_last(tmp_path: pathlib.Path) -> None:
    """By the rule all answers are right after step 2 alone, in greedy and in sampled ones."""
    policy, kept = tiny(), dict[int, torch.Tensor]()
    config = dataclasses.replace(QUICK, steps=4, evaluate_every=1)

    class Judge:
        step = 0

        def __call__(self, completions: list[str], **columns: Any) -> list[float]:
            return [float(text.count("7")) for text in completions]

        def rule(self, completions: list[str], **columns: Any) -> list[float]:
            return [float(self.step == 2)] * len(completions)

    judge = Judge()

    def heard(line: dict[str, Any]) -> None:
        if "evaluation" in line:
            kept[line["step"]] = flat(policy)
        else:
            judge.step = line["step"]

    with pytest.warns(UserWarning, match="none of the answers"):
        train(policy, PROMPTS, judge, method("dr_grpo"), config, tmp_path, held_out=PROMPTS, progress=heard)
    assert torch.equal(flat(load_policy(tmp_path / "best")), kept[2])
    assert not torch.equal(kept[2], kept[4])
    assert torch.equal(flat(load_policy(tmp_path / "model")), kept[4])


def test_a_threshold_that_no_reward_reaches_is_told() -> None:
    def half(completions: list[str], **columns: Any) -> list[float]:
        return [0.5] * len(completions)

    with pytest.warns(UserWarning, match=r"the highest reward is 0\.5, and one is right from solved=1 on"):
        train(tiny(), PROMPTS, half, method("dr_grpo"), QUICK, held_out=PROMPTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        config = dataclasses.replace(QUICK, solved=0.5)
        lines = train(tiny(), PROMPTS, half, method("dr_grpo"), config, held_out=PROMPTS)
    assert [line["evaluation"]["pass_k"][0] for line in lines if "evaluation" in line] == [1.0, 1.0]
    found = evaluate(tiny(), PROMPTS, half, new=2, samples=2, solved=0.4)
    assert (found.pass_1[0], found.highest) == (1.0, 0.5)
    with pytest.raises(ConfigError, match="solved is nan, must be a finite number"):
        TrainConfig(solved=math.nan)


def test_from_the_command_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tiny().save("tiny")
    pathlib.Path("prompts.jsonl").write_text("\n".join(json.dumps({"prompt": one.text}) for one in PROMPTS))
    pathlib.Path("two_llm_rewards.py").write_text(
        "def short(completions, **columns):\n    return [1 / (1 + len(c)) for c in completions]\n\n"
        "def sevens(completions, **columns):\n    return [float(c.count('7')) for c in completions]\n"
    )
    words = [
        "llm",
        "train",
        "model=tiny",
        "prompts=prompts.jsonl",
        "reward=two_llm_rewards:short,two_llm_rewards:sevens",
    ]
    words += ["steps=2", "prompts_per_step=2", "group=4", "max_new_tokens=3", "out=run", "held_out=prompts.jsonl"]
    assert main([*words, "reward_shares=1"]) == 2
    assert "has 1 weights" in capsys.readouterr().err
    assert main([*words, "reward_shares=1,0.5", "solved=0.01", "-q"]) == 0
    assert "best on held-out prompts at step 0, 1.000: the one before training" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all({"reward_short", "reward_sevens"} <= set(one["values"]) for one in lines if one["kind"] == "train")
    ask = [
        "llm",
        "evaluate",
        "run",
        "prompts.jsonl",
        "two_llm_rewards:short",
        "--max-new-tokens",
        "2",
        "--samples",
        "2",
    ]
    assert main([*ask, "--solved", "0.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pass_1"][0] == 1
    assert main([*ask, "--best"]) == 2
    assert "kept no best model" in capsys.readouterr().err
    assert main(["llm", "train", "--resume", "run", "-q"]) == 0
