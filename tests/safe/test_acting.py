"""Constrained agents that act: costs reach them, multipliers move, and stacked, stopped or alone is the same."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from acting import ON_POLICY, Free, Walk, loop
from gymnasium.spaces import Box
from refusals import refused
from torch import Tensor

from surefoot.core.base.errors import DataError, EnvironmentMismatchError
from surefoot.core.engine.sources import MAIN
from surefoot.data.dataset import Dataset
from surefoot.envs import make_vec
from surefoot.envs.acting import RecentEpisodes
from surefoot.envs.adapters import adapt
from surefoot.envs.native import NativeVectorEnv
from surefoot.online import PPO, spec_of
from surefoot.online.loops.loop import make_loop
from surefoot.safe import ALGORITHMS

ACTING = (*ON_POLICY, "sac_lag")


def rows(algorithm: str) -> int:
    return 4 if algorithm in ON_POLICY else 2


def test_recent_episodes_are_those_of_a_loop_over_steps() -> None:
    source = torch.Generator().manual_seed(0)
    shape = (2, 30, 3)
    costs = torch.rand(shape, generator=source)
    ends = torch.rand(shape, generator=source) < 0.2
    mask = (torch.rand(shape, generator=source) < 0.8).float()
    found, stepwise = RecentEpisodes(2, 3, 4), RecentEpisodes(2, 3, 4)
    none = torch.zeros(shape, dtype=torch.bool)
    for part in (slice(0, 11), slice(11, 12), slice(12, 30)):
        block = {"costs": costs, "terminations": ends, "truncations": none, "mask": mask}
        found.add_block({name: value[:, part] for name, value in block.items()})
    for t in range(30):
        stepwise.add_step(*(value[:, t].flatten() for value in (costs, ends, none, mask)))
    for seed in range(2):
        done, running = [], [[0.0, 0.0] for _ in range(3)]
        for t in range(30):
            for e in range(3):
                running[e][0] += float(costs[seed, t, e] * mask[seed, t, e])
                running[e][1] += float(mask[seed, t, e])
                if ends[seed, t, e]:
                    done.append(tuple(running[e]))
                    running[e] = [0.0, 0.0]
        expected = torch.tensor(done[-4:]).mean(0)
        for one in (found, stepwise):
            torch.testing.assert_close(torch.stack([m[seed] for m in one.means()]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["ppo_lag", "cpo"])
def test_episodes_that_began_in_the_steps_for_the_first_statistics_count_as_a_whole(algorithm: str) -> None:
    made = loop(algorithm, NativeVectorEnv("native/pendulum", 4), horizon=150)  # episodes of 200 steps
    made.run(4 * 150)
    assert made.step == 2 * 4 * 150
    assert made.blocks.inside
    _, length = made.blocks.recent.means()
    assert length.tolist() == [200.0]


@pytest.mark.parametrize("algorithm", ACTING)
def test_an_environment_without_costs_is_refused_with_what_to_do(algorithm: str) -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"keeps a limit on costs, and Free gives none: put each step"):
        loop(algorithm, Free(rows(algorithm))).run(64)


class Late(gymnasium.Env[Any, Any]):
    """Episodes of 50 steps that speak of a cost, 1, only from step `first` on, counted from 1."""

    observation_space, action_space = Box(-1, 1, (1,), np.float32), Box(-1, 1, (1,), np.float32)

    def __init__(self, first: int = 30) -> None:
        self.first, self.count = first, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        told = {"cost": 1.0} if self.count >= self.first else {}
        return np.zeros(1, np.float32), 0.0, False, self.count == 50, told


def late(algorithm: str, first: int = 30) -> Any:
    env, kind = adapt([lambda: Late(first)] * 2), ({"ppo": PPO} | ALGORITHMS)[algorithm]
    agent = kind(spec_of(env), num_envs=2, horizon=64, hidden=(4,), epochs=1, minibatches=2).fresh(0)
    return make_loop([agent], [0], env, planned_steps=512)


@pytest.mark.parametrize("algorithm", ["ppo", "ppo_lag"])
def test_a_cost_that_only_violating_steps_speak_of_is_none_in_the_others(algorithm: str) -> None:
    made = late(algorithm)
    assert made.run(128)["episode_cost"] == [21.0]
    saved = {name: value.clone() for name, value in made.state(0).items()}
    again = late(algorithm, first=51)  # where nothing violates any more
    assert again.restore([saved], made.step) is not None
    assert again.run(128)["episode_cost"] == [0.0]


def test_off_policy_a_constraint_may_be_silent_after_the_first_cost_of_a_run_but_not_before() -> None:
    def fresh(first: int) -> Any:
        return loop("sac_lag", adapt([lambda: Late(first)] * 2))

    with pytest.raises(EnvironmentMismatchError, match=r"info\['cost'\], 0\.0 on a safe step"):
        fresh(30).run(8)
    made = fresh(1)
    made.run(8)
    again = fresh(51)
    assert again.restore([{name: value.clone() for name, value in made.state(0).items()}], made.step) is not None
    assert again.run(120)["episode_cost"] == [0.0]


@pytest.mark.parametrize("algorithm", ACTING)
@pytest.mark.parametrize("cost", [-1.0, np.nan])
def test_a_cost_that_is_none_is_told_with_where_it_came_from(algorithm: str, cost: float) -> None:
    class Paying(Walk):
        def step(self, actions: Any) -> Any:
            *moved, info = super().step(actions)
            self.taken = getattr(self, "taken", 0) + 1
            if self.taken == 6:
                info = {**info, "cost": np.where(np.arange(self.num_envs) == self.num_envs - 1, cost, info["cost"])}
            return *moved, info

    count = rows(algorithm)
    said = rf"environment {count - 1} of seed 7 gave a cost of {cost:g} at vector step 5; info\['cost'\] must be 0"
    with pytest.raises(EnvironmentMismatchError, match=said):
        loop(algorithm, Paying(count), (7,)).run(128)


def test_cpo_climbs_the_entropy_where_nothing_else_counts() -> None:
    for bonus in (0.0, 0.1):
        made: Any = loop("cpo", Walk(rows("cpo")), cost_limit=1e9, entropy_coefficient=bonus)
        columns = made.agent.columns(made.blocks.fill(0))
        batch = {name: column[0].flatten(0, 1) for name, column in columns.items()}
        batch["advantages"].zero_()
        before = made.agent.actor.log_std.detach().clone()
        after = made.agent.policy_step(batch, {})[0]["actor.log_std"]
        assert bool((after > before + 0.01).all()) if bonus else torch.equal(after, before)


@pytest.mark.parametrize("algorithm", ACTING)
def test_limits_out_of_range_are_refused(algorithm: str) -> None:
    with refused("cost_limit", "range"):
        ALGORITHMS[algorithm].configure(cost_limit=-1.0)
    with refused("cost_discount", "range"):
        ALGORITHMS[algorithm].configure(cost_discount=1.5, **({"projection_weight": 1.0} if algorithm == "cup" else {}))


@pytest.mark.parametrize("algorithm", ACTING)
def test_seeds_together_are_the_seeds_alone(algorithm: str) -> None:
    steps = 128 if algorithm in ON_POLICY else 48
    both = loop(algorithm, Walk(2 * rows(algorithm)), (3, 5), cost_limit=1.0)
    both.run(steps)
    for position, seed in enumerate((3, 5)):
        alone = loop(algorithm, Walk(rows(algorithm)), (seed,), cost_limit=1.0)
        alone.run(steps)
        mine, own = both.learner.agents_parameters(position), alone.learner.agents_parameters(0)
        for name, value in own.items():
            torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("algorithm", ACTING)
def test_multiplier_and_recent_episodes_are_taken_up_bit_for_bit(algorithm: str) -> None:
    first, second = (loop(algorithm, Walk(rows(algorithm)), cost_limit=1.0) for _ in range(2))
    first.run(128)
    state = {name: value.clone() for name, value in first.state(0).items()}
    assert any(name.startswith(("agent/multiplier.", "agent/episode_cost")) for name in state)
    second.restore([state], first.step)
    recent = (second.blocks if algorithm in ON_POLICY else second.experience).acting.recent
    first_recent = (first.blocks if algorithm in ON_POLICY else first.experience).acting.recent
    assert torch.equal(recent.means()[0], first_recent.means()[0])
    assert torch.isfinite(recent.means()[0]).all()
    for name, value in second.learner.state(0).items():
        assert torch.equal(value, first.learner.state(0)[name]), name


@pytest.mark.parametrize("algorithm", ACTING)
def test_a_loop_goes_on_as_if_it_had_not_been_stopped(algorithm: str) -> None:
    env, block = "native/dubins-obstacles", 64 if algorithm in ON_POLICY else 40
    whole, first, second = (loop(algorithm, make_vec(env, rows(algorithm)), cost_limit=0.1) for _ in range(3))
    whole.run(3 * block)
    first.run(2 * block)
    assert second.restore([{name: value.clone() for name, value in first.state(0).items()}], first.step) is None
    second.run(block)
    for name, value in whole.learner.state(0).items():
        assert torch.equal(value, second.learner.state(0)[name]), name


def test_the_loop_steps_the_multiplier_before_the_policy_by_fresh_episodes() -> None:
    made = loop("ppo_lag", Walk(4), cost_limit=0.0, horizon=16)
    seen: list[tuple[float, float]] = []
    columns = made.agent.columns

    def watched(block: dict[str, Tensor]) -> Any:
        seen.append((float(made.blocks.recent.means()[0]), float(made.agent.multiplier())))
        return columns(block)

    made.agent.columns = watched
    made.run(64)
    cost, multiplier = seen[-1]
    assert cost > 0
    assert multiplier == pytest.approx(0.001 + 0.035, rel=1e-4)  # Adam's first step, taken before the columns


def test_off_policy_the_multiplier_moves_once_per_step_in_which_episodes_ended() -> None:
    made = loop("sac_lag", Walk(1), num_envs=1, cost_limit=0.0, initial_steps=1)
    made.run(26)  # episodes of 5
    assert float(made.agent.multiplier.count) == 4  # the first began with a random action
    assert float(made.agent.multiplier()) > 0.2
    free = loop("sac_lag", Walk(1), num_envs=1, cost_limit=100.0, initial_steps=1, initial_multiplier=1.0)
    free.run(26)
    assert float(free.agent.multiplier()) < 0.7


def test_off_policy_episodes_of_random_actions_are_not_what_the_multiplier_follows() -> None:
    made = loop("sac_lag", Walk(1), num_envs=1, cost_limit=0.0, initial_steps=12)
    made.run(12)  # two episodes of 5, and two steps of the third
    recent = made.experience.acting.recent
    assert bool(torch.isnan(recent.means()[0]).all())
    made.run(3)
    assert bool(torch.isnan(recent.means()[0]).all())
    made.run(5)
    cost, length = recent.means()
    assert float(length) == 5
    assert float(cost) >= 0
    assert float(made.agent.multiplier.count) == 1


def demonstrations(costs: float | None) -> Dataset:
    """40 steps whose costs no step of `Walk` has."""
    source = np.random.default_rng(0)
    seen, action = source.normal(size=(40, 3)).astype(np.float32), source.uniform(-1, 1, (40, 3)).astype(np.float32)
    return Dataset(
        observations=seen,
        actions=action,
        rewards=np.zeros(40, np.float32),
        next_observations=seen + 0.3 * action,
        terminations=np.zeros(40, bool),
        truncations=np.arange(40) % 5 == 4,
        episode_ids=np.arange(40) // 5,
        valid=np.ones(40, bool),
        costs=None if costs is None else np.full(40, costs, np.float32),
        name="demonstrations",
    )


def test_demonstrations_stay_in_every_batch_of_sac_lag_with_their_costs_while_its_own_steps_are_forgotten() -> None:
    options = {"num_envs": 1, "initial_steps": 1, "offline_fraction": 0.25, "replay_capacity": 8, "batch_size": 16}
    made = loop("sac_lag", Walk(1), dataset=demonstrations(7.0), **options)
    batches: list[Tensor] = []
    source = made.learner.sources[MAIN]
    plain = source.gather

    def watched(*arguments: Any) -> Any:
        batch = plain(*arguments)
        batches.append(batch["costs"].clone())
        return batch

    source.gather = watched  # type: ignore[method-assign]
    made.run(40)
    assert len(batches) > 20
    assert all(int((costs == 7).sum()) == 4 for costs in batches)  # a quarter of 16
    assert all(bool(((costs == 7) | (costs <= 1)).all()) for costs in batches)
    assert made.experience.buffer.capacity == 8


def test_demonstrations_without_costs_are_refused_and_those_that_all_violate_are_told() -> None:
    made: Any = loop("sac_lag", Walk(2), dataset=demonstrations(7.0), offline_fraction=0.25).agent
    with pytest.raises(DataError, match="demonstrations: has no costs, and sac_lag learns to avoid them"):
        made.prepare(demonstrations(None))
    with pytest.raises(DataError, match=r"costs\[0\] is -1"):
        made.prepare(demonstrations(-1.0))
    assert "all 40 steps violate" in made.notes(demonstrations(7.0))[-1]


def test_a_tape_of_sac_lag_reads_the_multiplier_as_it_is_now() -> None:
    taped, plain = (loop("sac_lag", Walk(2), cost_limit=0.0, kernels=k, hidden=(16, 16)) for k in (True, False))
    for made in (taped, plain):
        made.run(120)
    assert taped.learner.eager_because() == {}
    assert float(taped.agent.multiplier()) > 0.3
    for name, value in plain.learner.agents_parameters(0).items():
        torch.testing.assert_close(taped.learner.agents_parameters(0)[name], value, rtol=2e-2, atol=2e-3)
