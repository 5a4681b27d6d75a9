"""Teams: who reads what, who gets which reward, who learns when, and that a team learns what one alone can't."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
import torch

from surefoot.core.errors import CheckpointError, ConfigError
from surefoot.llm import LMPolicy, Prompt, TrainConfig, method
from surefoot.llm.characters import character_policy
from surefoot.llm.team import CORY, MARFT, Team, TeamConfig, after, train_team

PROMPTS = [Prompt(text) for text in ("1=", "2=", "3=", "4=")]
SMALL = TrainConfig(steps=4, prompts_per_step=4, group=4, max_new_tokens=3, learning_rate=1e-2)
GRPO = method("grpo", kl="none", kl_coefficient=0.0)


def tiny(seed: int) -> LMPolicy:
    return character_policy("01234567=\n", layers=1, width=32, heads=2, context=16, seed=seed)


def sevens(completions: list[str], **columns: Any) -> list[float]:
    return [text.count("7") / 3 for text in completions]


def lengths(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [ids.count(4) + len(ids) / 3 for ids in completion_ids]


def weights(policy: LMPolicy) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.model.parameters()]


def moved(before: list[torch.Tensor], policy: LMPolicy) -> bool:
    return not all(torch.equal(old, new) for old, new in zip(before, weights(policy), strict=True))


def test_the_second_reads_what_the_first_said_and_both_get_the_sum() -> None:
    team = Team([tiny(0), tiny(1)], PROMPTS, sevens, GRPO, SMALL, CORY)
    rollouts, said, rows = team.speak()
    read = team.loops[1].policy.tokenizer
    for row in range(len(rows)):
        kept = rollouts[1].prompt_mask[row] != 0
        assert read.decode(rollouts[1].prompt_ids[row][kept]) == after(str(rows[row].text), [said[0][row]])
    assert [row.text for row in rows[:5]] == [rows[0].text] * 4 + [rows[4].text]
    own = [torch.tensor([1.0, 0.0]), torch.tensor([0.5, 2.0])]
    assert team._shared(own).tolist() == [1.5, 2.0]
    assert Team([tiny(0), tiny(1)], PROMPTS, sevens, GRPO, SMALL, MARFT)._shared(own).tolist() == [0.5, 2.0]


def test_places_are_changed_and_members_learn_in_turn() -> None:
    policies = [tiny(0), tiny(1)]
    pair = Team(policies, PROMPTS, sevens, GRPO, SMALL, TeamConfig(swap_every=2))
    lines = train_team(pair)
    assert [line["0/place"] for line in lines] == [0, 0, 1, 1]
    assert [line["1/place"] for line in lines] == [1, 1, 0, 0]

    policies = [tiny(n) for n in range(3)]
    team = Team(policies, PROMPTS, lengths, GRPO, SMALL, MARFT)
    for step in range(3):
        before = [weights(policy) for policy in policies]
        team.advance()
        changed = [moved(old, policy) for old, policy in zip(before, policies, strict=True)]
        assert changed == [n == step for n in range(3)]


@pytest.mark.parametrize("kind", ["cory", "marft"])
def test_a_team_learns_what_is_rewarded(kind: str) -> None:
    chosen = CORY if kind == "cory" else MARFT
    one = GRPO if kind == "cory" else dataclasses.replace(GRPO, ratio="chain")
    config = dataclasses.replace(SMALL, steps=30 if kind == "cory" else 50, group=8)
    lines = train_team(Team([tiny(0), tiny(1)], PROMPTS, sevens, one, config, chosen))
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.5


def test_what_is_refused() -> None:
    policy = tiny(0)
    for policies in ([policy], [policy, policy]):
        with pytest.raises(ConfigError, match="two policies or more"):
            Team(policies, PROMPTS, sevens, GRPO, SMALL, CORY)
    with pytest.raises(ConfigError, match="prompts are texts"):
        Team([tiny(0), tiny(1)], [Prompt([{"role": "user", "content": "1="}])], sevens, GRPO, SMALL, CORY)
    with pytest.raises(ConfigError, match="must be sum or last"):
        TeamConfig(credit="first")  # type: ignore[arg-type]
    long = Team([tiny(0), tiny(1)], [Prompt("1234567=")] * 4, sevens, GRPO, SMALL, CORY, lambda p, said: p * 3)
    with pytest.raises(ConfigError, match="more than the model's context"):
        long.advance()


def test_a_team_that_was_killed_goes_on_bit_for_bit(tmp_path: pathlib.Path) -> None:
    config = dataclasses.replace(SMALL, steps=5, checkpoint_every=2)

    def made() -> tuple[list[LMPolicy], Team]:
        policies = [tiny(0), tiny(1)]
        return policies, Team(policies, PROMPTS, lengths, GRPO, config, TeamConfig(swap_every=3))

    whole, team = made()
    train_team(team)

    class Killed(Exception):
        pass

    def kill(line: dict[str, Any]) -> None:
        if line["step"] == 4:
            raise Killed

    with pytest.raises(Killed):
        train_team(made()[1], kill, tmp_path)
    again, team = made()
    lines = train_team(team, folder=tmp_path)
    assert [line["step"] for line in lines] == [3, 4, 5]
    for first, second in zip(whole, again, strict=True):
        assert not moved(weights(first), second)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-5"]
    (tmp_path / "team.json").write_text('{"step": 5, "order": [0, 1, 2]}')
    with pytest.raises(CheckpointError, match="is not of a team of 2"):
        made()[1].load(tmp_path)
