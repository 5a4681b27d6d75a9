"""`surefoot task`: a policy for a reward or a goal that a run never saw."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import surefoot
from surefoot.cli import main
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Spec
from surefoot.data import save
from surefoot.data.dataset import NO_REWARDS, REWARDS, Dataset
from surefoot.offline import BC, FB
from surefoot.play.task import policy_for


def steps_in_a_square() -> Dataset:
    rng = np.random.default_rng(0)
    seen, actions = (rng.uniform(-1, 1, (400, 2)).astype(np.float32) for _ in range(2))
    after = np.clip(seen + 0.2 * actions, -1, 1)
    return Dataset(
        observations=seen, actions=actions, rewards=after[:, 0].copy(), next_observations=after,
        terminations=np.zeros(400, bool), truncations=np.ones(400, bool), episode_ids=np.arange(400),
        valid=np.ones(400, bool), env_id="square", name="square",
    )  # fmt: skip


def paid_left(observations: Any, actions: Any, following: Any) -> Any:
    return -following[:, 0]


def paid_nothing(observations: Any, actions: Any, following: Any) -> Any:
    return np.zeros(len(actions))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("task")
    data = steps_in_a_square()
    save(data, folder / "square.npz")
    spec = Spec.of(data, -np.ones(2), np.ones(2))
    small = {"hidden": (8,), "width": 8, "latent": 4, "backward_hidden": (8,)}
    for agent in (FB(spec, **small), BC(spec, hidden=(8,))):
        surefoot.fit(agent, data, env=None, steps=5, seeds=1, out=folder / agent.name, progress=False, batch_size=32)
    return folder


def test_a_policy_is_written_for_a_reward(runs: pathlib.Path, capsys: Any) -> None:
    path = runs / "left.safetensors"
    line = ["task", str(runs / "fb"), "--reward", f"{__name__}:paid_left", "--dataset", str(runs / "square.npz")]
    assert main([*line, "-o", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["states"] == 400
    assert told["rewarded"] == 1
    assert np.linalg.norm(told["task"]) == pytest.approx(2, rel=1e-5)
    agent, data = surefoot.load_agent(surefoot.Run.open(runs / "fb")), steps_in_a_square()
    np.testing.assert_allclose(told["task"], agent.task_of(data.next_observations, -data.rewards), rtol=1e-4)
    policy = surefoot.load_policy(path)
    np.testing.assert_allclose(policy.actor.begin(1)["task"][0], told["task"], rtol=1e-5)
    assert policy.select_action(np.zeros(2, np.float32)).shape == (2,)
    assert main([*line, "-o", str(path)]) == 0
    assert "paid_left, from 400 states of" in " ".join(capsys.readouterr().out.split())


def test_the_datas_own_reward_and_a_goal(runs: pathlib.Path, capsys: Any) -> None:
    data = steps_in_a_square()
    own = policy_for(runs / "fb", dataset=data)
    left = policy_for(runs / "fb", dataset=data, reward=paid_left)
    np.testing.assert_allclose(own.task, -left.task, rtol=1e-4, atol=1e-5)
    goal = policy_for(runs / "fb", goal=[0.5, 0.5])
    assert main(["task", str(runs / "fb"), "--goal", "0.5,0.5", "-o", str(runs / "goal.safetensors"), "--json"]) == 0
    np.testing.assert_allclose(json.loads(capsys.readouterr().out)["task"], goal.task, rtol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "options", "words"),
    [
        ("fb", {}, "was trained on data at hand"),
        ("fb", {"goal": [0, 0], "reward": paid_left}, "a goal is a task by itself"),
        ("fb", {"dataset": steps_in_a_square(), "reward": paid_nothing}, "these rewards give no task"),
        ("fb", {"seed": 7}, "has no seed 7"),
        ("fb", {"states": 0}, "states is 0"),
        ("bc", {}, "bc, is trained for one reward"),
    ],
)
def test_what_gives_no_task_is_refused(runs: pathlib.Path, algorithm: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policy_for(runs / algorithm, **options)


def test_other_endings_and_goals_are_refused(runs: pathlib.Path, capsys: Any) -> None:
    assert main(["task", str(runs / "fb"), "-o", str(runs / "p.onnx")]) == 2
    assert "is written as a .safetensors" in " ".join(capsys.readouterr().err.split())
    assert main(["task", str(runs / "fb"), "--goal", "a,b", "-o", str(runs / "p.safetensors")]) == 2
    assert "must be numbers" in capsys.readouterr().err
    assert not (runs / "p.safetensors").exists()


def test_data_without_rewards_are_learned_from_but_not_evaluated_with(tmp_path: pathlib.Path) -> None:
    data = steps_in_a_square()
    bare = data.replace(rewards=np.zeros(400, np.float32), attributes={REWARDS: NO_REWARDS})
    agent = FB(Spec.of(data, -np.ones(2), np.ones(2)), hidden=(8,), width=8, latent=4, backward_hidden=(8,))
    common: dict[str, Any] = {"steps": 2, "seeds": 1, "progress": False, "batch_size": 32}
    surefoot.fit(agent, bare, env=None, out=tmp_path / "run", **common)
    with pytest.raises(ConfigError, match="no task to evaluate fb with: give env=none"):
        surefoot.fit(agent, bare, env="native/pendulum", out=tmp_path / "other", **common)
    with pytest.raises(ConfigError, match="has no rewards: give a function"):
        policy_for(tmp_path / "run", dataset=bare)
