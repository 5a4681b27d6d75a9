"""What pictures cost: disk, private memory, and a gather from the cache of frames beside one from columns.

Random pictures of two cameras, in episodes of 100 steps, are put into the cache as those of a decoded video. Private
memory is that of a process of its own (RssAnon, anonymous pages), which maps them and draws batches. Gathers are taken
in turn, after a pass over all pictures, of a store whose next pictures are numbers and of one that has a column for
each step and another for what followed it, in memory; medians of CPU times, for the machine is shared.

    python benchmarks/frames.py                   # 50,000 frames of two cameras at 96 pixels, 2.8 GB of disk
    python benchmarks/frames.py --frames 2000     # seconds; nothing recorded
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import machine
import numpy as np
import torch

from surefoot.data.dataset import Dataset
from surefoot.data.frame_cache import cached, opened
from surefoot.data.pictures import Pictures, aligned, column_of
from surefoot.data.store import Store, store_from_dataset

CAMERAS, LENGTH, BATCH = ("front", "wrist"), 100, 256
COMPARED = 10_000
"""Rows of the stores that are compared: columns hold pictures twice, in memory."""
KEYS = ("observations", "actions", "next_observations")
RESULTS = pathlib.Path(__file__).parent / "results"


def drawn(count: int, size: int, seed: int) -> Iterator[np.ndarray[Any, Any]]:
    """Random pictures."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng.integers(0, 256, (size, size, 3), dtype=np.uint8)


def dataset_of(pictures: dict[str, np.ndarray[Any, Any]], rows: int) -> Dataset:
    """The first rows of episodes whose pictures these are."""
    ends = np.arange(rows) % LENGTH == LENGTH - 1
    ends[-1] = True
    extras: dict[str, Pictures] = {}
    for key, frames in pictures.items():
        own = column_of(frames[:rows])
        extras |= {f"observations/{key}": own, f"next_observations/{key}": own.select_rows(np.arange(rows) + ~ends)}
    nothing = np.zeros((rows, 0), np.float32)
    return Dataset(
        observations=nothing,
        actions=np.zeros((rows, 7), np.float32),
        rewards=np.zeros(rows, np.float32),
        next_observations=nothing,
        terminations=np.zeros(rows, bool),
        truncations=ends,
        episode_ids=np.arange(rows, dtype=np.int64) // LENGTH,
        valid=np.ones(rows, bool),
        next_known=~ends,
        extras=extras,
        name="synthetic",
    )


def anonymous() -> float:
    """GB of this process's anonymous pages."""
    text = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition("RssAnon:")[2].split()[0]) * 1024 / 1e9


def timed(stores: dict[str, Store], rounds: int) -> dict[str, float]:
    """CPU milliseconds of a gather of each, taken in turn into one workspace each."""
    rng = torch.Generator().manual_seed(0)
    spaces = {name: store.workspace(BATCH) for name, store in stores.items()}
    found: dict[str, list[float]] = {name: [] for name in stores}
    rows = min(len(store) for store in stores.values())
    for _ in range(rounds):
        indices = torch.randint(0, rows, (BATCH,), generator=rng)
        for name, store in stores.items():
            started = time.thread_time()
            store.gather(indices, spaces[name])
            found[name].append((time.thread_time() - started) * 1e3)
    return {name: statistics.median(times) for name, times in found.items()}


def mapped_alone(places: list[str], rows: int, rounds: int) -> dict[str, Any]:
    """In a process of its own: private memory of mapping and drawing batches, and how long a gather takes."""
    torch.set_num_threads(1)
    before = anonymous()
    pictures = {key: opened(pathlib.Path(place)) for key, place in zip(CAMERAS, places, strict=True)}
    for frames in pictures.values():  # the pages are cached then
        for start in range(0, rows, 1000):
            frames[start : start + 1000].max()
    store = store_from_dataset(dataset_of(pictures, rows), KEYS)
    one = store_from_dataset(dataset_of({CAMERAS[0]: pictures[CAMERAS[0]]}, rows), ("observations", "actions"))
    times = timed({"two_cameras_two_columns": store, "one_camera": one}, rounds)
    return {"private_gb": anonymous() - before, **{f"{name}_ms": value for name, value in times.items()}}


