"""Fitted-Q evaluation in closed form: least squares on random features, with a bootstrap over blocks of episodes.

Q(s, a) = w . phi(s, a), phi random Fourier features (Rahimi and Recht, "Random features for large-scale kernel
machines", 2007). The fixed point of fitted-Q evaluation is then that of LSTD-Q (Lagoudakis and Parr, "Least-squares
policy iteration", 2003), (Phi' D (Phi - gamma Phi_next) + l I) w = Phi' D r, and no number of steps has to be chosen.
Both sides are sums over blocks of episodes, so that many weighted resamples of the blocks (a Bayesian bootstrap, Rubin,
1981) cost one pass over the data. Features and resamples are those of the judge, whatever policy it judges: two
policies are compared member by member.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import DataError
from surefoot.core.base.options import Options, option
from surefoot.core.base.random import generator
from surefoot.core.base.spec import in_words
from surefoot.data.dataset import Array, Dataset
from surefoot.data.prepare import discounted_returns

PART = 8_192
"""Rows whose features are made at once."""
LEAST_EPISODES = 10
"""Of data that policies can be judged on."""


@dataclasses.dataclass(frozen=True)
class LeastSquaresQConfig(Options):
    """Settings of least-squares fitted-Q evaluation."""

    discount: float = option(0.99, "discount factor", range="[0, 1)")
    features: int = option(512, "number of random features", range=">= 1")
    draws: int = option(2, "draws of the features: as many ensembles, together one", range=">= 1")
    resamples: int = option(12, "resamples of the blocks of episodes, for each draw", range=">= 2")
    blocks: int = option(20, "blocks", range=">= 1")
    width: float = option(1.0, "width of the kernel, in medians of the distance between rows")
    ridge: float = option(1e-3, "ridge of the regression, relative to the mean square of a feature")
    rows: int = option(
        30_000,
        "rows of the data at most, in whole episodes; of long ones as many as a least number of episodes takes",
        range=">= 1",
    )


class LeastSquaresJudge:
    """Fitted-Q evaluation of several policies on one dataset; the features and the resamples are shared by them.

    Args:
        dataset: transitions of one observation vector, rewards unscaled.
        low, high: (A,) bounds of actions.
        seed: of features and resamples.
        config: of the method.

    Raises:
        DataError: observations are images or several arrays.
    """

    def __init__(
        self, dataset: Dataset, low: Array, high: Array, seed: int = 0, config: LeastSquaresQConfig | None = None
    ) -> None:
        if dataset.observation_dim == 0:
            raise DataError(
                f"{dataset.name}: fitted Q learns from one vector, and observations are {in_words(dataset.arrays)}: "
                "evaluate the policies in their environment"
            )
        self.config = c = config or LeastSquaresQConfig()
        self.dataset = dataset = thinned(dataset, c.rows, seed)
        self.low, self.high = low, high
        self.mean, self.deviation = dataset.observations.mean(0), dataset.observations.std(0) + 1e-3
        episodes = len(dataset.episode_lengths)
        blocks = min(c.blocks, episodes)
        self.block = generator(seed, "blocks").permutation(episodes) % blocks  # (E,)
        drawn = generator(seed, "bootstrap").exponential(size=(blocks, c.resamples))
        self.weights = drawn / drawn.mean(0)  # (G, R)
        self.here = self._points(dataset.observations, dataset.actions)
        self.maps = [self._map(seed, k) for k in range(c.draws)]
        self.rows = np.flatnonzero(dataset.transitions)

    def _points(self, observations: Array, actions: Array) -> Array:
        """(n, d) float32: normalised observations and actions in [-1, 1]."""
        scaled = np.clip(to_agent(actions, self.low, self.high), -1, 1)
        return np.concatenate([(observations - self.mean) / self.deviation, scaled], 1).astype(np.float32)

    def _map(self, seed: int, k: int) -> tuple[Array, Array]:
        """Frequencies (d, F) and phases (F,) of one draw of the features."""
        drawn = generator(seed, "features", k)
        some = self.here[drawn.integers(len(self.here), size=(2, 1_000))]
        median = float(np.median(np.linalg.norm(some[0] - some[1], axis=1))) or 1.0
        size = (self.here.shape[1], self.config.features)
        frequencies = drawn.standard_normal(size) / (self.config.width * median)
        return frequencies.astype(np.float32), drawn.uniform(0, 2 * np.pi, size[1]).astype(np.float32)

    def _features(self, points: Array, k: int) -> Array:
        """(n, F + 1) features, the last constant."""
        frequencies, phases = self.maps[k]
        waves = np.cos(points @ frequencies + phases) * np.float32(np.sqrt(2 / len(phases)))
        return np.concatenate([waves, np.ones((len(points), 1), np.float32)], 1)

    def fit(self, following: Array) -> Critics:
        """The critics of a policy that does `following`, (N, A), at the next observations of `self.dataset`."""
        d, c = self.dataset, self.config
        after = self._points(d.next_observations, following)
        going_on = (c.discount * ~d.terminations).astype(np.float32)[:, None]
        groups, size = len(self.weights), c.features + 1
        ridge = c.ridge * len(self.rows) * (1 - c.discount + 1 / c.features) * np.eye(size)
        solved = []
        for k in range(c.draws):
            left, right = np.zeros((groups, size, size)), np.zeros((groups, size))
            for g in range(groups):
                mine = self.rows[self.block[d.episode_ids[self.rows]] == g]
                for begin in range(0, len(mine), PART):
                    rows = mine[begin : begin + PART]
                    now = self._features(self.here[rows], k)
                    left[g] += now.T @ (now - going_on[rows] * self._features(after[rows], k))
                    right[g] += now.T @ d.rewards[rows]
            solved.append([np.linalg.solve(np.tensordot(w, left, 1) + ridge, w @ right) for w in self.weights.T])
        return Critics(self, np.asarray(solved))

    def data(self) -> Critics:
        """The critics of the data's own behaviour: the next action is that of the next row.

        The last row of an episode that was cut off has no next action; its own stands in for it.
        """
        actions, last = self.dataset.actions, self.dataset.episode_starts[1:] - 1
        following = np.concatenate([actions[1:], actions[-1:]])
        following[last] = actions[last]
        return self.fit(following)

    def sampled(self, per_episode: Array) -> Array:
        """(draws x resamples,) means of an (E,) quantity of the episodes, over the members' resamples."""
        counts = np.bincount(self.block, minlength=len(self.weights))
        sums = np.bincount(self.block, weights=per_episode, minlength=len(self.weights))
        return np.tile((self.weights.T @ sums) / (self.weights.T @ counts), self.config.draws)

    def cloned(self, targets: Array) -> Array:
        """(N, A) ridge regression of (N, A) targets on features of the observations alone, at the data's rows."""
        points = self.here.copy()
        points[:, self.dataset.observation_dim :] = 0
        size = self.config.features + 1
        left, right = np.zeros((size, size)), np.zeros((size, targets.shape[1]))
        for begin in range(0, len(points), PART):
            now = self._features(points[begin : begin + PART], 0)
            left += now.T @ now
            right += now.T @ targets[begin : begin + PART]
        weights = np.linalg.solve(left + 1e-4 * len(points) / self.config.features * np.eye(size), right)
        parts = [self._features(points[b : b + PART], 0) @ weights for b in range(0, len(points), PART)]
        return np.concatenate(parts)

    @property
    def firsts(self) -> Array:
        """(E, d) first observation of each episode."""
        return np.asarray(self.dataset.observations[self.dataset.episode_starts[:-1]])


