"""Runs in environments of the user's own: given as objects, by names with arguments, and by files."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
from tests.envs import own_environments as own

import surefoot
from surefoot.cli.main import main
from surefoot.cli.support.config import compose
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.runs import trust
from surefoot.runs.run import Run

OWN = "tests.envs.own_environments"
SHORT: dict[str, Any] = {"episodes": 2, "evaluate_episodes": 2, "progress": False}
SCRIPT = """
import gymnasium as gym, surefoot
from tests.envs.own_environments import Own
class Mine(Own):
    pass
gym.register("Mine-v0", Mine, max_episode_steps=20)
for number, given in enumerate([Mine(), Mine, "Mine-v0", "script:Mine-v0"]):
    model = surefoot.PPO(given, horizon=32, num_envs=2)
    model.learn(64, out=str(number), progress=False, episodes=2, evaluate_episodes=1)
    print("RETURN", model.run.summary["returns"]["mean"])
"""


def learned(env: Any, out: pathlib.Path, steps: int = 64, **options: Any) -> Any:
    return surefoot.PPO(env, horizon=32, num_envs=2, **options).learn(steps, out=out, **SHORT)


def test_a_function_that_no_other_process_has_trains_here_and_says_so(tmp_path: pathlib.Path) -> None:
    model = learned(lambda length=20: own.Own(2.0, length), tmp_path / "run", env_options={"length": 4})
    assert model.run.summary["returns"]["mean"] == 8.0  # four steps of 2
    notes = json.loads((tmp_path / "run" / "config.json").read_text())["notes"]
    assert any("train in this process" in note and "surefoot.resume(folder, env=...)" in note for note in notes)
    assert any("declares no time limit" in note and "max_episode_steps=1000" in note for note in notes)
    assert "surefoot.resume(" in model.run.resume_command
    model.learn(64)  # continues the same run
    assert model.run.plan.steps == 128


def test_a_run_of_such_a_function_is_resumed_where_it_is_given_again(tmp_path: pathlib.Path) -> None:
    from surefoot.envs.make import _kept, keep_as

    def make_it() -> own.Own:
        return own.Own()

    whole = learned(make_it, tmp_path / "whole").run.summary["returns"]
    run = learned(make_it, tmp_path / "run").run
    (run.folder / "summary.json").unlink()  # as if it had been killed before the end
    (run.seed_folder(0) / "result.json").unlink()
    _kept.clear()  # another process
    with pytest.raises(ConfigError, match=r"surefoot.resume\(folder, env=...\)"):
        surefoot.resume(run.folder)
    assert surefoot.resume(run.folder, env=make_it).summary["returns"] == whole
    with pytest.raises(ConfigError, match="leave env= out"):
        keep_as(make_it, "Pendulum-v1?g=3")


def test_collectors_can_t_have_what_only_this_process_has() -> None:
    with pytest.raises(ConfigError, match="collectors and learners are other processes"):
        surefoot.PPO(lambda: own.Own(), horizon=32, num_envs=2).learn(64, collectors="processes", **SHORT)


def test_what_a_script_without_a_main_guard_defines_trains(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, env=paths)
    assert done.stdout.splitlines() == ["RETURN 20.0"] * 4, done.stderr


def test_arguments_on_the_command_line_become_part_of_the_environment_s_name() -> None:
    said = ["algo=ppo", f"env={OWN}:Own", "env_options.gain=2", "env_options.length=5", "max_episode_steps=4"]
    assert compose(said).fields["env"] == f"{OWN}:Own?gain=2&length=5&max_episode_steps=4"
    for wrong, words in (
        (["algo=ppo", "env=none", "env_options.gain=2"], "env_options.gain is an argument of an environment, and none"),
        (["algo=ppo", "env=Pendulum-v1", "max_episode_steps=0"], "max_episode_steps is 0"),
        (["algo=ppo", "env=Pendulum-v1", "env_options=3"], r"as in env_options\.gain=2"),
    ):
        with pytest.raises(ConfigError, match=words):
            compose(wrong)


def test_a_run_keeps_arguments_and_a_received_one_asks_for_its_functions(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cart = tmp_path / "cart.xml"
    cart.write_text(
        '<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/></body>'
        '</worldbody><actuator><motor joint="x" ctrlrange="-1 1" ctrllimited="true"/></actuator></mujoco>'
    )
    short = ["algo.horizon=32", "envs=2", "steps=64", "seeds=1", "episodes=2", "max_episode_steps=6", "-q"]
    assert main(["train", "algo=ppo", "env=cart.xml", f"env_options.reward={OWN}:reward", *short, "out=run"]) == 0
    run = Run.open(tmp_path / "run")
    assert run.plan.environment == f"{cart}?max_episode_steps=6&reward={OWN}:reward"
    file = json.loads((tmp_path / "run" / "config.json").read_text())["environment_file"]
    assert file["name"] == str(cart)
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "3", "--json"]) == 0  # the user named the function: in this process
    assert "6" in capsys.readouterr().out
    monkeypatch.setattr(trust, "_allowed", set())
    assert main(["evaluate", "run", "--episodes", "3"]) == 2
    assert f"names '{OWN}:reward', which would be called" in capsys.readouterr().err
    (run.folder / "summary.json").unlink()
    (run.seed_folder(0) / "result.json").unlink()
    cart.write_text(cart.read_text().replace('mass="1"', 'mass="2"'))
    with pytest.raises(CheckpointError, match=r"cart.xml: not the file that .* began with"):
        surefoot.resume(run.folder, trust=True)


def test_a_file_s_function_for_an_environment_asks_for_trust(tmp_path: pathlib.Path) -> None:
    from surefoot.cli.support.config_file import overrides_of

    (tmp_path / "cart.yaml").write_text(
        "algo: ppo\nenv: cart.xml\nenv_options: {reward: 'theirs:reward', frame_skip: 2}\n"
    )
    with pytest.raises(ConfigError, match="names 'theirs:reward', which would be called"):
        overrides_of(str(tmp_path / "cart.yaml"), [])
    found = overrides_of(str(tmp_path / "cart.yaml"), ["env_options.reward=mine:reward"])
    assert found == ["algo=ppo", "env=cart.xml", "env_options.frame_skip=2"]
    for name in ("cart.xml?reward=theirs:reward", "cart.xml?reward=surefoot.core.base.files:remove_asides"):
        with pytest.raises(ConfigError, match="which would be called"):
            trust.require_trust(name, "a file")
    assert trust.module_of("native/pendulum?max_episode_steps=3") is None


def test_the_page_s_module_file_and_commands_work(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's commands, shortened; its python in a process of its own; what it prints."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "environments_of_your_own.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    module, script = [code for kind, code in blocks if kind == "python" and "    ...\n" not in code]  # no fragment
    (tmp_path / "my_module.py").write_text(module)
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "walker.xml").write_text(next(code for kind, code in blocks if kind == "xml"))
    lines = [line for kind, code in blocks if not kind for line in code.splitlines()]
    ours = [line for line in lines if re.match(r"surefoot (train algo=ppo|envs).*(my_module|walker.xml)", line)]
    assert len(ours) == 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for number, line in enumerate(ours):
        _, *arguments = shlex.split(re.sub(r"envs=64 steps=\d+", "envs=2 steps=32 algo.horizon=16", line))
        short = ["seeds=1", "episodes=2", "evaluate_episodes=1", f"out={number}", "-q"] if "train" in arguments else []
        assert main([*arguments, *short]) == 0, line
    assert Run.open(tmp_path / "0").summary["returns"]["mean"] < 0
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == next(code for kind, code in blocks if kind == "text"), done.stderr
