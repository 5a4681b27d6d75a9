"""gymnasium environments of every autoreset mode keep the contract once adapted, and ours are seen as theirs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from counting import Counting, expected, transitions
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.adapters import adapt, to_gymnasium, to_gymnasium_vector
from surefoot.envs.interface import (
    VectorEnvironment,
    autoreset_mode,
    check_contract,
    final_observations,
    reset_mask,
    row_seeds,
    step_values,
)

MAKERS = [lambda: Counting(0), lambda: Counting(1)]
ACTIONS = np.zeros((2, 2), np.float32)


def counting(mode: AutoresetMode = AutoresetMode.SAME_STEP, **kwargs: Any) -> VectorEnvironment:
    return adapt(SyncVectorEnv(MAKERS, autoreset_mode=mode), **kwargs)


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_mode_gives_the_same_transitions_worked_out_by_hand(mode: AutoresetMode, tensors: Any) -> None:
    env = counting(mode, tensors=tensors)
    check_contract(env)
    for row, found in enumerate(transitions(env, 20)):
        assert len(found) >= 15
        assert found == expected(row, len(found))


def test_a_vector_environment_in_processes_is_adapted_too() -> None:
    source = AsyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.DISABLED)
    try:
        found = transitions(adapt(source), 10)
    finally:
        source.close()
    assert found == [expected(0, 10), expected(1, 10)]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_an_end_returns_the_next_episode_s_first_observation_and_keeps_the_final_one(mode: AutoresetMode) -> None:
    env = counting(mode)
    env.reset(seed=0)
    for _ in range(2):
        *_, info = env.step(ACTIONS)
        assert "final_obs" not in info
        assert "valid" not in info
    observations, _, terminations, truncations, info = env.step(ACTIONS)
    assert terminations.tolist() == [True, False]
    assert not truncations.any()
    assert observations.tolist() == [[0, 1, 0], [3, 0, 1]]
    assert info["final_obs"].tolist() == [[3, 0, 0], [3, 0, 1]]
    assert info["_final_obs"].tolist() == [True, False]
    assert info["margin"].tolist() == [-1.5, -1.5]  # of the final state, not of the reset one


def test_next_step_sources_mark_the_row_that_they_insert() -> None:
    env = counting(AutoresetMode.NEXT_STEP)
    assert env.inserts_rows
    env.reset(seed=0)
    valid = [env.step(ACTIONS)[-1]["valid"].tolist() for _ in range(6)]
    assert valid == [[True, True]] * 3 + [[False, True], [True, False], [True, True]]
    env.step(ACTIONS)  # row 0 ends again
    env.reset(seed=0)
    assert env.step(ACTIONS)[-1]["valid"].all()


def test_gymnasium_s_own_cart_pole_vector_gives_no_transition_into_a_reset() -> None:
    env = adapt(CartPoleVectorEnv(num_envs=8))
    before, _ = env.reset(seed=0)
    ends = 0
    for step in range(200):
        after, rewards, terminations, _, info = env.step(np.full(8, step // 3 % 2))
        moved = np.abs(np.asarray(after)[:, 0] - np.asarray(before)[:, 0])
        expected_move = 0.02 * np.abs(np.asarray(before)[:, 1])  # x' = x + dt v, gymnasium's Euler step
        np.testing.assert_allclose(moved[info["valid"]], expected_move[info["valid"]], atol=1e-6)
        assert (np.asarray(rewards)[~info["valid"]] == 0).all()
        ends += int(np.asarray(terminations).sum())
        before = after
    assert ends > 8


def test_a_single_environment_becomes_one_row_and_a_list_of_makers_a_row_each() -> None:
    assert transitions(adapt(Counting(1)), 10) == [expected(1, 10)]
    assert transitions(adapt(MAKERS), 10) == [expected(0, 10), expected(1, 10)]


def test_a_mask_resets_some_rows_only() -> None:
    env = counting()
    env.reset(seed=0)
    env.step(ACTIONS)
    observations, _ = env.reset(options={"reset_mask": np.array([False, True])})
    assert np.asarray(observations)[:, :2].tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ConfigError, match=r"int64 of shape \(3,\)"):
        env.reset(options={"reset_mask": np.zeros(3, np.int64)})
    with pytest.raises(ConfigError, match="no row"):
        env.reset(options={"reset_mask": np.zeros(2, np.bool_)})


def test_a_margin_alone_brings_the_cost_and_a_cost_spoken_of_once_stays() -> None:
    class Sometimes(Counting):
        def _info(self) -> dict[str, Any]:
            return {"cost": 1.0} if self.count == 2 else {}

    class MarginOnly(Counting):
        def _info(self) -> dict[str, Any]:
            return {"margin": 1.5 - self.count}

    env = adapt(Sometimes())
    env.reset(seed=0)
    infos = [env.step(ACTIONS[:1])[-1] for _ in range(5)]
    assert "cost" not in infos[0]
    assert [info["cost"].tolist() for info in infos[1:]] == [[1], [0], [0], [1]]
    env = adapt(MarginOnly())
    env.reset(seed=0)
    assert [env.step(ACTIONS[:1])[-1]["cost"].tolist() for _ in range(3)] == [[0], [1], [1]]


def test_a_contract_environment_is_returned_as_it_is_or_converted() -> None:
    env = counting()
    assert adapt(env) is env
    as_torch = adapt(env, tensors="torch")
    assert transitions(as_torch, 10) == transitions(adapt(as_torch, tensors="numpy"), 10)
    observations, _ = as_torch.reset(seed=0)
    assert isinstance(observations, torch.Tensor)
    assert isinstance(as_torch.step(torch.zeros(2, 2))[4]["margin"], torch.Tensor)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: adapt("Pendulum-v1"), "gymnasium.make_vec"),
        (lambda: adapt(3), "int is no gymnasium environment"),
        (lambda: adapt([]), "at least 1 row"),
        (lambda: adapt([lambda: Counting(), lambda: gymnasium.make("Pendulum-v1")]), "same spaces"),
        (lambda: adapt(CartPoleVectorEnv(2), "SOMETIMES"), "no autoreset mode.*SAME_STEP"),
        (lambda: adapt(gymnasium.make_vec("Blackjack-v1", 2)), "FlattenObservation"),
        (lambda: counting().step(ACTIONS), "call reset first"),
        (lambda: check_contract(CartPoleVectorEnv(2)), "NEXT_STEP.*adapt"),
        (lambda: check_contract(Counting()), "no vector environment"),
        (lambda: VectorEnvironment(0, *_spaces()), "at least 1 row"),
        (lambda: VectorEnvironment(1, *_spaces(), tensors="jax"), "'jax' is no kind"),  # type: ignore[arg-type]
        (lambda: row_seeds([1, 2], 3), "2 seeds.*3 environments"),
    ],
)
def test_what_can_t_be_adapted_is_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises((EnvironmentMismatchError, ConfigError), match=words):
        make()


def _spaces() -> tuple[Any, Any]:
    return Counting().observation_space, Counting().action_space


def test_actions_of_another_width_are_refused_with_both_shapes() -> None:
    env = counting()
    env.reset()
    with pytest.raises(EnvironmentMismatchError, match=r"\(2, 3\).*\(2, 2\)"):
        env.step(np.zeros((2, 3), np.float32))


def test_an_environment_without_a_mode_needs_one_said() -> None:
    source = CartPoleVectorEnv(2)
    source.metadata = {}
    with pytest.raises(EnvironmentMismatchError, match="NEXT_STEP"):
        adapt(source)
    assert adapt(source, autoreset="NextStep").inserts_rows


def test_one_row_of_ours_passes_gymnasium_s_own_checker_and_runs_like_the_source() -> None:
    check_env(to_gymnasium(adapt(gymnasium.make("Pendulum-v1").unwrapped)), skip_render_check=True)
    ours, theirs = to_gymnasium(adapt(gymnasium.make("Pendulum-v1"))), gymnasium.make("Pendulum-v1")
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    for step in range(450):
        action = np.array([np.sin(step)], np.float32)
        a, b = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1:4] == pytest.approx(b[1:4])
        if a[3]:
            np.testing.assert_array_equal(ours.reset()[0], theirs.reset()[0])


def test_one_row_waits_for_its_reset_and_gives_plain_numbers() -> None:
    env = to_gymnasium(counting_row := adapt(Counting()))
    env.reset(seed=0)
    for _ in range(3):
        observation, reward, terminated, truncated, info = env.step(ACTIONS[0])
    assert (observation.tolist(), reward, terminated, truncated) == ([3, 0, 0], 30.0, True, False)
    assert type(reward) is float
    assert type(terminated) is bool
    assert (info["cost"], info["margin"]) == (1.0, -1.5)
    with pytest.raises(EnvironmentMismatchError, match="reset first"):
        env.step(ACTIONS[0])
    assert env.reset()[0].tolist() == [0, 1, 0]
    with pytest.raises(EnvironmentMismatchError, match="num_envs=1"):
        to_gymnasium(counting())
    assert counting_row.num_envs == 1


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED, AutoresetMode.SAME_STEP])
def test_ours_seen_in_another_mode_and_adapted_back_is_what_it_was(mode: AutoresetMode, tensors: Any) -> None:
    theirs = to_gymnasium_vector(counting(tensors=tensors), mode)
    assert autoreset_mode(theirs) is mode
    found = transitions(adapt(theirs), 16)
    for row in range(2):  # the number of the episode differs: an episode begins unseen in NEXT_STEP and DISABLED
        assert [t[:2] for t in found[row]] == [t[:2] for t in expected(row, len(found[row]))]


def test_next_step_users_see_gymnasium_s_rows() -> None:
    ours = to_gymnasium_vector(counting())
    ours.reset(seed=0)
    rows = [ours.step(ACTIONS) for _ in range(5)]
    assert [row[0][0, 0] for row in rows] == [1, 2, 3, 0, 1]
    assert [row[1][0] for row in rows] == [10, 20, 30, 0, 10]
    assert [row[2][0] for row in rows] == [False, False, True, False, False]


def test_rows_that_reset_in_next_step_say_nothing_of_the_hidden_step() -> None:
    ours = to_gymnasium_vector(counting())
    ours.reset(seed=0)
    infos = [ours.step(ACTIONS)[-1] for _ in range(5)]  # row 0 begins again in the fourth step, row 1 in the fifth
    shown = [[(float(info[key][0]), bool(info.get(f"_{key}", [True])[0])) for key in ("margin", "cost")]
             for info in infos[2:]]  # fmt: skip
    assert shown == [[(-1.5, True), (1, True)], [(0, False), (0, False)], [(0.5, True), (0, True)]]
    assert (infos[3]["margin"][1], infos[3]["cost"][1]) == (-2.5, 1)
    assert infos[3]["_cost"].tolist() == [False, True]


def test_disabled_users_must_reset_the_rows_that_ended() -> None:
    ours = to_gymnasium_vector(counting(), "DISABLED")
    ours.reset(seed=0)
    for _ in range(3):
        ours.step(ACTIONS)
    with pytest.raises(EnvironmentMismatchError, match=r"rows \[0\]"):
        ours.step(ACTIONS)
    ours.reset(options={"reset_mask": np.array([True, False])})
    assert ours.step(ACTIONS)[0][:, 0].tolist() == [1, 4]


def test_an_environment_that_inserts_rows_is_not_shown_as_plain_gymnasium() -> None:
    with pytest.raises(EnvironmentMismatchError, match="inserts a row"):
        to_gymnasium_vector(counting(AutoresetMode.NEXT_STEP))


def test_gymnasium_s_vector_wrappers_work_on_ours() -> None:
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(counting())
    env.reset(seed=0)
    *_, info = [env.step(ACTIONS) for _ in range(3)][-1]
    assert info["episode"]["r"].tolist()[0] == 60
    wrapped = gymnasium.wrappers.vector.NormalizeObservation(to_gymnasium_vector(counting()))
    wrapped.reset(seed=0)
    assert np.isfinite([wrapped.step(ACTIONS)[0] for _ in range(5)]).all()


def test_the_helpers_read_gymnasium_s_objects_and_our_dense_arrays() -> None:
    observations = np.zeros((2, 1))
    objects = np.array([None, np.ones(1)], dtype=object)
    assert final_observations(observations, {"final_obs": objects}).tolist() == [[0], [1]]
    assert final_observations(observations, {"final_obs": observations + 2}).tolist() == [[2], [2]]
    assert final_observations(observations, {}) is observations
    info = {
        "cost": np.array([0.0, 5.0]),
        "final_info": {"cost": np.array([1.0, 0.0]), "_cost": np.array([True, False])},
    }
    assert step_values(info, "cost", 2).tolist() == [1, 5]  # type: ignore[union-attr]
    assert step_values({"cost": 3}, "cost", 2) == 3
    assert step_values({}, "cost", 2) is None
    assert reset_mask(None, 2) is None
    assert row_seeds(5, 3) == [5, 6, 7]
    assert row_seeds(None, 2) == [None, None]


class Solving(Counting):
    """Says whether its task is solved, at an episode's last step only; a reset says a number of its own."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**options)
        return observation, {**info, "count": -7}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *found, terminated, truncated, info = super().step(action)
        ended = terminated or truncated
        place = {"place": np.array([self.count, self.row], np.float32)}
        return *found, terminated, truncated, {**info, **place, **({"is_success": terminated} if ended else {})}  # type: ignore[return-value]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_numbers_of_an_episodes_last_info_are_the_steps_and_not_the_resets(mode: AutoresetMode) -> None:
    makers = [lambda row=row: gymnasium.wrappers.RecordEpisodeStatistics(Solving(row)) for row in range(2)]
    env = adapt(SyncVectorEnv(makers, autoreset_mode=mode))
    env.reset(seed=0)
    counts, solved = [], []
    for _ in range(7):
        *_, info = env.step(ACTIONS)
        counts.append(info["count"].tolist())
        np.testing.assert_array_equal(info["place"], [[count, row] for row, count in enumerate(counts[-1])])
        told = info.get("_is_success", np.zeros(2, np.bool_))
        solved.append([bool(info["is_success"][row]) if told[row] else None for row in range(2)])
        assert info.get("_episode", np.zeros(2, np.bool_)).tolist() == told.tolist()
        for row in np.flatnonzero(told):
            assert info["episode"]["l"][row] == 3 + row
    assert counts == [[1, 1], [2, 2], [3, 3], [1, 4], [2, 1], [3, 2], [1, 3]]
    assert solved == [[None] * 2, [None] * 2, [True, None], [None, True], [None] * 2, [False, None], [None] * 2]


def test_one_row_has_its_last_info_too() -> None:
    env = to_gymnasium(adapt(gymnasium.wrappers.RecordEpisodeStatistics(Solving())))
    env.reset(seed=0)
    infos = [env.step(ACTIONS[0])[4] for _ in range(3)]
    assert "is_success" not in infos[1]
    assert infos[2]["is_success"] is True
    assert infos[2]["episode"]["r"] == 60
    assert infos[2]["count"] == 3
