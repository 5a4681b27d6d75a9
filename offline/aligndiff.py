"""AlignDiff: plans by diffusion with as much of each attribute as is asked for, learned from comparisons."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.attribute_planner import MODEL, SEARCH, AttributePlanner, networks, strengths
from surefoot.core.actors.diffusion import Schedule
from surefoot.core.base.errors import DataError
from surefoot.core.base.options import Options, option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores, Uniform
from surefoot.core.losses.attributes import preference_loss
from surefoot.data.comparisons import compared, read_comparisons, starts
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare
from surefoot.data.samplers import Windows
from surefoot.data.sources import WindowSource
from surefoot.data.store import segment_ids

PAIRS, MEASURED = "pairs", "measured"


@dataclasses.dataclass(frozen=True)
class AlignDiffConfig(Options):
    """Settings of attribute-conditioned planning; sizes are this library's choice for a core."""

    attributes: tuple[str, ...] = option(
        ("abs:0",), "words as mean:I, abs:I, deviation:I, change:I; with labels their names"
    )
    wanted: tuple[float, ...] = option(
        (), "strength asked for of each attribute, 0 to 1 from least to most of the data; -1: any; []: any"
    )
    labels: str | None = option(None, ".npz of comparisons by people (docs/flow.md); null: compared by the words")
    pairs: int = option(2_000, "comparisons that are made by the words", range=">= 1")
    attribute_updates: int = option(1_000, "training steps of the attribute model, which come first", range=">= 1")
    attribute_width: int = option(64, "width of the attribute model")
    attribute_layers: int = option(1, "layers of the attribute model")
    attribute_heads: int = option(4, "attention heads of the attribute model")
    attribute_members: int = option(3, "members of the attribute model's ensemble")
    attribute_learning_rate: float = option(1e-3, "learning rate of the attribute model", range=">= 0")
    horizon: int = option(16, "states of a plan, the present one included, H", range=">= 2")
    diffusion_steps: int = option(20, "steps of diffusion, T", range=">= 1")
    sampler_steps: int = option(5, "steps of DDIM")
    guidance: float = option(1.5, "weight of classifier-free guidance, w; 1: none")
    candidates: int = option(16, "N plans of which the nearest acts", range=">= 1")
    keep: float = option(0.8, "chance that an attribute is given while it trains", range="(0, 1]")
    action_weight: float = option(10.0, "weight of the first action's numbers in the loss")
    network: str = option(
        "mlp",
        "network that predicts plans' noise: mlp, or transformer, a token a step (DiT; for a GPU)",
        choices=("mlp", "transformer"),
    )
    hidden: tuple[int, ...] = option((256, 256, 256), "widths of the hidden layers of the mlp")
    width: int = option(128, "width of the transformer")
    layers: int = option(4, "layers of the transformer")
    heads: int = option(4, "attention heads")
    average_rate: float = option(0.005, "rate of the network's average, which plans", range="[0, 1]")
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        c, name = self, "aligndiff"
        require(len(c.attributes) >= 1, name, "attributes", c.attributes, "at least one")
        fits = len(c.wanted) in (0, len(c.attributes)) and all(w <= 1 for w in c.wanted)
        require(fits, name, "wanted", c.wanted, f"empty, or {len(c.attributes)} numbers of at most 1")
        few = c.sampler_steps
        require(1 <= few <= c.diffusion_steps, name, "sampler_steps", few, f"in 1 .. {c.diffusion_steps}")


