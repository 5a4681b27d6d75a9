"""Numbers that no machine has room or time for."""

from __future__ import annotations

import pathlib
import time

import pytest

from surefoot.cli import main
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.safety.certify import check_numbers


def test_more_transitions_than_the_memory_holds_are_refused_before_they_are_recorded(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "datasets generate native/pendulum --transitions 1000000000000 -o"
    start = time.process_time()
    assert main([*command.split(), str(tmp_path / "a.npz")]) == 2
    assert "native/pendulum: 1,000,000,000,000 transitions take" in capsys.readouterr().err
    assert time.process_time() - start < 20
    assert not list(tmp_path.iterdir())


def test_more_episodes_than_can_be_run_are_refused() -> None:
    check_numbers(10**12, 0, 0.95, None)
    with pytest.raises(ConfigError, match=r"1e\+40 episodes are more than the 1e\+12"):
        check_numbers(10**40, 0, 0.95, None)


def test_a_name_of_megabytes_is_not_compared_with_all_that_are_known() -> None:
    start = time.process_time()
    assert nearest("x" * 5_000_000, ["iql", "bc"]) == "choose from bc, iql"
    assert time.process_time() - start < 1
