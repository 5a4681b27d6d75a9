"""Options that would have no effect, or another than they say, are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from problems import spec

from surefoot.core.errors import ConfigError
from surefoot.core.temperature import Temperature
from surefoot.offline import ALGORITHMS
from surefoot.online import ALGORITHMS as ONLINE


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
    ],
)
def test_an_option_that_could_not_do_what_it_says_is_refused(name: str, option: str, value: Any) -> None:
    kind = {**ALGORITHMS, **ONLINE}[name]
    with pytest.raises(ConfigError, match=rf"{name}\.{option} is "):
        kind(spec(), **{option: value})


def test_a_temperature_of_any_size_can_be_begun_with() -> None:
    for alpha in (1e-3, 1.0, 499.0, 501.0, 1e9):
        assert float(Temperature(alpha, "softplus")().detach()) == pytest.approx(alpha, rel=1e-5)
