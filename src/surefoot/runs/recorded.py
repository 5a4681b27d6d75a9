"""Datasets of benchmarks that are recorded on this machine, and the rewards of a task for what they hold."""

from __future__ import annotations

import pathlib
import sys

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import Dataset, save
from surefoot.data.dataset import BEST_RETURN, NO_TASK, REWARDS, recording_ends
from surefoot.data.files import cache_folder
from surefoot.data.formats.ogbench import STATES, cut
from surefoot.data.load import load as load_source
from surefoot.envs.suites.names import (
    BASES,
    FAMILIES,
    SHARES,
    OCBenchName,
    OGBenchName,
    PointMazeName,
    is_benchmark,
    parse,
)
from surefoot.envs.suites.shards import VERSION, Progress, Recording
from surefoot.envs.suites.stitch import ordered

EPISODES = {"ogbench": 1000, "ocbench": 500, "pointmaze": 1000}
"""Of a dataset, where their number is not given."""


def recorded_name(name: str) -> str:
    """The dataset that a benchmark's name means, as `ogbench/scene-play` and `ocbench/block-lite-single-task1`.

    Raises:
        ConfigError: no data of that name can be recorded.
    """
    asked = parse(name)
    if isinstance(asked, OGBenchName):
        if asked.dataset is None:
            raise ConfigError(
                f"{name!r} names no behaviour, and so no data; some are recorded as "
                + ", ".join(f"ogbench/{asked.base}-{kind}" for kind in asked.facts.collected or ("(none)",))
            )
        return asked.dataset
    return asked.dataset


def episodes_of(name: str) -> int:
    """How many episodes a dataset has where no one says so."""
    return EPISODES[name.partition("/")[0]]


def generate(
    name: str,
    output: pathlib.Path,
    episodes: int,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    layout: str | None = None,
) -> Dataset:
    """Record a dataset into a file; what a killed call recorded is taken up from the folder `<output>.parts`.

    The same name, seed and number of episodes give the same bits, whatever the number of workers and however often it
    was interrupted; more episodes begin with the same ones.

    Args:
        name: of a dataset, as `ogbench/scene-play` or `ocbench/block-lite`.
        output: a new file.
        episodes: at least 1.
        seed: of all that is drawn, from 0 to 2^32 - 1.
        workers: processes.
        progress: called with (recorded, all) episodes.
        layout: of the file, as `data.save`.

    Raises:
        ConfigError: unknown name, or a number out of range.
        MissingExtraError: the benchmark's package is not installed.
        DataError: a file can't be written.
    """
    name = recorded_name(name)
    recording = Recording(name, seed, output.with_name(output.name + ".parts"))
    recording.record(episodes, workers, progress)
    dataset = assemble(recording, episodes)
    save(dataset, output, layout)
    recording.remove()
    return dataset


def assemble(recording: Recording, episodes: int) -> Dataset:
    """The dataset of a recording's first episodes, which must all be there."""
    asked = parse(recording.name)
    maze = asked if isinstance(asked, PointMazeName) else None
    rows, lengths = recording.rows(range(episodes) if maze is None else ordered(episodes, maze.detours))
    attributes: dict[str, object] = {
        "source": f"recorded by surefoot {recording.name} version {VERSION}",
        "kind": "scripted behaviours",
        "seed": recording.seed,
        "licence": "MIT",
    }
    if isinstance(asked, OGBenchName):
        attributes[REWARDS] = NO_TASK
        env_id = OGBenchName(asked.base, asked.behaviour, asked.facts.default).text
    else:
        env_id = asked.text
    if (
        maze is not None
    ):  # as the published data: the last of 200 steps is dropped, and counts in the best return all the same
        returns = rows["rewards"].reshape(episodes, -1).sum(1, dtype=np.float64)
        attributes |= {"detours_percent": maze.detours, BEST_RETURN: float(returns.max())}
        kept = np.ones(len(rows["rewards"]), bool)
        kept[np.cumsum(lengths) - 1] = False
        rows, lengths = {key: column[kept] for key, column in rows.items()}, lengths - 1
    count = int(lengths.sum())
    last = np.zeros(count, bool)
    last[np.cumsum(lengths) - 1] = True
    dataset = Dataset(
        observations=rows["observations"],
        actions=rows["actions"],
        rewards=rows["rewards"],
        next_observations=rows["next_observations"],
        terminations=rows["terminations"],
        truncations=last,
        episode_ids=np.zeros(count, np.int64),
        valid=np.ones(count, bool),
        env_id=env_id,
        name=recording.name,
        attributes=attributes,
        extras={key: rows[key] for key in STATES if key in rows},
    )
    return cut(dataset)


def cached_path(name: str, seed: int = 0) -> pathlib.Path:
    """Where the dataset of a name is kept, whether or not it is there yet."""
    kept = f"{recorded_name(name).replace('/', '-')}-v{VERSION}-seed{seed}-{episodes_of(name)}.hdf5"
    return cache_folder() / "generated" / kept


def load(name: str, strict: bool = False, view: str = "corrected") -> Dataset:
    """The cached dataset of a benchmark's name, with the rewards of the task that it names.

    What takes minutes is recorded where it is missing. Of what takes longer the error says how to record it.

    Raises:
        ConfigError: unknown name, a dataset that has to be recorded first, or another view than `corrected`.
        MissingExtraError: the benchmark's package is not installed.
    """
    asked = parse(name)
    if view != "corrected":
        raise ConfigError(f"view={view!r} is of D4RL's files, and {name} is a benchmark's: use view='corrected'")
    dataset = load_source(recorded(name), strict=strict).replace(name=name)
    if isinstance(asked, OGBenchName) and asked.task is not None:
        return relabelled(dataset, asked)
    return dataset


