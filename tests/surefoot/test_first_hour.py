"""What a new user meets: files of his own, the doctor, watching, the demonstration, three lines of python."""

from __future__ import annotations

import importlib.util
import json
import math
import pathlib
import re
import resource
import shutil
import sys
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.cli import main
from surefoot.core.base.errors import SurefootError

Capture = pytest.CaptureFixture[str]


def test_what_is_named_next_begins_with_what_is_not_installed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    there = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name in ("pytest", "numba") else there(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.chdir(tmp_path)
    assert main(["new", "system", "my_lean_system"]) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = said.index("next:")
    assert said[at + 1] == "python -m pip install pytest 'surefoot[numba]'"
    assert said[at + 2] == "python -m pytest test_my_lean_system.py"


@pytest.mark.parametrize("kind", ["algorithm", "system", "study"])
def test_a_new_file_passes_its_own_test(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, in_process: None
) -> None:
    if kind == "system" and importlib.util.find_spec("numba") is None:
        pytest.skip("numba comes with surefoot[numba]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"my_new_{kind}"
    assert main(["new", kind, name]) == 0
    assert f"python -m pytest test_{name}.py" in capsys.readouterr().out
    spec = importlib.util.spec_from_file_location(f"test_{name}", tmp_path / f"test_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [value for key, value in vars(module).items() if key.startswith("test_")]
    assert tests
    for i, test in enumerate(tests):
        place = tmp_path / f"place{i}"
        place.mkdir()
        test(place) if "tmp_path" in test.__annotations__ else test()
    sys.modules.pop(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algoritm", "mine"], "did you mean 'algorithm'"),
        (["algorithm", "My-Own"], "can't be a module's name"),
        (["study", "import"], "can't be a module's name"),
        (["algorithm", "random"], "is the name of a module that there is"),
        (["system", "gymnasium"], "is the name of a module that there is"),
        (["study", "mine", "--folder", "nowhere"], "is no folder"),
        (["study", "taken"], "exists already"),
    ],
)
def test_what_can_not_be_begun_is_refused_and_nothing_is_written(
    arguments: list[str], message: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("test_taken.py").write_text("mine")
    assert main(["new", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_taken.py"]


def test_the_doctor_names_what_is_missing_and_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from surefoot.cli import doctor

    assert main(["doctor"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    here = doctor._version

    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("h5py", "onnxscript") else here(name))
    assert main(["doctor", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["extras"]["onnx"] == {
        "missing": ["onnxscript"],
        "mend": "pip install 'surefoot[onnx]' -c constraints.txt",
    }
    (problem,) = found["problems"]
    assert (problem["level"], problem["what"]) == ("error", "h5py is not installed")
    assert problem["mend"].startswith("pip install h5py")


def test_curves_of_runs_grow_and_a_page_reloads_until_they_are_complete(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    begun = tmp_path / "started"
    begun.mkdir()
    (begun / "config.json").write_bytes((finished_run / "config.json").read_bytes())
    lines = [
        {"seed": seed, "step": 10, "kind": kind, "values": values}
        for seed in (0, 5)
        for kind, values in (("eval", {"return_mean": -7.0 - seed}), ("train", {"actor_loss": 0.5}))
    ]
    (begun / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = tmp_path / "curves.html"
    assert main(["watch", str(tmp_path), "--once"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"started +bc \(hidden=\[8,8\]\) +50 % +▁ +-9\.5$", shown, re.MULTILINE)
    assert main(["watch", str(tmp_path), "-o", str(page), "--once"]) == 0
    assert "step 10 of 20" in page.read_text(encoding="utf-8")
    assert "actor_loss 0.5" in page.read_text(encoding="utf-8")
    for name in ("one", "other"):
        shutil.copytree(finished_run, tmp_path / name / "0")
    assert main(["watch", str(tmp_path / "one"), str(tmp_path / "other"), "-o", str(page), "--once"]) == 0
    for name in ("one", "other"):  # in the table, and a curve of each
        assert page.read_text(encoding="utf-8").count(str(tmp_path / name / "0")) == 2
    assert main(["watch", str(finished_run), "--curves", "-o", str(page)]) == 0  # ends by itself: it is complete
    assert "refresh" not in page.read_text(encoding="utf-8")
    assert main(["watch", str(begun), "-o", str(tmp_path / "x.mp4")]) == 2
    assert "one complete run" in capsys.readouterr().err


def test_runs_of_several_seeds_of_ones_own_algorithm_and_damaged_ones_are_watched(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    config = json.loads((finished_run / "config.json").read_text())
    begun, mine, odd = tmp_path / "started", tmp_path / "mine", tmp_path / "odd"
    for folder in (begun, odd):
        folder.mkdir()
    (begun / "config.json").write_text(json.dumps(config))
    lines = [{"seed": 0, "step": step, "kind": "train", "values": {"actor_loss": 0.5}} for step in (10, 20)]
    (begun / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copytree(finished_run, mine)
    config["plan"]["algorithm"] = "nowhere_to_import:Own"
    (mine / "config.json").write_text(json.dumps(config))
    (odd / "config.json").write_text("{")
    assert main(["watch", str(tmp_path), "--once"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"started +bc \(hidden=\[8,8\]\) +50 %", shown.out)  # one of two seeds is done
    assert re.search(r"mine +nowhere_to_import:Own \(hidden=\[8,8\]\) +done", shown.out)
    assert shown.err.startswith(f"left out: {odd / 'config.json'}")
    assert len(shown.err.splitlines()) == 1
    assert main(["watch", str(mine), "--curves"]) == 0  # and it ends by itself
    assert main(["watch", str(odd)]) == 2
    shutil.copytree(odd, tmp_path / "two" / "one")
    shutil.copytree(odd, tmp_path / "two" / "other")
    assert main(["watch", str(tmp_path / "two")]) == 2  # there is nothing to wait for


def test_episodes_of_a_native_run_are_a_page_and_a_video(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.setattr("surefoot.play.film.MOST_FRAMES", 5)
    page, video = tmp_path / "episodes.html", tmp_path / "episodes.gif"
    assert main(["watch", str(finished_run), "--episodes", "3", "-o", str(page)]) == 0
    said = capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert text.count("<tr") == 1 + 3
    assert "<svg" in text
    assert "3 episodes, mean return" in said
    assert main(["rollout", str(finished_run), "--env", "native/pendulum", "--envs", "3", "--json"]) == 0
    mean = json.loads(capsys.readouterr().out)["returns"]["mean"]
    assert f"mean return {mean:.1f}" in said  # the same episodes as rollout's
    assert main(["watch", str(finished_run), "-o", str(video)]) == 0
    with Image.open(video) as frames:
        assert frames.n_frames == 5
    assert main(["watch", str(finished_run), "-o", str(tmp_path / "x.avi")]) == 2


@pytest.mark.usefixtures("in_process")
def test_episodes_seen_by_a_camera_are_a_page_of_states_and_a_video_of_frames(
    tmp_path: pathlib.Path, capsys: Capture
) -> None:
    from PIL import Image

    from surefoot import fit
    from surefoot.offline import BC
    from surefoot.runs.embedded import generate

    seen = generate("native/pendulum-camera", 0, 400, "expert")
    agent, run = BC(seen, encoder="small", encoder_features=4, hidden=(8,)), tmp_path / "run"
    fit(agent, seen, steps=2, seeds=1, batch_size=4, env="native/pendulum-camera", evaluate_episodes=2, out=run)
    capsys.readouterr()
    assert main(["watch", str(run), "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    assert (run / "episodes.html").read_text(encoding="utf-8").count("<tr") == 1 + 2
    assert main(["rollout", str(run), "--env", "native/pendulum-camera", "--envs", "2", "--json"]) == 0
    assert f"mean return {json.loads(capsys.readouterr().out)['returns']['mean']:.1f}" in said
    assert main(["watch", str(run), "-o", str(tmp_path / "frames.gif")]) == 0
    with Image.open(tmp_path / "frames.gif") as frames:
        assert frames.size == (64, 64)
        assert frames.n_frames > 100  # equal ones that follow each other are one


def test_any_environment_that_draws_itself_is_filmed(tmp_path: pathlib.Path) -> None:
    import gymnasium

    from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
    from surefoot.play import film

    class Drawn(gymnasium.Env[Any, Any]):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
        observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

        def __init__(self, render_mode: str | None = None, blank: bool = False) -> None:
            self.render_mode, self.blank, self.t = render_mode, blank, 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.t = 0
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.t += 1
            return np.full(2, self.t, np.float32), 1.0, self.t == 4, False, {"cost": float(self.t == 2)}

        def render(self) -> Any:
            return None if self.blank else np.full((16, 20, 3), self.t, np.uint8)

    from surefoot.core.actors.heads import DeterministicActor
    from surefoot.core.nn.normalizer import Normalizer
    from surefoot.core.policy.policy import Policy

    policy = Policy(DeterministicActor(2, 1, (4,)), Normalizer(2), torch.tensor([-1.0]), torch.tensor([1.0]))
    gymnasium.register("SurefootDrawn-v0", Drawn)
    gymnasium.register("SurefootBlank-v0", Drawn, kwargs={"blank": True})
    gymnasium.register("SurefootFailing-v0", type("Failing", (Drawn,), {"render": lambda self: 1 // 0}))
    first, second = film.rendered_episodes(policy, "SurefootDrawn-v0", 2)
    assert [frame[0, 0, 0] for frame in first.frames] == [0, 1, 2, 3, 4]
    assert (first.violates, first.time_step, second.rewards.sum()) == (True, 0.1, 4.0)
    film.write_video([first, second], tmp_path / "two.gif")
    from PIL import Image

    with Image.open(tmp_path / "two.gif") as frames:
        assert frames.n_frames == 10
        assert frames.info["duration"] == 100
    before = (tmp_path / "two.gif").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # a disk that is full
    try:
        with pytest.raises(SurefootError, match=r"two\.gif: can.t be written: the disk is full"):
            film.write_video([first, second], tmp_path / "two.gif")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "two.gif").read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    with pytest.raises(ConfigError, match="draws nothing"):
        film.rendered_episodes(policy, "SurefootBlank-v0", 1)
    with pytest.raises(EnvironmentMismatchError, match=r"ZeroDivisionError.*fix its render\(\)") as refused:
        film.rendered_episodes(policy, "SurefootFailing-v0", 1)
    assert "MUJOCO_GL" not in str(refused.value)
    plain = type("Plain", (Drawn,), {"__init__": lambda self: Drawn.__init__(self), "metadata": {"render_modes": []}})
    gymnasium.register("SurefootUndrawn-v0", plain)
    with pytest.raises(ConfigError, match=r"lists the render_modes .*--curves"):
        film.rendered_episodes(policy, "SurefootUndrawn-v0", 1)


def test_the_demonstration_keeps_its_constraint_behind_the_filter(
    tmp_path: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, in_process: None
) -> None:
    from surefoot.cli.support import demo
    from surefoot.cli.support.training import Style

    monkeypatch.setattr(demo, "SHOWN", 4)
    kept = demo.constrained(tmp_path / "ppo", Style(quiet=True), steps=2048, episodes=40, points=[31, 31, 24])
    demo.print_policies(kept)
    shown = capsys.readouterr().out
    assert "ppo, 4,096 steps" in shown  # the first block is for the observations' statistics alone
    assert kept.filtered.certificate.violations == 0
    assert "0 of 40 (upper bound" in shown
    assert json.dumps(demo.kept_json(kept))
    demo.draw(kept.run, kept.run, kept, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_predict_hands_the_memory_back_and_takes_a_mask(tmp_path: pathlib.Path, in_process: None) -> None:
    from surefoot import RecurrentPPO
    from surefoot.core.base.errors import EnvironmentMismatchError

    small = {"episodes": 1, "evaluate_episodes": 1, "progress": False}
    options: dict[str, Any] = {"num_envs": 4, "horizon": 16, "epochs": 1, "hidden": (8,), "memory_width": 4}
    model = RecurrentPPO("native/pendulum", **options).learn(128, out=tmp_path / "recurrent", **small)
    steps = np.random.default_rng(0).normal(size=(3, 2, 3)).astype(np.float32)
    state, found = None, []
    for time in range(3):
        action, state = model.predict(steps[time], state=state, episode_start=[time == 0, time in (0, 2)])
        found.append(action)
    policy = model.policy
    for row, begins in enumerate(((0,), (0, 2))):
        for time in range(3):
            if time in begins:
                policy.reset()
            np.testing.assert_allclose(policy.select_action(steps[time, row]), found[time][row], atol=1e-6)
    alone, state = model.predict(steps[0, 0])
    np.testing.assert_allclose(alone, found[0][0], atol=1e-6)
    assert {name: tuple(value.shape) for name, value in (state or {}).items()} == {"state": (1, 8)}
    drawn = [model.predict(steps[0], deterministic=False)[0] for _ in range(2)]
    assert not np.array_equal(*drawn)
    with pytest.raises(EnvironmentMismatchError, match="trained without masks"):
        model.predict(steps[0], action_masks=[[1, 0]] * 2)


def test_three_lines_of_python_learn_go_on_and_predict(tmp_path: pathlib.Path, in_process: None) -> None:
    from surefoot import BC, PPO, load_policy
    from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
    from surefoot.runs.embedded import generate

    small = {"episodes": 1, "evaluate_episodes": 1, "progress": False}
    model = PPO("native/pendulum", num_envs=4, horizon=16, epochs=1, hidden=(8,))
    with pytest.raises(ConfigError, match="learned nothing yet"):
        model.predict(np.zeros(3, np.float32))
    assert model.learn(128, out=tmp_path / "ppo", **small) is model
    alone, state = model.predict(np.float32([1, 0, 0.5]))
    several, _ = model.predict(np.float32([[1, 0, 0.5], [0, 1, -1]]))
    assert (alone.shape, several.shape, state) == ((1,), (2, 1), None)
    assert np.allclose(alone, several[0], atol=1e-6)
    assert np.array_equal(model.predict([[1, 0, 0.5], [0, 1, -1]])[0], several)
    drawn = [model.predict([[1, 0, 0.5]] * 3, deterministic=False)[0] for _ in range(2)]
    assert len({float(action[0]) for actions in drawn for action in actions}) > 3  # some are at the bounds
    assert model.predict(np.float32([1, 0, 0.5]), deterministic=False)[0].shape == (1,)
    assert np.array_equal(model.predict([[1, 0, 0.5], [0, 1, -1]])[0], several)
    with pytest.raises(EnvironmentMismatchError, match=r"row 1: observation\[2\] is nan; check that sensor"):
        model.predict(np.float32([[1, 0, 0.5], [0, 1, math.nan]]))
    with pytest.raises(EnvironmentMismatchError, match="rows of 3 numbers"):
        model.predict(np.zeros((2, 5)))
    assert model.policy is model.policy  # one that remembers its episode would forget it otherwise
    earlier = model.policy
    model.learn(64, progress=False)
    assert model.policy is not earlier
    assert model.run is not None
    assert model.run.summary["steps"] == 192
    model.save(tmp_path / "policy")
    kept = load_policy(tmp_path / "policy.safetensors")
    assert np.allclose(kept.select_action(np.float32([1, 0, 0.5])), model.predict(np.float32([1, 0, 0.5]))[0])
    data = generate("native/pendulum-mixed", transitions=400)
    cloned = BC(data, hidden=(8,)).learn(20, out=tmp_path / "bc", batch_size=8, **small)
    assert cloned.run is not None
    assert cloned.run.plan.environment == data.env_id
    with pytest.raises(ConfigError, match="learns from nothing"):
        PPO()
    with pytest.raises(ConfigError, match="did you mean 'num_envs'"):
        PPO("native/pendulum", num_env=4)
    with pytest.raises(ConfigError, match="'native/pendulum' and env= are two of one"):
        PPO("native/pendulum", env="native/cartpole-swingup")
    with pytest.raises(ConfigError, match="and dataset= are two of one"):
        BC("one.hdf5", dataset=data)
    with pytest.raises(ImportError):
        from surefoot import Nothing  # noqa: F401


def test_three_lines_of_python_read_the_data_as_they_are_told(
    tmp_path: pathlib.Path, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from small_runs import small_dataset

    from surefoot import BC
    from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
    from surefoot.data import load, save
    from surefoot.runs import embedded as generate
    from surefoot.runs.start import read_again

    path = tmp_path / "data.hdf5"
    save(small_dataset(), path)
    small: dict[str, Any] = {"batch_size": 8, "progress": False}
    model = BC(str(path), hidden=(8,), env="none").learn(2, view="d4rl", out=tmp_path / "run", **small)
    assert model.run is not None
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["plan"]["view"], config["dataset"]["transitions"]) == ("d4rl", 398)  # without 2 time-outs
    model.learn(2, progress=False)  # reads the file again
    assert model.run.summary["steps"] == 4
    config["dataset"]["transitions"] = 400
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    (tmp_path / "run/dataset.safetensors").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="began with 400 transitions, not the 398 of view=d4rl"):
        read_again(model.run, lambda event: None)
    with pytest.raises(ConfigError, match="was read with view='corrected' already"):
        BC(load(path), env="none").learn(2, view="d4rl", out=tmp_path / "none", **small)
    BC(load(path, view="d4rl"), hidden=(8,), env="none").learn(2, out=tmp_path / "given", **small)
    data = small_dataset()
    columns = {name: getattr(data, name) for name in ("observations", "actions", "rewards")}
    np.savez(tmp_path / "odd.npz", **columns, terminals=data.truncations, timeouts=data.truncations)
    with pytest.raises(DataError, match="refused because strict is set"):
        BC(str(tmp_path / "odd.npz"), env="none").learn(2, strict=True, out=tmp_path / "none", **small)
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(generate, "_load_cached", lambda name, strict, view: small_dataset())
    assert BC("native/pendulum-mixed").env == small_dataset().env_id
    with pytest.raises(ConfigError, match=r"surefoot\.runs\.embedded\.load gives it"):
        load("native/pendulum-mixed")
