"""IQL of benchmarks/peers/jax_speed.py for several seeds at once, vmap of scan: updates a second as JSON lines.

python tools/gpu/jax_iql.py PRECISION '[seeds, ...]' SECONDS; the platform is JAX_PLATFORMS'.
"""

import json
import os
import pathlib
import sys
import time
from typing import Any

PEERS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
STEPS, PLANNED = 200, 100_000


def main() -> None:
    """Time each number of seeds."""
    precision, counts, least = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
    wanted = os.environ.get("JAX_PLATFORMS", "cpu")
    sys.path.insert(0, str(PEERS))
    import jax_speed

    os.environ.pop("XLA_FLAGS", None)  # it asks for one thread of a processor
    os.environ["JAX_PLATFORMS"] = wanted
    import common
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_platforms", wanted)
    if precision != "default":
        jax.config.update("jax_default_matmul_precision", precision)
    data = common.random_rows(0)
    ends = (data["rewards"][:, None], 1 - data["terminals"][:, None])
    rows = jnp.asarray(np.concatenate([data["observations"], data["actions"], data["next_observations"], *ends], 1))

    def steps(state: Any) -> Any:
        return jax.lax.scan(lambda a, b: jax_speed.update(rows, PLANNED, a, b), state, None, length=STEPS)

    for count in counts:
        states = [jax_speed.initial_state(seed) for seed in range(count)]
        state = jax.tree.map(lambda *values: jnp.stack(values), *states)
        run = jax.jit(jax.vmap(steps))
        state, losses = run(state)
        losses.block_until_ready()
        taken, start = 0, time.perf_counter()
        while taken == 0 or time.perf_counter() - start < least:
            state, losses = run(state)
            losses.block_until_ready()
            taken += STEPS
        print(json.dumps({"seeds": count, "rate": taken / (time.perf_counter() - start)}), flush=True)


if __name__ == "__main__":
    main()
