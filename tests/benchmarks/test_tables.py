"""The committed pages of the studies are what their committed cells give."""

from __future__ import annotations

import importlib
import pathlib
import runpy
import shutil
import sys

import numpy as np
import pytest

from surefoot.evaluation import plots
from surefoot.offline import ALGORITHMS
from surefoot.runs.plan import agent_class

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
STUDIES = sorted(path.stem for path in BENCHMARKS.glob("*.py") if "    study_main(" in path.read_text(encoding="utf-8"))
READ_REAL_DATA = {"model_based", "neorl2_scores", "offline_table", "ogbench_order", "safe_offline"}


def check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises SystemExit where the page of this study differs from its cells."""
    monkeypatch.setattr(sys, "argv", [name, "--check"])
    monkeypatch.setattr(plots, "save_png", lambda *_, **__: None)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")


def test_the_studies_are_found() -> None:
    assert len(STUDIES) >= 16
    assert {path.stem for path in (BENCHMARKS / "results").glob("*.jsonl")} == {*STUDIES, "peers", "reproduce"}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_committed_page_is_the_table_of_the_committed_cells(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name in READ_REAL_DATA:
        request.getfixturevalue("shared_data")
    check(name, monkeypatch)


@pytest.mark.parametrize(("study", "table"), [("neorl2_scores", "METHODS"), ("offline_breadth", "ALGORITHMS")])
def test_all_settings_normalise_observations_where_the_page_says_so(
    study: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    page = (BENCHMARKS / "results" / f"{study}.md").read_text(encoding="utf-8")
    assert "observations normalised" in page or "normalised observations" in page
    for label, setting in getattr(importlib.import_module(study), table).items():
        name, options = setting if isinstance(setting, tuple) else (label, setting)
        found = agent_class(name).configure(**options).normalization
        assert found in ("observations", "stacked"), f"{label}: {found}"


def test_the_study_of_breadth_has_all_algorithms_that_learn_returns_from_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    study = importlib.import_module("offline_breadth")
    goals = {"gcbc", "gcivl", "gciql", "crl", "qrl", "hiql"}  # they read no rewards
    goals |= {"fb", "vc_fb", "mc_fb", "hilp", "act", "classifier", "preferences"}  # these learn from none
    assert {name for name, _ in study.ALGORITHMS.values()} == ALGORITHMS.keys() - {"aligndiff", "discrete_cql"} - goals


def test_every_method_of_the_ogbench_study_can_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    study = importlib.import_module("ogbench_order")
    for task in study.TASKS.values():
        for method in study.PUBLISHED:
            name, options = study.settings(method, task)
            made = agent_class(name).configure(**options)
            assert getattr(made, "deviations", 0.0) == 0, "the page says targets of the mean"
            assert getattr(made, "aggregate", "mean") == "mean"


def test_rewards_of_simglucose_are_those_of_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """The risk is 0 at 112.517 mg/dl and 7.7293 at 180."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    study = importlib.import_module("neorl2_scores")
    found = study.glucose_rewards(
        np.array([112.517, 180, 112.517, 50, 590]), np.array([180, 112.517, 112.517, 40, 600])
    )
    assert found == pytest.approx([0.922707, 1.077293, 1, -15, 0], abs=1e-5)


def test_a_page_of_other_cells_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import study

    for name in ("shield.jsonl", "shield.md"):
        shutil.copy(BENCHMARKS / "results" / name, tmp_path / name)
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    check("shield", monkeypatch)
    lines = (tmp_path / "shield.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "shield.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(SystemExit, match=r"shield\.md is not the table of .*shield\.jsonl"):
        check("shield", monkeypatch)
