"""Every option of every algorithm and of every command says in a sentence what it does."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from surefoot.cli.support.config import TrainConfig, described
from surefoot.core.base.options import declared
from surefoot.language.given import GivenPlan
from surefoot.language.plan import Plan, RewardPlan
from surefoot.llm import Method
from surefoot.llm import TrainConfig as Loop
from surefoot.llm.reward_models import RewardTraining
from surefoot.llm.supervised import GivenTraining
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.world_models.planners import PLANNERS

BESIDE = ("changes", "loop", "title", "source")
"""Fields that no user sets by their names."""


def test_every_option_of_every_algorithm_has_a_sentence() -> None:
    without = [
        f"{name}.{field}"
        for name, agent in ALGORITHMS.items()
        for field, one in declared(agent.Config).items()
        if len((one.option.help or "").split()) < 1
    ]
    assert not without, f"declared without option(..., help): {without}"


def test_every_setting_of_a_command_has_a_sentence() -> None:
    kinds = [TrainConfig, Plan, Loop, Method, RewardPlan, RewardTraining, GivenPlan, GivenTraining, *PLANNERS.values()]
    without = [
        f"{kind.__name__}.{row['name']}"
        for kind in kinds
        for row in described(kind)
        if row["name"] not in BESIDE and not row["what"]
    ]
    assert not without, f"declared without option(..., help): {without}"


def test_every_argument_of_every_command_has_help() -> None:
    from surefoot.cli import train, tune
    from surefoot.cli.main import build_parser

    without = [
        f"{command.prog} {' '.join(action.option_strings) or action.dest}"
        for command in (*_commands(build_parser()), train.parser(), tune.parser())
        for action in command._actions
        if not action.help and action.dest != "overrides" and not isinstance(action, argparse._SubParsersAction)
    ]
    assert not without


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its commands, at any depth."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in dict.fromkeys(action.choices.values()):
                yield from _commands(one)
