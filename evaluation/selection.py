"""What choosing by noisy scores costs: winners' curse, rank correlation, regret, estimates without a simulator."""

from __future__ import annotations

import functools
import math

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation.statistics import Array


@functools.cache
def expected_maximum(count: int) -> float:
    """E max of `count` independent standard normal numbers: 0 of 1, 1.163 of 5, 1.867 of 20.

    The winner of `count` equal configurations, chosen by the mean of S seeds with standard deviation s, scores
    s expected_maximum(count) / sqrt(S) more on those seeds than on new ones.
    """
    if count < 1:
        raise ConfigError(f"the maximum of {count} numbers is not defined; give at least 1")
    from scipy.special import ndtr  # a second to import, which training workers spare

    x = np.linspace(-12, 12, 48_001)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    values = x * count * density * ndtr(x) ** (count - 1)
    return float(values.sum() * (x[1] - x[0]))


def rank_correlation(values: Array, estimates: Array) -> float:
    """Spearman's rho of (N,) true values and estimates; ties have their mean rank. nan where one side is constant."""
    v, e = _pair(values, estimates)
    a, b = _ranks(v) - (len(v) - 1) / 2, _ranks(e) - (len(v) - 1) / 2
    scale = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else math.nan


def regret_at(k: int, values: Array, estimates: Array) -> float:
    """(max V - max V among the k highest estimates) / (max V - min V), 0 to 1; 0 where all values are equal.

    Where estimates tie for the last of the k places, the mean over all choices among them: the order of the policies is
    no knowledge.
    """
    v, e = _pair(values, estimates)
    if not 1 <= k <= len(v):
        raise ConfigError(f"k is {k}; choose from 1 to {len(v)} of {len(v)} policies")
    last = np.sort(e)[-k]
    sure, tied = v[e > last], np.sort(v[e == last])
    places = k - len(sure)
    best = np.maximum(tied, sure.max(initial=-math.inf))  # of the k, where this is the highest of the tied ones taken
    ways = np.array([math.comb(i, places - 1) for i in range(len(tied))], np.float64)
    spread = float(v.max() - v.min())
    return float(v.max() - best @ (ways / ways.sum())) / spread if spread > 0 else 0.0


def doubly_robust(ratios: Array, rewards: Array, values: Array, q_values: Array, discount: float) -> Array:
    """Value of one episode from each of its steps on, (T,): v_t = V_t + rho_t (r_t + discount v_{t+1} - Q_t).

    Args:
        ratios: (T,) density of the action under the policy over that under the behaviour.
        rewards: (T,).
        values: (T,) estimates V of the policy's value.
        q_values: (T,) estimates Q at the actions taken.
        discount: in [0, 1].

    Source: Jiang and Li, "Doubly robust off-policy value evaluation for reinforcement learning" (2016), equation 10.
    """
    columns = [np.asarray(column, dtype=np.float64).reshape(-1) for column in (ratios, rewards, values, q_values)]
    if len({len(column) for column in columns}) > 1:
        raise ConfigError("ratios, rewards, values and q_values must have one number for each step of the episode")
    result, later = np.zeros(len(columns[0])), 0.0
    for t in range(len(result) - 1, -1, -1):
        rho, reward, value, q = (column[t] for column in columns)
        later = value + rho * (reward + discount * later - q)
        result[t] = later
    return result


