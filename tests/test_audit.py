"""tools/audit.py finds what differs from the pins, and tools/pin_hashes.py writes what the audit reads."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from types import ModuleType
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
DIGEST = "ab" * 32


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("pin_hashes", monkeypatch)


@pytest.fixture
def audit(hashing: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("audit", monkeypatch)


def report(name: str, version: str, file: str, digest: str) -> dict[str, Any]:
    about = {"url": f"https://index/{file}", "archive_info": {"hashes": {"sha256": digest}}}
    return {"install": [{"metadata": {"name": name, "version": version}, "download_info": about}]}


def test_both_files_of_constraints_name_the_same_versions_and_each_has_a_hash(audit: ModuleType) -> None:
    pinned = audit.pins((ROOT / "constraints.txt").read_text())
    second = (ROOT / "constraints-hashed.txt").read_text()
    assert len(pinned) > 100
    assert audit.of_files(pinned, audit.pins(second), audit.hashes(second)) == []


def test_hashes_of_several_pythons_and_builds_are_written_under_one_pin(hashing: ModuleType) -> None:
    reports = [
        report("Torch_X", "1.0+cpu", "torch_x-1.0%2Bcpu-cp311-cp311-linux_x86_64.whl", "1" * 64),
        report("torch-x", "1.0", "torch_x-1.0-cp312-cp312-linux_x86_64.whl", "2" * 64),
    ]
    text = hashing.hashed("# tested\nTorch_X==1.0\n", reports)
    assert "Python 3.11, 3.12." in text
    assert hashing.pins(text) == {"torch-x": "1.0"}
    assert hashing.hashes(text) == {"torch-x": ["1" * 64, "2" * 64]}


def test_a_pin_that_no_report_has_is_an_error(hashing: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"no report has a 1\.1"):
        hashing.hashed("a==1.1\n", [report("a", "1.0", "a-1.0-py3-none-any.whl", DIGEST)])
    with pytest.raises(ValueError, match="not name==version"):
        hashing.pins("a>=1\n")


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        ("a==1\n", "a: has no SHA-256"),
        ("a==1 --hash=sha256:12\n", "a: has no SHA-256"),
        (f"a==2 --hash=sha256:{DIGEST}\n", "a: constraints.txt has 1, constraints-hashed.txt 2"),
        ("", "a: constraints.txt has 1, constraints-hashed.txt no such line"),
        (f"a==1 --hash=sha256:{DIGEST}\nb==1 --hash=sha256:{DIGEST}\n", "b: constraints.txt has no such line"),
    ],
)
def test_a_pin_without_its_hash_is_found(audit: ModuleType, second: str, sentence: str) -> None:
    (found,) = audit.of_files({"a": "1"}, audit.pins(second), audit.hashes(second))
    assert found.startswith(sentence)


def test_other_versions_and_unknown_packages_are_found(audit: ModuleType) -> None:
    pinned = {"a": "1", "torch": "2.13.0"}
    assert audit.of_versions(pinned, {"a": "1", "torch": "2.13.0+cpu", "pip": "23", "nvidia-x": "1"}) == []
    assert audit.of_versions(pinned, {"a": "2", "b": "1"}) == [
        "a: 2 is installed, 1 is in constraints.txt",
        "b 1: is installed and not in constraints.txt",
    ]


@pytest.mark.parametrize(
    ("metadata", "classifiers", "fine"),
    [
        ({"License-Expression": "(MIT OR Apache-2.0) AND BSD-3-Clause"}, [], True),
        ({"License-Expression": "MIT AND GPL-3.0-only"}, [], False),
        ({"License-Expression": "GPL-3.0-only"}, ["License :: OSI Approved :: MIT License"], False),
        ({"License": "UNKNOWN"}, ["License :: OSI Approved :: MIT License"], True),
        ({"License": "MIT"}, ["License :: OSI Approved :: GNU General Public License v3 (GPLv3)"], False),
        ({"License": "BSD-3-Clause\nlong text"}, [], True),
        ({"License": "all rights reserved"}, [], False),
        ({}, [], False),
    ],
)
def test_a_licence_that_is_not_on_the_list_is_found(
    audit: ModuleType, metadata: dict[str, str], classifiers: list[str], fine: bool
) -> None:
    found = audit.of_licences({"a": audit.licence(metadata, classifiers)})
    assert (found == []) is fine
