"""A robotics engineer: the CSV log of a controller becomes a clone, as an ONNX model and as a C++ header in a program.

Everything is what a user types or writes. The log's controller is known, so that the clone's actions can be checked.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from surefoot import load_policy
from surefoot.cli import main

PROGRAM = """
#include <cstdio>
#include "policy.hpp"

int main() {
  static policy::Policy controller;
  controller.reset();
  float seen[policy::observation_size], torque[policy::action_size];
  while (std::scanf("%f %f %f", seen, seen + 1, seen + 2) == 3) {
    if (!controller.act(seen, torque)) return 1;
    std::printf("%.9g\\n", torque[0]);
  }
}
"""
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def torque(rows: np.ndarray) -> np.ndarray:
    """(N,): the controller that was recorded, at (N, 3) angles, speeds and set points."""
    angle, speed, goal = rows.T
    return np.clip(4 * (goal - angle) - 2 * speed, -2, 2)


def write_log(path: pathlib.Path) -> None:
    """30 trials of 2 seconds at 20 Hz, without rewards."""
    rng = np.random.default_rng(0)
    lines = ["t,trial,angle,speed,setpoint,torque"]
    for trial in range(30):
        angle, speed, goal = rng.uniform(-1, 1, 3)
        for step in range(40):
            force = float(torque(np.array([[angle, speed, goal]]))[0])
            lines.append(f"{10 * trial + 0.05 * step:.2f},{trial},{angle:.6f},{speed:.6f},{goal:.6f},{force:.6f}")
            speed += 0.05 * force
            angle += 0.05 * speed
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler (c++, g++, clang++)")
def test_a_csv_log_comes_to_a_clone_as_onnx_and_as_a_header_in_a_program(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.csv")
    assert main(["datasets", "draft", "log.csv", "-o", "log.yaml"]) == 0
    draft = pathlib.Path("log.yaml").read_text()
    assert "episode: trial" in draft
    edited = [line for line in draft.splitlines() if not line.startswith(("observations:", "actions:"))]
    pathlib.Path("log.yaml").write_text(
        "\n".join([*edited, "observations: [angle, speed, setpoint]", "actions: [torque]", ""])
    )
    assert main(["datasets", "convert", "log.yaml", "log.hdf5"]) == 0
    assert "1,200 transitions, 30 episodes, no rewards: it can be cloned" in capsys.readouterr().out
    assert main(["train", "-q", "algo=bc", "dataset=log.hdf5", "env=none", "steps=1500", "seeds=1", "out=clone"]) == 0
    for ending in ("onnx", "hpp"):
        assert main(["export", "clone", "-o", f"policy.{ending}"]) == 0

    rows = np.random.default_rng(1).uniform(-0.8, 0.8, (200, 3)).astype(np.float32)
    ours = np.stack([load_policy("clone").select_action(row) for row in rows])[:, 0]
    assert np.abs(ours - torque(rows)).mean() < 0.1  # of torques that are 1.3 on average

    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["actions"], {"observations": rows})[0][:, 0], ours, atol=1e-5)

    pathlib.Path("robot.cpp").write_text(PROGRAM)
    subprocess.run([str(COMPILER), "-std=c++11", "-O1", "robot.cpp", "-o", "robot"], check=True)
    given = "\n".join(" ".join(f"{one:.9g}" for one in row) for row in rows)
    said = subprocess.run(["./robot"], input=given, capture_output=True, text=True, check=True).stdout
    np.testing.assert_allclose([float(line) for line in said.split()], ours, atol=1e-5)
