"""Environments in another python: old and new forms of the interface, seeds, costs, and how they fail."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, SimulatorError
from surefoot.envs.make import names_in
from surefoot.envs.other import client, server
from surefoot.envs.other.client import OtherVectorEnv, make

MODULE = '''
import os, sys, time
import numpy as np

class Box:
    def __init__(self, low, high, shape, dtype):
        self.low, self.high, self.shape = np.full(shape, low), np.full(shape, high), shape
        self.dtype = np.dtype(dtype)

class Discrete:
    def __init__(self, n):
        self.n = n

class Dict:
    def __init__(self, spaces):
        self.spaces = spaces

class Old:
    """gym before 0.26: four values, seed(), one value from reset."""
    def __init__(self, gain=1.0, length=5):
        self.observation_space = Box(-np.inf, np.inf, (2,), "float32")
        self.action_space = Box(-1.0, 1.0, (1,), "float32")
        self.gain, self.length, self.random = gain, length, np.random.RandomState(0)
    def seed(self, seed):
        self.random = np.random.RandomState(seed)
    def reset(self):
        print("hello from the environment")
        self.x, self.steps = self.random.uniform(-1, 1, 2), 0
        return self.x
    def step(self, action):
        self.x, self.steps = self.x + self.gain * action[0], self.steps + 1
        out = bool(self.x[0] > 50)
        late = self.steps >= self.length
        return self.x, float(self.x[0]), out or late, {"TimeLimit.truncated": late and not out}

class New(Old):
    """gymnasium: five values, reset(seed=)."""
    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.random = np.random.RandomState(seed)
        return super().reset(), {}
    def step(self, action):
        x, reward, done, info = super().step(action)
        return x, reward, done and not info["TimeLimit.truncated"], info["TimeLimit.truncated"], {}

class Parts(New):
    """An info with more than surefoot reads; `step 2` is met late."""
    def step(self, action):
        x, reward, terminated, truncated, _ = super().step(action)
        info = {"cost": 1.0, "cost_hazards": 0.5 * self.steps, "flag": np.bool_(self.steps % 2), "valid": 0,
                "text": "x", "vector": np.ones(3), 7: 1.0, **{"n%02d" % k: k for k in range(self.many)}}
        if self.steps == 2:
            info["step 2"] = np.float32(x[0])
        return x, reward, terminated, truncated, info
    many = 0

class ManyParts(Parts):
    many = 40

class Costly(New):
    """Safety-Gymnasium: six values, with a cost."""
    def step(self, action):
        x, reward, terminated, truncated, info = super().step(action)
        return x, reward, float(x[0] > 0), terminated, truncated, {"success": 1.0} if truncated else {}

class Named(New):
    def __init__(self):
        super().__init__()
        self.observation_space = Dict({"pose": Box(-9.0, 9.0, (2,), "float32"), "eye": Box(0, 255, (2, 2, 1), "uint8")})
        self.action_space = Discrete(3)
    def reset(self, **given):
        return self.seen(super().reset(**given)[0]), {}
    def seen(self, x):
        return {"pose": x, "eye": np.full((2, 2, 1), self.steps, np.uint8)}
    def step(self, action):
        assert isinstance(action, int), type(action)
        x, *rest = super().step([float(action)])
        return (self.seen(x), *rest)

class Failing(New):
    def __init__(self, how):
        super().__init__(length=100)
        self.how = how
    def step(self, action):
        if self.how == "dies":
            print("last words", file=sys.stderr, flush=True)
            os._exit(7)
        if self.how == "hangs":
            time.sleep(60)
        if self.how == "raises":
            raise ValueError("the motor is off")
        x, *rest = super().step(action)
        if self.how == "shape":
            x = np.zeros(3)
        if self.how == "forgets" :
            rest[-1] = {"cost": 1.0} if self.steps < 3 else {}
        return (x, *rest) if self.how != "few" else (x, 0.0)

class Strange(New):
    def __init__(self):
        super().__init__()
        self.action_space = object()
'''


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("other")
    (folder / "there.py").write_text(MODULE)
    return folder


@pytest.fixture(autouse=True)
def _in_the_folder(there: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(there)


def env_of(name: str, rows: int = 1, **options: Any) -> OtherVectorEnv:
    return make(f"{sys.executable}:there:{name}", rows, **options)


@pytest.mark.parametrize("name", ["Old", "New", "Costly"])
def test_all_forms_of_the_interface_give_the_same_steps(name: str) -> None:
    env = env_of(name, 3, gain=2.0)
    first, _ = env.reset(seed=4)
    expected = np.stack([np.random.RandomState(4 + row).uniform(-1, 1, 2) for row in range(3)])
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    x, again = expected, [np.random.RandomState(4 + row) for row in range(3)]
    [one.uniform(-1, 1, 2) for one in again]
    for step in range(1, 6):
        actions = np.full((3, 1), 0.1 * step, np.float32)
        found, rewards, terminations, truncations, info = env.step(actions)
        x = x + 2.0 * actions
        np.testing.assert_allclose(rewards, x[:, 0], rtol=1e-5)
        assert not terminations.any()
        assert truncations.all() == (step == 5)
        if name == "Costly":
            assert info["cost"].tolist() == (x[:, 0] > 0).tolist()
        else:
            assert "cost" not in info
        if step < 5:
            np.testing.assert_allclose(found, x, rtol=1e-5)
            assert "final_obs" not in info
    np.testing.assert_allclose(info["final_obs"], x, rtol=1e-5)
    np.testing.assert_allclose(found, np.stack([one.uniform(-1, 1, 2) for one in again]), rtol=1e-6)
    if name == "Costly":
        assert info["success"].tolist() == [True] * 3
    env.close()


def test_other_numbers_of_an_info_are_handed_on_by_their_names() -> None:
    env = env_of("Parts", 3, processes=2)
    env.reset(seed=0)
    for step in range(1, 4):
        _, rewards, _, _, info = env.step(np.zeros((3, 1), np.float32))
        assert set(info) == {"cost", "cost_hazards", "flag", *(["step 2"] if step > 1 else [])}
        assert info["cost_hazards"].tolist() == [0.5 * step] * 3
        assert info["flag"].tolist() == [step % 2] * 3
        if step == 2:
            np.testing.assert_allclose(info["step 2"], rewards, rtol=1e-6)
    assert np.isnan(info["step 2"]).all()
    env.close()


def test_of_very_many_numbers_the_first_are_handed_on() -> None:
    env = env_of("ManyParts", 1)
    env.reset(seed=0)
    info = env.step(np.zeros((1, 1), np.float32))[4]
    assert set(info) == {"cost", "cost_hazards", "flag", *(f"n{k:02}" for k in range(30))}
    assert info["n29"].tolist() == [29]
    env.close()


def test_terminations_are_no_truncations_and_rows_that_go_on_keep_their_observation() -> None:
    env = env_of("Old", 2, gain=100.0)
    first, _ = env.reset(seed=0)
    found, _, terminations, truncations, info = env.step(np.array([[1.0], [0.0]], np.float32))
    assert terminations.tolist() == [True, False]
    assert not truncations.any()
    assert info["_final_obs"].tolist() == [True, False]
    np.testing.assert_allclose(info["final_obs"][0], first[0] + 100, rtol=1e-5)
    np.testing.assert_allclose(info["final_obs"][1], found[1])
    env.close()


def test_a_mask_begins_its_rows_alone_and_a_limit_of_ones_own_truncates() -> None:
    env = env_of("New", 2, length=1000, max_episode_steps=3)
    assert env.max_episode_steps == 3
    first, _ = env.reset(seed=[7, 8])
    env.step(np.ones((2, 1), np.float32))
    mixed, _ = env.reset(seed=7, options={"reset_mask": np.array([True, False])})
    np.testing.assert_allclose(mixed, [first[0], first[1] + 1], rtol=1e-5)
    ends = [env.step(np.zeros((2, 1), np.float32))[3].tolist() for _ in range(3)]
    assert ends == [[False, False], [False, True], [True, False]]
    env.close()


def test_named_observations_pictures_and_choices(there: pathlib.Path) -> None:
    env = env_of("Named", 2)
    first, _ = env.reset(seed=1)
    assert first["eye"].dtype == np.uint8
    found, *_ = env.step(np.array([0, 2]))
    np.testing.assert_allclose(found["pose"], first["pose"] + [[0], [2]], rtol=1e-5)
    assert found["eye"].tolist() == [[[[1], [1]]] * 2] * 2
    for _ in range(4):
        found, _, _, truncations, info = env.step(np.array([0, 0]))
    assert truncations.all()
    assert info["final_obs"]["eye"].max() == 5
    assert found["eye"].max() == 0
    env.close()


def test_several_processes_give_what_one_gives() -> None:
    one, three = env_of("Costly", 5), env_of("Costly", 5, processes=3)
    assert len(three._processes) == 3
    assert one.reset(seed=2)[0].tolist() == three.reset(seed=2)[0].tolist()
    for step in range(12):
        actions = np.linspace(-1, 1, 5, dtype=np.float32)[:, None] * step
        for a, b in zip(one.step(actions)[:4], three.step(actions)[:4], strict=True):
            assert a.tolist() == b.tolist()
    one.close()
    three.close()


@pytest.mark.parametrize(
    ("how", "error", "why"),
    [
        ("dies", SimulatorError, r"process ended with exit code 7; its last output:\n(.*\n)*  last words"),
        ("hangs", SimulatorError, r"did not answer within 0\.5 s"),
        ("raises", SimulatorError, "ValueError: the motor is off"),
        ("shape", SimulatorError, r"an observation has shape \(3,\), and its space says \(2,\)"),
        ("few", SimulatorError, "step gave tuple, not a tuple of 4, 5 or 6 values"),
        ("forgets", EnvironmentMismatchError, "the first step has a cost, and a later step of row 0 has none"),
    ],
)
def test_what_fails_there_is_a_sentence_here(how: str, error: type[Exception], why: str) -> None:
    env = env_of("Failing", how=how, patience=0.5 if how == "hangs" else 60)
    env.reset(seed=0)
    with pytest.raises(error, match=why) as caught:
        _ = [env.step(np.zeros((1, 1), np.float32)) for _ in range(4)]
    assert f"other:{sys.executable}:there:Failing" in str(caught.value)
    env.close()
    assert env._processes[0].child.poll() is not None


@pytest.mark.parametrize(
    ("rest", "error", "why"),
    [
        ("nonsense", ConfigError, "write other:PYTHON:MODULE:ID"),
        ("/no/such/python:there:Old", ConfigError, "there is no such program"),
        (f"{sys.executable}:no_such_module:Old", EnvironmentMismatchError, "No module named 'no_such_module'"),
        (f"{sys.executable}:there:Older", EnvironmentMismatchError, r"nothing called Older .* It has: .*Old"),
        (f"{sys.executable}:there:Strange", EnvironmentMismatchError, "a space of kind object is not read"),
        (f"{sys.executable}:there:Failing", EnvironmentMismatchError, "missing 1 required positional argument: 'how'"),
    ],
)
def test_what_can_not_be_made_says_why(rest: str, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        make(rest, 1)


def test_options_out_of_range_are_named() -> None:
    for option, value in (("processes", 0), ("processes", True), ("patience", 0), ("max_episode_steps", 1.5)):
        with pytest.raises(ConfigError, match=option):
            env_of("Old", **{option: value})


def test_nothing_is_left_behind(there: pathlib.Path) -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    env = env_of("Old")
    env.reset()
    child = env._processes[0].child
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("surefoot-other-")]
    del env
    gc.collect()
    assert child.poll() == 0
    script = (
        "import sys, time; from surefoot.envs.other.client import make\n"
        "env = make(f'{sys.executable}:there:Failing', 1, how='hangs'); env.reset()\n"
        "print(env._processes[0].child.pid, flush=True)\n"
        "env._processes[0].begin(b'S'); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=there)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 20
    while time.monotonic() < until and _alive(pid):
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_received_name_executes_a_program_and_asks_for_trust() -> None:
    assert names_in(f"other:{sys.executable}:there:Old?gain=2")[1] == (f"other:{sys.executable}:there",)
    from surefoot.runs import trust

    with pytest.raises(ConfigError, match=r"run.json names 'other:/x/python:evil'.*--trust"):
        trust.require_trust("other:/x/python:evil:Env-v0", "run.json", False)


def test_the_server_needs_numpy_alone_and_is_read_by_an_old_python() -> None:
    import ast

    text = client.SERVER.read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    names = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= {*sys.stdlib_module_names, "numpy", "__future__"}
    assert json.loads(json.dumps(server.bounds(np.array([1.0, 2.0])))) == [1.0, 2.0]
    assert server.bounds(np.array([3.0, 3.0])) == 3.0


def test_the_doctor_names_what_another_python_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    from surefoot.cli import main

    assert main(["doctor", "--other", f"{sys.executable}:there", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["numpy"] == np.__version__
    assert found["problems"] == []
    assert main(["doctor", "--other", f"{sys.executable}:no_such_module"]) == 2
    shown = capsys.readouterr().out
    assert "no_such_module" in shown
    assert "error: no_such_module does not import there (ModuleNotFoundError" in shown
    assert main(["doctor", "--other", "/no/such/python"]) == 2
    assert "there is no such program" in capsys.readouterr().err
    assert main(["doctor", "--other", "/bin/true"]) == 2
    assert "is no python that answers" in capsys.readouterr().err


def test_a_run_is_resumed_and_evaluated_and_the_environment_checked(tmp_path: pathlib.Path) -> None:
    from surefoot.cli import main

    name, run = f"other:{sys.executable}:there:Costly", str(tmp_path / "run")
    small = ["--quiet", "algo=ppo", "seeds=1", "algo.horizon=16", "envs=2", "episodes=2", "evaluate_episodes=1"]
    given = ["env_options.gain=0.1", "max_episode_steps=4", "steps=64", f"env={name}", f"out={run}"]
    assert main(["train", *small, *given]) == 0
    assert main(["train", "--quiet", "--trust", "--resume", run, "steps=128"]) == 0
    assert main(["evaluate", run, "--trust", "--episodes", "2", "--json"]) == 0
    assert main(["envs", "check", f"{name}?max_episode_steps=4"]) == 0
