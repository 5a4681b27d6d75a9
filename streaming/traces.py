"""Eligibility traces and ObGD, steps from them that can't overshoot; and `TraceAgent`, which learns by both.

The steps are pure functions of K networks at once.

Source: Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works", algorithm 3 and appendix B.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.cuda_ext.stream import OPTIMIZERS, StreamSettings, parameter_rows
from surefoot.streaming import statistics
from surefoot.streaming.agent import StreamingAgent
from surefoot.streaming.network import Network
from surefoot.streaming.streams import StreamsConfig

OFFICIAL = {"min_nonzero": 0, "official_time_limit": True}
"""What the official code does otherwise than these defaults, for every agent."""


@dataclasses.dataclass(frozen=True)
class StreamConfig(StreamsConfig):
    """Settings of the stream-x agents; the defaults are the paper's, but for `min_nonzero` and time limits.

    Source: Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (2024).
    """

    decay: float = option(
        0.8, "lambda of the eligibility traces; the larger it is, the smaller the steps", range="[0, 1]"
    )
    kappa_critic: float = option(
        2.0, "a step moves the value network by at most 1 / kappa, in the L1 norm", range="> 0"
    )
    optimizer: str = option(
        "obgd", "optimizer: obgd, adaptive (Adaptive ObGD) or sgd (no bound: for ablations)", choices=OPTIMIZERS
    )
    step_size: float = option(1.0, "alpha of both kinds of ObGD; cancels wherever their bound is active", range="> 0")
    learning_rate: float = option(1e-3, "learning rate of sgd only", range="> 0")
    beta2: float = option(0.999, "of adaptive only: decay of its second moments", range="[0, 1)")
    epsilon_adaptive: float = option(1e-8, "of adaptive only: number added inside the root", range="> 0")
    layer_norm: bool = option(True, "layer norm before each hidden activation, without parameters")
    sparsity: float = option(0.9, "share of each row of initial weights that is zero", range="[0, 1]")
    min_nonzero: int = option(
        1, "initial weights that each row keeps; 0 is the official rule, which can zero whole rows", range=">= 0"
    )
    scale_rewards: bool = option(True, "divide rewards by the standard deviation of the discounted sum of past rewards")
    clear_before_add: bool = option(
        True, "clear the sum of rewards before adding an episode's last reward (official), or after"
    )


def accumulate(traces: Tensor, gradient: Tensor, decay: float | Tensor) -> Tensor:
    """z <- decay z + g: accumulating traces (K, P); `decay` is gamma lambda, or (K, 1) with 0 where traces are cut."""
    return decay * traces + gradient


def bounded_step(direction: Tensor, delta: Tensor, kappa: float, step_size: float = 1.0) -> Tensor:
    r"""(K,) ObGD's step for (K, P) directions and (K,) TD errors.

    .. math:: a = \alpha / \max(M, 1), \quad M = \alpha \kappa \max(|\delta|, 1) \|z\|_1

    The norm is over all parameters of a network, so that a step moves them by 1 / kappa at most in sum.
    """
    bound = step_size * kappa * delta.abs().clamp(min=1) * direction.abs().sum(-1)
    return step_size / bound.clamp(min=1)


def obgd_step(
    weights: Tensor, traces: Tensor, delta: Tensor, *, kappa: float, step_size: float = 1.0
) -> tuple[Tensor, Tensor]:
    """w + a delta z, and the step a: (K, P) weights and traces, (K,) TD errors -> (K, P), (K,)."""
    step = bounded_step(traces, delta, kappa, step_size)
    return weights + (step * delta).unsqueeze(-1) * traces, step


def adaptive_obgd_step(
    weights: Tensor,
    traces: Tensor,
    second: Tensor,
    count: Tensor,
    delta: Tensor,
    *,
    kappa: float,
    step_size: float = 1.0,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Adaptive ObGD: the trace divided by the root of the second moment of :math:`\delta z`.

    .. math::
        v &\leftarrow \beta_2 v + (1 - \beta_2) (\delta z)^2 \\
        u &= z / \sqrt{v / (1 - \beta_2^n) + \epsilon}, \quad w \leftarrow w + a \delta u

    Args:
        weights: (K, P).
        traces: (K, P) z, this step's gradient included.
        second: (K, P) v.
        count: (K,) n of this step, the first being 1.
        delta: (K,) TD errors.
        kappa: of the bound on u.
        step_size: alpha.
        beta2: decay of v.
        epsilon: inside the root.

    Returns:
        New weights, new second moments, and the step a (K,).
    """
    error = delta.unsqueeze(-1)
    second = beta2 * second + (1 - beta2) * (error * traces).square()
    correction = (1 - beta2 ** count.to(torch.float64)).to(weights.dtype).unsqueeze(-1)
    direction = traces / (second / correction + epsilon).sqrt()
    step = bounded_step(direction, delta, kappa, step_size)
    return weights + step.unsqueeze(-1) * error * direction, second, step


def sgd_step(weights: Tensor, traces: Tensor, delta: Tensor, *, learning_rate: float) -> Tensor:
    """w + learning_rate delta z, without a bound: what ObGD replaces."""
    return weights + (learning_rate * delta).unsqueeze(-1) * traces


