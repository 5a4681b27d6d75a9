"""Scripts of the user's own that surefoot, or a fresh process, imports again."""

from __future__ import annotations

import importlib
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from surefoot.core.base.errors import MainGuardError
from surefoot.envs.vector import make_env
from surefoot.runs import trust
from surefoot.world_models.known.terminations import imported

COUNTED = """
import os, pathlib
with open("executions.txt", "a") as file:
    file.write(f"{__name__} {os.getpid()}\\n")
if len(pathlib.Path("executions.txt").read_text().splitlines()) > 4:
    os._exit(7)  # processes of processes: they would not end by themselves
"""
ENVIRONMENT = """
import gymnasium as gym, numpy as np, surefoot

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), -abs(float(action[0])), False, self.t >= 20, {}

if "Mine-v0" not in gym.registry:
    gym.register("Mine-v0", Mine)
"""
TRAINS = "surefoot.PPO('mine:Mine-v0', horizon=32, num_envs=2).learn(64, progress=False, episodes=2)\n"
SENTENCE = r"mine.py, line {}: the module 'mine' {} while it is imported, .* under if __name__ == \"__main__\": and"


def execute(folder: pathlib.Path, name: str = "mine.py") -> tuple[int, str, list[str]]:
    """Exit code and standard error of a script in a folder, and who executed mine.py: names and process ids."""
    done = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr, (folder / "executions.txt").read_text().splitlines()


def test_a_script_that_names_itself_without_a_main_guard_trains_and_is_executed_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text(COUNTED + ENVIRONMENT + TRAINS + "print('TRAINED')\n")
    code, said, executions = execute(tmp_path)
    assert code == 0, said
    assert [one.split()[0] for one in executions] == ["__main__"]
    assert len(list((tmp_path / "runs").glob("*/policy/seed0.safetensors"))) == 1


@pytest.mark.slow
def test_a_script_that_names_itself_behind_a_main_guard_trains(tmp_path: pathlib.Path) -> None:
    guarded = f"if __name__ == '__main__':\n    {TRAINS}    print('TRAINED')\n"
    (tmp_path / "mine.py").write_text(COUNTED + ENVIRONMENT + guarded)
    code, said, executions = execute(tmp_path)
    assert code == 0, said
    assert [one.split()[0] for one in executions] == ["__main__", "mine"]  # the last one in the worker
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "summary.json").is_file()


@pytest.mark.slow
def test_a_worker_whose_module_trains_ends_the_run_and_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    """The user imports it himself, which may train; its worker would be the first that surefoot has import it."""
    (tmp_path / "mine.py").write_text(COUNTED + ENVIRONMENT + TRAINS)
    (tmp_path / "main.py").write_text("import mine\n")
    code, said, executions = execute(tmp_path, "main.py")
    assert code == 1
    assert "the module 'mine' trains while it is imported" in said.strip().splitlines()[-1]
    assert len(executions) == 2
    assert not (tmp_path / "runs").exists()


def test_a_fresh_process_of_multiprocessing_does_not_train_again(tmp_path: pathlib.Path) -> None:
    """`spawn` executes the main script under another name; a main script that trains there would start processes."""
    spawns = (
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=print, args=('spawned',))\n"
        "    process.start()\n    process.join()\n    raise SystemExit(process.exitcode)\n"
    )
    trains = "import surefoot.runs.folders\nsurefoot.runs.folders.claim_named('mine')\n"
    (tmp_path / "mine.py").write_text(COUNTED + spawns + trains)
    code, said, executions = execute(tmp_path)
    assert code == 1
    assert "the module '__mp_main__' trains while it is imported" in said
    assert len(executions) == 2
    assert not (tmp_path / "runs").exists()


BODIES = {
    "trains": "from surefoot.runs.folders import claim_named\nclaim_named('mine')\n",
    "evaluates": (
        "from surefoot.evaluation import RandomPolicy, evaluate\n"
        "evaluate([RandomPolicy([-1.0], [1.0], 0)], 'native/pendulum', 1)\n"
    ),
    "records episodes": (
        "import pathlib\nfrom surefoot.envs.suites.shards import Recording\n"
        "Recording('ogbench/cube-single-play', 0, pathlib.Path('parts')).record(1, 2)\n"
    ),
}


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A working directory from which modules are imported; what is imported as `mine` is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.parametrize(
    "ask",
    [
        lambda: make_env("mine:Mine-v0"),
        lambda: trust.imported("mine:Agent", "the agent"),
        lambda: trust.function_of("mine:height", "reward"),
        lambda: imported("termination", "mine:fallen", ()),
    ],
    ids=["environment", "algorithm", "reward", "termination"],
)
def test_no_module_that_is_imported_by_its_name_starts_work(
    what: str, ask: Callable[[], object], folder: pathlib.Path
) -> None:
    (folder / "mine.py").write_text(BODIES[what])
    with pytest.raises(MainGuardError, match=SENTENCE.format(len(BODIES[what].splitlines()), what)):
        ask()
    assert {one.name for one in folder.iterdir()} <= {"mine.py", "__pycache__"}


def test_a_module_that_the_user_imports_may_train(folder: pathlib.Path) -> None:
    (folder / "mine.py").write_text("from surefoot.runs.folders import claim_named\nclaim = claim_named('x')\n")
    module = importlib.import_module("mine")
    assert module.claim.folder.is_dir()
    with module.claim:
        pass
    assert not module.claim.folder.exists()  # nothing was started in it
