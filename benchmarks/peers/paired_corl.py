"""CORL's scripts as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/corl/bin/python benchmarks/peers/paired_corl.py rows --algorithm td3bc --checkout DIR --file FILE \
        --environment Hopper-v5 --out rows.npz

DIR is a checkout of tinkoff-ai/CORL; nothing of it is in this repository. Its single-file scripts run unchanged behind
the stand-ins of corl_script.py. ReBRAC, which is in JAX, has paired_rebrac.py.
"""

import argparse
import types
from pathlib import Path

import common
import corl_script
import numpy as np
import paired_peer
import torch
from paired_peer import Arrays
from torch_peer import BATCH, Official, TorchPeer, d4rl_rows, kept_rows

TWO = ("critic_1", "critic_2")
CQL = Official(
    {"actor": ("actor.base_network",), "critic": TWO, "target_critic": ("target_critic_1", "target_critic_2")},
    {"actor": "actor_optimizer", "critic": "critic_1_optimizer"},
    losses={"policy_loss": "actor_loss"},
)
ENSEMBLE = Official(
    {"actor": ("actor",), "critic": ("critic",), "target_critic": ("target_critic",)},
    {"actor": "actor_optimizer", "critic": "critic_optimizer", "temperature": "alpha_optimizer"},
    {"temperature.rho": "log_alpha"},
    {"alpha_loss": "temperature_loss"},
)
OFFICIAL = {
    "iql": Official(
        {
            "actor": ("actor",),
            "value": ("vf",),
            "critic": ("qf.q1", "qf.q2"),
            "target_critic": ("q_target.q1", "q_target.q2"),
        },
        {"actor": "actor_optimizer", "value": "v_optimizer", "critic": "q_optimizer"},
        {"actor.log_std": "actor.log_std"},
        {"q_loss": "critic_loss"},
    ),
    "td3bc": Official(
        {
            "actor": ("actor",),
            "target_actor": ("actor_target",),
            "critic": TWO,
            "target_critic": ("critic_1_target", "critic_2_target"),
        },
        {"actor": "actor_optimizer", "critic": "critic_1_optimizer"},
    ),
    "awac": Official(
        {
            "actor": ("_actor",),
            "critic": ("_critic_1", "_critic_2"),
            "target_critic": ("_target_critic_1", "_target_critic_2"),
        },
        {"actor": "_actor_optimizer", "critic": "_critic_1_optimizer"},
        {"actor.log_std": "_actor._log_std"},
    ),
    "edac": ENSEMBLE,
    "sac_n": ENSEMBLE,
    "cql": CQL,
    "calql": Official(CQL.networks, CQL.optimizers, losses=CQL.losses, columns=(*BATCH, "returns_to_go")),
}
AS_THEY_ARE = {"edac", "sac_n"}
"""Scripts that do not normalise observations."""
EPISODE = 1000


class CORL(TorchPeer):
    """A trainer of one script; observations are normalised where it does so, rewards left, as its defaults have it."""

    def __init__(self, algorithm: str, checkout: Path) -> None:
        self.algorithm, self.official = algorithm, OFFICIAL[algorithm]
        self.script = corl_script.load_script(checkout / "algorithms" / "offline" / corl_script.SCRIPTS[algorithm])

    def rows(self, data: Arrays) -> Arrays:
        """Its normalisation and its replay buffer."""
        kept = kept_rows(data)
        if self.algorithm == "calql":
            task = types.SimpleNamespace(_max_episode_steps=EPISODE)
            kept["mc_returns"] = np.array(self.script.get_return_to_go(kept, task, self.script.TrainConfig()))
        self.mean, self.deviation = np.float32(0), np.float32(1)
        if self.algorithm not in AS_THEY_ARE:
            self.mean, self.deviation = corl_script.normalise(self.script, kept)
        buffer = corl_script.fill_buffer(self.script, kept)
        rows = d4rl_rows(buffer)
        if self.algorithm == "calql":
            rows["returns_to_go"] = buffer._mc_returns.numpy().reshape(-1)
        return rows

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new trainer."""
        torch.manual_seed(seed)
        sizes = rows["observations"].shape[1], rows["actions"].shape[1]
        self.trainer = corl_script.TRAINERS[self.algorithm](self.script, *sizes, planned)
        self.step = 0

    def silence(self) -> None:
        """No noise on the target's action in TD3+BC; what is drawn elsewhere comes from `handed`.

        CQL's temperature stays at 1, and the two numbers by which its policy scales and shifts its log deviations, and
        trains both, stay at 1 and 0: ours has no such numbers.
        """
        if self.algorithm == "td3bc":
            self.trainer.policy_noise = 0.0
        if self.algorithm in {"cql", "calql"}:
            self.trainer.use_automatic_entropy_tuning = False
            for scalar, value in ((self.trainer.actor.log_std_multiplier, 1.0), (self.trainer.actor.log_std_offset, 0)):
                scalar.constant.requires_grad_(False).fill_(value)
        self.hand_numbers()

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """Its actor in evaluation, on observations normalised as its wrapper does."""
        states = (observations - self.mean) / self.deviation
        actor = self.trainer._actor if self.algorithm == "awac" else self.trainer.actor
        actor.eval()
        actions = [actor.act(state.astype(np.float32), "cpu") for state in states]
        actor.train()
        return np.stack(actions).reshape(len(states), -1)


class Windows(CORL):
    """DT's loader alone; its networks are of another form than ours."""

    def __init__(self, checkout: Path) -> None:
        self.algorithm = "dt"
        self.script = corl_script.load_script(checkout / "algorithms" / "offline" / corl_script.SCRIPTS["dt"])

    def rows(self, data: Arrays) -> Arrays:
        """Its windows of whole episodes, one after the other, without padding; returns in units of the rewards."""
        kept = {name: values for name, values in data.items() if name != "next_observations"}
        task = types.SimpleNamespace(get_dataset=lambda: kept)
        self.script.gym = types.SimpleNamespace(make=lambda name: task)
        self.script.trange = lambda count, **_: range(count)
        windows = self.script.SequenceDataset("", seq_len=EPISODE)
        prepare, columns = windows._SequenceDataset__prepare_sample, []
        for episode in range(len(windows.dataset)):
            *values, mask = prepare(episode, 0)
            columns.append([value[mask.astype(bool)] for value in values])
        found = [np.concatenate(column).astype(np.float32) for column in zip(*columns, strict=True)]
        return dict(zip(("observations", "actions", "returns_to_go", "timesteps"), found, strict=True))


def build(arguments: argparse.Namespace) -> CORL:
    """One of the scripts."""
    if arguments.algorithm == "dt":
        return Windows(arguments.checkout)
    if arguments.algorithm not in OFFICIAL:
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has {', '.join(OFFICIAL)}")
    return CORL(arguments.algorithm, arguments.checkout)


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
