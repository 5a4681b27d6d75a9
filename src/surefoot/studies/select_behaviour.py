"""Importance sampling beside the critics of `studies.select`: the behaviour's density, and estimates by it."""

from __future__ import annotations

import numpy as np

from surefoot.core.base.actions import to_agent
from surefoot.data.dataset import Array
from surefoot.evaluation import off_policy
from surefoot.offline.evaluation.least_squares_q import Critics, LeastSquaresJudge

KNOWN_DENSITY = "behaviour_log_density"
"""Name of the extra column of the log-density of each recorded action, in the units of actions, where it is known."""


class Behaviour:
    """Density of the recorded actions: known, or of a clone with Gaussian errors, ridge regression on the features."""

    def __init__(self, judge: LeastSquaresJudge) -> None:
        self.judge, self.data = judge, judge.dataset
        self.actions = np.clip(to_agent(self.data.actions, judge.low, judge.high), -1, 1).astype(np.float64)
        mean = judge.cloned(self.actions)
        self.deviation = np.maximum((self.actions - mean).std(0), 0.02)
        known = self.data.extras.get(KNOWN_DENSITY)
        if known is None:
            self.log_density = self._density(mean)
        else:  # of actions in their own units, where those of the ratios are half the range
            half = (np.asarray(judge.high, np.float64) - judge.low) / 2
            self.log_density = np.asarray(known, np.float64).reshape(-1) + np.log(half).sum()

    def _density(self, mean: Array) -> Array:
        """(N,) log-density of the recorded actions under Gaussians of the behaviour's width around `mean`."""
        errors = ((self.actions - mean) / self.deviation) ** 2
        return np.asarray(-(0.5 * errors + np.log(self.deviation) + 0.5 * np.log(2 * np.pi)).sum(1))

    def estimates(self, critics: Critics, here: Array, after: Array) -> tuple[float, float, float]:
        """Doubly robust and per-decision estimate of a policy with the behaviour's noise, and episodes behind them.

        The critics are of the policy alone. That costs no bias within episodes where the ratios are right, since V is
        their Q's mean over the noise. Behind the step at which an episode was cut off the policy has no noise, which is
        a bias where the discounted rest counts: episodes that are short beside 1 / (1 - discount).
        """
        data, discount = self.data, self.judge.config.discount
        scaled = np.clip(to_agent(here, self.judge.low, self.judge.high), -1, 1)
        ratios = np.exp(np.clip(self._density(scaled) - self.log_density, -20, 20))
        cut = np.flatnonzero(data.truncations)  # what would have followed is the critics' to say
        rewards = data.rewards.astype(np.float64)
        rewards[cut] += discount * critics.values(data.next_observations[cut], after[cut], self.deviation).mean(0)
        columns = {
            "rewards": rewards,
            "values": critics.values(data.observations, here, self.deviation).mean(0),
            "q_values": critics.values(data.observations, data.actions).mean(0),
        }
        table, mask = off_policy.padded(ratios, data.episode_starts, 1.0)
        parts = {name: off_policy.padded(column, data.episode_starts)[0] for name, column in columns.items()}
        robust = off_policy.doubly_robust_value(
            table, parts["rewards"], mask, parts["values"], parts["q_values"], discount
        )
        importance = off_policy.per_decision(table, parts["rewards"], mask, discount)
        return robust, importance, off_policy.effective_episodes(table, mask)
