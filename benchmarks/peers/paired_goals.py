"""OGBench's goal-conditioned agents, in JAX, as `Peer`s, from a checkout that the user gives.

    $SUREFOOT_PEERS/paired_jax/bin/python benchmarks/peers/paired_goals.py rows --algorithm gcivl --checkout DIR \
        --file FILE --environment ogbench/pointmaze-medium-navigate-v0 --out rows.npz

DIR is a checkout of seohongpark/ogbench; nothing of it is in this repository. Its datasets, networks and updates (DIR/
impls) run on jax 0.10.2 and flax 0.12.8. Rows are all of the file's, each with the goals that its own dataset draws
once, by numpy's generator of seed 0: both codes learn from these. Stood in for are `distrax`, of which normals are used
(peers/paired_distributions.py), and `ogbench`, which only tells the loader's names.
"""

import os

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import paired_distributions
import paired_peer
from paired_flow import layers
from paired_peer import Arrays

HIDDEN, LATENT = (64, 64, 64), 64
SIZES: dict[str, Any] = {"actor_hidden_dims": HIDDEN, "value_hidden_dims": HIDDEN}


class Code(NamedTuple):
    """One of its agents."""

    kind: str
    settings: dict[str, Any]
    networks: dict[str, tuple[str, ...]]
    """Our network -> the path to its parameters."""
    numbers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Our parameters that are lone numbers, and the paths to them."""
    layered: bool = False


ACTOR = {"actor.inner": ("modules_actor",)}
CODES = {
    "gcbc": Code("GCBCAgent", {}, ACTOR),
    "gcivl": Code("GCIVLAgent", {}, {**ACTOR, "value": ("modules_value",), "target_value": ("modules_target_value",)}),
    "gciql": Code(
        "GCIQLAgent",
        {},
        {
            **ACTOR,
            "value": ("modules_value",),
            "critic": ("modules_critic",),
            "target_critic": ("modules_target_critic",),
        },
    ),
    "crl": Code(
        "CRLAgent",
        {"latent_dim": LATENT},
        {**ACTOR, "critic.phi": ("modules_critic", "phi"), "critic.psi": ("modules_critic", "psi")},
    ),
    "qrl": Code(
        "QRLAgent",
        {"latent_dim": LATENT},
        {**ACTOR, "distance.phi": ("modules_value", "phi"), "distance.dynamics": ("modules_dynamics",)},
        (
            ("distance.metric.balance", ("modules_value", "alpha", "value")),
            ("distance.log_multiplier", ("modules_lam", "log_value")),
        ),
    ),
    "hiql": Code(
        "HIQLAgent",
        {},
        {
            "actor.inner.low": ("modules_low_actor",),
            "actor.inner.high": ("modules_high_actor",),
            "phi": ("modules_goal_rep",),
            "value": ("modules_value",),
            "target_value": ("modules_target_value",),
        },
    ),
}
WHOLE = ("actor.inner.low", "actor.inner.high", "critic.phi", "critic.psi", "distance.phi", "distance.dynamics")
"""Networks of ours that are a multilayer perceptron themselves, not one that holds it as `mlp`."""
NAMES = {
    "rewards": "goal_rewards",
    "masks": "goal_masks",
    "low_actor_goals": "waypoints",
    "high_actor_goals": "actor_goals",
    "high_actor_targets": "subgoals",
}
"""Their column -> ours."""


def official(checkout: Path, name: str) -> tuple[types.ModuleType, types.ModuleType]:
    """An agent's module and that of datasets, imported unchanged."""
    paired_distributions.stand_in()
    folder = checkout / "impls"
    if not (folder / "agents" / f"{name}.py").is_file():
        raise SystemExit(f"{folder}: has no agents/{name}.py; give a checkout of seohongpark/ogbench")
    sys.path.insert(0, str(folder))
    agents = types.ModuleType("agents")
    agents.__path__ = [str(folder / "agents")]
    sys.modules["agents"] = agents
    return importlib.import_module(f"agents.{name}"), importlib.import_module("utils.datasets")


