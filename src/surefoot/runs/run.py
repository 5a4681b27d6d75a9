"""`Run`: a run folder, with everything needed to repeat, resume or use it.

config.json        the plan, with the action bounds that it was resolved to, and the notes given before the first step
environment.json   versions, git commit, machine, when it started
kernels.json       the processor, native module and ways of taking networks that the numbers depend on
seeds/K/           checkpoint.safetensors, result.json, log.txt of seed K
metrics.jsonl      a line per seed and step: losses, evaluations
policy/seedK.*     safetensors and JSON, one policy a seed: the last
best/seedK.*       likewise the best one by evaluations while it trained, with keep_best=true
summary.json       scores with intervals; there when the run is complete
curves.png         learning curves

While it is not complete there are dataset.safetensors, the data or the store that they lie in, and, of large data,
prepared/, what seeds have made of them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.metadata
import os
import pathlib
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base import checkpoint
from surefoot.core.base.counter import NAME
from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.core.base.files import read_json
from surefoot.core.base.options import record_of
from surefoot.core.base.random import generator
from surefoot.core.base.schema import MOST_BYTES, Many, Maybe, Number, Plain, Record, Table, Text, check
from surefoot.core.base.spec import PROBLEM
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.encoder_config import without_file
from surefoot.core.policy.policy import Policy
from surefoot.data.checks import same_length, validate
from surefoot.data.dataset import Dataset
from surefoot.data.derived import PREPARED, Derived
from surefoot.data.formats import on_disk
from surefoot.data.formats.on_disk import EXTRAS
from surefoot.data.frame_cache import opened, place_of
from surefoot.data.pictures import FURTHER, OBSERVED, Pictures, check_numbers, gathered
from surefoot.data.store import learnable
from surefoot.envs.make import only_here
from surefoot.evaluation.runs import ANY_CONFIG, CONFIG_FORMAT, METRICS_LINE, SUMMARY_FORMAT
from surefoot.runs.commit import commit_of
from surefoot.runs.plan import Plan, agent_class, as_made, told_options
from surefoot.runs.trust import module_of, require_trust
from surefoot.streaming import StreamingAgent

SHARED_FROM = 64 << 20
"""Bytes of a dataset from which on what is prepared of it is kept in files of the run's folder, which seeds share."""
PICTURES = "pictures/"
"""What names of columns of a run begin with that are the pictures of a camera."""
IN_MEMORY = "<memory>"
"""A plan's dataset where `fit` was given arrays: they are kept in the run folder."""
Array = np.ndarray[Any, Any]

VALIDATION_FRACTION = 0.1
"""Of the episodes that can be learned from, how many are held out."""
MOST_HELD = 0.5
"""Of the rows that can be learned from, how many are held out at most, where episodes are few and unlike in length."""
TRANSITIONS = ("next_observations",)
"""Columns of who learns from whole transitions."""
LANGUAGE = "language model"
"""The kind that config.json of a run of `surefoot llm train` names; runs of control name none."""
IMPORTED = "imported"
"""The kind of a run of another library, of which there are scores and curves alone (`surefoot import runs`)."""


