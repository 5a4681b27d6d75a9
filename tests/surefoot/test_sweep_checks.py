"""All jobs of a sweep, a suite or a study are checked before the first; bad ones can be given up, none is run twice."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import pytest
from small_runs import TINY

from surefoot.cli import main

Capture = pytest.CaptureFixture[str]
SUITE = """\
what: a test
version: 3
seeds: [1000, 1001, 1002, 1003]
run: {steps: 4, episodes: 2, evaluate_every: 4, evaluate_episodes: 1, batch_size: 8}
tasks:
  swing: {dataset: "'PATH'"}
  gone: {dataset: gone.hdf5}
algorithms: [bc]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swept(*arguments: str) -> int:
    return main(["train", "-m", "-q", *arguments, "out=sweep", *TINY])


@pytest.mark.parametrize("values", ["1,2", "0,1", "range(1,3)", "choice(5,7)"])
def test_numbers_after_seeds_are_no_list_of_seeds_and_the_refusal_says_how_one_is_written(
    values: str, here: pathlib.Path, capsys: Capture
) -> None:
    assert swept("algo=bc", f"seeds={values}") == 2
    first, second = {"range(1,3)": "12", "choice(5,7)": "57"}.get(values, values.replace(",", ""))
    said = capsys.readouterr().err
    assert f"side by side in one run write seeds=[{first},{second}]" in said
    assert f"for a run of each seeds=[{first}],[{second}]" in said
    assert not list(here.iterdir())


def test_without_m_a_list_of_seeds_is_not_advised_to_be_swept(capsys: Capture) -> None:
    assert main(["train", "algo=bc", "seeds=0,1"]) == 2
    said = capsys.readouterr().err
    assert "write a list of seeds as seeds=[0,1]" in said
    assert "add -m" not in said


@pytest.mark.parametrize(
    "arguments",
    [("algo=bc", "seeds=[0],[0,3]"), ("algo=bc,bc", "seeds=1"), ("algo=bc", "algo.discount=0.9,0.90", "seeds=1")],
)
def test_two_jobs_that_train_a_seed_in_the_same_way_are_refused(
    arguments: tuple[str, ...], dataset_path: pathlib.Path, here: pathlib.Path, capsys: Capture
) -> None:
    assert swept(*arguments, f"dataset={dataset_path}") == 2
    assert "jobs 0 and 1 would both train seed 0 with the same settings" in capsys.readouterr().err
    assert not (here / "sweep").exists()


def test_all_jobs_are_checked_before_the_first_and_each_reason_is_told_once(
    dataset_path: pathlib.Path, here: pathlib.Path, capsys: Capture
) -> None:
    """Of 2 x 2 x 2 jobs only job 0 has data that are there, a known environment and an algorithm that reads data."""
    shutil.copy(dataset_path, here / "data.hdf5")
    assert swept("algo=bc,ppo", "dataset=data.hdf5,gone.hdf5", "env=Pendulum-v1,Pendulm-v1", "seeds=1") == 2
    said = capsys.readouterr().err
    assert "7 of 8 jobs can't be trained, and none was started" in said
    assert "--skip-failing gives up what can't be trained" in said
    assert "\n  jobs 2, 3: gone.hdf5: no such file" in said
    assert "\n  job 1: unknown environment 'Pendulm-v1'" in said
    assert "\n  jobs 4, 5, 6, 7: ppo takes no dataset" in said
    assert said.count("gone.hdf5: no such file") == said.count("ppo takes no dataset") == 1
    assert [path.name for path in here.iterdir()] == ["data.hdf5"]


def test_what_only_the_first_step_would_find_is_found_before_the_first_job(here: pathlib.Path, capsys: Capture) -> None:
    """20 steps are over before SAC's first update at 100, and the pendulum of gymnasium has no costs."""
    acting = ["env=native/pendulum", "steps=20", "seeds=1", "episodes=1", "out=sweep", "-q"]
    assert main(["train", "-m", "algo=sac", "algo.initial_steps=10,100", *acting]) == 2
    assert "error: job 1: steps is 20, algo.initial_steps 100" in capsys.readouterr().err
    assert main(["train", "-m", "algo=cpo,ppo", "env=Pendulum-v1", "steps=50000", *acting[2:]]) == 2
    assert "error: job 0: cpo keeps a limit on costs, and Pendulum-v1 gives none" in capsys.readouterr().err
    assert not list(here.iterdir())


@pytest.mark.usefixtures("in_process")
def test_jobs_that_cannot_be_trained_are_given_up_and_the_sweep_goes_on_once_they_are_mended(
    dataset_path: pathlib.Path, here: pathlib.Path, capsys: Capture
) -> None:
    shutil.copy(dataset_path, here / "data.hdf5")
    data = "dataset=data.hdf5,later.hdf5"
    assert swept("--skip-failing", "algo=bc,iql", data, "algo.expectile=0.6", "seeds=1") == 2
    shown = capsys.readouterr()
    failures = {path.name: json.loads(path.read_text()) for path in here.glob("sweep/*-failed.json")}
    assert sorted(failures) == ["00-failed.json", "01-failed.json", "03-failed.json"]
    assert all(failure["given_up"] and not failure["unexpected"] for failure in failures.values())
    assert shown.out.count("bc has no option 'algo.expectile'") == 1
    assert "jobs 0, 1 given up: bc has no option" in shown.out
    assert "job 3 given up: later.hdf5: no such file" in shown.out
    assert "jobs 0, 1, 3 of the sweep in sweep did not end with a result" in shown.err
    assert "no such file" not in shown.err, "a reason is given once"
    (first,) = here.glob("sweep/*/summary.json")
    assert first.parent.name.startswith("02-iql")
    before = first.stat().st_mtime_ns
    shutil.copy(dataset_path, here / "later.hdf5")
    assert main(["train", "--resume", "sweep"]) == 2, "bc still has no such option"
    shown = capsys.readouterr()
    assert "1 of 4 jobs are finished already" in shown.out
    assert "#2 " not in shown.out
    assert first.stat().st_mtime_ns == before
    assert sorted(path.parent.name[:2] for path in here.glob("sweep/*/summary.json")) == ["02", "03"]
    assert sorted(path.name for path in here.glob("sweep/*-failed.json")) == ["00-failed.json", "01-failed.json"]


