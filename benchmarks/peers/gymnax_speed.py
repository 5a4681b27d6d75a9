"""gymnax under jit, vmap and scan: many environments, a 2x64 tanh policy or random actions, one line of JSON.

Rates are per second of the process's CPU time, so that XLA's threads are counted. gymnax's cart-pole takes
discrete actions: the policy's output is thresholded there.
"""

import common  # noqa: F401  # sets thread counts before jax loads

# isort: split
import argparse
import functools
import json
import time

import gymnax
import jax
import jax.numpy as jnp

NAMES = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=sorted(NAMES), default="pendulum")
    parser.add_argument("--actions", choices=["policy", "random"], default="policy")
    parser.add_argument("--envs", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    environment, constants = gymnax.make(NAMES[arguments.system])
    discrete = arguments.system == "cartpole"
    width = environment.observation_space(constants).shape[0]
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    sizes = [(width, 64), (64, 64), (64, 1)]
    weights = [jax.random.normal(key, size) / size[0] ** 0.5 for key, size in zip(keys, sizes, strict=True)]

    def act(observation: jax.Array, key: jax.Array) -> jax.Array:
        if arguments.actions == "random":
            return environment.action_space(constants).sample(key)
        hidden = jnp.tanh(jnp.tanh(observation @ weights[0]) @ weights[1])
        action = jnp.tanh(hidden @ weights[2])
        return (action[0] > 0).astype(jnp.int32) if discrete else 2.0 * action

    @functools.partial(jax.jit)
    def run(key: jax.Array) -> jax.Array:
        observations, states = jax.vmap(environment.reset, (0, None))(jax.random.split(key, arguments.envs), constants)

        def step(carry, _):  # type: ignore[no-untyped-def]
            observations, states, key, total = carry
            key, first, second = jax.random.split(key, 3)
            actions = jax.vmap(act)(observations, jax.random.split(first, arguments.envs))
            stepped = jax.vmap(environment.step, (0, 0, 0, None))(
                jax.random.split(second, arguments.envs), states, actions, constants
            )
            return (stepped[0], stepped[1], key, total + stepped[2].sum()), None

        return jax.lax.scan(step, (observations, states, key, 0.0), None, arguments.steps)[0][3]

    run(jax.random.PRNGKey(1)).block_until_ready()
    start, cpu = time.perf_counter(), time.process_time()
    for repeat in range(arguments.repeats):
        run(jax.random.PRNGKey(repeat)).block_until_ready()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    steps = arguments.envs * arguments.steps * arguments.repeats
    line = {"steps": steps, "seconds": seconds, "cpu_seconds": cpu_seconds, "steps_per_cpu_second": steps / cpu_seconds}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
