"""Recurrent state-space models: random states, resets, and the KL at its floor where nothing is to be seen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Array
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.recurrent.block_gru import BlockLinear
from surefoot.world_models.recurrent.recurrent import ImageDecoder, Numbers, RecurrentModel
from surefoot.world_models.recurrent.rssm import RSSM, Categories, Normals, random_states

KINDS = pytest.mark.parametrize("random", [Categories(3, 4), Normals(5)])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(random: Categories | Normals) -> RSSM:
    torch.manual_seed(1)
    return RSSM(6, 2, 7, 8, random, blocks=1).double()


# -- random states ---------------------------------------------------------------------------------------------


def test_one_percent_of_the_uniform_distribution_is_mixed_in() -> None:
    outputs = torch.tensor([50.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert Categories(1, 4).logits(outputs).exp().flatten().tolist() == pytest.approx([0.9925, 0.0025, 0.0025, 0.0025])


def test_categories_are_drawn_by_their_probabilities_one_in_each_group() -> None:
    random, outputs = Categories(2, 3), torch.tensor([0.0, 1.0, 2.0, 3.0, 0.0, 0.0], dtype=torch.float64)
    found = random.sample(outputs.expand(40_000, 6), normal(40_000, 2)).view(-1, 2, 3)
    assert bool((found.sum(-1) - 1).abs().max() < 1e-12)
    assert sorted(set(found.round(decimals=9).abs().flatten().tolist())) == [0.0, 1.0]
    torch.testing.assert_close(found.mean(0), random.logits(outputs).exp(), rtol=0, atol=0.01)


def test_without_noise_the_likeliest_category_is_taken_the_first_of_equals() -> None:
    outputs = torch.tensor([0.0, 2.0, 1.0, 5.0, 5.0, 1.0])
    assert Categories(2, 3).sample(outputs, None).tolist() == pytest.approx([0, 1, 0, 1, 0, 0])


def test_gradients_go_straight_through_samples_to_probabilities() -> None:
    random, outputs = Categories(1, 3), normal(3).requires_grad_()
    weights = normal(3, seed=4)
    (found,) = torch.autograd.grad((random.sample(outputs, normal(1)) * weights).sum(), outputs)
    (expected,) = torch.autograd.grad((random.logits(outputs).exp().flatten() * weights).sum(), outputs)
    torch.testing.assert_close(found, expected)


def test_divergences_are_torchs() -> None:
    first, second = normal(4, 12), normal(4, 12, seed=1)
    random = Categories(3, 4)
    p, q = (torch.distributions.Categorical(logits=random.logits(x)) for x in (first, second))
    torch.testing.assert_close(random.divergence(first, second), torch.distributions.kl_divergence(p, q).sum(-1))
    other = Normals(6)
    (m, s), (n, t) = other.parameters_of(first), other.parameters_of(second)
    p, q = torch.distributions.Normal(m, s), torch.distributions.Normal(n, t)
    torch.testing.assert_close(other.divergence(first, second), torch.distributions.kl_divergence(p, q).sum(-1))
    assert float(other.parameters_of(torch.full((12,), -50.0))[1].min()) == pytest.approx(0.1)


@pytest.mark.parametrize(("kind", "groups", "classes"), [("other", 2, 3), ("gaussian", 0, 3), ("categorical", 2, 1)])
def test_other_kinds_and_sizes_are_refused(kind: str, groups: int, classes: int) -> None:
    with pytest.raises(ConfigError, match="take categorical or gaussian"):
        random_states(kind, groups, classes)


# -- the recurrence ----------------------------------------------------------------------------------------------


@KINDS
def test_a_first_observation_erases_what_came_before(random: Categories | Normals) -> None:
    rssm, first = model(random), torch.zeros(2, 5, dtype=torch.float64)
    first[:, 0] = first[:, 3] = 1
    embedded, actions, noise = normal(2, 5, 6), normal(2, 5, 2, seed=1), normal(2, 5, rssm.noise_dim, seed=2)
    one = rssm.observe(embedded, actions, first, noise)
    embedded[:, :3], actions[:, :4], noise[:, :3] = 9.0, -9.0, 3.0
    other = rssm.observe(embedded, actions, first, noise)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a[:, 3:], b[:, 3:], rtol=0, atol=0)
        assert not torch.equal(a[:, 1:3], b[:, 1:3])


def test_blocks_are_a_block_diagonal_matrix_and_must_divide_the_state() -> None:
    blocks = BlockLinear(3, 2, 4).double()
    inputs = normal(5, 4, 3)
    dense = inputs.flatten(1) @ torch.block_diag(*blocks.weight) + blocks.bias.flatten()
    torch.testing.assert_close(blocks(inputs).flatten(1), dense)
    with pytest.raises(ConfigError, match="a deterministic state of 7 has no 2 blocks"):
        RSSM(6, 2, 7, 8, blocks=2)


@KINDS
def test_imagined_states_are_the_cells_and_the_priors(random: Categories | Normals) -> None:
    rssm = model(random)
    states, actions, noise = normal(3, 4, rssm.state_dim), normal(3, 4, 2, seed=1), normal(3, 4, rssm.noise_dim, seed=2)
    found = rssm.imagined(states, actions, noise)
    for row in range(3):
        after = rssm.deterministic_after(states[row], actions[row])
        torch.testing.assert_close(found[row, :, :7], after)
        torch.testing.assert_close(found[row, :, 7:], random.sample(rssm.prior(after), noise[row]))


def test_kls_below_the_free_nats_have_no_gradient_and_above_it_only_to_their_own_side() -> None:
    rssm = model(Categories(3, 4))
    inputs = normal(2, 3, 6), normal(2, 3, 2, seed=1), torch.zeros(2, 3, dtype=torch.float64), normal(2, 3, 3, seed=2)
    own = [*rssm.prior.parameters()], [*rssm.posterior.parameters()]

    def gradients(free: float, part: int) -> list[bool]:
        loss = rssm.divergences(rssm.observe(*inputs), free=free)[part]
        found = torch.autograd.grad(loss, [*own[0], *own[1]], materialize_grads=True)
        return [bool(any(g.any() for g in found[: len(own[0])])), bool(any(g.any() for g in found[len(own[0]) :]))]

    assert gradients(1e9, 0) == gradients(1e9, 1) == [False, False]
    assert float(rssm.divergences(rssm.observe(*inputs), free=1e9)[0]) == 1e9
    assert gradients(0.0, 0)[0]
    assert gradients(0.0, 1)[1]


def test_where_observations_carry_nothing_the_posterior_learns_to_be_the_prior() -> None:
    """Embeddings are noise and nothing is asked of the states: both KLs fall below their free nats and stay there."""
    rssm = model(Categories(3, 4))
    with torch.no_grad():
        for parameter in rssm.posterior.parameters():
            parameter.mul_(4)
    optimizer = torch.optim.Adam(rssm.parameters(), 1e-2)
    divergences = []
    for step in range(70):
        inputs = normal(8, 4, 6, seed=step), normal(8, 4, 2, seed=500 + step)
        states = rssm.observe(*inputs, torch.zeros(8, 4).double(), normal(8, 4, 3, seed=900 + step))
        dynamics, representation, kl = rssm.divergences(states, free=0.2)
        optimizer.zero_grad()
        (dynamics + 0.1 * representation).backward()
        optimizer.step()
        divergences.append(float(kl))
    assert divergences[0] > 0.5
    assert divergences[-1] < 0.25
    assert [float(dynamics.detach()), float(representation.detach())] == pytest.approx([0.2, 0.2], abs=0.1)


def test_masked_steps_count_in_no_divergence() -> None:
    rssm, mask = model(Normals(5)), torch.ones(2, 3, dtype=torch.float64)
    inputs = normal(2, 3, 6), normal(2, 3, 2, seed=1), torch.zeros(2, 3, dtype=torch.float64), normal(2, 3, 5, seed=2)
    mask[1, 1:] = 0
    before = rssm.divergences(rssm.observe(*inputs), mask, 0.0)[0]
    inputs[0][1, 1:] = 7.0
    assert float(rssm.divergences(rssm.observe(*inputs), mask, 0.0)[0]) == pytest.approx(float(before), rel=1e-12)


# -- heads -------------------------------------------------------------------------------------------------------


def test_numbers_begin_at_nothing_whatever_the_state() -> None:
    assert not Numbers(4, 8, 1)(torch.randn(3, 2, 4)).any()


def test_decoders_make_images_as_large_as_they_are() -> None:
    decoder = ImageDecoder(5, Array((3, 64, 64), "uint8"), 2)
    assert decoder(torch.randn(2, 5)).shape == (2, 3, 64, 64)
    grey = torch.full((1, 2, 3, 64, 64), 51, dtype=torch.uint8)
    for parameter in decoder.parameters():
        torch.nn.init.zeros_(parameter)
    expected = 3 * 64 * 64 * (0.5 - 0.2) ** 2
    assert decoder.loss(torch.zeros(1, 2, 5), grey).flatten().tolist() == pytest.approx([expected, expected], rel=1e-5)


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="images are 32 x 32, and the decoder makes 64 x 64"):
        ImageDecoder(5, Array((3, 32, 32), "uint8"), 2)


@KINDS
def test_what_it_predicts_15_steps_behind_the_last_observation_is_finite(random: Categories | Normals) -> None:
    """Also of weights that are larger than they begin, from states that were observed and by the largest actions."""
    torch.manual_seed(2)
    made = RecurrentModel({"observations": Array((3,))}, None, 2, random, 8, 8, 8, 1, blocks=2).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(3 * parameter + normal(*parameter.shape))
        first, seen = torch.zeros(4, 6).double(), 100 * normal(4, 6, 3)
        actions, noise = normal(4, 6, 2, seed=1).sign(), normal(4, 6, made.noise_dim, seed=2)
        states = made.rssm.observe(made.embed(seen), actions, first, noise).joint[:, -1]
        for step in range(15):
            drawn = StepNoise(normal=normal(4, made.noise_dim, seed=10 + step))
            outcome = made.step(states, normal(4, 2, seed=50 + step).sign(), drawn)
            assert not torch.equal(outcome.states, states)
            states = outcome.states
            expected = made.reconstruction(states[:, None], {"observations": seen[:, :1]}, torch.ones(4, 1).double())
            assert all(bool(value.isfinite().all()) for value in (states, outcome.rewards, expected))


def test_the_model_steps_as_planners_ask() -> None:
    made = RecurrentModel({"observations": Array((3,))}, None, 2, Categories(3, 4), 7, 8, 8, 1, blocks=7)
    states, actions = torch.zeros(4, made.state_dim), torch.zeros(6, 4, 2)
    outcome = made.step(states, actions, StepNoise(normal=torch.randn(6, 4, made.noise_dim)))
    assert outcome.states.shape == (6, 4, made.state_dim)
    assert outcome.rewards.shape == outcome.ended.shape == outcome.costs.shape == (6, 4)
    again = [made.step(states, actions[0], StepNoise()).states for _ in range(2)]
    assert torch.equal(*again)
