"""Damages, distorts and forges files of every kind that surefoot reads, and counts what reading them does.

Usage: `python benchmarks/fuzz_files.py [--cases 10000 | --quick] [--minutes 15] [--seed 0] [--json FILE]`, and
`python benchmarks/fuzz_files.py --table FILE` for the table of a result.

A case is a sound file of one kind with one thing done to it: bytes flipped, cut, zeroed or made huge numbers; a value
of another type, another version, NaN, a control character or an enormous number in its JSON, under a checksum that
fits again; tensors or columns that are not finite, of another shape or type; archives that unpack to far more than
their size. Each must end as one of these:

refused      an exception of ours: one sentence, without control characters, that names the file
loaded       what was read is whole: finite arrays of the shapes and types that they claim, weights that act finitely
unchanged    the damage changed no byte

Everything else is a failure: another exception, a crash, more than `SECONDS` or more memory than twice what the file
holds and `SLACK`, or code that ran: files name modules and pickles of a canary that leaves a mark when it is imported.
Cases run in processes of their own with a limit on memory; a process that dies is a failure of its case.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import math
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import torch

from surefoot.core import checkpoint
from surefoot.core.errors import SurefootError, printable
from surefoot.core.files import read_json, write_json

SECONDS = 60.0
SLACK = 300 << 20
"""Bytes beside twice the file's: 256 MiB that any file may unpack to, and the reader's own."""
BATCH = 120
"""Cases that one process reads."""
CANARY = "surefoot_fuzz_canary"
Path = pathlib.Path
warnings.simplefilter("ignore")


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


# -- what can be done to a file -------------------------------------------------------------------------------


def bytes_damaged(path: Path, rng: random.Random) -> str:
    """Bits flipped, the end missing, a block of zeros, or an enormous number, often near the beginning or the end."""
    content = bytearray(path.read_bytes())
    how = rng.choice(["flip", "flip", "cut", "zero", "huge", "insert"])
    reach = rng.choice([len(content), min(len(content), 4096)])
    start = rng.randrange(max(1, reach)) if rng.random() < 0.8 else max(0, len(content) - 1 - rng.randrange(200))
    if how == "flip":
        for _ in range(rng.choice([1, 1, 2, 8, 64])):
            content[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del content[start:]
    elif how == "zero":
        size = min(len(content) - start, rng.choice([8, 64, 512]))
        content[start : start + size] = bytes(size)
    elif how == "huge":
        content[start : start + 8] = rng.choice([2**63 - 1, 2**40, 2**31 - 1, 2**64 - 1]).to_bytes(8, "little")
    else:
        content[start:start] = rng.randbytes(rng.choice([1, 8, 300]))
    path.write_bytes(content)
    return f"bytes: {how} at {start}"


def odd_value(rng: random.Random, old: Any) -> Any:
    """Something else than a value of JSON: of another type, enormous, not a number, deep, or hostile text."""
    deep: Any = 1
    for _ in range(rng.choice([3, 40, 900])):
        deep = [deep]
    odd: list[Any] = [
        None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, 0.5, math.nan, math.inf, -math.inf, "", "x",
        "\x1b]0;a\x07\x1b[2J",
        "\u202e", "\ud800", "a" * 30_000, f"{CANARY}:Agent", f"{CANARY}:Env-v0", [], {}, [[]], [None], {"a": {}}, deep,
        [1] * 20_000, "../../../etc/passwd", "sinus", "surefoot-policy-9", {"__reduce__": [CANARY]},
    ]  # fmt: skip
    if isinstance(old, int | float) and not isinstance(old, bool):
        odd += [str(old), [old], -old, old * 1e9 if rng.random() < 0.5 else 10**12, old + 0.5]
    if isinstance(old, list) and old:
        odd += [old[:-1], [*old, old[0]], [*old[:-1], None], [str(old[0])], old * 500]
    return rng.choice(odd)


def distorted(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A JSON value with one place changed, removed or added; which."""
    places: list[tuple[Any, Any]] = []

    def collect(one: Any) -> None:
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inner in list(items)[:200]:
            places.append((one, key))
            collect(inner)

    value = json.loads(json.dumps(value))
    if rng.random() < 0.03 or not isinstance(value, dict | list):
        return odd_value(rng, value), "the whole value"
    collect(value)
    if not places:
        return odd_value(rng, value), "the whole value"
    parent, key = rng.choice(places)
    how = rng.choice(["set", "set", "set", "set", "remove", "add"])
    if how == "remove":
        del parent[key]
    elif how == "add" and isinstance(parent, dict):
        parent[rng.choice(["odd", "\x1b[31m", "format", "version", "__class__", "a" * 300])] = odd_value(rng, 1)
    else:
        parent[key] = odd_value(rng, parent[key])
    return value, f"{how} {key!r}"