class Goals:
    """One of its agents."""

    def __init__(self, algorithm: str, checkout: Path, settings: dict[str, Any]) -> None:
        self.code = CODES[algorithm]
        self.module, self.datasets = official(checkout, algorithm)
        self.kind = getattr(self.module, self.code.kind)
        self.config = self.module.get_config()
        self.config.update({**SIZES, **self.code.settings, **settings})

    def rows(self, data: Arrays) -> Arrays:
        """All rows, with goals of its own dataset."""
        ends = (data["terminals"].astype(bool) | data["timeouts"].astype(bool)).astype(np.float32)
        ends[-1] = 1.0
        columns = {name: data[name] for name in ("observations", "actions", "next_observations")}
        dataset = self.datasets.Dataset.create(**columns, terminals=ends)
        drawing = getattr(self.datasets, self.config["dataset_class"])(dataset, self.config)
        np.random.seed(0)  # noqa: NPY002 - which its dataset draws from
        batch = drawing.sample(dataset.size, idxs=np.arange(dataset.size))
        found = {NAMES.get(name, name): np.asarray(values, np.float32) for name, values in batch.items()}
        found.pop("terminals", None)
        return {**found, "rewards": found["goal_rewards"]}

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new agent."""
        self.agent = self.kind.create(seed, rows["observations"][:1], rows["actions"][:1], self.config)

    def silence(self) -> None:
        """There is no noise in its losses."""

    def networks(self) -> Arrays:
        """Kernels transposed, pairs side by side."""
        found: Arrays = {}
        for ours, path in self.code.networks.items():
            tree = self._part(path)
            stem = ours if ours in WHOLE else f"{ours}.mlp"
            for layer, dense in enumerate(layers(tree, "Dense")):
                found[f"{stem}.weights.{layer}"] = np.swapaxes(np.asarray(dense["kernel"]), -1, -2)
                found[f"{stem}.biases.{layer}"] = np.asarray(dense["bias"])
            for layer, norm in enumerate(layers(tree, "LayerNorm")):
                found[f"{stem}.scales.{layer}"] = np.asarray(norm["scale"])
                found[f"{stem}.shifts.{layer}"] = np.asarray(norm["bias"])
        return found | {ours: np.asarray(self._part(path)) for ours, path in self.code.numbers}

    def _part(self, path: tuple[str, ...], tree: Any = None) -> Any:
        tree = self.agent.network.params if tree is None else tree
        for name in path:
            tree = tree[name]
        return tree

    def take(self, networks: Arrays) -> None:
        """The other way round; moments stay as they are."""
        params = jax.tree_util.tree_map(jnp.asarray, self.agent.network.params)
        for ours, path in self.code.networks.items():
            tree = self._part(path, params)
            stem = ours if ours in WHOLE else f"{ours}.mlp"
            for layer, dense in enumerate(layers(tree, "Dense")):
                dense["kernel"] = jnp.asarray(np.swapaxes(networks[f"{stem}.weights.{layer}"], -1, -2))
                dense["bias"] = jnp.asarray(networks[f"{stem}.biases.{layer}"])
            for layer, norm in enumerate(layers(tree, "LayerNorm")):
                norm["scale"] = jnp.asarray(networks[f"{stem}.scales.{layer}"])
                norm["bias"] = jnp.asarray(networks[f"{stem}.shifts.{layer}"])
        for ours, path in self.code.numbers:
            self._part(path[:-1], params)[path[-1]] = jnp.asarray(networks[ours])
        self.agent = self.agent.replace(network=self.agent.network.replace(params=params))

    def update(self, batch: Arrays) -> dict[str, float]:
        """Its update, which is compiled."""
        back = {ours: theirs for theirs, ours in NAMES.items()}
        if "waypoints" not in batch:
            back.pop("actor_goals")
        given = {back.get(name, name): values for name, values in batch.items() if name != "rewards"}
        self.agent, info = self.agent.update(given)
        return {name.replace("/", "_"): float(value) for name, value in info.items() if name.endswith("_loss")}

    def rates(self) -> dict[str, float]:
        """One, constant."""
        names = {name.split(".")[0] for name in self.code.networks}
        return {name: 3e-4 for name in names if name in ("actor", "value", "critic", "distance")}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Not asked: the kit hands policies no goals."""
        raise SystemExit("policies with goals are not compared in acting")


def build(arguments: argparse.Namespace) -> Goals:
    """One of the agents."""
    if arguments.algorithm not in CODES:
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has {', '.join(CODES)}")
    return Goals(arguments.algorithm, arguments.checkout, json.loads(arguments.settings))


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
