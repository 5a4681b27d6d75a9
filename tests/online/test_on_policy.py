"""The on-policy loop: what blocks hold, in what order they are learned from, and how a run continues."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from block_rows import HELD
from on_policy_problems import QUICK, loop
from online_problems import Constant, Inserting

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.normalizer import RunningMoments
from surefoot.cuda_ext.rollout import Carry, rollout
from surefoot.data.store import Store
from surefoot.envs.acting import EpisodeMeans
from surefoot.envs.acting.sums import sums_of_episodes
from surefoot.envs.episodes import run_episodes
from surefoot.envs.native_rollout import evaluates, native_policy
from surefoot.online.base.on_policy_agent import BEHAVIOUR
from surefoot.online.loops.minibatches import Minibatches, RewardScale, WholeBlock

PLACES = ["native/pendulum", "Pendulum-v1", "CartPole-v1"]


# -- blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ppo", "mdpo"])
@pytest.mark.parametrize("env_id", PLACES)
def test_the_ratio_of_the_first_minibatch_is_one(algorithm: str, env_id: str) -> None:
    made = loop(algorithm, env_id, kernels=True)
    made.run(64)
    block = made.blocks.fill(1)
    if algorithm == "mdpo":
        block["progress"] = torch.zeros_like(block["rewards"])
    made._write(block)
    batch = made.store.gather(torch.arange(16))
    with torch.no_grad():
        _, metrics = made.agent.policy_loss(batch, {})  # type: ignore[attr-defined]
    assert float(metrics["ratio_max"]) == pytest.approx(1, abs=1e-6)
    assert abs(float(metrics["kl_k1"])) < 1e-6
    assert float(metrics["kl_k3"]) < 1e-6
    assert float(metrics.get("clip_fraction", 0.0)) == 0


def test_steps_of_an_older_policy_are_corrected_by_how_much_likelier_they_are_now() -> None:
    """The older one took each action with twice the odds, or with a third of them: weights are 1/2, or 1 at most."""
    made = loop("ppo", "Pendulum-v1", value_coefficient=0.5)
    agent: Any = made.agent
    c, (steps, rows) = agent.config, (3, 2)
    torch.manual_seed(1)
    names = ("observations", "next_observations")
    block = {name: torch.randn(steps, rows, agent.spec.observation_dim) for name in names}
    block |= {"actions": torch.rand(steps, rows, agent.spec.action_dim), "rewards": torch.randn(steps, rows)}
    ends = torch.zeros(steps, rows, dtype=torch.bool)
    block |= {"terminations": ends.clone(), "truncations": ends.clone()}
    block["terminations"][1, 0] = block["truncations"][1, 1] = True
    with torch.no_grad():
        now = agent.actor.log_density(block["observations"].flatten(0, 1), block["actions"].flatten(0, 1))
        block[BEHAVIOUR] = now.view(steps, rows) + torch.tensor([math.log(2), -math.log(3)])
        v, following = (agent.value(block[name].flatten(0, 1)).view(steps, rows) for name in names)
        found = agent.columns(block)
    rates = c.discount * (1 - block["terminations"].float())
    for row, weight in enumerate((0.5, 1.0)):
        ahead = 0.0  # of V-trace's target over the value, at the next step of the episode
        for t in reversed(range(steps)):
            if block["terminations"][t, row] or block["truncations"][t, row]:
                ahead = 0.0
            error = float(block["rewards"][t, row] + rates[t, row] * following[t, row] - v[t, row])
            advantage = error + c.discount * c.gae_lambda * ahead
            ahead = weight * advantage
            assert float(found["advantages"][t, row]) == pytest.approx(advantage, rel=1e-4, abs=1e-6)
            assert float(found["returns"][t, row]) == pytest.approx(float(v[t, row]) + ahead, rel=1e-4, abs=1e-6)
    batch = {name: value.flatten(0, 1) for name, value in found.items()}
    with torch.no_grad():
        _, metrics = agent.policy_loss(batch, {})
    assert float(metrics["ratio_max"]) == pytest.approx(3, rel=1e-4)


def test_actions_found_again_are_those_of_the_native_rollout() -> None:
    made = loop("ppo", "native/quadrotor-2d", num_envs=6, horizon=24, minibatches=4)
    made.run(144)
    env: Any = made.blocks.env
    begun, seeds = env._simulator.state, torch.from_numpy(env._seeds)
    assert made.blocks.inside
    policy = native_policy(made.blocks._policies[0], sampling=True)  # type: ignore[index]
    found = rollout(
        env.system, policy=policy, seeds=seeds, carry=Carry(begun.states, begun.episodes, begun.elapsed), horizon=24,
        episodes="many", record=("actions", "observations", "terminated"),
    )  # fmt: skip
    block = made.blocks.fill(2)
    agent = made.agent
    middle, half = (agent.action_high + agent.action_low) / 2, (agent.action_high - agent.action_low) / 2
    applied = middle + half * block["actions"][0].clamp(-1, 1)
    torch.testing.assert_close(applied, found.records["actions"], rtol=1e-4, atol=1e-4)
    assert bool((block["actions"].abs() > 1).any())  # what is learned from is not clipped
    assert torch.equal(block["terminations"][0], found.records["terminated"])


def test_episodes_that_end_inside_a_rollout_draw_the_noise_of_the_next_episode() -> None:
    made = loop("ppo", "native/cartpole-balance", num_envs=4, horizon=200, minibatches=4)
    block = made.blocks.fill(0)
    ended = block["terminations"] | block["truncations"]
    assert int(ended.sum()) > 8
    env: Any = made.blocks.env
    env.set_state(env.get_state())
    fresh = loop("ppo", "native/cartpole-balance", num_envs=4, horizon=200, minibatches=4)
    recorded: Any = fresh.blocks.env
    begun = recorded._simulator.state
    policy = native_policy(fresh.blocks._policies[0], sampling=True)  # type: ignore[index]
    found = rollout(
        recorded.system, policy=policy, seeds=torch.from_numpy(recorded._seeds), carry=begun, horizon=200,
        episodes="many", record=("actions",),
    )  # fmt: skip
    own = block["actions"][0].clamp(-1, 1) * fresh.agent.action_high
    torch.testing.assert_close(own, found.records["actions"], rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "native/pendulum", "CartPole-v1"])
def test_one_environment_does_the_same_alone_and_beside_others(env_id: str) -> None:
    alone = loop("ppo", env_id, num_envs=1, normalize_observations=False).blocks.fill(0)
    beside = loop("ppo", env_id, num_envs=4, normalize_observations=False).blocks.fill(0)
    for name, column in alone.items():
        torch.testing.assert_close(column[:, :, 0], beside[name][:, :, 0], rtol=1e-5, atol=1e-5)
    assert not torch.equal(beside["actions"][:, :, 0], beside["actions"][:, :, 1])


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_state_dependent_noise_is_one_function_until_it_is_drawn_anew(seeds: tuple[int, ...]) -> None:
    made = loop("ppo", "native/quadrotor-2d", seeds, num_envs=3, horizon=40, minibatches=4, **HELD)
    assert not made.blocks.inside
    block = made.blocks.fill(0)
    for position in range(len(seeds)):
        actor: Any = made.learner.extract(position).actor
        seen, actions = (block[name][position].movedim(1, 0) for name in ("observations", "actions"))
        with torch.no_grad():
            features, mean = actor.mlp.with_features(seen)
        functions = torch.linalg.lstsq(  # 8 steps of 6 features each
            features.unflatten(1, (5, 8)).double(), (actions - mean).unflatten(1, (5, 8)).double()
        ).solution
        noise = torch.einsum("egtf,egfa->egta", features.unflatten(1, (5, 8)).double(), functions).flatten(1, 2)
        torch.testing.assert_close(noise.float(), actions - mean, rtol=0, atol=1e-3)
        assert float((functions[:, 1:] - functions[:, :-1]).abs().amax((2, 3)).min()) > 0.1
    again = loop("ppo", "native/quadrotor-2d", seeds, num_envs=3, horizon=40, minibatches=4, **HELD).blocks.fill(0)
    assert torch.equal(again["actions"], block["actions"])


def test_policies_that_hold_their_noise_are_evaluated_inside_native_systems_and_sampled_outside() -> None:
    made = loop("ppo", "native/pendulum", **HELD)
    policy = made.learner.extract(0).policy()
    assert evaluates(policy)
    with pytest.raises(ConfigError, match="state-dependent noise"):
        native_policy(policy, sampling=True)
    inside = run_episodes(policy, "native/pendulum", np.arange(4), steps=50)
    stepped = run_episodes(lambda o: policy(torch.from_numpy(o).float()).numpy(), "native/pendulum", np.arange(4),
                           steps=50)  # fmt: skip
    np.testing.assert_allclose(inside.returns, stepped.returns, rtol=1e-4)


def test_the_final_observation_follows_where_an_episode_ends_and_the_next_one_elsewhere() -> None:
    block = loop("ppo", Constant(4), horizon=50, minibatches=4, normalize_observations=False).blocks.fill(0)
    ended = block["truncations"]
    assert ended.nonzero()[:, 1].unique().tolist() == [19, 39]
    assert not bool(block["terminations"].any())
    same = (block["next_observations"][:, :-1] == block["observations"][:, 1:]).all(-1)
    assert torch.equal(same, ~ended[:, :-1])


def test_rows_that_a_source_inserts_are_masked_and_are_not_steps() -> None:
    from surefoot.envs.adapters import adapt

    env = adapt(gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync"))
    assert env.inserts_rows
    made = loop("ppo", env, num_envs=3, horizon=64, minibatches=4)
    block = made.blocks.fill(0)
    ended, mask = block["terminations"] | block["truncations"], block["mask"]
    assert int(ended.sum()) > 3
    assert torch.equal(mask[:, 1:] == 0, ended[:, :-1])
    assert bool((block["rewards"] == mask).all())  # CartPole pays 1 for each step that is one
    lengths = made.blocks.episodes._ended[1] + made.blocks.episodes._running[1].sum()
    assert float(lengths) == float(mask.sum())
    made._write(block)
    made._learn(0)
    columns = made.learner.apply("columns", block)
    assert bool((columns["advantages"][mask == 0] == 0).all())


@pytest.mark.parametrize("algorithm", QUICK)
def test_what_a_source_inserts_changes_nothing_that_is_learned_with_continuous_actions(algorithm: str) -> None:
    learned = []
    for nonsense in (0.0, 50.0):
        made = loop(algorithm, Inserting(4), kernels=False, normalize_observations=False)
        fill, seen = made.blocks.fill, []

        def filled(step: int, fill: Any = fill, seen: list[Any] = seen, nonsense: float = nonsense) -> Any:
            block = {name: column.clone() for name, column in fill(step).items()}
            seen.append(block["mask"] == 0)
            for name in ("observations", "actions", "rewards"):
                block[name][seen[-1]] += nonsense
            return block

        made.blocks.fill = filled  # type: ignore[method-assign]
        made.run(64)
        assert [0 < int(inserted.sum()) < inserted.numel() for inserted in seen] == [True]
        learned.append(made.learner.agents_parameters(0))
    for name, value in learned[0].items():
        torch.testing.assert_close(learned[1][name], value, rtol=1e-5, atol=1e-6)
    untrained = made.learner.agent.fresh(0).state_dict()
    assert any(not torch.equal(value, untrained[name]) for name, value in learned[0].items())


def test_observation_statistics_are_those_of_everything_seen_and_stay_in_the_policy() -> None:
    made = loop("ppo", "Pendulum-v1", horizon=32, normalize_observations=True)
    seen, step = [np.array(made.blocks.acting.received)], made.blocks.env.step

    def watched(actions: Any) -> Any:
        found = step(actions)
        seen.append(np.array(found[0]))
        return found

    made.blocks.env.step = watched
    made.run(256)
    everything = np.concatenate(seen).astype(np.float64)
    policy = made.learner.extract(0).policy()
    np.testing.assert_allclose(policy.normalizer.mean, everything.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.normalizer.scale, np.sqrt(everything.var(0) + 1e-8), rtol=1e-5)


def test_masked_moments_of_several_streams_are_numpys() -> None:
    moments, source = RunningMoments(2, 3), np.random.default_rng(0)
    kept: list[list[np.ndarray]] = [[], []]
    for _ in range(4):
        values, valid = source.normal(5, 2, (2, 7, 3)), source.random((2, 7)) < 0.6
        moments.update(torch.from_numpy(values), torch.from_numpy(valid))
        for stream in range(2):
            kept[stream].append(values[stream][valid[stream]])
    for stream in range(2):
        rows = np.concatenate(kept[stream])
        np.testing.assert_allclose(moments.mean[stream], rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(moments.scale(0.0)[stream], rows.std(0), rtol=1e-12)
        assert int(moments.count[stream]) == len(rows)


def test_rewards_are_scaled_by_the_deviation_of_the_discounted_sum() -> None:
    source, discount = np.random.default_rng(1), 0.9
    scale = RewardScale(1, 2, discount, 0.8, "cpu")
    sums, running = [], np.zeros(2)
    for number in range(3):
        rewards, ended = source.normal(1, 3, (20, 2)).astype(np.float32), source.random((20, 2)) < 0.1
        for time in range(20):
            running = running + rewards[time]
            sums.append(running.copy())
            running = running * discount * (1 - ended[time])
        block = {"rewards": torch.from_numpy(rewards)[None], "terminations": torch.from_numpy(ended)[None],
                 "truncations": torch.zeros(1, 20, 2, dtype=torch.bool)}  # fmt: skip
        found = scale(block)[0].numpy()
        expected = np.clip(rewards / np.sqrt(np.var(np.concatenate(sums)) + 1e-8), -0.8, 0.8)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=str(number))


def test_means_of_episodes_are_those_counted_one_by_one() -> None:
    source, means = np.random.default_rng(2), EpisodeMeans(2, 3)
    totals, lengths = np.zeros((2, 3)), np.zeros((2, 3))
    returns: list[list[float]] = [[], []]
    steps: list[list[float]] = [[], []]
    for _ in range(3):
        rewards, ended = source.normal(0, 1, (2, 9, 3)), source.random((2, 9, 3)) < 0.2
        means.add_block({"rewards": torch.from_numpy(rewards), "terminations": torch.from_numpy(ended),
                         "truncations": torch.zeros(2, 9, 3, dtype=torch.bool)})  # fmt: skip
        for seed, time, row in np.ndindex(2, 9, 3):
            totals[seed, row] += rewards[seed, time, row]
            lengths[seed, row] += 1
            if ended[seed, time, row]:
                returns[seed].append(totals[seed, row])
                steps[seed].append(lengths[seed, row])
                totals[seed, row] = lengths[seed, row] = 0
    found = means.take()
    assert found["episode_return"] == pytest.approx([np.mean(r) for r in returns], rel=1e-12)
    assert found["episode_length"] == pytest.approx([np.mean(s) for s in steps])
    assert math.isnan(means.take()["episode_return"][0])


@pytest.mark.parametrize("reward", [math.inf, math.nan, 1e300])
def test_what_is_lost_of_one_episode_is_not_lost_of_others(reward: float) -> None:
    rewards, ended = torch.ones(1, 10, 2, dtype=torch.float64), torch.zeros(1, 10, 2, dtype=torch.bool)
    rewards[0, 1, 0] = reward
    ended[0, 3::3] = True  # after 4, 3 and 3 steps
    block = {"rewards": rewards, "terminations": ended, "truncations": torch.zeros_like(ended)}
    sums, running = sums_of_episodes(rewards, torch.zeros(1, 2, dtype=torch.float64), ended)
    assert sums[0, 6::3].tolist() == [[3.0, 3.0]] * 2
    assert running.tolist() == [[0.0, 0.0]]
    blocks, steps = EpisodeMeans(1, 2), EpisodeMeans(1, 2)
    for first, last in ((0, 3), (3, 10)):  # the lost reward is of an episode that continues between them
        blocks.add_block({name: value[:, first:last] for name, value in block.items()})
    for time in range(10):
        steps.add_step(rewards[0, time], ended[0, time])
    for means in (blocks, steps):
        found = means.take()
        if not math.isfinite(reward):
            assert found == {"episode_return": [16 / 5], "episode_length": [16 / 5]}
        assert not means.lengths.any()
        means.add_block({**block, "rewards": torch.ones_like(rewards)})
        assert means.take()["episode_return"] == [20 / 6]


def test_sums_of_a_rollout_give_the_means_that_its_records_give() -> None:
    made = loop("ppo", "native/cartpole-balance", num_envs=4, horizon=30, minibatches=4)
    other = EpisodeMeans(1, 4)
    for number in range(8):
        other.add_block(made.blocks.fill(number))
    found, expected = made.blocks.episodes.take(), other.take()
    assert found["episode_return"] == pytest.approx(expected["episode_return"], rel=1e-5)
    assert found["episode_length"] == pytest.approx(expected["episode_length"])


def test_every_row_is_in_one_minibatch_of_each_epoch() -> None:
    def minibatches(*seeds: int) -> Minibatches:
        found = Minibatches(Store.pack({"y": np.zeros(12 * len(seeds), np.float32)}), 12, 3)
        found.bind(seeds, 4, torch.device("cpu"))
        return found

    rows = minibatches(5, 6)
    rows.begin(100, 7)
    epochs = [torch.cat([rows.rows(100 + 3 * e + p) for p in range(3)], 1) for e in range(2)]
    for epoch in epochs:
        assert sorted(epoch[0].tolist()) == list(range(12))
        assert sorted(epoch[1].tolist()) == list(range(12, 24))
    assert not torch.equal(epochs[0], epochs[1])
    alone = minibatches(6)
    alone.begin(0, 8)
    assert torch.equal(alone.rows(1)[0] + 12, rows.rows(104)[1])
    whole = WholeBlock(rows).rows(104)
    assert torch.equal(whole[:, :4], rows.rows(104))
    assert sorted(whole[0].tolist()) == list(range(12))
