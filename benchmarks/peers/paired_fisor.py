"""The official JAX code of FISOR as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/paired_jax/bin/python benchmarks/peers/paired_fisor.py rows --algorithm fisor --checkout DIR \
        --file FILE --environment HalfCheetah-v5 --out rows.npz

DIR is a checkout of ZhengYinan-AIR/FISOR; nothing of it is in this repository. Its loader, agent and sampling run on
jax 0.10.2 and flax 0.12.8 as fisor_official.py says, without dropout. DSRL is stood in for: its environment gives the
file's columns, and the range of the file's returns where it has a table of tasks. An update of theirs is of 2,048 rows,
of which each half is one of the actor's and the first 256 are the critics'; here the actor has one of the same 256
rows, and its rate falls over half as many steps, which is equal. `jax.jit` is put around the parts of an update
together, and the loop over a draw's five steps is unrolled, so that numbers can be handed in.
"""

import os

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import contextlib
import importlib
import math
import sys
import types
from pathlib import Path
from typing import Any

import fisor_official
import flax
import gymnasium
import h5py
import handed
import jax
import jax.numpy as jnp
import numpy as np
import paired_peer
from paired_draws import Handed, without_jit
from paired_peer import Arrays

VIOLATION, EPISODE, DECAY = 25, 1000, 1.5
"""M of its signal, the length of an episode, and over how many runs the actor's rate falls."""
UPDATES = ("update_actor", "update_v", "update_q", "update_vc", "update_qc")
NETWORKS = {
    "value": "value",
    "critic": "critic",
    "target_critic": "target_critic",
    "feasible_value_network": "safe_value",
    "feasible_critic": "safe_critic",
    "target_feasible_critic": "safe_target_critic",
}
NOISE = {"noise_network": "score_model", "average_noise_network": "target_score_model"}
RATES = {"value": "value", "critic": "critic", "feasible_value_network": "safe_value", "feasible_critic": "safe_critic"}


