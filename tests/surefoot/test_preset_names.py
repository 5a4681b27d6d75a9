"""Which preset a run's options are, so that tables can say it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from surefoot.cli import main
from surefoot.evaluation import load_runs, tables
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.plan import agent_class, preset_name, told_options


def options(algorithm: str, **changes: Any) -> dict[str, Any]:
    """Resolved options as a run folder keeps them."""
    kept = json.dumps(dataclasses.asdict(agent_class(algorithm).configure(**changes)))
    return json.loads(kept)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("algorithm", "changes", "name"),
    [
        ("cdt", {"preset": "small"}, "small"),
        ("cdt", {}, "osrl"),  # its default
        ("cdt", {"width": 64, "layers": 2, "heads": 4}, "small"),  # stated one by one
        ("cdt", {"preset": "small", "cost_limit": 3.0, "dropout": 0.0}, "small"),  # no preset sets these
        ("cdt", {"preset": "small", "width": 32}, None),
        ("bcq_lag", {"preset": "small"}, "small"),  # has a tuple, which JSON makes a list
        ("td3bc", {"preset": "paper"}, None),  # its only one tells nothing
        ("cpo", {}, None),
        ("redq", {"preset": "halfcheetah"}, None),  # walker2d has the same options
    ],
)
def test_a_preset_is_named_by_the_options_that_presets_set(algorithm: str, changes: Any, name: str | None) -> None:
    assert preset_name(algorithm, options(algorithm, **changes)) == name


def test_a_run_that_is_older_than_an_option_keeps_the_name_of_its_preset() -> None:
    kept = options("ppo", preset="robots")
    for newer in ("exploration", "hold_steps"):
        kept.pop(newer)
    assert preset_name("ppo", kept) == "robots"


def test_options_that_were_changed_are_told_instead_of_the_preset_that_is_the_default() -> None:
    assert told_options("iql", options("iql")) == (None, {})
    assert told_options("iql", options("iql", preset="official")) == ("official", {})
    assert told_options("iql", options("iql", expectile=0.9)) == (None, {"expectile": 0.9})
    assert told_options("cdt", options("cdt", preset="small", cost_limit=3.0)) == ("small", {"cost_limit": 3.0})
    older = options("ppo")
    del older["exploration"]
    assert told_options("ppo", older)[1] == {}


def test_tables_of_training_evaluation_and_report_say_what_was_changed(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [row.label for row in tables.rows(load_runs([finished_run]))] == ["behaviour", "bc (hidden=[8,8])"]
    assert main(["evaluate", str(finished_run), "--episodes", "1", "--quiet"]) == 0
    assert "bc (hidden=[8,8])" in capsys.readouterr().out
    assert main(["report", str(finished_run), "-o", str(tmp_path / "report.html")]) == 0
    assert "bc (hidden=[8,8])" in capsys.readouterr().out
    assert "bc (hidden=[8,8])" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_preset_that_is_listed_can_be_had(algorithm: str) -> None:
    kind = ALGORITHMS[algorithm]
    for preset, options in kind.PRESETS.items():
        config = kind.configure(preset=preset)
        assert {option: getattr(config, option) for option in options} == options
