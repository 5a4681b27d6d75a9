"""Updates of HIQL, FB and HILP per second beside the authors' codes, in turn, in one run, on one core.

    benchmarks/peers/setup.sh paired_jax corl
    python benchmarks/goal_speed.py --updates 12 --checkout DIR --checkout DIR --checkout DIR
    python benchmarks/goal_speed.py --quick          # ours alone, small networks, a few updates, for CI

Checkouts are of seohongpark/ogbench, in JAX, enjeeneer/zero-shot-rl and seohongpark/HILP, in PyTorch; an algorithm
whose code is not among them is left out. All at the authors' sizes, on observations of 17 numbers and 6 of an action:
HIQL in batches of 1,024 with networks of 512-512-512, FB in batches of 512 and HILP of 1,024 with networks of 1,024.
Beside ours: the authors' agents and updates on batches that were drawn before (peers/goals_official.py,
peers/zero_shot_official.py), where ours draws rows and goals. Rates are per second of CPU time, medians over the
repeats, so that a busy machine changes them less. Writes results/goal_speed.md and .json, and task_speed.md
and .json.
"""

from __future__ import annotations

import functools
import json
import pathlib
import sys
import types
from typing import Any, NamedTuple

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
ROWS, COUNTED = 50_000, 1_000_000


class Beside(NamedTuple):
    """One of our algorithms and the code beside it."""

    code: str
    """A file that the checkout has."""
    runner: str
    venv: str
    batch: int
    options: dict[str, Any]


GOALS = ("goals_official.py", "paired_jax", 1024, {"hidden": (512, 512, 512)})
ALL = {
    "hiql": Beside("impls/agents/hiql.py", *GOALS),
    "fb": Beside("agents/fb/agent.py", "zero_shot_official.py", "corl", 512, {}),
    "hilp": Beside("hilp_zsrl/url_benchmark/agent/sf.py", "zero_shot_official.py", "corl", 1024, {}),
}
FILES = {
    "goal_speed": ("Speed of HIQL's updates", ("hiql",)),
    "task_speed": ("Speed of updates of zero-shot algorithms", ("fb", "hilp")),
}
"""Of results: title, and whose updates; one is written where a checkout of its code is given."""
PEER = "Official: the authors' agents and updates on batches that were drawn before, where ours draws its own."


def ours(algorithm: str, updates: int, seed: int, batch: int, options: dict[str, Any]) -> dict[str, Any]:
    """Updates of a worker of `surefoot train` on random rows."""
    torch.set_num_threads(1)
    kernels.keep_memory()
    store = Store.pack(random_rows(ROWS, seed))
    every = np.ones(ROWS, bool)
    episodes = types.SimpleNamespace(valid=every, transitions=every, attributes={}, episode_ids=np.arange(ROWS) // 1000)
    torch.manual_seed(seed)
    agent = ALGORITHMS[algorithm](Spec(17, 6, (-1.0,) * 6, (1.0,) * 6), **options)
    sources = agent.sources(Stores(episodes, store))
    learner = Learner([agent], [seed], sources, batch_size=batch, planned_steps=COUNTED, kernels=True)
    return {"peer": "surefoot", **timed(learner, updates, warm=2)}


def commands(algorithm: str, checkout: pathlib.Path, updates: int, seed: int) -> dict[str, list[str]]:
    """Ours and theirs."""
    facts = ALL[algorithm]
    official = peer_python(facts.venv, f"run benchmarks/peers/setup.sh {facts.venv}")
    common = ["--algorithm", algorithm, "--updates", str(updates), "--seed", str(seed)]
    peer = [official, str(HERE / "peers" / facts.runner), "--checkout", str(checkout), *common]
    return {"surefoot": [sys.executable, __file__, "--ours", *common], "official": peer}


def main() -> None:
    """Measure in turn, then write the table."""
    parser = speed_parser(__doc__)
    parser.add_argument("--algorithm", choices=list(ALL), default="hiql")
    parser.add_argument("--checkout", type=pathlib.Path, action="append", default=[], help="of an official code")
    given = parser.parse_args()
    if given.ours:
        facts = ALL[given.algorithm]
        print(json.dumps(ours(given.algorithm, given.updates, given.seed, facts.batch, facts.options)))
        return
    if given.quick:
        for name in ALL:
            print(json.dumps({"algorithm": name, **ours(name, 3, 0, 64, {"hidden": (32, 32)})}))
        return
    found = {name: next((c for c in given.checkout if (c / one.code).is_file()), None) for name, one in ALL.items()}
    rows = {name: functools.partial(commands, name, where, given.updates) for name, where in found.items() if where}
    if not rows:
        raise SystemExit("--checkout: name checkouts of official codes, as the first lines of this script say")
    words = f"--updates {given.updates} --repeats {given.repeats}"
    command = f"python benchmarks/goal_speed.py --checkout DIR ... {words}"
    for file, (title, names) in FILES.items():
        chosen = {name: rows[name] for name in names if name in rows}
        if chosen:
            compare(file, title, command, given.repeats, chosen, peer=PEER)


if __name__ == "__main__":
    main()