class FISOR:
    """The settings of configs/train_config.py."""

    def __init__(self, checkout: Path, file: Path) -> None:
        fisor_official.old_names()
        sys.modules["dsrl"] = types.ModuleType("dsrl")
        sys.path.insert(0, str(checkout))
        with without_jit():
            self.agents = importlib.import_module("jaxrl5.agents")
            self.datasets = importlib.import_module("jaxrl5.data.dsrl_datasets")
        module = importlib.import_module("jaxrl5.agents.fisor.fisor")
        module.np = types.SimpleNamespace(array=lambda value: value)  # its actions stay in the trace
        self.file, self.handed = file, Handed()

    def rows(self, data: Arrays) -> Arrays:
        """Its DSRLDataset, rewards scaled by the range of the file's returns."""
        with h5py.File(self.file, "r") as stored:
            data = {**data, "costs": stored["costs"][:]}
        ends = np.flatnonzero(data["terminals"] | data["timeouts"])
        totals = [part.sum() for part in np.split(data["rewards"].astype(np.float64), ends + 1) if len(part)]
        task = types.SimpleNamespace(
            get_dataset=lambda: dict(data),
            _max_episode_steps=EPISODE,
            max_episode_reward=max(totals),
            min_episode_reward=min(totals),
            max_episode_cost=0.0,
            min_episode_cost=0.0,
        )
        with contextlib.redirect_stdout(sys.stderr):
            loaded = self.datasets.DSRLDataset(task, critic_type="hj", cost_scale=VIOLATION)
        loaded.normalize_returns(task.max_episode_reward, task.min_episode_reward, EPISODE)
        columns = loaded.dataset_dict
        names = ("observations", "actions", "rewards", "next_observations")
        found = {name: np.asarray(columns[name], np.float32) for name in names}
        return {**found, "signals": columns["costs"], "terminations": 1.0 - columns["masks"]}

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new agent."""
        self.taken, self.asked, self.silent, self.planned = 0, 0, False, planned
        self.width = rows["actions"].shape[1]
        if not hasattr(self, "fresh"):
            self._compile(rows)
        self.agent = self.fresh(seed)

    def _compile(self, rows: Arrays) -> None:
        """`create`, an update and a draw of an action, each as a whole."""
        spaces = [
            gymnasium.spaces.Box(-1.0, 1.0, rows[name].shape[1:], np.float32) for name in ("observations", "actions")
        ]
        settings = {**fisor_official.COMMON, **fisor_official.SIZES["official"], "actor_dropout_rate": None}
        settings["decay_steps"] = math.ceil(DECAY * self.planned)
        self.samples, self.noise_steps = settings["N"], settings["T"]
        self.fresh = jax.jit(lambda seed: self.agents.FISOR.create(seed, *spaces, **settings))

        def update(agent: Any, batch: Any, drawn: Any) -> Any:
            found: dict[str, Any] = {}
            with self.handed.hand(drawn):
                for name in UPDATES:
                    agent, info = getattr(agent, name)(batch)
                    found |= info
            return agent, found

        def scan(step: Any, carry: Any, values: Any, **_: Any) -> Any:
            for value in values:
                carry, _none = step(carry, value)
            return carry, ()

        def act(agent: Any, seen: Any, drawn: Any) -> Any:
            given = [drawn[:, 0], *(drawn[:, k] for k in range(1, drawn.shape[1])), jnp.zeros_like(drawn[:, 0])]
            own, jax.lax.scan = jax.lax.scan, scan
            try:
                with self.handed.hand(given):
                    return agent.replace(N=self.samples).eval_actions(seen)[0]
            finally:
                jax.lax.scan = own

        self.step = jax.jit(update)
        self.sampled = jax.jit(jax.vmap(act, in_axes=(None, 0, 0)))

    def silence(self) -> None:
        """From now on numbers are handed in."""
        self.silent = True

    def networks(self) -> Arrays:
        """Kernels transposed."""
        found: Arrays = {}
        for ours, theirs in NETWORKS.items():
            for k, dense in enumerate(dense_of(getattr(self.agent, theirs).params)):
                found[f"{ours}.mlp.weights.{k}"] = np.swapaxes(np.asarray(dense["kernel"]), -1, -2)
                found[f"{ours}.mlp.biases.{k}"] = np.asarray(dense["bias"])
        for ours, theirs in NOISE.items():
            params = getattr(self.agent, theirs).params
            for name, (path, leaf) in noise_names(params).items():
                value = np.asarray(at(params, path)[leaf])
                found[f"{ours}.{name}"] = value.reshape(-1) if "FourierFeatures_0" in path else value.T
        return found

    def take(self, networks: Arrays) -> None:
        """The other way round; moments stay as they are."""
        changed = {}
        for ours, theirs in NETWORKS.items():
            params = flax.core.unfreeze(getattr(self.agent, theirs).params)
            for k, dense in enumerate(dense_of(params)):
                dense["kernel"] = jnp.asarray(np.swapaxes(networks[f"{ours}.mlp.weights.{k}"], -1, -2))
                dense["bias"] = jnp.asarray(networks[f"{ours}.mlp.biases.{k}"])
            changed[theirs] = params
        for ours, theirs in NOISE.items():
            params = flax.core.unfreeze(getattr(self.agent, theirs).params)
            for name, (path, leaf) in noise_names(params).items():
                value = networks[f"{ours}.{name}"]
                at(params, path)[leaf] = jnp.asarray(value[:, None] if "FourierFeatures_0" in path else value.T)
            changed[theirs] = params
        states = {n: getattr(self.agent, n).replace(params=flax.core.freeze(p)) for n, p in changed.items()}
        self.agent = self.agent.replace(**states)

    def update(self, batch: Arrays) -> dict[str, float]:
        """One update of each network, in its order."""
        count, drawn = len(batch["rewards"]), None
        if self.silent:
            share = handed.by_name("step", "uniform", self.taken + 1, count, 1)
            noise = handed.by_name("noise", "normal", self.taken + 1, count, self.width)
            drawn = [np.minimum(np.floor(share * self.noise_steps), self.noise_steps - 1).astype(np.int32), noise]
        self.taken += 1
        names = ("observations", "actions", "rewards", "next_observations")
        given = {name: np.asarray(batch[name], np.float32) for name in names}
        given |= {"costs": batch["signals"], "masks": np.float32(1.0) - batch["terminations"]}
        self.agent, info = self.step(self.agent, given, drawn)
        if not self.silent:  # of a curve: no need to wait
            return {}
        names = {"safe_value_loss": "feasible_value_loss", "safe_critic_loss": "feasible_critic_loss"}
        return {names.get(name, name): float(value) for name, value in info.items() if name.endswith("_loss")}

    def rates(self) -> dict[str, float]:
        """The actor's by its cosine; the others are constant."""
        share = min(1.0, self.taken / math.ceil(DECAY * self.planned))
        return {"noise_network": 3e-4 * 0.5 * (1 + math.cos(math.pi * share)), **dict.fromkeys(RATES, 3e-4)}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Its `eval_actions` of each, with handed numbers."""
        parts = self.samples, self.noise_steps, self.width
        drawn = handed.by_name("acting", "normal", self.asked, len(observations), math.prod(parts))
        self.asked += 1
        seen = observations.astype(np.float32)
        return np.asarray(self.sampled(self.agent, seen, drawn.reshape(len(seen), *parts)))


def dense_of(params: Any) -> list[Any]:
    """Dense layers of a value or of critics in their order."""
    tree = params if "MLP_0" in params else next(iter(params.values()))
    hidden, (last,) = tree["MLP_0"], [name for name in tree if name != "MLP_0"]
    return [*(hidden[f"Dense_{k}"] for k in range(len(hidden))), tree[last]]


def noise_names(params: Any) -> dict[str, tuple[tuple[str, ...], str]]:
    """Our name -> where the noise network has it, and the leaf's name."""
    net = params["MLPResNet_0"]
    layers = {f"embed.{k}": ("MLP_0", f"Dense_{k}") for k in range(2)}
    layers |= {"first": ("MLPResNet_0", "Dense_0"), "last": ("MLPResNet_0", "Dense_1")}
    found = {"time.frequencies": (("FourierFeatures_0",), "kernel")}
    for k in range(sum(name.startswith("MLPResNetBlock") for name in net)):
        block = ("MLPResNet_0", f"MLPResNetBlock_{k}")
        layers |= {f"stack.{k}.up": (*block, "Dense_0"), f"stack.{k}.down": (*block, "Dense_1")}
        norm = (*block, "LayerNorm_0")
        found |= {f"stack.{k}.norm.weight": (norm, "scale"), f"stack.{k}.norm.bias": (norm, "bias")}
    for name, path in layers.items():
        found |= {f"{name}.weight": (path, "kernel"), f"{name}.bias": (path, "bias")}
    return found


def at(tree: Any, path: tuple[str, ...]) -> Any:
    """The part of a tree that a path leads to."""
    for name in path:
        tree = tree[name]
    return tree


def build(arguments: argparse.Namespace) -> FISOR:
    """The only algorithm of this checkout."""
    if arguments.algorithm != "fisor":
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has fisor")
    return FISOR(arguments.checkout, arguments.file)


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