def json_text(value: Any) -> str:
    return json.dumps(value)


def json_damaged(path: Path, rng: random.Random) -> str:
    """A JSON file with another value somewhere, or damaged bytes."""
    if rng.random() < 0.2:
        return bytes_damaged(path, rng)
    value, what = distorted(json.loads(path.read_text()), rng)
    path.write_text(json_text(value))
    return f"JSON: {what}"


def lines_damaged(path: Path, rng: random.Random) -> str:
    """A file of JSON lines with another value in one of them."""
    if rng.random() < 0.2:
        return bytes_damaged(path, rng)
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    value, what = distorted(json.loads(lines[at]), rng)
    lines[at] = json_text(value)
    path.write_text("\n".join(lines) + "\n")
    return f"line {at}: {what}"


def tensors_distorted(tensors: dict[str, torch.Tensor], rng: random.Random) -> tuple[dict[str, torch.Tensor], str]:
    """One tensor that is not finite, zero, of another shape or type, missing, doubled or enormous."""
    name = rng.choice(sorted(tensors))
    value = tensors[name].clone()
    how = rng.choice(["nan", "inf", "zero", "negative", "shape", "dtype", "missing", "more", "huge"])
    if how in ("nan", "inf", "huge") and value.numel() and value.is_floating_point():
        filler = {"nan": math.nan, "inf": rng.choice([math.inf, -math.inf]), "huge": 3e38}[how]
        value.reshape(-1)[rng.randrange(value.numel())] = filler
    elif how == "zero":
        value = torch.zeros_like(value)
    elif how == "negative" and value.dtype != torch.bool:
        value = -value
    elif how == "shape":
        value = rng.choice([value.reshape(-1)[:-1], value.unsqueeze(0), value.reshape(-1), torch.zeros(0)])
    elif how == "dtype":
        value = value.to(rng.choice([torch.int64, torch.float64, torch.uint8, torch.bool]))
    changed = {**tensors, name: value}
    if how == "missing":
        del changed[name]
    elif how == "more":
        changed[rng.choice(["odd", "agent/odd", "../x", "\x1b[2J"])] = value
    return changed, f"tensor {name}: {how}"


def saved_damaged(path: Path, rng: random.Random) -> str:
    """A checksummed file: damaged bytes, or another value or tensor under a checksum that fits."""
    if rng.random() < 0.3:
        return bytes_damaged(path, rng)
    tensors, meta = checkpoint.load(path)
    if rng.random() < 0.65:
        meta, what = distorted(meta, rng)
    else:
        tensors, what = tensors_distorted(tensors, rng)
    if rng.random() < 0.05 and isinstance(meta, dict):
        meta["kind"], what = rng.choice(["policy", "checkpoint", "dataset", "odd", "streaming agent"]), "another kind"
    forge(path, tensors, meta, rng)
    beside = path.with_suffix(".json")
    if beside.is_file() and isinstance(meta, dict):
        beside.write_text(json_text({key: one for key, one in meta.items() if key != "kind"}))
    return what


