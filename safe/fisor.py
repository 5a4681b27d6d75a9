"""FISOR: feasible where no action in the data leads to a violation; there the best actions, elsewhere the safest."""

from __future__ import annotations

import copy
import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.diffusion import DiffusionActor, Schedule
from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import DataError
from surefoot.core.base.options import Options, option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update, require
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.core.losses.value_learning import expectile_loss, td_target
from surefoot.core.nn.networks import Critic, Value
from surefoot.core.nn.noise_networks import NETWORKS
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare
from surefoot.safe.constraint.costs import cost_notes
from surefoot.safe.constraint.signal import PUBLISHED_VIOLATION, SIGNALS, Signal, constraint_signal

CHOICES = ("lowest", "feasible", "best")
SCHEDULES = ("cosine", "constant")


@dataclasses.dataclass(frozen=True)
class FISORConfig(Options):
    """Settings of FISOR; the defaults are the preset `small`."""

    signal: str = option(
        "auto", "signal of safety, h: margin, published, or auto: the margin where there is one", choices=SIGNALS
    )
    violation: float = option(
        PUBLISHED_VIOLATION,
        "cost of a violation of the published signal: 25 sees 324 steps ahead, 1 sees 68",
        range="> 0",
    )
    expectile: float = option(
        0.9, "expectile of the reward value; nearer 1 is nearer the best action in the data", range="(0, 1)"
    )
    cost_expectile: float = option(
        0.9, "tau of the feasible value; nearer 1 is nearer the safest action in the data", range="(0, 1)"
    )
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    timeouts_end: bool = option(
        False, "treat the end of a recording as one of the task (official); else bootstrap through it"
    )
    target_rate: float = option(0.005, "rate of the critics' averages, every step", range="[0, 1]")
    learning_rate: float = option(3e-4, "learning rate of values and critics", range=">= 0")
    schedule: str = option(
        "cosine",
        "schedule of the actor's learning rate: cosine, to 0 over the run's steps, or constant (official)",
        choices=SCHEDULES,
    )
    actor_learning_rate: float = option(
        1e-3, "learning rate of the noise network, which acts; official: 3e-4, for a million steps", range=">= 0"
    )
    actor_decay: float = option(
        1.0, "the actor's rate falls along a cosine that ends after this many times the run's steps"
    )
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers of values and critics")
    reward_temperature: float = option(
        0.5, "multiplies the reward advantage in feasible states; 3 (official) needs long runs", range=">= 0"
    )
    cost_temperature: float = option(5.0, "multiplies the safety advantage in infeasible states", range=">= 0")
    reward_weight_max: float = option(100.0, "greatest weight of a feasible row")
    cost_weight_min: float = option(
        0.0,
        "least weight of an infeasible row; 1 keeps all at 1 or more (the official branch for MetaDrive)",
    )
    cost_weight_max: float = option(150.0, "greatest weight of an infeasible row")
    network: str = option("mlp", "network of the noise: mlp (small) or residual (official)", choices=NETWORKS)
    noise_hidden: tuple[int, ...] = option((256, 256), "widths of the mlp's hidden layers")
    width: int = option(256, "width of the residual network")
    blocks: int = option(3, "blocks")
    dropout: float = option(0.1, "dropout of the residual network", range="[0, 1)")
    diffusion_steps: int = option(5, "steps of diffusion, T", range=">= 1")
    beta_min: float = option(0.1, "least variance of a noising step, at the start of the schedule")
    beta_max: float = option(10.0, "greatest variance of a noising step, at the end of the schedule")
    actor_rows: int = option(256, "rows of an update of the actor", range=">= 1")
    actor_updates: int = option(1, "updates of the actor in a training step, each on rows of its own", range=">= 1")
    average_rate: float = option(0.001, "rate of the noise network's average, which is what acts", range="[0, 1]")
    samples: int = option(8, "N actions drawn for an observation", range=">= 1")
    choice: str = option(
        "feasible",
        "which sample acts: lowest, the safest (official); feasible, the first such; best, of those",
        choices=CHOICES,
    )
    reserve: float = option(
        0.05, "margin by which Q_h of a feasible sample must be below 0, in standard deviations of h", range=">= 0"
    )
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        low, high = self.cost_weight_min, self.cost_weight_max
        require(0 <= low <= high, "fisor", "cost_weight_min", low, f"in [0, cost_weight_max = {high}]")


