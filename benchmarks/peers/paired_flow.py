"""The official JAX codes of FQL, Q-chunking and QAM as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/paired_jax/bin/python benchmarks/peers/paired_flow.py rows --algorithm fql --checkout DIR \
        --file FILE --environment ogbench/puzzle-3x3-play-singletask-task1-v0 --out rows.npz

DIR is a checkout of seohongpark/fql (fql, ifql, rebrac), ColinQiyangLi/qc (qc, qc_fql) or ColinQiyangLi/qam (qam);
nothing of them is in this repository. Their loaders, networks and updates run on jax 0.10.2 and flax 0.12.8. Stood in
for are distrax and TensorFlow Probability (paired_distributions.py) and the download of `ogbench`, which gives the file
instead. `jax.jit` is put around a whole update, not around its parts, so that numbers that would be drawn inside can be
handed in: where steps are compared, both codes get those of `paired_peer.numbers`.
"""

import os

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import dataclasses
import importlib
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import handed
import jax
import jax.numpy as jnp
import numpy as np
import paired_distributions
import paired_peer
from paired_draws import Handed, without_jit
from paired_peer import Arrays

HIDDEN = (64, 64, 64, 64)
TASK = "puzzle-3x3-play-singletask-task1-v0"
"""What loaders that look at the name are given; the file says which task it is."""


@dataclasses.dataclass(frozen=True)
class Code:
    """One agent: where it is, its settings, our names of its networks and of the numbers that it draws."""

    file: str
    kind: str
    settings: dict[str, Any]
    networks: dict[str, str]
    """Ours -> theirs."""
    draws: tuple[tuple[str, str, int], ...]
    """(name, normal or uniform, which part of its numbers) in the order of their calls in an update."""
    rates: tuple[str, ...]
    """Our names of what an update trains."""
    parts: dict[str, int] = dataclasses.field(default_factory=dict)
    """Draws of several times the action -> how many times."""
    chunk: int = 1
    sequences: bool = False
    """Whether its loader gives windows."""


CRITICS = {"critic": "critic", "target_critic": "target_critic"}
FLOW = (("start", "normal", 0), ("time", "uniform", 0))
SIZES = {"actor_hidden_dims": HIDDEN, "value_hidden_dims": HIDDEN}
STUDENT = {"velocity": "actor_bc_flow", "student": "actor_onestep_flow", **CRITICS}
WINDOWS: dict[str, Any] = {"chunk": 5, "sequences": True}
QC = {"horizon_length": 5, "action_chunking": True}
CODES = {
    "fql": Code(
        "fql", "FQLAgent", {"alpha": 300.0}, STUDENT,
        (("next", "normal", 0), *FLOW, ("policy", "normal", 0), ("logged", "normal", 0)),
        ("velocity", "student", "critic"),
    ),
    "ifql": Code(
        "ifql", "IFQLAgent", {}, {"velocity": "actor_flow", "value": "value", **CRITICS}, FLOW,
        ("velocity", "value", "critic"), {"acting": 32},
    ),
    "rebrac": Code(
        "rebrac", "ReBRACAgent", {"alpha_actor": 0.1, "alpha_critic": 0.01},
        {"actor": "actor", "target_actor": "target_actor", **CRITICS}, (("target_noise", "normal", 0),),
        ("critic", "actor"),
    ),
    "qc": Code(
        "acfql", "ACFQLAgent", {**QC, "actor_type": "best-of-n", "actor_num_samples": 8},
        {"velocity": "actor_bc_flow", **CRITICS}, (("next", "normal", 0), *FLOW), ("velocity", "critic"),
        {"next": 8, "acting": 8}, **WINDOWS,
    ),
    "qc_fql": Code(
        "acfql", "ACFQLAgent", {**QC, "alpha": 300.0}, STUDENT,
        (("next", "normal", 0), *FLOW, ("policy", "normal", 0)), ("velocity", "student", "critic"), **WINDOWS,
    ),
    "qam": Code(
        "qam", "QAMAgent", {**QC, "inv_temp": 3.0},
        {"velocity": "actor_slow", "improved": "actor_fast", "average_velocity": "target_actor_slow", **CRITICS},
        (("next", "normal", 0), *FLOW, *(("path", "normal", k) for k in range(10)), ("unused", "normal", 0)),
        ("velocity",), {"path": 10}, **WINDOWS,
    ),
}  # fmt: skip


