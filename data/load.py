"""`load`: one call from a path or a catalogue id to a checked `Dataset`."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import pathlib
from collections.abc import Callable, Sequence

from surefoot.core.base.errors import ConfigError, DataError, nearest
from surefoot.core.base.memory import enough_memory
from surefoot.data import logs
from surefoot.data.cameras import Cameras, cameras_of, seen_by
from surefoot.data.catalogue import CATALOGUE, has_unit_actions
from surefoot.data.checks import refuse_oddities
from surefoot.data.dataset import Dataset
from surefoot.data.download import fetch
from surefoot.data.files import sha256_of
from surefoot.data.formats import bags, csv, d4rl, lerobot, minari, npz, on_disk, parquet, zarr
from surefoot.data.formats.flat import VIEWS, Source
from surefoot.data.formats.hdf5 import is_hdf5
from surefoot.data.formats.mapping import SUFFIXES
from surefoot.data.frame_cache import Done, size_of
from surefoot.data.rewards import Reward, name_of, rewarded

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where known

MINARI_PREFIX = "minari/"
GENERATED = "native/"
"""How the names of datasets begin that `surefoot.runs.embedded` makes, which this room does not."""


def load(
    source: str | os.PathLike[str],
    *,
    strict: bool = False,
    view: str = "corrected",
    max_episode_steps: int | None = None,
    progress: Progress | None = None,
    mapping: str | os.PathLike[str] | None = None,
    reward: Reward | None = None,
    keep: pathlib.Path | None = None,
    files_done: logs.Done | None = None,
    image_size: int | Sequence[int] | None = None,
    cameras: str | Sequence[str] | None = None,
    frames: str | os.PathLike[str] | None = None,
    frames_done: Done | None = None,
) -> Dataset:
    """The dataset in a file or folder, or of a catalogue id, which is downloaded at first use.

    Args:
        source: any existing path (HDF5 of D4RL, robomimic or d3rlpy, NPZ, Parquet, CSV, a folder of Minari or LeRobot,
            a Zarr folder of Diffusion Policy, a store, which is mapped and not read into memory; recognised by content;
            a mapping file, .yaml, which names its logs), else `d4rl/<id>` such as `d4rl/hopper-medium-v2`, or
            `minari/<id>`.
        strict: refuse what is otherwise accepted and counted in `Dataset.warnings`.
        view: `corrected`, or `d4rl` for the rows of D4RL's `qlearning_dataset` (`formats.flat`).
        max_episode_steps: the time limit, for sources that don't mark time-outs; known for most catalogue
        ids.
        progress: called during a download with the bytes so far and in all.
        mapping: YAML file that says what the columns of a log mean (docs/own_data.md); `source` is then the log.
        reward: function that rewards all steps at once (`rewards.Reward`), in place of rewards in the data.
        keep, files_done: as of `logs.read`, of logs that are read by a mapping.
        image_size: height and width that pictures are scaled to, one number or two: each new pixel is the mean of those
            that it covers. They are kept in a cache on disk, which is mapped; None: as they are.
        cameras: keys of the cameras that are read; None: all. Those of LeRobot, robomimic and Diffusion Policy are read
            where this or `image_size` is given, or where there is nothing else.
        frames: folder of the cache; None: `frames` in SUREFOOT_CACHE or ~/.cache/surefoot.
        frames_done: called with the pictures of a camera that are in the cache, and all.

    Raises:
        ConfigError: nothing of that name exists, or the view is unknown.
        DataError: the data are damaged, incomplete, inconsistent, not finite or, with `strict`, odd.
        DownloadError: the dataset could not be fetched.
        MissingExtraError: a Minari dataset without the minari package.
    """
    if view not in VIEWS:
        raise ConfigError(f"view={view!r} is unknown: {nearest(view, VIEWS)}")
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(f"a dataset is a path or an id of the catalogue, not a {type(source).__name__}")
    text = os.fspath(source)
    seen = Cameras(size_of(image_size), cameras_of(cameras), frames, frames_done)
    with enough_memory(text, DataError):
        return _load(text, strict, view, max_episode_steps, progress, mapping, reward, keep, files_done, seen)


def _load(
    text: str,
    strict: bool,
    view: str,
    max_episode_steps: int | None,
    progress: Progress | None,
    mapping: str | os.PathLike[str] | None,
    reward: Reward | None,
    keep: pathlib.Path | None,
    files_done: logs.Done | None,
    seen: Cameras,
) -> Dataset:
    """As `load`."""
    path = pathlib.Path(text)
    known = Source(name=text, max_episode_steps=max_episode_steps)
    require_there(text)
    if mapping is not None and _exists(path):
        dataset = logs.read(pathlib.Path(mapping), known, view, log=path, keep=keep, done=files_done)
    elif _exists(path) and path.suffix.lower() in SUFFIXES:
        dataset = logs.read(path, known, view, keep=keep, done=files_done)
    elif _exists(path):
        dataset = _load_path(path, known, view, seen)
    elif text in CATALOGUE:
        dataset = _load_d4rl(text, view, max_episode_steps, progress)
    else:
        dataset = minari.read_id(text.removeprefix(MINARI_PREFIX), Source(name=text), view)
    if seen.asked:
        dataset = seen_by(dataset, seen)
    if reward is not None:
        dataset = rewarded(dataset, reward, name_of(reward))
    if strict:
        refuse_oddities(dataset, text)
    if mapping is None and reward is None and max_episode_steps is None and not seen.asked:
        object.__setattr__(dataset, "as_read", view)
    return dataset


def _exists(path: pathlib.Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long for the file system, or with a null byte
        return False


def _load_path(path: pathlib.Path, source: Source, view: str, seen: Cameras | None = None) -> Dataset:
    """Choose the reader by what the path holds."""
    try:
        if path.is_dir() and on_disk.is_store(path):
            return _load_store(path, source, view)
        asked = seen if seen is not None and seen.asked else None
        if path.is_dir() and lerobot.is_lerobot(path):
            return lerobot.read(path, source, view, asked)
        if path.is_dir() and zarr.is_zarr(path):
            return zarr.read(path, source, view, asked)
        if path.is_dir():
            return minari.read_folder(path, source, view)
        if not path.is_file():
            raise DataError(f"{path}: is neither a file nor a folder")
        return _load_file(path, source, view, asked)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror or error}") from error


def _load_store(path: pathlib.Path, source: Source, view: str) -> Dataset:
    """The columns of a store, mapped; views and time limits are those that it was built with."""
    if view != "corrected" or source.max_episode_steps is not None:
        what = f"view={view}" if view != "corrected" else "a time limit"
        raise ConfigError(f"{path}: is a store, which was built with its own: give {what} to `surefoot datasets pack`")
    return on_disk.read(path, source.name)


def _load_file(path: pathlib.Path, source: Source, view: str, cameras: Cameras | None) -> Dataset:
    if path.stat().st_size == 0:
        raise DataError(f"{path}: is empty (0 bytes); fetch or write it again")
    known = Source(**{**vars(source), "sha256": sha256_of(path)})
    if is_hdf5(path):
        return d4rl.read(path, known, view, cameras)
    if npz.is_npz(path):
        return npz.read(path, known, view)
    if parquet.is_parquet(path):
        return parquet.read(path, known, view)
    if bags.is_recording(path):
        raise DataError(
            f"{path}: is a recording of messages, which needs a mapping: `surefoot datasets draft {path}` begins one "
            "(docs/own_data.md)"
        )
    if csv.is_csv(path):
        return csv.read(path, known, view)
    raise DataError(
        f"{path}: is not HDF5, NPZ or CSV, nor Parquet or MCAP (its first bytes are none of theirs): damaged, or of "
        "another format; fetch it again or convert it"
    )


def _load_d4rl(name: str, view: str, max_episode_steps: int | None, progress: Progress | None) -> Dataset:
    """Fetch a D4RL file into the cache, if need be, and read it."""
    entry = CATALOGUE[name]
    path = fetch(name, progress=progress)
    source = Source(
        name=name,
        env_id=entry.env_id if entry.same_spaces else None,
        unit_actions=entry.env_id is not None and has_unit_actions(entry.env_id),
        max_episode_steps=max_episode_steps or entry.max_episode_steps,
        attributes={"d4rl_env_id": entry.d4rl_env_id, "source": entry.url},
    )
    return _load_path(path, source, view)


def require_there(text: str) -> None:
    """Refuse a name that is neither a path nor of the catalogue nor, perhaps, of Minari's.

    Raises:
        ConfigError: it is none.
    """
    if not (_exists(pathlib.Path(text)) or text in CATALOGUE or text.startswith(MINARI_PREFIX)):
        raise ConfigError(_unknown(text))


OF_DATA = (".hdf5", ".h5", ".npz", ".csv", ".parquet", ".mcap", *SUFFIXES)
"""Endings of files of data: what else lies in a folder is not listed to who looked for one."""


def _unknown(text: str) -> str:
    """The sentence for a name that is neither a path nor known."""
    folder = pathlib.Path(text).parent
    beside = _files_like(text)
    if text.startswith((".", "/", "~")) or pathlib.Path(text).suffix in OF_DATA:
        if not _exists(folder):
            return f"{text}: no such file, and its folder {folder} doesn't exist either"
        held = sorted(item.name for item in folder.iterdir() if item.suffix in OF_DATA)[:1000]
        if not held and not beside:
            return f"{text}: no such file or folder, and in {folder} lies no file of data"
        return f"{text}: no such file; {nearest(pathlib.Path(text).name, {*held, *beside})}"
    if beside:
        return f"{text}: no such file; did you mean {' or '.join(map(repr, beside))}?"
    if text.startswith(GENERATED):
        return f"dataset {text!r} is not read but generated: surefoot.runs.embedded.load gives it"
    known = [*CATALOGUE, *(f"{MINARI_PREFIX}{entry.minari}" for entry in CATALOGUE.values() if entry.minari)]
    close = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return (
        f"dataset {text!r} is no existing path and not in the catalogue: {guess}`surefoot datasets list` shows all "
        "names (and minari/<any id> works)"
    )


def _files_like(text: str) -> list[str]:
    """Files beside a path that is none, whose names are like its own."""
    held: list[str] = []
    with contextlib.suppress(OSError, ValueError):  # no folder, or one that can't be read or named
        held = [item.name for item in itertools.islice(pathlib.Path(text).parent.iterdir(), 1000)]
    return difflib.get_close_matches(pathlib.Path(text).name, held, n=3, cutoff=0.7)
