"""The loop of off-policy agents: what is stored, what is sampled, when it learns, and that a killed run continues."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from online_problems import Broken, Constant, Counting, Inserting, Regulator, loop, parameters, spec
from refusals import refused

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import Code, ConfigError, DivergenceError, EnvironmentMismatchError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.sources import MAIN
from surefoot.envs.acting import row_seeds
from surefoot.envs.native import NativeVectorEnv
from surefoot.envs.vector import make_vec
from surefoot.online import SAC, TD3
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.replay import even_places


def rows(of: OffPolicyLoop, *keys: str) -> list[np.ndarray]:
    buffer = of.experience.buffer
    return [buffer[key][: len(buffer)].numpy().squeeze() for key in keys]


def stream(purpose: str, block: int, seed: int = 0) -> CounterGenerator:
    return CounterGenerator([seed], purpose, block, torch.device("cpu"))


# -- what is stored ------------------------------------------------------------------------------------------


def test_the_final_observation_is_stored_and_only_a_termination_is_an_end() -> None:
    trained = loop("sac", Counting(), initial_steps=16)
    trained.run(16)
    before, after, ends, rewards = rows(trained, "observations", "next_observations", "terminations", "rewards")
    # Episodes of 5 (truncated), 3 (terminated), 5, 3: what follows the last step is the count, not the next start.
    np.testing.assert_array_equal(before, [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2])
    np.testing.assert_array_equal(after, [1, 2, 3, 4, 5, 1, 2, 3, 1, 2, 3, 4, 5, 1, 2, 3])
    np.testing.assert_array_equal(np.flatnonzero(ends), [7, 15])
    np.testing.assert_array_equal(rewards, 10 * after)


def test_episodes_are_reported_once_and_by_seed() -> None:
    trained = loop("sac", Counting(4), seeds=(0, 1), initial_steps=100)
    first, second, third = trained.run(10), trained.run(2), trained.run(4)
    # Each of a seed's two environments has ended one episode of 10 + 20 + ... + 50 after five vector steps.
    assert first["episode_return"] == [150.0, 150.0]
    assert first["episode_length"] == [5.0, 5.0]
    assert np.isnan(second["episode_return"]).all()
    assert third["episode_return"] == [60.0, 60.0]


def test_stored_transitions_are_the_real_steps_where_the_source_inserts_rows() -> None:
    env = Inserting(2)
    trained = loop("sac", env, seeds=(0, 1), initial_steps=5)
    trained.run(40)
    buffer = trained.experience.buffer
    assert int(buffer.valid.sum()) == env.real < len(buffer) == 80
    for step in range(30):
        drawn = trained.learner.sources[MAIN].rows(step)
        assert bool(buffer.valid[drawn].all())
        assert torch.equal(drawn % 2, torch.tensor([[0], [1]]).expand_as(drawn))  # each seed its own environment
    seen = torch.cat([trained.learner.sources[MAIN].rows(step) for step in range(40)], 1)
    assert set(seen.flatten().tolist()) == set(buffer.valid.nonzero().flatten().tolist())


def test_every_seed_learns_from_its_own_environments_only() -> None:
    trained = loop("sac", Counting(6), seeds=(3, 4), initial_steps=6)
    trained.run(60)
    for step in range(20):
        drawn = trained.learner.sources[MAIN].rows(step)
        assert drawn.shape == (2, 256)
        assert int(drawn.max()) < len(trained.experience.buffer)
        owner = drawn % 6 // 3
        assert torch.equal(owner, torch.tensor([[0], [1]]).expand_as(owner))
    # Uniform numbers of the counter stream, scaled to what the buffer holds now.
    uniform = stream("batch", 0, 4).random((32, 256))[0, 5].numpy()
    count = (uniform * (len(trained.experience.buffer) // 2)).astype(np.int64)
    expected = count // 3 * 6 + 3 + count % 3
    np.testing.assert_array_equal(trained.learner.sources[MAIN].rows(5)[1].numpy(), expected)


def test_initial_actions_are_uniform_or_the_policys_own() -> None:
    uniform = loop("sac", Regulator(), initial_steps=200)
    own = loop("sac", Regulator(), initial_steps=200, initial_actions="policy")
    for trained in (uniform, own):
        trained.run(200)
        assert trained.learner.step == 0
    noise = torch.cat([stream("initial_actions", block).random((32, 1, 1), np.float32)[0] for block in range(7)])
    np.testing.assert_allclose(rows(uniform, "actions")[0], 2 * noise[:200, 0, 0] - 1, atol=1e-6)
    observations, actions = rows(own, "observations", "actions")
    drawn = torch.cat([stream("acting", block).standard_normal((32, 1, 1))[0] for block in range(7)])
    chosen = own.agent.act(torch.from_numpy(observations)[:, None], drawn[:200, 0])
    np.testing.assert_allclose(actions, chosen.detach()[:, 0], atol=1e-6)


def test_the_environment_is_given_actions_in_its_own_units() -> None:
    seen = []

    class Wide(Constant):
        def __init__(self, num_envs: int = 1) -> None:
            super().__init__(num_envs)
            self.single_action_space.low[:], self.single_action_space.high[:] = -1, 5

        def step(self, actions: Any) -> Any:
            seen.append(actions.copy())
            return super().step(actions)

    trained = loop("td3", Wide(), initial_steps=5)
    trained.run(20)
    stored = rows(trained, "actions")[0]
    np.testing.assert_allclose(np.concatenate(seen)[:, 0], 2 + 3 * stored, rtol=1e-6)


def test_observations_and_rewards_are_stored_as_an_offline_run_mapped_them() -> None:
    env = Counting()
    agent = SAC(spec(env), hidden=(8,), initial_steps=5)
    agent.normalizer.mean.fill_(2.0)
    agent.normalizer.scale.fill_(4.0)
    agent.reward_scale.fill_(0.1)
    agent.reward_shift.fill_(-1.0)
    trained = OffPolicyLoop([agent], [0], env, planned_steps=50)
    result = trained.run(5)
    before, after, rewards = rows(trained, "observations", "next_observations", "rewards")
    np.testing.assert_allclose(before, (np.arange(5) - 2) / 4)
    np.testing.assert_allclose(after, (np.arange(1, 6) - 2) / 4)
    np.testing.assert_allclose(rewards, np.arange(1, 6) - 1, atol=1e-6)
    assert result["episode_return"] == [150.0]  # in the environment's own reward


# -- how often it learns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_envs", "ratio", "updates"), [(1, 1.0, 90), (1, 0.25, 22), (3, 2.0, 184), (4, 1.5, 135)])
def test_updates_per_step_holds_for_any_ratio_and_number_of_environments(
    num_envs: int, ratio: float, updates: int
) -> None:
    trained = loop("td3", Counting(num_envs), initial_steps=10, updates_per_step=ratio, batch_size=4)
    trained.run(100)
    assert trained.step == -(-100 // num_envs) * num_envs
    assert trained.learner.step == updates == int((trained.step - 10) * ratio)


def test_portions_of_a_run_do_not_matter() -> None:
    whole, parts = (loop("sac", Regulator(2), initial_steps=10, updates_per_step=0.7, batch_size=8) for _ in range(2))
    whole.run(90)
    for portion in (4, 6, 2, 30, 46, 2):
        parts.run(portion)
    assert whole.step == parts.step
    assert torch.equal(parameters(whole), parameters(parts))


# -- seeds and environments -----------------------------------------------------------------------------------


def test_a_rows_trajectory_does_not_depend_on_how_many_seeds_there_are() -> None:
    assert row_seeds(5, 3) == row_seeds(5, 4)[:3]
    alone, beside = loop("sac", Regulator(2), seeds=(7,)), loop("sac", Regulator(6), seeds=(6, 7, 8))
    for trained in (alone, beside):
        trained.run(60)
    mine = rows(alone, "observations")[0].reshape(-1, 2)
    np.testing.assert_array_equal(mine, rows(beside, "observations")[0].reshape(-1, 3, 2)[:, 1])


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_stacked_seeds_equal_each_alone(algorithm: str) -> None:
    options: dict[str, Any] = {"initial_steps": 20, "batch_size": 16}
    together = loop(algorithm, Regulator(4), seeds=(1, 2), **options)
    result = together.run(30)
    for position, seed in enumerate((1, 2)):
        alone = loop(algorithm, Regulator(2), seeds=(seed,), **options)
        mine = alone.run(30)
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-4, atol=3e-5)
        assert mine["critic_loss"][0] == pytest.approx(result["critic_loss"][position], rel=1e-3)


# -- a killed run continues -------------------------------------------------------------------------------------


def state_of(trained: OffPolicyLoop) -> list[dict[str, torch.Tensor]]:
    return [{n: v.clone() for n, v in trained.state(i).items()} for i in range(len(trained.seeds))]


def assert_equal_states(first: OffPolicyLoop, second: OffPolicyLoop) -> None:
    for mine, other in zip(state_of(first), state_of(second), strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            assert torch.equal(value, other[name]), name


def pendulum(num_envs: int) -> Any:
    return NativeVectorEnv("native/pendulum", num_envs, max_episode_steps=37)


def hopper(num_envs: int) -> Any:
    pytest.importorskip("mujoco")
    return make_vec("Hopper-v5", num_envs)


@pytest.mark.parametrize("make", [pendulum, hopper])
@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_a_killed_run_goes_on_bit_for_bit(make: Any, algorithm: str) -> None:
    def fresh() -> OffPolicyLoop:
        return loop(algorithm, make(1), kernels=True, initial_steps=150, batch_size=32, replay_capacity=333)

    whole = fresh()
    whole.run(200)
    saved = state_of(whole)
    last = whole.run(200)
    resumed = fresh()
    assert resumed.restore(saved, 200) is None
    again = resumed.run(200)
    np.testing.assert_equal(again, last)  # NaN, where no episode ended, included
    assert_equal_states(whole, resumed)


def test_several_seeds_of_several_environments_go_on_bit_for_bit() -> None:
    def fresh() -> OffPolicyLoop:
        return loop("sac", pendulum(6), seeds=(0, 5), initial_steps=30, batch_size=16, replay_capacity=120)

    whole, resumed = fresh(), fresh()
    whole.run(90)
    saved = state_of(whole)
    assert saved[0]["replay/columns.rewards"].shape == (90,)
    assert resumed.restore(saved, 90) is None
    whole.run(90)
    resumed.run(90)
    assert_equal_states(whole, resumed)


def test_where_the_environment_has_no_state_new_episodes_begin_and_a_sentence_says_so() -> None:
    whole, resumed = (loop("sac", Counting(), initial_steps=20) for _ in range(2))
    whole.run(32)
    sentence = resumed.restore(state_of(whole), 32)
    assert sentence is not None
    assert "Counting can't be restored: a new episode begins" in sentence
    assert torch.equal(parameters(whole), parameters(resumed))
    assert len(resumed.experience.buffer) == 32
    resumed.run(6)
    np.testing.assert_array_equal(rows(resumed, "observations")[0][32:37], [0, 1, 2, 3, 4])


# -- bad input ------------------------------------------------------------------------------------------------


def test_a_number_that_is_not_finite_names_environment_and_step() -> None:
    trained = loop("sac", Broken(4), seeds=(8, 9), initial_steps=100)
    with pytest.raises(DivergenceError, match=r"environment 1 of seed 8 .* at vector step 6"):
        trained.run(40)


def test_episodes_that_the_environment_cut_are_counted() -> None:
    class Cut(Constant):
        def step(self, actions: Any) -> Any:
            observations, rewards, ends, cut, info = super().step(actions)
            diverged = np.zeros(self.num_envs, bool)
            if self.steps in (3, 5):
                diverged[0] = cut[0] = True
            final = {"final_obs": observations, "_final_obs": diverged}
            return observations, rewards, ends, cut, {**info, **final, "diverged": diverged}

    assert loop("sac", Cut(2)).run(20)["diverged_episodes"] == [2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, ("num_envs", "range")),
        ({"initial_actions": "random"}, ("initial_actions", "choice")),
        ({"updates_per_step": 0.0}, ("updates_per_step", "range")),
        ({"replay_capacity": 3, "num_envs": 4}, ("replay_capacity", "conflict")),
        ({"offline_fraction": 1.0}, ("offline_fraction", "range")),
        ({"critic_loss_over": "max"}, ("critic_loss_over", "choice")),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: tuple[str, Code]) -> None:
    with refused(*message):
        SAC(spec(Constant()), **options)


def test_environments_that_do_not_fit_are_refused() -> None:
    agent = SAC(spec(Constant()), num_envs=2)
    with pytest.raises(ConfigError, match="1 seeds of 2 environments each need 2 rows, and the environment has 3"):
        OffPolicyLoop([agent], [0], Constant(3), planned_steps=10)
    wrong = Constant(2)
    wrong.single_action_space = gymnasium.spaces.Discrete(2)
    with pytest.raises(EnvironmentMismatchError, match="kind of actions of this sac agent is continuous"):
        OffPolicyLoop([agent], [0], wrong, planned_steps=10)
    narrow = SAC(dataclasses.replace(spec(Constant()), action_low=(-0.5,)), num_envs=2)
    with pytest.raises(EnvironmentMismatchError, match=r"lowest action of this sac agent is \(-0.5,\)"):
        OffPolicyLoop([narrow], [0], Constant(2), planned_steps=10)
    wide = SAC(Spec(3, 1, (-1.0,), (1.0,)), num_envs=2)
    with pytest.raises(EnvironmentMismatchError, match="observation of this sac agent is 3 numbers"):
        OffPolicyLoop([wide], [0], Constant(2), planned_steps=10)


# -- a dataset beside the buffer ------------------------------------------------------------------------------


def test_places_of_the_dataset_are_spread_evenly_from_the_first_on() -> None:
    device = torch.device("cpu")
    assert even_places(6, 0.5, device).tolist() == [True, False] * 3
    assert even_places(8, 0.25, device).tolist() == [True, False, False, False] * 2
    assert not even_places(8, 0.0, device).any()
    for rows_ in (10, 256, 1000):
        assert int(even_places(rows_, 0.3, device).sum()) == -(-rows_ * 3 // 10)


def test_deterministic_policies_explore_with_noise_around_their_action() -> None:
    agent = TD3(spec(Constant()), exploration_noise=0.5)
    observations, noise = torch.randn(4000, 1), torch.randn(4000, 1)
    spread = (agent.explore(observations, noise) - agent.act(observations)).detach()
    assert float(spread.std()) == pytest.approx(0.5, rel=0.05)
    assert float(agent.explore(observations, 100 * noise).detach().abs().max()) == 1.0


def test_the_preset_sb3_of_td3_has_that_library_s_own_defaults() -> None:
    library = pytest.importorskip("stable_baselines3", reason="the sb3 extra is not installed")
    theirs = {name: one.default for name, one in inspect.signature(library.TD3.__init__).parameters.items()}
    ours = TD3(spec(Constant()), **TD3.PRESETS["sb3"]).config
    assert theirs["action_noise"] is None
    assert ours.exploration_noise == 0
    same = {"learning_rate": "learning_rate", "initial_steps": "learning_starts", "target_noise": "target_policy_noise",
            "target_noise_clip": "target_noise_clip", "actor_every": "policy_delay", "target_rate": "tau",
            "discount": "gamma"}  # fmt: skip
    assert {name: getattr(ours, name) for name in same} == {name: theirs[other] for name, other in same.items()}
    zoo = TD3(spec(Constant()), **TD3.PRESETS["zoo"]).config
    assert zoo.exploration_noise == 0.1
