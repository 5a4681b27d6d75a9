"""Diffusion cloning: a network that takes the noise out of actions, in all steps of its schedule or in a few."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.diffusion import DiffusionActor, Schedule, denoising_loss
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.averages import count_averages
from surefoot.core.engine.traits import WarmStart
from surefoot.core.nn.noise_networks import NoiseNetwork, PlainNoise, ResidualNoise
from surefoot.core.nn.unet import ChunkUNetNoise
from surefoot.offline.chunked import ChunkedAgent
from surefoot.offline.cloning import VISUAL, VISUAL_SMALL, CloningConfig, averaged

NETWORK_KINDS = ("mlp", "residual", "unet")
STEP_WIDTH = 128
"""Of the embedded step of the U-net, as in Diffusion Policy."""


@dataclasses.dataclass(frozen=True)
class DiffusionBCConfig(CloningConfig):
    """Settings of diffusion cloning; the defaults are DPPO's for problems of vectors, but for the network."""

    diffusion_steps: int = option(20, "steps of diffusion that the network is trained for, T", range=">= 1")
    noise_schedule: str = option(
        "cosine", "schedule of the noise: cosine (DPPO, Diffusion Policy) or vp (IDQL, FISOR)", choices=("cosine", "vp")
    )
    sampler_steps: int = option(0, "steps of DDIM, without noise but the first; 0: all T of them by DDPM")
    network: str = option(
        "mlp",
        "network: mlp (its widths are `hidden`), residual (IDQL's, three blocks of the first of them) or unet (over a "
        "chunk, halved between them)",
        choices=NETWORK_KINDS,
    )
    hidden: tuple[int, ...] = option(
        (512, 512, 512), "widths of the hidden layers; with network=unet of its lengths, each a multiple of the first"
    )
    dropout: float = option(0.0, "dropout of the residual network", range="[0, 1)")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = "diffusion_bc"
        few = self.sampler_steps
        require(0 <= few <= self.diffusion_steps, name, "sampler_steps", few, f"in 0 .. {self.diffusion_steps}")
        kept = self.dropout == 0 or self.network == "residual"
        require(kept, name, "dropout", self.dropout, f"0 for network={self.network}; network=residual has it")
        first = self.hidden[0] if self.hidden else 0
        even = self.network != "unet" or (first > 0 and all(width % first == 0 for width in self.hidden))
        require(even, name, "hidden", self.hidden, "widths of which each is a multiple of the first, for network=unet")


class DiffusionBC(ChunkedAgent):
    r"""Behaviour cloning by diffusion, of single actions or of chunks.

    .. math::
        L = E\, \|\epsilon_\theta(s, \sqrt{\bar\alpha_t}\, a + \sqrt{1 - \bar\alpha_t}\, \epsilon, t) - \epsilon\|^2

    Sources: Ho, Jain and Abbeel, "Denoising Diffusion Probabilistic Models"; Chi et al., "Diffusion Policy"; Song, Meng
    and Ermon, "Denoising Diffusion Implicit Models", for a sampler of few steps. The average of the network acts. The
    distance is summed over the numbers of an action, as in IDQL; DPPO's code takes their mean. With all T steps it acts
    as IDQL does: noise has the variance beta, and every place is clipped. `online.dppo` clips what it takes for the
    action and has the posterior's variance, so that a clone's score is not quite that of its first block there.
    """

    name = "diffusion_bc"
    Config: ClassVar[type] = DiffusionBCConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "ddpm": {},
        "ddim": {"diffusion_steps": 100, "sampler_steps": 5},
        "idql": {"noise_schedule": "vp", "diffusion_steps": 5, "network": "residual", "hidden": (256,), "dropout": 0.1},
        "visual": {
            **VISUAL,
            "network": "unet",
            "hidden": (256, 512, 1024),
            "diffusion_steps": 100,
            "sampler_steps": 16,
        },
        "visual_small": {**VISUAL_SMALL, "diffusion_steps": 100, "sampler_steps": 5},
    }
    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions")
    warm_start = WarmStart(networks=("noise_network", "normalizer"))
    average_of = "average_noise_network"
    config: DiffusionBCConfig

    def build(self) -> None:
        """The noise network and its average."""
        c, sizes = self.config, (self.features, self.decision_dim)
        make = Schedule.cosine if c.noise_schedule == "cosine" else Schedule.vp
        self.noise_schedule = make(c.diffusion_steps)
        self.noise_network = self._network(*sizes)
        self.average_noise_network = copy.deepcopy(self.noise_network).requires_grad_(False)
        if c.average_schedule == "power":
            count_averages(self)

    def _network(self, features: int, size: int) -> NoiseNetwork:
        """The network of the options."""
        c = self.config
        if c.network == "unet":
            factors = tuple(width // c.hidden[0] for width in c.hidden)
            return ChunkUNetNoise(features, size, c.chunk, c.hidden[0], factors, STEP_WIDTH)
        if c.network == "mlp":
            return PlainNoise(features, size, c.hidden)
        return ResidualNoise(features, size, c.hidden[0])

    @property
    def actor(self) -> Actor:
        """What acts: the averaged network, from a queue where it gives chunks."""
        c = self.config
        size = self.decision_dim
        head = DiffusionActor(self.average_noise_network, self.noise_schedule, size, implicit=c.sampler_steps or None)
        return in_chunks(head, c.chunk, self.spec.action_dim, c.execute)

    def noise_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the noise in noisy actions; what is behind an episode's end does not count."""
        steps = self.noise_schedule.step_of(noise["step"].squeeze(-1))
        noisy = self.noise_schedule.noisy(batch["actions"], noise["noise"], steps)
        predicted = self.noise_network(noisy, batch["observations"], steps, noise.get("dropout"))
        return denoising_loss(predicted, noise["noise"], mask=batch["mask"]), {}

    def updates(self) -> list[Update | Rule]:
        """One step of the network, and its average."""
        c = self.config
        drawn = {"noise": Noise("normal", self.decision_dim), "step": Noise("uniform", 1)}
        if c.dropout > 0 and self.noise_network.dropped > 0:
            drawn["dropout"] = Noise("keep", self.noise_network.dropped, 1 - c.dropout)
        adam = Adam(c.learning_rate, weight_decay=c.weight_decay, schedule=c.schedule)
        step = Update(self.noise_loss, ("noise_network",), adam, noise=drawn)
        return averaged(self, step, c.average_rate)
