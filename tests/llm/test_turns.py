"""Answers of several turns: replies are read and not trained, and a policy learns to use what it is given."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest
import torch

from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.llm import LMPolicy, Loop, Prompt, TrainConfig, method, train
from surefoot.llm.characters import character_policy
from surefoot.llm.policy import OWN
from surefoot.llm.rewards import Weighted
from surefoot.llm.supervised import supervise
from surefoot.llm.turns import Turns

PROMPTS = [Prompt("?", {"secret": digit}) for digit in "3737"]
SMALL = TrainConfig(steps=3, prompts_per_step=4, group=4, max_new_tokens=2, learning_rate=1e-3, turns=2)


def tiny(seed: int = 0, rotary: bool = False) -> LMPolicy:
    return character_policy("37?=", layers=1, width=32, heads=2, context=16, seed=seed, rotary=rotary)


def oracle(prompts: list[str], completions: list[str], secret: list[str]) -> list[str | None]:
    """Whoever has written something is given the secret, once."""
    return [None if "=" in text else f"{digit}=" for text, digit in zip(completions, secret, strict=True)]


def repeats(completions: list[str], secret: list[str], **columns: Any) -> list[float]:
    """Whether what stands behind the oracle's reply is the secret."""
    return [float(text.rpartition("=")[2] == digit) for text, digit in zip(completions, secret, strict=True)]


@pytest.mark.parametrize("rotary", [False, True])
def test_replies_stand_between_turns_and_log_probabilities_are_those_of_sampling(rotary: bool) -> None:
    policy = tiny(rotary=rotary)
    encoded = policy.encode(["?", "3?", "?", "37?"])
    rollout = Turns(oracle, 3).generate(policy, PROMPTS, encoded, 8, 2, seed=0)
    own = rollout.kept[OWN]
    logs = policy.log_probs(rollout)[0]
    torch.testing.assert_close(logs * rollout.trained, rollout.log_prob, atol=2e-5, rtol=1e-5)
    replied = 0
    for row in range(32):
        real = int(rollout.completion_mask[row].sum())
        reply = [place for place in range(real) if own[row, place] == 0]
        if reply:
            replied += 1
            text = policy.tokenizer.decode(rollout.completion_ids[row][reply])
            assert text.replace(" ", "") == f"{PROMPTS[row // 8].columns['secret']}="
            assert rollout.completion_ids[row, reply[0] - 1] in policy.ends  # behind the end of a turn
            assert float(rollout.log_prob[row, reply].abs().sum()) == 0
        else:
            assert "=" in policy.decode(rollout.rows(slice(row, row + 1)))[0] or not rollout.finished[row]
    assert replied > 3
    plain = policy.generate(encoded, 8, 2, seed=0)
    alone = Turns(oracle, 1).generate(policy, PROMPTS, encoded, 8, 2, seed=0)
    assert plain.answers() == alone.answers()
    torch.testing.assert_close(plain.log_prob, alone.log_prob)


def test_replies_move_nothing() -> None:
    """The gradient is that of the policy's own tokens: that of an answer's log-probability, cut by the mask."""
    loop = Loop(tiny(), PROMPTS, repeats, method("loop"), SMALL, environment=oracle)
    rollout, returns, _ = loop.collect()
    returns = torch.arange(16.0)
    log_prob, entropy = loop._first(rollout)
    batch = loop.prepare(rollout, returns, log_prob.detach(), entropy.detach())
    assert torch.equal(batch.units, rollout.trained)
    groups = returns.view(4, 4)
    others = ((groups - groups.mean(1, keepdim=True)) * 4 / 3).flatten()  # against the group's others
    terms = -others.unsqueeze(1) * log_prob * rollout.trained / rollout.trained.sum(1, keepdim=True) / 16
    wanted = torch.autograd.grad(terms.sum(), loop.policy.model.transformer.wte.weight)[0]
    loop.config = dataclasses.replace(SMALL, max_gradient_norm=1e9)
    loop.take(rollout, batch, loop._first(rollout))
    torch.testing.assert_close(loop.policy.model.transformer.wte.weight.grad, wanted, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["loop", "ppo"])
def test_a_policy_learns_to_use_what_it_is_told(name: str) -> None:
    """Whoever does not read the reply is right half of the time at most."""
    policy = tiny()
    often = [(f"{begin}{digit}=", digit) for begin in ("?", "?3", "?7") for digit in "3377"]
    seldom = [(f"{begin}{digit}=", other) for begin in ("?", "?3", "?7") for digit, other in ("37", "73")]
    supervise(policy, [*often, *seldom, ("?", "3"), ("?", "7")], steps=60, rows=16, learning_rate=1e-2)
    config = TrainConfig(
        steps=20, prompts_per_step=4, group=8, max_new_tokens=2, learning_rate=3e-3, turns=2, epochs=2, minibatches=2
    )
    lines = train(policy, PROMPTS, repeats, method(name, kl="none", kl_coefficient=0.0), config, environment=oracle)
    begun, ended = (sum(line["reward"] for line in part) / 3 for part in (lines[:3], lines[-3:]))
    assert (begun < 0.75, ended > 0.85) == (True, True), (begun, ended)


