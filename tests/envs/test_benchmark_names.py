"""Names of OGBench's and OCBench's environments and data, read without the packages."""

from __future__ import annotations

import pytest

from surefoot.core.base.errors import ConfigError, MissingExtraError
from surefoot.envs.suites import OCBenchName, OGBenchName, ensure_registered, parse, registration
from surefoot.envs.suites.names import BASES, FAMILIES


@pytest.mark.parametrize(
    ("name", "gym_id", "dataset", "text"),
    [
        ("ogbench/scene-play", "scene-v0", "ogbench/scene-play", "ogbench/scene-play-v0"),
        (
            "ogbench/scene-play-singletask-task2-v0", "scene-singletask-task2-v0", "ogbench/scene-play",
            "ogbench/scene-play-singletask-task2-v0",
        ),
        (
            "ogbench/puzzle-3x3-play-singletask-v0", "puzzle-3x3-singletask-task4-v0", "ogbench/puzzle-3x3-play",
            "ogbench/puzzle-3x3-play-singletask-task4-v0",
        ),
        (
            "ogbench/pointmaze-medium-navigate-singletask-task1-v0", "pointmaze-medium-singletask-task1-v0",
            "ogbench/pointmaze-medium-navigate", "ogbench/pointmaze-medium-navigate-singletask-task1-v0",
        ),
        ("ogbench/cube-double-singletask-task3-v0", "cube-double-singletask-task3-v0", None,
         "ogbench/cube-double-singletask-task3-v0"),
        ("ocbench/block-lite-v0", "block-cpu-lite-single-task1-v0", "ocbench/block-lite-single-task1",
         "ocbench/block-lite-single-task1-v0"),
        ("ocbench/chamber-cpu-lite-easy-task3-v0", "chamber-cpu-lite-easy-task3-v0", "ocbench/chamber-lite-easy-task3",
         "ocbench/chamber-lite-easy-task3-v0"),
        ("ocbench/bowling-v0", "bowling-cpu-task1-v0", "ocbench/bowling-task1", "ocbench/bowling-task1-v0"),
    ],
)  # fmt: skip
def test_a_name_says_which_environment_and_which_data(name: str, gym_id: str, dataset: str | None, text: str) -> None:
    found = parse(name)
    assert (found.gym_id, found.dataset, found.text) == (gym_id, dataset, text)
    assert parse(found.text) == found


def test_reward_and_timing_of_success_are_words_of_the_name_and_of_the_record() -> None:
    plain = parse("ogbench/scene-play-singletask-task2-v0")
    other = parse("ogbench/scene-play-singletask-task2-sparse-post-v0")
    assert isinstance(plain, OGBenchName)
    assert isinstance(other, OGBenchName)
    assert (plain.sparse, plain.post, other.sparse, other.post) == (False, False, True, True)
    assert other.gym_id == plain.gym_id
    assert "sparse" in other.rules()["reward"]
    assert "after" in other.rules()["success"]
    assert "dense" in plain.rules()["reward"]
    assert "before" in plain.rules()["success"]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("ogbench/scen-play", "did you mean 'scene'"),
        ("ogbench/scene-play-singletask-task6-v0", "tasks 1 to 5"),
        ("ogbench/scene-play-sparse-v0", "'sparse' is not understood"),
        ("ogbench/scene-play-singletask-task1-sparse-sparse-v0", "'sparse' is not understood"),
        ("ogbench/scene-plai-v0", "'plai' is not understood"),
        ("ocbench/blok-lite", "did you mean 'block'"),
        ("ocbench/block-lite-triple-task3-v0", "tasks 1 to 2"),
        ("ocbench/block-heavy-v0", "'heavy' is not understood"),
        ("ocbench/bowling-lite-v0", "no lite form"),
        ("scene-play", "ogbench/ or ocbench/"),
    ],
)
def test_what_is_not_understood_in_a_name_is_named(name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse(name)


def test_every_name_that_the_tables_make_is_read_back() -> None:
    for base, facts in BASES.items():
        for behaviour in (None, *facts.collected):
            for task in (None, 1, 5):
                name = OGBenchName(base, behaviour, task)
                assert parse(name.text) == name
    for family, kinds in FAMILIES.items():
        for kind, tasks in kinds.items():
            name = OCBenchName(family, kind, family != "bowling", tasks)
            assert parse(name.text) == name


def test_a_missing_package_is_answered_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration.importlib.util, "find_spec", lambda name: None)
    for env_id, extra in (
        ("ogbench/cube-triple-singletask-task5-v0", "ogbench"),
        ("ocbench/hanoi-lite-triple-task2-v0", "ocbench"),
        ("FetchReach-v4", "robotics"),
    ):
        with pytest.raises(MissingExtraError, match=rf"surefoot\[{extra}\]"):
            ensure_registered(env_id)


def test_environments_of_others_with_such_a_name_are_left_alone() -> None:
    import gymnasium

    gymnasium.register("FetchCoffee-v0", entry_point="nowhere:Coffee")
    ensure_registered("FetchCoffee-v0")
    ensure_registered("Pendulum-v1")
    del gymnasium.registry["FetchCoffee-v0"]
