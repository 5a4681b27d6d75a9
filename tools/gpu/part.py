"""The first episodes of a recording, as many as fit into a file that may be carried to a GPU's machine.

    surefoot datasets generate ogbench/puzzle-3x3-play --episodes 300 -o build/puzzle.hdf5
    surefoot datasets relabel build/puzzle.hdf5 --env ogbench/puzzle-3x3-play-singletask-task1-sparse-v0 \\
        -o build/puzzle-task1.hdf5
    python tools/gpu/part.py build/puzzle-task1.hdf5 .data/puzzle-3x3-part.hdf5 --megabytes 60

OGBench's own .npz files can be given in place of the generated one. Exit code 1 where not even one episode fits.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

import numpy as np

from surefoot.data import load, save
from surefoot.data.dataset import Dataset

MEGABYTES = 60.0
"""10^6 bytes: a checkout may carry 64 MiB of files that git ignores."""


def first_episodes(dataset: Dataset, most_bytes: float, folder: pathlib.Path) -> Dataset | None:
    """The first episodes of a dataset whose .hdf5 file has `most_bytes` at most; None where one has more.

    Args:
        dataset: in the order of its episodes.
        most_bytes: of the file.
        folder: where files are written to be measured.
    """
    fits, count = 0, len(dataset.episode_lengths)
    least, most = 0, count
    while least < most:  # bisection: a file of more episodes is larger
        tried = (least + most + 1) // 2
        path = folder / "part.hdf5"
        path.unlink(missing_ok=True)
        save(dataset.select_episodes(np.arange(tried)), path)
        if path.stat().st_size <= most_bytes:
            least = fits = tried
        else:
            most = tried - 1
    return dataset.select_episodes(np.arange(fits)) if fits else None


def main() -> int:
    """Write the part, and say how much of the recording it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a file, or the id of a dataset")
    parser.add_argument("output", type=pathlib.Path, help="a new .hdf5 file")
    parser.add_argument("--megabytes", type=float, default=MEGABYTES, help="of the file, at most")
    given = parser.parse_args()
    if given.output.exists():
        parser.error(f"{given.output} is there already")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    dataset = load(given.source)
    with tempfile.TemporaryDirectory(prefix="surefoot-part-", dir=given.output.parent) as folder:
        part = first_episodes(dataset, 1e6 * given.megabytes, pathlib.Path(folder))
    if part is None:
        print(f"{given.source}: not even one episode fits into {given.megabytes:g} MB", file=sys.stderr)
        return 1
    save(part, given.output)
    size, own, all_ = given.output.stat().st_size / 1e6, len(part.episode_lengths), len(dataset.episode_lengths)
    print(f"{given.output}: {own:,} of {all_:,} episodes, {len(part):,} steps, {size:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
