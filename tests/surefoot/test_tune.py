"""`surefoot tune`: disjoint seeds, budgets, and studies that survive kills. Runs are written, not trained."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from test_compare import write_run

from surefoot.api.fit import fit
from surefoot.cli import main
from surefoot.cli import tune as command
from surefoot.core.base.errors import ConfigError, DivergenceError
from surefoot.core.base.files import read_json, write_json
from surefoot.evaluation.results import collect
from surefoot.offline import BC
from surefoot.offline.iql import IQLConfig
from surefoot.runs.embedded import load
from surefoot.runs.run import Run
from surefoot.studies import states, tune
from surefoot.studies.compare import scores_of

Capture = pytest.CaptureFixture[str]
optuna = pytest.importorskip("optuna", reason="optuna is not installed")
SPACE = {"algo.x": {"low": 0.01, "high": 1.0, "log": True}, "algo.n": {"low": 1, "high": 9}, "algo.c": ["a", "b"]}


class Killed(BaseException):
    """As SIGKILL: nothing catches it."""


class Trainer:
    """Writes runs whose score is best near x = 0.3; dies before or after the runs whose numbers it is given."""

    def __init__(
        self,
        before: Sequence[int] = (),
        after: Sequence[int] = (),
        diverges: Sequence[int] = (),
        impossible: Sequence[int] = (),
    ) -> None:
        self.before, self.after, self.diverges, self.impossible = list(before), list(after), diverges, impossible
        self.trained: list[str] = []

    def __call__(self, values: Mapping[str, Any], seeds: Sequence[int], folder: pathlib.Path, label: str) -> Run:
        number = int(folder.name) if folder.name.isdigit() else -1
        if number in self.before:
            self.before.remove(number)
            raise Killed
        if number in self.diverges:
            raise DivergenceError("critic_loss is not finite at step 7")
        if number in self.impossible:
            raise tune.ImpossibleError("dt.heads is 8, must be a divisor of the width")
        if (folder / "config.json").is_file():
            return Run.open(folder)
        self.trained.append(folder.name)
        x = float(values.get("algo.x", 0.9))
        scores = [-((np.log(x / 0.3)) ** 2) + 0.1 * float(np.random.default_rng(seed).normal()) for seed in seeds]
        run = write_run(folder, {"x": x}, seeds, scores)
        if number in self.after:
            self.after.remove(number)
            raise Killed
        return run


def from_fresh_states(run: Run, metric: str) -> dict[int, np.ndarray]:
    """What `states.fresh_scores` gives of real runs: here 0.05 below the scores of the states that chose the winner."""
    states = np.linspace(-0.01, 0.01, 5) - 0.05
    return {seed: score + states for seed, score in scores_of(run, metric).items()}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "fresh_scores", from_fresh_states)


def study(folder: pathlib.Path, trainer: Trainer, **changes: Any) -> list[tuple[dict[str, Any], list[float] | None]]:
    """A study of 12 trials, restarted after each kill."""
    kinds: dict[str, Any] = {"overrides": (), "space": SPACE, "trials": 12, "seeds": (0, 1)}
    tuning = tune.Tuning(**{**kinds, "test_seeds": tuple(range(5, 15)), **changes})
    folder.mkdir(exist_ok=True)
    write_json(folder / "tune.json", tuning.to_json())
    for _ in range(20):
        try:
            return tune.search(folder, tune.Tuning.read(folder), trainer, lambda *unused: None)
        except Killed:
            continue
    raise AssertionError


def test_a_killed_study_ends_with_the_trials_of_an_undisturbed_one(tmp_path: pathlib.Path) -> None:
    whole = study(tmp_path / "whole", Trainer())
    trainer = Trainer(before=[0, 3, 10, 11], after=[1, 4, 11])
    killed = study(tmp_path / "killed", trainer)
    assert killed == whole
    assert len(whole) == 12
    assert sorted(trainer.trained) == [f"{n:03}" for n in range(12)]  # none twice, none lost
    found = optuna.load_study(study_name="surefoot", storage=f"sqlite:///{tmp_path / 'killed' / 'study.db'}")
    assert {trial.state.name for trial in found.trials} == {"COMPLETE"}
    assert [trial.params for trial in found.trials] == [values for values, _ in whole]


def test_a_kill_between_asking_and_writing_and_a_damaged_database_lose_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = study(tmp_path / "whole", Trainer(), trials=5)

    def dies_once(path: pathlib.Path, value: Any) -> None:
        if path.name == "002.json":
            monkeypatch.setattr(tune, "write_json", write_json)
            raise Killed
        write_json(path, value)

    monkeypatch.setattr(tune, "write_json", dies_once)
    assert study(tmp_path / "asked", Trainer(), trials=5) == whole
    study(tmp_path / "torn", Trainer(), trials=5)
    (tmp_path / "torn" / "study.db").write_bytes(b"SQLite format 3\x00 no more")
    again = Trainer()
    assert study(tmp_path / "torn", again, trials=5) == whole
    assert again.trained == []


def test_trials_that_diverge_are_counted_and_not_tried_again(tmp_path: pathlib.Path) -> None:
    found = study(tmp_path / "study", Trainer(diverges=[1]), trials=4)
    assert [scores is None for _, scores in found] == [False, True, False, False]
    assert "critic_loss" in read_json(tmp_path / "study" / "trials" / "001.json")["error"]
    trainer = Trainer()
    assert study(tmp_path / "study", trainer, trials=4) == found
    assert trainer.trained == []


def test_settings_that_do_not_go_together_cost_a_trial_and_not_the_study(tmp_path: pathlib.Path) -> None:
    found = study(tmp_path / "study", Trainer(impossible=[1, 2]), trials=4)
    assert [scores is None for _, scores in found] == [False, True, True, False]
    assert study(tmp_path / "study", Trainer(), trials=4) == found
    none = study(tmp_path / "none", Trainer(impossible=range(4)), trials=4)
    tuning = tune.Tuning.read(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"all 4 trials failed, the last one so: .*divisor of the width"):
        tune.judge(tmp_path / "none", tuning, none, Trainer(), lambda *look: None)


def test_the_winner_and_the_default_are_judged_on_test_seeds(tmp_path: pathlib.Path) -> None:
    folder, trainer, told = tmp_path / "study", Trainer(), []
    found = study(folder, trainer)
    tuning = tune.Tuning.read(folder)
    result = tune.judge(folder, tuning, found, trainer, lambda *look: told.append(look))
    assert result == read_json(folder / "tuned.json")
    means = [np.mean(scores) for _, scores in found if scores is not None]
    assert result["incumbent"] == found[int(np.argmax(means))][0]
    assert result["decision"]["answer"] == "larger"
    assert result["budget"] == {"trials": 12, "diverged": 0, "seeds": 2, "runs": 24, "steps_each": 10}
    assert result["winners_curse"]["measured"] == pytest.approx(max(means) - result["test"]["incumbent"]["mean"])
    assert result["winners_curse"]["expected_of_equal_ones"] > 0
    assert told[0][:2] == ("incumbent", "default")
    kept = [Run.open(path) for path in sorted((folder / "test" / "incumbent").iterdir())]
    assert result["test"]["incumbent"]["mean"] == pytest.approx(
        np.mean([one for run in kept for one in scores_of(run, "return").values()]) - 0.05
    )
    assert result["over_states"]["low"] > 0
    splits = {pathlib.Path(row[0]).relative_to(folder).parts[0]: row[9] for row in collect([folder]).table}
    assert splits == {"trials": "tune", "test": "test"}
    seeds = {seed for row in collect([folder]).table if row[9] == "test" for seed in json.loads(row[8])}
    assert seeds <= set(tuning.test_seeds)


@pytest.mark.parametrize(("count", "per_stage", "stages"), [(4, 4, 1), (9, 9, 1), (10, 5, 2), (12, 6, 2), (17, 5, 3)])
def test_all_test_seeds_but_a_stages_remainder_are_used(count: int, per_stage: int, stages: int) -> None:
    tuning = tune.Tuning((), SPACE, 1, (0, 1), tuple(range(10, 10 + count)))
    assert (tuning.looks.per_stage, tuning.looks.stages) == (per_stage, stages)


def test_a_study_goes_on_with_the_looks_that_its_file_fixes(tmp_path: pathlib.Path) -> None:
    value = tune.Tuning((), SPACE, 1, (0, 1), tuple(range(10, 19))).to_json()
    assert "planned" not in value
    write_json(tmp_path / "tune.json", {**value, "looks": {**value["looks"], "per_stage": 5}})
    assert tune.Tuning.read(tmp_path).looks.seeds == 5, "as studies of before had it"


def test_fresh_states_are_others_than_those_of_the_runs_own_evaluation(tmp_path: pathlib.Path) -> None:
    dataset = load("native/pendulum-mixed").select_episodes(np.arange(4))
    run = fit(BC(dataset), dataset, steps=2, seeds=2, episodes=3, out=tmp_path / "run", progress=False)
    found = states.fresh_scores(run, "return")
    assert sorted(found) == [0, 1]
    own = states.episode_scores([run], "return")
    assert own is not None
    assert all(found[seed].shape == own[seed].shape == (3,) for seed in found)
    assert not np.isclose(found[0], own[0]).any()
    (run.folder / "policy" / "seed0.safetensors").unlink()
    np.testing.assert_array_equal(states.fresh_scores(run, "return")[0], found[0])  # kept, not run again


def test_a_winner_that_diverges_on_test_seeds_is_named_with_its_values(tmp_path: pathlib.Path) -> None:
    folder, trainer = tmp_path / "study", Trainer()
    found = study(folder, trainer)

    def diverging(values: Mapping[str, Any], seeds: Sequence[int], place: pathlib.Path, label: str) -> Run:
        if label.startswith("incumbent"):
            raise DivergenceError("critic_loss is not finite at step 7")
        return trainer(values, seeds, place, label)

    with pytest.raises(DivergenceError, match=r"the incumbent \(.*algo.x.*diverged on test seeds 5.*step 7\. .*trials"):
        tune.judge(folder, tune.Tuning.read(folder), found, diverging, lambda *_: None)
    assert not (folder / "tuned.json").exists()


def test_seeds_that_meet_and_test_seeds_that_decide_nothing_are_refused() -> None:
    kinds = {"overrides": (), "space": SPACE, "trials": 3}
    with pytest.raises(ConfigError, match=r"seeds \[2\] are in seeds= and in test_seeds="):
        tune.Tuning(**kinds, seeds=(0, 1, 2), test_seeds=(2, 3, 4, 5))
    with pytest.raises(ConfigError, match="with 3 test seeds nothing can be decided"):
        tune.Tuning(**kinds, seeds=(0,), test_seeds=(1, 2, 3))
    with pytest.raises(ConfigError, match="--sampler-seed is -1"):
        tune.Tuning(**kinds, seeds=(0,), test_seeds=(1, 2, 3, 4), sampler_seed=-1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps: [1, 2]", "may not vary"),
        ("algo.x: {low: 2, high: 1}", "low must be below high"),
        ("algo.x: {low: 0, high: 1, log: true}", "low must be above 0"),
        ("algo.x: {low: 0, hgh: 1}", "give {low"),
        ("algo.x: [1]", "at least two choices"),
        ("algo.x: {low: a, high: 1}", "must be finite numbers"),
        (f"algo.x: {{low: 0, high: {10**30}}}", "whole ones within 64 bits"),
        ("[1, 2]", "must name what varies"),
        ("a: [", "is no YAML"),
    ],
)
def test_a_bad_space_is_refused_by_name(tmp_path: pathlib.Path, text: str, words: str) -> None:
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words.replace("{", r"\{")):
        tune.read_space(tmp_path / "space.yaml")
    with pytest.raises(ConfigError, match=r"other.yaml: can't be read \(No such file"):
        tune.read_space(tmp_path / "other.yaml")


def test_the_command_checks_all_before_it_writes_and_prints_the_budget(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("space.yaml").write_text("algo.temperature: {low: 0.5, high: 10, log: true}\nbatch_size: [64, 256]\n")
    trainer, folders = Trainer(), set()

    def train(tuning: tune.Tuning, values: Any, seeds: Any, place: pathlib.Path, label: str, *unused: object) -> Run:
        folders.add(pathlib.Path.cwd())
        return trainer({"algo.x": values.get("algo.temperature", 3.0)}, seeds, place, label)

    monkeypatch.setattr(command, "_train", train)
    monkeypatch.setattr(command, "_dataset", lambda *unused: None)
    monkeypatch.setattr(command, "_check_ends", lambda *unused: None)  # which reads the data
    common = ["tune", "algo=iql", "dataset=native/pendulum-mixed", "--trials", "3", "--space", "space.yaml"]
    for more, words in (
        (["seeds=3", "test_seeds=[2,3,4,5]"], "seeds [2] are in seeds="),
        (["algo.temperature=3"], "is set on the command line and varies"),
        (["env=none"], "env=none"),
        (["algo.expectil=0.7"], "algo.expectile"),
        (["test_seeds=2"], "with 2 test seeds nothing"),
        (["--metric", "cost"], "--metric cost"),
    ):
        assert main([*common, *more]) == 2
        assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["space.yaml"]
    assert main([*common, "seeds=2", "steps=10", "out=study"]) == 0
    text = capsys.readouterr().out
    assert "tuned with 3 trials x 2 seeds x 10 steps" in text
    assert "tuned with nothing" in text
    assert "decision:" in text
    fixed = read_json(tmp_path / "study" / "tune.json")
    assert (fixed["seeds"], fixed["test_seeds"]) == ([0, 1], list(range(2, 12)))
    before = list(trainer.trained)
    assert main(["tune", "--resume", "study", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["budget"]["runs"] == 6
    assert trainer.trained == before
    assert main([*common, "out=study"]) == 2
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    folders.clear()
    assert main(["tune", "--resume", "../study", "-q"]) == 0
    assert folders == {tmp_path}, "a relative dataset= is meant from where the study was started"
    assert pathlib.Path.cwd() == tmp_path / "elsewhere"
    write_json(tmp_path / "study" / "tune.json", {**fixed, "folder": str(tmp_path / "gone")})
    assert main(["tune", "--resume", "../study"]) == 2
    assert "gone, which its relative paths are meant from and which is not there" in capsys.readouterr().err


def test_what_a_study_cannot_train_is_told_before_it_is_begun(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    space = pathlib.Path("space.yaml")
    common = ["tune", "algo=iql", "--trials", "3", "--space", "space.yaml", "env=native/pendulum"]
    space.write_text("algo.actor_learning_rate: {low: 1e-5, high: 1e-3}\n")
    assert main([*common, "dataset=native/pendulum-mixed"]) == 2
    said = capsys.readouterr().err
    assert "space.yaml: iql has no option 'algo.actor_learning_rate': did you mean 'algo.learning_rate'" in said
    space.write_text("batch_size: [64, 256]\n")
    assert main([*common, "dataset=none.hdf5"]) == 2
    assert "none.hdf5: no such file" in capsys.readouterr().err
    assert main([*common, "dataset=native/pendulum-mixed", "--metric", "success"]) == 2
    assert "native/pendulum says nothing of success" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["space.yaml"]


@pytest.mark.parametrize("source", ["docs/deciding.md", "usage"])
def test_the_space_that_is_shown_is_one_of_iqls(source: str, tmp_path: pathlib.Path) -> None:
    text = command.USAGE if source == "usage" else (pathlib.Path(__file__).parents[2] / source).read_text()
    lines = re.findall(r"^ *((?:algo\.\w+|batch_size): [{\[].*)$", text, re.MULTILINE)
    (tmp_path / "space.yaml").write_text("\n".join(lines))
    options = {field.name for field in dataclasses.fields(IQLConfig)}
    assert {name.removeprefix("algo.") for name in tune.read_space(tmp_path / "space.yaml")} - options == {"batch_size"}


def test_a_studys_file_names_no_module_without_trust(tmp_path: pathlib.Path, capsys: Capture) -> None:
    tuning = tune.Tuning(("algo=evil.module:Agent",), SPACE, 3, (0,), (1, 2, 3, 4))
    write_json(tmp_path / "tune.json", tuning.to_json())
    assert main(["tune", "--resume", str(tmp_path)]) == 2
    assert "--trust" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("space", {"algo.x": {"low": 0.5, "high": [1.0]}}, "algo.x: low, high and step must be finite numbers"),
        ("space", {"algo.x": {"low": 0, "high": 10**400}}, "algo.x: low, high and step must be finite numbers"),
        ("space", {"algo.x": {"low": 0.5}}, "algo.x: give {low"),
        ("space", {}, "must name what varies"),
        ("space", [1], "space is [1], must be an object"),
        ("looks", {**tune.LookPlan(5).to_json(), "pairs": 2**31}, "pairs is 2147483648; it must be a whole number"),
        ("overrides", ["steps"], "'steps' is not of the form name=value"),
    ],
)
def test_a_damaged_study_is_refused_with_its_file(
    tmp_path: pathlib.Path, capsys: Capture, key: str, value: Any, words: str
) -> None:
    told = tune.Tuning(("algo=iql",), SPACE, 3, (0,), (1, 2, 3, 4)).to_json()
    write_json(tmp_path / "tune.json", {**told, key: value})
    assert main(["tune", "--resume", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"surefoot: error: {tmp_path / 'tune.json'}: ")
    assert words in said


def test_a_range_with_whole_ends_has_fractions_where_the_option_takes_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("space.yaml").write_text(
        "algo.alpha: {low: 1, high: 4}\njacobian_penalty: {low: 0, high: 1}\nbatch_size: {low: 16, high: 64}\n"
        "algo.discount: {low: 0, high: 1, step: 1}\n"
    )
    words = ["algo=td3bc", "dataset=native/pendulum-mixed", "--trials", "1", "--space", "space.yaml"]
    tuning, _ = command._asked(command.parser().parse_intermixed_args(words))
    made = tune.distributions(tuning.space)
    assert made["algo.alpha"] == optuna.distributions.FloatDistribution(1.0, 4.0)
    assert made["jacobian_penalty"] == optuna.distributions.FloatDistribution(0.0, 1.0)
    assert made["batch_size"] == optuna.distributions.IntDistribution(16, 64)
    assert made["algo.discount"] == optuna.distributions.FloatDistribution(0.0, 1.0, step=1)
