"""A sweep is the same whatever carries its jobs out, and continues where it was interrupted."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import TINY

from surefoot.cli import main
from surefoot.runs.processes.stopping import resumable

JOBS = ["algo=bc", "seeds=1,[3]", *TINY]


def tensors(sweep: pathlib.Path) -> dict[str, torch.Tensor]:
    """All numbers of all policies of a sweep, and their scores."""
    found = {
        f"{path.relative_to(sweep)} {name}": value
        for path in sorted(sweep.glob("0*/policy/*.safetensors"))
        for name, value in load_file(path).items()
    }
    for path in sweep.glob("0*/summary.json"):
        found[str(path.relative_to(sweep))] = torch.tensor(json.loads(path.read_text())["per_seed_returns"])
    return found


def assert_same(one: pathlib.Path, other: pathlib.Path) -> None:
    """To the bit, and not empty."""
    first, second = tensors(one), tensors(other)
    assert len(first) > 4
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.usefixtures("in_process")
def test_a_sweep_goes_on_with_the_jobs_that_are_missing_and_leaves_the_others(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(["train", "-q", "-m", f"dataset={dataset_path}", f"out={whole}", *JOBS]) == 0
    shutil.copytree(whole, killed)
    first, second = sorted(path for path in killed.glob("0*") if path.is_dir())
    shutil.rmtree(second)  # never started
    (killed / "01-failed.json").write_text(json.dumps({"job": 1, "error": "the disk was full", "unexpected": False}))
    before = (first / "summary.json").stat().st_mtime_ns
    monkeypatch.chdir(tmp_path.parent)
    assert main(["train", "-q", "--resume", str(killed)]) == 0
    assert (first / "summary.json").stat().st_mtime_ns == before
    assert_same(whole, killed)
    capsys.readouterr()
    asked = json.loads((killed / "sweep.json").read_text())
    (killed / "sweep.json").write_text(json.dumps({**asked, "folder": str(tmp_path / "moved")}))
    assert main(["train", "--resume", str(killed)]) == 2
    assert "moved, which its relative paths are meant from and which is gone" in capsys.readouterr().err
    (killed / "sweep.json").write_text(json.dumps({**asked, "overrides": ["algo=my.own:Agent", "seeds=1,2"]}))
    assert main(["train", "--resume", str(killed)]) == 2
    assert "add --trust" in capsys.readouterr().err


def interrupted(request: Any, style: Any, claim: Any, **unused: Any) -> None:
    """A job at whose beginning Ctrl-C is pressed."""
    try:
        with resumable(claim.folder):
            (claim.folder / "config.json").touch()
            raise KeyboardInterrupt
    finally:
        (claim.folder / "config.json").unlink()


@pytest.mark.usefixtures("in_process")
def test_a_sweep_with_an_algorithm_of_ones_own_goes_on_from_another_folder(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "resumed_agent.py").write_text("from surefoot.offline import BC\nclass Own(BC):\n    name = 'own'\n")
    jobs = [r"algo=bc,resumed_agent:Own", f"dataset='{dataset_path}'", "seeds=1", *TINY]
    (tmp_path / "sweep").mkdir()  # as a process leaves it that was killed before its first job
    told = {"format": 1, "overrides": jobs, "folder": str(tmp_path)}
    (tmp_path / "sweep/sweep.json").write_text(json.dumps(told))
    assert main(["train", "-q", "--resume", str(tmp_path / "sweep")]) == 2
    assert "add --trust" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr("surefoot.cli.support.sweep.train_one", interrupted)
        assert main(["train", "-q", "--resume", str(tmp_path / "sweep"), "--trust"]) == 130
    assert capsys.readouterr().err.strip().endswith(f"resume with: surefoot train --resume {tmp_path}/sweep --trust")
    assert main(["train", "-q", "--resume", str(tmp_path / "sweep"), "--trust"]) == 0, capsys.readouterr().err
    assert len(list(tmp_path.glob("sweep/0*/summary.json"))) == 2


def test_launchers_that_are_unknown_or_not_installed_are_named_before_anything_is_written(
    tmp_path: pathlib.Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    monkeypatch.chdir(tmp_path)
    assert main(["train", "-m", "algo=bc", "hydra/launcher=rai", "out=sweep"]) == 2
    assert "ray" in capsys.readouterr().err
    found = importlib.util.find_spec
    absent = {"ray.actor", "hydra_plugins.hydra_submitit_launcher"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else found(name))
    for name, extra in (("ray", "ray"), ("submitit_slurm", "slurm")):
        assert main(["train", "-m", "algo=bc", f"hydra/launcher={name}", "out=sweep"]) == 2
        assert f"surefoot[{extra}]" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ray", "submitit_local"])
def test_joblib_ray_and_submitit_give_the_same_bits(
    launcher: str, dataset_path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("ray.actor" if launcher == "ray" else "hydra_plugins.hydra_submitit_launcher")
    for name in ("joblib", launcher):
        command = ["train", "-q", "-m", f"hydra/launcher={name}", f"dataset={dataset_path}", f"out={tmp_path / name}"]
        done = subprocess.run(
            [sys.executable, "-m", "surefoot", *command, *JOBS], capture_output=True, text=True, cwd=tmp_path
        )
        if "Ray did not begin" in done.stderr:
            pytest.skip(f"Ray does not begin on this machine now: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "joblib", tmp_path / launcher)
