"""stable-baselines3's SAC, TD3, DQN and PPO as a `Peer`, the installed package unchanged.

    $SUREFOOT_PEERS/sb3/bin/python benchmarks/peers/paired_sb3.py weights --algorithm sac --checkout \
        stable-baselines3==2.9.2 --file FILE --environment Hopper-v5

Beside what every runner answers, `collected` says what its collection hands the update, in scripted_env.py.
"""

import argparse
import importlib.metadata
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import paired_peer
import scripted_env
import torch
from paired_peer import Arrays
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.buffers import ReplayBufferSamples, RolloutBufferSamples
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

torch.set_num_threads(1)
KINDS = {"sac": SAC, "td3": TD3, "dqn": DQN, "ppo": PPO}
COLLECTED_STEPS, FIRST_STEPS, HORIZON, MINIBATCH, EPOCHS = 400, 100, 128, 32, 4
COLLECTING: dict[str, dict[str, Any]] = {
    "sac": {"learning_starts": FIRST_STEPS},
    "td3": {"learning_starts": FIRST_STEPS},
    "dqn": {
        "learning_starts": FIRST_STEPS,
        "train_freq": 1,
        "gradient_steps": 1,
        "target_update_interval": 50,
        "exploration_fraction": 0.5,
        "exploration_final_eps": 0.04,
    },
    "ppo": {"n_steps": HORIZON, "batch_size": MINIBATCH, "n_epochs": EPOCHS},
}
"""Settings of the collection, in which ours is compared too (benchmarks/pairs/online.py)."""


def two(values: np.ndarray) -> torch.Tensor:
    """(B, 1) float32."""
    return torch.from_numpy(np.ascontiguousarray(values, np.float32)).reshape(len(values), -1)


