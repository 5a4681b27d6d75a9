"""TT: its loss by hand, the search against all sequences, rows alone and together, and that it plans well."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from test_mbrcsl import dataset_of, learner_of

from surefoot.core.base.errors import ConfigError
from surefoot.core.policy.policy import Policy
from surefoot.model_based import TrajectoryTransformer
from surefoot.world_models.tokens.planner import NETWORKS, SEARCH, TrajectoryPlanner, networks

SMALL: dict[str, Any] = {
    "bins": 5, "context": 4, "past": 1, "horizon": 3, "width": 8, "layers": 1, "heads": 2, "beams": 4, "dropout": 0.0,
}  # fmt: skip


def random_data(episodes: int = 12, length: int = 6) -> Any:
    numbers = np.random.default_rng(2)
    rows = episodes * length
    return dataset_of(numbers.normal(size=(rows, 2)), numbers.uniform(-1, 1, (rows, 1)), numbers.normal(size=rows),
                      numbers.normal(size=(rows, 2)), length)  # fmt: skip


def test_returns_to_go_and_penalties_are_columns_and_bins_are_the_data_s() -> None:
    data = dataset_of(np.zeros((3, 1)), np.zeros((3, 1)), [1.0, 2.0, 4.0], np.zeros((3, 1)), 3)
    data = data.replace(terminations=np.array([False, False, True]))
    agent = TrajectoryTransformer(data, **{**SMALL, "discount": 0.5, "termination_penalty": -10.0})
    ready = agent.prepare(data)
    assert ready.rewards.tolist() == [1.0, 2.0, -6.0]
    assert ready.extras["to_go"].tolist() == pytest.approx([2.0 + 0.5 * -6.0, -6.0, 0.0])
    assert float(agent.bins.centres[-2].max()) <= 2.0


def test_the_loss_is_the_weighted_mean_of_the_tokens_that_are_there() -> None:
    data = random_data()
    agent: Any = TrajectoryTransformer(data, **SMALL, action_weight=5.0).fresh(0).double()
    agent.prepare(data)
    numbers = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = {"observations": numbers[..., :2], "actions": numbers[..., 2:3], "rewards": numbers[..., 3],
             "to_go": numbers[..., 4], "mask": torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]]).double()}  # fmt: skip
    loss, metrics = agent.model_loss(batch, {})
    tokens = agent.bins.encode(numbers).flatten(1)
    logits, _ = agent.transformer(tokens)
    total, plain, count = 0.0, 0.0, 0
    for row, length in ((0, 20), (1, 10)):
        for i in range(1, length):
            nll = -float(logits[row, i - 1].log_softmax(-1)[tokens[row, i]].detach())
            total, plain, count = total + (5.0 if i % 5 == 2 else 1.0) * nll, plain + nll, count + 1
    assert float(loss.detach()) == pytest.approx(total / count, rel=1e-9)
    assert float(metrics["token_nll"].detach()) == pytest.approx(plain / count, rel=1e-9)


def planner(seed: int = 0, **options: Any) -> TrajectoryPlanner:
    torch.manual_seed(seed)
    chosen = {**NETWORKS, **SEARCH, **{k: v for k, v in SMALL.items() if k != "dropout"}, **options}
    transformer, bins = networks(2, 1, chosen)
    bins.fit(np.random.default_rng(0).normal(size=(200, 5)))
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return TrajectoryPlanner(transformer.double(), bins.double(), 2, 1, chosen)


def test_the_search_finds_the_best_of_all_sequences() -> None:
    made = planner(bins=3, horizon=2, past=2, beams=60, expansion=2, action_tail=0.0, discount=0.9)
    observations, memory = torch.tensor([[0.3, -0.4]]).double(), made.begin(1)
    memory["steps"][:, 1] = torch.tensor([0.1, 0.5, -0.2, 0.7, 1.0])
    memory["seen"] += 1
    noise = torch.randn(1, made.noise_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        actions, value, to_go = made.search(observations, memory, noise)
        prefix = torch.cat([made.bins.encode(memory["steps"][:, 1]), made.bins.encode(observations)], 1)
        found = {}
        for plan in itertools.product(range(3), repeat=2):  # all of them, read from the beginning each time
            tokens, total, first = prefix, 0.0, 0.0
            for step, token in enumerate(plan):
                tokens = torch.cat([tokens, torch.tensor([[token]])], 1)
                for number in (3, 4):
                    odds = made.transformer(tokens)[0][:, -1].softmax(-1)
                    mean = float(made.bins.expected(odds, number))
                    total += 0.9**step * mean if number == 3 else 0.0
                    tokens = torch.cat([tokens, odds.argmax(-1, keepdim=True)], 1)
                first = mean if step == 0 else first
                if step == 0:
                    for _ in range(2):
                        tokens = torch.cat([tokens, made.transformer(tokens)[0][:, -1:].argmax(-1)], 1)
            found[plan] = (total + 0.9**2 * mean, first)
    best = max(found, key=lambda plan: found[plan][0])
    assert made.bins.encode(actions[0], first=2).flatten().tolist() == list(best)
    assert float(value) == pytest.approx(found[best][0], rel=1e-9)
    assert float(to_go) == pytest.approx(found[best][1], rel=1e-9)
    assert sorted(v for v, _ in found.values())[-2] < found[best][0]


def test_rows_together_are_rows_alone_and_the_memory_is_what_was_seen_done_and_earned() -> None:
    made = planner()
    source = torch.Generator().manual_seed(5)
    memory, alone = made.begin(11), made.begin(1)
    for time in range(3):
        seen, noise = (torch.randn(11, n, dtype=torch.float64, generator=source) for n in (2, made.noise_dim))
        rewards, ended = torch.full((11,), 0.5 + time).double(), torch.zeros(11, dtype=torch.bool)
        ended[4] = time == 1
        action, memory = made.step(seen, memory, noise)
        own, alone = made.step(seen[9:10], alone, noise[9:10])
        torch.testing.assert_close(action[9:10], own)
        memory, alone = made.executed(memory, action), made.executed(alone, own)
        newest = memory["steps"][0, -1]
        assert newest[:3].tolist() == [*seen[0].tolist(), float(action[0])]
        memory = made.observe_outcome(memory, rewards, rewards, ended)
        alone = made.observe_outcome(alone, rewards[:1], rewards[:1], ended[:1])
        assert float(memory["steps"][0, -1, 3]) == 0.5 + time
    assert memory["seen"].flatten().tolist() == [3.0] * 4 + [1.0] + [3.0] * 6


def line_data(episodes: int = 150, length: int = 10) -> Any:
    """A point that is pushed about at random; it earns near 0, and nothing far from it."""
    numbers = np.random.default_rng(1)
    actions = numbers.uniform(-1, 1, (episodes, length))
    start = numbers.uniform(-1.5, 1.5, (episodes, 1))
    following = start + 0.4 * actions.cumsum(1)
    seen = np.concatenate([start, following[:, :-1]], 1)
    flat = [part.reshape(-1, 1) for part in (seen, actions, following)]
    return dataset_of(flat[0], flat[1], np.exp(-4 * flat[2][:, 0] ** 2), flat[2], length)


def test_it_plans_to_where_it_pays_and_loads_again(tmp_path: Any) -> None:
    data = line_data()
    options = {**SMALL, "bins": 15, "width": 32, "heads": 4, "beams": 12, "learning_rate": 3e-3, "action_tail": 0.2}
    agent = TrajectoryTransformer(data, **options, weight_decay=0.0).fresh(0)
    learner = learner_of([agent], data, [0], 300, batch_size=64)
    learner.run(300)
    policy = learner.agent.policy()
    policy.save(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors")
    assert isinstance(again.actor, TrajectoryPlanner)
    state = torch.tensor([[-1.2], [-0.8], [0.9], [1.3]]).repeat(4, 1)
    memory, other = policy.begin(16, seed=1), again.begin(16, seed=1)
    for time in range(6):
        action, memory = policy.act(state, memory)
        if time < 2:
            same, other = again.act(state, other)
            assert torch.equal(same, action)
        state = state + 0.4 * action
        earned = torch.exp(-4 * state[:, 0] ** 2)
        memory = policy.observe_outcome(memory, earned, 0 * earned, torch.zeros(16, dtype=torch.bool))
        other = again.observe_outcome(other, earned, 0 * earned, torch.zeros(16, dtype=torch.bool))
    assert float(state.abs().mean()) < 0.4  # it began at 1.05, and a random walk ends further off


def test_returns_to_go_are_not_read_unless_asked_for_and_an_old_file_is_of_a_model_that_reads_them() -> None:
    for options, unread in (({}, 4), ({"reads_to_go": True}, None)):  # two numbers seen, an action, a reward
        agent = TrajectoryTransformer(random_data(), **SMALL, **options).fresh(0)
        assert agent.transformer.unread == unread
        written = agent.actor.description()
        assert TrajectoryPlanner.from_description(2, 1, written).transformer.unread == agent.transformer.unread
        del written["reads_to_go"]
        assert TrajectoryPlanner.from_description(2, 1, written).transformer.unread is None


def test_seeds_together_are_seeds_alone() -> None:
    data = random_data()
    options = {**SMALL, "dropout": 0.2}
    together = learner_of([TrajectoryTransformer(data, **options).fresh(s) for s in (0, 4)], data, [0, 4], 5,
                          dtype=torch.float64)  # fmt: skip
    together.run(5)
    alone = learner_of([TrajectoryTransformer(data, **options).fresh(4)], data, [4], 5, dtype=torch.float64)
    alone.run(5)
    for name, value in alone.agents_parameters(0).items():
        torch.testing.assert_close(together.agents_parameters(1)[name], value, rtol=1e-8, atol=1e-10, msg=name)


def test_settings_out_of_range_are_named() -> None:
    wrong: list[dict[str, Any]] = [{"horizon": 6}, {"bins": 1}, {"law": "even"}, {"dropout": 1.0}]
    for options in wrong:
        with pytest.raises(ConfigError, match=rf"trajectory_transformer\.{next(iter(options))} is"):
            TrajectoryTransformer.configure(**options)
