"""Goal-conditioned algorithms: losses by hand, known distances on a chain, what a policy does with a goal."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.actors.goal_actor import GoalEncoder, UnitGaussianActor, unit_log_density
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.losses.extraction import ddpg_bc_loss
from surefoot.core.losses.value_learning import advantage_weights
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.offline.crl import ContrastiveCritic, contrastive_loss
from surefoot.offline.gcivl import implicit_value_loss
from surefoot.offline.qrl import spread_loss
from surefoot.runs.plan import agent_class

ALL = ("gcbc", "gcivl", "gciql", "crl", "qrl", "hiql")
VALUES = ("gcivl", "gciql", "qrl", "hiql")


def numbers(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# -- losses by hand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tau", "expected"), [(0.9, 0.306765), (0.7, 0.390295)])
def test_the_value_loss_by_hand(tau: float, expected: float) -> None:
    """A = (-1 + .99 * -3 + 3, 0 + .5 + .5) = (-.97, 1): weight by the smaller target, errors to each one's own."""
    loss, advantage = implicit_value_loss(
        numbers([-2.2, -0.7], [-3.1, -0.2]),
        numbers([-2.5, -0.5], [-3.5, -1.5]),
        numbers([-2, -1], [-3, -4]),
        numbers(-1, 0),
        numbers(1, 0),
        0.99,
        tau,
    )
    assert advantage.tolist() == pytest.approx([-0.97, 1])
    assert loss.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("alpha", "expected"), [(10, 12.1866574), (3, 2.0245736)])
def test_the_weighted_cloning_by_hand(alpha: float, expected: float) -> None:
    """mean of e^{.3 alpha} 1.2 and e^{-.2 alpha} 2."""
    weight, density = advantage_weights(numbers(0.3, -0.2), alpha), numbers(-1.2, -2)
    assert -(weight * density).mean().item() == pytest.approx(expected, abs=1e-7)


def test_the_density_by_hand() -> None:
    """log N of deviation 1 in two dimensions, an error of (.3, -.4): -.125 - log 2 pi."""
    assert unit_log_density(numbers([0.3, -0.4]), numbers([0, 0])).item() == pytest.approx(-1.9628771, abs=1e-7)


def test_ddpg_bc_by_hand() -> None:
    """1.5 / (1.5 + 1e-6) + .3 * 1.6."""
    loss = ddpg_bc_loss(numbers(-2, -1), numbers(-1.2, -2), 0.3)
    assert loss.item() == pytest.approx(1.4799993, abs=1e-7)


def test_the_contrastive_loss_by_hand() -> None:
    phi = numbers([[1, 0], [0.5, -1]], [[0, 2], [1, 1]])
    psi = numbers([[1, 1], [-1, 0]], [[0.5, 0], [0, 1]])
    logits = phi @ psi.transpose(-1, -2) / math.sqrt(2)
    assert contrastive_loss(logits).item() == pytest.approx(0.7287918, abs=1e-7)


