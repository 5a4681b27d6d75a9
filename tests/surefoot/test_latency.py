"""The latency table of a policy, and export to a C++ header from the command line."""

from __future__ import annotations

import json
import pathlib
import subprocess

import numpy as np
import pytest
import torch

from surefoot.cli import main
from surefoot.core.actors.goal_actor import GoalActor, UnitGaussianActor
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.memory_actors import GRUActor
from surefoot.core.actors.task_actor import TaskActor, TaskReadingActor
from surefoot.core.base.spec import Array
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.play import latency

BAR = 15.0
"""Microseconds that an action of two hidden layers of 256 may take on one core."""


def made(gru: bool = False) -> Policy:
    torch.manual_seed(0)
    actor = GRUActor(TanhGaussianActor(32, 6, (16,)), 17, 32) if gru else TanhGaussianActor(17, 6, (256, 256))
    return Policy.of(actor, Normalizer(17), torch.full((6,), -2.0), torch.full((6,), 3.0))


@pytest.mark.skipif(latency.compiler() is None, reason="there is no C++ compiler (c++, g++, clang++)")
def test_a_header_of_two_layers_of_256_is_quick_and_exact(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made().save(tmp_path / "a.safetensors")
    assert main(["bench", "policy", str(tmp_path / "a.safetensors"), "--calls", "2000", "--json"]) == 0
    rows = {row["way"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["C++ header"]["difference"] < 1e-5
    assert rows["C++ header"]["microseconds"] < BAR
    assert rows["python (select_action)"]["microseconds"] > 0


def test_what_no_header_holds_has_a_note_in_the_table_and_is_refused_by_export(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(gru=True).save(tmp_path / "a.safetensors")
    monkeypatch.setattr(latency, "_onnxruntime", lambda *unused: {"note": "left out here"})
    assert main(["bench", "policy", str(tmp_path / "a.safetensors"), "--calls", "100"]) == 0
    assert "head is 'gru'" in " ".join(capsys.readouterr().out.split())
    assert main(["export", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "a.hpp")]) == 2
    assert "export it to .onnx" in capsys.readouterr().err
    assert not (tmp_path / "a.hpp").exists()


@pytest.mark.skipif(latency.compiler() is None, reason="there is no C++ compiler (c++, g++, clang++)")
def test_the_exported_header_compiles_alone(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    made().save(tmp_path / "a.safetensors")
    assert main(["export", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "my-arm.hpp")]) == 0
    assert "my_arm::Policy::act(observation, action): 17 numbers -> 6 numbers" in capsys.readouterr().out
    (tmp_path / "main.cpp").write_text('#include "my-arm.hpp"\nint main() { my_arm::Policy p; p.reset(); return 0; }')
    command = [str(latency.compiler()), "-std=c++11", "-fsyntax-only", str(tmp_path / "main.cpp")]
    subprocess.run(command, check=True)


def test_policies_of_images_are_timed_too(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    encoder = Encoder({"image": Array((1, 20, 20), "uint8"), "speed": Array((2,))}, "small")
    head = TanhGaussianActor(encoder.width, 1, (8,))
    Policy.of(head, Normalizer(2), -torch.ones(1), torch.ones(1), encoder).save(tmp_path / "a.safetensors")
    assert main(["bench", "policy", str(tmp_path / "a.safetensors"), "--calls", "100", "--json"]) == 0
    rows = {row["way"]: row for row in json.loads(capsys.readouterr().out)}
    for way in ("python (select_action)", "torch"):
        assert rows[way]["microseconds"] > 0
    assert rows["onnxruntime"].get("microseconds", 1) > 0
    assert "note" in rows["C++ header"]


def test_goals_and_tasks_are_drawn_for_policies_that_have_none() -> None:
    asked = Policy.of(GoalActor(UnitGaussianActor(5, 1, (8,)), 2), Normalizer(3), -torch.ones(1), torch.ones(1))
    given = Policy.of(TaskActor(TaskReadingActor(7, 1, 4, (8,), 8), 4), Normalizer(3), -torch.ones(1), torch.ones(1))
    for policy, name, width in ((asked, "goal", 2), (given, "task", 4)):
        aim = latency.aims(policy)
        assert {key: value.shape for key, value in aim.items()} == {name: (width,)}
        policy.reset(**aim)
        assert policy.select_action(np.zeros(3, np.float32)).shape == (1,)
    given.set_task(np.ones(4))
    assert latency.aims(given) == {}
