"""A run of several objectives, and its front."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.cli.support.pareto import evaluate_weights
from surefoot.core.base.errors import ConfigError

NAME = "weighted:tugs:Tug?objectives=2"


def test_a_run_gives_its_front(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    tiny = ["steps=40", "episodes=2", "evaluate_every=40", "evaluate_episodes=1", "batch_size=8", "seeds=1"]
    small = ["algo.hidden=[8,8]", "algo.initial_steps=20"]
    assert main(["train", "algo=td3", f"env={NAME}", *tiny, *small, f"out={folder}"]) == 0
    capsys.readouterr()
    given = ["evaluate", str(folder), "--trust", "--weights", "2", "--episodes", "2", "--reference=-20,-20", "--json"]
    assert main(given) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == [[0, 1], [0.5, 0.5], [1, 0]]
    assert len(found["returns"]) == len(found["front"]) == 3
    assert any(found["front"])
    assert 0 < found["hypervolume"] < 400
    assert main([*given[:-1]]) == 0
    assert "hypervolume above (-20, -20)" in capsys.readouterr().out
    for more in (["--goals", "task"], ["--until", "5"]):
        assert main([*given, *more]) == 2


def test_what_does_not_go_together_is_refused() -> None:
    for env, parts, reference in (("tugs:Tug", 2, None), (NAME, 0, None), (NAME, 1000, None)):
        with pytest.raises(ConfigError, match="--weights"):
            evaluate_weights([], env, parts, reference, 1, 0, True)
