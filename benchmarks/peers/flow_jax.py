"""Updates of FQL and of QC per second in JAX: one jitted update a call, as the official codes take them, one thread.

Written from the papers' equations with the official codes' networks and order: GELU in its tanh form, layer norms after
the activation in critics, Glorot's weights, one Adam over the sum of all losses, targets that lag by one update. The
batch is gathered within the compiled update. No library but jax itself.
"""

import os

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

DISCOUNT, TARGET_RATE, RATE, STEPS, ALPHA = 0.99, 0.005, 3e-4, 10, 10.0
CHUNK = {"fql": 1, "qc": 5}
SAMPLES = 32
Tree = Any


class State(NamedTuple):
    step: jax.Array
    key: jax.Array
    networks: Tree
    target: Tree
    first: Tree
    second: Tree


def make_mlp(key: jax.Array, sizes: list[int]) -> Tree:
    make = jax.nn.initializers.glorot_uniform()
    keys = jax.random.split(key, len(sizes) - 1)
    return [(make(k, shape, jnp.float32), jnp.zeros(shape[1])) for k, shape in zip(keys, itertools.pairwise(sizes))]


def mlp(layers: Tree, x: jax.Array) -> jax.Array:
    for weight, bias in layers[:-1]:
        x = jax.nn.gelu(x @ weight + bias, approximate=True)
    weight, bias = layers[-1]
    return x @ weight + bias


def make_critic(key: jax.Array, sizes: list[int]) -> Tree:
    norms = [(jnp.ones(width), jnp.zeros(width)) for width in sizes[1:-1]]
    return {"layers": make_mlp(key, sizes), "norms": norms}


def one_critic(critic: Tree, x: jax.Array) -> jax.Array:
    for (weight, bias), (gain, shift) in zip(critic["layers"][:-1], critic["norms"]):
        x = jax.nn.gelu(x @ weight + bias, approximate=True)
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        x = (x - mean) * jax.lax.rsqrt(variance + 1e-6) * gain + shift
    weight, bias = critic["layers"][-1]
    return (x @ weight + bias)[..., 0]


def critics(pair: Tree, observations: jax.Array, actions: jax.Array) -> jax.Array:
    """(2, B) of both, side by side, as a vmapped module has them."""
    x = jnp.concatenate([observations, actions], -1)
    return jax.vmap(one_critic, in_axes=(0, None))(pair, x)


def flow(velocity: Tree, observations: jax.Array, x: jax.Array) -> jax.Array:
    for k in range(STEPS):
        time = jnp.full((len(x), 1), k / STEPS)
        x = x + mlp(velocity, jnp.concatenate([observations, x, time], -1)) / STEPS
    return jnp.clip(x, -1, 1)


def cloning(velocity: Tree, observations: jax.Array, actions: jax.Array, key: jax.Array) -> jax.Array:
    noise_key, time_key = jax.random.split(key)
    start = jax.random.normal(noise_key, actions.shape)
    time = jax.random.uniform(time_key, (len(actions), 1))
    x = (1 - time) * start + time * actions
    predicted = mlp(velocity, jnp.concatenate([observations, x, time], -1))
    return jnp.square(predicted - (actions - start)).mean()


def fql_loss(networks: Tree, target: Tree, batch: Tree, key: jax.Array) -> jax.Array:
    observations, actions, rewards, reach, following = batch
    keys = jax.random.split(key, 3)
    fixed = jax.lax.stop_gradient(networks)

    def student(own: Tree, seen: jax.Array, z: jax.Array) -> jax.Array:
        return mlp(own, jnp.concatenate([seen, z], -1))

    next_action = jnp.clip(student(fixed["student"], following, jax.random.normal(keys[0], actions.shape)), -1, 1)
    y = rewards + reach * critics(target, following, next_action).mean(0)
    critic = jnp.square(critics(networks["critic"], observations, actions) - y).mean()
    z = jax.random.normal(keys[1], actions.shape)
    mine = student(networks["student"], observations, z)
    away = jnp.square(mine - flow(fixed["velocity"], observations, z)).mean()
    q = critics(fixed["critic"], observations, jnp.clip(mine, -1, 1)).mean(0)
    return cloning(networks["velocity"], observations, actions, keys[2]) + ALPHA * away - q.mean() + critic


