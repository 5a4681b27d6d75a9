"""Loads one of CORL's single-file scripts as it is and builds its trainer, without running its `train()`.

The scripts import `gym`, `d4rl` and `wandb`, which today's machines don't have (mujoco-py, gym 0.23). None of
the classes used here calls them, so stand-ins go to `sys.modules`: gymnasium in gym's place, empty modules
for the other two (any use of one is an AttributeError, not a silent nothing).
"""

import hashlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch


def load_script(source: Path) -> types.ModuleType:
    """Import the CORL script at `source`, unmodified."""
    sys.modules["gym"] = gymnasium
    for name in ("d4rl", "wandb"):
        sys.modules[name] = types.ModuleType(name)
    spec = importlib.util.spec_from_file_location(f"corl_{source.stem}", source)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{source}: not a python file; give a script such as CORL/algorithms/offline/iql.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def sha256(source: Path) -> str:
    """Return the digest that says which version of the script ran."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def iql_trainer(script: types.ModuleType, observations: int, actions: int, steps: int) -> Any:
    """Build CORL's IQL with the defaults of its TrainConfig; actions are scaled to [-1, 1]."""
    config = script.TrainConfig(device="cpu", max_timesteps=steps)
    q_network = script.TwinQ(observations, actions)
    v_network = script.ValueFunction(observations)
    policy = script.DeterministicPolicy if config.iql_deterministic else script.GaussianPolicy
    actor = policy(observations, actions, 1.0, dropout=config.actor_dropout)
    return script.ImplicitQLearning(
        max_action=1.0,
        actor=actor,
        actor_optimizer=torch.optim.Adam(actor.parameters(), lr=config.actor_lr),
        q_network=q_network,
        q_optimizer=torch.optim.Adam(q_network.parameters(), lr=config.qf_lr),
        v_network=v_network,
        v_optimizer=torch.optim.Adam(v_network.parameters(), lr=config.vf_lr),
        discount=config.discount,
        tau=config.tau,
        device="cpu",
        beta=config.beta,
        iql_tau=config.iql_tau,
        max_steps=steps,
    )


def td3bc_trainer(script: types.ModuleType, observations: int, actions: int, steps: int) -> Any:
    """Build CORL's TD3+BC with the defaults of its TrainConfig; it has no schedule that needs `steps`."""
    config = script.TrainConfig(device="cpu", max_timesteps=steps)
    actor = script.Actor(observations, actions, 1.0)
    critic_1 = script.Critic(observations, actions)
    critic_2 = script.Critic(observations, actions)
    return script.TD3_BC(
        max_action=1.0,
        actor=actor,
        actor_optimizer=torch.optim.Adam(actor.parameters(), lr=3e-4),
        critic_1=critic_1,
        critic_1_optimizer=torch.optim.Adam(critic_1.parameters(), lr=3e-4),
        critic_2=critic_2,
        critic_2_optimizer=torch.optim.Adam(critic_2.parameters(), lr=3e-4),
        discount=config.discount,
        tau=config.tau,
        device="cpu",
        policy_noise=config.policy_noise,
        noise_clip=config.noise_clip,
        policy_freq=config.policy_freq,
        alpha=config.alpha,
    )


SCRIPTS: dict[str, str] = {"iql": "iql.py", "td3bc": "td3_bc.py"}
TRAINERS: dict[str, Callable[[types.ModuleType, int, int, int], Any]] = {
    "iql": iql_trainer,
    "td3bc": td3bc_trainer,
}


def normalise(script: types.ModuleType, data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Normalise the observations in `data` in place as the script does; return mean and deviation."""
    mean, std = script.compute_mean_std(data["observations"], eps=1e-3)
    for key in ("observations", "next_observations"):
        data[key] = script.normalize_states(data[key], mean, std)
    return mean, std


def fill_buffer(script: types.ModuleType, data: dict[str, np.ndarray]) -> Any:
    """Put rows in D4RL's layout into the script's own replay buffer."""
    rows, size = data["observations"].shape
    buffer = script.ReplayBuffer(size, data["actions"].shape[1], rows, "cpu")
    buffer.load_d4rl_dataset(data)
    return buffer


def run_updates(trainer: Any, buffer: Any, updates: int, batch_size: int = 256) -> None:
    """The script's training loop without its evaluation and logging: sample, move, train."""
    for _ in range(updates):
        batch = [part.to("cpu") for part in buffer.sample(batch_size)]
        trainer.train(batch)
