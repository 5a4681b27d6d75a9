"""Each kind of space either works or is refused with what to do, and the advice leads to one that works."""

from __future__ import annotations

import json
import math
import pathlib
import zlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from surefoot.api.fit import fit
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.data import load
from surefoot.envs.acting import spec_of
from surefoot.envs.adapters import adapt
from surefoot.envs.choices import DiscreteActions
from surefoot.envs.training import make_training
from surefoot.online import PPO, SAC

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
PICTURE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
BOTH = spaces.Dict({"camera": PICTURE, "joints": VECTOR})
LIMITED = spaces.Box(-1, 1, (2,), np.float32)


class Sampled(gymnasium.Env[Any, Any]):
    """Draws observations of its space, and remembers the actions that it was given."""

    seen: list[Any] = []  # noqa: RUF012

    def __init__(self, observation: spaces.Space[Any] = VECTOR, action: spaces.Space[Any] = LIMITED) -> None:
        self.observation_space, self.action_space, self.step_count = observation, action, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.step_count = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not of {self.action_space}"
        self.seen.append(action)
        self.step_count += 1
        return self.observation_space.sample(), 1.0, False, self.step_count >= 10, {}


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Any:
    """Registers a `Sampled` of two spaces and gives its id."""

    def register(observation: spaces.Space[Any] = VECTOR, action: spaces.Space[Any] = LIMITED, wrap: Any = None) -> str:
        name = f"kinds/{abs(hash(request.node.nodeid))}-v0"
        gymnasium.registry.pop(name, None)

        def entry() -> Any:
            env = Sampled(observation, action)
            return env if wrap is None else wrap(env)

        gymnasium.register(name, entry)
        return name

    return register


@pytest.mark.parametrize(
    ("action", "choices"),
    [
        (spaces.Discrete(3), 3),
        (spaces.Discrete(3, start=5), 3),
        (spaces.MultiDiscrete([2, 3]), 6),
        (spaces.MultiDiscrete([[2, 2], [3, 1]]), 12),
        (spaces.MultiBinary(3), 8),
    ],
)
def test_choices_of_all_kinds_become_numbers_that_the_environment_accepts(
    made: Any, action: spaces.Space[Any], choices: int
) -> None:
    env = make_training(made(action=action), 1)
    spec = spec_of(env)
    assert (spec.discrete, spec.action_dim) == (True, choices)
    Sampled.seen.clear()
    env.reset(seed=0)
    for number in range(choices):
        env.step(np.array([number]))
    assert len({np.asarray(one).tobytes() for one in Sampled.seen}) == choices  # each number is another action
    env.close()


def test_the_last_choice_varies_fastest() -> None:
    env = DiscreteActions(Sampled(action=spaces.MultiDiscrete([2, 3])))
    assert [env.action(number).tolist() for number in (0, 1, 3, 5)] == [[0, 0], [0, 1], [1, 0], [1, 2]]
    with pytest.raises(EnvironmentMismatchError, match=r"1,048,576 combinations.*Box action space"):
        DiscreteActions(Sampled(action=spaces.MultiBinary(20)))


SAMPLED = """
import gymnasium, numpy as np
from gymnasium import spaces

class Sampled(gymnasium.Env):
    observation_space = {observation}
    action_space = {action}

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.observation_space.sample(), {{}}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        return self.observation_space.sample(), 1.0, False, self.count >= 10, {{}}

gymnasium.register("kinds/{name}-v0", Sampled)
"""


def module_of(folder: pathlib.Path, monkeypatch: Any, observation: str, action: str) -> str:
    """Write a module with one environment of these spaces, which workers import too; its id."""
    name = f"Sampled{zlib.crc32(f'{observation} {action}'.encode())}"
    (folder / f"{name.lower()}.py").write_text(SAMPLED.format(observation=observation, action=action, name=name))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return f"{name.lower()}:kinds/{name}-v0"


MODULE = """
import gymnasium, numpy as np
from gymnasium import spaces

class Camera(gymnasium.Env):
    observation_space = spaces.Dict(camera=spaces.Box(0, 255, (36, 36, 3), np.uint8), joints=spaces.Box(-1, 1, (3,)))
    action_space = spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        return self.observation_space.sample(), float(sum(action) >= 0), False, self.count >= 10, {}

gymnasium.register("kinds/Camera-v0", Camera)
"""


def test_a_camera_beside_a_vector_and_several_choices_train_to_a_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "camera_kinds.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = "camera_kinds:kinds/Camera-v0"
    spec = spec_of(make_training(name, 1))
    agent = PPO(spec, num_envs=2, horizon=16, minibatches=2, epochs=1, hidden=(8,), encoder_features=8)
    options: dict[str, Any] = {"steps": 64, "seeds": 1, "episodes": 1, "evaluate_episodes": 1}
    run = fit(agent, env=name, out=tmp_path / "run", progress=False, **options)
    assert run.summary is not None
    assert run.summary["returns"]["mean"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("algorithm", "picture", "range_"),
    [
        ("sac", "spaces.Box(0, 1, (8, 8, 12), np.uint8)", (0.0, 1.0)),
        ("ppo", "spaces.Box(0, 1, (8, 8, 12), np.bool_)", (0.0, 1.0)),
        ("sac", "spaces.Box(-1, 1, (36, 36, 3), np.float32)", (-1.0, 1.0)),
    ],
)
def test_planes_masks_and_real_pictures_train_and_their_policies_keep_the_range(
    monkeypatch: Any, tmp_path: pathlib.Path, picture: str, range_: tuple[float, float], algorithm: str
) -> None:
    name = module_of(tmp_path, monkeypatch, picture, "spaces.Box(-1, 1, (2,))")
    spec, small = spec_of(make_training(name, 1)), {"hidden": (8,), "encoder_features": 8, "encoder": "impala"}
    if algorithm == "ppo":
        agent: Any = PPO(spec, num_envs=2, horizon=16, minibatches=2, epochs=1, **small)
    else:
        agent = SAC(spec, num_envs=2, initial_steps=10, replay_capacity=100, **small)
    options: dict[str, Any] = {"steps": 32, "seeds": 1, "episodes": 1, "evaluate_episodes": 1, "batch_size": 4}
    run = fit(agent, env=name, progress=False, **options)
    assert run.summary is not None
    policy = run.policy(0)
    assert policy.arrays["image"].range == range_
    assert np.isfinite(policy.select_action(eval(picture).sample())).all()


