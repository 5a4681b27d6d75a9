"""Lets several processes claim, write, read and be killed in one folder at once, and checks that nothing is lost.

    python benchmarks/fuzz_processes.py [--cases 1000]    # writes results/fuzz_processes.json and its table
    python benchmarks/fuzz_processes.py --quick           # a few cases, for CI

A case is two to six processes that begin within milliseconds of each other, at the same thing:

one new folder      each asks for it as a new run's; at most one may be inside at any time, one run comes to be there
default folders     each asks for a folder of its own; each must get one that no other has
one started run       each resumes it and adds 1 to a number in it; no addition may be lost
a JSON file         some write it over and over, others read it: each reading is what one of them wrote
a checkpoint        likewise
a policy            likewise; where a process was killed between its two files, that must be refused in a sentence

A third of them is killed by SIGKILL at some moment. What is refused must be refused by an exception of ours.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from surefoot.core.actors.actor import actor_class
from surefoot.core.base import checkpoint
from surefoot.core.base.errors import SurefootError, printable
from surefoot.core.base.files import read_json, write_json, written_aside
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.runs.folders import Claim, claim_begun, claim_named, claim_new

RESULTS = pathlib.Path(__file__).parent / "results" / "fuzz_processes.json"
DONE, REFUSED, BROKEN, KILLED = 0, 3, 9, -signal.SIGKILL
SECONDS = 60.0
Path = pathlib.Path
Act = Callable[[Path, int, random.Random], None]
"""What one process does in the folder; its number and its own random numbers are given."""


def inside(claim: Claim) -> None:
    """Fail where another process is in the folder too."""
    with socket.socket(socket.AF_UNIX) as alone:  # a name without a file: gone with the process that has it
        alone.bind(f"\0{claim.folder}")
        time.sleep(random.uniform(0, 0.004))


def new_folder(folder: Path, number: int, rng: random.Random) -> None:
    with claim_new(folder / "run") as claim:
        inside(claim)
        if rng.random() < 0.7:
            write_json(claim.folder / "config.json", number)


def default_folder(folder: Path, number: int, rng: random.Random) -> None:
    with claim_named("run", folder / "runs") as claim:
        inside(claim)
        write_json(claim.folder / "config.json", number)


def begun_run(folder: Path, number: int, rng: random.Random) -> None:
    with claim_begun(folder / "run") as claim:
        inside(claim)
        counted = read_json(claim.folder / "config.json")
        write_json(claim.folder / "config.json", counted + 1)


def json_file(folder: Path, number: int, rng: random.Random) -> None:
    for _ in range(10):
        if number % 2:
            write_json(folder / "a.json", [number] * 2000)
        else:
            value = read_json(folder / "a.json")
            assert value == [value[0]] * 2000, "half of it is another's"


def one_checkpoint(folder: Path, number: int, rng: random.Random) -> None:
    path = folder / "a.safetensors"
    for _ in range(6):
        if number % 2:
            checkpoint.save(path, {"a": torch.full((500,), float(number))}, {"kind": "checkpoint", "number": number})
        else:
            tensors, meta = checkpoint.load(path)
            assert bool((tensors["a"] == meta["number"]).all()), "half of it is another's"


def one_policy(folder: Path, number: int, rng: random.Random) -> None:
    for _ in range(4):
        if number % 2:
            _policy(number).save(folder / "p")
        else:
            Policy.load(folder / "p.safetensors")


def _policy(number: int) -> Policy:
    torch.manual_seed(number)
    actor = actor_class("deterministic")(3, 2, (4 + 2 * number,))
    return Policy.of(actor, Normalizer(3), torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]))


def prepare(folder: Path) -> None:
    """What is there before the processes begin."""
    (folder / "run").mkdir()
    write_json(folder / "a.json", [0] * 2000)
    checkpoint.save(folder / "a.safetensors", {"a": torch.zeros(500)}, {"kind": "checkpoint", "number": 0})
    _policy(0).save(folder / "p")


KINDS: dict[str, Act] = {
    "one new folder": new_folder,
    "default folders": default_folder,
    "one started run": begun_run,
    "a JSON file": json_file,
    "a checkpoint": one_checkpoint,
    "a policy": one_policy,
}
MAY_REFUSE = ("one new folder", "one started run", "a policy")


def child(act: Act, folder: Path, number: int, seed: int) -> None:
    """One process: does it, and says by its exit code how it ended."""
    rng, code = random.Random(seed), BROKEN
    random.seed(seed)
    try:
        time.sleep(rng.uniform(0, 0.005))
        act(folder, number, rng)
        code = DONE
    except SurefootError as error:
        code = REFUSED if "\n" not in str(error) and printable(str(error)) == str(error) else BROKEN
        (folder / f"stated-{number}").write_text(str(error))
    except BaseException:  # the point of this program: anything else is a failure to report
        (folder / f"stated-{number}").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def wrong(kind: str, folder: Path, codes: list[int]) -> str | None:
    """What is not as it should be after the processes have ended; None where all is well."""
    given = " | ".join(path.read_text()[-400:] for path in sorted(folder.glob("stated-*")))
    if BROKEN in codes or not set(codes) <= {DONE, REFUSED, KILLED}:
        return f"ended with {codes}: {given}"
    if REFUSED in codes and kind not in MAY_REFUSE:
        return f"refused: {given}"
    done, killed = codes.count(DONE), codes.count(KILLED)
    if kind == "one started run" and not done <= read_json(folder / "run" / "config.json") <= done + killed:
        return f"{done} added 1 and {killed} were killed, and there is {read_json(folder / 'run' / 'config.json')}"
    if kind == "default folders":
        numbers = [read_json(path) for path in folder.glob("runs/*/config.json")]
        if len(set(numbers)) != len(numbers) or not done <= len(numbers) <= done + killed:
            return f"{done} ended well, and the folders are those of {numbers}"
    for name, last in (("a JSON file", "a.json"), ("a checkpoint", "a.safetensors")):
        if kind == name:
            (read_json if last.endswith("json") else checkpoint.load)(folder / last)
    return None


def case(seed: int) -> dict[str, Any]:
    """One case."""
    rng = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    count = rng.randint(2, 6)
    with tempfile.TemporaryDirectory() as place:
        folder, start = Path(place).resolve(), time.monotonic()
        prepare(folder)
        if kind == "one started run":
            write_json(folder / "run" / "config.json", 0)
        if kind == "default folders":
            shutil.rmtree(folder / "run")
        pids = []
        for number in range(count):
            pid = os.fork()
            if pid == 0:
                child(KINDS[kind], folder, number, 1000 * seed + number)
            pids.append(pid)
        for pid in pids:
            if rng.random() < 1 / 3:
                time.sleep(rng.uniform(0, 0.01))
                os.kill(pid, signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        seconds = time.monotonic() - start
        try:
            why = wrong(kind, folder, codes)
        except SurefootError as error:
            why = f"afterwards: {error}"
        why = why or (f"took {seconds:.0f} s" if seconds > SECONDS else None)
    return {"seed": seed, "kind": kind, "codes": codes, "seconds": round(seconds, 3), "why": why}


def summed(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by kind, and the failures."""
    rows = []
    for kind in KINDS:
        own = [one for one in cases if one["kind"] == kind]
        codes = collections.Counter(code for one in own for code in one["codes"])
        ended = {"done": codes[DONE], "refused": codes[REFUSED], "killed": codes[KILLED]}
        failed = sum(one["why"] is not None for one in own)
        slowest = max((one["seconds"] for one in own), default=0.0)
        rows.append({"what": kind, "cases": len(own), **ended, "failed cases": failed, "slowest, s": slowest})
    return {"cases": len(cases), "rows": rows, "failures": [one for one in cases if one["why"] is not None]}


def table(result: dict[str, Any]) -> str:
    """The result as a page."""
    header = list(result["rows"][0])
    lines = ["# Several processes at one folder or file", ""]
    lines += [f"{result['cases']:,} cases of two to six processes, {len(result['failures'])} failed; done, refused and"]
    lines += ["killed count processes. `benchmarks/fuzz_processes.py` says what a case is.", ""]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(f"{value}" for value in row.values()) + " |" for row in result["rows"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the cases; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others' follow")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count = 5 * len(KINDS) if arguments.quick else arguments.cases
    result = summed([case(arguments.seed + number) for number in range(count)])
    print(table(result))
    for one in result["failures"][:20]:
        print(json.dumps(one))
    if not arguments.quick:
        write_json(RESULTS, result)
        with written_aside(RESULTS.with_suffix(".md")) as path:
            path.write_text(table(result), encoding="utf-8")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
