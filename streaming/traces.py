"""What the stream-x agents learn with: eligibility traces, ObGD, and rewards on a scale of their own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.actors import CategoricalActor, MLPActor, SoftplusGaussianActor
from surefoot.streaming import kernel, obgd, statistics
from surefoot.streaming.agent import StreamingAgent
from surefoot.streaming.config import StreamConfig
from surefoot.streaming.network import Network


class TraceAgent(StreamingAgent):
    """A streaming agent whose networks have traces: `ascend` is its optimiser step, `finish` its end of a step."""

    config: StreamConfig
    networks: Mapping[str, Network]

    critic_traces: Tensor
    reward_trace: Tensor
    reward_count: Tensor
    reward_mean: Tensor
    reward_squares: Tensor
    count: Tensor

    def make_networks(self) -> Mapping[str, Network]:
        """A value of the observation."""
        return {"critic": self.network(1)}

    def network(self, outputs: int) -> Network:
        """The config's network of an observation, with so many outputs."""
        c = self.config
        return Network(self.spec.observation_dim, outputs, self.hidden, c.layer_norm, c.sparsity, c.min_nonzero)

    def make_kernel(self) -> kernel.StreamKernel:
        """The native kernel for these buffers."""
        return kernel.make(self)

    def _register(self) -> None:
        super()._register()
        k = len(self.seeds)
        for name, network in self.networks.items():
            self.add_buffer(f"{name}_traces", kernel.parameter_rows(k, network.size, self.dtype))
            if self.config.optimizer == "adaptive":
                self.add_buffer(f"{name}_second", kernel.parameter_rows(k, network.size, self.dtype))
        self.add_buffer("count", torch.zeros(k, dtype=torch.int64))  # n of Adaptive ObGD
        for name in ("reward_trace", "reward_count", "reward_mean", "reward_squares"):
            self.add_buffer(name, torch.zeros(k, dtype=torch.float64))

    def _actor(self, stream: int) -> MLPActor:
        kind = CategoricalActor if self.spec.discrete else SoftplusGaussianActor
        sizes = (self.spec.observation_dim, self.spec.action_dim, self.hidden)
        layer_norm = self.networks[self.policy_network].layer_norm
        return self.fill(kind(*sizes, activation="leaky_relu", layer_norm=layer_norm), stream)

    def reward(self, rows: Tensor) -> Tensor:
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
        traces = obgd.accumulate(traces, gradient, decay)
        if c.optimizer == "obgd":
            weights, _ = obgd.obgd_step(weights, traces, delta, kappa=kappa, step_size=c.step_size)
        elif c.optimizer == "adaptive":
            second, settings = getattr(self, f"{name}_second"), {"beta2": c.beta2, "epsilon": c.epsilon_adaptive}
            weights, second, _ = obgd.adaptive_obgd_step(
                weights, traces, second, self.count + 1, delta, kappa=kappa, step_size=c.step_size, **settings
            )
            self.put(f"{name}_second", second, rows)
        else:
            weights = obgd.sgd_step(weights, traces, delta, learning_rate=c.learning_rate)
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
        """Traces and the discounted sum of rewards decay over transitions that can't be learned."""
        c = self.config
        for name in self.networks:
            getattr(self, f"{name}_traces").mul_((c.discount * c.decay) ** lost.to(self.dtype).unsqueeze(-1))
        self.reward_trace.mul_(c.discount**lost)
