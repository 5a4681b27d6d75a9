"""Teams: who reads what, who gets which reward, who learns when, and that a team learns what one alone can't."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
import torch
from refusals import refused

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.llm import LMPolicy, Prompt, TrainConfig, method
from surefoot.llm.characters import character_policy
from surefoot.llm.critic import CriticConfig, TeamCritic
from surefoot.llm.reward_models import RewardModel
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


def test_the_reference_of_one_whose_turn_it_is_not_follows_too() -> None:
    policies = [tiny(0), tiny(1)]
    config = dataclasses.replace(SMALL, steps=8, reference_every=2)
    team = Team(policies, PROMPTS, lengths, method("grpo"), config, MARFT)
    for step in range(1, 9):
        begun = [weights(policy) for policy in policies]
        team.advance()
        for old, loop in zip(begun, team.loops, strict=True):
            assert loop.reference is not None
            if step % 2 == 0:
                assert not moved(weights(loop.policy), loop.reference)
            elif moved(old, loop.policy):
                assert moved(weights(loop.policy), loop.reference)


def test_the_first_step_of_each_one_is_checked() -> None:
    policies = [tiny(0), tiny(1)]
    policies[1].model.transformer.drop.p = 0.5
    policies[1].model.transformer.drop.train()
    team = Team(policies, PROMPTS, lengths, GRPO, SMALL, MARFT)
    team.advance()
    with pytest.raises(ConfigError, match=r"differs by .* nats between sampling and training"):
        team.advance()


def test_members_sample_by_continuous_batching_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def batch(policy: LMPolicy, prompts: list[list[int]], new: int) -> list[tuple[list[int], list[float]]]:
        asked.append(policy)
        return [([3], [-1.0]) for _ in prompts]

    monkeypatch.setattr("surefoot.llm.policy.continuous_batch", batch)
    policies = [tiny(0), tiny(1)]
    Team(policies, PROMPTS, sevens, GRPO, dataclasses.replace(SMALL, continuous=True), CORY).speak()
    assert asked == policies


def critic(seed: int, learning_rate: float = 3e-3) -> TeamCritic:
    return TeamCritic(RewardModel(tiny(seed)), CriticConfig(learning_rate=learning_rate, updates=4))


def test_a_critics_advantages_are_taken_over_messages() -> None:
    found = critic(9)
    found.config = CriticConfig(discount=0.9, trace=0.5)
    table = {"a": 0.5, "b": -1.0, "c": 2.0, "ax": 1.0, "bx": 0.0, "cx": 7.0}
    found.values = lambda texts: torch.tensor([table[text] for text in texts])  # type: ignore[method-assign]
    read = [["a", "b", "c"], ["ax", "bx", "cx"]]
    advantages, returns = found.advantages(read, torch.tensor([3.0, 1.0, torch.nan]))
    last = [3.0 - 1.0, 1.0 - 0.0]
    first = [0.9 * 1.0 - 0.5 + 0.45 * last[0], 0.9 * 0.0 + 1.0 + 0.45 * last[1]]
    raw = torch.tensor([[first[0], last[0]], [first[1], last[1]]])
    torch.testing.assert_close(advantages[:2], (raw - raw.mean()) / raw.std())
    assert advantages[2].tolist() == [0.0, 0.0]  # no reward
    wanted = raw + torch.tensor([[0.5, 1.0], [-1.0, 0.0]])
    torch.testing.assert_close(returns[:2], wanted)
    assert returns[2].isnan().all()


def test_a_critic_learns_the_rewards_that_follow_what_is_read() -> None:
    found = critic(9)
    read = [["1=", "2=", "3=", "4="], ["1=\n7\n", "2=\n1\n", "3=\n7\n", "4=\n1\n"]]
    returns = torch.tensor([[0.5, 1.0], [0.2, 0.0], [0.5, 1.0], [torch.nan, torch.nan]])
    before = found.update(read, returns)
    for _ in range(60):
        after_training = found.update(read, returns)
    assert before["critic_loss"] == pytest.approx(float(returns[:3].square().mean()))  # it begins with 0
    assert after_training["critic_loss"] < 0.1 * after_training["returns_variance"]
    torch.testing.assert_close(found.values(read[1][:3]), returns[:3, 1], atol=0.15, rtol=0.0)


@pytest.mark.parametrize("kind", ["cory", "marft", "critic"])
def test_a_team_learns_what_is_rewarded(kind: str) -> None:
    chosen = CORY if kind == "cory" else MARFT
    one = GRPO if kind == "cory" else dataclasses.replace(GRPO, ratio="chain")
    config = dataclasses.replace(SMALL, steps=30 if kind == "cory" else 50, group=8)
    own = critic(9) if kind == "critic" else None
    lines = train_team(Team([tiny(0), tiny(1)], PROMPTS, sevens, one, config, chosen, critic=own))
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.5


def test_what_is_refused() -> None:
    policy = tiny(0)
    for policies in ([policy], [policy, policy]):
        with pytest.raises(ConfigError, match="two policies or more"):
            Team(policies, PROMPTS, sevens, GRPO, SMALL, CORY)
    with pytest.raises(ConfigError, match="prompts are texts"):
        Team([tiny(0), tiny(1)], [Prompt([{"role": "user", "content": "1="}])], sevens, GRPO, SMALL, CORY)
    for changes in ({"reads": "diversity"}, {"sage": 1}, {"spread": 0.5}):
        with pytest.raises(ConfigError, match=rf"method.{next(iter(changes))}=.*: a team's answers are drawn plainly"):
            Team([tiny(0), tiny(1)], PROMPTS, sevens, dataclasses.replace(GRPO, **changes), SMALL, CORY)
    with refused("credit", "choice"):
        TeamConfig(credit="first")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="credit=last"):
        Team([tiny(0), tiny(1)], PROMPTS, sevens, GRPO, SMALL, CORY, critic=critic(2))
    with pytest.raises(ConfigError, match="which no member trains"):
        Team([policy, tiny(1)], PROMPTS, sevens, GRPO, SMALL, MARFT, critic=TeamCritic(RewardModel(policy)))
    with pytest.raises(ConfigError, match="a reward model of pairs"):
        TeamCritic(RewardModel(policy, "steps"))
    with refused("trace", "range"):
        CriticConfig(trace=1.5)
    long = Team([tiny(0), tiny(1)], [Prompt("1234567=")] * 4, sevens, GRPO, SMALL, CORY, lambda p, said: p * 3)
    with pytest.raises(ConfigError, match="more than the model's context"):
        long.advance()


@pytest.mark.parametrize("criticised", [False, True])
def test_a_team_that_was_killed_goes_on_bit_for_bit(criticised: bool, tmp_path: pathlib.Path) -> None:
    config = dataclasses.replace(SMALL, steps=5, checkpoint_every=2)

    def made() -> tuple[list[LMPolicy], Team]:
        policies = [tiny(0), tiny(1)]
        chosen = TeamConfig(credit="last" if criticised else "sum", swap_every=3)
        own = critic(9) if criticised else None
        return policies, Team(policies, PROMPTS, lengths, GRPO, config, chosen, critic=own)

    whole, team = made()
    train_team(team)
    if team.critic is not None:
        whole = [*whole, team.critic.model.policy]

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
    if team.critic is not None:
        again = [*again, team.critic.model.policy]
    for first, second in zip(whole, again, strict=True):
        assert not moved(weights(first), second)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-5"]
    other = Team(again[:2], PROMPTS, lengths, GRPO, config, TeamConfig(credit="last", swap_every=2))
    with pytest.raises(CheckpointError, match=r"team\.json: is of a run with (credit=sum|swap_every=3), and"):
        other.load(tmp_path)
    (tmp_path / "team.json").write_text('{"step": 5, "order": [0, 1, 2]}')
    with pytest.raises(CheckpointError, match="is not of a team of 2"):
        made()[1].load(tmp_path)
