"""Tasks of teams: their numbers by hand, exact resumption, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.acting import spec_of
from surefoot.envs.agents import RowView
from surefoot.envs.check import check_environment
from surefoot.envs.team_tasks.spread import Spread
from surefoot.envs.training import make_training
from surefoot.envs.vector import make_vec


def rows(name: str, count: int = 2) -> Any:
    return make_training(name, count, view=RowView(state=True, team_ends=True))


def test_spread_by_hand() -> None:
    """Agents at (0, 0), (0.2, 0), (1, 1), of which the first is pushed right and moves: v = 0.5, x = 0.05."""
    task = Spread(1)
    task.begin(np.array([0]), [3])
    task.positions[0] = [[0, 0], [0.2, 0], [1, 1]]
    task.velocities[0] = [[0, 0], [0, 0.4], [0, 0]]
    task.places[0] = [[0.05, 0], [1, 0.5], [-1, 0]]
    outcome = task.move(np.array([0]), np.array([[2, 0, 0]]))
    # 0.5 = 5 * 0.1; the second slows to 0.3 and goes to (0.2, 0.03), within 0.3 of the first
    np.testing.assert_allclose(task.positions[0], [[0.05, 0], [0.2, 0.03], [1, 1]])
    np.testing.assert_allclose(task.velocities[0], [[0.5, 0], [0, 0.3], [0, 0]])
    np.testing.assert_allclose(outcome.rewards[0], [-(0 + 0.5 + 1.05) - 1] * 3)
    first = outcome.scene.observations[0, 0]
    np.testing.assert_allclose(first, [0.5, 0, 0.05, 0, 0, 0, 0.95, 0.5, -1.05, 0, 0.15, 0.03, 0.95, 1], atol=1e-6)


def test_tasks_keep_the_contract_and_say_their_sizes() -> None:
    for name, agents, own, state in (("team:spread", 3, 14, 18), ("team:two-step", 2, 3, 3)):
        assert [str(one) for one in check_environment(name) if one.level == "error"] == []
        spec = spec_of(rows(name))
        assert (spec.agents, spec.state_dim) == (agents, state)
        assert spec.of_one_agent().observation_dim == own + agents
    assert make_vec("team:spread?agents=5", 1).single_action_space.nvec.tolist() == [5] * 5


@pytest.mark.parametrize("name", ["team:spread", "team:two-step"])
def test_rows_continue_from_their_state_to_the_bit(name: str) -> None:
    env, other = rows(name), rows(name)
    env.reset(seed=5)
    other.reset(seed=99)
    source = np.random.default_rng(1)
    actions = source.integers(0, 2, (60, env.num_envs))
    for action in actions[:20]:
        env.step(action)
    other.set_state({key: value.copy() for key, value in env.get_state().items()})
    for action in actions[20:]:
        for one, two in zip(env.step(action)[:4], other.step(action)[:4], strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_seed_fixes_all_episodes_of_its_team() -> None:
    first, second = rows("team:spread", 2), rows("team:spread", 1)
    seen, _ = first.reset(seed=[8, 0, 0, 4, 0, 0])
    alone, _ = second.reset(seed=[4, 0, 0])
    np.testing.assert_array_equal(seen[3:], alone)
    for _ in range(30):
        seen = first.step(np.ones(6, int))[0]
        alone = second.step(np.ones(3, int))[0]
    np.testing.assert_array_equal(seen[3:], alone)
    assert not np.array_equal(seen[:3], seen[3:])


def test_names_that_are_no_task_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no task 'team:spred'.*spread"):
        make_vec("team:spred", 1)
    with pytest.raises(ConfigError, match="at least 2 spread"):
        make_vec("team:spread?agents=1", 1)
    with pytest.raises(EnvironmentMismatchError, match=r"derive it from surefoot.envs.agents.Teams"):
        make_vec("team:tests.envs.teams_in_parallel:of_teams", 1)
