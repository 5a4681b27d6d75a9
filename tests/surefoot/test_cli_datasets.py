"""`surefoot datasets ...` and the embedded datasets."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from small_runs import small_dataset

from surefoot import data
from surefoot.cli import main
from surefoot.core.base.errors import ConfigError
from surefoot.data.catalogue import neorl2_rows
from surefoot.data.dataset import NO_REWARDS, REWARDS
from surefoot.evaluation.dataset_map import mapped, picture
from surefoot.runs import embedded as generate
from surefoot.runs import recorded as suites

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def small(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "small.hdf5"
    data.save(small_dataset(), path)
    return path


def shown(capsys: Capture, *arguments: str) -> object:
    assert main(["datasets", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_has_the_embedded_datasets_and_the_catalogue(capsys: Capture) -> None:
    rows = shown(capsys, "list")
    assert {row["id"] for row in rows} == {
        *generate.embedded(),
        *suites.names(),
        *data.CATALOGUE,
        *(row["id"] for row in neorl2_rows()),
    }
    (hopper,) = shown(capsys, "list", "hopper-medium-v2")[:1]
    assert hopper["reference_high"] == 3234.3


def test_info_tells_sizes_and_returns(small: pathlib.Path, capsys: Capture) -> None:
    facts = shown(capsys, "info", str(small))
    assert (facts["transitions"], facts["episodes"], facts["env_id"]) == (400, 2, "surefoot/Pendulum-v0")
    assert main(["datasets", "info", str(small)]) == 0
    assert "transitions" in capsys.readouterr().out


def test_verify_passes_a_good_file_and_fails_a_changed_one(small: pathlib.Path, capsys: Capture) -> None:
    assert main(["datasets", "verify", str(small)]) == 0
    assert "good; 400 transitions" in capsys.readouterr().out
    content = bytearray(small.read_bytes())
    content[len(content) // 2] ^= 1
    small.write_bytes(bytes(content))
    assert main(["datasets", "verify", str(small)]) == 2
    assert str(small) in capsys.readouterr().err
    assert main(["datasets", "verify", str(small), "--sha256", "0" * 64, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)[0]["ok"] is False


def test_convert_keeps_the_data(small: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture) -> None:
    shown(capsys, "convert", str(small), str(tmp_path / "small.npz"))
    np.testing.assert_array_equal(data.load(tmp_path / "small.npz").actions, data.load(small).actions)
    assert main(["datasets", "convert", str(small), str(tmp_path / "small.npz")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_convert_names_what_the_other_layout_has_no_place_for(
    small: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    costly, path = tmp_path / "costly.hdf5", tmp_path / "train.npz"
    data.save(small_dataset().replace(costs=np.ones(400, np.float32)), costly)
    assert main(["datasets", "convert", str(costly), str(path), "--layout", "ogbench"]) == 0
    assert f"note: {path} has no place for costs" in capsys.readouterr().err
    assert main(["datasets", "convert", str(costly), str(tmp_path / "all.npz")]) == 0
    assert "no place" not in capsys.readouterr().err


def test_a_made_dataset_says_what_its_file_has_no_place_for(
    small: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    made, attacked = tmp_path / "made.csv", tmp_path / "attacked.csv"
    assert main(["datasets", "generate", "native/pendulum", "--transitions", "200", "-o", str(made)]) == 0
    assert f"note: {made} has no place for env_id" in capsys.readouterr().err
    assert main(["datasets", "corrupt", str(small), "-o", str(attacked)]) == 0
    note = capsys.readouterr().err
    assert f"note: {attacked} has no place for env_id" in note
    assert "corruptions" in note


def test_corrupt_does_not_write_over_the_report_of_another_attack(
    small: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    path, report = tmp_path / "attacked.hdf5", tmp_path / "attacked.hdf5.corruption.json"
    report.write_text("{}")
    assert main(["datasets", "corrupt", str(small), "-o", str(path)]) == 2
    assert f"{report}: exists already; delete it" in capsys.readouterr().err
    assert (report.read_text(), path.exists()) == ("{}", False)


def test_a_rate_that_is_not_whole_is_kept_in_lerobots_layout_and_said(
    small: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    for fps, said in (("12.5", True), ("25", False)):
        assert main(["datasets", "convert", str(small), str(tmp_path / fps), "--layout", "lerobot", "--fps", fps]) == 0
        assert ("says fps 12.5" in capsys.readouterr().err) == said


def test_generate_writes_the_asked_number_of_transitions(tmp_path: pathlib.Path, capsys: Capture) -> None:
    path = tmp_path / "decent.hdf5"
    arguments = ["native/pendulum", "--transitions", "600", "--behaviour", "decent", "--seed", "3", "-o", str(path)]
    facts = shown(capsys, "generate", *arguments)
    assert facts["transitions"] == 600
    assert facts["return_mean"] > -400  # the good behaviour alone; the mixture is near -1000
    np.testing.assert_array_equal(
        data.load(path).rewards, generate.generate("native/pendulum", 3, 600, "decent").rewards
    )


def test_corrupt_changes_one_element_and_reports_it(
    small: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    path = tmp_path / "attacked.hdf5"
    arguments = ["--element", "rewards", "--rate", "0.25", "--exact-count", "--seed", "1", "-o", str(path)]
    report = shown(capsys, "corrupt", str(small), *arguments)["report"]
    assert (report["attacked"], report["rows"]) == (100, 400)
    before, after = data.load(small), data.load(path)
    assert int((before.rewards != after.rewards).sum()) == 100
    np.testing.assert_array_equal(before.observations, after.observations)
    assert json.loads((tmp_path / "attacked.hdf5.corruption.json").read_text()) == report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["lst"], "invalid choice: 'lst'"),
        (["list", "zzz"], "contains 'zzz'"),
        (["info", "nope.hdf5"], "nope.hdf5: no such file"),
        (["info", "SMALL", "--view", "raw"], "view='raw' is unknown"),
        (["verify", "nope.hdf5"], "nope.hdf5: no such file"),
        (["convert", "SMALL", "x.xyz"], "names no format"),
        (["convert", "SMALL", f"{'x' * 300}.npz"], "no file system takes a name this long"),
        (["generate", "native/pendulm"], "did you mean 'native/pendulum'"),
        (["generate", "native/pendulum", "--behaviour", "mixd", "-o", "x.hdf5"], "did you mean 'mixed'"),
        (["generate", "native/pendulum-medium", "--behaviour", "expert", "-o", "x.hdf5"], "name the system"),
        (["generate", "native/pendulum-medium", "--behaviour", "expert"], "name the system"),
        (["info", "pointmaze/stitch", "--view", "d4rl"], "view='d4rl' is of D4RL's files, and pointmaze/stitch"),
        (["generate", "native/pendulum", "--gap", "wnd", "-o", "x.hdf5"], "did you mean 'wind'"),
        (["generate", "--transitions", "0", "-o", "x.hdf5"], "--transitions is 0"),
        (["generate", "--seed", "-1", "-o", "x.hdf5"], "seed -1"),
        (["generate", "--transitions", "5"], "add -o FILE"),
        (["generate", "-o", "SMALL"], "exists already"),
        (["corrupt", "SMALL", "-o", "x.hdf5", "--element", "foo"], "unknown"),
        (["corrupt", "SMALL", "-o", "x.hdf5", "--rate", "2"], "rate is 2.0"),
        (["corrupt", "SMALL", "-o", "x.hdf5", "--mode", "adversarial"], "needs a trained critic"),
        (["corrupt", "SMALL", "-o", "x.hdf5", "--victim", "nowhere"], "not a run folder"),
        (["corrupt", "SMALL", "-o", "SMALL"], "exists already"),
    ],
)
def test_bad_commands_end_with_code_2_and_one_sentence(
    arguments: list[str],
    message: str,
    small: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = small.read_bytes()
    assert main(["datasets", *(str(small) if argument == "SMALL" else argument for argument in arguments)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("surefoot: error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == [small]
    assert small.read_bytes() == before


def test_a_victim_without_critics_is_refused(finished_run: pathlib.Path, small: pathlib.Path, capsys: Capture) -> None:
    path = small.with_name("attacked.hdf5")
    attack = ["--mode", "adversarial", "--victim", str(finished_run), "-o", str(path)]
    assert main(["datasets", "corrupt", str(small), *attack]) == 2
    assert "has no critics to attack" in capsys.readouterr().err
    assert not path.exists()


def test_the_embedded_dataset_is_generated_once_and_then_read_from_the_cache() -> None:
    first = generate.load("native/pendulum-mixed")
    path = generate.cached_path("native/pendulum-mixed")
    written = path.stat().st_mtime_ns
    again = generate.load("native/pendulum-mixed")
    assert path.stat().st_mtime_ns == written
    assert (again.name, again.env_id, len(again)) == ("native/pendulum-mixed", "surefoot/Pendulum-v0", 50_000)
    np.testing.assert_array_equal(first.actions, again.actions)


def test_a_damaged_file_in_the_cache_is_generated_again() -> None:
    path = generate.cached("native/pendulum-mixed")
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    assert len(generate.load("native/pendulum-mixed")) == 50_000
    assert len(path.read_bytes()) == len(good)


def test_generated_episodes_end_where_their_ids_do() -> None:
    dataset = generate.generate("native/pendulum-mixed", transitions=600)
    data.validate(dataset)
    assert dataset.episode_lengths.tolist() == [200, 200, 200]
    assert dataset.truncations.nonzero()[0].tolist() == [199, 399, 599]


def test_the_environment_is_the_one_asked_for_else_the_datasets_else_an_error() -> None:
    dataset = small_dataset()
    assert generate.environment_of(dataset, None) == "surefoot/Pendulum-v0"
    assert generate.environment_of(dataset, "module:Id-v0") == "module:Id-v0"
    assert generate.environment_of(dataset, "none") is None
    with pytest.raises(ConfigError, match="env=none"):
        generate.environment_of(dataset.replace(env_id=None), None)


def test_info_measures_and_the_map_draws(small: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture) -> None:
    half = tmp_path / "half.hdf5"
    data.save(data.load(small).select_episodes(np.array([0])), half)
    facts = shown(capsys, "info", str(half), "--reference", str(small))
    assert facts["cells_of_rows"] == 200
    assert 0 < facts["saco"] <= 1.5
    assert facts["tq"] == pytest.approx(facts["normalized_mean"] / 100)
    picture = tmp_path / "map.png"
    found = shown(capsys, "map", str(half), str(small), "-o", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert max(row["saco"] for row in found["rows"]) == 1
    assert {row["limits_of"] for row in found["rows"]} == {"all of these"}, "the edges divide the range of both"
    (widest,) = {row["saco_of"] for row in found["rows"]}
    assert widest in [row["dataset"] for row in found["rows"] if row["saco"] == 1]
    found = shown(capsys, "map", str(half), "--reference", str(small), "-o", str(picture))
    assert (found["rows"][0]["limits_of"], found["rows"][0]["saco_of"]) == (str(small), str(small))
    assert main(["datasets", "map", str(half), "-o", str(tmp_path / "map.svg")]) == 2
    assert "drawn as a .png" in capsys.readouterr().err


def test_a_dataset_that_is_alone_of_its_task_has_no_saco(small: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (alone,) = mapped([data.load(small)])
    assert (alone["saco"], alone["saco_of"], alone["unique_cells"] > 0) == (None, None, True)
    assert main(["datasets", "map", str(small), "-o", str(tmp_path / "map.png")]) == 0


def test_data_without_rewards_have_no_return_on_the_map(small: pathlib.Path) -> None:
    dataset = data.load(small)
    none = dataset.replace(rewards=0 * dataset.rewards, attributes={REWARDS: NO_REWARDS}, name="none.npz")
    rows = mapped([dataset, none])
    assert (rows[1]["return_mean"], rows[1]["tq"], rows[1]["saco"]) == (None, None, 1)
    assert rows[0]["return_mean"] == pytest.approx(dataset.episode_returns.mean())
    figure = picture(rows)
    assert [axis.get_ylabel() for axis in figure.axes] == ["TQ: 0 random, 1 expert"] * 2
    assert all(axis.get_xlabel().endswith("; 1 without rewards") for axis in figure.axes)
    alone = picture(rows[1:]).axes
    assert [(axis.get_ylabel(), len(axis.get_yticks()), len(axis.texts)) for axis in alone] == [
        ("no rewards", 0, 1)
    ] * 2


def test_a_mapping_is_of_the_source_and_of_other_logs_that_need_it(
    small: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    log, mapping = tmp_path / "log.csv", tmp_path / "m.yaml"
    dataset = data.load(small)
    rows = np.column_stack([dataset.episode_ids, dataset.observations, dataset.actions])
    np.savetxt(log, rows, delimiter=",", header="trial,a,b,c,u", comments="")
    mapping.write_text("observations: [a, b, c]\nactions: [u]\nepisode: trial\n")
    by = ["--mapping", str(mapping)]
    for reference in (small, log):
        facts = shown(capsys, "info", str(log), *by, "--reference", str(reference))
        assert (facts["saco"], facts["limits_of"]) == (1, str(reference))
    found = shown(capsys, "map", str(log), str(small), *by, "-o", str(tmp_path / "map.png"))
    assert [row["dataset"] for row in found["rows"]] == [str(log), str(small)]
    mapping.write_text("observations: [a, b, c]\nactions: [torque]\n")
    assert main(["datasets", "map", str(log), *by, "-o", str(tmp_path / "none.png")]) == 2
    said = capsys.readouterr().err
    assert "torque" in said
    assert "(by --mapping; without it: " in said


def test_a_file_without_time_outs_is_viewed_as_d4rl_does_by_its_step_limit(
    tmp_path: pathlib.Path, capsys: Capture
) -> None:
    path, dataset = tmp_path / "a.npz", small_dataset()
    columns = {name: getattr(dataset, name) for name in ("observations", "actions", "rewards")}
    np.savez(path, **columns, terminals=dataset.terminations)
    assert main(["datasets", "info", str(path), "--view", "d4rl"]) == 2
    assert "give max_episode_steps" in capsys.readouterr().err
    limit = ["--view", "d4rl", "--max-episode-steps", "200"]
    assert shown(capsys, "info", str(path), *limit)["transitions"] == 398
    assert shown(capsys, "convert", str(path), str(tmp_path / "b.npz"), *limit)["transitions"] == 398
    assert shown(capsys, "info", str(path), "--max-episode-steps", "100")["episodes"] == 4


def test_info_names_observations_that_stay_equal(small: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture) -> None:
    assert shown(capsys, "info", str(small))["constant_observations"] is None
    dataset = data.load(small)
    observations = dataset.observations.copy()
    observations[:, 1] = 7
    data.save(dataset.replace(observations=observations), tmp_path / "still.npz")
    assert shown(capsys, "info", str(tmp_path / "still.npz"))["constant_observations"] == ["observation_1"]


def test_the_tasks_of_neorl2_are_listed_with_what_they_hide(capsys: Capture) -> None:
    rows = shown(capsys, "list", "neorl2")
    assert len(rows) == 8
    (damper,) = [row for row in rows if row["environment"] == "neorl2:DMSD"]
    assert "hidden: each mass's second target" in damper["note"]
    assert "best edac 78.7" in damper["note"]


def test_convert_and_pack_scale_the_cameras_that_they_are_asked_for(
    tmp_path: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache" / "data"))
    source = tmp_path / "visual.npz"
    pictures = np.random.default_rng(0).integers(0, 256, (12, 12, 10, 3), dtype=np.uint8)
    ends = np.arange(12) % 6 == 5
    np.savez(source, observations=pictures, actions=np.zeros((12, 2), np.float32), terminals=ends)
    options = ("--image-size", "6", "5", "--cameras", "image")
    shown(capsys, "convert", str(source), str(tmp_path / "small.hdf5"), *options)
    shown(capsys, "pack", str(source), "-o", str(tmp_path / "small.store"), *options)
    expected = data.load(source, image_size=[6, 5])
    for name in ("small.hdf5", "small.store"):
        found = data.load(tmp_path / name)
        assert (found.arrays["image"].shape, found.arrays["image"].scaled) == ((6, 5, 3), "box")
        for which in ("observations/image", "next_observations/image"):
            np.testing.assert_array_equal(found.extras[which][:], expected.extras[which][:])
