"""Files written whole or not at all, and refused when a byte of them is wrong."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import random
import struct
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_disk import small_disk
from torch import Tensor

from surefoot.core.base import checkpoint, files
from surefoot.core.base.errors import CheckpointError, SurefootError

TENSORS = {
    "weights": torch.arange(12.0).reshape(3, 4),
    "count": torch.tensor(7.0),
    "exact": torch.tensor([1 / 3, torch.pi], dtype=torch.float64),
    "ids": torch.tensor([1, -2], dtype=torch.int64),
    "mask": torch.tensor([True, False, True]),
    "none": torch.zeros(0, 3),
}
META = {"kind": "test", "step": 12, "note": "ünï"}


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, TENSORS, META)
    return path


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[n].dtype == other[n].dtype and torch.equal(one[n], other[n]) for n in one
    )


def test_a_checkpoint_gives_back_what_was_saved(file: pathlib.Path) -> None:
    tensors, meta = checkpoint.load(file, kind="test")
    assert same(tensors, TENSORS)
    assert meta == META


def test_equal_contents_are_equal_bytes(tmp_path: pathlib.Path) -> None:
    tensors, meta = (
        {"b": torch.ones(3), "a": torch.zeros(2, 2)},
        {"kind": "policy", "text": '\u00e9 "in words" \\ path'},
    )
    found = set()
    for number in range(8):
        path = tmp_path / f"{number}.safetensors"
        checkpoint.save(path, tensors, meta)
        found.add(path.read_bytes())
    assert len(found) == 1
    assert checkpoint.load(path)[1] == meta


def test_views_and_strided_tensors_are_saved_by_value(tmp_path: pathlib.Path) -> None:
    base = torch.arange(20.0).reshape(4, 5)
    views = {"column": base[:, 1], "transposed": base.T, "row": base[2], "again": base[2]}
    checkpoint.save(tmp_path / "v", views, {})
    assert same(checkpoint.load(tmp_path / "v")[0], views)


def refused_or_identical(path: pathlib.Path) -> bool:
    """Whether the file is refused; a file that is accepted must hold exactly what was saved."""
    try:
        tensors, meta = checkpoint.load(path, kind="test")
    except CheckpointError as error:
        return str(path) in str(error)
    assert same(tensors, TENSORS)
    assert meta == META
    return False


def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(
    file: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors reads the header, then opens the path again for the tensors."""
    new, meta = {"a": torch.full((3,), 7.0)}, {"kind": "checkpoint", "number": 7}
    checkpoint.save(tmp_path / "new.safetensors", new, meta)
    opened = []
    original = torch.UntypedStorage.from_file

    def replaced_before(name: str, *others: Any, **named: Any) -> Any:
        opened.append(name)
        if len(opened) == 1:
            os.replace(tmp_path / "new.safetensors", file)
        return original(name, *others, **named)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", staticmethod(replaced_before))
    tensors, found = checkpoint.load(file)
    assert len(opened) == 2, "the header and the tensors were not of two openings, so this tests nothing"
    assert found == meta
    assert tensors["a"].tolist() == [7.0] * 3


