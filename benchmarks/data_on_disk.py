"""What a store on disk costs beside memory: building, preparing, gathering, training, and private memory.

Synthetic rows of 17 and 6 numbers, as HalfCheetah's. Training steps of one IQL learner on mapped rows and of one whose
rows are a copy in memory are taken in turn, in one process, after a pass over the file; rates are medians over rounds.
Memory of commands is that of all their processes together, read ten times a second: anonymous pages (RssAnon), which
nothing else can hold, and the unique set (psutil's uss), which counts a page of a mapped file too while one process
alone maps it; the system takes such pages back whenever memory is short.

    python benchmarks/data_on_disk.py                    # 20,000,000 rows, 15 GB of disk, about 20 minutes
    python benchmarks/data_on_disk.py --rows 50000000    # 40 GB of disk
    python benchmarks/data_on_disk.py --quick            # 200,000 rows, a minute, nothing recorded
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import machine
import numpy as np
import psutil
import torch

from surefoot.core.base.spec import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data import Dataset, load, pack, save
from surefoot.data.building import Building
from surefoot.data.store import Store, store_from_dataset
from surefoot.offline import IQL

OBSERVATION, ACTION, LENGTH = 17, 6, 1000
BLOCK = 500_000
BATCHES = (256, 1024)
RESULTS = pathlib.Path(__file__).parent / "results"


def rows_of(count: int, first: int) -> Dataset:
    """Whole episodes of random rows."""
    rng = np.random.default_rng(first)
    observations = rng.standard_normal((count, OBSERVATION), dtype=np.float32)
    ends = np.arange(count) % LENGTH == LENGTH - 1
    following = np.roll(observations, -1, 0)
    following[ends] = rng.standard_normal((int(ends.sum()), OBSERVATION), dtype=np.float32)
    return Dataset(
        observations=observations,
        actions=rng.uniform(-1, 1, (count, ACTION)).astype(np.float32),
        rewards=rng.standard_normal(count, dtype=np.float32),
        next_observations=following,
        terminations=np.zeros(count, bool),
        truncations=ends,
        episode_ids=np.arange(count, dtype=np.int64) // LENGTH,
        valid=np.ones(count, bool),
        env_id="HalfCheetah-v5",
        name="synthetic",
    )


def built(path: pathlib.Path, rows: int) -> dict[str, Any]:
    """A store of so many rows, unless it is there."""
    started = time.perf_counter()
    if not path.is_dir():
        with Building(path, ["synthetic", rows]) as building:
            building.require_disk(rows, 176)
            while building.rows < rows:
                building.append(rows_of(min(BLOCK, rows - building.rows), building.rows))
            building.finish([])
    seconds = time.perf_counter() - started
    size = sum(one.stat().st_size for one in path.glob("*.bin"))
    started = time.perf_counter()
    load(path)
    first = time.perf_counter() - started
    started = time.perf_counter()
    load(path)
    again = time.perf_counter() - started
    return {"rows": rows, "gigabytes": size / 1e9, "build_s": seconds, "first_load_s": first, "next_load_s": again}


def packed_from_files(folder: pathlib.Path, rows: int) -> list[dict[str, Any]]:
    """How fast files become a store."""
    found, data = [], rows_of(rows, 0)
    for name in ("a.hdf5", "a.parquet", "a.npz"):
        file = folder / name
        save(data, file)
        shutil.rmtree(folder / "packed.store", ignore_errors=True)
        with watched(psutil.Process()) as used:
            made = pack([file], folder / "packed.store")
        rate = made.nbytes / made.seconds
        found.append({"file": name, "rows": rows, "seconds": made.seconds, "bytes_per_s": rate, **used})
        file.unlink()
    shutil.rmtree(folder / "packed.store", ignore_errors=True)
    return found


def anonymous(process: psutil.Process) -> int:
    """Bytes of a process's anonymous pages in memory."""
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def watched(process: psutil.Process) -> Iterator[dict[str, float]]:
    """The most memory that a process and its children take, in GB beyond what it took before; by kind."""
    found, over = {"anonymous_gb": 0.0, "unique_gb": 0.0}, threading.Event()
    before = anonymous(process), process.memory_full_info().uss

    def watch() -> None:
        while not over.wait(0.1):
            totals = [0, 0]
            with contextlib.suppress(psutil.Error, OSError):
                for one in [process, *process.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error, OSError):
                        totals[0] += anonymous(one)
                        totals[1] += one.memory_full_info().uss
            for key, total, own in zip(found, totals, before, strict=True):
                found[key] = max(found[key], (total - own) / 1e9)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def learner_of(agent: IQL, ready: Dataset, store: Store) -> Learner:
    """A learner of seed 0 on a store's rows."""
    return Learner([agent], [0], agent.sources(Stores(ready, store)), batch_size=256, planned_steps=10**6, kernels=True)


