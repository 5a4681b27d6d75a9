"""OSRL's safe offline algorithms as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/corl/bin/python benchmarks/peers/paired_osrl.py rows --algorithm cpq --checkout DIR --file FILE \\
        --environment HalfCheetah-v5 --out rows.npz

DIR is a checkout of liuzuxin/OSRL; nothing of it is in this repository. Its algorithms and loaders run unchanged;
`fsrl`, whose logger is all that they take of it, is stood in for. The file has costs; what DSRL's environments do with
data before (`pre_process_data`) leaves them as they are at its defaults. Episodes are of 1,000 steps and may cost 25.
"""

import argparse
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import common
import h5py
import numpy as np
import paired_peer
import torch
from paired_peer import Arrays
from torch_peer import Official, TorchPeer

LIMIT, EPISODE = 25, 1000
TARGETS = {"target_critic": "critic_old", "target_cost_critic": "cost_critic_old"}


def critics(places: tuple[str, str]) -> dict[str, tuple[str, ...]]:
    """Reward and cost critics and their targets, two of each."""
    names = {"critic": "critic", "cost_critic": "cost_critic", **TARGETS}
    return {ours: tuple(f"{theirs}.{place}" for place in places) for ours, theirs in names.items()}


VAE = {"vae.encoder": ("vae:e1,e2,mean+log_std",), "vae.decoder": ("vae:d1,d2,d3",)}
ONE_ENSEMBLE, TWO_ENSEMBLES = ("q_nets.0", "q_nets.1"), ("q1_nets.0", "q2_nets.0")
RATES = {"vae": "vae_optim", "critic": "critic_optim", "cost_critic": "cost_critic_optim"}
OFFICIAL = {
    "bc_safe": Official({"actor": ("actor",)}, {"actor": "actor_optim"}),
    "cpq": Official({"actor": ("actor",), **critics(ONE_ENSEMBLE), **VAE}, {**RATES, "actor": "actor_optim"}),
    "bcq_lag": Official(
        {
            "perturbation": ("actor.pi",),
            "target_perturbation": ("actor_old.pi",),
            **critics(TWO_ENSEMBLES),
            **VAE,
        },
        {"vae": "vae_optim", "critic": "critic_optim", "perturbation": "actor_optim"},
    ),
    "bear_lag": Official(
        {"actor": ("actor",), "target_actor": ("actor_old",), **critics(TWO_ENSEMBLES), **VAE},
        {"vae": "vae_optim", "critic": "critic_optim", "actor": "actor_optim"},
    ),
    "coptidice": Official(
        {"actor": ("actor",), "nu": ("nu_network.q_nets.0",), "chi": ("chi_network.q_nets.0",)},
        {"actor": "actor_optim", "nu": "nu_optim", "chi": "chi_optim"},
    ),
}
MODULES = {"bc_safe": "bc", "cpq": "cpq", "bcq_lag": "bcql", "bear_lag": "bearl", "coptidice": "coptidice"}
KINDS = {"bc_safe": "BC", "cpq": "CPQ", "bcq_lag": "BCQL", "bear_lag": "BEARL", "coptidice": "COptiDICE"}
SINGLE = {
    "bcq_lag": {"num_q": 1, "num_qc": 1, "sample_action_num": 1},
    "bear_lag": {"num_q": 1, "num_qc": 1, "sample_action_num": 1, "num_samples_mmd_match": 1},
    "coptidice": {"num_nu": 1, "num_chi": 1},
}
"""One network where ours has one, and one action where OSRL takes the largest cost of several and ours their mean."""
MODEL = (
    "a_hidden_sizes",
    "c_hidden_sizes",
    "vae_hidden_sizes",
    "sample_action_num",
    "gamma",
    "tau",
    "phi",
    "lmbda",
    "beta",
    "num_q",
    "num_qc",
    "qc_scalar",
    "PID",
    "mmd_sigma",
    "target_mmd_thresh",
    "num_samples_mmd_match",
    "start_update_policy_step",
    "kernel",
    "f_type",
    "alpha",
    "cost_ub_epsilon",
    "num_nu",
    "num_chi",
)


