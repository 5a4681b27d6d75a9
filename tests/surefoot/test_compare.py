"""`surefoot compare`: plans, looks, added seeds, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Sequence

import numpy as np
import pytest

from surefoot.cli import main
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.spec import Spec
from surefoot.evaluation import Episodes
from surefoot.runs.plan import Plan
from surefoot.runs.run import IN_MEMORY, Run
from surefoot.studies import compare

Capture = pytest.CaptureFixture[str]
SPEC = Spec(3, 1, (-2.0,), (2.0,)).to_json()


def write_run(folder: pathlib.Path, config: dict[str, object], seeds: Sequence[int], scores: Sequence[float]) -> Run:
    """A finished run folder without its policies."""
    plan = Plan(algorithm="bc", config=config, dataset="d", environment="Pendulum-v1", steps=10, seeds=tuple(seeds))
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"format": 1, "plan": plan.to_json(), "spec": SPEC, "dataset": None})
    nothing = dict.fromkeys(("normalized", "behaviour", "cost", "updates_per_second"))
    interval = {"mean": float(np.mean(scores)), "low": None, "high": None}
    write_json(folder / "summary.json", {
        **nothing, "format": 1, "algorithm": "bc", "dataset": "d", "environment": "Pendulum-v1", "steps": 10,
        "seeds": list(seeds), "episodes": 50, "per_seed_returns": list(map(float, scores)), "returns": interval,
        "versions": {}, "date": "",
    })  # fmt: skip
    (folder / "metrics.jsonl").write_text("")
    return Run.open(folder)


@pytest.fixture
def room(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """Training that gives each seed the score of its arm's difference; what was asked for is listed."""
    asked: list[tuple[str, tuple[int, ...]]] = []

    def train_missing(arm: compare.Arm, seeds: tuple[int, ...], folder: pathlib.Path, *unused: object) -> Run:
        out = folder / arm.label / f"seeds-{'-'.join(map(str, seeds))}"
        if out.is_dir():
            return Run.open(out)
        asked.append((arm.label, seeds))
        return write_run(out, arm.plan.config, seeds, [score(arm.label, seed) for seed in seeds])

    monkeypatch.setattr(compare, "train_missing", train_missing)
    return asked


def score(label: str, seed: int) -> float:
    luck = float(np.random.default_rng((seed, len(label))).normal())
    return luck + {"good": 3.0, "a": 0.0, "bb": 0.0}[label]


def two(room: pathlib.Path, first: str, second: str, seeds: int = 3) -> None:
    for name, option in ((first, 1), (second, 2)):
        write_run(
            room / "runs" / f"{name}-1", {"hidden": [option]}, range(seeds), [score(name, s) for s in range(seeds)]
        )


