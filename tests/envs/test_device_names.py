"""Device simulators by name: with stand-ins everywhere, with jax, brax, MJX and playground where they are installed."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import ConfigError, DeviceError, EnvironmentMismatchError, MissingExtraError
from surefoot.envs import describe, make_vec
from surefoot.envs.acting import Acting
from surefoot.envs.adapters import named, torch_tasks
from surefoot.envs.adapters.dlpack import PREALLOCATE
from surefoot.envs.adapters.memory import in_memory
from surefoot.envs.names import DEVICE_SCHEMES, device_scheme
from surefoot.envs.training import make_training
from surefoot.evaluation.rollout import RandomPolicy, evaluate
from surefoot.online import ALGORITHMS, spec_of
from surefoot.online.loops.loop import make_loop
from surefoot.runs import trust


def there(module: str) -> bool:
    """Whether a module is installed."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


needs_brax = pytest.mark.skipif(not there("brax"), reason="brax is not installed")
needs_mjx = pytest.mark.skipif(not (there("mujoco.mjx") and there("jax")), reason="mujoco-mjx is not installed")
needs_playground = pytest.mark.skipif(not there("mujoco_playground"), reason="playground is not installed")
needs_heavy = pytest.mark.skipif(
    os.environ.get("SUREFOOT_HEAVY_SIMULATORS") != "1",
    reason="compiles for minutes; set SUREFOOT_HEAVY_SIMULATORS=1 where the simulators are installed",
)


# -- names -------------------------------------------------------------------------------------------------


def test_a_scheme_is_known_by_its_prefix_and_versions_are_gymnasium_s() -> None:
    assert set(named.MAKERS) == set(named.PACKAGES) == set(DEVICE_SCHEMES)
    assert [device_scheme(name) for name in ("brax/ant", "mjx/a/b.xml", "brax/ant-v0", "native/pendulum", "brax")] == [
        "brax",
        "mjx",
        None,
        None,
        None,
    ]