def forge(path: Path, tensors: dict[str, torch.Tensor], meta: Any, rng: random.Random) -> None:
    """Write what `checkpoint.save` would, also where `meta` is nothing that it would write; seldom another version."""
    from safetensors.torch import save_file

    kind = meta.get("kind") if isinstance(meta, dict) else "odd"
    written = f"surefoot-{str(kind).replace(' ', '-')}-{9 if rng.random() < 0.05 else 1}"
    written, text = printable(written).encode("ascii", "replace").decode(), json_text(meta)
    own = {name: value.contiguous().clone() for name, value in tensors.items()}
    header = {"surefoot": text, "format": written, "sha256": checkpoint.digest(own, f"{written}\n{text}")}
    save_file(own, str(path), header)


def column_distorted(value: np.ndarray, rng: random.Random) -> tuple[Any, str]:
    """A column that is not finite, of another length, shape or type, or python objects."""
    how = rng.choice(["nan", "inf", "huge", "short", "shape", "text", "object", "complex", "int", "empty", "scalar"])
    value = np.array(value)
    if how in ("nan", "inf", "huge") and value.size:
        value = value.astype(np.float64)
        value.reshape(-1)[rng.randrange(value.size)] = {"nan": np.nan, "inf": np.inf, "huge": 1e300}[how]
    if how == "short" and value.ndim:
        value = value[: rng.randrange(len(value) + 1)]
    elif how == "shape":
        value = value.reshape(rng.choice([(1, -1), (-1, 1, 1), (-1,)]))
    elif how in ("text", "object", "complex", "int"):
        kinds = {"text": "U8", "object": object, "complex": complex, "int": np.int8}
        value = value.astype(kinds[how]) if how != "text" else np.full(value.shape, "x")
    elif how in ("empty", "scalar"):
        value = np.zeros(() if how == "scalar" else (0, *value.shape[1:]))
    return value, how


def npz_damaged(path: Path, rng: random.Random) -> str:
    """An archive with damaged bytes, another column, other attributes, a bomb, a pickle or lying headers."""
    if rng.random() < 0.3:
        return bytes_damaged(path, rng)
    with np.load(path, allow_pickle=False) as held:
        arrays: dict[str, Any] = dict(held)
    texts = [key for key, value in arrays.items() if value.dtype.kind == "U"]
    how = rng.random()
    if how < 0.45 and texts:
        key = rng.choice(texts)
        value, what = distorted(json.loads(str(arrays[key])), rng)
        text = json_text(value)
        arrays[key] = np.array(text.encode("utf-8", "replace").decode("utf-8"))
    elif how < 0.5:
        key, what = rng.choice(sorted(arrays)), "bomb"
        arrays[key] = np.zeros(rng.choice([80 << 20, 200 << 20]), np.float32 if rng.random() < 0.5 else np.int8)
    elif how < 0.55:
        key, what = rng.choice([*sorted(arrays), "extras/odd", "odd"]), "pickle"
        arrays[key] = np.array([Canary()], dtype=object)
    elif how < 0.65:
        key, what = rng.choice(["margins", "extras/odd", "extras/margins", "\x1b[2J", "terminations"]), "added"
        arrays[key], extra = column_distorted(arrays[sorted(arrays)[0]], rng)
        what = f"added, {extra}"
    elif how < 0.7:
        key, what = rng.choice(sorted(arrays)), "missing"
        del arrays[key]
    else:
        key = rng.choice(sorted(set(arrays) - set(texts)))
        arrays[key], what = column_distorted(arrays[key], rng)
    (np.savez_compressed if rng.random() < 0.7 or what == "bomb" else np.savez)(path, **arrays)
    return f"{key}: {what}"


