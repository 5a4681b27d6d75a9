"""Runs that are watched while they train, that are extended, and that take more steps than they were given."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from small_runs import metrics, small_dataset

from surefoot.api.fit import fit
from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, ConfigError, SurefootError
from surefoot.core.base.files import write_json
from surefoot.core.nn.native import native
from surefoot.data import load, save
from surefoot.offline import BC
from surefoot.runs.extend import extend
from surefoot.runs.loggers import LiveMetrics, read_live
from surefoot.runs.plan import Plan
from surefoot.runs.run import IN_MEMORY, Run, load_agent, read_columns
from surefoot.runs.start import resume, train

pytestmark = pytest.mark.usefixtures("in_process")


def plan(steps: int, **changes: Any) -> Plan:
    config = {"hidden": [8, 8], **changes.pop("config", {})}
    given = {"seeds": (0, 3), "batch_size": 8, "episodes": 2, "evaluate_every": 10, "evaluate_episodes": 1, **changes}
    algorithm = given.pop("algorithm", "bc")
    data = IN_MEMORY if algorithm == "bc" else None
    return Plan(algorithm=algorithm, config=config, steps=steps, dataset=data, environment="native/pendulum", **given)


def bits(run: Run) -> dict[str, Any]:
    return {name: value.tolist() for seed in run.plan.seeds for name, value in run.policy(seed).state_dict().items()}


def test_an_extended_run_ends_as_one_that_was_told_so_at_once(tmp_path: pathlib.Path) -> None:
    data = small_dataset()
    whole = train(plan(40, seeds=(3,)), tmp_path / "whole", dataset=data)
    begun = train(plan(20, seeds=(3,)), tmp_path / "begun", dataset=data)
    assert bits(begun) != bits(whole)
    notes: list[dict[str, Any]] = []
    longer = extend(begun.folder, 40, listener=notes.append)
    assert bits(longer) == bits(whole)
    assert metrics(longer) == metrics(whole)
    assert longer.summary["returns"] == whole.summary["returns"]
    assert longer.summary["steps"] == 40
    config = json.loads((longer.folder / "config.json").read_text())
    assert [(entry["from"], entry["to"]) for entry in config["extended"]] == [(20, 40)]
    assert not [note for note in notes if "schedule" in str(note.get("text"))]
    with pytest.raises(ConfigError, match=r"takes 40 already.*steps=80"):
        extend(longer.folder, 40)


def test_a_run_of_before_an_option_goes_on_with_what_it_was_then(tmp_path: pathlib.Path) -> None:
    """QAM-E's editing policy had ReLU, and deviations from exp(-5) on, when run folders did not name them."""
    data, then = small_dataset(), {"edit_activation": "relu", "edit_log_std_range": [-5.0, 2.0]}
    sizes = {"hidden": [8, 8], "critics": 2, "flow_steps": 2}
    usual = {"algorithm": "qam_e", "environment": "native/pendulum", "dataset": IN_MEMORY, "seeds": (3,)}
    short: dict[str, Any] = {**usual, "batch_size": 8, "episodes": 2, "evaluate_every": 10, "evaluate_episodes": 1}
    whole = train(Plan(**short, steps=20, config={**sizes, **then}), tmp_path / "whole", dataset=data)
    begun = train(Plan(**short, steps=10, config={**sizes, **then}), tmp_path / "begun", dataset=data)
    now = train(Plan(**short, steps=20, config=sizes), tmp_path / "now", dataset=data)
    kept = json.loads((begun.folder / "config.json").read_text())
    for option in then:
        del kept["plan"]["config"][option]
    write_json(begun.folder / "config.json", kept)
    agent = load_agent(Run.open(begun.folder))
    assert agent.edit.mlp.activation == "relu"  # type: ignore[union-attr]
    assert agent.edit.log_std_range == (-5.0, 2.0)  # type: ignore[union-attr]
    assert Run.open(begun.folder).reported[1]["edit_activation"] == "relu"
    assert bits(extend(begun.folder, 20)) == bits(whole)
    assert bits(now) != bits(whole)


def test_a_folder_names_all_options_also_those_that_the_plan_left_to_their_defaults(tmp_path: pathlib.Path) -> None:
    run = train(plan(10, seeds=(3,)), tmp_path / "run", dataset=small_dataset())
    named = json.loads((run.folder / "config.json").read_text())["plan"]["config"]
    assert named.keys() == {field.name for field in dataclasses.fields(BC.Config)}


def test_the_evaluation_at_the_old_end_stays(tmp_path: pathlib.Path) -> None:
    begun = train(plan(15, seeds=(3,)), tmp_path / "begun", dataset=small_dataset())
    longer = extend(begun.folder, 30)
    assert [line["step"] for line in metrics(longer) if line["kind"] == "eval"] == [10, 15, 20, 30]