_FACTS = Record({"name": Text(), "sha256": Maybe(Text(64)), "transitions": Number(1, whole=True)}, others=True)
CONFIG = Record(
    {"plan": record_of(Plan), "spec": PROBLEM},
    {"dataset": Maybe(_FACTS), "random_numbers": Text()},
    others=True,
    newest=CONFIG_FORMAT,
)
"""What config.json holds."""
RESULT_FORMAT = 1
"""Version of the format of a seed's result.json."""
ANY_SUMMARY = Record(
    {}, {"preset": Maybe(Text()), "options": Table(Plain(finite=True))}, others=True, newest=SUMMARY_FORMAT
)
"""Of summary.json, what is checked where it is only shown; `evaluation.RunData` checks all."""
STATE = Record(
    {
        "kind": Text(),
        "algorithm": Text(),
        "seed": Number(0, whole=True),
        "step": Number(0, whole=True),
        "seconds": Number(0),
        "metrics": Many(METRICS_LINE),
    },
    others=True,
)
"""What a checkpoint says of its seed."""
COLUMNS = Record(
    {"kind": Text(), "name": Text(), "env_id": Maybe(Text()), "sha256": Maybe(Text(64))},
    {
        "attributes": Table(Text(MOST_BYTES)),
        "warnings": Table(Number(0, whole=True)),
        "frames": Table(Record({"path": Text(), "sha256": Text(64)})),
        "store": Maybe(Record({"path": Text(), "sha256": Text(64), "columns": Many(Text(200))})),
    },
)
"""What dataset.safetensors says of its dataset."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder that exists."""

    folder: pathlib.Path
    plan: Plan

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """Read a run folder.

        Raises:
            CheckpointError: it is not one, or damaged.
        """
        folder = pathlib.Path(folder)
        if not (folder / "config.json").is_file():
            found = "there is no config.json in it" if folder.is_dir() else "there is no such folder"
            raise CheckpointError(f"{folder}: not a run folder ({found})")
        if is_language(folder):
            raise CheckpointError(
                f"{folder}: is a run of a language model: surefoot report, results and watch show it, surefoot llm "
                "evaluate asks it, and surefoot llm train --resume continues it"
            )
        if is_imported(folder):
            raise CheckpointError(
                f"{folder}: was imported from another library's logs, which hold scores and curves alone: surefoot "
                "results, report and compare read it"
            )
        value = read_json(folder / "config.json", CONFIG)
        try:
            return cls(folder, as_made(Plan.from_json(value["plan"])))
        except ConfigError as error:
            raise CheckpointError(f"{folder}/config.json: {error}") from error

    @classmethod
    def open_scores(cls, folder: str | os.PathLike[str]) -> Run:
        """A run folder whose scores alone are read: one of ours, or an imported one, which has no more than them.

        Raises:
            CheckpointError: as `open`.
        """
        folder = pathlib.Path(folder)
        if not ((folder / "config.json").is_file() and is_imported(folder)):
            return cls.open(folder)
        plan = read_json(folder / "config.json", Record({"plan": record_of(Plan)}, others=True))["plan"]
        try:
            return cls(folder, Plan.from_json(plan))
        except ConfigError as error:
            raise CheckpointError(f"{folder}/config.json: {error}") from error

    @property
    def spec(self) -> Spec:
        """Sizes and bounds of the control problem."""
        path = self.folder / "config.json"
        try:
            return Spec.from_json(read_json(path, CONFIG)["spec"])
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error

    def agent(self, new: bool = False) -> Agent:
        """An agent of the plan, its weights drawn anew.

        Args:
            new: it is trained from these weights: those of `encoder_weights` are read. Else they are a checkpoint's,
                and the run does not need that file any more.

        Raises:
            CheckpointError: this version's algorithm does not take the options of the run; with `new`, the file of
                weights is not there or damaged.
        """
        try:
            made = as_made(self.plan, agent_class(self.plan.algorithm))
            return (made if new else dataclasses.replace(made, config=without_file(made.config))).agent(self.spec)
        except ConfigError as error:
            raise CheckpointError(f"{self.folder}/config.json: {error}{self._other_version()}") from error

    def _other_version(self) -> str:
        """What to do where another version made this run; nothing where this one did."""
        path = self.folder / "environment.json"
        made = read_json(path)["versions"].get("surefoot") if path.is_file() else None
        own = importlib.metadata.version("surefoot")
        if made in (None, own):
            return ""
        return f". It was made by surefoot {made}, and this is {own}: use that version for it, or train it again"

    @property
    def complete(self) -> bool:
        """Whether training and evaluation have ended."""
        return (self.folder / "summary.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """Scores with intervals, seeds, episodes, versions.

        Raises:
            CheckpointError: the run is not complete.
        """
        self._refuse_incomplete()
        value: dict[str, Any] = read_json(self.folder / "summary.json", ANY_SUMMARY)
        return value

    @property
    def reported(self) -> tuple[str | None, dict[str, Any]]:
        """Preset and options that tables tell; of an algorithm of one's own that is not imported, as its summary does.

        Raises:
            ConfigError: this version does not know the algorithm or an option.
            CheckpointError: the summary is damaged.
        """
        try:
            return told_options(self.plan.algorithm, self.plan.config)
        except ConfigError:
            if module_of(self.plan.algorithm) is None:
                raise
            summary = self.summary if self.complete else {}
            return summary.get("preset"), summary.get("options", {})

    def policy(self, seed: int | None = None, *, best: bool = False) -> Policy:
        """The last policy of one seed, or the best by evaluations in training; of the first where none is named.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        seed = self.plan.seeds[0] if seed is None else seed
        if seed not in self.plan.seeds:
            raise CheckpointError(f"{self.folder}: has no seed {seed}; it has {list(self.plan.seeds)}")
        if best:
            if not self.plan.keep_best:
                raise CheckpointError(
                    f"{self.folder}: kept its last policies alone; keep_best=true keeps the best ones too"
                )
            if not self.best_path(seed).is_file():
                raise CheckpointError(f"{self.best_path(seed)}: there is no such file; no evaluation has been made yet")
            return Policy.load(self.best_path(seed))
        if not self.policy_path(seed).is_file():
            if not agent_class(self.plan.algorithm).requires.policy:
                raise CheckpointError(
                    f"{self.folder}: {self.plan.algorithm} learns no policy, a model of the world alone"
                )
            self._refuse_incomplete()
        return Policy.load(self.policy_path(seed))

    def _refuse_incomplete(self) -> None:
        if not self.complete:
            raise CheckpointError(f"{self.folder}: not complete; continue: {self.resume_command}")

    @property
    def resume_command(self) -> str:
        """What continues it, as it can be pasted into a shell, or into the python that has its environment."""
        if self.plan.environment is not None and only_here(self.plan.environment) is not None:
            return f"surefoot.resume({str(self.folder)!r}, env=...) in python"
        config = self.folder / "config.json"
        named = read_json(config, CONFIG).get("listener") if config.is_file() else None
        trusted = named is not None or any(module_of(name) for name in names_in(self.plan))
        return f"surefoot train --resume {shlex.quote(str(self.folder))}{' --trust' if trusted else ''}"

    def policies(self, *, best: bool = False) -> dict[int, Policy]:
        """Seed -> policy, the last or the best."""
        return {seed: self.policy(seed, best=best) for seed in self.plan.seeds}

    def policy_path(self, seed: int) -> pathlib.Path:
        """Where the policy of `seed` is, ending in .safetensors."""
        return self.folder / "policy" / f"seed{seed}.safetensors"

    def best_path(self, seed: int) -> pathlib.Path:
        """Where the best policy of `seed` is, of a run with keep_best=true."""
        return self.folder / "best" / f"seed{seed}.safetensors"

    def seed_folder(self, seed: int) -> pathlib.Path:
        """Where checkpoint, result and log of `seed` are."""
        return self.folder / "seeds" / str(seed)

    def checkpoint_path(self, seed: int) -> pathlib.Path:
        """The last good checkpoint of `seed`."""
        return self.seed_folder(seed) / "checkpoint.safetensors"

    def supported_path(self, seed: int) -> pathlib.Path:
        """Where the last policy of `seed` is that was saved before the alarm rang, of runs that have one."""
        return self.folder / "policy" / f"seed{seed}_before_alarm.safetensors"

    @property
    def columns_path(self) -> pathlib.Path:
        """The dataset as the workers read it."""
        return self.folder / "dataset.safetensors"

    @property
    def prepared_path(self) -> pathlib.Path:
        """Where rows are kept that seeds prepare of it, while the run is not complete."""
        return self.folder / PREPARED


def names_in(plan: Plan) -> list[str | None]:
    """Names in a plan, and in that of the run that it starts from, that may be of modules."""
    started = () if plan.init is None else Run.open(plan.init).plan.imports
    return [*plan.imports, plan.environment, *started]


def is_language(folder: pathlib.Path) -> bool:
    """Whether a folder with a config.json is a run of a language model.

    Raises:
        CheckpointError: config.json is damaged.
    """
    return bool(read_json(folder / "config.json", ANY_CONFIG).get("kind") == LANGUAGE)


def is_imported(folder: pathlib.Path) -> bool:
    """Whether a folder with a config.json is of another library's logs.

    Raises:
        CheckpointError: config.json is damaged.
    """
    return bool(read_json(folder / "config.json", ANY_CONFIG).get("kind") == IMPORTED)


def describe_machine() -> dict[str, Any]:
    """Versions, machine, git commit and date, for environment.json."""
    packages = ("surefoot", "torch", "numpy", "gymnasium", "mujoco", "h5py", "safetensors", "hydra-core")
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "machine": f"{platform.system()} {platform.machine()}",
        "git": commit_of(pathlib.Path(__file__)),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
    }