def hdf5_damaged(path: Path, rng: random.Random) -> str:
    """An HDF5 file with damaged bytes, another column or attribute, or one that unpacks to far more."""
    if rng.random() < 0.4:
        return bytes_damaged(path, rng)
    with h5py.File(path, "r+") as file:
        keys = sorted(key for key in file if isinstance(file[key], h5py.Dataset))
        key, how = rng.choice(keys), rng.random()
        if how < 0.3:
            name = rng.choice(["env_id", "max_episode_steps", "surefoot_version", "corruptions", "odd\x1b[2J"])
            odd = odd_value(rng, 1)
            kept = isinstance(odd, str | float | bool) and odd != "\ud800" and len(str(odd)) < 20_000
            file.attrs[name] = odd if kept else json.dumps(odd)[:20_000]
            return f"attribute {name!r}: {str(odd)[:40]!r}"
        old = file[key][()]
        if how < 0.35:
            del file[key]
            file.create_dataset(key, shape=(rng.choice([80 << 20, 1 << 40]),), dtype="f4", chunks=True, compression=1)
            return f"{key}: declares far more"
        del file[key]
        if how < 0.4:
            file[key] = h5py.ExternalLink("/etc/passwd", "/x") if rng.random() < 0.5 else h5py.SoftLink("/nowhere")
            return f"{key}: a link"
        value, what = column_distorted(old, rng)
        if value.dtype.kind in "UO":
            value = np.full(value.shape, b"x")
        if rng.random() < 0.3:
            key = rng.choice(["margins", "extras/odd", "next_observations", "timeouts"])
            key = key if key not in file else "odd"
        file[key] = value
    return f"{key}: {what}"


def csv_damaged(path: Path, rng: random.Random) -> str:
    """Damaged bytes, or another cell or heading."""
    if rng.random() < 0.4:
        return bytes_damaged(path, rng)
    lines = path.read_text().splitlines()
    row = rng.randrange(len(lines)) if rng.random() < 0.7 else 0
    cells = lines[row].split(",")
    at = rng.randrange(len(cells))
    cells[at] = rng.choice(
        ["nan", "inf", "", "x", "1e400", "\x1b[2J", "1" * 5000, "-", "0x1", "True", cells[0], "\u202e"]
    )
    lines[row] = ",".join(cells if rng.random() < 0.8 else cells[:-1])
    path.write_text("\n".join(lines))
    return f"row {row}, cell {at}"


class Canary:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, (CANARY,)


# -- the kinds of files -----------------------------------------------------------------------------------------


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
    from surefoot.core.actor import actor_class
    from surefoot.core.normalizer import Normalizer
    from surefoot.core.policy import Policy
    from surefoot.core.transformer import DecisionTransformerActor

    made = []
    low, high = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0])
    heads = {kind: actor_class(kind)(3, 2, (8, 8)) for kind in ("deterministic", "gaussian", "tanh_gaussian", "family")}
    heads["decision_transformer"] = DecisionTransformerActor(3, 2, context=4, width=16, layers=1, heads=2)
    for kind, actor in heads.items():
        Policy.of(actor, Normalizer(3), low, high).save(folder / kind)
        made.append(folder / f"{kind}.safetensors")
    return made


def read_policy(path: Path) -> None:
    from surefoot.core.policy import Policy

    policy = Policy.load(path)
    action = np.zeros(1, np.float32)
    with contextlib.suppress(SurefootError):  # enormous weights load, and their action is refused before it leaves
        action = policy.select_action(np.full(policy.observation_dim, 0.5, np.float32))
    assert np.isfinite(action).all(), f"acts {action}"


def run_folder(folder: Path) -> Path:
    """A finished run of one seed, as `surefoot train` writes it, found once."""
    import surefoot
    from surefoot.core.spec import Spec
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
    from surefoot.experiment.run import Run, load_agent

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
    from surefoot.experiment.run import Run
    from surefoot.experiment.summary import sum_up

    sum_up(Run.open(top(path)))


def read_kernels(path: Path) -> None:
    from surefoot.experiment.machine import KERNELS

    read_json(path, KERNELS)


def read_columns(path: Path) -> None:
    from surefoot.experiment.run import read_columns as read

    read(path)


def columns_file(folder: Path) -> list[Path]:
    from surefoot.data import load
    from surefoot.experiment.run import write_columns

    write_columns(load(npz_files(folder)[0]), folder / "dataset.safetensors")
    return [folder / "dataset.safetensors"]


