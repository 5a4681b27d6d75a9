"""What a received run or dataset can not do: have a module executed that it names, or that lies where one works."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types
from typing import Any

import forking
import pytest
from small_runs import TINY, small_dataset

import surefoot
from surefoot.api.fit import fit
from surefoot.cli import main
from surefoot.cli.support import file_overrides as received
from surefoot.cli.support import grammar
from surefoot.cli.support.training import next_commands
from surefoot.core.base.children import environment
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.data import save
from surefoot.language.plan import Plan as LanguagePlan
from surefoot.language.runs import functions_of
from surefoot.offline import BC
from surefoot.runs import trust
from surefoot.runs.plan import Plan, agent_class
from surefoot.runs.run import Run, load_agent
from surefoot.runs.start import resume
from surefoot.studies import compare, tune
from surefoot.studies.auto import Auto

TRAP = "import pathlib\npathlib.Path(__file__).with_name('EXECUTED').touch()\n"
NAMES = {"algorithm": "trap:Own", "environment": "trap_env:Trap-v0", "reward": "trap:reward"}
HEAR = "def hear(event): return True\n"
OWN = "from surefoot.offline import BC\nclass Own(BC):\n    name = 'own'\n"
FAST: dict[str, Any] = {"steps": 4, "seeds": 1, "episodes": 1, "evaluate_episodes": 1, "batch_size": 8}
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def received_run(finished_run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A run folder that someone sent, unfinished, whose configuration names a module that lies in it; we are there."""
    folder = tmp_path / "received"
    shutil.copytree(finished_run, folder)
    (folder / "summary.json").unlink()
    (folder / "seeds/0/result.json").unlink()
    (folder / "trap.py").write_text(TRAP + OWN)
    (folder / "trap_env.py").write_text(TRAP)
    monkeypatch.chdir(folder)
    return folder


