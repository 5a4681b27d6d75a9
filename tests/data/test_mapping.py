"""Logs of one's own: columns by a mapping, data without rewards, rewards by a function, files read once."""

from __future__ import annotations

import os
import pathlib
import re
import time
from typing import Any

import h5py
import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import convert, info, load, logs, save
from surefoot.data.checks import INSIDE, PAUSED
from surefoot.data.dataset import BEST_RETURN
from surefoot.data.formats import file_patterns
from surefoot.data.formats import mapping as mappings
from surefoot.data.formats.columns import csv_table
from surefoot.data.formats.file_patterns import files_like
from surefoot.data.prepare import best_return
from surefoot.data.rewards import rewarded

LOG = "time;trial;q;dq;torque;mode\n0.0;a;1;10;-1;auto\n0.1;a;2;20;-2;auto\n0.2;b;3;30;-3;auto\n5.0;b;4;40;-4;hand\n"


def written(folder: pathlib.Path, mapping: str, log: str = LOG) -> pathlib.Path:
    (folder / "log.csv").write_text(log)
    (folder / "log.yaml").write_text(mapping)
    return folder / "log.yaml"


def test_columns_of_a_log_become_transitions_of_its_episodes(tmp_path: pathlib.Path) -> None:
    data = load(written(tmp_path, "files: log.csv\nobservations: [q, dq]\nactions: torque\nepisode: trial\n"))
    np.testing.assert_array_equal(data.observations, [[1, 10], [2, 20], [3, 30], [4, 40]])
    np.testing.assert_array_equal(data.actions[:, 0], [-1, -2, -3, -4])
    np.testing.assert_array_equal(data.episode_ids, [0, 0, 1, 1])
    np.testing.assert_array_equal(data.truncations, [False, True, False, True])
    np.testing.assert_array_equal(data.transitions, [True, False, True, False])  # nothing says what followed a last row
    np.testing.assert_array_equal(data.next_observations[data.transitions], [[2, 20], [4, 40]])
    assert not data.has_rewards


def test_further_columns_are_kept_under_the_names_that_the_mapping_gives_them(tmp_path: pathlib.Path) -> None:
    text = "files: log.csv\nobservations: q\nactions: torque\nepisode: trial\n"
    data = load(written(tmp_path, text + "extras: {behaviour_log_density: dq, clock: time}\n"))
    np.testing.assert_array_equal(data.extras["behaviour_log_density"], [10, 20, 30, 40])
    np.testing.assert_array_equal(data.extras["clock"], [0.0, 0.1, 0.2, 5.0])
    assert info(data)["extras"] == {"behaviour_log_density": (10, 40), "clock": (0, 5)}
    save(data, tmp_path / "kept.npz")
    np.testing.assert_array_equal(load(tmp_path / "kept.npz").extras["clock"], data.extras["clock"])
    (tmp_path / "more.csv").write_bytes((tmp_path / "log.csv").read_bytes())
    two = load(written(tmp_path, text.replace("log.csv", "[log.csv, more.csv]") + "extras: {margins: dq}\n"))
    np.testing.assert_array_equal(two.extras["margins"], [10, 20, 30, 40] * 2)


@pytest.mark.parametrize(
    ("extras", "sentence"),
    [
        ("{rewards: dq}", "'extras' names 'rewards', which has a key of its own"),
        ("{observations/more: dq}", "'extras' names 'observations/more', which has"),
        ("{mode: mode}", "'mode'"),
        ("{margins: gone}", "'gone'"),
        ("[dq]", "extras"),
    ],
)
def test_extras_that_are_not_there_or_no_numbers_or_something_else_are_refused(
    tmp_path: pathlib.Path, extras: str, sentence: str
) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        load(written(tmp_path, f"files: log.csv\nobservations: q\nactions: torque\nextras: {extras}\n"))


