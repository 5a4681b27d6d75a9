"""What each kind of pessimism makes of a world that is only known where the data's actions are.

A state and an action; the reward is a + 2 s. The model knows actions below 0; above, it is the less certain the larger
they are, though right on average. So the base goes to a = 1, and a pessimist stays where the model knows its way.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from plane import PlaneRAVL, plane_data
from torch import Tensor, nn

from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.model_based.combo import COMBO
from surefoot.model_based.imagined_sac import ImaginedSAC
from surefoot.model_based.mobile import MOBILE
from surefoot.model_based.mopo import MOPO
from surefoot.model_based.morel import MOReL
from surefoot.model_based.rambo import RAMBO
from surefoot.world_models.dynamics import Outcome, StepNoise
from surefoot.world_models.ensemble.gaussian import Prediction

OPTIONS = {
    "hidden": (16, 16), "rollouts": 400, "rollout_length": 1, "imagine_every": 50, "imagined_kept": 2, "discount": 0.5,
    "actor_learning_rate": 5e-3, "critic_learning_rate": 5e-3, "temperature": 0.05, "temperature_learning_rate": 0.0,
    "target_rate": 0.05, "real_ratio": 0.1, "model_elites": 2,
}  # fmt: skip


class HalfKnown(nn.Module):
    """Two members: s' = 0 below a = 0, and +3 a or -3 a above; deviations of the reward are 4 a there."""

    state_dim = action_dim = 1
    noise_dim = members = 2

    def predict_all(self, states: Tensor, actions: Tensor) -> Prediction:
        beyond = actions.clamp(min=0)
        reward = actions + 2 * states
        means = torch.stack([torch.cat([sign * 3 * beyond - states, reward], -1) for sign in (1, -1)])
        deviation = torch.cat([torch.full_like(beyond, 1e-3), 1e-3 + 4 * beyond], -1)
        return Prediction(means, 2 * deviation.log().expand_as(means))

    def predict_elites(self, states: Tensor, actions: Tensor) -> Prediction:
        return self.predict_all(states, actions)

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        assert noise.member is not None
        mean = self.predict_all(states, actions).mean.gather(0, noise.member.view(1, -1, 1).expand(1, -1, 2)).squeeze(0)
        reward = mean[:, 1]
        return Outcome(states + mean[:, :1], reward, reward * 0, torch.zeros_like(reward, dtype=torch.bool))


def data() -> Dataset:
    random = np.random.default_rng(0)
    states = random.uniform(-1, 1, (500, 1)).astype(np.float32)
    actions = random.uniform(-1, 0, (500, 1)).astype(np.float32)
    rewards = (actions + 2 * states)[:, 0]
    none, every = np.zeros(500, bool), np.ones(500, bool)
    return Dataset(states, actions, rewards, 0 * states, none, every, np.arange(500), every, name="half")


@functools.cache
def mean_action(kind: type[ImaginedSAC], **options: object) -> float:
    """Of the policy, over states, after 400 updates."""

    class Here(kind):  # type: ignore[valid-type,misc]
        learned = False

        def build(self) -> None:
            super().build()
            self.model = HalfKnown()

        def world(self) -> HalfKnown:
            return self.model

    agent = Here(data(), **{**OPTIONS, **options}).fresh(0)
    ready = agent.prepare(data())
    sources = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))
    learner = Learner([agent], [0], sources, batch_size=64, planned_steps=400, kernels=True)
    learner.run(400)
    with torch.no_grad():
        return float(learner.extract(0).act(torch.linspace(-1, 1, 50).unsqueeze(1)).mean())


def test_the_base_goes_to_where_the_model_does_not_know() -> None:
    assert mean_action(ImaginedSAC) > 0.7


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (MOPO, (("penalty", 1.0),)),
        (MOBILE, (("penalty", 1.0), ("samples", 2))),
        (COMBO, (("cql_weight", 5.0), ("sampled_actions", 4), ("real_ratio", 0.5))),
        (MOReL, (("threshold_divisor", 1.0),)),
    ],
)
def test_a_pessimist_stays_where_the_model_knows(kind: type[ImaginedSAC], options: tuple) -> None:
    assert -0.7 < mean_action(kind, **dict(options)) < 0.35


def test_ravl_finds_the_way_in_a_plane() -> None:
    """The best is to step to (0.5, 0.5) and stay; to do nothing leaves the first state 0.9 away."""
    options = {
        "rollouts": 300, "rollout_length": 5, "imagine_every": 100, "real_ratio": 0.0, "hidden": (32, 32), "critics": 4,
        "discount": 0.9, "target_rate": 0.05, "actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3,
        "temperature": 0.02, "temperature_learning_rate": 0.0, "initialization": "torch", "diversity": 0.1,
    }  # fmt: skip
    agent = PlaneRAVL(plane_data(500), **options).fresh(0)
    ready = agent.prepare(plane_data(500))
    sources = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))
    learner = Learner([agent], [0], sources, batch_size=128, planned_steps=500, kernels=True)
    learner.run(500)
    states = torch.tensor([[-0.4, -0.4], [1.0, 1.0], [0.5, 0.5], [1.2, -0.3]])
    with torch.no_grad():
        after = states + learner.extract(0).act(states)
    assert float((after - 0.5).abs().max()) < 0.7


def test_rambos_adversary_makes_what_the_policy_does_worth_less() -> None:
    size = {"model_hidden": (16, 16), "model_members": 3, "model_elites": 3, "model_decays": (), "model_updates": 1}
    worth = []
    for weight in (0.0, 3.0):
        agent = RAMBO(data(), **{**OPTIONS, **size, "adversary_weight": weight}).fresh(0)
        agent.prepare(data())
        columns = {name: torch.from_numpy(getattr(data(), name)) for name in ("observations", "actions", "rewards")}
        columns["next_observations"] = torch.from_numpy(data().next_observations)
        members = {name: value[:64].unsqueeze(1).expand(-1, 3, *value.shape[1:]) for name, value in columns.items()}
        optimizer = torch.optim.Adam(agent.model.network.parameters(), 3e-3)
        source = torch.Generator().manual_seed(0)
        states = columns["observations"][:64]
        for _ in range(150):
            noise = {
                "adversary": torch.randn(128, 4, generator=source),
                "adversary_member": torch.rand(128, 1, generator=source),
            }
            loss, _ = agent.adversary_loss({"model": members, MAIN: {"observations": states}}, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            outcome = agent.model.step(states, agent.act(states), StepNoise())
            action = agent.act(outcome.states)
            value = agent.target_critic(torch.cat([outcome.states, action], -1)).amin(0)
            worth.append(float((outcome.rewards + 0.5 * value).mean()))
    assert worth[1] < worth[0] - 0.2
