"""FPO and FPO++: PPO on a flow policy without a likelihood: the ratio is estimated from flow-matching losses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, SampleAux
from surefoot.core.actors.flow_actor import FlowActor, field
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import Requires, Vision
from surefoot.core.losses.flow import interpolate
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, log_ratio, ratio_metrics, spo_surrogate
from surefoot.core.losses.value_learning import value_loss
from surefoot.core.nn.networks import Value
from surefoot.online.base.on_policy_agent import KEPT, OnPolicyAgent
from surefoot.online.base.on_policy_config import EpochsConfig
from surefoot.online.base.pretrained import STEPS, FlowOptions, inherit_options, take_clone, velocity_network

LEVELS = {"sample": "unit", "mean": "sequence"}
"""Word of the config -> level of `log_ratio`."""


@dataclasses.dataclass(frozen=True)
class FPOConfig(FlowOptions, EpochsConfig, EncoderConfig):
    """Settings of FPO; the defaults are those of FPO++ in manipulation, where they were read."""

    samples: int = option(
        16, "n: pairs (noise, time) at which the flow is held against each action that it took", range=">= 1"
    )
    times: int | None = option(
        None, "places of the grid 0, 1 / times, ... of a pair's time; null: the flow's steps; 2 or more", range=">= 2"
    )
    level: str = option(
        "sample", "level of the ratio: sample, one for each pair (FPO++); or mean, of their mean (FPO)", choices=LEVELS
    )
    numbers: str = option(
        "sum",
        "reduction over the numbers of an action: the error is summed (sum, FPO++) or averaged (mean, FPO)",
        choices=("sum", "mean"),
    )
    pull_back: bool = option(True, "where the advantage is negative a square holds the ratio near 1, not a clip (ASPO)")
    clip: float = option(0.01, "the ratio is held within 1 - clip and 1 + clip", range="> 0")
    largest_error: float | None = option(None, "errors are cut to it, their gradient is kept; null: not", range="> 0")
    largest_log_ratio: float | None = option(None, "log-ratios are cut to it, of both signs; null: not", range="> 0")
    clip_each: bool | None = option(
        None, "clip what the flow draws after each of its steps; null: as the clone, else not"
    )
    value_coefficient: float = option(0.5, "weight of half the squared error of the value", range=">= 0")
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    value_learning_rate: float = option(1e-3, "learning rate of the value", range=">= 0")
    max_gradient_norm: float | None = option(
        1.0, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )
    target_kl: float | None = option(None, "divergence (k3) that ends a block's epochs", range="> 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers of the critic")
    normalize_observations: bool = option(
        True, "normalize observations by running statistics; a clone's stay as they are"
    )


class FPO(OnPolicyAgent):
    r"""FPO of McAllister et al., "Flow Matching Policy Gradients" (2025), and FPO++ of Yi et al. (2026).

    Beside an action a, drawn by the flow, n pairs of noise and time are kept and the error that the flow makes there,

    .. math::
        \ell(\epsilon, t) = |\epsilon - \hat\epsilon|^2 = t^2\, |v(s, x_t, t) - (a - \epsilon)|^2, \quad
        x_t = (1 - t) \epsilon + t a, \quad
        \rho = e^{\ell_k - \ell}

    of the velocity that acted, less that of the velocity as it is: it stands for the ratio of likelihoods in PPO's
    objective, pair by pair (FPO++) or after the mean over pairs (FPO, `preset=fpo`). Where A <= 0, FPO++ takes the
    objective A rho - |A| (rho - 1)^2 / (2 clip), whose gradient does not vanish. Times are the sampler's, k / K, as in
    the authors' code, where K is 10; at the time 0 there is no error, so that a flow of one step needs `times`. A chunk
    is one action. The authors evaluate FPO++ from zero noise; policies here draw it.
    """

    name = "fpo"
    requires = Requires(discrete=False)
    vision = Vision(encoder_with=("actor",))
    Config: ClassVar[type] = FPOConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "fpo++": {},
        "fpo": {"samples": 8, "level": "mean", "numbers": "mean", "pull_back": False, "clip": 0.05},
    }
    config: FPOConfig
    actor: FlowActor  # type: ignore[assignment]

    def build_actor(self) -> None:
        """The flow."""
        c = self.config
        network = velocity_network(c, self.features, self.decision_dim)
        steps = c.flow_steps or STEPS
        self.actor = FlowActor(network, self.decision_dim, steps, clip_each=bool(c.clip_each))
        needed = ">= 2, as at the time 0 there is no error; or set fpo.times, where the network reads no stretches"
        require(self.grid >= 2, "fpo", "flow_steps", self.actor.steps, needed)

    def build(self) -> None:
        """Flow and critic."""
        self.build_actor()
        self.value = Value(self.features, self.config.hidden, "orthogonal", activation=self.config.activation)

    inherit_options = classmethod(inherit_options)

    def load_from(self, source: Agent) -> list[str] | None:
        """The clone's velocity; of a run of this algorithm all."""
        if type(source) is type(self):
            return None
        take_clone(self, source, self.actor.network, self.actor.steps)
        return ["actor"]

    def leaving_actor(self) -> Actor:
        """The flow."""
        return copy.deepcopy(self.actor)

    @property
    def grid(self) -> int:
        """Places that times are drawn from; a network of stretches knows those of its own steps."""
        return self.actor.steps if self.actor.network.sized else self.config.times or self.actor.steps

    # -- what is kept of an action -------------------------------------------------------------------------

    @property
    def explore_dim(self) -> int:
        """Where the flow begins, and noise and time of each pair."""
        return self.decision_dim * (1 + self.config.samples) + self.config.samples

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, SampleAux]:
        """(B, C A) actions; pairs and errors beside them, in float32."""
        size, count = self.decision_dim, self.config.samples
        start, rest, when = noise.split((size, size * count, count), -1)
        actions = self.actor.flow(observations, start)
        uniform = torch.special.ndtr(when).clamp(max=1 - 1e-6)
        kept = {
            "noise": rest.unflatten(-1, (count, size)),
            "time": (uniform * self.grid).floor() / self.grid,
        }
        return actions, {**kept, "error": self.errors(observations, actions, kept)}

    def errors(self, observations: Tensor, actions: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """(B, n) error of the noise that the velocity implies, at each pair that was kept."""
        count = self.config.samples
        seen, done = (one.unsqueeze(1).expand(-1, count, -1).flatten(0, 1) for one in (observations, actions))
        time = kept["time"].flatten()
        x, velocity = interpolate(kept["noise"].flatten(0, 1), done, time)
        wrong = (time.unsqueeze(-1) * (field(self.actor.network, seen, self.actor.steps)(x, time) - velocity)).square()
        error = wrong.sum(-1) if self.config.numbers == "sum" else wrong.mean(-1)
        return _cut(error, None, self.config.largest_error).unflatten(0, (-1, count))

    # -- losses --------------------------------------------------------------------------------------------

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages, returns, and what was kept."""
        return self.acted(block) | self.advantages(block)

    def policy_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """PPO's objective with errors for likelihoods."""
        c, mask = self.config, batch.get("mask")
        kept = {name: batch[KEPT + name] for name in ("noise", "time")}
        errors = self.errors(batch["observations"], batch["actions"], kept)
        mask = None if mask is None else mask.unsqueeze(-1)
        advantages = normalise(batch["advantages"], batch.get("mask")).unsqueeze(-1)
        log_ratios = log_ratio(-errors, -batch[KEPT + "error"], mask, LEVELS[c.level])
        if c.largest_log_ratio is not None:
            log_ratios = _cut(log_ratios, -c.largest_log_ratio, c.largest_log_ratio)
        loss, clipped = fpo_loss(log_ratios, advantages, c.clip, c.pull_back, mask)
        return loss, {**ratio_metrics(log_ratios, clipped, mask), "error": errors}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the value, weighted."""
        value = self.value(batch["observations"])
        terms = value_loss(value, batch["returns"], batch["values"], None, batch.get("mask"))
        return self.config.value_coefficient * reduce(terms, batch.get("mask")), {"value": value}

    def updates(self) -> list[Update | Rule]:
        """Two steps at the same parameters."""
        c = self.config
        actor, critic = (
            Adam(rate, max_gradient_norm=c.max_gradient_norm) for rate in (c.learning_rate, c.value_learning_rate)
        )
        return [
            Update(self.policy_loss, ("actor",), actor),
            Update(self.critic_loss, ("value",), critic, simultaneous=True),
        ]


def fpo_loss(
    log_ratios: Tensor, advantages: Tensor, clip: float, pull_back: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """() PPO's clipped objective, with `pull_back` a pull where A <= 0; and (B, n or 1) where the ratio went too far.

    Args:
        log_ratios: (B, n), or (B, 1) of means.
        advantages: (B, 1).
        clip: of the ratio.
        pull_back: as the config's.
        mask: (B, 1).
    """
    terms, clipped = clip_surrogate(log_ratios, advantages, clip, mask=mask)
    if pull_back:
        pulled, _ = spo_surrogate(log_ratios, advantages, clip, mask)
        terms = torch.where(advantages > 0, terms, pulled)
    return reduce(terms, None if mask is None else mask.expand_as(terms)), clipped


def _cut(values: Tensor, low: float | None, high: float | None) -> Tensor:
    """Values within bounds, whose gradient is that of the values themselves."""
    if low is None and high is None:
        return values
    return values + (values.clamp(low, high) - values).detach()
