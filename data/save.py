"""`save` and `convert`: a dataset into a file whose suffix names the format."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.files import remove_asides_of_the_dead
from surefoot.data import logs
from surefoot.data.dataset import REWARDS, Dataset
from surefoot.data.formats import csv, d4rl, dppo, lerobot_write, minari, npz, ogbench, parquet, robomimic
from surefoot.data.formats.flat import OWN_MARK
from surefoot.data.formats.lerobot import FPS
from surefoot.data.formats.mapping import SUFFIXES as MAPPINGS
from surefoot.data.left_out import LEFT_OUT
from surefoot.data.load import MINARI_PREFIX, load
from surefoot.data.rewards import Reward

WRITERS: dict[str, Callable[[Dataset, pathlib.Path], None]] = {
    ".hdf5": d4rl.write,
    ".h5": d4rl.write,
    ".npz": npz.write,
    ".csv": csv.write,
    ".parquet": parquet.write,
}

LAYOUTS: dict[str, tuple[tuple[str, ...], Callable[[Dataset, pathlib.Path], None]]] = {
    "ogbench": ((".npz",), ogbench.write),
    "dppo": ((".npz",), dppo.write),
    "robomimic": ((".hdf5", ".h5"), robomimic.write),
    "lerobot": (("",), lerobot_write.write),
}
"""Layouts of other projects -> the endings of their files, and what writes them; a LeRobot dataset is a folder."""

NOT_HELD = {
    ".csv": ("env_id", "extras", "attributes"),
    "ogbench": ("costs", "extras"),
    "dppo": ("env_id", "costs", "extras", "attributes"),
    "robomimic": ("extras", "attributes"),
    "minari": ("extras", "attributes"),
}
"""Ending or layout -> what of a dataset its files have no place for, if not all is held."""

CUT_OFF = "what followed the last step of episodes that were cut off (it is not sampled)"
"""What DPPO's layout has no place for."""

OF_FILES = {"kind", "source", "licence", "env_id", OWN_MARK, LEFT_OUT}
"""Attributes that say where a file came from, and nothing of its rows."""


def save(dataset: Dataset, path: str | os.PathLike[str], layout: str | None = None) -> None:
    """Write the dataset as `.hdf5` (D4RL layout with a checksum), `.npz`, `.parquet` or `.csv`; whole or not at all.

    Temporary files beside it are removed whose processes were killed while they wrote.

    Args:
        dataset: to write.
        path: of the file, or of the folder of `lerobot`.
        layout: of another project that is to read it: `ogbench`; `dppo`, which writes a second file,
            `normalization.npz`, beside it; `robomimic`; or `lerobot`, of version 3, which is a folder.

    Raises:
        ConfigError: the suffix names no format, or there is no such layout.
        DataError: the dataset breaks its invariants, or the file can't be written.
        MissingExtraError: a package that the format needs is not installed.
    """
    path = pathlib.Path(path)
    write = writer_of(path, layout)
    remove_asides_of_the_dead(path.parent)
    kept = {key: value for key, value in dataset.attributes.items() if key != LEFT_OUT}  # of another source
    write(dataset.replace(attributes=kept), path)


def writer_of(path: pathlib.Path, layout: str | None) -> Callable[[Dataset, pathlib.Path], None]:
    """What writes a file of this name in this layout.

    Raises:
        ConfigError: the ending names no format, or there is no such layout, or it is not of such files.
    """
    suffix = path.suffix.lower()
    if layout is not None:
        if layout not in LAYOUTS:
            raise ConfigError(f"there is no layout {layout!r}: {nearest(layout, list(LAYOUTS))}")
        endings, writer = LAYOUTS[layout]
        if suffix not in endings and layout != "lerobot":
            raise ConfigError(f"{path}: the layout {layout} is of {' and '.join(endings)} files")
        return writer
    if suffix in WRITERS:
        return WRITERS[suffix]
    hint = ", or a folder by --layout lerobot" if not suffix else ""
    raise ConfigError(f"{path}: the suffix {suffix!r} names no format: {nearest(suffix, list(WRITERS))}{hint}")


