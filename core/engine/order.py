"""An agent's ordered list of updates and rules, checked against what it names, and what it reads counted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Rule, Update, is_due

Order = Sequence[Update | Rule]


def updates_of(order: Order) -> list[Update]:
    """The updates, each once: one may stand in the list twice."""
    found: list[Update] = []
    for entry in order:
        if isinstance(entry, Update) and entry not in found:
            found.append(entry)
    return found


def check_names(agent: str, order: Order, networks: Collection[str], buffers: Collection[str]) -> None:
    """Make sure that networks and losses are named rightly.

    Args:
        agent: its name.
        order: its list.
        networks: names of the agent's networks.
        buffers: full names of its buffers.

    Raises:
        ConfigError: an unknown network, two updates with one loss, or a network trained twice together.
    """
    holders = {name.split(".")[0] for name in buffers}
    for entry in order:
        moves = (
            {**entry.target_updates, **entry.pre_step_targets} if isinstance(entry, Update) else entry.target_updates
        )
        names = [*moves, *(source for source, _ in moves.values())]
        names += entry.trains if isinstance(entry, Update) else entry.changes
        known = {*networks} if isinstance(entry, Update) else {*networks, *holders}
        for name in names:
            if name not in known:
                raise ConfigError(f"{entry.name}: no network {name!r}; there are {sorted(networks)}")
    updates = updates_of(order)
    for update in updates:
        odd = [name for name in update.follows if name not in buffers]
        odd += [name for name in update.factors if name not in update.trains]
        if odd:
            raise ConfigError(f"{update.name}: no buffer, or none of the networks that it trains, is {odd[0]!r}")
    losses = [update.name for update in updates]
    if len(set(losses)) < len(losses):  # reports and saved optimisers go by the loss's name
        raise ConfigError(f"{agent}: two updates have the same loss, {sorted(losses)}")
    group: set[str] = set()
    for update in updates:
        group = group if update.simultaneous else set()
        if group & set(update.trains):  # a network has room for one gradient
            raise ConfigError(f"{update.name}: {sorted(group & set(update.trains))} is trained twice together")
        group |= set(update.trains)


def rows_of_sources(agent: str, order: Order, sources: Collection[str], batch_size: int) -> dict[str, int]:
    """Source -> rows that it gives a training step: the most that one of its readers sees.

    Raises:
        ConfigError: there is no such source.
    """
    found: dict[str, int] = {}
    for entry in order:
        for name in entry.sources:
            if name not in sources:
                raise ConfigError(f"{agent}: {entry.name} reads the source {name!r}; there are {sorted(sources)}")
            found[name] = max(found.get(name, 0), _rows(entry, batch_size))
    return found


def noise_of(agent: str, order: Order, batch_size: int) -> tuple[dict[str, Noise], dict[str, int]]:
    """The random numbers of all updates by name, and as many rows of each as the update with the most reads.

    A rule's are drawn when it is taken, which may be seldom and for many rows.

    Raises:
        ConfigError: two entries mean different numbers by one name.
    """
    noises: dict[str, Noise] = {}
    rows: dict[str, int] = {}
    for entry in updates_of(order):
        for name, noise in entry.noise.items():
            if noises.setdefault(name, noise) != noise:
                raise ConfigError(
                    f"{agent}: {entry.name} reads {name!r} as {noise}, and another update as {noises[name]}; give one "
                    "of them another name"
                )
            each = entry.repeat if noise.whole_batch else _rows(entry, batch_size) * len(entry.sources)
            rows[name] = max(rows.get(name, 0), each)
    return noises, rows


def check_switches(agent: str, updates: Sequence[Update], buffers: Mapping[str, Tensor]) -> None:
    """Make sure that what updates are not taken for are () bool buffers, and that no schedule would count them.

    Raises:
        ConfigError: they are not.
    """
    for update in updates:
        if update.unless is None:
            continue
        found = buffers.get(update.unless)
        if found is None or found.dtype != torch.bool or found.dim() != 1:
            raise ConfigError(f"{agent}: {update.name} has unless={update.unless!r}, which is no () bool buffer of it")
        if update.optimizer.schedule != "constant":
            raise ConfigError(f"{agent}: {update.name} has both unless= and a schedule, which counts planned steps")


def check_writes(agent: str, updates: Sequence[Update], sources: Mapping[str, object]) -> None:
    """Make sure that sources which are written to take what they are given, of the rows that they gave.

    Raises:
        ConfigError: they do not, or the update is taken on parts of the rows alone.
    """
    for update in updates:
        for name in update.writes:
            if name not in update.sources or not hasattr(sources[name], "write"):
                raise ConfigError(f"{agent}: {update.name} writes to {name!r}, which is no source of it that has write")
            if update.repeat > 1 or update.rows is not None:
                raise ConfigError(f"{agent}: {update.name} writes to {name!r} and so has neither repeat= nor rows=")


def switched_off(updates: Sequence[Update], buffers: Mapping[str, Tensor]) -> frozenset[int]:
    """Numbers of the updates whose `unless` is true of all seeds just now; none of them on the meta device."""
    found = {i: buffers[u.unless] for i, u in enumerate(updates) if u.unless is not None}
    return frozenset(i for i, buffer in found.items() if not buffer.is_meta and bool(buffer.all()))


def due_at(
    group: Sequence[int | Rule], updates: Sequence[Update], step: int, planned: int, off: frozenset[int]
) -> list[list[int] | Rule]:
    """What a training step does, in order: numbers of updates that follow each other, taken at once, and rules.

    Args:
        group: numbers of updates, and rules.
        updates: by their numbers.
        step: 1 is the first.
        planned: the last planned one.
        off: updates that are not taken.
    """
    due: list[list[int] | Rule] = []
    for entry in group:
        if isinstance(entry, Rule):
            if is_due(entry, step) or (entry.last and step == planned):
                due.append(entry)
        elif entry not in off and is_due(updates[entry], step):
            if due and isinstance(due[-1], list):
                due[-1].append(entry)
            else:
                due.append([entry])
    return due


def _rows(entry: Update | Rule, batch_size: int) -> int:
    return (entry.rows or batch_size) * (entry.repeat if isinstance(entry, Update) else 1)
