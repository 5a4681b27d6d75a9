"""The kinds of files that surefoot reads: how sound ones are made, damaged and read, for `fuzz_files.py`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import pathlib
import random
import warnings
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import torch
from fuzz_damage import (
    bytes_damaged,
    csv_damaged,
    hdf5_damaged,
    header_damaged,
    json_damaged,
    lines_damaged,
    logs_damaged,
    npz_damaged,
    parquet_damaged,
    recording_damaged,
    saved_damaged,
    yaml_damaged,
)

from surefoot.core.base.errors import SurefootError, printable
from surefoot.core.base.files import read_json, write_json

Path = pathlib.Path


@dataclasses.dataclass(frozen=True)
class Target:
    """One kind of file, or of folder."""

    name: str
    make: Callable[[Path], list[Path]]
    """Writes sound files into a folder."""
    read: Callable[[Path], None]
    """Reads one as surefoot does, and checks what it got."""
    damage: Callable[[Path, random.Random], str]
    """Does one thing to it; what it did."""
    ours: bool = False
    """Whether it has a checksum: then flipped bytes must be refused."""


def top_name(path: Path) -> str:
    return path.parent.name


def one_sentence(error: SurefootError, path: Path | None) -> str | None:
    """What is wrong with the message of an error; None where nothing is."""
    text = str(error)
    if "\n" in text or printable(text) != text or "Traceback" in text:
        return f"not one plain sentence: {text!r}"
    if path is not None and path.name not in text and path.stem not in text and top_name(path) not in text:
        return f"does not name the file: {text!r}"
    return None


def arrays_of(steps: int = 200) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ends = np.arange(steps) % 40 == 39
    return {
        "observations": rng.normal(size=(steps, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(steps, 2)).astype(np.float32),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "terminals": ends & (np.arange(steps) % 80 == 79),
        "timeouts": ends & (np.arange(steps) % 80 != 79),
    }


def read_dataset(path: Path) -> None:
    from surefoot.data import load, validate

    dataset = load(path)
    validate(dataset)
    json.dumps(dict(dataset.attributes), allow_nan=False)
    texts = [dataset.env_id or "", *map(str, dataset.attributes), *map(str, dataset.attributes.values())]
    assert all(printable(text) == text for text in texts), "a control character came through"


def hdf5_files(folder: Path) -> list[Path]:
    made = []
    for name, packing, version in (("gzip", {"compression": "gzip"}, "earliest"), ("latest", {}, "latest")):
        made.append(folder / f"{name}.hdf5")
        with h5py.File(made[-1], "w", libver=version) as file:
            for key, array in arrays_of().items():
                file.create_dataset(key, data=array, **packing)
            file.attrs["env_id"] = "Hopper-v5"
    return made


def own_hdf5(folder: Path) -> list[Path]:
    from surefoot.data import load, save

    save(load(hdf5_files(folder)[0]), folder / "saved.hdf5")
    return [folder / "saved.hdf5"]


def npz_files(folder: Path) -> list[Path]:
    from surefoot.data import load, save

    attributes = np.array(json.dumps({"env_id": "Hopper-v5", "max_episode_steps": 40, "note": "a"}))
    np.savez_compressed(folder / "packed.npz", **arrays_of(), attributes=attributes)
    save(load(folder / "packed.npz"), folder / "saved.npz")
    return [folder / "packed.npz", folder / "saved.npz"]


def csv_files(folder: Path) -> list[Path]:
    from surefoot.data import load, save

    save(load(npz_files(folder)[0]), folder / "saved.csv")
    return [folder / "saved.csv"]


def policies(folder: Path) -> list[Path]:
    from surefoot.core.actors.actor import actor_class
    from surefoot.core.actors.transformer_actor import DecisionTransformerActor
    from surefoot.core.nn.normalizer import Normalizer
    from surefoot.core.policy.policy import Policy

    made = []
    low, high = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0])
    heads = {kind: actor_class(kind)(3, 2, (8, 8)) for kind in ("deterministic", "gaussian", "tanh_gaussian", "family")}
    heads["decision_transformer"] = DecisionTransformerActor(3, 2, context=4, width=16, layers=1, heads=2)
    for kind, actor in heads.items():
        Policy.of(actor, Normalizer(3), low, high).save(folder / kind)
        made.append(folder / f"{kind}.safetensors")
    return made


def read_policy(path: Path) -> None:
    from surefoot.core.policy.policy import Policy

    policy = Policy.load(path)
    action = np.zeros(1, np.float32)
    with contextlib.suppress(SurefootError):  # enormous weights load, and their action is refused before it leaves
        action = policy.select_action(np.full(policy.observation_dim, 0.5, np.float32))
    assert np.isfinite(action).all(), f"acts {action}"


def run_folder(folder: Path) -> Path:
    """A finished run of one seed, as `surefoot train` writes it, found once."""
    import surefoot
    from surefoot.core.base.spec import Spec
    from surefoot.data import load
    from surefoot.offline import IQL

    made = folder / "run"
    if not made.is_dir():
        np.savez(folder / "d.npz", **arrays_of())
        dataset = load(folder / "d.npz")
        agent = IQL(Spec.of(dataset), hidden=(8, 8))
        surefoot.fit(agent, dataset, env=None, steps=20, seeds=1, out=made, progress=False, batch_size=8)
        certificate = {
            "violations": 0, "episodes": 10, "confidence": 0.95, "upper": 0.26, "low": 0.0, "high": 0.3, "rate": 0.0,
            "sentence": "0 violations", "policy": "p", "environment": "Pendulum-v1", "gap": None, "filter": None,
        }  # fmt: skip
        write_json(made / "certificate.json", certificate)
    return made


def of_run(name: str) -> Callable[[Path], list[Path]]:
    return lambda folder: [run_folder(folder) / name]


def top(path: Path) -> Path:
    """The run folder that a file lies in."""
    return next(parent for parent in path.parents if (parent / "config.json").exists() or parent.name == "run")


def read_run(path: Path) -> None:
    from surefoot.runs.run import Run, load_agent

    run = Run.open(top(path))
    for seed in run.plan.seeds:
        run.policy(seed)
    load_agent(run)
    assert all(
        bool(value.isfinite().all()) for value in load_agent(run).state_dict().values() if value.is_floating_point()
    )


def read_summary(path: Path) -> None:
    from surefoot.evaluation import RunData, tables, write_report

    data = RunData.load(top(path))
    text = tables.to_text(tables.rows([data]), details=True)
    tables.to_json(tables.rows([data]))
    assert printable(text) == text, "a control character came through"
    write_report([data], top(path) / "report.html")


def read_result(path: Path) -> None:
    from surefoot.runs.run import Run
    from surefoot.runs.summary import sum_up

    sum_up(Run.open(top(path)))


def read_kernels(path: Path) -> None:
    from surefoot.runs.machine import KERNELS

    read_json(path, KERNELS)


def read_columns(path: Path) -> None:
    from surefoot.runs.run import read_columns as read

    read(path)


def columns_file(folder: Path) -> list[Path]:
    from surefoot.data import load
    from surefoot.runs.run import write_columns

    write_columns(load(npz_files(folder)[0]), folder / "dataset.safetensors")
    return [folder / "dataset.safetensors"]


def streams(folder: Path) -> list[Path]:
    from surefoot.core.engine.agent import Spec
    from surefoot.streaming import StreamAC

    agent = StreamAC(Spec(3, 2, (-1.0, -1.0), (1.0, 1.0)), StreamAC.configure(hidden=(8, 8)), seeds=[0], native=False)
    agent.save(folder / "stream.safetensors")
    return [folder / "stream.safetensors"]


def read_stream(path: Path) -> None:
    from surefoot.streaming import StreamAC

    StreamAC.open(path)


def safe_sets(folder: Path) -> list[Path]:
    from surefoot.safe.reachability import files
    from surefoot.safe.reachability.grid import Axis, Grid, GridValue
    from surefoot.safe.reachability.solver import Solution

    grid = Grid((Axis("x", -1.0, 1.0, 9), Axis("angle", 0.0, 6.0, 8, periodic=True)))
    values = torch.linspace(-1, 1, 72, dtype=torch.float64).reshape(9, 8)
    facts: dict[str, Any] = {"discount": 1.0, "sweeps": 3, "change": 0.0, "converged": True, "seconds": 0.1}
    about = {"environment": "native/pendulum", "gap": None, "parameters": [1.0, 2.0]}
    files.save(Solution(value=GridValue(grid, values), h=values - 1, **facts), folder / "set.npz", about)
    return [folder / "set.npz"]


def read_safe_set(path: Path) -> None:
    from surefoot.safe.reachability import files
    from surefoot.safety.reach import load_safe_set

    solution, _ = files.load(path)
    assert bool(solution.values.isfinite().all())
    try:
        load_safe_set(path)
    except SurefootError as error:
        one_sentence(error, None)


def settings_files(folder: Path) -> list[Path]:
    """What a command says, a preset, a space, a suite and a mapping."""
    made = {
        "config": "algo: iql\nsteps: 20000\nseeds: [0, 1]\nalgo.expectile: 0.9\nalgo.hidden: [64, 64]\n",
        "preset": "run: {steps: 1000}\niql:\n  expectile: 0.9\n  temperature: 3\n",
        "space": "algo.expectile: {low: 0.6, high: 0.9}\nalgo.temperature: {low: 1e-4, high: 1e-3, log: true}\n",
        "suite": "version: 1\nwhat: a test\nseeds: [0, 1, 2, 3]\nrun: {steps: 100}\nalgorithms: [iql, bc]\n"
        "tasks:\n  pendulum: {dataset: native/pendulum-mixed}\n",
        "mapping": "observations: ['q*', v]\nactions: [u]\nreward: r\nepisode: k\nmax_episode_steps: 40\n",
    }
    for name, text in made.items():
        (folder / f"{name}.yaml").write_text(text)
    return [folder / f"{name}.yaml" for name in made]


def read_settings_file(path: Path) -> None:
    from surefoot.cli.support import config_file, presets
    from surefoot.data.formats import mapping
    from surefoot.studies import leaderboard, tune

    readers: dict[str, Callable[[], object]] = {
        "config": lambda: config_file.overrides_of(str(path), []),
        "preset": lambda: presets.read_own_preset(str(path), "iql"),
        "space": lambda: tune.distributions(tune.read_space(path)),
        "suite": lambda: leaderboard.suite(str(path)),
        "mapping": lambda: mapping.read_mapping(path),
    }
    readers[path.stem]()


def mapped_logs(folder: Path) -> list[Path]:
    """A mapping and the log that it names."""
    rows = [f"{0.1 * k:.1f},{k // 5},{k},{-k}" for k in range(20)]
    (folder / "log.csv").write_text("\n".join(["time,trial,q,u", *rows, ""]))
    text = "files: [log.csv]\nobservations: [q]\nactions: [u]\nepisode: trial\ntime: time\n"
    (folder / "logs.yaml").write_text(text)
    return [folder / "logs.yaml"]


def recordings(folder: Path) -> list[Path]:
    """A recording of messages in JSON, and the mapping that reads it."""
    from mcap.writer import Writer

    (folder / "m.yaml").write_text("observations: [/o.x]\nactions: [/a.u]\n")
    with open(folder / "a.mcap", "wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("log", "jsonschema", b"{}")
        for k in range(5):
            for topic, data in (("/o", b'{"x": 1.0}'), ("/a", b'{"u": 0.5}')):
                writer.add_message(writer.register_channel(topic, "json", schema), k * 10**9, data, k * 10**9)
        writer.finish()
    return [folder / "a.mcap"]


def read_recording(path: Path) -> None:
    from surefoot.data import load, validate
    from surefoot.data.logs import draft

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            dataset = load(path, mapping=path.with_name("m.yaml"))
            validate(dataset)
            assert printable(draft(path)) == draft(path), "a control character came through"
        finally:
            assert printable(text.getvalue()) == text.getvalue(), "a control character was printed"


def store_folder(folder: Path) -> Path:
    """A store on disk, packed once."""
    from surefoot.data import pack

    made = folder / "big.store"
    if not made.is_dir():
        more = {"extras/mode": np.arange(200, dtype=np.int32), "costs": np.ones(200)}
        np.savez(folder / "rows.npz", **arrays_of(), **more, attributes=np.array(json.dumps({"note": "a"})))
        pack([folder / "rows.npz"], made)
    return made


def store_header(folder: Path) -> list[Path]:
    return [store_folder(folder) / "store.json"]


def store_columns(folder: Path) -> list[Path]:
    return sorted(store_folder(folder).glob("*.bin"))


def read_store(path: Path) -> None:
    read_dataset(path.parent)


def parquet_files(folder: Path) -> list[Path]:
    from surefoot.data import load, save

    save(load(npz_files(folder)[0]), folder / "saved.parquet")
    return [folder / "saved.parquet"]


def demonstrations(folder: Path) -> list[Path]:
    """robomimic's layout, of many small datasets."""
    arrays = arrays_of(40)
    with h5py.File(folder / "demos.hdf5", "w") as file:
        for k in range(8):
            rows = slice(5 * k, 5 * k + 5)
            for key, name in {"actions": "actions", "rewards": "rewards", "obs/state": "observations"}.items():
                file[f"data/demo_{k}/{key}"] = arrays[name][rows]
            file[f"data/demo_{k}/next_obs/state"] = arrays["observations"][rows]
            file[f"data/demo_{k}/dones"] = np.arange(5) == 4
    return [folder / "demos.hdf5"]


