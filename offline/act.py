"""ACT: a transformer that clones chunks of actions, with a style beside what is seen."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.actors.act_actor import ACTActor
from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.nn.act_network import ACTNetwork
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS
from surefoot.offline.chunked import ChunkedAgent

SHORT = 4
"""Times that an episode should be as long as a chunk; with shorter ones much of what is planned is padding."""


@dataclasses.dataclass(frozen=True)
class ACTConfig(EncoderConfig):
    """Settings of ACT; the defaults are the authors', but for the pictures' trunk and where `preset=small` says."""

    chunk: int = option(100, "C: actions that are cloned and played at once", range=">= 1")
    width: int = option(512, "width of the tokens", range=">= 1")
    heads: int = option(8, "heads of each attention", range=">= 1")
    feed_forward: int = option(3200, "units of the hidden layers", range=">= 1")
    style_layers: int = option(4, "of the encoder of styles, which only training has", range=">= 1")
    layers: int = option(4, "layers of the encoder of what is seen", range=">= 1")
    decoder_layers: int = option(1, "the authors' code has 7, of which 6 are never trained", range=">= 1")
    latent_dim: int = option(32, "numbers of a style", range=">= 1")
    kl_weight: float = option(10.0, "weight, of the divergence of styles from a standard normal", range=">= 0")
    dropout: float = option(
        0.1, "dropout of what each part of a layer adds; one mask for all its tokens", range="[0, 1)"
    )
    learning_rate: float = option(1e-5, "learning rate", range=">= 0")
    weight_decay: float = option(1e-4, "weight decay", range=">= 0")
    schedule: str = option(
        "constant",
        "schedule of the learning rate: constant or cosine: to 0 over the run",
        choices=("constant", "cosine"),
    )
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


class ACT(ChunkedAgent):
    r"""Zhao, Kumar, Levine and Finn, "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (RSS 2023).

    A conditional VAE of chunks :math:`a_{1:C}`: an encoder that only training has gives each a style z, which tells the
    policy what the chunk has and what is seen does not say; what acts takes the mean style, 0.

    .. math::
        L = \frac{\sum_{i,t} m_{it}\, |a_{it} - \hat a_t(s_i, z_i)|_1}{A \sum_{i,t} m_{it}}
        + \beta\, \mathrm{mean}_i\, D\big(\mathcal N(\mu_i, \sigma_i^2) \,\|\, \mathcal N(0, I)\big)

    where m is 1 on steps of the episode. (The authors' code divides by all steps, padded ones too, and trains the first
    of seven decoder layers alone.) Tokens of what is seen are the style, the vectors, and each cell of each camera's
    map.
    """

    name = "act"
    Config: ClassVar[type[ACTConfig]] = ACTConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "official": {},
        "small": {
            "chunk": 16,
            "width": 128,
            "heads": 4,
            "feed_forward": 512,
            "style_layers": 2,
            "layers": 2,
            "decoder_layers": 1,
            "encoder": "small",
            "learning_rate": 3e-4,
            "dropout": 0.0,
            "shift": 2,
        },
    }
    required_columns = ("observations", "actions")
    row_separable = False
    config: ACTConfig

    def build(self) -> None:
        """The transformer; of pictures, a trunk whose map is not pooled."""
        c = self.config
        maps: tuple[int, ...] = ()
        if self.encoder is not None:
            self.encoder = self.encoder.of_maps()
            self.features, maps = self.encoder.width, self.encoder.map_sizes
        self.actor: ACTActor = ACTActor(
            ACTNetwork(
                self.features, self.spec.action_dim, c.chunk, maps, c.width, c.heads, c.feed_forward, c.style_layers,
                c.layers, c.decoder_layers, c.latent_dim,
            )
        )  # fmt: skip

    def notes(self, dataset: Dataset) -> list[str]:
        """Whether episodes are hardly longer than a chunk."""
        length = float(dataset.episode_lengths.mean())
        if length >= SHORT * self.chunk:
            return []
        return [
            f"episodes have {length:.0f} steps on average and a chunk {self.chunk}: much of what is planned lies "
            "behind their ends, which is not learned; lower algo.chunk where the policy should see more often"
        ]

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Distance on the steps that are there, and the divergence of styles."""
        c, network = self.config, self.actor.network
        seen = batch["observations"]
        actions, counted = (batch[name].unflatten(-1, (c.chunk, -1)) for name in ("actions", "mask"))
        there = counted[..., 0]
        mean, log_variance = network.styles(seen, actions, there, noise.get("dropout"))
        latent = mean + (0.5 * log_variance).exp() * noise["latent"]
        distance = masked_distance(network(seen, latent, noise.get("dropout")), actions, there)
        divergence = style_divergence(mean, log_variance).mean()
        return distance + c.kl_weight * divergence, {"distance": distance, "divergence": divergence}

    def updates(self) -> list[Update]:
        """One step of the transformer and its trunk."""
        c = self.config
        adam = Adam(c.learning_rate, weight_decay=c.weight_decay, schedule=c.schedule)
        noise = {"latent": Noise("normal", c.latent_dim)}
        if c.dropout > 0:
            noise["dropout"] = Noise("keep", self.actor.network.masks_dim, 1 - c.dropout)
        return [Update(self.loss, ("actor",), adam, noise=noise)]

    def acting(self) -> Actor:
        """What acts: a chunk from its queue."""
        return in_chunks(self.actor, self.chunk, self.spec.action_dim)

    def policy(self) -> Policy:
        """A copy that plays its chunks from memory."""
        return self.policy_of(self.acting())


def masked_distance(predicted: Tensor, actions: Tensor, there: Tensor) -> Tensor:
    """() mean absolute difference of (B, C, A) actions over the numbers of steps that (B, C) are 1 `there`."""
    errors = (predicted - actions).abs().sum(-1) * there
    return errors.sum() / (there.sum() * actions.shape[-1])


def style_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """(B,) KL divergence of normals of (B, Z) mean and log variance from the standard one, in nats."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
