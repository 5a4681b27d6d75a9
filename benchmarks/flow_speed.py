"""Updates of FQL and of QC per second beside the same updates in JAX, in turn, in one run, one thread on one core.

    python benchmarks/flow_speed.py             # both; the peer's environment is made by benchmarks/peers/setup.sh jax
    python benchmarks/flow_speed.py --quick     # ours alone, small networks, a few updates, for CI

Batches of 256, 10 flow steps, two critics; FQL on single actions, QC on chunks of five with 32 samples; networks of
3 x 256 and 4 x 512. The peer (peers/flow_jax.py) is written from the papers with the official codes' networks and
order, one jitted update a call. Rates are per second of CPU time, medians over the repeats, so that a busy machine
changes them less. Writes results/flow_speed.md and .json.
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

from surefoot.core import kernels
from surefoot.core.agent import Spec
from surefoot.core.learner import Learner
from surefoot.core.sources import Stores
from surefoot.data.store import Store
from surefoot.offline import ALGORITHMS

HERE = pathlib.Path(__file__).parent
SIZES = {"3 x 256": (256, 256, 256), "4 x 512": (512, 512, 512, 512)}
PEER = (
    "JAX is a program of ours, written from the papers with the networks and the order of the official codes, one "
    "jitted update a call; the official programs themselves were not timed."
)
UPDATES = {("fql", "3 x 256"): 100, ("fql", "4 x 512"): 12, ("qc", "3 x 256"): 6, ("qc", "4 x 512"): 2}


def ours(algorithm: str, hidden: tuple[int, ...], updates: int, seed: int) -> dict[str, Any]:
    """Updates of a worker of `surefoot train` on random rows."""
    torch.set_num_threads(1)
    kernels.keep_memory()
    rows = 50_000
    store = Store.pack(random_rows(rows, seed))
    episodes = types.SimpleNamespace(valid=np.ones(rows, bool), episode_ids=np.arange(rows) // 1000)
    torch.manual_seed(seed)
    agent = ALGORITHMS[algorithm](Spec(17, 6, (-1.0,) * 6, (1.0,) * 6), hidden=hidden)
    sources = dict(agent.sources(Stores(episodes, store)))
    learner = Learner([agent], [seed], sources, planned_steps=1_000_000, kernels=True)
    return {"peer": "surefoot", **timed(learner, updates, warm=2)}


def commands(algorithm: str, size: str, seed: int) -> dict[str, list[str]]:
    """Ours and theirs."""
    python = peer_python("jax", "run benchmarks/peers/setup.sh jax")
    hidden = [str(width) for width in SIZES[size]]
    common = ["--algorithm", algorithm, "--updates", str(UPDATES[algorithm, size]), "--seed", str(seed), "--hidden"]
    return {
        "surefoot": [sys.executable, __file__, "--ours", *common, *hidden],
        "JAX": [python, str(HERE / "peers" / "flow_jax.py"), *common, *hidden],
    }


def main() -> None:
    """Measure in turn, then write the table."""
    parser = speed_parser(__doc__)
    parser.add_argument("--algorithm", choices=("fql", "qc"), default="fql")
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 32])
    given = parser.parse_args()
    if given.ours:
        print(json.dumps(ours(given.algorithm, tuple(given.hidden), given.updates, given.seed)))
        return
    if given.quick:
        for algorithm in ("fql", "qc"):
            print(json.dumps({"algorithm": algorithm, **ours(algorithm, (32, 32), 3, 0)}))
        return
    rows = {f"{algorithm}, {size}": functools.partial(commands, algorithm, size) for algorithm, size in UPDATES}
    title = "Speed of FQL's and QC's updates"
    compare("flow_speed", title, "python benchmarks/flow_speed.py", given.repeats, rows, peer=PEER)


if __name__ == "__main__":
    main()