def line_files(folder: Path) -> list[Path]:
    """Prompts, and feedback of both kinds, for language models."""
    made = {
        "prompts": [{"prompt": "1+1=", "answer": 2}, {"prompt": [{"role": "user", "content": "a"}], "answer": 3}],
        "pairs": [{"prompt": "1+1=", "chosen": "2", "rejected": "3"}] * 2,
        "steps": [{"prompt": "1+1=", "completions": ["a", "b"], "labels": [1, 0.5]}] * 2,
    }
    for name, rows in made.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [folder / f"{name}.jsonl" for name in made]


def read_line_file(path: Path) -> None:
    from surefoot.llm.feedback import read_feedback
    from surefoot.llm.prompts import read_prompts

    (read_prompts if path.stem == "prompts" else read_feedback)(path)


def study_files(folder: Path) -> list[Path]:
    """What a sweep, a study and an entry of a suite say before they continue."""
    from surefoot.studies.tune import Tuning

    space = {"algo.expectile": {"low": 0.6, "high": 0.9}}
    seeds = (100, 101, 102, 103)
    write_json(folder / "tune.json", Tuning(("algo=iql", "steps=20"), space, 4, (0,), seeds).to_json())
    write_json(folder / "tuned.json", {"incumbent": {"algo.expectile": 0.7}, "budget": {"runs": 4}})
    write_json(folder / "sweep.json", {"format": 1, "overrides": ["algo=iql,bc", "seeds=1"], "folder": str(folder)})
    entry = {"suite": "offline-small", "version": 1, "overrides": ["algo=iql"], "tuning_runs": 0, "command": "x"}
    write_json(folder / "entry.json", entry)
    return [folder / name for name in ("tune.json", "tuned.json", "sweep.json", "entry.json")]


