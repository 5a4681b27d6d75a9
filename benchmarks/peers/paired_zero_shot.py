"""Official zero-shot agents as `Peer`s, from a checkout that the user gives.

    $SUREFOOT_PEERS/corl/bin/python benchmarks/peers/paired_zero_shot.py steps --algorithm fb --checkout DIR ...

DIR is a checkout of enjeeneer/zero-shot-rl (FB, VC-FB, MC-FB) or seohongpark/HILP; nothing of them is in this
repository. Their agents, networks and updates run unchanged, with the sizes below; what they import beside (loggers,
simulators, Hydra) is stood in for. Their loaders read files of ExORL alone, so that rows are the file's own; the goals
of HILP's features are drawn here, later rows and any of the data in its README's shares.
"""

import argparse
import functools
import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import common
import handed
import numpy as np
import paired_peer
import torch
from paired_peer import Arrays
from torch import Tensor, nn

torch.set_num_threads(1)


class Sizes(NamedTuple):
    """Of networks and batches."""

    hidden: int = 64
    width: int = 32
    latent: int = 16
    small: int = 64  # of B; of HILP's features
    batch: int = common.BATCH_SIZE
    mixed: float = 0.0  # HILP's share of tasks that are states'


PUBLISHED = {"fb": Sizes(1024, 512, 50, 256, 512), "hilp": Sizes(1024, 512, 50, 512, 1024, 0.5)}
DISCOUNT, GOAL_DISCOUNT, RANDOM_GOALS = 0.98, 0.99, 0.375
ZERO_SHOT = {"fb": "FB", "vc_fb": "CFB", "mc_fb": "CFB"}
CONSERVATIVE: dict[str, Any] = {
    "total_action_samples": 12,
    "ood_action_weight": 0.5,
    "alpha": 0.01,
    "target_conservative_penalty": 50.0,
    "lagrange": True,
}
"""Of its agents/cfb/config.yaml, as the rates below."""


