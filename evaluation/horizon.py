r"""Effective horizon: how many steps of planning random exploration needs to solve a table, and players that use it.

:math:`Q^1` is the value of acting uniformly at random for the rest of T steps; :math:`Q^{k+1} = r + \max Q^k`. An
agent takes, from the start, any of the actions whose :math:`Q^k` is above that of every action that is not optimal; k
suffices where it meets no state in which there is none. With

.. math::
    \text{gap} &= \max_{a \in A^*} Q^k(s, a) - \max_{a \notin A^*} Q^k(s, a) \\
    \sigma^2 &= \max_a (Q^1 - Q^{worst})(Q^* - Q^{worst}),
        \text{ k - 1 maxima over what follows further on} \\
    m &= \lceil 16\, \sigma^2 / \text{gap}^2 \log(2 T A^k) \rceil, \quad H_k = k + \log_A \max_s m

m random episodes behind each of the :math:`A^k` sequences are enough at every step, so that a task takes about
:math:`T^2 A^{H}` steps of the environment, :math:`H = \min_k H_k`, at most T. Sources: Laidlaw, Russell and Dragan,
"Bridging RL Theory and Practice with the Effective Horizon" (NeurIPS 2023: the measure and GORP) and "The Effective
Horizon Explains Deep RL Performance in Stochastic Environments" (ICLR 2024: k-QVI-solvable, and SQIRL).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.finite_mdp import FiniteMDP

Array = np.ndarray[Any, Any]
TIE = 1e-9
"""Values closer than this share of the largest are equal."""
ROUNDING = 1e-13
"""Likewise of values by Q^k, whose true gaps may be as small as A^-T."""
MOST_NUMBERS = 200_000_000
"""T S A of a table."""
MOST_SEQUENCES = 100_000
"""A^k that GORP tries at a step."""


class Backup(NamedTuple):
    """What k planning steps behind random ones come to."""

    k: int
    episodes: int
    """m, of each sequence."""
    horizon: float
    """H_k."""


@dataclasses.dataclass(frozen=True)
class EffectiveHorizon:
    """The measure of a table."""

    steps: int
    """T."""
    actions: int
    """A."""
    backups: tuple[Backup, ...]
    """Of the k that suffice and could be the least, in order; of a table with chance none, see `solved_by`."""
    solved_by: int | None
    """Least k that suffices; None: none up to T."""
    deterministic: bool
    optimum: float
    """Optimal return from the start."""
    random: float
    """Return of acting uniformly at random."""

    @property
    def horizon(self) -> float | None:
        """H, at most T; None of a table with chance, for which the bound does not hold."""
        if not self.deterministic:
            return None
        return min([float(self.steps), *(one.horizon for one in self.backups)])

    @property
    def best(self) -> Backup | None:
        """The k with the least H_k; None where no H_k is below T."""
        within = [one for one in self.backups if one.horizon < self.steps]
        return min(within, key=lambda one: one.horizon) if within else None

    def to_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "steps": self.steps,
            "actions": self.actions,
            "deterministic": self.deterministic,
            "solved_by": self.solved_by,
            "horizon": self.horizon,
            "backups": [one._asdict() for one in self.backups],
            "optimal_return": self.optimum,
            "random_return": self.random,
        }


def horizon_of(mdp: FiniteMDP, horizon: int | None) -> int:
    """The T that is given, else the table's.

    Raises:
        ConfigError: there is none, or it is below 1.
        DataError: the table has too many states for so many steps.
    """
    steps = mdp.horizon if horizon is None else horizon
    if steps is None:
        raise ConfigError("the table has no horizon: say after how many steps episodes end", field="horizon")
    if steps < 1:
        raise ConfigError(f"horizon is {steps}; it must be at least 1", field="horizon", code="range")
    if steps * mdp.rewards.size > MOST_NUMBERS:
        raise DataError(
            f"{steps:,} steps of {mdp.states:,} states and {mdp.actions} actions are more than {MOST_NUMBERS:,} numbers"
        )
    return steps


def effective_horizon(mdp: FiniteMDP, horizon: int | None = None) -> EffectiveHorizon:
    """The measure of a table over episodes of T steps, undiscounted.

    Args:
        mdp: the table; of one with chance it is found by which k it is solved, without a bound.
        horizon: T; None: the table's.

    Raises:
        ConfigError: no horizon.
        DataError: too many numbers; several first states in a table without chance.
    """
    steps = horizon_of(mdp, horizon)
    if not mdp.deterministic and bool(np.isin(mdp.transitions, (0.0, 1.0)).all()):
        mdp = mdp.as_deterministic()
    if mdp.deterministic and (mdp.first > 0).sum() > 1:
        raise DataError(
            "the measure is of tables with one first state, or of tables with chance; give start as a number"
        )
    best = _values(mdp, steps, lambda q: q.max(-1))
    mean = _values(mdp, steps, lambda q: q.mean(-1))
    largest = max(1.0, float(np.abs(best).max()))
    optimal = best >= best.max(-1, keepdims=True) - TIE * largest
    spread = None
    if mdp.deterministic:
        worst = _values(mdp, steps, lambda q: q.min(-1))
        spread = (mean - worst) * (best - worst)
    values = mean
    found: list[Backup] = []
    solved_by = None
    for k in range(1, steps + 1):
        if found and k >= min(one.horizon for one in found):
            break
        met = _met(mdp, values, optimal, largest)
        if met is not None:
            solved_by = k if solved_by is None else solved_by
            if spread is None:
                break
            found.append(_bound(values, spread, optimal, met, steps, mdp.actions, k))
        values = mdp.rewards + _later(mdp, values.max(-1))
        spread = None if spread is None else _later(mdp, spread.max(-1))
    own = (float(mdp.first @ table[0]) for table in (best.max(-1), mean.mean(-1)))
    return EffectiveHorizon(steps, mdp.actions, tuple(found), solved_by, mdp.deterministic, *own)


def _values(mdp: FiniteMDP, steps: int, of: Any) -> Array:
    """(T, S, A) values where what follows is worth `of` (S, A) values."""
    found = np.empty((steps, *mdp.rewards.shape))
    after = np.zeros(mdp.states)
    for t in reversed(range(steps)):
        found[t] = mdp.rewards + mdp.expected(after)
        after = of(found[t])
    return found


def _later(mdp: FiniteMDP, values: Array) -> Array:
    """(T, S, A) expected (T, S) values of the next step's states; 0 behind the last step."""
    after = np.concatenate([values[1:], np.zeros((1, mdp.states))])
    return np.stack([mdp.expected(one) for one in after])