def test_a_task_of_a_module_in_a_received_file_asks_for_trust() -> None:
    assert trust.module_of("mjx/my.robots:Arm") == "my.robots"
    assert trust.module_of("playground/CartpoleBalance") is None


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("playground/CartpoleBalance", "mujoco_playground", "playground"),
        ("brax/ant", "brax.envs", "brax"),
        ("mjx/Hopper", "mujoco.mjx", "jax"),
        ("warp/Hopper", "mujoco_warp", "warp"),
    ],
)
def test_a_simulator_that_is_missing_names_its_extra(
    name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in ("jax", "warp", module):
        monkeypatch.setitem(sys.modules, one, types.ModuleType(one))
    monkeypatch.setitem(sys.modules, module, None)
    for make in (lambda: make_vec(name, 2), lambda: make_training(name, 2), lambda: describe(name)):
        with pytest.raises(MissingExtraError, match=rf"surefoot\[{extra}\]"):
            make()


@pytest.fixture
def playground(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for playground's registry on a stand-in for jax; what it was asked for."""
    asked: dict[str, Any] = {}

    def load(name: str, config_overrides: Any) -> Any:
        asked.update(name=name, overrides=config_overrides)
        return SimpleNamespace(observation_size={"state": (3,), "privileged_state": (9,)}, action_size=2, env=None)

    class Config(dict[str, Any]):
        episode_length = 700

    registry = SimpleNamespace(
        ALL_ENVS=("CartpoleBalance", "WalkerRun"),
        get_default_config=lambda name: Config(impl="warp", episode_length=700, ctrl_dt=0.01),
        load=load,
    )
    monkeypatch.setitem(sys.modules, "mujoco_playground", SimpleNamespace(registry=registry))  # type: ignore[arg-type]
    jax = SimpleNamespace(default_backend=lambda: asked.get("backend", "cpu"))
    monkeypatch.setitem(sys.modules, "jax", jax)  # type: ignore[arg-type]
    monkeypatch.setattr("surefoot.envs.adapters.brax._batched", lambda *_: None)
    named._loaded_playground.cache_clear()
    yield asked  # type: ignore[misc]
    named._loaded_playground.cache_clear()


def test_a_playground_environment_has_its_own_time_limit_options_and_groups(playground: dict[str, Any]) -> None:
    env: Any = make_training("playground/WalkerRun", 4)
    assert (env.num_envs, env.tensors, env.max_episode_steps, env.called) == (4, "torch", 700, "playground/WalkerRun")
    assert env.single_observation_space.shape == (3,)
    env = make_vec("playground/WalkerRun", 2, group="privileged_state", max_episode_steps=9, ctrl_dt=0.02)
    assert (env.single_observation_space.shape, env.max_episode_steps, env.tensors) == ((9,), 9, "numpy")
    assert playground["overrides"] == {"episode_length": 9, "ctrl_dt": 0.02, "impl": "jax"}
    found = describe("playground/WalkerRun")
    assert (found.observation_dim, found.action_dim, found.max_episode_steps) == (3, 2, 700)


def test_warp_s_kernels_are_left_to_gpus(playground: dict[str, Any]) -> None:
    make_vec("playground/WalkerRun", 1)
    assert playground["overrides"] == {"impl": "jax"}
    named._loaded_playground.cache_clear()
    playground["backend"] = "gpu"
    assert named.torch_device("playground") == "cuda"
    named._loaded_playground("WalkerRun", ())
    assert playground["overrides"] == {}


def test_unknown_names_and_options_list_near_ones(playground: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'WalkerRun'"):
        make_vec("playground/WalkRun", 1)
    with pytest.raises(ConfigError, match="no option 'ctrl_dtt': did you mean 'ctrl_dt'"):
        make_vec("playground/WalkerRun", 1, ctrl_dtt=1)
    with pytest.raises(ConfigError, match="no observations 'privileged': did you mean 'privileged_state'"):
        make_vec("playground/WalkerRun", 1, group="privileged")
    with pytest.raises(ConfigError, match="num_envs is 0"):
        make_vec("playground/WalkerRun", 0)


def test_a_run_is_told_the_device_and_what_memory_jax_takes(
    playground: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PREALLOCATE, raising=False)
    named.require("jax", "brax")
    assert os.environ[PREALLOCATE] == "false"  # unless the user has stated otherwise
    notes = named.notes_on_device("playground/WalkerRun")
    assert notes[0].endswith(" on cpu")
    assert "jax computes on the CPU" in notes[1]
    playground["backend"] = "gpu"
    assert f"as it needs it, beside torch ({PREALLOCATE}=false)" in named.notes_on_device("playground/WalkerRun")[1]
    monkeypatch.setenv(PREALLOCATE, "true")
    assert "takes 0.75 of the GPU's memory at once" in named.notes_on_device("playground/WalkerRun")[1]
    assert named.notes_on_device("Pendulum-v1") == []


def test_rows_that_do_not_fit_into_memory_are_said_in_a_sentence() -> None:
    with (
        pytest.raises(DeviceError, match=r"2,000,000 environments don't fit.*RESOURCE_EXHAUSTED.*lower envs"),
        in_memory(2_000_000),
    ):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore")
    with pytest.raises(RuntimeError, match="something else"), in_memory(2):
        raise RuntimeError("something else")


# -- tasks in torch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", torch_tasks.NAMES)
def test_tasks_in_torch_observe_reward_and_end_as_gymnasium_s(name: str) -> None:
    pytest.importorskip("mujoco")
    from surefoot.envs.mujoco.library import compile_model
    from surefoot.envs.mujoco.tasks import make_task

    model, exact = compile_model(torch_tasks.model_of(name)), make_task(name)
    task, rows, draw = torch_tasks.task_of(name, model), 64, np.random.default_rng(0)
    assert (task.substeps, task.max_steps) == (exact.frame_skip, 1000)
    before, after = (model.qpos0 + draw.normal(0, scale, (rows, model.nq)) for scale in (0.05, 0.5))
    velocities, actions = draw.normal(0, 6, (rows, model.nv)), draw.uniform(-1, 1, (rows, model.nu)).astype(np.float32)
    velocities[0, 0] = 200.0  # beyond the range of a healthy hopper
    sim: Any = SimpleNamespace(
        qpos=after, qvel=velocities, before=SimpleNamespace(qpos=before), dt=model.opt.timestep * exact.frame_skip,
        num_envs=rows, model=model,
    )  # fmt: skip
    rewards, ended, _ = exact.step(sim, actions)
    now, then = ({"qpos": torch.tensor(p).float(), "qvel": torch.tensor(velocities).float()} for p in (after, before))
    outcome = task.outcome(then, now, torch.tensor(actions))
    assert torch.allclose(task.observe(now), torch.tensor(exact.observe(sim)).float(), atol=1e-5)
    assert task.observation_dim == exact.observe(sim).shape[1]
    assert outcome.terminated.tolist() == ended.tolist()
    assert torch.allclose(outcome.reward, torch.tensor(rewards).float(), rtol=1e-4, atol=1e-2)
    if name not in ("HalfCheetah", "Swimmer"):  # which never terminate
        assert 0 < ended.sum() < rows


@pytest.mark.parametrize("name", torch_tasks.NAMES)
def test_initial_states_are_spread_as_gymnasium_s(name: str) -> None:
    pytest.importorskip("mujoco")
    from surefoot.envs.mujoco.library import compile_model
    from surefoot.envs.mujoco.tasks import make_task

    model, exact, draw = compile_model(torch_tasks.model_of(name)), make_task(name), np.random.default_rng(0)
    task = torch_tasks.task_of(name, model)
    found = torch.cat(task.begin(torch.rand(4000, task.uniforms)), 1).numpy()
    wanted = np.array([np.concatenate(exact.reset(model, draw)) for _ in range(4000)])
    np.testing.assert_allclose(found.mean(0), wanted.mean(0), atol=0.01)
    np.testing.assert_allclose(found.std(0), wanted.std(0), rtol=0.06)


BALL = """
<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0" damping="1"/><geom size="0.1" mass="1"/></body>
</worldbody><actuator><motor joint="x" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>
"""


@pytest.fixture
def ball(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An MJCF file and a module with a reward and a task of the user's own."""
    pytest.importorskip("mujoco")
    (tmp_path / "ball.xml").write_text(BALL)
    (tmp_path / "ball_rewards.py").write_text(
        textwrap.dedent("""
        import torch
        from surefoot.envs.adapters.physics import Outcome, PhysicsTask

        def near(before, after, actions):
            return 1 - after["qpos"][:, 0].abs()

        def wrong(before, after, actions):
            return after["qpos"]

        class Ball(PhysicsTask):
            model = "ball.xml"
            observation_dim, uniforms, max_steps = 2, 1, 20
            def begin(self, uniform):
                return uniform - 0.5, torch.zeros_like(uniform)
            def observe(self, data):
                return torch.cat([data["qpos"], data["qvel"]], 1)
            def outcome(self, before, after, actions):
                place = after["qpos"][:, 0]
                return Outcome(-place.abs(), place.abs() > 0.6)
        """)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ball_rewards", raising=False)
    return tmp_path


def test_what_a_file_or_module_lacks_is_said(ball: pathlib.Path) -> None:
    def asked(name: str, **options: Any) -> None:
        named._model_and_task("mjx", name, options)

    for name, options, words in (
        ("ball.xml", {}, r"says nothing of rewards: give env_options\.reward=module:function"),
        ("boll.xml", {}, "there is no file boll.xml"),
        ("ball.xml", {"rewart": "a:b"}, "no option 'rewart': did you mean 'reward'"),
        ("ball.xml", {"reward": "ball_rewards:nothing"}, "the reward 'ball_rewards:nothing' can't be imported"),
        ("ball_rewards:near", {}, r"near fails when it is made \(TypeError"),
        ("nowhere:Task", {}, "the task 'nowhere:Task' can't be imported"),
        ("Hoper", {}, "did you mean 'Hopper'"),
        ("Hopper", {"noise": 1}, "takes no noise"),
    ):
        with pytest.raises(ConfigError, match=words):
            asked(name, **options)
    _, task = named._model_and_task("mjx", "ball.xml", {"reward": "ball_rewards:wrong", "max_episode_steps": 7})
    fields = {"qpos": torch.zeros(3, 1), "qvel": torch.zeros(3, 1)}
    assert task.max_steps == 7
    with pytest.raises(ConfigError, match=r"gives \(3, 1\), not a tensor \(3,\)"):
        task.outcome(fields, fields, torch.zeros(3, 1))


# -- rows that are paused and seeded, and states -------------------------------------------------------------


def same_state(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def check_rows(env: Any) -> None:
    """Pauses, seeds of the next resets and saved states, of an environment of 3 rows that gives numpy arrays."""
    width = env.single_action_space.shape[0]
    draw = np.random.default_rng(1)
    actions = [draw.uniform(-1, 1, (3, width)).astype(np.float32) for _ in range(6)]
    first, _ = env.reset(seed=[3, 4, 5])
    env.step(actions[0])
    env.active[1] = False
    held = env.step(actions[1])
    assert held[4]["valid"].tolist() == [True, False, True]
    again = env.step(actions[2])
    assert np.array_equal(again[0][1], held[0][1])
    assert again[1][1] == 0
    assert not (again[2] | again[3])[1]
    assert not np.array_equal(again[0][0], held[0][0])
    env.active[1] = True
    saved = env.get_state()
    onwards = [env.step(action) for action in actions[3:]]
    env.reset(seed=9)
    env.set_state(saved)
    assert same_state(env.get_state(), saved)
    for action, wanted in zip(actions[3:], onwards, strict=True):
        found = env.step(action)
        assert all(np.array_equal(a, b) for a, b in zip(found[:4], wanted[:4], strict=True))
    env.next_seeds[:] = [5, 5, 5]
    ended = np.zeros(3, bool)
    for _ in range(env.max_episode_steps):
        seen, _, terminations, truncations, info = env.step(actions[0])
        for row in np.flatnonzero((terminations | truncations) & ~ended):
            assert np.array_equal(seen[row], first[2])  # what a reset with that seed gives
            assert not np.array_equal(info["final_obs"][row], seen[row])
        ended |= terminations | truncations
    assert ended.all()


@needs_brax
def test_rows_of_brax_pause_are_seeded_and_have_a_state() -> None:
    check_rows(make_vec("brax/fast", 3, max_episode_steps=8, use_dict_obs=False))


@needs_mjx
def test_rows_of_mjx_pause_are_seeded_and_have_a_state(ball: pathlib.Path) -> None:
    check_rows(make_vec("mjx/ball_rewards:Ball", 3))
    env = make_vec("mjx/ball.xml", 2, reward="ball_rewards:near", max_episode_steps=5)
    env.reset(seed=0)
    rewards = env.step(np.zeros((2, 1), np.float32))[1]
    assert ((rewards > 0.9) & (rewards <= 1)).all()


@needs_brax
def test_policies_are_evaluated_on_the_same_episodes_alone_and_side_by_side() -> None:
    low, high = np.array([-1.0], np.float32), np.array([1.0], np.float32)
    policies = [RandomPolicy(low, high, seed) for seed in (0, 1)]
    both = evaluate(policies, "brax/fast", 5, num_envs=2, env_kwargs={"max_episode_steps": 6})
    alone = evaluate(policies[1:], "brax/fast", 5, num_envs=2, env_kwargs={"max_episode_steps": 6})
    assert both[0].lengths.tolist() == [6] * 5
    assert both[1].returns.tolist() == alone[0].returns.tolist()


@needs_brax
def test_a_wrong_state_is_refused() -> None:
    env: Any = make_vec("brax/fast", 3)
    with pytest.raises(EnvironmentMismatchError, match="before the first reset"):
        env.get_state()
    env.reset(seed=0)
    saved = env.get_state()
    other: Any = make_vec("brax/fast", 4)
    other.reset(seed=0)
    with pytest.raises(EnvironmentMismatchError, match="another environment"):
        other.set_state(saved)


@needs_brax
def test_seeds_share_a_simulator_and_each_goes_on_from_its_own_state() -> None:
    env: Any = make_training("brax/fast", 4)
    bounds = (torch.tensor([-1.0]), torch.tensor([1.0]))
    acting = Acting(env, [0, 1], bounds, torch.device("cpu"))
    acting.begin(0)
    acting.act(torch.zeros(4, 1))
    states = [acting.state(position, "a/", "seen") for position in (0, 1)]
    wanted = acting.act(torch.ones(4, 1)).observations.clone()
    acting.begin(7)
    assert acting.restore(states, "a/", "seen") is None
    assert torch.equal(acting.act(torch.ones(4, 1)).observations, wanted)


@needs_brax
def test_a_row_whose_numbers_are_not_finite_is_cut_and_begins_anew() -> None:
    import jax
    from brax.envs.base import State

    from surefoot.envs.adapters import from_brax

    class Breaks:
        observation_size, action_size = 1, 1

        def reset(self, key: Any) -> Any:
            zero = jax.numpy.zeros(())
            return State(None, jax.numpy.ones(1), zero, zero, {}, {})

        def step(self, state: Any, action: Any) -> Any:
            return state.replace(obs=state.obs + action, reward=action[0])

    env = from_brax(Breaks(), 2, episode_length=9)
    env.reset(seed=0)
    env.step(torch.ones(2, 1))
    seen, rewards, terminations, truncations, info = env.step(torch.tensor([[float("inf")], [1.0]]))
    assert truncations.tolist() == info["diverged"].tolist() == [True, False]
    assert not terminations.any()
    assert rewards.tolist() == [0, 1]
    assert torch.as_tensor(seen).flatten().tolist() == [1, 3]
    assert info["final_obs"].flatten().tolist() == [2, 3]


# -- whole runs --------------------------------------------------------------------------------------------


def loop_on(name: str, rows: int) -> Any:
    """PPO's loop on rows of an environment, small."""
    env = make_training(name, rows)
    kind: Any = ALGORITHMS["ppo"]
    config = kind.configure(num_envs=rows, horizon=16, hidden=(8,), epochs=2, minibatches=2)
    return make_loop([kind(spec_of(env), config).fresh(0)], [0], env, planned_steps=4096)


@needs_brax
def test_training_goes_on_from_a_saved_state_with_the_same_numbers() -> None:
    loop = loop_on("brax/fast", 4)
    loop.run(128)
    state = {name: value.clone() for name, value in loop.state(0).items()}
    loop.run(64)
    other = loop_on("brax/fast", 4)
    assert other.restore([state], 128) is None  # nothing is lost
    other.run(64)
    found, wanted = other.state(0), loop.state(0)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@needs_brax
@needs_heavy
def test_a_run_on_brax_is_trained_evaluated_and_resumed(tmp_path: pathlib.Path) -> None:
    surefoot = [sys.executable, "-m", "surefoot"]
    options = ["algo=ppo", "env=brax/fast", "envs=4", "algo.horizon=16", "evaluate_every=64", "evaluate_episodes=2"]
    options += ["episodes=2", "seeds=1", "algo.hidden=[8]", "algo.schedule=constant"]

    def called(*arguments: str) -> str:
        done = subprocess.run([*surefoot, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    text = called("train", *options, "steps=192", "out=whole")
    assert "brax/fast: brax " in text
    called("train", *options, "steps=128", "out=parts")
    called("train", "--resume", "parts", "steps=192")
    policies = [(tmp_path / name / "policy" / "seed0.safetensors").read_bytes() for name in ("whole", "parts")]
    assert policies[0] == policies[1]
    assert "brax/fast" in called("evaluate", "whole", "--episodes", "3")


@needs_playground
@needs_heavy
def test_a_playground_environment_trains_for_a_block() -> None:
    loop = loop_on("playground/CartpoleBalance", 8)
    loop.run(128)
    assert loop.learner.step > 0