def package(name: str, folder: Path) -> None:
    """An empty package, so that a module of it is imported without what its own first lines import."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def stand_ins(**modules: dict[str, Any]) -> None:
    """Modules with a few names, a dot written as two underscores."""
    for name, names in modules.items():
        sys.modules[name.replace("__", ".")] = types.SimpleNamespace(**names)  # type: ignore[assignment]


def parts_of(network: nn.Module) -> list[nn.Module]:
    """Layers with parameters in their order: linear ones and norms."""
    return [part for part in network.modules() if isinstance(part, nn.Linear | nn.LayerNorm)]


def of_layers(stem: str, members: list[nn.Module]) -> dict[str, list[nn.Parameter]]:
    """Our parameter -> theirs of each member."""
    found: dict[str, list[nn.Parameter]] = {}
    for several in zip(*(parts_of(one) for one in members), strict=True):
        names = ("scales", "shifts") if isinstance(several[0], nn.LayerNorm) else ("weights", "biases")
        number = sum(name.startswith(f"{stem}.{names[0]}.") for name in found)
        for name, own in zip(names, ("weight", "bias"), strict=True):
            found[f"{stem}.{name}.{number}"] = [getattr(one, own) for one in several]
    return found


def streams(stem: str, whole: nn.Module, first: str, second: str, last: list[str]) -> dict[str, list[nn.Parameter]]:
    """Of a network that prepares two inputs before others read both."""
    found = of_layers(f"{stem}.first", [getattr(whole, first)]) | of_layers(f"{stem}.second", [getattr(whole, second)])
    return found | of_layers(f"{stem}.last", [getattr(whole, name) for name in last])


class ZeroShot:
    """What the agents of both codes share: parameters by our names, and the random numbers of `handed`."""

    agent: Any
    step: int

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Our parameter -> theirs, one or two members of a pair."""
        raise NotImplementedError

    def networks(self) -> Arrays:
        """By our names."""
        pairs = {name: [one.detach().numpy() for one in several] for name, several in self.parts().items()}
        return {name: (np.stack(v) if len(v) > 1 else v[0]).copy() for name, v in pairs.items()}

    @torch.no_grad()
    def take(self, networks: Arrays) -> None:
        """The other way round."""
        for name, several in self.parts().items():
            value = torch.from_numpy(np.ascontiguousarray(networks[name]))
            for place, one in enumerate(several):
                one.copy_((value[place] if len(several) > 1 else value).reshape(one.shape))

    def silence(self) -> None:
        """From now on what is drawn is what `handed` has; a row's task is that of the row before, as ours."""

        def numbers(kind: str, shape: tuple[int, ...]) -> np.ndarray:
            rows = handed.ROWS
            if shape[0] == rows:
                return handed.shaped(kind, self.step, shape)
            several = handed.numbers(kind, self.step, rows, shape[0] // rows * shape[1])  # all rows, and all again
            return np.ascontiguousarray(several.reshape(rows, -1, shape[1]).swapaxes(0, 1)).reshape(shape)

        def normal(*shape: Any, **_: Any) -> Tensor:
            sizes = shape[0] if isinstance(shape[0], tuple | list | torch.Size) else shape
            return torch.from_numpy(np.array(numbers("normal", tuple(sizes))))

        def uniform(size: Any) -> np.ndarray:
            return handed.shaped("uniform", self.step, (size, 1))[:, 0]

        def uniform_(value: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
            return value.copy_(low + (high - low) * torch.from_numpy(np.array(numbers("uniform", tuple(value.shape)))))

        torch.randn = normal  # type: ignore
        for module in (torch.distributions.utils, sys.modules.get("url_benchmark.utils")):  # which has it by name
            if module is not None:
                module._standard_normal = lambda shape, dtype, device: normal(shape)  # type: ignore
        torch.Tensor.uniform_ = uniform_  # type: ignore
        torch.randperm = lambda count, **_: torch.arange(count).roll(1)  # type: ignore
        np.random.rand = uniform  # type: ignore
        np.random.uniform = lambda size: uniform(size)  # type: ignore

    def tensors(self, batch: Arrays) -> dict[str, Tensor]:
        """Columns, and their discounts."""
        found = {name: torch.from_numpy(np.ascontiguousarray(values, np.float32)) for name, values in batch.items()}
        return {**found, "discounts": DISCOUNT * (1 - found["terminations"])[:, None]}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Not asked: the kit hands policies no tasks."""
        raise SystemExit("policies with tasks are not compared in acting")


class ForwardBackward(ZeroShot):
    """FB, or its conservative variants."""

    def __init__(self, algorithm: str, checkout: Path, sizes: Sizes) -> None:
        self.algorithm, self.sizes = algorithm, sizes
        sys.path.insert(0, str(checkout))
        nothing = functools.partial(types.SimpleNamespace)
        stand_ins(wandb={"run": None}, loguru={"logger": nothing()}, rewards={"RewardFunctionConstructor": object})
        kind = "fb" if algorithm == "fb" else "cfb"
        self.kind = getattr(importlib.import_module(f"agents.{kind}.agent"), ZERO_SHOT[algorithm])

    def rows(self, data: Arrays) -> Arrays:
        """The file's."""
        return rows_of(data)

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new agent."""
        torch.manual_seed(seed)
        sizes = self.sizes
        own: dict[str, Any] = {"name": "fb", "actor_learning_rate": 1e-4}
        if self.algorithm != "fb":
            own = {**CONSERVATIVE, "actor_learning_rate": 3e-5, "vcfb": self.algorithm == "vc_fb"}
            own["mcfb"] = not own["vcfb"]
        self.agent = self.kind(
            observation_length=rows["observations"].shape[1],
            action_length=rows["actions"].shape[1],
            preprocessor_hidden_dimension=sizes.hidden,
            preprocessor_output_dimension=sizes.width,
            preprocessor_hidden_layers=2,
            preprocessor_activation="relu",
            z_dimension=sizes.latent,
            forward_hidden_dimension=sizes.hidden,
            forward_hidden_layers=2,
            forward_number_of_features=2,
            backward_hidden_dimension=sizes.small,
            backward_hidden_layers=3,
            actor_hidden_dimension=sizes.hidden,
            actor_hidden_layers=2,
            forward_activation="relu",
            backward_activation="relu",
            actor_activation="relu",
            critic_learning_rate=1e-4,
            learning_rate_coefficient=1,
            orthonormalisation_coefficient=1,
            discount=DISCOUNT,
            batch_size=sizes.batch,
            z_mix_ratio=0.5,
            gaussian_actor=False,
            std_dev_clip=0.3,
            std_dev_schedule="0.2",
            tau=0.01,
            device=torch.device("cpu"),
            **own,
        )
        self.step = 0

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """The maps, their averages and the actor."""
        maps, actor = self.agent.FB, self.agent.actor
        found: dict[str, list[nn.Parameter]] = {}
        for ours, end in (("", ""), ("target_", "_target")):
            forward, backward = (getattr(maps, f"{name}_representation{end}") for name in ("forward", "backward"))
            prepared = "obs_action_preprocessor", "obs_z_preprocessor", ["F1", "F2"]
            found |= streams(f"{ours}forward_map", forward, *prepared)
            found |= of_layers(f"{ours}backward_map.mlp", [backward])
        found |= streams("actor.inner.network", actor, "obs_preprocessor", "obs_z_preprocessor", ["actor"])
        if self.algorithm != "fb":
            found["penalty_weight.rho"] = [self.agent.critic_log_alpha]
        return found

    def update(self, batch: Arrays) -> dict[str, float]:
        """Its update."""
        given = self.tensors(batch)
        names = ("observations", "actions", "rewards", "next_observations", "discounts")
        found = self.agent.update(types.SimpleNamespace(**{name: given[name] for name in names}), self.step)
        self.step += 1
        losses = {"representation_loss": "forward_backward_total_loss", "actor_loss": "actor_loss"}
        if self.algorithm != "fb":
            losses["penalty_weight_loss"] = "alpha_loss"
        return {ours: float(torch.as_tensor(found[f"train/{theirs}"]).detach()) for ours, theirs in losses.items()}

    def rates(self) -> dict[str, float]:
        """Of its optimisers."""
        found = {"forward_map": self.agent.FB_optimizer, "actor": self.agent.actor_optimizer}
        if self.algorithm != "fb":
            found["penalty_weight"] = self.agent.critic_alpha_optimizer
        return {name: float(optimizer.param_groups[0]["lr"]) for name, optimizer in found.items()}


class Distances(ZeroShot):
    """HILP with successor features; all tasks are uniform on the sphere."""

    def __init__(self, checkout: Path, sizes: Sizes) -> None:
        self.sizes = sizes
        root = checkout / "hilp_zsrl" / "url_benchmark"
        sys.path.insert(0, str(root.parent))
        package("url_benchmark", root)
        package("url_benchmark.agent", root / "agent")
        store = types.SimpleNamespace(store=lambda **_: None)
        unused: Callable[[str], str] = lambda name: name  # noqa: E731
        stand_ins(
            hydra={},
            hydra__core={},
            hydra__core__config_store={"ConfigStore": types.SimpleNamespace(instance=lambda: store)},
            omegaconf={"MISSING": "", "II": unused},
            url_benchmark__dmc={"TimeStep": object},
            url_benchmark__in_memory_replay_buffer={"ReplayBuffer": object},
        )
        self.module = importlib.import_module("url_benchmark.agent.sf")

    def rows(self, data: Arrays) -> Arrays:
        """The file's, each with a goal that is drawn once, by numpy's generator of seed 0."""
        found, count = rows_of(data), len(data["rewards"])
        ends = np.flatnonzero(data["terminals"].astype(bool) | data["timeouts"].astype(bool))
        ends = ends if len(ends) and ends[-1] == count - 1 else np.append(ends, count - 1)
        source, own = np.random.default_rng(0), np.arange(count)
        later = np.minimum(own + source.geometric(1 - GOAL_DISCOUNT, count), ends[np.searchsorted(ends, own)])
        goal = np.where(source.random(count) < RANDOM_GOALS, source.integers(count, size=count), later)
        goals = found["observations"][goal]
        met = (np.linalg.norm(found["observations"] - goals, axis=1) < 1e-6).astype(np.float32)  # its own rule
        return {**found, "value_goals": goals, "goal_rewards": met - 1, "goal_masks": 1 - met}

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """A new agent."""
        torch.manual_seed(seed)
        sizes = self.sizes
        self.agent = self.module.SFAgent(
            obs_type="states",
            obs_shape=(rows["observations"].shape[1],),
            action_shape=(rows["actions"].shape[1],),
            image_wh=0,
            device="cpu",
            use_tb=True,
            use_wandb=False,
            num_expl_steps=0,
            update_encoder=False,
            hidden_dim=sizes.hidden,
            phi_hidden_dim=sizes.small,
            feature_dim=sizes.width,
            z_dim=sizes.latent,
            batch_size=sizes.batch,
            mix_ratio=sizes.mixed,
        )
        self.step = 0

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Features, successor features, their averages and the actor."""
        phi = self.agent.feature_learner
        found = of_layers("features_of", [phi.phi1, phi.phi2])
        found |= of_layers("target_features_of", [phi.target_phi1, phi.target_phi2])
        for ours, psi in (("", self.agent.successor_net), ("target_", self.agent.successor_target_net)):
            found |= streams(f"{ours}successor", psi, "obs_action_net", "obs_z_net", ["F1", "F2"])
        return found | streams("actor.inner.network", self.agent.actor, "obs_net", "obs_z_net", ["policy"])

    def update(self, batch: Arrays) -> dict[str, float]:
        """Its update, of a loader that gives this batch."""
        given = self.tensors(batch)
        one = types.SimpleNamespace(
            obs=given["observations"],
            action=given["actions"],
            discount=given["discounts"],
            next_obs=given["next_observations"],
            future_obs=given["value_goals"],
        )
        one.to = lambda device: one
        found = self.agent.update(types.SimpleNamespace(sample=lambda size: one), self.step)
        self.step += 1
        losses = {"successor_loss": "sf_loss", "feature_loss": "phi_loss", "actor_loss": "actor_loss"}
        return {ours: float(found[theirs]) for ours, theirs in losses.items()}

    def rates(self) -> dict[str, float]:
        """Of its optimisers."""
        a = self.agent
        found = {"features_of": a.phi_opt, "successor": a.sf_opt, "actor": a.actor_opt}
        return {name: float(optimizer.param_groups[0]["lr"]) for name, optimizer in found.items()}


def rows_of(data: Arrays) -> Arrays:
    """A file's, as numbers."""
    names = ("observations", "actions", "rewards", "next_observations")
    return {
        **{name: np.asarray(data[name], np.float32) for name in names},
        "terminations": data["terminals"].astype("f4"),
    }


def build(arguments: argparse.Namespace, sizes: Sizes = Sizes()) -> ZeroShot:  # noqa: B008
    """One of the agents."""
    if arguments.algorithm == "hilp":
        return Distances(arguments.checkout, sizes)
    if arguments.algorithm not in ZERO_SHOT:
        raise SystemExit(f"--algorithm {arguments.algorithm}: this runner has {', '.join([*ZERO_SHOT, 'hilp'])}")
    return ForwardBackward(arguments.algorithm, arguments.checkout, sizes)


if __name__ == "__main__":
    assert common.BATCH_SIZE == handed.ROWS
    paired_peer.main(__doc__ or "", build)