def test_a_flipped_bit_anywhere_is_refused(file: pathlib.Path) -> None:
    whole = file.read_bytes()
    chance = random.Random(0)
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    positions = [*range(header), *(chance.randrange(len(whole)) for _ in range(100))]
    accepted = []
    for position in positions:
        bit = 1 << chance.randrange(8)
        file.write_bytes(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
        if not refused_or_identical(file):
            accepted.append(position)
    # only blanks that pad the header may change unseen, and refused_or_identical saw that nothing else did
    assert all(whole[position : position + 1].isspace() for position in accepted)
    assert len(accepted) <= 8


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_of_many_bytes_is_refused(file: pathlib.Path, seed: int) -> None:
    whole = file.read_bytes()
    chance = np.random.default_rng(seed)
    for _ in range(60):
        damaged = bytearray(whole)
        start, length = int(chance.integers(len(whole))), int(chance.integers(2, 40))
        damaged[start : start + length] = chance.bytes(len(damaged[start : start + length]))
        file.write_bytes(bytes(damaged))
        assert refused_or_identical(file) or bytes(damaged) == whole


def test_a_truncated_or_lengthened_file_is_refused(file: pathlib.Path) -> None:
    whole = file.read_bytes()
    for length in [*range(0, 40), *range(40, len(whole), 37), len(whole) - 1]:
        file.write_bytes(whole[:length])
        assert refused_or_identical(file)
    file.write_bytes(whole + b"\0")
    assert refused_or_identical(file)


@pytest.mark.parametrize("length", [0, 2, 2**31, 2**63, 2**64 - 1])
def test_a_header_length_that_lies_is_refused_without_taking_that_memory(file: pathlib.Path, length: int) -> None:
    whole = file.read_bytes()
    file.write_bytes(struct.pack("<Q", length) + whole[8:])
    assert refused_or_identical(file)


def test_a_header_of_more_tensors_than_memory_should_hold_is_refused_before_safetensors_parses_it(
    tmp_path: pathlib.Path,
) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({str(number): entry for number in range(500_000)}).encode()
    path = tmp_path / "many.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match=r"many\.safetensors: the values of its JSON would take some 3\d\d MiB"):
        checkpoint.load(path)


def test_a_missing_file_a_folder_and_a_foreign_file_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file"):
        checkpoint.load(tmp_path / "absent.safetensors")
    with pytest.raises(CheckpointError, match="no such file"):
        checkpoint.load(tmp_path)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"x": torch.zeros(3)}, str(foreign))
    with pytest.raises(CheckpointError, match="not written by surefoot"):
        checkpoint.load(foreign)
    save_file({"x": torch.zeros(3)}, str(foreign), {"surefoot": "{}", "sha256": "0" * 64})
    with pytest.raises(CheckpointError, match="checksum"):
        checkpoint.load(foreign)
    foreign.write_bytes(b"\x89HDF\r\n\x1a\n" + b"0" * 500)
    with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
        checkpoint.load(foreign)


def test_another_kind_is_refused_by_name(file: pathlib.Path) -> None:
    with pytest.raises(CheckpointError, match="holds a 'test', where a 'policy' is needed"):
        checkpoint.load(file, kind="policy")


