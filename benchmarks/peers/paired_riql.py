"""RIQL's and MSG's code of RIQL's authors as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/corl/bin/python benchmarks/peers/paired_riql.py rows --algorithm riql --checkout DIR --file FILE \
        --environment Hopper-v5 --out rows.npz

DIR is a checkout of YangRui2015/RIQL; nothing of it is in this repository. Its scripts run unchanged behind the
stand-ins of corl_script.py. Data are as they are, not corrupted.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import common
import corl_script
import numpy as np
import paired_peer
import torch
from paired_peer import Arrays
from torch_peer import Official, TorchPeer, d4rl_rows, kept_rows

OFFICIAL = {
    "riql": Official(
        {"actor": ("actor",), "value": ("vf",), "critic": ("qf",), "target_critic": ("q_target",)},
        {"actor": "actor_optimizer", "value": "v_optimizer", "critic": "q_optimizer"},
        losses={"q_loss": "critic_loss"},
    ),
    "msg": Official(
        {"actor": ("actor",), "critic": ("critic",), "target_critic": ("target_critic",)},
        {"actor": "actor_optimizer", "critic": "critic_optimizer", "temperature": "alpha_optimizer"},
        {"temperature.rho": "log_alpha"},
        {"alpha_loss": "temperature_loss"},
    ),
}


class RIQL(TorchPeer):
    """A trainer of RIQL.py or MSG.py with its defaults; rewards are left, observations normalised in RIQL."""

    def __init__(self, algorithm: str, checkout: Path) -> None:
        self.algorithm, self.official = algorithm, OFFICIAL[algorithm]
        sys.path.insert(0, str(checkout))
        self.script = corl_script.load_script(checkout / f"{algorithm.upper()}.py")

    def rows(self, data: Arrays) -> Arrays:
        """Its normalisation and its replay buffer."""
        kept = kept_rows(data)
        self.mean, self.deviation = np.float32(0), np.float32(1)
        names = ("observations", "next_observations")
        if self.script.TrainConfig.normalize:
            both = np.concatenate([kept[name] for name in names])
            self.mean, self.deviation = self.script.compute_mean_std(both, eps=1e-3)
        for name in names:
            kept[name] = self.script.normalize_states(kept[name], self.mean, self.deviation)
        sizes = kept["observations"].shape[1], kept["actions"].shape[1], len(kept["rewards"])
        clean = [np.zeros(sizes[2])] if self.algorithm == "riql" else []  # which rows were corrupted
        buffer = self.script.ReplayBuffer(*sizes, *clean, "cpu")
        buffer.load_d4rl_dataset(kept)
        return d4rl_rows(buffer)

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new trainer."""
        torch.manual_seed(seed)
        sizes = rows["observations"].shape[1], rows["actions"].shape[1]
        self.trainer, self.step = (self.riql if self.algorithm == "riql" else self.msg)(*sizes, planned), 0

    def riql(self, observations: int, actions: int, planned: int) -> Any:
        """As its `train` builds it."""
        c = self.script.TrainConfig
        parts = {
            "actor": self.script.DeterministicPolicy(observations, actions, 1.0),
            "q_network": self.script.VectorizedQ(observations, actions, num_critics=c.num_critics),
            "v_network": self.script.ValueFunction(observations),
        }
        optimizers = {
            f"{name.split('_')[0]}_optimizer": torch.optim.Adam(part.parameters(), lr=c.learning_rate)
            for name, part in parts.items()
        }
        names = ("discount", "soft_target_update_rate", "beta", "iql_tau")
        settings = {name: getattr(c, name) for name in names} | {"max_steps": planned, "max_action": 1.0}
        return self.script.ImplicitQLearning(**parts, **optimizers, **settings, device="cpu")

    def msg(self, observations: int, actions: int, planned: int) -> Any:
        """As its `train` builds it."""
        c = self.script.TrainConfig
        actor = self.script.Actor(observations, actions, c.hidden_dim, 1.0)
        critic = self.script.VectorizedCritic(observations, actions, c.hidden_dim, c.num_critics)
        names = ("discount", "soft_target_update_rate", "alpha_learning_rate", "LCB_ratio")
        return self.script.MSG(
            actor=actor,
            actor_optimizer=torch.optim.Adam(actor.parameters(), lr=c.actor_learning_rate),
            critic=critic,
            critic_optimizer=torch.optim.Adam(critic.parameters(), lr=c.critic_learning_rate),
            **{name: getattr(c, name) for name in names},
        )

    def tensors(self, batch: Arrays) -> list[torch.Tensor]:
        """In RIQL's also which rows were corrupted: none."""
        found = super().tensors(batch)
        return [*found, torch.zeros(len(found[0]))] if self.algorithm == "riql" else found

    def silence(self) -> None:
        """What is drawn comes from `handed`."""
        self.hand_numbers()

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """Its actor in evaluation, on observations normalised as its wrapper does."""
        states = ((observations - self.mean) / self.deviation).astype(np.float32)
        self.trainer.actor.eval()
        actions = [self.trainer.actor.act(state, "cpu") for state in states]
        self.trainer.actor.train()
        return np.stack(actions).reshape(len(states), -1)


def build(arguments: argparse.Namespace) -> RIQL:
    """One of the scripts."""
    if arguments.algorithm not in OFFICIAL:
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has {', '.join(OFFICIAL)}")
    return RIQL(arguments.algorithm, arguments.checkout)


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
