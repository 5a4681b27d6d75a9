"""Updates of HIQL per second beside OGBench's own JAX code, in turn, in one run, on one core.

    benchmarks/peers/setup.sh paired_jax
    python benchmarks/goal_speed.py --checkout DIR --updates 12   # of seohongpark/ogbench
    python benchmarks/goal_speed.py --quick          # ours alone, small networks, a few updates, for CI

OGBench's sizes: batches of 1,024 and networks of 512-512-512, here on observations of 17 numbers and 6 of an action.
Beside ours: the authors' agents and jitted updates on batches that were drawn before (peers/goals_official.py), where
ours draws rows and goals. Rates are per second of CPU time, medians over the repeats, so that a busy machine changes
them less. Writes results/goal_speed.md and .json.
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
NAMES = ("hiql",)
HIDDEN, BATCH = (512, 512, 512), 1024
PEER = "Official: the authors' agents and jitted updates on batches that were drawn before, where ours draws its own."


def ours(algorithm: str, hidden: tuple[int, ...], batch: int, updates: int, seed: int) -> dict[str, Any]:
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
    learner = Learner([agent], [seed], sources, batch_size=batch, planned_steps=1_000_000, kernels=True)
    return {"peer": "surefoot", **timed(learner, updates, warm=2)}


def commands(algorithm: str, checkout: pathlib.Path, updates: int, seed: int) -> dict[str, list[str]]:
    """Ours and theirs."""
    official = peer_python("paired_jax", "run benchmarks/peers/setup.sh paired_jax")
    common = ["--algorithm", algorithm, "--updates", str(updates), "--seed", str(seed)]
    common += ["--hidden", *map(str, HIDDEN)]
    peer = [official, str(HERE / "peers" / "goals_official.py"), "--checkout", str(checkout), *common]
    return {"surefoot": [sys.executable, __file__, "--ours", *common], "official JAX": peer}


def main() -> None:
    """Measure in turn, then write the table."""
    parser = speed_parser(__doc__)
    parser.add_argument("--algorithm", choices=NAMES, default="hiql")
    parser.add_argument("--hidden", type=int, nargs="+", default=list(HIDDEN))
    parser.add_argument("--checkout", type=pathlib.Path, help="a checkout of seohongpark/ogbench")
    given = parser.parse_args()
    if given.ours:
        print(json.dumps(ours(given.algorithm, tuple(given.hidden), BATCH, given.updates, given.seed)))
        return
    if given.quick:
        for algorithm in NAMES:
            print(json.dumps({"algorithm": algorithm, **ours(algorithm, (32, 32), 64, 3, 0)}))
        return
    if given.checkout is None:
        raise SystemExit("--checkout: name a checkout of seohongpark/ogbench, as the first lines of this script say")
    rows = {name: functools.partial(commands, name, given.checkout, given.updates) for name in NAMES}
    command = f"python benchmarks/goal_speed.py --checkout DIR --updates {given.updates} --repeats {given.repeats}"
    compare("goal_speed", "Speed of HIQL's updates", command, given.repeats, rows, peer=PEER)


if __name__ == "__main__":
    main()
