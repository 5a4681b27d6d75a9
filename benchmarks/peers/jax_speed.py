"""IQL updates per second in JAX: one jitted scan of 100 updates with the gather inside, one thread.

Written from the equations of the IQL paper in the official order: value, actor (new value), critics (new
value), target average. Official initialization and cosine-decayed actor; no library but jax itself.
"""

import os

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SCAN = 100
DISCOUNT, EXPECTILE, TEMPERATURE, TARGET_RATE, RATE = 0.99, 0.7, 3.0, 0.005, 3e-4
Tree = Any


class Adam(NamedTuple):
    first: Tree
    second: Tree


class State(NamedTuple):
    step: jax.Array
    key: jax.Array
    value: Tree
    actor: Tree
    critics: Tree
    targets: Tree
    value_adam: Adam
    actor_adam: Adam
    critics_adam: Adam


def mlp_parameters(key: jax.Array, sizes: list[int]) -> Tree:
    make = jax.nn.initializers.orthogonal(2**0.5)
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (make(k, (rows, columns), jnp.float32), jnp.zeros(columns))
        for k, rows, columns in zip(keys, sizes[:-1], sizes[1:])
    ]


def mlp(parameters: Tree, x: jax.Array) -> jax.Array:
    for weight, bias in parameters[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = parameters[-1]
    return x @ weight + bias


def q_values(critics: Tree, observations: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = jnp.concatenate([observations, actions], axis=-1)
    return mlp(critics[0], x)[:, 0], mlp(critics[1], x)[:, 0]


def adam_step(
    parameters: Tree, gradients: Tree, adam: Adam, step: jax.Array, rate: jax.Array | float
) -> tuple[Tree, Adam]:
    """One Adam step (Kingma and Ba, algorithm 1; betas 0.9 and 0.999, eps 1e-8); `step` counts from 1."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, adam.second, gradients)
    first_scale = rate / (1.0 - 0.9**step)
    second_scale = 1.0 / (1.0 - 0.999**step)
    parameters = jax.tree.map(
        lambda p, m, v: p - first_scale * m / (jnp.sqrt(v * second_scale) + 1e-8), parameters, first, second
    )
    return parameters, Adam(first, second)


def update(rows: jax.Array, total: int, state: State, _: None) -> tuple[State, jax.Array]:
    key, draw = jax.random.split(state.key)
    batch = rows[jax.random.randint(draw, (common.BATCH_SIZE,), 0, rows.shape[0])]
    n, m = common.OBSERVATION_SIZE, common.ACTION_SIZE
    observations, actions, next_observations = batch[:, :n], batch[:, n : n + m], batch[:, n + m : 2 * n + m]
    rewards, masks = batch[:, -2], batch[:, -1]
    step = state.step + 1
    count = step.astype(jnp.float32)
    target = jnp.minimum(*q_values(state.targets, observations, actions))

    def value_loss(value: Tree) -> jax.Array:
        difference = target - mlp(value, observations)[:, 0]
        return jnp.mean(jnp.where(difference > 0, EXPECTILE, 1 - EXPECTILE) * difference**2)

    v_loss, gradients = jax.value_and_grad(value_loss)(state.value)
    value, value_adam = adam_step(state.value, gradients, state.value_adam, count, RATE)

    advantage = target - mlp(value, observations)[:, 0]
    weights = jnp.minimum(jnp.exp(TEMPERATURE * advantage), 100.0)

    def actor_loss(actor: Tree) -> jax.Array:
        mean = jnp.tanh(mlp(actor["mean"], observations))
        log_std = jnp.clip(actor["log_std"], -5.0, 2.0)
        density = -0.5 * ((actions - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        return -jnp.mean(weights * density.sum(axis=-1))

    a_loss, gradients = jax.value_and_grad(actor_loss)(state.actor)
    rate = RATE * 0.5 * (1.0 + jnp.cos(jnp.pi * state.step / total))
    actor, actor_adam = adam_step(state.actor, gradients, state.actor_adam, count, rate)

    backup = rewards + DISCOUNT * masks * mlp(value, next_observations)[:, 0]

    def critic_loss(critics: Tree) -> jax.Array:
        first, second = q_values(critics, observations, actions)
        return jnp.mean((first - backup) ** 2 + (second - backup) ** 2)

    q_loss, gradients = jax.value_and_grad(critic_loss)(state.critics)
    critics, critics_adam = adam_step(state.critics, gradients, state.critics_adam, count, RATE)
    targets = jax.tree.map(lambda t, p: t + TARGET_RATE * (p - t), state.targets, critics)
    losses = jnp.stack([v_loss, a_loss, q_loss])
    return State(step, key, value, actor, critics, targets, value_adam, actor_adam, critics_adam), losses


@partial(jax.jit, static_argnums=1, donate_argnums=2)
def hundred_updates(rows: jax.Array, total: int, state: State) -> tuple[State, jax.Array]:
    final, losses = jax.lax.scan(partial(update, rows, total), state, None, length=SCAN)
    return final, losses


def initial_state(seed: int) -> State:
    n, m = common.OBSERVATION_SIZE, common.ACTION_SIZE
    key, *keys = jax.random.split(jax.random.key(seed), 5)
    value = mlp_parameters(keys[0], [n, 256, 256, 1])
    actor = {"mean": mlp_parameters(keys[1], [n, 256, 256, m]), "log_std": jnp.zeros(m)}
    critics = [mlp_parameters(k, [n + m, 256, 256, 1]) for k in keys[2:]]

    def adam(tree: Tree) -> Adam:
        return Adam(jax.tree.map(jnp.zeros_like, tree), jax.tree.map(jnp.zeros_like, tree))

    targets = jax.tree.map(jnp.copy, critics)
    return State(jnp.zeros((), jnp.int32), key, value, actor, critics, targets, adam(value), adam(actor), adam(critics))


def main() -> None:
    options = common.speed_arguments(__doc__).parse_args()
    updates = -(-options.updates // SCAN) * SCAN
    data = common.random_rows(options.seed)
    packed = np.concatenate(
        [
            data["observations"],
            data["actions"],
            data["next_observations"],
            data["rewards"][:, None],
            1.0 - data["terminals"][:, None],
        ],
        axis=1,
    )
    rows = jnp.asarray(packed)
    state = initial_state(options.seed)
    total = updates + common.WARM_UP

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count // SCAN):
            state, losses = hundred_updates(rows, total, state)
        if not bool(jnp.isfinite(losses).all()):
            raise SystemExit("jax: a loss is not finite")

    common.report_speed("jax", run, updates)


if __name__ == "__main__":
    main()