def write_columns(dataset: Dataset, path: pathlib.Path) -> None:
    """Write a dataset so that worker processes map it: uncompressed, with a checksum.

    Columns that are those of a store on disk are not written: its path and SHA-256 are.
    """
    store = on_disk.origin_of(dataset)
    arrays = _columns(dataset if store is not None else dataset.replace(extras=gathered(dataset.extras)))
    stored = [] if store is None else [key for key, value in arrays.items() if store.column(value) == _in_store(key)]
    caches = {key: place for key, value in arrays.items() if (place := place_of(value)) is not None}
    meta: dict[str, Any] = {
        "kind": "dataset",
        "name": dataset.name,
        "env_id": dataset.env_id,
        "sha256": dataset.sha256,
        "attributes": {key: str(value) for key, value in dataset.attributes.items()},
        "warnings": dict(dataset.warnings),
    }
    if store is not None and stored:
        meta["store"] = {"path": str(store.folder.resolve()), "sha256": store.sha256, "columns": stored}
    if caches:
        meta["frames"] = {
            key: {"path": str(place.resolve()), "sha256": sha256} for key, (place, sha256) in caches.items()
        }
    kept = {key: value for key, value in arrays.items() if key not in stored and key not in caches}
    own = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in kept.items()}
    checkpoint.save(path, own, meta)


