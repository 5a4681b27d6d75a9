"""A compiled module of other sources than those beside it is refused in a sentence; it is no AttributeError later."""

from __future__ import annotations

import hashlib
import importlib.machinery
import inspect
import re
import sys
import types
from collections.abc import Iterator

import pytest

from surefoot import cuda_ext
from surefoot.cli import main

SURFACE = {2: "5086bb277b01fdcc"}
"""INTERFACE -> digest of the bindings' names and of their arguments'. A change of them raises the number, here too."""


def surface(holder: object) -> Iterator[str]:
    """Names of a compiled module's functions, of its classes' methods, and of what they take."""
    for name in sorted(dir(holder)):
        held = getattr(holder, name)
        if name.startswith("_") and name != "__init__":
            continue
        if inspect.isclass(held):
            yield from (f"{name}.{line}" for line in surface(held))
        else:
            signature = (held.__doc__ or "").split("\n\n")[0] if callable(held) else ""
            yield " ".join([name, *re.findall(r"(\w+): ", signature)])


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A compiled module of before there was a number, as the sources beside it find it."""
    module = types.ModuleType("_surefoot_native")
    module.__spec__ = importlib.machinery.ModuleSpec("_surefoot_native", None)
    module.__file__ = "/somewhere/_surefoot_native.so"
    monkeypatch.setitem(sys.modules, "_surefoot_native", module)
    monkeypatch.delenv("SUREFOOT_NATIVE", raising=False)
    loaded, reason = cuda_ext._load()
    assert loaded is module
    assert reason == ""
    monkeypatch.setattr(cuda_ext, "_refusal", cuda_ext._stale(loaded))
    return module


@pytest.mark.usefixtures("older")
def test_a_module_without_the_number_is_refused_with_what_to_do() -> None:
    with pytest.raises(cuda_ext.StaleModuleError, match=r"^/somewhere/.* interface 0, .*`pip install -e \.`.*=0 "):
        cuda_ext.native()


@pytest.mark.usefixtures("older")
def test_commands_end_with_that_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "native/pendulum", "--planner", "mppi", "--envs", "1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("surefoot: error: /somewhere/_surefoot_native.so: the compiled module has interface 0")
    assert said.count("\n") == 1


@pytest.mark.usefixtures("older")
def test_the_doctor_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "native module out of date" in said
    assert "error: the native module was built from other sources than these" in said


def test_a_number_that_is_another_is_refused_and_the_same_is_not(older: types.ModuleType) -> None:
    older.interface = cuda_ext.INTERFACE + 1  # type: ignore[attr-defined]
    assert f"has interface {cuda_ext.INTERFACE + 1}" in cuda_ext._stale(older)
    older.interface = cuda_ext.INTERFACE  # type: ignore[attr-defined]
    assert cuda_ext._stale(older) == ""
    assert cuda_ext._stale(None) == ""


def test_it_is_not_asked_where_it_is_not_wanted(older: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_NATIVE", "0")
    loaded, reason = cuda_ext._load()
    assert loaded is None
    assert reason == "SUREFOOT_NATIVE=0 is set"
    assert cuda_ext._stale(loaded) == ""


def test_the_number_is_raised_with_the_bindings() -> None:
    module = cuda_ext.native()
    if module is None:
        pytest.skip(f"no native module: {cuda_ext.why_not_native()}")
    found = hashlib.sha256("\n".join(surface(module)).encode()).hexdigest()[:16]
    assert SURFACE.get(cuda_ext.INTERFACE) == found, (
        f"names of bindings or of their arguments have changed, to {found}: raise INTERFACE in cuda_ext/__init__.py, "
        "interface_number in cuda_ext/native/module.cpp, and write both here"
    )
