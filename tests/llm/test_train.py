"""The loop: it learns what is rewarded, resumes bit for bit, and parts of a batch are the batch."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.llm import METHODS, LMPolicy, Prompt, TrainConfig, evaluate, method, train
from surefoot.llm import loop as loop_module
from surefoot.llm.characters import character_policy
from surefoot.llm.loop import Loop
from surefoot.llm.supervised import CHECKPOINT, METRICS, supervise

PROMPTS = [Prompt(text, {"answer": "7", "kind": "open", "demonstration": "77"}) for text in ("1=", "23=", "4=", "567=")]
SMALL = TrainConfig(
    steps=4, prompts_per_step=4, group=4, max_new_tokens=4, learning_rate=1e-3, checkpoint_every=2, evaluate_every=4
)


def tiny(seed: int = 0) -> LMPolicy:
    return character_policy("0123456789=", layers=1, width=32, heads=2, context=16, seed=seed)


def sevens(completions: list[str], **columns: Any) -> list[float]:
    """Share of sevens among the characters that could be there."""
    return [text.count("7") / 4 for text in completions]


def any_seven(completions: list[str], **columns: Any) -> list[float]:
    return [float("7" in text) for text in completions]


class AnySeven:
    """Each token is a step."""

    __call__ = staticmethod(any_seven)

    def step_rewards(self, completion_ids: list[list[int]], **columns: Any) -> list[dict[int, float]]:
        return [{place: float(place % 2) for place in range(len(ids) + 1)} for ids in completion_ids]


def weights(policy: LMPolicy) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in policy.model.named_parameters()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_steps_that_change_the_model(name: str) -> None:
    policy = tiny()
    before = weights(policy)
    of_urpo = {"judge": "{prompt}{first}{second}", "verdict_tokens": 1}
    marks = {"rlpr": {"answer_mark": ""}, "care": {"answer_mark": "7"}, "urpo": of_urpo}.get(name, {})
    one, reward = method(name, **marks), AnySeven() if name == "process" else any_seven
    config = dataclasses.replace(SMALL, steps=2, epochs=2, minibatches=2, lag=int(one.lagged))
    lines = train(policy, PROMPTS, reward, one, config)
    assert not same(before, weights(policy))
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert [line["step"] for line in lines] == [1, 2]


def test_one_update_on_a_fresh_batch_has_ratio_one_and_clips_nothing() -> None:
    line = train(tiny(), PROMPTS, sevens, method("grpo"), dataclasses.replace(SMALL, steps=1))[0]
    assert line["clip_fraction"] == 0
    assert line["ratio_max"] == 1
    assert line["kl_k3"] == 0
    assert line["gap_max"] < 1e-5
    assert abs(line["reference_kl"]) < 1e-12


def test_equal_rewards_move_nothing() -> None:
    policy = tiny()
    before = weights(policy)
    for name in ("dr_grpo", "lite_ppo", "gspo", "vespo", "cispo", "sapo"):
        train(policy, PROMPTS, lambda completions, **_: [0.3] * len(completions), method(name), SMALL)
        assert same(before, weights(policy)), name


@pytest.mark.parametrize("name", ["dapo_clip", "rloo", "vespo"])
def test_what_is_rewarded_becomes_likely(name: str) -> None:
    policy = tiny()
    config = TrainConfig(
        steps=40, prompts_per_step=4, group=8, max_new_tokens=4, learning_rate=1e-2, evaluate_every=100
    )
    found = train(policy, PROMPTS, sevens, method(name, kl="none", kl_coefficient=0.0, overlong_share=0.0), config)
    assert found[-1]["reward"] > 0.8
    assert found[0]["reward"] < 0.3


@pytest.mark.parametrize("name", ["grpo", "oapl"])
def test_a_run_that_was_killed_goes_on_bit_for_bit(name: str, tmp_path: pathlib.Path) -> None:
    config = dataclasses.replace(SMALL, lag=3 if name == "oapl" else 0, reference_every=0 if name == "oapl" else 3)
    one = method(name)
    policy = tiny()
    whole = train(policy, PROMPTS, sevens, one, config, tmp_path / "whole", held_out=PROMPTS)

    class Killed(Exception):
        pass

    def kill(line: dict[str, Any]) -> None:
        if line["step"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train(tiny(), PROMPTS, sevens, one, config, tmp_path / "killed", held_out=PROMPTS, progress=kill)
    resumed = tiny()
    again = train(resumed, PROMPTS, sevens, one, config, tmp_path / "killed", held_out=PROMPTS)
    assert same(weights(policy), weights(resumed))

    def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in line.items() if "seconds" not in name} for line in lines]

    assert timeless(again) == timeless(whole)
    kept = [json.loads(line) for line in (tmp_path / "killed" / METRICS).read_text().splitlines()]
    assert timeless(kept) == timeless(whole)
    first, second = ((tmp_path / kind / "model" / "model.safetensors").read_bytes() for kind in ("whole", "killed"))
    assert first == second


def test_a_damaged_checkpoint_and_one_of_another_model_are_named(tmp_path: pathlib.Path) -> None:
    train(tiny(), PROMPTS, sevens, method("grpo"), SMALL, tmp_path)
    other = character_policy("0123456789=", layers=1, width=16, heads=2, context=16)
    with pytest.raises(CheckpointError, match="is of another model"):
        train(other, PROMPTS, sevens, method("grpo"), SMALL, tmp_path)
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="damaged"):
        train(tiny(), PROMPTS, sevens, method("grpo"), SMALL, tmp_path)


def test_a_checkpoint_with_numbers_that_are_not_finite_is_refused(tmp_path: pathlib.Path) -> None:
    train(tiny(), PROMPTS, sevens, method("dr_grpo"), SMALL, tmp_path)
    tensors, meta = checkpoint.load(tmp_path / CHECKPOINT)
    name = next(name for name in tensors if name.startswith("model/"))
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[3] = math.nan
    checkpoint.save(tmp_path / CHECKPOINT, tensors, meta)
    policy = tiny()
    before = weights(policy)
    with pytest.raises(CheckpointError, match=rf"{name}.*finite"):
        train(policy, PROMPTS, sevens, method("dr_grpo"), dataclasses.replace(SMALL, steps=6), tmp_path)
    assert same(before, weights(policy))


def test_a_folder_of_another_run_is_refused_by_the_setting_that_differs(tmp_path: pathlib.Path) -> None:
    train(tiny(), PROMPTS, sevens, method("dr_grpo"), SMALL, tmp_path)
    longer = dataclasses.replace(SMALL, steps=6, learning_rate=5e-4, rows_at_once=8, evaluate_every=3)
    policy = tiny()
    before = weights(policy)
    for name, config, prompts, said in (
        ("gspo", longer, PROMPTS, r"with method\.advantages=mean, and this one has method\.advantages=meanstd"),
        ("grpo", longer, PROMPTS, r"with method\.advantages=mean, and"),
        ("dr_grpo", dataclasses.replace(longer, seed=1), PROMPTS, "with seed=0, and this one has seed=1"),
        ("dr_grpo", dataclasses.replace(longer, lag=2), PROMPTS, "with lag=0, and this one has lag=2"),
        ("dr_grpo", longer, PROMPTS[:3], "with prompts=4, and this one has prompts=3"),
    ):
        with pytest.raises(CheckpointError, match=rf"{CHECKPOINT}: is of a run {said}"):
            train(policy, prompts, sevens, method(name), config, tmp_path)
    assert same(before, weights(policy))
    lines = train(policy, PROMPTS, sevens, method("dr_grpo"), longer, tmp_path)  # what may change on the way
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_that_tells_no_settings_is_gone_on_with_unless_it_lacks_something(tmp_path: pathlib.Path) -> None:
    train(tiny(), PROMPTS, sevens, method("dr_grpo"), SMALL, tmp_path)
    tensors, meta = checkpoint.load(tmp_path / CHECKPOINT)
    del meta["settings"]
    checkpoint.save(tmp_path / CHECKPOINT, tensors, meta)
    longer = dataclasses.replace(SMALL, steps=5)
    with pytest.raises(CheckpointError, match="is of another model or method, it has no reference/transformer"):
        train(tiny(), PROMPTS, sevens, method("grpo"), longer, tmp_path)
    assert [line["step"] for line in train(tiny(), PROMPTS, sevens, method("dr_grpo"), longer, tmp_path)][-1] == 5


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo_clip", "rloo", "gspo", "luspo", "pacs", "entropy_tokens"])
def test_the_memory_for_activations_changes_no_step(name: str) -> None:
    found = []
    for rows in (256, 4):
        policy = tiny()
        config = dataclasses.replace(SMALL, steps=1, epochs=2)
        loop = Loop(policy, PROMPTS, sevens, method(name), config)
        rollout, returns, _ = loop.collect()
        loop.config = dataclasses.replace(config, rows_at_once=rows)
        log_prob, entropy = loop._forward(policy, rollout)
        loop.take(rollout, loop.prepare(rollout, returns, log_prob, entropy), None)
        found.append(weights(policy))
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key], rtol=0, atol=3e-4, msg=key)


def test_groups_without_a_difference_are_drawn_again() -> None:
    def rare(completions: list[str], prompts: list[str], **columns: Any) -> list[float]:
        """Only answers to the first prompt differ."""
        return [float(row % 2) if prompt == "1=" else 0.0 for row, prompt in enumerate(prompts)]

    config = dataclasses.replace(SMALL, steps=1, prompts_per_step=2, refills=3)
    loop = Loop(tiny(), PROMPTS, rare, method("dapo_clip"), config)
    line = loop.advance()
    assert line["groups"] == 2
    assert [prompt.text for prompt in loop.answered] == ["1="] * 8
    assert line["same"] in (4 / 6, 6 / 8)  # each prompt comes twice in the eight that may be drawn
    assert train(tiny(), PROMPTS, rare, method("grpo"), config)[0]["groups"] == 2


@pytest.mark.parametrize("name", ["oapl", "async_ppo"])
def test_a_method_for_samplers_that_lag_is_refused_where_none_does(name: str) -> None:
    with pytest.raises(ConfigError, match=r"made for a sampler that lags behind: say lag=.*lag=1 is .* on-policy form"):
        Loop(tiny(), PROMPTS, sevens, method(name), SMALL)
    line = train(tiny(), PROMPTS, sevens, method(name), dataclasses.replace(SMALL, steps=1, lag=1))[0]
    assert line["gap_max"] < 1e-5


def test_an_epoch_has_one_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(seed: int, epoch: int, count: int, *more: int) -> np.ndarray:
        asked.append(epoch)
        return np.random.default_rng([seed, epoch, count, *more]).permutation(count)

    monkeypatch.setattr(loop_module, "_order", counted)
    loop = Loop(tiny(), PROMPTS, sevens, method("grpo"), SMALL)
    found = [loop._draw(3) for _ in range(4)]
    assert asked == [0, 1, 2]
    drawn = [number for part in found for number in part]
    assert all(sorted(drawn[k : k + 4]) == [0, 1, 2, 3] for k in (0, 4, 8))


def test_stale_samples_have_weights_and_too_old_ones_count_for_nothing() -> None:
    config = dataclasses.replace(SMALL, steps=3, lag=3, learning_rate=3e-2)
    lines = train(tiny(), PROMPTS, sevens, method("async_ppo"), config)
    assert lines[0]["gap_max"] < 1e-5
    assert lines[2]["gap_max"] > 0.01
    assert lines[2]["effective_share"] < 0.9999
    policy = tiny()
    train(policy, PROMPTS, sevens, method("async_ppo"), dataclasses.replace(config, steps=1, oldest=0))
    kept = weights(policy)
    policy = tiny()
    train(policy, PROMPTS, sevens, method("async_ppo"), dataclasses.replace(config, steps=3, oldest=0))
    moved = [float((value - kept[name]).abs().max()) for name, value in weights(policy).items()]
    assert max(moved) < 0.1  # Adam's momentum alone: no gradient came from samples of one update ago


@pytest.mark.parametrize("name", ["entropy_tokens", "stapo"])
def test_a_step_of_samples_that_are_all_too_old_trains_nothing_and_the_run_goes_on(name: str) -> None:
    config = dataclasses.replace(SMALL, steps=4, lag=3, oldest=1)
    lines = [line for line in train(tiny(), PROMPTS, sevens, method(name), config) if "reward" in line]
    assert [line["gradient_norm"] == 0 for line in lines] == [False, False, True, False]


def test_a_sampler_that_never_lags_is_never_too_old() -> None:
    config = dataclasses.replace(SMALL, steps=5, oldest=0)
    lines = train(tiny(), PROMPTS, sevens, method("grpo", kl="none", kl_coefficient=0.0), config)
    assert all(line["gradient_norm"] > 0 for line in lines if line["same"] < 1)


def test_a_reference_that_follows_is_refused_where_the_method_has_none() -> None:
    with pytest.raises(ConfigError, match="reference_every=3, and this method keeps no reference"):
        train(tiny(), PROMPTS, sevens, method("dapo_clip"), dataclasses.replace(SMALL, reference_every=3))


@pytest.mark.parametrize(("share", "kept"), [(1.0, 0.0), (0.25, 0.75)])
def test_the_reference_follows_hard_or_by_a_share(share: float, kept: float) -> None:
    config = dataclasses.replace(SMALL, reference_every=1, reference_share=share)
    policy = tiny()
    begun = weights(policy)
    loop = Loop(policy, PROMPTS, any_seven, method("grpo"), config)
    loop.advance()
    assert loop.reference is not None
    for name, value in loop.reference.model.named_parameters():
        expected = kept * begun[name] + share * policy.model.get_parameter(name).detach()
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-7)
    assert loop.optimizer.moments == (share < 1)


def test_a_model_that_drops_out_is_refused_at_the_first_step() -> None:
    policy = tiny()
    policy.model.transformer.drop.p = 0.5
    policy.model.transformer.drop.train()
    with pytest.raises(ConfigError, match=r"differs by .* nats between sampling and training"):
        train(policy, PROMPTS, sevens, method("grpo"), SMALL)


def test_a_reward_that_fails_and_settings_out_of_range_are_named() -> None:
    def failing(**columns: Any) -> list[float]:
        raise KeyError("answer")

    with pytest.raises(DataError, match="failing raised KeyError: 'answer'"):
        train(tiny(), PROMPTS, failing, method("grpo"), SMALL)
    with pytest.raises(DataError, match="could score none of 16 answers"):
        train(tiny(), PROMPTS, lambda completions, **_: [None] * len(completions), method("grpo"), SMALL)
    with pytest.raises(ConfigError, match="an interval needs at least two"):
        evaluate(tiny(), PROMPTS[:1], sevens, new=3)
    with refused("group", "range"):
        TrainConfig(group=0)
    with pytest.raises(ConfigError, match="minibatches=3 does not divide prompts_per_step=4"):
        dataclasses.replace(SMALL, minibatches=3)
    with pytest.raises(ConfigError, match="prompt 1 has 15 tokens"):
        train(tiny(), [Prompt("1="), Prompt("1" * 15)], sevens, method("grpo"), SMALL)


def test_a_pair_that_is_longer_than_the_context_is_named_before_training() -> None:
    policy = tiny()
    before = weights(policy)
    pairs = [("1=", "5"), ("1234567=", "1234567"), ("1234567=", "12345678")]  # with its end the second just fits
    with pytest.raises(ConfigError, match=r"pair 2 has a prompt of 8 tokens and an answer of 8 with its end.*of 16"):
        supervise(policy, pairs, steps=1)
    assert same(before, weights(policy))
    supervise(policy, pairs[:2], steps=1)


def test_a_copied_teacher_is_known_to_the_evaluation() -> None:
    policy = tiny()
    supervise(policy, [("1=", "5"), ("2=", "8")], steps=60, rows=16, learning_rate=3e-2)

    def exact(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        return [float(text == right) for text, right in zip(completions, answer, strict=True)]

    found = evaluate(policy, [Prompt("1=", {"answer": "5"}), Prompt("2=", {"answer": "3"})], exact, new=3, samples=4)
    assert found.greedy[0] == 0.5
    assert 0.4 < found.pass_1[0] <= 0.5
    assert found.pass_k[0] == 0.5
    assert found.entropy < 0.3
    assert "greedy 0.500" in str(found)
    unscored = evaluate(
        policy,
        [Prompt("1="), Prompt("2="), Prompt("3=")],
        lambda completions, **_: [None if row % 4 == 0 else 1.0 for row in range(len(completions))],
        new=3,
        samples=4,
    )
    assert unscored.same == 1  # answers without a score differ from none: their group's advantages are 0
    for name, given in {"samples": {"new": 3, "samples": 0}, "max_new_tokens": {"new": 0}}.items():
        with pytest.raises(ConfigError, match=f"{name} is 0; it must be at least 1"):
            evaluate(policy, [Prompt("1="), Prompt("2=")], sevens, **given)
