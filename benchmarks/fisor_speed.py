"""FISOR's training steps per second beside its official JAX code, in turn, in one run, one thread on one core.

    python benchmarks/fisor_speed.py --checkout DIR     # DIR: a checkout of ZhengYinan-AIR/FISOR, which is not fetched
    python benchmarks/fisor_speed.py --quick            # ours alone, a few steps, for CI

The peer's environment is $SUREFOOT_PEERS/fisor (benchmarks/peers/setup.sh says where): jax, flax, optax, gymnasium. Two
sizes: the official one (two updates of a residual noise network on 1,024 rows each, critics on 256), and a small one
(two updates of a 2 x 256 noise network on 256 rows each) in both. Rates are per second of CPU time, medians over
the repeats, so that a busy machine changes them less. Writes results/fisor_speed.md and .json.
"""

from __future__ import annotations

import functools
import json
import pathlib
import sys
from typing import Any

import numpy as np
import torch
from beside import compare, peer_python, random_rows, speed_parser, timed

from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.native import kernels
from surefoot.data.store import Store
from surefoot.safe.fisor import FISOR

HERE = pathlib.Path(__file__).parent
UPDATES = {"official": 8, "small": 150}
OPTIONS: dict[str, dict[str, Any]] = {"official": {"preset": "official"}, "small": {"actor_updates": 2}}


def ours(size: str, updates: int, seed: int) -> dict[str, Any]:
    """Steps of a worker of `surefoot train` on random rows, as many as the peer has."""
    torch.set_num_threads(1)
    kernels.keep_memory()
    rows = 200_000
    columns = random_rows(rows, seed)
    store = Store.pack({**columns, "signals": np.where(columns["rewards"] > 1, 25, -1).astype(np.float32)})
    torch.manual_seed(seed)
    agent = FISOR(Spec(17, 6, (-1.0,) * 6, (1.0,) * 6), **OPTIONS[size])
    learner = Learner([agent], [seed], Uniform(store.gather, rows), planned_steps=1_000_000, kernels=True)
    return {"peer": f"surefoot, {size}", **timed(learner, updates, warm=5)}


def commands(size: str, checkout: pathlib.Path, seed: int) -> dict[str, list[str]]:
    """Ours and theirs."""
    python = peer_python("fisor", "make that environment with jax, flax, optax and gymnasium")
    common = ["--size", size, "--updates", str(UPDATES[size]), "--seed", str(seed)]
    return {
        "surefoot": [sys.executable, __file__, "--ours", *common],
        "official JAX": [python, str(HERE / "peers" / "fisor_official.py"), "--checkout", str(checkout), *common],
    }


def main() -> None:
    """Measure in turn, then write the table."""
    parser = speed_parser(__doc__)
    parser.add_argument("--checkout", type=pathlib.Path)
    parser.add_argument("--size", choices=sorted(UPDATES), default="small")
    given = parser.parse_args()
    if given.ours or given.quick:
        print(json.dumps(ours(given.size, given.updates, given.seed)))
        return
    if given.checkout is None:
        raise SystemExit("--checkout: name a checkout of ZhengYinan-AIR/FISOR")
    rows = {size: functools.partial(commands, size, given.checkout) for size in UPDATES}
    command = "python benchmarks/fisor_speed.py --checkout DIR"
    compare("fisor_speed", "FISOR's speed", command, given.repeats, rows)


if __name__ == "__main__":
    main()
