"""What `Update`'s fields mean to the Learner, followed by hand on agents of three numbers."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from toy_agents import ADAM, PUSH, SPEC, HandAdam, Toy, learner, toy

from surefoot.core.agent import Adam, Batch, Descent, Metrics, Update
from surefoot.core.errors import CheckpointError, ConfigError, DivergenceError
from surefoot.core.learner import Learner
from surefoot.core.optimizer import Network, Optimizer, clip_per_seed, clip_per_tensor
from surefoot.core.random import Noise, Stream
from surefoot.core.rates import LaProp
from surefoot.core.sources import Uniform


def drawn_rows(seeds: list[int], population: int, rows: int) -> Uniform:
    """The rows that a `Learner` draws uniformly."""
    source = Uniform(lambda indices: {}, population)
    source.bind(seeds, rows, torch.device("cpu"))
    return source


Y = torch.tensor([3.0] * 8, dtype=torch.float64)  # every batch is the same: a is pulled to 3
EXACT = {"rel": 1e-6}


def values(trained: Learner) -> dict[str, float]:
    return {name: network.value.item() for name, network in trained.networks.items()}


def test_one_step_moves_a_network_by_adam() -> None:
    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), ADAM)])], Y)
    hand = HandAdam(1.0)
    for _ in range(5):
        trained.run(1)
        assert values(trained)["a"] == pytest.approx(hand.step(2 * (hand.value - 3)), **EXACT)
    assert trained.step == 5


def test_run_reports_each_loss_averaged_and_each_metric_last() -> None:
    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), ADAM)])], Y)
    hand, losses, last = HandAdam(1.0), [], 0.0
    for _ in range(4):
        losses.append((hand.value - 3) ** 2)
        last = hand.value
        hand.step(2 * (hand.value - 3))
    report = trained.run(4)
    assert report == {"a_loss": [pytest.approx(sum(losses) / 4, **EXACT)], "a": [pytest.approx(last, **EXACT)]}


def test_later_updates_see_the_parameters_that_earlier_ones_made() -> None:
    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), ADAM), Update(s.b_loss, ("b",), ADAM)])], Y)
    trained.run(1)
    (_, _, old_a, _), (_, _, new_a, old_b) = trained.agent.seen
    assert (old_a, old_b) == (1.0, 2.0)
    assert new_a == pytest.approx(1.1, abs=1e-7)  # Adam's first step is the learning rate


def test_updates_together_see_the_same_old_parameters() -> None:
    def plan(s: Toy) -> list[Update]:
        return [Update(s.a_loss, ("a",), ADAM), Update(s.b_loss, ("b",), ADAM, together=True)]

    trained = learner([toy(plan)], Y)
    trained.run(1)
    assert [seen[2:] for seen in trained.agent.seen] == [(1.0, 2.0), (1.0, 2.0)]
    assert values(trained)["a"] == pytest.approx(1.1)
    assert values(trained)["b"] == pytest.approx(1.9)


def test_the_update_after_a_together_pair_sees_what_both_made() -> None:
    def plan(s: Toy) -> list[Update]:
        return [
            Update(s.a_loss, ("a",), ADAM),
            Update(s.b_loss, ("b",), ADAM, together=True),
            Update(s.noisy_loss, ("a",), ADAM, noise=PUSH),
        ]

    trained = learner([toy(plan)], Y)
    trained.run(1)
    assert trained.agent.seen[2][2:] == (pytest.approx(1.1), pytest.approx(1.9))


def test_no_gradient_reaches_a_network_that_an_update_does_not_train() -> None:
    trained = learner([toy(lambda s: [Update(s.b_loss, ("b",), ADAM)])], Y)
    trained.run(3)
    assert values(trained)["a"] == 1.0
    assert values(trained)["target"] == 6.0
    assert not trained.networks["a"].gradient.any()
    assert trained.agent.a.x.grad is None
    hand = HandAdam(2.0)
    for _ in range(3):
        hand.step(2 * (hand.value - 1))
    assert values(trained)["b"] == pytest.approx(hand.value, **EXACT)


def test_after_and_until_are_phases_of_a_run_with_schedules_and_resume_of_their_own() -> None:
    cosine = Adam(0.1, schedule="cosine")

    def plan(s: Toy) -> list[Update]:
        return [
            Update(s.a_loss, ("a",), ADAM, until=4),
            Update(s.b_loss, ("b",), cosine, every=2, after=4, until=9),
        ]

    trained = learner([toy(plan)], Y, planned_steps=20)
    trained.run(20)
    assert [name for name, *_ in trained.agent.seen] == ["a"] * 4 + ["b"] * 2  # at steps 6 and 8
    assert [optimizer.planned for optimizer in trained.optimizers] == [4, 2]
    again = learner([toy(plan)], Y, planned_steps=20)
    again.run(7)
    state = {name: value.clone() for name, value in again.state(0).items()}
    fresh = learner([toy(plan)], Y, planned_steps=20)
    fresh.restore([state], 7)
    assert [optimizer.taken for optimizer in fresh.optimizers] == [4, 1]
    fresh.run(13)
    for name, value in trained.state(0).items():
        assert torch.equal(value, fresh.state(0)[name])


def test_every_takes_an_update_at_its_multiples_only() -> None:
    def plan(s: Toy) -> list[Update]:
        return [Update(s.a_loss, ("a",), ADAM), Update(s.b_loss, ("b",), ADAM, every=3)]

    trained = learner([toy(plan)], Y)
    taken = []
    for _ in range(7):
        trained.agent.seen.clear()
        trained.run(1)
        taken.append([name for name, *_ in trained.agent.seen])
    assert taken == [["a"], ["a"], ["a", "b"], ["a"], ["a"], ["a", "b"], ["a"]]


def test_descent_takes_the_gradient_itself_and_remembers_nothing() -> None:
    def plan(s: Toy) -> list[Update]:
        return [Update(s.a_loss, ("a",), Descent(0.25)), Update(s.b_loss, ("b",), ADAM)]

    y, expected = float(Y[0]), 1.0
    assert torch.equal(Y, torch.full_like(Y, y))
    for agents in (1, 2):
        trained, expected = learner([toy(plan)] * agents, Y, seeds=range(agents)), 1.0
        for _ in range(3):
            expected -= 0.25 * 2 * (expected - y)
            trained.run(1)
            assert trained.networks["a"].value.flatten().tolist() == pytest.approx([expected] * agents, **EXACT)
        assert not [name for name in trained.state(0) if name.startswith("adam/a_loss")]
        other = learner([toy(plan)] * agents, Y, seeds=range(agents))
        other.restore([trained.state(seed) for seed in range(agents)], 3)
        assert other.run(2) == trained.run(2)
    trained.optimizers[0].by_seed()
    trained.optimizers[0].active = torch.tensor([True, False])
    before = [float(trained.agents_parameters(seed)["a.x"]) for seed in (0, 1)]
    trained.run(1)
    moved = [float(trained.agents_parameters(seed)["a.x"]) for seed in (0, 1)]
    assert moved[0] != before[0]
    assert moved[1] == before[1]


def test_losses_are_averaged_over_the_steps_that_took_them() -> None:
    def plan(s: Toy) -> list[Update]:
        return [Update(s.a_loss, ("a",), Adam(0.0)), Update(s.b_loss, ("b",), Adam(0.0), every=2)]

    trained = learner([toy(plan)], Y)
    assert trained.run(1) == {"a_loss": [4.0], "a": [1.0]}  # b was not due
    assert trained.run(3)["b_loss"] == [1.0]  # at steps 2 and 4, not diluted by step 3


def test_repeat_takes_several_steps_each_on_rows_of_its_own() -> None:
    rows = torch.arange(1000, dtype=torch.float64)
    batches: list[list[float]] = []

    class Watching(Toy):
        @staticmethod
        def plan(s: Toy) -> list[Update]:
            return [Update(s.a_loss, ("a",), ADAM, repeat=3), Update(s.b_loss, ("b",), ADAM)]

        def a_loss(self, batch, noise):  # type: ignore[no-untyped-def]
            batches.append(batch["y"].tolist())
            return super().a_loss(batch, noise)

    from toy_agents import SPEC

    trained = learner([Watching(SPEC)], rows)
    trained.run(1)
    assert [name for name, *_ in trained.agent.seen] == ["a", "a", "a", "b"]
    assert [len(batch) for batch in batches] == [4, 4, 4]
    indices = drawn_rows([0], 1000, 12).rows(0)[0]
    assert [y for batch in batches for y in batch] == rows[indices].tolist()
    hand = HandAdam(1.0)
    for batch, seen in zip(batches, trained.agent.seen, strict=False):
        assert seen[2] == pytest.approx(hand.value, **EXACT)
        hand.step(2 * (hand.value - sum(batch) / 4))


def test_rows_gives_an_update_a_batch_size_of_its_own() -> None:
    def plan(s: Toy) -> list[Update]:
        return [
            Update(s.a_loss, ("a",), ADAM, rows=2, repeat=2),
            Update(s.noisy_loss, ("a",), ADAM, rows=7, noise=PUSH),
            Update(s.b_loss, ("b",), ADAM),
        ]

    trained = learner([toy(plan)], Y)
    trained.run(1)
    assert [seen[:2] for seen in trained.agent.seen] == [("a", 2), ("a", 2), ("noisy", 7), ("b", 4)]


def test_moments_of_another_run_are_gone_on_from_by_each_seed() -> None:
    made, stem, count = toy(lambda agent: [Update(agent.a_loss, ("a",), ADAM)]), "adam/a_loss/a", torch.tensor(40.0)
    trained, hands = learner([made.fresh(0), made.fresh(1)], Y, (0, 1)), [HandAdam(1.0), HandAdam(1.0)]
    for position, hand in enumerate(hands):
        hand.first, hand.second, hand.count = 0.5 + position, 2.0 + position, int(count)
        moments = {f"{stem}/first": torch.tensor([hand.first]), f"{stem}/second": torch.tensor([hand.second])}
        trained.take_moments(position, {**moments, f"{stem}/count": count})
    trained.run(1)
    for position, hand in enumerate(hands):
        value = trained.networks["a"].value[position].item()
        assert value == pytest.approx(hand.step(2 * (hand.value - 3)), **EXACT)


@pytest.mark.parametrize("odd", ["adam/a_loss/b/first", "adam/a_loss/a/second"])
def test_moments_that_do_not_fit_are_refused_and_nothing_is_taken(odd: str) -> None:
    trained = learner([toy(lambda agent: [Update(agent.a_loss, ("a",), ADAM)])], torch.zeros(8, dtype=torch.float64))
    with pytest.raises(CheckpointError, match=f"{odd} differs"):
        trained.take_moments(0, {"adam/a_loss/a/first": torch.ones(1), odd: torch.ones(2)})
    assert float(trained.state(0)["adam/a_loss/a/first"]) == 0.0


def test_noise_comes_from_the_seeds_own_stream() -> None:
    trained = learner([toy(lambda s: [Update(s.noisy_loss, ("a",), Adam(0.0), noise=PUSH)])], Y, seeds=[11])
    report = trained.run(1)
    push = Stream([11], 4, PUSH, torch.device("cpu"), torch.float64).at(0)["push"]
    assert report["push"] == [pytest.approx(push.mean().item())]
    assert report["noisy_loss"] == [pytest.approx((1 - push).square().mean().item())]


def test_then_moves_a_target_by_its_rate_after_each_step_of_its_update() -> None:
    def plan(s: Toy) -> list[Update]:
        return [Update(s.a_loss, ("a",), ADAM, every=2, then={"target": ("a", 0.25)})]

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


@pytest.mark.parametrize(
    "wrong",
    [
        {"trains": ("a", "nobody")},
        {"trains": ("a",), "then": {"nobody": ("a", 0.1)}},
        {"trains": ("a",), "then": {"target": ("nobody", 0.1)}},
    ],
)
def test_an_update_naming_an_unknown_network_is_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=r"a_loss: no network 'nobody'; there are \['a', 'b', 'target'\]"):
        learner([toy(lambda s: [Update(s.a_loss, **wrong)])], Y)


def test_agents_and_seeds_must_go_together() -> None:
    agent = toy(lambda s: [Update(s.a_loss, ("a",), ADAM)])
    with pytest.raises(ConfigError, match="2 agents stacked on a CPU train at a third to a half of the rate"):
        learner([agent, agent.fresh(1)], Y, seeds=[0, 1], kernels=True)
    with pytest.raises(ConfigError, match="1 agents and 2 seeds"):
        learner([agent], Y, seeds=[0, 1])
    with pytest.raises(ConfigError, match="don't go together"):
        learner([agent, agent.fresh(1)], Y, seeds=[0, 1], stacked=False)
    with pytest.raises(ConfigError, match="no row"):
        learner([agent], Y[:0])


def bad_rows() -> torch.Tensor:
    rows = torch.ones(400, dtype=torch.float64)
    rows[7] = torch.nan
    return rows


@pytest.mark.parametrize("log_length", [1, 5, 1024])
@pytest.mark.parametrize("seeds", [[5], [2, 5, 3]])
def test_divergence_names_loss_step_and_seed(seeds: list[int], log_length: int) -> None:
    rows = bad_rows()
    drawn = drawn_rows(seeds, 400, 4)
    hits = ((drawn.rows(step) == 7).any(1) for step in range(10_000))
    step, hit = next((number, row) for number, row in enumerate(hits, start=1) if row.any())
    seed = seeds[int(hit.nonzero()[0])]

    def plan(s: Toy) -> list[Update]:
        return [Update(s.b_loss, ("b",), ADAM), Update(s.a_loss, ("a",), ADAM)]

    kind = type(toy(plan))
    from toy_agents import SPEC

    trained = learner([kind(SPEC) for _ in seeds], rows, seeds=seeds, log_length=log_length)
    with pytest.raises(DivergenceError, match=rf"toy: a_loss became nan at step {step} \(seed {seed}\)"):
        trained.run(step + 50)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_run_resumed_anywhere_equals_one_that_never_stopped_bit_for_bit(stacked: bool) -> None:
    def plan(s: Toy) -> list[Update]:
        cosine = Adam(0.1, schedule="cosine", max_gradient_norm=1.0)
        return [
            Update(s.noisy_loss, ("a",), cosine, noise=PUSH, repeat=2),
            Update(s.b_loss, ("b",), ADAM, every=3, then={"target": ("b", 0.1)}),
        ]

    rows = torch.linspace(-3, 3, 64, dtype=torch.float64)
    agent = toy(plan)
    kind, seeds = type(agent), [0, 4] if stacked else [4]

    def new() -> Learner:
        return learner([kind(agent.spec) for _ in seeds], rows, seeds=seeds, stacked=stacked, planned_steps=70)

    whole = new()
    whole.run(70)
    for stop in (1, 31, 32, 33, 50):
        before = new()
        before.run(stop)
        states = [{name: v.clone() for name, v in before.state(i).items()} for i in range(len(seeds))]
        after = new()
        after.restore(states, before.step)
        after.run(70 - stop)
        for position in range(len(seeds)):
            one, other = whole.state(position), after.state(position)
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)


def test_repeats_rows_delays_and_targets_are_the_same_stacked_as_alone() -> None:
    def plan(s: Toy) -> list[Update]:
        return [
            Update(s.noisy_loss, ("a",), Adam(0.1, schedule="cosine"), noise=PUSH, rows=3, repeat=3),
            Update(s.b_loss, ("b",), ADAM, together=True, every=2, then={"target": ("b", 0.1)}),
            Update(s.a_loss, ("a",), ADAM, rows=5),
        ]

    rows = torch.linspace(-3, 3, 64, dtype=torch.float64)
    agent, seeds = toy(plan), [4, 1, 8]
    kind = type(agent)
    stacked = learner([kind(agent.spec) for _ in seeds], rows, seeds=seeds, planned_steps=20)
    report = stacked.run(20)
    for position, seed in enumerate(seeds):
        alone = learner([kind(agent.spec)], rows, seeds=[seed], planned_steps=20)
        assert {n: v for n, (v,) in alone.run(20).items()} == pytest.approx({n: v[position] for n, v in report.items()})
        for name, network in alone.networks.items():
            torch.testing.assert_close(stacked.networks[name].value[position], network.value[0], rtol=1e-9, atol=1e-12)


def test_a_state_with_other_tensors_or_shapes_is_refused_and_changes_nothing() -> None:
    plan = lambda s: [Update(s.a_loss, ("a",), ADAM)]  # noqa: E731
    trained = learner([toy(plan)], Y)
    trained.run(3)
    state = {name: value.clone() for name, value in trained.state(0).items()}
    missing = {name: value for name, value in state.items() if name != "agent/a.x"}
    wrong_shape = {**state, "agent/b.x": torch.zeros(2)}
    extra = {**state, "agent/c.x": torch.zeros(1)}
    for damaged in (missing, wrong_shape, extra):
        with pytest.raises(CheckpointError, match="does not fit toy as configured"):
            trained.restore([damaged], 1)
        assert trained.step == 3
        assert all(torch.equal(value, state[name]) for name, value in trained.state(0).items())


def test_extract_gives_an_agent_apart_from_the_learners_storage() -> None:
    plan = lambda s: [Update(s.a_loss, ("a",), ADAM)]  # noqa: E731
    agent = toy(plan)
    kind = type(agent)
    trained = learner([agent, kind(agent.spec)], Y, seeds=[0, 1])
    trained.run(2)
    taken = trained.extract(1)
    before = taken.a.x.item()
    assert before == trained.networks["a"].value[1].item()
    trained.run(2)
    assert taken.a.x.item() == before != trained.networks["a"].value[1].item()


def test_garbage_collection_is_as_it_was_after_a_run() -> None:
    import gc

    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), ADAM)])], Y)
    trained.run(1)
    assert gc.isenabled()
    gc.disable()
    try:
        trained.run(1)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_updates_that_read_one_name_as_different_noise_are_refused() -> None:
    wide = {"push": Noise("normal", 2)}
    with pytest.raises(ConfigError, match=r"toy: steep_loss reads 'push' as .*width=2.*give one of them another name"):
        learner(
            [toy(lambda s: [Update(s.noisy_loss, ("a",), ADAM, noise=PUSH),
                            Update(s.steep_loss, ("b",), ADAM, noise=wide)])], Y
        )  # fmt: skip


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor can't count subnormals as 0")
@pytest.mark.parametrize("outside", [False, True])
def test_subnormals_are_zero_within_a_step_and_as_before_around_it(outside: bool) -> None:
    def flushed() -> bool:
        return float(torch.full((), 1e-39) * 1) == 0

    class Asks(Toy):
        def a_loss(self, batch: Batch, noise: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Metrics]:
            within.append(flushed())
            return super().a_loss(batch, noise)

    within: list[bool] = []
    before: list[bool] = []
    Asks.plan = staticmethod(lambda s: [Update(s.a_loss, ("a",), ADAM)])
    trained = learner([Asks(SPEC)], Y)
    torch.set_flush_denormal(outside)
    try:
        trained.run(3, lambda: before.append(flushed()))
        after = flushed()
    finally:
        torch.set_flush_denormal(False)
    assert (within, before, after) == ([True] * 3, [outside] * 3, outside)


def test_running_in_pieces_equals_running_at_once() -> None:
    rows = torch.linspace(-3, 3, 64, dtype=torch.float64)
    plan = lambda s: [Update(s.a_loss, ("a",), ADAM)]  # noqa: E731
    one, many = learner([toy(plan)], rows), learner([toy(plan)], rows, log_length=3)
    one.run(50)
    for part in (1, 2, 7, 40):
        many.run(part)
    assert torch.equal(one.networks["a"].value, many.networks["a"].value)


def test_an_agent_names_unknown_options_and_presets() -> None:
    plan = lambda s: [Update(s.a_loss, ("a",), ADAM)]  # noqa: E731
    with pytest.raises(ConfigError, match="toy has no option 'strat'; did you mean 'start'"):
        toy(plan, strat=2.0)
    with pytest.raises(ConfigError, match="no preset 'fast'"):
        toy(plan, preset="fast")
    assert dataclasses.asdict(toy(plan, start=3.0).config) == {"start": 3.0}


def test_a_state_is_needed_for_each_seed_and_a_bad_one_leaves_all_seeds_as_they_were() -> None:
    agent = toy(lambda s: [Update(s.a_loss, ("a",), ADAM)])
    kind = type(agent)
    trained = learner([agent, kind(agent.spec)], Y, seeds=[0, 1])
    good = {name: value.clone() for name, value in trained.state(0).items()}
    trained.run(3)
    before = trained.networks["a"].value.clone()
    with pytest.raises(CheckpointError, match="1 states for 2 seeds"):
        trained.restore([good], 0)
    with pytest.raises(CheckpointError, match="does not fit"):
        trained.restore([good, {**good, "agent/a.x": torch.zeros(3)}], 0)
    assert torch.equal(trained.networks["a"].value, before)


def test_a_network_trained_twice_together_and_a_loss_used_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"steep_loss: \['a'\] is trained twice together"):
        learner([toy(lambda s: [Update(s.a_loss, ("a",)), Update(s.steep_loss, ("a", "b"), together=True)])], Y)
    with pytest.raises(ConfigError, match="two updates have the same loss"):
        learner([toy(lambda s: [Update(s.a_loss, ("a",)), Update(s.a_loss, ("a",), every=2)])], Y)


def test_a_lagging_target_follows_the_network_as_it_was_before_the_step() -> None:
    def plan(agent: Toy) -> list[Update]:
        return [Update(agent.a_loss, ("a",), ADAM, lagging={"target": ("a", 0.5)})]

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
        return [Update(agent.b_loss, ("b",), ADAM), Update(agent.a_loss, ("a",), ADAM, together=True, lagging=lag)]

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