class NoEnvironment(gymnasium.Env):
    """What loaders make beside the data, and reset once."""

    def reset(self, **_: Any) -> Any:
        """Nothing to begin with."""
        return None, {}


def official(checkout: Path, names: tuple[str, ...], data: list[Arrays]) -> list[Any]:
    """The checkout's modules, imported unchanged; `data` is what its loader gets, once it is there."""

    def give(name: str, env_only: bool = False, **_: Any) -> Any:
        return NoEnvironment() if env_only else (NoEnvironment(), dict(data[0]), dict(data[0]))

    paired_distributions.stand_in()
    real = sys.modules.get("ogbench")
    paired_distributions.module("ogbench", make_env_and_datasets=give)
    agents = types.ModuleType("agents")
    agents.__path__ = [str(checkout / "agents")]
    sys.modules["agents"] = agents
    sys.path.insert(0, str(checkout))
    with without_jit():
        found = [importlib.import_module(name) for name in names]
    sys.modules.pop("ogbench")
    if real is not None:
        sys.modules["ogbench"] = real
    return found


class Flow:
    """An agent of one of the three repositories."""

    def __init__(self, algorithm: str, checkout: Path, settings: dict[str, Any]) -> None:
        self.code, self.data = CODES[algorithm], []
        as_tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
        self.settings = {**SIZES, **self.code.settings, **as_tuples}
        self.algorithm = algorithm
        names = (f"agents.{self.code.file}", "utils.datasets", "envs.env_utils")
        self.module, self.datasets, self.loader = official(checkout, names, self.data)
        self.kind = getattr(self.module, self.code.kind)
        self.handed = Handed()

    def rows(self, data: Arrays) -> Arrays:
        """Their loader's data; windows where they learn from some. Recordings run on where the task ends."""
        follows = (data["next_observations"][:-1] == data["observations"][1:]).all(1)
        ends = np.append(~follows, True)
        self.data[:] = [
            {
                "observations": data["observations"],
                "actions": data["actions"],
                "rewards": data["rewards"],
                "terminals": ends.astype(np.float32),
                "masks": 1.0 - data["terminals"].astype(np.float32),
                "next_observations": data["next_observations"],
            }
        ]
        loaded = self.loader.make_env_and_datasets(TASK)[2]
        dataset = self.datasets.Dataset.create(**loaded)
        return self._windows(dataset) if self.code.sequences else self._rows(dataset)

    def _rows(self, dataset: Any) -> Arrays:
        dataset.return_next_actions = self.algorithm == "rebrac"
        batch = dataset.sample(dataset.size, idxs=np.arange(dataset.size))
        if self.algorithm != "rebrac":
            kept = {n: np.asarray(batch[n]) for n in ("observations", "actions", "rewards", "next_observations")}
            return {**kept, "terminations": 1.0 - batch["masks"]}
        names = ("observations", "actions", "rewards", "next_observations", "next_actions")
        one = np.ones_like(batch["rewards"])
        return {
            **{name: np.asarray(batch[name]) for name in names},
            "reach": 0.99 * batch["masks"], "valid": one, "mask": np.ones_like(batch["actions"]),
            "next_mask": np.ones_like(batch["actions"]),
        }  # fmt: skip

    def _windows(self, dataset: Any) -> Arrays:
        """All of them, by their `sample_sequence`, whose draw of starts is replaced."""
        chunk, random = self.code.chunk, self.datasets.np.random
        count, draw = dataset.size - chunk + 1, random.randint
        self.datasets.np.random.randint = lambda *_, size: np.arange(count)
        found = dataset.sample_sequence(count, sequence_length=chunk, discount=0.99)
        self.datasets.np.random.randint = draw
        actions = found["actions"]
        return {
            "observations": found["observations"],
            "actions": actions.reshape(count, -1).astype(np.float32),
            "rewards": found["rewards"][:, -1].astype(np.float32),
            "reach": (0.99**chunk * found["masks"][:, -1]).astype(np.float32),
            "valid": found["valid"][:, -1].astype(np.float32),
            "next_observations": found["next_observations"][:, -1].astype(np.float32),
            "mask": np.repeat(found["valid"], actions.shape[-1], 1).astype(np.float32),
        }

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new agent."""
        width = rows["actions"].shape[1] // self.code.chunk
        self.width, self.taken, self.asked, self.silent = rows["actions"].shape[1], 0, 0, False
        seen, action = rows["observations"][:1], rows["actions"][:1, :width]
        if not hasattr(self, "fresh"):
            self.fresh = self._compiled(*((seen[0], action[0]) if self.code.sequences else (seen, action)))
        self.agent = self.fresh(seed)

    def _compiled(self, seen: Any, action: Any) -> Callable[[int], Any]:
        """`create` compiled, and the updates."""
        config = self.module.get_config()
        config.update(self.settings)

        def create(seed: Any) -> Any:
            return self.kind.create(seed, seen, action, config)

        template = create(0)
        networks = jax.jit(lambda seed: (lambda made: (made.rng, made.network))(create(seed)))

        def update(agent: Any, batch: Any, drawn: Any, **options: Any) -> Any:
            with self.handed.hand(drawn):
                return agent.update(batch, **options)

        def act(agent: Any, seen: Any, drawn: Any) -> Any:
            options = {"seed" if not self.code.sequences else "rng": jax.random.PRNGKey(0)}
            if self.algorithm == "rebrac":
                options["temperature"] = 0.0
            with self.handed.hand([drawn]):
                return agent.sample_actions(seen, **options)

        self.step = jax.jit(update, static_argnames=("full_update",))
        self.sampled = jax.jit(jax.vmap(act, in_axes=(None, 0, 0)))

        def fresh(seed: int) -> Any:
            rng, network = networks(seed)
            return template.replace(rng=rng, network=network)

        return fresh

    def silence(self) -> None:
        """From now on numbers are handed in."""
        self.silent = True

    def networks(self) -> Arrays:
        """Kernels transposed, critics side by side."""
        found: Arrays = {}
        for ours, theirs in self.code.networks.items():
            for layer, dense in enumerate(layers(self.agent.network.params[f"modules_{theirs}"], "Dense")):
                found[f"{ours}.mlp.weights.{layer}"] = np.swapaxes(np.asarray(dense["kernel"]), -1, -2)
                found[f"{ours}.mlp.biases.{layer}"] = np.asarray(dense["bias"])
            for layer, norm in enumerate(layers(self.agent.network.params[f"modules_{theirs}"], "LayerNorm")):
                found[f"{ours}.mlp.scales.{layer}"] = np.asarray(norm["scale"])
                found[f"{ours}.mlp.shifts.{layer}"] = np.asarray(norm["bias"])
        return found

    def take(self, networks: Arrays) -> None:
        """The other way round; moments stay as they are."""
        params = jax.tree_util.tree_map(jnp.asarray, self.agent.network.params)
        for ours, theirs in self.code.networks.items():
            tree = params[f"modules_{theirs}"]
            for layer, dense in enumerate(layers(tree, "Dense")):
                dense["kernel"] = jnp.asarray(np.swapaxes(networks[f"{ours}.mlp.weights.{layer}"], -1, -2))
                dense["bias"] = jnp.asarray(networks[f"{ours}.mlp.biases.{layer}"])
            for layer, norm in enumerate(layers(tree, "LayerNorm")):
                norm["scale"] = jnp.asarray(networks[f"{ours}.mlp.scales.{layer}"])
                norm["bias"] = jnp.asarray(networks[f"{ours}.mlp.shifts.{layer}"])
        self.agent = self.agent.replace(network=self.agent.network.replace(params=params))

    def update(self, batch: Arrays) -> dict[str, float]:
        """Their update, compiled as a whole."""
        self.taken += 1
        options = {"full_update": self.taken % 2 == 0} if self.algorithm == "rebrac" else {}
        drawn = self._drawn(len(batch["rewards"])) if self.silent else None
        self.agent, info = self.step(self.agent, self._theirs(batch), drawn, **options)
        if not self.silent:  # of a curve: no need to wait
            return {}
        return {name.rsplit("/", 1)[-1]: float(value) for name, value in info.items() if name.endswith("_loss")}

    def _theirs(self, batch: Arrays) -> Arrays:
        """A batch under their names; of windows what a loss reads, at the last place."""
        if not self.code.sequences:
            masks = batch["reach"] / np.float32(0.99) if "reach" in batch else 1.0 - batch["terminations"]
            return {**batch, "masks": masks}
        chunk = self.code.chunk

        def last(values: np.ndarray) -> np.ndarray:
            return np.repeat(values[:, None], chunk, 1)

        return {
            "observations": batch["observations"],
            "actions": batch["actions"].reshape(len(batch["actions"]), chunk, -1),
            "rewards": last(batch["rewards"]),
            "masks": last(batch["reach"] / np.float32(0.99**chunk)),
            "next_observations": last(batch["next_observations"]),
            "valid": batch["mask"].reshape(len(batch["mask"]), chunk, -1)[..., 0],
        }

    def _drawn(self, count: int) -> list[np.ndarray]:
        """The numbers of this step in the order in which the losses draw."""
        found = []
        for name, kind, part in self.code.draws:
            parts = self.code.parts.get(name, 1)
            width = 1 if kind == "uniform" else parts * self.width
            values = handed.by_name(name, kind, self.taken, count, width)
            alone = name == "path"
            found.append(values.reshape(count, parts, -1)[:, part] if alone else values)
        return found

    def rates(self) -> dict[str, float]:
        """Constant."""
        return dict.fromkeys(self.code.rates, 3e-4)

    def act(self, observations: np.ndarray) -> np.ndarray:
        """As their evaluation, with handed numbers; of windows whole chunks."""
        width = self.width * self.code.parts.get("acting", 1)
        drawn = handed.by_name("acting", "normal", self.asked, len(observations), width)
        self.asked += 1
        return np.clip(np.asarray(self.sampled(self.agent, observations.astype(np.float32), drawn)), -1, 1)

    def episode(self) -> Callable[[np.ndarray], np.ndarray]:
        """What acts in an episode: one action a step, of a chunk until it is used up."""
        queue: list[np.ndarray] = []

        def act(observations: np.ndarray) -> np.ndarray:
            if not queue:
                queue.extend(self.act(observations)[0].reshape(self.code.chunk, -1))
            return queue.pop(0)[None]

        return act


def layers(tree: Any, kind: str) -> list[Any]:
    """The layers of a kind in their order, those of the last head behind the others."""
    found: list[Any] = []
    for name, inner in tree.items():
        if not isinstance(inner, dict) and not hasattr(inner, "items"):
            continue
        if name.startswith(kind):
            continue
        if name not in ("mean_net",):
            found += layers(inner, kind)
    own = sorted((n for n in tree if n.startswith(kind)), key=lambda n: int(n.rsplit("_", 1)[1]))
    found += [tree[name] for name in own]
    if kind == "Dense" and "mean_net" in tree:
        found.append(tree["mean_net"])
    return found


def build(arguments: argparse.Namespace) -> Flow:
    """One of the agents."""
    if arguments.algorithm not in CODES:
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has {', '.join(CODES)}")
    return Flow(arguments.algorithm, arguments.checkout, json.loads(arguments.settings))


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
