"""Run folders: one process each, whatever is launched at once."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import forking
import pytest
from small_runs import TINY, small_dataset

from surefoot.api.fit import fit
from surefoot.cli import main
from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.core.base.files import write_json
from surefoot.offline import BC
from surefoot.runs.folders import LOCK, FolderInUseError, claim_begun, claim_named, claim_new
from surefoot.runs.start import resume

CLAIM = """
import sys, time
from surefoot.core.base.errors import ConfigError
from surefoot.runs.folders import claim_named, claim_new
how, where, go = sys.argv[1:]
import pathlib
print("ready", flush=True)
while not pathlib.Path(go).exists():
    time.sleep(0.001)
try:
    with claim_named("bc-data", where) if how == "named" else claim_new(where) as claim:
        (claim.folder / "config.json").write_text("{}")
        print(claim.folder, flush=True)
        time.sleep(0.2)
except ConfigError as error:
    print("refused", flush=True)
    sys.exit(2)
"""


def launched(how: str, where: pathlib.Path, processes: int) -> list[tuple[int, str]]:
    go = where.parent / f"go-{where.name}"
    command = [sys.executable, "-c", CLAIM, how, str(where), str(go)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    go.touch()
    return [(one.wait(), out.strip()) for one in started for out in [one.communicate(timeout=120)[0]]]


def test_processes_that_begin_at_once_have_a_folder_each(tmp_path: pathlib.Path) -> None:
    found = launched("named", tmp_path / "runs", 2)
    assert [code for code, _ in found] == [0] * 2
    assert len({folder for _, folder in found}) == 2
    assert sorted(map(str, (tmp_path / "runs").iterdir())) == sorted(folder for _, folder in found)


def test_of_processes_that_begin_at_once_in_one_folder_one_goes_on(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("new", "empty"):
        assert Counter(code for code, _ in launched("new", tmp_path / place, 2)) == {0: 1, 2: 1}


def test_64_threads_have_64_default_folders_and_one_explicit_folder_has_one_of_them(tmp_path: pathlib.Path) -> None:
    barrier, done = threading.Barrier(64), threading.Barrier(64)

    def claim(number: int) -> tuple[str, bool]:
        barrier.wait()
        with claim_named("iql-data", tmp_path / "runs") as own:
            (own.folder / "config.json").write_text("{}")
            try:
                with claim_new(tmp_path / "one") as shared:
                    (shared.folder / "config.json").write_text(str(number))
                    went_on = True
            except ConfigError:
                went_on = False
            done.wait()
            return str(own.folder), went_on

    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(claim, range(64)))
    assert len({folder for folder, _ in found}) == 64
    assert sum(went_on for _, went_on in found) == 1


def test_two_launches_of_the_command_line_at_once_lose_nothing(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "-q", "algo=bc", f"dataset={dataset_path}", "seeds=1", *TINY]
    own = [forking.Popen(["-m", "surefoot", *command, f"steps={20 + k}"], cwd=tmp_path) for k in range(2)]
    with claim_new(tmp_path / "one"):
        assert main([*command, f"out={tmp_path / 'one'}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("surefoot: error: ")
    assert [process.wait() for process in own] == [0, 0]
    steps = [json.loads(path.read_text())["steps"] for path in tmp_path.glob("runs/*/summary.json")]
    assert sorted(steps) == [20, 21]


def test_a_folder_in_which_nothing_began_is_gone_and_so_is_what_it_lay_in(tmp_path: pathlib.Path) -> None:
    with claim_named("bc-data", tmp_path / "a" / "b") as claim:
        (claim.folder / "dataset.safetensors").touch()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with claim_new(tmp_path / "mine"):
        pass
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


@pytest.mark.parametrize(
    "kept", ["seeds/0/checkpoint.safetensors", "seeds/1/policy.safetensors", "seeds/0/model/a.safetensors"]
)
@pytest.mark.parametrize("resumed", [False, True])
def test_nothing_that_was_learned_is_removed_where_the_config_of_a_running_run_disappears(
    kept: str, resumed: bool, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    with claim_new(folder):
        (folder / "config.json").touch()
        if not resumed:
            (folder / kept).parent.mkdir(parents=True)
            (folder / kept).touch()
            (folder / "kernels.json").touch()
            (folder / "config.json").unlink()
    if resumed:
        for name in (kept, "dataset.safetensors", "kernels.json"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        with claim_begun(folder):
            (folder / "config.json").unlink()
    assert (folder / kept).is_file()
    assert (folder / "kernels.json").is_file()
    with pytest.raises(ConfigError, match="exists already"):
        claim_new(folder)
    assert (folder / kept).is_file()


def test_a_resumed_run_without_a_checkpoint_yet_keeps_what_was_written(tmp_path: pathlib.Path) -> None:
    for name in ("config.json", "dataset.safetensors", "seeds/0/log.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with claim_begun(tmp_path):
        (tmp_path / "config.json").unlink()
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["dataset.safetensors", "log.txt"]


def test_a_run_whose_config_disappears_while_it_trains_keeps_its_policies(tmp_path: pathlib.Path) -> None:
    folder, dataset = tmp_path / "run", small_dataset()

    def listener(event: dict[str, Any]) -> None:
        if event["kind"] == "metrics":
            (folder / "config.json").unlink(missing_ok=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(BC(dataset, hidden=(8, 8)), dataset, env="none", out=folder, listener=listener, seeds=1, steps=1_000_000)
    assert (folder / "seeds/0/checkpoint.safetensors").is_file()
    assert (folder / "dataset.safetensors").is_file()


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="exists already"):
        claim_new(tmp_path)
    with pytest.raises(ConfigError, match="exists already"):
        claim_new(tmp_path / "thesis.tex")
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.tex"]


def test_a_run_that_is_still_training_is_not_resumed_and_the_sentence_names_its_process(
    finished_run: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished_run, copy)
    (copy / "summary.json").unlink()
    with claim_begun(copy), pytest.raises(FolderInUseError, match=f"process {os.getpid()} on {socket.gethostname()}"):
        resume(copy)
    assert not (copy / LOCK).exists()


def test_the_lock_of_a_run_that_was_killed_when_it_was_complete_is_removed_and_a_living_one_stays(
    finished_run: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished_run, copy)
    (copy / LOCK).write_text("{}")
    assert resume(copy).complete
    assert not (copy / LOCK).exists()
    with claim_begun(copy):
        assert resume(copy).complete
        assert (copy / LOCK).exists()


def test_a_lock_is_free_after_a_kill_and_only_then(tmp_path: pathlib.Path) -> None:
    script = "import sys, time\nfrom surefoot.runs.folders import claim_new\n"
    script += "claim = claim_new(sys.argv[1])\nprint('ready', flush=True)\ntime.sleep(100)"
    folder = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(FolderInUseError, match=f"process {process.pid} "):
        claim_new(folder)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with claim_new(folder):
        pass


def test_a_sweep_that_is_taken_up_again_leaves_what_its_jobs_are_writing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sweep.json").touch()
    (tmp_path / "00-job").mkdir()
    mine, job = tmp_path / ".config.89abcdef.json", tmp_path / "00-job" / ".checkpoint.0123abcd.safetensors"
    for path in (mine, job):
        path.touch()
    with claim_begun(tmp_path):
        assert (mine.exists(), job.exists()) == (False, True)
    assert job.exists()


def test_temporary_files_of_a_killed_process_are_removed_and_nothing_else(tmp_path: pathlib.Path) -> None:
    names = ["seeds/0/.checkpoint.0123abcd.safetensors", ".config.89abcdef.json", "seeds/0/.tmpq7zoyK"]
    names += [".gitignore", "seeds/0/log.txt", ".tmp-of-mine"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "config.json").touch()
    with claim_begun(tmp_path):
        assert [name for name in names if (tmp_path / name).exists()] == names[3:]


def test_a_lock_that_fails_is_a_sentence(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.flock", failing)
    with pytest.raises(ConfigError, match=r"new: can't be locked \(Input/output error\); put it on another disk"):
        claim_new(tmp_path / "new")


def test_no_folder_has_a_null_byte_in_its_name(tmp_path: pathlib.Path) -> None:
    for act in (claim_new, claim_begun, resume):
        with pytest.raises(SurefootError, match=r"a name can't have a null byte"):
            act(tmp_path / "a\0b")
    with pytest.raises(SurefootError, match=r"a name can't have a null byte"):
        write_json(tmp_path / "a\0b", {})


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_a_disk_that_is_full_at_the_first_byte_leaves_no_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(ConfigError, match=r"b: can't be written \(the disk is full"):
            claim_new(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    with claim_new(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
