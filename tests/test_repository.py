"""What the repository holds: sources, small results and pictures, nothing that was left lying in the folder."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
LARGEST = 500_000  # bytes; datasets and packages come from where they are published
CELLS = {"benchmarks/results/paired.jsonl"}  # of 40 pairs with official code: moments of each layer on both sides


def test_no_large_file_is_tracked() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    answer = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60)
    if answer.returncode:
        pytest.skip(f"git does not list its files here: {answer.stderr.decode(errors='replace').strip()}")
    paths = [ROOT / name for name in answer.stdout.decode().split("\0") if name]
    assert ROOT / "pyproject.toml" in paths
    large = {str(p.relative_to(ROOT)): p.stat().st_size for p in paths if p.is_file() and p.stat().st_size > LARGEST}
    large = {name: size for name, size in large.items() if name not in CELLS}
    assert not large, f"remove these, or say here why they belong: {large}"
