"""OfflineRL-Kit's MOPO and the official MOBILE as a `Peer`: the policy's step and the model's first weights.

    $SUREFOOT_PEERS/corl/bin/python benchmarks/peers/paired_offlinekit.py steps --algorithm mopo --checkout DIR ...

DIR is a checkout of yihaosun1124/OfflineRL-Kit or yihaosun1124/mobile (MIT); nothing of them is in this repository.
gymnasium stands in for gym.
"""

import argparse
import importlib
import sys
import types
from typing import Any

import gymnasium
import numpy as np
import paired_peer
import torch
from paired_peer import Arrays

torch.set_num_threads(1)
HIDDEN, MODEL_HIDDEN, MEMBERS, ELITES = (256, 256), (200, 200, 200, 200), 7, 5
DECAYS = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
"""Of its run_mopo.py, as the rates below."""
RATES = {"actor": 1e-4, "critic": 3e-4, "temperature": 1e-4}


PARTS = {
    "mopo": {
        "offlinerlkit.nets": ("MLP",),
        "offlinerlkit.modules": ("TanhDiagGaussian", "ActorProb", "Critic", "EnsembleDynamicsModel"),
        "offlinerlkit.dynamics": ("EnsembleDynamics",),
        "offlinerlkit.policy.model_based.mopo": ("MOPOPolicy",),
        "offlinerlkit.utils.scaler": ("StandardScaler",),
    },
    "mobile": {
        "models.nets": ("MLP",),
        "models.dist": ("TanhDiagGaussian",),
        "models.actor_critic": ("ActorProb", "Critic"),
        "models.dynamics_model": ("EnsembleDynamicsModel",),
        "dynamics.ensemble_dynamics": ("EnsembleDynamics",),
        "policies.mobile": ("MOBILEPolicy",),
        "utils.scaler": ("StandardScaler",),
    },
}
"""Algorithm -> module of the checkout -> its classes that are used."""


