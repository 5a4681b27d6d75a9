"""Updates of FQL and of QC per second beside the official JAX codes, in turn, in one run, one thread on one core.

    benchmarks/peers/setup.sh jax flow
    python benchmarks/flow_speed.py --fql DIR --qc DIR   # checkouts of seohongpark/fql, ColinQiyangLi/qc
    python benchmarks/flow_speed.py --quick              # ours alone, small networks, a few updates, for CI

Batches of 256, 10 flow steps, two critics; FQL on single actions, QC on chunks of five with 32 samples; networks of
3 x 256 and 4 x 512. Beside ours: the official agents and their jitted updates on batches that were drawn before
(peers/flow_official.py), and a program of ours in plain JAX, written from the papers with the same networks and order
(peers/flow_jax.py). Rates are per second of CPU time, medians over the repeats, so that a busy machine changes them
less. Writes results/flow_speed.md and .json.
"""

from __future__ import annotations

import functools
import json
import pathlib
import sys
import types
from typing import Any

import numpy as np
import torch
from beside import compare, peer_python, random_rows, speed_parser, timed

from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.nn.native import kernels
from surefoot.data.store import Store
from surefoot.offline import ALGORITHMS

HERE = pathlib.Path(__file__).parent
SIZES = {"3 x 256": (256, 256, 256), "4 x 512": (512, 512, 512, 512)}
PEER = (
    "Official: the authors' agents and jitted updates, on batches that were drawn before, where ours draws its own. "
    "Plain JAX: a program of ours from the papers, with the same networks and order."
)
UPDATES = {("fql", "3 x 256"): 100, ("fql", "4 x 512"): 12, ("qc", "3 x 256"): 6, ("qc", "4 x 512"): 2}


def ours(algorithm: str, hidden: tuple[int, ...], updates: int, seed: int) -> dict[str, Any]:
    """Updates of a worker of `surefoot train` on random rows."""
    torch.set_num_threads(1)
    kernels.keep_memory()
    rows = 50_000
    store = Store.pack(random_rows(rows, seed))
    every = np.ones(rows, bool)
    episodes = types.SimpleNamespace(valid=every, transitions=every, attributes={}, episode_ids=np.arange(rows) // 1000)
    torch.manual_seed(seed)
    agent = ALGORITHMS[algorithm](Spec(17, 6, (-1.0,) * 6, (1.0,) * 6), hidden=hidden)
    sources = dict(agent.sources(Stores(episodes, store)))
    learner = Learner([agent], [seed], sources, planned_steps=1_000_000, kernels=True)
    return {"peer": "surefoot", **timed(learner, updates, warm=2)}


def commands(algorithm: str, size: str, checkout: pathlib.Path, seed: int) -> dict[str, list[str]]:
    """Ours and theirs."""
    python = peer_python("jax", "run benchmarks/peers/setup.sh jax")
    official = peer_python("flow", "run benchmarks/peers/setup.sh flow")
    hidden = [str(width) for width in SIZES[size]]
    common = ["--algorithm", algorithm, "--updates", str(UPDATES[algorithm, size]), "--seed", str(seed), "--hidden"]
    return {
        "surefoot": [sys.executable, __file__, "--ours", *common, *hidden],
        "official JAX": [
            official, str(HERE / "peers" / "flow_official.py"), "--checkout", str(checkout), *common, *hidden,
        ],
        "plain JAX": [python, str(HERE / "peers" / "flow_jax.py"), *common, *hidden],
    }  # fmt: skip


def main() -> None:
    """Measure in turn, then write the table."""
    parser = speed_parser(__doc__)
    parser.add_argument("--algorithm", choices=("fql", "qc"), default="fql")
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 32])
    parser.add_argument("--fql", type=pathlib.Path, help="a checkout of seohongpark/fql")
    parser.add_argument("--qc", type=pathlib.Path, help="a checkout of ColinQiyangLi/qc")
    given = parser.parse_args()
    if given.ours:
        print(json.dumps(ours(given.algorithm, tuple(given.hidden), given.updates, given.seed)))
        return
    if given.quick:
        for algorithm in ("fql", "qc"):
            print(json.dumps({"algorithm": algorithm, **ours(algorithm, (32, 32), 3, 0)}))
        return
    where = {"fql": given.fql, "qc": given.qc}
    if missing := [name for name, checkout in where.items() if checkout is None]:
        raise SystemExit(f"--{missing[0]}: name a checkout of the official code, as the first lines of this script say")
    rows = {
        f"{algorithm}, {size}": functools.partial(commands, algorithm, size, where[algorithm])
        for algorithm, size in UPDATES
    }
    command = "python benchmarks/flow_speed.py --fql DIR --qc DIR"
    compare("flow_speed", "Speed of FQL's and QC's updates", command, given.repeats, rows, peer=PEER)


if __name__ == "__main__":
    main()
