"""DQN: full updates against a second implementation, values that are known, and what its loop does with choices."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from online_problems import EndsEverywhere, Scripted, assert_taped_equals_plain, loop, mistaken, parameters
from plain_layers import layers
from refusals import refused
from test_off_policy_updates import Numbered, average
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Array
from surefoot.core.engine.agent import Batch, Metrics, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.policy.policy import Policy
from surefoot.online import DQN
from surefoot.online.loops.off_policy import OffPolicyLoop

PROBLEM = Spec.of_choices(3, 4)
ROWS, STEPS = 6, 7


class Second:
    """Double DQN's and DQN's steps over torch's own layers."""

    def __init__(self, agent: DQN) -> None:
        self.c = agent.config
        self.values, self.target = layers(agent.critic.mlp), layers(agent.target_critic.mlp)
        self.adam = torch.optim.Adam(self.values.parameters(), lr=self.c.learning_rate)
        self.epsilon, self.taken = self.c.first_epsilon, 0

    def step(self, batch: dict[str, Tensor]) -> None:
        c, goals = self.c, []
        for row in range(ROWS):
            goal, factor, last = 0.0, 1.0, 0
            for k in range(c.n_step):
                if batch["mask"][row, k] == 0:
                    break
                goal, last = goal + factor * float(batch["rewards"][row, k]), k
                factor *= c.discount * (1 - float(batch["terminations"][row, k]))
                if batch["terminations"][row, k] == 1:
                    break
            with torch.no_grad():
                following = batch["next_observations"][row, last]
                judged = self.target(following)
                best = int((self.values(following) if c.double else judged).argmax())
            goals.append(goal + factor * float(judged[best]))
        chosen = batch["actions"][:, 0].argmax(-1)
        q = self.values(batch["observations"][:, 0])[torch.arange(ROWS), chosen]
        loss = nn.functional.smooth_l1_loss if c.error == "huber" else nn.functional.mse_loss
        goal_values = torch.tensor(goals, dtype=torch.float64)
        self.adam.zero_grad()
        (loss(q, goal_values) * (1 if c.error == "huber" else 0.5)).backward()
        nn.utils.clip_grad_norm_(self.values.parameters(), c.max_gradient_norm or 1e9)
        self.adam.step()
        self.taken += 1
        share = self.taken / (c.epsilon_steps * c.updates_per_step)
        self.epsilon = c.first_epsilon + min(1.0, share) * (c.last_epsilon - c.first_epsilon)
        if self.taken % c.target_every == 0:
            average([self.target], [self.values], c.target_rate)


