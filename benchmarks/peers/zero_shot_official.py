"""Updates per second of the authors' FB, VC-FB, MC-FB and HILP, in PyTorch, from a checkout that the user gives.

    $SUREFOOT_PEERS/corl/bin/python benchmarks/peers/zero_shot_official.py --algorithm fb --checkout DIR

DIR is a checkout of enjeeneer/zero-shot-rl or seohongpark/HILP; nothing of them is in this repository. Their agents,
networks and updates run unchanged at their own sizes (peers/paired_zero_shot.py says what stands in). Batches are drawn
before: the time is the updates' alone. One thread.
"""

import common  # isort: skip - which sets the threads
from pathlib import Path

import numpy as np
import paired_zero_shot
import torch

BATCHES = 8


def batches(seed: int, rows: int) -> list[dict[str, np.ndarray]]:
    """Random ones, with every column that an agent reads."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(BATCHES):
        names = ("observations", "next_observations", "value_goals")
        one = {name: rng.standard_normal((rows, common.OBSERVATION_SIZE), dtype=np.float32) for name in names}
        one["actions"] = rng.uniform(-0.99, 0.99, (rows, common.ACTION_SIZE)).astype(np.float32)
        found.append({**one, "rewards": np.zeros(rows, np.float32), "terminations": np.zeros(rows, np.float32)})
    return found


def main() -> None:
    parser = common.speed_arguments(__doc__ or "")
    parser.add_argument("--algorithm", choices=[*paired_zero_shot.ZERO_SHOT, "hilp"], default="fb")
    parser.add_argument("--checkout", type=Path, required=True)
    options = parser.parse_args()
    sizes = paired_zero_shot.PUBLISHED["hilp" if options.algorithm == "hilp" else "fb"]
    torch.set_num_threads(1)
    peer, drawn = paired_zero_shot.build(options, sizes), batches(options.seed, sizes.batch)
    peer.begin(options.seed, drawn[0], options.updates)

    def run(updates: int) -> None:
        for number in range(updates):
            losses = peer.update(drawn[number % BATCHES])
        if not all(np.isfinite(value) for value in losses.values()):
            raise SystemExit("a number of the official code is not finite")

    name = {"hilp": "hilp_zsrl/url_benchmark/agent/sf.py", "fb": "agents/fb/agent.py"}
    source = options.checkout / name.get(options.algorithm, "agents/cfb/agent.py")
    common.report_official(f"{options.algorithm}, official PyTorch", run, options.updates, 2, source)


if __name__ == "__main__":
    main()
