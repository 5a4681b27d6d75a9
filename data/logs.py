"""Logs of several files read by a mapping, part by part, so that a long conversion continues where it was stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.files import remove_asides, written_aside
from surefoot.core.base.unpacking import read_npz
from surefoot.data import left_out
from surefoot.data.dataset import Dataset
from surefoot.data.files import digest_of, sha256_of, sha256_of_lines
from surefoot.data.formats import columns, csv, lerobot, npz, parquet, robomimic
from surefoot.data.formats.chosen import split
from surefoot.data.formats.flat import Source
from surefoot.data.formats.hdf5 import is_hdf5
from surefoot.data.formats.mapping import LogMapping, arrays_of, dataset_of, files_of, fingerprint, read_mapping
from surefoot.data.formats.wildcards import expanded, require_same, starred

Array = np.ndarray[Any, Any]
Done = Callable[[int, int], None]
"""Called with the number of files that are read, and of all."""


def table_of(path: pathlib.Path, mapping: LogMapping | None = None) -> columns.Table:
    """The columns of a log, chosen by what the path holds.

    Args:
        path: a file, a ROS 2 bag's folder, or that of a LeRobot dataset.
        mapping: how its messages are sampled, where it is a recording of messages.

    Raises:
        DataError: it is of no kind that is known, or damaged.
        MissingExtraError: the packages that read it are not installed.
    """
    _require_log(path)
    if path.is_dir() and lerobot.is_lerobot(path):
        return lerobot.table(path, mapping)
    from surefoot.data.formats import bags  # the packages that read messages are an extra

    if bags.is_recording(path):
        return bags.table(path, mapping)
    if is_hdf5(path):
        held = columns.hdf5_table(path)
        return robomimic.table(path, held.names) if robomimic.fits(held.names) else held
    if npz.is_npz(path):
        return columns.npz_table(path)
    if parquet.is_parquet(path):
        return columns.parquet_table(path)
    if csv.is_csv(path, alone=True):
        return columns.csv_table(path)
    odd = csv.other_encoding(path)
    if odd is not None:
        raise DataError(f"{path}: its first line is no UTF-8 text ({odd}); save it as UTF-8: iconv -f {odd} -t UTF-8")
    raise DataError(f"{path}: is no log of a known kind: CSV, Parquet, NPZ, HDF5, MCAP, a ROS 2 bag or LeRobot dataset")


def read(
    mapping: pathlib.Path,
    source: Source,
    view: str = "corrected",
    *,
    log: pathlib.Path | None = None,
    keep: pathlib.Path | None = None,
    done: Done | None = None,
) -> Dataset:
    """The dataset that a mapping makes of logs.

    Args:
        mapping: a YAML file.
        source: what is known of it.
        view: as `formats.flat`.
        log: to read; None: the files that the mapping names.
        keep: folder in which the arrays of files that are read are kept, until all are; what it holds of the same files
            and mapping is taken from there. None: nothing is kept.
        done: called after each file.

    Raises:
        DataError: the mapping or a log can't be read, or they do not fit; names file, column and row.
        MissingExtraError: the packages that read a log are not installed.
    """
    known = read_mapping(mapping)
    if source.max_episode_steps is not None:
        known = dataclasses.replace(known, max_episode_steps=source.max_episode_steps)
    logs = files_of(known) if log is None else [log]
    source = dataclasses.replace(source, sha256=digest(mapping, logs))
    with _readable(logs[0]):
        first = table_of(logs[0], known)
    chosen = expanded(known, first) if starred(known) else known
    named = {split(name)[0] for name in chosen.columns} | {*first.episodes, *lerobot.COUNTS}
    if chosen.end_where is not None:
        named.add(chosen.end_where["column"])
    left = {name: what for name, what in first.names.items() if name not in named}
    parts: list[dict[str, Array]] = []
    wrong: list[DataError] = []
    for index, one in enumerate(logs):
        path = None if keep is None else keep / f"{fingerprint(known, one, chosen.columns)[:40]}.npz"
        found = None if path is None else _kept(path)
        if found is None:
            try:
                with _readable(one):
                    table = first if index == 0 and chosen is known else table_of(one, chosen)
                    require_same(known, chosen, table, logs[0])
                    found = arrays_of(_with_episodes(chosen, table), table)
            except DataError as error:  # the others are read all the same, so that all that are bad are named at once
                wrong.append(error)
                parts.clear()
                found = {}
            if path is not None and found:
                with written_aside(path, DataError) as aside, open(aside, "wb") as file:
                    np.savez(file, allow_pickle=False, **found)
        if not wrong:
            parts.append(found)
        if done is not None:
            done(index + 1, len(logs))
    if wrong:
        raise _all_of(wrong, len(logs))
    return dataset_of(known, parts, source, view, left_out.stated(left))


def _all_of(wrong: Sequence[DataError], files: int) -> DataError:
    """One error of all files that are bad; the first of many in full."""
    if len(wrong) == 1:
        return wrong[0]
    more = f"\n  and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    listed = "".join(f"\n  {error}" for error in wrong[:MOST_NAMED])
    return DataError(f"{len(wrong)} of {files} files can't be read by the mapping:{listed}{more}")


def digest(mapping: pathlib.Path, logs: Sequence[pathlib.Path] | None = None, kept: bool = True) -> str:
    """Hexadecimal SHA-256 of a mapping and of the logs that it reads: another number in any of them changes it.

    Args:
        mapping: a YAML file.
        logs: files and folders in the order in which they are read; None: those that the mapping names.
        kept: take what the cache knows of a folder's files that have not changed (`files.digest_of`).

    Raises:
        DataError: one of them can't be read.
    """
    every = [mapping, *(files_of(read_mapping(mapping)) if logs is None else logs)]
    found = []
    for one in every:
        _require_log(one)
        with _readable(one):
            found.append(digest_of(one) if kept else sha256_of(one))
    return sha256_of_lines(found)


def _require_log(path: pathlib.Path) -> None:
    """Refuse what no log can be before it is opened or looked through: devices, pipes, and any other folder."""
    from surefoot.data.formats import bags

    with _readable(path):
        known = path.is_file() or (path.is_dir() and (lerobot.is_lerobot(path) or bags.is_recording(path)))
    if not known:
        raise DataError(
            f"{path}: is no log: neither a file, nor a ROS 2 bag or LeRobot dataset; of a folder of logs draft one, "
            "and name all of them under `files`"
        )


@contextlib.contextmanager
def _readable(log: pathlib.Path) -> Iterator[None]:
    """Where the system can't read a log, a DataError that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{log}: can't be read: {error.strerror or error}") from error


