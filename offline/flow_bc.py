"""Flow cloning: a velocity that carries noise to the data's actions, in several steps or, trained so, in one."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.averages import count_averages
from surefoot.core.engine.traits import WarmStart
from surefoot.core.losses.flow import (
    LAWS,
    REST,
    Stretch,
    adaptive_weight,
    draw_mean_flow,
    draw_shortcut,
    flow_matching_loss,
    interpolate,
    mean_flow_target,
    shortcut_rows,
    shortcut_target,
)
from surefoot.core.nn.velocity import VelocityNetwork, network_of
from surefoot.offline import chunked
from surefoot.offline.chunked import ChunkedAgent
from surefoot.offline.cloning import VISUAL, VISUAL_SMALL, CloningConfig, averaged

OBJECTIVES = ("rectified", "shortcut", "mean_flow")
SHORTCUTS = tuple(2**k for k in range(7))
"""Numbers of steps whose sizes a shortcut model is trained for."""
VISUAL_FLOW: dict[str, dict[str, Any]] = {
    "visual": {**VISUAL, "network": "unet", "flow_steps": 10},
    "visual_small": {**VISUAL_SMALL, "hidden": (512, 512, 512), "flow_steps": 4},
}
"""Presets for pictures: sizes for a GPU, and for a core."""


@dataclasses.dataclass(frozen=True)
class FlowBCConfig(CloningConfig):
    """Settings of flow cloning; the defaults are those of the flow within FQL and Q-chunking."""

    objective: str = option(
        "rectified",
        "objective: rectified (flow matching); shortcut or mean_flow, for one or a few steps",
        choices=OBJECTIVES,
    )
    flow_steps: int = option(10, "steps of the sampler; a power of 2 with shortcut, 1 with mean_flow", range=">= 1")
    times: str = option(
        "uniform", "law of the times of rectified: uniform, beta (more near the noise) or logit_normal", choices=LAWS
    )
    network: str = option(
        "mlp", "network: mlp, embedded (ReinFlow's); shortcut, for the objectives shortcut and mean_flow"
    )
    hidden: tuple[int, ...] = option((512, 512, 512, 512), "widths of the hidden layers")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        used = self.objective == "rectified" or self.times == "uniform"
        require(used, name, "times", self.times, f"uniform: {self.objective} has times of its own")
        fine = self.objective != "shortcut" or self.flow_steps in SHORTCUTS
        require(fine, name, "flow_steps", self.flow_steps, f"one of {SHORTCUTS}, whose sizes a shortcut learns")
        sized = VelocityNetwork.of_kind(self.network).sized
        needed = "one that reads the step's size, as shortcut does" if self.objective != "rectified" else ""
        require(sized or not needed, name, "network", self.network, f"{needed} for the objective {self.objective}")


class FlowBC(ChunkedAgent):
    r"""Behaviour cloning by a flow: several kinds of action in one state stay several, and are not averaged.

    With :math:`x_t = (1 - t) x_0 + t a` of standard normal x_0 and the data's actions a:

    .. math::
        L = E\, |v(s, x_t, t) - (a - x_0)|^2, \qquad x_{k+1} = x_k + v(s, x_k, k / K) / K

    Sources: Lipman et al., "Flow Matching for Generative Modeling", and Liu et al., "Flow Straight and Fast", for
    `rectified`; Frans et al., "One Step Diffusion via Shortcut Models", for `shortcut`, whose network also reads the
    step's size and is trained, on a quarter of the rows, to do in one step what it does in two of half the size; Geng
    et al., "Mean Flows for One-step Generative Modeling", for `mean_flow`, with their adaptive weights of the rows. The
    average of the network acts, as in ReinFlow's cloning
    (`preset=reinflow`), which averages every tenth step only.
    """

    name = "flow_bc"
    Config: ClassVar[type] = FlowBCConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "official": {},
        "reinflow": {"network": "embedded", "hidden": (512, 512, 512), "chunk": 4, "flow_steps": 4},
        "shortcut": {
            "objective": "shortcut",
            "network": "shortcut",
            "hidden": (512, 512, 512),
            "chunk": 4,
            "flow_steps": 4,
        },
        "one_step": {"objective": "mean_flow", "network": "shortcut", "hidden": (512, 512, 512), "flow_steps": 1},
        **VISUAL_FLOW,
    }
    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions")
    warm_start = WarmStart(networks=("velocity", "normalizer"))
    average_of = "average_velocity"
    config: FlowBCConfig

    def build(self) -> None:
        """The velocity network and its average."""
        c, size = self.config, self.decision_dim
        self.velocity = network_of(c.network, self.features, size, c.hidden, c.chunk)
        self.average_velocity = copy.deepcopy(self.velocity).requires_grad_(False)
        if c.average_schedule == "power":
            count_averages(self)

    @property
    def actor(self) -> Actor:
        """What acts: the averaged flow, from a queue where it gives chunks."""
        head = FlowActor(self.average_velocity, self.decision_dim, self.config.flow_steps)
        return in_chunks(head, self.config.chunk, self.spec.action_dim, self.config.execute)

    def flow_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Flow matching; what is behind an episode's end does not count, here and in the other two."""
        return chunked.cloning_loss(self.velocity, batch, noise, law=self.config.times), {}

    def shortcut_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Two half steps in one on the first rows, flow matching on the others, in one mean."""
        seen, stretch = batch["observations"], draw_shortcut(noise["stretch"])
        first = shortcut_rows(len(seen))
        x, velocity = interpolate(noise["start"], batch["actions"], stretch.time, REST)
        part = Stretch(stretch.time[:first], stretch.size[:first])
        halves = shortcut_target(lambda *place: self.velocity(seen[:first], *place), x[:first], part)
        target = torch.cat([halves, velocity[first:]])
        return flow_matching_loss(self.velocity(seen, x, *stretch), target, mask=batch["mask"]), {}

    def mean_flow_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The mean velocity of each stretch against the MeanFlow identity."""
        seen, stretch = batch["observations"], draw_mean_flow(noise["stretch"])
        x, velocity = interpolate(noise["start"], batch["actions"], stretch.time)
        target = mean_flow_target(lambda *place: self.velocity(seen, *place), x, velocity, stretch)
        predicted = self.velocity(seen, x, *stretch)
        weight = adaptive_weight(predicted * batch["mask"], target * batch["mask"])
        return flow_matching_loss(predicted, target, weight, batch["mask"]), {"weight": weight}

    def updates(self) -> list[Update | Rule]:
        """One step of the network, and its average."""
        c, size = self.config, self.decision_dim
        adam = Adam(c.learning_rate, weight_decay=c.weight_decay, schedule=c.schedule)
        loss = {"rectified": self.flow_loss, "shortcut": self.shortcut_loss, "mean_flow": self.mean_flow_loss}
        draws = {"shortcut": 2, "mean_flow": 3}
        start = {"start": Noise("normal", size)}
        drawn = chunked.cloning_noise(size)
        if c.objective != "rectified":
            drawn = {**start, "stretch": Noise("uniform", draws[c.objective])}
        step = Update(loss[c.objective], ("velocity",), adam, noise=drawn)
        return averaged(self, step, c.average_rate)
