"""`surefoot train`: what it writes, what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from small_runs import TINY

from surefoot.cli import main
from surefoot.cli import train as train_command
from surefoot.core.base import checkpoint
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.runs.inputs import training_environment
from surefoot.runs.plan import Plan

Capture = pytest.CaptureFixture[str]


def test_a_run_writes_summary_policies_metrics_and_picture(finished_run: pathlib.Path) -> None:
    summary = json.loads((finished_run / "summary.json").read_text())
    assert summary["algorithm"] == "bc"
    assert summary["environment"] == "surefoot/Pendulum-v0"  # the file's own
    assert summary["seeds"] == [0, 5]
    assert summary["episodes"] == 2
    assert len(summary["per_seed_returns"]) == 2
    assert summary["behaviour"]["episodes"] == 2
    assert (finished_run / "curves.png").read_bytes().startswith(b"\x89PNG")
    for seed in (0, 5):
        assert (finished_run / "policy" / f"seed{seed}.safetensors").is_file()


def test_a_path_with_signs_of_hydras_grammar_in_it_is_kept_as_it_is(
    finished_run: pathlib.Path, dataset_path: pathlib.Path
) -> None:
    plan = json.loads((finished_run / "config.json").read_text())["plan"]
    assert plan["dataset"] == str(dataset_path)
    assert plan["config"]["hidden"] == [8, 8]


def test_resuming_a_finished_run_shows_its_result_again(finished_run: pathlib.Path, capsys: Capture) -> None:
    assert main(["train", "--resume", str(finished_run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["algorithm"] for row in shown["rows"]] == ["behaviour", "bc"]


def test_without_a_simulator_a_run_ends_with_losses_and_the_datas_return(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    arguments = ["train", "algo=bc", f"dataset={dataset_path}", "env=none", "seeds=1", f"out={tmp_path / 'run'}", *TINY]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "validation actor_loss" in text
    assert "fitted-Q estimate" in text
    assert "behaviour" in text
    assert "surefoot evaluate" not in text
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().out
    assert "run: validation actor_loss" in told
    assert "run: fitted-Q estimate" in told
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert f"{summary['validation']['actor_loss']:.4g}" in page
    assert f">{summary['fitted_q']['mean']:.1f}<" in page
    assert "had no simulator" in page


def test_the_main_job_compares_behaviour_bc_and_iql_and_says_what_to_do_next(
    tmp_path: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "seeds=1", "steps=20", "episodes=2", "evaluate_every=20", "evaluate_episodes=1"]) == 0
    captured = capsys.readouterr().out
    table = captured[captured.index("return [95 %]") :].splitlines()[1:4]
    rows = [line.split()[0] for line in table]
    assert rows == ["behaviour", "bc", "iql"]
    assert " of 20" in captured  # log lines, since this is no terminal
    assert "step 20, return" in captured
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("iql-quadrotor-2d-mixed-")
    assert (folder / "comparison.png").is_file()
    assert (folder / "bc" / "summary.json").is_file()
    after = captured[captured.index("next:") :].splitlines()[1:]
    assert [line.split()[1] for line in after] == ["evaluate", "certify", "report", "export"]
    assert all(f"runs/{folder.name}" in line for line in after)


def test_the_main_job_trains_iql_on_three_seeds_of_the_embedded_data_without_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def record(request: object, *unused: object, **also: object) -> object:
        asked.append(request)
        raise SystemError

    monkeypatch.setattr("surefoot.cli.support.training.train_one", record)
    with pytest.raises(SystemError):
        main(["train", "--quiet"])
    (request,) = asked
    assert (request.algorithm, request.fields["seeds"], request.fields["episodes"]) == ("iql", (0, 1, 2), 50)
    assert request.fields["dataset"] == "native/quadrotor-2d-mixed"


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_envs_says_how_many_environments_each_seed_acts_in(
    algorithm: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []

    def record(plan: Plan, *unused: object, **also: object) -> None:
        plans.append(plan)
        raise SystemError

    monkeypatch.setattr("surefoot.runs.start.train", record)
    with pytest.raises(SystemError):
        main(["train", "--quiet", f"algo={algorithm}", "env=native/pendulum", "envs=8", f"out={tmp_path / 'run'}"])
    (plan,) = plans
    assert plan.config["num_envs"] == 8
    assert training_environment(plan, plan.agent(Spec(3, 1, (-2.0,), (2.0,))), 3).num_envs == 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algo=iq"], "unknown algorithm 'iq'"),
        (["dataset=nope.hdf5"], "nope.hdf5: no such file"),
        (["dataset=hopper-medium-v2"], "did you mean 'd4rl/hopper-medium-v2'"),
        (["dataset=d4rl/hopper-medium-v"], "did you mean 'd4rl/hopper-medium-v"),
        (["steps=abc"], "steps is 'abc', must be a whole number"),
        (["algo=bc", "dataset=HERE", "env=Pendulm-v1"], "unknown environment 'Pendulm-v1'"),
        (["algo=bc", "dataset=HERE", "env=MountainCarContinuous-v0"], "observations don't fit"),
        (["algo=bc", "dataset=HERE", "strict=true"], "actions outside"),
        (["algo=bc", "dataset=HERE", "out=HERE"], "exists already"),
        (["algo=bc", "dataset=HERE", "init=nowhere"], "nowhere"),
        (["--resume", "nowhere"], "not a run folder"),
        (["--resume", "nowhere", "algo=bc"], "leave out the others"),
        (["--resume", "nowhere", "steps=3"], "not a run folder"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["-m", "algo=bc,iq"], "unknown algorithm 'iq'"),
        (["-m", "algo=bc,iql", "algo.expectile=0.5"], "bc has no option 'algo.expectile'"),
        (["-m", "algo=iql", "algo.expectile=0.5,2"], "iql.expectile is 2.0"),
    ],
)
def test_bad_commands_end_with_code_2_one_sentence_and_nothing_written(
    arguments: list[str],
    message: str,
    dataset_path: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *(a.replace("HERE", str(dataset_path)) for a in arguments)]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("surefoot: error: ")
    assert message in line
    quiet = ("note: ", "loading ", "generating ")  # the last: other jobs of a sweep are checked on their data too
    assert all(said.startswith(quiet) for said in captured.out.splitlines())
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_not_overwritten(
    finished_run: pathlib.Path, dataset_path: pathlib.Path, capsys: Capture
) -> None:
    before = (finished_run / "summary.json").read_bytes()
    assert main(["train", "algo=bc", f"dataset={dataset_path}", f"out={finished_run}"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert (finished_run / "summary.json").read_bytes() == before


def test_an_unexpected_exception_is_not_taken_for_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*unused: object, **also: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(train_command, "train_one", fail)
    with pytest.raises(ZeroDivisionError):
        main(["train", "algo=bc", "--quiet"])


def test_ctrl_c_says_how_to_resume_and_resuming_finishes_the_run(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    folder = tmp_path / "run"
    tiny = [item for item in TINY if not item.startswith(("steps", "evaluate_every"))]
    arguments = [
        "train",
        "algo=bc",
        f"dataset={dataset_path}",
        "seeds=1",
        "steps=1000000",
        "evaluate_every=1000",
        f"out={folder}",
        *tiny,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "surefoot", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own: a terminal's Ctrl-C reaches the workers too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    deadline = time.monotonic() + 300
    while not list(folder.glob("seeds/0/checkpoint.safetensors")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"surefoot train --resume {folder}" in errors
    assert "Traceback" not in errors
    step = checkpoint.load(folder / "seeds/0/checkpoint.safetensors")[1]["step"]
    assert 0 < step < 1000000
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"steps": 1000000', f'"steps": {step + 50}'))  # soon at its end
    assert main(["train", "--quiet", "--json", "--resume", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][1]["steps"] == step + 50


def test_help_lists_every_algorithm_field_preset_and_dataset(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from surefoot.cli.support import config, presets
    from surefoot.data import CATALOGUE
    from surefoot.runs.algorithms import ALGORITHMS
    from surefoot.runs.embedded import embedded

    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", "--help"]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 150
    assert max(map(len, short.splitlines())) <= 80
    assert set(ALGORITHMS) <= set(short.replace(",", " ").split())
    assert main(["train", "--help", "all"]) == 0
    words = set(capsys.readouterr().out.replace("=", " ").split())
    datasets = {word for system, behaviour in embedded().values() for word in (f"{system.alias}-...", behaviour)}
    assert set(ALGORITHMS) | set(config.FIELDS) | datasets <= words
    assert all(name in words or name.partition("-")[2] in words for name in presets.presets())
    assert all(name.partition("-")[2] in words for name in CATALOGUE)


def test_a_multirun_trains_each_combination_and_compares_them(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    folder = tmp_path / "a sweep (1)"
    arguments = ["-m", "algo=bc", f"dataset={dataset_path}", "seeds=1,[5]", f"out={folder}", *TINY, "--json", "--quiet"]
    before = (sys.argv[:], os.environ.get("HYDRA_FULL_ERROR"))
    assert main(["train", *arguments]) == 0
    assert (sys.argv, os.environ.get("HYDRA_FULL_ERROR")) == before
    shown = json.loads(capsys.readouterr().out)
    assert [row["algorithm"] for row in shown["rows"]] == ["behaviour", "bc", "bc"]
    seeds = [json.loads((pathlib.Path(run) / "summary.json").read_text())["seeds"] for run in shown["runs"]]
    assert seeds == [[0], [5]]
    assert [pathlib.Path(run).name.rpartition("-")[2] for run in shown["runs"]] == ["seeds_1", "seeds_5"]


def test_listed_algorithms_share_an_option_that_the_default_one_lacks(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        "env=native/pendulum",
        "steps=60",
        "algo.initial_steps=50",
        "algo.hidden=[8,8]",
        "seeds=1",
        "kernels=false",
    ]
    assert main(["train", "-q", "-m", "algo=sac,td3", "out=sweep", "episodes=1", "evaluate_episodes=1", *options]) == 0
    configs = [json.loads(path.read_text())["plan"]["config"] for path in tmp_path.glob("sweep/*/config.json")]
    assert [(c["initial_steps"], c["hidden"]) for c in configs] == [(50, [8, 8])] * 2


def test_a_job_of_a_multirun_that_fails_by_a_bug_is_listed_and_the_command_ends_with_code_1(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surefoot.cli.support import sweep

    def fail(request: Any, *unused: object, **also: object) -> None:
        raise ZeroDivisionError("of all things") if request.fields["seeds"] == (5,) else ConfigError("a mistake")

    monkeypatch.setattr(sweep, "train_one", fail)
    folder = tmp_path / "sweep"
    arguments = ["-m", "algo=bc", f"dataset={dataset_path}", "seeds=1,[5]", f"out={folder}", *TINY, "--quiet"]
    assert main(["train", *arguments]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert "job 0 failed: a mistake" in printed
    assert "job 1 failed: ZeroDivisionError: of all things" in printed
    assert json.loads((folder / "01-failed.json").read_text())["unexpected"]


def test_a_failing_job_of_a_multirun_is_told_and_does_not_stop_the_others(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    folder = tmp_path / "sweep"
    environments = "env=Pendulm-v1,Pendulum-v1"
    tiny = [*TINY, "--quiet"]
    arguments = ["-m", "algo=bc", f"dataset={dataset_path}", environments, "seeds=1", f"out={folder}", *tiny]
    assert main(["train", *arguments, "--skip-failing"]) == 2
    captured = capsys.readouterr()
    assert "surefoot: error: job 0 of the sweep" in captured.err
    assert "job 0 given up: unknown environment 'Pendulm-v1'" in captured.out
    assert "Pendulum-v1" in captured.out
    assert len(list(folder.glob("*/summary.json"))) == 1


@pytest.fixture
def asked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `surefoot train` is asked for by its arguments, beside a file of settings; nothing is trained."""
    monkeypatch.chdir(tmp_path)

    def claimed(request: Any) -> None:
        raise Asked(request)

    def ask(text: str, *typed: str) -> Any:
        pathlib.Path("mine.yaml").write_text(text)
        with pytest.raises(Asked) as found:
            train_command.run(["-q", "--config", "mine.yaml", *typed])
        return found.value.args[0]

    monkeypatch.setattr(train_command, "claimed", claimed)
    return ask


