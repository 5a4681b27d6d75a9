"""Cal-QL fine-tuning: returns-to-go of episodes that are over, and nothing learned from the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hybrid_problems import regulated
from online_problems import Constant, Counting, Inserting, Regulator, loop, parameters, spec

from surefoot.core.base.errors import DataError
from surefoot.core.engine.agent import Batch
from surefoot.core.engine.sources import MAIN
from surefoot.envs.native import NativeVectorEnv
from surefoot.offline import CalQL
from surefoot.online import CalQLOnline
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.runs.embedded import generate

SMALL: dict[str, Any] = {"sampled_actions": 2, "batch_size": 16, "discount": 0.5}


def fresh(env: Any, seeds: tuple[int, ...] = (0,), **options: Any) -> OffPolicyLoop:
    given = {**SMALL, "initial_steps": 40, **options}
    if "dataset" not in given and given.get("offline_fraction") != 0:
        given["dataset"] = CalQLOnline(spec(env), discount=given["discount"]).prepare(regulated())
    return loop("calql_online", env, seeds, **given)


def column(of: OffPolicyLoop, key: str) -> np.ndarray:
    buffer = of.experience.buffer
    return buffer[key][: len(buffer)].numpy().squeeze().copy()


# Episodes of 5 steps (cut) and 3 (ended) by turns, rewards 10, 20, ..., at discount 1/2.
FIVE = [10 + 51.25 / 2, 20 + 62.5 / 2, 30 + 65 / 2, 40 + 50 / 2, 50]
THREE = [10 + 35 / 2, 20 + 30 / 2, 30]


def test_returns_to_go_are_written_when_an_episode_is_over_and_are_nan_until_then() -> None:
    trained = fresh(Counting(), initial_steps=100)
    trained.run(4)
    assert np.isnan(column(trained, "returns_to_go")).all()
    trained.run(6)
    found = column(trained, "returns_to_go")
    np.testing.assert_allclose(found[:8], [*FIVE, *THREE])
    assert np.isnan(found[8:]).all()


def test_several_environments_and_a_ring_that_is_shorter_than_an_episode() -> None:
    env = Counting(4)
    env.episode[:] = [0, 1, 0, 1]
    trained = fresh(env, (0, 1), initial_steps=100, replay_capacity=8)  # four steps of two environments
    trained.run(10)  # five vector steps: environments 0 and 2 have just ended one of five steps, 1 and 3 one of three
    found = trained.experience.buffer["returns_to_go"].numpy().reshape(4, 4)
    order = np.roll(found, -1, 0)  # the ring has come round by one step: oldest first
    np.testing.assert_allclose(order[:, [0, 2]], np.array([FIVE[1:], FIVE[1:]]).T)
    np.testing.assert_allclose(order[:2, [1, 3]], np.array([THREE[1:], THREE[1:]]).T)
    assert np.isnan(order[2:, [1, 3]]).all()


def test_only_steps_of_episodes_that_are_over_are_learned_from() -> None:
    trained = fresh(Counting(2), (0, 1), initial_steps=100, offline_fraction=0.0, dataset=None)
    trained.run(7)
    known = ~np.isnan(column(trained, "returns_to_go"))
    assert 0 < known.sum() < len(known)
    drawn = torch.cat([trained.learner.sources[MAIN].rows(step) for step in range(40)], 1)
    assert set(drawn.flatten().tolist()) == set(np.flatnonzero(known).tolist())
    assert torch.equal(drawn % 2, torch.tensor([[0], [1]]).expand_as(drawn))


@pytest.mark.parametrize("capacity", [12, 100])
def test_what_is_counted_once_an_episode_is_what_a_scan_of_all_rows_finds(
    capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps 8 to 27. Episodes end with the 8th, 13th, 16th, 21st and 24th; a ring of 12 steps comes round at the 13th,
    and from there on rows are replaced at every step."""
    trained = fresh(
        Counting(2), (0, 1), initial_steps=1000, offline_fraction=0.0, dataset=None, replay_capacity=capacity
    )
    source: Any = trained.learner.sources[MAIN]
    scans: list[int] = []
    counted = source._counts_of
    monkeypatch.setattr(source, "_counts_of", lambda known: scans.append(1) or counted(known))
    trained.run(7)
    for _ in range(20):
        trained.run(1)
        known = ~np.isnan(column(trained, "returns_to_go"))
        uniform = torch.linspace(0, 0.999, 50, dtype=torch.float64).expand(2, -1)
        found = source.of_buffer(uniform)
        source.of_buffer(uniform)
        for seed in (0, 1):
            own = np.flatnonzero(known & (np.arange(len(known)) % 2 == seed))
            np.testing.assert_array_equal(found[seed].numpy(), own[(uniform[seed].numpy() * len(own)).astype(int)])
    assert len(scans) == (1 + 15 if capacity == 12 else 5)


def test_rows_that_a_source_inserts_have_no_return_and_are_not_learned_from() -> None:
    trained = fresh(Inserting(1), initial_steps=100, offline_fraction=0.0, dataset=None)
    trained.run(11)  # five steps, an inserted row, three steps, another, one step
    found = column(trained, "returns_to_go")
    np.testing.assert_allclose(found[[0, 1, 2, 3, 4, 6, 7, 8]], [*FIVE, *THREE])
    assert np.isnan(found[[5, 9, 10]]).all()
    drawn = torch.cat([trained.learner.sources[MAIN].rows(step) for step in range(40)], 1)
    assert set(drawn.flatten().tolist()) == {0, 1, 2, 3, 4, 6, 7, 8}


