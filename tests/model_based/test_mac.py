"""MAC: a full update against a second implementation, returns of paths by hand, learning, resuming."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from plain_flow import JointAdam, Plain, Rows, cloning, euler
from problems import relative
from test_flow_updates import RATE, windows
from test_mbrcsl import dataset_of, learner_of, random_data
from torch import Tensor, nn

from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.policy.policy import Policy
from surefoot.model_based import MAC
from surefoot.model_based.base.alarm import AlarmConfig
from surefoot.world_models.dynamics import Outcome, StepNoise

SPEC = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))
SMALL: dict[str, Any] = {
    "chunk": 2, "hidden": (8, 6), "rollout_length": 3, "rollouts": 6, "flow_steps": 2, "samples": 4,
    "imagined_samples": 3, "learning_rate": RATE,
}  # fmt: skip
NETWORKS = ("velocity", "student", "critic", "value", "target_value")


def test_full_updates_equal_the_second_implementation() -> None:
    agent = MAC(SPEC, **SMALL, trace=0.8, discount=0.9).fresh(3).double()
    nets = {
        name: Plain(module.mlp, after=name in {"critic", "value", "target_value"})  # type: ignore[union-attr, arg-type]
        for name, module in agent.named_children()
        if name in NETWORKS
    }
    nets |= {name: Plain(getattr(agent.chunk_model, name), after=True) for name in ("motion", "reward", "ending")}
    batches = windows(3, 2)
    given = iter(batches)
    source = Uniform(lambda rows: next(given), 6)
    trained = Learner([agent], [0], source, batch_size=6, dtype=torch.float64)
    noises = [trained.stream.at(step) for step in range(3)]
    mine = [nets[n] for n in ("velocity", "student", "critic", "motion", "reward", "ending")]
    joint, value_adam = JointAdam(mine, RATE), JointAdam([nets["value"]], RATE)
    for step, numbers in enumerate(noises):
        trained.run(1)
        noise, rows = {name: v[0] for name, v in numbers.items()}, Rows(batches[step], 2, 0.9)
        v, mu, q, value, target = (nets[n] for n in NETWORKS)
        with torch.no_grad():
            flowed = euler(v, rows.s, noise["student"], 2)
            y = rows.r + rows.reach * target(rows.following).squeeze(-1)
        loss = cloning(v, rows, noise) + (mu(rows.s, noise["student"]) - flowed).square().mean()
        loss = loss + (rows.weight * (q(rows.s, rows.a).squeeze(-1) - y) ** 2).mean()
        moved = nets["motion"](rows.s, rows.a) - (rows.following - rows.s)
        odds, ended = nets["ending"](rows.s, rows.a).squeeze(-1), (rows.reach == 0).double()
        each = moved.square().mean(1) + (nets["reward"](rows.s, rows.a).squeeze(-1) - rows.r) ** 2
        each = each + nn.functional.binary_cross_entropy_with_logits(odds, ended, reduction="none")
        joint.step(loss + (rows.weight * each).mean())
        value_adam.step(second_value_loss(nets, rows.s, noise["imagined"]))
        target.follow(value, 0.005)
        for name in (*NETWORKS, "motion", "reward", "ending"):
            home = agent.chunk_model if name in ("motion", "reward", "ending") else agent
            module = getattr(home, name)
            found = list((module.mlp if name in NETWORKS else module).parameters())
            for ours, theirs in zip(found, nets[name].tensors, strict=True):
                assert relative(ours.detach(), theirs.detach()) < 1e-9, (step, name)


def second_value_loss(nets: dict[str, Plain], start: Tensor, noise: Tensor) -> Tensor:
    """Row by row, step by step, in python."""
    squares, count = torch.zeros(()), 0
    for row in range(len(start)):
        state, path = start[row : row + 1], []
        for h in range(3):
            draws = noise[row, 12 * h : 12 * (h + 1)].view(3, 4)
            with torch.no_grad():
                seen = state.expand(3, -1)
                chunks = nets["student"](seen, draws).clamp(-1, 1)
                best = chunks[nets["critic"](seen, chunks).squeeze(-1).mean(0).argmax()].unsqueeze(0)
                reward, odds = float(nets["reward"](state, best)), float(nets["ending"](state, best))
                following = state + nets["motion"](state, best)
                behind = float(nets["target_value"](following))
            path.append((state, reward, odds > 0, behind))
            state = following
            if odds > 0:
                break
        total = path[-1][3]
        for seen, reward, ended, after in reversed(path):
            total = reward + 0.81 * (0.0 if ended else 0.2 * after + 0.8 * total)
            squares, count = squares + (nets["value"](seen).squeeze() - total) ** 2, count + 1
    return squares / count


class Line:
    """A chunk moves by the sum of its actions; it earns where it ends, and ends at 1.25."""

    state_dim, action_dim, noise_dim, members = 1, 2, 0, 1

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        following = states + actions.sum(-1, keepdim=True)
        reward = following[..., 0]
        return Outcome(following, reward, 0 * reward, reward >= 1.25)


def test_returns_of_paths_stop_where_they_end_and_go_on_with_the_value_elsewhere(monkeypatch: Any) -> None:
    agent = MAC(Spec(1, 1, (-1.0,), (1.0,)), **SMALL, discount=0.9)
    monkeypatch.setattr(agent, "world", Line)
    monkeypatch.setattr(agent, "chosen", lambda states, noise: torch.full((len(states), 2), 0.25))
    with torch.no_grad():
        agent.target_value.mlp.weights[-1].zero_()
        agent.target_value.mlp.biases[-1].fill_(7.0)
    states, rewards, returns, there = agent.imagine(torch.tensor([[0.0], [-5.0], [0.5]]), torch.zeros(3, 3 * 3 * 2))
    assert there.T.tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0]]
    assert states[:, 0, 0].tolist() == [0.0, 0.5, 1.0]
    first = 0.5 + 0.81 * (1.0 + 0.81 * 1.5)
    second = -4.5 + 0.81 * (-4.0 + 0.81 * (-3.5 + 0.81 * 7.0))
    assert returns[0].tolist() == pytest.approx([first, second, 1.0 + 0.81 * 1.5])
    assert float(rewards[1, 2]) == 1.5


def line_data(episodes: int = 300, length: int = 12) -> Any:
    """A point that goes left or right, two steps at a time; it earns where it is."""
    numbers = np.random.default_rng(1)
    ways = np.repeat(numbers.choice([-1.0, 1.0], (episodes, length // 2)), 2, 1)
    actions = np.clip(0.7 * ways + 0.1 * numbers.normal(size=ways.shape), -1, 1)
    steps = 0.3 * actions.cumsum(1)
    start = numbers.uniform(-3, 3, (episodes, 1))
    following = start + steps
    seen = np.concatenate([start, following[:, :-1]], 1)
    flat = [part.reshape(-1, 1) for part in (seen, actions, following)]
    return dataset_of(flat[0], flat[1], flat[2][:, 0], flat[2], length)


def test_it_goes_where_the_reward_is_though_the_data_go_either_way() -> None:
    data = line_data()
    options = {**SMALL, "hidden": (32, 32), "rollout_length": 5, "rollouts": 32, "samples": 8, "learning_rate": 1e-3}
    agent = MAC(data, **options, discount=0.95, target_rate=0.02).fresh(0)
    learner = learner_of([agent], data, [0], 300, batch_size=64)
    learner.run(300)
    policy = learner.agent.policy()
    state = torch.full((64, 1), -1.0)
    memory = policy.begin(64, seed=1)
    for _ in range(12):
        action, memory = policy.act(state, memory)
        state = state + 0.3 * action
    assert float(state.mean()) > 0  # of 1.5 where each chunk goes right; the clone's mean stays at -1


def test_seeds_together_are_seeds_alone_and_the_policy_loads_again(tmp_path: Any) -> None:
    data = random_data()
    together = learner_of([MAC(data, **SMALL).fresh(s) for s in (0, 4)], data, [0, 4], 9, dtype=torch.float64)
    together.run(9)
    alone = learner_of([MAC(data, **SMALL).fresh(4)], data, [4], 9, dtype=torch.float64)
    alone.run(9)
    for name, value in alone.agents_parameters(0).items():
        torch.testing.assert_close(together.agents_parameters(1)[name], value, rtol=1e-8, atol=1e-10, msg=name)
    policy = MAC(data, **SMALL, execute=1).fresh(0).policy()
    policy.save(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors")
    assert isinstance(again.actor, ChunkActor)
    noise, seen = torch.randn(5, again.actor.noise_dim), torch.randn(5, 3)
    torch.testing.assert_close(again.actor.act(seen, noise), policy.actor.act(seen, noise))


def test_settings_out_of_range_are_named() -> None:
    wrong: list[dict[str, Any]] = [{"chunk": 0}, {"execute": 11}, {"trace": 1.5}, {"discount": 1.0}]
    for options in wrong:
        with pytest.raises(ConfigError, match=rf"mac\.{next(iter(options))} is"):
            MAC.configure(**options)


@pytest.mark.parametrize(
    ("of_data", "of_chunks", "rings"), [(1.0, 1.902, False), (1.0, 2.3, True), (-1.0, -1.0, False)]
)
def test_rewards_that_are_all_the_same_ring_no_alarm_for_a_small_error(
    of_data: float, of_chunks: float, rings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of two rewards of 1 has 1 + 0.9, and one that ends at its first step a single one."""
    data = random_data(of_data)
    agent = MAC(Spec.of(data), **SMALL, discount=0.9).fresh(0)
    agent.prepare(data)
    states, rewards = torch.zeros(3, 4, 3), torch.full((3, 4), of_chunks)
    monkeypatch.setattr(MAC, "imagine", lambda *unused: (states, rewards, rewards, torch.ones_like(rewards)))
    _, metrics = agent.value_loss({"observations": states[0]}, {"imagined": states})
    assert (float(metrics["reward_excess"]) > AlarmConfig().alarm_reward_excess) is rings
