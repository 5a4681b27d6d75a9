"""PPO in plain JAX on the cart-pole swing-up until a return is reached; prints a line of JSON for each evaluation.

Written from the equations of the PPO paper and of the system: the environments, a block of acting and all its epochs
are one jitted program of scans, which is compiled before the clock starts. Running moments of observations and of
discounted returns, a clipped ratio and clipped change of values, a rate that falls to 0 over the planned steps and the
bootstrap at time limits are as in Huang et al., "The 37 Implementation Details of PPO". Runs in the peers' own
environment (setup.sh jax); `trace` in the settings holds steps of the native system, which its own have to equal.
usage: jax_ppo.py SETTINGS_AS_JSON
"""

from __future__ import annotations

import json
import os
import sys
import time

import common  # noqa: F401  # sets thread counts before jax loads

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

GRAVITY, CART, POLE, LENGTH, FORCE = 9.8, 1.0, 0.1, 0.5, 10.0
TIME_STEP, LIMIT, TRACK = 0.02, 500, 2.4
HIDDEN = (64, 64)
CLIP, VALUE_CLIP, VALUE_WEIGHT, NORM, EPSILON = 0.2, 0.2, 0.5, 0.5, 1e-5
DISCOUNT, TRACE, REWARD_LIMIT = 0.99, 0.95, 10.0
Tree = Any


def slope(state: jax.Array, force: jax.Array) -> jax.Array:
    """(4,) time derivative of position, velocity, angle and rate."""
    _, velocity, angle, rate = state
    sine, cosine, total = jnp.sin(angle), jnp.cos(angle), CART + POLE
    push = (force + POLE * LENGTH * rate**2 * sine) / total
    turn = (GRAVITY * sine - cosine * push) / (LENGTH * (4 / 3 - POLE * cosine**2 / total))
    return jnp.stack([velocity, push - POLE * LENGTH * turn * cosine / total, rate, turn])


