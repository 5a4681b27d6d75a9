"""The official JAX code of IQL as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/paired_jax/bin/python benchmarks/peers/paired_iql.py rows --algorithm iql --checkout DIR \
        --file FILE --environment Hopper-v5 --out rows.npz

DIR is a checkout of ikostrikov/implicit_q_learning; nothing of it is in this repository. Its loader, networks and
jitted update run on jax 0.10.2 and flax 0.12.8. Three things it needs are gone from today's packages and stood in for:
`gym` and `d4rl` (gymnasium, and the rows of `read` by D4RL's rule), the two distributions' names of TensorFlow
Probability (the normal one is written out below), and `jax.tree_multimap`. `Model.create` takes the parameters out of
flax's dict itself, since flax returns a plain one today.
"""

import os

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import importlib
import math
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import paired_peer
from paired_peer import Arrays


class Normal:
    """The diagonal normal distribution that the policy asks TensorFlow Probability for."""

    def __init__(self, loc: Any, scale_diag: Any) -> None:
        self.loc, self.scale = loc, scale_diag

    def log_prob(self, value: Any) -> Any:
        """Log-density, summed over dimensions."""
        z = (value - self.loc) / self.scale
        return jnp.sum(-0.5 * z**2 - jnp.log(self.scale) - 0.5 * math.log(2 * math.pi), -1)

    def sample(self, seed: Any) -> Any:
        """A draw."""
        return self.loc + self.scale * jax.random.normal(seed, self.loc.shape)


def module(name: str, **members: Any) -> types.ModuleType:
    """An importable module that holds these and nothing else."""
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made


def official(checkout: Path) -> types.SimpleNamespace:
    """The checkout's modules, imported unchanged."""
    module("gym", Env=gymnasium.Env, spaces=gymnasium.spaces)
    module("d4rl", qlearning_dataset=paired_peer.without_cut_steps)
    distributions = types.SimpleNamespace(Distribution=object, MultivariateNormalDiag=Normal)
    tfp = types.SimpleNamespace(distributions=distributions, bijectors=types.SimpleNamespace())
    module("tensorflow_probability", substrates=module("tensorflow_probability.substrates", jax=tfp))
    jit = jax.jit

    def tolerant(function: Any, **options: Any) -> Any:
        names = options.get("static_argnames", ())
        if "distribution" in names:  # an argument that the function does not have: jax refuses it today
            options["static_argnames"] = tuple(name for name in names if name != "distribution")
        return jit(function, **options)

    jax.tree_multimap = jax.tree_util.tree_map
    jax.jit = tolerant
    sys.path.insert(0, str(checkout))
    own = sys.modules.pop("common")  # ours has the name of one of theirs
    found = types.SimpleNamespace(
        **{name: importlib.import_module(name) for name in ("common", "learner", "dataset_utils")}
    )
    sys.modules["common"], jax.jit = own, jit

    def create(kind: Any, model: Any, inputs: Any, tx: Any = None) -> Any:
        parameters = model.init(*inputs)["params"]
        state = None if tx is None else tx.init(parameters)
        return kind(step=1, apply_fn=model, params=parameters, tx=tx, opt_state=state)

    found.common.Model.create = classmethod(create)
    return found