class OSRL(TorchPeer):
    """A model and its trainer, with the settings of examples/configs."""

    def __init__(self, algorithm: str, checkout: Path, file: Path) -> None:
        self.algorithm, self.official, self.file = algorithm, OFFICIAL[algorithm], file
        sys.path[:0] = [str(checkout), str(checkout / "examples")]
        utils = types.ModuleType("fsrl.utils")
        logger = type("Logger", (), {"store": lambda self, **values: vars(self).update(reported=values)})
        utils.DummyLogger = utils.WandbLogger = logger  # type: ignore[attr-defined]
        sys.modules |= {"fsrl": types.ModuleType("fsrl"), "fsrl.utils": utils}
        name = MODULES[algorithm]
        self.script = importlib.import_module(f"osrl.algorithms.{name}")
        self.dataset = importlib.import_module("osrl.common.dataset")
        settings = importlib.import_module(f"configs.{name}_configs")
        self.config = getattr(settings, f"{KINDS[algorithm]}TrainConfig")()
        self.quiet = False

    def rows(self, data: Arrays) -> Arrays:
        """What its loaders give for every row."""
        with h5py.File(self.file, "r") as stored:
            data = {**data, "costs": stored["costs"][:]}
        if self.algorithm == "bc_safe":
            self.dataset.process_bc_dataset(data, LIMIT, self.config.gamma, "safe")
            return {name: data[name] for name in ("observations", "actions", "rewards")}
        scales = self.config.reward_scale, self.config.cost_scale
        loaded = self.dataset.TransitionDataset(data, *scales, state_init=self.algorithm == "coptidice")
        if self.algorithm == "coptidice":
            self.stated = loaded.get_dataset_states()
        prepare = loaded._TransitionDataset__prepare_sample
        samples = zip(*(prepare(row) for row in range(loaded.dataset_size)), strict=True)
        names = ("observations", "next_observations", "actions", "rewards", "costs", "terminations")
        return {name: np.asarray(column, np.float32) for name, column in zip(names, samples, strict=False)}

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new model and its trainer's optimisers."""
        torch.manual_seed(seed)
        settings = {name: getattr(self.config, name) for name in MODEL if hasattr(self.config, name)}
        settings |= SINGLE.get(self.algorithm, {})
        if self.algorithm == "coptidice":
            names = ("init_state_propotion", "observations_std", "actions_std")
            settings |= dict(zip(names, self.stated, strict=True))
        if self.algorithm != "bc_safe":
            settings["cost_limit"] = LIMIT
        else:
            del settings["gamma"]
        sizes = rows["observations"].shape[1], rows["actions"].shape[1]
        kind = KINDS[self.algorithm]
        self.trainer = getattr(self.script, kind)(*sizes, 1.0, episode_len=EPISODE, **settings)
        rates = {
            n: getattr(self.config, n)
            for n in ("actor_lr", "critic_lr", "vae_lr", "alpha_lr", "scalar_lr")
            if hasattr(self.config, n)
        }
        self.whole = getattr(self.script, f"{kind}Trainer")(self.trainer, None, self.script.DummyLogger(), **rates)
        self.step = 0

    def silence(self) -> None:
        """What is drawn comes from `handed`, and no row ends an episode: OSRL ends returns of rewards at time limits,
        and those of costs never."""
        self.quiet = True
        self.hand_numbers()

    def update(self, batch: Arrays) -> dict[str, float]:
        """Its `train_one_step`."""
        if self.quiet and "terminations" in batch:
            batch = {**batch, "terminations": np.zeros_like(batch["terminations"])}
        names = ("observations", "next_observations", "actions", "rewards", "costs", "terminations")
        if self.algorithm == "bc_safe":
            names = ("observations", "actions")
        self.whole.train_one_step(*(torch.from_numpy(np.asarray(batch[name], np.float32)) for name in names))
        self.step += 1
        return {}

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """As its rollouts."""
        states = observations.astype(np.float32)
        if self.algorithm == "bc_safe":
            return np.stack([self.trainer.act(state) for state in states])
        return np.stack([self.trainer.act(state, True, True)[0] for state in states])


def build(arguments: argparse.Namespace) -> Any:
    """One of the algorithms."""
    if arguments.algorithm not in OFFICIAL:
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has {', '.join(OFFICIAL)}")
    return OSRL(arguments.algorithm, arguments.checkout, arguments.file)


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
