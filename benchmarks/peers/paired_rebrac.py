"""CORL's ReBRAC, which is in JAX, as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/paired_jax/bin/python benchmarks/peers/paired_rebrac.py rows --algorithm rebrac --checkout DIR \
        --file FILE --environment Hopper-v5 --out rows.npz

DIR is a checkout of tinkoff-ai/CORL; nothing of it is in this repository. Its loader, networks and updates run on jax
0.10.2 and flax 0.12.8. Stood in for are `gym`, `d4rl` and `wandb` (gymnasium and empty modules), `pyrallis` (whose
command line is not used) and `chex.dataclass` (a dataclass, of flax where it is frozen). Its training loop is part of
its `main`; here each step is a call of the update that the loop would choose.
"""

import os

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import dataclasses
import functools
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import flax.struct
import gymnasium
import handed
import jax
import jax.numpy as jnp
import numpy as np
import optax
import paired_peer
from paired_peer import Arrays

PENALTY = 0.01
"""Both penalties, as CORL's settings for hopper-medium have them; batches are of 256 rows instead of 1,024."""
METRICS = ("critic_loss", "q_min", "actor_loss", "batch_entropy", "bc_mse_policy", "bc_mse_random", "action_mse")


def official(checkout: Path) -> types.ModuleType:
    """The script, imported unchanged."""

    def dataclass(kind: Any = None, *, frozen: bool = False) -> Any:
        if kind is None:
            return flax.struct.dataclass if frozen else dataclasses.dataclass
        return dataclasses.dataclass(kind)

    sys.modules["gym"] = gymnasium
    stand_ins = {"d4rl": {}, "wandb": {}, "chex": {"dataclass": dataclass}, "pyrallis": {"wrap": lambda: lambda f: f}}
    for name, members in stand_ins.items():
        made = types.ModuleType(name)
        made.__dict__.update(members)
        sys.modules[name] = made
    source = checkout / "algorithms" / "offline" / "rebrac.py"
    spec = importlib.util.spec_from_file_location("corl_rebrac", source)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{source}: not a python file; give a checkout of tinkoff-ai/CORL")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class ReBRAC:
    """The networks, optimisers and updates of its `main`."""

    def __init__(self, checkout: Path) -> None:
        self.script = official(checkout)

    def rows(self, data: Arrays) -> Arrays:
        """Its own loader, which takes the next row of the file for the next observation, and the next action."""
        found = self.script.qlearning_dataset(None, {n: v for n, v in data.items() if n != "next_observations"})
        columns = {name: np.asarray(values, np.float32) for name, values in found.items()}
        return {{"terminals": "terminations"}.get(name, name): values for name, values in columns.items()}

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """New train states; targets begin as the networks do."""
        c = self.script.Config()
        actor_key, critic_key = jax.random.split(jax.random.PRNGKey(seed))
        first = rows["observations"][:1], rows["actions"][:1]
        actor = self.script.DetActor(first[1].shape[-1], c.hidden_dim, c.actor_ln, c.actor_n_hiddens)
        critic = self.script.EnsembleCritic(c.hidden_dim, 2, c.critic_ln, c.critic_n_hiddens)
        parts = (
            (self.script.ActorTrainState, actor, actor.init(actor_key, first[0]), c.actor_learning_rate),
            (self.script.CriticTrainState, critic, critic.init(critic_key, *first), c.critic_learning_rate),
        )
        self.actor, self.critic = (
            kind.create(apply_fn=net.apply, params=values, target_params=values, tx=optax.adam(learning_rate=rate))
            for kind, net, values, rate in parts
        )
        names = ("gamma", "actor_bc_coef", "critic_bc_coef", "tau", "policy_noise", "noise_clip")
        self.settings = {name: getattr(c, name) for name in names} | dict.fromkeys(names[1:3], PENALTY)
        self.every, self.normalize_q, self.key, self.taken, self.first = c.policy_freq, c.normalize_q, seed, 0, 0
        self.compiled: dict[bool, Any] = {}
        self.given = False

    def silence(self) -> None:
        """Noise from `handed`; the actor is stepped at even steps, as ours is, and not at odd ones."""
        self.first = 1
        self.given = True

    def networks(self) -> Arrays:
        """Dense layers, kernels transposed, and layer norms."""
        found: Arrays = {}
        for ours, tree in self.trees().items():
            dense, norms = split(tree)
            for k, layer in enumerate(dense):
                found[f"{ours}.mlp.weights.{k}"] = np.asarray(layer["kernel"]).swapaxes(-1, -2)
                found[f"{ours}.mlp.biases.{k}"] = np.asarray(layer["bias"])
            for k, layer in enumerate(norms):
                found[f"{ours}.mlp.scales.{k}"] = np.asarray(layer["scale"])
                found[f"{ours}.mlp.shifts.{k}"] = np.asarray(layer["bias"])
        return found

    def trees(self) -> dict[str, Any]:
        """Parameters by our names."""
        return {
            "actor": self.actor.params,
            "target_actor": self.actor.target_params,
            "critic": self.critic.params,
            "target_critic": self.critic.target_params,
        }

    def take(self, networks: Arrays) -> None:
        """The other way round."""
        made = {name: jax.tree_util.tree_map(lambda leaf: leaf, tree) for name, tree in self.trees().items()}
        for ours, tree in made.items():
            dense, norms = split(tree)
            for k, layer in enumerate(dense):
                layer["kernel"] = jnp.asarray(networks[f"{ours}.mlp.weights.{k}"].swapaxes(-1, -2))
                layer["bias"] = jnp.asarray(networks[f"{ours}.mlp.biases.{k}"])
            for k, layer in enumerate(norms):
                layer["scale"] = jnp.asarray(networks[f"{ours}.mlp.scales.{k}"])
                layer["bias"] = jnp.asarray(networks[f"{ours}.mlp.shifts.{k}"])
        self.actor = self.actor.replace(params=made["actor"], target_params=made["target_actor"])
        self.critic = self.critic.replace(params=made["critic"], target_params=made["target_critic"])

    def update(self, batch: Arrays) -> dict[str, float]:
        """What its loop does at this step: both networks and the targets at each second one, else the critics."""
        names = {"states": "observations", "next_states": "next_observations", "dones": "terminations"}
        columns = ("states", "actions", "rewards", "next_states", "next_actions", "dones")
        rows = {name: batch[names.get(name, name)] for name in columns}
        both = self.taken % self.every == self.first
        noise = handed.numbers("normal", self.taken, *rows["actions"].shape)
        key = jax.random.PRNGKey(self.key)
        if both not in self.compiled:
            self.compiled[both] = jax.jit(functools.partial(self.step, both))
        values = self.compiled[both](key, self.actor, self.critic, rows, noise)
        key, self.actor, self.critic, metrics = values
        self.key, self.taken = int(key[1]), self.taken + 1
        found = metrics.compute()
        return {name: float(found[name][0]) for name in ("critic_loss", *(["actor_loss"] if both else []))}

    def step(self, both: bool, key: Any, actor: Any, critic: Any, rows: Any, noise: Any) -> Any:
        """One of its two updates, traced with the noise that was handed."""
        metrics = self.script.Metrics.create(METRICS)
        drawn = jax.random.normal
        if self.given:
            jax.random.normal = lambda key, shape, *_: noise
        try:
            if both:
                return self.script.update_td3(
                    key, actor, critic, rows, metrics, **self.settings, normalize_q=self.normalize_q
                )
            return self.script.update_td3_no_targets(key, actor, critic, rows, metrics=metrics, **self.settings)
        finally:
            jax.random.normal = drawn

    def rates(self) -> dict[str, float]:
        """They are constant."""
        c = self.script.Config()
        return {"actor": c.actor_learning_rate, "critic": c.critic_learning_rate}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Its actor, on observations as they are."""
        if not hasattr(self, "acting"):
            self.acting = jax.jit(self.actor.apply_fn)
        return np.asarray(self.acting(self.actor.params, observations))


def split(tree: Any) -> tuple[list[Any], list[Any]]:
    """Dense layers and layer norms in their order."""
    inner = tree["params"]
    while not any("kernel" in value for value in inner.values()):
        inner = next(iter(inner.values()))
    ordered = sorted(inner, key=lambda name: int(name.split("_")[1]))
    return [inner[n] for n in ordered if "kernel" in inner[n]], [inner[n] for n in ordered if "scale" in inner[n]]


def build(arguments: argparse.Namespace) -> ReBRAC:
    """The only algorithm of this runner."""
    if arguments.algorithm != "rebrac":
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has rebrac")
    return ReBRAC(arguments.checkout)


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
