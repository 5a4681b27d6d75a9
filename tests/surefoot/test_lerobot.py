"""The round trip with LeRobot, in LeRobot's own environment, whose python SUREFOOT_LEROBOT_PYTHON names."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "peers" / "lerobot_roundtrip.py"
PYTHON = os.environ.get("SUREFOOT_LEROBOT_PYTHON")


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="SUREFOOT_LEROBOT_PYTHON names no python with lerobot and surefoot in it")
def test_datasets_go_both_ways_and_a_policy_runs_in_lerobots_loop() -> None:
    done = subprocess.run([str(PYTHON), str(SCRIPT), "--quick"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["ours_in_theirs"]["frames"] == 300
    assert found["theirs_in_ours"]["film"] == [19, 64, 96, 3]
    assert set(found["policy"]) == {"plain", "chunk", "camera", "pusht"}
    assert found["loading"]["times_items"] >= 20
