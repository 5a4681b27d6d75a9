"""Too little memory is a sentence, whichever library notices it."""

from __future__ import annotations

import errno
import json
import pathlib
import sys

import numpy as np
import pytest
import torch

from surefoot.cli import main
from surefoot.core.base import checkpoint, files
from surefoot.core.base.errors import CheckpointError, DataError
from surefoot.core.base.memory import enough_memory, short_of_memory
from surefoot.data import load

TORCH = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
FAILURES = [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError(TORCH)]


def raising(error: BaseException) -> object:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_what_numpy_and_torch_raise_without_memory_is_known() -> None:
    for make in (np.empty, torch.empty):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            make(2**56)
        assert short_of_memory(caught.value)
    assert not short_of_memory(RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"), enough_memory("f", DataError):
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize("error", FAILURES, ids=["python", "system", "torch"])
def test_a_command_without_memory_ends_in_a_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["surefoot.cli.main"], "dispatch", raising(error))
    assert main(["datasets", "list"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("surefoot: error: the memory is not enough (")
    assert told.count("\n") == 1


@pytest.mark.parametrize("error", FAILURES, ids=["python", "system", "torch"])
def test_files_that_do_not_fit_the_memory_are_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "a.json").write_text("{}")
    checkpoint.save(tmp_path / "a.safetensors", {"x": torch.zeros(3)}, {"kind": "odd"})
    np.savez(tmp_path / "a.npz", actions=np.zeros(3))
    with monkeypatch.context() as patched:
        patched.setattr(json, "loads", raising(error))
        with pytest.raises(CheckpointError, match=r"a\.json: the memory is not enough to read it; free some"):
            files.read_json(tmp_path / "a.json")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "safe_open", raising(error))
        with pytest.raises(CheckpointError, match=r"a\.safetensors: the memory is not enough"):
            checkpoint.load(tmp_path / "a.safetensors")
        patched.undo()
        patched.setattr(checkpoint, "digest", raising(error))
        with pytest.raises(CheckpointError, match=r"a\.safetensors: the memory is not enough"):
            checkpoint.load(tmp_path / "a.safetensors")
    monkeypatch.setattr("surefoot.data.formats.npz.read", raising(error))
    with pytest.raises(DataError, match=r"a\.npz: (the memory is not enough|can't be read)"):
        load(tmp_path / "a.npz")
