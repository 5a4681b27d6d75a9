"""What `device=auto` takes where there is a GPU: by a trial, an earlier one, or with a sentence why there was none."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_runs import TINY, small_dataset

from surefoot.cli.main import main
from surefoot.core.engine.agent import Spec
from surefoot.runs import device_choice
from surefoot.runs.device_choice import Choice, chosen_device, rate_on, why_not_measured
from surefoot.runs.plan import Plan

Rates = Callable[..., None]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Rates:
    """As if torch found a GPU: call it with the rates that trials are to find; `trials` of it counts them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "H100")
    monkeypatch.setattr(device_choice, "cores", lambda: 2)
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))

    def with_rates(cpu: float, cuda: float | Exception) -> None:
        def rate(device: str, *_: Any, **__: Any) -> float:
            with_rates.trials.append(device)  # type: ignore[attr-defined]
            found = cpu if device == "cpu" else cuda
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(device_choice, "rate_on", rate)

    with_rates.trials = []  # type: ignore[attr-defined]
    return with_rates


def choice(algorithm: str = "bc", seeds: int = 4, **options: Any) -> Choice | None:
    plan = Plan(algorithm=algorithm, dataset="d.hdf5", seeds=tuple(range(seeds)), config={}, **options)
    dataset = small_dataset()
    return chosen_device(plan, plan.agent(Spec.of(dataset)), dataset)


def test_the_faster_device_for_all_seeds_is_taken_and_remembered(gpu: Any) -> None:
    gpu(cpu=1000.0, cuda=400.0)  # four seeds on two cores: two rounds, 2 ms a step of all; 2.5 ms on the GPU
    first = choice()
    assert first is not None
    assert first.device == "cpu"
    assert "takes the CPU, and not the GPU (H100)" in first.because
    assert "2.5 ms on the GPU and 2 ms on 2 cores (measured in 0.0 s" in first.because
    assert gpu.trials == ["cpu", "cuda"]
    again = choice()
    assert again is not None
    assert again.device == "cpu"
    assert "measured by an earlier run" in again.because
    assert gpu.trials == ["cpu", "cuda"]
    more = choice(seeds=6)  # three rounds: another question, and another answer
    assert more is not None
    assert more.device == "cuda"
    assert gpu.trials == ["cpu", "cuda"] * 2


def test_a_damaged_file_of_the_cache_is_measured_again(gpu: Any, tmp_path: pathlib.Path) -> None:
    gpu(cpu=1000.0, cuda=4000.0)
    choice()
    (path,) = (tmp_path / "cache" / "devices").iterdir()
    for text in ("{", json.dumps({"cpu": 0.0, "cuda": 1.0, "seconds": 1.0}), json.dumps({"cpu": 1.0})):
        path.write_text(text)
        found = choice()
        assert found is not None
        assert found.device == "cuda"
    assert gpu.trials == ["cpu", "cuda"] * 4


def test_seeds_that_do_not_fit_the_gpu_train_on_the_cpu(gpu: Any) -> None:
    gpu(cpu=1000.0, cuda=torch.OutOfMemoryError("CUDA out of memory"))
    found = choice()
    assert found is not None
    assert found.device == "cpu"
    assert "4 seeds do not fit the GPU (H100)" in found.because


def test_what_a_trial_would_not_tell_takes_the_gpu_and_says_why(gpu: Any) -> None:
    gpu(cpu=1.0, cuda=1.0)
    for algorithm, options, why in (
        ("sac", {}, "sac acts while it trains"),
        ("mopo", {}, "the training steps of mopo are not all alike"),
        ("bc", {"tf32": True}, "tf32=true is of a GPU"),
        ("bc", {"learners": 2, "seeds": 1}, "processes share each batch"),
    ):
        found = choice(algorithm, **options)
        assert found is not None
        assert (found.device, found.measured) == ("cuda", None)
        assert f"takes the GPU (H100) without a trial: {why}" in found.because
    assert gpu.trials == []


def test_nothing_is_chosen_without_a_gpu_or_where_the_plan_names_a_device(gpu: Any) -> None:
    gpu(cpu=1.0, cuda=1.0)
    assert choice(device="cpu") is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        assert choice() is None


def test_a_trial_takes_the_runs_own_steps() -> None:
    plan = Plan(algorithm="iql", dataset="d.hdf5", seeds=(3, 4), batch_size=8, config={"hidden": (8, 8)})
    dataset = small_dataset()
    agent = plan.agent(Spec.of(dataset))
    threads = torch.get_num_threads()
    assert why_not_measured(plan, agent, dataset) is None
    assert rate_on("cpu", plan, agent, dataset, seconds=0.01) > 1
    assert torch.get_num_threads() == threads


def test_a_long_dataset_is_tried_in_part() -> None:
    dataset = small_dataset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_choice, "ROWS", int(dataset.episode_lengths[0]) + 1)
        assert device_choice._part(dataset).episode_lengths.tolist() == dataset.episode_lengths[:2].tolist()
    assert device_choice._part(dataset) is dataset


@pytest.mark.usefixtures("in_process")
def test_a_run_keeps_what_was_chosen_in_its_configuration_and_summary(
    gpu: Any, tmp_path: pathlib.Path, dataset_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu(cpu=1000.0, cuda=1.0)
    out = tmp_path / "run"
    assert main(["train", "algo=bc", f"dataset={dataset_path}", f"out={out}", *TINY]) == 0
    assert "device=auto takes the CPU, and not the GPU (H100)" in capsys.readouterr().out
    config, summary = (json.loads((out / name).read_text()) for name in ("config.json", "summary.json"))
    assert config["plan"]["device"] == "cpu"  # which a resumed run takes
    assert summary["device_choice"] == config["device_choice"]
    assert summary["device_choice"]["measured"]["cuda"] == 1.0
