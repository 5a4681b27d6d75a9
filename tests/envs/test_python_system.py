"""Systems in python: integrators, the vector interface, the page and the example, and what a mistake is given."""

from __future__ import annotations

import functools
import importlib.util
import math
import pathlib
import re
import runpy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from surefoot.core.base.errors import ConfigError, MissingExtraError
from surefoot.cuda_ext.rollout import rollout
from surefoot.cuda_ext.system import Parameter
from surefoot.envs.native import NativeVectorEnv
from surefoot.envs.python_system import PythonSystem

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python_systems.md").read_text(encoding="utf-8")

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="comes with surefoot[numba]")


def spring(**changes: Any) -> PythonSystem:
    """x'' = u - stiffness x, released at x = 1."""

    def derivative(x, v, u, stiffness):  # type: ignore[no-untyped-def]
        return v, u - stiffness * x

    def reward(x, u, next_x):  # type: ignore[no-untyped-def]
        return 100 * x + 10 * u + next_x

    options: dict[str, Any] = {
        "states": ("x", "v"),
        "actions": {"u": (-1, 1)},
        "parameters": {"stiffness": 4.0},
        "derivative": derivative,
        "reward": reward,
        "cost": lambda x, v: x < 0.9,
        "terminated": lambda x: x < 0,
        "reset": lambda uniforms: (1, 0),
        "time_step": 0.1,
    }
    return PythonSystem("spring", **{**options, **changes})


@functools.cache
def shared() -> PythonSystem:
    return spring()


def stepped(system: PythonSystem, state: list[float], action: float) -> tuple[list[float], float, float, bool]:
    """One step of one row, by hand."""
    p = system.default_parameters()[None]
    tensor = torch.tensor([state], dtype=torch.float64)
    step = system.step(tensor, torch.tensor([[action]], dtype=torch.float64), p, torch.zeros(1, 1))
    return step.state[0].tolist(), float(step.reward), float(step.margin), bool(step.terminated)


@needs_numba
class TestNumbers:
    def test_euler_by_hand(self) -> None:
        state, reward, margin, ended = stepped(spring(integrator="euler"), [1.0, 0.5], 0.2)
        assert state == pytest.approx([1.0 + 0.1 * 0.5, 0.5 + 0.1 * (0.2 - 4.0)], abs=1e-12)
        assert (reward, margin, ended) == (pytest.approx(100 + 2 + 1.05), 1.0, False)

    def test_semi_implicit_euler_by_hand_in_two_substeps_with_a_limit(self) -> None:
        system = spring(integrator="semi_implicit", substeps=2, limits={"v": (-0.3, 8)})
        x, v = 1.0, 0.5
        for _ in range(2):
            v = max(-0.3, v + 0.05 * (-1.0 - 4 * x))
            x = x + 0.05 * v
        assert stepped(system, [1.0, 0.5], -1.0)[0] == pytest.approx([x, v], abs=1e-12)

    def test_runge_kutta_has_order_4_also_in_more_substeps_than_are_unrolled(self) -> None:
        exact = [math.cos(0.2), -2 * math.sin(0.2)]  # x = cos 2t
        once, often = (stepped(spring(substeps=n), [1.0, 0.0], 0.0)[0] for n in (1, 10))
        errors = [np.abs(np.subtract(found, exact)).max() for found in (once, often)]
        assert errors[0] < 1e-4
        assert errors[1] == pytest.approx(errors[0] / 1e4, rel=0.2)

    def test_a_cost_is_a_margin_of_one_either_way_and_the_end_is_that_of_the_new_state(self) -> None:
        assert stepped(shared(), [0.95, -1.0], 0.0)[2:] == (-1.0, False)
        assert stepped(shared(), [0.02, -1.0], 0.0)[2:] == (-1.0, True)

    def test_costs_returns_and_lengths_of_a_rollout_are_those_worked_out_step_by_step(self) -> None:
        found = rollout(shared(), actions=torch.zeros(20, 1, 1), num_envs=1)
        state, total, costs, length = [1.0, 0.0], 0.0, 0, 0
        for _ in range(20):
            state, reward, margin, ended = stepped(shared(), state, 0.0)
            total, costs, length = total + reward, costs + (margin < 0), length + 1
            if ended:
                break
        assert (int(found.lengths), int(found.costs), bool(found.terminated)) == (length, costs, True)
        assert float(found.returns) == pytest.approx(total, rel=1e-5)

    def test_a_state_that_is_no_number_ends_the_episode_and_is_counted(self) -> None:
        blows_up = spring(derivative=lambda x, v: (v, 1e30 * x), reward=lambda: 1.0)
        found = rollout(blows_up, random=True, num_envs=3, horizon=5)
        assert found.diverged.all()
        assert found.returns.tolist() == [0, 0, 0]
        assert found.costs.tolist() == [1, 1, 1]

    def test_normals_are_drawn_where_no_parameter_is_called_noise(self) -> None:
        noisy = spring(
            derivative=lambda normals: (normals[0], normals[1]), normals=2, integrator="euler", time_step=1.0
        )
        states = rollout(noisy, random=True, num_envs=4000, horizon=1).carry.states - torch.tensor([1.0, 0.0])
        assert states.mean(0).abs().max() < 0.07
        assert (states.std(0) - 1).abs().max() < 0.05


