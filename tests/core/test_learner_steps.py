"""How networks are stepped: schedules of rates, clipping, decay, shares, targets that follow at once or lag."""

from __future__ import annotations

import math

import pytest
import torch
from learner_rows import EXACT, Y, drawn_rows, values
from toy_agents import ADAM, SPEC, HandAdam, Toy, learner, toy

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import Noise
from surefoot.core.base.rates import LaProp
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.optimizer import Network, Optimizer, clip_per_seed, clip_per_tensor
from surefoot.core.engine.sources import Uniform


def test_then_moves_a_target_by_its_rate_after_each_step_of_its_update() -> None:
    def plan(s: Toy) -> list[Update]:
        return [Update(s.a_loss, ("a",), ADAM, every=2, target_updates={"target": ("a", 0.25)})]

    trained = learner([toy(plan)], Y)
    trained.run(1)
    assert values(trained)["target"] == 6.0
    trained.run(1)
    assert values(trained)["target"] == pytest.approx(6 + 0.25 * (1.1 - 6), **EXACT)


def test_the_cosine_schedule_falls_to_zero_over_the_planned_steps() -> None:
    cosine = Adam(0.1, schedule="cosine")
    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), cosine)])], Y, planned_steps=4)
    hand = HandAdam(1.0)
    rates = [0.1, 0.1 * (2 + math.sqrt(2)) / 4, 0.05, 0.1 * (2 - math.sqrt(2)) / 4, 0.0, 0.0]
    for rate in rates:
        assert trained.optimizers[0].learning_rate() == pytest.approx(rate, abs=1e-12)
        trained.run(1)
        assert values(trained)["a"] == pytest.approx(hand.step(2 * (hand.value - 3), rate), **EXACT)


def test_the_cosine_schedule_counts_the_updates_own_steps() -> None:
    cosine = Adam(0.1, schedule="cosine")
    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), cosine, every=2)])], Y, planned_steps=8)
    trained.run(4)
    assert trained.optimizers[0].taken == 2
    assert trained.optimizers[0].learning_rate() == pytest.approx(0.05)


def test_a_rate_with_restarts_rises_and_falls_along_a_cosine_in_each_cycle() -> None:
    restarts = Adam(0.1, schedule="restarts", cycle=6, warm_up=2, lowest=0.02, stride=2)
    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), restarts)])], Y, planned_steps=100)
    shares = [0, 0.5, 1, (2 + math.sqrt(2)) / 4, 0.5, (2 - math.sqrt(2)) / 4]  # two of warm-up, four of the cosine
    for share in (shares[place // 2 % 6] for place in range(24)):  # two steps each, and a second cycle
        assert trained.optimizers[0].learning_rate() == pytest.approx(0.02 + 0.08 * share, abs=1e-12)
        trained.run(1)
    with pytest.raises(ConfigError, match="cycle is 2, must be above warm_up, 2"):
        Adam(0.1, schedule="restarts", cycle=2, warm_up=2)


def test_laprop_divides_before_its_momentum_and_clips_to_a_share_of_the_parameter() -> None:
    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), LaProp(0.1, clip=0.3, epsilon=0.5))])], Y)
    value, first, second = 1.0, 0.0, 0.0
    for count in range(1, 6):
        gradient = 2 * (value - 3)
        gradient *= min(1.0, 0.3 * abs(value) / abs(gradient))
        second = 0.999 * second + 0.001 * gradient**2
        first = 0.9 * first + 0.1 * gradient / (math.sqrt(second / (1 - 0.999**count)) + 0.5)
        value -= 0.1 * first / (1 - 0.9**count)
        trained.run(1)
        assert values(trained)["a"] == pytest.approx(value, **EXACT)


def test_laprop_moves_the_seeds_that_are_active_and_no_other() -> None:
    networks = [Network({"w": torch.full((2, 3), 2.0)})]
    optimizer = Optimizer(LaProp(0.1, clip=None), networks, 1)
    optimizer.by_seed()
    optimizer.active = torch.tensor([True, False])
    networks[0].gradient.fill_(5.0)
    optimizer.step()
    assert networks[0].value.tolist() == [[pytest.approx(1.9)] * 3, [2.0] * 3]
    assert [int(optimizer.count(0, seed)) for seed in (0, 1)] == [1, 0]
    assert not optimizer.second[0][1].any()


def test_each_tensor_is_clipped_to_a_share_of_its_own_norm() -> None:
    large = torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]])
    network = Network({"large": large, "small": torch.ones(2, 1), "number": torch.full((2,), 2.0)})
    network.gradient.copy_(torch.tensor([[0.0, 10.0, 0.1, 9.0], [1.0, 0.0, 2.0, 0.5]]))
    clip_per_tensor(network, 0.3, 1e-3)
    wanted = torch.tensor([[0.0, 1.5, 0.1, 0.6], [3e-4, 0.0, 0.3, 0.5]])  # a parameter at 0 counts as 1e-3
    torch.testing.assert_close(network.gradient, wanted)