def streams(folder: Path) -> list[Path]:
    from surefoot.core.agent import Spec
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
    from surefoot.tools.reach import load_safe_set

    solution, _ = files.load(path)
    assert bool(solution.values.isfinite().all())
    try:
        load_safe_set(path)
    except SurefootError as error:
        one_sentence(error, None)


TARGETS = [
    Target("HDF5 of others", hdf5_files, read_dataset, hdf5_damaged),
    Target("HDF5 of ours", own_hdf5, read_dataset, bytes_damaged, ours=True),
    Target("NPZ", npz_files, read_dataset, npz_damaged),
    Target("CSV", csv_files, read_dataset, csv_damaged),
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


# -- one case -----------------------------------------------------------------------------------------------------


def one_sentence(error: SurefootError, path: Path | None) -> str | None:
    """What is wrong with the message of an error; None where nothing is."""
    text = str(error)
    if "\n" in text or printable(text) != text or "Traceback" in text:
        return f"not one plain sentence: {text!r}"
    if path is not None and path.name not in text and path.stem not in text and top_name(path) not in text:
        return f"does not name the file: {text!r}"
    return None


def top_name(path: Path) -> str:
    return path.parent.name


def peak() -> int:
    """Bytes of the largest resident memory so far since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def forget_peak() -> int:
    """Begin to measure; the bytes that are resident now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def stated(path: Path) -> int:
    """Bytes that a file says it holds: its own, or for a file that was not refused its arrays'."""
    return path.stat().st_size if path.is_file() else 0


def one(target: Target, originals: list[Path], seed: int, mark: Path) -> dict[str, Any]:
    """Damage one file where it lies, read it, and put it back."""
    rng = random.Random(seed)
    path = rng.choice(originals)
    pair = [path, *([path.with_suffix(".json")] if path.suffix == ".safetensors" else [])]
    before = {one: one.read_bytes() for one in pair if one.is_file()}
    told: dict[str, Any] = {"target": target.name, "seed": seed}
    try:
        try:
            what = target.damage(path, rng)
        except Exception as error:  # the sound writer would not write such a thing: no case
            return {**told, "outcome": "unchanged", "what": f"not written: {type(error).__name__}", "seconds": 0.0}
        same = all(one.is_file() and one.read_bytes() == content for one, content in before.items())
        size, resident, start = stated(path), forget_peak(), time.monotonic()
        told |= {"what": f"{path.name}, {what}"}
        try:
            target.read(path)
            outcome = "unchanged" if same else "loaded"
            if outcome == "loaded" and target.ours:
                outcome, told["why"] = "failed", "loaded although its checksum can't fit"
        except SurefootError as error:
            wrong = one_sentence(error, path)
            outcome = "refused" if wrong is None else "failed"
            told["why"] = wrong or str(error)
        except BaseException as error:  # the point of this program: anything else is a failure to report
            outcome, told["why"] = "failed", f"{type(error).__name__}: {printable(str(error))[:300]}"
        seconds, grown = time.monotonic() - start, peak() - resident
        if seconds > SECONDS:
            outcome, told["why"] = "failed", f"took {seconds:.0f} s"
        if grown > 2 * size + SLACK:
            outcome, told["why"] = "failed", f"took {grown >> 20} MB for a file of {size >> 20} MB"
        if mark.exists():
            mark.unlink()
            outcome, told["why"] = "failed", "code that the file names was executed"
        return {**told, "outcome": outcome, "seconds": round(seconds, 3), "megabytes": max(0, grown >> 20)}
    finally:
        for one_path, content in before.items():
            one_path.write_bytes(content)


def worker(name: str, seeds: list[int], folder: Path) -> None:
    """Read cases of one kind, one JSON line each on standard output."""
    target = next(target for target in TARGETS if target.name == name)
    torch.set_num_threads(1)
    mark = folder / "executed"
    (folder / f"{CANARY}.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    sys.path.insert(0, str(folder))
    originals = target.make(folder)
    for original in originals:
        target.read(original)  # sound files must load, or nothing is shown
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (6 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    for seed in seeds:
        print(json.dumps(one(target, originals, seed, mark)), flush=True)


# -- all of them --------------------------------------------------------------------------------------------------


def batch(target: Target, seeds: list[int]) -> list[dict[str, Any]]:
    """Cases of one process; where it dies or hangs, the case that it was at is a failure and the rest goes on."""
    found: list[dict[str, Any]] = []
    while len(found) < len(seeds):
        rest = seeds[len(found) :]
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--worker", target.name, json.dumps(rest), folder]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                try:
                    out, messages = process.communicate(timeout=120 + 3 * SECONDS + len(rest))
                    why = f"the process ended with {process.returncode}: {messages[-300:]}"
                except subprocess.TimeoutExpired:
                    process.kill()
                    out, why = process.communicate()[0], "the process came to no end"
        found += [json.loads(line) for line in out.splitlines() if line.startswith('{"target"')]
        if len(found) < len(seeds):
            seed = seeds[len(found)]
            found.append(
                {"target": target.name, "seed": seed, "outcome": "failed", "what": "", "why": why, "seconds": 0.0}
            )
            if not out:
                return found  # it can't even begin: the rest would say the same
    return found


def summed(cases: list[dict[str, Any]], minutes: float) -> dict[str, Any]:
    """Counts by kind of file, and the failures in words."""
    rows = []
    for target in TARGETS:
        own = [case for case in cases if case["target"] == target.name]
        counts = collections.Counter(case["outcome"] for case in own)
        kinds = {kind: counts[kind] for kind in ("refused", "loaded", "unchanged", "failed")}
        slowest = max((case["seconds"] for case in own), default=0.0)
        most = max((case.get("megabytes", 0) for case in own), default=0)
        rows.append(
            {"kind of file": target.name, "cases": len(own), **kinds, "slowest, s": slowest, "most memory, MB": most}
        )
    failures = [case for case in cases if case["outcome"] == "failed"]
    return {"cases": len(cases), "minutes": round(minutes, 1), "rows": rows, "failures": failures}


def table(result: dict[str, Any]) -> str:
    """The result as a page."""
    header = list(result["rows"][0])
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(f"{value}" for value in row.values()) + " |" for row in result["rows"]]
    total = sum(row["failed"] for row in result["rows"])
    return (
        f"# Damaged and hostile files\n\n{result['cases']:,} generated cases in {result['minutes']} minutes, "
        f"{total} failed. `benchmarks/fuzz_files.py` says what a case is and what counts as a failure.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def main() -> int:
    """Run cases by turns until all or the time are spent; 1 where something failed."""
    parser = argparse.ArgumentParser(description="read damaged, distorted and forged files of every kind")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="four cases of each kind, for CI")
    parser.add_argument("--minutes", type=float, default=60.0, help="end after so many, with the cases that were done")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", help="one kind of file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result there, and its table beside it as .md")
    parser.add_argument("--table", type=Path, help="print the table of a result")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        name, seeds, folder = arguments.worker
        worker(name, json.loads(seeds), Path(folder))
        return 0
    if arguments.table:
        print(table(json.loads(arguments.table.read_text())))
        return 0
    targets = [target for target in TARGETS if arguments.only in (None, target.name)]
    each = 4 if arguments.quick else math.ceil(arguments.cases / len(targets))
    start = time.monotonic()

    def timed(target: Target, seeds: range) -> list[dict[str, Any]]:
        return batch(target, list(seeds)) if time.monotonic() - start < 60 * arguments.minutes else []

    with concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        jobs = [
            pool.submit(timed, target, range(arguments.seed + begin, arguments.seed + min(begin + BATCH, each)))
            for begin in range(0, each, BATCH)
            for target in targets
        ]
        cases = [case for job in jobs for case in job.result()]
    result = summed(cases, (time.monotonic() - start) / 60)
    print(table(result))
    for case in result["failures"][:50]:
        print(json.dumps(case))
    if arguments.json:
        write_json(arguments.json, result)
        arguments.json.with_suffix(".md").write_text(table(result))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
