"""Run folders as `surefoot train` writes them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

BEHAVIOUR = {"mean": -1060.0, "low": -1145.0, "high": -976.0, "episodes": 250, "normalized": None}


@pytest.fixture
def make_run(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """A function that writes a run folder; keyword arguments replace keys of its summary."""

    def make(name: str = "run", **changes: Any) -> pathlib.Path:
        folder = tmp_path / name
        folder.mkdir()
        summary = {
            "algorithm": "iql",
            "dataset": "native/pendulum-mixed",
            "environment": "Pendulum-v1",
            "steps": 10000,
            "seeds": [0, 1, 2],
            "episodes": 4,
            "per_seed_returns": [-150.0, -160.0, -170.0],
            "returns": {"mean": -160.0, "low": -184.8, "high": -135.2, "method": "Student t over 3 seeds"},
            "normalized": None,
            "behaviour": BEHAVIOUR,
            "cost": None,
            "updates_per_second": 612.4,
            "versions": {"torch": "2.13.0"},
            "date": "2026-11-21",
        }
        summary.update(changes)
        summary["made_as"] = name  # a copy of a run is one whose summary says the same
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "config.json").write_text(json.dumps({"algo": {"expectile": 0.7}}))
        lines = [
            {
                "seed": seed,
                "step": step,
                "kind": "eval",
                "values": {
                    "return_mean": -1000 + step / 10 + seed,
                    "returns": [-1000 + step / 10 + seed] * 4,
                },
            }
            for seed in range(3)
            for step in (0, 5000)
        ]
        lines.append({"seed": 0, "step": 100, "kind": "train", "values": {"value_loss": 1.0}})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return make
