"""Runs in environments of float64 observations with a large offset say, once, what float32 loses of them."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from surefoot.experiment.plan import Plan, agent_class
from surefoot.experiment.training import train

SMALL = {"episodes": 1, "evaluate_episodes": 1}


class Northing(gymnasium.Env[Any, Any]):
    """A robot that moves an eighth of a metre a step, from where the northing is 5,400,000 or from nought."""

    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, offset: float) -> None:
        self.offset = offset

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observed(), -abs(float(action[0])), False, self.t >= 64, {}

    def observed(self) -> Any:
        return np.array([np.sin(self.t), self.offset + self.t / 8])


@pytest.fixture(scope="module", autouse=True)
def environments() -> Iterator[None]:
    for name, offset in (("Northing-v0", 5.4e6), ("Plain-v0", 0.0)):
        gymnasium.register(name, Northing, kwargs={"offset": offset})
    yield
    for name in ("Northing-v0", "Plain-v0"):
        del gymnasium.registry[name]


@pytest.mark.parametrize(
    ("algorithm", "options", "steps"),
    [
        ("ppo", {"num_envs": 2, "horizon": 256, "hidden": (8,)}, 1024),
        ("sac", {"initial_steps": 290, "hidden": (8,)}, 300),
        ("stream_ac", {"hidden": (8,)}, 600),
    ],
)
@pytest.mark.parametrize(("env", "found"), [("Northing-v0", 1), ("Plain-v0", 0)])
def test_a_run_says_once_what_float32_loses_of_the_first_observations(
    algorithm: str, options: dict[str, Any], steps: int, env: str, found: int, tmp_path: pathlib.Path, in_process: None
) -> None:
    """Of 5,400,000 + 0 to 64 eighths float32 holds every fourth; all are seen in the first episodes."""
    config = dataclasses.asdict(agent_class(algorithm).configure(**options))
    notes: list[str] = []

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "note" and "float32" in event["text"]:
            notes.append(event["text"])

    train(Plan(algorithm, config, environment=env, steps=steps, seeds=(0, 1), **SMALL), tmp_path / "run", listener=hear)
    assert len(notes) == found
    for text in notes:
        assert text.startswith(f"{env}, its first 256 steps: values of observations[1] rounded to float32 (")
        assert "(subtract 5,400,000 in the environment): " in text
        assert " different ones are left, errors up to 0.25 (" in text


@pytest.mark.slow
def test_collectors_pass_on_what_the_first_of_them_has_seen(tmp_path: pathlib.Path) -> None:
    (tmp_path / "northing.py").write_text(pathlib.Path(__file__).read_text().split("@pytest.fixture")[0] + REGISTERED)
    config = dataclasses.asdict(agent_class("ppo").configure(num_envs=2, horizon=256, hidden=(8,)))
    notes: list[str] = []
    plan = Plan(
        "ppo", config, environment="northing:Northing-v0", steps=1536, collectors="processes", workers=2, **SMALL
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        train(plan, tmp_path / "run", listener=lambda event: notes.append(str(event.get("text"))))
    told = [text for text in notes if "float32" in text]
    assert len(told) == 1
    assert "northing:Northing-v0, its first 256 steps: values of observations[1] rounded to float32 (" in told[0]


REGISTERED = "gymnasium.register('Northing-v0', Northing, kwargs={'offset': 5.4e6})\n"
