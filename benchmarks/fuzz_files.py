"""Damages files at random and prints what reading them does.

Usage: `python benchmarks/fuzz_files.py [--count 500 | --quick] [--seed 0] [--json]`.

Each target says how to make sound files, how to read one, and whether surefoot wrote it. A damaged copy must
be refused with an exception of ours or, for files of others, load as finite, consistent arrays. Everything
else is a failure: another exception, a crash, a read beyond the time limit, or a damaged file of ours that
loads. Reading happens in this process, as in a user's, so a crash or exhausted memory in the library ends
the program and shows.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

import h5py
import numpy as np

from surefoot.core.errors import SurefootError
from surefoot.core.sources import Uniform
from surefoot.data import load, save, validate

SECONDS = 20.0  # no damaged file may take longer


@dataclasses.dataclass(frozen=True)
class Target:
    """One kind of file to damage."""

    name: str
    make: Callable[[pathlib.Path], list[pathlib.Path]]  # sound files in a folder
    read: Callable[[pathlib.Path], None]  # reads and checks; raises SurefootError where refused
    ours: bool  # surefoot wrote it: damage must be refused


@dataclasses.dataclass
class Outcome:
    """Counts of what happened, and the failures in words."""

    counts: collections.Counter[str]
    failures: list[str]
    slowest: float = 0.0


# -- damage
# --------------------------------------------------------------------------------------------------------


def flip_bits(content: bytearray, rng: random.Random) -> str:
    """Flip one to 64 bits, half of the time only near the beginning, where the structure is."""
    count = rng.choice([1, 1, 2, 8, 64])
    reach = len(content) if rng.random() < 0.5 else min(len(content), 4096)
    for _ in range(count):
        content[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    return f"{count} bits flipped"


def truncate(content: bytearray, rng: random.Random) -> str:
    """Cut off the end."""
    keep = rng.randrange(len(content))
    del content[keep:]
    return f"cut to {keep} bytes"


def blank(content: bytearray, rng: random.Random) -> str:
    """Write a block of zeros, as failing disks do."""
    size = min(len(content), rng.choice([8, 64, 512, 4096]))
    start = rng.randrange(len(content) - size + 1)
    content[start : start + size] = bytes(size)
    return f"{size} bytes zeroed at {start}"


def huge_number(content: bytearray, rng: random.Random) -> str:
    """Make a length or pointer enormous."""
    start = rng.randrange(max(1, min(len(content), 8192) - 8))
    content[start : start + 8] = rng.choice([2**63 - 1, 2**40, 2**31 - 1, 2**64 - 1]).to_bytes(8, "little")
    return f"a huge number at {start}"


BYTE_DAMAGE = (flip_bits, flip_bits, truncate, blank, huge_number)


def rename_key(path: pathlib.Path, rng: random.Random) -> str:
    """Give a dataset another name, length or type; the file itself stays valid HDF5."""
    with h5py.File(path, "r+") as file:
        keys = sorted(key for key in file if isinstance(file[key], h5py.Dataset))
        key = rng.choice(keys)
        action = rng.choice(["rename", "delete", "shorten", "text", "nan"])
        old = file[key][()]
        del file[key]
        if action == "rename":
            file[key[:-1]] = old
        elif action == "shorten":
            file[key] = old[: rng.randrange(len(old))]
        elif action == "text":
            file[key] = np.full(len(old), b"x")
        elif action == "nan":
            file[key] = np.where(
                np.arange(old.size).reshape(old.shape) == rng.randrange(old.size), np.nan, old.astype(float)
            )
    return f"{action} {key}"


def damaged_copy(original: pathlib.Path, copy: pathlib.Path, rng: random.Random) -> str:
    """Write a damaged copy; what was done."""
    if original.suffix == ".hdf5" and rng.random() < 0.2:
        shutil.copyfile(original, copy)
        return rename_key(copy, rng)
    content = bytearray(original.read_bytes())
    what = rng.choice(BYTE_DAMAGE)(content, rng)
    copy.write_bytes(content)
    return what


# -- targets
# -------------------------------------------------------------------------------------------------------


def read_dataset(path: pathlib.Path) -> None:
    """Load and check every promise of `Dataset`."""
    validate(load(path))


def small_arrays(steps: int = 400) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ends = np.arange(steps) % 40 == 39
    return {
        "observations": rng.normal(size=(steps, 5)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(steps, 2)).astype(np.float32),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "terminals": ends & (np.arange(steps) % 80 == 79),
        "timeouts": ends & (np.arange(steps) % 80 != 79),
    }


def foreign_hdf5(folder: pathlib.Path) -> list[pathlib.Path]:
    """As D4RL and h5py users write it: gzip with shuffle, plain, the newest layout; and one real file."""
    made = []
    for name, packing, version in (
        ("gzip", {"compression": "gzip", "shuffle": True}, "earliest"),
        ("plain", {}, "earliest"),
        ("latest", {"compression": "gzip"}, "latest"),
    ):
        path = folder / f"{name}.hdf5"
        with h5py.File(path, "w", libver=version) as file:
            for key, array in small_arrays().items():
                file.create_dataset(key, data=array, **packing)
            file.attrs["env_id"] = "Hopper-v5"
        made.append(path)
    shared = pathlib.Path(os.environ.get("SUREFOOT_SHARED_DATA", pathlib.Path(__file__).parents[2] / "shared" / "data"))
    if (shared / "pendulum-expert-sb2.hdf5").exists():
        made.append(pathlib.Path(shutil.copyfile(shared / "pendulum-expert-sb2.hdf5", folder / "pendulum.hdf5")))
    return made


def our_hdf5(folder: pathlib.Path) -> list[pathlib.Path]:
    """As `save` writes it."""
    path = folder / "saved.hdf5"
    save(load(foreign_hdf5(folder)[0]), path)
    return [path]


def foreign_npz(folder: pathlib.Path) -> list[pathlib.Path]:
    """As `numpy.savez` and `numpy.savez_compressed` write it."""
    np.savez(folder / "plain.npz", **small_arrays())
    np.savez_compressed(folder / "packed.npz", **small_arrays())
    return [folder / "plain.npz", folder / "packed.npz"]


def our_checkpoint(folder: pathlib.Path) -> list[pathlib.Path]:
    """As a training run writes it."""
    from surefoot.core import checkpoint
    from surefoot.core.agent import Spec
    from surefoot.core.learner import Learner
    from surefoot.data.store import Store
    from surefoot.offline import IQL

    columns = {key: value for key, value in small_arrays().items() if key in {"observations", "actions", "rewards"}}
    columns["terminations"], columns["next_observations"] = small_arrays()["terminals"], columns["observations"]
    store = Store.pack(columns)
    agent = IQL(Spec(5, 2, (-1.0, -1.0), (1.0, 1.0)), hidden=(8, 8))
    learner = Learner([agent], [0], Uniform(store), batch_size=16)
    learner.run(5)
    path = folder / "checkpoint.safetensors"
    checkpoint.save(path, learner.state(0), {"kind": "checkpoint", "algorithm": "iql", "seed": 0, "step": 5})
    return [path]


def read_checkpoint(path: pathlib.Path) -> None:
    """Load as resuming does."""
    from surefoot.core import checkpoint

    checkpoint.load(path, kind="checkpoint")


TARGETS = [
    Target("checkpoint of ours", our_checkpoint, read_checkpoint, ours=True),
    Target("HDF5 of others", foreign_hdf5, read_dataset, ours=False),
    Target("HDF5 of ours", our_hdf5, read_dataset, ours=True),
    Target("NPZ of others", foreign_npz, read_dataset, ours=False),
]


# -- the run
# -------------------------------------------------------------------------------------------------------


def one(target: Target, original: pathlib.Path, folder: pathlib.Path, seed: int) -> tuple[str, str, float]:
    """Outcome (refused, loaded, failed), what was done, and the seconds it took to read."""
    copy = folder / f"damaged-{seed}{original.suffix}"
    what = f"{original.name}, seed {seed}: {damaged_copy(original, copy, random.Random(seed))}"
    same = copy.read_bytes() == original.read_bytes()
    start = time.monotonic()
    try:
        target.read(copy)
        outcome = "unchanged" if same else "failed" if target.ours else "loaded"
        what += "; loaded although damaged" if outcome == "failed" else ""
    except SurefootError as error:
        sentence = str(error)
        named = copy.name in sentence and "\n" not in sentence
        outcome, what = (
            ("refused", what) if named else ("failed", f"{what}; not one sentence naming the file: {sentence!r}")
        )
    except Exception as error:  # the point of this program: anything else is a failure to report
        outcome, what = "failed", f"{what}; {type(error).__name__}: {error}"
    seconds = time.monotonic() - start
    if seconds > SECONDS:
        outcome, what = "failed", f"{what}; took {seconds:.0f} s"
    copy.unlink()
    return outcome, what, seconds


def run(target: Target, count: int, seed: int, folder: pathlib.Path, workers: int = 2) -> Outcome:
    """Damage and read `count` copies."""
    originals = target.make(folder)
    for original in originals:
        target.read(original)  # sound files must load, or nothing is shown
    outcome = Outcome(collections.Counter(), [])
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(one, target, originals[i % len(originals)], folder, seed + i) for i in range(count)]
        for job in jobs:
            kind, what, seconds = job.result()
            outcome.counts[kind] += 1
            outcome.slowest = max(outcome.slowest, seconds)
            if kind == "failed":
                outcome.failures.append(what)
    return outcome


def main() -> int:
    """Run every target and print one table; 1 where something failed."""
    parser = argparse.ArgumentParser(description="damage files at random and read them")
    parser.add_argument("--count", type=int, default=500, help="damaged copies per target")
    parser.add_argument("--quick", action="store_true", help="25 copies per target, for CI")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    rows, failures = [], []
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(target, 25 if arguments.quick else arguments.count, arguments.seed, pathlib.Path(folder))
        kinds = ("refused", "loaded", "unchanged", "failed")
        rows.append(
            {
                "target": target.name,
                **{kind: outcome.counts[kind] for kind in kinds},
                "slowest_s": round(outcome.slowest, 2),
            }
        )
        failures += [f"{target.name}: {failure}" for failure in outcome.failures]
    peak = {
        "peak_memory_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "peak_memory_of_readers_MB": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
    }
    if arguments.json:
        print(json.dumps({"rows": rows, "failures": failures, **peak}, indent=2))
    else:
        header = list(rows[0])
        print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
        for row in rows:
            print("| " + " | ".join(str(value) for value in row.values()) + " |")
        print(f"\npeak memory: {peak['peak_memory_MB']} MB here, {peak['peak_memory_of_readers_MB']} MB in the readers")
        print("\n".join(failures[:50]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
