"""MAPPO: full updates against a second implementation, and what its critic and its policy read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from plain_layers import layers
from test_off_policy_updates import Numbered
from torch import Tensor

from surefoot.core.base.spec import Team
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.envs.acting import spec_of
from surefoot.envs.agents import RowView
from surefoot.envs.training import make_training
from surefoot.online import MAPPO, PPO
from surefoot.online.loops.loop import make_loop

CHOICES, STATE, TIMES, ROWS = 3, 2, 5, 4
TEAM = Team(("a", "b"), STATE)
PROBLEM = Spec(2 + 2 + STATE, CHOICES, (0.0,) * 3, (1.0,) * 3, discrete=True, team=TEAM)
"""Two numbers of an agent, its one-hot number, and the team's state."""
OPTIONS: dict[str, Any] = {
    "hidden": (7, 6),
    "activation": "relu",
    "learning_rate": 1e-2,
    "schedule": "constant",
    "num_envs": ROWS,
    "horizon": TIMES,
    "minibatches": 1,
    "entropy_coefficient": 0.02,
    "discount": 0.9,
    "gae_lambda": 0.8,
}


def block() -> dict[str, Tensor]:
    """(T, N) steps of two teams of two agents: the first team's episode terminates, the second's is cut off."""
    source = np.random.default_rng(7)

    def seen() -> np.ndarray:
        own, state = source.normal(size=(TIMES, ROWS, 2)), source.normal(size=(TIMES, 2, STATE))
        number = np.broadcast_to(np.tile(np.eye(2), (2, 1)), (TIMES, ROWS, 2))
        return np.concatenate([own, number, np.repeat(state, 2, 1)], -1)

    ends = np.zeros((2, TIMES, ROWS), bool)
    ends[0, 1, :2], ends[1, 3, 2:] = True, True
    found = {
        "observations": seen(),
        "next_observations": seen(),
        "actions": np.eye(CHOICES)[source.integers(0, CHOICES, (TIMES, ROWS))],
        "rewards": source.normal(size=(TIMES, ROWS)),
        "terminations": ends[0],
        "truncations": ends[1],
    }
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in found.items()}


class Second:
    """The same update over torch's own layers, row by row, of the sentences of the paper."""

    def __init__(self, agent: MAPPO) -> None:
        self.actor, self.value = layers(agent.actor.mlp), layers(agent.value.mlp)  # type: ignore[arg-type]
        self.c = agent.config
        parameters = [*self.actor.parameters(), *self.value.parameters()]
        self.adam = torch.optim.Adam(parameters, lr=self.c.learning_rate, eps=self.c.epsilon)
        self.parameters = parameters

    def values(self, observations: Tensor) -> Tensor:
        return self.value(torch.cat([observations[..., 4:], observations[..., 2:4]], -1)).squeeze(-1)

    def advantages(self, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            values, after = self.values(given["observations"]), self.values(given["next_observations"])
        found = torch.zeros(TIMES, ROWS, dtype=torch.float64)
        for row in range(ROWS):
            trace = 0.0
            for time in reversed(range(TIMES)):
                over, cut = bool(given["terminations"][time, row]), bool(given["truncations"][time, row])
                gain = float(given["rewards"][time, row]) - float(values[time, row])
                gain += 0.0 if over else self.c.discount * float(after[time, row])
                trace = gain + (0.0 if over or cut else self.c.discount * self.c.gae_lambda * trace)
                found[time, row] = trace
        return found, values

    def step(self, given: dict[str, Tensor], rows: dict[str, Tensor]) -> None:
        c = self.c
        advantages = (rows["advantages"] - rows["advantages"].mean()) / (rows["advantages"].std() + 1e-8)
        log_prob = (torch.log_softmax(self.actor(rows["observations"][:, :4]), -1) * rows["actions"]).sum(-1)
        ratio = (log_prob - rows["behaviour_log_prob"]).exp()
        surrogate = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - c.clip, 1 + c.clip)).mean()
        spread = torch.distributions.Categorical(logits=self.actor(rows["observations"][:, :4])).entropy().mean()
        value, limit = self.values(rows["observations"]), float(c.value_clip or 0)
        near = rows["values"] + (value - rows["values"]).clamp(-limit, limit)
        errors = torch.max((value - rows["returns"]) ** 2, (near - rows["returns"]) ** 2).mean() / 2
        self.adam.zero_grad()
        (surrogate - c.entropy_coefficient * spread + c.value_coefficient * errors).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, c.max_gradient_norm)
        self.adam.step()


