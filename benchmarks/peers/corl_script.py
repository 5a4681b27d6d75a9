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


def edac_trainer(script: types.ModuleType, observations: int, actions: int, steps: int) -> Any:
    """Build CORL's EDAC with the defaults of its TrainConfig, those for HalfCheetah: 10 critics, eta 1."""
    config = script.TrainConfig()
    actor = script.Actor(observations, actions, config.hidden_dim, config.max_action)
    critic = script.VectorizedCritic(observations, actions, config.hidden_dim, config.num_critics)
    kind, options = (script.EDAC, {"eta": config.eta}) if hasattr(config, "eta") else (script.SACN, {})
    return kind(
        actor=actor,
        actor_optimizer=torch.optim.Adam(actor.parameters(), lr=config.actor_learning_rate),
        critic=critic,
        critic_optimizer=torch.optim.Adam(critic.parameters(), lr=config.critic_learning_rate),
        gamma=config.gamma,
        tau=config.tau,
        alpha_learning_rate=config.alpha_learning_rate,
        device="cpu",
        **options,
    )


def awac_trainer(script: types.ModuleType, observations: int, actions: int, steps: int) -> Any:
    """Build CORL's AWAC with the defaults of its TrainConfig, but lambda 1/3 as in its settings for locomotion."""
    config = script.TrainConfig(device="cpu", awac_lambda=0.3333)
    parts = {"actor": script.Actor(observations, actions, config.hidden_dim)}
    parts |= {f"critic_{k}": script.Critic(observations, actions, config.hidden_dim) for k in (1, 2)}
    optimizers = {
        f"{name}_optimizer": torch.optim.Adam(part.parameters(), lr=config.learning_rate)
        for name, part in parts.items()
    }
    settings = {"gamma": config.gamma, "tau": config.tau, "awac_lambda": config.awac_lambda}
    return script.AdvantageWeightedActorCritic(**parts, **optimizers, **settings)


def cql_trainer(script: types.ModuleType, observations: int, actions: int, steps: int) -> Any:
    """Build CORL's CQL, or Cal-QL, with the defaults of its TrainConfig."""
    c = script.TrainConfig(device="cpu")
    sizes = (observations, actions, c.orthogonal_init, c.q_n_hidden_layers)
    parts = {f"critic_{k}": script.FullyConnectedQFunction(*sizes) for k in (1, 2)}
    parts["actor"] = script.TanhGaussianPolicy(observations, actions, 1.0, orthogonal_init=c.orthogonal_init)
    rates = {"actor": c.policy_lr, "critic_1": c.qf_lr, "critic_2": c.qf_lr}
    optimizers = {f"{name}_optimizer": torch.optim.Adam(parts[name].parameters(), rates[name]) for name in parts}
    names = """discount alpha_multiplier use_automatic_entropy_tuning backup_entropy policy_lr qf_lr bc_steps
        soft_target_update_rate target_update_period cql_n_actions cql_importance_sample cql_lagrange
        cql_target_action_gap cql_temp cql_alpha cql_max_target_backup cql_clip_diff_min cql_clip_diff_max"""
    settings = {name: getattr(c, name) for name in names.split()}
    kind = script.ContinuousCQL if hasattr(script, "ContinuousCQL") else script.CalQL
    return kind(**parts, **optimizers, **settings, target_entropy=-float(actions), device="cpu")


SCRIPTS: dict[str, str] = {
    "iql": "iql.py",
    "td3bc": "td3_bc.py",
    "edac": "edac.py",
    "sac_n": "sac_n.py",
    "awac": "awac.py",
    "cql": "cql.py",
    "calql": "../finetune/cal_ql.py",
    "dt": "dt.py",
}
"""Algorithm -> file in CORL's folder algorithms/offline."""
TRAINERS: dict[str, Callable[[types.ModuleType, int, int, int], Any]] = {
    "iql": iql_trainer,
    "td3bc": td3bc_trainer,
    "edac": edac_trainer,
    "sac_n": edac_trainer,
    "awac": awac_trainer,
    "cql": cql_trainer,
    "calql": cql_trainer,
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