def trained(path: pathlib.Path, rounds: int, steps: int) -> dict[str, Any]:
    """Preparing twice, gathering and training, mapped and in memory."""
    torch.set_num_threads(1)
    own = psutil.Process()
    with watched(own) as used:
        times = []
        for _ in range(2):
            started = time.perf_counter()
            data = load(path)
            agent = IQL(Spec.of(data, -np.ones(ACTION), np.ones(ACTION)))
            ready = agent.fresh(0).prepare(data)
            store = store_from_dataset(ready, agent.required_columns)
            times.append(time.perf_counter() - started)
        learner = learner_of(agent.fresh(0), ready, store)
        learner.run(100)
    found: dict[str, Any] = {"prepare_s": times[0], "prepare_again_s": times[1], **used}
    found["prepared_gigabytes"] = sum(one.stat().st_size for one in (path / "prepared").glob("*.bin")) / 1e9
    rows = store.groups["rows"]
    started = time.perf_counter()
    copied = Store({"rows": rows.clone()}, store.fields, len(store))  # reads all: the pages are cached then
    found["pass_s"] = time.perf_counter() - started
    rng = torch.Generator().manual_seed(0)
    for batch in BATCHES:
        spaces = [one.workspace(batch) for one in (store, copied)]
        timed: list[list[float]] = [[], []]
        for _ in range(rounds * 40):
            indices = torch.randint(0, len(store), (batch,), generator=rng)
            for which, one in enumerate((store, copied)):
                started = time.perf_counter()
                one.gather(indices, spaces[which])
                timed[which].append(time.perf_counter() - started)
        found[f"gather_{batch}_us"] = [statistics.median(one) * 1e6 for one in timed]
    memory = learner_of(agent.fresh(0), ready, copied)
    memory.run(100)
    rates: list[list[float]] = [[], []]
    for _ in range(rounds):
        for which, one in enumerate((learner, memory)):
            started = time.perf_counter()
            one.run(steps)
            rates[which].append(steps / (time.perf_counter() - started))
    same = [torch.equal(a, b) for a, b in zip(learner.state(0).values(), memory.state(0).values(), strict=True)]
    found |= {
        "updates_per_s_mapped": statistics.median(rates[0]),
        "updates_per_s_memory": statistics.median(rates[1]),
        "ratio": statistics.median(a / b for a, b in zip(*rates, strict=True)),
        "equal_to_the_bit": all(same),
    }
    return found


