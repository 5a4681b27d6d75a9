"""Cart-poles under a 2x64 tanh policy as a lean scan in JAX: steps a second as JSON lines.

python tools/gpu/jax_rollout.py PRECISION '[[envs, steps], ...]'; PRECISION is "default" or one of JAX's for products.
"""

import functools
import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

MASS, HALF_LENGTH, TOTAL, GRAVITY, FORCE, STEP = 0.1, 0.5, 1.1, 9.8, 10.0, 0.02
LIMIT, TRACK, ANGLE = 500, 2.4, 0.2095


def dynamics(states: jax.Array, actions: jax.Array) -> jax.Array:
    """Barto, Sutton and Anderson's cart-pole by Euler steps."""
    x, v, angle, rate = states.T
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    push = (FORCE * actions + MASS * HALF_LENGTH * rate * rate * sine) / TOTAL
    turn = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4 / 3 - MASS * cosine * cosine / TOTAL))
    speed_up = push - MASS * HALF_LENGTH * turn * cosine / TOTAL
    return jnp.stack([x + STEP * v, v + STEP * speed_up, angle + STEP * rate, rate + STEP * turn], 1)


def fresh(key: jax.Array, count: int) -> jax.Array:
    """(count, 4) states that episodes start in."""
    return jax.random.uniform(key, (count, 4), minval=-0.05, maxval=0.05)


def one(weights: Any, carry: Any, _: None) -> tuple[Any, None]:
    """A step of all; the sum depends on the states, or the compiler would leave the loop out."""
    states, key, elapsed, total = carry
    key, own = jax.random.split(key)
    hidden = jnp.tanh(jnp.tanh(states @ weights[0]) @ weights[1])
    states = dynamics(states, jnp.tanh(hidden @ weights[2])[:, 0])
    elapsed = elapsed + 1
    ended = (jnp.abs(states[:, 0]) > TRACK) | (jnp.abs(states[:, 2]) > ANGLE) | (elapsed >= LIMIT)
    states = jnp.where(ended[:, None], fresh(own, states.shape[0]), states)
    return (states, key, jnp.where(ended, 0, elapsed), total + states[:, 2] ** 2), None


@functools.partial(jax.jit, static_argnums=(2, 3))
def roll_out(weights: Any, key: jax.Array, envs: int, steps: int) -> jax.Array:
    """All steps in one compiled scan."""
    start = (fresh(key, envs), key, jnp.zeros(envs, jnp.int32), jnp.zeros(envs))
    return jax.lax.scan(functools.partial(one, weights), start, None, length=steps)[0][3].sum()


def main() -> None:
    """Time each size."""
    precision, sizes = sys.argv[1], json.loads(sys.argv[2])
    if precision != "default":
        jax.config.update("jax_default_matmul_precision", precision)
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = ((4, 64), (64, 64), (64, 1))
    weights = [jax.random.normal(key, shape) / shape[0] ** 0.5 for key, shape in zip(keys, shapes)]
    for envs, steps in sizes:
        roll_out(weights, keys[0], envs, steps).block_until_ready()
        times = []
        for turn in range(4):
            start = time.perf_counter()
            roll_out(weights, keys[turn % 3], envs, steps).block_until_ready()
            times.append(time.perf_counter() - start)
        print(json.dumps({"envs": envs, "rate": envs * steps / sorted(times)[1]}), flush=True)


if __name__ == "__main__":
    main()