def _columns(dataset: Dataset) -> dict[str, Array]:
    """Every array of a dataset by name: of cameras the pictures, further ones, and numbers of them for each row."""
    fields = {field.name: getattr(dataset, field.name) for field in dataclasses.fields(dataset)}
    arrays = {key: value for key, value in fields.items() if isinstance(value, np.ndarray)}
    for key, value in dataset.extras.items():
        if isinstance(value, Pictures):
            arrays |= {f"{EXTRAS}{key}": value.numbers}
            if key.startswith(OBSERVED):
                camera = key.removeprefix(OBSERVED)
                arrays |= {f"{PICTURES}{camera}": value.pictures, f"{FURTHER}{camera}": value.further}
        else:
            arrays[f"{EXTRAS}{key}"] = value
    return arrays


def _in_store(key: str) -> str:
    """What a column is called in a store on disk."""
    for ours, theirs in ((PICTURES, OBSERVED), (FURTHER, FURTHER)):
        if key.startswith(ours):
            return f"{EXTRAS}{theirs}{key.removeprefix(ours)}"
    return key


def _extras(path: pathlib.Path, arrays: Mapping[str, Array], stored: Dataset | None) -> dict[str, Any]:
    """The extras in a run's columns: numbers of pictures, with these, as `Pictures`."""
    found: dict[str, Any] = {}
    for key in (key.removeprefix(EXTRAS) for key in arrays if key.startswith(EXTRAS)):
        value, camera = arrays[EXTRAS + key], key.removeprefix("next_").removeprefix(OBSERVED)
        pictures, further = (arrays.get(f"{which}{camera}") for which in (PICTURES, FURTHER))
        if not key.removeprefix("next_").startswith(OBSERVED) or value.dtype != np.int64 or value.ndim != 1:
            found[key] = value
        elif pictures is not None and further is not None:
            check_numbers(f"{path}: {key!r}", value, len(pictures), len(further))
            found[key] = Pictures(value, pictures, further)
        elif stored is not None and key in stored.extras:  # of a run that names the pictures of a store themselves
            found[key] = stored.extras[key]
        else:
            raise DataError(f"{key!r} has numbers of pictures that are not there")
    return found


