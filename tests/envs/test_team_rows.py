"""Several agents in one environment: rows, ends, masks, and teams as they are evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.actors.memory import Reactive
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import Spec, Team
from surefoot.envs.acting import spec_of
from surefoot.envs.agents import RowView
from surefoot.envs.check import check_environment
from surefoot.envs.training import make_training
from surefoot.envs.vector import check_spaces, make_vec
from surefoot.evaluation import evaluate

WALKERS = "pettingzoo:teams_in_parallel"
LEFT, RIGHT = [1.0, 0.0], [0.0, 1.0]


def rows(view: RowView | None = None, count: int = 2, **options: Any) -> Any:
    text = "&".join(f"{key}={str(value).lower()}" for key, value in options.items())
    return make_training(WALKERS + ("?" + text if text else ""), count, view=view)


def test_a_row_is_an_agent_with_its_numbers_padded_and_its_one_hot_number() -> None:
    env = rows()
    seen, _ = env.reset(seed=[3, 0, 5, 0])
    assert env.num_envs == 4
    assert seen.dtype == np.float32
    expected = [[3, 0, *LEFT], [3, 0, *RIGHT], [5, 0, *LEFT], [5, 0, *RIGHT]]
    np.testing.assert_array_equal(seen, expected)
    seen, rewards, ended, cut, _ = env.step(np.array([2, 0, 1, 2]))
    np.testing.assert_array_equal(seen, [[4, 0, *LEFT], [2, 1, *RIGHT], [5, 0, *LEFT], [6, 1, *RIGHT]])
    np.testing.assert_array_equal(rewards, [4, 4, 5, 12])
    assert not ended.any()
    assert not cut.any()


def test_a_team_that_is_over_begins_anew_and_its_last_observation_is_kept() -> None:
    env = rows(count=1)
    env.reset(seed=[2, 0])
    for _ in range(3):
        env.step(np.array([2, 2]))
    seen, _, ended, cut, info = env.step(np.array([2, 2]))
    assert cut.all()
    assert not ended.any()
    assert info["_final_obs"].all()
    np.testing.assert_array_equal(info["final_obs"], [[6, 0, *LEFT], [6, 4, *RIGHT]])
    np.testing.assert_array_equal(seen, [[0, 0, *LEFT], [0, 0, *RIGHT]])


def test_an_agent_that_leaves_ends_by_itself_and_its_rows_are_no_transitions_until_the_team_begins_anew() -> None:
    env = rows(count=1, leaves=True, may_leave=True)
    assert env.inserts_rows
    env.reset(seed=[1, 0])
    flags, valid, last = [], [], []
    for _ in range(4):
        seen, rewards, ended, cut, info = env.step(np.array([1, 1]))
        flags.append((ended.tolist(), cut.tolist()))
        valid.append(info["valid"].tolist())
        last.append((seen[1].tolist(), float(rewards[1])))
    assert flags[1] == ([False, True], [False, False])
    assert flags[2] == ([False, False], [False, False])
    assert flags[3] == ([False, False], [True, False])
    assert valid == [[True, True], [True, True], [True, False], [True, False]]
    assert last[1] == ([1, 2, *RIGHT], 2.0)
    assert last[2] == ([0, 0, *RIGHT], 0.0)


def test_an_agent_that_leaves_unexpectedly_is_refused() -> None:
    env = make_training("pettingzoo:teams_in_parallel:leaving", 1)
    env.reset(seed=[0, 0])
    env.step(np.array([1, 1]))
    with pytest.raises(EnvironmentMismatchError, match=r"right left before the other agents.*leaves=true"):
        env.step(np.array([1, 1]))


def test_rows_that_end_with_the_team_show_its_state() -> None:
    env = rows(RowView(state=True, team_ends=True), count=1, leaves=True, may_leave=True)
    assert spec_of(env).team == Team(("left", "right"), 3)
    assert not env.inserts_rows
    seen, _ = env.reset(seed=[4, 0])
    np.testing.assert_array_equal(seen[:, 4:], [[4, 4, 0]] * 2)
    for _ in range(3):
        _, _, ended, cut, info = env.step(np.array([1, 1]))
        assert info["valid"].all()
        assert not ended.any()
        assert not cut.any()
    _, _, ended, cut, info = env.step(np.array([1, 1]))
    assert cut.all()
    assert not ended.any()
    np.testing.assert_array_equal(info["final_obs"][:, 4:], [[4, 4, 4]] * 2)


def test_agents_with_fewer_choices_have_a_mask() -> None:
    env = rows(count=1, choices=2)
    seen, _ = env.reset(seed=[0, 0])
    np.testing.assert_array_equal(seen["action_mask"], [[1, 1, 1], [1, 1, 0]])
    assert spec_of(env).masked
    assert spec_of(env).action_dim == 3


def test_a_spec_of_a_team_is_read_back_from_json() -> None:
    spec = spec_of(rows(RowView(state=True)))
    assert Spec.from_json(spec.to_json()) == spec
    assert spec.of_one_agent().observation_dim == 4
    assert spec.observation_dim == 7
    assert spec.of_one_agent().team == Team(("left", "right"))


class ByNumber(Reactive):
    """`left` goes up, `right` goes down."""

    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.where(observations[:, 2] == 1, 2, 0)


def test_a_teams_return_is_the_mean_over_its_agents_whose_own_are_terms_of_it() -> None:
    found = evaluate([ByNumber()], WALKERS, episodes=3, num_envs=2)[0]
    # from s: left earns s+1 + ... + s+4 = 4 s + 10, right twice s-1 + ... + s-4, 8 s - 20
    left, right = found.reward_terms["left"], found.reward_terms["right"]
    starts = (left - 10) / 4
    assert ((starts >= 0) & (starts < 7)).all()
    assert found.lengths.tolist() == [4, 4, 4]
    np.testing.assert_allclose(right, 8 * starts - 20)
    np.testing.assert_allclose(found.returns, (left + right) / 2)


def test_what_is_evaluated_keeps_the_contract_and_fits_the_policy_of_one_agent() -> None:
    assert [str(one) for one in check_environment(WALKERS) if one.level == "error"] == []
    check_spaces(WALKERS, 4, 3, discrete=True)
    with pytest.raises(EnvironmentMismatchError, match="observations don't fit"):
        check_spaces(WALKERS, 3, 3, discrete=True)


def test_time_limits_truncate_all_agents() -> None:
    env = make_vec(WALKERS + "?max_episode_steps=2", 1)
    env.reset(seed=0)
    assert not env.step(np.array([[1, 1]]))[3].any()
    assert env.step(np.array([[1, 1]]))[3].all()


def test_names_that_make_no_parallel_environment_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no function parallel_env"):
        make_vec("pettingzoo:json", 1)
    with pytest.raises(ConfigError, match="takes no argument 'leavs'"):
        make_vec(WALKERS + "?leavs=true", 1)
    with pytest.raises(EnvironmentMismatchError, match="without possible_agents"):
        make_vec("pettingzoo:teams_in_parallel:nothing", 1)


def test_part_of_a_team_is_not_reset() -> None:
    env = rows()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="they begin together"):
        env.reset(options={"reset_mask": np.array([True, False, True, True])})


def test_simple_spread_has_the_published_sizes() -> None:
    pytest.importorskip("mpe2", reason="needs the extra mpe")
    env = make_training("pettingzoo:mpe2.simple_spread_v3", 2, view=RowView(state=True))
    spec = spec_of(env)
    assert spec.agents == 3
    assert spec.state_dim == 54
    assert spec.of_one_agent().observation_dim == 18 + 3
    assert spec.action_dim == 5
    assert env.num_envs == 6
    env.close()
