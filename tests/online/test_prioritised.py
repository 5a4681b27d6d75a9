"""Prioritised replay: probabilities and weights by hand, new rows first, and one tree for several seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import DataError
from surefoot.data.collect import TransitionBuffer
from surefoot.online.loops.prioritised import FAN, Priorities, PrioritisedReplay, SumTree
from surefoot.online.loops.replay import Replay

SHAPES = {"observations": (1,), "rewards": (), "terminations": ()}
CPU = torch.device("cpu")


def add(buffer: TransitionBuffer, first: float, valid: list[bool] | None = None) -> None:
    """One step, whose observations count the rows."""
    count = buffer.num_envs
    step = {
        "observations": (torch.arange(count) + first).unsqueeze(1).float(),
        **{name: torch.zeros(count) for name in ("rewards", "terminations", "truncations")},
    }
    buffer.add(step if valid is None else {**step, "valid": torch.tensor(valid)})


def source(
    buffer: TransitionBuffer, rows: int = 4, seeds: tuple[int, ...] = (0,), **priorities: float
) -> PrioritisedReplay:
    made = PrioritisedReplay(Replay(buffer), Priorities(**priorities), buffer.capacity // len(seeds))  # type: ignore[arg-type]
    made.bind(seeds, rows, CPU)
    return made


def test_probabilities_and_weights_by_hand() -> None:
    """Errors 0.5, 2, 0 and 1, alpha 0.6, beta 0.4."""
    buffer = TransitionBuffer(4, SHAPES, num_envs=4)
    add(buffer, 0)
    replay = source(buffer, exponent=0.6, correction=0.4)
    replay.rows(0)
    rows = torch.arange(4).unsqueeze(0)
    replay.write(rows, torch.tensor([[0.5, -2.0, 0.0, 1.0]]))
    shares = replay.tree.weights / replay.tree.total
    np.testing.assert_allclose(shares[0], [0.20774943, 0.47728242, 0.00007910, 0.31488906], atol=1e-8)
    np.testing.assert_allclose(replay.gather(rows)["weights"][0], [0.0428792, 0.0307435, 1, 0.0363078], rtol=1e-5)
    drawn = torch.cat([replay.rows(step)[0] for step in range(1, 10_001)])
    np.testing.assert_allclose(torch.bincount(drawn, minlength=4) / 40_000, shares[0], atol=0.01)


def test_the_correction_rises_to_one() -> None:
    p = Priorities(correction=0.4, correction_steps=10)
    assert [p.beta(step) for step in (0, 5, 10, 99)] == pytest.approx([0.4, 0.7, 1.0, 1.0])


def test_a_tree_draws_as_a_cumulative_sum_does_and_its_sums_are_exact() -> None:
    generator = np.random.default_rng(4)
    for leaves in (1, 5, FAN, FAN + 1, 3000):
        weights = generator.exponential(size=leaves) * (generator.random(leaves) < 0.7)
        weights[-1] = 1.0
        tree = SumTree(2, leaves, CPU)
        rows = torch.from_numpy(generator.permutation(leaves)).expand(2, -1)
        tree.write(rows, torch.from_numpy(np.stack([weights, 2 * weights]))[:, rows[0]])
        np.testing.assert_allclose(tree.total[:, 0], [weights.sum(), 2 * weights.sum()], rtol=1e-12)
        uniform = generator.random(500)
        found = tree.draw(torch.from_numpy(np.stack([uniform, uniform])))
        wanted = np.searchsorted(weights.cumsum(), uniform * weights.sum(), side="right")
        assert (found[0].numpy() == wanted).mean() > 0.99  # sums in another order round elsewhere
        assert (weights[found.numpy()] > 0).all()


def test_of_a_row_that_is_written_twice_the_larger_weight_counts() -> None:
    tree = SumTree(1, 3, CPU)
    tree.write(torch.tensor([[1, 1, 2]]), torch.tensor([[2.0, 5.0, 1.0]], dtype=torch.float64))
    assert tree.weights.tolist() == [[0, 5, 1]]
    tree.write(torch.tensor([[1, 1]]), torch.tensor([[0.25, 0.5]], dtype=torch.float64))
    assert tree.weights.tolist() == [[0, 0.5, 1]]
    assert tree.total.item() == 1.5


def test_new_rows_have_the_largest_priority_so_far_and_old_ones_are_replaced() -> None:
    buffer = TransitionBuffer(4, SHAPES, num_envs=1)
    replay = source(buffer, exponent=1.0, least=0.0)
    with pytest.raises(DataError, match="act in the environment"):
        replay.rows(0)
    add(buffer, 0)
    add(buffer, 1)
    replay.rows(1)
    assert replay.tree.weights.tolist() == [[1, 1, 0, 0]]
    replay.write(torch.tensor([[0, 1]]), torch.tensor([[3.0, 0.5]]))
    for number in (2, 3, 4):
        add(buffer, number)
    replay.rows(2)
    assert replay.tree.weights.tolist() == [[3, 0.5, 3, 3]]  # row 0 is new again
    replay.write(torch.tensor([[0, 2]]), torch.tensor([[0.25, 0.125]]))
    add(buffer, 5)
    replay.rows(3)
    assert replay.tree.weights.tolist() == [[0.25, 3, 0.125, 3]]


def test_rows_that_are_no_transitions_are_never_drawn() -> None:
    buffer = TransitionBuffer(8, SHAPES, num_envs=2)
    add(buffer, 0, [True, False])
    add(buffer, 2, [False, True])
    replay = source(buffer, rows=64)
    assert set(replay.rows(0).flatten().tolist()) == {0, 3}
    only = TransitionBuffer(8, SHAPES, num_envs=2)
    add(only, 0, [False, False])
    with pytest.raises(DataError, match="no row of the buffer is a transition"):
        source(only).rows(0)


def test_each_seed_draws_from_its_own_rows_by_its_own_errors() -> None:
    buffer = TransitionBuffer(24, SHAPES, num_envs=4)  # two seeds of two environments
    for step in range(5):
        add(buffer, 4 * step)
    replay = source(buffer, rows=64, seeds=(1, 2), exponent=1.0)
    rows = replay.rows(0)
    assert ((rows[0] % 4) < 2).all()
    assert ((rows[1] % 4) >= 2).all()
    assert torch.equal(replay.gather(rows)["observations"][..., 0].long(), rows)
    errors = torch.zeros(2, 64)
    errors[1] = (rows[1] == 6).float()
    replay.write(rows, errors)
    again = replay.rows(1)
    assert (again[1] == 6).float().mean() > 0.99
    assert (again[0] == 6).sum() == 0
    alone = source(TransitionBuffer(12, SHAPES, num_envs=2), rows=64, seeds=(2,), exponent=1.0)
    for step in range(5):
        add(alone.buffer, 4 * step + 2)
    first = alone.rows(0)
    torch.testing.assert_close(
        alone.gather(first)["observations"], replay.gather(rows)["observations"][1:], rtol=0, atol=0
    )


def test_a_step_sees_the_same_rows_until_it_is_over() -> None:
    buffer = TransitionBuffer(16, SHAPES, num_envs=16)
    add(buffer, 0)
    replay = source(buffer, rows=8)
    first = replay.rows(0)
    replay.write(first, torch.linspace(0, 9, 8).unsqueeze(0))
    assert torch.equal(replay.rows(0), first)
    assert not torch.equal(replay.rows(1), first)
