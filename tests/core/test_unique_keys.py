"""YAML with a key twice."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from surefoot.cli.support.config_file import read_mapping
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.unique_keys import UniqueKeys
from surefoot.data.formats.mapping import read_mapping as read_log_mapping

TWICE = "observations: [q]\nactions: [u]\nobservations: [v]\n"


def test_a_key_that_stands_twice_is_refused_with_its_place(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "log.yaml"
    file.write_text(TWICE)
    with pytest.raises(DataError, match=r"log\.yaml, line 3: is no YAML \(the key 'observations' stands twice\)"):
        read_log_mapping(file)
    with pytest.raises(ConfigError, match=r"log\.yaml, line 3: is no YAML \(the key 'observations' stands twice\)"):
        read_mapping(file)
    with pytest.raises(yaml.YAMLError, match="the key 'low' stands twice"):
        yaml.load("a: {b: [{low: 1, low: 2}]}", UniqueKeys)


def test_a_key_may_stand_in_several_mappings_and_over_a_merged_one() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {x: 1}\nc:\n  <<: *a\n  x: 5\n"
    assert yaml.load(text, UniqueKeys) == {"a": {"x": 1, "y": 2}, "b": {"x": 1}, "c": {"x": 5, "y": 2}}
    assert yaml.load("1: a\n'1': b\n", UniqueKeys) == {1: "a", "1": "b"}