def _kept(path: pathlib.Path) -> dict[str, Array] | None:
    """One file's arrays that a conversion kept; None where there are none."""
    if path.is_file():
        with contextlib.suppress(DataError):  # half a file, as of a disk that was full: it is made again
            return read_npz(path, lambda name: True, DataError, as_is=lambda name: True)[0]
    return None


def _with_episodes(mapping: LogMapping, table: columns.Table) -> LogMapping:
    """The mapping; where it names no episode, with the column by which files of a layout tell them apart."""
    if mapping.episode is not None:
        return mapping
    return dataclasses.replace(mapping, episode=next(iter(table.episodes), None))


def parts_folder(destination: pathlib.Path) -> pathlib.Path:
    """Where a conversion keeps what it has read: beside its destination."""
    return destination.with_name(f".{destination.name}.parts")


def remove_parts(folder: pathlib.Path) -> None:
    """Remove what a conversion kept."""
    if folder.is_dir():
        remove_asides(folder)
        shutil.rmtree(folder, ignore_errors=True)


def draft(path: pathlib.Path | Sequence[pathlib.Path], beside: pathlib.Path | None = None) -> str:
    """The text of a mapping to begin with: guesses by the names of a log's columns, all of them listed.

    Args:
        path: of the log, or of several logs of one kind; columns that not all of them have are left out.
        beside: folder that the mapping is to lie in; None: this one.

    Raises:
        DataError, MissingExtraError: as `table_of`.
    """
    paths = [path] if isinstance(path, pathlib.Path) else list(path)
    tables = [table_of(one) for one in paths]
    table, uneven = tables[0], dict[str, str]()
    for other in tables[1:]:
        for here, there in ((table, other), (other, table)):
            uneven |= {
                name: f"it is in {here.path} and not in {there.path}" for name in here.names if name not in there.names
            }
    table = dataclasses.replace(table, names={n: what for n, what in table.names.items() if n not in uneven})
    guesses = ("observations", "actions", "next_observations", "following", "end", "extra", "doubtful", "counts")
    guessed: dict[str, list[str]] = {key: [] for key in (*guesses, "cameras", "texts")}
    single: dict[str, str] = {}
    for name, what in table.names.items():
        meaning = _meaning(name, what)
        if meaning in SINGLE and meaning not in single:
            single[meaning] = name
        elif meaning is not None:
            guessed["doubtful" if meaning in SINGLE else meaning].append(name)
        elif left_out.is_camera(name, what):
            guessed["cameras"].append(name)
        else:
            guessed["texts"].append(name)
    counting = _counting(table, guessed["observations"])
    guessed["observations"] = [name for name in guessed["observations"] if name not in counting]
    following = _following(guessed["observations"], guessed["following"])
    guessed["following"] = [name for name in guessed["following"] if name not in following]
    folder = (beside or pathlib.Path()).resolve()
    lines = [
        "# What the columns of a log mean (docs/own_data.md). Guessed from their names: correct it before you use it.",
        f"files: [{', '.join(_quoted(os.path.relpath(one.resolve(), folder)) for one in paths)}]",
    ]
    lines += [f"{key}: [{', '.join(map(_quoted, guessed[key]))}]" for key in ("observations", "actions")]
    lines += [f"{key}: {_quoted(name)}" for key, name in single.items()]
    if following:
        one = _quoted(following[0]) if len(following) == 1 else f"[{', '.join(map(_quoted, following))}]"
        lines.append(f"next_observations: {one}")
    if cameras := guessed["cameras"]:
        keys = ", ".join(f"{left_out.key_of(n)}: {_quoted(n)}" for n in cameras if "next" not in _words(n))
        lines.append("# Cameras are left out; to take some in (docs/images.md), remove the # and the others:")
        lines += [f"# images: {{{keys}}}", "# image_size: 84  # height and width that pictures are scaled to"]
    lines += [
        f"# {_quoted(name)} is left out: it holds {table.names[name]}, or numbers tasks or files; name it as episode, "
        "or under observations if it is what the controller knows"
        for name in guessed["texts"]
    ]
    lines += [
        f"# {_quoted(name)} is left out: by its name it is of the next step. next_observations names such columns, one "
        "for each observation, in their order; name it as an observation only if the controller knows it at the step"
        for name in guessed["following"]
    ]
    if "valid" in guessed["doubtful"] and following:
        lines.append("# where valid is 0 no next observation is known: leave next_observations out, or those rows")
    lines += [
        f"# {_quoted(name)} is an end: name it as termination (the task ended) or as truncation (a time limit), "
        "if it is 1 in an episode's last row and in no other"
        for name in guessed["end"]
    ]
    lines += [
        f"# {_quoted(name)} is left out: it is not measured by the controller; name it under extras if it is what "
        "surefoot knows there (docs/own_data.md)"
        for name in guessed["extra"]
    ]
    lines += [
        f"# {_quoted(name)} is left out: it may be a reward, a label or a clock, or mean what another column does; "
        "name it where it belongs, as an observation only if the controller can measure it"
        for name in guessed["doubtful"]
    ]
    lines += [f"# {_quoted(name)} is left out: it numbers the rows" for name in [*guessed["counts"], *counting]]
    lines += [f"# {_quoted(name)} is left out: {why}" for name, why in uneven.items()]
    lines += _gap_lines(tables, [*guessed["observations"], *guessed["actions"]])
    lines += _status_lines(table, guessed["texts"])
    if "time" in single:
        lines.append("# gap: 0.5  # seconds without a row that end an episode")
    lines += ["# reward, cost, termination, truncation, episode, time: a column each, where there is one"]
    lines += ["#", "# All columns:", *(f"#   {name}: {what}" for name, what in table.names.items())]
    return "\n".join(lines) + "\n"


