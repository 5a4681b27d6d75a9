"""ReinFlow: PPO on a cloned flow with learned noise in each step, so that the chain of states has a density."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.flow_chains import NOISES, FlowChainActor, decayed
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import Requires, Vision, WarmStart
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, ratio_metrics
from surefoot.core.losses.policy_gradient.ratios import limited_log_ratio
from surefoot.core.losses.value_learning import value_loss
from surefoot.core.nn.networks import Value
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.base.on_policy_config import EpochsConfig
from surefoot.online.base.pretrained import (
    STEPS,
    TRANSITIONS,
    FlowOptions,
    chain_of,
    check_clone_is_kept,
    inherit_options,
    take_clone,
    velocity_network,
)

NORMALISATIONS = ("mean", "joint")
DENSE: dict[str, Any] = {"noise": "learn_decay", "entropy_coefficient": 0.03, "critic_warmup": 0}
"""Of the authors' locomotion tasks."""
FAR = 0.2
"""Distance from 1: the metric `ratio_far` is the share of chains whose ratio is further."""


@dataclasses.dataclass(frozen=True)
class ReinFlowConfig(FlowOptions, EpochsConfig, EncoderConfig):
    """Settings of ReinFlow: rates, bounds and clip of its locomotion tasks, whose other options are `locomotion`'s."""

    transition: str = option(
        "reinflow",
        "noise of a step: reinflow (learned), flow_sde (keeps the flow's marginals) or consistency (RLCM)",
        choices=TRANSITIONS,
    )
    noise: str = option(
        "learn",
        "noise of reinflow: learn, learn_decay (its bound shrinks from a third of the run on) or const",
        choices=NOISES,
    )
    noise_low: float = option(0.08, "least deviation of a step, in half-widths of an action")
    noise_high: float = option(0.16, "greatest deviation of a step, in half-widths of an action")
    noise_hidden: tuple[int, ...] = option(
        (64, 64), "widths of the hidden layers of the network that sets the deviations"
    )
    noise_timed: bool = option(True, "whether learned deviations depend on the step")
    trained_steps: int | None = option(None, "steps whose noise is learned, the last ones; null: all")
    sde_noise: float = option(0.5, "size of the noise of flow_sde, a")
    noise_floor: float = option(0.1, "least deviation of consistency")
    clip_each: bool | None = option(
        None, "clip each step's mean; null: as the clone, else true of reinflow, as officially"
    )
    ratio_normalization: str = option(
        "mean",
        "reduction of log-densities: mean over the chain's numbers, or joint (then clip .1 to .2)",
        choices=NORMALISATIONS,
    )
    clip: float = option(0.01, "the ratio, of that normalisation, is held within 1 - clip and 1 + clip", range="> 0")
    log_prob_limit: float | None = option(
        None, "normalised log-densities are cut to it, as officially to 1; null: not", range="> 0"
    )
    entropy_coefficient: float = option(0.01, "weight of the entropy of a number of the chain")
    clone_coefficient: float = option(0.0, "weight of the squared distance from where the clone takes the same noise")
    critic_warmup: int = option(2, "blocks at first that only the critic learns from", range=">= 0")
    learning_rate: float = option(4.5e-5, "learning rate", range=">= 0")
    value_learning_rate: float = option(6.5e-4, "learning rate of the value", range=">= 0")
    rate_cycle: int | None = option(None, "blocks of a cosine with restarts, officially 100; null: rates stay")
    rate_warm_up: int = option(10, "blocks of each cycle in which rates rise from the lowest")
    lowest_rates: tuple[float, float] = option(
        (2e-5, 3e-4), "lowest learning rates of actor and critic, at a cycle's ends"
    )
    value_weight_decay: float = option(1e-5, "weight decay of the value", range=">= 0")
    value_coefficient: float = option(0.5, "weight of half the squared error of the value", range=">= 0")
    max_gradient_norm: float | None = option(
        None, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )
    target_kl: float | None = option(
        1.0, "k3 of the ratio, of that normalisation, that ends a block's epochs", range="> 0"
    )
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers of the critic")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        who = algorithm_of(self)
        fits = 0 < self.noise_low <= self.noise_high
        require(fits, who, "noise_low", self.noise_low, f"> 0 and at most noise_high, {self.noise_high}")
        cycle, most = self.rate_cycle, f"None, or above rate_warm_up, {self.rate_warm_up}"
        require(cycle is None or cycle > self.rate_warm_up >= 0, who, "rate_cycle", cycle, most)
        clips = self.clip_each is None or self.transition != "consistency"
        require(clips, who, "clip_each", self.clip_each, "null: jumps of consistency are always clipped")