def advance(state: jax.Array, force: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Next state, reward and whether the cart left its track: one Runge-Kutta step."""
    h = TIME_STEP
    k1 = slope(state, force)
    k2 = slope(state + h / 2 * k1, force)
    k3 = slope(state + h / 2 * k2, force)
    k4 = slope(state + h * k3, force)
    new = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    position, _, angle, rate = new
    upright = (1 + jnp.cos(angle)) / 2
    centred = (1 + 0.1 ** ((position / 2) ** 2)) / 2
    gentle = (4 + jnp.maximum(0, 1 - (force / FORCE) ** 2)) / 5
    slow = (1 + 0.1 ** ((rate / 5) ** 2)) / 2
    return new, upright * centred * gentle * slow, jnp.abs(position) > TRACK


def started(key: jax.Array) -> jax.Array:
    """(4,) an initial state: hanging."""
    width = jnp.array([0.2, 0.1, 0.2, 0.1])
    return jnp.array([0.0, 0.0, jnp.pi, 0.0]) + width * (jax.random.uniform(key, (4,)) - 0.5)


def seen(state: jax.Array) -> jax.Array:
    """(..., 5) what the policy observes of (..., 4) states."""
    position, velocity, angle, rate = jnp.moveaxis(state, -1, 0)
    return jnp.stack([position, velocity, jnp.cos(angle), jnp.sin(angle), rate], -1)


class Moments(NamedTuple):
    mean: jax.Array
    variance: jax.Array
    count: jax.Array


def moved(old: Moments, rows: jax.Array) -> Moments:
    """Moments with (N, ...) rows more."""
    count = old.count + rows.shape[0]
    away = rows.mean(0) - old.mean
    squares = old.variance * old.count + rows.var(0) * rows.shape[0]
    squares = squares + away**2 * old.count * rows.shape[0] / count
    return Moments(old.mean + away * rows.shape[0] / count, squares / count, count)


class State(NamedTuple):
    key: jax.Array
    step: jax.Array
    networks: Tree
    first: Tree
    second: Tree
    environments: jax.Array
    ages: jax.Array
    returns: jax.Array
    observed: Moments
    rewarded: Moments


def network(key: jax.Array, last: int, scale: float) -> Tree:
    """Orthogonal weights, of the last layer scaled, and zero biases."""
    sizes = [5, *HIDDEN, last]
    scales = [2**0.5] * len(HIDDEN) + [scale]
    keys = jax.random.split(key, len(scales))
    return [
        (jax.nn.initializers.orthogonal(g)(k, (rows, columns), jnp.float32), jnp.zeros(columns))
        for k, g, rows, columns in zip(keys, scales, sizes[:-1], sizes[1:], strict=True)
    ]


def mlp(layers: Tree, x: jax.Array) -> jax.Array:
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def normal(observations: jax.Array, moments: Moments) -> jax.Array:
    return (observations - moments.mean) / jnp.sqrt(moments.variance + 1e-8)


def log_density(actions: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
    return (-0.5 * ((actions - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)).sum(-1)


def start(seed: int, rows: int) -> State:
    keys = jax.random.split(jax.random.PRNGKey(seed), 4)
    actor, critic = network(keys[1], 1, 0.01), network(keys[2], 1, 1.0)
    networks = {"actor": actor, "critic": critic, "log_std": jnp.zeros(1)}
    zeros = jax.tree.map(jnp.zeros_like, networks)
    return State(
        keys[0], jnp.zeros((), jnp.int32), networks, zeros, zeros, jax.vmap(started)(jax.random.split(keys[3], rows)),
        jnp.zeros(rows, jnp.int32), jnp.zeros(rows), Moments(jnp.zeros(5), jnp.ones(5), jnp.float32(1e-4)),
        Moments(jnp.zeros(()), jnp.ones(()), jnp.float32(1e-4)),
    )  # fmt: skip


def act(state: State, _: None) -> tuple[State, dict[str, jax.Array]]:
    """A step of all environments."""
    rows = state.ages.shape[0]
    key, first, second = jax.random.split(state.key, 3)
    raw = seen(state.environments)
    observed = moved(state.observed, raw)
    read = normal(raw, observed)
    mean, log_std = mlp(state.networks["actor"], read), state.networks["log_std"]
    actions = mean + jnp.exp(log_std) * jax.random.normal(first, mean.shape)
    new, rewards, left = jax.vmap(advance)(state.environments, FORCE * jnp.clip(actions[:, 0], -1, 1))
    cut = (state.ages + 1 >= LIMIT) & ~left
    over = left | cut
    returns = DISCOUNT * state.returns + rewards
    rewarded = moved(state.rewarded, returns)
    scaled = jnp.clip(rewards / jnp.sqrt(rewarded.variance + 1e-8), -REWARD_LIMIT, REWARD_LIMIT)
    beyond = mlp(state.networks["critic"], normal(seen(new), observed))[:, 0]
    fresh = jax.vmap(started)(jax.random.split(second, rows))
    after = state._replace(
        key=key, environments=jnp.where(over[:, None], fresh, new), ages=jnp.where(over, 0, state.ages + 1),
        returns=jnp.where(over, 0, returns), observed=observed, rewarded=rewarded,
    )  # fmt: skip
    return after, {
        "observations": read, "actions": actions, "density": log_density(actions, mean, log_std), "over": over,
        "rewards": scaled + DISCOUNT * beyond * cut, "values": mlp(state.networks["critic"], read)[:, 0],
    }  # fmt: skip


def loss(networks: Tree, rows: dict[str, jax.Array]) -> jax.Array:
    mean = mlp(networks["actor"], rows["observations"])
    ratio = jnp.exp(log_density(rows["actions"], mean, networks["log_std"]) - rows["density"])
    gain = rows["advantages"]
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    policy = jnp.maximum(-gain * ratio, -gain * jnp.clip(ratio, 1 - CLIP, 1 + CLIP)).mean()
    value = mlp(networks["critic"], rows["observations"])[:, 0]
    near = rows["values"] + jnp.clip(value - rows["values"], -VALUE_CLIP, VALUE_CLIP)
    wrong = jnp.maximum((value - rows["targets"]) ** 2, (near - rows["targets"]) ** 2)
    return policy + VALUE_WEIGHT * 0.5 * wrong.mean()


@partial(jax.jit, static_argnames=("horizon", "minibatches", "epochs", "updates"))
def block(state: State, rate: float, horizon: int, minibatches: int, epochs: int, updates: int) -> State:
    """Act for `horizon` steps, then learn from them; over `updates`, all that the run plans, the rate falls to 0."""
    state, steps = jax.lax.scan(act, state, None, horizon)
    read = normal(seen(state.environments), state.observed)
    last = mlp(state.networks["critic"], read)[:, 0]

    def back(carry: tuple[jax.Array, jax.Array], step: dict[str, jax.Array]) -> Any:
        following, advantage = carry
        goes_on = 1.0 - step["over"]
        error = step["rewards"] + DISCOUNT * following * goes_on - step["values"]
        advantage = error + DISCOUNT * TRACE * goes_on * advantage
        return (step["values"], advantage), advantage

    _, advantages = jax.lax.scan(back, (last, jnp.zeros_like(last)), steps, reverse=True)
    rows = {name: steps[name] for name in ("observations", "actions", "density", "values")}
    rows |= {"advantages": advantages, "targets": advantages + steps["values"]}
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in rows.items()}
    count = flat["density"].shape[0]
    key, own = jax.random.split(state.key)
    orders = [jax.random.permutation(k, count) for k in jax.random.split(own, epochs)]
    batches = jnp.concatenate(orders).reshape(epochs * minibatches, -1)

    def learn(carry: tuple[Tree, Tree, Tree, jax.Array], chosen: jax.Array) -> tuple[Any, None]:
        networks, first, second, step = carry
        slopes = jax.grad(loss)(networks, {name: value[chosen] for name, value in flat.items()})
        size = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(slopes)))
        slopes = jax.tree.map(lambda g: g * jnp.minimum(1.0, NORM / (size + 1e-6)), slopes)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slopes)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, slopes)
        now = rate * (1.0 - (step // (epochs * minibatches)) * (epochs * minibatches) / updates)
        one, two = 1 - 0.9 ** (step + 1.0), 1 - 0.999 ** (step + 1.0)
        networks = jax.tree.map(
            lambda w, m, v: w - now * (m / one) / (jnp.sqrt(v / two) + EPSILON), networks, first, second
        )
        return (networks, first, second, step + 1), None

    begun_with = (state.networks, state.first, state.second, state.step)
    (networks, first, second, step), _ = jax.lax.scan(learn, begun_with, batches)
    return state._replace(key=key, networks=networks, first=first, second=second, step=step)


@partial(jax.jit, static_argnames="episodes")
def evaluated(state: State, episodes: int) -> jax.Array:
    """Mean return of one deterministic episode of each of so many environments."""
    places = jax.vmap(started)(jax.random.split(jax.random.PRNGKey(10_000), episodes))

    def step(carry: tuple[jax.Array, jax.Array, jax.Array], _: None) -> tuple[Any, None]:
        places, going, total = carry
        mean = mlp(state.networks["actor"], normal(seen(places), state.observed))
        places, rewards, left = jax.vmap(advance)(places, FORCE * jnp.clip(mean[:, 0], -1, 1))
        return (places, going & ~left, total + rewards * going), None

    first = (places, jnp.ones(episodes, bool), jnp.zeros(episodes))
    return jax.lax.scan(step, first, None, LIMIT)[0][2].mean()


def check(trace: dict[str, Any]) -> None:
    """Stop unless steps of these environments are those of the native system."""
    states, forces = (jnp.asarray(np.array(trace[name], np.float32)) for name in ("states", "forces"))
    new, rewards, left = jax.vmap(advance)(states, forces)
    for name, mine in (("next", new), ("rewards", rewards), ("terminated", left)):
        if not np.allclose(np.asarray(mine, np.float64), np.array(trace[name], np.float64), rtol=1e-4, atol=1e-4):
            raise SystemExit(f"jax_ppo.py: its {name} are not the native system's; its equations must be the same")


def main() -> None:
    """Train, evaluating after each part; evaluations and compilation are not timed."""
    s = json.loads(sys.argv[1])
    check(s["trace"])
    rows, given = s["num_envs"], {name: s[name] for name in ("horizon", "minibatches", "epochs")}
    size = rows * s["horizon"]
    given["updates"] = -(-s["steps"] // size) * s["minibatches"] * s["epochs"]
    state = start(s["seed"], rows)
    before = time.process_time()
    jax.block_until_ready(block(state, s["learning_rate"], **given))
    compiled, wall, cpu, taken, last = time.process_time() - before, 0.0, 0.0, 0, 0
    while taken < s["steps"]:
        began, used = time.perf_counter(), time.process_time()
        state = jax.block_until_ready(block(state, s["learning_rate"], **given))
        wall, cpu, taken = wall + time.perf_counter() - began, cpu + time.process_time() - used, taken + size
        if taken - last >= s["every"] or taken + size > s["steps"] or cpu >= s["cap"]:
            last = taken
            found = float(evaluated(state, s["episodes"]))
            line = {"steps": taken, "wall": wall, "cpu": cpu, "return": found, "compile_cpu": compiled}
            print(json.dumps(line), flush=True)
            if found >= s["target"] or cpu >= s["cap"]:
                return


if __name__ == "__main__":
    main()