def _meaning(name: str, what: str) -> str | None:
    """What a column is by its name: a key of `SINGLE`, or of what a draft guesses; None: nothing.

    Args:
        name: of the column.
        what: it holds, in words.
    """
    low = re.sub(r"[\s/-]+", "_", UNIT.sub("", name.lower())).strip("_")
    last = low.split(".")[-1]
    if low in COUNTS:
        return "counts"
    for key, words in SINGLE.items():
        if last in words:
            return key
    if last in ENDS or MARKS_OF_ENDS.fullmatch(last):
        return "end"
    if last in EXTRAS or name.lower().startswith(("extras/", "extras.")):
        return "extra"
    if any(word in low for word in ("image", "camera", "_index")) or what.startswith(LEFT_OUT):
        return None
    if low in OF_FILES or not DOUBTFUL.isdisjoint(last.split("_")):
        return "doubtful"
    acts = ACTIONS_ALONE.fullmatch(last) or "u" in last.split("_") or any(word in low for word in ACTIONS)
    parts = set(_words(name))
    if parts & BEFORE or (acts and "last" in parts):
        return "doubtful"
    if "next" in parts:
        return "following"
    return "actions" if acts else "observations"


def _words(name: str) -> list[str]:
    """Of a column's name, in small letters: `nextState_0` and `next.state/0` have next, state and 0."""
    return re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", UNIT.sub("", name)).lower())


