"""Damages, distorts and forges files of every kind that surefoot reads, and counts what reading them does.

Usage: `python benchmarks/fuzz_files.py [--cases 10000 | --quick] [--minutes 60] [--seed 0] [--record FILE]`. With
`--record`, a line of JSON a case, the same command continues where it was stopped; `--again KIND` moves the failures of
a kind among the fixed ones and has all its cases done again, after its reader was changed. `--page` writes
results/fuzz_files.json and its table from the record.

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
import json
import math
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from typing import Any

import torch
from fuzz_damage import CANARY
from fuzz_kinds import TARGETS, Target, one_sentence

from surefoot.core.base.errors import SurefootError, printable
from surefoot.core.base.files import write_json, written_aside

RESULTS = pathlib.Path(__file__).parent / "results" / "fuzz_files.json"
SECONDS = 60.0
SLACK = 300 << 20
"""Bytes beside twice the file's: 256 MiB that any file may unpack to, and the reader's own."""
BATCH = 120
"""Cases that one process reads."""
Path = pathlib.Path
warnings.simplefilter("ignore")


# -- one case -----------------------------------------------------------------------------------------------------


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
    reported: dict[str, Any] = {"target": target.name, "seed": seed}
    try:
        try:
            what = target.damage(path, rng)
        except Exception as error:  # the sound writer would not write such a thing: no case
            return {**reported, "outcome": "unchanged", "what": f"not written: {type(error).__name__}", "seconds": 0.0}
        same = all(one.is_file() and one.read_bytes() == content for one, content in before.items())
        size, resident, start = stated(path), forget_peak(), time.monotonic()
        reported |= {"what": f"{path.name}, {what}"}
        try:
            target.read(path)
            outcome = "unchanged" if same else "loaded"
            if outcome == "loaded" and target.ours:
                outcome, reported["why"] = "failed", "loaded although its checksum can't fit"
        except SurefootError as error:
            wrong = one_sentence(error, path)
            outcome = "refused" if wrong is None else "failed"
            reported["why"] = wrong or str(error)
        except BaseException as error:  # the point of this program: anything else is a failure to report
            outcome, reported["why"] = "failed", f"{type(error).__name__}: {printable(str(error))[:300]}"
        seconds, grown = time.monotonic() - start, peak() - resident
        if seconds > SECONDS:
            outcome, reported["why"] = "failed", f"took {seconds:.0f} s"
        if grown > 2 * size + SLACK:
            outcome, reported["why"] = "failed", f"took {grown >> 20} MB for a file of {size >> 20} MB"
        if mark.exists():
            mark.unlink()
            outcome, reported["why"] = "failed", "code that the file names was executed"
        return {**reported, "outcome": outcome, "seconds": round(seconds, 3), "megabytes": max(0, grown >> 20)}
    finally:
        for one_path, content in before.items():
            if one_path.is_dir():
                one_path.rmdir()
            one_path.unlink(missing_ok=True)  # a pipe or a link may lie there
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
    """Cases of one process; where it dies or hangs, the case that it was at is a failure and the rest continues."""
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


class Record:
    """The cases of a run that may be stopped and continued: a line of JSON each, in a file or nowhere."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._lock = path, threading.Lock()
        lines = path.read_text().splitlines() if path is not None and path.is_file() else []
        self.cases: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, cases: list[dict[str, Any]]) -> None:
        """Write cases of one process at once."""
        with self._lock:
            self.cases += cases
            if self.path is not None:
                with open(self.path, "a") as file:
                    file.write("".join(json.dumps(case) + "\n" for case in cases))

    def done(self, target: Target) -> set[int]:
        """Seeds of the cases of a kind that need not be done again."""
        return {case["seed"] for case in self.cases if case["target"] == target.name and "mended" not in case}

    def again(self, name: str) -> None:
        """Drop the cases of a kind whose reader was changed; its failures stay, as ones that were fixed."""
        kept = []
        for case in self.cases:
            if case["target"] != name or "mended" in case:
                kept.append(case)
            elif case["outcome"] == "failed":
                kept.append({**case, "mended": True})
        self.cases = kept
        assert self.path is not None
        with written_aside(self.path) as path:
            path.write_text("".join(json.dumps(case) + "\n" for case in kept))


def summed(every: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by kind of file, and the failures in words."""
    rows, cases = [], [case for case in every if "mended" not in case]
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
    fixed = [case for case in every if "mended" in case]
    return {"cases": len(cases), "rows": rows, "failures": failures, "mended": fixed}


def table(result: dict[str, Any]) -> str:
    """The result as a page."""
    header = list(result["rows"][0])
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(f"{value}" for value in row.values()) + " |" for row in result["rows"]]
    if result["mended"]:
        lines += ["", "Failures that were found on the way and fixed:", ""]
        lines += [f"- {case['target']}: {case['what']}: {printable(case['why'])[:200]}" for case in result["mended"]]
    total = sum(row["failed"] for row in result["rows"])
    return (
        f"# Damaged and hostile files\n\n{result['cases']:,} generated cases, {total} failed. "
        "`benchmarks/fuzz_files.py` says what a case is and what counts as\na failure. After a failure was fixed, all "
        "cases of the kinds that the changed code reads were done again from the first;\ncases of other kinds count as "
        "they were.\n\n" + "\n".join(lines) + "\n"
    )


def main() -> int:
    """Run cases by turns until all or the time are spent; 1 where something failed."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(description="read damaged, distorted and forged files of every kind")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="four cases of each kind, for CI")
    parser.add_argument("--minutes", type=float, default=60.0, help="end after so many, with the cases that were done")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", help="one kind of file", choices=names)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="a line of JSON a case; those that are there are not done again")
    parser.add_argument("--again", choices=names, action="append", default=[], help="do all cases of a kind again")
    parser.add_argument("--page", action="store_true", help=f"write {RESULTS.name} and its table, and do no case")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        name, seeds, folder = arguments.worker
        worker(name, json.loads(seeds), Path(folder))
        return 0
    if arguments.record is None and (arguments.again or arguments.page):
        parser.error("--again and --page take --record")
    record = Record(arguments.record)
    for name in arguments.again:
        record.again(name)
    targets = [target for target in TARGETS if arguments.only in (None, target.name)]
    each = 4 if arguments.quick else math.ceil(arguments.cases / len(TARGETS))
    start = time.monotonic()

    def timed(target: Target, begin: int) -> None:
        seeds = range(arguments.seed + begin, arguments.seed + min(begin + BATCH, each))
        missing = sorted(set(seeds) - record.done(target))
        if missing and time.monotonic() - start < 60 * arguments.minutes:
            record.add(batch(target, missing))

    if not arguments.page:
        with concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
            turns = [(target, begin) for begin in range(0, each, BATCH) for target in targets]
            for job in [pool.submit(timed, *turn) for turn in turns]:
                job.result()
    result = summed(record.cases)
    print(table(result))
    for case in result["failures"][:50]:
        print(json.dumps(case))
    if arguments.page:
        write_json(RESULTS, result)
        with written_aside(RESULTS.with_suffix(".md")) as path:
            path.write_text(table(result))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