@needs_numba
class TestInterface:
    def test_as_a_vector_environment_with_domain_parameters(self) -> None:
        env = NativeVectorEnv(shared(), 3, parameters={"stiffness": [1.0, 4.0, 9.0]}, max_episode_steps=3)
        seen, _ = env.reset(seed=0)
        assert seen.tolist() == [[1, 0]] * 3
        seen, rewards, _, truncated, info = env.step(np.zeros((3, 1), np.float32))
        assert seen[:, 0] == pytest.approx([math.cos(0.1), math.cos(0.2), math.cos(0.3)], abs=1e-4)
        assert rewards == pytest.approx(100 + seen[:, 0], rel=1e-5)
        assert info["cost"].tolist() == [0, 0, 0]
        for _ in range(2):
            _, _, _, truncated, info = env.step(np.zeros((3, 1), np.float32))
        assert truncated.all()
        assert info["final_obs"].shape == (3, 2)

    def test_registered_with_gymnasium_it_is_made_and_evaluated_by_its_id(self) -> None:
        from surefoot.envs.episodes import run_episodes

        env_id = shared().register()
        assert env_id == "python/spring-v0"
        env = gymnasium.make(env_id)
        observation, _ = env.reset(seed=1)
        assert env.observation_space.contains(observation)
        assert env.step(np.zeros(1, np.float32))[1] == pytest.approx(100 + math.cos(0.2), rel=1e-5)
        batch = run_episodes(lambda observations: np.zeros((len(observations), 1)), env_id, np.arange(4))
        assert batch.lengths.tolist() == [8] * 4  # cos 2t < 0 from 0.785 s on
        assert batch.terminated.all()
        with pytest.raises(ConfigError, match=r"python/spring-v0 draws no frames: draw the `state`"):
            gymnasium.make(env_id, render_mode="rgb_array")

    def test_helpers_of_the_same_file_and_closures_are_compiled_too(self) -> None:
        factor = 3.0

        def twice(x: float) -> float:
            return factor * x

        system = spring(reward=lambda x, u: twice(twice(x)))
        assert stepped(system, [2.0, 0.0], 0.0)[1] == 18.0


@needs_numba
def test_the_page_example_runs_and_says_what_it_prints(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code, printed) = re.findall(r"^```(?:python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:2]
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    runpy.run_path(str(tmp_path / "page.py"))
    assert capsys.readouterr().out == printed


@needs_numba
def test_the_example_runs_and_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / "python_system.py"
    runpy.run_path(str(path), run_name="__main__")
    assert re.fullmatch(r"return -\d+\.\d, out of the channel 7\d\.\d%\n", capsys.readouterr().out)


def test_without_numba_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"spring, a system written in python, needs .*surefoot\[numba\]"):
        rollout(spring(), random=True, num_envs=1)


def unsupported(x: float) -> float:
    return float(str(x))


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"derivative": lambda x, v, torque: (v, x)}, r"derivative\(\) asks for 'torque'; .*stiffness"),
    ({"derivative": lambda x, v: (v, x, 0)}, r"derivative\(\) returns 3 values; it must return 2 rates: of x, v"),
    ({"derivative": lambda x: x}, r"derivative\(\) returns 1 value; it must return 2 rates: of x, v"),
    ({"reset": lambda uniforms: (0,)}, r"reset\(\) returns 1 value; it must return 2 states: of x, v"),
    ({"reset": lambda uniforms: uniforms[7]}, r"reset\(\) fails \(IndexError"),
    ({"reward": lambda x: (x, x)}, r"reward\(\) returns 2 values; it must return one number"),
    ({"reward": lambda x: None}, r"reward\(\) returns None; it must return numbers"),
    ({"reward": lambda *x: 0}, r"reward\(\) asks for 'x'"),
    ({"reward": lambda x: 1 / (x - x)}, r"reward\(\) fails \(ZeroDivisionError.* when it is called with x=1.0"),
    ({"reward": 3}, r"reward= is 3; give a function"),
    ({"margin": lambda x: x}, r"give margin= or cost=, not both"),
    ({"observe": lambda x: x}, r"observe= needs observations="),
    ({"observations": ("x",)}, r"observations= needs observe="),
    (
        {"observe": lambda x: (x, x), "observations": ("x",)},
        r"observe\(\) returns 2 values; it must return 1 observation",
    ),
    ({"actions": {"u": (1, -1)}}, r"bounds must be finite, low < high"),
    ({"actions": {"u": 2}}, r"actions= has 2 for 'u'; give \(low, high\)"),
    ({"actions": {}}, r"give 1 or more"),
    ({"states": ("x", "speed x")}, r"'speed x' can't be a name"),
    ({"states": ("x", "u")}, r"'u' is named twice"),
    ({"parameters": [Parameter("lambda", 1, 0, 2)]}, r"'lambda' can't be a name"),
    ({"integrator": "rk5"}, r"integrator is 'rk5'; did you mean 'rk4'"),
    (
        {"states": ("x", "v", "w"), "integrator": "semi_implicit"},
        r"semi_implicit needs positions, then as many velocities",
    ),
    ({"substeps": 0}, r"must be above 0"),
    ({"normals": 65}, r"must be 0 to 64"),
    ({"limits": {"y": (0, 1)}}, r"there are no such states"),
]


@pytest.mark.parametrize(
    ("changes", "words"), MISTAKES, ids=lambda value: None if isinstance(value, dict) else value[:40]
)
def test_a_mistake_is_told_in_one_sentence_when_the_system_is_made(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        spring(**changes)
    assert str(caught.value).startswith("spring: ")
    assert "\n" not in str(caught.value)


@needs_numba
@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (unsupported, r"can't compile reward\(\): .*docs/python_systems\.md"),
        (lambda x: eval("x"), r"can't compile reward\(\): .*eval.* \(line \d+ of .*test_python_system\.py\)"),
        (lambda x: x if x > 0 else None, r"reward\(\) doesn't always return numbers"),
    ],
)
def test_a_function_that_numba_can_not_compile_is_named(reward: Callable[..., Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        rollout(spring(reward=reward), random=True, num_envs=1)
    assert "\n" not in str(caught.value)
