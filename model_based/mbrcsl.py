"""MBRCSL: a clone is followed in a learned model, and of the paths that beat the data a policy is cloned by return."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.diffusion import Schedule, denoising_loss, implicit
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores, Uniform
from surefoot.core.engine.traits import WarmStart
from surefoot.core.nn.noise_networks import NoiseNetwork, PlainNoise
from surefoot.core.nn.noise_unet import UNetNoise
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import best_return
from surefoot.data.sources import Added
from surefoot.model_based.base.alarm import AlarmConfig
from surefoot.model_based.base.signals import over_best
from surefoot.offline.rcsl import RCSL, RCSLConfig
from surefoot.world_models.dynamics import Dynamics
from surefoot.world_models.ensemble import learning
from surefoot.world_models.ensemble.gaussian import DECAYS
from surefoot.world_models.ensemble.learning import BestSoFar, EnsembleConfig, ensemble_of, learn_model, prepare_model
from surefoot.world_models.paths import Paths, follow, nothing_kept, path_noise, path_notes, step_by_step

STARTS, KEPT = "starts", "kept"


@dataclasses.dataclass(frozen=True)
class MBRCSLConfig(AlarmConfig, EnsembleConfig, RCSLConfig):
    """Settings of MBRCSL; the defaults are sizes that suit a core, the preset `official` has the paper's.

    The training steps of the phases come one after another, and what is left of the run's is the policy's.
    """

    learning_rate: float = 1e-3
    l2: float = 0.0
    returns: str = "none"
    normalization: str = "none"
    model_members: int = 5
    model_elites: int = 3
    model_hidden: tuple[int, ...] = (100, 100)
    model_decays: tuple[float, ...] = ()
    model_normalize_targets: bool = option(
        True, "divide what is predicted by its deviations; else steps of 0.01 in a maze are predicted to 0.003"
    )
    model_updates: int = option(
        4_000, "training steps of the model; it may stop improving, and so learning, before", range=">= 1"
    )
    behavior_updates: int = option(6_000, "training steps of the clone", range=">= 1")
    rollout_batches: int = option(50, "training steps that follow the clone in the model, at most", range=">= 1")
    rollouts: int = option(200, "paths in each of those batches", range=">= 1")
    horizon: int = option(200, "steps of a path, H", range=">= 1")
    kept: int = option(100, "paths above the data's best return after which no more are made", range=">= 1")
    bounded: bool = option(True, "keep the model's states in the range of the data's, each number by itself")
    behavior_network: str = option(
        "mlp", "network of the clone: mlp or mlp_unet, the published one", choices=("mlp", "mlp_unet")
    )
    behavior_widths: tuple[int, ...] = option((128, 128, 128), "widths of the clone's layers, or of the U's way down")
    diffusion_steps: int = option(10, "steps of diffusion", range=">= 1")
    behavior_learning_rate: float = option(3e-4, "learning rate of the clone", range=">= 0")
    behavior_weight_decay: float = option(1e-6, "weight decay of the clone", range=">= 0")
    behavior_warm_up: int = option(500, "steps of the clone's cosine schedule", range=">= 0")
    behavior_stride: int = option(1, "training steps that are one step of the clone's schedule", range=">= 1")
    average_rate: float = option(2e-3, "rate of the clone's average, which is followed", range="(0, 1]")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        require(self.termination in {"auto", "none"}, "mbrcsl", "termination", self.termination, "auto: no path ends")
        require(self.history == 1, "mbrcsl", "history", self.history, "1: its model predicts single observations")


PUBLISHED: dict[str, Any] = {
    "hidden": (1024, 1024), "learning_rate": 5e-5, "l2": 0.1, "model_normalize_targets": False, "bounded": False,
    "model_members": 7, "model_elites": 5, "model_hidden": (200, 200, 200, 200), "model_decays": DECAYS,
    "rollout_batches": 1_000, "model_updates": 100_000,  # in the paper until 5 passes bring nothing, without a limit
    "behavior_network": "mlp_unet", "behavior_widths": (256, 512, 1024), "behavior_learning_rate": 1e-4,
    "average_rate": 4e-4, "behavior_updates": 38_900,  # 50 passes over 199,000 rows
}  # fmt: skip


class MBRCSL(RCSL):
    r"""Model-based return-conditioned supervised learning of Zhou et al. (ICLR 2024).

    1. An ensemble :math:`p(s', r | s, a)` is fitted to the data.
    2. So is a diffusion clone :math:`\mu(a | s)`.
    3. :math:`\mu` is followed in the model for H steps from the data's first states, 200 paths at a time; those that
       return more in the model than the best episode of the data are kept, until there are `kept` of them.
    4. :math:`\pi(a | s, g)` clones what they did, as RCSL does, g being what they still earned in the model.
    5. It acts with the highest return among them for a target, less what is earned in truth.

    No value is bootstrapped. It needs dynamics that are nearly deterministic, and a good path whose parts are all in
    the data. What fails shows in the share of paths that are kept (`acceptance`: 0 where the clone never does better
    than the data) and in `model_return_over_best` (far above 1 where the model is wrong in the paths' favour). Other
    than in the published code the policy takes all of its steps and the last is used, and the clone's average moves at
    a constant rate; with the defaults the model predicts changes in units of their own deviations, and its states stay
    in the range of the data. The preset `official_schedule` has that code's slip: a schedule with 500 steps of warm-up
    advances by one a pass over the data, so that training ends within the warm-up at a tenth of the rate: passes
    e = 1, 2, ... are at :math:`10^{-4} (e - 1) / 500`.
    """

    name = "mbrcsl"
    Config: ClassVar[type] = MBRCSLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {}, "official": PUBLISHED, "official_schedule": {**PUBLISHED, "behavior_stride": 778},
    }  # fmt: skip
    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions", "rewards", "next_observations")
    warm_start = WarmStart(counters=("accepted", "tried"))
    config: MBRCSLConfig
    low: Tensor
    high: Tensor
    threshold: Tensor
    accepted: Tensor
    tried: Tensor

    def build(self) -> None:
        """Policy, model, and clone."""
        super().build()
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.model = ensemble_of(self.spec, c, units=lambda states: self.normalizer.inverse(states))
        self.model_best = BestSoFar(self.model)
        self.noise_schedule = Schedule.cosine(c.diffusion_steps)
        network = UNetNoise if c.behavior_network == "mlp_unet" else PlainNoise
        self.behaviour: NoiseNetwork = network(*sizes, c.behavior_widths)
        self.average_behaviour = copy.deepcopy(self.behaviour).requires_grad_(False)
        for end in ("low", "high"):  # of the data's observations
            self.register_buffer(end, torch.zeros(sizes[0]))
        self.register_buffer("threshold", torch.zeros(()))  # the data's best return
        for count in self.warm_start.counters:  # paths kept, and batches of them, so far
            self.register_buffer(count, torch.zeros((), dtype=torch.int64))

    @property
    def world(self) -> Dynamics:
        """Where paths are followed."""
        return self.model

    def prepare(self, dataset: Dataset) -> Dataset:
        """As RCSL's; sets the return that paths must beat, and the model's statistics."""
        if not self.goals_fixed:
            self.threshold.fill_(best_return(dataset))
        ready = super().prepare(dataset)
        self.low.copy_(torch.from_numpy(ready.observations.min(0)))
        self.high.copy_(torch.from_numpy(ready.observations.max(0)))
        return prepare_model(self, ready)

    def notes(self, dataset: Dataset) -> list[str]:
        """What paths must beat, and when the policy's training begins."""
        first, best = self.phases[-1] + 1, best_return(dataset)
        kept = f"mbrcsl: keeps paths that return more than {best:.1f} in the model"
        own = f"{kept}; its policy learns from training step {first:,} on, and its scores mean nothing before"
        return [own, *path_notes(self.config.horizon, dataset), *learning.weight_notes(dataset, self.config)]

    @property
    def phases(self) -> tuple[int, int, int]:
        """The last training steps of model, clone and paths."""
        c = self.config
        cloned = c.model_updates + c.behavior_updates
        return c.model_updates, cloned, cloned + c.rollout_batches

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """The data's rows, the model's, the first states of episodes, and the steps of paths that are kept."""
        c, dataset = self.config, stores.dataset
        first = torch.from_numpy(dataset.observations[dataset.episode_starts[:-1]]).to(stores.data.device)
        columns = {"observations": first.shape[1:], "actions": (self.spec.action_dim,), "returns_to_go": ()}
        kept = Added((c.kept + c.rollouts - 1) * c.horizon, columns, KEPT)
        kept.dtype = stores.data["rewards"].dtype
        return {
            MAIN: Uniform(stores.data),
            **learning.model_sources(stores, c),
            STARTS: Uniform(lambda rows: {"observations": first[rows]}, len(first), STARTS),
            KEPT: kept,
        }

    def behaviour_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the noise in noisy actions of the data, a mean over the numbers of an action."""
        steps = self.noise_schedule.step_of(noise["step"].squeeze(-1))
        noisy = self.noise_schedule.noisy(batch["actions"], noise["noise"], steps)
        predicted = self.behaviour(noisy, batch["observations"], steps)
        return denoising_loss(predicted, noise["noise"]) / self.spec.action_dim, {}

    def behave(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, A) actions of the clone: all steps of DDPM, clipped in what they take for the action.

        Args:
            observations: (B, O).
            noise: (B, T, A) standard normal.
        """

        def predict(actions: Tensor, step: int) -> Tensor:
            velocity: Tensor = self.average_behaviour(actions, observations, torch.full_like(actions[:1, 0], step))
            return velocity

        return implicit(predict, noise, self.noise_schedule, self.noise_schedule.steps, eta=1.0)

    def follow(self, observations: Tensor, noise: dict[str, Tensor]) -> Paths:
        """Paths of the clone in the model from (B, O) observations, by the (B, ...) noise of `imagine`."""
        shape = (self.noise_schedule.steps, self.spec.action_dim)
        steps = step_by_step(noise, self.config.horizon, self.draw_member)
        bounds = (self.low, self.high) if self.config.bounded else None
        return follow(self.world, lambda o, n: self.behave(o, n.unflatten(-1, shape)), observations, steps, bounds)

    def draw_member(self, uniform: Tensor) -> Tensor | None:
        """(B,) members of the world that predict a step, each elite equally likely, of uniform numbers."""
        return self.model.draw_elites(uniform)

    def imagine(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Any], Metrics]:
        """One batch of paths; those above the data's best are kept, unless there are enough already."""
        if int(self.accepted) >= (c := self.config).kept:
            return {}, {}
        paths = self.follow(batch["observations"], noise)
        returns = torch.where(paths.finite, paths.returns_to_go[0], -torch.inf)
        chosen = returns > self.threshold
        accepted, tried = self.accepted + chosen.sum(), self.tried + 1
        best = torch.where(chosen, returns, -torch.inf).amax()
        target = torch.where(self.accepted > 0, self.actor.target_return, -torch.inf).maximum(best)
        if int(tried) == c.rollout_batches and int(accepted) == 0:
            raise nothing_kept(self.name, c.rollout_batches * c.rollouts, float(self.threshold), float(returns.amax()))
        reached = torch.where(accepted > 0, target, self.actor.target_return)
        wanted = reached if c.target_return is None else self.actor.target_return
        metrics = {
            "acceptance": accepted / (tried * len(returns)),
            "kept_paths": accepted.float(),
            "model_return": paths.returns_to_go[0].mean(),
            "model_return_over_best": torch.where(accepted > 0, over_best(reached, self.threshold), torch.nan),
        }
        return {KEPT: paths.rows(chosen), "accepted": accepted, "tried": tried, "actor.target_return": wanted}, metrics

    def updates(self) -> list[Update | Rule]:
        """Model; clone; paths; policy: one after another."""
        c, (model, behaviour, rollouts) = self.config, self.phases
        adam = Adam(c.behavior_learning_rate, weight_decay=c.behavior_weight_decay, schedule="cosine",
                    warm_up=c.behavior_warm_up, stride=c.behavior_stride)  # fmt: skip
        drawn = {"noise": Noise("normal", self.spec.action_dim), "step": Noise("uniform", 1)}
        average = {"average_behaviour": ("behaviour", c.average_rate)}
        path = path_noise(c.horizon, c.diffusion_steps * self.spec.action_dim, self.world)
        changes = ("accepted", "tried", "actor")
        return [
            *learn_model(self, until=model),
            Update(
                self.behaviour_loss,
                ("behaviour",),
                adam,
                after=model,
                until=behaviour,
                noise=drawn,
                target_updates=average,
            ),
            Rule(self.imagine, changes, source=STARTS, rows=c.rollouts, after=behaviour, until=rollouts, noise=path),
            Update(self.actor_loss, ("actor",), Adam(c.learning_rate), KEPT, after=rollouts),
        ]