class ReinFlow(OnPolicyAgent):
    r"""Zhang et al., "ReinFlow: Fine-tuning Flow Matching Policy with Online Reinforcement Learning" (NeurIPS 2025).

    A chain x_0, ..., x_K of `core.actors.chains` draws a chunk of actions, x_K, and keeps its places. With its
    log-density over its numbers,

    .. math::
        \ell &= \frac{1}{(K + 1) D} \Big( \log p(x_0) + \sum_k \log N(x_{k+1}; \mu_k, \sigma_k^2) \Big), \quad
        \rho = e^{\ell - \ell_k} \\
        L &= E \max(-A \rho, -A\,\mathrm{clip}(\rho, 1 \pm \epsilon)) - c_e H + c_b E\, |F_v(x_0) - F_{v_0}(x_0)|^2

    so that the ratio is the geometric mean over the numbers; `ratio_normalization=joint` takes that of the chain. A is
    generalised over decisions: an episode's border ends its sum, and a time limit inside a chunk bootstraps from that
    episode's own last observation, where the official code takes the next episode's first. The official code also cuts
    log-densities at 1, which leaves no gradient where deviations are below .04: here `log_prob_limit` does, and the
    share of rows that it cuts is reported as `cut`. The regulariser takes fresh noise for both flows. The official
    rates go along a cosine with restarts (`rate_cycle=100`). `init=` a run of `flow_bc` gives the velocity; the policy
    that leaves is that flow, without the noise network. It begins as the clone's, so that steps are clipped where the
    clone's are: officially always, here with `clip_each=true`.

    With `transition=flow_sde` the noise is that of Flow-GRPO, with `transition=consistency` the chain that of Oertell
    et al., "RL for Consistency Models"; `rlcm` clips the ratio of each step, as its authors do, where here it is the
    chain's. The preset `pi_rl` has one ratio of the whole chain under learned noise, as pi_RL's flow_noise.
    """

    name = "reinflow"
    requires = Requires(discrete=False)
    vision = Vision(encoder_with=("actor",))
    Config: ClassVar[type] = ReinFlowConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "locomotion": DENSE,
        "hopper": {**DENSE, "noise_low": 0.1, "noise_high": 0.24},
        "manipulation": {"target_kl": 0.01, "noise_high": 0.14, "discount": 0.999},
        "pi_rl": {"ratio_normalization": "joint", "clip": 0.2},
        "consistency": {"transition": "consistency"},
    }
    warm_start = WarmStart(counters=("actor.ceiling",))
    config: ReinFlowConfig
    actor: FlowChainActor  # type: ignore[assignment]

    def build(self) -> None:
        """Chain and critic, and where it is held near the clone the clone's velocity."""
        self.build_actor()
        c = self.config
        self.value = Value(self.features, c.hidden, "orthogonal", activation=c.activation)
        if c.clone_coefficient > 0:
            self.reference = copy.deepcopy(self.actor.network).requires_grad_(False)

    def build_actor(self) -> None:
        """The chain of the chosen transition."""
        c, size = self.config, self.decision_dim
        self.actor = chain_of(c, velocity_network(c, self.features, size), size, c.flow_steps or STEPS)

    inherit_options = classmethod(inherit_options)

    def load_from(self, source: Agent) -> list[str] | None:
        """The clone's velocity; of a run of this algorithm all."""
        if type(source) is type(self):
            check_clone_is_kept(self, source)
            return None
        take_clone(self, source, self.actor.network, self.actor.steps)
        if self.config.clone_coefficient > 0:
            self.reference.load_state_dict(self.actor.network.state_dict())
        return ["actor.network"]

    def leaving_actor(self) -> Actor:
        """The flow alone."""
        return self.actor.deployed()

    @property
    def anneals(self) -> bool:  # type: ignore[override]
        """Whether noise decays."""
        return self.config.transition == "reinflow" and self.config.noise == "learn_decay"

    @property
    def warm_up_blocks(self) -> int:
        """Blocks that only the critic learns from."""
        return self.config.critic_warmup

    @property
    def numbers(self) -> int:
        """Of a chain: what a mean log-density is one of."""
        return (self.actor.steps + 1) * self.decision_dim

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages, returns, and the log-density of each chain, as a mean over its numbers."""
        columns = {**self.acted(block), **self.advantages(block)}
        columns["behaviour_log_prob"] = self.behaviour_log_prob(block) / self.numbers
        return columns | {name: block[name] for name in ("moving",) if name in block}

    def policy_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Clipped surrogate, less the entropy bonus, and the distance from the clone."""
        c, mask = self.config, batch.get("mask")
        found = self.evaluate(batch)
        logs, cut = limited_log_ratio(found.log_density / self.numbers, batch["behaviour_log_prob"], c.log_prob_limit)
        joint = logs * self.numbers
        log_ratios = joint if c.ratio_normalization == "joint" else logs
        terms, clipped = clip_surrogate(log_ratios, normalise(batch["advantages"], mask), c.clip, mask=mask)
        entropy = reduce(found.entropy / self.numbers, mask)
        loss = reduce(terms, mask) - c.entropy_coefficient * entropy
        metrics = {
            **ratio_metrics(log_ratios, clipped, mask),
            "kl_chain": ratio_metrics(joint, mask=mask)["kl_k3"],
            "entropy": entropy,
            "deviation": found.outputs.deviation(self.decision_dim),
        }
        metrics["ratio_far"] = reduce((joint.detach().expm1().abs() > FAR).to(joint.dtype), mask)
        if c.log_prob_limit is not None:
            metrics["cut"] = reduce(cut, mask)
        if c.clone_coefficient > 0:
            distance = self.clone_distance(batch["observations"], noise["start"])
            loss = loss + c.clone_coefficient * reduce(distance, mask)
            metrics["clone_distance"] = distance
        if "moving" in batch:
            loss = loss * batch["moving"].mean()
        return loss, metrics

    def clone_distance(self, observations: Tensor, start: Tensor) -> Tensor:
        """(B,) mean squared distance of the actions that policy and clone make of the same (B, noise_dim) noise.

        It bounds their squared Wasserstein-2 distance.
        """
        with torch.no_grad():
            there = self.actor.carried(self.reference, observations, start)
        return (self.actor.carried(self.actor.network, observations, start) - there).square().mean(-1)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the value, weighted."""
        value = self.value(batch["observations"])
        terms = value_loss(value, batch["returns"], mask=batch.get("mask"))
        return self.config.value_coefficient * reduce(terms, batch.get("mask")), {"value": value}

    def decay_noise(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """The greatest deviation of the next block."""
        ceiling = decayed(self.config.noise_low, self.config.noise_high, batch["progress"].flatten()[0])
        return {"actor.ceiling": ceiling}, {"noise_high": ceiling}

    def updates(self) -> list[Update | Rule]:
        """Two steps at the same parameters; after a block, where it is asked for, less noise."""
        c = self.config
        common: dict[str, Any] = {"max_gradient_norm": c.max_gradient_norm}
        if c.rate_cycle is not None:
            common |= {"schedule": "restarts", "cycle": c.rate_cycle, "warm_up": c.rate_warm_up}
            common["stride"] = c.steps_per_block
        actor = Adam(c.learning_rate, lowest=c.lowest_rates[0], **common)
        critic = Adam(c.value_learning_rate, lowest=c.lowest_rates[1], weight_decay=c.value_weight_decay, **common)
        drawn = {"start": Noise("normal", self.actor.noise_dim)} if c.clone_coefficient > 0 else {}
        found: list[Update | Rule] = [
            Update(self.policy_loss, ("actor",), actor, noise=drawn),
            Update(self.critic_loss, ("value",), critic, simultaneous=True),
        ]
        if self.anneals:
            found.append(Rule(self.decay_noise, ("actor",), on="block", source="block"))
        return found
