"""Published results: what is declared, what a run says beside it, and what is refused."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

from surefoot.cli import main, reproduce
from surefoot.core.base.errors import ConfigError
from surefoot.runs.algorithms import FAMILIES
from surefoot.runs.plan import agent_class, seeds_of
from surefoot.studies import reproduce as published

RESULTS = published.results()
ENTRY = """\
[one]
family = "offline"
algorithm = "iql"
task = "nothing"
options = { hidden = [8] }
run = { dataset = "PATH", env = "Pendulum-v1", steps = 6, seeds = 2, episodes = 2, batch_size = 8 }
published = [{ metric = "return", value = -100.0, spread = 3.0, of = "standard deviation", seeds = 4 }]
paper = "No one (2000)"
table = "Table 1"
protocol = "the last policy"

[one.before]
algorithm = "iql"
options = { hidden = [8] }
run = { dataset = "PATH", env = "Pendulum-v1", steps = 4, seeds = 2, episodes = 2, batch_size = 8 }
"""


@pytest.fixture
def tiny(tmp_path: pathlib.Path, dataset_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result `one` of two runs, and nothing else."""
    monkeypatch.chdir(tmp_path)
    read = published.read(ENTRY.replace("PATH", str(dataset_path)), "mine.toml")
    monkeypatch.setattr(published, "results", lambda: read)


def test_there_are_results_of_all_families_but_streaming() -> None:
    assert len(RESULTS) >= 25
    assert set(published.families(list(RESULTS.values()))) == {"online", "offline", "safe", "model_based"}
    assert all(re.fullmatch(r"[a-z0-9_]+(-[a-z0-9]+)+", name) for name in RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_is_a_run_that_can_be_configured_and_has_a_source(name: str) -> None:
    one = RESULTS[name]
    assert one.algorithm in FAMILIES[one.family]
    assert re.search(r"\(\d{4}\)", one.paper)
    assert one.table
    assert one.protocol
    for stage, values in reproduce.stages_of(one, pathlib.Path("place")).items():
        request = reproduce.request(values, name)
        kind = agent_class(request.algorithm)
        assert request.algorithm == values["algo"]
        preset = values.get("algo.preset")
        assert preset is None or preset in kind.PRESETS
        assert request.fields["steps"] == values["steps"]
        assert request.fields["seeds"] == seeds_of(values["seeds"])
        assert (request.fields["init"] == "place/before") is (stage == "run" and "before" in one.stages)
        for option, value in one.stages[stage].options.items():
            if option != "preset":
                assert request.options[option] == value
    for number in one.published:
        assert number.metric != "normalised cost" or number.limit
        assert number.spread is None or number.of


def test_rates_and_runs_are_of_results_that_there_are() -> None:
    assert published.measured().keys() <= RESULTS.keys()
    ran = [name for name, facts in published.measured().items() if "here" in facts]
    assert len(ran) >= 3
    for name in ran:
        here, one = published.measured()[name]["here"], RESULTS[name]
        assert [outcome["published"] for outcome in here["outcomes"]] == [number.value for number in one.published]
        assert here["shorter"] or here["updates"] >= one.stages["run"].steps
        assert published.seconds(one, "core")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('task = "nothing"\n', "", r"one has no key 'task'"),
        ('metric = "return"', 'metric = "reward"', r"one.published\[0\].metric is 'reward', must be one of return"),
        ("value = -100.0", "value = nan", r"one.published\[0\].value is nan, must be a finite number"),
        ('paper = "No one (2000)"', 'papre = "No one (2000)"', r"one has no key 'paper'"),
        ('protocol = "the last policy"', 'protocol = "the last policy"\nnotes = "x"', r"has the key 'notes'"),
        ("[one.before]", "[one]", r"mine.toml: .*one"),
        ('protocol = "the last policy"', 'protocol = "x"\nalike = "two"', r"one.alike: choose from one"),
        ("steps = 6, seeds = 2", "seeds = 2", r"one.run: give steps and seeds"),
    ],
)
def test_a_declaration_that_is_wrong_is_refused(old: str, new: str, said: str) -> None:
    assert old in ENTRY
    with pytest.raises(ConfigError, match=said):
        published.read(ENTRY.replace(old, new, 1), "mine.toml")


def test_numbers_are_compared_in_the_papers_units() -> None:
    """A share of 0.8 is 80 %, and a cost of 5 of 10 is half of the limit."""
    one = published.read(
        ENTRY.replace(
            '[{ metric = "return", value = -100.0, spread = 3.0, of = "standard deviation", seeds = 4 }]',
            '[{ metric = "success", value = 90.0 }, { metric = "normalised cost", value = 0.5, limit = 10.0 },'
            ' { metric = "normalised", value = 40.0 }, { metric = "cost", value = 7.0 }]',
        ),
        "mine.toml",
    )["one"]
    summary = {
        "success": {"mean": 0.8, "low": 0.7, "high": 0.85},
        "cost": {"mean": 5.0, "low": 4.0, "high": 6.0},
        "normalized": {"mean": 50.0, "low": None, "high": None},
    }
    success, share, score, cost = published.outcomes(one, summary)
    assert (success.mean, success.low, success.place) == (pytest.approx(80), pytest.approx(70), "above")
    assert (share.mean, share.high, share.place) == (pytest.approx(0.5), pytest.approx(0.6), "inside")
    assert (score.mean, score.low, score.place) == (50.0, None, "no interval")
    assert cost.place == "above"
    assert "published 90, which lies above our 95 % interval" in str(success)
    with pytest.raises(ConfigError, match="one: the run has no success to compare"):
        published.outcomes(one, {**summary, "success": None})