def qc_loss(networks: Tree, target: Tree, batch: Tree, key: jax.Array) -> jax.Array:
    observations, actions, rewards, reach, following = batch
    keys = jax.random.split(key, 2)
    fixed = jax.lax.stop_gradient(networks)
    seen = jnp.repeat(following, SAMPLES, axis=0)
    drawn = flow(fixed["velocity"], seen, jax.random.normal(keys[0], (len(seen), actions.shape[1])))
    values = critics(fixed["critic"], seen, drawn).mean(0).reshape(-1, SAMPLES)
    chosen = jnp.take_along_axis(drawn.reshape(len(following), SAMPLES, -1), values.argmax(1)[:, None, None], 1)[:, 0]
    y = rewards + reach * critics(target, following, chosen).mean(0)
    critic = jnp.square(critics(networks["critic"], observations, actions) - y).mean()
    return cloning(networks["velocity"], observations, actions, keys[1]) + critic


LOSSES = {"fql": fql_loss, "qc": qc_loss}


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def update(algorithm: str, rows: Tree, state: State) -> tuple[State, jax.Array]:
    key, draw, noise = jax.random.split(state.key, 3)
    places = jax.random.randint(draw, (common.BATCH_SIZE,), 0, len(rows[0]))
    batch = [column[places] for column in rows]
    loss, gradients = jax.value_and_grad(LOSSES[algorithm])(state.networks, state.target, batch, noise)
    step = state.step + 1
    count = step.astype(jnp.float32)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state.second, gradients)
    rate, scale = RATE / (1 - 0.9**count), 1 / (1 - 0.999**count)
    networks = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v * scale) + 1e-8), state.networks, first, second)
    target = jax.tree.map(lambda t, p: t + TARGET_RATE * (p - t), state.target, state.networks["critic"])
    return State(step, key, networks, target, first, second), loss


def initial(algorithm: str, hidden: list[int], seed: int) -> State:
    n, d = common.OBSERVATION_SIZE, CHUNK[algorithm] * common.ACTION_SIZE
    key, *keys = jax.random.split(jax.random.key(seed), 5)
    both = [make_critic(k, [n + d, *hidden, 1]) for k in keys[2:]]
    networks = {
        "velocity": make_mlp(keys[0], [n + d + 1, *hidden, d]),
        "critic": jax.tree.map(lambda a, b: jnp.stack([a, b]), *both),
    }
    if algorithm == "fql":
        networks["student"] = make_mlp(keys[1], [n + d, *hidden, d])
    zeros = jax.tree.map(jnp.zeros_like, networks)
    target = jax.tree.map(jnp.copy, networks["critic"])
    return State(jnp.zeros((), jnp.int32), key, networks, target, zeros, jax.tree.map(jnp.copy, zeros))


def main() -> None:
    parser = common.speed_arguments(__doc__)
    parser.add_argument("--algorithm", choices=sorted(LOSSES), default="fql")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256, 256])
    options = parser.parse_args()
    rng, count, size = np.random.default_rng(options.seed), 50_000, CHUNK[options.algorithm] * common.ACTION_SIZE
    rows = [
        jnp.asarray(rng.standard_normal((count, common.OBSERVATION_SIZE), dtype=np.float32)),
        jnp.asarray(rng.uniform(-0.99, 0.99, (count, size)).astype(np.float32)),
        jnp.asarray(rng.standard_normal(count, dtype=np.float32)),
        jnp.full(count, DISCOUNT ** CHUNK[options.algorithm]),
        jnp.asarray(rng.standard_normal((count, common.OBSERVATION_SIZE), dtype=np.float32)),
    ]
    state = initial(options.algorithm, options.hidden, options.seed)

    def run(updates: int) -> None:
        nonlocal state
        for _ in range(updates):
            state, loss = update(options.algorithm, rows, state)
        if not bool(jnp.isfinite(loss)):
            raise SystemExit("jax: a loss is not finite")

    common.WARM_UP = 2
    common.report_speed("jax", run, options.updates)


if __name__ == "__main__":
    main()
