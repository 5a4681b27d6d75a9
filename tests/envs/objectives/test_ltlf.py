"""Formulas over finite traces: their grammar, their automata beside the semantics, the objectives that they make."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.envs.objectives.formulas import parse
from surefoot.envs.objectives.ltlf import Automaton, automaton_of, objective

Tree = tuple[Any, ...]
ATOMS = ("a", "b", "c")


def automaton(text: str) -> Automaton:
    return automaton_of(parse(text))


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("F a", 2),
        ("G !c", 2),
        ("F(a & F b)", 3),
        ("F a & F b", 4),
        ("!c U g", 3),
        ("F a & F b & G !c", 5),
        ("F(a & X F b)", 3),
        ("G(a -> F b)", 2),
    ],
)
def test_automata_are_minimal(text: str, states: int) -> None:
    assert len(automaton(text).accepting) == states


# -- the semantics, written down once more -------------------------------------------------------------------


def drawn(source: random.Random, depth: int) -> Tree:
    """A random formula, as a tree of its operators."""
    if depth == 0:
        return ("atom", source.choice(ATOMS))
    sign = source.choice(("!", "&", "|", "->", "X", "N", "F", "G", "U", "R", "atom"))
    if sign == "atom":
        return drawn(source, 0)
    return (sign, *(drawn(source, depth - 1) for _ in range(1 if sign in "!XNFG" else 2)))


def written(tree: Tree) -> str:
    sign = tree[0]
    if sign == "atom":
        return str(tree[1])
    inner = [f"({written(part)})" for part in tree[1:]]
    return f"{sign} {inner[0]}" if len(inner) == 1 else f"{inner[0]} {sign} {inner[1]}"


def satisfied(tree: Tree, word: list[set[str]], i: int) -> bool:
    """Whether the suffix of a word from position i on, which is not empty, satisfies a formula."""
    sign, parts, last = tree[0], tree[1:], len(word) - 1

    def at(part: Tree, j: int) -> bool:
        return satisfied(part, word, j)

    match sign:
        case "atom":
            return parts[0] in word[i]
        case "!":
            return not at(parts[0], i)
        case "&":
            return at(parts[0], i) and at(parts[1], i)
        case "|":
            return at(parts[0], i) or at(parts[1], i)
        case "->":
            return at(parts[1], i) if at(parts[0], i) else True
        case "X":
            return i < last and at(parts[0], i + 1)
        case "N":
            return i == last or at(parts[0], i + 1)
        case "F":
            return any(at(parts[0], j) for j in range(i, last + 1))
        case "G":
            return all(at(parts[0], j) for j in range(i, last + 1))
        case "U":
            return any(at(parts[1], j) and all(at(parts[0], k) for k in range(i, j)) for j in range(i, last + 1))
        case "R":
            return all(at(parts[1], j) or any(at(parts[0], k) for k in range(i, j)) for j in range(i, last + 1))
    raise AssertionError(sign)


def test_automata_agree_with_the_semantics_on_random_words() -> None:
    source = random.Random(0)
    accepted = total = 0
    for _ in range(120):
        tree = drawn(source, 3)
        found = automaton_of(parse(written(tree)), ATOMS)
        for _ in range(30):
            letters = [source.randrange(8) for _ in range(source.randint(1, 7))]
            word = [{name for k, name in enumerate(ATOMS) if letter >> k & 1} for letter in letters]
            wanted = satisfied(tree, word, 0)
            assert found.accepts(letters) == wanted, (written(tree), word)
            accepted, total = accepted + wanted, total + 1
    assert 0.2 * total < accepted < 0.8 * total


def test_no_two_states_of_an_automaton_mean_the_same() -> None:
    source = random.Random(1)
    for _ in range(40):
        found = automaton_of(parse(written(drawn(source, 3))), ATOMS)
        states = len(found.accepting)
        apart = found.accepting[:, None] != found.accepting[None, :]
        for _ in range(states):
            apart = apart | apart[found.following[:, None, :], found.following[None, :, :]].any(-1)
        assert apart.sum() == states * (states - 1)


def test_next_and_weak_next_differ_at_the_end_of_a_word_alone() -> None:
    strong, weak = automaton("X a"), automaton("N a")
    assert (strong.accepts([0]), weak.accepts([0])) == (False, True)
    for word in ([0, 0], [0, 1], [1, 0], [1, 1, 0]):
        assert strong.accepts(word) == weak.accepts(word) == bool(word[1])


def test_names_may_be_parts_of_each_other_and_operators_bind_as_documented() -> None:
    assert parse("F mail & G !mailbox").atoms() == {"mail", "mailbox"}
    assert parse("a -> b -> c") == parse("a -> (b -> c)")
    assert parse("a | b & c U a") == parse("a | (b & (c U a))")
    assert parse("!F a") == parse("G !a")
    assert parse("Fa").atoms() == {"Fa"}  # one name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "character 1"),
        ("F", "character 2"),
        ("a &", "character 4"),
        ("(a", "character 3"),
        ("a b", "character 3"),
        ("a & __import__('os')", "character 16"),
        ("a & U", "character 5"),
        ("a -> $b", "character 6"),
        ("(" * 101 + "a" + ")" * 101, "nested deeper"),
        ("a" * 4_001, "at most 4,000"),
        (" & ".join(f"F p{i}" for i in range(13)), "13 propositions, at most 12"),
    ],
)
def test_what_is_no_formula_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


def test_twelve_propositions_are_read_in_good_time() -> None:
    chain = "F p11"
    for i in range(10, -1, -1):
        chain = f"F (p{i} & {chain})"
    assert len(automaton(chain).accepting) == 13


# -- objectives ----------------------------------------------------------------------------------------------


def test_a_conjunction_pays_once_where_it_is_met_and_costs_once_where_it_can_not_be() -> None:
    machine = objective("F(sample & F dock) & G !zone")
    assert machine.propositions == ("dock", "sample", "zone")
    assert (machine.live, machine.states[2:]) == (2, ("satisfied", "violated"))
    state, sums = machine.start, np.zeros(2)
    for true in ([], ["dock"], ["sample"], [], ["dock"]):
        letter = machine.letter(true)
        sums += machine.rewards[state, letter], machine.costs[state, letter]
        state = int(machine.following[state, letter])
    assert (machine.states[state], *sums) == ("satisfied", 1, 0)
    for true in (["zone"], ["zone", "dock", "sample"]):
        letter = machine.letter(true)
        after = machine.following[machine.start, letter]
        assert machine.states[after] == "violated"
        assert (machine.rewards[machine.start, letter], machine.costs[machine.start, letter]) == (0, 1)
    assert machine.environment_reward == 0
    assert machine.letter(["sample", "dock"]) == 3


def test_a_constraint_alone_keeps_the_environments_reward_and_episodes() -> None:
    machine = objective("G !zone")
    assert (machine.live, machine.environment_reward, len(machine.states)) == (2, 1, 2)
    assert not machine.rewards.any()
    assert machine.costs.tolist() == [[0, 1], [0, 0]]
    assert machine.progress() is None


def test_bounded_deadlines_are_objectives() -> None:
    """Within three steps: X is strong, so that a word that ends before fails."""
    machine = objective("g | X (g | X g)")
    state = machine.start
    for _ in range(3):
        state = int(machine.following[state, 0])
    assert machine.states[state] == "violated"
    assert machine.live == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("G(a -> F b)", "decided only when the episode ends"),
        ("F c & G(a -> F b)", "decided only when the episode ends"),
        ("true", "always satisfied"),
        ("a & !a", "never satisfied"),
        ("N N a | true", "always satisfied"),
    ],
)
def test_what_no_step_can_be_rewarded_for_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        objective(text)