@pytest.mark.usefixtures("in_process")
def test_a_reason_for_which_several_jobs_fail_while_they_train_is_told_once(
    dataset_path: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surefoot.cli.support import sweep
    from surefoot.core.base.errors import DivergenceError

    def diverge(*unused: Any, **also: Any) -> None:
        raise DivergenceError("a loss stopped being finite")

    monkeypatch.setattr(sweep, "train_one", diverge)
    assert swept("algo=bc", f"dataset={dataset_path}", "seeds=1,[3],[4]") == 2
    shown = capsys.readouterr()
    assert shown.err.count("a loss stopped being finite") == 1
    assert "job 1 failed, as job 0 did" in shown.err
    assert [line for line in shown.out.splitlines() if "failed" in line] == [
        "jobs 0, 1, 2 failed: a loss stopped being finite"
    ]


def test_jobs_of_other_machines_are_checked_by_their_names_alone() -> None:
    """A cluster's machines may have the simulator and the GPU that this one lacks; a missing file is a slip."""
    from surefoot.cli.support import config
    from surefoot.cli.support.ahead import check_jobs
    from surefoot.cli.support.launchers import elsewhere
    from surefoot.cli.support.training import Style

    said = {"0": "dataset=native/pendulum-mixed", "1": "dataset=gone.hdf5"}
    jobs = {label: config.compose(["algo=bc", text, "env=Nowhere-v3"]) for label, text in said.items()}
    assert list(check_jobs(jobs, Style(quiet=True), here=False)) == ["1"]
    assert list(check_jobs(jobs, Style(quiet=True))) == ["0", "1"]
    on_device = {"2": config.compose(["algo=ppo", "env=playground/NoSuchTask"])}
    assert not check_jobs(on_device, Style(quiet=True)), "its simulator would hold memory of the GPU that jobs need"
    assert elsewhere(["algo=bc", "hydra/launcher=submitit_slurm"])
    assert not elsewhere(["algo=bc", "hydra/launcher=joblib"])


@pytest.mark.parametrize(
    "arguments", [["algo=bc"], ["--resume", "run"], ["-m", "algo=bc", "seeds=[0],[1]", "hydra/sweeper=optuna"]]
)
def test_where_no_jobs_are_known_none_can_be_given_up(arguments: list[str], capsys: Capture) -> None:
    assert main(["train", "--skip-failing", *arguments]) == 2
    assert "error: --skip-failing" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_a_suite_gives_up_runs_that_cannot_be_trained(
    dataset_path: pathlib.Path, here: pathlib.Path, capsys: Capture
) -> None:
    (here / "tiny.yaml").write_text(SUITE.replace("PATH", str(dataset_path)))
    assert main(["bench", "tiny.yaml", "-q"]) == 2
    assert "run bc on gone: gone.hdf5: no such file" in capsys.readouterr().err
    assert not (here / "runs").exists()
    assert main(["bench", "tiny.yaml", "-q", "--skip-failing"]) == 2
    assert "run bc on gone given up: gone.hdf5: no such file" in capsys.readouterr().out
    lines = (here / "runs/bench-tiny-v3/leaderboard.jsonl").read_text().splitlines()
    assert [json.loads(line)["task"] for line in lines] == ["swing"]


def test_a_study_whose_space_holds_what_cannot_be_trained_is_not_begun(here: pathlib.Path, capsys: Capture) -> None:
    pytest.importorskip("optuna")
    (here / "space.yaml").write_text("algo.initial_steps: [10, 200, 300]\n")
    study = ["tune", "algo=sac", "env=native/pendulum", "steps=20", "--trials", "2", "--space", "space.yaml"]
    assert main([*study, "algo.hidden=[8]"]) == 2
    assert "steps is 20, algo.initial_steps" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["space.yaml"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["steps"], "'steps' is not of the form name=value"),
        (["hydra/launcher=x"], "hydra/launcher=x"),
        (["stps=3"], "did you mean 'steps'"),
    ],
)
def test_a_damaged_sweep_is_refused_with_its_file(
    here: pathlib.Path, capsys: Capture, overrides: list[str], words: str
) -> None:
    (here / "sweep").mkdir()
    told = {"format": 1, "overrides": overrides, "folder": str(here)}
    (here / "sweep" / "sweep.json").write_text(json.dumps(told))
    assert main(["train", "--resume", "sweep"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("surefoot: error: sweep/sweep.json")
    assert words in said
