from __future__ import annotations

import numpy as np
import pytest
import torch

from surefoot.core.actors.memory import Memory
from surefoot.core.actors.transformer_actor import DecisionTransformerActor, time_features
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy


def policy(context: int = 3) -> Policy:
    torch.manual_seed(4)
    actor = DecisionTransformerActor(2, 1, context, width=8, layers=2, heads=2)
    actor.target_return.fill_(9.0)
    actor.target_cost.fill_(2.0)
    actor.action_head.weight.data *= 0.3  # far from the bounds, where actions are cut
    normalizer = Normalizer(2)
    normalizer.fit(torch.randn(50, 2) * 3 + 1)
    return Policy.of(actor, normalizer, torch.tensor([-2.0]), torch.tensor([4.0]))


def play(made: Policy, observations: torch.Tensor) -> list[torch.Tensor]:
    """Actions at (T, B, 2) observations, each step earning .5 and costing .1."""
    memory = made.begin(observations.shape[1])
    actions = []
    for rows in observations:
        chosen, memory = made.act(rows, memory)
        actions.append(chosen)
        count = len(rows)
        none = torch.zeros(count, dtype=torch.bool)
        memory = made.observe_outcome(memory, torch.full((count,), 0.5), torch.full((count,), 0.1), none)
    return actions


def test_actions_depend_on_the_past_and_only_on_the_last_k_steps() -> None:
    made, observations = policy(), torch.randn(6, 4, 2)
    actions = play(made, observations)
    changed = observations.clone()
    changed[0, 0] += 5.0
    others = play(made, changed)
    assert not torch.equal(actions[1][0], others[1][0])
    torch.testing.assert_close(torch.stack(actions)[:, 1:], torch.stack(others)[:, 1:])  # rows don't meet
    with torch.no_grad():  # the first step is out of the window of the fourth, but its action's echo is not
        assert not torch.equal(actions[0][0], others[0][0])


def test_the_present_action_and_padding_are_not_read() -> None:
    actor = policy().actor
    assert isinstance(actor, DecisionTransformerActor)
    window = {name: torch.randn(value.shape) for name, value in actor.begin(5).items()}
    window["mask"] = torch.tensor([[0.0, 1.0, 1.0]]).expand(5, 3).clone()
    expected = actor.act_in(window)
    other = {name: value.clone() for name, value in window.items()}
    other["actions"][:, -1] = 3.0
    for name in set(other) - {"mask"}:
        other[name][:, 0] = 7.0
    torch.testing.assert_close(actor.act_in(other), expected)
    other["actions"][:, 1] += 1.0
    assert not torch.allclose(actor.act_in(other), expected)


@pytest.mark.parametrize("steps", [0, 2])
def test_the_density_of_an_action_is_that_of_the_noise_that_step_drew_it_from(steps: int) -> None:
    actor = policy().actor.double()
    memory = actor.begin(5)
    for _ in range(steps):
        actions, memory = actor.step(torch.randn(5, 2).double(), memory)
        ended = torch.zeros(5, dtype=torch.bool)
        memory = actor.observe_outcome(
            actor.executed(memory, actions), torch.rand(5).double(), torch.rand(5).double(), ended
        )
    observations, noise = torch.randn(5, 2).double(), 0.1 * torch.randn(5, 1).double()
    (mean, _), (some, _) = actor.step(observations, memory), actor.step(observations, memory, torch.ones(5, 1) * 0.01)
    deviation = (some - mean) / 0.01
    actions, _ = actor.step(observations, memory, noise)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(noise) - deviation.log()
    found = actor.evaluate(observations, actions, memory if steps else {})
    torch.testing.assert_close(found.log_density, expected.sum(-1))
    torch.testing.assert_close(found.entropy, (deviation.log() + 0.5 * np.log(2 * np.pi * np.e)).sum(-1))


def test_a_row_that_ended_begins_anew_and_the_others_go_on() -> None:
    made, observations = policy(), torch.randn(2, 2)
    first, memory = made.act(observations, made.begin(2))
    memory = made.observe_outcome(memory, torch.ones(2), torch.ones(2), torch.tensor([True, False]))
    second, _ = made.act(observations, memory)
    assert torch.equal(second[0], first[0])
    assert not torch.equal(second[1], first[1])


def test_what_is_earned_and_spent_is_subtracted_from_what_it_is_asked_for() -> None:
    made = policy()
    for reward, cost in ((1.5, 0.5), (1.0, 5.0)):
        made.select_action(np.zeros(2))
        made.observe(reward, cost)
    memory = made.state()
    assert memory["returns_to_go"].tolist() == [[9.0, 7.5, 6.5]]
    assert memory["costs_to_go"].tolist() == [[2.0, 1.5, 0.0]]  # there is no less than nothing to spend
    assert memory["timesteps"].tolist() == [[0.0, 1.0, 2.0]]


def test_it_must_hear_what_its_actions_brought_and_once() -> None:
    made = policy()
    with pytest.raises(ConfigError, match="call select_action before it"):
        made.observe(0.0)
    made.select_action(np.zeros(2))
    with pytest.raises(ConfigError, match=r"call observe\(reward, cost\) first"):
        made.select_action(np.zeros(2))
    made.observe(0.0)
    with pytest.raises(ConfigError, match="call select_action before it"):
        made.observe(0.0)
    with pytest.raises(ConfigError, match="2 observations were given with the memory of other rows"):
        made.act(torch.zeros(2, 2), made.begin(3))


def test_step_numbers_of_a_thousand_are_told_apart() -> None:
    features = time_features(torch.arange(1001.0))
    assert features.shape == (1001, 16)
    near = (features[1:] - features[:-1]).norm(dim=1).min()
    assert near > 0.5
    assert torch.cdist(features, features).fill_diagonal_(9).min() > 0.05


def test_native_systems_step_it_and_tell_it_what_its_actions_brought() -> None:
    from surefoot.envs.episodes import episode_seeds, run_episodes
    from surefoot.envs.vector import make_vec

    env = make_vec("native/double-integrator", 1)
    sizes = (env.single_observation_space.shape[0], env.single_action_space.shape[0])  # type: ignore[index]
    low, high = (torch.tensor(bound) for bound in (env.single_action_space.low, env.single_action_space.high))  # type: ignore[attr-defined]
    env.close()
    torch.manual_seed(0)
    actor = DecisionTransformerActor(*sizes, 3, 8, 1, 2)
    actor.target_return.fill_(-3.0)
    made = Policy.of(actor, Normalizer(sizes[0]), low, high)
    heard: list[torch.Tensor] = []

    class Listening(Policy):
        def observe_outcome(self, memory: Memory, rewards: torch.Tensor, *others: torch.Tensor) -> Memory:  # type: ignore[override]
            heard.append(rewards)
            return super().observe_outcome(memory, rewards, *others)  # type: ignore[call-arg]

    made.__class__ = Listening
    found = run_episodes(made, "native/double-integrator", episode_seeds(0, 0, 4), steps=6)
    np.testing.assert_allclose(torch.stack(heard).sum(0).numpy(), found.returns, rtol=1e-5)
    again = run_episodes(made, "native/double-integrator", episode_seeds(0, 0, 4), steps=6)
    np.testing.assert_array_equal(found.returns, again.returns)