def test_a_locked_joint_trains_is_named_and_stays_where_it_is(monkeypatch: Any, tmp_path: pathlib.Path) -> None:
    action = "spaces.Box(np.array([-1, 0.5], np.float32), np.array([1, 0.5], np.float32))"
    name = module_of(tmp_path, monkeypatch, "spaces.Box(-1, 1, (3,))", action)
    spec = spec_of(make_training(name, 1))
    options: dict[str, Any] = {"steps": 32, "seeds": 1, "episodes": 2, "evaluate_episodes": 1, "batch_size": 4}
    agent = SAC(spec, num_envs=2, initial_steps=10, replay_capacity=100, hidden=(8,))
    run = fit(agent, env=name, progress=False, **options)
    assert run.policy(0).select_action(np.zeros(3, np.float32))[1] == 0.5
    assert run.summary is not None
    assert np.isfinite(run.summary["returns"]["mean"])
    notes = json.loads((run.folder / "config.json").read_text())["notes"]
    assert any("action 1 is always 0.5" in note for note in notes)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_a_dict_with_a_camera_is_adapted_in_every_autoreset_mode(mode: str) -> None:
    env = adapt(gymnasium.vector.SyncVectorEnv([lambda: Sampled(BOTH)] * 2, autoreset_mode=AutoresetMode[mode]))
    env.reset(seed=0)
    for _ in range(10):
        *_, truncated, info = env.step(np.zeros((2, 2), np.float32))
    assert np.asarray(truncated).all()
    assert info["final_obs"]["camera"].shape == (2, 36, 36, 3)
    assert info["final_obs"]["camera"].dtype == np.uint8


FLATTEN = gymnasium.wrappers.FlattenObservation


@pytest.mark.parametrize(
    ("observation", "sentence", "advised"),
    [
        (spaces.Discrete(5), "FlattenObservation", FLATTEN),
        (spaces.Tuple((VECTOR, VECTOR)), "FlattenObservation", FLATTEN),
        (spaces.Box(-1, 1, (4, 4), np.float32), "FlattenObservation", FLATTEN),
        (
            spaces.Box(0, math.inf, (36, 36, 3), np.float32),
            r"give pictures as uint8.*TransformObservation, and not flattened",
            lambda env: gymnasium.wrappers.TransformObservation(
                env, lambda o: (255 * o).clip(0, 255).astype(np.uint8), PICTURE
            ),
        ),
        (
            spaces.flatten_space(BOTH),
            r"3,888 of the 3,891 numbers.*as those of a flattened picture.*a Dict may hold them",
            lambda env: gymnasium.wrappers.TransformObservation(env, lambda o: spaces.unflatten(BOTH, o), BOTH),
        ),
    ],
)
def test_other_observations_are_refused_and_the_advice_works(
    made: Any, observation: spaces.Space[Any], sentence: str, advised: Any
) -> None:
    with pytest.raises(EnvironmentMismatchError, match=sentence):
        spec_of(make_training(made(observation), 1))
    env = make_training(made(observation, wrap=advised), 1)
    assert spec_of(env).observations
    env.reset(seed=0)
    env.close()


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (spaces.Box(-math.inf, math.inf, (2,), np.float32), r"no finite bounds.*TransformAction"),
        (spaces.Box(-1, 1, (2, 2), np.float32), r"wrap the environment so that its actions are such a Box"),
        (spaces.Box(0, 4, (2,), np.int32), r"declare dtype=np.float32 and round inside"),
        (spaces.Dict({"arm": LIMITED}), r"wrap the environment so that its actions are such a Box"),
    ],
)
def test_other_actions_are_refused_with_what_to_do(made: Any, action: spaces.Space[Any], sentence: str) -> None:
    with pytest.raises(EnvironmentMismatchError, match=sentence):
        spec_of(make_training(made(action=action), 1))


def test_recorded_choices_are_known_by_type_and_counted_by_value(tmp_path: pathlib.Path) -> None:
    columns = {"observations": np.eye(6), "rewards": np.ones(6), "terminals": np.zeros(6, bool)}
    columns["timeouts"] = np.arange(6) == 5
    np.savez(tmp_path / "a.npz", actions=np.arange(6) % 3, **columns)
    assert load(tmp_path / "a.npz").choices == 3
    np.savez(tmp_path / "b.npz", actions=(np.arange(6) % 3).astype(np.float32), **columns)
    (oddity,) = load(tmp_path / "b.npz").warnings.items()
    assert oddity[0].startswith("actions that look discrete")
    assert oddity[1] == 6
    np.savez(tmp_path / "c.npz", actions=np.arange(6) * 341, **columns)  # a motor's counts are no choices
    assert load(tmp_path / "c.npz").warnings == {}
