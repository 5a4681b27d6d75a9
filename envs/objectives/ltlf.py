"""Linear temporal logic over finite traces: a formula as the smallest machine that says what its words mean.

Source: De Giacomo and Vardi, "Linear Temporal Logic and Linear Dynamic Logic on Finite Traces" (IJCAI 2013). A letter
leaves of a formula what the rest of the word must satisfy (progression, Bacchus and Kabanza, "Planning for temporally
extended goals", 1998); these rest formulas are the states, and Moore's algorithm merges those that no rest of a word
distinguishes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.envs.objectives.formulas import FALSE, TRUE, Formula, parse
from surefoot.envs.objectives.machine import MOST_STATES, Machine

Array = np.ndarray[Any, Any]
Clause = frozenset[Formula]
"""Formulas that must all hold of the rest; none of them is a conjunction or a disjunction."""
Rest = frozenset[Clause]
"""Clauses of which one must hold: none of them is false, and an empty one is true."""

MOST_RESTS, MOST_CLAUSES = 4 * MOST_STATES, 2_000
"""States before minimization, and clauses of one of them."""
_NOT_OVER, _OVER = Formula("until", (TRUE, TRUE)), Formula("release", (FALSE, FALSE))
"""Whether there is a next letter, and whether there is none."""
_TRUE, _FALSE = Rest([Clause()]), Rest()


@dataclasses.dataclass(frozen=True)
class Automaton:
    """A deterministic automaton that reads letters, its start being state 0."""

    propositions: tuple[str, ...]
    following: Array
    """(S, 2^K) int64."""
    accepting: Array
    """(S,) bool: whether a word may end there."""

    @property
    def absorbing(self) -> Array:
        """(S,) bool: states that no letter leaves."""
        found: Array = (self.following == np.arange(len(self.accepting))[:, None]).all(1)
        return found

    @property
    def co_safe(self) -> bool:
        """Whether a word that is accepted stays so, however it continues."""
        return bool(self.absorbing[self.accepting].all())

    @property
    def safe(self) -> bool:
        """Whether a word that is not accepted stays so, however it continues."""
        return bool(self.absorbing[~self.accepting].all())

    @property
    def dead(self) -> Array:
        """(S,) bool: states from which no word is accepted."""
        alive = self.accepting
        while True:
            more = alive | alive[self.following].any(1)
            if np.array_equal(more, alive):
                return ~alive
            alive = more

    def accepts(self, word: Sequence[int]) -> bool:
        """Whether a word of letters, numbers as of `Machine`, satisfies the formula."""
        state = 0
        for letter in word:
            state = int(self.following[state, letter])
        return bool(self.accepting[state])


def automaton_of(formula: Formula, propositions: Sequence[str] | None = None) -> Automaton:
    """The minimal automaton of a formula.

    Args:
        formula: of at most `MOST_ATOMS` propositions.
        propositions: in the order of a letter's bits; None: those of the formula in alphabetical order.

    Raises:
        ConfigError: more than `MOST_RESTS` states before minimization.
    """
    names = tuple(sorted(formula.atoms()) if propositions is None else propositions)
    progression = _Progression(names)
    rests, table, index = {_rest_of(formula): 0}, [], 0
    found = list(rests)
    while index < len(rests):
        rest = found[index]
        row = np.full(1 << len(names), -1)
        while (missing := np.flatnonzero(row < 0)).size:
            letter = int(missing[0])
            after, read = progression.rest(rest, letter)
            if after not in rests:
                rests[after] = len(found)
                found.append(after)
            row[(progression.letters & read) == (letter & read)] = rests[after]
        if len(rests) > MOST_RESTS:
            raise _too_large(formula)
        table.append(row)
        index += 1
    accepting = np.array([_at_end(rest) for rest in rests])
    return _minimal(Automaton(names, np.stack(table), accepting))


def _too_large(formula: Formula) -> ConfigError:
    return ConfigError(f"the formula {formula} needs more than {MOST_RESTS:,} states: split it, or write a machine")


# -- progression ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=20_000)
def _all(parts: tuple[Rest, ...]) -> Rest:
    """The conjunction, multiplied out."""
    found = _TRUE
    for part in parts:
        found = _simple(one | other for one in found for other in part)
    return found


@functools.lru_cache(maxsize=20_000)
def _any(parts: tuple[Rest, ...]) -> Rest:
    return _simple(clause for part in parts for clause in part)


def _simple(clauses: Any) -> Rest:
    """Without clauses that contradict themselves, and without those that another one implies."""
    kept: list[Clause] = []
    for clause in sorted(set(clauses), key=len):
        if len(kept) > MOST_CLAUSES:
            raise ConfigError(f"a formula has more than {MOST_CLAUSES:,} alternatives: split it, or write a machine")
        if not _contradicts(clause) and not any(one <= clause for one in kept):
            kept.append(clause)
    return Rest(kept)


def _contradicts(clause: Clause) -> bool:
    if _NOT_OVER in clause and _OVER in clause:
        return True
    return any(one.kind == "not" and one.parts[0] in clause for one in clause)


def _rest_of(formula: Formula) -> Rest:
    """A formula that the rest of a word must satisfy, as clauses."""
    if formula.kind in ("true", "false"):
        return _TRUE if formula.kind == "true" else _FALSE
    if formula.kind in ("and", "or"):
        return (_all if formula.kind == "and" else _any)(tuple(_rest_of(part) for part in formula.parts))
    return Rest([Clause([formula])])


class _Progression:
    """What letters leave of formulas, with the bits of the letter that were read for it: others make no difference."""

    def __init__(self, names: Sequence[str]) -> None:
        self.bits = {name: 1 << k for k, name in enumerate(names)}
        self.letters = np.arange(1 << len(names))
        self.known: dict[Formula, dict[int, dict[int, Rest]]] = {}
        """Formula -> bits that were read -> their values -> the rest."""

    def rest(self, rest: Rest, letter: int) -> tuple[Rest, int]:
        """What the word behind a letter must satisfy."""
        found, read = [], 0
        for clause in rest:
            part, bits = self._conjunction(list(clause), letter)
            found.append(part)
            read |= bits
        return _any(tuple(dict.fromkeys(found))), read

    def _conjunction(self, parts: Sequence[Formula], letter: int) -> tuple[Rest, int]:
        found, read = [], 0
        for one in parts:
            part, bits = self.of(one, letter)
            read |= bits
            if not part:
                return _FALSE, bits  # whatever the others are
            found.append(part)
        return _all(tuple(found)), read

    def of(self, formula: Formula, letter: int) -> tuple[Rest, int]:
        """The same of one formula."""
        known = self.known.setdefault(formula, {})
        for bits, rests in known.items():
            if letter & bits in rests:
                return rests[letter & bits], bits
        found, read = self._of(formula, letter)
        known.setdefault(read, {})[letter & read] = found
        return found, read

    def _of(self, formula: Formula, letter: int) -> tuple[Rest, int]:
        kind, parts = formula.kind, formula.parts
        if kind in ("true", "false"):
            return _rest_of(formula), 0
        if kind in ("atom", "not"):
            bit = self.bits[formula.name if kind == "atom" else parts[0].name]
            return _TRUE if bool(letter & bit) == (kind == "atom") else _FALSE, bit
        if kind == "and":
            return self._conjunction(parts, letter)
        if kind == "next":
            return _all((_rest_of(parts[0]), _rest_of(_NOT_OVER))), 0
        if kind == "weak":
            return _any((_rest_of(parts[0]), _rest_of(_OVER))), 0
        if kind == "or":
            return self.rest(Rest(Clause([part]) for part in parts), letter)
        second, read = self.of(parts[1], letter)
        again = _rest_of(formula)
        if second == (_TRUE if kind == "until" else _FALSE):
            return second, read
        first, more = self.of(parts[0], letter)
        if kind == "until":  # it can't be met by the end: `_at_end` of it is False
            return _any((second, _all((first, again)))), read | more
        return _all((second, _any((first, again)))), read | more


def _at_end(rest: Rest) -> bool:
    """Whether nothing more needs to come: no proposition, nor its negation, holds in a word without letters."""
    return any(all(one.kind in ("weak", "release") for one in clause) for clause in rest)


# -- minimization --------------------------------------------------------------------------------------------


def _minimal(automaton: Automaton) -> Automaton:
    """Moore's algorithm: the coarsest classes that acceptance and letters respect, in the order of a walk from 0."""
    classes = automaton.accepting.astype(np.int64)
    while True:
        signature = np.concatenate([classes[:, None], classes[automaton.following]], 1)
        finer = np.unique(signature, axis=0, return_inverse=True)[1].reshape(-1)
        if finer.max() == classes.max() and len(np.unique(finer)) == len(np.unique(classes)):
            break
        classes = finer
    first = {int(label): int(np.flatnonzero(classes == label)[0]) for label in np.unique(classes)}
    order, place = [int(classes[0])], 0
    while place < len(order):
        for label in dict.fromkeys(classes[automaton.following[first[order[place]]]].tolist()):
            if label not in order:
                order.append(label)
        place += 1
    number = {label: i for i, label in enumerate(order)}
    rows = [first[label] for label in order]
    renamed = np.vectorize(number.__getitem__, otypes=[np.int64])(classes[automaton.following[rows]])
    return Automaton(automaton.propositions, renamed, automaton.accepting[rows])


