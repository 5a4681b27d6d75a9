"""The alarm in a run: it is reported, written, shown, and the policy from before is kept and judged."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from small_runs import metrics, small_dataset
from test_training import FAST, same, weights

from surefoot import fit
from surefoot.core.engine.agent import Spec
from surefoot.core.policy.policy import Policy
from surefoot.evaluation import RunData, write_report
from surefoot.evaluation.run_warnings import alarm_lines, worth
from surefoot.model_based import TDMPC2, ImaginedSAC
from surefoot.model_based.base.alarm import Alarm, Ring
from surefoot.offline import BC
from surefoot.runs.extend import extend
from surefoot.runs.processes.stopping import Stopped
from surefoot.runs.start import resume
from surefoot.runs.trainers.trainer import SeedTrainer

pytestmark = pytest.mark.usefixtures("in_process")
SMALL = {
    "hidden": (8, 8), "model_hidden": (8, 8), "model_decays": (), "model_members": 2, "model_elites": 2,
    "model_updates": 10, "rollouts": 20, "rollout_length": 2, "imagine_every": 40,
}  # fmt: skip
RINGS = {"alarm_value_excess": -1e6, "alarm_patience": 2}
SIGNALS = ["value_excess", "value_growth", "edge_share", "reward_excess"]
SILENT = {f"alarm_{signal}": 1e9 for signal in SIGNALS}


def run_of(tmp_path: pathlib.Path, name: str, **options: object) -> tuple[pathlib.Path, dict]:
    data = small_dataset()
    agent = ImaginedSAC(data, **{**SMALL, **SILENT, **options})
    env = "native/pendulum" if name == "acting" else None
    run = fit(agent, data, env=env, steps=200, seeds=1, evaluate_every=50, out=tmp_path / name, progress=False, **FAST)
    return run.folder, run.summary


@pytest.mark.parametrize("name", ["acting", "data"])
def test_a_run_whose_alarm_rings_says_so_and_keeps_the_policy_from_before(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, summary = run_of(tmp_path, name, **RINGS)
    rings, (kept,) = summary["alarm"]["rings"], summary["alarm"]["supported"]
    assert [(ring["signal"], ring["step"], ring["seed"]) for ring in rings] == [("value_excess", 100, 0)]
    assert (kept["seed"], kept["step"], kept["policy"]) == (0, 50, "seed0_before_alarm.safetensors")
    assert kept["of"] == ("returns" if name == "acting" else "fitted-Q estimates")
    worth_last = summary["per_seed_returns"][0] if name == "acting" else summary["fitted_q"]["mean"]
    assert isinstance(kept["mean"], float)
    assert kept["last"] == pytest.approx(worth_last)
    assert kept["data"] == (None if name == "acting" else summary["data_discounted_return"]["mean"])
    before, last = (Policy.load(folder / "policy" / f"seed0{end}.safetensors") for end in ("_before_alarm", ""))
    seen = torch.randn(5, 3)
    assert not torch.equal(before(seen), last(seen))
    result = json.loads(next(folder.rglob("result.json")).read_text())
    assert [line["step"] for line in result["metrics"] if line["kind"] == "alarm"] == [100]
    data = RunData.load(folder)
    lines = alarm_lines(data)
    assert "ALARM, seed 0, step 100: values are above what rewards allow" in lines[0]
    assert "the policy of step 50, from before the alarm" in lines[1]
    assert f"(of the last policy's {worth_last:.1f})" in lines[1]
    assert ("support" in lines[1]) == (name == "data")
    write_report([data], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert '<p class="alarm">' in page
    assert "ALARM, seed 0, step 100" in page


def test_an_estimate_supports_a_policy_that_it_puts_at_the_datas_mean_or_above() -> None:
    kept = {"mean": 10.0, "of": "fitted-Q estimates", "last": 12.0, "data": 10.0}
    assert worth(kept) == (
        ", mean of its fitted-Q estimates 10.0 (of the last policy's 12.0), at least the data's mean, 10.0: "
        "the estimate supports it"
    )
    assert worth({**kept, "data": 10.5}).endswith("below the data's mean, 10.5: the estimate does not support it")
    assert worth({"mean": 10.0, "of": "returns"}) == ", mean of its returns 10.0"  # of an older run


def test_a_silent_alarm_leaves_no_second_policy_and_the_page_says_so(tmp_path: pathlib.Path) -> None:
    folder, summary = run_of(tmp_path, "data")
    assert summary["alarm"] == {"rings": [], "supported": [], "watched": SIGNALS}
    assert [file.name for file in sorted((folder / "policy").iterdir())] == ["seed0.json", "seed0.safetensors"]
    data = RunData.load(folder)
    assert alarm_lines(data) == []
    write_report([data], tmp_path / "page.html")
    assert f"Nothing rang in data (watched: {', '.join(SIGNALS)})" in (tmp_path / "page.html").read_text()


def test_a_silent_run_that_goes_on_and_rings_has_the_policy_that_it_went_on_from(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = run_of(tmp_path, "data")
    last = Policy.load(folder / "policy" / "seed0.safetensors")
    rung = Ring(225, "value_excess", 2.0, 1.0, "values are above what rewards allow")

    def observe_outcome(self: Alarm, step: int, values: object) -> list[Ring]:
        if step <= 200 or self.rings:
            return []
        self.rings.append(rung)
        return [rung]

    monkeypatch.setattr(Alarm, "observe_outcome", observe_outcome)
    summary = extend(folder, 300).summary
    (kept,) = summary["alarm"]["supported"]
    assert kept["step"] == 200
    seen = torch.randn(5, 3)
    assert torch.equal(Policy.load(folder / "policy" / kept["policy"])(seen), last(seen))


@pytest.mark.parametrize(("stop", "kept"), [(20, None), (70, 50)])
def test_a_run_that_was_stopped_keeps_the_policy_that_an_undisturbed_one_keeps(
    stop: int, kept: int | None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings_at = 50 if kept is None else 100
    rung = Ring(rings_at, "value_excess", 2.0, 1.0, "values are above what rewards allow")

    def observe_outcome(self: Alarm, step: int, values: object) -> list[Ring]:
        if step != rings_at or self.rings:
            return []
        self.rings.append(rung)
        return [rung]

    monkeypatch.setattr(Alarm, "observe_outcome", observe_outcome)
    whole, undisturbed = run_of(tmp_path, "data")
    assert [one["step"] for one in undisturbed["alarm"]["supported"]] == ([] if kept is None else [kept])
    (tmp_path / "whole").mkdir()
    whole = whole.rename(tmp_path / "whole/data")
    with monkeypatch.context() as patch:
        pause = SeedTrainer.pause

        def pause_and_stop(self: SeedTrainer) -> None:
            pause(self)
            if self.step == stop:
                raise Stopped

        patch.setattr(SeedTrainer, "pause", pause_and_stop)
        with pytest.raises(Stopped):
            run_of(tmp_path, "data")
    run = resume(tmp_path / "data")
    assert run.summary["alarm"] == undisturbed["alarm"]
    if kept is not None:
        seen = torch.randn(5, 3)
        name = "seed0_before_alarm.safetensors"
        here, there = (Policy.load(folder / "policy" / name) for folder in (run.folder, whole))
        assert torch.equal(here(seen), there(seen))


def test_a_run_of_which_no_signal_can_ring_is_not_told_to_be_silent(tmp_path: pathlib.Path) -> None:
    folder, summary = run_of(tmp_path, "data", **dict.fromkeys(SILENT))
    assert summary["alarm"] == {"rings": [], "supported": [], "watched": []}
    write_report([RunData.load(folder)], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Not watched, as no signal with a threshold was given: data." in page
    assert "Nothing rang" not in page


def test_without_a_checkpoint_before_it_there_is_no_policy_and_the_lines_say_why(tmp_path: pathlib.Path) -> None:
    folder, summary = run_of(tmp_path, "data", **{**RINGS, "alarm_patience": 1})
    assert summary["alarm"]["rings"][0]["step"] == 50
    assert summary["alarm"]["supported"] == []
    assert "no policy was saved before the alarm rang; lower evaluate_every" in alarm_lines(RunData.load(folder))[-1]


def test_the_alarm_changes_no_bit_of_training_and_is_silent_where_no_model_is_learned(
    tmp_path: pathlib.Path,
) -> None:
    data = small_dataset()
    folders = []
    for name, options in (("loud", RINGS), ("still", {})):
        agent = ImaginedSAC(data, **{**SMALL, **SILENT, **options})
        folders.append(fit(agent, data, steps=120, seeds=1, out=tmp_path / name, progress=False, **FAST))
    assert same(weights(folders[0], 0), weights(folders[1], 0))
    assert any(line["kind"] == "alarm" for line in metrics(folders[0]))
    plain = fit(BC(data, hidden=(8, 8)), data, steps=20, seeds=1, out=tmp_path / "bc", progress=False, **FAST)
    assert plain.summary["alarm"] is None
    assert alarm_lines(RunData.load(plain.folder)) == []


def test_notes_of_an_agent_that_is_given_no_data_are_said(tmp_path: pathlib.Path) -> None:
    agent = TDMPC2(Spec(3, 1, (-2.0,), (2.0,)), preset="tiny", initial_steps=18, samples=9, iterations=1)
    options = {"steps": 20, "seeds": 1, "episodes": 1, "evaluate_every": 20, "evaluate_episodes": 1}
    run = fit(agent, env="native/pendulum", out=tmp_path / "run", progress=False, **options)
    assert run.summary["alarm"] == {"rings": [], "supported": [], "watched": ["value_excess", "value_growth"]}
    notes = json.loads((run.folder / "config.json").read_text())["notes"]
    assert any("algo.episode_length=200" in note for note in notes)
