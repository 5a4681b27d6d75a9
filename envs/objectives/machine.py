"""Reward machines: what earlier steps mean for the reward, as a table of states and of sets of true propositions.

Source: Toro Icarte, Klassen, Valenzano and McIlraith, "Reward Machines: Exploiting Reward Function Structure in
Reinforcement Learning" (JAIR 2022). At each step the propositions that hold are a letter; the machine moves on by it,
and the move has a reward and a cost.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.files import read_json
from surefoot.core.base.schema import Many, Number, Record, Text, check
from surefoot.envs.objectives.formulas import MOST_ATOMS, NAME, RESERVED, Formula, guard, holds

Array = np.ndarray[Any, Any]

MOST_STATES = 512
OTHERWISE = ("stay", "end")
UNFORESEEN = "(no transition)"
"""State that a letter without a transition leads to, where `otherwise` is end."""

_MOVE = Record(
    {"from": Text(100), "when": Text(), "to": Text(100)},
    {"reward": Number(-1e9, 1e9), "cost": Number(0, 1e9)},
)
FORMAT = Record(
    {"start": Text(100), "transitions": Many(_MOVE, 1, 20_000)},
    {
        "propositions": Many(Text(100), 0, MOST_ATOMS),
        "accepting": Many(Text(100), 0, MOST_STATES),
        "ends": Many(Text(100), 0, MOST_STATES),
        "otherwise": Text(among=OTHERWISE),
        "environment_reward": Number(-1e9, 1e9),
    },
    newest=1,
)
"""What a machine's file holds."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """A reward machine with U states over K propositions; letter l has proposition k where bit k of l is 1.

    States that end an episode come last, and an agent sees the others as a one-hot vector.
    """

    propositions: tuple[str, ...]
    states: tuple[str, ...]
    """Names of the U states."""
    start: int
    following: Array
    """(U, 2^K) int64: the state after a letter."""
    rewards: Array
    """(U, 2^K) float64: of that move."""
    costs: Array
    """(U, 2^K) float64, 0 or above."""
    live: int
    """How many states, the first ones, don't end an episode."""
    accepting: Array
    """(U,) bool: states in which the objective is met; those of a machine's file end the episode."""
    environment_reward: float = 0.0
    """Weight of the environment's own reward, which is added."""

    @property
    def has_costs(self) -> bool:
        """Whether any move costs something."""
        return bool((self.costs > 0).any())

    def one_hot(self, states: Array) -> Array:
        """(N, `live`) float32 of (N,) states; zeros where a state ends the episode."""
        found = np.zeros((len(states), self.live), np.float32)
        here = np.flatnonzero(states < self.live)
        found[here, states[here]] = 1
        return found

    def letter(self, true: Sequence[str]) -> int:
        """The letter in which exactly these propositions hold.

        Raises:
            ConfigError: one is none of the machine's.
        """
        found = 0
        for name in true:
            if name not in self.propositions:
                raise ConfigError(f"{name!r} is no proposition of the machine: {nearest(name, self.propositions)}")
            found |= 1 << self.propositions.index(name)
        return found

    def values(self, discount: float) -> Array:
        """(U,) float64: the highest discounted sum of the machine's rewards from each state, if letters come at will.

        The environment's reward counts as 0, and so does what follows an end. Letters are `steps_ahead`'s.

        Raises:
            ConfigError: the discount is not in [0, 1).
        """
        if not 0 <= discount < 1:
            raise ConfigError(f"discount is {discount}: values of a machine's states need one in [0, 1)")
        found, letters = np.zeros(len(self.states)), self.steps_ahead()
        rewards, following = self.rewards[:, letters], self.following[:, letters]
        scale = max(1.0, float(np.abs(rewards).max()))
        while True:
            better = (rewards + discount * found[following]).max(1)
            better[self.live :] = 0
            change, found = float(np.abs(better - found).max()), better
            if change * discount <= 1e-12 * scale * (1 - discount) or change == 0:
                return found

    def progress(self) -> Array | None:
        """(U,) float64 in [0, 1]: how much of the fewest moves from the start to a state that accepts is behind each.

        0 where none can be reached, and None where there is nothing to reach from the start.
        """
        moves = self._moves(self.steps_ahead())
        first = moves[self.start]
        if not np.isfinite(first) or first == 0:
            return None
        found: Array = np.clip(1 - np.where(np.isfinite(moves), moves, first) / first, 0, 1)
        return found

    def steps_ahead(self) -> Array:
        """(L,) letters that plans on the machine alone consider.

        Those with one proposition at most, if a state that accepts can be reached by them: that coffee and the office
        are reached in one step is a letter too, and would make what is between them worth nothing. Else all.
        """
        letters = np.arange(self.following.shape[1])
        single = np.array([int(letter).bit_count() <= 1 for letter in letters])
        reached = np.isfinite(self._moves(letters[single])[self.start])
        return letters[single] if reached else letters

    def _moves(self, letters: Array) -> Array:
        """(U,) fewest moves by these letters to a state that accepts; infinite where there is no way."""
        moves = np.where(self.accepting, 0.0, np.inf)
        while True:
            ahead = moves[self.following[:, letters]].min(1) + 1
            ahead[self.live :] = np.inf
            better = np.minimum(moves, ahead)
            if np.array_equal(better, moves):
                return moves
            moves = better


