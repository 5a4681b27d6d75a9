"""What a received run or dataset can not do: have a module executed that it names, or that lies where one works."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
from small_runs import TINY, small_dataset

import surefoot
from surefoot.cli import main
from surefoot.core.children import environment
from surefoot.core.errors import CheckpointError, ConfigError
from surefoot.data import save
from surefoot.experiment import trust
from surefoot.experiment.plan import agent_class
from surefoot.experiment.run import Run, load_agent
from surefoot.experiment.training import fit, resume
from surefoot.offline import BC

TRAP = "import pathlib\npathlib.Path(__file__).with_name('EXECUTED').touch()\n"
NAMES = {"algorithm": "trap:Own", "environment": "trap_env:Trap-v0", "reward": "trap:reward"}
OWN = "from surefoot.offline import BC\nclass Own(BC):\n    name = 'own'\n"
FAST: dict[str, Any] = {"steps": 4, "seeds": 1, "episodes": 1, "evaluate_episodes": 1, "batch_size": 8}
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def received(finished_run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A run folder that someone sent, unfinished, whose configuration names a module that lies in it; we are there."""
    folder = tmp_path / "received"
    shutil.copytree(finished_run, folder)
    (folder / "summary.json").unlink()
    (folder / "seeds/0/result.json").unlink()
    (folder / "trap.py").write_text(TRAP + OWN)
    (folder / "trap_env.py").write_text(TRAP)
    monkeypatch.chdir(folder)
    return folder


def rename(folder: pathlib.Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["plan"].update(changes)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("field", ["algorithm", "environment", "reward"])
def test_no_command_executes_a_module_that_a_received_run_names(
    field: str, received: pathlib.Path, finished_run: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename(received, **{field: NAMES[field]})
    commands = [["train", "--resume", "."], ["evaluate", ".", "--episodes", "1"]]
    if field == "reward":
        commands = commands[:1]  # policies are evaluated without it
    elif field == "environment":
        commands += [["certify", ".", "--episodes", "10"], ["rollout", ".", "--envs", "2"]]
    else:
        commands += [["train", "algo=iql", "env=Pendulum-v1", "dataset=native/pendulum-mixed", "init=.", "out=new"]]
        commands += [["datasets", "corrupt", "x.hdf5", "-o", "y.hdf5", "--mode", "adversarial", "--victim", "."]]
    for command in commands:
        monkeypatch.setattr("surefoot.cli.train.load", lambda *unused: small_dataset())
        assert main(command) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "--trust" in line
        assert "trap" in line
    assert not (received / "EXECUTED").exists()
    assert not (received / "new").exists()
    assert main(["export", ".", "-o", "policy.safetensors"]) == 0  # for which no module is needed
    surefoot.load_policy(received)
    assert not (received / "EXECUTED").exists()


def test_a_dataset_does_not_decide_which_module_is_imported(tmp_path: pathlib.Path, capsys: Capture) -> None:
    (tmp_path / "trap_of_data.py").write_text(TRAP)
    dataset = small_dataset().replace(env_id="trap_of_data:Trap-v0")
    save(dataset, tmp_path / "data.hdf5")
    assert main(["train", "algo=bc", f"dataset={tmp_path / 'data.hdf5'}", f"out={tmp_path / 'run'}", *TINY]) == 2
    assert "names 'trap_of_data:Trap-v0'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="trust=True"):
        fit(BC(dataset, hidden=(8, 8)), dataset, out=tmp_path / "run", **FAST)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "EXECUTED").exists()


def test_an_algorithm_of_ones_own_trains_resumes_and_is_evaluated_from_the_command_line(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    (tmp_path / "own_algorithm.py").write_text(OWN)
    for name in ("random.py", "queue.py", "numpy.py"):  # which must stay unread
        (tmp_path / name).write_text(TRAP + "raise SystemError")

    def surefoot_(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "surefoot", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)

    trained = surefoot_(
        "train", "-m", "algo=own_algorithm:Own", f"dataset={dataset_path}", "seeds=1", "out=sweep", "-q", *TINY
    )
    assert trained.returncode == 0, trained.stderr
    (run,) = (tmp_path / "sweep").glob("*/")
    assert Run.open(run).plan.algorithm == "own_algorithm:Own"
    for name in ("summary.json", "seeds/0/result.json"):
        (run / name).unlink()
    assert main(["train", "--resume", str(run), "-q"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert surefoot_("train", "--resume", str(run), "-q", "--trust").returncode == 0
    evaluated = surefoot_("evaluate", str(run), "--episodes", "1", "--trust", "--json")
    assert json.loads(evaluated.stdout)["rows"][0]["algorithm"] == "own_algorithm:Own"
    assert not (tmp_path / "EXECUTED").exists()


def test_where_episodes_end_is_no_function_of_a_received_module(received: pathlib.Path) -> None:
    rename(received, algorithm="dynamics", config={"termination": "trap:ends"})
    run = Run.open(received)
    for use in (run.agent, lambda: load_agent(run), lambda: resume(received)):
        with pytest.raises((ConfigError, CheckpointError), match="trap"):
            use()
    assert not (received / "EXECUTED").exists()


def test_a_module_that_is_imported_already_needs_no_trust(finished_run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished_run, copy)
    rename(copy, algorithm="never_seen:Own")
    with pytest.raises(ConfigError, match="never_seen"):
        load_agent(Run.open(copy))
    with pytest.raises(ConfigError, match="never_seen"):
        agent_class("never_seen:Own")
    rename(copy, algorithm=f"{BC.__module__}:BC")
    assert type(load_agent(Run.open(copy))) is BC
    trust.demand("json:Decoder-v0", "a file")


def test_a_run_folder_with_links_in_it_is_not_written_to(received: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (received / "seeds/0/log.txt").unlink()
    (received / "seeds/0/log.txt").symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointError, match="symbolic link"):
        resume(received)
    assert (tmp_path / "precious").read_text() == "mine"


def test_workers_find_a_trusted_module_last_and_nothing_in_the_working_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_mine.py").touch()
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert trust.for_workers(["of_mine:Id-v0"]) == {"modules": ["of_mine"], "path": []}
    try:
        trust.allow("of_mine:Id-v0")
        assert sys.path == [*before, str(tmp_path)]
        assert trust.for_workers(["iql", None, "of_mine:Id-v0"])["path"] == [str(tmp_path)]
    finally:
        sys.path[:] = before


def test_an_empty_entry_of_pythonpath_does_not_let_the_working_directory_in(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "/mine", ""]))
    assert environment()["PYTHONPATH"] == "/mine"
    save(small_dataset(), tmp_path / "d.hdf5")
    for name in ("typing", "argparse", "json", "numpy", "random", "torch"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\n")
    script = [
        sys.executable,
        "-P",
        "-c",
        "import sys; from surefoot.cli import main; sys.exit(main())",
    ]  # as pip makes it
    for start in (script, [sys.executable, "-m", "surefoot"]):
        command = [*start, "datasets", "info", "d.hdf5"]  # which starts the reading process of HDF5
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()
