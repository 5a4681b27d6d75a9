"""Errands in six rooms with and without counterfactual rows, at equal steps.

    python benchmarks/reward_machines.py               # compute what is missing, then write results/reward_machines.md
    python benchmarks/reward_machines.py --only dqn
    python benchmarks/reward_machines.py --table       # only the table
    python benchmarks/reward_machines.py --quick       # one small cell, for CI

The rooms are examples/rooms.py, the errands formulas. Tables of values are learned by the published settings (Toro
Icarte et al., JAIR 2022: learning rate .1, epsilon .1, discount .9, values 2 at first), from the library's machines;
DQN by the library's loop. A cell is solved at the first of three evaluations in a row whose greedy policy earns 95 % of
what value iteration on the exact product of rooms and machine says; evaluations are 250 steps apart, of DQN 1,000.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from cells import Results
from study import Cell, git_commit, study_main

from surefoot.core.base.random import generator
from surefoot.envs.objectives import Machine, objective
from surefoot.envs.objectives.wrapper import potentials
from surefoot.envs.training import make_training
from surefoot.evaluation import hierarchical_interval
from surefoot.online import ALGORITHMS, spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
from rooms import HEIGHT, MOVES, PLACES, START, WIDTH, neighbor

ERRANDS = {
    "coffee": "F(coffee & F office) & G !plant",
    "mail": "F(mail & F office) & G !plant",
    "both": "F(coffee & F office) & F(mail & F office) & G !plant",
    "round": "F(coffee & F(office & F(mail & F office))) & G !plant",
}
ARMS = {
    "plain": (False, "none"),
    "shaped": (False, "value"),
    "CRM": (True, "none"),
    "CRM, shaped": (True, "value"),
    "CRM, shaped by -v": (True, "negative_value"),
}
"""Name -> counterfactual rows, shaping."""
DEEP = ("plain", "CRM")
SEEDS, STEPS, EVERY, EPISODE = tuple(range(5)), 400_000, 250, 100
DEEP_SEEDS, DEEP_STEPS, DEEP_EVERY, DEEP_ERRAND = (0, 1, 2), 16_000, 1_000, "both"
RATE, EPSILON, DISCOUNT, FIRST, WANTED = 0.1, 0.1, 0.9, 2.0, 0.95
DQN = {"hidden": (64,), "num_envs": 4, "initial_steps": 200, "updates_per_step": 0.5, "epsilon_steps": 4_000,
       "last_epsilon": 0.1, "learning_rate": 1e-3, "target_every": 100, "discount": DISCOUNT}  # fmt: skip

TO = np.array(
    [[x + WIDTH * y for x, y in (neighbor((cell % WIDTH, cell // WIDTH), m) for m in range(len(MOVES)))]
     for cell in range(WIDTH * HEIGHT)]
)  # fmt: skip
"""(cells, moves) the cell that a move leads to."""
BEGIN = START[0] + WIDTH * START[1]


def letters(machine: Machine) -> np.ndarray[Any, Any]:
    """(cells,) the letter of a step that leads to each cell."""
    found = np.zeros(WIDTH * HEIGHT, np.int64)
    for name in machine.propositions:
        for x, y in PLACES[name]:
            found[x + WIDTH * y] |= machine.letter([name])
    return found


def best(machine: Machine, discount: float = DISCOUNT) -> float:
    """The highest discounted return from the start, by value iteration on the product."""
    letter, values = letters(machine)[TO], np.zeros((machine.live, WIDTH * HEIGHT))
    states = np.arange(machine.live)[:, None, None]
    after, rewards = machine.following[states, letter[None]], machine.rewards[states, letter[None]]
    alive = after < machine.live
    for _ in range(500):
        ahead = np.where(alive, values[np.minimum(after, machine.live - 1), TO[None]], 0.0)
        values = (rewards + discount * ahead).max(-1)
    return float(values[machine.start, BEGIN])


def earned(machine: Machine, choose: Any, discount: float = DISCOUNT) -> float:
    """The discounted return of a policy, (state, cell) -> move, in an episode."""
    letter, state, cell, total, weight = letters(machine), machine.start, BEGIN, 0.0, 1.0
    for _ in range(EPISODE):
        cell = int(TO[cell, choose(state, cell)])
        total += weight * machine.rewards[state, letter[cell]]
        state, weight = int(machine.following[state, letter[cell]]), weight * discount
        if state >= machine.live:
            break
    return total


def solved(scores: Sequence[float], optimum: float, every: int) -> int | None:
    """The steps after which three evaluations in a row reach what is wanted; None: they never do."""
    good = [score >= WANTED * optimum for score in scores]
    return next((every * (i + 1) for i in range(len(good) - 2) if all(good[i : i + 3])), None)


def tabular(errand: str, arm: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Q-learning on cells and states of the machine; ends once it is solved."""
    machine, (crm, shaping) = objective(ERRANDS[errand]), ARMS[arm]
    letter, optimum, source = letters(machine), best(machine), generator(seed, "acting")
    phi = potentials(machine, shaping, DISCOUNT)
    after, alive = machine.following[: machine.live].T, (machine.following[: machine.live] < machine.live).T
    rewards = machine.rewards[: machine.live].T.copy()
    if phi is not None:
        rewards += DISCOUNT * phi[after] - phi[: machine.live]
    inside = np.minimum(after, machine.live - 1)
    q = np.full((WIDTH * HEIGHT, machine.live, len(MOVES)), FIRST)
    every, scores = np.arange(machine.live), list[float]()
    state, cell, age = machine.start, BEGIN, 0
    start = time.process_time()
    for step in range(1, steps + 1):
        own = q[cell, state]
        highest = np.flatnonzero(own == own.max())
        move = int(source.integers(len(MOVES)) if source.random() < EPSILON else source.choice(highest))
        to, age = int(TO[cell, move]), age + 1
        one = letter[to]
        states = every if crm else np.array([state])
        target = rewards[one, states] + DISCOUNT * alive[one, states] * q[to, inside[one, states]].max(-1)
        q[cell, states, move] += RATE * (target - q[cell, states, move])
        state, cell = int(after[one, state]), to
        if state >= machine.live or age == EPISODE:
            state, cell, age = machine.start, BEGIN, 0
        if step % EVERY == 0:
            scores.append(earned(machine, lambda u, c: int(q[c, u].argmax())))
            if solved(scores, optimum, EVERY) is not None:
                break
    return _facts(machine, solved(scores, optimum, EVERY), scores, optimum, start)


