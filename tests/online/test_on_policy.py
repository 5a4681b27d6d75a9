"""The on-policy loop: what blocks hold, in what order they are learned from, and how a run goes on."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from on_policy_problems import QUICK, Bandit, agents, loop
from online_problems import Constant, Inserting, Regulator

from surefoot.core import checkpoint
from surefoot.core.errors import ConfigError, DivergenceError, EnvironmentMismatchError
from surefoot.core.normalizer import RunningMoments
from surefoot.cuda_ext.rollout import Carry, rollout
from surefoot.data.store import Store
from surefoot.envs import make_vec
from surefoot.envs.acting import EpisodeMeans
from surefoot.envs.episodes import run_episodes
from surefoot.envs.native_rollout import evaluates, native_policy
from surefoot.online import PPO, SAC, spec_of
from surefoot.online.minibatches import Minibatches, RewardScale, WholeBlock
from surefoot.online.on_policy import OnPolicyLoop

PLACES = ["native/pendulum", "Pendulum-v1", "CartPole-v1"]
HELD: dict[str, Any] = {"exploration": "state_dependent", "hold_steps": 8}


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
    alone = loop("ppo", env_id, num_envs=1, normalise_observations=False).blocks.fill(0)
    beside = loop("ppo", env_id, num_envs=4, normalise_observations=False).blocks.fill(0)
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
    block = loop("ppo", Constant(4), horizon=50, minibatches=4, normalise_observations=False).blocks.fill(0)
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
        made = loop(algorithm, Inserting(4), kernels=False, normalise_observations=False)
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
    made = loop("ppo", "Pendulum-v1", horizon=32, normalise_observations=True)
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


# -- going on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "options"), [
    *((algorithm, {}) for algorithm in sorted(QUICK)), ("ppo", HELD),
])  # fmt: skip
@pytest.mark.parametrize("env_id", ["native/pendulum", "Hopper-v5"])
def test_a_run_taken_up_again_from_its_file_goes_on_to_the_same_bits(
    algorithm: str, options: dict[str, Any], env_id: str, tmp_path: pathlib.Path
) -> None:
    whole = loop(algorithm, env_id, **options)
    whole.run(256)
    first = loop(algorithm, env_id, **options)
    first.run(128)
    checkpoint.save(tmp_path / "state.safetensors", first.state(0), {})
    saved, _ = checkpoint.load(tmp_path / "state.safetensors")
    second = loop(algorithm, env_id, **options)
    assert second.restore([saved], first.step) is None
    while second.step < whole.step:
        second.run(64)
    for name, value in whole.state(0).items():
        assert torch.equal(value, second.state(0)[name]), name


def test_an_environment_without_a_state_begins_new_episodes_and_says_so() -> None:
    made = loop("ppo", "CartPole-v1")
    made.run(64)
    saved = {name: value.clone() for name, value in made.state(0).items()}
    again = loop("ppo", "CartPole-v1")
    lost = again.restore([saved], 64)
    assert lost is not None
    assert "new episode" in lost
    assert again.step == 64
    assert again.run(64)["loss"][0] != 0


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"target_kl": 1e-5, "learning_rate": 1e-2},
        {"schedule": "adaptive", "target_kl": 0.01},
        {"separate_norms": True},
        HELD,
    ],
    ids=["plain", "stop", "adaptive", "separate", "held"],
)
def test_seeds_together_equal_each_alone(options: dict[str, Any]) -> None:
    together = loop("ppo", "native/pendulum", (3, 8), **options)
    together.run(256)
    for position, seed in enumerate((3, 8)):
        alone = loop("ppo", "native/pendulum", (seed,), **options)
        alone.run(256)
        for name, value in alone.learner.agents_parameters(0).items():
            torch.testing.assert_close(
                together.learner.agents_parameters(position)[name], value, rtol=2e-3, atol=2e-5, msg=name
            )


def test_a_block_stops_when_the_policy_has_gone_too_far() -> None:
    far = loop("ppo", "native/pendulum", target_kl=1e-9, epochs=5, learning_rate=1e-2)
    far.run(64)
    assert far.learner.step == 4  # one epoch
    near = loop("ppo", "native/pendulum", target_kl=1e9, epochs=5)
    near.run(64)
    assert near.learner.step == 20


def test_an_adaptive_rate_falls_where_the_policy_moves_too_far_and_rises_where_it_hardly_moves() -> None:
    for target, compare in ((1e-9, float.__lt__), (1e9, float.__gt__)):
        made = loop("ppo", "native/pendulum", schedule="adaptive", target_kl=target, learning_rate=1e-3)
        made.run(64)
        assert compare(float(made.learner.optimizers[0].rates[0]), 1e-3)


def test_an_adaptive_rate_counts_every_minibatch_but_the_first_of_a_block() -> None:
    options = {"target_kl": 1e-9, "learning_rate": 1e-3, "horizon": 16, "minibatches": 4, "epochs": 1}
    made = loop("ppo", "native/pendulum", schedule="adaptive", **options)
    for blocks in (1, 2):
        made.run(1)
        divisions = math.log(1e-3 / float(made.learner.optimizers[0].rates)) / math.log(1.5)
        assert divisions == pytest.approx(3 * blocks, rel=1e-4)


def test_a_critics_explained_variance_is_told_once_a_block() -> None:
    made = loop("ppo", "native/pendulum", seeds=(0, 1))
    columns: list[Any] = []
    explain = made._explained
    made._explained = lambda given: explain(columns.append(given) or given)  # type: ignore[method-assign, func-returns-value]
    found = made.run(1)["explained_variance"]
    values, returns = (columns[0][name].double() for name in ("values", "returns"))
    for k in range(2):
        assert found[k] == pytest.approx(1 - float((returns[k] - values[k]).var() / returns[k].var()), rel=1e-4)


def test_a_linear_rate_ends_at_nothing_whatever_was_stopped_early() -> None:
    made = loop("ppo", "native/pendulum", planned=256, normalise_observations=False)
    rates = []
    for _ in range(4):
        made.run(64)
        rates.append(made.learner.optimizers[0].learning_rate() / 3e-4)
    assert rates == pytest.approx([0.75, 0.5, 0.25, 0.0])


@pytest.mark.parametrize("env_id", ["native/pendulum", "CartPole-v1"])
@pytest.mark.parametrize("algorithm", sorted(QUICK))
def test_training_steps_run_from_the_tape(algorithm: str, env_id: str) -> None:
    made = loop(algorithm, env_id, kernels=True)
    made.run(128)
    assert made.learner.eager_because() == {}


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "words"), [
    ({"minibatches": 7}, "divides the 64 steps"), ({"epochs": 0}, "epochs"), ({"discount": 1.5}, "discount"),
    ({"clip": 0.0}, "clip"), ({"schedule": "adaptive"}, "target_kl"), ({"advantage_scope": "all"}, "advantage_scope"),
    ({"observation_limit": -1.0}, "observation_limit"), ({"preset": "zoo"}, "no preset"),
    ({"exploration": "sde"}, "gaussian or state_dependent"), ({"hold_steps": 4}, "None where exploration is not state"),
    ({**HELD, "hold_steps": 0}, "hold_steps"), ({**HELD, "hold_steps": 17}, "from 1 to the 16 steps of a block"),
    ({**HELD, "hold_steps": 2.5}, r"hold_steps is 2\.5, must be a whole number or null"),
    ({"target_kl": "low"}, "target_kl is 'low', must be a number or null"),
])  # fmt: skip
def test_settings_out_of_range_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PPO.configure(**{"num_envs": 4, "horizon": 16, "minibatches": 4, **options})


def test_discrete_choices_are_refused_by_a_continuous_algorithm() -> None:
    with pytest.raises(ConfigError, match="sac learns continuous actions, and this problem has 2 discrete ones"):
        SAC(spec_of(make_vec("CartPole-v1", 1)))


def test_choices_have_no_state_dependent_noise() -> None:
    with pytest.raises(ConfigError, match=r"ppo\.exploration is 'state_dependent', must be gaussian where actions are"):
        loop("ppo", "CartPole-v1", **HELD)


def test_environments_of_another_problem_are_refused() -> None:
    pendulum, cartpole = make_vec("Pendulum-v1", 4), make_vec("CartPole-v1", 4)
    with pytest.raises(EnvironmentMismatchError, match="kind of actions of this ppo agent is continuous"):
        OnPolicyLoop(agents("ppo", pendulum, [0]), [0], cartpole, planned_steps=100)
    with pytest.raises(EnvironmentMismatchError, match="kind of actions of this ppo agent is discrete"):
        OnPolicyLoop(agents("ppo", cartpole, [0]), [0], pendulum, planned_steps=100)
    with pytest.raises(ConfigError, match=r"set algo\.num_envs"):
        OnPolicyLoop(agents("ppo", pendulum, [0]), [0], make_vec("Pendulum-v1", 3), planned_steps=100)


def test_unbounded_and_odd_action_spaces_are_refused() -> None:
    env = Constant(1)
    env.single_action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    with pytest.raises(EnvironmentMismatchError, match="no finite bounds"):
        spec_of(env)
    env.single_action_space = gymnasium.spaces.MultiDiscrete([2, 3])
    with pytest.raises(EnvironmentMismatchError, match="MultiDiscrete"):
        spec_of(env)
    env.single_action_space = gymnasium.spaces.Discrete(3, start=1)
    with pytest.raises(EnvironmentMismatchError, match="counted from 0"):
        spec_of(env)


def test_an_environment_that_gives_nan_is_named_with_seed_and_step() -> None:
    class Broken(Regulator):
        def follow(self, states: np.ndarray, actions: np.ndarray) -> Any:
            following, rewards, ended = super().follow(states, actions)
            if self.steps == 21:
                rewards[2] = np.nan
            return following, rewards, ended

    made = loop("ppo", Broken(4), (7,))
    with pytest.raises(DivergenceError, match=r"environment 2 of seed 7 .* vector step 21"):
        made.run(128)


def test_a_bandit_with_discrete_choices_fits_the_loop() -> None:
    made = loop("ppo", Bandit(4))
    block = made.blocks.fill(0)
    assert torch.equal(block["actions"].sum(-1), torch.ones(1, 16, 4))
    assert torch.equal(block["rewards"], block["actions"][..., Bandit.best])