class Watch(BaseCallback):
    """Counts updates, and what follows the steps, seen before each step is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[int] = []
        self.epsilon: list[float] = []
        self.targets: list[float] = []

    def _on_step(self) -> bool:
        self.look()
        return True

    def look(self) -> None:
        """Append what holds now."""
        self.updates.append(int(self.model._n_updates))
        if isinstance(self.model, DQN):
            self.epsilon.append(float(self.model.exploration_rate))
            self.targets.append(float(next(self.model.q_net_target.parameters()).abs().double().sum()))


class SB3:
    """A model of one algorithm."""

    def __init__(self, algorithm: str, wanted: str, environment: str) -> None:
        found = f"stable-baselines3=={importlib.metadata.version('stable-baselines3')}"
        if found != wanted:
            raise SystemExit(f"wanted is {wanted}, found {found}")
        self.algorithm, self.environment = algorithm, environment

    # -- what it learns from ----------------------------------------------------------------------------------------

    def rows(self, data: Arrays) -> Arrays:
        """A file's transitions as its buffers would hold them; PPO's get made-up values of the policy that acted."""
        found = {name: np.asarray(data[name], np.float32) for name in ("observations", "actions", "rewards")}
        found |= {"next_observations": np.asarray(data["next_observations"], np.float32)}
        found["terminations"] = data["terminals"].astype(np.float32)
        if self.algorithm == "ppo":
            source, count = np.random.default_rng(0), len(found["rewards"])
            found["advantages"], found["returns"], found["values"] = source.standard_normal((3, count), np.float32)
            density = -0.5 * (found["actions"] ** 2 + np.log(2 * np.pi)).sum(1)
            found["behaviour_log_prob"] = density + 0.2 * source.standard_normal(count, np.float32)
        return found

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new model."""
        self.make(seed, self.environment, {"n_epochs": 1, "batch_size": 256} if self.algorithm == "ppo" else {})

    def make(self, seed: int, environment: str, options: dict[str, Any]) -> None:
        """With its defaults but for these options."""
        torch.manual_seed(seed)
        if self.algorithm == "dqn":
            options = {"policy_kwargs": {"net_arch": [256, 256]}, "buffer_size": 1000, **options}
        elif self.algorithm in ("sac", "td3"):
            options = {"buffer_size": 1000, **options}
        self.model = KINDS[self.algorithm]("MlpPolicy", environment, seed=seed, device="cpu", **options)
        self.model.set_logger(Logger(folder=None, output_formats=[]))

    def silence(self) -> None:
        """Actions in losses are the policy's means; target actions are not smoothed."""
        if self.algorithm == "td3":
            self.model.target_policy_noise = 0.0
        if self.algorithm == "sac":
            distribution = self.model.actor.action_dist
            distribution.sample = distribution.mode

            def mean(mean_actions: torch.Tensor, log_std: torch.Tensor) -> Any:
                distribution.proba_distribution(mean_actions, log_std)
                raw = distribution.distribution.mean
                actions = torch.tanh(raw)
                return actions, distribution.log_prob(actions, raw)

            distribution.log_prob_from_params = mean

    # -- networks ---------------------------------------------------------------------------------------------------

    def members(self) -> dict[str, list[list[torch.nn.Module]]]:
        """Ours -> a list for each network side by side: its linear layers, the last of which may be several heads."""
        m = self.model
        if self.algorithm == "dqn":
            return {"critic": [linears(m.q_net)], "target_critic": [linears(m.q_net_target)]}
        if self.algorithm == "ppo":
            p = m.policy
            return {
                "actor": [[*linears(p.mlp_extractor.policy_net), p.action_net]],
                "value": [[*linears(p.mlp_extractor.value_net), p.value_net]],
            }
        critics = {
            "critic": [linears(q) for q in m.critic.q_networks],
            "target_critic": [linears(q) for q in m.critic_target.q_networks],
        }
        if self.algorithm == "td3":
            return {"actor": [linears(m.actor.mu)], "target_actor": [linears(m.actor_target.mu)], **critics}
        return {"actor": [[*linears(m.actor.latent_pi), torch.nn.ModuleList([m.actor.mu, m.actor.log_std])]], **critics}

    def alone(self) -> dict[str, torch.Tensor]:
        """Parameters that are no layer."""
        if self.algorithm == "sac":
            return {"temperature.rho": self.model.log_ent_coef}
        return {"actor.log_std": self.model.policy.log_std} if self.algorithm == "ppo" else {}

    def networks(self) -> Arrays:
        """By our names."""
        found: Arrays = {}
        for name, members in self.members().items():
            for layer in range(len(members[0])):
                for part, ours in (("weight", "weights"), ("bias", "biases")):
                    values = [
                        torch.cat([getattr(head, part) for head in heads(member[layer])]).detach().numpy().copy()
                        for member in members
                    ]
                    stacked = np.stack(values) if side_by_side(self.algorithm, name) else values[0]
                    found[f"{name}.mlp.{ours}.{layer}"] = stacked
        return found | {
            n: v.detach().numpy().copy().reshape(-1 if v.numel() > 1 else ()) for n, v in self.alone().items()
        }

    @torch.no_grad()
    def take(self, networks: Arrays) -> None:
        """The other way round."""
        for name, members in self.members().items():
            for k, member in enumerate(members):
                for layer, module in enumerate(member):
                    for part, ours in (("weight", "weights"), ("bias", "biases")):
                        values = networks[f"{name}.mlp.{ours}.{layer}"]
                        own = torch.from_numpy(values[k] if side_by_side(self.algorithm, name) else values)
                        parts = [getattr(head, part) for head in heads(module)]
                        for target, source in zip(parts, own.split([len(p) for p in parts]), strict=True):
                            target.copy_(source)
        for name, target in self.alone().items():
            target.copy_(torch.from_numpy(np.asarray(networks[name])).reshape(target.shape))

    # -- training ---------------------------------------------------------------------------------------------------

    def update(self, batch: Arrays) -> dict[str, float]:
        """Its `train` on one batch, which its buffer is made to give."""
        m = self.model
        if self.algorithm == "ppo":
            tensors = [torch.from_numpy(batch[name]) for name in ("observations", "actions", "values")]
            more = [torch.from_numpy(batch[name]) for name in ("behaviour_log_prob", "advantages", "returns")]
            m.rollout_buffer.get = lambda size: iter([RolloutBufferSamples(*tensors, *more)])
            m.rollout_buffer.values = m.rollout_buffer.returns = np.zeros(2)
            m.train()
            return {"loss": float(m.logger.name_to_value["train/loss"])}
        actions = two(batch["actions"].argmax(1)) if self.algorithm == "dqn" else two(batch["actions"])
        columns = (two(batch["observations"]), actions, two(batch["next_observations"]))
        sample = ReplayBufferSamples(*columns, two(batch["terminations"]), two(batch["rewards"]))
        m.replay_buffer.sample = lambda *_, **__: sample
        m.train(gradient_steps=1, batch_size=len(actions))
        if self.algorithm == "dqn":
            m._on_step()  # of the environment's next step
        logged = m.logger.name_to_value
        return {n.removeprefix("train/"): float(v) for n, v in logged.items() if n.endswith("loss")}

    def rates(self) -> dict[str, float]:
        """Constant, all of them."""
        m = self.model
        if self.algorithm in ("dqn", "ppo"):
            rate = float(m.policy.optimizer.param_groups[0]["lr"])
            return {"critic" if self.algorithm == "dqn" else "actor": rate}
        found = {n: float(getattr(m, n).optimizer.param_groups[0]["lr"]) for n in ("actor", "critic")}
        if self.algorithm == "sac":
            found["temperature"] = float(m.ent_coef_optimizer.param_groups[0]["lr"])
        return found

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Its `predict`, deterministic."""
        found = self.model.predict(observations, deterministic=True)[0]
        return found if found.ndim > 1 else found.astype(np.int64)

    # -- collection -------------------------------------------------------------------------------------------------

    def collected(self, given: Arrays) -> Arrays:
        """What `COLLECTED_STEPS` steps in the scripted environment hand to the update."""
        name = scripted_env.NAMES["discrete" if self.algorithm == "dqn" else "box"]
        self.make(0, name, COLLECTING[self.algorithm])
        return self.collected_block(given) if self.algorithm == "ppo" else self.collected_replay()

    def collected_replay(self) -> Arrays:
        """The replay buffer's rows, how many updates were taken after each step, and DQN's epsilon and targets."""
        watch, buffer = Watch(), self.model.replay_buffer
        self.model.learn(COLLECTED_STEPS, callback=watch)
        watch.look()
        sample = buffer._get_samples(np.arange(COLLECTED_STEPS))
        found = {
            "observations": sample.observations.numpy(),
            "rewards": sample.rewards.numpy().reshape(-1),
            "next_observations": sample.next_observations.numpy(),
            "terminations": sample.dones.numpy().reshape(-1),
            "updates": np.array(watch.updates[1:], np.float32),
        }
        if watch.epsilon:
            found["epsilon"] = np.array(watch.epsilon[1:], np.float32)
            found["target_moves"] = np.cumsum(np.diff(watch.targets) != 0).astype(np.float32)
        return found

    def collected_block(self, given: Arrays) -> Arrays:
        """Two rollouts by the given networks, which stay as they are; how often each row is learned from."""
        self.take({name.removeprefix("weights/"): v for name, v in given.items()})
        m, found = self.model, {}
        m.learning_rate, m.lr_schedule = 0.0, lambda _: 0.0
        visits = np.zeros(HORIZON, np.float32)
        steps, get = [], m.rollout_buffer._get_samples

        def counted(indices: np.ndarray, env: Any = None) -> Any:
            visits[indices] += 1
            steps.append(len(indices))
            return get(indices, env)

        m.rollout_buffer._get_samples = counted
        for block in range(2):
            m.learn(HORIZON, reset_num_timesteps=block == 0)
            b = m.rollout_buffer
            for name in ("observations", "values", "advantages", "returns"):
                column = np.array(getattr(b, name), np.float32).reshape(HORIZON, -1)
                found.setdefault(name, []).append(column if name == "observations" else column[:, 0])
            found.setdefault("visits", []).append(visits.copy())
            found.setdefault("updates", []).append(np.full(HORIZON, len(steps), np.float32))
            visits[:] = 0
        return {name: np.concatenate(parts) for name, parts in found.items()}


def side_by_side(algorithm: str, name: str) -> bool:
    """Whether ours holds several networks under that name."""
    return "critic" in name and algorithm != "dqn"


def heads(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The linear layers that are one layer of ours."""
    return list(module) if isinstance(module, torch.nn.ModuleList) else [module]


def linears(module: Any) -> list[torch.nn.Linear]:
    """Linear layers in their order."""
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


def build(arguments: argparse.Namespace) -> SB3:
    """One of its algorithms."""
    gymnasium.make(arguments.environment).close()
    return SB3(arguments.algorithm, Path(arguments.checkout).name, arguments.environment)


if __name__ == "__main__":
    paired_peer.main(__doc__ or "", build)