class Asked(Exception):
    """Carries a request."""


def test_beside_a_file_paths_may_have_the_signs_that_they_may_have_without_one(asked: Any) -> None:
    for name in ("my data(1).hdf5", "my preset(1).yaml"):
        pathlib.Path(name).write_text("bc: {fraction: 0.5}")
    typed = ["dataset=my data(1).hdf5", "preset=my preset(1).yaml", "out=run {2}"]
    found = asked("algo: bc\ndataset: other.hdf5\nsteps: 70\n", *typed)
    assert [found.fields[name] for name in ("dataset", "out", "steps")] == ["my data(1).hdf5", "run {2}", 70]
    assert found.options["fraction"] == 0.5


@pytest.mark.parametrize("names", [("envs", "algo.num_envs"), ("algo.num_envs", "envs")])
def test_what_is_typed_wins_over_the_other_name_of_the_option_in_a_file(asked: Any, names: tuple[str, str]) -> None:
    text = f"algo: ppo\nenv: native/pendulum\n{names[0]}: 4\n"
    assert asked(text, f"{names[1]}=8").options["num_envs"] == 8
    assert asked(text).options["num_envs"] == 4
    assert asked(text, f"{names[0]}=2").options["num_envs"] == 2


def test_a_file_says_what_a_command_says_and_what_is_typed_wins(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surefoot.cli.support import config, config_file, grammar, presets

    monkeypatch.chdir(tmp_path)
    text = (
        f"algo:\n  name: iql\n  expectile: 0.9\n  hidden: [8, 8]\ndataset: {dataset_path}\nsteps: 1e5\nseeds: [0, 5]\n"
    )
    pathlib.Path("mine.yaml").write_text(text)
    typed = ["algo.expectile=0.8"]
    found = config.compose(grammar.readable([*config_file.overrides_of("mine.yaml", typed), *typed]))
    assert (found.algorithm, found.options["expectile"], found.options["hidden"]) == ("iql", 0.8, [8, 8])
    assert (found.fields["seeds"], found.fields["steps"]) == ((0, 5), 100_000)
    pathlib.Path("presets").mkdir()
    pathlib.Path("presets/maze.yaml").write_text("run: {steps: 70}\niql: {temperature: 10.0}\n")
    for said in (["algo=iql", "preset=maze"], ["algo=iql", "preset=presets/maze.yaml"]):
        found = config.compose(presets.with_own_presets(said, "presets"))
        assert (found.options["temperature"], found.fields["steps"]) == (10.0, 70)
    pathlib.Path("presets/maze.yaml").write_text("run: {envs: 8, steps: 70}\nppo: {discount: 0.9}\n")
    for more, rows in (([], 8), (["envs=4"], 4), (["algo.num_envs=2"], 2)):
        found = config.compose(
            [*presets.with_own_presets(["algo=ppo", "preset=maze", "env=CartPole-v1"], "presets"), *more]
        )
        assert (found.options["num_envs"], found.options["discount"]) == (rows, 0.9)
    with pytest.raises(ConfigError, match="one option by two names"):
        config.compose(["algo=ppo", "env=CartPole-v1", "envs=4", "algo.num_envs=8"])
    pathlib.Path("mine.yaml").write_text("algo: auto\npreset: maze\ndataset: ~/data.hdf5\nreward: 'true'\n")
    quoted = [f"dataset='{pathlib.Path.home()}/data.hdf5'", f"dataset={pathlib.Path.home()}/data.hdf5"]
    said = config_file.overrides_of("mine.yaml", [], trust=True)
    assert said[:2] == ["algo=auto", "preset=maze"]
    assert said[2] in quoted
    assert said[3] == "reward='true'"
    with pytest.raises(ConfigError, match=r"preset='maz' is not in presets: did you mean 'maze'"):
        presets.with_own_presets(["algo=iql", "preset=maz"], "presets")


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("- 1\n", ["--config", "mine.yaml"], "must hold names and values"),
        ("a: [\n", ["--config", "mine.yaml"], "mine.yaml, line 2: is no YAML"),
        ("stps: 3\n", ["--config", "mine.yaml"], "did you mean 'steps'"),
        ("steps: {a: 1}\n", ["--config", "mine.yaml"], "steps is {'a': 1}"),
        ("algo: evil:Agent\n", ["--config", "mine.yaml"], "add --trust"),
        ("a: !!python/object/apply:os.system [ls]\n", ["--config", "mine.yaml"], "is no YAML"),
        ("bc: {}\n", ["algo=iql", "preset=mine.yaml"], "no settings for iql"),
        ("iql: {}\nrun: {stepz: 5}\n", ["algo=iql", "preset=mine.yaml"], "run has no 'stepz': did you mean 'steps'"),
        ("", ["--config", "nowhere.yaml"], "can't be read"),
        ("", ["--config-dir", "nowhere", "preset=x"], "is no folder"),
    ],
)
def test_a_bad_file_is_refused_by_name(
    text: str,
    arguments: list[str],
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("mine.yaml").write_text(text)
    assert main(["train", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