def recorded(name: str) -> pathlib.Path:
    """The cached file of a benchmark's dataset, whatever the task; errors as `load`."""
    path, asked = cached_path(name), parse(name)
    if not path.exists():
        quick = isinstance(asked, PointMazeName) or (
            asked.base.startswith("pointmaze") if isinstance(asked, OGBenchName) else asked.lite
        )
        if not quick:
            raise ConfigError(
                f"dataset {name!r} is not recorded yet: `surefoot datasets generate {recorded_name(name)}` does so in "
                f"about {episodes_of(name) * 2 // 60} minutes of a core (--workers shares them) and can be interrupted"
            )
        print(f"{name}: recording {episodes_of(name)} episodes, which are kept in {path}", file=sys.stderr)
        tenth = max(1, episodes_of(name) // 10)

        def notify(done: int, wanted: int) -> None:
            if done % tenth == 0:
                print(f"{name}: {done} of {wanted} episodes are recorded", file=sys.stderr)

        generate(name, path, episodes_of(name), progress=notify)
    return path


def relabelled(dataset: Dataset, name: OGBenchName, keep_states: bool = True) -> Dataset:
    """The dataset with the rewards of a task, and a termination wherever it is solved.

    Args:
        dataset: with the simulator's states in its extras, with or without other rewards.
        name: with a task.
        keep_states: keep those extras, so that it can be labelled again.

    Raises:
        ConfigError: the name has no task.
        DataError: the dataset lacks the states, or was recorded in another environment.
        MissingExtraError: ogbench is not installed.
    """
    from surefoot.envs.suites.ogbench import rewards_of

    started = parse(dataset.env_id) if dataset.env_id is not None and is_benchmark(dataset.env_id) else None
    if started is not None and (not isinstance(started, OGBenchName) or started.base != name.base):
        raise DataError(f"{dataset.name}: was recorded in {dataset.env_id}, whose states say nothing of {name.text}")
    if "qpos" not in dataset.extras:
        raise DataError(
            f"{dataset.name}: has no simulator states ('qpos'), of which rewards of {name.text} are made; record it "
            "with `surefoot datasets generate`, or load OGBench's own file"
        )
    rewards, solved = rewards_of(name, dataset.extras)
    last = recording_ends(dataset)
    extras = {key: value for key, value in dataset.extras.items() if keep_states or key not in STATES}
    attributes = {**dataset.attributes, REWARDS: label(name), "solved_rows": int(solved.sum()), **name.rules()}
    made = dataset.replace(
        rewards=rewards, terminations=solved, truncations=last, extras=extras, env_id=name.text, attributes=attributes
    )
    return cut(made)


def label(name: OGBenchName) -> str:
    """What the attribute `rewards` says of a task's: the data's behaviour and when success is judged don't matter."""
    return OGBenchName(name.base, None, name.task, name.sparse).text


def with_rewards(dataset: Dataset, environment: str | None) -> tuple[Dataset, list[str]]:
    """The dataset with the rewards of the task that a run's environment is, where it holds what they are made of.

    Returns:
        The dataset, and notes for the user.
    """
    asked = parse(environment) if environment is not None and is_benchmark(environment) else None
    stated = dataset.attributes.get(REWARDS)
    if isinstance(asked, OGBenchName) and asked.task is not None and "qpos" in dataset.extras:
        if stated != label(asked):
            dataset = relabelled(dataset, asked, keep_states=False)
        else:
            kept = {key: value for key, value in dataset.extras.items() if key not in STATES}
            dataset = dataset.replace(extras=kept)
        dataset = dataset.replace(env_id=environment)
        solved = int(dataset.terminations.sum())
        rules = asked.rules()
        notes = [
            f"{dataset.name}: rewards of {asked.text}, {rules['reward']}; "
            f"{solved:,} of {len(dataset):,} rows solve it; "
            f"in the environment success is {rules['success']}"
        ]
        if solved == 0:
            notes.append(f"warning: {dataset.name}: no row solves {asked.text}, so no method can learn what does")
        return dataset, notes
    if stated == NO_TASK:
        where = "without a simulator" if environment is None else f"in {environment}"
        return dataset, [
            f"warning: {dataset.name} has no rewards (all are 0), and this run {where} names no task that gives some; "
            "name one as in env=ogbench/scene-play-singletask-task1-v0"
        ]
    return dataset, []


def names() -> list[str]:
    """Datasets that can be recorded."""
    ogbench = [f"ogbench/{base}-{kind}" for base, facts in BASES.items() for kind in facts.collected]
    ocbench = [
        OCBenchName(family, kind, lite, task + 1).dataset
        for family, kinds in FAMILIES.items()
        for kind, tasks in kinds.items()
        for lite in ((True, False) if family != "bowling" else (False,))
        for task in range(tasks)
    ]
    return ogbench + ocbench + [PointMazeName(share).dataset for share in SHARES]


def facts() -> list[dict[str, object]]:
    """One row per dataset for `surefoot datasets list`."""
    rows: list[dict[str, object]] = []
    for name in names():
        asked = parse(name)
        if isinstance(asked, OGBenchName):
            env = OGBenchName(asked.base, asked.behaviour, asked.facts.default).text
        else:
            env = asked.text
        note = f"recorded here by `surefoot datasets generate {name}`: {episodes_of(name)} episodes"
        rows.append(
            {
                "id": name,
                "environment": env,
                "reference_low": None,
                "reference_high": None,
                "minari": None,
                "note": note,
            }
        )
    return rows
