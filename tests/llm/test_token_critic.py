"""The critic of tokens: what it reads, what it learns, that PPO and NLPO learn with it, and that runs continue it."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
import torch

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.llm import LMPolicy, Loop, Prompt, TrainConfig, method, train
from surefoot.llm.characters import character_policy
from surefoot.llm.export import trl_trainer, verl_policy_loss
from surefoot.llm.losses.method import critic_advantages
from surefoot.llm.reward_models import RewardModel
from surefoot.llm.supervised import CHECKPOINT
from surefoot.llm.team import CORY, Team, train_team
from surefoot.llm.token_critic import TokenCritic

PROMPTS = [Prompt(text) for text in ("1=", "23=", "4=", "567=")]
SMALL = TrainConfig(
    steps=4, prompts_per_step=4, group=4, max_new_tokens=4, learning_rate=1e-3, checkpoint_every=2, evaluate_every=9
)


def tiny(seed: int = 0, rotary: bool = False) -> LMPolicy:
    return character_policy("0123456789=\n", layers=1, width=32, heads=2, context=24, seed=seed, rotary=rotary)


def sevens(completions: list[str], **columns: Any) -> list[float]:
    return [text.count("7") / 4 for text in completions]


def judge(seed: int = 5, rotary: bool = False) -> RewardModel:
    """A reward model whose head gives something."""
    model = RewardModel(tiny(seed, rotary))
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(seed))
    return model


def weights(policy: LMPolicy) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.model.parameters()]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def same_state(one: TokenCritic, other: TokenCritic) -> bool:
    first, second = one.tensors(), other.tensors()
    return set(first) == set(second) and all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize("rotary", [False, True])
def test_a_value_is_of_what_stands_before_its_token(rotary: bool) -> None:
    model = judge(rotary=rotary)
    loop = Loop(tiny(rotary=rotary), PROMPTS, sevens, method("ppo"), SMALL, model)
    assert loop.critic is not None
    rollout, _, _ = loop.collect()
    found = loop.critic.all_values(rollout)
    assert found.shape == rollout.completion_ids.shape
    inner = model.policy.model.base_model
    for row in range(len(found)):
        prompt = rollout.prompt_ids[row][rollout.prompt_mask[row] != 0]
        for place in range(int(rollout.completion_mask[row].sum())):
            read = torch.cat([prompt, rollout.completion_ids[row, :place]]).unsqueeze(0)
            with torch.no_grad():
                alone = model.head(inner(input_ids=read).last_hidden_state[0, -1])
            torch.testing.assert_close(found[row, place], alone[0], atol=2e-5, rtol=1e-5)


def test_advantages_and_targets_in_numbers() -> None:
    """Two answers of three and two tokens, worked out by hand."""
    one = method("ppo", discount=0.5, trace=0.5, kl_coefficient=0.1)
    values = torch.tensor([[1.0, 2.0, 4.0], [0.0, 1.0, 9.0], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    kl = torch.tensor([[1.0, 0.0, 2.0], [0.0, -1.0, 9.0], [1.0, 1.0, 1.0]])
    found, targets = critic_advantages(one, torch.tensor([2.0, -1.0, torch.nan]), mask, values, kl)
    last = 2.0 - 0.2 - 4.0
    middle = 0.5 * 4.0 - 2.0 + 0.25 * last
    first = -0.1 + 0.5 * 2.0 - 1.0 + 0.25 * middle
    end = -1.0 + 0.1 - 1.0
    begin = 0.5 * 1.0 + 0.25 * end
    raw = torch.tensor([first, middle, last, begin, end])
    white = (raw - raw.mean()) / raw.std()
    torch.testing.assert_close(found[mask != 0][:5], white)
    torch.testing.assert_close(targets[mask != 0][:5], raw + torch.tensor([1.0, 2.0, 4.0, 0.0, 1.0]))
    assert found[2].tolist() == [0, 0, 0]  # an answer without a score
    assert found[1, 2] == targets[1, 2] == 0


def test_a_step_of_the_critic_is_that_of_the_clipped_error_over_tokens_whatever_fits_into_memory() -> None:
    moved = []
    for rows in (256, 4):
        loop = Loop(tiny(), PROMPTS, sevens, method("ppo"), SMALL, judge())
        rollout, returns, _ = loop.collect()
        returns[3] = torch.nan
        batch = loop.prepare(rollout, returns, *(part.detach() for part in loop._first(rollout)))
        assert loop.critic is not None
        assert batch.values is not None
        assert batch.value_targets is not None
        batch = dataclasses.replace(batch, values=batch.values - 0.5 * (torch.arange(16) % 2).unsqueeze(1))
        mask = batch.mask * (torch.arange(16) != 3).unsqueeze(1)
        now = loop.critic.values(rollout)
        near = torch.minimum(torch.maximum(now, batch.values - 0.2), batch.values + 0.2)
        worse = torch.maximum((now - batch.value_targets) ** 2, (near - batch.value_targets) ** 2)
        wanted = (worse * mask).sum() / 2 / mask.sum()
        gradient = torch.autograd.grad(wanted, loop.critic.model.head.weight)[0]
        loop.critic.at_once = rows
        found = loop.critic.update(rollout, batch, torch.arange(16), 1e9, 1.0, "step 0")
        assert found["critic_loss"] == pytest.approx(float(wanted.detach()), rel=1e-5)
        torch.testing.assert_close(loop.critic.model.head.weight.grad, gradient, rtol=1e-4, atol=1e-6)
        moved.append(weights(loop.critic.model.policy))
    for one, other in zip(*moved, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=3e-4)


@pytest.mark.parametrize("name", ["ppo", "nlpo"])
def test_what_is_rewarded_becomes_likely_and_the_critic_knows_it(name: str) -> None:
    config = TrainConfig(
        steps=40, prompts_per_step=4, group=8, max_new_tokens=4, learning_rate=1e-2, epochs=2, minibatches=2,
        critic_learning_rate=3e-3, evaluate_every=100,
    )  # fmt: skip
    found = train(tiny(), PROMPTS, sevens, method(name, kl_coefficient=0.01), config)
    assert found[0]["reward"] < 0.3
    assert max(line["reward"] for line in found[-5:]) > 0.8
    explained = [line["explained_variance"] for line in found]
    assert max(explained) > 0.3
    assert found[-1]["critic_loss"] < found[5]["critic_loss"] or found[-1]["critic_loss"] < 0.01


def test_one_answer_a_prompt_is_enough() -> None:
    config = dataclasses.replace(SMALL, group=1, steps=2)
    policy = tiny()
    before = weights(policy)
    train(policy, PROMPTS, sevens, method("ppo"), config)
    assert not equal(before, weights(policy))


@pytest.mark.parametrize("name", ["ppo", "nlpo"])
def test_a_run_that_was_killed_goes_on_bit_for_bit(name: str, tmp_path: pathlib.Path) -> None:
    config = dataclasses.replace(SMALL, epochs=2, minibatches=2, nucleus_every=3, warm_up=2, critic_learning_rate=2e-3)

    class Killed(Exception):
        pass

    def kill(line: dict[str, Any]) -> None:
        if line["step"] == 3:
            raise Killed

    whole = Loop(tiny(), PROMPTS, sevens, method(name), config)
    for _ in range(config.steps):
        whole.advance()
    with pytest.raises(Killed):
        train(tiny(), PROMPTS, sevens, method(name), config, tmp_path, progress=kill)
    train(tiny(), PROMPTS, sevens, method(name), config, tmp_path)
    again = Loop(tiny(), PROMPTS, sevens, method(name), config)
    again.load(tmp_path / CHECKPOINT)
    assert whole.critic is not None
    assert again.critic is not None
    assert equal(weights(whole.policy), weights(again.policy))
    assert same_state(whole.critic, again.critic)
    with pytest.raises(CheckpointError, match=r"method\.advantages=gae, and this one has method\.advantages=whitened"):
        train(tiny(), PROMPTS, sevens, method("reinforce_pp"), dataclasses.replace(config, critic_learning_rate=0.0),
              tmp_path)  # fmt: skip


def test_the_critic_of_adapters_has_adapters_of_its_own() -> None:
    pytest.importorskip("peft")
    from surefoot.llm.adapters import with_lora

    policy = with_lora(tiny(), 4)
    loop = Loop(policy, PROMPTS, sevens, method("ppo"), SMALL)
    assert loop.critic is not None
    own = loop.critic.optimizer.parameters
    assert len(own) == len(loop.parameters) + 2
    frozen = {id(p) for p in policy.model.parameters() if not p.requires_grad}
    assert {id(p) for p in loop.critic.model.policy.model.parameters() if not p.requires_grad} == frozen
    before = [value.detach().clone() for value in own.values()]
    for _ in range(2):
        loop.advance()
    assert not equal(before, [value.detach() for value in own.values()])


def test_cory_is_ppo_of_two_who_share_their_rewards_and_change_places() -> None:
    config = TrainConfig(steps=30, prompts_per_step=4, group=8, max_new_tokens=3, learning_rate=1e-2)
    team = Team([tiny(0), tiny(1)], PROMPTS, sevens, method("ppo", kl_coefficient=0.01), config, CORY)
    lines = train_team(team)
    assert [line["0/place"] for line in lines[:12]] == [0] * 5 + [1] * 5 + [0] * 2
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.5
    assert all("0/critic_loss" in line and "1/critic_loss" in line for line in lines)


def test_a_team_with_critics_goes_on_bit_for_bit(tmp_path: pathlib.Path) -> None:
    config = TrainConfig(steps=4, prompts_per_step=4, group=2, max_new_tokens=3, learning_rate=1e-2, checkpoint_every=2)

    def team() -> Team:
        return Team([tiny(0), tiny(1)], PROMPTS, sevens, method("ppo"), config, CORY)

    whole = team()
    train_team(whole)

    class Killed(Exception):
        pass

    def kill(line: dict[str, Any]) -> None:
        if line["step"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train_team(team(), kill, tmp_path)
    again = team()
    train_team(again, folder=tmp_path)
    for one, other in zip(whole.loops, again.loops, strict=True):
        assert one.critic is not None
        assert other.critic is not None
        assert equal(weights(one.policy), weights(other.policy))
        assert same_state(one.critic, other.critic)


def test_what_is_refused() -> None:
    policy, model = tiny(), judge()
    for critic, config in ((model, SMALL), (None, dataclasses.replace(SMALL, critic_learning_rate=1e-3))):
        with pytest.raises(ConfigError, match=r"critic.* is for method\.advantages=gae, as method=ppo has"):
            Loop(policy, PROMPTS, sevens, method("grpo"), config, critic)
    with pytest.raises(ConfigError, match="not one of steps"):
        Loop(policy, PROMPTS, sevens, method("ppo"), SMALL, RewardModel(tiny(), "steps"))
    with pytest.raises(ConfigError, match="a model of its own"):
        Loop(policy, PROMPTS, sevens, method("ppo"), SMALL, RewardModel(policy))
    with pytest.raises(ConfigError, match="read the reward model's folder twice"):
        Loop(policy, PROMPTS, model, method("ppo"), SMALL, model)
    other = RewardModel(character_policy("ab", layers=1, width=32, heads=2, context=24))
    with pytest.raises(ConfigError, match=r"is .* to the policy"):
        Loop(policy, PROMPTS, sevens, method("ppo"), SMALL, other)
    for changes in ({"ratio": "chain"}, {"surrogate": "pacs", "kl": "k3"}):
        with pytest.raises(ConfigError, match=r"advantages=gae are those of tokens, and method\.surrogate="):
            method("ppo", **changes)
    for field, value in (("trace", 1.5), ("discount", -0.1), ("value_clip", -1.0)):
        with pytest.raises(ConfigError, match=rf"method\.{field} is {value}, must"):
            method("ppo", **{field: value})
    with pytest.raises(ConfigError, match=r"critic_learning_rate is -1\.0, must be >= 0"):
        dataclasses.replace(SMALL, critic_learning_rate=-1.0)
    with pytest.raises(ConfigError, match="adv_estimator=gae there"):
        verl_policy_loss("ppo")
    with pytest.raises(ConfigError, match="gae"):
        trl_trainer("ppo")