class AlignDiff(Agent):
    r"""The idea of "AlignDiff: Aligning Diverse Human Preferences via Behavior-Customisable Diffusion Model".

    Source: Dong et al. (ICLR 2024). A model of attributes learns from comparisons of two stretches of H states, of each
    attribute by itself: :math:`P(\tau_1 \succ \tau_2) = \sigma(\zeta(\tau_1) - \zeta(\tau_2))`. Then strengths v, its
    scores from the least to the most of the data, condition a diffusion of plans x = (a_0, s_1, ..., s_{H-1}):

    .. math::
        L_\zeta &= -E\, \big[ p \log \sigma(\zeta_1 - \zeta_2) + (1 - p) \log \sigma(\zeta_2 - \zeta_1) \big] \\
        L &= E\, \big| W (\epsilon_\theta(x_t, s_0, \mu v, \mu) - \epsilon) \big|^2, \quad P(\mu_i = 1) = 0.8

    and `core.actors.attribute_planner` acts. Differences from the paper: sizes, and the diffusion transformer as the
    noise network, are the published ones with `preset=published` alone; it is trained and sampled as DDIM has it, not
    by the parametrisation of EDM; strengths are given as numbers, not as tokens of 100 bins; a plan has one action, the
    first; and the present state is given to the norms, where there it stands in the plan. Without `labels` comparisons
    are made by words such as `abs:3`, the mean size of number 3 of the observation, in place of a person.
    """

    name = "aligndiff"
    Config: ClassVar[type] = AlignDiffConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "published": {  # of the authors' code for walker
            "attribute_width": 128,
            "attribute_layers": 2,
            "attribute_heads": 4,
            "attribute_members": 3,
            "attribute_learning_rate": 1e-4,
            "horizon": 32,
            "sampler_steps": 5,
            "guidance": 1.5,
            "candidates": 64,
            "network": "transformer",
            "width": 384,
            "layers": 12,
            "heads": 6,
            "average_rate": 0.001,
            "learning_rate": 2e-4,
        },
    }
    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions")
    config: AlignDiffConfig
    strength_low: Tensor
    strength_high: Tensor
    state_low: Tensor
    state_high: Tensor

    def build(self) -> None:
        """Attribute model, noise network and its average, and bounds, which data and training set."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        options = {name: getattr(c, name) for name in (*MODEL, *SEARCH)}
        self.noise_network, self.attribute_model = networks(*sizes, len(c.attributes), options)
        self.average_noise_network = copy.deepcopy(self.noise_network).requires_grad_(False)
        self.noise_schedule = Schedule.cosine(c.diffusion_steps)
        for name, count in (("strength", len(c.attributes)), ("state", sizes[0])):
            self.register_buffer(f"{name}_low", -torch.ones(count))
            self.register_buffer(f"{name}_high", torch.ones(count))

    @property
    def actor(self) -> Actor:
        """What acts: the nearest of N plans to what is asked for."""
        c = self.config
        wanted = torch.stack([self.state_low.new_full((), one) for one in c.wanted or [-1.0] * len(c.attributes)])
        bounds = {f"{name}_{end}": getattr(self, f"{name}_{end}").clone()
                  for name in ("strength", "state") for end in ("low", "high")}  # fmt: skip
        options = {name: getattr(c, name) for name in (*MODEL, *SEARCH)}
        return AttributePlanner(self.average_noise_network, self.attribute_model, self.noise_schedule,
                                self.spec.action_dim, bounds, wanted, options)  # fmt: skip

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, normalise observations, note the range of these.

        Raises:
            DataError: no episode is as long as a plan.
        """
        fixed, length = self.rewards_fixed, self.config.horizon
        ready = prepare(self, dataset, normalization=self.config.normalization)
        if not fixed:
            longest = int(np.bincount(segment_ids(ready)).max())
            if longest < length:
                raise DataError(
                    f"{dataset.name}: its longest episode has {longest} steps, and a plan {length}: lower algo.horizon"
                )
            low, high = ready.observations.min(0), ready.observations.max(0) + 1e-6
            high = np.where(high > low, high, np.nextafter(low, np.float32(np.inf)))  # of a constant, not normalised
            self.state_low.copy_(torch.from_numpy(low))
            self.state_high.copy_(torch.from_numpy(high))
        return ready

    def notes(self, dataset: Dataset) -> list[str]:
        """When planning is learned."""
        return [
            f"aligndiff: plans from training step {self.config.attribute_updates + 1:,} on; scores before say nothing"
        ]

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows of H steps, and comparisons of two of them, where there are any."""
        c, of_data, segments = self.config, stores.data["observations"], segment_ids(stores.dataset)
        windows: dict[str, Source] = {
            MAIN: WindowSource(stores.data, segments, Windows(c.horizon)),
            MEASURED: WindowSource(stores.data, segments, Windows(c.horizon), stream=MEASURED),
        }
        mean, scale = (part.to(of_data) for part in (self.normalizer.mean, self.normalizer.scale))
        rows = starts(segments, c.horizon)
        if c.labels is not None:
            found = read_comparisons(c.labels, c.horizon, of_data.shape[-1], len(c.attributes))
        elif len(rows) > 0:
            found = compared(rows, of_data * scale + mean, c.horizon, c.attributes, c.pairs)
        else:  # of the episodes that a run holds out
            return windows
        first, second = ((part.to(of_data) - mean) / scale for part in found[:2])
        pairs = {"first": first, "second": second, "preferred": found.preferred.to(of_data)}

        def gather(indices: Tensor) -> Batch:
            return {name: part[indices] for name, part in pairs.items()}

        return {**windows, PAIRS: Uniform(gather, len(first), PAIRS)}

    def attribute_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Likelihood of the comparisons, of each member."""
        first, second = self.attribute_model(batch["first"]), self.attribute_model(batch["second"])
        right = ((first > second) == (batch["preferred"] > 0.5)).to(first.dtype)
        return preference_loss(first, second, batch["preferred"]), {"comparisons_right": right}

    def measure(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """What strengths 0 and 1 stand for: the least and the most of many stretches of the data."""
        scores, whole = self.attribute_model(batch["observations"]).mean(0), batch["mask"][:, -1:] > 0
        low = torch.where(whole, scores, torch.inf).amin(0)
        high = torch.where(whole, scores, -torch.inf).amax(0)
        return {"strength_low": low, "strength_high": high}, {"strength_range": high - low}

    def noise_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the noise in noisy plans; stretches that an episode's end cuts do not count."""
        seen, whole = batch["observations"], batch["mask"][:, -1]
        with torch.no_grad():
            found = strengths(self.attribute_model, seen, self.strength_low, self.strength_high)
        asked = (noise["asked"] < self.config.keep).to(seen.dtype)
        ahead = 2 * (seen[:, 1:] - self.state_low) / (self.state_high - self.state_low) - 1
        plan = torch.cat([batch["actions"][:, 0], ahead.flatten(1)], -1)
        steps = self.noise_schedule.step_of(noise["step"].squeeze(-1))
        given = torch.cat([seen[:, 0], found * asked, asked], -1)
        predicted = self.noise_network(self.noise_schedule.noisy(plan, noise["noise"], steps), given, steps)
        errors = (predicted - noise["noise"]).square()
        size = self.spec.action_dim
        total = self.config.action_weight * errors[:, :size].sum(-1) + errors[:, size:].sum(-1)
        return (whole * total).sum() / whole.sum().clamp(min=1) / plan.shape[-1], {"strength": found}

    def updates(self) -> list[Update | Rule]:
        """The attribute model; its range; then plans."""
        c, first = self.config, self.config.attribute_updates
        plan = self.spec.action_dim + (c.horizon - 1) * self.spec.observation_dim
        drawn = {"noise": Noise("normal", plan), "step": Noise("uniform", 1)}
        drawn["asked"] = Noise("uniform", len(c.attributes))
        average = {"average_noise_network": ("noise_network", c.average_rate)}
        adam, bounds = Adam(c.attribute_learning_rate), ("strength_low", "strength_high")
        return [
            Update(self.attribute_loss, ("attribute_model",), adam, PAIRS, until=first),
            Rule(self.measure, bounds, source=MEASURED, rows=4_096, after=first, until=first + 1),
            Update(
                self.noise_loss,
                ("noise_network",),
                Adam(c.learning_rate),
                after=first,
                noise=drawn,
                target_updates=average,
            ),
        ]