def test_a_newer_version_of_a_kind_is_refused_and_a_file_of_before_versions_loads(
    file: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setitem(checkpoint.VERSIONS, "test", 2)
        checkpoint.save(tmp_path / "new.safetensors", TENSORS, META)
        with pytest.raises(CheckpointError, match=r"is written as 'surefoot-test-1', and this .* 'surefoot-test-2'"):
            checkpoint.load(file)
    with pytest.raises(CheckpointError, match=r"is written as 'surefoot-test-2', and this .* reads 'surefoot-test-1'"):
        checkpoint.load(tmp_path / "new.safetensors")
    text = json.dumps(META)
    own = {name: value.contiguous().clone() for name, value in TENSORS.items()}
    save_file(own, str(tmp_path / "old.safetensors"), {"surefoot": text, "sha256": checkpoint.digest(own, text)})
    assert same(checkpoint.load(tmp_path / "old.safetensors")[0], TENSORS)


def test_a_description_that_is_no_object_or_too_deep_is_refused(tmp_path: pathlib.Path) -> None:
    for text, sentence in (("[]", "must be an object"), ('{"a":' * 40 + "1" + "}" * 40, "nested deeper than 32"),
                           ("[" * 100_000, "not readable as JSON")):  # fmt: skip
        own = {"x": torch.zeros(1)}
        save_file(own, str(tmp_path / "a"), {"surefoot": text, "sha256": checkpoint.digest(own, text)})
        with pytest.raises(CheckpointError, match=sentence):
            checkpoint.load(tmp_path / "a")


def test_two_tensors_that_change_places_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "swap.safetensors"
    one, other = {"a": torch.zeros(2), "b": torch.ones(2)}, {"a": torch.ones(2), "b": torch.zeros(2)}
    text = '{"kind": "test"}'
    save_file(other, str(path), {"surefoot": text, "sha256": checkpoint.digest(one, text)})
    with pytest.raises(CheckpointError, match="checksum"):
        checkpoint.load(path)


# -- writing --------------------------------------------------------------------------------------------------


def full(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_write_that_does_not_fit_leaves_the_old_file_and_no_temporary(file: pathlib.Path) -> None:
    with small_disk(1_000_000), pytest.raises(SurefootError, match=r"state\.safetensors: can.t be written"):
        checkpoint.save(file, {"big": torch.zeros(1_000_000)}, META)
    assert os.listdir(file.parent) == [file.name]
    assert same(checkpoint.load(file)[0], TENSORS)


@pytest.mark.parametrize("place", ["os.fsync", "os.replace"])
def test_a_full_disk_at_any_moment_leaves_the_old_file(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    module, name = place.split(".")
    monkeypatch.setattr(getattr(files, module), name, full)
    with pytest.raises(SurefootError, match="the disk is full") as caught:
        checkpoint.save(file, {"x": torch.zeros(2)}, META)
    monkeypatch.undo()
    assert str(file) in str(caught.value)
    assert os.listdir(file.parent) == [file.name]
    assert same(checkpoint.load(file)[0], TENSORS)


def test_a_full_disk_in_the_middle_of_a_checkpoint_leaves_the_old_file(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(tensors: dict[str, Tensor], path: str, meta: dict[str, str]) -> None:
        pathlib.Path(path).write_bytes(b"half")
        full()

    monkeypatch.setattr(checkpoint, "save_file", half)
    with pytest.raises(SurefootError, match="the disk is full"):
        checkpoint.save(file, {"x": torch.zeros(2)}, META)
    assert os.listdir(file.parent) == [file.name]
    assert same(checkpoint.load(file)[0], TENSORS)


@pytest.mark.parametrize("place", ["save_file", "os.fsync"])
def test_files_of_one_moment_stay_as_they_were_where_the_last_does_not_fit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]

    def all_of(value: float) -> list[Any]:
        return [(path, {"x": torch.full((2,), value)}, META) for path in paths]

    checkpoint.save_together(all_of(1.0))
    module, _, name = f"checkpoint.{place}".rpartition(".")
    owner = os if module.endswith("os") else checkpoint
    real, calls = getattr(owner, name), iter(range(100))
    monkeypatch.setattr(owner, name, lambda *given, **options: (full if next(calls) == 2 else real)(*given, **options))
    with pytest.raises(SurefootError, match=r"2\.safetensors: can't be written: the disk is full"):
        checkpoint.save_together(all_of(2.0))
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == [path.name for path in paths]
    assert [checkpoint.load(path)[0]["x"].tolist() for path in paths] == [[1, 1]] * 3
    checkpoint.save_together(all_of(2.0))
    assert [checkpoint.load(path)[0]["x"].tolist() for path in paths] == [[2, 2]] * 3


def test_an_error_of_the_writer_itself_leaves_no_temporary(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.json"

    def interrupted() -> None:
        with files.written_aside(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, {"return": float("nan")})
    assert os.listdir(tmp_path) == []


def test_missing_folders_are_made_and_a_file_in_the_way_is_named(tmp_path: pathlib.Path) -> None:
    files.write_json(tmp_path / "a" / "b" / "x.json", {"one": [1, 2.5, None]})
    assert files.read_json(tmp_path / "a" / "b" / "x.json") == {"one": [1, 2.5, None]}
    with pytest.raises(SurefootError, match=r"x\.json/y\.json: can.t be written"):
        files.write_json(tmp_path / "a" / "b" / "x.json" / "y.json", {})


def test_a_file_written_aside_keeps_to_the_umask_and_only_appears_when_whole(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    with files.written_aside(path) as temporary:
        temporary.write_text("1")
        assert not path.exists()
        assert temporary.parent == path.parent
    assert path.stat().st_mode & 0o777 == 0o666 & ~files.UMASK
    monkeypatch.setattr(files, "UMASK", 0o077)
    files.write_json(path, 2)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[1,", b"[" * 100_000])
def test_a_damaged_json_file_is_refused(tmp_path: pathlib.Path, text: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(CheckpointError, match=r"x\.json: not readable as JSON"):
        files.read_json(path)
    with pytest.raises(CheckpointError, match=r"y\.json: there is no such file"):
        files.read_json(tmp_path / "y.json")