def _met(mdp: FiniteMDP, values: Array, optimal: Array, largest: float) -> Array | None:
    """(T, S) bool: what the greedy agent may meet; None where an action that is not optimal ties with the best or wins.

    Each action ahead of all that are not optimal is followed: with sampled values any of them may come out first.
    """
    met = np.zeros(values.shape[:2], bool)
    here = mdp.first > 0
    for t in range(len(values)):
        met[t] = here
        wrong = np.where(optimal[t], -np.inf, values[t]).max(-1)
        if (values[t].max(-1) - wrong <= ROUNDING * largest)[here].any():
            return None
        here = _after(mdp, (values[t] > wrong[:, None]) & here[:, None])
    return met


def _after(mdp: FiniteMDP, taken: Array) -> Array:
    """(S,) bool: states that (S, A) bool actions lead to."""
    found = np.zeros(mdp.states, bool)
    if mdp.deterministic:
        found[np.unique(mdp.transitions[taken & (mdp.transitions >= 0)])] = True
        return found
    return np.asarray((mdp.transitions[taken] > 0).any(0)) if taken.any() else found


def _bound(values: Array, spread: Array, optimal: Array, met: Array, steps: int, actions: int, k: int) -> Backup:
    top = np.where(optimal, values, -np.inf).max(-1)
    second = np.where(optimal, -np.inf, values).max(-1)
    several = met & (second > -np.inf)
    ratio = spread.max(-1)[several] / (top - second)[several] ** 2
    log = math.log(2 * steps) + k * math.log(actions)
    episodes = max(1, math.ceil(16 * float(ratio.max()) * log)) if several.any() else 1
    return Backup(k, episodes, k + (math.log(episodes, actions) if actions > 1 else 0.0))


# -- players -------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """What a player came to."""

    value: float
    """Expected return of the policy that it found, from the start."""
    policy: Array
    """(T, S) the action in each state at each step; of a step and state that it never met, action 0."""
    steps: int
    """That it took in the environment."""


def gorp(mdp: FiniteMDP, k: int, episodes: int, generator: np.random.Generator, horizon: int | None = None) -> Played:
    """Greedy over random policy: the first action of the best of all sequences of k, step by step.

    At step t each of the A^k sequences is tried `episodes` times behind what was fixed before, with random actions
    after it; the first action of the sequence with the best mean return is fixed. Of sequences that tie one is drawn,
    where the published code takes the first, which flatters tasks whose first action is right.

    Args:
        mdp: without chance.
        k: at least 1.
        episodes: m, of each sequence.
        generator: of the actions and ties.
        horizon: T; None: the table's.

    Raises:
        ConfigError: a number out of range, more than `MOST_SEQUENCES` sequences.
        DataError: a table with chance.
    """
    steps, mdp = horizon_of(mdp, horizon), mdp.as_deterministic()
    check_player(mdp, k, episodes)
    if mdp.actions ** min(k, steps) > MOST_SEQUENCES:
        raise ConfigError(
            f"{mdp.actions} actions and k {k} make {mdp.actions**k:,} sequences, more than {MOST_SEQUENCES:,}: lower k"
        )
    policy = np.zeros((steps, mdp.states), np.int64)
    state, value, spent = int(np.argmax(mdp.first)), 0.0, 0
    for t in range(steps):
        if state < 0:
            break
        length = min(k, steps - t)
        sequences = np.array(list(itertools.product(range(mdp.actions), repeat=length)))
        now = np.full((len(sequences), episodes), state)
        returns = np.zeros(now.shape)
        for after in range(steps - t):
            fixed = after < length
            acted = (
                np.broadcast_to(sequences[:, after : after + 1], now.shape)
                if fixed
                else generator.integers(mdp.actions, size=now.shape)
            )
            here = now >= 0
            spent += int(here.sum())
            returns += np.where(here, mdp.rewards[now, acted], 0.0)
            now = np.where(here, mdp.transitions[now, acted], -1)
        spent += t * len(sequences) * episodes  # the steps that were fixed before are taken again
        means = returns.mean(1)
        ahead = np.flatnonzero(means >= means.max() - TIE * max(1.0, float(np.abs(means).max())))
        action = int(sequences[generator.choice(ahead), 0])
        policy[t, state] = action
        value += float(mdp.rewards[state, action])
        state = int(mdp.transitions[state, action])
    return Played(value, policy, spent)