def test_a_gap_in_time_ends_an_episode(tmp_path: pathlib.Path) -> None:
    text = "files: log.csv\nobservations: q\nactions: torque\ntime: time\ngap: 1\nreward: dq\n"
    data = load(written(tmp_path, text))
    np.testing.assert_array_equal(data.episode_ids, [0, 0, 0, 1])
    np.testing.assert_array_equal(data.rewards, [10, 20, 30, 40])
    assert PAUSED not in data.warnings


def test_a_pause_within_an_episode_is_warned_of_where_no_gap_ends_it(tmp_path: pathlib.Path) -> None:
    text = "files: log.csv\nobservations: q\nactions: torque\ntime: time\n"  # 0.1, 0.1 and 4.8 s between its rows
    data = load(written(tmp_path, text))
    assert (data.episode_lengths.tolist(), data.warnings[PAUSED]) == ([4], 1)
    with pytest.raises(DataError, match="1 a step more than ten times as long as the median"):
        load(tmp_path / "log.yaml", strict=True)
    assert PAUSED not in load(written(tmp_path, text, LOG.replace("5.0;b", "1.1;b"))).warnings  # nine times as long
    split = LOG.replace("5.0;b", "5.0;c")
    assert PAUSED not in load(written(tmp_path, text + "episode: trial\n", split)).warnings


def test_parts_of_array_columns_and_patterns_are_chosen(tmp_path: pathlib.Path) -> None:
    arrays = {"obs/joint_pos": np.arange(12.0).reshape(3, 4), "obs/joint_vel": np.ones((3, 2)), "cmd": np.eye(3)}
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    (tmp_path / "m.yaml").write_text("observations: ['obs/joint_pos[1:3]', 'obs/joint_v*']\nactions: 'cmd[2]'\n")
    data = load(tmp_path / "episode_0.hdf5", mapping=tmp_path / "m.yaml")
    np.testing.assert_array_equal(data.observations, [[1, 2, 1, 1], [5, 6, 1, 1], [9, 10, 1, 1]])
    np.testing.assert_array_equal(data.actions[:, 0], [0, 0, 1])


