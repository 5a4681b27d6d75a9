"""FISOR's official JAX code, from a checkout that the user gives: its agent, its jitted update, its sampling.

    $SUREFOOT_PEERS/fisor/bin/python benchmarks/peers/fisor_official.py --checkout DIR [--size official|small]

DIR is a checkout of ZhengYinan-AIR/FISOR; nothing of it is in this repository. Its pins (jax 0.4.9, gym) don't install
today: it runs unchanged on jax 0.10.2 and flax 0.12.8, with gymnasium under the name gym, `jax.tree_map` under its old
name and frozen parameters. `small` is the same code with its plain network and two updates of 256 rows, beside our
preset of that size. One thread.
"""

import os
import sys
import types
from pathlib import Path
from typing import Any

import common

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import flax
import gymnasium
import jax
import numpy as np

SIZES: dict[str, dict[str, Any]] = {
    "official": {
        "actor_architecture": "ln_resnet",
        "actor_num_blocks": 3,
        "actor_dropout_rate": 0.1,
        "actor_layer_norm": True,
        "N": 16,
    },
    "small": {"actor_architecture": "mlp", "actor_hidden_dims": (256, 256), "actor_layer_norm": False, "N": 8},
}
"""What differs from configs/train_config.py of the checkout, by size."""
COMMON: dict[str, Any] = {
    "cost_temperature": 5,
    "reward_temperature": 3,
    "T": 5,
    "decay_steps": int(3e6),
    "actor_tau": 0.001,
    "critic_hyperparam": 0.9,
    "cost_critic_hyperparam": 0.9,
    "critic_type": "hj",
    "cost_ub": 150,
    "actor_objective": "feasibility",
    "extract_method": "minqc",
}
BATCHES = {"official": 2048, "small": 512}
"""Rows of a training step: each half goes into one update of the actor, the first 256 into the critics'."""


def old_names() -> None:
    """Let code written for gym and an older JAX find what it asks for."""
    flax.config.update("flax_return_frozendict", True)
    sys.modules["gym"] = gymnasium
    sys.modules["gym.utils"] = gymnasium.utils
    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree.map
    sys.modules.setdefault("gym.utils.seeding", types.ModuleType("gym.utils.seeding"))
    sys.modules["gym.utils.seeding"] = gymnasium.utils.seeding


def main() -> None:
    parser = common.speed_arguments(__doc__ or "")
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--size", choices=sorted(SIZES), default="official")
    parser.add_argument("--warm-up", type=int, default=5)
    options = parser.parse_args()
    source = options.checkout / "jaxrl5" / "agents" / "fisor" / "fisor.py"
    if not source.is_file():
        raise SystemExit(f"{source}: no such file; --checkout wants a checkout of ZhengYinan-AIR/FISOR")
    old_names()
    sys.path.insert(0, str(options.checkout))
    from jaxrl5.agents import FISOR
    from jaxrl5.data.dataset import Dataset

    rows = common.random_rows(options.seed)
    ends = np.maximum(rows["terminals"], rows["timeouts"])
    columns = {
        "observations": rows["observations"],
        "actions": rows["actions"],
        "rewards": rows["rewards"],
        "next_observations": rows["next_observations"],
        "masks": 1 - ends,
        "dones": ends,
        "costs": np.where(rows["rewards"] > 1, 25, -1).astype(np.float32),
    }
    dataset = Dataset(columns, seed=options.seed)
    box = gymnasium.spaces.Box(-np.inf, np.inf, (common.OBSERVATION_SIZE,), np.float32)
    actions = gymnasium.spaces.Box(-1, 1, (common.ACTION_SIZE,), np.float32)
    agent = FISOR.create(options.seed, box, actions, **COMMON, **SIZES[options.size])

    def run(updates: int) -> None:
        nonlocal agent
        for _ in range(updates):
            agent, info = agent.update(dataset.sample_jax(BATCHES[options.size]))
        jax.block_until_ready(agent.score_model.params)
        jax.block_until_ready(agent.safe_target_critic.params)
        if not np.isfinite(float(info["actor_loss"])):
            raise SystemExit("the official code's actor loss is not finite")

    peer = f"FISOR official JAX, {options.size}"
    common.report_official(peer, run, options.updates, options.warm_up, source, jax=jax.__version__)


if __name__ == "__main__":
    main()