def deep(arm: str, seed: int, steps: int = DEEP_STEPS) -> dict[str, Any]:
    """DQN by the library's loop and environments."""
    torch.set_num_threads(1)
    machine, crm = objective(ERRANDS[DEEP_ERRAND]), ARMS[arm][0]
    name = f"objective:rooms:Rooms?formula={quote(ERRANDS[DEEP_ERRAND])}&labels=rooms:labels"
    env = make_training(name, int(DQN["num_envs"]))  # type: ignore[call-overload]
    agent: Any = ALGORITHMS["dqn"](spec_of(env), **DQN, counterfactual=crm)
    loop = OffPolicyLoop([agent.fresh(seed)], [seed], env, planned_steps=steps, batch_size=64, kernels=True)
    optimum, scores, start = best(machine), list[float](), time.process_time()
    cells = torch.eye(WIDTH * HEIGHT)
    while loop.step < steps and solved(scores, optimum, DEEP_EVERY) is None:
        loop.run(DEEP_EVERY)
        ones = torch.from_numpy(machine.one_hot(np.arange(machine.live)))
        with torch.no_grad():
            seen = torch.cat([cells.repeat(machine.live, 1), ones.repeat_interleave(len(cells), 0)], 1)
            moves = loop.learner.extract(0).critic(seen).argmax(-1).view(machine.live, -1).tolist()
        scores.append(earned(machine, lambda u, c, moves=moves: moves[u][c]))
    return _facts(machine, solved(scores, optimum, DEEP_EVERY), scores, optimum, start)


