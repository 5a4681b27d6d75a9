"""Policies of stable-baselines3 act as they did there, and none is unpickled without trust."""

from __future__ import annotations

import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import surefoot
from surefoot.cli import main
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.interop import sb3 as tool

sb3 = pytest.importorskip("stable_baselines3", reason="the extra sb3 is not installed")


class Bounds(gymnasium.Env[Any, Any]):
    """Four numbers in, two bounded ones or a choice out; nothing is learned in it."""

    def __init__(self, discrete: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(-9, 9, (4,), np.float32)
        low, high = np.array([-3, 1], np.float32), np.array([1, 2], np.float32)
        self.action_space = gymnasium.spaces.Discrete(3) if discrete else gymnasium.spaces.Box(low, high)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, True, {}


MODELS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "ppo": ("PPO", False, {"net_arch": [16, 8]}),
    "a2c": ("A2C", False, {"net_arch": [16], "activation_fn": torch.nn.ReLU}),
    "ppo of choices": ("PPO", True, {"net_arch": [8]}),
    "sac": ("SAC", False, {"net_arch": [16, 8]}),
    "td3": ("TD3", False, {"net_arch": [16, 8]}),
    "ddpg": ("DDPG", False, {"net_arch": [8]}),
    "dqn": ("DQN", True, {"net_arch": [16, 8]}),
}


@pytest.mark.parametrize("name", MODELS)
def test_actions_are_those_of_stable_baselines3(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, discrete, options = MODELS[name]
    model = getattr(sb3, kind)("MlpPolicy", Bounds(discrete), policy_kwargs=options, seed=0, device="cpu")
    with torch.no_grad():
        for parameter in model.policy.parameters():  # policies begin with actions near the middle
            parameter.mul_(3)
    model.save(tmp_path / "model.zip")
    out = tmp_path / "policy.safetensors"
    assert main(["import", "sb3", str(tmp_path / "model.zip"), "-o", str(out), "--trust"]) == 0
    assert "4 numbers -> " in capsys.readouterr().out
    policy = surefoot.load_policy(out)
    rows = np.random.default_rng(3).uniform(-9, 9, (50, 4)).astype(np.float32)
    theirs = model.predict(rows, deterministic=True)[0]
    ours = policy(torch.from_numpy(rows)).numpy()
    assert len(np.unique(theirs.round(3))) > 2 - discrete
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_statistics_of_vecnormalize_come_along(tmp_path: pathlib.Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([Bounds]), clip_obs=1.5)
    model = sb3.PPO("MlpPolicy", env, n_steps=16, batch_size=16, seed=0, device="cpu").learn(16)
    model.save(tmp_path / "model.zip")
    env.save(str(tmp_path / "statistics.pkl"))
    policy = tool.load(tmp_path / "model.zip", trust=True, statistics=tmp_path / "statistics.pkl")
    rows = np.random.default_rng(3).uniform(-20, 20, (50, 4)).astype(np.float32)
    theirs = model.predict(env.normalize_obs(rows), deterministic=True)[0]
    np.testing.assert_allclose(policy(torch.from_numpy(rows)).numpy(), theirs, atol=2e-5)


def test_nothing_is_unpickled_without_trust(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sb3.PPO("MlpPolicy", Bounds(), device="cpu").save(tmp_path / "model.zip")

    def opened(*unused: Any, **options: Any) -> None:
        raise AssertionError("the file was unpickled")

    monkeypatch.setattr(sb3.PPO, "load", opened)
    with pytest.raises(ConfigError, match=r"hold pickled objects.*add --trust"):
        tool.load(tmp_path / "model.zip", trust=False)


def test_what_can_not_be_taken_over_is_refused(tmp_path: pathlib.Path) -> None:
    sb3.PPO("MlpPolicy", Bounds(), policy_kwargs={"net_arch": [8], "activation_fn": torch.nn.ELU}).save(tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"its network is \['Linear', 'ELU', 'Linear'\]"):
        tool.load(tmp_path / "a.zip", trust=True)
    (tmp_path / "b.zip").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(CheckpointError, match=r"is no file of stable-baselines3"):
        tool.load(tmp_path / "b.zip", trust=True)
    with pytest.raises(ConfigError, match=r"algorithm 'sax' is not read: did you mean 'sac'"):
        tool.load(tmp_path / "a.zip", trust=True, algorithm="sax")
