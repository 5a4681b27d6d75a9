"""What the README and the pages say is so: its example runs, its commands are taken, its links and names exist."""

from __future__ import annotations

import ast
import glob
import os
import pathlib
import re
import shlex
import shutil
from typing import Any

import forking
import pytest
import torch
import yaml

from surefoot.cli import bench, main, train, tune
from surefoot.cli.main import build_parser
from surefoot.cli.support import auto, config, grammar
from surefoot.cli.support import help_text as helptext
from surefoot.core.engine.agent import Agent
from surefoot.offline import CQL, CQLConfig
from surefoot.offline.evaluation.fitted_q import FittedQ
from surefoot.runs.algorithms import ALGORITHMS

ROOT = pathlib.Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *TUTORIALS]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHORT = ["--steps", "2", "--seeds", "1", "--episodes", "2"]


def blocks(page: pathlib.Path, language: str = "") -> list[str]:
    """The fenced blocks of a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [code for named, code in found if named == language]


def commands(page: pathlib.Path) -> list[str]:
    """Lines of unnamed blocks that begin with `surefoot`, without their comments."""
    lines = [line for block in blocks(page) for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith("surefoot ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder that holds quadrotor.hdf5, as the README's command makes it, but small."""
    made = tmp_path_factory.mktemp("readme")
    arguments = ["native/quadrotor-2d", "-o", str(made / "quadrotor.hdf5"), "--transitions", "400"]
    assert main(["datasets", "generate", *arguments]) == 0
    return made


def run(arguments: list[str], folder: pathlib.Path) -> str:
    """What python prints, given these arguments, in a folder."""
    done = forking.run(arguments, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT / "examples")})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_example_runs(folder: pathlib.Path) -> None:
    code, of_gymnasium = blocks(ROOT / "README.md", "python")
    small, found = re.subn(
        r"steps=\d+, seeds=\d+, episodes=\d+", "steps=20, seeds=1, episodes=2, evaluate_every=20", code
    )
    assert found == 1
    printed = run(["-c", small + "\nprint(action.shape, action.dtype, run.complete)"], folder)
    assert "'low'" in printed
    assert printed.splitlines()[-1] == "(2,) float32 True"
    assert "surefoot\n" not in of_gymnasium
    assert run(["-c", of_gymnasium + "\nprint(observations.shape)"], folder) == "(4096, 5)\n"


def test_the_two_commands_stand_in_the_readme_and_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("demo", "test"):
        assert re.search(rf"^make {name}\b", README, re.MULTILINE)
        assert re.search(rf"^{name}:", makefile, re.MULTILINE)


EVERY_COMMAND = sorted({line for page in PAGES for line in commands(page)})


