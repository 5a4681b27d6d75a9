"""Hybrid algorithms through the entry point: data and a wrong simulator to learn from, the right one to judge in."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from small_runs import STILL, metrics, small_dataset

from surefoot import fit, online
from surefoot.cli.support import config
from surefoot.cli.support import help_text as helptext
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.run import Run

ROOT = pathlib.Path(__file__).resolve().parents[2]
DISCRIMINATORS = {"discriminator_hidden": (8,), "discriminator_rows": 4}


def trained(
    algorithm: str,
    folder: pathlib.Path,
    events: list[dict[str, Any]] | None = None,
    agents: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    data = small_dataset()
    own = {} if algorithm == "moorl" else DISCRIMINATORS
    agent = online.ALGORITHMS[algorithm](data, hidden=(8, 8), initial_steps=30, **own, **(agents or {}))
    small = {"steps": 60, "seeds": 1, "episodes": 1, "evaluate_every": 60, "evaluate_episodes": 1, "batch_size": 8}
    listener = None if events is None else events.append
    return fit(
        agent, data, out=folder, progress=False, listener=listener, **{"env": "native/pendulum", **small, **options}
    )


@pytest.mark.parametrize("algorithm", ["h2o", "darc", "moorl"])
@pytest.mark.usefixtures("in_process")
def test_a_run_learns_from_data_and_an_altered_simulator(algorithm: str, tmp_path: pathlib.Path) -> None:
    events: list[dict[str, Any]] = []
    run = trained(algorithm, tmp_path / "run", events, gap="gravity2")
    reported = {name for line in metrics(run) for name in line["values"]}
    wanted = {"h2o": {"gap", "weight", "discriminator_loss"}, "darc": {"log_ratio"}, "moorl": set()}
    assert wanted[algorithm] | {"critic_loss", "actor_loss"} <= reported
    assert len(run.summary["per_seed_returns"]) == 1
    assert not [event for event in events if "wrong" in str(event.get("text"))]


@pytest.mark.usefixtures("in_process")
def test_without_a_gap_it_runs_and_says_what_it_is_meant_for(tmp_path: pathlib.Path) -> None:
    events: list[dict[str, Any]] = []
    trained("h2o", tmp_path / "run", events)
    notes = [event["text"] for event in events if event["kind"] == "note"]
    assert "h2o is meant for a simulator that is wrong, and without gap= it is not" in notes


@pytest.mark.usefixtures("in_process")
def test_a_gap_alters_what_it_acts_in_and_never_what_it_is_evaluated_in(tmp_path: pathlib.Path) -> None:
    seen = []
    for gap in (None, "gravity2"):
        run = trained(
            "h2o",
            tmp_path / str(gap),
            agents={**STILL, "updates_per_step": 0.1},
            steps=200,
            evaluate_every=200,
            gap=gap,
        )
        met = [line["values"]["episode_return"] for line in metrics(run) if "episode_return" in line["values"]]
        judged = [line["values"]["returns"] for line in metrics(run) if line["kind"] == "eval"]
        assert met
        assert len(judged) == 1
        seen.append((met, [*judged, run.summary["per_seed_returns"]]))
    (plain, its_returns), (altered, their_returns) = seen
    assert plain != altered
    assert its_returns == their_returns


@pytest.mark.parametrize("algorithm", ["h2o", "darc", "moorl"])
def test_a_plan_without_data_or_without_an_environment_is_refused(algorithm: str, tmp_path: pathlib.Path) -> None:
    agent = online.ALGORITHMS[algorithm](small_dataset())
    with pytest.raises(ConfigError, match=f"{algorithm} learns from data: name a dataset with dataset="):
        fit(agent, env="native/pendulum", out=tmp_path / "one", progress=False)
    with pytest.raises(ConfigError, match=f"{algorithm} learns online: name an environment with env="):
        fit(agent, small_dataset(), env=None, out=tmp_path / "two", progress=False)


def test_a_gap_that_the_system_lacks_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"native/pendulum has no gap 'gravty2'; did you mean 'gravity2'"):
        trained("h2o", tmp_path / "run", [], gap="gravty2")


def test_every_option_in_the_hybrid_page_is_one_with_that_default_and_none_is_missing() -> None:
    text = (ROOT / "docs" / "hybrid.md").read_text(encoding="utf-8")
    tables = re.split(r"^\| option \| default \| \|$", text, flags=re.MULTILINE)[1:]
    names = {"h2o": "sac", "darc": "sac", "moorl": "sac", "hnpg": "trpo"}  # and whose options come on top
    for (name, below), table in zip(names.items(), tables, strict=True):
        agent: type[Agent] = ALGORITHMS[name]
        base = {row["name"]: row["default"] for row in config.described(ALGORITHMS[below].Config)}
        rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| (.*) \|$", table.split("\n## ")[0], re.MULTILINE)
        own = [
            (row["name"], helptext.shown(row["default"]), row["what"])
            for row in config.described(agent.Config)
            if row["name"] not in base or row["default"] != base[row["name"]]
        ]
        assert [(option, default, what.strip()) for option, default, what in rows] == own, name
