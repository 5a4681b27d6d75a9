"""What `Update`'s fields mean to the Learner, followed by hand on agents of three numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from learner_rows import EXACT, Y, drawn_rows, values
from torch import Tensor
from toy_agents import ADAM, PUSH, SPEC, HandAdam, Toy, learner, toy

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.random import Stream
from surefoot.core.engine.agent import Adam, Batch, Descent, Update


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
        return [Update(s.a_loss, ("a",), ADAM), Update(s.b_loss, ("b",), ADAM, simultaneous=True)]

    trained = learner([toy(plan)], Y)
    trained.run(1)
    assert [seen[2:] for seen in trained.agent.seen] == [(1.0, 2.0), (1.0, 2.0)]
    assert values(trained)["a"] == pytest.approx(1.1)
    assert values(trained)["b"] == pytest.approx(1.9)


def test_the_update_after_a_together_pair_sees_what_both_made() -> None:
    def plan(s: Toy) -> list[Update]:
        return [
            Update(s.a_loss, ("a",), ADAM),
            Update(s.b_loss, ("b",), ADAM, simultaneous=True),
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


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda x: x.mean(), r"odd_loss gives a Tensor; a loss gives \(scalar, metrics\)"),
        (lambda x: None, r"odd_loss gives a NoneType"),
        (lambda x: (x.mean(), 1.0), r"odd_loss gives a tuple; a loss gives \(scalar, metrics\)"),
        (lambda x: (x.repeat(3), {}), r"odd_loss gives a loss that is of shape \(3,\); it must be one number"),
        (lambda x: (1.0, {}), r"odd_loss gives a loss that is a float"),
        (lambda x: (x.mean(), {"mean": 0.5}), r"odd_loss: metric 'mean' is a float; .* leave out \.item\(\)"),
    ],
)
def test_what_a_loss_must_give_is_said_in_a_sentence(given: Callable[[Tensor], Any], sentence: str, seeds: int) -> None:
    class Odd(Toy):
        def odd_loss(self, batch: Batch, noise: dict[str, Tensor]) -> Any:
            return given(self.a.x)

        @staticmethod
        def plan(agent: Any) -> list[Update]:
            return [Update(agent.odd_loss, ("a",), ADAM)]

    trained = learner([Odd(SPEC) for _ in range(seeds)], Y, range(seeds), kernels=False)
    with pytest.raises(ConfigError, match=sentence):
        trained.run(1)
