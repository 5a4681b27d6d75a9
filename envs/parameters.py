"""Physical constants of N environments: a table of the system's parameters, from defaults, gap presets and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.cuda_ext.system import System
from surefoot.envs.interface import Array, Numbers, as_numpy

Ranges = dict[str, tuple[float, float]]
"""Physical constant -> the least and the most."""


def parameter_table(
    system: System,
    num_envs: int,
    gap: str | Sequence[str | None] | None = None,
    values: Mapping[str, float | Numbers] | None = None,
) -> Array:
    """(N, P) float32 parameters: the defaults, with those of gap presets, with `values` (one number or (N,)) over them.

    Raises:
        ConfigError: unknown gap or name (the nearest is given), a value out of its range, or a list of another length.
    """
    table = np.tile(system.default_parameters().numpy().astype(np.float32), (num_envs, 1))
    gaps = [gap] * num_envs if gap is None or isinstance(gap, str) else list(gap)
    if len(gaps) != num_envs:
        raise ConfigError(f"gap= lists {len(gaps)} presets for {num_envs} environments")
    for name in {one for one in gaps if one is not None}:
        if name not in system.gaps:
            raise ConfigError(f"{system.alias} has no gap {name!r}; {nearest(name, list(system.gaps))}")
        rows = np.array([one == name for one in gaps])
        table[rows] = changed(system, table[rows], system.gaps[name])
    return changed(system, table, values or {})


def changed(system: System, table: Array, values: Mapping[str, Any]) -> Array:
    """The (N, P) table with some columns set, checked against the range of each parameter."""
    names = [parameter.name for parameter in system.parameters]
    for name, value in values.items():
        if name not in names:
            raise ConfigError(f"{system.alias} has no parameter {name!r}; {nearest(name, names)}")
        parameter, column = system.parameters[names.index(name)], as_numpy(value).astype(np.float64)
        if column.shape not in ((), (len(table),)):
            raise ConfigError(f"parameter {name} has shape {column.shape}; one number or ({len(table)},) is needed")
        bad = np.flatnonzero(~((column >= parameter.low) & (column <= parameter.high)))
        if len(bad):
            wrong = column if column.ndim == 0 else column[bad[0]]
            raise ConfigError(
                f"{system.alias}: {name} is {wrong:g}; it must lie in [{parameter.low:g}, {parameter.high:g}] "
                f"{parameter.unit}".rstrip()
            )
        table[:, names.index(name)] = column
    return table


def parameter_ranges(words: Sequence[str], system: System, env_id: str, option: str) -> Ranges:
    """What an option says of ranges, as in `mass=0.5:2,gravity=8:12`.

    Args:
        words: of the option.
        system: whose constants they are.
        env_id: for messages.
        option: as messages begin, such as "--vary ".

    Raises:
        ConfigError: an unknown constant; no range, or one that the system does not allow.
    """
    known = {parameter.name: parameter for parameter in system.parameters}
    ranges: Ranges = {}
    for word in [part for one in words for part in one.split(",")]:
        name, _, text = word.partition("=")
        if name not in known:
            raise ConfigError(f"{option}{word}: {env_id} has no constant {name!r}; {nearest(name, list(known))}")
        try:
            low, high = map(float, text.split(":"))
        except ValueError:
            raise ConfigError(f"{option}{word}: give the least and the most, as in {name}=0.5:2") from None
        least, most = known[name].low, known[name].high
        if name in ranges or not least <= low < high <= most:
            raise ConfigError(
                f"{option}{word}: give each constant once, the least below the most, within [{least:g}, {most:g}]"
            )
        ranges[name] = (low, high)
    return ranges
