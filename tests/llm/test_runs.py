"""`surefoot llm` as a user calls it: a run, its folder, its end, and what goes wrong, in one sentence each."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import signal
import sys
from typing import Any

import numpy as np
import pytest

from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import hierarchical_interval
from surefoot.evaluation.tables import format_share
from surefoot.language import runs as language_runs
from surefoot.language.plan import plan
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
        "    return [float('nan')] * len(completions)\n\n"
        "def raises(completions, **columns):\n"
        "    raise KeyError('no such thing')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def words(*more: str) -> list[str]:
    return ["llm", "train", "model=tiny", "prompts=prompts.jsonl", "reward=my_llm_rewards:exact", *SETTINGS, *more]


def test_a_run_of_several_seeds_leaves_a_folder_that_is_evaluated_and_gone_on_with(
    place: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words("out=run", "held_out=prompts.jsonl", "method=dapo_clip", "method.high=0.3", "seeds=[0,3]", "--json")
    assert main(given) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["steps"], found["seeds"], found["episodes"]) == (4, [0, 3], 6)
    assert found["results"]["3"]["after"]["prompts"] == 6
    assert "seed 3, step 1: reward" in said.err
    run = place / "run"
    plain = {"config.json", "environment.json", "metrics.jsonl", "summary.json", "curves.png", "seeds"}
    assert {path.name for path in run.iterdir()} == plain
    of_seed = {"checkpoint.safetensors", "metrics.jsonl", "model", "result.json"}
    assert all({path.name for path in (run / "seeds" / k).iterdir()} - {"best"} == of_seed for k in ("0", "3"))
    plan: dict[str, Any] = json.loads((run / "config.json").read_text())["plan"]
    assert (plan["config"]["method.high"], plan["steps"], plan["seeds"]) == (0.3, 4, [0, 3])

    weights = [(run / "seeds" / k / "model" / "model.safetensors").read_bytes() for k in ("0", "3")]
    assert weights[0] != weights[1]
    assert main(["llm", "train", "--resume", "run", "--quiet"]) == 0  # nothing is left to do
    assert (run / "seeds" / "3" / "model" / "model.safetensors").read_bytes() == weights[1]
    assert "pass@8" in capsys.readouterr().out
    assert main(words("out=alone", "method=dapo_clip", "method.high=0.3", "seeds=[3]", "--quiet")) == 0
    alone = place / "alone" / "seeds" / "3" / "model" / "model.safetensors"
    assert alone.read_bytes() == weights[1]  # a seed is the same whatever others are beside it
    capsys.readouterr()
    asked = ["llm", "evaluate", "run", "prompts.jsonl", "my_llm_rewards:exact", "--max-new-tokens", "4"]
    assert main([*asked, "--policy-seed", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 8
    assert main([*asked, "--policy-seed", "1"]) == 2
    assert "has no seed 1; it has [0, 3]" in capsys.readouterr().err


def test_one_seed_is_a_list_of_one(place: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = place / "prompts.jsonl"
    given = {"model": "tiny", "prompts": str(name), "reward": "my_llm_rewards:exact"}
    assert plan({**given, "seed": "5"})[0].seeds == plan({**given, "seeds": "[5]"})[0].seeds == (5,)
    assert plan({**given, "seed": "0"})[0].seeds == (0,)
    for wrong, said in (({"seed": "1", "seeds": "3"}, "give one of them"), ({"seed": "x"}, "seeds=")):
        with pytest.raises(ConfigError, match=said):
            plan({**given, **wrong})


def test_methods_whose_reward_reads_the_policy_run_from_the_command_line(
    place: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"prompt": f"{n}=", "answer": str(n), "kind": "open" if n % 2 else "known"} for n in range(6)]
    (place / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (place / "my_assistants.py").write_text(
        "def corrupted(completions, **columns):\n    return ['' for _ in completions]\n"
    )
    pairs = [{"prompt": f"{n}=", "chosen": str(n), "rejected": str(9 - n)} for n in range(10)]
    (place / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    assert main(["llm", "reward", "model=tiny", "data=pairs.jsonl", "out=judge", "steps=2", "-q"]) == 0
    plain = ["llm", "train", "model=tiny", "prompts=prompts.jsonl", *SETTINGS, "--quiet"]
    exact = "reward=my_llm_rewards:exact"
    for name, more in (
        ("rlpr", ["method.answer_mark="]),
        ("care", [exact, "method.answer_mark==", "held_out=prompts.jsonl"]),
        ("dsdr", [exact]),
        ("urpo", [exact, "method.judge={prompt}{first}{second}", "method.verdict_tokens=2"]),
        ("grpo", ["reward=judge", "rule=my_llm_rewards:exact", "corrupt=my_assistants:corrupted"]),
    ):
        assert main([*plain, f"method={name}", *more, f"out=of_{name}"]) == 0, name
        assert main(["llm", "train", "--resume", f"of_{name}", "--trust", "--quiet"]) == 0
    assert (place / "of_grpo" / "seeds" / "0" / "judge" / "reward.json").is_file()
    capsys.readouterr()
    assert main(["report", "of_rlpr", "-o", "page.html"]) == 0
    capsys.readouterr()
    for more, said in (
        (["method=grpo"], "reward= is missing"),
        (["method=rlpr", "held_out=prompts.jsonl"], "held_out needs a reward"),
        ([exact, "rule=my_llm_rewards:exact"], "rule= and corrupt= go together"),
        (
            [exact, "rule=my_llm_rewards:exact", "corrupt=my_assistants:corrupted"],
            "reward=my_llm_rewards:exact is none",
        ),
        ([exact, "method=oapl"], "say lag="),
    ):
        assert main([*plain, *more, "out=wrong"]) == 2, said
        assert said in capsys.readouterr().err
        assert not (place / "wrong").exists()


def test_ppo_begins_its_critic_as_a_reward_model(place: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [{"prompt": f"{n}=", "chosen": str(n), "rejected": str(9 - n)} for n in range(10)]
    (place / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    assert main(["llm", "reward", "model=tiny", "data=pairs.jsonl", "out=judge", "steps=2", "-q"]) == 0
    given = words("method=ppo", "critic=judge", "critic_learning_rate=1e-3", "epochs=2", "minibatches=2", "--quiet")
    assert main([*given, "out=run"]) == 0
    plan: dict[str, Any] = json.loads((place / "run" / "config.json").read_text())["plan"]["config"]
    assert (plan["critic"], plan["critic_learning_rate"]) == (str(place / "judge"), 1e-3)
    line = json.loads((place / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert line["values"]["critic_loss"] > 0
    assert main(["llm", "train", "--resume", "run", "--trust", "--quiet"]) == 0
    capsys.readouterr()
    for wrong, said in (
        (words("method=grpo", "critic=judge"), "critic is for method.advantages=gae"),
        (words("method=ppo", "critic=nowhere"), "nowhere: is no reward model"),
        (words("method=ppo", "critic=tiny"), "tiny: is no reward model"),
        (words("method=ppo", "method.trace=2"), "method.trace is 2.0, must be in [0, 1]"),
    ):
        assert main([*wrong, "out=wrong", "--quiet"]) == 2
        assert said in capsys.readouterr().err
        assert not (place / "wrong").exists()


@pytest.fixture
def two(place: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> pathlib.Path:
    """Two runs of two seeds, in `runs`."""
    held = [json.dumps({"prompt": f"{n}=", "answer": str(n)[-1]}) for n in range(10, 22)]
    (place / "held.jsonl").write_text("\n".join(held))
    for name, rate in (("slow", "1e-4"), ("fast", "1e-3")):
        more = ("held_out=held.jsonl", "seeds=2", "samples=4", "evaluate_every=2", f"out=runs/{name}")
        assert main(words(*more, f"learning_rate={rate}", "--quiet")) == 0
    capsys.readouterr()
    return place / "runs"


def test_reports_results_and_watch_show_runs_of_language_models(
    two: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    each = [json.loads((two / "fast" / "seeds" / k / "result.json").read_text())["each"] for k in ("0", "1")]
    right = [np.array(one["after"]["pass_1"]) for one in each]
    wanted = hierarchical_interval(right, bounds=(0.0, 1.0)).to_json()  # over seeds, and prompts that they share
    gained = [after - np.array(one["before"]["pass_1"]) for after, one in zip(right, each, strict=True)]

    assert main(["report", str(two), "-o", "page.html", "--csv", "table.csv", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == ["grpo (learning_rate=0.001)", "grpo (learning_rate=0.0001)"]
    assert rows[0]["passes"]["pass_1"] == wanted
    assert rows[0]["passes"]["samples"] == 4
    page = pathlib.Path("page.html").read_text()
    change = hierarchical_interval(gained, bounds=(-1.0, 1.0)).to_json()
    assert page.count("<svg") >= 3  # pass@1, pass@4 and reward along training
    for text in ("pass@4 in % [95 %]", format_share(wanted).split(" [")[0], format_share(change).split(" [")[0]):
        assert text in page
    assert "had no simulator" not in page
    table = list(csv.DictReader(pathlib.Path("table.csv").read_text().splitlines()))
    assert float(table[0]["pass_1_mean"]) == wanted["mean"]

    assert main(["results", str(two), "-o", "numbers.csv", "--plot"]) == 0
    read = csv.DictReader(pathlib.Path("numbers.csv").read_text().splitlines())
    numbers = [row for row in read if row["run"].endswith("fast")]
    last = {(row["seed"], row["metric"]): float(row["value"]) for row in numbers if row["metric"].startswith("final/")}
    assert last["1", "final/success"] == pytest.approx(right[1].mean())
    assert last["0", "final/pass_k"] == pytest.approx(np.mean(each[0]["after"]["pass_k"]))
    assert {row["step"] for row in numbers if row["metric"] == "eval/greedy_mean"} == {"0", "2", "4"}
    capsys.readouterr()

    (two / "slow" / "summary.json").unlink()
    assert main(["watch", str(two), "--once", "-o", "watch.html"]) == 0
    shown = capsys.readouterr().out
    assert f"pass@1 {wanted['mean']:.3f}" in shown
    assert "<svg" in pathlib.Path("watch.html").read_text()
    assert main(["report", str(two / "slow")]) == 2
    assert "surefoot llm train --resume" in capsys.readouterr().err
    assert main(["evaluate", str(two / "fast")]) == 2
    assert "is a run of a language model" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_keeps_its_last_step_and_goes_on_to_the_same_end(
    place: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    import my_llm_rewards

    assert main(words("out=whole", "seeds=2", "--quiet")) == 0
    right, calls = my_llm_rewards.exact, []

    def interrupting(**columns: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 5:  # in the first step of the second seed; checkpoints are due after the second
            os.kill(os.getpid(), number)
        return right(**columns)

    monkeypatch.setattr(my_llm_rewards, "exact", interrupting)
    assert main(words("out=cut", "seeds=2", "--quiet")) == 128 + number
    said = capsys.readouterr().err.strip()
    assert "continue: surefoot llm train --resume" in said.splitlines()[-1]
    kept = (place / "cut" / "seeds" / "1" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in kept] == [1]
    assert main(["llm", "train", "--resume", "cut", "--quiet"]) == 0
    for seed in ("0", "1"):
        ends = [place / name / "seeds" / seed / "model" / "model.safetensors" for name in ("whole", "cut")]
        assert ends[0].read_bytes() == ends[1].read_bytes()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["out=run", "reward=my_llm_rewards:broken"], "reward function broken gave nan"),
        (["model=nowhere"], "no config.json is there"),
        (["step=3"], "unknown setting 'step': did you mean"),
        (["steps=3.5"], "steps='3.5' must be a whole number"),
        (["method=pppo"], "unknown method 'pppo'"),
        (["method.kl=k9"], "method.kl='k9'"),
        (["max_new_tokens=100"], "is more than the model's context of 16"),
        (["reward=exact"], "not of the form module:function"),
        (["prompts="], "prompts= is missing"),
        (["seeds=0"], "train at least 1 seed"),
        (["seeds=some"], "give a count, as in seeds=3"),
        (["seed=3", "seeds=2"], "seed=3 and seeds=2: give one of them"),
        (["reward=my_llm_rewards:raises"], "reward function raises"),
        (["steps"], "'steps' is not of the form name=value"),
        (["device=gpu"], "device='gpu' is no device: give cpu or cuda"),
        (["device=cuda:99"], "device=cuda:99: torch finds no such CUDA GPU on this machine"),
        (["dtype=float33"], "dtype='float33' is no type of weights: give float32 or bfloat16"),
        (["dtype=sum"], "dtype='sum' is no type of weights"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_leaves_nothing_half(
    place: pathlib.Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main(words("out=run", *more)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error
    assert not (place / "run").exists()


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
    for loaded in ("sympy:solve", "json:loads", "surefoot.llm:load_policy"):  # transformers imports sympy
        (place / "run" / "summary.json").unlink(missing_ok=True)
        config = json.loads(path.read_text())
        config["plan"]["reward"] = loaded
        path.write_text(json.dumps(config))
        assert loaded.partition(":")[0] in sys.modules
        with pytest.raises(ConfigError, match=rf"names '{loaded}', which would be called; .*add --trust"):
            language_runs.resume(place / "run")
    assert main(["llm", "train", "--resume", "tiny"]) == 2
    assert "not of a run of a language model" in capsys.readouterr().err


def test_methods_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llm", "methods"]) == 0
    assert "dapo_clip" in capsys.readouterr().out
    assert main(["llm", "methods", "gspo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ratio"] == "sequence"