def _facts(machine: Machine, at: int | None, scores: list[float], optimum: float, start: float) -> dict[str, Any]:
    return {"solved": at, "states": machine.live, "optimum": optimum, "scores": [round(one, 4) for one in scores],
            "seconds": round(time.process_time() - start, 1), "git": git_commit()}  # fmt: skip


def cells() -> list[Cell]:
    """All cells, a seed of all arms before the next."""
    return [
        *(Cell(f"{errand}-{arm}-s{seed}", functools.partial(tabular, errand, arm, seed))
          for seed in SEEDS for errand in ERRANDS for arm in ARMS),
        *(Cell(f"dqn-{arm}-s{seed}", functools.partial(deep, arm, seed)) for seed in DEEP_SEEDS for arm in DEEP),
    ]  # fmt: skip


def row(found: Results, title: str, stem: str, arms: Sequence[str], seeds: Sequence[int], steps: int) -> str:
    """Steps to the solution of each arm, and how many times quicker CRM is."""
    entries, kept = [], {}
    for arm in ARMS:
        own = [found.get(f"{stem}-{arm}-s{seed}") for seed in seeds]
        there = [one for one in own if one is not None]
        if arm not in arms:
            entries.append("")
            continue
        taken = [steps if one["solved"] is None else one["solved"] for one in there]
        if not taken:
            entries.append("missing")
            continue
        kept[arm] = dict(zip(seeds, taken, strict=False)) if len(there) == len(seeds) else {}
        missed = sum(one["solved"] is None for one in there)
        entries.append(f"{np.median(taken):,.0f}" + (f" ({missed} of {len(there)} not)" if missed else ""))
    ratio = "missing"
    if kept.get("plain") and kept.get("CRM"):
        logs = [float(np.log(kept["plain"][seed] / kept["CRM"][seed])) for seed in seeds]
        interval = hierarchical_interval([np.array([one]) for one in logs])
        low, high = (float(np.exp(end)) for end in (interval.low, interval.high))
        ratio = f"{np.exp(np.mean(logs)):.1f} [{low:.1f}, {high:.1f}]"
    return f"| {title} | {' | '.join(entries)} | {ratio} |"


def table(found: Results) -> list[str]:
    """A row an errand."""
    return [
        "# Errands in six rooms, with and without counterfactual rows",
        "",
        f"Steps until the greedy policy earns {WANTED:.0%} of the optimum, medians of {len(SEEDS)} seeds (DQN: "
        f"{len(DEEP_SEEDS)}); a seed that does not within {STEPS:,} steps (DQN: {DEEP_STEPS:,}) counts as that many. "
        "`times`: how many times as long it takes without counterfactual rows, geometric mean over paired seeds "
        "[95 %]; a bound from below where seeds are not solved. Written by `python benchmarks/reward_machines.py`, "
        "which says what the settings are.",
        "",
        f"| errand | {' | '.join(ARMS)} | times |",
        "|---|" + "---|" * (len(ARMS) + 1),
        *(row(found, f"{name}: `{text}`", name, tuple(ARMS), SEEDS, STEPS) for name, text in ERRANDS.items()),
        row(found, f"DQN, {DEEP_ERRAND}", "dqn", DEEP, DEEP_SEEDS, DEEP_STEPS),
    ]


def quick_cell() -> dict[str, Any]:
    """A few steps of both kinds of learners."""
    return {"tabular": tabular("coffee", "CRM", 0, 500)["scores"], "dqn": deep("CRM", 0, 400)["scores"]}


if __name__ == "__main__":
    study_main(__doc__, "reward_machines", cells(), table, Cell("quick", quick_cell))