def compared(places: list[str], rows: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a gather of both cameras, before and after a step: by number, and from columns in memory."""
    torch.set_num_threads(1)
    rows = min(rows, COMPARED)
    pictures = {}
    mapped = {key: opened(pathlib.Path(place)) for key, place in zip(CAMERAS, places, strict=True)}
    for key, frames in mapped.items():
        pictures[key] = aligned((rows, *frames.shape[1:]))  # as readers of files do
        pictures[key][:] = frames[:rows]
    data = dataset_of(pictures, rows)
    written = {"actions": data.actions} | {key: np.asarray(value) for key, value in data.extras.items()}
    kept = None if data.next_known is None else np.flatnonzero(data.next_known)
    stores = {
        "columns": Store.pack(written, rows=kept),
        "numbers": store_from_dataset(data, KEYS),
        "numbers_mapped": store_from_dataset(dataset_of(mapped, rows), KEYS),
    }
    return timed(stores, rounds)


def page(found: dict[str, Any]) -> str:
    """The results in words."""
    frames, alone, beside = found["frames"], found["alone"], found["compared_ms"]
    lines = [
        "# Frames\n",
        f"`python benchmarks/frames.py`. {found['machine']}.\n",
        f"{frames:,} frames of two cameras at {found['size']} pixels: {found['disk_gb']:.2f} GB of disk, written in "
        f"{found['build_s']:.0f} s (random pictures,",
        "which are drawn in that time too). A process that maps them and draws batches has "
        f"{alone['private_gb']:.3f} GB of private memory.\n",
        f"| gather of {BATCH} rows, warm, one thread | CPU ms |",
        "|---|---|",
        f"| one camera, before the step, mapped | {alone['one_camera_ms']:.2f} |",
        f"| both cameras, before the step and after it, mapped | {alone['two_cameras_two_columns_ms']:.2f} |\n",
        f"Of {min(frames, COMPARED):,} rows, both cameras, before the step and after it, taken in turn:\n",
        "| | CPU ms |",
        "|---|---|",
        f"| a column for each step and another for what followed, in memory | {beside['columns']:.2f} |",
        f"| numbers, pictures in memory | {beside['numbers']:.2f} |",
        f"| numbers, pictures mapped | {beside['numbers_mapped']:.2f} |",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and record where it is the whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--alone", nargs=2, metavar="CACHE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(mapped_alone(arguments.alone, arguments.frames, arguments.rounds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        places = []
        for seed, key in enumerate(CAMERAS):

            def each(seed: int = seed) -> Iterator[np.ndarray[Any, Any]]:
                return drawn(arguments.frames, arguments.size, seed)

            cached("synthetic", f"{seed}", key, arguments.frames, None, each, folder)
            places += sorted(str(path) for path in pathlib.Path(folder).iterdir() if str(path) not in places)
        seconds = time.perf_counter() - started
        disk = sum(path.stat().st_size for path in pathlib.Path(folder).rglob("*") if path.is_file()) / 1e9
        reported = ["--frames", str(arguments.frames), "--rounds", str(arguments.rounds)]
        alone = subprocess.run(
            [sys.executable, __file__, "--alone", *places, *reported], capture_output=True, text=True, check=True
        )
        found = {
            "frames": arguments.frames,
            "size": arguments.size,
            "machine": f"{machine.processor()}, load {os.getloadavg()[0]:.1f}",
            "disk_gb": disk,
            "build_s": seconds,
            "alone": json.loads(alone.stdout.splitlines()[-1]),
            "compared_ms": compared(places, arguments.frames, arguments.rounds),
        }
    print(page(found))
    if arguments.frames >= 50_000:
        (RESULTS / "frames.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "frames.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
