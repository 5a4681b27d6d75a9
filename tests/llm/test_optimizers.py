"""Learning rates rise and fall as transformers' do; Muon takes the step of its equations, and serves matrices alone."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from surefoot.core.base.errors import ConfigError
from surefoot.llm import LMPolicy, Prompt, TrainConfig, method, train
from surefoot.llm.characters import character_policy
from surefoot.llm.optimizers import Optimizer, Pace, hidden_matrices
from surefoot.llm.supervised import CHECKPOINT, Stopped


def tiny() -> LMPolicy:
    return character_policy("0123456789=", layers=1, width=16, heads=2, context=12)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)],
)
def test_rates_fall_as_those_of_transformers(name: str, theirs: object) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = theirs(optimizer, 4, 20)  # type: ignore[operator]
    expected = []
    for _ in range(20):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    found = [Pace(schedule=name, warm_up=4).share(step, 20) for step in range(1, 21)]
    np.testing.assert_allclose(found[4:], expected[4:], atol=1e-12)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]  # theirs begin with a step of size 0


def test_a_rate_may_fall_in_the_last_steps_alone() -> None:
    pace = Pace(schedule="linear", decay_share=0.5)
    assert [pace.share(step, 8) for step in range(1, 9)] == [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert [Pace(warm_up=2).share(step, 4) for step in (1, 2, 3, 4)] == [0.5, 1, 1, 1]
    assert Pace(schedule="cosine", warm_up=9).share(4, 4) == 4 / 9  # a run that ends while it warms up


def test_muon_takes_its_step_and_leaves_the_rest_to_adam() -> None:
    """First step: W - lr 0.2 sqrt(max(m, n)) O, with O the gradient's orthogonal factor, as the iteration has it."""
    model, rate = tiny().model, 0.01
    served = hidden_matrices(model)
    others = {name for name, p in model.named_parameters() if p.ndim == 2} - set(served)
    assert served
    assert all(".h." in name or "layers" in name for name in served)
    assert all("wte" in name or "wpe" in name or "embed" in name or "head" in name for name in others)
    optimizer = Optimizer(model, "muon", rate, 0.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step(torch.zeros(()), 1e9)
    for name, p in model.named_parameters():
        moved = (before[name] - p.detach()).double().numpy() / rate
        assert p.grad is not None
        if name not in served:
            np.testing.assert_allclose(moved, np.sign(p.grad.numpy()), atol=1e-3)  # Adam's first step
            continue
        x = p.grad.double().numpy()
        x = x / np.linalg.norm(x)
        x = x.T if x.shape[0] > x.shape[1] else x
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        expected = 0.2 * np.sqrt(max(p.shape)) * (x if x.shape == tuple(p.shape) else x.T)
        assert np.linalg.norm(moved - expected) < 0.05 * np.linalg.norm(expected)  # torch iterates in bfloat16


def test_muon_without_a_matrix_is_refused() -> None:
    model = tiny().model
    for p in hidden_matrices(model).values():
        p.requires_grad_(False)
    with pytest.raises(ConfigError, match="none is trained"):
        Optimizer(model, "muon", 1e-3, 0.0)


def test_the_loop_resumes_with_muon_and_a_schedule_bit_for_bit_and_learns(tmp_path: pathlib.Path) -> None:
    config = TrainConfig(
        steps=12, prompts_per_step=4, group=8, max_new_tokens=3, learning_rate=1e-2, optimizer="muon", warm_up=2,
        schedule="cosine", checkpoint_every=5,
    )  # fmt: skip
    prompts = [Prompt(f"{n}=") for n in range(4)]

    def sevens(completions: list[str], **columns: object) -> list[float]:
        return [text.count("7") / 3 for text in completions]

    whole, again = tiny(), tiny()
    lines = train(whole, prompts, sevens, method("dr_grpo"), config)
    assert [lines[k]["learning_rate"] for k in (0, 1, 2)] == [5e-3, 1e-2, 1e-2]
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.2
    seen = list[int]()
    with pytest.raises(Stopped):
        train(
            tiny(), prompts, sevens, method("dr_grpo"), config, tmp_path,
            progress=lambda _: seen.append(1), stopping=lambda: len(seen) == 5,
        )  # fmt: skip
    assert (tmp_path / CHECKPOINT).is_file()
    train(again, prompts, sevens, method("dr_grpo"), config, tmp_path)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_ranges() -> None:
    for wrong in ({"decay_share": 0.0}, {"decay_share": 1.5}, {"optimizer": "sgd"}, {"schedule": ""}, {"warm_up": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            dataclasses.replace(TrainConfig(), **wrong)  # type: ignore[arg-type]