def windows(count: int, steps: int) -> list[dict[str, Tensor]]:
    """Batches of windows, of which some end by themselves and some are cut."""
    source = np.random.default_rng(5)
    made = []
    for _ in range(count):
        kept = source.integers(1, steps + 1, ROWS)
        mask = (np.arange(steps) < kept[:, None]).astype(float)
        ends = np.zeros((ROWS, steps))
        ends[np.arange(ROWS), kept - 1] = source.random(ROWS) < 0.4
        following = source.normal(size=(ROWS, steps, 3))
        following = np.take_along_axis(following, np.minimum(np.arange(steps), kept[:, None] - 1)[..., None], 1)
        found = {
            "observations": source.normal(size=(ROWS, steps, 3)),
            "actions": np.eye(4)[source.integers(0, 4, (ROWS, steps))],
            "rewards": 3 * source.normal(size=(ROWS, steps)),
            "terminations": ends,
            "next_observations": following,
            "mask": mask,
        }
        made.append({name: torch.from_numpy(value) for name, value in found.items()})
    return made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_gradient_norm": 0.05},
        {"max_gradient_norm": None, "double": False, "error": "squared", "target_rate": 0.1, "target_every": 1},
        {"n_step": 3, "updates_per_step": 0.5, "epsilon_steps": 8},
        {"first_epsilon": 0.1, "last_epsilon": 0.4, "epsilon_steps": 5},
    ],
)
def test_full_updates_equal_the_second_implementation(options: dict[str, Any]) -> None:
    chosen = {"target_every": 3, "epsilon_steps": 10, "learning_rate": 1e-2, "discount": 0.9, **options}
    agent = DQN(PROBLEM, hidden=(7, 6), **chosen).fresh(2)
    for value in agent.target_critic.parameters():
        value.data.add_(0.2)  # a target that differs, or its moves say nothing
    given = windows(STEPS, agent.config.n_step)
    plain = given if agent.config.n_step > 1 else [{k: v[:, 0] for k, v in one.items() if k != "mask"} for one in given]
    learner = Learner([agent], [0], Numbered(plain), batch_size=ROWS, dtype=torch.float64)
    second = Second(agent)
    for batch in given:
        learner.run(1)
        second.step(batch)
        for ours, other in ((agent.critic, second.values), (agent.target_critic, second.target)):
            for value, expected in zip(layers(ours.mlp).parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
        assert float(learner.agents_parameters(0)["epsilon"]) == pytest.approx(second.epsilon, abs=1e-6)


def test_double_estimates_are_the_target_networks_values_of_the_online_networks_choice() -> None:
    agent = DQN(Spec.of_choices(1, 3), hidden=(1,), discount=0.5)
    with torch.no_grad():
        for head, biases in ((agent.critic, [0.0, 2.0, 1.0]), (agent.target_critic, [9.0, 4.0, 7.0])):
            for weights in head.mlp.weights:
                weights.zero_()
            head.mlp.biases[-1].copy_(torch.tensor(biases))
    batch = {
        "rewards": torch.tensor([1.0, 1.0]),
        "terminations": torch.tensor([0.0, 1.0]),
        "actions": torch.eye(3)[:2],
        "next_observations": torch.zeros(2, 1),
    }
    assert agent.targets(agent.annotate(batch)).squeeze(1).tolist() == [1 + 0.5 * 4, 1]
    agent.config = DQN.configure(agent.config, double=False)
    assert agent.targets(agent.annotate(batch)).squeeze(1).tolist() == [1 + 0.5 * 9, 1]


# -- what it learns ------------------------------------------------------------------------------------------------


class Ladder(Scripted):
    """x climbs by 0.2 at choice 2 and falls by 0.2 at choice 0, between 0 and 1; arriving at 1 pays 1. Cut after three
    steps, from anywhere: what is put behind a cut decides the values."""

    limit = 3

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.single_action_space = Discrete(3)
        self.action_space = Box(0, 2, (num_envs,), np.int64)

    def begin(self, source: np.random.Generator) -> np.ndarray:
        return source.integers(0, 6, 1) / 5

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        following = np.clip(states + 0.2 * (actions[:, None] - 1), 0, 1)
        return following, (following[:, 0] > 0.99).astype(float), np.zeros(len(states), bool)


class Saved(Ladder):
    """`Ladder` that continues where it was, its episodes beginning on each rung in turn."""

    started = 0

    def begin(self, source: np.random.Generator) -> np.ndarray:
        self.started += 1
        return np.array([self.started % 6 / 5])

    def get_state(self) -> dict[str, np.ndarray]:
        return {"states": self.states, "elapsed": self.elapsed, "begun": np.array(self.started)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.states, self.elapsed, self.started = state["states"], state["elapsed"], int(state["begun"])


DISCOUNT = 0.6
STATES = torch.arange(6)[:, None] / 5


def best_values() -> np.ndarray:
    """(6, 3) optimal values of `Ladder`, by value iteration."""
    values = np.zeros(6)
    for _ in range(100):
        following = np.clip(np.arange(6)[:, None] + np.array([-1, 0, 1]), 0, 5)
        table = (following == 5) + DISCOUNT * values[following]
        values = table.max(1)
    return table


def learned(env: Any, kind: type[DQN] = DQN, **options: Any) -> np.ndarray:
    """(6, 3) values after 800 training steps on random choices."""
    chosen = {
        "hidden": (32, 32), "num_envs": 8, "discount": DISCOUNT, "initial_steps": 800, "updates_per_step": 0.5,
        "last_epsilon": 1.0, "target_every": 10, "learning_rate": 3e-3, **options,
    }  # fmt: skip
    agent = kind(Spec.of_choices(1, 3), **chosen)
    ran = OffPolicyLoop([agent.fresh(0)], [0], env(8), planned_steps=2400, batch_size=64, kernels=True)
    ran.run(2400)
    return ran.learner.apply("values_of", STATES[None])[0].numpy()  # type: ignore[no-any-return]


class Shown(DQN):
    """DQN whose values can be asked for."""

    def values_of(self, observations: Tensor) -> Tensor:
        return self.critic.mlp(observations)


class Backwards(Shown):
    """DQN that learns the cost where it should learn the reward."""

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        return super().critic_loss({**batch, "rewards": -batch["rewards"]}, noise)


@pytest.mark.parametrize("options", [{}, {"double": False}], ids=["double", "single"])
def test_values_are_those_of_value_iteration(options: dict[str, Any]) -> None:
    found, wanted = learned(Ladder, Shown, **options), best_values()
    np.testing.assert_allclose(found, wanted, atol=0.12)
    assert (found.argmax(1)[:5] == 2).all()


def test_a_cut_that_is_taken_for_an_end_gives_other_values() -> None:
    found = learned(mistaken(EndsEverywhere, Ladder), Shown)
    assert np.abs(found - best_values()).max() > 0.5


def test_with_the_rewards_sign_flipped_it_climbs_nowhere() -> None:
    found = learned(Ladder, Backwards)
    assert found[4].argmax() != 2
    assert found[4, 2] < -0.7


def test_returns_of_three_steps_of_one_policy_are_its_values() -> None:
    """Where only one choice is ever made, the uncorrected returns are right: always up."""

    class Up(Shown):
        def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
            return torch.eye(3)[2].expand(len(observations), 3)

        def first_actions(self, uniform: Tensor) -> Tensor:
            return torch.eye(3)[2].expand_as(uniform)

    # of a maximum over values that were never learned nothing is known: up is made to look best
    class Best(Up):
        def build(self) -> None:
            super().build()
            for head in (self.critic, self.target_critic):
                head.mlp.biases[-1].data[:2] -= 5

    found = learned(Ladder, Best, n_step=3)[:, 2]
    np.testing.assert_allclose(found, best_values()[:, 2], atol=0.12)


# -- how it acts ---------------------------------------------------------------------------------------------------


def test_choices_are_greedy_but_for_a_share_of_epsilon() -> None:
    agent = DQN(Spec.of_choices(1, 4), hidden=(3,), first_epsilon=0.3).fresh(1)
    observations = torch.zeros(40_000, 1)
    best = int(agent.act(observations[:1]).argmax())
    made = agent.explore(observations, torch.randn(40_000, agent.explore_dim))
    assert (made.sum(1) == 1).all()
    shares = made.mean(0)
    for choice, share in enumerate(shares.tolist()):
        assert share == pytest.approx(0.3 / 4 + 0.7 * (choice == best), abs=0.01)
    first = agent.first_actions(torch.rand(40_000, 4) * 2 - 1).mean(0)
    assert first.tolist() == pytest.approx([0.25] * 4, abs=0.01)


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    def fresh() -> OffPolicyLoop:
        return loop("dqn", Saved(), kernels=True, batch_size=16, initial_steps=40, epsilon_steps=60, n_step=2)

    whole = fresh()
    whole.run(90)
    saved = {name: value.clone() for name, value in whole.state(0).items()}
    assert 0.05 < next(float(value) for name, value in saved.items() if name.endswith("epsilon")) < 1
    resumed = fresh()
    assert resumed.restore([saved], 90) is None
    np.testing.assert_equal(resumed.run(40), whole.run(40))
    assert torch.equal(parameters(resumed), parameters(whole))


def test_stacked_seeds_equal_each_alone() -> None:
    options: dict[str, Any] = {"initial_steps": 20, "batch_size": 16, "epsilon_steps": 50}
    together = loop("dqn", Ladder(4), seeds=(1, 2), **options)
    together.run(60)
    for position, seed in enumerate((1, 2)):
        alone = loop("dqn", Ladder(2), seeds=(seed,), **options)
        alone.run(60)
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_taped_step_leaves_what_plain_pytorch_leaves(n_step: int) -> None:
    options: dict[str, Any] = {"batch_size": 8, "initial_steps": 20, "target_every": 5, "n_step": n_step}
    made = [loop("dqn", Ladder(), kernels=kernels, **options) for kernels in (True, False)]
    assert_taped_equals_plain(made, 40)


def test_its_policy_is_greedy_and_is_saved_and_read(tmp_path: pathlib.Path) -> None:
    agent = DQN(Spec.of_choices(2, 3), hidden=(8, 8)).fresh(0)
    agent.policy().save(tmp_path / "policy")
    observations = 20 * torch.randn(200, 2)
    found = Policy.load(tmp_path / "policy")(observations)
    assert torch.equal(found, agent.critic.mlp(observations).argmax(-1))
    assert len(found.unique()) > 1


def test_what_it_cant_learn_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="dqn learns discrete actions"):
        DQN(Spec(3, 1, (-1.0,), (1.0,)))
    for options, said in (
        ({"error": "cubic"}, ("error", "choice")),
        ({"last_epsilon": 1.5}, ("last_epsilon", "range")),
        ({"offline_fraction": 0.5, "n_step": 2}, ("offline_fraction", "conflict")),
        ({"target_every": 0}, ("target_every", "range")),
    ):
        with refused(*said):
            DQN.configure(**options)


def test_it_learns_from_pictures() -> None:
    agent = DQN(Spec.of_choices({"image": Array((36, 36, 3), "uint8")}, 3), encoder="small", hidden=(8,)).fresh(0)
    found = agent.policy()({"image": torch.zeros(2, 36, 36, 3, dtype=torch.uint8)})
    assert found.shape == (2,)
    assert any(name.startswith("encoder.") for name, _ in agent.named_parameters())