def test_each_pair_with_its_own_goal_is_the_diagonal() -> None:
    critic = ContrastiveCritic(3, 2, (8, 8), 5)
    pairs, goals = torch.randn(6, 3), torch.randn(6, 2)
    torch.testing.assert_close(critic(pairs, goals), critic.logits(pairs, goals).diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize(
    ("distance", "expected"), [(0, 500.671535), (100, 401.814993), (500, 69.314718), (1000, 0.671535)]
)
def test_the_spread_loss_by_hand(distance: float, expected: float) -> None:
    assert spread_loss(numbers(distance)).item() == pytest.approx(expected, abs=1e-6)


def test_directions_have_one_length() -> None:
    found = GoalEncoder(3, 2, 10, (16,))(torch.randn(7, 5))
    torch.testing.assert_close(found.norm(dim=-1), torch.full((7,), math.sqrt(10)))


def test_first_weights_are_those_of_the_official_code() -> None:
    """Last layers within .1 sqrt(6 / (in + out)), the others within sqrt(6 / (in + out)) (OGBench's fan_avg rules)."""
    actor = UnitGaussianActor(20, 4, (300, 300))
    for weight, gain in zip(actor.mlp.weights, (1, 1, 0.1), strict=True):
        limit = gain * math.sqrt(6 / sum(weight.shape))
        assert limit * 0.98 < float(weight.detach().abs().max()) <= limit
        assert float(weight.detach().std()) == pytest.approx(limit / math.sqrt(3), rel=0.05)


# -- a chain whose distances are known -----------------------------------------------------------------------

PLACES = 6


def chain() -> Dataset:
    """Walks along a line of six places, to and fro: one-hot observations, an action's sign says where to."""
    rng = np.random.default_rng(0)
    at, places, moves = 0, [], []
    for number in range(6000):
        if number % 30 == 0:
            at = int(rng.integers(PLACES))
        move = int(rng.choice([-1, 1]))
        places.append(at)
        moves.append(move)
        at = min(max(at + move, 0), PLACES - 1)
    eye = np.eye(PLACES, dtype=np.float32)
    count, ends = len(places), np.arange(len(places)) % 30 == 29
    after = np.clip(np.array(places) + np.array(moves), 0, PLACES - 1)
    return Dataset(
        observations=eye[places],
        actions=np.array(moves, np.float32)[:, None] * 0.999,
        rewards=np.zeros(count, np.float32),
        next_observations=eye[after],
        terminations=np.zeros(count, bool),
        truncations=ends,
        episode_ids=np.arange(count) // 30,
        valid=np.ones(count, bool),
        env_id="chain",
        name="chain",
    )


@pytest.fixture(scope="module")
def walked() -> Dataset:
    return chain()


def trained(name: str, data: Dataset, steps: int, seeds: int = 1, **options: Any) -> Learner:
    kind = agent_class(name)
    spec = Spec.of(data, -np.ones(data.action_dim), np.ones(data.action_dim))
    agents = [kind(spec, **{"hidden": (32, 32), "learning_rate": 3e-3, **options}).fresh(seed) for seed in range(seeds)]
    ready = [agent.prepare(data) for agent in agents]
    stores = Stores(ready[0], store_from_dataset(ready[0], agents[0].required_columns))
    learner = Learner(
        agents,
        list(range(seeds)),
        agents[0].sources(stores),
        batch_size=128,
        planned_steps=steps,
        kernels=seeds == 1,
    )
    learner.run(steps)
    return learner


def all_pairs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every state with every goal, and how many steps apart they are."""
    first, second = torch.cartesian_prod(torch.arange(PLACES), torch.arange(PLACES)).unbind(-1)
    eye = torch.eye(PLACES)
    return eye[first], eye[second], (first - second).abs().float()


@pytest.mark.parametrize("name", ["gcivl", "hiql", "gciql"])
def test_values_of_a_chain_are_minus_the_discounted_steps(name: str, walked: Dataset) -> None:
    """V*(s, g) = -(1 - .9^k) / .1 at k steps; an expectile near 1 finds the shortest way in random walks."""
    shares = (0.5, 0.5, 0.0)
    learner = trained(name, walked, 1500, discount=0.9, expectile=0.97, value_goals=shares)
    agent: Any = learner.extract(0)
    states, goals, steps = all_pairs()
    if name == "hiql":
        values = agent._values(states, goals).mean(0)
    else:
        joined = torch.cat([states, goals], -1)
        values = agent.value(joined).mean(0) if name == "gcivl" else agent.value(joined)
    torch.testing.assert_close(values.detach(), -(1 - 0.9**steps) / 0.1, atol=0.6, rtol=0.15)


def test_distances_of_a_chain_are_steps(walked: Dataset) -> None:
    """d = k at k steps: as far as a step's distance of 1 lets states be pushed."""
    learner = trained("qrl", walked, 2000, latent=16, group=4, slack=1e-3)
    agent: Any = learner.extract(0)
    states, goals, steps = all_pairs()
    found = agent.distance.metric(agent.distance.phi(states), agent.distance.phi(goals)).detach()
    torch.testing.assert_close(found, steps, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("name", ALL)
def test_policies_walk_to_the_goal(name: str, walked: Dataset) -> None:
    """The action's sign is that of the goal's direction, from every place to every other; a flipped loss walks away."""
    own: dict[str, dict[str, Any]] = {
        "gcivl": {"temperature": 3.0},
        "gciql": {"cloning": 0.1, "learning_rate": 1e-3},
        "crl": {"latent": 64, "learning_rate": 1e-3, "hidden": (64, 64)},
        "qrl": {"latent": 16, "group": 4},
    }
    more = dict(own.get(name, {}))
    if name != "gcbc":
        more["discount"] = 0.9
    if name == "hiql":
        more["subgoal_steps"] = 2
    agent: Any = trained(name, walked, 700, **more).extract(0)
    policy = Policy.of(agent.actor, agent.normalizer, agent.action_low, agent.action_high)
    right = 0
    for start in range(PLACES):
        for goal in range(PLACES):
            if start != goal:
                policy.reset(goal=np.eye(PLACES)[goal])
                action = policy.select_action(np.eye(PLACES, dtype=np.float32)[start])
                right += int(np.sign(action[0]) == np.sign(goal - start))
    assert right >= 25  # of 30


@pytest.mark.parametrize("name", ALL)
def test_seeds_stacked_are_seeds_alone(name: str, walked: Dataset) -> None:
    small = {"latent": 16} if name in ("crl", "qrl") else {}
    together = trained(name, walked, 5, seeds=2, hidden=(8, 8), **small)
    alone = trained(name, walked, 5, hidden=(8, 8), **small)
    for key, value in alone.state(0).items():
        if key.startswith("agent/"):
            torch.testing.assert_close(together.state(0)[key], value, atol=2e-5, rtol=2e-4)


# -- what a policy does with a goal --------------------------------------------------------------------------


def policy_of(name: str, data: Dataset, **options: Any) -> Policy:
    agent: Any = agent_class(name)(Spec.of(data, -np.ones(1), np.ones(1)), hidden=(8, 8), **options).fresh(0)
    agent.prepare(data)
    return Policy.of(agent.actor, agent.normalizer, agent.action_low, agent.action_high)


@pytest.mark.parametrize("name", ["gcbc", "hiql"])
def test_a_goal_travels_with_a_file(name: str, walked: Dataset, tmp_path: Any) -> None:
    policy = policy_of(name, walked, normalization="observations")
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    for goal in range(2):
        actions = []
        for each in (policy, loaded):
            each.reset(goal=np.eye(PLACES)[goal])
            actions.append(each.select_action(np.eye(PLACES, dtype=np.float32)[4]))
        np.testing.assert_array_equal(*actions)


def test_goals_are_normalised_as_observations_are(walked: Dataset) -> None:
    policy: Any = policy_of("gcbc", walked, normalization="observations", goal_columns=(3, 1))
    torch.testing.assert_close(policy.actor.normalizer.mean, policy.normalizer.mean[[3, 1]])
    torch.testing.assert_close(policy.actor.normalizer.scale, policy.normalizer.scale[[3, 1]])
    state, goal = np.eye(PLACES, dtype=np.float32)[2], np.array([0.5, -1], np.float32)
    policy.reset(goal=goal)
    inputs = torch.cat([policy.normalizer(torch.from_numpy(state)), policy.actor.normalizer(torch.from_numpy(goal))])
    expected = policy.actor.inner(inputs.unsqueeze(0)).clamp(-1, 1)
    np.testing.assert_allclose(policy.select_action(state), expected[0].numpy(), rtol=1e-5)


def test_a_policy_without_its_goal_says_so(walked: Dataset) -> None:
    policy, state = policy_of("gcbc", walked), np.eye(PLACES, dtype=np.float32)[0]
    policy.reset()
    with pytest.raises(ConfigError, match=r"asked for a goal: begin the episode by reset\(goal="):
        policy.select_action(state)
    with pytest.raises(ConfigError, match="asked for a goal"):  # whoever else acts with it
        policy.act(torch.from_numpy(state).unsqueeze(0), policy.begin(1))
    for goal, words in ((np.zeros(2), r"goal has shape \(2,\).*\(6,\)"), (np.full(6, np.nan), r"goal\[0\] is nan")):
        with pytest.raises(EnvironmentMismatchError, match=words):
            policy.reset(goal=goal)
    plain: Any = agent_class("bc")(Spec.of(walked, -np.ones(1), np.ones(1)), hidden=(8,)).fresh(0)
    with pytest.raises(EnvironmentMismatchError, match="trained without goals"):
        Policy.of(plain.actor, plain.normalizer, plain.action_low, plain.action_high).reset(goal=np.zeros(6))


def test_a_fixed_goal_counts_where_none_is_told(walked: Dataset, tmp_path: Any) -> None:
    policy: Any = policy_of("gcbc", walked)
    policy.reset(goal=np.eye(PLACES)[5])
    expected = policy.select_action(np.eye(PLACES, dtype=np.float32)[0])
    policy.actor.fix(torch.eye(PLACES)[5])
    policy.save(tmp_path / "fixed")
    loaded = Policy.load(tmp_path / "fixed")
    loaded.reset()
    np.testing.assert_array_equal(loaded.select_action(np.eye(PLACES, dtype=np.float32)[0]), expected)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gcbc", {"goal_columns": (0, 0)}, "goal_columns"),
        ("gcbc", {"goal_columns": (6,)}, "below 6"),
        ("gcivl", {"value_goals": (0.5, 0.5)}, "value_goals has 2 numbers"),
        ("hiql", {"goal_columns": (1,)}, "whole observations"),
        ("qrl", {"latent": 12}, "a multiple of group=8"),
        ("gciql", {"discount": 1.0}, "discount"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any], words: str, walked: Dataset) -> None:
    with pytest.raises(ConfigError, match=words):
        policy_of(name, walked, **options)


def test_rewards_of_the_data_are_not_read(walked: Dataset) -> None:
    other = dataclasses.replace(walked, rewards=np.full(len(walked), 7.0, np.float32))
    first, second = (trained("gcivl", data, 3).state(0) for data in (walked, other))
    assert all(torch.equal(value, second[key]) for key, value in first.items())
