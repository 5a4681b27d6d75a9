"""Datasets of scripted behaviours in the native systems."""

from __future__ import annotations

import time

import gymnasium
import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.envs.generate import generate
from surefoot.envs.systems import SYSTEMS, system
from surefoot.envs.systems.pendulum import Pendulum, energy

COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations", "costs", "margins")


def test_the_actions_replayed_in_gymnasiums_pendulum_give_the_recorded_rewards_and_observations() -> None:
    data = generate("native/pendulum", transitions=400, seed=3)
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    for start in (0, 200):
        cosine, sine, velocity = data["observations"][start].astype(float)
        env.state = np.array([np.arctan2(sine, cosine), velocity])
        # 30 steps: the float32 start is amplified by the unstable dynamics after that
        for row in range(start, start + 30):
            observation, reward, *_ = env.step(data["actions"][row])
            np.testing.assert_allclose(data["next_observations"][row], observation, atol=1e-3)
            np.testing.assert_allclose(data["rewards"][row], reward, atol=1e-2)


def test_rows_are_whole_episodes_in_order_where_episodes_end_early() -> None:
    data = generate("native/quadrotor-2d", transitions=2000)
    size = len(data["rewards"])
    assert 2000 <= size < 2300
    assert {key: (data[key].shape, data[key].dtype) for key in COLUMNS} == {
        "observations": ((size, 6), np.float32),
        "actions": ((size, 2), np.float32),
        "rewards": ((size,), np.float32),
        "next_observations": ((size, 6), np.float32),
        "terminations": ((size,), np.bool_),
        "truncations": ((size,), np.bool_),
        "costs": ((size,), np.float32),
        "margins": ((size,), np.float32),
    }
    ends = data["terminations"] | data["truncations"]
    assert ends[-1]
    assert data["terminations"].any()
    assert data["truncations"].any()
    assert not (data["terminations"] & data["truncations"]).any()
    assert ends.sum() == len(data["behaviours"])
    np.testing.assert_array_equal(data["next_observations"][:-1][~ends[:-1]], data["observations"][1:][~ends[:-1]])
    np.testing.assert_array_equal(data["costs"], data["margins"] < 0)
    lengths = np.diff(np.flatnonzero(ends), prepend=-1)
    assert lengths.max() == 300
    assert lengths[np.array(data["behaviours"]) == "random"].max() < 100
    assert data["env_id"] == "surefoot/Quadrotor2D-v0"


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    first, again, other = (generate("native/dubins-obstacles", seed, 3000) for seed in (1, 1, 2))
    for key in COLUMNS:
        np.testing.assert_array_equal(first[key], again[key])
    assert not np.array_equal(first["observations"], other["observations"])


def test_the_pendulums_mixture_is_poor_on_average_and_holds_good_episodes() -> None:
    start = time.process_time()
    data = generate("native/pendulum")
    assert time.process_time() - start < 10
    returns = data["rewards"].reshape(-1, 200).sum(axis=1, dtype=np.float64)
    names = np.array(data["behaviours"])
    assert -1250 < returns.mean() < -850  # a good controller scores about -150, hanging still -1970
    assert returns[names == "decent"].mean() > -250
    assert returns[names == "braking"].mean() < -1500
    shares = {name: float((names == name).mean()) for name in Pendulum.mixtures["mixed"]}
    assert shares == pytest.approx(Pendulum.mixtures["mixed"], abs=0.02)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_random_medium_mixed_and_expert_datasets_and_the_expert_is_best(name: str) -> None:
    known = system(name)
    means = {}
    for behaviour in ("random", "medium", "mixed", "expert"):
        data = generate(known.alias, transitions=10 * known.max_steps, behaviour=behaviour)
        assert not data["diverged"].any()
        ends = np.flatnonzero(data["terminations"] | data["truncations"])
        means[behaviour] = np.add.reduceat(data["rewards"], np.append(0, ends[:-1] + 1)).mean()
        low, high = np.float32(known.action_low), np.float32(known.action_high)
        assert ((low <= data["actions"]) & (data["actions"] <= high)).all()
    assert means["random"] < means["medium"] < 1.02 * means["expert"] + 0.05 * abs(means["expert"])
    assert means["mixed"] < means["expert"]


def test_a_gap_changes_the_dynamics_of_a_dataset() -> None:
    plain, windy = (generate("native/dubins-obstacles", 0, 400, "expert", gap) for gap in (None, "wind"))
    np.testing.assert_array_equal(plain["observations"][0], windy["observations"][0])
    assert not np.array_equal(plain["next_observations"][0], windy["next_observations"][0])


def test_a_single_behaviour_can_be_asked_for() -> None:
    assert set(generate("native/pendulum", transitions=600, behaviour="decent")["behaviours"]) == {"decent"}


def test_the_energy_of_the_upright_and_the_hanging_pendulum() -> None:
    standing, hanging = [1.0, 0.0, 0.0], [-1.0, 0.0, 2.0]
    np.testing.assert_allclose(energy(np.array([standing, hanging])), [15.0, -13.0])


def test_swing_up_pushes_along_the_rotation_below_and_holds_the_top() -> None:
    act = Pendulum.behaviours["decent"]
    below = np.array([[-1.0, 0.0, 3.0], [-1.0, 0.0, -3.0]])
    torques = np.mean([act(below, np.random.default_rng(i)) for i in range(50)], axis=0)[:, 0]
    assert torques[0] > 1.5
    assert torques[1] < -1.5
    leaning = np.array([[np.cos(0.3), np.sin(0.3), 0.0]])
    assert act(leaning, np.random.default_rng(0))[0, 0] < -1.0


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"name": "native/pendulm"}, "native/pendulum"),
        ({"behaviour": "mixd"}, "mixed"),
        ({"gap": "gravity"}, "gravity2"),
        ({"transitions": 0}, "transitions is 0"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_unknown_names_and_sizes_are_refused(kwargs: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        generate(**{"name": "native/pendulum", **kwargs})
