"""Policy heads against torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from surefoot.core.actors.heads import (
    DeterministicActor,
    GaussianActor,
    StateDependentActor,
    TanhGaussianActor,
    gaussian_log_density,
)


def test_gaussian_log_density_equals_torchs_and_a_number_by_hand() -> None:
    # two dimensions, one standard deviation off in the first: -1/2 - log sqrt(2 pi) * 2 - log 2
    by_hand = -0.5 - math.log(2 * math.pi) - math.log(2)
    found = gaussian_log_density(torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor([math.log(2), 0]))
    assert found.item() == pytest.approx(by_hand, abs=1e-6)
    actions, mean, log_std = torch.randn(50, 3), torch.randn(50, 3), torch.randn(50, 3)
    torch.testing.assert_close(
        gaussian_log_density(actions, mean, log_std), Normal(mean, log_std.exp()).log_prob(actions).sum(-1)
    )


def test_the_gaussian_actor_is_an_unsquashed_normal_around_a_squashed_mean() -> None:
    actor = GaussianActor(4, 2, (16,))
    with torch.no_grad():
        actor.log_std.copy_(torch.tensor([-0.3, 0.4]))
    observations, actions = torch.randn(30, 4), torch.rand(30, 2) * 2 - 1
    mean = torch.tanh(actor.mlp(observations))
    expected = Normal(mean, actor.log_std.exp()).log_prob(actions).sum(-1)
    torch.testing.assert_close(actor.log_density(observations, actions), expected)


def test_the_gaussian_actor_clips_only_when_acting() -> None:
    actor = GaussianActor(4, 2, (16,))
    noise = torch.full((30, 2), 5.0)
    observations = torch.randn(30, 4)
    assert (actor.act(observations, noise) == 1).all()
    torch.testing.assert_close(actor.act(observations), torch.tanh(actor.mlp(observations)))
    small = torch.full((30, 2), 0.01)
    torch.testing.assert_close(
        actor.act(observations, small), (torch.tanh(actor.mlp(observations)) + 0.01).clamp(-1, 1)
    )


@pytest.mark.parametrize(("low", "given", "used"), [(-5.0, -9.0, -5.0), (-20.0, -9.0, -9.0), (-5.0, 7.0, 2.0)])
def test_the_log_standard_deviation_stays_in_its_range(low: float, given: float, used: float) -> None:
    actor = GaussianActor(4, 2, (16,), log_std_range=(low, 2.0))
    with torch.no_grad():
        actor.log_std.fill_(given)
    assert actor(torch.randn(3, 4))[1].tolist() == [used, used]


def test_the_tanh_gaussian_equals_torchs_transformed_distribution() -> None:
    actor = TanhGaussianActor(4, 3, (16,)).double()
    observations, noise = torch.randn(40, 4).double(), torch.randn(40, 3).double()
    mean, log_std = actor(observations)
    reference = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    actions, density = actor.draw(observations, noise)
    torch.testing.assert_close(actions, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(density, reference.log_prob(actions).sum(-1))
    torch.testing.assert_close(actor.act(observations, noise), actions)
    torch.testing.assert_close(actor.act(observations), torch.tanh(mean))
    torch.testing.assert_close(actor.log_density(observations, actions), density)  # of actions from elsewhere
    edge = torch.ones(40, 3).double()
    assert actor.log_density(observations, edge).isfinite().all()


def test_the_tanh_gaussian_density_integrates_to_one() -> None:
    actor = TanhGaussianActor(1, 1, (4,)).double()
    observation = torch.zeros(1, 1).double()
    mean, log_std = actor(observation)
    unsquashed = torch.linspace(-30, 30, 60_001).double().unsqueeze(1)
    noise = (unsquashed - mean) / log_std.exp()
    actions, density = actor.draw(observation.expand(len(noise), 1), noise)
    assert torch.trapezoid(density.exp(), actions.squeeze(1)).item() == pytest.approx(1, abs=1e-3)


def test_the_tanh_gaussian_density_stays_finite_far_out() -> None:
    actor = TanhGaussianActor(2, 2, (4,))
    _, density = actor.draw(torch.randn(4, 2), torch.full((4, 2), 60.0))
    assert density.isfinite().all()


def test_the_deterministic_actor_is_a_squashed_network_without_noise() -> None:
    actor = DeterministicActor(4, 2, (16,))
    observations = torch.randn(30, 4)
    torch.testing.assert_close(actor(observations), torch.tanh(actor.mlp(observations)))
    assert torch.equal(actor.act(observations, torch.randn(30, 2)), actor.act(observations))


def held_noise_actor() -> StateDependentActor:
    actor = StateDependentActor(3, 2, (8, 5)).double()
    with torch.no_grad():
        actor.log_std.normal_()
    return actor


def test_held_noise_is_a_linear_function_of_the_last_hidden_layer() -> None:
    actor, observations = held_noise_actor(), torch.randn(4, 3).double()
    features = observations
    for weight, bias in list(zip(actor.mlp.weights, actor.mlp.biases, strict=True))[:-1]:
        features = torch.tanh(features @ weight.T + bias)
    drawn = torch.randn(4, actor.held_dim).double()
    for row in range(4):
        function = drawn[row].view(5, 2) * actor.log_std.exp()
        expected = actor.mlp(observations)[row] + features[row] @ function
        torch.testing.assert_close(actor.explore(observations, drawn)[row], expected)


def test_a_single_action_of_held_noise_has_the_density_and_entropy_of_its_samples() -> None:
    actor, observations = held_noise_actor(), torch.randn(1, 3).double()
    outputs = actor(observations)
    normal = Normal(outputs[0], outputs[1].exp())
    actions = torch.randn(1, 2).double()
    torch.testing.assert_close(actor.density_of(outputs, actions), normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(actor.entropy_of(outputs), normal.entropy().sum(-1))
    drawn = torch.randn(100_000, actor.held_dim, generator=torch.Generator().manual_seed(0)).double()
    samples = actor.explore(observations.expand(len(drawn), -1), drawn).detach()
    covariance = torch.cov(samples.T)
    torch.testing.assert_close(covariance.diagonal(), outputs[1].exp().square()[0], rtol=0.02, atol=0)
    assert abs(float(covariance[0, 1])) < 0.02 * float(covariance.diagonal().prod().sqrt())
    noise = torch.randn(1, 2).double()
    torch.testing.assert_close(actor.act(observations, noise), normal.mean + normal.stddev * noise)


def test_the_variance_of_held_noise_does_not_train_the_layers_that_it_reads() -> None:
    actor = held_noise_actor()
    actor(torch.randn(4, 3).double())[1].sum().backward()
    assert all(weight.grad is None for weight in actor.mlp.parameters())
    assert float(actor.log_std.grad.abs().min()) > 0  # type: ignore[union-attr]
