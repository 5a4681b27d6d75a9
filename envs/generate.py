"""Datasets that the project makes by itself: scripted behaviours in the native systems, one behaviour an episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.unpacking import check_free
from surefoot.cuda_ext.system import System
from surefoot.envs.native import NativeVectorEnv
from surefoot.envs.systems import system as find_system

Array = np.ndarray[Any, Any]
Rows = dict[str, Array]

COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations", "costs", "margins")
BLOCK = 1 << 19
"""Transitions recorded at once: bounds the memory beside the dataset itself."""


def generate(
    name: str, seed: int = 0, transitions: int = 50_000, behaviour: str = "mixed", gap: str | None = None
) -> dict[str, Any]:
    """A dataset recorded by scripted behaviours, one behaviour an episode, in shuffled order.

    Args:
        name: of a system, as `native/quadrotor-2d` or `surefoot/Quadrotor2D-v0`.
        seed: of initial states, noise and order, from 0 to 2^32 - 1; the same seed gives the same bits.
        transitions: rounded up to whole episodes.
        behaviour: a mixture ("mixed": visibly suboptimal) or one behaviour of the system.
        gap: preset of altered dynamics, or None.

    Returns:
        N rows in episode order: `observations`, `next_observations` (N, observation dim) float32, `actions`
        (N, action dim) float32 in the system's units, `rewards`, `margins`, `costs` (N,) float32,
        `terminations`, `truncations` (N,) bool, `diverged` (N,) bool: no transition, the simulation broke down
        there; `env_id`, a string; `behaviours`, the name of each episode's behaviour.

    Raises:
        ConfigError: unknown name, behaviour or gap (nearest names given); transitions or seed out of range, or more
            transitions than the free memory holds.
    """
    system = find_system(name)
    if transitions < 1 or not 0 <= seed < 1 << 32:
        raise ConfigError(f"transitions is {transitions} and seed {seed}; at least 1, and 0 to 4294967295, are needed")
    shares = shares_of(system, behaviour)
    parts: list[Rows] = []
    names: list[str] = []
    for rows, block_names in _blocks(system, shares, seed, transitions, gap):
        if not parts:  # all are there in parts, and joined
            each = sum(part.nbytes for part in rows.values()) / len(rows["rewards"])
            check_free(f"{system.alias}: {transitions:,} transitions", int(2 * each * transitions), ConfigError)
        parts.append(rows)
        names += block_names
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    ends = np.flatnonzero(columns["terminations"] | columns["truncations"])
    episodes = int(np.searchsorted(ends, transitions - 1)) + 1
    kept = {key: value[: ends[episodes - 1] + 1] for key, value in columns.items()}
    return {**kept, "env_id": system.gym_id, "behaviours": names[:episodes]}


def shares_of(system: System, behaviour: str) -> Mapping[str, float]:
    """{behaviour: share of the episodes} of a mixture, or of a behaviour by itself.

    Raises:
        ConfigError: neither has that name.
    """
    if behaviour in system.mixtures:
        return system.mixtures[behaviour]
    if behaviour in system.behaviours:
        return {behaviour: 1.0}
    known = [*system.mixtures, *system.behaviours]
    raise ConfigError(f"{system.alias} has no behaviour {behaviour!r}; {nearest(behaviour, known)}")


def _blocks(
    system: System, shares: Mapping[str, float], seed: int, transitions: int, gap: str | None
) -> Iterator[tuple[Rows, list[str]]]:
    """Whole episodes, block by block, until there are enough rows; how many a block takes, earlier blocks tell."""
    recorded = episodes = 0
    while recorded < transitions:
        length = recorded / episodes if episodes else system.max_steps
        count = int(np.ceil(1.05 * (transitions - recorded) / length)) + 1
        count = min(count, max(1, BLOCK // system.max_steps))
        generator = np.random.default_rng([seed, episodes])
        names = generator.permutation(_names(shares, count))
        rows = _record(system, names, (seed * 0x9E3779B1 + episodes) % (1 << 32), generator, gap)
        recorded += len(rows["rewards"])
        episodes += count
        yield rows, names.tolist()


def _names(shares: Mapping[str, float], episodes: int) -> Array:
    """Each episode's behaviour: shares by largest remainder, so that they are met to within one episode."""
    exact = np.array(list(shares.values())) * episodes
    counts = np.floor(exact).astype(int)
    short = episodes - counts.sum()
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return np.repeat(list(shares), counts)


def _record(system: System, names: Array, seed: int, generator: np.random.Generator, gap: str | None) -> Rows:
    """One episode of each behaviour in `names`, side by side; (sum of the lengths, ...) rows in episode order."""
    count = len(names)
    env = NativeVectorEnv(system, count, gap=gap)
    observations, _ = env.reset(seed=[(seed + i) % (1 << 32) for i in range(count)])
    rows_of = {behaviour: np.flatnonzero(names == behaviour) for behaviour in sorted(set(names.tolist()))}
    low, high = np.array(system.action_low, np.float32), np.array(system.action_high, np.float32)
    steps: dict[str, list[Array]] = {}
    while env.active.any():
        actions = np.zeros((count, len(system.actions)), dtype=np.float32)
        for behaviour, rows in rows_of.items():
            actions[rows] = system.behaviours[behaviour](observations[rows], generator)
        actions = np.clip(actions, low, high)
        moved = env.active.copy()
        new, rewards, terminations, truncations, info = env.step(actions)
        step = {
            "observations": observations,
            "actions": actions,
            "rewards": rewards.astype(np.float32),
            "next_observations": info.get("final_obs", new),
            "terminations": terminations,
            "truncations": truncations & ~terminations,
            "costs": info["cost"],
            "margins": info["margin"],
            "diverged": info["diverged"],
            "moved": moved,
        }
        for key, value in step.items():
            steps.setdefault(key, []).append(value)
        env.active &= ~(terminations | truncations)
        observations = new
    # (steps, episodes, ...) -> rows in episode order, without those of episodes that had ended
    flat = {key: np.swapaxes(np.stack(value), 0, 1) for key, value in steps.items()}
    kept = flat.pop("moved")
    return {key: np.ascontiguousarray(value[kept]) for key, value in flat.items()}