def read_columns(path: pathlib.Path) -> Dataset:
    """The dataset that `write_columns` wrote, its arrays mapped.

    What is made of large ones is kept in files of the run's folder, of a store's in the store.

    Raises:
        CheckpointError: it is damaged, or the store that it names is not there, damaged or another one.
    """
    tensors, meta = checkpoint.load(path, kind="dataset")  # safetensors maps the file: nothing is copied
    check(meta, COLUMNS, path)
    del meta["kind"]
    named, caches = meta.pop("store", None), meta.pop("frames", {})
    arrays: dict[str, Any] = {key: value.numpy() for key, value in tensors.items()}
    try:
        derived, stored = None, None
        arrays |= {key: _frames(path, one) for key, one in caches.items()}
        if named is not None:
            stored = _stored(path, named)
            derived = stored.derived
            arrays |= {key: value for key, value in _columns(stored).items() if key in named["columns"]}
        elif sum(value.nbytes for value in arrays.values()) >= SHARED_FROM:
            derived, facts = Derived(path.with_name(PREPARED)), path.stat()
            of_file = f"{facts.st_ino} {facts.st_size} {facts.st_mtime_ns}"
            for key, value in arrays.items():
                known = f"frames {caches[key]['sha256']}" if key in caches else f"column {key} of file {of_file}"
                derived.know(value, known)
        extras = _extras(path, arrays, stored)
        fields = {key: value for key, value in arrays.items() if not key.startswith((EXTRAS, PICTURES, FURTHER))}
        dataset = Dataset(**fields, extras=extras, derived=derived, **meta)
        if named is None:
            validate(dataset)
        else:  # its numbers were looked at when it was loaded
            lengths = {
                key: value for key, value in _columns(dataset).items() if not key.startswith((PICTURES, FURTHER))
            }
            same_length(dataset.name, lengths)
    except (TypeError, DataError) as error:
        raise CheckpointError(f"{path}: not the columns of a dataset ({error})") from error
    return dataset


def _frames(path: pathlib.Path, named: Mapping[str, str]) -> Array:
    """The cache of frames that a run's columns name."""
    place = pathlib.Path(named["path"])
    if not place.is_dir():
        raise CheckpointError(f"{path}: names the cache of frames {place}, which is not there: load the data again")
    frames = opened(place)
    found = place_of(frames)
    if found is None or found[1] != named["sha256"]:
        raise CheckpointError(f"{place}: is not the cache of frames that the run began with (SHA-256 differs)")
    return frames


def _stored(path: pathlib.Path, named: Mapping[str, Any]) -> Dataset:
    """The store that a run's columns name."""
    folder = pathlib.Path(named["path"])
    if not on_disk.is_store(folder):
        raise CheckpointError(f"{path}: names the store {folder}, which is not there; put it back")
    dataset = on_disk.read(folder, str(folder), private=True, checked=False)
    if dataset.sha256 != named["sha256"]:
        raise CheckpointError(f"{folder}: is not the store that the run began with (SHA-256 differs)")
    if missing := [key for key in named["columns"] if key not in _columns(dataset)]:
        raise CheckpointError(f"{path}: names the column {missing[0]!r}, which {folder} does not have")
    return dataset


def split(dataset: Dataset, columns: Sequence[str] = TRANSITIONS) -> tuple[Dataset, Dataset | None]:
    """Episodes for training, and those held out for validation (`episodes_apart`); None where none can be.

    Args:
        dataset: whole episodes.
        columns: that the algorithm reads, which decide the rows that it learns from (`data.store.learnable`).
    """
    learned, held = episodes_apart(dataset, columns)
    if not len(held):
        return dataset, None
    return dataset.select_episodes(learned), dataset.select_episodes(held)