def test_seeds_are_added_until_a_difference_is_found(
    room: pathlib.Path, trained: list[tuple[str, tuple[int, ...]]], capsys: Capture
) -> None:
    two(room, "good", "bb")
    command = ["compare", "runs/good-*", "runs/bb-*", "--until", "decided"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert trained[:2] == [("good", (3, 4)), ("bb", (3, 4))]
    assert len(trained) <= 4  # stage 2 at the latest
    assert "plan: after every 5 seeds" in text
    assert "when these seeds were trained: 3 of good, 3 of bb" in text
    assert "good has a larger return than bb" in text.split("decision:")[1]
    fixed = read_json(room / "runs" / "compare-good-bb" / "comparison.json", compare.COMPARISON)
    assert fixed["arms"][0]["seeds"] == list(range(25))
    answer = read_json(room / "runs" / "compare-good-bb" / "answer.json")
    assert answer["pairs"][0]["answer"] == "larger"
    before = list(trained)
    assert main(command) == 0  # continues with what is there
    assert trained == before
    assert "good has a larger return than bb" in capsys.readouterr().out


def test_equal_algorithms_are_not_separated_at_the_end(
    room: pathlib.Path, trained: list[tuple[str, tuple[int, ...]]], capsys: Capture
) -> None:
    two(room, "a", "bb", seeds=7)
    assert main(["compare", "runs/a-*", "runs/bb-*", "--until", "decided", "--max-seeds", "12", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["plan"]["stages"] == 2
    assert trained == [("a", (7, 8, 9)), ("bb", (7, 8, 9))]
    (pair,) = shown["pairs"]
    assert [look["answer"] for look in pair["looks"]] == ["open", "not separated"]
    assert shown["trained"] == {"a": 3, "bb": 3}


def test_three_arms_share_the_level_and_decided_ones_get_no_more_seeds(
    room: pathlib.Path, trained: list[tuple[str, tuple[int, ...]]], capsys: Capture
) -> None:
    two(room, "a", "bb", seeds=2)
    write_run(room / "runs" / "good-1", {"hidden": [3]}, range(2), [9.0, 9.1])
    command = ["compare", "runs/a-*", "runs/bb-*", "runs/good-*", "--until", "decided", "--per-stage", "6", "--json"]
    assert main(command) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["plan"]["pairs"] == 3
    answers = {(pair["first"], pair["second"]): pair["answer"] for pair in shown["pairs"]}
    assert answers["a", "bb"] == "not separated"
    assert answers["a", "good"] == answers["bb", "good"] == "smaller"
    assert shown["trained"]["good"] < shown["trained"]["a"]


def test_anytime_looks_after_every_seed(
    room: pathlib.Path, trained: list[tuple[str, tuple[int, ...]]], capsys: Capture
) -> None:
    two(room, "good", "bb", seeds=2)
    assert main(["compare", "runs/good-*", "runs/bb-*", "--until", "decided", "--anytime", "--json"]) == 0
    looks = json.loads(capsys.readouterr().out)["pairs"][0]["looks"]
    assert [look["seeds"] for look in looks] == list(range(1, len(looks) + 1))
    assert looks[-1]["answer"] == "larger"
    assert looks[-1]["statistic"] >= 20
    assert all(len(seeds) == 1 for _, seeds in trained)


def test_a_plan_is_not_changed_after_a_look(
    room: pathlib.Path, trained: list[tuple[str, tuple[int, ...]]], capsys: Capture
) -> None:
    two(room, "good", "bb", seeds=5)
    command = ["compare", "runs/good-*", "runs/bb-*", "--until", "decided", "-q"]
    assert main(command) == 0
    for more, word in ((["--max-seeds", "30"], "stages is 5 there and 6 here"), (["--anytime"], "rule is"),
                       (["--level", "0.1"], "level is 0.05")):  # fmt: skip
        assert main([*command, *more]) == 2
        assert word in capsys.readouterr().err
    assert main([*command, "-o", "other", "--max-seeds", "30"]) == 0


def test_three_seeds_decide_nothing_and_one_look_says_what_it_is(room: pathlib.Path, capsys: Capture) -> None:
    two(room, "good", "bb")
    assert main(["compare", "runs/good-*", "runs/bb-*"]) == 0
    text = capsys.readouterr().out
    assert "with 3 seeds of each algorithm nothing can be decided" in text
    assert "(95 %, over seeds alone)" in text
    assert not list(room.glob("runs/compare*"))
    write_run(room / "runs" / "good-2", {"hidden": [1]}, range(3, 8), [score("good", s) for s in range(3, 8)])
    write_run(room / "runs" / "bb-2", {"hidden": [2]}, range(3, 8), [score("bb", s) for s in range(3, 8)])
    assert main(["compare", "runs/good-*", "runs/bb-*"]) == 0
    text = capsys.readouterr().out
    assert "good has a larger return than bb (p" in text
    assert "This is one look" in text


def evaluated(run: Run, states: np.ndarray) -> None:
    """Give a run's seeds episodes: their scores, and what each initial state adds."""
    scores = compare.scores_of(run, "return")
    for seed, score in scores.items():
        returns = score + states - states.mean()
        found = Episodes(returns, np.full(len(returns), 7))
        run.seed_folder(seed).mkdir(parents=True, exist_ok=True)
        write_json(run.seed_folder(seed) / "result.json", {"evaluation": found.to_json()})


def test_a_difference_on_the_initial_states_that_all_met_may_be_none_on_others(
    room: pathlib.Path, trained: list[tuple[str, tuple[int, ...]]], capsys: Capture
) -> None:
    """Eight seeds each, all of one above all of the other, by less than the states do to the difference."""
    two(room, "good", "bb", seeds=8)
    luck = np.random.default_rng(0).normal(0, 40, 20)
    evaluated(Run.open(room / "runs" / "good-1"), luck)
    evaluated(Run.open(room / "runs" / "bb-1"), -luck)
    assert main(["compare", "runs/good-*", "runs/bb-*", "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert (pair["answer"], pair["on_these_states"], pair["over_states"]) == ("not separated", "larger", True)
    assert pair["difference"]["low"] < -5 < 0 < 5 < pair["difference"]["high"]
    assert main(["compare", "runs/good-*", "runs/bb-*"]) == 0
    text = capsys.readouterr().out
    assert "(95 %, over seeds and initial states)" in text
    assert "not separated: larger from the initial states that all met, and from others perhaps not" in text
    assert main(["compare", "runs/good-*", "runs/bb-*", "--until", "decided"]) == 0
    text = capsys.readouterr().out
    assert "from the 50 initial states that all runs are judged on" in text
    assert "good has a larger return than bb" in text.split("decision:")[1]
    assert ": from other initial states it may be otherwise" in text.split("decision:")[1]
    for path in (room / "runs").glob("*/seeds/*/result.json"):
        path.unlink()
    evaluated(Run.open(room / "runs" / "good-1"), luck)
    evaluated(Run.open(room / "runs" / "bb-1"), luck)  # the states do the same to both
    assert main(["compare", "runs/good-*", "runs/bb-*", "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert (pair["answer"], pair["difference"]["low"] > 0) == ("larger", True)


def test_arms_of_different_sizes_are_decided_where_their_labelings_allow_it(
    room: pathlib.Path, capsys: Capture
) -> None:
    write_run(room / "runs" / "good-1", {"hidden": [1]}, range(3), [20.0, 21.0, 22.0])
    write_run(room / "runs" / "bb-1", {"hidden": [2]}, range(10), list(range(10)))
    assert main(["compare", "runs/good-*", "runs/bb-*", "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert (pair["answer"], pair["too_few"]) == ("larger", None)
    assert pair["p"] == pytest.approx(1 / 286)
    write_run(room / "runs" / "few-1", {"hidden": [3]}, range(2), [0.0, 1.0])
    write_run(room / "runs" / "five-1", {"hidden": [4]}, range(4), [5.0, 6.0, 7.0, 8.0])
    assert main(["compare", "runs/few-*", "runs/five-*"]) == 0
    text = capsys.readouterr().out
    assert "with 2 seeds of one algorithm and 4 of the other nothing can be decided" in text
    assert "1 of the 15 ways" in text


def test_a_native_system_is_one_environment_by_either_name(room: pathlib.Path, capsys: Capture) -> None:
    for name, environment in (("a", "native/pendulum"), ("bb", "surefoot/Pendulum-v0")):
        run = write_run(
            room / "runs" / f"{name}-1", {"hidden": [len(name)]}, range(5), [score(name, s) for s in range(5)]
        )
        config = read_json(run.folder / "config.json")
        config["plan"]["environment"] = environment
        write_json(run.folder / "config.json", config)
    assert main(["compare", "runs/a-*", "runs/bb-*"]) == 0
    assert "not separated" in capsys.readouterr().out


def test_what_can_not_be_compared_is_refused_in_one_sentence(room: pathlib.Path, capsys: Capture) -> None:
    two(room, "a", "bb")
    write_run(room / "runs" / "mixed-1", {"hidden": [1]}, [0], [0.0])
    write_run(room / "runs" / "mixed-2", {"hidden": [4]}, [1], [0.0])
    cases = [
        (["runs/a-*"], "two or more patterns"),
        (["runs/a-*", "runs/nothing-*"], "matches no finished run folder"),
        (["runs/a-*", "runs/a-1"], "nothing is compared with itself"),
        (["runs/a-*", "runs/mixed-*"], "they differ in hidden: [1] and [4]"),
        (["runs/a-*", "runs/bb-*", "--metric", "sucess"], "did you mean 'success'"),
        (["runs/a-*", "runs/bb-*", "--metric", "success"], "has no success of its seeds; it has return"),
        (["runs/a-*", "runs/bb-*", "--max-seeds", "9"], "is of --until decided"),
        (["runs/a-*", "runs/bb-*", "--max-seeds", "0"], "is of --until decided"),
        (["runs/a-*", "runs/bb-*", "--until", "decided", "--max-seeds", "3"], "at least one stage"),
        (
            ["runs/a-*", "runs/bb-*", "--until", "decided", "--max-seeds", "3", "--per-stage", "3"],
            "with 3 seeds nothing",
        ),
    ]
    for arguments, words in cases:
        assert main(["compare", *arguments]) == 2, arguments
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert words in line
    assert not list(room.glob("runs/compare*"))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("algorithm", "trap_of_arms:Own", "add --trust"), ("dataset", IN_MEMORY, "train the seeds [5, 6] by fit()")],
)
def test_an_arm_that_can_not_be_trained_is_refused_before_another_is(
    room: pathlib.Path, trained: list[tuple[str, tuple[int, ...]]], capsys: Capture, field: str, value: str, words: str
) -> None:
    two(room, "good", "bb", seeds=5)
    path = room / "runs/bb-1/config.json"
    config = read_json(path)
    write_json(path, {**config, "plan": {**config["plan"], field: value}})
    command = ["compare", "runs/good-*", "runs/bb-*", "--until", "decided", "-q"]
    assert main([*command, "--per-stage", "7"]) == 2
    assert words in capsys.readouterr().err
    assert not trained
    assert not list(room.glob("runs/compare*"))
    assert main([*command, "--max-seeds", "5"]) == 0  # which needs no further seed


def test_missing_seeds_are_trained_with_the_runs_own_plan(
    finished_run: pathlib.Path, in_process: None, tmp_path: pathlib.Path
) -> None:
    (arm, _), _ = compare.arms_of([str(finished_run.parent / "bc ru[n]"), _copied(finished_run, tmp_path)])
    run = compare.train_missing(arm, (1,), tmp_path / "comparison", lambda event: None, False)
    assert run.folder == (tmp_path / "comparison" / arm.label / "seeds-1").resolve()
    assert run.plan == dataclasses.replace(Run.open(finished_run).plan, seeds=(1,))
    assert compare.scores_of(run, "return").keys() == {1}
    again = compare.train_missing(arm, (1,), tmp_path / "comparison", lambda event: None, False)
    assert again.folder == run.folder


def _copied(run: pathlib.Path, where: pathlib.Path) -> str:
    """A run like this one, that was trained at another speed: nothing is compared with its own copy."""
    shutil.copytree(run, where / "copy")
    summary = json.loads((where / "copy" / "summary.json").read_text())
    write_json(where / "copy" / "summary.json", {**summary, "updates_per_second": 1.0})
    return str(where / "copy")


def test_results_are_one_table_and_one_page(room: pathlib.Path, capsys: Capture) -> None:
    two(room, "a", "bb")
    (room / "runs" / "torn").mkdir()
    (room / "runs" / "torn" / "config.json").write_text("{")
    assert main(["results", "runs", "-o", "t.csv", "--plot"]) == 0
    shown = capsys.readouterr()
    assert "2 runs, 6 numbers, 1 folder left out" in shown.out
    assert "left out: runs/torn" in shown.err
    assert (room / "results.html").is_file()
    assert len((room / "t.csv").read_text().splitlines()) == 7
    assert main(["results", "runs", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (list(told["left_out"]), told["repeated"]) == (["runs/torn"], [])
    shutil.copytree("runs/a-1", "runs/other")
    assert main(["results", "runs", "-q"]) == 0
    assert "runs/other is a copy of the run runs/a-1: counted once" in capsys.readouterr().err
    assert main(["compare", "runs/a-1", "runs/other"]) == 2
    assert "nothing is compared with itself, nor with its copy" in capsys.readouterr().err
    write_run(pathlib.Path("runs/again"), {"hidden": [1]}, [2, 3], [0.0, 0.0])
    assert main(["results", "runs", "-q"]) == 0
    assert "seed 2 occurs in runs/a-1, runs/again: counted once, as in runs/a-1" in capsys.readouterr().err
    assert main(["results", "runs", "-o", "t.xlsx"]) == 2
    kept = pathlib.Path("t.csv").read_text()
    assert main(["results", "runs/torn", "-o", "t.csv"]) == 2
    assert pathlib.Path("t.csv").read_text() == kept
    for command in (["results", "runs", "--plot", "page.png"], ["report", "runs/torn", "-o", "page.pdf"]):
        capsys.readouterr()
        assert main(command) == 2
        assert "a page is HTML; give a name that ends in .html" in capsys.readouterr().err
