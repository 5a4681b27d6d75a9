"""Episodes recorded by several processes, one file each, so that a recording that was killed continues where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.children import refuse_at_import
from surefoot.core.base.errors import ConfigError, DataError, SimulatorError, SurefootError, printable
from surefoot.core.base.files import read_json, write_json, written_aside
from surefoot.core.base.schema import Number, Record, Text
from surefoot.core.base.unpacking import read_npz
from surefoot.envs.suites.collect import check_recordable, episode, recorder_of

Array = np.ndarray[Any, Any]
Rows = dict[str, Array]
Progress = Callable[[int, int], None]

VERSION = 1
"""Of what an episode's seed gives: counted up when recording changes, so that old parts are not mixed with new ones."""
PLAN, POLL = "plan.json", 0.2
_PLAN = Record({"name": Text(), "seed": Number(0, whole=True), "version": Number(0, whole=True)})


@dataclasses.dataclass(frozen=True)
class Recording:
    """Episodes of one name and seed, and the folder of those that are there."""

    name: str
    seed: int
    folder: pathlib.Path

    def path(self, number: int) -> pathlib.Path:
        """Of an episode."""
        return self.folder / f"episode{number:06d}.npz"

    def missing(self, episodes: int) -> list[int]:
        """Numbers of the first `episodes` that are not there."""
        there = {entry.name for entry in os.scandir(self.folder)} if self.folder.is_dir() else set()
        return [number for number in range(episodes) if self.path(number).name not in there]

    def begin(self) -> None:
        """Make the folder, or make sure that it is of the same recording.

        Raises:
            ConfigError: it is of another.
            DataError: it can't be written or read.
        """
        wanted = {"name": self.name, "seed": self.seed, "version": VERSION}
        path = self.folder / PLAN
        if path.is_file():
            found = read_json(path, _PLAN)
            if found != wanted:
                raise ConfigError(
                    f"{self.folder}: holds episodes of {found['name']} with seed {found['seed']} (version "
                    f"{found['version']}), not of {self.name} with seed {self.seed} (version {VERSION}); delete it, or "
                    "choose another output"
                )
            return
        write_json(path, wanted)

    def record(self, episodes: int, workers: int, progress: Progress | None = None) -> None:
        """Record those of the first `episodes` that are not there; the same numbers whatever the `workers`.

        Args:
            episodes: at least 1.
            workers: processes, at least 1; with 1 it is done in this one.
            progress: called with (there, all) episodes.

        Raises:
            ConfigError: a number out of range, or no behaviour of that name can be recorded.
            MainGuardError: a module that is only being imported calls.
            DataError: an episode can't be written.
            SimulatorError: a process ended early; the episodes that are there stay.
        """
        if episodes < 1 or workers < 1 or not 0 <= self.seed < 1 << 32:
            raise ConfigError(
                f"episodes is {episodes}, workers {workers}, seed {self.seed}; at least 1, 1 and a number from 0 to "
                "4294967295 are needed"
            )
        refuse_at_import("records episodes")
        check_recordable(self.name)
        self.begin()
        left = self.missing(episodes)
        notify = progress or (lambda done, total: None)
        notify(episodes - len(left), episodes)
        workers = min(workers, len(left))
        if workers <= 1:
            for place, number in enumerate(left):
                self.write(number)
                notify(episodes - len(left) + place + 1, episodes)
            return
        recorder_of(self.name)  # what is wrong with it is reported once, in this process
        shards = [left[worker::workers] for worker in range(workers)]
        with _processes([(self, shard) for shard in shards]) as started:
            while any(process.is_alive() for process in started):
                time.sleep(POLL)
                notify(episodes - len(self.missing(episodes)), episodes)
                failed = next((process for process in started if process.exitcode not in (None, 0)), None)
                if failed is not None:
                    raise SimulatorError(
                        f"{self.name}: a process that recorded episodes ended with code {failed.exitcode}; what it "
                        f"printed says why. {episodes - len(self.missing(episodes))} of {episodes} episodes are kept: "
                        "the same command continues from there"
                    )
        if self.missing(episodes):
            raise SimulatorError(f"{self.name}: not all episodes were recorded; the same command continues")
        notify(episodes, episodes)

    def write(self, number: int) -> None:
        """Record one episode into its file, which appears whole or not at all."""
        rows = episode(self.name, self.seed, number)
        with written_aside(self.path(number), DataError) as aside, open(aside, "wb") as file:
            np.savez(file, **rows)  # type: ignore[arg-type]

    def rows(self, numbers: Sequence[int]) -> tuple[Rows, Array]:
        """All rows of some episodes, in the order of `numbers`, and their lengths.

        Returns:
            Columns as `collect.episode`'s but with T rows each and `next_observations` beside `observations`, one
            episode behind the other; (len(numbers),) int64.

        Raises:
            DataError: an episode is missing or damaged.
        """
        parts: list[Rows] = []
        for number in numbers:
            path = self.path(number)
            try:
                found, _ = read_npz(path, lambda name: True, DataError, as_is=lambda name: True)
            except FileNotFoundError as error:
                raise DataError(f"{path}: is missing; record it with the same command") from error
            except DataError as error:
                raise DataError(f"{error}. Delete it, and give the same command again") from error
            seen = found.pop("observations")
            parts.append({"observations": seen[:-1], "next_observations": seen[1:], **found})
        lengths = np.array([len(part["actions"]) for part in parts], np.int64)
        columns = {key: np.concatenate([part.pop(key) for part in parts]) for key in list(parts[0])}
        return columns, lengths

    def remove(self) -> None:
        """Delete the folder: its episodes stand in a dataset now."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _shard(recording: Recording, numbers: Sequence[int]) -> None:
    """Record some episodes, until the process that asked for them is gone."""
    parent = multiprocessing.parent_process()
    try:
        for number in numbers:
            if parent is not None and not parent.is_alive():
                return
            recording.write(number)
    except SurefootError as error:
        print(printable(str(error)), file=sys.stderr, flush=True)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@contextlib.contextmanager
def _processes(work: Sequence[tuple[Recording, Sequence[int]]]) -> Iterator[list[Any]]:
    """Fresh processes, one a shard, which are ended with the block."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=_shard, args=arguments, daemon=True) for arguments in work]
    try:
        for process in started:
            process.start()
        yield started
    finally:
        for process in started:
            if process.is_alive():
                process.terminate()
        for process in started:
            process.join()