def test_before_the_first_end_there_is_nothing_to_learn_from_and_the_message_says_so() -> None:
    class Endless(Constant):
        limit = 10_000

    with pytest.raises(DataError, match=r"no episode is over yet .* raise algo.initial_steps"):
        fresh(Endless(), initial_steps=20).run(30)


def test_an_episode_of_nothing_but_failures_is_worth_failing_for_ever() -> None:
    agent = CalQLOnline(spec(Regulator()), discount=0.9, failure_reward=-5.0)
    ends = torch.tensor([0.0, 0.0, 1.0])
    torch.testing.assert_close(agent.returns_to_go(torch.full((3,), -5.0), ends), torch.full((3,), -50.0))
    mixed = agent.returns_to_go(torch.tensor([-5.0, -5.0, 5.0]), ends)
    torch.testing.assert_close(mixed, torch.tensor([-5 - 4.5 + 4.05, -5 + 4.5, 5.0]))


def test_the_losses_are_the_offline_ones_on_data_and_replay_by_turns() -> None:
    trained = fresh(Regulator(), kernels=True)
    trained.run(60)
    assert trained.learner.eager_because() == {}
    online, offline = trained.agent, CalQL(trained.agent.spec, hidden=(16, 16), sampled_actions=2, discount=0.5)
    offline.load_state_dict(online.state_dict())
    rows = trained.learner.sources[MAIN].rows(5)[0]
    batch = trained.learner.sources[MAIN].gather(rows)
    assert not bool(batch["returns_to_go"].isnan().any())
    data = CalQLOnline(online.spec, discount=0.5).prepare(regulated())
    np.testing.assert_allclose(batch["returns_to_go"][::2], data.extras["returns_to_go"][rows[::2]], rtol=1e-6)
    met = column(trained, "returns_to_go")
    np.testing.assert_allclose(batch["returns_to_go"][1::2], met[rows[1::2]], rtol=1e-6)
    noises = {name: noise for update in online.updates() for name, noise in update.noise.items()}
    noise = {name: torch.rand(16, kind.width) for name, kind in noises.items()}
    for mine, other in zip(online.updates(), offline.updates(), strict=True):
        assert torch.equal(mine.loss(batch, noise)[0], other.loss(batch, noise)[0])


def test_stacked_seeds_equal_each_alone() -> None:
    together = fresh(Regulator(4), (1, 2))
    together.run(60)
    for position, seed in enumerate((1, 2)):
        alone = fresh(Regulator(2), (seed,))
        alone.run(60)
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-3, atol=1e-4)


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    def one() -> OffPolicyLoop:
        env = NativeVectorEnv("native/pendulum", 1, max_episode_steps=17)
        data = CalQLOnline(spec(env), discount=0.5).prepare(generate("native/pendulum", transitions=300, seed=1))
        return fresh(env, dataset=data, kernels=True)

    whole, resumed = one(), one()
    whole.run(60)
    saved = {name: value.clone() for name, value in whole.state(0).items()}
    last = whole.run(60)
    assert resumed.restore([saved], 60) is None
    np.testing.assert_equal(resumed.run(60), last)
    for name, value in whole.state(0).items():
        torch.testing.assert_close(value, resumed.state(0)[name], rtol=0, atol=0, equal_nan=True, msg=name)


def test_an_episode_that_a_resumed_run_can_not_go_on_with_counts_as_far_as_it_went() -> None:
    whole, resumed = fresh(Counting(), initial_steps=100), fresh(Counting(), initial_steps=100)
    whole.run(11)
    saved = {name: value.clone() for name, value in whole.state(0).items()}
    assert "new episode" in str(resumed.restore([saved], 11))
    found = column(resumed, "returns_to_go")
    np.testing.assert_allclose(found, [*FIVE, *THREE, *THREE])
    resumed.run(5)
    np.testing.assert_allclose(column(resumed, "returns_to_go")[11:], FIVE)


class Uncalibrated(CalQLOnline):
    """Cal-QL without its bound: CQL."""

    def _bounded(self, sampled: torch.Tensor, batch: Batch) -> torch.Tensor:
        return sampled


def test_values_of_the_policys_actions_are_not_pushed_below_what_episodes_returned() -> None:
    """Reward 1 for ever and episodes of 20 steps at discount 0.5: every return-to-go is 2 but for the last steps."""
    values = []
    for kind in (CalQLOnline, Uncalibrated):
        env = Constant(4)
        agent = kind(spec(env), num_envs=4, hidden=(32, 32), initial_steps=100, offline_fraction=0.0, cql_weight=5.0,
                     critic_learning_rate=3e-3, updates_per_step=0.5, **{k: v for k, v in SMALL.items()
                                                                        if k != "batch_size"})  # fmt: skip
        trained = OffPolicyLoop([agent.fresh(0)], [0], env, planned_steps=2000, batch_size=64,
                                kernels=True)  # fmt: skip
        trained.run(1500)
        states = torch.linspace(-1, 1, 21)[:, None]
        with torch.no_grad():
            pairs = torch.cat([states, trained.agent.act(states)], 1)
            values.append(float(trained.agent.critic(pairs).mean()))
    calibrated, pushed = values
    assert abs(calibrated - 2) < 0.4
    assert calibrated > pushed + 0.2  # by .22 to .4 over seeds
