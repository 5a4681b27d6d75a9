"""Intentional updates and AVG against plain loops written from the same equations, and that they learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from stream_problems import ARM, CHOICES, Samples, make
from test_agents import COIN, LINE, reward_of_contexts
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.streaming import AVG, IntentionalAC, IntentionalQ, StreamAC
from surefoot.streaming.intentional import intentional_step


def test_an_intentional_step_is_the_papers_formula_worked_out() -> None:
    """Two steps of one parameter vector (2), gamma lambda 0.5, beta2 0.9, eta 0.5."""
    gradients = np.array([[1.0, -2.0], [0.5, 3.0]])
    trace, second, sigma = np.zeros(2), np.zeros(2), 0.0
    own = torch.zeros(1, 2).double(), torch.zeros(1).double()
    for n, g in enumerate(gradients, 1):
        trace = 0.5 * trace + g
        second = 0.9 * second + 0.1 * g**2
        h = np.sqrt(second / (1 - 0.9**n)) + 1e-8
        sigma += 0.5 * ((g**2 / h).sum() - sigma)
        size = 0.5 / math.sqrt(sigma / (1 - 0.5**n) * (trace**2 / h).sum())
        rows = (torch.from_numpy(value).unsqueeze(0) for value in (trace, g))
        move, *own = intentional_step(*rows, *own, torch.tensor([n]), eta=0.5, decay=0.5, beta2=0.9)
        assert move[0].tolist() == pytest.approx((size * trace / h).tolist())
        if n == 1:  # then sigma is N, z is g: a step of 1 changes a linear output by eta
            assert float((move[0] * torch.from_numpy(g)).sum()) == pytest.approx(0.5)


def test_a_zero_trace_moves_nothing() -> None:
    zero = torch.zeros(2, 3)
    move, _, _ = intentional_step(
        zero, zero, zero, torch.zeros(2), torch.ones(2, dtype=torch.int64), eta=0.5, decay=0.8, beta2=0.999
    )
    assert torch.equal(move, zero)


def test_errors_are_clipped_at_so_many_root_mean_squares() -> None:
    agent = make(IntentionalAC, ARM, clip=2.0, clip_decay=0.5, dtype=torch.float64)
    rows = torch.ones(1, dtype=torch.bool)
    squares, sizes = 1.0, 0.0
    for n, delta in enumerate((1.0, -1.0, 100.0, 0.3), 1):
        squares = 0.5 * squares + 0.5 * delta**2
        limit = 2 * math.sqrt(squares / (1 - 0.5**n))
        expected = max(-limit, min(limit, delta))
        sizes = 0.5 * sizes + 0.5 * abs(expected)
        clipped, relative = agent.clipped(torch.tensor([delta]).double(), rows)
        assert float(clipped) == pytest.approx(expected)
        assert float(relative) == pytest.approx(expected / (sizes / (1 - 0.5**n)))
        agent.learned += 1
    assert expected == 0.3


@pytest.mark.parametrize("kind", [IntentionalAC, IntentionalQ])
def test_intentional_agents_clear_traces_at_truncation(kind: type) -> None:
    problem = ARM if kind is IntentionalAC else CHOICES
    agent, samples = make(kind, problem), Samples(problem)
    samples.terminated[:], samples.truncated[:] = False, False
    samples.begin(agent)
    samples.run(agent, 1, 8)
    assert agent.critic_traces.any()
    samples.truncated[8] = True
    samples.run(agent, 8, 9)
    assert not agent.critic_traces.any()


def test_an_intentional_critic_removes_half_of_the_first_error() -> None:
    """Linear v, empty trace, nothing after: the error falls by eta exactly, whatever the features' size."""
    for size in (0.1, 30.0):
        agent = make(
            IntentionalAC, ARM, hidden=(), dtype=torch.float64, normalize_observations=False, scale_rewards=False
        )
        x = size * np.arange(1.0, 6.0)
        agent.begin(x)
        agent.step(x, 7.0, True, False, first=x)
        first = float(agent.out_td)
        after = 7.0 - float(agent.networks["critic"].forward(agent.critic_weights, torch.from_numpy(x[None])).outputs)
        assert after == pytest.approx(first / 2, rel=1e-5)


def test_intentional_agents_learn() -> None:
    # Rewards as they are: two equal ones at the start of episodes of one step would be scaled to 10,000.
    assert reward_of_contexts(make(IntentionalAC, COIN, 4, scale_rewards=False), COIN, 400) > 0.9
    assert reward_of_contexts(make(IntentionalAC, LINE, 6, scale_rewards=False), LINE, 600) > -0.45
    agent = make(IntentionalQ, COIN, 4, scale_rewards=False)
    agent.plan(1000)
    assert reward_of_contexts(agent, COIN, 400) > 0.9


def avg_modules(agent: AVG) -> tuple[nn.Module, nn.Module]:
    """Actor and critic as torch modules with the agent's weights of stream 0."""
    modules = []
    for name in ("actor", "critic"):
        network, layers = agent.networks[name], []
        for weight, bias in network.layers(getattr(agent, f"{name}_weights")):
            linear = nn.Linear(weight.shape[2], weight.shape[1], dtype=torch.float64)
            linear.weight.data, linear.bias.data = weight[0].clone(), bias[0].clone()
            layers += [linear, nn.LeakyReLU(0.01)]
        modules.append(nn.ModuleList(layers[:-1]))
    return modules[0], modules[1]