@pytest.mark.parametrize(
    ("mapping", "sentence"),
    [
        ("files: log.csv\nobservations: [qq]\nactions: torque", r"log.csv: has no column 'qq': did you mean 'q'"),
        ("files: log.csv\nobservations: [mode]\nactions: torque", r"'auto' in line 2 of column 'mode' is not a number"),
        ("files: log.csv\nobservations: q", r"log.yaml: it has no key 'actions'"),
        ("files: log.csv\nobservation: q\nactions: torque", r"'observation', which is not known; did you mean"),
        ("files: none*.csv\nobservations: q\nactions: torque", r"'files' names none\*.csv.*does not exist"),
        ("files: ['*.csv', log.csv]\nobservations: q\nactions: torque", r"log.csv by \*.csv and by log.csv; its rows"),
        ("files: [log.csv, log.csv]\nobservations: q\nactions: torque", r"log.csv by log.csv twice; its rows"),
        ("observations: q\nactions: torque", r"names no files"),
        ("files: log.csv\nobservations: q\nactions: torque\ngap: 1", r"'gap' needs 'time'"),
        ("files: log.csv\nobservations: q\nactions: torque\nrate: 10", r"'rate' is of recorded messages.*log.csv"),
        ("files: log.csv\nobservations: q\nactions: torque\nimage_size: 8", r"'image_size' scales pictures, and none"),
        ("files: log.csv\nobservations: q\nactions: torque\ntermination: dq", r"'dq' holds 10.0 in row 0"),
        ("a: &b [c]\nd: *b", r"log.yaml, line 2: is no YAML \(it has references"),
        ("{{{", r"log.yaml, line 1: is no YAML"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused_in_a_sentence(
    tmp_path: pathlib.Path, mapping: str, sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        load(written(tmp_path, mapping))


def test_a_cell_that_is_missing_is_named_by_line_and_column(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path, "files: log.csv\nobservations: q\nactions: torque", LOG.replace("b;4", "b;"))
    with pytest.raises(DataError, match=r"log.csv: '' in line 5 of column 'q' is not a number"):
        load(path)


@pytest.mark.parametrize("column", ["q", "dq", "torque", "time"])
@pytest.mark.parametrize(("cell", "told"), [("nan", "nan"), ("-inf", "-inf"), ("1e39", "inf")])
def test_a_cell_that_is_not_finite_is_named_by_file_line_and_column(
    tmp_path: pathlib.Path, column: str, cell: str, told: str
) -> None:
    head, *rows = LOG.split("\n")
    cells = rows[2].split(";")
    cells[head.split(";").index(column)] = cell
    log = "\n".join([head, rows[0], "", rows[1], ";".join(cells), rows[3]])
    mapping = "files: log.csv\nobservations: q\nactions: torque\nreward: dq\ntime: time"
    with pytest.raises(DataError, match=rf"log.csv: '{column}' holds {told} in line 5 and 1 values in all"):
        load(written(tmp_path, mapping, log))


def test_a_number_of_an_array_that_is_not_finite_is_named_by_file_row_and_column(tmp_path: pathlib.Path) -> None:
    values = np.ones((9, 3))
    values[4, 1] = np.nan
    np.savez(tmp_path / "log.npz", q=values, u=np.ones(9))
    for name, refused in (("q[0:2]", True), ("q[2]", False)):
        (tmp_path / "log.yaml").write_text(f"files: log.npz\nactions: u\nobservations: '{name}'\n")
        if not refused:
            assert load(tmp_path / "log.yaml").observation_dim == 1
            continue
        with pytest.raises(DataError, match=r"log.npz: 'q\[0:2\]' holds nan in row 4 and"):
            load(tmp_path / "log.yaml")


def test_blank_lines_are_counted_where_a_cell_is_named(tmp_path: pathlib.Path) -> None:
    head, *rows = LOG.split("\n")
    mapping = "files: log.csv\nobservations: q\nactions: torque\nepisode: trial"
    blank = "\n".join([head, "", *rows[:2], "", "", *rows[2:]])
    assert len(load(written(tmp_path, mapping, blank))) == 4
    assert "mode: text" in logs.draft(tmp_path / "log.csv")
    for broken, sentence in (
        (blank.replace("b;4", "b;up"), r"'up' in line 8 of column 'q'"),
        (blank.replace("b;4", " ;4"), r"the cell in line 8 of column 'trial'"),
        (blank.replace(";hand", ""), r"line 8 has 5 cells"),
    ):
        with pytest.raises(DataError, match=sentence):
            load(written(tmp_path, mapping, broken))


@pytest.mark.parametrize(
    ("shape", "small"),
    [
        ((6, 8, 3), (3, 4, 3)),
        ((3, 6, 8), (3, 3, 4)),
        ((6, 8), (3, 4)),
        ((6, 8, 1), (3, 4, 1)),
        ((2, 6, 8, 3), (2, 3, 4, 3)),
    ],
)
def test_pictures_of_an_archive_are_scaled(
    tmp_path: pathlib.Path, shape: tuple[int, ...], small: tuple[int, ...]
) -> None:
    seen = np.random.default_rng(0).integers(0, 255, (5, *shape)).astype(np.uint8)
    np.savez(tmp_path / "log.npz", seen=seen, u=np.zeros((5, 1)))
    (tmp_path / "log.yaml").write_text("files: log.npz\nimages: seen\nactions: u\nimage_size: [3, 4]\n")
    found = load(tmp_path / "log.yaml").extras["observations/image"]
    assert found.shape == (5, *small)
    rows, columns = (i for i, (size, less) in enumerate(zip(shape, small, strict=True), 1) if size != less)
    halves = [seen.take(range(start, shape[rows - 1], 2), rows).astype(float) for start in (0, 1)]
    quarters = [half.take(range(start, shape[columns - 1], 2), columns) for half in halves for start in (0, 1)]
    np.testing.assert_allclose(found, sum(quarters) / 4, atol=1)  # each is the mean of the four in its place


def test_a_function_rewards_all_steps_at_once_and_what_it_gives_is_checked(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path, "files: log.csv\nobservations: [q, dq]\nactions: torque\nepisode: trial\n")
    data = load(path, reward=lambda o, a, after: after[:, 0] - o[:, 0] + a[:, 0])
    np.testing.assert_array_equal(data.rewards, [0, -2, -2, -4])
    assert data.has_rewards
    with pytest.raises(DataError, match=r"gave float32 of shape \(4, 1\) for 4 steps"):
        load(path, reward=lambda o, a, after: a)
    with pytest.raises(ConfigError, match=r"raised ZeroDivisionError"):
        load(path, reward=lambda o, a, after: 1 / 0)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".hdf5", ".parquet"])
def test_that_data_have_no_rewards_survives_every_format(tmp_path: pathlib.Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    data = load(written(tmp_path, "files: log.csv\nobservations: [q, dq]\nactions: torque\nepisode: trial\n"))
    save(data, tmp_path / f"a{suffix}")
    back = load(tmp_path / f"a{suffix}")
    assert not back.has_rewards
    np.testing.assert_array_equal(back.observations, data.observations)


def test_a_conversion_that_was_stopped_reads_only_the_files_that_are_left(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(3):
        (tmp_path / f"run{k}.csv").write_text("q,u\n" + f"{k},0.5\n{k},0.25\n")
    (tmp_path / "m.yaml").write_text("files: 'run*.csv'\nobservations: q\nactions: u\n")
    opened: list[str] = []
    real = logs.arrays_of

    def stopping(mapping: Any, table: Any) -> Any:
        opened.append(table.path.name)
        if table.path.name == "run2.csv" and len(opened) == 3:
            raise KeyboardInterrupt
        return real(mapping, table)

    monkeypatch.setattr(logs, "arrays_of", stopping)
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "m.yaml", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()
    told: list[tuple[int, int]] = []
    data = convert(tmp_path / "m.yaml", tmp_path / "out.npz", files_done=lambda done, total: told.append((done, total)))
    assert opened == ["run0.csv", "run1.csv", "run2.csv", "run2.csv"]
    assert told == [(1, 3), (2, 3), (3, 3)]
    np.testing.assert_array_equal(data.observations[:, 0], [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(data.episode_ids, [0, 0, 1, 1, 2, 2])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_was_kept_of_a_file_that_changed_is_not_used(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("q,u\n1,0.5\n")
    mapping = mappings.LogMapping(path="", actions=("u",), observations=("q",))
    before = mappings.fingerprint(mapping, tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("q,u\n1,0.5\n2,1\n")
    assert mappings.fingerprint(mapping, tmp_path / "a.csv") != before


def test_terminations_inside_an_episode_that_the_mapping_names_are_counted(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("q,u,trial,success\n" + "1,1,0,0\n1,1,0,1\n1,1,0,1\n1,1,1,0\n1,1,1,1\n1,1,2,0\n")
    (tmp_path / "b.csv").write_text("q,u,trial,success\n" + "1,1,2,1\n1,1,2,0\n")
    text = "files: ['?.csv']\nobservations: q\nactions: u\ntermination: success\n"
    (tmp_path / "m.yaml").write_text(text + "episode: trial\n")
    data = load(tmp_path / "m.yaml")
    assert data.episode_lengths.tolist() == [2, 1, 2, 1, 1, 1]
    assert data.warnings[INSIDE] == 2  # the second row of the first file, the first of the second
    with pytest.raises(DataError, match=f"2 {INSIDE}"):
        load(tmp_path / "m.yaml", strict=True)
    (tmp_path / "m.yaml").write_text(text)
    assert INSIDE not in load(tmp_path / "m.yaml").warnings


def test_dates_truth_values_and_quotes_in_a_text_file_are_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('when,"a, b",on\n2026-01-01T00:00:00,1.5,True\n2026-01-01T00:00:02,"2.5",false\n')
    found = csv_table(path).read(["when", "a, b", "on"])
    np.testing.assert_array_equal(np.diff(found["when"]), [2])
    np.testing.assert_array_equal(found["a, b"], [1.5, 2.5])
    np.testing.assert_array_equal(found["on"], [1, 0])


def test_a_log_by_dates_is_no_shorter_where_local_clocks_leap(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    times = [f"2026-03-29T0{k // 60}:{k % 60:02}:00" for k in range(90, 210, 10)]  # 01:30 to 03:20
    path.write_text("when,zone\n" + "".join(f"{one},{one}+01:00\n" for one in times))
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        found = csv_table(path).read(["when", "zone"])
    finally:
        monkeypatch.undo()
        time.tzset()
    np.testing.assert_array_equal(np.diff(found["when"]), 600)
    np.testing.assert_array_equal(found["when"] - found["zone"], 3600)  # those without an offset are of UTC


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("observations: 'q[1:5]'\n", r"'q\[1:5\]' is beyond column 'q' of shape \(9, 3\)"),  # numpy would give two
        ("observations: 'q[3:]'\n", r"'q\[3:\]' is beyond"),
        ("observations: ['q[0:3]', 'q[-4]']\n", r"'q\[-4\]' is beyond"),
        ("observations: 'u[0]'\n", r"'u\[0\]' is beyond column 'u' of shape \(9,\)"),
        ("observations: q\ntime: q\n", r"the time 'q' has shape \(9, 3\); it must be \(9,\)"),
    ],
)
def test_places_that_a_column_does_not_have_are_refused(tmp_path: pathlib.Path, text: str, sentence: str) -> None:
    np.savez(tmp_path / "log.npz", q=np.ones((9, 3)), u=np.ones(9))
    (tmp_path / "log.yaml").write_text(f"files: log.npz\nactions: u\n{text}")
    with pytest.raises(DataError, match=sentence):
        load(tmp_path / "log.yaml")


def test_places_within_a_column_are_those_of_numpy(tmp_path: pathlib.Path) -> None:
    values = np.arange(27.0).reshape(9, 3)
    np.savez(tmp_path / "log.npz", q=values, u=np.ones(9))
    (tmp_path / "log.yaml").write_text("files: log.npz\nactions: u\nobservations: ['q[1:3]', 'q[-1]', 'q[:-1]']\n")
    np.testing.assert_array_equal(load(tmp_path / "log.yaml").observations, values[:, [1, 2, 2, 0, 1]])


@pytest.mark.parametrize("given", ["in the mapping", "by the caller"])
def test_a_step_limit_cuts_a_log_that_marks_no_cuts(tmp_path: pathlib.Path, given: str) -> None:
    (tmp_path / "log.csv").write_text("q,u,fell\n" + "".join(f"{k},{k},{int(k == 2)}\n" for k in range(10)))
    text, options = "observations: q\nactions: u\ntermination: fell\n", {}
    if given == "in the mapping":
        text += "max_episode_steps: 4\n"
    else:
        options["max_episode_steps"] = 4
    (tmp_path / "m.yaml").write_text(text)
    data = load(tmp_path / "log.csv", mapping=tmp_path / "m.yaml", **options)
    assert data.episode_lengths.tolist() == [3, 4, 3]  # counted anew after the fall
    assert data.transitions.tolist() == [True] * 6 + [False] + [True] * 2 + [False]
    (tmp_path / "m.yaml").write_text(text + "truncation: fell\n")
    assert load(tmp_path / "log.csv", mapping=tmp_path / "m.yaml").episode_lengths.tolist() == [3, 7]  # marked


def test_an_episode_that_a_row_does_not_name_is_no_episode_of_its_own(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "log.npz", q=np.arange(4.0), u=np.arange(4.0), e=np.array([0, np.nan, np.nan, 1]))
    (tmp_path / "m.yaml").write_text("observations: q\nactions: u\nepisode: e\n")
    with pytest.raises(DataError, match=r"'e' holds nan in row 1"):
        load(tmp_path / "log.npz", mapping=tmp_path / "m.yaml")
    (tmp_path / "log.csv").write_text("q,u,e\n0,0,a\n1,1,\n2,2,\n3,3,b\n")
    with pytest.raises(DataError, match=r"the cell in line 3 of column 'e' is empty"):
        load(tmp_path / "log.csv", mapping=tmp_path / "m.yaml")


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_a_column_of_episodes_has_its_own_numbers_wherever_else_it_is_named(
    tmp_path: pathlib.Path, suffix: str
) -> None:
    trial, q = np.repeat([5, 7], 3), np.arange(6) / 2
    np.savetxt(tmp_path / "a.csv", np.stack((trial, q), 1), delimiter=",", header="trial,q", comments="", fmt="%g")
    np.savez(tmp_path / "a.npz", trial=trial, q=q)
    columns = f"files: [a.{suffix}]\nobservations: [q, trial]\nactions: [q]\nepisode: trial\nextras: {{trial: trial}}\n"
    (tmp_path / "a.yaml").write_text(columns)
    found = load(tmp_path / "a.yaml")
    assert found.observations[:, 1].tolist() == found.extras["trial"].tolist() == trial.tolist()
    assert found.episode_ids.tolist() == [0, 0, 0, 1, 1, 1]


def test_episodes_by_texts_are_no_numbers_elsewhere(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("trial,q\nleft,1.5\nleft,2\nright,3\n")
    (tmp_path / "a.yaml").write_text("files: [a.csv]\nobservations: [q, trial]\nactions: [q]\nepisode: trial\n")
    with pytest.raises(DataError, match=r"'left' in line 2 of column 'trial' is not a number"):
        load(tmp_path / "a.yaml")


@pytest.mark.parametrize("cell", ["nan", " NaN"])
def test_a_row_whose_episode_is_no_number_does_not_cut_one_in_three(tmp_path: pathlib.Path, cell: str) -> None:
    (tmp_path / "a.csv").write_text(f"e,q\n1,1.5\n1,2\n{cell},3\n1,4\n1,5\n")
    (tmp_path / "a.yaml").write_text("files: [a.csv]\nobservations: [q]\nactions: [q]\nepisode: e\n")
    with pytest.raises(DataError, match=r"the cell in line 4 of column 'e' is nan"):
        load(tmp_path / "a.yaml")


def test_a_reward_function_takes_the_best_return_of_other_rewards_away(tmp_path: pathlib.Path) -> None:
    data = load(written(tmp_path, "files: log.csv\nobservations: q\nactions: torque\nreward: dq\n"))
    data = data.replace(attributes={**data.attributes, BEST_RETURN: 1e6})
    assert best_return(data) == 1e6
    assert best_return(rewarded(data, lambda o, a, after: np.ones(4), "ones")) == 4


@pytest.mark.parametrize("name", ["pipe", "endless", "folder", "/dev/zero", "/dev", "..", "a\\0b"])
def test_files_that_a_mapping_names_are_files_or_logs_in_folders(tmp_path: pathlib.Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    path = written(tmp_path, f'files: ["{name}"]\nobservations: q\nactions: torque\n')
    with pytest.raises(DataError, match=r"is no log: neither|control character"):
        load(path)


def test_a_pattern_of_files_does_not_walk_the_disk(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_patterns, "MOST_LOOKED_AT", 30)
    for run in range(4):
        (tmp_path / f"run{run}").mkdir()
        for log in ("b.csv", "a.csv", ".hidden.csv", "c.txt"):
            (tmp_path / f"run{run}" / log).write_text(LOG)
    found = files_like(tmp_path / "run[0-2]" / "?.csv", "m.yaml")
    assert found == [tmp_path / f"run{run}" / log for run in range(3) for log in ("a.csv", "b.csv")]
    assert files_like(tmp_path / "run0" / ".*", "m.yaml") == [tmp_path / "run0" / ".hidden.csv"]
    assert files_like(tmp_path / "*" / "gone.csv", "m.yaml") == []
    (tmp_path / "run[0]").mkdir()
    assert files_like(tmp_path / "run[0]", "m.yaml") == [tmp_path / "run[0]"]
    path = written(tmp_path, "files: ['/*/*/*/*']\nobservations: q\nactions: torque\n")
    with pytest.raises(DataError, match=r"log\.yaml: 'files' names /\*/\*/\*/\*, for which more than 30 files"):
        load(path)