def _following(observations: Sequence[str], names: Sequence[str]) -> list[str]:
    """Those columns that are what followed the observations, in their order; none where one or another is missing.

    Args:
        observations: columns.
        names: of columns with the word `next`.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        words = _words(name)
        words.remove("next")
        found.setdefault(tuple(words), []).append(name)
    matched = [found.get(tuple(_words(name)), []) for name in observations]
    if observations and all(len(one) == 1 for one in matched):
        return [one[0] for one in matched]
    known = [name for name in names if _words(name) in ALL_THAT_FOLLOWED]
    return known if len(observations) == len(known) == 1 else []


def _gap_lines(tables: Sequence[columns.Table], names: Sequence[str]) -> list[str]:
    """Comments on columns that lack numbers in some rows, and what a mapping can do about it."""
    lacking: dict[str, int] = {}
    for table in tables:
        if table.sampled or not table.path.is_file() or table.path.stat().st_size > MOST_READ:
            continue
        with contextlib.suppress(DataError):  # what is wrong with it is reported where it is read as a dataset
            for name, array in table.read(list(names), None, frozenset(names)).items():
                if array.dtype.kind == "f" and (
                    count := int((~np.isfinite(array)).reshape(len(array), -1).any(1).sum())
                ):
                    lacking[name] = lacking.get(name, 0) + count
    if not lacking:
        return []
    listed = ", ".join(map(_quoted, lacking))
    reported = ", ".join(f"{_quoted(name)} in {count:,}" for name, count in lacking.items())
    return [
        f"# Numbers are missing in some rows: {reported}; one of these rules is needed, or each for some columns:",
        f"# interpolate: [{listed}]  # between the known numbers around them; fill_at_most: 5 leaves longer gaps",
        f"# hold: [{listed}]  # the last known number",
        f"# drop: [{listed}]  # the rows, at which an episode ends",
    ]


def _status_lines(table: columns.Table, names: Sequence[str]) -> list[str]:
    """Comments on columns of a few texts, which may say that an episode is over."""
    found = []
    for name in names:
        if not table.path.is_file() or table.path.stat().st_size > MOST_READ:
            continue
        with contextlib.suppress(DataError):
            words = np.unique(table.words(name))
            if 1 < len(words) <= MOST_WORDS and words.dtype.kind == "U":
                column = f"column: {_quoted(name)}, in: [{', '.join(map(_quoted, words.tolist()))}]"
                found.append(
                    f"# end_where: {{{column}}}  # those that end an episode; as: termination, if the task does"
                )
    return found


def _counting(table: columns.Table, names: Sequence[str]) -> list[str]:
    """Those columns that count the rows of a file, from 0 or from 1; of large files and recordings none is read."""
    if table.sampled or not table.path.is_file() or table.path.stat().st_size > MOST_READ:
        return []
    found = []
    with contextlib.suppress(DataError):  # what is wrong with it is reported where it is read as a dataset
        for name, array in table.read(names).items():
            if array.ndim == 1 and len(array) >= LEAST_ROWS and array[0] in (0, 1):
                found += [name] if np.array_equal(array, array[0] + np.arange(len(array))) else []
    return found


MOST_WORDS = 12
"""Different texts of a column that a draft lists."""
MOST_NAMED = 50
"""Bad files that one error names."""
MOST_READ = 100 * 2**20
"""Bytes of a file in which a draft looks for columns that count rows."""
LEAST_ROWS = 5
"""Rows that a column must number to count as one that does."""
UNIT = re.compile(r"(?<=\S)\s*[\[(][^\[\]()]*[\])]\s*$")
"""What a name says of its unit, as in `time [s]`."""
COUNTS = ("", "index", "idx", "unnamed:_0")
"""Names of columns that number the rows, as pandas writes one without a name."""
LEFT_OUT = ("text", "string", "pictures", "image", "video")
"""What columns hold that are no numbers."""
SINGLE = {
    "time": ("time", "timestamp", "t", "stamp", "seconds", "time_s", "time_sec", "t_s", "timestamp_s", "datetime"),
    "reward": ("reward", "rewards", "rew", "rews", "r", "next.reward", "next_reward"),
    "cost": ("cost", "costs"),
    "termination": ("termination", "terminal", "terminals", "terminated", "fallen"),
    "truncation": ("truncation", "truncated", "timeout", "timeouts"),
    "episode": (
        *("episode", "episode_index", "episode_id", "episode_nr", "episode_number"),
        *("trial", "trial_id", "run", "run_id", "demo", "demo_id", "rollout", "trajectory", "trajectory_id"),
    ),
}
ENDS = ("done", "dones", "is_done", "is_last", "ended", "success", "succeeded", "is_success")
"""Names of what may be either end, or hold in more rows than an episode's last."""
MARKS_OF_ENDS = re.compile(
    r"(is_|has_|next_|episode_|traj_)*(terminal|terminate[ds]?|termination|truncate[ds]?|truncation|timeouts?|dones?|ended|end|over)"
    r"(_flags?)?"
)
"""Whole names that are of an end as well, as `is_terminal`; no `terminal_voltage`."""
ALL_THAT_FOLLOWED = [["next", what] for what in ("observations", "observation", "obs", "states", "state")]
"""Words of names of an array of all that followed a step."""
BEFORE = frozenset(("prev", "previous"))
"""Words of names of what was measured or done at the step before."""
OF_FILES = ("valid", "next_known", "attributes", "infos_final_observations", "infos_episode_ends")
"""Names, with `_` for `/`, of what surefoot's own files hold beside what was measured."""
DENSITIES = ("prob", "probs", "density", "probability", "likelihood")
EXTRAS = (
    *("margin", "margins", "expert", "is_expert", "demonstration"),
    *(f"{of}log_{kind}" for of in ("", "action_", "behaviour_", "behavior_", "policy_") for kind in DENSITIES),
    *("logp", "logprob", "behaviour_logp", "behavior_logp", "action_logp"),
)
"""Names of what a mapping's `extras` may hold."""
ACTIONS = ("action", "command", "cmd", "control", "torque", "tau", "setpoint", "target", "ctrl", "input")
"""Parts of names that mean what was done, not what was measured."""

ACTIONS_ALONE = re.compile(r"(acts?|a|u)_?\d*")
"""Whole names that mean the same, one a number; `u` does as a word of a longer one too, and not within `imu`."""
DOUBTFUL = frozenset(
    (
        *("reward", "rewards", "rew", "score", "scores", "return", "returns", "rtg", "fitness", "advantage", "label"),
        *("time", "timestamp", "stamp", "clock", "elapsed", "len"),
    )
)
"""Words of names that mean what was judged, or when, not what was measured."""


def _quoted(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace(".", "").replace("-", "").isalnum() and name[0].isalpha()
    return (
        name
        if plain and name.lower() not in ("true", "false", "yes", "no", "null", "on", "off", "y", "n")
        else repr(name)
    )