def sqirl(mdp: FiniteMDP, k: int, episodes: int, generator: np.random.Generator, horizon: int | None = None) -> Played:
    """Shallow Q-iteration by regression: GORP for tables with chance, here with means as the regression.

    For t = 1 to T: `episodes` episodes act by what was fixed before t and at random from t on. Q^1 at a step is the
    mean return behind a state and action there, Q^j the mean of r + max Q^{j-1} over what followed, of what these
    episodes met; the action of step t is the best by Q^k, drawn among ties.

    Args:
        mdp: with or without chance.
        k: at least 1.
        episodes: m, of each step.
        generator: of actions, chance and ties.
        horizon: T; None: the table's.

    Raises:
        ConfigError: a number out of range.
    """
    steps = horizon_of(mdp, horizon)
    check_player(mdp, k, episodes)
    policy = np.zeros((steps, mdp.states), np.int64)
    spent = 0
    for t in range(steps):
        states, actions, rewards = _episodes(mdp, policy, t, episodes, steps, generator)
        spent += int((states[:-1] >= 0).sum())
        to_go = np.cumsum(rewards[::-1], 0)[::-1]
        value: Array | None = None  # (S,) max of the table of the next step
        for j, step in enumerate(reversed(range(t, min(steps, t + k))), start=1):
            here = states[step] >= 0
            s, a = states[step][here], actions[step][here]
            if value is None or j == 1:
                target = to_go[step][here]
            else:
                following = states[step + 1][here]
                target = rewards[step][here] + np.where(following >= 0, value[following], 0.0)
            table = _means(mdp, s, a, target)
            value = table.max(-1)
            if step == t:
                draw = np.where(table >= table.max(-1, keepdims=True), generator.uniform(size=table.shape), -1.0)
                policy[t] = np.where(np.isfinite(value), draw.argmax(-1), 0)
    return Played(expected_return(mdp, policy), policy, spent)


def _episodes(
    mdp: FiniteMDP, policy: Array, fixed: int, count: int, steps: int, generator: np.random.Generator
) -> tuple[Array, Array, Array]:
    """(T + 1, m) states, -1 behind an end, (T, m) actions and rewards: by the policy before `fixed`, then random."""
    states = np.full((steps + 1, count), -1)
    actions, rewards = np.zeros((steps, count), np.int64), np.zeros((steps, count))
    states[0] = generator.choice(mdp.states, count, p=mdp.first / mdp.first.sum())
    for step in range(steps):
        now, here = states[step], states[step] >= 0
        acted = policy[step, now] if step < fixed else generator.integers(mdp.actions, size=count)
        actions[step] = acted
        rewards[step] = np.where(here, mdp.rewards[now, acted], 0.0)
        if mdp.deterministic:
            following = mdp.transitions[now, acted]
        else:
            shares = np.cumsum(mdp.transitions[now, acted], -1)
            following = (generator.uniform(size=(count, 1)) >= shares).sum(-1)
            following = np.where(following < mdp.states, following, -1)
        states[step + 1] = np.where(here, following, -1)
    return states, actions, rewards


def _means(mdp: FiniteMDP, states: Array, actions: Array, values: Array) -> Array:
    """(S, A) means of what was met, minus infinity of what was not."""
    total, count = np.zeros(mdp.rewards.shape), np.zeros(mdp.rewards.shape)
    np.add.at(total, (states, actions), values)
    np.add.at(count, (states, actions), 1)
    return np.where(count > 0, total / np.maximum(count, 1), -np.inf)


def expected_return(mdp: FiniteMDP, policy: Array) -> float:
    """Undiscounted return from the start of (T, S) actions."""
    after, rows = np.zeros(mdp.states), np.arange(mdp.states)
    for actions in policy[::-1]:
        after = (mdp.rewards + mdp.expected(after))[rows, actions]
    return float(mdp.first @ after)


def check_player(mdp: FiniteMDP, k: int, episodes: int) -> None:
    """Raise ConfigError for numbers that a player can't take."""
    for name, value in (("k", k), ("episodes", episodes)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1", field=name, code="range")


PLAYERS = {"gorp": gorp, "sqirl": sqirl}
"""Name -> player."""
