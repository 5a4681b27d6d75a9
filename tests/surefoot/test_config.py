"""Overrides become a checked request, or one sentence."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
from refusals import refused

from surefoot.cli.support import config, grammar, presets
from surefoot.core.base.errors import ConfigError
from surefoot.offline import ALGORITHMS
from surefoot.runs.algorithms import ALGORITHMS as EVERY


def request(*overrides: str) -> config.Request:
    return config.compose(grammar.readable(overrides))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_gets_its_dataclass_defaults(name: str) -> None:
    expected = dataclasses.asdict(ALGORITHMS[name].Config())
    found = request(f"algo={name}")
    assert found.algorithm == name
    assert found.options == {key: list(v) if isinstance(v, tuple) else v for key, v in expected.items()}


@pytest.mark.parametrize(
    ("algorithm", "option"),
    [
        ("fisor", "violation"),
        ("cdt", "target_cost"),
        ("ppo_lag", "largest_multiplier"),
        ("sac", "critic_learning_rate"),
    ],
)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_options_that_are_not_finite_are_refused(algorithm: str, option: str, value: float) -> None:
    with refused(option, "range"):
        EVERY[algorithm].configure(**{option: value})


def test_options_and_fields_are_set_by_overrides() -> None:
    found = request(
        "algo=bc", "algo.hidden=[3,4]", "algo.fraction=0.1", "seeds=[0,5]", "steps=1e4", "env=m:Id-v0", "dataset=d.hdf5"
    )
    assert found.options["hidden"] == [3, 4]
    assert found.options["fraction"] == 0.1
    assert (found.fields["seeds"], found.fields["steps"], found.fields["env"]) == ((0, 5), 10_000, "m:Id-v0")


def test_a_list_of_whole_numbers_may_be_written_as_one_of_them_may() -> None:
    said = ["algo=bc", "steps=1e3,2E3,500", "batch_size=1.5e1,1e-1"]
    assert grammar.readable(said, multirun=True) == ["algo=bc", "steps=1000,2000,500", "batch_size=15,1e-1"]
    assert grammar.readable(said) == said
    config.check_overrides(grammar.readable(said[:2], multirun=True), True)


def test_an_online_learner_that_keeps_no_data_is_given_none() -> None:
    said = ["algo=iql_online", "env=native/quadrotor-2d"]
    assert request(*said).fields["dataset"] == config.DEFAULT_DATASET
    assert request(*said, "algo.offline_fraction=0").fields["dataset"] is None
    with pytest.raises(ConfigError, match=r"iql_online takes no dataset with algo\.offline_fraction=0, it learns from"):
        request(*said, "algo.offline_fraction=0", "dataset=own.hdf5")


@pytest.mark.parametrize("algorithm", ["iql", "rlpd"])
def test_another_environment_without_a_dataset_is_not_answered_by_the_default_one(algorithm: str) -> None:
    with pytest.raises(ConfigError, match=f"{algorithm} learns from data, and env=native/pendulum says nothing"):
        request(f"algo={algorithm}", "env=native/pendulum")
    assert request(f"algo={algorithm}", "env=native/quadrotor-2d").fields["dataset"] == config.DEFAULT_DATASET


def test_a_count_of_seeds_means_the_first_ones() -> None:
    assert request("seeds=3").fields["seeds"] == (0, 1, 2)


def test_the_command_line_wins_over_the_domain_preset_and_that_over_the_algorithms_preset() -> None:
    found = request("preset=antmaze", "algo.preset=corl", "algo.temperature=7")
    assert found.options["order"] == "together"  # CORL's
    assert found.options["normalization"] == "observations"  # CORL's
    assert found.options["rewards"] == "minus_one"  # AntMaze's, over CORL's none
    assert found.options["expectile"] == 0.9  # AntMaze's
    assert found.options["temperature"] == 7.0


def test_an_option_said_at_its_default_still_wins_over_a_preset() -> None:
    assert request("preset=antmaze", "algo.expectile=0.7").options["expectile"] == 0.7


def test_the_victim_preset_sets_steps_unless_they_are_said() -> None:
    assert request("algo=riql", "preset=victim").fields["steps"] == 30_000
    assert request("algo=riql", "preset=victim", "steps=10").fields["steps"] == 10
    assert request("algo=riql", "preset=victim").options["critics"] == 10


def test_every_domain_preset_fits_its_algorithms_and_holds_only_what_differs() -> None:
    defaults: dict[str, Any] = {}
    for name, content in presets.presets().items():
        for algorithm in set(content) - {"run"}:
            changed = request(f"algo={algorithm}", f"preset={name}").options
            if algorithm not in defaults:
                defaults[algorithm] = request(f"algo={algorithm}").options
            for option, value in (content[algorithm] or {}).items():
                assert changed[option] == value
                assert value != defaults[algorithm][option], f"{name}: {algorithm}.{option} is the default already"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo=iq"], r"unknown algorithm 'iq': did you mean 'iql'"),
        (["algo=null"], r"unknown algorithm"),
        (["algo.batch_size=3"], r"batch_size is of the run; write batch_size= without algo\."),
        (["algo=stream_q", "algo.planned_steps=9"], "a run plans for its own steps; set steps="),
        (["algo.expectil=3"], r"iql has no option 'algo.expectil': did you mean 'algo.expectile'"),
        (["algo=sac", "algo.history=4"], r"'algo.history': it acts while it learns; .*FrameStackObservation.*dreamer"),
        (["algo=dreamer", "algo.history=4"], r"'algo.history': it remembers without one"),
        (
            ["algo=edac", "algo.encoder=small"],
            r"'algo.encoder': it reads no images; bc, act, flow_bc, diffusion_bc, fql, iql, sac, dqn, ppo, dreamer",
        ),
        (["algo=bc", "algo.expectile=0.5"], r"bc has no option 'algo.expectile'"),
        (["expectile=0.5"], r"did you mean 'algo.expectile'"),
        (["step=5"], r"unknown option 'step': did you mean 'steps'"),
        (["algo.expectile=abc"], r"iql\.expectile is 'abc', must be a finite number"),
        (["algo.expectile=2"], r"iql.expectile is 2.0, must be in \(0, 1\)"),
        (["algo.hidden=3"], r"iql\.hidden is 3, must be a list"),
        (["steps=1.5"], r"steps is 1\.5, must be a whole number"),
        (["seeds=1000000000"], r"seeds=1000000000: train at least 1 seed, and at most 10,000"),
        (["steps=1e308"], r"steps is 1e\+308, must be a whole number"),
        (["steps=inf"], r"steps is inf, must be a whole number"),
        (["steps=1e13"], r"steps is 10000000000000, must be in \[1, 1e12\]"),
        (["envs=1e12", "algo=sac"], r"1000000000000"),
        (["patience=-1"], r"patience is -1\.0, must be >= 0"),
        (["steps=0"], r"steps is 0, must be in \[1, 1e12\]"),
        (["steps=("], r"steps=\(: the value can't be read"),
        (["steps"], r"'steps' is not of the form name=value"),
        (["+x=1"], r"can't be added"),
        (["~steps"], r"can't be added or removed"),
        (["seeds=0,5"], r"write a list of seeds as seeds=\[0,5\], or how many"),
        (["seeds=0"], r"at least 1 seed"),
        (["seeds=[1,1]"], r"different numbers"),
        (["device=gpu"], r"device is 'gpu', must be one of auto, cpu, cuda"),
        (["view=raw"], r"view is 'raw', must be one of corrected, d4rl"),
        (["logger=tensorbord"], r"did you mean 'tensorboard'"),
        (["preset=antmase"], r"preset='antmase' is unknown: did you mean 'antmaze'"),
        (["algo=edac", "preset=hopper"], r"preset=hopper: is a preset of edac itself: say algo.preset=hopper"),
        (["algo=awac", "preset=antmaze"], r"preset=antmaze: is a preset of awac itself: say algo.preset=antmaze"),
        (["preset=antmaze", "algo=bc"], r"preset=antmaze has no settings for bc; it has some for iql"),
        (["algo.preset=corll"], r"iql has no preset 'corll'"),
        (["algo=bc", "envs=4"], r"bc learns from data alone: leave out envs="),
        (["algo=bc", "gap=gravity2"], r"bc learns from data alone, and gap="),
        (["dataset=${nothing}"], r"dataset: Interpolation key 'nothing' not found"),
        (["hydra.job.name=x"], r"only matter with -m"),
    ],
)
def test_bad_overrides_are_refused_in_one_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        request(*overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "a=b,(c) 'd' \"e\" \\ ${f}\\'.hdf5",
        "a,b.hdf5",
        "x\\${y}\\\\.hdf5",
        "null",
        "3",
        "é [x]{y}:z.hdf5",
        "'q'",
        "end\\\\",
        "${a}",
    ],
)
def test_any_existing_path_works_as_dataset(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path(name).touch()
    assert request(f"dataset={name}").fields["dataset"] == name
    assert request(f"dataset={tmp_path / name}").fields["dataset"] == str(tmp_path / name)


def test_a_list_of_existing_paths_stays_a_list_in_a_sweep(tmp_path: pathlib.Path) -> None:
    paths = [tmp_path / "a(1).hdf5", tmp_path / "b=2.hdf5"]
    for path in paths:
        path.touch()
    ready = grammar.readable([f"dataset={paths[0]},{paths[1]}"], multirun=True)
    (parsed,) = grammar.parse(ready)
    assert parsed.sweep
    chosen = [config.compose([f"dataset={value}"]).fields["dataset"] for value in parsed.values]
    assert chosen == [str(path) for path in paths]


def test_the_folder_of_a_run_may_have_any_name() -> None:
    assert request("out=a (b)=c,d").fields["out"] == "a (b)=c,d"


def test_composing_leaves_the_hydra_of_a_surrounding_application_alone() -> None:
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    with hydra.initialize(version_base="1.3", config_path=None):
        before = GlobalHydra.instance().hydra
        request("algo=bc")
        assert GlobalHydra.instance().hydra is before


def test_options_are_described_by_the_comments_beside_them() -> None:
    described = {row["name"]: row for row in config.described(ALGORITHMS["iql"].Config)}
    assert described["expectile"]["default"] == 0.7
    assert "value loss" in described["expectile"]["what"]
    for agent in ALGORITHMS.values():
        assert {row["name"] for row in config.described(agent.Config)} == set(config.option_names(agent))
    assert all(row["what"] for row in config.described(config.TrainConfig))


ENDINGS = {"discount": (-0.5, 1.5), "learning_rate": (-1e-3,), "target_rate": (-0.1, 7.0)}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_rates_and_discounts_out_of_range_are_refused_by_the_names_that_the_user_gave(name: str) -> None:
    agent = EVERY[name]
    checked = 0
    for field in (one.name for one in dataclasses.fields(agent.Config)):
        for wrong in next((values for end, values in ENDINGS.items() if f"_{field}".endswith(f"_{end}")), ()):
            with refused(field, "range"):
                agent.configure(**{field: wrong})
            checked += 1
    assert checked > 0


def test_what_a_config_checks_itself_is_told_by_the_algorithms_name_too() -> None:
    for name, wrong in (
        ("iql_online", "expectile"),
        ("mdpo_off", "num_envs"),
        ("famo2o_cql_online", "sampled_actions"),
    ):
        with pytest.raises(ConfigError, match=rf"^{name}\.{wrong} is 0"):
            EVERY[name].configure(**{wrong: 0})


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("algo.hidden=" + "[" * 2_000 + "]" * 2_000, "is nested deeper than 32 levels"),
        ("algo.hidden=" + "[" * 33 + "1" + "]" * 33, "is nested deeper than 32 levels"),
        ("algo.hidden=" + "{a: " * 200 + "1" + "}" * 200, "is nested deeper than 32 levels"),
        ("steps=" + "1" * 5_000, "has a number of too many digits"),
        ("seeds=[0," + "1" * 5_000 + "]", "has a number of too many digits"),
        ("x" * 1_000_000 + "=1", "..."),
    ],
)
def test_values_that_python_can_not_read_are_refused_in_a_short_sentence(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.check_overrides([override], False)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 5_000
    assert grammar.parse(["out='" + "[" * 40 + "'"])[0].values == ["[" * 40]