def episodes_apart(dataset: Dataset, columns: Sequence[str] = TRANSITIONS) -> tuple[Array, Array]:
    """Numbers of the episodes that `split` takes for training, and of those it holds out, both in order.

    Held out is a tenth of the episodes that can be learned from, at least one where there are two, drawn at random, and
    never more than half of the rows that can be learned from: an episode that would be too much is passed over. What
    can't be learned from, such as a fragment of one step of which no one knows what followed, is never held out.
    """
    rows = np.bincount(dataset.episode_ids[learnable(dataset, columns)], minlength=len(dataset.episode_lengths))
    able, most = int(np.count_nonzero(rows)), int(rows.sum()) * MOST_HELD
    wanted = max(1, int(able * VALIDATION_FRACTION)) if able > 1 else 0
    held: list[int] = []
    taken = 0
    for episode in generator(0, "validation").permutation(len(rows)):
        if len(held) == wanted:
            break
        if 0 < rows[episode] <= most - taken:
            held.append(int(episode))
            taken += int(rows[episode])
    chosen = np.zeros(len(rows), bool)
    chosen[held] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def load_state(run: Run, seed: int) -> dict[str, torch.Tensor]:
    """All tensors of the last checkpoint of a seed.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    path = run.checkpoint_path(seed)
    if not path.is_file() and not run.complete:
        raise CheckpointError(f"{run.folder}: has no checkpoint of seed {seed} yet; continue: {run.resume_command}")
    return checkpoint.load(path, kind="checkpoint")[0]


def refuse_other_numbers(run: Run) -> None:
    """Refuse to continue a run whose random numbers are not those of this version (`core.base.counter`).

    Raises:
        CheckpointError: they are others.
    """
    if read_json(run.folder / "config.json", CONFIG).get("random_numbers") != NAME:
        raise CheckpointError(
            f"{run.folder}: was started with the random numbers of surefoot 0.2, and this version draws others for the "
            "same seed, so it can't continue; use that version for it, or start anew with init="
        )


def load_together(
    paths: Mapping[int, pathlib.Path], algorithm: str
) -> list[tuple[dict[str, Tensor], dict[str, Any]]] | None:
    """Tensors and description of each checkpoint of seeds that one process trains together; None where there is none.

    Raises:
        CheckpointError: one is damaged or of another run; they are of different steps, or only some are there.
    """
    there = {seed: path for seed, path in paths.items() if path.is_file()}
    if not there:
        return None
    found = []
    for seed, path in there.items():
        tensors, meta = checkpoint.load(path, kind="checkpoint")
        check(meta, STATE, path)
        if (meta["algorithm"], meta["seed"]) != (algorithm, seed):
            raise CheckpointError(
                f"{path}: is of {meta['algorithm']} seed {meta['seed']}, but {algorithm} seed {seed} is needed here; "
                "it was moved from another run"
            )
        found.append((tensors, meta))
    steps = {path: meta["step"] for path, (_, meta) in zip(there.values(), found, strict=True)}
    if len(set(steps.values())) > 1 or len(there) < len(paths):
        reported = ", ".join(
            f"{path} is of step {steps[path]:,}" if path in steps else f"{path} is not there" for path in paths.values()
        )
        raise CheckpointError(
            f"seeds {', '.join(map(str, paths))} are trained together here, and can't continue from different steps: "
            f"{reported}. Put back copies of one step, or continue without a GPU if it began so, which trains each "
            "seed by itself; or delete these checkpoints to begin the seeds again"
        )
    return found


def load_agent(run: Run, seed: int | None = None, trust: bool = False) -> Agent:
    """The agent of a run's last checkpoint, critics included.

    Args:
        run: with checkpoints.
        seed: of the agent; None: the first.
        trust: import the module of an agent that is none of surefoot's.

    Raises:
        ConfigError: the agent or a function in its options is none of surefoot's, and not trusted.
        CheckpointError: there is no checkpoint, it is damaged, or a weight is not finite.
    """
    seed = run.plan.seeds[0] if seed is None else seed
    for name in run.plan.imports:
        require_trust(name, run.folder / "config.json", trust)
    tensors = load_state(run, seed)
    checkpoint.check_tensors(run.checkpoint_path(seed), tensors, "agent/")
    weights = {name.removeprefix("agent/"): value for name, value in tensors.items() if name.startswith("agent/")}
    where = run.checkpoint_path(seed)
    try:
        if not issubclass(agent_class(run.plan.algorithm), StreamingAgent):
            with torch.device("meta"):  # shapes without memory: a few bytes of options can ask for any amount
                shapes = {name: value.shape for name, value in run.agent().state_dict().items()}
            for name in sorted({*shapes, *weights}):
                if name not in shapes or name not in weights or shapes[name] != weights[name].shape:
                    raise CheckpointError(f"{where}: does not fit the run's configuration: agent/{name} differs")
        agent = run.agent()
    except (ConfigError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{run.folder}/config.json: {error}") from error
    try:
        if isinstance(agent, StreamingAgent):
            agent = agent.fresh(seed)
            agent.restore(0, tensors)
        else:
            agent.load_state_dict(weights)
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(f"{run.checkpoint_path(seed)}: does not fit the run's configuration ({error})") from error
    return agent.requires_grad_(False)
