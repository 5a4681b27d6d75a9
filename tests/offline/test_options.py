"""Options that would have no effect, or another than they say, are refused by name."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from problems import spec
from refusals import refused

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.rates import Adam
from surefoot.core.base.spec import Array, Spec
from surefoot.core.nn.temperature import Temperature
from surefoot.core.policy.policy import Policy
from surefoot.model_based import ALGORITHMS as MODELS
from surefoot.offline import ALGORITHMS
from surefoot.online import ALGORITHMS as ONLINE
from surefoot.safe import ALGORITHMS as SAFE


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("edac", "log_std_range", (2.0, -2.0)),
        ("awac", "log_std_range", (1.0,)),
        ("sac", "log_std_range", (0.0, 0.0)),
        ("iql", "log_std_min", 3.0),
        ("recoil", "huber", 5.0),
        ("riql", "target_low", 2000.0),
        ("rebrac", "last_layer", -1.0),
        ("rebrac", "target_noise_clip", -0.5),
        ("td3bc", "target_noise_clip", -0.5),
        ("aligndiff", "average_rate", 2.0),
        ("reinforce", "gae_lambda", 0.5),
        ("iql", "hidden", ("a", 256)),
        ("iql", "hidden", (256.0, 256)),
        ("iql", "hidden", (True, 256)),
        ("mbpo", "length_schedule", [1000, 2000, 1, 1.5]),
        ("mbpo", "model_decays", ["a"]),
        ("mopo", "reward_range", ["a", "b"]),
        ("tdmpc2", "std_range", [0.1, 0.2, 0.3]),
        ("flow_bc", "weight_decay", -0.1),
        ("flow_bc", "times", "gaussian"),
        ("diffusion_bc", "dropout", 0.1),
        ("rebrac", "deviations", 0.5),
        ("edac", "initialization", "kaiming"),
        ("riql", "initialization", "kaiming"),
        ("ifql", "deviations", 0.5),
        ("fql", "deviations", -0.5),
        ("qc", "aggregate", "median"),
        ("mbrcsl", "termination", "math:nan"),
        ("focops", "clip", 0.1),
        ("cpo", "accept_ratio", 0.5),
        ("imagined_sac", "actor_schedule", "adaptive"),
        ("token_dynamics", "schedule", "warm_up"),
        ("trajectory_transformer", "schedule", "cosin"),
    ],
)
def test_an_option_that_could_not_do_what_it_says_is_refused(name: str, option: str, value: Any) -> None:
    kind = {**ALGORITHMS, **ONLINE, **MODELS, **SAFE}[name]
    with pytest.raises(ConfigError, match=rf"{name}\.{option}") as caught:
        kind(spec(), **{option: value})
    assert caught.value.field == option
    assert caught.value.code is not None


@pytest.mark.parametrize("objective", ["shortcut", "mean_flow"])
def test_a_law_of_times_that_an_objective_does_not_read_is_refused(objective: str) -> None:
    few = {"shortcut": 4, "mean_flow": 1}[objective]
    options = {"objective": objective, "network": "shortcut", "flow_steps": few}
    ALGORITHMS["flow_bc"].configure(**options)
    with refused("times", "conflict"):
        ALGORITHMS["flow_bc"].configure(**options, times="beta")


@pytest.mark.parametrize("name", ["mbpo", "cocoa_iql"])
def test_a_model_of_vectors_refuses_images_by_the_name_of_its_algorithm(name: str) -> None:
    seen = Spec({"image": Array((36, 36, 3), "uint8")}, 2, (-1.0, -1.0), (1.0, 1.0))
    with pytest.raises(ConfigError, match=rf"^{name} learns from one vector, and observations are image"):
        MODELS[name](seen)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("sac", "history", "it acts while it learns; stack frames in the environment"),
        ("dreamer", "history", "it remembers without one"),
        ("td3", "encoder_features", r"it reads no images; bc, flow_bc, diffusion_bc, fql, iql, sac, dqn"),
    ],
)
def test_an_option_that_only_others_have_is_answered_with_what_to_do(name: str, option: str, message: str) -> None:
    with refused(option, "unknown"):
        {**ONLINE, **MODELS}[name].configure(**{option: 4})


def test_lists_of_numbers_take_whole_ones_too() -> None:
    config = MODELS["mbpo"].configure(length_schedule=[1000, 2000, 1, 2], log_std_range=(-5, 2))
    assert tuple(config.length_schedule) == (1000, 2000, 1, 2)


def test_the_config_of_another_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match="bc takes a BCConfig, not a IQLConfig"):
        ALGORITHMS["bc"](spec(), ALGORITHMS["iql"].Config())


@pytest.mark.parametrize(("setting", "value"), [("learning_rate", -1.0), ("weight_decay", -3.0), ("betas", (1.0, 0.9))])
def test_an_optimiser_that_would_climb_or_never_forget_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} is "):
        Adam(**{setting: value})


def test_a_residual_network_without_blocks_comes_back_from_disk(tmp_path: pathlib.Path) -> None:
    policy = ALGORITHMS["idql"](spec(), blocks=0).policy()
    policy.save(tmp_path / "p")
    assert Policy.load(tmp_path / "p").description() == policy.description()


def test_a_temperature_of_any_size_can_be_begun_with() -> None:
    for alpha in (1e-3, 1.0, 499.0, 501.0, 1e9):
        assert float(Temperature(alpha, "softplus")().detach()) == pytest.approx(alpha, rel=1e-5)
