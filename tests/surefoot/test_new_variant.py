"""`surefoot new algorithm NAME --from BASE`: a variant that is the original until its loss is changed."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import pytest
from refusals import refused

from surefoot.cli.main import main
from surefoot.cli.support.variant import variant
from surefoot.runs.algorithms import ALGORITHMS

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASES = ["iql", "bc", "td3bc", "cql", "edac", "fql", "hiql", "dt", "rebrac", "cocoa_iql"]
"""Algorithms of several rooms and shapes of losses."""


def written(folder: pathlib.Path, base: str, name: str, loss: str | None = None) -> pathlib.Path:
    """The module of a variant, with its test beside it."""
    for file, text in variant(base, name, "Variant", loss).items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder / f"{name}.py"


@pytest.mark.parametrize("base", BASES)
def test_what_is_written_is_a_subclass_whose_loss_is_copied_and_scaled(base: str, tmp_path: pathlib.Path) -> None:
    path = written(tmp_path, base, f"variant_of_{base}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    kind = module.Variant
    assert issubclass(kind, ALGORITHMS[base])
    assert kind.configure(loss_scale=2.0).loss_scale == 2.0
    with refused("loss_scale", "range"):
        kind.configure(loss_scale=-1.0)
    copied = [name for name in vars(kind) if name.endswith("_loss")]
    assert len(copied) == 1
    assert "self.config.loss_scale * " in path.read_text(encoding="utf-8")


def test_what_is_written_passes_the_linter_and_the_formatter(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tests").mkdir()
    for base in BASES:
        written(tmp_path, base, f"variant_of_{base}").with_name(f"test_variant_of_{base}.py").unlink()
    settings = ["--no-cache", "--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
    for command in (["check"], ["format", "--check"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *settings], check=True, capture_output=True)


@pytest.mark.slow
def test_the_written_test_passes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "algorithm", "soft_iql", "--from", "iql"]) == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_soft_iql.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert main(["new", "algorithm", "soft_iql", "--from", "iql"]) == 2  # nothing is written over


def test_what_can_not_be_copied_is_refused_by_name(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    with refused("--from", "choice"):
        variant("iq", "mine", "Mine", None)
    with refused("--from", "conflict"):
        variant("sac", "mine", "Mine", None)
    with refused("--loss", "choice"):
        variant("iql", "mine", "Mine", "actor")
    assert "def critic_loss" in variant("iql", "mine", "Mine", "critic_loss")["mine.py"]
    assert main(["new", "algorithm", "mine", "--loss", "x", "--folder", str(tmp_path)]) == 2
    assert "--from iql" in capsys.readouterr().err
    assert main(["new", "system", "mine", "--from", "iql", "--folder", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == []
