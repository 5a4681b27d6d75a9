"""Updates per second of the official JAX codes of FQL and of Q-chunking, from a checkout that the user gives.

    $SUREFOOT_PEERS/flow/bin/python benchmarks/peers/flow_official.py --algorithm fql --checkout DIR

DIR is a checkout of seohongpark/fql, or for qc of ColinQiyangLi/qc; nothing of them is in this repository. Their
agents, networks and jitted updates run unchanged on jax 0.10.2 and flax 0.12.8, with their defaults but for the sizes:
FQL on single actions, QC with the best of 32 chunks of five. An empty module stands in for distrax, whose distributions
neither algorithm calls. Batches are drawn before: the time is the updates' alone. One thread.
"""

import os

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import sys
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np

CODES = {"fql": ("fql.py", "FQLAgent", "seohongpark/fql"), "qc": ("acfql.py", "ACFQLAgent", "ColinQiyangLi/qc")}
OPTIONS: dict[str, dict[str, Any]] = {
    "fql": {},
    "qc": {"horizon_length": 5, "action_chunking": True, "actor_type": "best-of-n", "actor_num_samples": 32},
}
BATCHES, CHUNK = 16, 5


def stand_in(checkout: Path) -> None:
    """Let `agents.<file>` be imported alone, and without distrax."""
    distrax, agents = types.ModuleType("distrax"), types.ModuleType("agents")
    distrax.Transformed = object  # type: ignore[attr-defined]
    agents.__path__ = [str(checkout / "agents")]
    sys.modules.update({"distrax": distrax, "agents": agents})
    sys.path.insert(0, str(checkout))


def batches(algorithm: str, seed: int) -> list[dict[str, np.ndarray]]:
    """Random ones: rows of FQL, windows of QC."""
    rng, rows, size = np.random.default_rng(seed), common.BATCH_SIZE, common.OBSERVATION_SIZE
    found = []
    for _ in range(BATCHES):
        here, later = (rng.standard_normal((rows, size), dtype=np.float32) for _ in range(2))
        long = (rows, CHUNK) if algorithm == "qc" else (rows,)
        actions = rng.uniform(-0.99, 0.99, (*long, common.ACTION_SIZE)).astype(np.float32)
        one = {"observations": here, "actions": actions, "rewards": rng.standard_normal(long, dtype=np.float32)}
        one |= {"masks": np.ones(long, np.float32), "next_observations": later}
        if algorithm == "qc":
            one |= {"valid": np.ones(long, np.float32), "next_observations": np.repeat(later[:, None], CHUNK, 1)}
        found.append(one)
    return found


def main() -> None:
    parser = common.speed_arguments(__doc__ or "")
    parser.add_argument("--algorithm", choices=sorted(CODES), default="fql")
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 512, 512, 512])
    options = parser.parse_args()
    file, name, repository = CODES[options.algorithm]
    source = options.checkout / "agents" / file
    if not source.is_file():
        raise SystemExit(f"{source}: no such file; --checkout wants a checkout of {repository}")
    stand_in(options.checkout)
    module = __import__(f"agents.{source.stem}", fromlist=[name])
    config = module.get_config()
    config.update({**OPTIONS[options.algorithm], "actor_hidden_dims": tuple(options.hidden)})
    config.update({"value_hidden_dims": tuple(options.hidden)})
    drawn = batches(options.algorithm, options.seed)
    observation = drawn[0]["observations"] if options.algorithm == "fql" else drawn[0]["observations"][0]
    action = drawn[0]["actions"] if options.algorithm == "fql" else drawn[0]["actions"][0, 0]
    agent = getattr(module, name).create(options.seed, observation, action, config)

    def run(updates: int) -> None:
        nonlocal agent
        for number in range(updates):
            agent, info = agent.update(drawn[number % BATCHES])
        jax.block_until_ready(agent.network.params)
        if not np.isfinite(float(info["critic/critic_loss"])):
            raise SystemExit("the official code's critic loss is not finite")

    peer = f"{options.algorithm}, official JAX"
    common.report_official(peer, run, options.updates, 2, source, jax=jax.__version__)


if __name__ == "__main__":
    main()
