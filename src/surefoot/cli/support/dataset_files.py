"""What the commands of `surefoot datasets` share: options of reading a dataset, and the file that is written."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError, DataError

if TYPE_CHECKING:
    from surefoot.data import Dataset


def add(commands: Any, name: str, function: Any, what: str) -> argparse.ArgumentParser:
    """A command, which prints JSON where it is asked to."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    made.add_argument("--json", action="store_true", help="print JSON")
    made.set_defaults(run=function)
    return made


def add_loading(parser: argparse.ArgumentParser) -> None:
    """The options that say how a dataset is read."""
    parser.add_argument("--strict", action="store_true", help="refuse oddities that are otherwise counted")
    parser.add_argument("--view", default="corrected", help="corrected, or d4rl for qlearning_dataset's rows")
    parser.add_argument(
        "--max-episode-steps", type=int, metavar="N", help="time limit, of a file that does not mark time-outs"
    )
    parser.add_argument(
        "--mapping", metavar="FILE", help="mapping that says what a log's columns mean (docs/own_data.md)"
    )
    parser.add_argument(
        "--image-size",
        type=int,
        nargs="+",
        metavar="PIXELS",
        help="scale pictures to this height and width, in a cache",
    )
    parser.add_argument("--cameras", nargs="+", metavar="KEY", help="read these cameras alone")
    parser.add_argument(
        "--reward", metavar="MODULE:FUNCTION", help="rewards all steps at once, in place of recorded ones"
    )


def load(arguments: argparse.Namespace) -> Dataset:
    """The dataset that the command names as its source."""
    return _loaded(arguments, arguments.source, arguments.mapping)


def load_any(arguments: argparse.Namespace, source: str) -> Dataset:
    """Another dataset that the command names: by itself, or by `--mapping` where it is a log that needs it.

    Raises:
        DataError: as `data.load`; where a mapping was given, what is wrong with it and without it.
    """
    try:
        return _loaded(arguments, source, None)
    except DataError as alone:
        if arguments.mapping is None:
            raise
        try:
            return _loaded(arguments, source, arguments.mapping)
        except DataError as mapped:
            raise DataError(f"{mapped} (by --mapping; without it: {alone})") from alone


def _loaded(arguments: argparse.Namespace, source: str, mapping: str | None) -> Dataset:
    from surefoot.runs import embedded as generate

    options: dict[str, Any] = {"mapping": mapping, "reward": reward_of(arguments.reward)}
    options |= {"image_size": arguments.image_size, "cameras": arguments.cameras}
    options |= {"strict": arguments.strict, "view": arguments.view, "max_episode_steps": arguments.max_episode_steps}
    with output.download_bar() as progress:
        return generate.load(source, progress=progress, **options)


def reward_of(name: str | None) -> Any:
    """The function that the user named, whose module may be in the working directory; or the reward of a run."""
    from surefoot.runs.run_reward import reward_of_run
    from surefoot.runs.success_reward import is_run
    from surefoot.runs.trust import allow, function_of

    if name is None:
        return None
    if is_run(name):
        return reward_of_run(name)
    allow(name)
    return function_of(name, "--reward")


def new_file(name: str) -> pathlib.Path:
    """A path to write a dataset to.

    Raises:
        ConfigError: it exists, or its ending names no format.
    """
    from surefoot.core.base.errors import nearest
    from surefoot.data.save import WRITERS

    path = pathlib.Path(name)
    if path.suffix.lower() not in WRITERS:
        raise ConfigError(f"{path}: the suffix {path.suffix!r} names no format: {nearest(path.suffix, list(WRITERS))}")
    if path.exists():
        raise ConfigError(f"{path}: exists already; delete it or choose another name")
    return path


def new_folder(name: str) -> pathlib.Path:
    """A path of a folder to write a dataset to.

    Raises:
        ConfigError: it exists.
    """
    path = pathlib.Path(name)
    if path.exists():
        raise ConfigError(f"{path}: exists already; delete it or choose another name")
    return path


def report_lost(dataset: Dataset, path: Any, layout: str | None = None) -> None:
    """Name what a dataset has and the file that was written has no place for."""
    from surefoot import data
    from surefoot.data.load import MINARI_PREFIX

    if lost := data.not_held(dataset, path, layout):
        output.say(f"note: {path} has no place for {', '.join(lost)}", stderr=True)
    unknown = int((~dataset.transitions).sum())
    if unknown and (str(path).startswith(MINARI_PREFIX) or layout == "ogbench"):
        output.say(
            f"note: {path} has no place for {unknown:,} last steps of which nothing says what followed, which clones "
            "learn from: they are left out; HDF5, NPZ, Parquet and LeRobot hold them",
            stderr=True,
        )


def report_left_out(dataset: Dataset) -> None:
    """Name what the source holds and the dataset does not, and how to take it in."""
    from surefoot.data import left_out

    for text in left_out.notes(dataset):
        output.say(f"note: {text}", stderr=True)


def report_written(path: Any, dataset: Dataset, as_json: bool) -> None:
    """Say what was written, and where."""
    from surefoot import data

    facts = data.info(dataset)
    if as_json:
        output.print_json({"output": str(path), **facts})
        return
    mean = facts["return_mean"]
    returns = "no rewards: it can be cloned" if mean is None else f"mean return {mean:.1f}"
    output.say(f"{output.short(path)}: {len(dataset):,} transitions, {facts['episodes']:,} episodes, {returns}")
    for oddity, rows in dataset.warnings.items():
        output.say(f"  accepted: {rows:,} rows with {oddity}")


def show(facts: dict[str, Any], as_json: bool) -> None:
    """Facts by name, as text or JSON."""
    if as_json:
        output.print_json(facts)
    else:
        output.print_facts(facts)
