"""Learning an ensemble: its rows, one step against a second implementation, snapshots, stopping, resuming, seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from small_models import learner, linear
from torch import Tensor

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import Spec
from surefoot.core.engine.agent import Adam, Agent, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.nn.native import kernels
from surefoot.model_based.dynamics import LearnedDynamics
from surefoot.world_models.calibration import one_step
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.ensemble.gaussian import DECAYS
from surefoot.world_models.ensemble.learning import (
    HOLDOUT,
    MODEL,
    BestSoFar,
    EnsembleConfig,
    ensemble_of,
    learn_model,
    split_rows,
    temperatures,
)


def test_default_decays_fit_the_depth_and_given_ones_are_refused() -> None:
    spec, options = Spec(3, 1, (-1.0,), (1.0,)), {"model_members": 2, "model_elites": 1, "termination": "none"}
    found = [ensemble_of(spec, EnsembleConfig(model_hidden=(8,) * n, **options)).decays for n in (4, 2, 1, 5)]
    assert found[:3] == [DECAYS, (2.5e-5, 7.5e-5, 1e-4), (2.5e-5, 1e-4)]
    assert found[3] == (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 7.5e-5, 1e-4)
    with pytest.raises(ConfigError, match=r"2 decays \(option model_decays\) for 3 layers"):
        ensemble_of(spec, EnsembleConfig(model_hidden=(8, 8), model_decays=(1e-4, 1e-4), **options))


def test_rows_are_split_alike_for_all_seeds_and_the_holdout_is_capped() -> None:
    train, held = split_rows(1000, 0.2, 5000)
    assert (len(train), len(held)) == (800, 200)
    assert sorted([*train, *held]) == list(range(1000))
    assert len(split_rows(100_000, 0.2, 1000)[1]) == 1000
    assert [len(part) for part in split_rows(2, 0.2, 1000)] == [1, 1]
    with pytest.raises(DataError, match="there are 1"):
        split_rows(1, 0.2, 1000)


def test_each_member_has_a_sample_of_its_own_that_holds_no_row_of_the_holdout() -> None:
    found = learner((4, 9))
    rows = torch.stack([found.sources[MODEL].rows(step) for step in range(300)])
    assert rows.shape == (300, 2, 16, 3)
    train, held = split_rows(400, 0.2, 1000)
    seen = [[set(rows[:, s, :, e].flatten().tolist()) for e in range(3)] for s in range(2)]
    for of_seed in seen:
        for own in of_seed:
            assert own <= set(train.tolist())
            assert len(own) == pytest.approx(0.632 * 320, rel=0.12)  # distinct rows of a bootstrap sample
        assert of_seed[0] != of_seed[1]
    assert seen[0][0] != seen[1][0]
    alone = learner((9,))
    assert torch.equal(alone.sources[MODEL].rows(37)[0], found.sources[MODEL].rows(37)[1])
    assert set(found.sources[HOLDOUT].rows(5)[1].tolist()) == set(held.tolist())


class SecondEnsemble:
    """Three members trained one by one, with gradients worked out by hand and Adam as its paper has it."""

    def __init__(self, agent: Agent) -> None:
        named = {n: p.detach().double().numpy().copy() for n, p in agent.model.named_parameters()}  # type: ignore[union-attr]
        self.low, self.high = named.pop("min_log_variance"), named.pop("max_log_variance")
        self.layers = [(named[f"network.weights.{i}"], named[f"network.biases.{i}"]) for i in range(3)]
        self.moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.count = 0

    def adam(self, name: str, value: np.ndarray, gradient: np.ndarray) -> None:
        first, second = self.moments.setdefault(name, (np.zeros_like(value), np.zeros_like(value)))
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient**2 - second)
        value -= 1e-3 * (first / (1 - 0.9**self.count)) / (np.sqrt(second / (1 - 0.999**self.count)) + 1e-8)

    def step(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """One step on (E, B, ...) rows; the loss before it."""

        def sigmoid(x: np.ndarray) -> np.ndarray:
            return 1 / (1 + np.exp(-x))

        self.count += 1
        total, to_low, to_high = 0.0, np.full_like(self.low, -0.01), np.full_like(self.high, 0.01)
        total += 0.01 * (self.high - self.low).sum()
        gradients = [(np.zeros_like(w), np.zeros_like(b)) for w, b in self.layers]
        for e in range(3):
            values, before = [inputs[e]], []
            for i, (weight, bias) in enumerate(self.layers):
                before.append(values[-1] @ weight[e].T + bias[e])
                values.append(before[-1] * sigmoid(before[-1]) if i < 2 else before[-1])
            mean, raw = np.split(values[-1], 2, 1)
            upper = self.high - np.log1p(np.exp(self.high - raw))
            log_variance = self.low + np.log1p(np.exp(upper - self.low))
            error = mean - targets[e]
            total += (error**2 * np.exp(-log_variance) + log_variance).mean()
            size = error.size
            to_log = (1 - error**2 * np.exp(-log_variance)) / size
            to_upper = to_log * sigmoid(upper - self.low)
            to_low += (to_log * (1 - sigmoid(upper - self.low))).sum(0)
            to_high += (to_upper * (1 - sigmoid(self.high - raw))).sum(0)
            below = np.concatenate([2 * error * np.exp(-log_variance) / size, to_upper * sigmoid(self.high - raw)], 1)
            for i in (2, 1, 0):
                if i < 2:
                    s = sigmoid(before[i])
                    below = below * (s + before[i] * s * (1 - s))
                gradients[i][0][e] = below.T @ values[i] + (1e-3, 2e-3, 3e-3)[i] * self.layers[i][0][e]
                gradients[i][1][e] = below.sum(0)
                total += 0.5 * (1e-3, 2e-3, 3e-3)[i] * (self.layers[i][0][e] ** 2).sum()
                below = below @ self.layers[i][0][e]
        for i, ((weight, bias), (to_weight, to_bias)) in enumerate(zip(self.layers, gradients, strict=True)):
            self.adam(f"w{i}", weight, to_weight)
            self.adam(f"b{i}", bias, to_bias)
        self.adam("low", self.low, to_low)
        self.adam("high", self.high, to_high)
        return float(total)


def test_training_equals_a_second_implementation_in_float64() -> None:
    found = learner(dtype=torch.float64)
    second = SecondEnsemble(found.agent)
    model = found.agent.model
    for step in range(6):
        batch = found.sources[MODEL].gather(found.sources[MODEL].rows(step)[0])
        pairs = torch.cat([batch["observations"], batch["actions"]], -1)
        inputs = ((pairs - model.input_mean) / model.input_scale).transpose(0, 1).numpy()
        change = batch["next_observations"] - batch["observations"]
        targets = torch.cat([change, batch["rewards"][..., None]], -1).transpose(0, 1).numpy()
        expected = second.step(inputs, targets)
        assert found.run(1)["model_loss"][0] == pytest.approx(expected, rel=1e-12)
    for i, (weight, bias) in enumerate(second.layers):
        assert np.allclose(model.network.weights[i].detach().numpy(), weight, rtol=1e-10, atol=1e-13)
        assert np.allclose(model.network.biases[i].detach().numpy(), bias, rtol=1e-10, atol=1e-13)
    assert np.allclose(model.max_log_variance.detach().numpy(), second.high, rtol=1e-12)
    assert np.allclose(model.min_log_variance.detach().numpy(), second.low, rtol=1e-12)


def snapshot(errors: list[float], before: list[float], stale: int = 0) -> tuple[dict[str, Tensor], BestSoFar]:
    """What one measurement changes, of three members whose weights are all 1 and whose snapshots are all 0."""
    model = learner().agent.model
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.fill_(1.0)
    best = BestSoFar(model)
    with torch.no_grad():
        for parameter in best.network.parameters():
            parameter.zero_()
    best.errors.copy_(torch.tensor(before))
    best.stale.fill_(stale)
    return best.measured(model, torch.tensor(errors), 0.01, 5), best  # type: ignore[arg-type]


def test_members_are_kept_that_improved_by_more_than_a_hundredth() -> None:
    changed, _ = snapshot([0.98, 0.995, math.nan], [1.0, 1.0, 1.0], stale=3)
    assert changed["errors"].tolist() == pytest.approx([0.98, 1.0, 1.0])
    assert [bool(w.all()) for w in changed["network.weights.1"]] == [True, False, False]
    assert (int(changed["stale"]), bool(changed["stopped"]), int(changed["epochs"])) == (0, False, 1)


def test_an_improvement_of_a_negative_error_is_one() -> None:
    changed, _ = snapshot([-1.2, -0.9, -1.001], [-1.0, -1.0, -1.0])
    assert changed["errors"].tolist() == pytest.approx([-1.2, -1.0, -1.0])


def test_five_epochs_without_an_improvement_stop_the_training() -> None:
    for stale, stopped in ((3, False), (4, True)):
        changed, _ = snapshot([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], stale)
        assert bool(changed["stopped"]) is stopped


def test_once_stopped_nothing_is_kept_any_more() -> None:
    _, best = snapshot([1.0], [1.0])
    best.stopped.fill_(True)
    changed = best.measured(learner().agent.model, torch.zeros(3), 0.01, 5)
    assert not torch.equal(changed["errors"], torch.zeros(3))
    assert not changed["network.weights.0"].any()


def stopped_run(**options: Any) -> Learner:
    """A run whose model has stopped improving long before its last step."""
    found = learner(model_patience=2, model_learning_rate=3e-2, planned_steps=800, **options)
    found.run(800)
    return found


def test_training_stops_restores_what_was_best_to_the_bit_and_sorts_the_elites() -> None:
    found = stopped_run(kernels=True)
    agent, best = found.agent, found.agent.model_best
    assert bool(best.stopped)
    assert int(best.epochs) < 80
    batch = found.sources[HOLDOUT].gather(found.sources[HOLDOUT].rows(0)[0])
    with kernels.use(found.slots):
        errors = agent.model.holdout_errors(batch)
    assert torch.equal(errors, best.errors)
    assert agent.model.elites.tolist() == errors.argsort()[:2].tolist()
    assert all(
        torch.equal(p, dict(best.network.named_parameters())[n]) for n, p in agent.model.network.named_parameters()
    )
    before = {name: value.clone() for name, value in found.state(0).items()}
    found.run(50)
    assert all(torch.equal(value, before[name]) for name, value in found.state(0).items())


def test_the_model_is_restored_at_the_last_step_even_if_it_still_improves() -> None:
    found = learner(planned_steps=25)
    found.run(24)
    live = {n: p.clone() for n, p in found.agent.model.network.named_parameters()}
    kept = dict(found.agent.model_best.network.named_parameters())
    assert any(not torch.equal(live[n], kept[n]) for n in live)
    found.run(1)
    now = dict(found.agent.model.network.named_parameters())
    assert all(torch.equal(now[n], kept[n]) for n in now)
    assert bool(found.agent.model_best.stopped)


def test_a_run_that_was_stopped_goes_on_to_the_bit() -> None:
    whole = learner(planned_steps=300, model_patience=2, model_learning_rate=1e-2, kernels=True)
    whole.run(300)
    for cut in (7, 60, 299):
        first = learner(planned_steps=300, model_patience=2, model_learning_rate=1e-2, kernels=True)
        first.run(cut)
        kept = {name: value.clone() for name, value in first.state(0).items()}
        second = learner(planned_steps=300, model_patience=2, model_learning_rate=1e-2, kernels=True)
        second.restore([kept], cut)
        second.run(300 - cut)
        assert all(torch.equal(value, second.state(0)[name]) for name, value in whole.state(0).items()), cut


def test_stacked_seeds_equal_each_alone_in_float64_also_after_some_have_stopped() -> None:
    options: dict[str, Any] = {
        "planned_steps": 400,
        "model_patience": 1,
        "model_learning_rate": 2e-2,
        "dtype": torch.float64,
    }
    together = learner((0, 1, 5), **options)
    together.run(400)
    epochs = together.buffers["model_best.epochs"].tolist()
    assert len(set(epochs)) > 1  # they stopped at different times
    for position, seed in enumerate((0, 1, 5)):
        alone = learner((seed,), **options)
        alone.run(400)
        for name, value in alone.agents_parameters(0).items():
            if "log_variance" not in name and "temperature" not in name:  # bounds are those of the last training step
                assert torch.allclose(together.agents_parameters(position)[name].double(), value.double(), rtol=1e-9), (
                    name
                )


class WithPhases(LearnedDynamics):
    """A model for 20 steps, and afterwards something that reads it."""

    name = "test_phases"

    def build(self) -> None:
        super().build()
        self.reader = torch.nn.Linear(1, 1)

    def reads_the_model(self, batch: dict[str, Tensor], noise: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.reader(torch.ones(1)).square().sum(), {"elite": self.model.elites[0].float()}

    def updates(self) -> list[Any]:
        return [*learn_model(self, until=20), Update(self.reads_the_model, ("reader",), Adam(), MODEL, after=20)]


def test_the_model_is_settled_before_what_comes_after_it() -> None:
    found = learner(kind=WithPhases, planned_steps=40)
    found.run(20)
    kept = dict(found.agent.model_best.network.named_parameters())
    settled = {n: p.clone() for n, p in found.agent.model.network.named_parameters()}
    assert all(torch.equal(settled[n], kept[n]) for n in settled)
    found.run(20)
    assert all(torch.equal(p, settled[n]) for n, p in found.agent.model.network.named_parameters())


def test_linear_gaussian_data_are_learned_to_their_noise() -> None:
    data = linear(10_000, states=3)
    options = {"model_hidden": (64, 64), "model_decays": (), "model_rows": 128, "model_judged_by": "likelihood"}
    found = learner(data=data, kernels=True, planned_steps=4_000, model_epoch=0, model_patience=9, **options)
    found.run(4_000)
    model, fresh = found.agent.model, linear(4_000, states=3, seed=5)
    batch = {
        n: torch.from_numpy(getattr(fresh, n)) for n in ("observations", "actions", "next_observations", "rewards")
    }
    with torch.no_grad():
        assert bool((model.holdout_errors(batch) <= 0.0115).all())
        every = model.predict_all(batch["observations"], batch["actions"])
        for e in range(3):
            assert every.std[e].mean().item() == pytest.approx(0.1, rel=0.05)
            score = ((model.raw_targets(batch) - every.mean[e]) / every.std[e]).abs()
            assert 0.88 < (score < 1.6449).float().mean().item() < 0.92
        spread = []
        direction = torch.nn.functional.normalize(torch.randn(200, 3), dim=-1)
        for distance in (0.0, 4.0, 8.0, 16.0):
            means = model.predict_all(distance * direction, torch.zeros(200, 1)).mean
            spread.append(means.std(0).norm(dim=-1).mean().item())
        assert spread == sorted(spread)


def test_noise_that_varies_is_learned() -> None:
    source = np.random.default_rng(3)
    data = linear(6_000, states=1)
    x = source.uniform(-2, 2, (6_000, 1)).astype(np.float32)
    noise = (0.05 + 0.2 * np.abs(x)) * source.normal(size=x.shape)
    data = data.replace(observations=x, next_observations=(x + noise).astype(np.float32))
    options = {"model_hidden": (48, 48), "model_decays": (), "model_rows": 128, "model_judged_by": "likelihood"}
    found = learner(data=data, kernels=True, model_learning_rate=3e-3, planned_steps=1_500, model_epoch=0, **options)
    found.run(1_500)
    grid = torch.linspace(-2, 2, 101)[:, None]
    with torch.no_grad():
        std = found.agent.model.predict(grid, torch.zeros(101, 1)).std[:, 0]
    assert np.corrcoef(std.numpy(), 0.05 + 0.2 * grid.abs()[:, 0].numpy())[0, 1] > 0.95


def test_an_update_is_switched_off_by_a_buffer_that_is_there_and_without_a_schedule() -> None:
    class Wrong(LearnedDynamics):
        name = "test_wrong"

        def updates(self) -> list[Any]:
            update, *rules = super().updates()
            return [Update(update.loss, ("model",), self.adam, MODEL, unless=self.switch), *rules]  # type: ignore[union-attr]

    Wrong.adam, Wrong.switch = Adam(), "model_best.errors"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no \\(\\) bool buffer"):
        learner(kind=Wrong)
    Wrong.adam, Wrong.switch = Adam(schedule="cosine"), "model_best.stopped"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="schedule"):
        learner(kind=Wrong)


def test_temperatures_are_those_that_the_held_out_rows_like_best() -> None:
    torch.manual_seed(0)
    model = GaussianEnsemble(2, 1, members=3, elites=1, hidden=(8,), decays=(), costs=False)
    batch = {name: torch.randn(4000, width) for name, width in (("observations", 2), ("actions", 1))}
    prediction = model(model.inputs(batch["observations"], batch["actions"]))
    mean, std = prediction.mean[2], prediction.std[2]
    wide = torch.tensor([0.3, 1.0, 2.0])  # the truth's deviations, in units of the predicted ones
    targets = mean + wide * std * torch.randn_like(mean)
    batch |= {"next_observations": batch["observations"] + targets[:, :2], "rewards": targets[:, 2]}
    found = temperatures(model, {"model.elites": torch.tensor([2])}, batch)
    torch.testing.assert_close(found, wide.square(), rtol=0.1, atol=0)  # of one member: the mean of z squared
    with torch.no_grad():
        model.elites.fill_(2)
        before = one_step(model, batch)["mixture"]
        model.temperature.copy_(found)
        after = one_step(model, batch)["mixture"]
    assert after["nll"] < before["nll"] - 0.1
    assert after["coverage_50"] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("recalibrated", [False, True])
def test_a_model_is_recalibrated_at_its_end_where_that_is_wanted(recalibrated: bool) -> None:
    trained = learner(model_recalibrated=recalibrated, planned_steps=12)
    trained.run(12)
    agent = trained.extract(0)
    assert bool((agent.model.temperature != 1).any()) == recalibrated
