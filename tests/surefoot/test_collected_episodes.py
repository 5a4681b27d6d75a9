"""collect=episode: an order is one episode, by one policy; with data beside it, and after a loss or a kill."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from test_collectors import Here, assert_same, facts, here, state

from surefoot import data
from surefoot.cli import main
from surefoot.data.arrays import from_arrays
from surefoot.online.remote import collector, team_experience
from surefoot.runs.run import Run

__all__ = ["here"]
BASE = ["env=native/pendulum", "seeds=1", "episodes=1", "evaluate_episodes=1", "envs=1", "-q"]
SAC = [
    "algo=sac",
    "steps=1200",
    "evaluate_every=600",
    "algo.hidden=[8,8]",
    "algo.initial_steps=250",
    "algo.updates_per_step=0.1",
    "batch_size=8",
    *BASE,
]
EPISODES = ["collectors=processes", "collect=episode"]


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Order and length of the blocks that the learner takes in."""
    found: list[tuple[int, int]] = []
    own = team_experience.joined

    def joined(parts: Any, join: Any) -> Any:
        made = own(parts, join)
        if join is not torch.stack:
            found.append((len(found), len(made["rewards"])))
        return made

    monkeypatch.setattr(team_experience, "joined", joined)
    return found


def test_an_order_is_an_episode_by_one_policy(
    tmp_path: pathlib.Path, here: type[Here], lengths: Any, monkeypatch: Any
) -> None:
    taken: list[torch.Tensor] = []
    own = collector.take_weights

    def take(learner: Any, tensors: Any) -> None:
        own(learner, tensors)
        taken.append(torch.cat([v.reshape(-1).clone() for v in learner.agent.actor.parameters()]))

    monkeypatch.setattr(collector, "take_weights", take)
    assert main(["train", *SAC, *EPISODES, "staleness=1", f"out={tmp_path / 'run'}"]) == 0
    assert lengths == [(order, 200) for order in range(6)]
    found = facts(tmp_path / "run")
    assert found["staleness"] == {"0": 1, "1": 5}
    assert found["updates_per_row"] == pytest.approx(95 / 1200)
    assert len(taken) == 7  # one order more is under way
    learned = [not torch.equal(a, b) for a, b in itertools.pairwise(taken)]
    # The first two orders are given at once, the third after one episode, before anything is learned (250 rows).
    assert learned == [False, False, True, True, True, True]
    assert '"updates_per_row": ' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_what_is_stored_is_what_a_local_run_stores_while_nothing_is_learned(
    tmp_path: pathlib.Path, here: type[Here]
) -> None:
    still = [*SAC, "algo.actor_learning_rate=1e-12"]
    local, remote, lost = (tmp_path / name for name in ("local", "remote", "lost"))
    assert main(["train", *still, f"out={local}"]) == 0
    assert main(["train", *still, *EPISODES, f"out={remote}"]) == 0
    here.dies += [1, 3]
    assert main(["train", *still, *EPISODES, f"out={lost}"]) == 0
    assert facts(lost)["restarts"] == 2
    assert_same(remote, lost)
    replays = [replay(folder) for folder in (local, remote)]
    assert replays[0].keys() == replays[1].keys()
    for name, value in replays[0].items():
        np.testing.assert_allclose(value, replays[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


def replay(folder: pathlib.Path) -> dict[str, np.ndarray]:
    from surefoot.core.base import checkpoint

    tensors, _ = checkpoint.load(Run.open(folder).checkpoint_path(0), kind="checkpoint")
    return {name: value.numpy() for name, value in tensors.items() if name.startswith("replay/")}


def test_a_killed_run_goes_on_within_an_episode(tmp_path: pathlib.Path, here: type[Here], monkeypatch: Any) -> None:
    settings = [one if not one.startswith("evaluate_every") else "evaluate_every=500" for one in SAC]  # inside episodes
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(["train", *settings, *EPISODES, f"out={whole}"]) == 0

    class KilledError(BaseException):
        pass

    saves = Run.checkpoint_path

    def once_saved(self: Run, seed: int) -> pathlib.Path:
        path = saves(self, seed)
        if path.is_file() and self.folder == killed.resolve():
            raise KilledError
        return path

    monkeypatch.setattr(Run, "checkpoint_path", once_saved)
    with pytest.raises(KilledError):
        main(["train", *settings, *EPISODES, f"out={killed}"])
    monkeypatch.setattr(Run, "checkpoint_path", saves)
    assert main(["train", "-q", "--resume", str(killed)]) == 0
    assert_same(whole, killed)


def test_hil_learns_from_demonstrations_beside_a_collector(tmp_path: pathlib.Path, here: type[Here]) -> None:
    source = np.random.default_rng(0)
    ends = np.arange(40) % 20 == 19
    made = from_arrays(
        source.normal(size=(40, 3)).astype(np.float32), source.uniform(-2, 2, (40, 1)).astype(np.float32),
        np.ones(40, np.float32), ends & False, ends,
    )  # fmt: skip
    data.save(made, tmp_path / "shown.hdf5")
    settings = ["algo=hil", "algo.critic_steps=1", f"dataset={tmp_path / 'shown.hdf5'}", *SAC[1:]]
    assert main(["train", *settings, *EPISODES, "staleness=1", f"out={tmp_path / 'run'}"]) == 0
    assert len(state(tmp_path / "run")) > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([*SAC, "collect=episode"], "who acts is not given: add collectors=processes or ray"),
        ([*SAC, *EPISODES, "envs=2"], "an order is one episode of one environment, and envs=2: set envs=1"),
        (
            ["algo=ppo", "algo.horizon=128", *SAC[1:3], *BASE, *EPISODES],
            "ppo learns from blocks of steps: leave it out",
        ),
        ([*SAC, "collectors=processes", "collect=epoch"], "collect is 'epoch', must be one of steps, episode"),
    ],
)
def test_what_can_not_be_is_refused(settings: list[str], words: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    settings = [one for one in settings if one != "envs=1" or "envs=2" not in settings]
    assert main(["train", *settings, f"out={tmp_path / 'run'}"]) != 0
    assert words in capsys.readouterr().err