def test_the_first_reward_opens_the_gate_of_the_others() -> None:
    parts = [lambda completions, **_: [0.2, 0.6, None, 1.0], lambda completions, **_: [1.0, 1.0, 1.0, None],
             lambda completions, **_: [1.0, 2.0, 3.0, 4.0]]  # fmt: skip
    found = Weighted(parts, [1.0, 0.5, 0.1], gate=0.6)(prompts=["?"] * 4, completions=["a"] * 4)
    assert found == pytest.approx([0.2, 0.6 + 0.5 + 0.2, 0.0, 1.0 + 0.4])


def test_what_is_refused() -> None:
    for config, environment in ((SMALL, None), (dataclasses.replace(SMALL, turns=1), oracle)):
        with pytest.raises(ConfigError, match="and environment= go together"):
            Loop(tiny(), PROMPTS, repeats, method("loop"), config, environment=environment)
    for one, config, said in (
        (method("loop", nucleus=0.9), SMALL, "nucleus"),
        (method("loop"), dataclasses.replace(SMALL, continuous=True), "continuous"),
        (method("dsdr"), SMALL, r"method\.reads"),
    ):
        with pytest.raises(ConfigError, match=f"{said} is for answers of one turn"):
            Loop(tiny(), PROMPTS, repeats, one, config, environment=oracle)
    for wrong, said in ((lambda **_: [], "gave 0 replies to"), (lambda **_: 1 / 0, "raised ZeroDivisionError"),
                        (lambda completions, **_: [1] * len(completions), "a reply is a text")):  # fmt: skip
        with pytest.raises(DataError, match=said):
            Loop(tiny(), PROMPTS, repeats, method("loop"), SMALL, environment=wrong).collect()


def test_a_run_from_the_command_line_is_evaluated_and_resumed_bit_for_bit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tiny().save("tiny")
    pathlib.Path("prompts.jsonl").write_text("\n".join(json.dumps({"prompt": "?", "secret": s}) for s in "3737"))
    pathlib.Path("my_oracle.py").write_text(
        "def oracle(completions, secret, **columns):\n"
        "    return [None if '=' in t else s + '=' for t, s in zip(completions, secret)]\n\n"
        "def repeats(completions, secret, **columns):\n"
        "    return [float(t.endswith('=' + s)) for t, s in zip(completions, secret)]\n\n"
        "def short(completions, **columns):\n    return [-len(t) / 10 for t in completions]\n"
    )
    given = ["llm", "train", "model=tiny", "prompts=prompts.jsonl", "held_out=prompts.jsonl", "method=loop", "-q"]
    given += ["reward=my_oracle:repeats,my_oracle:short", "gate=1", "prompts_per_step=4", "group=4", "max_new_tokens=2"]
    given += ["learning_rate=1e-3", "checkpoint_every=2", "turns=2"]
    asked = [*given, "environment=my_oracle:oracle", "steps=6"]
    assert main([*asked, "out=run"]) == 0
    whole = pathlib.Path("run/seeds/0/model/model.safetensors").read_bytes()
    advance, kept = Loop.advance, list[int]()

    def stopped(self: Loop) -> dict[str, float]:
        if self.step == 3 and not kept:
            kept.append(1)
            raise KeyboardInterrupt
        return advance(self)

    monkeypatch.setattr(Loop, "advance", stopped)
    assert main([*asked, "out=part"]) != 0
    assert main(["llm", "train", "--resume", "part"]) == 0  # the user has named its functions already
    assert pathlib.Path("part/seeds/0/model/model.safetensors").read_bytes() == whole
    capsys.readouterr()
    judged = ["llm", "evaluate", "run", "prompts.jsonl", "my_oracle:repeats", "--max-new-tokens", "2", "--json"]
    assert main([*judged, "--turns", "2", "--environment", "my_oracle:oracle"]) == 0
    assert json.loads(capsys.readouterr().out)["length"] > 2  # of two turns, without the reply
    assert main([*judged, "--turns", "2"]) == 2
    assert "go together" in capsys.readouterr().err
    alone = ["environment=my_oracle:oracle", "reward=my_oracle:repeats"]
    none = ["environment=my_oracle:nothing"]
    for more, said in (([], "go together"), (none, "has no function"), (alone, "gate=1 is for several")):
        assert main([*given, "steps=2", *more, "out=wrong"]) == 2
        assert said in capsys.readouterr().err
        assert not pathlib.Path("wrong").exists()