def rename(folder: pathlib.Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["plan"].update(changes)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("field", ["algorithm", "environment", "reward"])
def test_no_command_executes_a_module_that_a_received_run_names(
    field: str, received_run: pathlib.Path, finished_run: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename(received_run, **{field: NAMES[field]})
    commands = [["train", "--resume", "."], ["evaluate", ".", "--episodes", "1"]]
    if field == "reward":
        commands = commands[:1]  # policies are evaluated without it
    elif field == "environment":
        commands += [["certify", ".", "--episodes", "10"], ["rollout", ".", "--envs", "2"]]
    else:
        commands = commands[:1]  # policies are evaluated without it
        commands += [["train", "algo=iql", "env=Pendulum-v1", "dataset=native/pendulum-mixed", "init=.", "out=new"]]
        commands += [["datasets", "corrupt", "x.hdf5", "-o", "y.hdf5", "--mode", "adversarial", "--victim", "."]]
    for command in commands:
        monkeypatch.setattr("surefoot.cli.support.training.load", lambda *unused: small_dataset())
        assert main(command) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "--trust" in line
        assert "trap" in line
    assert not (received_run / "EXECUTED").exists()
    assert not (received_run / "new").exists()
    assert main(["export", ".", "-o", "policy.safetensors"]) == 0  # for which no module is needed
    surefoot.load_policy(received_run)
    if field == "algorithm":
        capsys.readouterr()
        assert main(["evaluate", ".", "--episodes", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"][0]["algorithm"] == NAMES[field]
    assert not (received_run / "EXECUTED").exists()


def test_the_first_command_that_training_advises_asks_for_trust_where_it_needs_it(finished_run: pathlib.Path) -> None:
    run = Run.open(finished_run)
    advised = next_commands([run.folder], run)[0]
    assert advised.startswith("surefoot evaluate ")
    assert "--trust" not in advised
    own = Run(run.folder, dataclasses.replace(run.plan, environment=NAMES["environment"]))
    assert next_commands([run.folder], own)[0] == f"{advised} --trust"


def test_a_dataset_does_not_decide_which_module_is_imported(tmp_path: pathlib.Path, capsys: Capture) -> None:
    (tmp_path / "trap_of_data.py").write_text(TRAP)
    dataset = small_dataset().replace(env_id="trap_of_data:Trap-v0")
    save(dataset, tmp_path / "data.hdf5")
    assert main(["train", "algo=bc", f"dataset={tmp_path / 'data.hdf5'}", f"out={tmp_path / 'run'}", *TINY]) == 2
    assert "names 'trap_of_data:Trap-v0'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="trust=True"):
        fit(BC(dataset, hidden=(8, 8)), dataset, out=tmp_path / "run", **FAST)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "EXECUTED").exists()


def test_an_algorithm_of_ones_own_trains_resumes_and_is_evaluated_from_the_command_line(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    (tmp_path / "own_algorithm.py").write_text(OWN)
    for name in ("random.py", "queue.py", "numpy.py"):  # which must stay unread
        (tmp_path / name).write_text(TRAP + "raise SystemError")

    def surefoot_(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "surefoot", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)

    trained = surefoot_(
        "train", "-m", "algo=own_algorithm:Own", f"dataset={dataset_path}", "seeds=1", "out=sweep", "-q", *TINY
    )
    assert trained.returncode == 0, trained.stderr
    (run,) = (tmp_path / "sweep").glob("*/")
    assert Run.open(run).plan.algorithm == "own_algorithm:Own"
    for name in ("summary.json", "seeds/0/result.json"):
        (run / name).unlink()
    assert main(["train", "--resume", str(run), "-q"]) == 2
    assert "--trust" in capsys.readouterr().err
    resumed = forking.run(["-m", "surefoot", "train", "--resume", str(run), "-q", "--trust"], cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    evaluate = ["-m", "surefoot", "evaluate", str(run), "--episodes", "1", "--trust", "--json"]
    evaluated = forking.run(evaluate, cwd=tmp_path)
    assert json.loads(evaluated.stdout)["rows"][0]["algorithm"] == "own_algorithm:Own"
    assert not (tmp_path / "EXECUTED").exists()


@pytest.mark.parametrize("option", ["termination", "reward_function"])
def test_ends_and_rewards_are_no_functions_of_a_received_module(received_run: pathlib.Path, option: str) -> None:
    rename(received_run, algorithm="dynamics", config={option: "trap:ends"})
    run = Run.open(received_run)
    for use in (run.agent, lambda: load_agent(run), lambda: resume(received_run)):
        with pytest.raises((ConfigError, CheckpointError), match="trap"):
            use()
    assert not (received_run / "EXECUTED").exists()


SETTINGS = ["dataset=native/pendulum-mixed", "steps=2", "seeds=1", "episodes=1", "-q"]
NAMED = ["algo=trap:Own", "env=trap:Trap-v0", "reward=trap:reward", "algo.termination=trap:ends"]
NAMED += ["algo.reward_function=trap:reward", "listener=trap:hear"]


@pytest.fixture
def trapped(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder that someone sent, in which we are, with a module that leaves a mark when it is executed."""
    (tmp_path / "trap.py").write_text(TRAP + OWN + "def reward(*rows): return 0\ndef ends(rows): return rows\n" + HEAR)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(command: list[str], folder: pathlib.Path, capsys: Capture) -> None:
    before = sorted(folder.rglob("*"))
    assert main(command) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "--trust" in line
    assert not (folder / "EXECUTED").exists()
    assert sorted(path for path in folder.rglob("*") if not path.name.startswith(".")) == before


@pytest.mark.parametrize("named", NAMED)
def test_no_file_of_settings_has_a_module_executed(named: str, trapped: pathlib.Path, capsys: Capture) -> None:
    key, _, value = named.partition("=")
    algo = "dynamics" if key.startswith("algo.") else "bc"
    text = f"{key}: {value}\n" if key == "algo" else f"algo: {algo}\n{key}: {value}\n"
    (trapped / "settings.yaml").write_text(text)
    refused(["train", "--config", "settings.yaml", *SETTINGS], trapped, capsys)
    if key == "algo":
        return
    option = key.removeprefix("algo.")
    (trapped / "mine.yaml").write_text(
        f"{algo}: {{{option}: {value}}}\n" if key.startswith("algo.") else f"run: {{{key}: {value}}}\n{algo}:\n"
    )
    refused(["train", f"algo={algo}", "preset=mine.yaml", *SETTINGS], trapped, capsys)
    refused(["train", "-m", f"algo={algo}", "preset=mine.yaml", "batch_size=8,9", *SETTINGS], trapped, capsys)
    refused(["train", f"algo={algo}", "preset=mine", "--config-dir", ".", *SETTINGS], trapped, capsys)


HYDRAS = [
    "hydra.callbacks={x: {_target_: os.system, command: touch EXECUTED}}",
    "hydra.launcher._target_=hydra_plugins.trap.Own",
    "hydra.searchpath=[file:///somewhere]",
    "hydra/sweeper=trap",
    "env=${reward}",
]


@pytest.mark.parametrize("said", [*NAMED, *HYDRAS[:3], HYDRAS[4], "env=native/pendulum,trap:Trap-v0"])
def test_no_received_sweep_has_anything_executed(said: str, trapped: pathlib.Path, capsys: Capture) -> None:
    algo = "algo=dynamics" if said.startswith("algo.") else "algo=bc"
    overrides = [*([] if said.startswith("algo=") else [algo]), *SETTINGS[:-1], said]
    (trapped / "sweep").mkdir()
    told = {"format": 1, "overrides": overrides, "folder": str(trapped)}
    (trapped / "sweep/sweep.json").write_text(json.dumps(told))
    refused(["train", "--resume", "sweep"], trapped, capsys)


def test_a_received_sweep_adds_no_keys_and_its_launcher_may_be_named(trapped: pathlib.Path) -> None:
    for added in ("+hydra.callbacks.x={_target_: os.system, command: touch EXECUTED}", "++env=trap:Trap-v0"):
        for trusted in (False, True):
            with pytest.raises(ConfigError, match="can't be added or removed"):
                received.check([added], "sweep.json", trusted)
    received.check(["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "algo=iql,bc", "env=Hopper-v5"], "a", False)
    for said in HYDRAS:
        with pytest.raises(ConfigError, match=r"s\.json has .*, by which Hydra may execute what it names"):
            received.check([said], "s.json", False)
        received.check([said], "s.json", True)
    received.check([f"dataset={grammar.quoted('costs ${reward}')}"], "s.json", False)  # a name with such signs


@pytest.mark.parametrize("named", NAMED[1:])
def test_no_received_study_has_a_module_executed(named: str, trapped: pathlib.Path, capsys: Capture) -> None:
    key, _, value = named.partition("=")
    algo = "dynamics" if key.startswith("algo.") else "bc"
    fixed = [f"algo={algo}", *SETTINGS[:-1]]
    studies = {
        "overrides": tune.Tuning((*fixed, named), {"batch_size": [8, 9]}, 1, (0,), (1, 2, 3, 4)),
        "space": tune.Tuning(tuple(fixed), {key: [value, value + "s"]}, 1, (0,), (1, 2, 3, 4)),
    }
    for name, tuning in studies.items():
        (trapped / name / "trials").mkdir(parents=True)
        (trapped / name / "tune.json").write_text(json.dumps(tuning.to_json()))
        assert main(["tune", "--resume", name, "-q"]) == 2
        said = capsys.readouterr().err
        assert "--trust" in said or (name == "space" and f"{key}: may not vary" in said)
        assert not (trapped / "EXECUTED").exists()
    if key.startswith("algo."):
        (trapped / "space.yaml").write_text(f"{key}: [{value}, {value}s]\n")
        refused(["tune", *fixed[:2], "seeds=2", "--trials", "1", "--space", "space.yaml"], trapped, capsys)


SUITE = """\
version: 1
what: theirs
seeds: [1, 2, 3, 4]
run: {{steps: 2, batch_size: 8, env: {env}, listener: {listener}}}
tasks: {{pendulum: {{dataset: native/pendulum-mixed, reward: {reward}}}}}
algorithms: [{algorithm}]
"""


@pytest.mark.parametrize("named", [*NAMED[:3], NAMED[-1]])
def test_no_suite_of_a_file_has_a_module_executed(named: str, trapped: pathlib.Path, capsys: Capture) -> None:
    said = {"algo": "bc", "env": "native/pendulum", "reward": "null", "listener": "null", **dict([named.split("=", 1)])}
    text = SUITE.format(**{"algorithm": said.pop("algo")}, **said)
    (trapped / "suite.yaml").write_text(text)
    refused(["bench", "suite.yaml"], trapped, capsys)


@pytest.mark.parametrize("named", [NAMED[0], NAMED[3]])
def test_no_options_of_a_received_study_have_a_module_executed(
    named: str, trapped: pathlib.Path, capsys: Capture
) -> None:
    key, _, value = named.partition("=")
    fixed = (named,) if key == "algo" else ("algo=dynamics",)
    tuning = tune.Tuning(fixed, {"algo.seed": [1, 2]}, 1, (1000,), (1001, 1002, 1003, 1004))
    (trapped / "study").mkdir()
    (trapped / "study/tune.json").write_text(json.dumps(tuning.to_json()))
    found = {"incumbent": {} if key == "algo" else {key: value}, "budget": {"runs": 1}}
    (trapped / "study" / tune.RESULT).write_text(json.dumps(found))
    (trapped / "suite.yaml").write_text(
        SUITE.format(env="native/pendulum", reward="null", listener="null", algorithm="bc")
    )
    refused(["bench", "suite.yaml", "--tuned", "study"], trapped, capsys)


def test_a_comparison_trains_no_further_seeds_by_a_module_that_a_received_run_names(received_run: Any) -> None:
    rename(received_run, algorithm="mopo", config={"termination": "trap:ends"})
    run = Run.open(received_run)
    arm = compare.Arm("theirs", (run,), None)
    with pytest.raises(ConfigError, match="names 'trap:ends'"):
        compare.train_missing(arm, (7,), received_run / "more", lambda event: None, False)
    assert not (received_run / "EXECUTED").exists()


def test_a_reward_that_the_user_names_is_imported_by_a_portfolio_and_one_of_its_file_is_not(
    trapped: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carried_out(auto: Any, *unused: Any) -> Any:
        assert auto.plan.reward in trust._allowed
        raise ConfigError("far enough")

    monkeypatch.setattr("surefoot.studies.auto.carry_out", carried_out)
    monkeypatch.setattr("surefoot.cli.support.training.load", lambda *unused: small_dataset())
    monkeypatch.setattr(trust, "_allowed", set())
    command = ["train", "algo=auto", "dataset=native/pendulum-mixed", "reward=trap:reward", "out=own", "-q"]
    assert main(command) == 2
    assert "far enough" in capsys.readouterr().err
    trust._allowed.clear()
    plan = Plan("bc", {}, "native/pendulum-mixed", None, reward="trap:reward")
    (trapped / "theirs").mkdir()
    (trapped / "theirs/auto.json").write_text(json.dumps(Auto(plan).to_json()))
    assert main(["train", "--resume", "theirs"]) == 2
    assert "names 'trap:reward'" in capsys.readouterr().err
    assert not (trapped / "EXECUTED").exists()


@pytest.mark.parametrize("name", ["json:Decoder-v0", "sympy:solve", "my_module_of_tests:Own"])
def test_a_name_from_a_file_needs_trust_also_where_its_module_is_imported_already(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_allowed", set())
    monkeypatch.setitem(sys.modules, name.partition(":")[0], types.ModuleType("loaded"))
    with pytest.raises(ConfigError, match=rf"config\.json names '{name}'.*--trust"):
        trust.require_trust(name, "config.json")
    trust.allow(name.partition(":")[0] + ":Other")  # of the same module, but not this name
    with pytest.raises(ConfigError, match="add --trust"):
        trust.require_trust(name, "config.json")
    trust.allow(name)
    trust.require_trust(name, "config.json")


def test_agents_of_ours_may_be_named_and_functions_may_not(finished_run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished_run, copy)
    rename(copy, algorithm="never_seen:Own")
    with pytest.raises(ConfigError, match="never_seen"):
        load_agent(Run.open(copy))
    with pytest.raises(ConfigError, match="never_seen"):
        agent_class("never_seen:Own")
    rename(copy, algorithm=f"{BC.__module__}:BC")
    assert type(load_agent(Run.open(copy))) is BC
    rename(copy, algorithm="surefoot.core.base.files:remove_asides")
    with pytest.raises(CheckpointError, match=r"is not a surefoot\.core\.engine\.agent\.Agent"):
        load_agent(Run.open(copy))
    rename(copy, algorithm="bc", reward="surefoot.core.base.files:remove_asides")
    with pytest.raises(ConfigError, match=r"names 'surefoot\.core\.base\.files:remove_asides', which would be called"):
        load_agent(Run.open(copy))


def test_every_setting_that_may_name_code_is_asked_for() -> None:
    rooms = [path.resolve() for path in pathlib.Path(surefoot.__file__).parent.iterdir() if path.is_dir()]
    files = [path for room in rooms for path in room.rglob("*.py")]
    option = re.compile(r"^    (\w+): [^\n]*= option\((?:(?!^    \w).)*?\bmodule:\w", re.M | re.S)
    found = {name for path in files for name in option.findall(path.read_text(encoding="utf-8"))}
    assert {"env", "listener", "reward", "termination", "reward_function"} <= found
    of_language = ("reward", "rule", "corrupt", "write", "environment")
    plan = LanguagePlan(model="m", prompts="p", **{name: f"a:{name}" for name in of_language})
    assert functions_of(plan) == [f"a:{name}" for name in of_language]
    assert found - set(of_language[1:]) <= {key.removeprefix("algo.") for key in received.NAMING}


@pytest.mark.parametrize("key", received.CALLED)
def test_settings_of_a_file_name_no_function_of_an_installed_package(key: str) -> None:
    for module in ("surefoot.core.base.files", "gymnasium", "os"):
        said = [f"{key}={module}:function"]
        assert received.needs_trust(said)
        with pytest.raises(ConfigError, match=rf"s\.json names '{module}:function', which would be called"):
            received.check(said, "s.json", False)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"No module named 'my_odd_agents'; modules are looked for on python's path and in /"),
        ("import no_such_package\n", r"No module named 'no_such_package'$"),
        ("x = 1\n", r"has no attribute 'Mine'"),
        ("x = (\n", r"my_odd_agents.py, line 1\)"),
        ("x = 1\ny = x / 0\n", r"ZeroDivisionError: division by zero \(.*my_odd_agents.py, line 2\)"),
    ],
)
def test_a_module_of_ones_own_that_can_not_be_imported_is_one_sentence(
    text: str | None, sentence: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(trust, "_allowed", {"my_odd_agents:Mine"})
    if text is not None:
        (tmp_path / "my_odd_agents.py").write_text(text)
    for ask in (lambda: agent_class("my_odd_agents:Mine"), lambda: trust.function_of("my_odd_agents:Mine", "reward")):
        sys.modules.pop("my_odd_agents", None)
        with pytest.raises(ConfigError, match=sentence):
            ask()


def test_a_run_folder_with_links_in_it_is_not_written_to(received_run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (received_run / "seeds/0/log.txt").unlink()
    (received_run / "seeds/0/log.txt").symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointError, match="symbolic link"):
        resume(received_run)
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("kind", ["sweep", "study", "portfolio"])
def test_no_run_elsewhere_is_gone_on_with_by_a_received_sweep_or_study(
    kind: str, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    if kind == "sweep":
        said = {"format": 1, "overrides": ["algo=bc", *SETTINGS[:-1]], "folder": str(tmp_path)}
        (theirs / "sweep.json").write_text(json.dumps(said))
    elif kind == "study":
        tuning = tune.Tuning(("algo=bc", *SETTINGS[:-1]), {"batch_size": [8, 9]}, 1, (0,), (1, 2, 3, 4))
        (theirs / "tune.json").write_text(json.dumps(tuning.to_json()))
    else:
        (theirs / "auto.json").write_text(json.dumps(Auto(Plan("bc", {}, "native/pendulum-mixed", None)).to_json()))
    (theirs / "runs").mkdir()
    (theirs / "runs" / "00-bc").symlink_to(mine)
    assert main(["tune" if kind == "study" else "train", "--resume", str(theirs)]) == 2
    assert "00-bc: is a symbolic link, through which" in capsys.readouterr().err
    assert not list(mine.iterdir())


def test_links_inside_of_runs_are_those_of_their_own_resumption(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "00-bc"
    run.mkdir()
    (run / "config.json").touch()
    (run / "latest").symlink_to(run / "config.json")  # as W&B makes them, which go before the run is asked
    trust.refuse_links_to_runs(tmp_path)
    (tmp_path / "more").symlink_to(run)
    with pytest.raises(CheckpointError, match="symbolic link"):
        trust.refuse_links_to_runs(tmp_path)
    trust.refuse_links_to_runs(tmp_path, trust=True)


def test_workers_find_a_trusted_module_last_and_nothing_in_the_working_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_mine.py").touch()
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert trust.for_workers(["of_mine:Id-v0"]) == {"names": ["of_mine:Id-v0"], "path": []}
    try:
        trust.allow("of_mine:Id-v0")
        assert sys.path == [*before, str(tmp_path)]
        assert trust.for_workers(["iql", None, "of_mine:Id-v0"])["path"] == [str(tmp_path)]
    finally:
        sys.path[:] = before


def test_an_empty_entry_of_pythonpath_does_not_let_the_working_directory_in(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "/mine", ""]))
    assert environment()["PYTHONPATH"] == "/mine"
    save(small_dataset(), tmp_path / "d.hdf5")
    for name in ("typing", "argparse", "json", "numpy", "random", "torch"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\n")
    script = [
        sys.executable,
        "-P",
        "-c",
        "import sys; from surefoot.cli import main; sys.exit(main())",
    ]  # as pip makes it
    for start in (script, [sys.executable, "-m", "surefoot"]):
        command = [*start, "datasets", "info", "d.hdf5"]  # which starts the reading process of HDF5
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()
