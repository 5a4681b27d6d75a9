"""The official JAX code of WSRL's online stage as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/paired_jax/bin/python benchmarks/peers/paired_wsrl.py steps --algorithm wsrl --checkout DIR \
        --file FILE --environment HalfCheetah-v5 --given given.npz --out steps.npz

DIR is a checkout of zhouzypaul/wsrl; nothing of it is in this repository. Its agent runs on jax 0.10.2 and flax 0.12.8
with its settings for locomotion; stood in for are distrax (paired_distributions.py) and `jax.tree_map`. There is one
critic, since its critics share their last layer and ours don't, and one critic step an update, as the kit gives one
batch. Its loader is of D4RL alone and is not run: rows are those of `read` by D4RL's rule.
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

import handed
import jax
import jax.numpy as jnp
import numpy as np
import paired_distributions
import paired_peer
from paired_draws import Handed, without_jit
from paired_peer import Arrays

NETWORK = {"hidden_dims": [256, 256], "activate_final": True, "use_layer_norm": True, "kernel_scale_final": 1e-2}
SETTINGS: dict[str, Any] = {
    "encoder_def": None,
    "critic_network_kwargs": NETWORK,
    "policy_network_kwargs": NETWORK,
    "policy_kwargs": {"tanh_squash_distribution": True, "std_parameterization": "exp"},
    "critic_ensemble_size": 1,
    "actor_optimizer_kwargs": {"learning_rate": 1e-4},
    "critic_optimizer_kwargs": {"learning_rate": 3e-4},
    "temperature_optimizer_kwargs": {"learning_rate": 1e-4},
}
"""Of experiments/configs, for locomotion, but for the one critic."""


class WSRL:
    """Its SACAgent."""

    def __init__(self, checkout: Path) -> None:
        jax.tree_map = jax.tree_util.tree_map
        paired_distributions.stand_in()
        sys.path.insert(0, str(checkout))
        with without_jit():
            self.kind = importlib.import_module("wsrl.agents.sac").SACAgent
        self.handed = Handed()

        def update(agent: Any, batch: Any, drawn: Any) -> Any:
            with self.handed.hand(drawn):
                return agent.update_high_utd(batch, utd_ratio=1)

        self.step = jax.jit(update)
        self.mean = jax.jit(lambda agent, seen: agent.sample_actions(seen, argmax=True))

    def rows(self, data: Arrays) -> Arrays:
        """By D4RL's rule, actions inside (-1, 1) as its wrapper clips them."""
        kept = paired_peer.without_cut_steps(data)
        return {
            "observations": kept["observations"],
            "actions": np.clip(kept["actions"], -0.99999, 0.99999),
            "rewards": kept["rewards"],
            "terminations": kept["terminals"].astype(np.float32),
            "next_observations": kept["next_observations"],
        }

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new agent."""
        self.taken, self.silent, self.width = 0, False, rows["actions"].shape[1]
        if not hasattr(self, "fresh"):
            first = rows["observations"][:1], rows["actions"][:1]

            def create(given: Any) -> Any:
                return self.kind.create(jax.random.PRNGKey(given), *first, **SETTINGS)

            template = create(0)
            states = jax.jit(lambda given: create(given).state)
            self.fresh = lambda given: template.replace(state=states(given))
        self.agent = self.fresh(seed)

    def silence(self) -> None:
        """From now on numbers are handed in."""
        self.silent = True

    def networks(self) -> Arrays:
        """Kernels transposed, mean and deviation in one last layer."""
        state, found = self.agent.state, {}
        for ours, params in (("actor", state.params), ("critic", state.params), ("target_critic", state.target_params)):
            hidden, norms, last = parts(params["modules_actor" if ours == "actor" else "modules_critic"])
            for layer, dense in enumerate([*hidden, *last[:1]]):
                found[f"{ours}.mlp.weights.{layer}"] = np.swapaxes(np.asarray(dense["kernel"]), -1, -2)
                found[f"{ours}.mlp.biases.{layer}"] = np.asarray(dense["bias"])
            for layer, norm in enumerate(norms):
                found[f"{ours}.mlp.scales.{layer}"] = np.asarray(norm["scale"])
                found[f"{ours}.mlp.shifts.{layer}"] = np.asarray(norm["bias"])
            end = len(hidden)
            if ours == "actor":
                found[f"actor.mlp.weights.{end}"] = np.concatenate([np.asarray(one["kernel"]).T for one in last])
                found[f"actor.mlp.biases.{end}"] = np.concatenate([np.asarray(one["bias"]) for one in last])
            else:
                found[f"{ours}.mlp.weights.{end}"] = found[f"{ours}.mlp.weights.{end}"][None]
                found[f"{ours}.mlp.biases.{end}"] = found[f"{ours}.mlp.biases.{end}"][None]
        found["temperature.rho"] = np.asarray(state.params["modules_temperature"]["lagrange"])
        return found

    def take(self, networks: Arrays) -> None:
        """The other way round; moments stay as they are."""
        state = self.agent.state
        trees = {
            name: jax.tree_util.tree_map(jnp.asarray, getattr(state, name)) for name in ("params", "target_params")
        }
        for ours in ("actor", "critic", "target_critic"):
            params = trees["target_params" if ours == "target_critic" else "params"]
            hidden, norms, last = parts(params["modules_actor" if ours == "actor" else "modules_critic"])
            for layer, dense in enumerate(hidden):
                dense["kernel"] = jnp.asarray(np.swapaxes(networks[f"{ours}.mlp.weights.{layer}"], -1, -2))
                dense["bias"] = jnp.asarray(networks[f"{ours}.mlp.biases.{layer}"])
            for layer, norm in enumerate(norms):
                norm["scale"] = jnp.asarray(networks[f"{ours}.mlp.scales.{layer}"])
                norm["bias"] = jnp.asarray(networks[f"{ours}.mlp.shifts.{layer}"])
            end = len(hidden)
            weight, bias = networks[f"{ours}.mlp.weights.{end}"], networks[f"{ours}.mlp.biases.{end}"]
            if ours != "actor":
                weight, bias = weight[0], bias[0]
            for part, one in enumerate(last):
                place = slice(part * len(weight) // len(last), (part + 1) * len(weight) // len(last))
                one["kernel"], one["bias"] = jnp.asarray(weight[place].T), jnp.asarray(bias[place])
        trees["params"]["modules_temperature"]["lagrange"] = jnp.asarray(networks["temperature.rho"])
        self.agent = self.agent.replace(state=state.replace(**trees))

    def update(self, batch: Arrays) -> dict[str, float]:
        """Their update of one critic step, then actor and temperature, compiled as a whole."""
        self.taken += 1
        names = ("observations", "actions", "rewards", "next_observations")
        given = {**{name: batch[name] for name in names}, "masks": 1.0 - batch["terminations"]}
        drawn = None
        if self.silent:  # a target's action, the actor's, and the same numbers at the next observation
            following, action = (
                handed.by_name(name, "normal", self.taken, len(batch["rewards"]), self.width)
                for name in ("next_action", "action")
            )
            drawn = [following, action, action]
        self.agent, info = self.step(self.agent, given, drawn)
        if not self.silent:
            return {}
        losses = {"critic_loss": info["critic"]["critic_loss"], "actor_loss": info["actor"]["actor_loss"]}
        return {name: float(value) for name, value in losses.items()}

    def rates(self) -> dict[str, float]:
        """What their optimisers hold."""
        states = self.agent.state.opt_states
        return {name: float(states[name].hyperparams["learning_rate"]) for name in ("critic", "actor", "temperature")}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """As their evaluation: the mode."""
        return np.asarray(self.mean(self.agent, observations.astype(np.float32)))


def parts(tree: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Hidden layers, layer norms, and the layers behind the network, in their order."""
    (base,) = (tree[name] for name in tree if not name.startswith("Dense"))

    def of(found: Any, kind: str) -> list[Any]:
        return [found[f"{kind}_{k}"] for k in range(sum(name.startswith(kind) for name in found))]

    return of(base, "Dense"), of(base, "LayerNorm"), of(tree, "Dense")


def build(arguments: argparse.Namespace) -> WSRL:
    """The only agent of this checkout that is paired."""
    if arguments.algorithm != "wsrl":
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has wsrl")
    return WSRL(arguments.checkout)


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
