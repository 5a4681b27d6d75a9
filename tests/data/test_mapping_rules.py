"""Rules of a mapping for gaps and status: the page's examples, by hand, and what is refused."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest

from surefoot.core.base.errors import DataError
from surefoot.data import info, load, logs
from surefoot.data.formats.repairs import applied

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "own_data.md"
SECTION = re.search(r"## Gaps and status\n(.*?)\n## ", PAGE.read_text(), re.DOTALL)
assert SECTION is not None
LOG = re.findall(r"```text\n(.*?)```", SECTION[1], re.DOTALL)[0]
EXAMPLES = re.findall(r"```yaml\n((?:(?!```)[\s\S])*)```\ngives episodes of ([\d, ]+) steps; (.*)", SECTION[1])


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "log.csv").write_text(LOG)
    return tmp_path


def mapped(folder: pathlib.Path, text: str) -> pathlib.Path:
    (folder / "map.yaml").write_text(text)
    return folder / "map.yaml"


def test_the_page_has_an_example_of_each_rule() -> None:
    said = "".join(yaml for yaml, _, _ in EXAMPLES)
    for rule in ("interpolate", "hold", "fill_at_most", "drop", "end_where"):
        assert f"{rule}:" in said


@pytest.mark.parametrize(("yaml", "lengths", "columns"), EXAMPLES)
def test_an_example_of_the_page_gives_what_it_says(folder: pathlib.Path, yaml: str, lengths: str, columns: str) -> None:
    found = load(mapped(folder, yaml))
    assert found.episode_lengths.tolist() == numbers(lengths)
    for index, one in enumerate(columns.split(";")):
        name, _, wanted = one.strip().partition(" = ")
        assert (found.observation_names or ())[index] == name
        np.testing.assert_allclose(found.observations[:, index], numbers(wanted), rtol=1e-6)


def test_counts_say_how_often_each_rule_was_applied(folder: pathlib.Path) -> None:
    found = load(mapped(folder, EXAMPLES[0][0]))
    wanted = {
        "numbers of q interpolated": 1,
        "numbers of temp interpolated": 1,
        "numbers of goal held": 4,
        "rows without temp left out": 1,
    }
    assert applied(found.attributes) == info(found)["repairs"] == wanted


def test_a_status_cuts_off_or_terminates_and_numbers_are_a_status_too(folder: pathlib.Path) -> None:
    text = "files: log.csv\nobservations: u\nactions: u\nend_where: {column: %s, in: [%s]%s}\n"
    cut = load(mapped(folder, text % ("status", "fault", "")))
    assert (cut.terminations.sum(), cut.truncations.tolist()) == (0, [0, 0, 0, 1, 0, 1])
    ended = load(mapped(folder, text % ("status", "fault", ", as: termination")))
    assert ended.terminations.tolist() == [0, 0, 0, 1, 0, 0]
    assert ended.transitions.tolist() == [1, 1, 1, 1, 1, 0]
    numbered = load(mapped(folder, text % ("u", "1", "")))  # rows 1, 3 and 5 are 1
    assert numbered.episode_lengths.tolist() == [2, 2, 2, 1]


def test_gaps_are_filled_by_the_clock_and_never_across_an_end(folder: pathlib.Path) -> None:
    (folder / "log.csv").write_text("t,trial,q,u\n0,a,0,0\n1,a,,0\n4,a,4,0\n5,b,,0\n6,b,8,0\n")
    text = "files: log.csv\nobservations: q\nactions: u\ntime: t\nepisode: trial\ninterpolate: q\ndrop: q\n"
    found = load(mapped(folder, text))
    assert found.observations[:, 0].tolist() == [0, 1, 4, 8]  # 1 of 4 seconds on the way from 0 to 4
    assert found.episode_lengths.tolist() == [3, 1]
    with pytest.raises(DataError, match=r"'q' holds nan in line 5 .*interpolate, hold or drop"):
        load(mapped(folder, text.replace("drop: q\n", "")))


def test_longer_gaps_stay(folder: pathlib.Path) -> None:
    (folder / "log.csv").write_text("q,u\n0,0\n,0\n2,0\n,0\n,0\n5,0\n")
    text = "files: log.csv\nobservations: q\nactions: u\nhold: '*'\nfill_at_most: 1\ndrop: '*'\n"
    found = load(mapped(folder, text))
    assert found.observations[:, 0].tolist() == [0, 0, 2, 5]
    assert found.episode_lengths.tolist() == [3, 1]


def test_gaps_of_arrays_and_parquet_are_gaps_too(folder: pathlib.Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"q": [1.0, None, 3.0], "n": [1, None, 3], "u": [0.0] * 3, "state": ["ok", "ok", "off"]}
    pq.write_table(pa.table(columns), folder / "log.parquet")
    text = "files: log.%s\nobservations: [q, n]\nactions: u\ninterpolate: [q, n]\n"
    more = "end_where: {column: state, in: ['off']}\n"
    assert load(mapped(folder, text % "parquet" + more)).observations.tolist() == [[1, 1], [2, 2], [3, 3]]
    both = np.array([1.0, np.nan, 3.0])
    np.savez(folder / "log.npz", q=both, n=both, u=np.zeros(3))
    assert load(mapped(folder, text % "npz")).observations.tolist() == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("drop: [tt]", r"'drop' names 'tt', and must name columns.*'t'"),
        ("interpolate: [status]", "'interpolate' names 'status'"),
        ("end_where: {column: state, in: [x]}", "no column 'state'"),
        ("end_where: {column: status, in: []}", "must have 1"),
        ("end_where: {column: status, in: [ok, fault]}\ndrop: t", None),
        ("end_where: {column: status, in: [ok], as: pause}", "must be one of termination, truncation"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(folder: pathlib.Path, rule: str, words: str | None) -> None:
    path = mapped(folder, f"files: log.csv\nobservations: [u]\nactions: u\n{rule}\n".replace("[u]", "[t, u]"))
    if words is None:  # every row has such a status: one is left, the first
        assert len(load(path)) == 1
        return
    with pytest.raises(DataError, match=words):
        load(path)


def test_all_bad_files_are_named_at_once(folder: pathlib.Path) -> None:
    (folder / "a.csv").write_text("q,u\n1,2\n,3\n")
    (folder / "b.csv").write_text("q,u\n1,2\n2,3\n")
    (folder / "c.csv").write_text("q,v\n1,2\n")
    with pytest.raises(DataError, match=r"2 of 3 files") as caught:
        load(mapped(folder, "files: [a.csv, b.csv, c.csv]\nobservations: q\nactions: u\n"))
    said = str(caught.value)
    assert ("a.csv: '' in line 3" in said, "b.csv" in said, "c.csv: has no column 'u'" in said) == (True, False, True)
    with pytest.raises(DataError, match=r"names x.csv, .* does not exist; y.csv, "):
        load(mapped(folder, "files: [x.csv, a.csv, y.csv]\nobservations: q\nactions: u\n"))


def test_a_draft_of_several_files_counts_gaps_and_lists_status(folder: pathlib.Path) -> None:
    (folder / "more.csv").write_text("t,q,temp,goal,status,u,extra\n0,1,2,3,ok,0,9\n")
    text = logs.draft([folder / "log.csv", folder / "more.csv"], folder)
    assert "files: [log.csv, more.csv]" in text
    assert "# extra is left out: it is in" in text
    assert "Numbers are missing in some rows: q in 1, temp in 2, goal in 4" in text
    assert "# end_where: {column: status, in: [fault, ok]}" in text
    rules = "interpolate: [q, temp]\nhold: goal\ndrop: temp\n"
    assert len(load(mapped(folder, text + rules))) == 7
