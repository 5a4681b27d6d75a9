"""`save` and `convert`: a dataset into a file whose suffix names the format."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

from surefoot.core.errors import ConfigError, nearest
from surefoot.data.dataset import Dataset
from surefoot.data.formats import csv, d4rl, dppo, minari, npz, ogbench
from surefoot.data.load import MINARI_PREFIX, load

WRITERS: dict[str, Callable[[Dataset, pathlib.Path], None]] = {
    ".hdf5": d4rl.write,
    ".h5": d4rl.write,
    ".npz": npz.write,
    ".csv": csv.write,
}

LAYOUTS: dict[str, Callable[[Dataset, pathlib.Path], None]] = {"ogbench": ogbench.write, "dppo": dppo.write}
"""Other layouts of NPZ files than ours."""


def save(dataset: Dataset, path: str | os.PathLike[str], layout: str | None = None) -> None:
    """Write the dataset as `.hdf5` (D4RL layout with a checksum), `.npz` or `.csv`; whole or not at all.

    Args:
        dataset: to write.
        path: of the file.
        layout: of an `.npz` file that another project is to read: `ogbench`, or `dppo`, which writes a second file,
            `normalization.npz`, beside it.

    Raises:
        ConfigError: the suffix names no format, or there is no such layout.
        DataError: the dataset breaks its invariants, or the file can't be written.
    """
    path = pathlib.Path(path)
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ConfigError(f"{path}: the suffix {path.suffix!r} names no format: {nearest(path.suffix, list(WRITERS))}")
    check_layout(path, layout)
    (writer if layout is None else LAYOUTS[layout])(dataset, path)


def check_layout(path: pathlib.Path, layout: str | None) -> None:
    """Refuse a layout that is not known, or not of NPZ files.

    Raises:
        ConfigError: names those that are.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"there is no layout {layout!r}: {nearest(layout, list(LAYOUTS))}")
    if layout is not None and path.suffix.lower() != ".npz":
        raise ConfigError(f"{path}: the layout {layout} is of .npz files")


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    strict: bool = False,
    view: str = "corrected",
    layout: str | None = None,
) -> Dataset:
    """Load `source` and store it as `destination`: a file, or `minari/<id>`; gives what was loaded.

    Raises:
        ConfigError: the source is unknown, or the destination exists or names no format.
        DataError: the source can't be loaded or the destination can't be written.
    """
    text = os.fspath(destination)
    check_layout(pathlib.Path(text), layout)
    to_minari = text.startswith(MINARI_PREFIX) and pathlib.Path(text).suffix.lower() not in WRITERS
    if not to_minari:
        path = pathlib.Path(text)
        if path.exists():
            raise ConfigError(f"{path}: exists already; delete it or choose another name")
        if path.suffix.lower() not in WRITERS:
            raise ConfigError(
                f"{path}: the suffix {path.suffix!r} names no format: {nearest(path.suffix, list(WRITERS))}, "
                "or minari/<id>"
            )
    dataset = load(source, strict=strict, view=view)
    if to_minari:
        minari.write(dataset, text.removeprefix(MINARI_PREFIX))
    else:
        save(dataset, text, layout)
    return dataset
