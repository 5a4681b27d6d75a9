"""Runs of the on-policy loop: taken up again, stacked, stopped early, from a tape; and what is refused."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from block_rows import HELD
from on_policy_problems import QUICK, Bandit, agents, loop
from online_problems import Constant, Regulator
from refusals import refused

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import Code, ConfigError, DivergenceError, EnvironmentMismatchError
from surefoot.core.engine.agent import Spec
from surefoot.envs import make_vec
from surefoot.online import ALGORITHMS, PPO, SAC, spec_of
from surefoot.online.loops.on_policy import OnPolicyLoop

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


def test_losses_of_a_block_that_may_stop_are_means_over_the_epochs_that_each_seed_took() -> None:
    options: dict[str, Any] = {"epochs": 6, "learning_rate": 3e-3, "schedule": "constant"}
    for seeds in ((0,), (0, 1)):
        plain = loop("ppo", "native/pendulum", seeds, **options).run(64)
        never = loop("ppo", "native/pendulum", seeds, target_kl=1e9, **options).run(64)
        assert never["loss"] == pytest.approx(plain["loss"], rel=1e-3)
        assert never["kl_k3"] == pytest.approx(plain["kl_k3"], rel=1e-3)  # at the end, either way
    made = loop("ppo", "native/pendulum", (0, 1), target_kl=1e-3, **options)
    run, seen, stops = made.learner.run, [], []

    def watched(*arguments: Any) -> dict[str, list[float]]:
        found = run(*arguments)
        seen.append(found)
        stops.append((made.learner.metric("kl_k3") > 1e-3).tolist())
        return found

    made.learner.run = watched  # type: ignore[method-assign]
    told = made.run(64)
    epochs = [next((n + 1 for n, stop in enumerate(stops) if stop[seed]), len(stops)) for seed in (0, 1)]
    assert epochs[0] != epochs[1], "both stop at once, so this tells no seed from another"
    for seed, taken in enumerate(epochs):
        own = [found["loss"][seed] for found in seen[:taken]]
        assert told["loss"][seed] == pytest.approx(np.mean(own), rel=1e-6)
        assert told["entropy"][seed] == seen[taken - 1]["entropy"][seed]


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


@pytest.mark.parametrize(
    ("planned", "normalise", "expected"),
    [
        (256, False, [0.75, 0.5, 0.25, 0.0]),
        (320, True, [0.8, 0.4, 0.2, 0.0]),
    ],  # the first of five blocks teaches nothing
)
def test_a_linear_rate_ends_at_nothing_with_the_run(planned: int, normalise: bool, expected: list[float]) -> None:
    made = loop("ppo", "native/pendulum", planned=planned, normalize_observations=normalise)
    rates = []
    while made.step < planned:
        made.run(1)
        rates.append(made.learner.optimizers[0].learning_rate() / 3e-4)
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("env_id", ["native/pendulum", "CartPole-v1"])
@pytest.mark.parametrize("algorithm", sorted(QUICK))
def test_training_steps_run_from_the_tape(algorithm: str, env_id: str) -> None:
    made = loop(algorithm, env_id, kernels=True)
    made.run(128)
    assert made.learner.eager_because() == {}


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minibatches": 7}, ("minibatches", "conflict")),
        ({"epochs": 0}, ("epochs", "range")),
        ({"discount": 1.5}, ("discount", "range")),
        ({"clip": 0.0}, ("clip", "range")),
        ({"schedule": "adaptive"}, ("target_kl", "conflict")),
        ({"advantage_scope": "all"}, ("advantage_scope", "choice")),
        ({"observation_limit": -1.0}, ("observation_limit", "range")),
        ({"preset": "zoo"}, ("preset", "choice")),
        ({"exploration": "sde"}, ("exploration", "choice")),
        ({"hold_steps": 4}, ("hold_steps", "conflict")),
        ({**HELD, "hold_steps": 0}, ("hold_steps", "conflict")),
        ({**HELD, "hold_steps": 17}, ("hold_steps", "conflict")),
        ({**HELD, "hold_steps": 2.5}, ("hold_steps", "type")),
        ({"target_kl": "low"}, ("target_kl", "type")),
        ({"max_gradient_norm": -0.5}, ("max_gradient_norm", "range")),
        ({"epsilon": -1e-3}, ("epsilon", "range")),
        ({"value_coefficient": -1.0}, ("value_coefficient", "range")),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], words: tuple[str, Code]) -> None:
    with refused(*words):
        PPO.configure(**{"num_envs": 4, "horizon": 16, "minibatches": 4, **options})


def test_discrete_choices_are_refused_by_a_continuous_algorithm() -> None:
    with pytest.raises(ConfigError, match="sac learns continuous actions, and this problem has 2 discrete ones"):
        SAC(spec_of(make_vec("CartPole-v1", 1)))


def test_choices_have_no_state_dependent_noise() -> None:
    with pytest.raises(ConfigError, match=r"ppo\.exploration is 'state_dependent', must be gaussian where actions are"):
        loop("ppo", "CartPole-v1", **HELD)


@pytest.mark.parametrize("algorithm", ["reinflow", "rlcm", "fpo", "dppo"])
def test_heads_with_noise_of_their_own_refuse_that_of_a_gaussian(algorithm: str) -> None:
    kind: Any = ALGORITHMS[algorithm]
    for options in ({"exploration": "state_dependent"}, {"initial_log_std": -1.0}):
        words = rf"{algorithm}\.{next(iter(options))} is .* leave it out, since the head of {algorithm} "
        with pytest.raises(ConfigError, match=words):
            kind(Spec(3, 1, (-1.0,), (1.0,)), **options)


@pytest.mark.parametrize("algorithm", ["ppo", "reinforce", "reinflow", "rlcm", "fpo", "dppo"])
def test_the_limit_of_normalised_observations_holds_for_every_head(algorithm: str) -> None:
    kind: Any = ALGORITHMS[algorithm]
    policy = kind(Spec(3, 1, (-1.0,), (1.0,)), observation_limit=0.5, normalize_observations=True).policy()
    assert policy.normalizer.limit == 0.5
    assert policy.normalizer(torch.tensor([[0.2, -3.0, 9.0]])).tolist() == [[pytest.approx(0.2), -0.5, 0.5]]


def test_raw_observations_are_not_clipped_by_the_limit_of_normalised_ones() -> None:
    """A position of 20 m and one of 200 m are two states."""
    policy = PPO(Spec(2, 1, (-1.0,), (1.0,)), preset="cleanrl", normalize_observations=False).policy()
    near, far = (policy(torch.tensor([[metres, 0.0]])) for metres in (20.0, 200.0))
    assert not torch.equal(near, far)


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


def test_a_policy_is_not_asked_what_to_do_at_an_observation_that_is_not_finite() -> None:
    given: list[bool] = []

    class Broken(Regulator):
        def follow(self, states: np.ndarray, actions: np.ndarray) -> Any:
            given.append(bool(np.isfinite(actions).all()))
            following, rewards, ended = super().follow(states, actions)
            if self.steps == 5:
                following[1] = np.nan
            return following, rewards, ended

    made = loop("ppo", Broken(4), (7,))
    with pytest.raises(DivergenceError, match=r"environment 1 of seed 7 .* vector step 5"):
        made.run(128)
    assert all(given)
    assert len(given) <= 7


def test_a_bandit_with_discrete_choices_fits_the_loop() -> None:
    made = loop("ppo", Bandit(4))
    block = made.blocks.fill(0)
    assert torch.equal(block["actions"].sum(-1), torch.ones(1, 16, 4))
    assert torch.equal(block["rewards"], block["actions"][..., Bandit.best])