class TraceAgent(StreamingAgent):
    """An agent whose networks have traces: `ascend` is its optimiser step, `finish` its end of a step."""

    config: StreamConfig
    count: Tensor
    reward_trace: Tensor
    reward_count: Tensor
    reward_mean: Tensor
    reward_squares: Tensor

    def add_buffers(self) -> None:
        """Those of all agents, traces, and what rewards are scaled by."""
        super().add_buffers()
        k = len(self.seeds)
        for name, network in self.networks.items():
            self.add_buffer(f"{name}_traces", parameter_rows(k, network.size, self.dtype))
            if self.config.optimizer == "adaptive":
                self.add_buffer(f"{name}_second", parameter_rows(k, network.size, self.dtype))
        self.add_buffer("count", torch.zeros(k, dtype=torch.int64))  # n of Adaptive ObGD
        for name in ("reward_trace", "reward_count", "reward_mean", "reward_squares"):
            self.add_buffer(name, torch.zeros(k, dtype=torch.float64))

    def network_of(self, outputs: int) -> Network:
        """The config's network of an observation, with so many outputs."""
        c = self.config
        return Network(self.spec.observation_dim, outputs, self.hidden, c.layer_norm, c.sparsity, c.min_nonzero)

    def native_settings(self) -> StreamSettings:
        """Config and problem as the kernel takes them."""
        c = self.config
        known = ("kappa_actor", "entropy", "trace_cut")  # not every config has these
        own = {name: getattr(c, name) for name in known if hasattr(c, name)}
        return StreamSettings(
            kind=self.kind,
            discrete=self.spec.discrete,
            observation_dim=self.spec.observation_dim,
            action_dim=self.spec.action_dim,
            hidden=self.hidden,
            discount=c.discount,
            decay=c.decay,
            kappa_critic=c.kappa_critic,
            step_size=c.step_size,
            optimizer=c.optimizer,
            beta2=c.beta2,
            epsilon_adaptive=c.epsilon_adaptive,
            learning_rate=c.learning_rate,
            layer_norm=c.layer_norm,
            normalize_observations=c.normalize_observations,
            scale_rewards=c.scale_rewards,
            official_time_limit=c.official_time_limit,
            clear_before_add=c.clear_before_add,
            **own,
        )

    def scaled_reward(self, rows: Tensor) -> Tensor:
        """(K,) reward divided by the standard deviation of its discounted sum, which it enters first."""
        c = self.config
        if not c.scale_rewards:
            return self.in_rewards.to(self.dtype)
        total, kept = statistics.discounted_sum(
            self.reward_trace, self.in_rewards, self.done, c.discount, c.clear_before_add
        )
        count, mean, squares = statistics.welford(self.reward_count, self.reward_mean, self.reward_squares, total)
        self.put("reward_trace", kept, rows)
        self.put("reward_count", count, rows)
        self.put("reward_mean", mean, rows)
        self.put("reward_squares", squares, rows)
        return (self.in_rewards / statistics.deviation(count, squares)).to(self.dtype)

    def ascend(
        self, name: str, gradient: Tensor, delta: Tensor, kappa: float, rows: Tensor, kept: Tensor | None = None
    ) -> None:
        """z <- gamma lambda z + g; w <- w + a delta z: a step of network `name`.

        Args:
            name: of the network.
            gradient: (K, P) g.
            delta: (K,) TD errors.
            kappa: of ObGD's bound.
            rows: (K,) streams that learn.
            kept: (K,) 0 where the old trace is cut first, else 1.
        """
        c = self.config
        decay: float | Tensor = c.discount * c.decay
        if kept is not None:
            decay = decay * kept.unsqueeze(-1)
        weights, traces = getattr(self, f"{name}_weights"), getattr(self, f"{name}_traces")
        traces = accumulate(traces, gradient, decay)
        if c.optimizer == "obgd":
            weights, _ = obgd_step(weights, traces, delta, kappa=kappa, step_size=c.step_size)
        elif c.optimizer == "adaptive":
            second, settings = getattr(self, f"{name}_second"), {"beta2": c.beta2, "epsilon": c.epsilon_adaptive}
            weights, second, _ = adaptive_obgd_step(
                weights, traces, second, self.count + 1, delta, kappa=kappa, step_size=c.step_size, **settings
            )
            self.put(f"{name}_second", second, rows)
        else:
            weights = sgd_step(weights, traces, delta, learning_rate=c.learning_rate)
        self.put(f"{name}_weights", weights, rows)
        self.put(f"{name}_traces", traces, rows)

    def finish(self, delta: Tensor, rows: Tensor, cut: Tensor | None = None) -> None:
        """After the updates: traces to 0 where the episode ended or (K,) `cut`, and the counters."""
        self.clear_traces(rows & (self.done if cut is None else self.done | cut))
        if self.config.optimizer == "adaptive":
            self.count += rows
        self.count_learned(delta, rows)

    def clear_traces(self, rows: Tensor) -> None:
        """Traces to 0 in the streams where (K,) `rows` is True."""
        if rows.any():
            for name in self.networks:
                getattr(self, f"{name}_traces")[rows] = 0

    def forget(self, rows: Tensor) -> None:
        """Traces and the discounted sum of rewards to 0: an episode ended without a learning step."""
        self.clear_traces(rows)
        self.reward_trace[rows] = 0

    def fade(self, lost: Tensor) -> None:
        """Traces and the discounted sum of rewards decay over transitions that can't be learned.

        Traces that exploration cuts are cut instead: an action that is repeated is not known to be greedy.
        """
        c = self.config
        if hasattr(c, "trace_cut"):
            self.clear_traces(lost > 0)
        for name in self.networks:
            getattr(self, f"{name}_traces").mul_((c.discount * c.decay) ** lost.to(self.dtype).unsqueeze(-1))
        self.reward_trace.mul_(c.discount**lost)