@dataclasses.dataclass(frozen=True)
class Critics:
    """The members' values of one policy, in reward units."""

    judge: LeastSquaresJudge
    weights: Array  # (draws, resamples, F + 1)

    def values(self, observations: Array, actions: Array, noise: Array | None = None) -> Array:
        """(draws x resamples, n) of (n, d) observations and (n, A) actions, in the data's units.

        With `noise`, (A,) deviations in half ranges, the expectation over Gaussian actions around these, which bounds
        don't cut: E cos(w (a + e) + b) = exp(-(w s)^2 / 2) cos(w a + b).
        """
        points = self.judge._points(observations, actions)
        found = np.empty((len(points), self.weights.shape[0] * self.weights.shape[1]))
        weighed = self.weights if noise is None else self.weights * self._damping(noise)[:, None]
        for begin in range(0, len(points), PART):
            rows = slice(begin, begin + PART)
            parts = [self.judge._features(points[rows], k) @ weights.T for k, weights in enumerate(weighed)]
            found[rows] = np.concatenate(parts, 1)
        return found.T

    def _damping(self, noise: Array) -> Array:
        """(draws, F + 1) what noise of the actions leaves of each feature."""
        waves = [frequencies[-len(noise) :] * noise[:, None] for frequencies, _ in self.judge.maps]
        return np.asarray([np.append(np.exp(-0.5 * (one**2).sum(0)), 1.0) for one in waves])

    def value(self, first_actions: Array) -> Array:
        """Each member's mean from the first states, (draws x resamples,), where the policy does `first_actions`."""
        judge, c = self.judge, self.judge.config
        found = self.values(judge.firsts, first_actions)
        return np.asarray([judge.sampled(found[m])[m] for m in range(c.draws * c.resamples)])


@dataclasses.dataclass(frozen=True)
class OwnReturns:
    """What data returned themselves, discounted from their first states, beside what the critics say of the same.

    A time limit ends no task: with what was cut off there the behaviour's critics' value of it is counted.
    """

    reported: Array  # (draws x resamples,) means, over the members' resamples of the judge's data
    stated: Array  # (draws x resamples,) the critics' of the same
    best: float  # of all the data, judged on or not


def own_returns(judge: LeastSquaresJudge, dataset: Dataset) -> OwnReturns:
    """Of a dataset by its own judge, which may have thinned it."""
    own, data = judge.data(), judge.dataset
    reported = judge.sampled(_whole_returns(data, own))
    return OwnReturns(
        reported, own.value(data.actions[data.episode_starts[:-1]]), float(_whole_returns(dataset, own).max())
    )


def _whole_returns(data: Dataset, own: Critics) -> Array:
    """(E,) discounted returns, with the value that the behaviour's critics give to what was cut off."""
    last, discount = data.episode_starts[1:] - 1, own.judge.config.discount
    tails = np.where(data.terminations[last], 0.0, own.values(data.next_observations[last], data.actions[last]).mean(0))
    return discounted_returns(data, discount) + discount**data.episode_lengths * tails


def thinned(dataset: Dataset, rows: int, seed: int) -> Dataset:
    """The dataset, or whole episodes of it drawn at random, `LEAST_EPISODES` and more up to about this many rows."""
    if len(dataset) <= rows:
        return dataset
    order = generator(seed, "episodes").permutation(len(dataset.episode_lengths))
    fitting = int(np.searchsorted(np.cumsum(dataset.episode_lengths[order]), rows, side="right"))
    return dataset.select_episodes(np.sort(order[: max(LEAST_EPISODES, fitting)]))
