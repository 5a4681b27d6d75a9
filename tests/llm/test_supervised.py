"""Given answers are learned: by likelihood and by preference, in parts as a whole, and resumed bit for bit."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import signal

import pytest
import torch

from surefoot.cli.main import main
from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.llm import LMPolicy
from surefoot.llm.characters import character_policy
from surefoot.llm.feedback import Demonstration, Pair, read_feedback
from surefoot.llm.losses import direct_preference_terms
from surefoot.llm.supervised import CHECKPOINT, METRICS, Given, GivenTraining, Stopped, learn_given

PAIRS = [Pair(f"{n}=", "7", str(n)) for n in (1, 2, 3, 44, 55)]
ANSWERS = [Demonstration(pair.prompt, pair.chosen) for pair in PAIRS]
QUICK = GivenTraining(steps=8, rows=4, learning_rate=3e-3, checkpoint_every=3)


def tiny(seed: int = 0) -> LMPolicy:
    return character_policy("0123456789=", layers=1, width=16, heads=2, context=12, seed=seed)


def weights(policy: LMPolicy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def test_dpo_by_hand() -> None:
    found = direct_preference_terms(torch.tensor([2.0, 0.0]), torch.tensor([-1.0, 0.0]), 0.5)
    torch.testing.assert_close(found, torch.tensor([math.log(1 + math.exp(-1.5)), math.log(2)]))


def test_dpo_begins_at_log_2_with_half_beta_of_the_difference_of_gradients() -> None:
    policy, beta = tiny(), 0.3
    one = Given(policy, PAIRS[:1], dataclasses.replace(QUICK, rows=1, beta=beta))
    one._remember()
    one.optimizer.zero_grad()
    found = one._through([0], learn=True)
    assert found["loss"] == pytest.approx(math.log(2), abs=1e-6)
    got = {name: p.grad.clone() for name, p in one.optimizer.parameters.items() if p.grad is not None}
    one.optimizer.zero_grad()
    better, worse = (one._rows([0], column)[0].sum() for column in (0, 1))
    (-beta / 2 * (better - worse)).backward()
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, one.optimizer.parameters[name].grad, rtol=1e-4, atol=1e-7)


def test_dpo_is_trls(tmp_path: pathlib.Path) -> None:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    policy, first = tiny(1), tiny()
    one = Given(first, PAIRS, dataclasses.replace(QUICK, beta=0.3))
    one._remember()
    ours = Given(policy, PAIRS, one.training)
    ours.reference = one.reference
    found = ours._through(range(len(PAIRS)), learn=True)
    gradients = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    trainer = trl.DPOTrainer(
        model=policy.model,
        ref_model=first.model,
        args=trl.DPOConfig(
            output_dir=str(tmp_path), report_to="none", use_cpu=True, bf16=False, beta=0.3, max_steps=1,
            per_device_train_batch_size=len(PAIRS), gradient_checkpointing=False,
        ),
        train_dataset=datasets.Dataset.from_list([dataclasses.asdict(pair) for pair in PAIRS]),
        processing_class=policy.tokenizer,
    )  # fmt: skip
    policy.model.zero_grad()
    policy.model.eval()
    loss = trainer.compute_loss(policy.model, next(iter(trainer.get_train_dataloader())))
    loss.backward()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, policy.model.get_parameter(name).grad, rtol=1e-3, atol=1e-6)


def test_pairs_are_learned_and_answers_are() -> None:
    policy = tiny()
    found = learn_given(policy, PAIRS, dataclasses.replace(QUICK, steps=40), held_out=PAIRS)
    assert found["before"]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert found["after"]["accuracy"] == 1
    assert found["after"]["loss"] < 0.4
    found = learn_given(policy, ANSWERS, dataclasses.replace(QUICK, steps=80, learning_rate=1e-2), held_out=ANSWERS)
    assert found["after"]["loss"] < 0.1 < found["before"]["loss"]
    answers = policy.decode(policy.generate(policy.encode(["1=", "44="]), 1, 3, 0, greedy=True))
    assert answers == ["7", "7"]


@pytest.mark.parametrize("data", [PAIRS, [*ANSWERS[:-1], Demonstration("5=", "12345")]])
def test_parts_of_a_batch_are_the_batch(data: list[Pair] | list[Demonstration]) -> None:
    whole, parts = tiny(), tiny()
    lines = [
        Given(policy, data, dataclasses.replace(QUICK, rows_at_once=size)).advance()
        for policy, size in ((whole, 256), (parts, 3))
    ]
    assert lines[0] == pytest.approx(lines[1], rel=1e-5)


@pytest.mark.parametrize("data", [PAIRS, ANSWERS])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_stopped_training_goes_on_bit_for_bit(
    data: list[Pair] | list[Demonstration], optimizer: str, tmp_path: pathlib.Path
) -> None:
    training = dataclasses.replace(QUICK, optimizer=optimizer, warm_up=2, schedule="cosine")
    whole, part, again = tiny(), tiny(), tiny()
    learn_given(whole, data, training)
    steps = list[int]()
    with pytest.raises(Stopped, match="after step 5 of 8"):
        learn_given(
            part, data, training, tmp_path, progress=lambda _: steps.append(1), stopping=lambda: len(steps) == 5
        )
    learn_given(again, data, training, tmp_path)
    assert torch.equal(weights(whole), weights(again))
    assert not torch.equal(weights(whole), weights(part))
    with pytest.raises(CheckpointError, match="warm_up=2, and this one has warm_up=3"):
        learn_given(tiny(), data, dataclasses.replace(training, warm_up=3), tmp_path)
    with pytest.raises(CheckpointError, match="lines=5"):
        learn_given(tiny(), data[:3], training, tmp_path)


def test_what_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="all Demonstrations or all Pairs"):
        Given(tiny(), PAIRS, QUICK, ANSWERS)
    with pytest.raises(ConfigError, match="held-out pair 0 has a prompt of 2 tokens"):
        Given(tiny(), ANSWERS, QUICK, [Demonstration("1=", "1" * 20)])
    for wrong in ({"beta": 0.0}, {"rows": 0}, {"warm_up": -1}, {"schedule": "steep"}, {"optimizer": "sgd"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            GivenTraining(**wrong)  # type: ignore[arg-type]
    (tmp_path / "a.jsonl").write_text('{"prompt": "1=", "completion": ""}')
    with pytest.raises(DataError, match=r"line 1: .*the completion is not text"):
        read_feedback(tmp_path / "a.jsonl")


def test_from_the_command_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny().save("tiny")
    for name, data in (("answers", ANSWERS), ("pairs", PAIRS)):
        rows = [dataclasses.asdict(one) for one in data]
        for row in rows:
            row |= {"completion": row.pop("answer")} if "answer" in row else {}
        pathlib.Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    quick = ["steps=6", "rows=4", "learning_rate=1e-3", "checkpoint_every=2"]
    assert main(["llm", "sft", "model=tiny", "data=answers.jsonl", "held_out=answers.jsonl", "out=taught", *quick]) == 0
    assert "held out, after" in capsys.readouterr().out
    given = ["llm", "dpo", "model=taught", "data=pairs.jsonl", *quick, "-q"]
    assert main([*given, "out=whole", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training"]["beta"] == 0.1

    advance = Given.advance

    def interrupted(self: Given) -> dict[str, float]:
        if self.step == 3:
            signal.raise_signal(signal.SIGINT)
        return advance(self)

    monkeypatch.setattr(Given, "advance", interrupted)
    assert main([*given, "out=part"]) == 130
    assert "surefoot llm dpo --resume" in capsys.readouterr().err
    monkeypatch.setattr(Given, "advance", advance)
    assert main(["llm", "sft", "--resume", "part"]) == 2
    metrics = pathlib.Path("part", "training", METRICS)
    metrics.rename("elsewhere.jsonl")
    metrics.symlink_to(pathlib.Path("elsewhere.jsonl").resolve())
    assert main(["llm", "dpo", "--resume", "part", "-q"]) == 2
    assert "is a symbolic link, through which a file elsewhere would be written" in capsys.readouterr().err
    metrics.unlink()
    pathlib.Path("elsewhere.jsonl").rename(metrics)
    assert main(["llm", "dpo", "--resume", "part", "-q"]) == 0
    model = [pathlib.Path(name, "model.safetensors").read_bytes() for name in ("whole", "part")]
    assert model[0] == model[1]
    assert pathlib.Path("part", "training", CHECKPOINT).is_file()

    capsys.readouterr()
    for words, said in (
        (["dpo", "model=tiny", "data=answers.jsonl", "out=x"], "dpo learns from"),
        (["sft", "model=tiny", "data=answers.jsonl", "out=x", "beta=1"], "beta= is for dpo"),
        (["sft", "model=tiny", "data=answers.jsonl"], "out= is missing"),
        (["reward", "model=tiny", "data=answers.jsonl", "out=x"], "surefoot llm sft"),
    ):
        assert main(["llm", *words]) == 2
        assert said in capsys.readouterr().err
        assert not pathlib.Path("x").exists()