def read_study_file(path: Path) -> None:
    from surefoot.cli import bench
    from surefoot.cli.support import config, file_overrides, sweep
    from surefoot.studies import leaderboard, tune

    if path.name == "sweep.json":
        overrides = sweep._asked(path.parent, False)["overrides"]
        with file_overrides.said_by(path):
            config.check_overrides(overrides, True)
    elif path.name == "entry.json":
        read_json(path, leaderboard.LABEL)
    else:
        study = tune.Tuning.read(path.parent)
        tune.distributions(study.space)
        bench._incumbent(leaderboard.suite("offline-small"), path.parent)


TARGETS = [
    Target("mapping of logs", mapped_logs, read_dataset, logs_damaged),
    Target("recording", recordings, read_recording, recording_damaged),
    Target("settings", settings_files, read_settings_file, yaml_damaged),
    Target("HDF5 of others", hdf5_files, read_dataset, hdf5_damaged),
    Target("HDF5 of ours", own_hdf5, read_dataset, bytes_damaged, ours=True),
    Target("NPZ", npz_files, read_dataset, npz_damaged),
    Target("HDF5 of demonstrations", demonstrations, read_dataset, bytes_damaged),
    Target("Parquet", parquet_files, read_dataset, parquet_damaged),
    Target("prompts and feedback", line_files, read_line_file, lines_damaged),
    Target("sweeps and studies", study_files, read_study_file, json_damaged),
    Target("CSV", csv_files, read_dataset, csv_damaged),
    Target("store on disk, its header", store_header, read_store, header_damaged),
    Target("store on disk, its columns", store_columns, read_store, bytes_damaged, ours=True),
    Target("safe set", safe_sets, read_safe_set, npz_damaged),
    Target("policy", policies, read_policy, saved_damaged),
    Target("checkpoint", of_run("seeds/0/checkpoint.safetensors"), read_run, saved_damaged),
    Target("dataset columns", columns_file, read_columns, saved_damaged),
    Target("streaming agent", streams, read_stream, saved_damaged),
    Target("config.json", of_run("config.json"), read_run, json_damaged),
    Target("summary.json", of_run("summary.json"), read_summary, json_damaged),
    Target("metrics.jsonl", of_run("metrics.jsonl"), read_summary, lines_damaged),
    Target("certificate.json", of_run("certificate.json"), read_summary, json_damaged),
    Target("result.json", of_run("seeds/0/result.json"), read_result, json_damaged),
    Target("environment.json", of_run("environment.json"), read_result, json_damaged),
    Target("kernels.json", of_run("kernels.json"), read_kernels, json_damaged),
]
