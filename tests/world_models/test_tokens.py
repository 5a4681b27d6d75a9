"""Numbers as tokens: bins, draws, the transformer's mask and memory, and dynamics whose odds can be counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from test_mbrcsl import dataset_of, learner_of

from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.model_based import LearnedTokenDynamics
from surefoot.world_models.calibration import token_calibration
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.tokens.dynamics import TokenDynamics
from surefoot.world_models.tokens.tokens import Bins, drawn, uniform_of, without_tail
from surefoot.world_models.tokens.transformer import TokenTransformer, log_likelihood, of_rows


def test_uniform_bins_are_as_wide_and_quantile_bins_as_full() -> None:
    numbers = np.random.default_rng(0).gamma(2.0, size=(8000, 2))
    even, full = Bins(2, 20, "uniform"), Bins(2, 20, "quantile")
    even.fit(numbers)
    full.fit(numbers)
    values = torch.from_numpy(numbers).float()
    widest = (values.amax(0) - values.amin(0)) / 20
    assert bool(((even.decode(even.encode(values)) - values).abs() <= widest / 2 + 1e-5).all())
    counts = torch.stack([(full.encode(values) == k).sum(0) for k in range(20)])
    assert int(counts.min()) >= 398
    assert int(counts.max()) <= 402
    outside = torch.tensor([[-100.0, 100.0]])
    assert even.encode(outside).tolist() == [[0, 19]]
    assert even.decode(torch.tensor([[3]]), first=1).item() == pytest.approx(float(even.centres[1, 3]))
    even.fit(numbers * 2)  # bins that were set stay
    assert bool((even.encode(values) <= 19).all())
    assert float(even.widths[0, 0]) == pytest.approx(float(widest[0]), rel=1e-5)


def test_bins_of_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 bins by 'uniform'; needs at least 2"):
        Bins(1, 1, "uniform")
    with pytest.raises(DataError, match="tokens are made of finite numbers"):
        Bins(1, 4).fit(np.array([[math.nan]]))


def test_draws_invert_the_sums_and_the_unlikely_are_left_out() -> None:
    odds = torch.tensor([0.1, 0.2, 0.0, 0.7])
    uniform = (torch.arange(1000) + 0.5) / 1000
    tokens = drawn(odds.expand(1000, 4), uniform)
    assert torch.bincount(tokens, minlength=4).tolist() == [100, 200, 0, 700]
    assert int(drawn(odds, torch.tensor(1 - 1e-7))) == 3
    assert without_tail(odds, 0.25).tolist() == pytest.approx([0, 0.2, 0, 0.7])  # .1 goes; with .2 it were .3
    assert without_tail(odds, 0.99).tolist() == pytest.approx([0, 0, 0, 0.7])
    assert float(uniform_of(torch.tensor(0.0))) == 0.5


def small(**options: Any) -> TokenTransformer:
    torch.manual_seed(0)
    made = TokenTransformer(3, 4, 5, width=8, layers=2, heads=2, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return made.double()


def with_one_changed(model: TokenTransformer) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Number of a token -> odds with it as another, and as it was."""
    tokens = torch.randint(0, 5, (2, 12), generator=torch.Generator().manual_seed(1))
    whole, _ = model(tokens)
    for changed in range(12):
        other = tokens.clone()
        other[:, changed] = (other[:, changed] + 1) % 5
        yield changed, model(other)[0], whole


def test_a_token_s_odds_depend_on_those_before_it_alone() -> None:
    for changed, found, whole in with_one_changed(small()):
        assert torch.equal(found[:, :changed], whole[:, :changed])
        assert not torch.allclose(found[:, changed:], whole[:, changed:])


def test_a_place_that_is_left_unread_tells_the_next_token_alone() -> None:
    for changed, found, whole in with_one_changed(small(unread=2)):
        reached = slice(changed, changed + 1 if changed % 3 == 2 else 12)
        assert not torch.isclose(found[:, reached], whole[:, reached]).all(-1).any()
        assert torch.equal(found[:, : reached.start], whole[:, : reached.start])
        assert torch.equal(found[:, reached.stop :], whole[:, reached.stop :])
    for place in (0, 3, -1):
        with pytest.raises(ConfigError, match=f"place {place} of 3 can't be left unread"):
            small(unread=place)


@pytest.mark.parametrize("unread", [None, 1, 2])
def test_reading_on_from_the_past_equals_reading_all_at_once(unread: int | None) -> None:
    model = small(unread=unread)
    tokens = torch.randint(0, 5, (3, 12), generator=torch.Generator().manual_seed(1))
    whole, _ = model(tokens)
    parts, past, first = [], None, 0
    for length in (5, 1, 1, 3, 2):
        logits, past = model(tokens[:, first : first + length], first, past)
        parts.append(logits)
        first += length
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    rows = torch.tensor([2, 0, 2])
    _, past = model(tokens[:, :7])
    chosen, _ = model(tokens[rows, 7:], 7, of_rows(past, rows))
    torch.testing.assert_close(chosen, whole[rows, 7:])


