"""DPPO: PPO on the last denoising steps of a cloned diffusion policy, each step an action of its own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.chains import CHAIN, at
from surefoot.core.actors.denoising_chain import DenoisingActor
from surefoot.core.actors.diffusion import DiffusionActor, Schedule
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.encoder_config import EncoderConfig, followed
from surefoot.core.engine.traits import Requires, Vision
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, log_ratio, ratio_metrics, stage_clip, stage_weights
from surefoot.core.losses.value_learning import value_loss
from surefoot.core.nn.networks import Value
from surefoot.core.nn.noise_networks import NoiseNetwork
from surefoot.online.base.on_policy_agent import KEPT, OnPolicyAgent, in_parts, kept_of
from surefoot.online.base.on_policy_config import EpochsConfig
from surefoot.online.base.pretrained import check_clone_is_kept, clone_of, said_in

SIZES: dict[str, Any] = {
    "noise_hidden": (256, 256),
    "noise_activation": "relu",
    "frequencies": 32,
    "width": 256,
    "blocks": 3,
    "time_hidden": 128,
    "time_embedding": 16,
    "condition_hidden": (),
    "unet_width": 40,
    "unet_factors": (1, 2),
}
"""Options of noise networks by default."""
KINDS = ("mlp", "residual", "embedded", "unet")
"""Noise networks that it fine-tunes."""


@dataclasses.dataclass(frozen=True)
class DPPOConfig(EpochsConfig, EncoderConfig):
    """Settings of DPPO; what is null of the policy is as in the run that it starts from."""

    chunk: int | None = option(None, "actions that are decided on at once; null: as the clone, 1 without one")
    alphas: tuple[float, ...] | None = option(
        None, "alphas of the clone's schedule; null: cosine of 20 steps without one"
    )
    network: str | None = option(
        None, "network that predicts noise: mlp, residual, embedded or unet; null: as the clone"
    )
    noise_hidden: tuple[int, ...] | None = option(
        None, "widths of the noise network's hidden layers; null: as the clone"
    )
    noise_activation: str | None = option(None, "activation of the noise network; null: as the clone")
    frequencies: int | None = option(None, "frequencies of the embedding of noise levels; null: as the clone")
    width: int | None = option(None, "width of the residual network; null: as the clone")
    blocks: int | None = option(None, "blocks of the residual network; null: as the clone")
    time_hidden: int | None = option(None, "widths of the layers that read the noise level; null: as the clone")
    time_embedding: int | None = option(None, "width of the embedding of noise levels; null: as the clone")
    condition_hidden: tuple[int, ...] | None = option(
        None, "widths of the layers that read the observation; null: as the clone"
    )
    unet_width: int | None = option(None, "channels of network=unet at the chunk's full length; null: as the clone")
    unet_factors: tuple[int, ...] | None = option(None, "of them, at each length of network=unet; null: as the clone")
    implicit: int | None = option(None, "steps of DDIM, with noise while it trains; null: as the clone, or all by DDPM")
    trained_steps: int = option(
        10,
        "steps that are trained, the last ones, K'; a frozen copy of the clone takes those before; at most all",
        range=">= 1",
    )
    noise_floor: float = option(0.1, "least deviation of a step while it trains", range="> 0")
    denoising_discount: float = option(
        0.99, "discount factor of the advantage, for each step that comes after", range="[0, 1]"
    )
    clip: float = option(0.01, "bound of the last step's ratio", range="> 0")
    first_clip: float = option(
        0.01, "bound of the first trained step's ratio; between, it grows exponentially", range="> 0"
    )
    clip_rate: float = option(3.0, "rate at which the clip grows from the first trained step to the last")
    clone_coefficient: float = option(
        0.0, "weight of minus the log-density of steps that the clone takes; 0 keeps no clone", range=">= 0"
    )
    ratio_normalization: str = option(
        "mean", "reduction of a step's log-density: mean over its numbers, or joint", choices=("mean", "joint")
    )
    critic_warmup: int = option(0, "blocks at first that only the critic learns from")
    learning_rate: float = option(1e-4, "learning rate", range=">= 0")
    value_learning_rate: float = option(1e-3, "learning rate of the value", range=">= 0")
    value_coefficient: float = option(0.5, "weight of half the squared error of the value", range=">= 0")
    max_gradient_norm: float | None = option(
        None, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )
    target_kl: float | None = option(1.0, "divergence (k3) of a step that ends a block's epochs", range="> 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers of the critic")
    encoder_trains: bool = False


class DPPO(OnPolicyAgent):
    r"""DPPO of Ren et al., "Diffusion Policy Policy Optimization" (ICLR 2025).

    Denoising is a problem within the problem: each of the last K' steps is an action, whose reward is that of the chunk
    it ends in. With the mean log-density of a step over its D numbers, k = 0 the noisiest that is trained,

    .. math::
        \rho_k &= \exp \tfrac1D \big( \log N(x_{k+1}; \mu_k, \sigma_k^2) - \log N(x_{k+1}; \hat\mu_k, \sigma_k^2) \big),
        \qquad A_k = \gamma_d^{K' - 1 - k} A \\
        L &= E_k \max(-A_k \rho_k, -A_k\,\mathrm{clip}(\rho_k, 1 \pm \epsilon_k)), \quad
        \epsilon_k = \epsilon_0 + (\epsilon - \epsilon_0) \frac{e^{3 k / (K' - 1)} - 1}{e^3 - 1}

    Each row of a minibatch is one step of one chain, drawn at random: as in the authors' later versions, steps and
    chains are shuffled together. So an epoch looks at every chain, and at one of its steps. The official code puts
    other numbers than :math:`\epsilon` where a single step is trained; and takes the next episode's first observation
    where a time limit ends one, which is not done here; nor are log-densities of single numbers cut to [-5, 2], which
    means little where draws are within three deviations. With `clone_coefficient` chains that the clone draws in the
    same states are likely to stay so: minus their steps' mean log-density is added to the loss.

    It begins as the policy of a clone that samples by DDIM (`sampler_steps`). From one that samples by DDPM it does
    not: its steps have the posterior's variance and clipped data, as officially, and those of `diffusion_bc` have
    variance beta.
    """

    name = "dppo"
    requires = Requires(discrete=False)
    vision = Vision(encoder_with=("actor",))
    Config: ClassVar[type] = DPPOConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "locomotion": {},
        "manipulation": {"first_clip": 0.001, "critic_warmup": 2, "discount": 0.999},
        "ddim": {"implicit": 5, "trained_steps": 5},
    }
    config: DPPOConfig
    actor: DenoisingActor  # type: ignore[assignment]

    def build(self) -> None:
        """Chain and critic."""
        self.build_actor()
        self.value = Value(self.features, self.config.hidden, "orthogonal", activation=self.config.activation)
        if self.config.clone_coefficient > 0:
            self.reference = copy.deepcopy(self.actor).requires_grad_(False)

    def build_actor(self) -> None:
        """The chain of denoising steps."""
        c, size = self.config, self.decision_dim
        schedule = Schedule.cosine() if c.alphas is None else Schedule(tuple(c.alphas))
        kind = c.network or "mlp"
        require(kind in KINDS, "dppo", "network", kind, " or ".join(KINDS))
        made = NoiseNetwork.of_kind(kind)
        sizes = {**SIZES, "chunk": self.chunk}
        given = {n: sizes[n] if getattr(c, n) is None else getattr(c, n) for n in made.option_names()}
        network = made(self.features, size, **given)
        trained = min(c.trained_steps, c.implicit or schedule.steps)
        self.actor = DenoisingActor(network, schedule, size, taken=c.implicit, trained=trained, floor=c.noise_floor)

    @classmethod
    def inherit_options(cls, config: Mapping[str, Any], source: Agent) -> dict[str, Any]:
        """The clone's chunk, schedule and network; of a run of this algorithm as its options say."""
        if type(source) is cls:
            found = said_in(source)
        else:
            clone, chunk = diffusion_of(source)
            found = {"chunk": chunk, **clone.description()}
        names = ("chunk", "alphas", "implicit", "network", *SIZES)
        settled = {name: found[name] for name in names if config.get(name) is None and name in found}
        return settled | followed(cls.Config, config, source.config)

    def load_from(self, source: Agent) -> list[str] | None:
        """The clone's noise network; of a run of this algorithm all."""
        if type(source) is type(self):
            check_clone_is_kept(self, source)
            return None
        clone, chunk = diffusion_of(source)
        theirs, mine = clone.network.state_dict(), self.actor.network.state_dict()
        same = {n: v.shape for n, v in theirs.items()} == {n: v.shape for n, v in mine.items()}
        if (chunk, clone.schedule) != (self.chunk, self.actor.schedule) or not same:
            raise ConfigError(
                f"the diffusion policy of {source.name} has another chunk, schedule or network than this dppo: leave "
                "algo.chunk, algo.alphas, algo.network and its sizes out, so that they follow the run"
            )
        self.actor.network.load_state_dict(copy.deepcopy(theirs))
        self.actor.refreeze()
        if self.config.clone_coefficient > 0:
            self.reference.load_state_dict(self.actor.state_dict())
        return ["actor"]

    @property
    def warm_up_blocks(self) -> int:
        """Blocks that only the critic learns from."""
        return self.config.critic_warmup

    @property
    def share(self) -> float:
        """What a step's log-density is multiplied by."""
        return 1 / self.decision_dim if self.config.ratio_normalization == "mean" else 1.0

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages, returns, and the log-density (T, N, K') of each step."""
        columns, kept = {**self.acted(block), **self.advantages(block)}, kept_of(block)

        def of_rows(observations: Tensor, chain: Tensor) -> Tensor:
            parts = self.actor.evaluate(observations, chain[:, -1], {CHAIN: chain}).outputs
            return parts.log_densities * self.share

        columns["behaviour_log_prob"] = in_parts(of_rows, block["observations"], kept[CHAIN])
        return columns | {name: block[name] for name in ("moving",) if name in block}

    def policy_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Clipped surrogate of one step of each chain."""
        c, mask, count = self.config, batch.get("mask"), self.actor.steps
        step = (noise["step"].squeeze(-1) * count).floor().clamp(max=count - 1)
        x, following = (one_of(batch[KEPT + CHAIN], step + shift) for shift in (0, 1))
        log_prob = self.actor.numbers(batch["observations"], x, following, step)[0].sum(-1) * self.share
        behaviour = one_of(batch["behaviour_log_prob"].unsqueeze(-1), step).squeeze(-1)
        log_ratios = log_ratio(log_prob, behaviour, mask)
        weights = at(stage_weights(count, c.denoising_discount).tolist(), step, log_prob).reshape(-1)
        clips = at(clip_table(count, c.first_clip, c.clip, c.clip_rate), step, log_prob).reshape(-1)
        advantages = normalise(batch["advantages"], mask) * weights
        terms, clipped = clip_surrogate(log_ratios, advantages, clips, mask=mask)
        loss, metrics = reduce(terms, mask), ratio_metrics(log_ratios, clipped, mask)
        if c.clone_coefficient > 0:
            metrics["clone_log_prob"] = near = self.clone_log_prob(batch["observations"], noise["clone"])
            loss = loss - c.clone_coefficient * reduce(near, mask)
        if "moving" in batch:
            loss = loss * batch["moving"].mean()
        return loss, metrics

    def clone_log_prob(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B,) mean log-density of the trained steps of chains that the clone draws by (B, held_dim) noise."""
        with torch.no_grad():
            actions, kept = self.reference.sample(observations, noise)
        found = self.actor.evaluate(observations, actions, kept).outputs.log_densities
        return found.mean(-1) * self.share

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the value, weighted."""
        value = self.value(batch["observations"])
        terms = value_loss(value, batch["returns"], mask=batch.get("mask"))
        return self.config.value_coefficient * reduce(terms, batch.get("mask")), {"value": value}

    def updates(self) -> list[Update | Rule]:
        """Two steps at the same parameters."""
        c = self.config
        rates = c.learning_rate, c.value_learning_rate
        actor, critic = (Adam(rate, max_gradient_norm=c.max_gradient_norm) for rate in rates)
        drawn = {"step": Noise("uniform", 1)}
        if c.clone_coefficient > 0:
            drawn["clone"] = Noise("normal", self.actor.held_dim)
        return [
            Update(self.policy_loss, ("actor",), actor, noise=drawn),
            Update(self.critic_loss, ("value",), critic, simultaneous=True),
        ]


def clip_table(steps: int, first: float, last: float, rate: float) -> list[float]:
    """Clip range of each trained step; of a single one the last's."""
    return [last] if steps == 1 else stage_clip(steps, first, last, rate).tolist()


def one_of(table: Tensor, step: Tensor) -> Tensor:
    """(B, D) entries of a (B, K, D) table at (B,) steps."""
    place = step.long().reshape(-1, 1, 1).expand(-1, 1, table.shape[-1])
    return table.gather(1, place).squeeze(1)


def diffusion_of(source: Agent) -> tuple[DiffusionActor, int]:
    """The diffusion by which an agent's policy acts, a copy, and the actions that it plans at once."""
    return clone_of(source, "dppo", DiffusionActor, "diffusion", "diffusion_bc, or fine-tune a flow by reinflow")
