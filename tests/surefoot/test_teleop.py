"""Episodes of a person, recorded: alone, beside a policy, discarded, as a LeRobot folder and by the command line."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot import data
from surefoot.cli import main
from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.envs.takeover import Command, Scripted
from surefoot.play.teleop import play

CAR = "MountainCarContinuous-v0"


def push(observation: Any) -> Any:
    """Swings the car up."""
    return [1.0 if observation[1] >= 0 else -1.0]


def test_a_person_alone_is_recorded_and_episodes_begin_elsewhere() -> None:
    told: list[str] = []
    found = play(CAR, Scripted(push), 2, seed=3, notify=told.append)
    assert found.extras["intervened"].all()
    assert set(np.unique(found.actions)) == {-1.0, 1.0}
    assert found.terminations.sum() == 2
    assert found.env_id == CAR
    inside = found.episode_ids[1:] == found.episode_ids[:-1]
    np.testing.assert_array_equal(found.next_observations[:-1][inside], found.observations[1:][inside])
    assert not np.array_equal(found.observations[0], found.observations[1:][~inside][0])
    assert told[0].startswith(
        f"episode 1 of 2: {found.episode_lengths[0]} steps, {found.episode_lengths[0]} by the person"
    )
    again = play(CAR, Scripted(push), 2, seed=3)
    np.testing.assert_array_equal(again.observations, found.observations)


def test_a_person_corrects_a_policy_and_calls_success_and_forgets_an_episode() -> None:
    calls = {"step": 0}

    def person(observation: Any) -> Command:
        calls["step"] += 1
        step = calls["step"]
        if step == 5:
            return Command(None, "again")
        return Command([0.25] if step % 3 == 0 else None, "success" if step == 15 else None)

    head = DeterministicActor(2, 1, (8,))
    policy = Policy.of(head, Normalizer(2), -torch.ones(1), torch.ones(1))
    told: list[str] = []
    found = play(CAR, Scripted(person), 1, policy=policy, notify=told.append)
    assert told[0] == "an episode of 5 steps is discarded"
    assert len(found) == 10  # steps 6 to 15
    helped = np.arange(6, 16) % 3 == 0
    np.testing.assert_array_equal(found.extras["intervened"], helped)
    np.testing.assert_array_equal(found.actions[helped, 0], 0.25)
    with torch.no_grad():
        by_policy = policy(torch.from_numpy(found.observations)).numpy()
    np.testing.assert_allclose(found.actions[~helped], by_policy[~helped], atol=1e-6)
    assert found.rewards[-1] == 1
    assert found.terminations.tolist() == [False] * 9 + [True]
    assert found.extras["success"].tolist() == [False] * 9 + [True]


def test_the_command_line_writes_a_lerobot_folder(tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "devices_of_mine.py").write_text(
        "from surefoot.envs.takeover import Scripted\n"
        "def make(actions, gripper):\n"
        "    return Scripted(lambda seen: [1.0 if seen[1] >= 0 else -1.0] * actions)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    record = ["datasets", "record", "--env", CAR, "--episodes", "1"]
    made = ["--device", "devices_of_mine:make", "--rate", "5000"]
    assert main([*record, *made, "-o", str(tmp_path / "shown")]) == 0
    found = data.load(tmp_path / "shown")
    assert found.extras["intervened"].all()
    assert found.attributes["fps"] == 5000
    for options, words in (
        ([*made, "-o", str(tmp_path / "shown")], "exists already"),
        (["--device", "gampad", "-o", str(tmp_path / "x")], "give keyboard, gamepad, or module:function"),
        (["-o", str(tmp_path / "x.hdf5")], "no one acts: give RUNs, or --device keyboard --env ID"),
        ([*made[:2], "--rate", "0", "-o", str(tmp_path / "x")], "a rate above 0"),
    ):
        assert main([*record, *options]) == 2
        assert words in capsys.readouterr().err


def test_no_episode_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 episode"):
        play(CAR, Scripted(push), 0)