@pytest.mark.parametrize("unread", [None, 1, 2])
def test_padding_at_the_beginning_changes_nothing_behind_it(unread: int | None) -> None:
    model = small(unread=unread)
    tokens = torch.randint(0, 5, (2, 12), generator=torch.Generator().manual_seed(1))
    padded, _ = model(tokens, skipped=torch.tensor([2, 1]))
    torch.testing.assert_close(padded[:1, 6:], model(tokens[:1, 6:])[0])
    torch.testing.assert_close(padded[1:, 3:], model(tokens[1:, 3:])[0])


def test_probabilities_of_all_outcomes_add_up_to_one() -> None:
    torch.manual_seed(0)
    model = TokenDynamics(2, 1, bins=3, width=8, layers=1, heads=1).double()
    numbers = np.random.default_rng(0).random((9, 6))
    model.fit({"observations": numbers[:, :2], "actions": numbers[:, 2:3], "rewards": numbers[:, 3],
               "next_observations": numbers[:, 4:]})  # fmt: skip
    grid = torch.cartesian_prod(*[torch.arange(3)] * 3)  # of reward and next state
    told = model.bins.decode(grid, first=3)
    batch = {"observations": torch.tensor([[0.3, 0.8]]).double().expand(27, -1),
             "actions": torch.tensor([[0.5]]).double().expand(27, -1),
             "rewards": told[:, 0].double(), "next_observations": told[:, 1:].double()}  # fmt: skip
    assert torch.equal(model.bins.encode(model.numbers(batch))[:, 3:], grid)
    each = model.log_probabilities(batch)
    assert float(each.sum(-1).exp().sum().detach()) == pytest.approx(1, abs=1e-12)
    assert float(model.loss(batch)[0].detach()) == pytest.approx(float(-each.mean().detach()), abs=1e-12)
    # frequencies of draws are those odds: even noise of 20 x 20 x 20
    points = torch.special.ndtri((torch.arange(20).double() + 0.5) / 20)
    normal = torch.cartesian_prod(points, points, points)
    states, actions = batch["observations"][:1].expand(8000, -1), batch["actions"][:1].expand(8000, -1)
    found = model.step(states, actions, StepNoise(normal=normal))
    tokens = model.bins.encode(torch.cat([found.rewards.unsqueeze(-1), found.states], -1), first=3)
    share = (tokens.unsqueeze(1) == grid).all(-1).double().mean(0)
    torch.testing.assert_close(share, each.sum(-1).exp().detach(), atol=0.03, rtol=0)
    mean = model.step(states[:2], actions[:2], StepNoise())
    odds = model.transformer(model.bins.encode(torch.cat([states, actions], -1)[:1]))[0][0, -1].softmax(-1)
    assert float(mean.rewards[0].detach()) == pytest.approx(float((odds * model.bins.centres[3]).sum().detach()))
    assert log_likelihood(torch.zeros(1, 1, 4), torch.tensor([[2]])).item() == pytest.approx(-math.log(4))


def two_ways(rows: int = 3000, seed: int = 0) -> Any:
    """From x a step of +a or -a, each as likely: a Gaussian's mean would be to stay."""
    numbers = np.random.default_rng(seed)
    states, actions = numbers.uniform(-1, 1, (rows, 1)), numbers.uniform(0.5, 1, (rows, 1))
    following = states + actions * numbers.choice([-1.0, 1.0], (rows, 1))
    return dataset_of(states, actions, -np.abs(states[:, 0]), following, 1)


def test_it_learns_a_world_of_two_ways_and_is_judged_as_ensembles_are() -> None:
    data = two_ways()
    agent = LearnedTokenDynamics(data, bins=20, width=32, layers=1, heads=2, learning_rate=5e-3, termination="none")
    learner = learner_of([agent.fresh(0)], data, [0], 300, batch_size=32)
    learner.run(300)
    model: Any = learner.agent.model
    states, actions = torch.linspace(-0.9, 0.9, 1000).unsqueeze(-1), torch.full((1000, 1), 0.8)
    torch.manual_seed(0)
    scaled = to_agent(actions, learner.agent.action_low, learner.agent.action_high)
    found = model.step(states, scaled, StepNoise(normal=torch.randn(1000, 2)))
    jumps = (found.states - states)[:, 0].detach()
    assert float((jumps.abs() > 0.5).float().mean()) > 0.9  # nowhere near the mean
    assert float((jumps > 0).float().mean()) == pytest.approx(0.5, abs=0.12)
    judged = token_calibration(model, agent.prepare(two_ways(300, 1)))
    assert judged["mixture"]["nll"] < 0.9  # a Gaussian of mean and deviation has 1.419 of each number
    assert judged["mixture"]["coverage_90"] == pytest.approx(0.9, abs=0.08)
    assert judged["open_loop"]["steps"] == [1]
