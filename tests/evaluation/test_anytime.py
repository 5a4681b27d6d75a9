from __future__ import annotations

import math
import time

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import (
    certificate,
    hedged_capital,
    mean_sequence,
    mixture_e,
    mixture_sequence,
    sequential_certificate,
    t_e_process,
    t_sequence,
)
from surefoot.evaluation.anytime import _bets, _log_mixture, predictable_bets

U = np.array([0.3, -0.1, 0.5, 0.2, 0.4, 0.1, 0.6, 0.3])
X = np.array([0.2, 0.8, 0.5, 0.9, 0.4])


def test_the_mixture_after_each_difference() -> None:
    found = [float(mixture_e(U[: n + 1])) for n in range(8)]
    wanted = [1, 0.99, 1.02333333, 1.0694, 1.18932, 1.23429619, 1.53096419, 1.76462179]
    assert found == pytest.approx(wanted, abs=1e-8)
    assert float(mixture_e(U[::-1])) == pytest.approx(found[-1], rel=1e-12)


def test_the_mixtures_confidence_sequence() -> None:
    found = mixture_sequence(U)
    assert (found.low, found.high) == pytest.approx((-0.304568, 0.613187), abs=1e-6)
    found = mixture_sequence(np.tile(U, 10))
    assert (found.low, found.high) == pytest.approx((0.186267, 0.354373), abs=1e-6)
    assert found.estimate == pytest.approx(U.mean())


def test_the_evidence_of_many_distinct_differences_is_the_mean_over_bets_and_quickly_found() -> None:
    values = np.random.default_rng(0).uniform(-0.2, 0.8, 1500)
    bets = -1 / 0.9 + (1 / 0.9 + 1 / 1.1) * (np.arange(20_000) + 0.5) / 20_000  # l ~ U(-1 / (1 - d), 1 / (1 + d))
    logs = np.array([np.log1p(bet * (values[:60] - 0.1)).sum() for bet in bets])
    assert mixture_e(values[:60], np.array([0.1, 0.0]))[0] == pytest.approx(np.exp(logs).mean(), rel=1e-6)
    began = time.process_time()
    mixture_sequence(values)
    assert time.process_time() - began < 0.6  # one python loop over the values of each of 120 means takes 1 s


def test_intervals_go_on_shrinking_as_those_of_the_exact_mixture_do() -> None:
    from scipy.optimize import brentq
    from scipy.special import betaln

    for n, won in ((100, 50), (1000, 900), (10_000, 5000), (1_000_000, 500_000), (1_000_000, 999_000)):

        def beyond(p: float, won: int = won, lost: int = n - won) -> float:
            """Log evidence against the rate p, of bets all of which a Beta function averages, less its bound."""
            return betaln(won + 1, lost + 1) - won * np.log(p) - lost * np.log1p(-p) - np.log(20)

        wanted = brentq(beyond, 1e-6, won / n), brentq(beyond, won / n, 1 - 1e-9)
        found = mean_sequence(np.repeat([1.0, 0.0], [won, n - won]))
        assert (found.low, found.high) == pytest.approx(wanted, abs=1e-5 * (wanted[1] - wanted[0])), (n, won)
    fair = mean_sequence(np.repeat([1.0, 0.0], 500_000))
    assert fair.high - fair.estimate < 0.003
    assert mean_sequence(np.repeat([1.0, 0.0], 25_000)).high - 0.5 < 0.01  # which one may ask for


def test_the_bets_are_one_mixture() -> None:
    bets, weights = _bets()
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights.min() > 0
    assert 0 < bets.min() < bets.max() < 1
    assert mixture_e(np.zeros(0), np.array([-0.9, 0.0, 0.5])) == pytest.approx(1, abs=1e-12)


def test_a_rate_is_kept_at_all_of_many_looks_however_many_episodes() -> None:
    generator = np.random.default_rng(2)
    looks = np.unique(np.geomspace(20, 100_000, 30).astype(int))
    solved = np.cumsum(generator.binomial(np.diff(looks, prepend=0), 0.5, (400, len(looks))), axis=1)
    values, fair, missed = np.array([-1.0, 1.0]), np.zeros(1), 0
    for row in solved:
        counts = [np.array([n - k, k]) for n, k in zip(looks.tolist(), row.tolist(), strict=True)]
        missed += any(_log_mixture(values, count, fair)[0] >= math.log(20) for count in counts)
    assert missed / 400 <= 0.05


def test_eight_pairs_that_all_go_one_way_are_the_least_that_decide() -> None:
    for n in (4, 7, 8):
        assert float(mixture_e(np.ones(n))) == pytest.approx(2**n / (n + 1))
    assert mixture_sequence(np.ones(7)).low < 0 < mixture_sequence(np.ones(8)).low


def test_the_mixture_of_scores_in_the_unit_interval() -> None:
    found = mean_sequence(np.tile(X, 20))
    assert (found.low, found.high) == pytest.approx((0.4843, 0.6364), abs=5e-5)
    scaled = mean_sequence(np.tile(X, 20) * 10 - 3, -3, 7)
    assert (scaled.low, scaled.high) == pytest.approx((10 * found.low - 3, 10 * found.high - 3))
    sure = mean_sequence(np.ones(50))
    assert 0.8 < sure.low < sure.high == 1


