"""Probabilistic ensembles: closed forms, units, sampling by gather, and the native arithmetic."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.nn.native import kernels, native
from surefoot.core.nn.networks import MLP
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.ensemble.gaussian import (
    Prediction,
    gaussian_loss,
    mixture,
    soft_clamp,
    squared_error,
    weighted_mean,
)
from surefoot.world_models.ensemble.renormalise import renormalised
from surefoot.world_models.ensemble.uncertainty import (
    bellman_inconsistency,
    ensemble_std,
    ensemble_variance,
    largest_distance,
    max_aleatoric,
    pairwise_difference,
)


def model(**options: object) -> GaussianEnsemble:
    """Three states, two actions, five small members."""
    settings = {"members": 5, "elites": 3, "hidden": (16, 16), "decays": (1e-2, 1e-3, 1e-4), **options}
    return GaussianEnsemble(3, 2, **settings).double()  # type: ignore[arg-type]


def rows(*lead: int) -> dict[str, Tensor]:
    """Columns of random rows."""
    return {
        "observations": torch.randn(*lead, 3, dtype=torch.float64),
        "actions": torch.rand(*lead, 2, dtype=torch.float64) * 2 - 1,
        "next_observations": torch.randn(*lead, 3, dtype=torch.float64),
        "rewards": torch.randn(*lead, dtype=torch.float64),
        "costs": torch.rand(*lead, dtype=torch.float64),
    }


def test_the_soft_clamp_has_the_values_that_were_worked_out_and_a_gradient_everywhere() -> None:
    raw = torch.tensor([0.0, 5.0, -20.0], dtype=torch.float64, requires_grad=True)
    found = soft_clamp(raw, -10.0, 0.5)
    assert found.tolist() == pytest.approx([-0.4740041, 0.4889801, -9.9999546], abs=1e-7)
    assert bool((torch.autograd.grad(found.sum(), raw)[0] > 0).all())


def test_the_gaussian_loss_of_two_numbers_worked_out_by_hand() -> None:
    prediction = Prediction(torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[0.0, math.log(4)]]]))
    assert gaussian_loss(prediction, torch.tensor([[1.0, 3.0]])).item() == pytest.approx(1.6931472)
    assert squared_error(prediction, torch.tensor([[1.0, 3.0]])).item() == pytest.approx(2.5)


def test_weights_count_rows_in_proportion() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert weighted_mean(values, torch.tensor([3.0, 1.0])).tolist() == [1.25, 3.5]
    assert weighted_mean(values, torch.tensor([[3.0, 1.0], [1.0, 1.0]])).tolist() == [1.25, 4.0]
    assert weighted_mean(values, None).tolist() == [1.5, 4.0]


def test_uncertainties_have_the_values_that_were_worked_out() -> None:
    stds = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    means = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert max_aleatoric(stds).item() == pytest.approx(3.1622777)
    assert pairwise_difference(means).item() == pytest.approx(1.0)
    assert largest_distance(means).item() == pytest.approx(2.0)
    assert ensemble_std(means).item() == pytest.approx(0.7071068)
    assert ensemble_variance(means, stds).item() == pytest.approx(math.sqrt(5 + 1 + 2.5))
    values = torch.tensor([[1.0, 3.0], [4.0, 8.0]])  # two members, two sampled states each
    assert bellman_inconsistency(values).item() == pytest.approx(math.sqrt(8))
    assert bellman_inconsistency(values, correction=0).item() == pytest.approx(2.0)


def test_the_largest_distance_is_the_brute_force_one() -> None:
    means = torch.randn(6, 11, 3)
    every = [[(a - b).norm(dim=-1) for b in means] for a in means]
    assert torch.allclose(largest_distance(means), torch.stack([torch.stack(row) for row in every]).amax((0, 1)))


def test_the_loss_is_the_sum_over_members_with_decay_and_bounds() -> None:
    ensemble, batch = model(costs=True), rows(8)
    ensemble.fit_statistics(batch)
    loss, _ = ensemble.loss(batch)
    expected = torch.zeros((), dtype=torch.float64)
    wanted = torch.cat(
        [batch["next_observations"] - batch["observations"], batch["rewards"][:, None], batch["costs"][:, None]], -1
    )
    pairs = torch.cat([batch["observations"], batch["actions"]], -1)
    inputs = (pairs - pairs.mean(0)) / pairs.std(0, correction=0)
    for e in range(5):
        value = inputs
        for layer in range(3):
            weight, bias = ensemble.network.weights[layer][e], ensemble.network.biases[layer][e]
            expected = expected + (1e-2, 1e-3, 1e-4)[layer] / 2 * (weight**2).sum()
            value = value @ weight.T + bias
            value = value * torch.sigmoid(value) if layer < 2 else value
        mean, raw = value[:, :5], value[:, 5:]
        upper = 0.5 - torch.log1p(torch.exp(0.5 - raw))
        variance = torch.exp(-10 + torch.log1p(torch.exp(upper + 10)))
        expected = expected + ((mean - wanted) ** 2 / variance + variance.log()).mean()
    assert loss.item() == pytest.approx((expected + 0.01 * 5 * 10.5).item(), rel=1e-12)


def test_rows_of_their_own_train_each_member_on_its_own() -> None:
    ensemble, batch = model(decays=()), rows(8, 5)
    loss, _ = ensemble.loss(batch)
    each = [ensemble.loss({k: v[:, e] for k, v in batch.items()}, None) for e in range(5)]
    prediction, targets = ensemble.of_batch(batch)
    assert prediction.mean.shape == targets.shape == (5, 8, 4)
    for e in range(5):
        alone, own = ensemble.of_batch({k: v[:, e] for k, v in batch.items()})
        assert torch.allclose(prediction.mean[e], alone.mean[e])
        assert torch.allclose(targets[e], own)
    assert loss.item() != pytest.approx(each[0][0].item())


def test_normalised_targets_have_an_exact_inverse() -> None:
    batch = rows(200)
    batch["rewards"] = 1e4 + 30 * batch["rewards"]
    ensemble = model(normalize_targets=True)
    ensemble.fit_statistics(batch)
    wanted = ensemble.targets(batch)
    assert torch.allclose(wanted.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(wanted.std(0, correction=0), torch.ones(4, dtype=torch.float64))
    back = ensemble.in_units(Prediction(wanted, torch.zeros_like(wanted)))
    assert torch.allclose(back.mean, ensemble.raw_targets(batch), rtol=1e-12)
    assert torch.allclose(back.std[0], ensemble.target_scale)
    # the density of a row is that of the normalised one over the scales
    prediction, targets = ensemble.of_batch(batch)
    raw, units = ensemble.raw_targets(batch), ensemble.in_units(prediction)
    normal = torch.distributions.Normal
    inside = normal(prediction.mean, prediction.std).log_prob(targets) - ensemble.target_scale.log()
    assert torch.allclose(inside, normal(units.mean, units.std).log_prob(raw))


def test_constant_features_give_no_nan() -> None:
    batch = {name: value.float() for name, value in rows(64).items()}
    batch["observations"][:, 0] = 1e6 + 0.1
    batch["next_observations"][:, 0] = 1e6 + 0.1
    batch["actions"][:] = 0.0
    batch["rewards"][:] = -3.3
    ensemble = model(normalize_targets=True).float()
    ensemble.fit_statistics(batch)
    assert ensemble.input_scale[[0, 3, 4]].tolist() == [1, 1, 1]
    loss, _ = ensemble.loss(batch)
    gradients = torch.autograd.grad(loss, list(ensemble.parameters()))
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert bool(ensemble.holdout_errors(batch).isfinite().all())
    moved = ensemble.step(batch["observations"], batch["actions"], StepNoise(normal=torch.randn(64, 4)))
    assert all(bool(part.isfinite().all()) for part in moved)


def test_statistics_of_rows_that_are_not_finite_are_refused() -> None:
    batch = rows(5)
    batch["actions"][2, 1] = math.nan
    with pytest.raises(DataError, match="not all finite"):
        model().fit_statistics(batch)


def test_one_member_a_row_by_counting_equals_all_members_and_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, batch = model(), rows(4, 6)
    member = torch.randint(0, 5, (4, 6))
    every = ensemble.predict_all(batch["observations"], batch["actions"])
    chosen = ensemble.predict(batch["observations"], batch["actions"], member)
    index = member[None, ..., None].expand(1, 4, 6, 4)
    assert torch.allclose(chosen.mean, every.mean.gather(0, index)[0])
    assert torch.allclose(chosen.log_variance, every.log_variance.gather(0, index)[0])
    monkeypatch.setattr("surefoot.world_models.ensemble.gaussian.countable", lambda *tensors: False)
    again = ensemble.predict(batch["observations"], batch["actions"], member)
    assert torch.allclose(chosen.mean, again.mean, rtol=1e-12)


def test_members_may_differ_by_row_under_vmap_too() -> None:
    ensemble, batch = model(), rows(3, 6)
    member = torch.randint(0, 5, (3, 6))
    each = torch.vmap(lambda s, a, m: ensemble.predict(s, a, m).mean)(batch["observations"], batch["actions"], member)
    assert torch.allclose(each, ensemble.predict(batch["observations"], batch["actions"], member).mean)


def test_futures_by_rows_are_stepped_at_once_from_shared_states() -> None:
    ensemble, batch = model(), rows(6)
    member = torch.tensor([[0], [3], [4]])  # a member for each future: TSinf
    normal = torch.randn(1, 6, 4, dtype=torch.float64)  # common random numbers
    together = ensemble.step(batch["observations"], batch["actions"], StepNoise(member, normal))
    assert together.states.shape == (3, 6, 3)
    for future, e in enumerate((0, 3, 4)):
        for row in range(6):
            one = ensemble.predict(batch["observations"][row], batch["actions"][row], torch.tensor(e))
            values = one.mean + one.std * normal[0, row]
            assert torch.allclose(together.states[future, row], batch["observations"][row] + values[:3])
            assert torch.allclose(together.rewards[future, row], values[3])


def test_without_a_member_the_elites_are_asked_and_no_other() -> None:
    ensemble, batch = model(), rows(7)
    ensemble.elites.copy_(torch.tensor([4, 0, 2]))
    found = ensemble.step(batch["observations"], batch["actions"], StepNoise())
    every = ensemble.predict_all(batch["observations"], batch["actions"])
    assert torch.allclose(found.rewards, every.mean[[4, 0, 2], :, 3].mean(0))
    both = mixture(Prediction(every.mean[[4, 0, 2]], every.log_variance[[4, 0, 2]]))
    sampled = ensemble.step(batch["observations"], batch["actions"], StepNoise(normal=torch.ones(7, 4).double()))
    assert torch.allclose(sampled.rewards, (both.mean + both.std)[:, 3])


def test_a_mixture_has_the_moments_of_its_samples() -> None:
    parts = Prediction(torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [math.log(4)]]))
    both = mixture(parts)
    assert both.mean.item() == 1.0
    assert both.std.item() ** 2 == pytest.approx(2.5 + 1)


def test_elites_are_drawn_equally_often() -> None:
    ensemble = model()
    ensemble.elites.copy_(torch.tensor([4, 1, 3]))
    drawn = ensemble.draw_elites((torch.arange(999) + 0.5) / 999)
    assert torch.bincount(drawn, minlength=5).tolist() == [0, 333, 0, 333, 333]
    assert ensemble.draw_elites(torch.tensor(1 - 1e-9, dtype=torch.float32)).item() == 3


def test_episodes_end_where_the_given_function_says() -> None:
    ensemble, batch = model(terminates=lambda following: following[..., 0] > 0), rows(50)
    found = ensemble.step(batch["observations"], batch["actions"], StepNoise())
    assert torch.equal(found.ended, found.states[:, 0] > 0)
    assert 0 < found.ended.sum() < 50
    assert not model().step(batch["observations"], batch["actions"], StepNoise()).ended.any()


def test_costs_are_predicted_where_asked_and_zero_elsewhere() -> None:
    batch = rows(5)
    with_costs, noise = model(costs=True), StepNoise(torch.tensor(1))
    found = with_costs.step(batch["observations"], batch["actions"], noise)
    assert torch.equal(
        found.costs, with_costs.predict(batch["observations"], batch["actions"], noise.member).mean[:, 4]
    )
    assert not model().step(batch["observations"], batch["actions"], noise).costs.any()


def test_fixed_bounds_are_not_parameters() -> None:
    free, fixed = ({name for name, _ in model(learned_bounds=b).named_parameters()} for b in (True, False))
    assert free - fixed == {"max_log_variance", "min_log_variance"}


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="elites is 6 of 5"):
        model(elites=6)
    with pytest.raises(ConfigError, match=r"2 decays \(option model_decays\) for 3 layers"):
        model(decays=(0.1, 0.1))


def test_weights_begin_within_two_deviations() -> None:
    ensemble = GaussianEnsemble(17, 6)
    for weight, bias in zip(ensemble.network.weights, ensemble.network.biases, strict=True):
        std = 1 / (2 * math.sqrt(weight.shape[-1]))
        assert weight.abs().max().item() <= 2 * std
        assert weight.std().item() == pytest.approx(0.88 * std, rel=0.03)  # of a normal cut at two deviations
        assert not bias.any()


@pytest.mark.skipif(native.library() is None, reason="the native module is not built")
@pytest.mark.parametrize(("layer_norm", "hidden"), [(False, (40, 33)), (True, (40, 33)), ("after", (20,))])
def test_rows_of_their_own_through_the_native_kernel_equal_plain_pytorch(layer_norm: bool, hidden: tuple[int]) -> None:
    network = MLP(7, 5, hidden, members=4, activation="silu", layer_norm=layer_norm)
    table = torch.randn(50, 4, 7, requires_grad=True)
    inputs, output = table.transpose(0, 1), torch.randn(4, 50, 5)
    sources = [table, *network.parameters()]
    found, plain = [], []
    for into, slots in ((found, kernels.Slots()), (plain, None)):
        with kernels.use(slots):
            value = network(inputs)
            into += [value, *torch.autograd.grad((value * output).sum(), sources)]
            with torch.no_grad():
                into.append(network(inputs))
    for a, b in zip(found, plain, strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, rtol=2e-4, atol=2e-5 * b.detach().abs().max().item())
    slots = kernels.Slots()
    places = {p.data_ptr(): torch.full_like(p, math.nan) for p in network.parameters()}
    slots.gradients = dict(places)
    with kernels.use(slots):
        gradients = torch.autograd.grad((network(inputs) * output).sum(), list(network.parameters()))
    for gradient, place, expected in zip(gradients, places.values(), found[2:-1], strict=True):
        assert gradient.data_ptr() == place.data_ptr()
        assert torch.equal(gradient, expected)


@pytest.mark.skipif(native.library() is None, reason="the native module is not built")
def test_weight_decay_in_place_has_the_gradients_of_plain_pytorch() -> None:
    ensemble = model(decays=(0.3, 0.0, 0.1)).float()
    batch = {name: value.float() for name, value in rows(9, 5).items()}
    found = []
    for slots in (kernels.Slots(), None):
        with kernels.use(slots):
            loss, _ = ensemble.loss(batch)
            found.append([loss, *torch.autograd.grad(loss, list(ensemble.parameters()))])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("normalised", [True, False])
def test_new_statistics_of_a_trained_model_leave_what_it_predicts(learned: bool, normalised: bool) -> None:
    torch.manual_seed(0)
    made = model(learned_bounds=learned, normalize_targets=normalised)
    states, actions = torch.randn(7, 3, dtype=torch.float64), torch.rand(7, 2, dtype=torch.float64)
    before = made.predict_all(states, actions)
    given = {"input_mean": torch.randn(5), "input_scale": 1 + torch.rand(5)}
    if normalised:
        given |= {"target_mean": 30 * torch.randn(4), "target_scale": 30 * torch.rand(4)}
    fresh = renormalised(made, {f"model.{name}": value.double() for name, value in given.items()})
    alone = made.state_dict() | {f"{name}": value.double() for name, value in given.items()}
    made.load_state_dict(alone)
    assert not torch.allclose(made.predict_all(states, actions).mean, before.mean, rtol=0.1), "by statistics alone"
    made.load_state_dict(alone | {name.removeprefix("model."): value for name, value in fresh.items()})
    after = made.predict_all(states, actions)
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after.log_variance, before.log_variance, rtol=1e-9, atol=1e-9)
