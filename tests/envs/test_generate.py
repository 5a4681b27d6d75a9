from __future__ import annotations

import time

import gymnasium
import numpy as np
import pytest

from surefoot.core.errors import ConfigError
from surefoot.envs.behaviours import PENDULUM_BEHAVIOURS, TASKS, pendulum_energy
from surefoot.envs.generate import generate, pendulum_observe, pendulum_step


def test_the_batched_pendulum_is_gymnasium_s_pendulum() -> None:
    generator = np.random.default_rng(0)
    envs = [gymnasium.make("Pendulum-v1").unwrapped for _ in range(4)]
    for i, env in enumerate(envs):
        env.reset(seed=i)
    states = np.stack([env.state for env in envs])
    for _ in range(300):
        actions = generator.uniform(-3, 3, (4, 1)).astype(np.float32)  # beyond the bounds too: both clip
        states, rewards = pendulum_step(states, actions)
        stepped = [env.step(action) for env, action in zip(envs, actions, strict=True)]
        np.testing.assert_allclose(rewards, [row[1] for row in stepped], rtol=1e-9)
        np.testing.assert_allclose(pendulum_observe(states), [row[0] for row in stepped], rtol=1e-6, atol=1e-6)


def test_the_actions_replayed_in_gymnasium_give_the_recorded_rewards_and_observations() -> None:
    data = generate(transitions=400, seed=3)
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


def test_rows_are_whole_episodes_in_order_with_nothing_terminal() -> None:
    data = generate(transitions=1001)
    assert {key: (value.shape, value.dtype) for key, value in data.items() if isinstance(value, np.ndarray)} == {
        "observations": ((1200, 3), np.float32),
        "actions": ((1200, 1), np.float32),
        "rewards": ((1200,), np.float32),
        "next_observations": ((1200, 3), np.float32),
        "terminations": ((1200,), np.bool_),
        "truncations": ((1200,), np.bool_),
    }
    assert data["env_id"] == "Pendulum-v1"
    assert not data["terminations"].any()
    np.testing.assert_array_equal(np.flatnonzero(data["truncations"]), np.arange(199, 1200, 200))
    inside = ~data["truncations"][:-1]
    np.testing.assert_array_equal(data["next_observations"][:-1][inside], data["observations"][1:][inside])
    assert np.abs(data["actions"]).max() <= 2.0


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    first, again, other = generate(seed=1), generate(seed=1), generate(seed=2)
    for key in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(first[key], again[key])
    assert not np.array_equal(first["observations"], other["observations"])


def test_the_mixture_is_poor_on_average_and_holds_good_episodes() -> None:
    start = time.perf_counter()
    data = generate()
    assert time.perf_counter() - start < 5
    returns = data["rewards"].reshape(-1, 200).sum(axis=1, dtype=np.float64)
    names = np.array(data["behaviours"])
    assert -1250 < returns.mean() < -850  # a good controller scores about -150, hanging still -1970
    assert returns[names == "decent"].mean() > -250
    assert returns[names == "braking"].mean() < -1500
    shares = {name: float((names == name).mean()) for name in TASKS["pendulum-swingup"].behaviours}
    assert shares == pytest.approx(TASKS["pendulum-swingup"].mixtures["mixed"], abs=1 / len(names))


def test_every_mixture_adds_up_to_one() -> None:
    for task in TASKS.values():
        for shares in task.mixtures.values():
            assert sum(shares.values()) == pytest.approx(1.0)
            assert set(shares) <= set(task.behaviours)


def test_a_single_behaviour_can_be_asked_for() -> None:
    assert set(generate(transitions=600, behaviour="decent")["behaviours"]) == {"decent"}


def test_the_energy_of_the_upright_and_the_hanging_pendulum() -> None:
    standing, hanging = [1.0, 0.0, 0.0], [-1.0, 0.0, 2.0]
    np.testing.assert_allclose(pendulum_energy(np.array([standing, hanging])), [15.0, -13.0])


def test_swing_up_pushes_along_the_rotation_below_and_holds_the_top() -> None:
    act = PENDULUM_BEHAVIOURS["decent"]
    below = np.array([[-1.0, 0.0, 3.0], [-1.0, 0.0, -3.0]])
    torques = np.mean([act(below, np.random.default_rng(i)) for i in range(50)], axis=0)[:, 0]
    assert torques[0] > 1.5
    assert torques[1] < -1.5
    leaning = np.array([[np.cos(0.3), np.sin(0.3), 0.0]])
    assert act(leaning, np.random.default_rng(0))[0, 0] < -1.0


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"name": "pendulum-swinup"}, "pendulum-swingup"),
        ({"behaviour": "mixd"}, "mixed"),
        ({"transitions": 0}, "transitions is 0"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_unknown_names_and_sizes_are_refused(kwargs: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        generate(**kwargs)
