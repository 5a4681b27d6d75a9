"""JaxMARL's environments as teams; skipped where JaxMARL is not installed, which needs an environment of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jaxmarl", reason="JaxMARL asks for gymnasium below 1.4 and is tested in an environment of its own")

from surefoot.core.base.errors import ConfigError
from surefoot.envs.acting import spec_of
from surefoot.envs.agents import RowView
from surefoot.envs.training import make_training
from surefoot.envs.vector import make_vec

SPREAD = "jaxmarl:MPE_simple_spread_v3"


def rows(name: str, count: int = 2) -> Any:
    return make_training(name, count, view=RowView(state=True))


def test_simple_spread_is_jaxmarls_own_steps() -> None:
    import jax
    import jaxmarl

    env = rows(SPREAD)
    spec = spec_of(env)
    assert (spec.agents, spec.state_dim, spec.action_dim) == (3, 54, 5)
    seen, _ = env.reset(seed=[3, 0, 0, 4, 0, 0])
    own = jaxmarl.make("MPE_simple_spread_v3")
    key = jax.random.split(jax.random.PRNGKey(3))
    observations, state = own.reset(key[0])
    for agent in range(3):
        np.testing.assert_allclose(seen[agent, :18], observations[f"agent_{agent}"], rtol=1e-5, atol=1e-6)
    actions = np.array([1, 2, 3, 0, 0, 0])
    seen, rewards, *_ = env.step(actions)
    pair = jax.random.split(key[1])
    chosen = {f"agent_{i}": int(actions[i]) for i in range(3)}
    observations, _, earned, _, _ = own.step_env(pair[0], state, chosen)
    for agent in range(3):
        np.testing.assert_allclose(seen[agent, :18], observations[f"agent_{agent}"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rewards[agent], earned[f"agent_{agent}"], rtol=1e-4)


def test_a_time_limit_cuts_and_the_last_observation_is_kept() -> None:
    env = rows(SPREAD)
    env.reset(seed=1)
    for step in range(1, 26):
        before, (seen, _, ended, cut, info) = step, env.step(np.ones(6, int))
        assert not ended.any()
        assert cut.all() == (before == env.max_episode_steps)
    assert not np.allclose(info["final_obs"], seen)


def test_rows_continue_from_their_state() -> None:
    env, other = rows(SPREAD), rows(SPREAD)
    env.reset(seed=5)
    other.reset(seed=6)
    env.step(np.ones(6, int))
    other.set_state({key: value.copy() for key, value in env.get_state().items()})
    for _ in range(30):
        for one, two in zip(env.step(np.arange(6) % 5)[:4], other.step(np.arange(6) % 5)[:4], strict=True):
            np.testing.assert_array_equal(one, two)


def test_smax_has_a_state_masks_and_agents_that_leave() -> None:
    name = "jaxmarl:HeuristicEnemySMAX?leaves=true"
    env = rows(name)
    spec = spec_of(env)
    assert spec.masked
    assert spec.state_dim > 0
    seen, _ = env.reset(seed=0)
    source = np.random.default_rng(0)
    left = False
    for _ in range(120):
        allowed = seen["action_mask"]
        actions = (source.random(allowed.shape) * allowed).argmax(-1)
        seen, _, _, _, info = env.step(actions)
        left |= not info["valid"].all()
    assert left
    assert make_vec(name, 2).single_action_space.nvec.tolist() == [spec.action_dim] * spec.agents


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="JaxMARL has no environment 'MPE_simple_spred_v3'"):
        make_vec("jaxmarl:MPE_simple_spred_v3", 1)
