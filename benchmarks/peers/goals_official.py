"""Updates per second of OGBench's goal-conditioned agents, in JAX, from a checkout that the user gives.

    $SUREFOOT_PEERS/paired_jax/bin/python benchmarks/peers/goals_official.py --algorithm hiql --checkout DIR

DIR is a checkout of seohongpark/ogbench; nothing of it is in this repository. Its agents, networks and jitted updates
run unchanged, with their defaults but for the sizes (peers/paired_goals.py says what stands in). Batches are drawn
before: the time is the updates' alone. One thread.
"""

import common  # isort: skip
import paired_goals  # isort: skip - which sets what JAX reads when it is imported

from pathlib import Path

import jax
import numpy as np

BATCHES, ROWS = 8, 1024


def batches(seed: int) -> list[dict[str, np.ndarray]]:
    """Random ones, with every column that an agent reads."""
    rng = np.random.default_rng(seed)
    states = ("observations", "next_observations", "value_goals", "actor_goals", "waypoints", "subgoals")
    found = []
    for _ in range(BATCHES):
        one = {name: rng.standard_normal((ROWS, common.OBSERVATION_SIZE), dtype=np.float32) for name in states}
        one["actions"] = rng.uniform(-0.99, 0.99, (ROWS, common.ACTION_SIZE)).astype(np.float32)
        met = (rng.random(ROWS) < 0.2).astype(np.float32)
        found.append({**one, "goal_rewards": met - 1, "goal_masks": 1 - met})
    return found


def main() -> None:
    parser = common.speed_arguments(__doc__ or "")
    parser.add_argument("--algorithm", choices=sorted(paired_goals.CODES), default="hiql")
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 512, 512])
    options = parser.parse_args()
    sizes = {"actor_hidden_dims": tuple(options.hidden), "value_hidden_dims": tuple(options.hidden)}
    peer, drawn = paired_goals.Goals(options.algorithm, options.checkout, sizes), batches(options.seed)
    peer.begin(options.seed, drawn[0], options.updates)
    back = {ours: theirs for theirs, ours in paired_goals.NAMES.items()}
    if options.algorithm != "hiql":
        back.pop("actor_goals")
    given = [{back.get(name, name): values for name, values in one.items()} for one in drawn]

    def run(updates: int) -> None:
        for number in range(updates):
            peer.agent, info = peer.agent.update(given[number % BATCHES])
        jax.block_until_ready(peer.agent.network.params)
        if not all(np.isfinite(float(value)) for value in info.values()):
            raise SystemExit("a number of the official code is not finite")

    source = options.checkout / "impls" / "agents" / f"{options.algorithm}.py"
    common.report_official(f"{options.algorithm}, official JAX", run, options.updates, 2, source, jax=jax.__version__)


if __name__ == "__main__":
    main()