def test_data_that_were_changed_after_loading_are_kept_for_more_steps(tmp_path: pathlib.Path) -> None:
    save(small_dataset(), tmp_path / "log.hdf5")
    loaded = load(tmp_path / "log.hdf5")
    given = {"steps": 10, "seeds": 1, "episodes": 1, "evaluate_episodes": 1, "batch_size": 8, "progress": False}
    plain = fit(BC(loaded, hidden=(8,)), loaded, out=tmp_path / "plain", **given)
    assert plain.plan.dataset == str(tmp_path / "log.hdf5")
    for name, data in (
        ("part", loaded.select_episodes(np.array([1]))),
        ("other", loaded.replace(rewards=loaded.rewards + 1)),
        ("view", load(tmp_path / "log.hdf5", view="d4rl")),
    ):
        run = fit(BC(data, hidden=(8,)), data, out=tmp_path / name, **given)
        assert run.plan.dataset == IN_MEMORY
        longer = extend(run.folder, 20)
        assert len(read_columns(longer.columns_path)) == len(data)


def test_an_extension_that_was_interrupted_leaves_a_run_that_can_be_resumed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = small_dataset()
    begun = train(plan(20, seeds=(0,)), tmp_path / "begun", dataset=data)
    before = bits(begun)
    with monkeypatch.context() as patch:
        patch.setattr("surefoot.runs.extend.write_json", lambda *unused: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extend(begun.folder, 40)
    assert bits(resume(begun.folder)) == before
    assert Run.open(begun.folder).plan.steps == 20


@pytest.mark.skipif(native.library() is None, reason=f"no native module: {native.why_not()}")
@pytest.mark.parametrize("algorithm", ["iql", "droq"])
def test_dropout_masks_are_taken_as_when_the_run_began(
    algorithm: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layer by layer where kernels.json says nothing of masks, as that of earlier versions."""
    more = {"iql": {"actor_schedule": "constant"}, "droq": {"initial_steps": 10, "critic_steps": 2}}[algorithm]
    data = small_dataset() if algorithm == "iql" else None

    def planned(steps: int) -> Plan:
        given = plan(steps, seeds=(3,), algorithm=algorithm, config={"dropout": 0.3, **more})
        return given if data is None else dataclasses.replace(given, dataset=IN_MEMORY)

    def written(path: pathlib.Path, value: dict[str, Any]) -> None:
        write_json(path, {"machine": value["machine"]})

    masked: list[bool] = []
    forward = native.forward
    monkeypatch.setattr(
        native, "forward", lambda *given, **named: (masked.append(given[-1] is not None), forward(*given, **named))[1]
    )
    with monkeypatch.context() as patch:
        patch.setattr("surefoot.runs.machine.write_json", written)
        whole, begun = (train(planned(n), tmp_path / f"old-{n}", dataset=data) for n in (40, 20))
    assert bits(extend(begun.folder, 40)) == bits(whole)
    assert masked
    assert not any(masked)
    new, begun = (train(planned(n), tmp_path / f"new-{n}", dataset=data) for n in (40, 20))
    assert json.loads((new.folder / "kernels.json").read_text())["masks"] == "inside"
    assert any(masked)
    assert bits(extend(begun.folder, 40)) == bits(new)
    if algorithm == "droq":  # whose layer norms torch rounds otherwise
        assert bits(new) != bits(whole)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Path within a folder -> bytes, of all files."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


ACTING: dict[str, dict[str, Any]] = {
    "sac": {"initial_steps": 20, "num_envs": 2},
    "td3": {"initial_steps": 20},
    "stream_ac": {},
    "ppo": {"num_envs": 2, "horizon": 10, "minibatches": 2, "epochs": 1, "schedule": "constant"},
}


@pytest.mark.parametrize("algorithm", ACTING)
def test_an_extended_run_that_acts_ends_as_one_that_was_told_so_at_once(algorithm: str, tmp_path: pathlib.Path) -> None:
    given: dict[str, Any] = {"algorithm": algorithm, "config": ACTING[algorithm], "seeds": (3,), "evaluate_every": 20}
    whole = train(plan(80, **given), tmp_path / "whole")
    begun = train(plan(40, **given), tmp_path / "begun")
    assert bits(begun) != bits(whole)
    notes: list[dict[str, Any]] = []
    longer = extend(begun.folder, 80, listener=notes.append)
    assert bits(longer) == bits(whole)
    assert longer.summary["returns"] == whole.summary["returns"]
    assert [line for line in metrics(longer) if line["kind"] == "resumed"] == []
    tensors = [checkpoint.load(run.checkpoint_path(3))[0] for run in (longer, whole)]
    rows = [{name: value for name, value in one.items() if name.startswith("replay/")} for one in tensors]
    assert len(rows[0]) > 0 or algorithm in ("stream_ac", "ppo")
    assert all(rows[0][name].equal(value) for name, value in rows[1].items())
    assert [note["text"] for note in notes if "schedule" in str(note.get("text"))] == []


def test_an_extended_stream_of_random_choices_says_that_they_follow_the_steps(tmp_path: pathlib.Path) -> None:
    given = Plan(
        algorithm="stream_q", config={"hidden": [8]}, steps=40, dataset=None, environment="CartPole-v1", seeds=(0,),
        episodes=1, evaluate_every=20, evaluate_episodes=1,
    )  # fmt: skip
    begun = train(given, tmp_path / "begun")
    notes: list[dict[str, Any]] = []
    assert extend(begun.folder, 80, listener=notes.append).summary["steps"] == 80
    assert any("random choices of stream_q" in str(note.get("text")) for note in notes)


def moved_dataset(run: Run) -> None:
    pathlib.Path(str(run.plan.dataset)).unlink()


def other_dataset(run: Run) -> None:
    save(small_dataset(1), pathlib.Path(str(run.plan.dataset)))


def lost_checkpoint(run: Run) -> None:
    run.checkpoint_path(3).unlink()


def damaged_checkpoint(run: Run) -> None:
    path = run.checkpoint_path(3)
    path.write_bytes(path.read_bytes()[:-1])


def other_machine(run: Run) -> None:
    (run.folder / "kernels.json").write_text('{"machine": "another"}')


def unknown_logger(run: Run) -> None:
    config = json.loads((run.folder / "config.json").read_text())
    (run.folder / "config.json").write_text(json.dumps({**config, "logger": "none"}))


@pytest.mark.parametrize(
    "harm", [moved_dataset, other_dataset, lost_checkpoint, damaged_checkpoint, other_machine, unknown_logger]
)
def test_a_run_that_cannot_be_extended_stays_as_it_was(harm: Any, tmp_path: pathlib.Path) -> None:
    save(small_dataset(), tmp_path / "data.npz")
    given = dataclasses.replace(plan(20), dataset=str(tmp_path / "data.npz"))
    run = train(given, tmp_path / "run")
    harm(run)
    before = contents(run.folder)
    with pytest.raises(SurefootError):
        extend(run.folder, 40)
    assert contents(run.folder) == before
    assert Run.open(run.folder).complete


def test_a_replay_buffer_that_lost_rows_is_not_extended_into_a_larger_one(tmp_path: pathlib.Path) -> None:
    given: dict[str, Any] = {"algorithm": "sac", "seeds": (0,), "evaluate_every": 20}
    run = train(plan(40, config={"initial_steps": 20, "replay_capacity": 30}, **given), tmp_path / "run")
    config = json.loads((run.folder / "config.json").read_text())
    config["plan"]["config"]["replay_capacity"] = 1000
    (run.folder / "config.json").write_text(json.dumps(config))
    before = contents(run.folder)
    with pytest.raises(CheckpointError, match="30 rows, not 80, and its newest rows have replaced the oldest"):
        extend(run.folder, 80)
    assert contents(run.folder) == before


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All seeds of a run are trained in one group, as on a GPU."""
    monkeypatch.setattr("surefoot.runs.start.in_groups", lambda seeds, device: [list(seeds)] if seeds else [])


@pytest.mark.usefixtures("together")
def test_a_disk_that_is_full_between_two_seeds_leaves_the_checkpoints_of_both(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, given = small_dataset(), plan(30, kernels=False)
    whole = train(given, tmp_path / "whole", dataset=data)
    real, calls = checkpoint.save_file, iter(range(100))

    def full(*arguments: Any) -> None:
        if next(calls) == 4:  # after the dataset, both seeds at step 10, and the first at step 20
            raise OSError(errno.ENOSPC, "")
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        full_and_resumed = r"seeds/3/checkpoint\.safetensors: can't be written: the disk is full.*; then continue: sure"
        with pytest.raises(SurefootError, match=full_and_resumed):
            train(given, tmp_path / "run", dataset=data)
    run = Run.open(tmp_path / "run")
    assert [checkpoint.load(run.checkpoint_path(seed))[1]["step"] for seed in (0, 3)] == [10, 10]
    steps: list[int] = []
    resumed = resume(run.folder, listener=lambda event: steps.append(event.get("step", 30)))
    assert min(steps) == 20
    assert bits(resumed) == bits(whole)


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("lost", [True, False])
def test_seeds_of_one_group_at_different_steps_are_not_begun_again_in_silence(
    lost: bool, tmp_path: pathlib.Path
) -> None:
    run = train(plan(20, kernels=False), tmp_path / "run", dataset=small_dataset())
    path = run.checkpoint_path(3)
    tensors, meta = checkpoint.load(path)
    path.unlink()
    if not lost:
        checkpoint.save(path, tensors, {**meta, "step": 10})
    for name in ("summary.json", "seeds/0/result.json", "seeds/3/result.json"):
        (run.folder / name).unlink()
    before = contents(run.folder)
    found = r"0/checkpoint\.safetensors is of step 20.*3/checkpoint\.safetensors is " + (
        "not there" if lost else "of step 10"
    )
    with pytest.raises(CheckpointError, match=f"seeds 0, 3 .*{found}.*Put back copies of one step"):
        resume(run.folder)
    assert {name: before[name] for name in before if name.startswith("seeds/")} == {
        name: value for name, value in contents(run.folder).items() if name.startswith("seeds/")
    }


def test_a_metric_that_is_not_finite_is_left_out_and_the_run_ends(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BC.actor_loss

    def actor_loss(self: BC, batch: Any, noise: Any) -> Any:
        loss, told = real(self, batch, noise)
        return loss, {**told, "ratio": loss.detach() / 0, "lowest": -loss.detach() / 0, "even": loss.detach() / loss}

    monkeypatch.setattr(BC, "actor_loss", actor_loss)
    run = train(plan(20, seeds=(0,)), tmp_path / "run", dataset=small_dataset())
    told = [line["values"] for line in metrics(run) if line["kind"] == "train"]
    assert [values["even"] for values in told] == [1.0, 1.0]
    assert not any({"ratio", "lowest"} & values.keys() for values in told)


def test_a_run_whose_checkpoint_holds_an_infinite_metric_can_end(tmp_path: pathlib.Path) -> None:
    run = train(plan(20, seeds=(0,)), tmp_path / "run", dataset=small_dataset())
    before, path = metrics(run), run.checkpoint_path(0)
    tensors, meta = checkpoint.load(path)
    next(line for line in meta["metrics"] if line["kind"] == "train")["values"]["ratio"] = math.inf
    checkpoint.save(path, tensors, meta)
    for name in ("summary.json", "seeds/0/result.json"):
        (run.folder / name).unlink()
    assert resume(run.folder).complete
    assert metrics(run) == before


def test_losses_can_be_read_while_a_run_trains(tmp_path: pathlib.Path) -> None:
    seen: list[int] = []

    def listen(event: dict[str, Any]) -> None:
        if event["kind"] == "eval":
            seen.append(sum(line["kind"] == "train" for line in read_live(tmp_path / "run")))

    run = train(plan(20, seeds=(0,)), tmp_path / "run", dataset=small_dataset(), listener=listen)
    assert seen == sorted(seen)
    assert seen[0] > 0
    losses = [line["values"] for line in metrics(run) if line["kind"] == "train"]
    assert all("actor_loss" in values for values in losses)


def test_a_line_that_a_crash_has_cut_is_passed_over(tmp_path: pathlib.Path) -> None:
    def line(step: int, loss: float) -> dict[str, Any]:
        return {"kind": "metrics", "line": {"seed": 0, "step": step, "kind": "train", "values": {"loss": loss}}}

    live = LiveMetrics(tmp_path)
    for event in (line(10, 1.0), line(20, 2.0)):
        live(event)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    again = LiveMetrics(tmp_path)
    for event in (line(20, 3.0), line(30, 4.0)):
        again(event)
    assert [(found["step"], found["values"]["loss"]) for found in read_live(tmp_path)] == [
        (10, 1.0),
        (20, 3.0),
        (30, 4.0),
    ]


def test_a_resumed_run_is_heard_by_the_logger_that_it_began_with(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, bool]] = []

    class Heard:
        note: Any

        def __init__(self, folder: pathlib.Path, resumed: bool, options: Any) -> None:
            self.resumed = resumed

        def __call__(self, event: dict[str, Any]) -> None:
            heard.append((event["kind"], self.resumed))

        def close(self) -> None: ...

    monkeypatch.setitem(__import__("surefoot.runs.loggers", fromlist=["LOGGERS"]).LOGGERS, "tensorboard", Heard)
    run = train(plan(20, seeds=(0,)), tmp_path / "run", dataset=small_dataset(), logger="tensorboard")
    assert {resumed for _, resumed in heard} == {False}
    extend(run.folder, 40)
    assert ("metrics", True) in heard


def test_steps_that_fill_no_block_are_told_and_counted_as_they_are_taken(tmp_path: pathlib.Path) -> None:
    heard: list[dict[str, Any]] = []
    config = {"num_envs": 4, "horizon": 16, "epochs": 1}
    given = plan(100, algorithm="ppo", config=config, seeds=(0,), evaluate_every=0)
    run = train(given, tmp_path / "run", listener=heard.append)
    notes = [event["text"] for event in heard if event["kind"] == "note"]
    assert any("blocks of 64 steps: 128 are taken and counted, not 100" in text for text in notes)
    assert run.summary["steps"] == 128