class FISOR(Agent):
    r"""FISOR of Zheng et al., "Safe Offline RL with Feasibility-Guided Diffusion Model" (ICLR 2024).

    With the constraint signal h (> 0 on a violating step, `safe.constraint.signal`), and :math:`V_h \le 0` for a
    feasible state:

    .. math::
        L_{V_h} &= E\, |\tau - 1(u > 0)|\, u^2, \quad u = \max_i \hat Q_{h,i}(s, a) - V_h(s) \\
        L_{Q_h} &= E \textstyle\sum_i (y - Q_{h,i}(s, a))^2, \quad
            y = (1 - \gamma) h + \gamma \max(h, V_h(s')), \quad y = h \text{ on a terminal step} \\
        L_\pi &= E\, w(s, a)\, \|\epsilon_\theta(s, a_t, t) - \epsilon\|^2

    and the reward's :math:`V_r, Q_r` by IQL, with the smaller of two critics. The weights are

    .. math::
        w = \begin{cases}
            1(\hat Q_h \le 0)\, \min(e^{\alpha_r (\hat Q_r - V_r)}, 100) & V_h \le 0 \\
            \min(e^{\alpha_h (V_h - \hat Q_h)}, 150) & V_h > 0
        \end{cases}

    Targets' critics stand in all weights and value losses, and choose among the N actions that the policy draws. A
    training step is in the order of the official code: the actor with the critics of the step before, then reward value
    and critics, then feasible value and critics.

    Which of the N acts: officially the one of the smallest :math:`\max_i \hat Q_{h,i}` (`choice=lowest`). With the
    published signal, nearly -1 on all that is feasible, that is any feasible one. A true margin tells them apart, and
    the lowest is then not merely safe but as far from the limit as the data go, which costs most of the return. So the
    default takes the first for which it is at most -`reserve` (`feasible`), and the lowest where there is none; `best`
    takes the one of these with the largest :math:`\min_i \hat Q_{r,i}`. Both go as near to the limit as the reserve
    lets them, so what a learned boundary has wrong by more than that, they walk into; the lowest does not.

    Where it differs from the official code (ZhengYinan-AIR/FISOR): a time-out does not end the task
    (`timeouts_end=true` for theirs); h is the true margin where there is one (`signal=published` for theirs); rewards
    are scaled by the data's own range of returns, not by a table's; observations are normalised, which a small network
    needs in a short time; rewards weigh a sixth as much, because at 3 the critics' errors after 50,000 steps leave a
    few rows of a batch all the weight; the noise network learns at a rate that suits as many steps, not a million; and
    the rates of values and critics fall to 0 with it, because near the end their errors weigh most.
    The preset `official` has its networks, sizes, rates, signal, ends, observations, weights and choice.
    """

    name = "fisor"
    Config: ClassVar[type] = FISORConfig
    PRESETS = {  # noqa: RUF012
        "small": {},
        "official": {
            "network": "residual",
            "actor_rows": 1024,
            "actor_updates": 2,
            "samples": 16,
            "reward_temperature": 3.0,
            "schedule": "constant",
            "actor_learning_rate": 3e-4,
            "actor_decay": 1.5,
            "choice": "lowest",
            "normalization": "none",
            "signal": "published",
            "timeouts_end": True,
        },
    }
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "signals",
        "terminations",
        "next_observations",
    )
    requires = Requires(costs=True, margins=True)
    warm_start = WarmStart(networks=("noise_network", "normalizer"))
    config: FISORConfig
    reserve: Tensor

    def build(self) -> None:
        """Values, twin critics and their targets for reward and constraint; the noise network and its average."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.schedule = Schedule.vp(c.diffusion_steps, c.beta_min, c.beta_max)
        self.value = Value(sizes[0], c.hidden, "xavier")
        self.critic = Critic(*sizes, c.hidden, 2, "xavier")
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.feasible_value_network = Value(sizes[0], c.hidden, "xavier")
        self.feasible_critic = Critic(*sizes, c.hidden, 2, "xavier")
        self.target_feasible_critic = copy.deepcopy(self.feasible_critic).requires_grad_(False)
        kind = NETWORKS[c.network]
        self.noise_network = kind(
            *sizes, **{name: getattr(c, name) for name in kind.option_names() if hasattr(c, name)}
        )
        self.average_noise_network = copy.deepcopy(self.noise_network).requires_grad_(False)
        self.register_buffer("reserve", torch.zeros(()))

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions and rewards, normalise observations, add the column `signals`.

        Raises:
            DataError: no costs, negative ones, or all episodes of one return.
        """
        signal = self.signal(dataset)
        if not self.rewards_fixed:
            returns = dataset.episode_returns
            span = float(returns.max() - returns.min())
            if span <= 0:
                raise DataError(
                    f"{dataset.name}: all {len(returns)} episodes return {returns[0]:g}, and fisor scales rewards by "
                    "the range of returns; give data with episodes that differ"
                )
            self.reward_scale.fill_(float(dataset.episode_lengths.max()) / span)
        if not self.goals_fixed:
            self.reserve.fill_(self.config.reserve * float(signal.values.std()))
        ends = dataset.terminations | dataset.truncations if self.config.timeouts_end else dataset.terminations
        ready = prepare(self, dataset, normalization=self.config.normalization)
        return ready.replace(terminations=ends, extras={**ready.extras, "signals": signal.values})

    def signal(self, dataset: Dataset) -> Signal:
        """h of each step of a dataset in its own units."""
        return constraint_signal(dataset, self.config.signal, self.config.violation, self.name)

    def notes(self, dataset: Dataset) -> list[str]:
        """The signal in use, and what costs that are the same everywhere make impossible."""
        return [f"fisor: constraint signal h is {self.signal(dataset).source}", *cost_notes(dataset, self.name)]

    def annotate(self, batch: Batch) -> Batch:
        """Add the least reward value and the largest constraint value of the target critics at the data's actions."""
        pairs = batch["observation_actions"]
        least, largest = self.target_critic(pairs).amin(0), self.target_feasible_critic(pairs).amax(0)
        return {**batch, "target_q": least, "target_q_h": largest}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Weighted denoising of the data's actions; the weights know the clean action only."""
        observations, c = batch["observations"], self.config
        weight = feasibility_weights(
            self.feasible_value_network(observations),
            batch["target_q_h"],
            batch["target_q"] - self.value(observations),
            c.reward_temperature,
            c.cost_temperature,
            c.reward_weight_max,
            (c.cost_weight_min, c.cost_weight_max),
        ).detach()
        steps = self.schedule.step_of(noise["step"].squeeze(-1))
        noisy = self.schedule.noisy(batch["actions"], noise["noise"], steps)
        predicted = self.noise_network(noisy, observations, steps, noise.get("dropout"))
        error = (predicted - noise["noise"]).square().sum(-1)
        return (weight * error).mean(), {"weight": weight, "denoising_error": error}

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Expectile regression of V_r on the smaller target critic."""
        value = self.value(batch["observations"])
        return expectile_loss(batch["target_q"] - value, self.config.expectile).mean(), {"value": value}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of both reward critics against V_r(s'), averaged over them."""
        following = self.value(batch["next_observations"])
        target = td_target(batch["rewards"], batch["terminations"], following, self.config.discount)
        q = self.critic(batch["observation_actions"])
        return (q - target).square().mean(), {"q": q}

    def feasible_value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Reverse expectile regression of V_h on the larger target critic: nearly the safest action in the data."""
        value = self.feasible_value_network(batch["observations"])
        loss = expectile_loss(batch["target_q_h"] - value, 1 - self.config.cost_expectile).mean()
        return loss, {"feasible_value": value, "feasible_share": (value <= 0).to(value.dtype)}

    def feasible_critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of both constraint critics against the backup of V_h(s'), averaged over them."""
        following = self.feasible_value_network(batch["next_observations"])
        target = feasible_target(batch["signals"], batch["terminations"], following, self.config.discount)
        q = self.feasible_critic(batch["observation_actions"])
        return (q - target).square().mean(), {"feasible_q": q}

    def updates(self) -> list[Update]:
        """Actor, reward value and critics, feasible value and critics, one after the other."""
        c = self.config
        adam = Adam(c.learning_rate, schedule=c.schedule)
        falling = Adam(c.actor_learning_rate, schedule="cosine", decay_over=c.actor_decay)
        drawn = {"noise": Noise("normal", self.spec.action_dim), "step": Noise("uniform", 1)}
        if c.dropout > 0 and self.noise_network.dropped > 0:
            drawn["dropout"] = Noise("keep", self.noise_network.dropped, 1 - c.dropout)
        average = {"average_noise_network": ("noise_network", c.average_rate)}
        target, feasible = ({f"target_{name}": (name, c.target_rate)} for name in ("critic", "feasible_critic"))
        times, rows = c.actor_updates, c.actor_rows
        return [
            Update(
                self.actor_loss,
                ("noise_network",),
                falling,
                repeat=times,
                rows=rows,
                target_updates=average,
                noise=drawn,
            ),
            Update(self.value_loss, ("value",), adam),
            Update(self.critic_loss, ("critic",), adam, target_updates=target),
            Update(self.feasible_value_loss, ("feasible_value_network",), adam),
            Update(self.feasible_critic_loss, ("feasible_critic",), adam, target_updates=feasible),
        ]

    @property
    def actor(self) -> DiffusionActor:
        """What acts: the averaged noise network, and the target critics to choose by."""
        choice = self.config.choice
        return DiffusionActor(
            self.average_noise_network,
            self.schedule,
            self.spec.action_dim,
            self.target_feasible_critic,
            self.config.samples,
            choice,
            reward_critic=self.target_critic if choice == "best" else None,
            reserve=0.0 if choice == "lowest" else float(self.reserve),
        )

    def policy(self) -> Policy:
        """A copy of the policy that stands on its own: observations and actions in the environment's units."""
        return Policy.of(self.actor, self.normalizer, self.action_low, self.action_high)

    @torch.no_grad()
    def feasible_value(self, observations: Tensor) -> Tensor:
        """(B,) V_h of (B, O) observations in the environment's units: <= 0 where the state is held to be safe."""
        return self.feasible_value_network(self.normalizer(observations))

    @torch.no_grad()
    def feasible_action_value(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(B,) largest target Q_h of (B, O) observations and (B, A) actions in the environment's units."""
        scaled = to_agent(actions, self.action_low, self.action_high)
        pairs = torch.cat([self.normalizer(observations), scaled], -1)
        return self.target_feasible_critic(pairs).amax(0)


def feasible_target(signals: Tensor, terminations: Tensor, following: Tensor, discount: float) -> Tensor:
    """(B,) what Q_h is regressed on: (1 - g) h + g max(h, V_h(s')), h itself where the step was terminal; no gradient.

    Args:
        signals: (B,) h of the step, > 0 where it violates.
        terminations: (B,) 1 where the step ended the task.
        following: (B,) V_h of the next state.
        discount: g in [0, 1].

    Source: Fisac et al., "Bridging Hamilton-Jacobi Safety Analysis and Reinforcement Learning", in FISOR's sign.
    """
    backed_up = (1 - discount) * signals + discount * torch.maximum(signals, following)
    return (backed_up + terminations * (signals - backed_up)).detach()


def feasibility_weights(
    feasible_value: Tensor,
    feasible_q: Tensor,
    reward_advantage: Tensor,
    reward_temperature: float = 3.0,
    cost_temperature: float = 5.0,
    reward_limit: float = 100.0,
    cost_limits: tuple[float, float] = (0.0, 150.0),
) -> Tensor:
    """(B,) weights of the data's actions in the policy's loss.

    In feasible states exp(reward_temperature A_r) up to `reward_limit` for actions that stay feasible, and 0 for the
    others; in infeasible ones exp(cost_temperature (V_h - Q_h)) within `cost_limits`. Values of 0 count as feasible.

    Args:
        feasible_value: (B,) V_h.
        feasible_q: (B,) largest Q_h.
        reward_advantage: (B,) A_r.
        reward_temperature: >= 0.
        cost_temperature: >= 0.
        reward_limit: largest weight in feasible states.
        cost_limits: least and largest weight in infeasible ones.

    Source: Zheng et al., the weights of the policy's regression; the limits are those of the authors' code.
    """
    by_reward = (reward_temperature * reward_advantage).exp().clamp(max=reward_limit)
    by_safety = (cost_temperature * (feasible_value - feasible_q)).exp().clamp(*cost_limits)
    staying = torch.where(feasible_q <= 0, by_reward, 0.0)
    return torch.where(feasible_value <= 0, staying, by_safety)