def not_held(dataset: Dataset, destination: str | os.PathLike[str], layout: str | None = None) -> list[str]:
    """What the dataset has and a file of this name and layout has not: `env_id`, `costs`, extras, attributes, by name.

    In DPPO's layout, whose last steps lead nowhere, also what followed those of episodes that were cut off.
    """
    text = os.fspath(destination)
    suffix = pathlib.Path(text).suffix.lower()
    minari_id = text.startswith(MINARI_PREFIX) and suffix not in WRITERS
    lacks = NOT_HELD.get("minari" if minari_id else layout or suffix, ())
    held = {*ogbench.STATES} if layout == "ogbench" else set()
    found: list[str] = [key for key in ("env_id", "costs") if key in lacks and getattr(dataset, key) is not None]
    found += sorted({*dataset.extras} - held) if "extras" in lacks else []
    reported = {REWARDS} if minari_id and not dataset.has_rewards else set()
    found += sorted({*dataset.attributes} - OF_FILES - reported) if "attributes" in lacks else []
    return found + ([CUT_OFF] if layout == "dppo" and (dataset.truncations & dataset.transitions).any() else [])


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    strict: bool = False,
    view: str = "corrected",
    max_episode_steps: int | None = None,
    layout: str | None = None,
    mapping: str | os.PathLike[str] | None = None,
    reward: Reward | None = None,
    fps: float | None = None,
    files_done: logs.Done | None = None,
    image_size: int | Sequence[int] | None = None,
    cameras: str | Sequence[str] | None = None,
) -> Dataset:
    """Load `source` and store it as `destination`: a file or folder, or `minari/<id>`; gives what was loaded.

    Logs of several files that a mapping reads are kept, file by file, in a folder beside the destination until all are
    read: a conversion that was stopped continues there, if files and mapping are as they were.

    Args:
        source: as of `load`.
        destination: must not exist.
        strict, view, max_episode_steps, mapping, reward: as of `load`.
        layout: as of `save`.
        fps: steps a second that the data were recorded at, which LeRobot's layout holds.
        files_done: called with the number of log files that are read, and of all.
        image_size, cameras: as of `load`.

    Raises:
        ConfigError: the source is unknown, the destination exists or names no format, or `fps` is no such number.
        DataError: the source can't be loaded or the destination can't be written.
        MissingExtraError: a package that one of the formats needs is not installed.
    """
    if fps is not None and not FPS[0] <= fps <= FPS[1]:
        raise ConfigError(f"fps is {fps}; it must be a number of steps a second from {FPS[0]:g} to {FPS[1]:,.0f}")
    text = os.fspath(destination)
    path = pathlib.Path(text)
    to_minari = text.startswith(MINARI_PREFIX) and path.suffix.lower() not in WRITERS
    if not to_minari:
        if path.exists():
            raise ConfigError(f"{path}: exists already; delete it or choose another name")
        writer_of(path, layout)
    elif layout is not None:
        raise ConfigError(f"{text}: a Minari dataset has a layout of its own; leave out --layout")
    keep = None
    if not to_minari and (mapping is not None or pathlib.Path(os.fspath(source)).suffix.lower() in MAPPINGS):
        keep = logs.parts_folder(path)
    options: dict[str, Any] = {"mapping": mapping, "reward": reward, "keep": keep, "files_done": files_done}
    options |= {"image_size": image_size, "cameras": cameras}
    dataset = load(source, strict=strict, view=view, max_episode_steps=max_episode_steps, **options)
    if fps is not None:
        dataset = dataset.replace(attributes={**dataset.attributes, "fps": fps})
    if to_minari:
        minari.write(dataset, text.removeprefix(MINARI_PREFIX))
    else:
        save(dataset, path, layout)
    if keep is not None:
        logs.remove_parts(keep)
    return dataset
