from __future__ import annotations

import html.parser
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.evaluation import certificate, load_runs, where_certified, write_report
from surefoot.evaluation.report import render

MakeRun = Callable[..., pathlib.Path]
VOID = {"meta", "br", "link", "img"}


class Page(html.parser.HTMLParser):
    """Collects text, tags and attributes, and checks that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_report_holds_scores_comparisons_curves_and_configuration(make_run: MakeRun) -> None:
    folders = [
        make_run("a"),
        make_run("b", algorithm="bc", per_seed_returns=[-1100.0, -1000.0, -1050.0]),
    ]
    page = Page(render(load_runs(folders)))
    assert page.open == []
    words = re.sub(r"\s+", " ", " ".join(page.words))
    for expected in (
        "-160.0 [-184.8, -135.2]",
        "-1060.0 [-1145.0, -976.0]",
        "Probability of improvement",
        "1.00",
        "Interquartile mean",
        '"expectile": 0.7',
        "torch 2.13.0",
        "0: -150.0, 1: -160.0, 2: -170.0",
        "With only 3 seeds",
    ):
        assert expected in words
    assert page.tags.count("svg") == 3  # curves, final returns, profile


def test_the_page_loads_nothing(make_run: MakeRun) -> None:
    text = render(load_runs([make_run("a"), make_run("b", algorithm="bc")]))
    page = Page(text)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    references = [value for key, value in page.attributes if key in ("href", "src", "xlink:href")]
    assert all(value is not None and value.startswith("#") for value in references)
    assert not re.search(r"url\((?!#)|@import", text)


def test_names_are_escaped(make_run: MakeRun) -> None:
    evil = "<script>alert('x')</script>&"
    text = render(load_runs([make_run("a", algorithm=evil, dataset=evil, versions={evil: evil}, date=evil)]))
    assert "<script" not in text
    assert Page(text).open == []


def test_one_run_needs_no_comparison_and_runs_without_simulator_are_said_so(make_run: MakeRun) -> None:
    assert "Probability" not in render(load_runs([make_run("a")]))
    folder = make_run("b", environment=None, per_seed_returns=[], returns=None, behaviour=None, episodes=0)
    (folder / "metrics.jsonl").write_text("")
    assert "had no simulator" in render(load_runs([folder]))


def test_two_runs_of_one_algorithm_are_told_apart(make_run: MakeRun) -> None:
    words = "\n".join(Page(render(load_runs([make_run("first"), make_run("second")]))).words)
    assert "iql (first)" in words
    assert "iql (second)" in words


def test_the_report_is_written_to_a_file_and_repeats(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    runs = load_runs([make_run("a"), make_run("b", algorithm="bc")])
    write_report(runs, tmp_path / "report.html")
    write_report(runs, tmp_path / "again.html")
    assert (tmp_path / "report.html").read_text() == (tmp_path / "again.html").read_text()


def test_no_runs_no_report(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


SAFETY = {"episodes": 150, "mean": 12.3, "percentile_95": 88.1, "largest": 120.0, "violated": 0.42, "per_step": 0.0321,
          "per_episode": 3.21, "limit": 25.0, "normalized": 0.49, "over_limit": 0.1}  # fmt: skip


def test_both_names_of_a_native_system_are_one_task(make_run: MakeRun) -> None:
    named = {"a": "native/quadrotor-2d", "b": "surefoot/Quadrotor2D-v0", "c": "native/quadrotor_2d", "d": "Pendulum-v1"}
    runs = load_runs([make_run(name, environment=env) for name, env in named.items()])
    assert [run.environment for run in runs] == ["native/quadrotor-2d"] * 3 + ["Pendulum-v1"]
    titles = re.findall("<h2>(.*?)</h2>", render(runs))
    assert titles == [
        "Scores",
        "native/pendulum-mixed in native/quadrotor-2d",
        "native/pendulum-mixed in Pendulum-v1",
        "Runs",
    ]
    assert render(runs).count('"left task" colspan') == 2


def test_a_table_with_all_columns_fits_1280_pixels(make_run: MakeRun) -> None:
    """By what can't be broken: words, and brackets; a character of the small font takes 7.5 pixels or less."""
    wide = {"mean": -1185.2, "low": -3021.7, "high": 2601.3}
    text = render(load_runs([make_run(
        "a", algorithm="coptidice", dataset="native/quadrotor-2d-medium-replay", environment="native/quadrotor-2d",
        steps=1_000_000, returns=wide, normalized={"mean": 83.2, "low": -12.3, "high": 160.2}, safety=SAFETY,
        cost={"mean": 12.3, "low": -10.2, "high": 124.9},
        smoothness={"action_change": {"mean": 0.0123, "low": 0.0101, "high": 0.0144}, "jacobian": None},
    )]))  # fmt: skip
    tables = re.findall("<table>(.*?)</table>", text, re.DOTALL)[:2]  # scores, and what they cost
    found = 0
    for table in tables:
        rows = [re.findall(r"<t[hd] class=\"(?:left|right)\">(.*?)</t[hd]>", row) for row in table.split("</tr>")]
        columns = list(zip(*[row for row in rows if len(row) > 1], strict=True))
        longest = [max(len(part) for cell in column for part in unbreakable(cell)) for column in columns]
        assert sum(7.5 * length + 2 * 0.45 * 13 for length in longest) < 1000 - 2 * 1.2 * 16
        found += len(columns)
    assert found == 13 + 1
    assert "white-space: nowrap" not in text.split("span {")[0]
    assert "overflow-x: auto" in text  # and in a narrower window it scrolls


