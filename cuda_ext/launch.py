"""How a rollout on a GPU is launched: the order of the policy's weights, threads and memory, and what is compiled."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.cuda_ext.cubin import Unit
from surefoot.cuda_ext.policy import BEFORE_SQUASH, NativePolicy

THREADS = 128
"""In a block: four warps, which share the weights."""
ENOUGH_BLOCKS = 3
"""Of a multiprocessor that weights in shared memory must leave room for."""
MOST_BLOCKS = 4
"""Of a multiprocessor: more would leave a thread fewer than 128 registers, and its sums would spill."""
ENOUGH_THREADS = 256
"""Of a multiprocessor: fewer warps don't hide the latency of memory."""


# ---- the policy's weights as the kernel reads them ----


@dataclasses.dataclass(frozen=True)
class Layout:
    """`Layout` of rollout.cuh, for all layers: which packed value lies where."""

    index: Tensor
    """(weights,) int64: position in `NativePolicy.packed()` of each value; paddings repeat value 0. To be read only."""
    rows: int
    """Activations of an environment that are kept at once, in blocks of four."""
    widest: int
    """Inputs of the widest layer."""

    @staticmethod
    def of(header: Sequence[int]) -> Layout:
        """Of the policy with this `NativePolicy.header`; made once a shape of policy, since it takes milliseconds."""
        return _layout(tuple(header))

    @staticmethod
    def index_on(device: torch.device, header: Sequence[int]) -> Tensor:
        """`index` in the memory of a device, copied there once: each copy waits for what the device has to do."""
        return _index_on(device, tuple(header))


@functools.lru_cache(maxsize=64)
def _layout(header: tuple[int, ...]) -> Layout:
    layers, _, norm, _, sampling, *widths = header
    actions = widths[-1] // 2 if sampling == BEFORE_SQUASH else widths[-1]
    positions = torch.arange(packed_values(header), dtype=torch.float64)
    names = NativePolicy.unpacked(positions, header)
    parts = [_padded(torch.arange(2 * widths[0] + 2 * actions + max(2, actions)), 4)]
    for k, weight in enumerate(names.weights):
        unit = 4 if k + 1 == layers else 64 if widths[k + 1] > 32 else 32
        rows = [names.biases[k], *weight.t()]
        rows += [names.gains[k], names.shifts[k]] if norm and k + 1 < layers else []
        parts += [_padded(row.long(), unit) for row in rows]
    in_place = all(width <= 64 for width in widths[1:-1])
    widest = max(widths[:-1])
    return Layout(torch.cat(parts), math.ceil(widest / 4) * 4 * (1 if in_place else 2), widest)


@functools.lru_cache(maxsize=64)
def _index_on(device: torch.device, header: tuple[int, ...]) -> Tensor:
    return _layout(header).index.to(device)


def packed_values(header: Sequence[int]) -> int:
    """How many values `NativePolicy.packed` has."""
    _, _, norm, _, sampling, *widths = header
    actions = widths[-1] // 2 if sampling == BEFORE_SQUASH else widths[-1]
    layers = sum((a + 1) * b for a, b in itertools.pairwise(widths)) + (2 * sum(widths[1:-1]) if norm else 0)
    return 2 * widths[0] + 2 * actions + max(2, actions) + layers


def _padded(row: Tensor, unit: int) -> Tensor:
    """`row` with zeros up to a multiple of `unit`."""
    return torch.nn.functional.pad(row, (0, -len(row) % unit))


# ---- how a rollout is cut into threads ----


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of a device."""

    architecture: str
    """Such as "sm_90"."""
    shared_per_block: int
    """Bytes of shared memory that a block of threads may have."""
    shared_per_multiprocessor: int
    multiprocessors: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """Threads and memory of a launch."""

    lanes: int
    """Threads that share an environment: 1, 2 or 4."""
    shared_weights: bool
    """Weights in shared memory; else they are read from global memory through the cache."""
    shared_bytes: int
    """Of dynamic shared memory in a block."""
    blocks_together: int
    """Blocks that a multiprocessor is to hold at once: it bounds the registers of a thread."""

    def blocks(self, envs: int) -> int:
        """Of the grid."""
        return math.ceil(envs * self.lanes / THREADS)


def plan(limits: Limits, envs: int, layout: Layout | None) -> Plan:
    """One thread an environment for many environments, more for few: a GPU with idle threads is slow.

    Raises:
        ValueError: the policy's layers are so wide that their activations don't fit the shared memory.
    """
    if layout is None:
        return Plan(1, False, 0, MOST_BLOCKS)
    choices = [_with_lanes(limits, layout, lanes) for lanes in (1, 2, 4)]
    share = envs / limits.multiprocessors
    wanted = 0 if share >= ENOUGH_THREADS else 1 if 2 * share >= ENOUGH_THREADS else 2
    enough = [choice for choice in choices[wanted:] if choice.blocks_together >= ENOUGH_BLOCKS]
    if enough:  # the cache, where other weights would come from, has what shared memory leaves
        return next((choice for choice in enough if choice.shared_weights), enough[0])
    if choices[2].shared_bytes <= limits.shared_per_block:
        return choices[2]
    kept = round(layout.rows / layout.widest)  # once, or twice where a layer isn't computed in place
    widest = limits.shared_per_block // (4 * THREADS // 4 * kept) // 4 * 4
    raise ValueError(
        f"the policy's widest layer has {layout.widest} values; {limits.architecture} has room for {widest} in its "
        "shared memory: use device='cpu'"
    )


def _with_lanes(limits: Limits, layout: Layout, lanes: int) -> Plan:
    activations = 4 * layout.rows * THREADS // lanes
    with_weights = activations + 4 * len(layout.index)
    shared = with_weights <= limits.shared_per_block and _fitting(limits, with_weights) >= ENOUGH_BLOCKS
    total = with_weights if shared else activations
    return Plan(lanes, shared, total, max(1, min(_fitting(limits, total), MOST_BLOCKS)))


def _fitting(limits: Limits, shared_bytes: int) -> int:
    """Blocks of a multiprocessor; 1 KiB of each is the driver's."""
    return limits.shared_per_multiprocessor // (shared_bytes + 1024)


def unit_of(
    system: str | pathlib.Path,
    sizes: Sequence[int],
    source: int,
    header: Sequence[int],
    chosen: Plan,
    layout: Layout | None,
) -> Unit:
    """What is compiled for a rollout of a system: one of ours by its name, or a user's by its header."""
    name, own = (system, None) if isinstance(system, str) else (system.stem, system)
    defines: dict[str, Any] = {"SF_SYSTEM": name, "SF_SIZES": ",".join(map(str, sizes)), "SF_SOURCE": source}
    defines |= {"SF_LANES": chosen.lanes, "SF_THREADS": THREADS, "SF_BLOCKS": chosen.blocks_together}
    if layout is not None:
        _, activation, norm, squash, sampling, *widths = header
        defines |= {"SF_WIDTHS": ",".join(map(str, widths)), "SF_ACTIVATION": activation, "SF_NORM": norm}
        defines |= {"SF_SQUASH": squash, "SF_SAMPLING": sampling, "SF_WEIGHTS": len(layout.index)}
        defines |= {"SF_ROWS": layout.rows, "SF_WEIGHTS_SHARED": int(chosen.shared_weights)}
    return Unit(name, tuple((key, str(value)) for key, value in defines.items()), own=own)