class Bandit:
    """Upper confidence bounds over policies that are tried out one episode at a time (Auer et al., 2002).

    The first tries are in the order given, so that an offline ranking is worth something where episodes are few; of the
    policies that were tried, and of no others, the one with the best mean is the answer.

    Args:
        policies: how many, best guess first.
        low, high: returns that count as 0 and 1, for the bound knows no units; they widen as returns come in.
    """

    def __init__(self, policies: int, low: float, high: float) -> None:
        if policies < 1 or not (math.isfinite(low) and math.isfinite(high)) or low > high:
            raise ConfigError(f"{policies} policies with returns from {low:g} to {high:g}: nothing to choose from")
        self.returns: list[list[float]] = [[] for _ in range(policies)]
        self.low, self.high = low, high

    @property
    def episodes(self) -> int:
        """How many were given."""
        return sum(map(len, self.returns))

    def next(self) -> int:
        """The policy to try next."""
        untried = [i for i, seen in enumerate(self.returns) if not seen]
        if untried:
            return untried[0]
        span = self.high - self.low or 1.0
        bounds = [
            (float(np.mean(seen)) - self.low) / span + math.sqrt(2 * math.log(self.episodes + 1) / len(seen))
            for seen in self.returns
        ]
        return int(np.argmax(bounds))

    def tell(self, policy: int, value: float) -> None:
        """The return of one of its episodes."""
        self.returns[policy].append(value)
        self.low, self.high = min(self.low, value), max(self.high, value)

    @property
    def answer(self) -> int:
        """The tried policy with the best mean."""
        means = [float(np.mean(seen)) if seen else -math.inf for seen in self.returns]
        return int(np.argmax(means))


def tuning_curve(
    returns: Array, policies: int, pulls: int, trials: int, generator: np.random.Generator, scale: bool = True
) -> Array:
    """What trying policies out online one episode at a time finds: (trials, pulls) true mean of the best one so far.

    Upper confidence bounds (Auer et al., 2002): mean + sqrt(2 log t / n), each policy first tried in a random order.
    Of the policies that were tried, and of no others, the one with the best mean so far is the answer.

    Args:
        returns: (P, E) episode returns of P trained policies.
        policies: drawn without replacement for each trial.
        pulls: episodes that are played, each a stored return with replacement.
        trials: repetitions. They share the P policies, so their spread says nothing of new training seeds.
        generator: of all draws.
        scale: returns to [0, 1] for the bound, which knows no units.

    Source of the protocol: Jackson, Berdica, Liesen, Whiteson and Foerster, "A clean slate for offline reinforcement
    learning" (2025).
    """
    table = np.asarray(returns, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all() or not 1 <= policies <= len(table) or pulls < 1 or trials < 1:
        raise ConfigError(f"returns must be finite (policies, episodes), and policies from 1 to {len(table)}")
    low, spread = (float(table.min()), float(np.ptp(table)) or 1.0) if scale else (0.0, 1.0)
    chosen = generator.permuted(np.tile(np.arange(len(table)), (trials, 1)), axis=1)[:, :policies]
    true = table.mean(axis=1)[chosen]
    sums, counts, rows = np.zeros((trials, policies)), np.zeros((trials, policies)), np.arange(trials)
    curve = np.zeros((trials, pulls))
    for t in range(1, pulls + 1):
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = np.where(counts > 0, sums / counts + np.sqrt(2 * math.log(t) / counts), np.inf)
        arm = (np.where(bound == bound.max(axis=1, keepdims=True), generator.random(bound.shape), -1)).argmax(axis=1)
        episode = generator.integers(table.shape[1], size=trials)
        sums[rows, arm] += (table[chosen[rows, arm], episode] - low) / spread
        counts[rows, arm] += 1
        with np.errstate(invalid="ignore"):
            means = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
        curve[:, t - 1] = true[rows, means.argmax(axis=1)]
    return curve


def _ranks(values: Array) -> Array:
    unique, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    del unique
    return np.asarray((np.cumsum(counts) - (counts + 1) / 2)[place])


def _pair(values: Array, estimates: Array) -> tuple[Array, Array]:
    v, e = (np.asarray(part, dtype=np.float64).reshape(-1) for part in (values, estimates))
    if len(v) != len(e) or len(v) == 0 or not (np.isfinite(v).all() and np.isfinite(e).all()):
        raise ConfigError(f"{len(v)} values and {len(e)} estimates: give one finite estimate for each policy")
    return v, e
