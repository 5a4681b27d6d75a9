"""Guided flows: by hand, and smaller jumps where chunks follow each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.flow_actor import FlowActor, OneStepActor
from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.memory_actors import ChunkActor, HistoryActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.execution.executor import Execution, simulated
from surefoot.core.execution.guidance import GuidedPlanner, guided, soft_mask
from surefoot.core.execution.inference import PolicyPlanner, Request
from surefoot.core.losses.flow import euler
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.core.policy.policy import Policy


def test_weights_are_one_of_what_is_certain_and_fall_to_zero_where_nothing_is_planned() -> None:
    def fading(part: float) -> float:
        return part * (math.exp(part) - 1) / (math.e - 1)

    assert soft_mask(6, 1, 4) == pytest.approx([1, fading(3 / 4), fading(2 / 4), fading(1 / 4), 0, 0])
    assert soft_mask(4, 2, 2) == (1, 1, 0, 0)
    assert soft_mask(3, 0, 3) == pytest.approx([fading(3 / 4), fading(2 / 4), fading(1 / 4)])


def test_a_flow_that_stands_still_is_led_to_the_target_where_there_is_weight() -> None:
    noise, target = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[0.5, 0.5, 0.5]])
    still = guided(lambda x, time: 0 * x, target, torch.tensor([1.0, 0.5, 0.0]), 0.4)
    # limit 0.4 at t = 0 and 1/2 alike: x <- x + 0.4 w (y - x) / 2, twice
    assert euler(still, noise, 2)[0].tolist() == pytest.approx([0.5 + 1.5 * 0.8**2, 0.5 + 1.5 * 0.9**2, 2.0])
    # at t = 1/2 the factor is (1/4 + 1/4) / (1/4) = 2 where the limit allows it
    free = guided(lambda x, time: 0 * x, target, torch.tensor([1.0, 0.5, 0.0]), 5.0)
    after = [0.5 + 1.5 * (1 - 5 * w / 2) for w in (1.0, 0.5, 0.0)]
    wanted = [x + 2 * w * (0.5 - x) / 2 for x, w in zip(after, (1.0, 0.5, 0.0), strict=True)]
    assert euler(free, noise, 2)[0].tolist() == pytest.approx(wanted, abs=1e-5)
    assert wanted[0] == 0.5


def test_the_pull_goes_through_the_flows_own_derivative() -> None:
    def field(x: Tensor, time: Tensor) -> Tensor:
        return torch.tensor([[3.0, -1.0]]) * x[:, [1, 0]]  # couples the two numbers

    x, y, weights, t = torch.tensor([[0.2, -0.4]]), torch.tensor([[1.0, 0.5]]), torch.tensor([1.0, 0.25]), 0.5
    jacobian = np.array([[1.0, 0.5 * 3.0], [0.5 * -1.0, 1.0]])  # of x + (1 - t) v
    ahead = jacobian @ x[0].numpy()
    pull = (weights.numpy() * (y[0].numpy() - ahead)) @ jacobian
    wanted = field(x, torch.tensor([t]))[0].numpy() + 2.0 * pull
    found = guided(field, y, weights, 10.0)(x, torch.tensor([t]))
    np.testing.assert_allclose(found[0].numpy(), wanted, rtol=1e-6)
    assert not found.requires_grad


def policy(inner: Actor | None = None, history: int = 0) -> Policy:
    torch.manual_seed(0)
    width = 2 * max(1, history)
    made: Actor = ChunkActor(inner or FlowActor(PlainVelocity(width, 24, (32, 32)), 24, 5), 12, 2)
    if history:
        made = HistoryActor(made, 2, history)
    return Policy.of(made, Normalizer(2), torch.tensor([-3.0, 0.0]), torch.tensor([3.0, 1.0]))


class TwoWays(torch.nn.Module):
    """The exact velocity of chunks that are 0.8 throughout, or -0.8: E[x_1 | x_t] = m tanh(t m x / (1 - t)^2)."""

    sized = False

    def __init__(self) -> None:
        super().__init__()
        self.size = torch.nn.Parameter(torch.tensor(0.8))

    def forward(self, observations: Tensor, x: Tensor, time: Tensor, size: Tensor | None = None) -> Tensor:
        both = self.size * torch.tanh(self.size * time * x.sum(-1) / (1 - time).square()).unsqueeze(-1)
        return (both.expand_as(x) - x) / (1 - time).unsqueeze(-1)


def changes(planner: PolicyPlanner) -> int:
    """How often, in 100 chunks that follow each other, a new one takes the other way than the one before."""
    settings = Execution(rate=50.0, deadline=0.06, execute=6)
    executor = simulated(planner, settings, lambda measured: 0.06)
    actions = np.stack([executor.select_action(np.zeros(2, np.float32)) for _ in range(600)])
    assert executor.counts.received == 100
    assert (np.abs(actions[:, 0]) > 2).all()  # in the units of the bounds, 3 times 0.8
    return int((np.diff(np.sign(actions[:, 0])) != 0).sum())


def test_guided_chunks_keep_to_the_way_that_was_taken() -> None:
    made = policy(FlowActor(TwoWays(), 24, 10))  # type: ignore[arg-type]
    assert 30 < changes(PolicyPlanner(made)) < 70  # each sample is as likely to take either way
    assert changes(GuidedPlanner(made)) <= 1


@pytest.mark.parametrize("history", [0, 3])
def test_without_anything_planned_a_guided_chunk_is_the_policys(history: int) -> None:
    plain, led = PolicyPlanner(policy(history=history)), GuidedPlanner(policy(history=history))
    observation = np.array([0.3, -0.2], np.float32)
    for draw in range(3):
        chunks = [one.plan(Request(0, one.see(observation), draw, np.zeros((0, 2)), 0)) for one in (plain, led)]
        np.testing.assert_array_equal(*chunks)
    weak = GuidedPlanner(policy(history=history), 1e-9)
    seen = weak.see(observation)
    for _ in range(2):
        plain.see(observation)
    coming = np.full((4, 2), 0.5)
    near = weak.plan(Request(0, seen, 0, coming, 2))
    fresh = PolicyPlanner(policy(history=history))
    np.testing.assert_allclose(near, fresh.plan(Request(0, fresh.see(observation), 0, coming, 2)), atol=1e-5)


def test_only_chunks_of_a_flow_can_be_guided() -> None:
    for inner in (DeterministicActor(2, 24, (8,)), OneStepActor(2, 24, (8,))):
        with pytest.raises(ConfigError, match="only chunks that a flow draws"):
            GuidedPlanner(policy(inner))
    with pytest.raises(ConfigError, match="limit of guidance is 0"):
        GuidedPlanner(policy(), 0.0)