def test_weight_decay_is_decoupled() -> None:
    decaying = Adam(0.1, weight_decay=0.5)
    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), decaying)])], Y)
    trained.run(1)
    assert values(trained)["a"] == pytest.approx(1 - 0.1 * 0.5 * 1 + 0.1, abs=1e-6)


def test_clip_per_seed_equals_torchs_clipping_of_each_seed() -> None:
    gradients = [torch.randn(3, 5) * torch.tensor([[10.0], [0.01], [1.0]]), torch.randn(3, 2)]
    gradients[1][1] = 0
    expected = []
    for seed in range(3):
        parameters = [torch.nn.Parameter(torch.zeros(g.shape[1])) for g in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient[seed].clone()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        expected.append([p.grad for p in parameters])
    clip_per_seed(gradients, 0.5)
    for seed in range(3):
        for gradient, wanted in zip(gradients, expected[seed], strict=True):
            torch.testing.assert_close(gradient[seed], wanted)


def test_each_number_of_a_gradient_is_clipped_by_itself() -> None:
    """Of Adam without memory a step is rate g / (|g| + epsilon): at epsilon 1 and g cut at .5, .1 / 3."""
    clipped = Adam(0.1, betas=(0.0, 0.0), epsilon=1.0, max_gradient=0.5)
    plan = lambda s: [Update(s.steep_loss, ("a", "b"), clipped)]  # noqa: E731
    one = learner([toy(plan, start=20.0)], torch.zeros(4, dtype=torch.float64))
    before = [float(one.networks[name].value) for name in "ab"]
    one.run(1)
    for name, value in zip("ab", before, strict=True):
        assert float(one.networks[name].value) == pytest.approx(value - 0.1 * 0.5 / 1.5, rel=1e-9)


def test_gradients_are_clipped_over_all_networks_of_an_update_and_per_seed() -> None:
    clipped = Adam(0.1, max_gradient_norm=1.0)
    plan = lambda s: [Update(s.steep_loss, ("a", "b"), clipped)]  # noqa: E731
    rows = torch.linspace(-3, 3, 64, dtype=torch.float64)
    starts = (0.5, 20.0)  # the second seed's gradients are a thousand times the first's
    agents = [toy(plan, start=start) for start in starts]
    kind = type(agents[0])
    agents[1] = kind(agents[0].spec, start=starts[1])
    stacked = learner(agents, rows, seeds=[0, 1])
    stacked.run(6)
    for position, start in enumerate(starts):
        drawn = drawn_rows([position], 64, 4)
        parameters = [torch.nn.Parameter(torch.tensor([s], dtype=torch.float64)) for s in (start, start + 1)]
        adam = torch.optim.Adam(parameters, lr=0.1)
        for step in range(6):
            y = rows[drawn.rows(step)[0]]
            adam.zero_grad()
            (((parameters[0] - y).abs() ** 3).mean() + 0.5 * parameters[1].square().sum()).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            adam.step()
        for name, parameter in zip("ab", parameters, strict=True):
            torch.testing.assert_close(stacked.networks[name].value[position], parameter.data, rtol=1e-9, atol=1e-9)


def test_a_lagging_target_follows_the_network_as_it_was_before_the_step() -> None:
    def plan(agent: Toy) -> list[Update]:
        return [Update(agent.a_loss, ("a",), ADAM, pre_step_targets={"target": ("a", 0.5)})]

    agent = toy(plan)
    trained = learner([agent], torch.zeros(8, dtype=torch.float64))
    assert agent.copies() == {"target": "a"}
    a, target = HandAdam(1.0), 6.0
    for _ in range(3):
        target += 0.5 * (a.value - target)
        a.step(2 * a.value)
        trained.run(1)
        assert trained.networks["target"].value.item() == pytest.approx(target, rel=1e-12)
        assert trained.networks["a"].value.item() == pytest.approx(a.value, rel=1e-9)


def test_updates_that_are_taken_together_lag_together() -> None:
    def plan(agent: Toy) -> list[Update]:
        lag = {"target": ("b", 0.25)}
        return [
            Update(agent.b_loss, ("b",), ADAM),
            Update(agent.a_loss, ("a",), ADAM, simultaneous=True, pre_step_targets=lag),
        ]

    trained = learner([toy(plan)], torch.zeros(8, dtype=torch.float64))
    trained.run(1)
    assert trained.networks["target"].value.item() == pytest.approx(6 + 0.25 * (2 - 6))  # b was 2 before its step


# -- rates of single networks, and buffers that follow what a loss sees ---------------------------------------------


def both(agent: Toy) -> list[Update]:
    """One update of two networks, the second at a third of the rate."""
    return [Update(agent.both_loss, ("a", "b"), ADAM, factors={"b": 1 / 3})]


@pytest.mark.parametrize("kernels", [False, True])
def test_a_network_can_have_a_share_of_the_learning_rate(kernels: bool) -> None:
    class Both(Toy):
        plan = both

        def both_loss(self, batch: Batch, noise: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Metrics]:
            return ((self.a.x - batch["y"]).square() + (self.b.x - batch["y"]).square()).mean(), {}

    batch = {"y": Y.float()}
    source = Uniform(lambda indices: batch, 8)
    trained = Learner([Both(SPEC)], [0], source, batch_size=8, kernels=kernels)
    hands = HandAdam(1.0), HandAdam(2.0)
    rate = ADAM.learning_rate
    for _ in range(4):
        trained.run(1)
        hands[0].step(2 * (hands[0].value - 3))
        before = hands[1].value
        hands[1].value = before + (hands[1].step(2 * (before - 3)) - before) / 3
        assert values(trained)["a"] == pytest.approx(hands[0].value, rel=1e-5)
        assert values(trained)["b"] == pytest.approx(hands[1].value, rel=1e-5)
    assert rate == ADAM.learning_rate


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
@pytest.mark.parametrize("kernels", [False, True])
def test_a_buffer_follows_a_metric_of_a_loss(seeds: list[int], kernels: bool) -> None:
    class Following(Toy):
        def build(self) -> None:
            super().build()
            self.register_buffer("seen_a", torch.zeros(()))

        plan = lambda self: [Update(self.a_loss, ("a",), ADAM, follows={"seen_a": ("a", 0.25)})]  # noqa: E731

    source = Uniform(lambda indices: {"y": Y.float().expand(*indices.shape[:-1], 8)}, 8)
    trained = Learner(
        [Following(SPEC) for _ in seeds], seeds, source, batch_size=8, kernels=kernels and len(seeds) == 1
    )
    hand, expected = HandAdam(1.0), 0.0
    for _ in range(3):
        expected += 0.25 * (hand.value - expected)
        hand.step(2 * (hand.value - 3))
        trained.run(1)
        assert trained.buffers["seen_a"].tolist() == [pytest.approx(expected, rel=1e-5)] * len(seeds)


@pytest.mark.parametrize("option", [{"follows": {"nothing": ("a", 0.1)}}, {"factors": {"b": 0.1}}])
def test_buffers_and_factors_of_nothing_are_refused(option: dict) -> None:
    with pytest.raises(ConfigError, match="a_loss: no buffer, or none of the networks"):
        learner([toy(lambda s: [Update(s.a_loss, ("a",), ADAM, **option)])], Y)


class Written(Uniform):
    """Remembers what is written to it."""

    def __init__(self) -> None:
        super().__init__(lambda indices: {"y": Y.float()[indices]}, 8)
        self.given: list[tuple[torch.Tensor, torch.Tensor]] = []

    def write(self, rows: torch.Tensor, numbers: torch.Tensor) -> None:
        self.given.append((rows.clone(), numbers.clone()))


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
@pytest.mark.parametrize("kernels", [False, True])
def test_a_source_is_given_a_metric_of_the_rows_that_were_learned_from(seeds: list[int], kernels: bool) -> None:
    class Erring(Toy):
        def a_loss(self, batch: Batch, noise: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Metrics]:
            error = self.a.x - batch["y"]
            return error.square().mean(), {"error": error}

        plan = lambda self: [Update(self.a_loss, ("a",), ADAM, writes={"batch": "error"})]  # noqa: E731

    source = Written()
    trained = Learner([Erring(SPEC) for _ in seeds], seeds, source, batch_size=4, kernels=kernels and len(seeds) == 1)
    for step in range(3):
        before = trained.agents_parameters(0)["a.x"].item()
        trained.run(1)
        rows, errors = source.given[step]
        assert torch.equal(rows.view(len(seeds), 4), source.rows(step))
        torch.testing.assert_close(errors.view(len(seeds), 4)[0], before - Y.float()[source.rows(step)[0]])


def test_a_source_that_takes_no_numbers_is_refused() -> None:
    plan = lambda s: [Update(s.a_loss, ("a",), ADAM, writes={"batch": "a"})]  # noqa: E731
    with pytest.raises(ConfigError, match="a_loss writes to 'batch', which is no source of it that has write"):
        learner([toy(plan)], Y)
    twice = lambda s: [Update(s.a_loss, ("a",), ADAM, writes={"batch": "a"}, repeat=2)]  # noqa: E731
    with pytest.raises(ConfigError, match="neither repeat= nor rows="):
        Learner([toy(twice)], [0], Written(), batch_size=4)


def test_noise_of_a_whole_batch_is_one_row_a_turn() -> None:
    shapes = []

    def plan(s: Toy) -> list[Update]:
        def noisy_loss(batch: Batch, noise: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Metrics]:
            shapes.append(tuple(noise["push"].shape))
            pushes.append(noise["push"].flatten().tolist())
            return (s.a.x - noise["push"]).square().mean(), {}

        return [Update(noisy_loss, ("a",), ADAM, noise={"push": Noise("normal", 3, whole_batch=True)}, repeat=2)]

    pushes: list[list[float]] = []
    trained = Learner([toy(plan)], [0], Written(), batch_size=4)
    trained.run(2)
    assert shapes == [(1, 3)] * 4
    assert len({tuple(one) for one in pushes}) == 4
