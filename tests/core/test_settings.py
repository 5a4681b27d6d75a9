"""Files of settings in YAML, from others too."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from surefoot.cli.support.config_file import read_mapping
from surefoot.cli.support.presets import read_own_preset
from surefoot.core.base import settings
from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.core.base.settings import parse_settings, read_settings
from surefoot.data.formats.mapping import read_mapping as read_log_mapping
from surefoot.studies.leaderboard import suite
from surefoot.studies.tune import read_space

READERS: dict[str, Callable[[pathlib.Path], Any]] = {
    "train --config": read_mapping,
    "preset=FILE": lambda path: read_own_preset(str(path), "iql"),
    "tune --space": read_space,
    "bench FILE": lambda path: suite(str(path)),
    "mapping": read_log_mapping,
}
BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 10))])
HOSTILE = {
    "references that grow to 9^9 values": (BOMB, r", line 2: .*references"),
    "a reference to itself": ("a: &a [*a]\n", r", line 1: .*references"),
    "a merged reference": ("a: &a {x: 1}\nb:\n  <<: *a\n", r", line 3: .*references"),
    "a key that stands twice": ("steps: 1\nseeds: 2\nsteps: 3\n", r", line 3: .*'steps' stands twice"),
    "a tag that names code": ("a: !!python/object/apply:os.system [ls]\n", r", line 1: is no YAML"),
    "a tag of another type": ("a: 1\nb: !!binary aGk=\n", r", line 2: is no YAML"),
    "a tag that its text is not": ("\na: !!int ''\n", r", line 2: .*'' is no int"),
    "deep lists": ("a: " + "[" * 5_000, r", line 1: .*deeper than 32"),
    "deep blocks": ("\n".join("  " * k + "a:" for k in range(300)), r", line 33: .*deeper than 32"),
    "a number of 5,000 digits": ("a: 1\nsteps: " + "1" * 5_000, r", line 2: a number has 5000|line 2: .*5000"),
    "a number to the base 60": ("a: " + "1:" * 50_000 + "1", r", line 1: .*number has 100001"),
    "a key that is no text": ("1: 2\n", r"line 1: .*key 1 is no name"),
    "a key that is a list": ("[1]: 2\n", r"line 1: .*unhashable"),
    "a null byte": ("a: 1\nb: \0\n", r", line 2: .*0x0"),
    "a null byte by its escape": ('a: 1\nb: "x\\0"\n', r", line 2: .*control character"),
    "an escape sequence": ("a: \x1b[2J\n", r", line 1: .*0x1b"),
    "two documents": ("a: 1\n---\nb: 2\n", r", line 2: .*another document"),
    "too many bytes": ("a: " + "x" * settings.MOST_BYTES, r"more than 256 KiB"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", HOSTILE)
def test_no_file_of_settings_grows_recurses_or_executes(tmp_path: pathlib.Path, what: str, reader: str) -> None:
    text, match = HOSTILE[what]
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    start = time.process_time()
    with pytest.raises(SurefootError, match=match) as caught:
        READERS[reader](file)
    assert "mine.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("reader", READERS)
def test_only_regular_files_are_read(tmp_path: pathlib.Path, reader: str) -> None:
    pipe, endless = tmp_path / "pipe.yaml", tmp_path / "endless.yaml"
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    (tmp_path / "folder.yaml").mkdir()
    for path, what in ((pipe, "a device or a pipe"), (endless, "a device or a pipe"), (tmp_path / "folder.yaml", "")):
        with pytest.raises(SurefootError, match=rf"{path.name}: can't be read \(it is {what}"):
            READERS[reader](path)


def test_text_that_is_not_utf_8_is_refused_with_its_line(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml, line 2: is no text in UTF-8"):
        read_settings(file)
    file.write_bytes("\ufeffa: 1\n".encode())
    assert read_settings(file) == {"a": 1}
    with pytest.raises(ConfigError, match=r"null byte"):
        read_settings("a\0.yaml")
    with pytest.raises(ConfigError, match=r"gone\.yaml: can't be read \(No such file"):
        read_settings(tmp_path / "gone.yaml")


def test_numbers_are_read_as_yaml_1_2_has_them() -> None:
    text = b"a: [1e-4, 1E5, .5, 2., -.inf, 10, 1e, e5, 2024-01-01, yes, null, 0x10, '1e5', =]\nb: {c: ~}\n"
    found = parse_settings(text, "f")
    assert found == {
        "a": [1e-4, 1e5, 0.5, 2.0, -float("inf"), 10, "1e", "e5", "2024-01-01", True, None, 16, "1e5", "="],
        "b": {"c": None},
    }
    assert isinstance(found["a"][1], float)


def test_too_little_memory_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(settings.yaml, "load", none_left)
    with pytest.raises(ConfigError, match="f: the memory is not enough"):
        parse_settings(b"a: 1", "f")
