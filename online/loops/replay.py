"""Sources of off-policy agents: a replay buffer that grows, and a dataset beside it, alternating or mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.chunks import chunk_target
from surefoot.core.base.errors import DataError
from surefoot.core.base.random import STEPS_PER_BLOCK, drawn
from surefoot.core.engine.sources import MAIN, Batch, Drawn, Source, Stores
from surefoot.data.collect import TransitionBuffer
from surefoot.data.samplers import Windows, uniform_rows
from surefoot.data.sources import WindowSource
from surefoot.data.store import Store, Workspace, recording_ids


class Replay(Drawn):
    """Rows drawn uniformly, with replacement, from what is in the buffer when they are asked for.

    Row (t * S + s) * N + e of the buffer is step t of environment e of seed s; seed s learns from its own rows only.
    Uniform numbers are scaled to the present size, so that a row depends on nothing but the seed, the training step and
    what the buffer holds.
    """

    def __init__(self, buffer: TransitionBuffer, stream: str = MAIN) -> None:
        super().__init__(stream)
        self.buffer = buffer

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        super().bind(seeds, rows, device)
        self.num_envs = self.buffer.num_envs // len(self.seeds)
        self._first = torch.arange(len(self.seeds), device=device).unsqueeze(1) * self.num_envs

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 indices of training step `step` >= 0.

        Raises:
            DataError: the buffer holds no transition of some seed.
        """
        return self.of_buffer(self.drawn(step))

    def of_buffer(self, uniform: Tensor) -> Tensor:
        """(S, rows) rows of the buffer for (S, rows) float64 numbers in [0, 1)."""
        if len(self.buffer) == 0:
            raise DataError("there are no rows to sample from: act in the environment before the first training step")
        if not self.buffer.all_valid:
            return self._at(uniform, self._counts_of(self.buffer.valid))
        rows = uniform_rows(uniform, len(self.buffer) // len(self.seeds))
        if len(self.seeds) == 1:
            return rows
        step = torch.div(rows, self.num_envs, rounding_mode="floor")
        return step * self.buffer.num_envs + self._first + (rows - step * self.num_envs)

    def _counts_of(self, valid: Tensor) -> Tensor:
        """(S, rows of a seed) how many of (len,) `valid` rows there are up to each, in the seed's own order."""
        seeds = len(self.seeds)
        return valid.view(-1, seeds, self.num_envs).transpose(0, 1).reshape(seeds, -1).cumsum(1)

    def _at(self, uniform: Tensor, counts: Tensor) -> Tensor:
        """Finds the k-th of the rows that were counted, so that nothing leaves the device."""
        wanted = (uniform * counts[:, -1:]).long() + 1
        rows = torch.searchsorted(counts, wanted)
        step = torch.div(rows, self.num_envs, rounding_mode="floor")
        return step * self.buffer.num_envs + self._first + (rows - step * self.num_envs)

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices`."""
        return self.buffer.gather(indices, out)

    def workspace(self, rows: int) -> Workspace:
        """Memory for `gather`, as `Store.workspace`."""
        return self.buffer.workspace(rows)


class ReplayWithPrevious(Replay):
    """Rows with `previous_actions` (..., A): what was done in the step before; 0 at an episode's beginning.

    It is 0 too in the oldest row that the buffer still holds of each environment, whose step before is overwritten.
    """

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The rows at `indices`, and the actions before them."""
        buffer = self.buffer
        before = (indices - buffer.num_envs) % buffer.capacity
        ends = buffer.chain.ends[before].unsqueeze(-1)  # rows that are newest or not filled end too
        actions = torch.where(ends, 0.0, buffer["actions"][before.clamp(max=len(buffer) - 1)])
        return {**buffer.gather(indices), "previous_actions": actions}

    workspace = None  # type: ignore[assignment]  # rows are gathered into memory of their own


class FinishedReplay(Replay):
    """Rows of episodes that are over, drawn uniformly: those whose returns-to-go are known.

    They are counted again where an episode has ended or rows were replaced, not at each step: rows that were only added
    belong to episodes under way.
    """

    _counts: Tensor | None = None
    _counted = -1  # `rewritten` of the buffer then

    def of_buffer(self, uniform: Tensor) -> Tensor:
        """As `Replay.of_buffer`."""
        if self._counts is None or self._counted != self.buffer.rewritten:
            known = self.buffer.valid & ~self.buffer["returns_to_go"][: len(self.buffer)].isnan()
            asked = self._counts is None or known.device.type == "cpu"  # a GPU is asked once
            if asked and not known.view(-1, len(self.seeds), self.num_envs).any(2).any(0).all():
                self._counts = None
                raise DataError(
                    "no episode is over yet whose steps could be learned from: raise algo.initial_steps to at least "
                    f"the longest episode's length in each of the {self.num_envs} environments, which share them"
                )
            self._counts, self._counted = self._counts_of(known), self.buffer.rewritten
        return self._at(uniform, self._counts)


class ReplayWindows(Replay):
    """Windows of `length` steps that begin at rows drawn uniformly from what is in the buffer.

    A window crosses neither an episode's end nor the place where the newest rows overwrite the oldest: it is cut there,
    padded by its last row, and its `mask` (S, rows, length) says how far it goes. Steps that are not there yet, of
    episodes under way, are cut off in the same way.
    """

    def __init__(self, buffer: TransitionBuffer, length: int, stream: str = MAIN, at_first: str = "") -> None:
        """Draw from a buffer.

        Args:
            buffer: of transitions.
            length: L steps.
            stream: of random numbers.
            at_first: what names of columns begin with that are read at a window's first step alone; empty: none.
        """
        super().__init__(buffer, stream)
        self.windows, self.at_first = Windows(length), at_first

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The windows that begin at `indices` (...,): (..., L, ...) columns and the mask.

        Columns that are read at the first step alone are (..., 1, ...).
        """
        window = self.windows(indices, self.buffer.chain)
        mask = {"mask": window.mask.to(torch.float32)}
        alone = self.buffer.columns(self._is_first)
        if not self.at_first or not alone.fields:
            return self.buffer.gather(window.rows) | mask
        rest = self.buffer.columns(lambda name: not self._is_first(name))
        return rest.gather(window.rows) | alone.gather(indices.unsqueeze(-1)) | mask

    def _is_first(self, name: str) -> bool:
        return bool(self.at_first) and name.startswith(self.at_first)

    def longest(self) -> tuple[int, bool]:
        """Steps of the longest episode in the buffer, as far as it is there, and whether any episode is over."""
        if len(self.buffer) == 0:
            return 0, False
        ends = self.buffer.chain.ends[: len(self.buffer)].view(-1, self.buffer.num_envs)
        if len(self.buffer) == self.buffer.capacity:
            ends = ends.roll(-(self.buffer.position // self.buffer.num_envs), 0)  # the oldest first
        times = torch.arange(len(ends), device=ends.device).unsqueeze(1).expand_as(ends)
        last = torch.where(ends, times, -1).cummax(0).values
        before = torch.cat([torch.full_like(last[:1], -1), last[:-1]])
        return int((times - before).max()), bool(ends[:-1].any())

    workspace = None  # type: ignore[assignment]  # windows are gathered into memory of their own


class NewRows:
    """The rows of a buffer that came since it was last asked, each once, in the own numbers of each seed.

    Row t * N + e of a seed is step t of its environment e.
    """

    def __init__(self, buffer: TransitionBuffer, seeds: int, device: torch.device) -> None:
        """Of a buffer that S seeds share; rows that are there already are new at first."""
        self.buffer, self.seeds, self.device = buffer, seeds, device
        self.num_envs = buffer.num_envs // seeds
        self.entered = torch.zeros(1, dtype=torch.int64)
        """Where the newest row that was given ends, in vector steps; it is part of checkpoints."""

    def take(self) -> Tensor | None:
        """(S, K) int64 own rows, or None; fewer than the buffer's capacity must have come since."""
        steps, size = self.buffer.capacity // self.buffer.num_envs, len(self.buffer) // self.buffer.num_envs
        position, entered = self.buffer.position // self.buffer.num_envs, int(self.entered)
        new = size if entered == 0 else (position - entered) % steps
        if new == 0:
            return None
        self.entered.fill_(position or steps)
        times = torch.arange(position - new, position, device=self.device) % steps
        own = times.unsqueeze(1) * self.num_envs + torch.arange(self.num_envs, device=self.device)
        return own.flatten().expand(self.seeds, -1)

    def own(self, rows: Tensor) -> Tensor:
        """Rows of the buffer as rows of their seed."""
        step = torch.div(rows, self.buffer.num_envs, rounding_mode="floor")
        return step * self.num_envs + (rows - step * self.buffer.num_envs) % self.num_envs

    def of_buffer(self, own: Tensor) -> Tensor:
        """(S, K) rows of seeds as rows of the buffer."""
        seeds = torch.arange(self.seeds, device=own.device).unsqueeze(1)
        step = torch.div(own, self.num_envs, rounding_mode="floor")
        return step * self.buffer.num_envs + seeds * self.num_envs + (own - step * self.num_envs)


class ReplaySteps(Replay):
    """Rows of several steps that begin at rows drawn uniformly: what targets of n steps read, and no more.

    A row has the observations and actions of its first step, `rewards` the discounted sum, `reach` what discounts the
    value behind it, and the next observations of the last step, as of windows of a `ReplayWindows` that `decisions`
    puts together; images in between are not read.
    """

    def __init__(self, buffer: TransitionBuffer, length: int, discount: float, stream: str = MAIN) -> None:
        """`length` is n, the most steps of a row; `discount` is per step, in [0, 1]."""
        super().__init__(buffer, stream)
        self.windows, self.discount = Windows(length), discount

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The rows of steps that begin at `indices` (...,)."""
        window = self.windows(indices, self.buffer.chain)
        steps = {name: self.buffer[name][window.rows] for name in ("rewards", "terminations")}
        target = chunk_target(steps["rewards"], steps["terminations"], window.mask.to(torch.float32), self.discount)
        last = self.buffer.gather(window.rows[..., -1])
        following = {name: value for name, value in last.items() if name.split("/")[0] == "next_observations"}
        return {**self.buffer.gather(indices), **following, "rewards": target.rewards, "reach": target.reach}

    workspace = None  # type: ignore[assignment]  # as of `ReplayWindows`


class JoinedWindows(Drawn):
    """Windows of a dataset and of the replay buffer, every row of both equally likely: the data as if met first.

    Row i of the data is i; row i of the buffer is i + the number of the data's rows.
    """

    def __init__(self, data: WindowSource, met: ReplayWindows) -> None:
        """Both must have been made with the same columns and windows of one length."""
        super().__init__(met.stream)
        self.data, self.met = data, met

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        super().bind(seeds, rows, device)
        self.met.bind(seeds, rows, device)

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 rows of both."""
        uniform, count = self.drawn(step), len(self.data.store)
        held = len(self.met.buffer) // len(self.seeds)
        if held == 0:
            return uniform_rows(uniform, count)
        whole = uniform * (count + held)
        met = self.met.of_buffer(((whole - count) / held).clamp(0, 1 - 2**-53))
        return torch.where(whole < count, whole.long(), met + count)

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The windows that begin at `indices` (...,)."""
        return _of_both(indices, len(self.data.store), self.data.gather, self.met.gather)


def _of_both(
    indices: Tensor, count: int, data: Callable[[Tensor], Batch], met: Callable[[Tensor], Batch]
) -> dict[str, Tensor]:
    """Rows at `indices` (...,), the first `count` the data's and then the buffer's: looked up in both, without asking
    on the CPU in which they are."""
    ours, others = data(indices.clamp(max=count - 1)), met((indices - count).clamp(min=0))
    found = {}
    for key, rows in ours.items():
        of_data = (indices < count).view(*indices.shape, *[1] * (rows.dim() - indices.dim()))
        found[key] = torch.where(of_data, rows, others[key])
    return found


def joined_windows(stores: Stores, length: int) -> Source:
    """Windows of what is met, and of a dataset beside it where there is one, for agents whose actions are chunks."""
    met = ReplayWindows(stores.replay, length)
    if stores.data is None:
        return met
    return JoinedWindows(
        WindowSource(stores.data, recording_ids(stores.dataset, stores.data.keys), Windows(length)), met
    )


class _WithData(Drawn):
    """Base of sources that give rows of a dataset and of a replay buffer."""

    def __init__(self, data: Store, replay: Replay) -> None:
        """Both must have been made with the same columns in the same order.

        Raises:
            DataError: they differ.
        """
        super().__init__(replay.stream)
        if data.fields != replay.buffer.fields:
            raise DataError(
                f"the dataset's columns {', '.join(data.fields)} and the replay buffer's "
                f"{', '.join(replay.buffer.fields)} differ in layout: give the agent's `required_columns` in both"
            )
        self.data, self.replay = data, replay
        self.buffer = replay.buffer

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        super().bind(seeds, rows, device)
        self.replay.bind(seeds, rows, device)

    def workspace(self, rows: int) -> Workspace:
        """Memory for `gather`, as `Store.workspace`."""
        return self.buffer.workspace(rows)


class Mixture(_WithData):
    """A fixed share of each batch from a dataset, evenly spread; the other rows from a replay buffer."""

    def __init__(self, data: Store, replay: Replay, share: float) -> None:
        """Give `share`, in (0, 1), of the rows from `data`: with 0.5 the even places, as in ikostrikov/rlpd."""
        super().__init__(data, replay)
        self.share = share

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        super().bind(seeds, rows, device)
        self.from_data = even_places(rows, self.share, device)
        self._places = [self.from_data.nonzero().squeeze(1), (~self.from_data).nonzero().squeeze(1)]
        self._order = torch.argsort(torch.cat(self._places))
        self._parts: dict[int, list[Workspace]] = {}

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 indices, each into what its place belongs to."""
        uniform = self.drawn(step)
        return torch.where(self.from_data, uniform_rows(uniform, len(self.data)), self.replay.of_buffer(uniform))

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices` (..., rows)."""
        tables: tuple[Store | TransitionBuffer, ...] = (self.data, self.buffer)
        if out is None:
            groups = [t.gather_groups(indices[..., p]) for t, p in zip(tables, self._places, strict=True)]
            dim = indices.dim() - 1
            return self.buffer.split({k: torch.cat([g[k] for g in groups], dim).index_select(dim, self._order)
                                      for k in groups[0]})  # fmt: skip
        parts = self._parts.get(id(out))
        if parts is None:
            sizes = [len(places) for places in self._places]
            parts = self._parts[id(out)] = [t.workspace(n) for t, n in zip(tables, sizes, strict=True)]
        for table, places, part in zip(tables, self._places, parts, strict=True):
            table.gather(indices[places], part)
            for key, rows in part.buffers.items():
                out.buffers[key].index_copy_(0, places, rows)
        return dict(out.batch)


class Alternation(_WithData):
    """Batches of one origin each, the dataset or the replay buffer.

    Row i of the data is i; row i of the buffer is i + the number of the data's rows.
    """

    def __init__(self, data: Store, replay: Replay, every: int, choose: Callable[[int, int], np.ndarray]) -> None:
        """Choose anew after each `every` training steps.

        Args:
            data: one of the two.
            replay: the other.
            every: training steps in a row on one origin.
            choose: (seed, block) -> bool for each of the `STEPS_PER_BLOCK` choices of a block: whether it is the data.
        """
        super().__init__(data, replay)
        self.every, self.choose = every, choose
        self._chosen: tuple[Tensor, ...] = ()
        self._chosen_block = -1

    def from_data(self, choice: int) -> Tensor:
        """(S,) bool: whether a choice of each seed is the data."""
        block, offset = divmod(choice, STEPS_PER_BLOCK)
        if block != self._chosen_block:
            chosen = np.stack([self.choose(seed, block) for seed in self.seeds])
            self._chosen = torch.from_numpy(chosen).to(self.device).unbind(1)
            self._chosen_block = block
        return self._chosen[offset]

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 indices of training step `step` >= 0."""
        uniform, count = self.drawn(step), len(self.data)
        of_data = self.from_data(step // self.every).unsqueeze(1)
        return torch.where(of_data, uniform_rows(uniform, count), self.replay.of_buffer(uniform) + count)

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices` (..., rows)."""
        groups = _of_both(indices, len(self.data), self.data.gather_groups, self.buffer.gather_groups)
        if out is None:
            return self.buffer.split(groups)
        for key, rows in groups.items():
            out.buffers[key].copy_(rows)
        return dict(out.batch)


def drawn_choices(probability: float) -> Callable[[int, int], np.ndarray]:
    """For `Alternation`: the data with this probability, from the counter stream "task"."""

    def chosen(seed: int, block: int) -> np.ndarray:
        uniform = drawn([seed], "task", block, torch.device("cpu"), lambda source: source.random(STEPS_PER_BLOCK))
        return uniform[0].numpy() < probability

    return chosen


def alternating_choices(seed: int, block: int) -> np.ndarray:
    """For `Alternation`: by turns, the data first."""
    return np.arange(block * STEPS_PER_BLOCK, (block + 1) * STEPS_PER_BLOCK) % 2 == 0


def even_places(rows: int, share: float, device: torch.device) -> Tensor:
    """(rows,) bool: a `share` of places spread evenly, the first among them, so that every slice has its share."""
    upto = np.ceil(np.arange(rows + 1) * share - 1e-9)
    return torch.from_numpy(np.diff(upto) > 0).to(device)