@pytest.mark.parametrize("line", EVERY_COMMAND)
def test_every_command_in_the_pages_is_one_that_the_command_line_takes(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = line.replace("soft_iql:SoftIql", "own_agent:AWR")  # what `surefoot new algorithm` writes, and not there
    monkeypatch.syspath_prepend(ROOT / "examples")  # own_agent:AWR is named in pages
    line = re.sub(r"(?<=[A-Z])\.\.\.", "", line)  # RUN... and FILE...: one of them will do
    _, command, *rest = shlex.split(line.replace(" ; ", "\n").splitlines()[0])
    if command == "tune":
        asked = tune.parser().parse_intermixed_args(rest)
        config.check_overrides(grammar.readable(asked.overrides), False)
        return
    if command == "bench":
        rest = bench.readable(rest)
    if command != "train":
        build_parser().parse_args([command, *rest])
        return
    known = train.parser().parse_intermixed_args(rest)
    overrides = grammar.readable(known.overrides, known.multirun)
    if auto.asked(overrides):
        request, portfolio, _ = auto.compose(overrides, known.multirun)
        assert {request.algorithm, *portfolio} <= set(ALGORITHMS)
        return
    config.check_overrides(overrides, known.multirun)
    if known.multirun or known.resume:
        return
    request = config.compose(overrides)
    assert request.algorithm in ALGORITHMS or ":" in request.algorithm


def test_the_pages_show_the_commands_that_a_new_user_needs() -> None:
    shown = commands(ROOT / "README.md")
    names = ("list", "info", "verify", "convert", "generate", "corrupt")
    own = (
        "train",
        "train -m",
        "evaluate",
        "report",
        "export",
        "rollout",
        "execute",
        "certify",
        "envs list",
        "envs info",
    )
    for name in (*own, *(f"datasets {name}" for name in names)):
        assert any(line.startswith(f"surefoot {name} ") for line in [f"{line} " for line in shown]), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, (
                target
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: pathlib.Path) -> None:
    text, file = page.read_text(encoding="utf-8"), ""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`", text):
        file = path or file
        if not path and not name:
            continue
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{file}::{name}"


def test_every_option_in_the_algorithms_page_is_one_with_that_default_and_none_is_missing() -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    tables = [part for part in re.split(r"^\| option \| default \| \|$", text, flags=re.MULTILINE)[1:]]
    names = ("bc", "iql", "bisim_iql", "riql", "td3bc", "cql", "calql", "famo2o", "famo2o_cql")
    agents: list[type[Agent]] = [*(ALGORITHMS[name] for name in names), FittedQ]
    for agent, table in zip(agents, tables, strict=True):
        rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| (.*) \|$", table.split("\n## ")[0], re.MULTILINE)
        own = [(row["name"], helptext.shown(row["default"]), row["what"]) for row in config.described(agent.Config)]
        if agent is not CQL and issubclass(agent, CQL):  # its table has what CQL's does not
            inherited = [
                (row["name"], helptext.shown(row["default"]), row["what"]) for row in config.described(CQLConfig)
            ]
            own = [row for row in own if row not in inherited]
        assert [(name, default, what.strip()) for name, default, what in rows] == own, agent.name


def test_the_agent_in_the_engine_page_is_the_examples() -> None:
    (code,) = blocks(ROOT / "docs" / "engine.md", "python")
    assert code in (ROOT / "examples" / "own_agent.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_says_what_it_takes(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    compile(tree, str(path), "exec")
    assert f"python examples/{path.name}" in (ast.get_docstring(tree) or "")


@pytest.mark.parametrize("name", ["iql.py", "own_agent.py"])
def test_examples_train_and_print_a_score(name: str, folder: pathlib.Path) -> None:
    printed = run([str(ROOT / "examples" / name), "quadrotor.hdf5", *SHORT], folder)
    assert re.search(
        r"^(IQL|AWR): +-?\d+\.\d \[-?\d+\.\d, -?\d+\.\d\], 1 seeds, 2 episodes each$", printed, re.MULTILINE
    )


def test_a_gymnasium_user_never_imports_surefoot(folder: pathlib.Path) -> None:
    script = ROOT / "examples" / "gymnasium_user.py"
    assert "import surefoot" not in script.read_text(encoding="utf-8")
    assert re.fullmatch(r"mean return \d+\.\d\d, \d+ of 4096 off the safe track\n", run([str(script)], folder))


def test_ppo_of_stable_baselines3_trains_on_a_native_system(folder: pathlib.Path) -> None:
    pytest.importorskip("stable_baselines3", reason="the sb3 extra is not installed")
    printed = run([str(ROOT / "examples" / "sb3_user.py"), "--steps", "16384"], folder)
    assert re.fullmatch(r"return -?\d+\.\d \+- \d+\.\d after 16,384 steps\n", printed)


def test_the_custom_environment_can_be_recorded_loaded_and_evaluated_in(folder: pathlib.Path) -> None:
    script = (
        "from surefoot.evaluation import RandomPolicy, evaluate; from surefoot.data import load; import numpy as np\n"
    )
    script += "data = load('points.hdf5'); print(data.env_id, len(data.episode_lengths))\n"
    script += "print(evaluate([RandomPolicy(np.full(1, -1.0), np.full(1, 1.0))], data.env_id, 2)[0].lengths)"
    run([str(ROOT / "examples" / "custom_environment.py"), "points.hdf5", "--episodes", "3"], folder)
    printed = run(["-c", script], folder).splitlines()
    assert printed[0] == "custom_environment:PointMass-v0 3"
    assert re.fullmatch(r"\[ *\d+ +\d+\]", printed[1])


@pytest.mark.parametrize("sampling", [False, True])
def test_the_onnx_example_runs_a_policy_without_surefoot(sampling: bool, folder: pathlib.Path) -> None:
    for name in ("onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the onnx extra is not installed")
    import surefoot

    script = ROOT / "examples" / "run_onnx.py"
    imported = {n.names[0].name for n in ast.walk(ast.parse(script.read_text())) if isinstance(n, ast.Import)}
    assert not imported & {"surefoot", "torch"}
    dataset = surefoot.data.load(folder / "quadrotor.hdf5")
    path = folder / f"policy{sampling}.onnx"
    surefoot.offline.IQL(dataset, hidden=(8, 8)).policy().export(path, sampling=sampling)
    printed = run([str(script), str(path), "--env", "surefoot/Quadrotor2D-v0", "--episodes", "1"], folder)
    assert re.fullmatch(r"mean return \d+\.\d over 1 episodes\n", printed)


SMALLER = {
    r"\bsteps=\d+": "steps=40",
    r"\bseeds=4\b": "seeds=2",
    r"\bepisodes=\d+": "episodes=2",
    r"--transitions \d+": "--transitions 2000",
    r"--episodes \d+": "--episodes 200",
    r",native/reacher-mixed": "",
}
"""What makes a tutorial's commands take seconds."""
TINY_RUN = ["evaluate_every=40", "evaluate_episodes=1", "batch_size=8"]
ELSEWHERE = {
    "--filter reach": "the safe set takes 20 s: test_reach.py, with a coarse one",
    "-o policy.onnx": "the exporter takes 10 s: test_the_onnx_example_runs_a_policy_without_surefoot",
    "--until decided": "it trains seeds until something is decided: test_compare.py",
    "surefoot tune": "its trials take 8 s: test_tune.py",
}
"""Commands that are only read here -> why, and which tests carry them out."""


def smaller(text: str) -> str:
    """A command, or python's code, with fewer steps, seeds and episodes."""
    for pattern, little in SMALLER.items():
        text = re.sub(pattern, little, text)
    return text


def typed(line: str) -> list[str]:
    """The words of a line as a shell hands them over: patterns are what they match, unless they are quoted."""
    words: list[str] = []
    for word in shlex.split(line, posix=False):
        quoted = word[0] in "'\""
        words += [word.strip("'\"")] if quoted else sorted(glob.glob(word)) if "*" in word else [word]
    return words


def carry_out(line: str) -> None:
    """A line of a tutorial's block, in this process: a command of ours, or a file copied from the checkout."""
    if any(shown in line for shown in ELSEWHERE):
        return  # test_every_command_in_the_pages_is_one_that_the_command_line_takes reads it
    program, *arguments = typed(smaller(line))
    if program == "cp":
        source, place = arguments
        shutil.copy(source.replace("CHECKOUT", str(ROOT)), place)
        return
    assert program == "surefoot"
    if arguments[0] == "train" and "--resume" not in arguments:
        arguments += [*TINY_RUN, *([] if any(one.startswith("episodes=") for one in arguments) else ["episodes=2"])]
    assert main(arguments) == 0, line


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_from_its_first_block_to_its_last(
    page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # where own_agent.py is copied to
    ran = 0
    for language, code in re.findall(
        r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        if language == "python":
            exec(compile(smaller(code), str(page), "exec"), {"__name__": "tutorial"})
            ran += 1
        for line in code.splitlines() if not language else ():
            if line.startswith(("surefoot ", "cp ")):
                carry_out(line)
                ran += 1
    assert ran >= 5


def test_the_blocks_of_the_policy_gradient_page_run() -> None:
    control, tokens = blocks(ROOT / "docs" / "policy_gradient.md", "python")
    draws = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draws)

    over_time = {name: normal(5, 3) for name in ("rewards", "values", "next_values")}
    ends = {name: torch.zeros(5, 3) for name in ("terminations", "truncations")}
    given = {
        name: normal(5, 3).requires_grad_(name == "log_prob") for name in ("log_prob", "proximal_log_prob", "entropy")
    }
    names: dict[str, Any] = {**over_time, **ends, **given}
    exec(control, names)
    names["loss"].backward()
    assert set(names["metrics"]) >= {"kl_k1", "kl_k3", "ratio_max", "clip_fraction"}
    assert names["log_prob"].grad.isfinite().all()

    sequences = {
        name: normal(16, 7).requires_grad_(name == "log_prob")
        for name in ("log_prob", "proximal_log_prob", "reference_log_prob")
    }
    answers: dict[str, Any] = {**sequences, "rewards": normal(16), "mask": torch.ones(16, 7)}
    exec(tokens, answers)
    answers["loss"].backward()
    assert answers["advantages"].shape == (16, 1)
    assert answers["advantages"].reshape(2, 8).mean(1).abs().max() < 1e-6  # against the mean of each prompt's answers
    assert answers["log_prob"].grad.isfinite().all()


def test_the_recipe_for_github_actions_is_yaml_whose_commands_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks(ROOT / "docs" / "own_algorithm.md", "yaml")
    recipe = yaml.safe_load(code)
    steps = recipe["jobs"]["learning"]["steps"]
    assert all(set(step) & {"uses", "run"} for step in steps)
    assert recipe["jobs"]["learning"]["env"].keys() == {"SUREFOOT_CACHE"}
    monkeypatch.syspath_prepend(ROOT / "examples")
    ours = [step["run"] for step in steps if step.get("run", "").startswith("surefoot ")]
    assert len(ours) == 2
    for line in ours:  # my_algorithm is what `surefoot new algorithm` writes, and not there
        line = line.replace("my_algorithm:MyAlgorithm", "own_agent:AWR")
        test_every_command_in_the_pages_is_one_that_the_command_line_takes(line, monkeypatch)
