"""CORL's IQL and TD3+BC as a `Peer`, from a checkout that the user gives.

    $SUREFOOT_PEERS/corl/bin/python benchmarks/peers/paired_corl.py rows --algorithm td3bc --checkout DIR --file FILE \
        --environment Hopper-v5 --out rows.npz

DIR is a checkout of tinkoff-ai/CORL; nothing of it is in this repository. Its single-file scripts run unchanged behind
the stand-ins of corl_script.py.
"""

import argparse
from pathlib import Path
from typing import Any

import common
import corl_script
import numpy as np
import paired_peer
import torch
from paired_peer import Arrays

torch.set_num_threads(1)
NETWORKS = {
    "iql": {"actor": "actor", "value": "vf", "critic": "qf", "target_critic": "q_target"},
    "td3bc": {"actor": "actor", "target_actor": "actor_target", "critic": "critic", "target_critic": "critic_target"},
}
OPTIMIZERS = {
    "iql": {"actor": "actor_optimizer", "value": "v_optimizer", "critic": "q_optimizer"},
    "td3bc": {"actor": "actor_optimizer", "critic": "critic_1_optimizer"},
}


class CORL:
    """A trainer of one script; observations are normalised and rewards left, as its defaults have it."""

    def __init__(self, algorithm: str, checkout: Path) -> None:
        self.algorithm = algorithm
        self.script = corl_script.load_script(checkout / "algorithms" / "offline" / corl_script.SCRIPTS[algorithm])

    def rows(self, data: Arrays) -> Arrays:
        """Its normalisation and its replay buffer."""
        kept = paired_peer.without_cut_steps(data)
        kept["terminals"] = kept["terminals"].astype(np.float32)
        self.mean, self.deviation = corl_script.normalise(self.script, kept)
        buffer = corl_script.fill_buffer(self.script, kept)
        names = ("_states", "_actions", "_rewards", "_next_states", "_dones")
        columns = [getattr(buffer, name).numpy() for name in names]
        return {
            "observations": columns[0],
            "actions": columns[1],
            "rewards": columns[2].reshape(-1),
            "next_observations": columns[3],
            "terminations": columns[4].reshape(-1),
        }

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new trainer."""
        torch.manual_seed(seed)
        sizes = rows["observations"].shape[1], rows["actions"].shape[1]
        self.trainer = corl_script.TRAINERS[self.algorithm](self.script, *sizes, planned)

    def silence(self) -> None:
        """No noise on the target's action, in TD3+BC; IQL has none."""
        if self.algorithm == "td3bc":
            self.trainer.policy_noise = 0.0

    def modules(self, ours: str) -> list[torch.nn.Module]:
        """The networks behind one of ours: one, or critics side by side."""
        theirs = NETWORKS[self.algorithm][ours]
        if "critic" not in ours:
            return [getattr(self.trainer, theirs)]
        if self.algorithm == "iql":
            both = getattr(self.trainer, theirs)
            return [both.q1, both.q2]
        parts = theirs.split("_")
        return [getattr(self.trainer, "_".join([parts[0], str(k), *parts[1:]])) for k in (1, 2)]

    def networks(self) -> Arrays:
        """Linear layers by our names."""
        found: Arrays = {}
        for ours in NETWORKS[self.algorithm]:
            members = [linears(module) for module in self.modules(ours)]
            for layer in range(len(members[0])):
                for part, name in (("weight", "weights"), ("bias", "biases")):
                    values = [getattr(member[layer], part).detach().numpy().copy() for member in members]
                    found[f"{ours}.mlp.{name}.{layer}"] = np.stack(values) if "critic" in ours else values[0]
        if hasattr(self.trainer.actor, "log_std"):
            found["actor.log_std"] = self.trainer.actor.log_std.detach().numpy().copy()
        return found

    @torch.no_grad()
    def take(self, networks: Arrays) -> None:
        """The other way round."""
        for ours in NETWORKS[self.algorithm]:
            for member, module in enumerate(self.modules(ours)):
                for layer, linear in enumerate(linears(module)):
                    for part, name in (("weight", "weights"), ("bias", "biases")):
                        values = networks[f"{ours}.mlp.{name}.{layer}"]
                        own = values[member] if "critic" in ours else values
                        getattr(linear, part).copy_(torch.from_numpy(np.ascontiguousarray(own)))
        if "actor.log_std" in networks:
            self.trainer.actor.log_std.copy_(torch.from_numpy(networks["actor.log_std"]))

    def update(self, batch: Arrays) -> dict[str, float]:
        """Its `train`."""
        names = ("observations", "actions", "rewards", "next_observations", "terminations")
        tensors = [torch.from_numpy(np.ascontiguousarray(batch[name], dtype=np.float32)) for name in names]
        tensors[2], tensors[4] = tensors[2][:, None], tensors[4][:, None]
        losses = self.trainer.train(tensors)
        return {{"q_loss": "critic_loss"}.get(name, name): float(value) for name, value in losses.items()}

    def rates(self) -> dict[str, float]:
        """What its optimisers have for the next step."""
        return {
            ours: float(getattr(self.trainer, theirs).param_groups[0]["lr"])
            for ours, theirs in OPTIMIZERS[self.algorithm].items()
        }

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """Its actor in evaluation, on observations normalised as its wrapper does."""
        states = (observations - self.mean) / self.deviation
        self.trainer.actor.eval()
        actions = [self.trainer.actor.act(state.astype(np.float32)) for state in states]
        self.trainer.actor.train()
        return np.stack(actions).reshape(len(states), -1)


def linears(module: Any) -> list[torch.nn.Linear]:
    """Linear layers in their order."""
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


def build(arguments: argparse.Namespace) -> CORL:
    """One of the scripts."""
    if arguments.algorithm not in NETWORKS:
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has {', '.join(NETWORKS)}")
    return CORL(arguments.algorithm, arguments.checkout)


if __name__ == "__main__":
    assert common.BATCH_SIZE == 256
    paired_peer.main(__doc__ or "", build)