class OfflineKit:
    """A policy as run_mopo.py of the one, or train.py of the other, makes it."""

    def __init__(self, algorithm: str, checkout: Any) -> None:
        sys.path.insert(0, str(checkout))
        sys.modules["gym"] = gymnasium
        logger = "offlinerlkit.utils.logger" if algorithm == "mopo" else "utils.logger"
        sys.modules[logger] = types.SimpleNamespace(Logger=object)  # type: ignore[assignment]
        self.algorithm, parts = algorithm, dict[str, Any]()
        for module, names in PARTS[algorithm].items():
            found = importlib.import_module(module)
            parts |= {name: getattr(found, name) for name in names}
        self.parts = types.SimpleNamespace(**parts)

    def rows(self, data: Arrays) -> Arrays:
        """What its `qlearning_dataset` keeps of the file: steps that no time limit cut."""
        kept = paired_peer.without_cut_steps(data)
        names = ("observations", "actions", "rewards", "next_observations")
        return {**{n: np.asarray(kept[n], np.float32) for n in names}, "terminations": kept["terminals"].astype("f4")}

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """Networks, model and optimisers as its script makes them."""
        torch.manual_seed(seed)
        o, a = rows["observations"].shape[1], rows["actions"].shape[1]
        m = self.parts
        backbone = m.MLP(input_dim=o, hidden_dims=HIDDEN)
        head = m.TanhDiagGaussian(backbone.output_dim, a, unbounded=True, conditioned_sigma=True, max_mu=1.0)
        actor = m.ActorProb(backbone, head)
        critics = [m.Critic(m.MLP(input_dim=o + a, hidden_dims=HIDDEN)) for _ in range(2)]
        log_alpha = torch.zeros(1, requires_grad=True)
        adam = torch.optim.Adam
        alpha = (-a, log_alpha, adam([log_alpha], lr=RATES["temperature"]))
        self.model = m.EnsembleDynamicsModel(o, a, MODEL_HIDDEN, MEMBERS, ELITES, weight_decays=DECAYS)
        scaler = m.StandardScaler()
        scaler.fit(np.concatenate([rows["observations"][:1000], rows["actions"][:1000]], 1))
        model = m.EnsembleDynamics(self.model, None, scaler, None)
        actor_adam = adam(actor.parameters(), lr=RATES["actor"])
        if self.algorithm == "mobile":
            both = torch.nn.ModuleList(critics)
            critic_adam = adam(both.parameters(), lr=RATES["critic"])
            self.policy = m.MOBILEPolicy(model, actor, both, actor_adam, critic_adam, alpha=alpha)
        else:
            adams = [actor_adam, *(adam(critic.parameters(), lr=RATES["critic"]) for critic in critics)]
            self.policy = m.MOPOPolicy(model, actor, *critics, *adams, alpha=alpha)
        self.policy.train()

    def silence(self) -> None:
        """Actions in losses are the policy's modes."""
        own = self.policy.actforward
        self.policy.actforward = lambda obs, deterministic=False: own(obs, True)

    def layers(self) -> dict[str, list[list[list[torch.nn.Linear]]]]:
        """Ours -> members -> layers -> heads."""
        p = self.policy
        head = p.actor.dist_net
        actor = [*([part] for part in linears(p.actor.backbone)), [head.mu, head.sigma]]
        found = {"actor": [actor]}
        several = self.algorithm == "mobile"
        critics = list(p.critics) if several else [p.critic1, p.critic2]
        targets = list(p.critics_old) if several else [p.critic1_old, p.critic2_old]
        for ours, theirs in (("critic", critics), ("target_critic", targets)):
            found[ours] = [[[part] for part in linears(critic)] for critic in theirs]
        return found

    def networks(self) -> Arrays:
        """By our names, the model too."""
        found: Arrays = {"temperature.rho": self.policy._log_alpha.detach().numpy().copy().reshape(())}
        for name, members in self.layers().items():
            for k in range(len(members[0])):
                for part, ours in (("weight", "weights"), ("bias", "biases")):
                    values = [torch.cat([getattr(h, part) for h in one[k]]).detach().numpy().copy() for one in members]
                    found[f"{name}.mlp.{ours}.{k}"] = np.stack(values) if "critic" in name else values[0]
        for k, layer in enumerate([*self.model.backbones, self.model.output_layer]):
            found[f"model.network.weights.{k}"] = layer.weight.detach().numpy().transpose(0, 2, 1).copy()
            found[f"model.network.biases.{k}"] = layer.bias.detach().numpy()[:, 0].copy()
        for ours, theirs in (("max_log_variance", "max_logvar"), ("min_log_variance", "min_logvar")):
            found[f"model.{ours}"] = getattr(self.model, theirs).detach().numpy().copy()
        return found

    @torch.no_grad()
    def take(self, networks: Arrays) -> None:
        """The other way round, but for the model."""
        self.policy._log_alpha.copy_(torch.from_numpy(np.asarray(networks["temperature.rho"])).reshape(1))
        for name, members in self.layers().items():
            for k in range(len(members[0])):
                for part, ours in (("weight", "weights"), ("bias", "biases")):
                    for number, one in enumerate(members):
                        values = torch.from_numpy(networks[f"{name}.mlp.{ours}.{k}"])
                        values = values[number] if "critic" in name else values
                        targets = [getattr(head, part) for head in one[k]]
                        for target, source in zip(targets, values.split([len(t) for t in targets]), strict=True):
                            target.copy_(source)

    def update(self, batch: Arrays) -> dict[str, float]:
        """Its `learn`, all rows as real ones."""
        tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in batch.items()}
        tensors["terminals"] = tensors.pop("terminations")[:, None]
        tensors["rewards"] = tensors["rewards"][:, None]
        empty = {name: values[:0] for name, values in tensors.items()}
        found = self.policy.learn({"real": tensors, "fake": empty})
        return {name.removeprefix("loss/"): float(value) for name, value in found.items()}

    def rates(self) -> dict[str, float]:
        """Of its optimisers."""
        p = self.policy
        critic = p.critics_optim if self.algorithm == "mobile" else p.critic1_optim
        found = {"actor": p.actor_optim, "critic": critic, "temperature": p.alpha_optim}
        return {name: float(optimizer.param_groups[0]["lr"]) for name, optimizer in found.items()}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Its `select_action`, deterministic."""
        return self.policy.select_action(observations, deterministic=True)


def linears(module: Any) -> list[torch.nn.Linear]:
    """Linear layers in their order."""
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


def build(arguments: argparse.Namespace) -> Any:
    """One of them."""
    if arguments.algorithm not in PARTS:
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has {', '.join(PARTS)}")
    return OfflineKit(arguments.algorithm, arguments.checkout)


if __name__ == "__main__":
    paired_peer.main(__doc__ or "", build)