# -- objectives ----------------------------------------------------------------------------------------------


def conjuncts(formula: Formula) -> list[Formula]:
    """The parts of a conjunction, of which all must hold; of any other formula itself."""
    if formula.kind != "and":
        return [formula]
    return [one for part in formula.parts for one in conjuncts(part)]


def objective(text: str, source: str = "objective") -> Machine:
    """The machine of a formula: reward 1 where it is met, cost 1 where it can't be met any more.

    A formula must be co-safe (what is met stays met: made of F, U, X), safe (what is violated stays so: made of G, R,
    N), or a conjunction of such. Where there is a co-safe part, the reward is 1 in the step that satisfies the formula
    and 0 elsewhere, and the episode ends there, or where the formula can't be satisfied any more. A formula that is
    only safe keeps the environment's reward and its episodes.

    Args:
        text: in the grammar of `formulas`.
        source: what messages call it.

    Raises:
        ConfigError: it is no formula, has more than 12 propositions, is always or never met, or is neither of the
            above.
    """
    formula = parse(text, source)
    found = automaton_of(formula)
    if bool(found.dead[0]) or (len(found.accepting) == 1):
        always = bool(found.accepting[0])
        raise ConfigError(f"{source}: {text!r} is {'always' if always else 'never'} satisfied: nothing to learn")
    co_safe, safe = found.co_safe, found.safe
    if not co_safe and not safe:
        parts = [(one, automaton_of(one)) for one in conjuncts(formula)]
        for one, automaton in parts:
            if not automaton.co_safe and not automaton.safe:
                raise ConfigError(
                    f"{source}: {one} is decided only when the episode ends, so that no step before can be rewarded "
                    "for it: state what must happen (F, U) and what must never (G !...), or write a machine "
                    "(docs/objectives.md)"
                )
    constraint_only = safe and not co_safe
    if not constraint_only and bool(found.accepting[0]):
        raise ConfigError(f"{source}: {text!r} is satisfied before the first step: nothing to learn")
    over = found.dead | (found.accepting & (not constraint_only))
    if constraint_only:
        over = np.zeros_like(over)
    order = np.concatenate([np.flatnonzero(~over), np.flatnonzero(over)])
    place = np.argsort(order)
    following = place[found.following[order]]
    accepting, dead = found.accepting[order], found.dead[order]
    enters_dead = dead[following] & ~dead[:, None]
    enters_goal = accepting[following] & ~accepting[:, None] & (not constraint_only)
    live = int((~over).sum())
    following[live:] = np.arange(live, len(order))[:, None]  # nothing follows an end
    enters_goal[live:] = enters_dead[live:] = False
    goal = accepting & (not constraint_only)
    states = tuple("satisfied" if goal[i] else "violated" if dead[i] else f"q{i}" for i in range(len(order)))
    return Machine(
        found.propositions,
        states,
        int(place[0]),
        following,
        enters_goal.astype(np.float64),
        enters_dead.astype(np.float64),
        live,
        accepting,
        1.0 if constraint_only else 0.0,
    )