def test_hedged_capital_and_its_bets() -> None:
    assert predictable_bets(X) == pytest.approx([5.88008714, 4.47363984, 3.45290606, 3.20461143, 2.68192649], abs=1e-8)
    wanted = [0.53571429, 0.76388889, 1.01851852, 2.03703704, 2.37654321]
    assert hedged_capital(X, 0.3) == pytest.approx(wanted, abs=1e-8)


def test_the_hedged_capitals_confidence_sequence() -> None:
    data = np.tile(X, 20)
    kept = [m for m in np.linspace(0.4, 0.75, 701) if hedged_capital(data, float(m)).max() < 20]
    assert (min(kept), max(kept)) == pytest.approx((0.482, 0.636), abs=1.5e-3)


def test_the_t_e_process_after_each_difference() -> None:
    wanted = [1, 0.66617339, 0.95411334, 1.30850238, 2.45552599, 3.02371578, 5.49971122, 10.91440064]
    assert t_e_process(U) == pytest.approx(wanted, abs=1e-8)
    assert t_e_process(np.stack([U, 7 * U]))[1] == pytest.approx(wanted, abs=1e-8)  # no scale


def test_the_t_sequence_is_where_its_evidence_reaches_twenty() -> None:
    data = np.tile(U, 3)
    found = t_sequence(data)
    for bound in (found.low, found.high):
        assert t_e_process(data - bound)[-1] == pytest.approx(20, rel=1e-6)
    assert math.isnan(t_sequence(U[:2]).low)


def test_differences_without_spread() -> None:
    assert t_e_process(np.zeros(4))[-1] == pytest.approx(5**-0.5)
    assert t_e_process(np.ones(4))[-1] == pytest.approx(5**1.5)  # (1 + n)^(v / 2), the limit of large t


def test_one_may_look_at_the_mixture_after_every_episode() -> None:
    generator = np.random.default_rng(0)
    differences = (generator.random((400, 300)) < 0.85).astype(int) - (generator.random((400, 300)) < 0.85)
    rejected = 0
    table: dict[tuple[int, int], float] = {}
    for row in differences:
        up, down = np.cumsum(row == 1), np.cumsum(row == -1)
        for pair in {(int(a), int(b)) for a, b in zip(up, down, strict=True)} - table.keys():
            values = np.repeat([1.0, -1.0], pair)
            table[pair] = float(mixture_e(values)) if len(values) else 1.0
        rejected += any(table[int(a), int(b)] >= 20 for a, b in zip(up, down, strict=True))
    assert rejected / 400 <= 0.05


def test_the_sequential_bound_without_violations() -> None:
    assert sequential_certificate(0, 1000).upper == pytest.approx(0.0069975, abs=5e-8)
    assert certificate(0, 1000).upper == pytest.approx(0.0029912, abs=5e-8)
    assert sequential_certificate(0, 10_000).upper == pytest.approx(0.00081699, abs=5e-9)
    assert sequential_certificate(0, 1_000_000).upper == pytest.approx(1.0476e-5, abs=5e-10)


def test_the_sequential_bounds_solve_their_equation() -> None:
    from scipy.special import betaln

    found = sequential_certificate(7, 300, 0.9)
    assert 0 < found.low < 7 / 300 < found.high
    for p in (found.low, found.high):
        won = betaln(7.5, 293.5) - betaln(0.5, 0.5) - 7 * math.log(p) - 293 * math.log1p(-p)
        assert won == pytest.approx(math.log(10), abs=1e-9)
    assert sequential_certificate(5, 5).high == 1
    assert "whenever one stops" in found.sentence()


def test_ten_looks_break_the_fixed_bound_and_not_the_sequential_one() -> None:
    generator = np.random.default_rng(1)
    looks = 100 * 2 ** np.arange(7)
    counts = np.cumsum(generator.binomial(np.diff(looks, prepend=0), 0.01, (500, 7)), axis=1)
    fixed, sequential = np.zeros(500, bool), np.zeros(500, bool)
    bounds: dict[tuple[int, int], tuple[float, float]] = {}
    for i, row in enumerate(counts):
        for k, n in zip(row.tolist(), looks.tolist(), strict=True):
            if (k, n) not in bounds:
                bounds[k, n] = (certificate(k, n).upper, sequential_certificate(k, n).upper)
            fixed[i] |= bounds[k, n][0] < 0.01
            sequential[i] |= bounds[k, n][1] < 0.01
    assert fixed.mean() > 0.1
    assert sequential.mean() <= 0.01


def test_scores_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="from -1 to 1"):
        mixture_e(np.array([0.5, 1.5]))
    with pytest.raises(ConfigError, match=r"score of 3 lies outside"):
        mean_sequence(np.array([0.5, 3.0]))
    with pytest.raises(ConfigError, match="not finite"):
        t_e_process(np.array([math.nan, 1.0]))
