"""Received JSON: what is refused, at which place, and what passes."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
import warnings
from typing import Any

import pytest

from surefoot.core.base import schema
from surefoot.core.base.errors import CheckpointError, DataError, SurefootError, printable, show_warnings_printable
from surefoot.core.base.schema import Flag, Many, Maybe, Number, Plain, Record, Table, Text, check, parse


@dataclasses.dataclass
class Point:
    name: str
    bounds: tuple[float, float]
    steps: tuple[int, ...] = ()
    limit: float | None = None
    on: bool = False
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


POINT = {"name": "a", "bounds": [0, 1.5], "steps": [1, 2], "limit": None, "on": True, "facts": {"b": [None]}}


def test_a_dataclass_names_its_fields_their_types_and_which_are_needed() -> None:
    assert check(POINT, Record.of(Point), "f") is POINT
    assert check({"name": "a", "bounds": [0, 1]}, Record.of(Point), "f")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": 3}, "f.json: name is 3, must be a text"),
        ({"bounds": [1.0]}, "f.json: bounds has 1 entries, must have 2"),
        ({"bounds": [1.0, float("nan")]}, r"bounds\[1\] is nan, must be a finite number"),
        ({"bounds": "ab"}, "bounds is 'ab', must be a list"),
        ({"steps": [1, True]}, r"steps\[1\] is True, must be a whole number"),
        ({"steps": [1.0]}, r"steps\[0\] is 1.0, must be a whole number"),
        ({"steps": [2**63]}, r"steps\[0\] is 9223372036854775808, must be"),
        ({"limit": 10**400}, "limit is 1000.*, must be a finite number"),
        ({"on": 1}, "on is 1, must be true or false"),
        ({"facts": []}, r"facts is \[\], must be an object"),
        ({"facts": {"a\x1b": 1}}, r"a key of facts is 'a\\x1b', must be a text without control characters"),
        ({"nam": 1}, "it has the key 'nam', which is not known; did you mean 'name'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_file_and_place(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence) as caught:
        check({**POINT, **change}, Record.of(Point), "f.json")
    assert "\n" not in str(caught.value)


def test_missing_keys_and_other_roots_are_refused() -> None:
    with pytest.raises(CheckpointError, match="f: it has no key 'bounds'"):
        check({"name": "a"}, Record.of(Point), "f")
    for root in (None, 3, "x", [], True):
        with pytest.raises(DataError, match="must be an object"):
            check(root, Record.of(Point), "f", DataError)


def test_ranges_lengths_words_and_depth() -> None:
    for value, kind, sentence in (
        (0, Number(1, 5), "a finite number from 1 to 5"),
        (6, Number(1, 5, whole=True), "a whole number from 1 to 5"),
        (-1, Number(0), "at least 0"),
        ("ten", Text(2), "has 3 characters, must have at most 2"),
        ("c", Text(among=("a", "b")), "must be one of a, b"),
        ([1, 2], Many(Number(), 3, 4), "must have 3 to 4"),
        ({"a": [1]}, Table(Number()), r"a is \[1\], must be a finite number"),
        (json.loads("[" * 33 + "]" * 33), Plain(), "nested deeper"),
        ({"a": {"b": "\x07"}}, Plain(), "a.b is"),
        (0, Maybe(Flag()), "true or false"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            check(value, kind, "f")
    check([float("nan"), float("inf"), 1], Many(Number(nan=True)), "f")


def test_text_that_is_no_json_or_enormous_is_refused_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "{", "[" * 200_000, "1" * 5000, b"\xff", '{"a":' * 200_000):
        with pytest.raises(CheckpointError, match=r"f: not readable as JSON"):
            parse(text, "f")
    monkeypatch.setattr(schema, "MOST_MEMORY", 1000)
    for text in (
        "[" + "[]," * 20 + "[]]",
        b"[" + b"1," * 30 + b"1]",
        json.dumps(dict.fromkeys("abcdefgh")),
        '"\\ud83d"' * 20,
    ):
        with pytest.raises(CheckpointError, match=r"f: the values of its JSON would take .* surefoot ever writes"):
            parse(text, "f")
    monkeypatch.setattr(schema, "MOST_BYTES", 1 << 20)
    with pytest.raises(DataError, match="f: its JSON has more than 1 MiB"):
        parse('"' + "a" * (1 << 20) + '"', "f", DataError)


MANY = 100_000


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[" + "[]," * MANY + "1]", MANY),
        ("[" + "{}," * MANY + "1]", MANY),
        ("[" + "1.5," * MANY + "1]", MANY),
        ("[" + ",".join(f'"{i:x}"' for i in range(MANY)) + "]", MANY),
        ("{" + ",".join(f'"{i:x}":1' for i in range(MANY)) + "}", MANY),
        ("[" + '{"a":1.5},' * MANY + "1]", MANY),
        ('"' + "\\ud83d\\ude00" + "a" * MANY + '"', 1),
        ('"' + "\U0001f600" + "a" * MANY + '"', 1),
    ],
    ids=["empty lists", "empty objects", "numbers", "texts", "keys", "objects", "an escaped emoji", "an emoji"],
)
def test_what_values_of_json_take_in_memory_is_estimated_before_they_are_read(text: str, values: int) -> None:
    estimate = schema.memory(text.encode())
    tracemalloc.start()
    value = parse(text, "f")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(value) >= values
    assert most - 2 * len(text) < 1.1 * estimate + 10_000


def test_a_long_key_of_a_file_does_not_come_back_in_the_sentence() -> None:
    for kind in (Record({}, others=True), Record({}), Plain(), Table(Number())):
        with pytest.raises(CheckpointError) as caught:
            check({"a" * 1_000_000: "\x1b"}, kind, "f.json")
        assert len(str(caught.value)) < 500


def test_errors_show_what_a_terminal_would_obey_as_escapes() -> None:
    error = str(SurefootError("a\x1b[2J\rb\x9b\u202ec\ud800, é, 日本, tab\t"))
    assert error == "a\\x1b[2J\\x0db\\x9b\\u202ec\\ud800, é, 日本, tab\t".replace("\\x0d", "\\r")
    assert printable("plain") == "plain"


def test_a_newer_version_is_refused_before_all_else_and_none_is_the_first() -> None:
    kind = Record({"a": Number()}, newest=2)
    for fine in ({"a": 1}, {"a": 1, "format": 1}, {"a": 1, "format": 2}):
        assert check(fine, kind, "f.json") is fine
    with pytest.raises(CheckpointError, match=r"f\.json: format is 3, and this version of surefoot reads up to 2"):
        check({"format": 3, "other": 1}, kind, "f.json")
    for odd in (0, 1.5, True, "1", None):
        with pytest.raises(CheckpointError, match=r"format is .*, must be a whole number of at least 1"):
            check({"a": 1, "format": odd}, kind, "f.json")


def test_warnings_are_shown_without_what_a_terminal_would_obey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    show_warnings_printable()
    assert r"\x1b[2Jhopper" in warnings.formatwarning("\x1b[2Jhopper", UserWarning, "a.py", 1, "x\x07")
    assert "\x07" not in warnings.formatwarning("a", UserWarning, "a.py", 1, "x\x07")