def unbreakable(cell: str) -> list[str]:
    kept = re.findall("<span>(.*?)</span>", cell)
    return [*kept, *re.split(r"[ -]", re.sub("<span>.*?</span>", "", cell))]


def certified(folder: pathlib.Path, broken: int) -> None:
    cases = [f"episode {n}: x = {n}.5" for n in range(broken)]
    filtered = {"kind": "cbf", "margin": 0.115, "changed": 470, "actions": 10_000, "broken": broken, "cases": cases}
    said = {**certificate(broken, 50).to_json(), "sentence": certificate(broken, 50).sentence(), "policy": "iql, <b>",
            "environment": "native/dubins-obstacles", "gap": None, "filter": filtered}  # fmt: skip
    (folder / "certificate.json").write_text(json.dumps(said))


def test_certificates_of_one_policy_stand_side_by_side(make_run: MakeRun) -> None:
    folder = make_run("a")
    certified(folder, 0)
    first = json.loads((folder / "certificate.json").read_text())
    (folder / "certificate-wind.json").write_text(json.dumps({**first, "gap": "wind", "filter": None}))
    (run,) = load_runs([folder])
    assert [where_certified(one) for one in run.certificates] == [
        "native/dubins-obstacles with wind",
        "native/dubins-obstacles",
    ]
    words = "\n".join(Page(render([run])).words)
    assert "native/dubins-obstacles with wind" in words
    assert "cbf, margin 0.115" in words


def test_a_certificates_filter_is_named_and_its_broken_promises_are_told_loudly(make_run: MakeRun) -> None:
    kept, broke, without = make_run("kept"), make_run("broke"), make_run("without")
    certified(kept, 0)
    words = "\n".join(Page(render(load_runs([kept, without]))).words)
    assert "cbf, margin 0.115, changed 4.70% of the actions" in words
    assert "PROMISE" not in words
    certified(broke, 2)
    page = Page(render(load_runs([broke])))
    assert page.open == []
    for expected in ("THE FILTER BROKE ITS PROMISE in 2 episodes:", "episode 1: x = 1.5", "iql, <b>"):
        assert expected in "\n".join(page.words)


def test_a_damaged_certificate_is_told(make_run: MakeRun) -> None:
    folder = make_run("a")
    certified(folder, 0)
    path = folder / "certificate.json"
    path.write_text(path.read_text().replace('"changed"', '"chamged"'))
    with pytest.raises(CheckpointError, match=r"certificate\.json: filter has no key 'changed'"):
        load_runs([folder])
