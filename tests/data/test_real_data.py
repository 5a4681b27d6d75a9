"""Real files against the table of ../shared/data/README.md."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from surefoot.data import info, load, verify


@pytest.mark.parametrize(
    ("name", "transitions", "episodes", "mean", "normalized", "warnings", "unsampled"),
    [
        ("hopper-v5-medium-sb3", 200823, 460, 1591.9, 49.5, {}, 0),
        ("adroit-door-human-dapg", 6729, 25, 794.1, 29.0, {"actions outside [-1, 1]": 5497}, 25),
        ("pendulum-expert-sb2", 20000, 100, -149.9, None, {}, 100),
        ("neorl2-simglucose-high-val", 20018, 62, 316.2, 65.9, {}, 0),
        ("pointmaze-medium-waypoint", 100000, 894, 1.0, None, {"one-step episodes": 1}, 0),
        ("hopper-expert-cs285", 2000, 2, 3717.5, 114.8, {"actions outside [-1, 1]": 1389}, 0),
    ],
)
def test_facts_equal_the_published_table(
    shared_data: pathlib.Path,
    name: str,
    transitions: int,
    episodes: int,
    mean: float,
    normalized: float | None,
    warnings: dict[str, int],
    unsampled: int,
) -> None:
    data = load(shared_data / f"{name}.hdf5")
    facts = info(data)
    assert (facts["transitions"], facts["episodes"]) == (transitions, episodes)
    assert facts["return_mean"] == pytest.approx(mean, abs=0.051)
    assert facts["normalized_mean"] == (None if normalized is None else pytest.approx(normalized, abs=0.051))
    assert data.warnings == warnings
    assert (facts["rows_without_next"], facts["rows_never_sampled"]) == (unsampled, 0)


def test_rebuilt_pendulum_transitions_obey_the_equations_of_motion(shared_data: pathlib.Path) -> None:
    data = load(shared_data / "pendulum-mixed-sb3.hdf5")
    cosine, sine, speed = data.observations.T.astype(np.float64)
    torque = np.clip(data.actions[:, 0].astype(np.float64), -2, 2)
    following = np.clip(speed + (15 * sine + 3 * torque) * 0.05, -8, 8)  # g = 10, m = l = 1
    assert np.abs(following - data.next_observations[:, 2]).max() < 1e-4
    turned = np.arctan2(sine, cosine) + following * 0.05
    assert np.abs(np.cos(turned) - data.next_observations[:, 0]).max() < 1e-4


def test_final_observations_are_not_the_next_episodes_first(shared_data: pathlib.Path) -> None:
    data = load(shared_data / "hopper-v5-medium-sb3.hdf5")
    last = data.episode_starts[1:-1] - 1
    step = np.abs(data.next_observations[last] - data.observations[last]).max(axis=1)
    reset = np.abs(data.observations[last + 1] - data.observations[last]).max(axis=1)
    assert np.median(step) < np.median(reset) / 3
    assert data.transitions.all()


def test_verify_accepts_the_published_sha256(shared_data: pathlib.Path) -> None:
    path = shared_data / "hopper-expert-cs285.hdf5"
    assert verify(path, "8891b54f002138c2410d8153877c6a98329b6f56bdf60d1c10d279a5e744a5f7").ok