def test_full_updates_equal_the_second_implementation() -> None:
    agent = MAPPO(PROBLEM, **OPTIONS).fresh(2)
    with torch.no_grad():
        agent.actor.mlp.weights[-1].mul_(50)  # type: ignore[union-attr]  # a policy that is not uniform
    second, given = Second(agent), block()
    copied = MAPPO(PROBLEM, **OPTIONS).double()
    copied.load_state_dict(agent.state_dict())
    with torch.no_grad():
        columns = copied.columns(given)
    advantages, values = second.advantages(given)
    torch.testing.assert_close(columns["advantages"], advantages, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(columns["values"], values, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(columns["returns"], advantages + values, rtol=1e-10, atol=1e-12)
    rows = {name: value.flatten(0, 1) for name, value in columns.items()}
    learner = Learner([agent], [0], Numbered([rows] * 4), batch_size=TIMES * ROWS, dtype=torch.float64)
    for _ in range(4):
        learner.run(1)
        second.step(given, rows)
        for ours, other in ((agent.actor, second.actor), (agent.value, second.value)):
            pairs = zip(layers(ours.mlp).parameters(), other.parameters(), strict=True)  # type: ignore[arg-type]
            for value, expected in pairs:
                torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-11)


def test_the_policy_reads_no_state_and_the_critic_nothing_of_the_agent_but_its_number() -> None:
    agent = MAPPO(PROBLEM, **OPTIONS).fresh(1)
    seen = torch.randn(6, 6)
    state, own = seen.clone(), seen.clone()
    state[:, 4:] += 1
    own[:, :2] += 1
    noise = torch.randn(6, CHOICES)
    assert torch.equal(agent.sample(seen, noise)[0], agent.sample(state, noise)[0])
    assert torch.equal(agent.act(seen), agent.act(state))
    assert not torch.equal(agent.evaluate_value({"observations": seen}), agent.evaluate_value({"observations": state}))
    assert torch.equal(agent.evaluate_value({"observations": seen}), agent.evaluate_value({"observations": own}))
    policy = agent.policy()
    assert policy.observation_dim == 4
    assert torch.equal(policy.act(seen[:, :4], {})[0], agent.act(seen).argmax(-1))


def test_the_policy_keeps_the_statistics_of_what_it_reads() -> None:
    agent = MAPPO(PROBLEM, **OPTIONS).fresh(1)
    agent.normalizer.mean.copy_(torch.arange(6.0))
    policy = agent.policy()
    assert policy.normalizer.mean.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [MAPPO, PPO])
def test_without_a_team_it_is_ppo_to_the_bit(kind: Any) -> None:
    spec = Spec.of_choices(4, 2)
    usual, own = (
        PPO(spec, num_envs=2, entropy_coefficient=0.01).fresh(4),
        kind(spec, num_envs=2, entropy_coefficient=0.01).fresh(4),
    )
    for name, value in usual.state_dict().items():
        assert torch.equal(value, own.state_dict()[name])
    given = {name: value.float() for name, value in block().items()}
    given |= {name: given[name][..., :4] for name in ("observations", "next_observations")}
    given["actions"] = given["actions"][..., :2]
    for name, value in usual.columns(given).items():
        assert torch.equal(value, own.columns(given)[name]), name


def test_it_learns_the_two_step_game() -> None:
    """Both earn 7 by the first game whatever they do, and 8 by the second together."""
    env = make_training("team:two-step", 16, view=RowView(state=True, team_ends=True))
    agent = MAPPO(spec_of(env), num_envs=32, horizon=8, minibatches=2, learning_rate=5e-3, schedule="constant").fresh(0)
    loop = make_loop([agent], [0], env, planned_steps=6_000)
    found = loop.run(6_000)
    assert found["episode_return"][0] >= 6.5  # at random it is (7 + 2.5) / 2
