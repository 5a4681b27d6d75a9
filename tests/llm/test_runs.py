"""`surefoot llm` as a user calls it: a run, its folder, its end, and what goes wrong, in one sentence each."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from surefoot.cli.main import main
from surefoot.llm.characters import character_policy

SETTINGS = ["steps=4", "prompts_per_step=2", "group=4", "max_new_tokens=4", "learning_rate=1e-3", "checkpoint_every=2"]


@pytest.fixture
def place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with a model, prompts and a module of rewards."""
    character_policy("0123456789=", layers=1, width=16, heads=2, context=16).save(tmp_path / "tiny")
    lines = [json.dumps({"prompt": f"{n}=", "answer": str(n)}) for n in range(6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    (tmp_path / "my_llm_rewards.py").write_text(
        "def exact(completions, answer, **columns):\n"
        "    return [float(a in c) for c, a in zip(completions, answer)]\n\n"
        "def broken(completions, **columns):\n"
        "    return [float('nan')] * len(completions)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def words(*more: str) -> list[str]:
    return ["llm", "train", "model=tiny", "prompts=prompts.jsonl", "reward=my_llm_rewards:exact", *SETTINGS, *more]


def test_a_run_leaves_a_folder_that_can_be_evaluated_and_gone_on_with(
    place: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("out=run", "held_out=prompts.jsonl", "method=dapo_clip", "method.high=0.3", "--json")) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["steps"] == 4
    assert found["after"]["prompts"] == 6
    assert "step 1: reward" in said.err
    names = {path.name for path in (place / "run").iterdir()}
    assert names == {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "model",
        "result.json",
    }
    plan: dict[str, Any] = json.loads((place / "run" / "config.json").read_text())
    assert plan["changes"] == {"high": 0.3}
    assert plan["loop"]["steps"] == 4

    weights = (place / "run" / "model" / "model.safetensors").read_bytes()
    assert main(["llm", "train", "--resume", "run", "--quiet"]) == 0  # nothing is left to do
    assert (place / "run" / "model" / "model.safetensors").read_bytes() == weights
    assert "pass@8" in capsys.readouterr().out
    assert (
        main(["llm", "evaluate", "run", "prompts.jsonl", "my_llm_rewards:exact", "--max-new-tokens", "4", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["samples"] == 8


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["out=run", "reward=my_llm_rewards:broken"], "reward function broken gave nan"),
        (["model=nowhere"], "no config.json is there"),
        (["step=3"], "unknown setting 'step': did you mean"),
        (["steps=3.5"], "steps='3.5' must be a whole number"),
        (["method=ppo"], "unknown method 'ppo'"),
        (["method.kl=k9"], "method.kl='k9'"),
        (["max_new_tokens=100"], "is more than the model's context of 16"),
        (["reward=exact"], "not of the form module:function"),
        (["prompts="], "prompts= is missing"),
        (["steps"], "'steps' is not of the form name=value"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_leaves_nothing_half(
    place: pathlib.Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main(words("out=run", *more)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error
    assert not (place / "run" / "model").exists()


def test_a_received_run_does_not_execute_its_rewards_module_unasked(
    place: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "other_llm_rewards.py").write_text((place / "my_llm_rewards.py").read_text())
    assert main(words("out=run", "--quiet")) == 0
    path = place / "run" / "config.json"
    path.write_text(path.read_text().replace("my_llm_rewards", "other_llm_rewards"))
    assert main(["llm", "train", "--resume", "run"]) == 2
    assert "if you trust it, add --trust" in capsys.readouterr().err
    assert main(["llm", "train", "--resume", "run", "--trust", "--quiet"]) == 0
    assert main(["llm", "train", "--resume", "tiny"]) == 2
    assert "not of a run of a language model" in capsys.readouterr().err


def test_methods_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llm", "methods"]) == 0
    assert "dapo_clip" in capsys.readouterr().out
    assert main(["llm", "methods", "gspo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ratio"] == "sequence"