def read_machine(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object of a machine's file, checked.

    Raises:
        ConfigError, CheckpointError: there is no such file, it is no JSON, or no machine (`machine_of`).
    """
    value: dict[str, Any] = read_json(path)
    machine_of(value, str(path))
    return value


def machine_of(value: Any, source: str = "machine") -> Machine:
    """The machine that a JSON object describes (docs/objectives.md).

    Args:
        value: with `start` and `transitions`, each `from`, `when` (a guard: !, &, |, -> of propositions), `to`, and
            `reward` and `cost`, which are 0 by default; `accepting`, states that end an episode in success; `ends`,
            others that end it; `otherwise`, what a letter without a transition does: "stay" (default) or "end";
            `environment_reward`, the weight of the environment's own reward (default 0); `propositions`, to fix
            their order.
        source: the file, for messages.

    Raises:
        ConfigError: it is none; the message names the field.
    """
    check(value, FORMAT, source, ConfigError)
    moves = [
        (one, guard(one["when"], f"{source}: transitions[{i}].when")) for i, one in enumerate(value["transitions"])
    ]
    propositions = _propositions(value, [formula for _, formula in moves], source)
    stated = (*value.get("accepting", ()), *value.get("ends", ()))
    names = list(dict.fromkeys((value["start"], *(s for one, _ in moves for s in (one["from"], one["to"])))))
    for state in stated:
        if state not in names:
            raise ConfigError(
                f"{source}: no transition leads to the state {state!r}, which is stated to end episodes; "
                f"{nearest(state, names)}"
            )
    if value["start"] in stated:
        raise ConfigError(f"{source}: the start, {value['start']!r}, ends the episode: no step would be taken")
    if value.get("otherwise") == "end":
        names.append(UNFORESEEN)
    over = {*stated, UNFORESEEN}
    states = [name for name in names if name not in over] + [name for name in names if name in over]
    if len(states) > MOST_STATES:
        raise ConfigError(f"{source}: {len(states)} states, at most {MOST_STATES}")
    live, letters = sum(name not in over for name in states), 1 << len(propositions)
    following = np.repeat(np.arange(len(states))[:, None], letters, 1)
    if UNFORESEEN in states:
        following[:live] = states.index(UNFORESEEN)
    rewards, costs = np.zeros((2, len(states), letters))
    taken = np.full((len(states), letters), -1)
    for i, (one, formula) in enumerate(moves):
        if one["from"] in over:
            raise ConfigError(
                f"{source}: transitions[{i}] leaves {one['from']!r}, where the episode has ended: leave it out"
            )
        here, where = states.index(one["from"]), table_of(formula, propositions)
        double = where & (taken[here] >= 0)
        if double.any():
            letter = int(np.flatnonzero(double)[0])
            true = [name for k, name in enumerate(propositions) if letter >> k & 1]
            raise ConfigError(
                f"{source}: transitions[{taken[here, letter]}] and transitions[{i}] both leave {one['from']!r} where "
                f"{' and '.join(true) or 'nothing'} holds: make their guards exclude each other",
                field=f"transitions[{i}].when",
                code="conflict",
            )
        taken[here, where] = i
        following[here, where] = states.index(one["to"])
        rewards[here, where], costs[here, where] = one.get("reward", 0.0), one.get("cost", 0.0)
    return Machine(
        propositions,
        tuple(states),
        states.index(value["start"]),
        following,
        rewards,
        costs,
        live,
        np.array([name in value.get("accepting", ()) for name in states]),
        float(value.get("environment_reward", 0.0)),
    )


def _propositions(value: Mapping[str, Any], guards: Sequence[Formula], source: str) -> tuple[str, ...]:
    """Those that are declared, or those of the guards in alphabetical order."""
    used = sorted(frozenset[str]().union(*(formula.atoms() for formula in guards)))
    declared = value.get("propositions", used)
    for name in declared:
        if not NAME.fullmatch(name) or name in RESERVED:
            raise ConfigError(
                f"{source}: {name!r} can't name a proposition: letters, digits and _, and none of {RESERVED}"
            )
    for name in used:
        if name not in declared:
            raise ConfigError(
                f"{source}: a guard has {name!r}, which is not among the propositions: {nearest(name, list(declared))}"
            )
    if len(declared) > MOST_ATOMS or len(set(declared)) < len(declared):
        raise ConfigError(f"{source}: propositions must be at most {MOST_ATOMS} different names")
    return tuple(declared)


def table_of(formula: Formula, propositions: Sequence[str]) -> Array:
    """(2^K,) bool: in which letters a guard holds."""
    own = [k for k, name in enumerate(propositions) if name in formula.atoms()]
    values = [
        holds(formula, frozenset(propositions[k] for bit, k in enumerate(own) if small >> bit & 1))
        for small in range(1 << len(own))
    ]
    return np.array(values)[projected(len(propositions), own)]


def projected(count: int, kept: Sequence[int]) -> Array:
    """(2^count,) int64: each letter as a letter of the `kept` propositions alone."""
    letters = np.arange(1 << count)
    found = np.zeros_like(letters)
    for bit, k in enumerate(kept):
        found |= (letters >> k & 1) << bit
    return found
