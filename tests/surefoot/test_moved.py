"""Paths that modules of surefoot 0.2 had lead to the modules of today, and its files are read."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import surefoot
from surefoot import moved
from surefoot.core.base.errors import CheckpointError
from surefoot.runs.run import Run, load_agent, load_state

FILES = pathlib.Path(__file__).parent / "files_of_0_2"
"""What surefoot 0.2.0 wrote: the folder of a run of IQL."""


def imported(old: str) -> tuple[Any, list[warnings.WarningMessage]]:
    """A module by its old path, as if for the first time, and the warnings of it."""
    sys.modules.pop(f"surefoot.{old}", None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        module = importlib.import_module(f"surefoot.{old}")
    return module, [one for one in seen if issubclass(one.category, FutureWarning)]


@pytest.mark.parametrize("old", moved.MOVED)
def test_an_old_path_gives_the_module_of_the_new_one_and_says_so(old: str) -> None:
    if moved.MOVED[old].startswith("interop.lerobot"):
        pytest.importorskip("lerobot")
    module, (warning,) = imported(old)
    new = importlib.import_module(f"surefoot.{moved.MOVED[old]}")
    for word in (f"surefoot.{old} ", f"surefoot.{moved.MOVED[old]} ", moved.LAST):
        assert word in f"{warning.message} "
    if old in moved.PARTS:
        for part in moved.PARTS[old]:
            found = vars(importlib.import_module(f"surefoot.{part}"))
            own = [name for name, value in found.items() if getattr(value, "__module__", None) == f"surefoot.{part}"]
            assert own
            assert all(hasattr(module, name) for name in own)
        assert not hasattr(module, "no_such_name")
    else:
        assert module is new
    assert new.__spec__ is not None
    assert new.__spec__.name == new.__name__ == f"surefoot.{moved.MOVED[old]}"


def test_a_refused_path_names_the_new_one() -> None:
    for old, new in moved.REFUSED.items():
        with pytest.raises(ModuleNotFoundError, match=rf"surefoot\.{old} is surefoot\.{new} now"):
            importlib.import_module(f"surefoot.{old}")
        importlib.import_module(f"surefoot.{new}")


def test_a_path_that_names_another_module_now_is_no_old_path() -> None:
    for old, new in moved.REUSED.items():
        assert old not in moved.MOVED
        assert imported(old)[1] == []
        importlib.import_module(f"surefoot.{new}")


def test_paths_that_never_were_are_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"surefoot\.core\.no_such_module"):
        importlib.import_module("surefoot.core.no_such_module")


@pytest.mark.parametrize(
    "line",
    [
        "from surefoot.core.policy import Policy; import surefoot.core.policy.policy as p; assert p.Policy is Policy",
        "from surefoot.core import learner; assert learner.__name__ == 'surefoot.core.engine.learner'",
        "from surefoot.experiment import run; assert run.__name__ == 'surefoot.runs.run'",
        "import surefoot.core.learner; surefoot.core.learner.Learner",
        "from surefoot.experiment.training import fit, resume, victim; import surefoot as s; assert fit is s.fit",
        "import surefoot.experiment.run as old; from surefoot.runs.run import Run; assert old.Run is Run",
    ],
)
def test_scripts_of_0_2_import_what_they_did(line: str) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_run_folder_of_0_2_is_read() -> None:
    run, told = Run.open(FILES), json.loads((FILES / "actions.json").read_text(encoding="utf-8"))
    assert run.complete
    assert run.plan.algorithm == "iql"
    agent, state = load_agent(run), load_state(run, 0)
    for name, value in agent.state_dict().items():
        assert bool((value == state[f"agent/{name}"]).all())
    for policy in (run.policy(), agent.policy(), surefoot.load_policy(run.policy_path(0))):
        policy.reset()
        for observation, action in zip(told["observations"], told["actions"], strict=True):
            found = policy.select_action(np.array(observation, np.float32))
            np.testing.assert_allclose(found, np.array(action), rtol=1e-6, atol=1e-7)


def test_a_run_of_0_2_does_not_go_on_with_other_random_numbers(tmp_path: pathlib.Path) -> None:
    """Its seeds drew other numbers: it is refused with what to do, and stays as it is."""
    import shutil

    from surefoot.runs.extend import extend

    folder = tmp_path / "run"
    shutil.copytree(FILES, folder)
    (folder / "kernels.json").unlink(missing_ok=True)  # made on another machine
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"random numbers of surefoot 0\.2.*start anew with init="):
        extend(folder, 30)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path in before} == before


def test_a_run_of_0_2_that_was_killed_does_not_go_on_either(tmp_path: pathlib.Path) -> None:
    """Before its first checkpoint, or with some seeds whole: its seeds would be of two schemes."""
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(FILES, folder)
    for name in ("kernels.json", "summary.json"):
        (folder / name).unlink(missing_ok=True)
    for path in (*folder.rglob("result.json"), *folder.rglob("checkpoint.safetensors")):
        path.unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"started with the random numbers of surefoot 0\.2"):
        surefoot.resume(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path in before} == before