@pytest.mark.usefixtures("in_process", "tiny")
def test_both_runs_of_a_result_are_trained_once_and_the_verdict_is_kept(capsys: Any) -> None:
    assert main(["reproduce", "one", "-q"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"return: ours -\d+ \[.*\], published -100, which lies", said)
    assert "shorter" not in said
    place = pathlib.Path("runs/reproduce-one")
    found = json.loads((place / "reproduction.json").read_text())
    summary = json.loads((place / "run" / "summary.json").read_text())
    (outcome,) = found["outcomes"]
    assert (outcome["mean"], outcome["low"]) == (summary["returns"]["mean"], summary["returns"]["low"])
    assert (found["seeds"], found["updates"], found["shorter"]) == ([0, 1], 6, False)
    config = json.loads((place / "run" / "config.json").read_text())["plan"]
    assert config["init"] == str((place / "before").resolve())

    assert main(["reproduce", "one", "-q", "--json"]) == 0  # all is there already
    assert json.loads(capsys.readouterr().out) == found
    assert main(["reproduce", "one", "-q", "--seeds", "1"]) == 2
    assert "was started with seeds=2, not 1; say that to continue" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process", "tiny")
def test_a_run_of_fewer_updates_is_labelled_as_shorter(capsys: Any) -> None:
    assert main(["reproduce", "one", "-q", "--updates", "3", "--seeds", "[7]", "-o", "short", "device=cpu"]) == 0
    assert "*** a shorter run than published: 3 of 4 steps before; 3 of 6 steps" in capsys.readouterr().out
    found = json.loads(pathlib.Path("short/reproduction.json").read_text())
    assert (found["shorter"], found["seeds"], found["updates"]) == (True, [7], 3)


@pytest.mark.usefixtures("tiny")
def test_a_killed_reproduction_says_the_command_that_goes_on_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def interrupt(*unused: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("surefoot.runs.start.work", interrupt)
    assert main(["reproduce", "one", "-q"]) == 130
    assert capsys.readouterr().err.endswith("interrupted; resume with: surefoot reproduce one -q\n")
    assert (pathlib.Path("runs/reproduce-one") / "reproduce.json").is_file()


@pytest.mark.usefixtures("tiny")
def test_show_prints_commands_and_runs_nothing(capsys: Any, dataset_path: pathlib.Path) -> None:
    assert main(["reproduce", "one", "--show", "device=cpu"]) == 0
    said = capsys.readouterr().out
    assert f"surefoot train algo=iql 'algo.hidden=[8]' 'dataset={dataset_path}' env=Pendulum-v1 steps=4" in said
    assert "device=cpu init=runs/reproduce-one/before out=runs/reproduce-one/run" in said
    assert "expectile=0.7" in said
    assert "-100 +- 3 (standard deviation, 4 seeds)" in said
    assert not pathlib.Path("runs").exists()


def test_the_list_can_be_filtered(capsys: Any) -> None:
    assert main(["reproduce", "--family", "safe", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["family"] for row in rows} == {"safe"}
    assert all(row["stages"]["run"]["command"].startswith("surefoot train algo=") for row in rows)
    assert main(["reproduce", "--algo", "dqn"]) == 0
    said = capsys.readouterr().out
    assert "dqn-cartpole" in said
    assert "ppo-cartpole" not in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("dqn-cartpol", "no published result is called 'dqn-cartpol': did you mean 'dqn-cartpole'"),
        ("--family saf", "--family saf: did you mean 'safe'?"),
        ("--algo ppo_lg", "--algo ppo_lg: did you mean 'ppo_lag'"),
        ("--algo dqn --family safe", "no result is of dqn and of the family safe"),
        ("dqn-cartpole --family safe", "--family filters the list"),
        ("--seeds 2", "--seeds is of one result: name it"),
        ("device=cpu", "name the result first"),
        ("dqn-cartpole steps=5", "steps=5: say --updates N"),
        ("dqn-cartpole algo.double=true", "a result fixes the algorithm and its options"),
        ("dqn-cartpole batch_size=5", "batch_size=5: a result fixes this"),
        ("dqn-cartpole --updates few", "--updates few: must be a whole number"),
        ("dqn-cartpole --updates 0", "--updates 0: must be a whole number"),
        ("dqn-cartpole --seeds a", "--seeds a: give how many"),
        ("td3bc-neorl2-dmsd", "td3bc-neorl2-dmsd: DMSD-high-100000-train.npz is not here. DMSD-high"),
    ],
)
def test_what_makes_no_sense_is_refused(
    line: str, said: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *line.split()]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("tiny")
def test_an_environment_that_is_not_here_is_reported_with_what_the_result_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    text = ENTRY.replace("Pendulum-v1", "Nowhere-v0").replace("PATH", "native/pendulum-mixed")
    read = published.read(text.replace("\n\n[one", '\nneeds = "the package of nowhere"\n\n[one'), "mine.toml")
    monkeypatch.setattr(published, "results", lambda: read)
    assert main(["reproduce", "one", "-q"]) == 2
    said = capsys.readouterr().err
    assert "Nowhere-v0" in said
    assert "(one needs: the package of nowhere)" in said
    assert not pathlib.Path("runs").exists()
