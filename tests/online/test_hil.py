"""HIL: the choice of a gripper, what actor and critics see of an action, the policy, and learning with a person."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from online_problems import Scripted, assert_taped_equals_plain, loop

from surefoot.core.actors.choice_actor import choice_of, chosen_action
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.policy.policy import Policy
from surefoot.online import HIL, RLPD


def place(actions: list[float], choices: int) -> list[int]:
    return choice_of(torch.tensor(actions), choices).argmax(-1).tolist()


def test_the_gripper_rounds_half_to_even() -> None:
    assert place([-1, -0.6, -0.5, -0.4, 0, 0.4, 0.5, 0.6, 1], 3) == [0, 0, 1, 1, 1, 1, 1, 2, 2]
    assert place([-1, -0.1, 0, 0.1, 1], 2) == [0, 0, 1, 1, 1]
    assert place([-1, -0.8, -0.7, 0.2, 0.3, 1], 5) == [0, 0, 1, 2, 3, 4]
    for choices in (2, 3, 4, 7):
        every = torch.eye(choices)
        assert torch.equal(choice_of(chosen_action(every)[:, 0], choices), every)


class Values(torch.nn.Module):
    """The same values everywhere."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = torch.tensor(values, dtype=torch.float64)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.values.expand(len(observations), -1)


def test_the_choices_target_is_the_targets_value_of_the_best_choice_now_with_the_penalty() -> None:
    agent = HIL(Spec(2, 2, (-1.0,) * 2, (1.0,) * 2), choices=3)
    agent.choice, agent.target_choice = Values(1, 5, 2), Values(3, 4, 9)
    batch = {
        "observations": torch.zeros(2, 2),
        "next_observations": torch.zeros(2, 2),
        "actions": torch.tensor([[0.3, -1.0], [0.3, 1.0]]),
        "rewards": torch.zeros(2, dtype=torch.float64),
        "penalties": torch.tensor([-0.1, -0.1], dtype=torch.float64),
        "terminations": torch.tensor([0.0, 1.0], dtype=torch.float64),
    }
    batch = agent.annotate(batch)
    torch.testing.assert_close(agent.choice_targets(batch), torch.tensor([3.78, -0.1], dtype=torch.float64))
    loss, metrics = agent.choice_loss(batch, {})
    assert metrics["choice_q"].tolist() == [1.0, 2.0]
    assert float(loss) == pytest.approx((2.78**2 + 2.1**2) / 2)


def test_critics_and_actor_never_see_the_choice() -> None:
    agent = HIL(Spec(2, 3, (-1.0,) * 3, (1.0,) * 3), choices=3, hidden=(8, 8), critic_steps=1).fresh(0)
    source = np.random.default_rng(0)
    rows = {
        "observations": source.normal(size=(6, 2)),
        "next_observations": source.normal(size=(6, 2)),
        "actions": source.uniform(-1, 1, (6, 3)),
        "rewards": source.normal(size=6),
        "penalties": np.zeros(6),
        "terminations": np.zeros(6),
    }
    batch = {name: torch.tensor(value, dtype=torch.float32) for name, value in rows.items()}
    other = {**batch, "actions": batch["actions"] * torch.tensor([1.0, 1.0, -1.0])}
    noise = {"next_action": torch.zeros(6, 2), "action": torch.zeros(6, 2)}
    ours, theirs = agent.annotate(batch), agent.annotate(other)
    assert ours["actions"].shape == (6, 2)
    assert torch.equal(agent.critic_loss(ours, noise)[0], agent.critic_loss(theirs, noise)[0])
    assert not torch.equal(agent.choice_loss(ours, noise)[0], agent.choice_loss(theirs, noise)[0])
    assert agent.target_entropy == -1.0
    assert {update.name: update.repeat for update in agent.updates()} == {
        "critic_loss": 1, "choice_loss": 1, "actor_loss": 1, "temperature_loss": 1
    }  # fmt: skip


def test_without_choices_and_people_its_updates_are_rlpds() -> None:
    problem = Spec(2, 1, (-1.0,), (1.0,))
    ours = HIL(problem, hidden=(8,))
    theirs = RLPD(problem, **{f: getattr(ours.config, f) for f in vars(RLPD.Config())})
    assert [u.name for u in ours.updates()] == [u.name for u in theirs.updates()]
    assert [n for n, _ in ours.fresh(1).named_parameters()] == [n for n, _ in theirs.fresh(1).named_parameters()]


def test_the_policy_with_a_choice_comes_back_from_its_file_and_acts_as_the_agent(tmp_path: pathlib.Path) -> None:
    agent = HIL(Spec(2, 3, (-2.0, -2.0, 0.0), (2.0, 2.0, 1.0)), choices=3, hidden=(8, 8)).fresh(3)
    agent.policy().save(tmp_path / "policy")
    read = Policy.load(tmp_path / "policy")
    observations = torch.randn(64, 2) * 3
    actions = read(observations)
    wanted = agent.act(observations)
    torch.testing.assert_close(actions, torch.stack([2 * wanted[:, 0], 2 * wanted[:, 1], (wanted[:, 2] + 1) / 2], -1))
    assert set(actions[:, 2].tolist()) <= {0.0, 0.5, 1.0}
    noise = torch.randn(64, 2)
    assert read(observations, noise).shape == (64, 3)
    assert read.select_action(observations[0].numpy()).shape == (3,)