def command(
    data: pathlib.Path, folder: pathlib.Path, seeds: int, steps: int, python: str, source: str
) -> dict[str, Any]:
    """`surefoot train` of IQL without a simulator: the memory that it takes."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    variables = {**os.environ, "PYTHONPATH": source} if source else dict(os.environ)
    names = ",".join(map(str, range(seeds)))
    arguments = ["algo=iql", f"dataset={data}", "env=none", f"steps={steps}", f"seeds=[{names}]", f"out={out}"]
    started = time.perf_counter()
    with subprocess.Popen(
        [python, "-P", "-m", "surefoot", "train", *arguments],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        found, over = {"anonymous_gb": 0.0, "unique_gb": 0.0}, threading.Event()

        def watch() -> None:
            while not over.wait(0.1):
                totals = [0, 0]
                with contextlib.suppress(psutil.Error, OSError):
                    parent = psutil.Process(process.pid)
                    for one in [parent, *parent.children(recursive=True)]:
                        with contextlib.suppress(psutil.Error, OSError):
                            totals[0] += anonymous(one)
                            totals[1] += one.memory_full_info().uss
                for key, total in zip(found, totals, strict=True):
                    found[key] = max(found[key], total / 1e9)

        thread = threading.Thread(target=watch)
        thread.start()
        text = process.communicate()[0]
        over.set()
        thread.join()
    if process.returncode:
        sys.exit(text)
    shutil.rmtree(out, ignore_errors=True)
    return {"data": data.name, "seeds": seeds, "steps": steps, "seconds": time.perf_counter() - started, **found}


def page(record: dict[str, Any]) -> str:
    """The result as a page."""
    b, t = record["build"], record["train"]
    lines = [
        "# Data on disk",
        "",
        "`python benchmarks/data_on_disk.py`. " + machine.sentence(record["machine"]),
        "",
        f"{b['rows']:,} rows of {OBSERVATION} and {ACTION} numbers, {b['gigabytes']:.2f} GB, built in "
        f"{b['build_s']:.0f} s; the first load, which checks all, takes {b['first_load_s']:.1f} s, later ones "
        f"{b['next_load_s']:.2f} s.",
        "",
        "| | mapped | in memory |",
        "|---|---|---|",
        *(
            f"| gather of {batch} rows, us | {t[f'gather_{batch}_us'][0]:.0f} | {t[f'gather_{batch}_us'][1]:.0f} |"
            for batch in BATCHES
        ),
        f"| IQL updates a second | {t['updates_per_s_mapped']:.0f} | {t['updates_per_s_memory']:.0f} |",
        "",
        f"The rate is {t['ratio']:.2f} of that in memory (median over rounds in turn), with weights that are "
        f"{'equal to the bit' if t['equal_to_the_bit'] else 'NOT EQUAL'}. Preparing (actions, rewards, normalised "
        f"observations, packed rows: {t['prepared_gigabytes']:.1f} GB of disk) took {t['prepare_s']:.0f} s once and "
        f"{t['prepare_again_s']:.1f} s for every seed after it, and {t['anonymous_gb']:.2f} GB of anonymous memory.",
        "",
        "| `surefoot train algo=iql env=none` of | seeds | anonymous, GB | unique set, GB | seconds |",
        "|---|---|---|---|---|",
        *(
            f"| {c['what']} | {c['seeds']} | {c['anonymous_gb']:.2f} | {c['unique_gb']:.2f} | {c['seconds']:.0f} |"
            for c in record["commands"]
        ),
        "",
        "| packed from | rows | MB of the store a second | anonymous, GB |",
        "|---|---|---|---|",
        *(
            f"| {f['file']} | {f['rows']:,} | {f['bytes_per_s'] / 1e6:.0f} | {f['anonymous_gb']:.2f} |"
            for f in record["files"]
        ),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--quick", action="store_true", help="200,000 rows; nothing is recorded")
    parser.add_argument(
        "--folder", type=pathlib.Path, help="where stores are built and kept (default: a temporary one)"
    )
    parser.add_argument("--before", default="", help="src/ of another version of surefoot, for memory of its runs")
    given = parser.parse_args()
    rows = 200_000 if given.quick else given.rows
    few = 100_000 if given.quick else 2_000_000
    rounds, steps = (3, 50) if given.quick else (15, 400)
    loads = [machine.load()]
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or pathlib.Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        store = folder / f"rows{rows}.store"
        record: dict[str, Any] = {"build": built(store, rows)}
        print(record, flush=True)
        record["files"] = packed_from_files(folder, few)
        print(record["files"], flush=True)
        loads.append(machine.load())
        record["train"] = trained(store, rounds, steps)
        print(record["train"], flush=True)
        loads.append(machine.load())
        record["commands"] = []
        smaller = folder / "few.npz"
        save(rows_of(few, 0), smaller)
        size = few * 176 / 1e9
        cases = [(f"a store of {rows:,} rows", store, "", seeds) for seeds in (1, 2)]
        cases += [(f"an NPZ file of {few:,} rows ({size:.2f} GB)", smaller, "", seeds) for seeds in (1, 2)]
        if given.before:
            cases += [("that file, the version before", smaller, given.before, seeds) for seeds in (1, 2)]
        for what, data, source, seeds in cases:
            record["commands"].append({"what": what, **command(data, folder, seeds, 200, sys.executable, source)})
            print(record["commands"][-1], flush=True)
        loads.append(machine.load())
        smaller.unlink()
    record["machine"] = machine.record(loads)
    if not given.quick:
        (RESULTS / "data_on_disk.json").write_text(json.dumps(record, indent=1) + "\n")
        (RESULTS / "data_on_disk.md").write_text(page(record))
    print(page(record))


if __name__ == "__main__":
    main()