class IQL:
    """The settings of configs/mujoco_config.py; rewards by the range of returns, as train_offline.py does."""

    def __init__(self, checkout: Path) -> None:
        self.official = official(checkout)

    def rows(self, data: Arrays) -> Arrays:
        """Their D4RLDataset, then their scale of rewards."""
        utils = self.official.dataset_utils
        utils.tqdm = lambda values: values
        loaded = utils.D4RLDataset(data)
        columns = (loaded.observations, loaded.actions, loaded.rewards, loaded.masks, loaded.dones_float)
        episodes = utils.split_into_trajectories(*columns, loaded.next_observations)
        totals = sorted(sum(step[2] for step in episode) for episode in episodes)
        return {
            "observations": loaded.observations,
            "actions": loaded.actions,
            "rewards": (loaded.rewards / (totals[-1] - totals[0]) * 1000.0).astype(np.float32),
            "terminations": 1.0 - loaded.masks,
            "next_observations": loaded.next_observations,
        }

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new Learner."""
        settings = {"expectile": 0.7, "temperature": 3.0, "discount": 0.99, "tau": 0.005, "dropout_rate": None}
        first = rows["observations"][:1], rows["actions"][:1]
        self.learner = self.official.learner.Learner(seed, *first, max_steps=planned, **settings)
        self.planned, self.taken = planned, 0

    def silence(self) -> None:
        """There is none."""

    def networks(self) -> Arrays:
        """Kernels transposed, both critics side by side."""
        found: Arrays = {}
        learner = self.learner
        for ours, tree in (("actor", learner.actor.params), ("value", learner.value.params)):
            found |= flat(ours, [tree])
        found["actor.log_std"] = np.asarray(learner.actor.params["log_stds"])
        for ours, model in (("critic", learner.critic), ("target_critic", learner.target_critic)):
            found |= flat(ours, [model.params[f"Critic_{k}"] for k in range(2)], stacked=True)
        return found

    def take(self, networks: Arrays) -> None:
        """The other way round; optimisers' moments stay as they are."""
        learner = self.learner
        for ours in ("actor", "value"):
            model = getattr(learner, ours)
            tree = nested(model.params, networks, ours, None)
            if ours == "actor":
                tree["log_stds"] = jnp.asarray(networks["actor.log_std"])
            setattr(learner, ours, model.replace(params=tree))
        for ours in ("critic", "target_critic"):
            model = getattr(learner, ours)
            trees = {f"Critic_{k}": nested(model.params[f"Critic_{k}"], networks, ours, k) for k in range(2)}
            setattr(learner, ours, model.replace(params=trees))

    def update(self, batch: Arrays) -> dict[str, float]:
        """Their jitted update."""
        b = self.official.common.Batch(
            *(batch[name] for name in ("observations", "actions", "rewards")),
            1.0 - batch["terminations"],
            batch["next_observations"],
        )
        info, self.taken = self.learner.update(b), self.taken + 1
        return {name: float(info[name]) for name in ("value_loss", "critic_loss", "actor_loss")}

    def rates(self) -> dict[str, float]:
        """The actor's by its count of steps; the others are constant."""
        count = int(self.learner.actor.opt_state[1].count)
        return {"actor": 3e-4 * 0.5 * (1 + math.cos(math.pi * count / self.planned)), "value": 3e-4, "critic": 3e-4}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """As their evaluation: temperature 0."""
        return np.asarray(self.learner.sample_actions(observations, temperature=0.0))


def places(tree: Any) -> list[Any]:
    """The dense layers of a network in their order, hidden ones first."""
    inner = tree.get("MLP_0", {})
    hidden = [inner[f"Dense_{k}"] for k in range(len(inner))]
    return [*hidden, tree["Dense_0"]] if "Dense_0" in tree else hidden


def flat(ours: str, trees: list[Any], stacked: bool = False) -> Arrays:
    """Parameters of one network, or of several side by side, by our names."""
    found: Arrays = {}
    for layer in range(len(places(trees[0]))):
        weights = np.stack([np.asarray(places(tree)[layer]["kernel"]).T for tree in trees])
        biases = np.stack([np.asarray(places(tree)[layer]["bias"]) for tree in trees])
        found[f"{ours}.mlp.weights.{layer}"] = weights if stacked else weights[0]
        found[f"{ours}.mlp.biases.{layer}"] = biases if stacked else biases[0]
    return found


def nested(tree: Any, networks: Arrays, ours: str, member: int | None) -> Any:
    """A copy of their tree with our numbers."""
    made = jax.tree_util.tree_map(lambda leaf: leaf, tree)
    for layer, place in enumerate(places(made)):
        weight, bias = networks[f"{ours}.mlp.weights.{layer}"], networks[f"{ours}.mlp.biases.{layer}"]
        place["kernel"] = jnp.asarray((weight if member is None else weight[member]).T)
        place["bias"] = jnp.asarray(bias if member is None else bias[member])
    return made


def build(arguments: argparse.Namespace) -> IQL:
    """The only algorithm of this checkout."""
    if arguments.algorithm != "iql":
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has iql")
    return IQL(arguments.checkout)


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
