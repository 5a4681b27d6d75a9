"""The official JAX code of RLPD as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/paired_jax/bin/python benchmarks/peers/paired_rlpd.py rows --algorithm rlpd --checkout DIR \
        --file FILE --environment HalfCheetah-v5 --out rows.npz

DIR is a checkout of ikostrikov/rlpd; nothing of it is in this repository. Its loader, networks and update run on jax
0.10.2 and flax 0.12.8. Stood in for are gym and d4rl, by gymnasium and the rows of `read` by D4RL's rule, and
TensorFlow Probability (paired_distributions.py). One critic step an update, as the kit gives one batch; 20 are its
default. Where steps are compared, what it would draw is handed in: actions, and which critics a target is of.
"""

import os

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import importlib
import sys
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

CRITICS, SUBSET = 10, 2


class RLPD:
    """The settings of configs/rlpd_config.py."""

    def __init__(self, checkout: Path) -> None:
        sys.modules.update({"gym": gymnasium, "gym.utils": gymnasium.utils, "gym.spaces": gymnasium.spaces})
        paired_distributions.module("d4rl", qlearning_dataset=paired_peer.without_cut_steps)
        paired_distributions.stand_in()
        sys.path.insert(0, str(checkout))
        with without_jit():
            self.learner = importlib.import_module("rlpd.agents.sac.sac_learner").SACLearner
            self.loader = importlib.import_module("rlpd.data.d4rl_datasets").D4RLDataset
        self.handed = Handed()

        def update(agent: Any, batch: Any, drawn: Any) -> Any:
            with self.handed.hand(drawn):
                return agent.update(batch, 1)

        self.step = jax.jit(update)
        self.mean = jax.jit(lambda agent, seen: agent.actor.apply_fn({"params": agent.actor.params}, seen).mode())

    def rows(self, data: Arrays) -> Arrays:
        """Their D4RLDataset."""
        loaded = self.loader(data).dataset_dict
        kept = {name: loaded[name] for name in ("observations", "actions", "rewards", "next_observations")}
        return {**kept, "terminations": 1.0 - loaded["masks"]}

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new learner."""
        self.taken, self.silent = 0, False
        if not hasattr(self, "fresh"):
            seen, acted = (
                gymnasium.spaces.Box(-1.0, 1.0, rows[name].shape[1:]) for name in ("observations", "actions")
            )
            settings = {"num_qs": CRITICS, "num_min_qs": SUBSET, "critic_layer_norm": True}
            self.width = rows["actions"].shape[1]
            self.template = self.learner.create(0, seen, acted, **settings)
            self.fresh = jax.jit(lambda given: self.learner.create(given, seen, acted, **settings))
        self.agent = self.fresh(seed)

    def silence(self) -> None:
        """From now on numbers are handed in."""
        self.silent = True

    def networks(self) -> Arrays:
        """Kernels transposed, mean and deviation in one last layer."""
        agent, found = self.agent, {"temperature.rho": np.asarray(self.agent.temp.params["log_temp"])}
        base = agent.actor.params["MLP_0"]
        last = [agent.actor.params[name] for name in ("OutputDenseMean", "OutputDenseLogStd")]
        for layer in range(len(base)):
            found[f"actor.mlp.weights.{layer}"] = np.asarray(base[f"Dense_{layer}"]["kernel"]).T
            found[f"actor.mlp.biases.{layer}"] = np.asarray(base[f"Dense_{layer}"]["bias"])
        found[f"actor.mlp.weights.{len(base)}"] = np.concatenate([np.asarray(part["kernel"]).T for part in last])
        found[f"actor.mlp.biases.{len(base)}"] = np.concatenate([np.asarray(part["bias"]) for part in last])
        for ours, model in (("critic", agent.critic), ("target_critic", agent.target_critic)):
            (tree,) = model.params.values()
            for layer, dense in enumerate(dense_of(tree)):
                found[f"{ours}.mlp.weights.{layer}"] = np.swapaxes(np.asarray(dense["kernel"]), -1, -2)
                found[f"{ours}.mlp.biases.{layer}"] = np.asarray(dense["bias"])
            for layer, norm in enumerate(norms_of(tree)):
                found[f"{ours}.mlp.scales.{layer}"] = np.asarray(norm["scale"])
                found[f"{ours}.mlp.shifts.{layer}"] = np.asarray(norm["bias"])
        return found

    def take(self, networks: Arrays) -> None:
        """The other way round; moments stay as they are."""
        agent = self.agent
        actor = jax.tree_util.tree_map(jnp.asarray, agent.actor.params)
        base = actor["MLP_0"]
        for layer in range(len(base)):
            base[f"Dense_{layer}"]["kernel"] = jnp.asarray(networks[f"actor.mlp.weights.{layer}"].T)
            base[f"Dense_{layer}"]["bias"] = jnp.asarray(networks[f"actor.mlp.biases.{layer}"])
        weight, bias = networks[f"actor.mlp.weights.{len(base)}"].T, networks[f"actor.mlp.biases.{len(base)}"]
        for part, name in enumerate(("OutputDenseMean", "OutputDenseLogStd")):
            place = slice(part * self.width, (part + 1) * self.width)
            actor[name]["kernel"], actor[name]["bias"] = jnp.asarray(weight[:, place]), jnp.asarray(bias[place])
        changed = {"actor": agent.actor.replace(params=actor)}
        for ours in ("critic", "target_critic"):
            params = jax.tree_util.tree_map(jnp.asarray, getattr(agent, ours).params)
            (tree,) = params.values()
            for layer, dense in enumerate(dense_of(tree)):
                dense["kernel"] = jnp.asarray(np.swapaxes(networks[f"{ours}.mlp.weights.{layer}"], -1, -2))
                dense["bias"] = jnp.asarray(networks[f"{ours}.mlp.biases.{layer}"])
            for layer, norm in enumerate(norms_of(tree)):
                norm["scale"] = jnp.asarray(networks[f"{ours}.mlp.scales.{layer}"])
                norm["bias"] = jnp.asarray(networks[f"{ours}.mlp.shifts.{layer}"])
            changed[ours] = getattr(agent, ours).replace(params=params)
        temperature = {"log_temp": jnp.asarray(networks["temperature.rho"])}
        self.agent = agent.replace(temp=agent.temp.replace(params=temperature), **changed)

    def update(self, batch: Arrays) -> dict[str, float]:
        """Their update of one critic step, compiled as a whole."""
        self.taken += 1
        names = ("observations", "actions", "rewards", "next_observations")
        given = {**{name: batch[name] for name in names}, "masks": 1.0 - batch["terminations"]}
        self.agent, info = self.step(self.agent, given, self._drawn(len(batch["rewards"])) if self.silent else None)
        if not self.silent:
            return {}
        return {name: float(info[name]) for name in ("actor_loss", "critic_loss", "temperature_loss")}

    def _drawn(self, count: int) -> list[np.ndarray]:
        """A target's action, its critics, an action of the actor's."""
        following, action = (
            handed.by_name(name, "normal", self.taken, count, self.width) for name in ("next_action", "action")
        )
        chances = handed.by_name("subset", "uniform", self.taken, count, CRITICS)[0]
        return [following, np.argsort(chances, kind="stable")[:SUBSET], action]

    def rates(self) -> dict[str, float]:
        """Constant."""
        return dict.fromkeys(("critic", "actor", "temperature"), 3e-4)

    def act(self, observations: np.ndarray) -> np.ndarray:
        """As their evaluation: the mode."""
        return np.asarray(self.mean(self.agent, observations.astype(np.float32)))


def dense_of(tree: Any) -> list[Any]:
    """Dense layers of the critics in their order."""
    base = tree["MLP_0"]
    return [*(base[f"Dense_{k}"] for k in range(sum(name.startswith("Dense") for name in base))), tree["Dense_0"]]


def norms_of(tree: Any) -> list[Any]:
    """Layer norms in their order."""
    base = tree["MLP_0"]
    return [base[f"LayerNorm_{k}"] for k in range(sum(name.startswith("LayerNorm") for name in base))]


def build(arguments: argparse.Namespace) -> RLPD:
    """The only algorithm of this checkout that has a counterpart."""
    if arguments.algorithm != "rlpd":
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has rlpd")
    return RLPD(arguments.checkout)


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
