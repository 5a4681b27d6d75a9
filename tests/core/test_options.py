"""Options: one declaration each, from which their check, the sentence of a refusal, and the help come."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from refusals import refused

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.options import (
    EARLIER_SPELLINGS,
    Interval,
    Options,
    declared,
    option,
    record_of,
    require,
    respelled,
)
from surefoot.core.base.schema import check
from surefoot.online import PPO
from surefoot.runs.algorithms import ALGORITHMS

WORDS = ("low", "high")


@dataclasses.dataclass(frozen=True)
class Arm(Options):
    """What the tests below give."""

    expectile: float = option(0.7, "expectile of the value loss", range="(0, 1)")
    steps: int = option(5, "steps", range=">= 1")
    level: str = option("low", "level of the test", choices=WORDS)
    hidden: tuple[int, ...] = option((8, 8), "widths", range=">= 1")
    bounds: tuple[float, float] = option((-1.0, 1.0), "bounds", rising=True)
    limit: float | None = option(None, "limit; null: none", range="> 0")
    on: bool = option(False, "whether it is on")
    schedule: tuple[float, int] = option((0.5, 3), "rate and steps")


@dataclasses.dataclass(frozen=True)
class LongArm(Arm):
    """Another default, and a narrower range with the help of the class above."""

    steps: int = 50
    expectile: float = option(0.9, range="[0.5, 1)")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.steps > 9 or self.on, "long", "steps", self.steps, "above 9 where on is false")


@pytest.mark.parametrize(
    ("given", "field", "code", "sentence"),
    [
        ({"expectile": 1.0}, "expectile", "range", "arm.expectile is 1.0, must be in (0, 1)"),
        ({"expectile": "a"}, "expectile", "type", "arm.expectile is 'a', must be a finite number"),
        ({"expectile": math.nan}, "expectile", "range", "arm.expectile is nan, must be a finite number"),
        ({"expectile": True}, "expectile", "type", "arm.expectile is True, must be a finite number"),
        ({"steps": 0}, "steps", "range", "arm.steps is 0, must be >= 1"),
        ({"steps": 2.0}, "steps", "type", "arm.steps is 2.0, must be a whole number"),
        ({"level": "mid"}, "level", "choice", "arm.level is 'mid', must be one of low, high"),
        ({"level": 3}, "level", "type", "arm.level is 3, must be a text"),
        ({"hidden": 8}, "hidden", "type", "arm.hidden is 8, must be a list"),
        ({"hidden": (8, 0)}, "hidden", "range", "arm.hidden[1] is 0, must be >= 1"),
        ({"bounds": (1.0, 1.0)}, "bounds", "range", "arm.bounds is (1.0, 1.0), must be (lowest, highest)"),
        ({"bounds": (1.0,)}, "bounds", "length", "arm.bounds has 1 entries, must have 2"),
        ({"limit": 0.0}, "limit", "range", "arm.limit is 0.0, must be > 0 or null"),
        ({"limit": "x"}, "limit", "type", "arm.limit is 'x', must be a finite number or null"),
        ({"on": 1}, "on", "type", "arm.on is 1, must be true or false"),
        ({"schedule": (0.5, 2.5)}, "schedule", "type", "arm.schedule[1] is 2.5, must be a whole number"),
    ],
)
def test_a_refusal_names_the_option_its_value_and_what_it_must_be(
    given: dict[str, Any], field: str, code: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Arm(**given)
    assert (str(caught.value), caught.value.field, caught.value.code) == (sentence, field, code)


def test_values_that_are_allowed_pass_numpys_numbers_among_them() -> None:
    Arm(expectile=np.float32(0.5), steps=np.int64(3), hidden=[4], limit=2, bounds=[0, 1])  # type: ignore[arg-type]


def test_a_subclass_changes_a_default_or_a_range_and_keeps_what_it_does_not_repeat() -> None:
    assert LongArm().steps == 50
    assert declared(LongArm)["steps"].option.help == "steps"
    assert declared(LongArm)["expectile"].option.help == "expectile of the value loss"
    with refused("steps", "range"):
        LongArm(steps=0)
    with refused("expectile", "range"):
        LongArm(expectile=0.4)
    Arm(expectile=0.4)
    with refused("steps", "conflict"):
        LongArm(steps=5)
    LongArm(steps=5, on=True)


def test_help_ends_with_the_range_and_with_choices_that_it_does_not_name() -> None:
    said = {name: one.option.sentence for name, one in declared(Arm).items()}
    assert said["expectile"] == "expectile of the value loss; in (0, 1)"
    assert said["level"] == "level of the test (low, high)"
    assert said["on"] == "whether it is on"


def test_ranges_are_written_as_in_mathematics() -> None:
    for text, inside, outside in (
        ("(0, 1]", (0.1, 1), (0, 1.1, -1)),
        ("[-2.5, 1e3)", (-2.5, 0), (1000, -3)),
        (">= 0", (0, 1e300), (-1e-9,)),
        ("< 2", (-7, 1.9), (2,)),
    ):
        assert all(one in Interval.of(text) for one in inside)
        assert not any(one in Interval.of(text) for one in outside)
    for text in ("0 to 1", "(0; 1)", "=> 0", ""):
        with pytest.raises(TypeError, match="is no range"):
            option(0.5, range=text)


def test_received_json_is_checked_by_the_same_declarations() -> None:
    check({"expectile": 0.5, "limit": None}, record_of(Arm), "run/config.json")
    with refused("expectile", "range", CheckpointError):
        check({"expectile": 2.0}, record_of(Arm), "run/config.json")
    with refused("speed", "unknown", CheckpointError):
        check({"speed": 2.0}, record_of(Arm), "run/config.json")


def test_an_error_keeps_field_and_code_on_its_way_between_processes() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(ConfigError("a sentence", field="steps", code="range")))
    assert (str(error), error.field, error.code) == ("a sentence", "steps", "range")


def test_options_have_american_names_and_the_earlier_ones_are_accepted() -> None:
    earlier = PPO.configure(normalise_observations=False, normalise_rewards=False)
    assert earlier == PPO.configure(normalize_observations=False, normalize_rewards=False)
    assert respelled({"initialisation": 1, "other": 2}, {"initialization"}) == {"initialization": 1, "other": 2}
    assert respelled({"initialisation": 1}, {"initialisation", "initialization"}) == {"initialisation": 1}
    names = {name for kind in ALGORITHMS.values() for name in declared(kind.Config)}
    assert not names & EARLIER_SPELLINGS.keys()