def through(module: nn.Module, value: Tensor) -> Tensor:
    layers = list(module)  # type: ignore[call-overload]
    for layer in layers[:-1]:
        value = layer(value)
    return layers[-1](value / value.norm() if value.any() else 0 * value)


def test_avg_takes_the_steps_of_a_second_implementation() -> None:
    """Eight transitions with torch's own Adam and distributions, two episodes."""
    agent = make(AVG, ARM, dtype=torch.float64, actor_learning_rate=1e-3, critic_learning_rate=2e-3, temperature=0.2)
    actor, critic = avg_modules(agent)
    optimizers = [
        torch.optim.Adam(module.parameters(), rate, betas=(0.0, 0.999), eps=1e-8)
        for module, rate in ((actor, 1e-3), (critic, 2e-3))
    ]
    samples = Samples(ARM)
    samples.begin(agent)
    rewards, discounts, returns, total = [], [], [], 0.0

    def policy(state: Tensor) -> torch.distributions.TransformedDistribution:
        mean, log_std = through(actor, state).chunk(2)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        return torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform())

    for t in range(1, 9):
        state, unsquashed = agent.states[0].clone(), agent.chosen[0].clone()
        end = t in (4, 6)
        arguments = {**samples.arguments(t), "terminated": t == 4, "truncated": t == 6}
        agent.act(**arguments) if not end else agent.step(**arguments)
        noise = agent.in_noise[0, 2:]
        if not end:
            following = agent.following[0].clone()
            agent.learn()
        else:  # `following` has moved on to the next episode's first observation: a twin that ends without one knows
            following = None
        mean, log_std = through(actor, state).chunk(2)
        std = log_std.clamp(-20, 2).exp()
        sample = mean + std * ((unsquashed - mean) / std).detach()
        density = policy(state).log_prob(torch.tanh(sample)).sum()
        actor_loss = 0.2 * density - through(critic, torch.cat([state, torch.tanh(sample)])).squeeze()
        reward = samples.rewards[t, 0]
        target = torch.tensor(reward)
        if t != 4:
            if following is None:  # truncated at t = 6: normalised by statistics without the next first observation
                seen = [samples.observations[0, 0, 0]]
                for s in range(1, 7):
                    seen += [samples.observations[s, 0, 0]] + ([samples.observations[s, 1, 0]] if s == 4 else [])
                table = np.array(seen)
                following = torch.from_numpy((table[-1] - table.mean(0)) / np.sqrt(table.var(0, ddof=1) + 1e-8))
            with torch.no_grad():
                distribution = policy(following)
                mean, log_std = through(actor, following).chunk(2)
                after = torch.tanh(mean + log_std.clamp(-20, 2).exp() * noise)
                soft = through(critic, torch.cat([following, after])).squeeze()
                target = reward + 0.99 * (soft - 0.2 * distribution.log_prob(after).sum())
        rewards.append(reward - 0.2 * float(density))
        discounts.append(0.0 if end else 0.99)
        total += rewards[-1]
        if end:
            returns.append(total)
            total = 0.0
        variances = [np.var(values, ddof=1) if t > 1 else 0.0 for values in (rewards, discounts)]
        square = variances[0] + variances[1] * (np.mean(np.square(returns)) if returns else 0.0)
        sigma = 1.0 if not returns and square <= 0.01 else max(math.sqrt(square), 0.01)
        delta = (target - through(critic, torch.cat([state, torch.tanh(unsquashed)])).squeeze()) / sigma
        gradients = torch.autograd.grad(actor_loss, list(actor.parameters()))
        for parameter, gradient in zip(actor.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizers[1].zero_grad()
        delta.square().backward()
        for optimizer in optimizers:
            optimizer.step()
        for name, module in (("actor", actor), ("critic", critic)):
            expected = torch.cat([p.detach().flatten() for p in module.parameters()])
            own = getattr(agent, f"{name}_weights")[0]
            torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-8, msg=f"{name}, step {t}")
        assert float(agent.out_td) == pytest.approx(float(delta), rel=1e-6)


def test_avgs_first_weights_are_orthogonal() -> None:
    agent = make(AVG, ARM, dtype=torch.float64)
    for name, network in agent.networks.items():
        for weight, bias in network.layers(getattr(agent, f"{name}_weights")):
            rows, columns = weight.shape[1:]
            product = weight[0] @ weight[0].T if rows <= columns else weight[0].T @ weight[0]
            torch.testing.assert_close(product, torch.eye(min(rows, columns)).double())
            assert not bias.any()


def test_avg_learns_where_to_go() -> None:
    agent = make(AVG, LINE, 6, hidden=(32, 32), actor_learning_rate=3e-3, critic_learning_rate=1e-2, temperature=0.02)
    assert reward_of_contexts(agent, LINE, 800) > -0.45


def test_avg_learns_continuous_actions_only() -> None:
    with pytest.raises(ConfigError, match="avg learns continuous actions"):
        AVG(CHOICES)
    assert StreamAC.requires.discrete