def test_mistakes_are_named() -> None:
    problem = Spec(2, 1, (-1.0,), (1.0,))
    with pytest.raises(ConfigError, match=r"hil.choices=3: there is one action"):
        HIL(problem, choices=3)
    with pytest.raises(ConfigError, match=r"choices is 1, must be 0, or from 2 to 255"):
        HIL(problem, choices=1)


class Grip(Scripted):
    """A hand on a line reaches for a thing within 0.15 and closes: reward 1 and the end; sparse, within 25 steps.

    Observed are hand, thing and whether the gripper is closed. A gripper that closes elsewhere has to be opened again.
    """

    observation_dim, action_dim, limit = 3, 2, 25

    def __init__(self, num_envs: int = 1, person: bool = False) -> None:
        super().__init__(num_envs)
        self.person, self.helped = person, 0
        self.best = np.full(num_envs, np.inf)
        self.still = np.zeros(num_envs, np.int64)

    def begin(self, source: np.random.Generator) -> np.ndarray:
        return np.array([source.uniform(-1, 1), source.choice([-0.8, 0.8]), -1.0])

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        hand = np.clip(states[:, 0] + 0.2 * actions[:, 0], -1, 1)
        closed = np.where(actions[:, 1] > 0.5, 1.0, np.where(actions[:, 1] < -0.5, -1.0, states[:, 2]))
        done = (np.abs(hand - states[:, 1]) < 0.15) & (closed > 0) & (states[:, 2] < 0)
        return np.stack([hand, states[:, 1], closed], 1), done.astype(float), done

    def step(self, actions: Any) -> Any:
        gap = self.states[:, 1] - self.states[:, 0]
        shown = np.stack([np.clip(gap / 0.2, -1, 1), np.where(np.abs(gap) < 0.1, 1.0, -1.0)], 1)
        self.still = np.where(self.elapsed == 0, 0, self.still + 1)
        helped = self.person & (self.elapsed >= 12)  # too slow: the person finishes it
        self.helped += int(helped.sum())
        *numbers, info = super().step(np.where(helped[:, None], shown, actions))
        return *numbers, {**info, "is_intervention": helped, "teleop_action": shown}


def succeeded(agent: Any) -> float:
    """Share of 50 episodes that the policy finishes by itself."""
    env = Grip(50)
    states, _ = env.reset(seed=1000)
    done = np.zeros(50, bool)
    for _ in range(env.limit):
        actions = agent.act(torch.from_numpy(states))
        states, rewards, *_ = env.step(actions.detach().numpy())
        done |= rewards > 0
    return float(done.mean())


def test_with_a_person_it_learns_a_sparse_task_that_it_does_not_find_alone() -> None:
    found = {}
    for person in (True, False):
        trained = loop("hil", Grip(person=person), choices=3, hidden=(32, 32), batch_size=64, planned_steps=500)
        result = trained.run(500)
        found[person] = succeeded(trained.learner.extract(0))
        assert result["intervened_steps"][0] == trained.experience.acting.env.helped
    assert found[True] >= 0.8, found
    assert found[False] <= 0.2, found


def test_it_learns_from_tapes() -> None:
    made = [
        loop("hil", Grip(person=True), choices=3, initial_steps=30, critic_steps=1, batch_size=32, kernels=kernels)
        for kernels in (True, False)
    ]
    assert_taped_equals_plain(made, 60)


class Graspy(Grip):
    """Tells a penalty of a number of its own at each step."""

    def step(self, actions: Any) -> Any:
        *numbers, info = super().step(actions)
        self.reported = getattr(self, "reported", 0) + 1
        return *numbers, {**info, "grasp_penalty": np.full(1, -0.001 * self.reported)}


def test_penalties_reach_every_update_with_one_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One update a step is where another library prepares its only batch without them."""
    seen: list[torch.Tensor] = []
    whole = HIL.choice_loss

    def watched(self: Any, batch: Any, noise: Any) -> Any:
        seen.append(batch["penalties"].clone())
        return whole(self, batch, noise)

    monkeypatch.setattr(HIL, "choice_loss", watched)
    trained = loop("hil", Graspy(), choices=3, updates_per_step=1.0, initial_steps=20, critic_steps=1, kernels=False)
    trained.run(40)
    assert len(seen) >= 20
    assert all(bool((one < 0).all()) for one in seen)
    held = trained.experience.buffer["penalties"][:40]
    np.testing.assert_allclose(held.numpy(), -0.001 * np.arange(1, 41), atol=1e-6)
