"""What the stream-x agents learn with: eligibility traces, ObGD, and rewards on a scale of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surefoot.streaming import kernel, obgd, statistics


class Traces:
    """Held by an agent whose networks have traces: `ascend` is its optimiser step, `finish` its end of a step."""

    def __init__(self, agent: Any) -> None:
        """Give the agent buffers of traces, and of what rewards are scaled by."""
        self.agent, self.config = agent, agent.config
        k = len(agent.seeds)
        for name, network in agent.networks.items():
            agent.add_buffer(f"{name}_traces", kernel.parameter_rows(k, network.size, agent.dtype))
            if self.config.optimizer == "adaptive":
                agent.add_buffer(f"{name}_second", kernel.parameter_rows(k, network.size, agent.dtype))
        agent.add_buffer("count", torch.zeros(k, dtype=torch.int64))  # n of Adaptive ObGD
        for name in ("reward_trace", "reward_count", "reward_mean", "reward_squares"):
            agent.add_buffer(name, torch.zeros(k, dtype=torch.float64))

    def reward(self, rows: Tensor) -> Tensor:
        """(K,) reward divided by the standard deviation of its discounted sum, which it enters first."""
        agent, c = self.agent, self.config
        if not c.scale_rewards:
            return agent.in_rewards.to(agent.dtype)
        total, kept = statistics.discounted_sum(
            agent.reward_trace, agent.in_rewards, agent.done, c.discount, c.clear_before_add
        )
        count, mean, squares = statistics.welford(agent.reward_count, agent.reward_mean, agent.reward_squares, total)
        agent.put("reward_trace", kept, rows)
        agent.put("reward_count", count, rows)
        agent.put("reward_mean", mean, rows)
        agent.put("reward_squares", squares, rows)
        return (agent.in_rewards / statistics.deviation(count, squares)).to(agent.dtype)

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
        agent, c = self.agent, self.config
        decay: float | Tensor = c.discount * c.decay
        if kept is not None:
            decay = decay * kept.unsqueeze(-1)
        weights, traces = getattr(agent, f"{name}_weights"), getattr(agent, f"{name}_traces")
        traces = obgd.accumulate(traces, gradient, decay)
        if c.optimizer == "obgd":
            weights, _ = obgd.obgd_step(weights, traces, delta, kappa=kappa, step_size=c.step_size)
        elif c.optimizer == "adaptive":
            second, settings = getattr(agent, f"{name}_second"), {"beta2": c.beta2, "epsilon": c.epsilon_adaptive}
            weights, second, _ = obgd.adaptive_obgd_step(
                weights, traces, second, agent.count + 1, delta, kappa=kappa, step_size=c.step_size, **settings
            )
            agent.put(f"{name}_second", second, rows)
        else:
            weights = obgd.sgd_step(weights, traces, delta, learning_rate=c.learning_rate)
        agent.put(f"{name}_weights", weights, rows)
        agent.put(f"{name}_traces", traces, rows)

    def finish(self, delta: Tensor, rows: Tensor, cut: Tensor | None = None) -> None:
        """After the updates: traces to 0 where the episode ended or (K,) `cut`, and the counters."""
        agent = self.agent
        self.clear_traces(rows & (agent.done if cut is None else agent.done | cut))
        if self.config.optimizer == "adaptive":
            agent.count += rows
        agent.count_learned(delta, rows)

    def clear_traces(self, rows: Tensor) -> None:
        """Traces to 0 in the streams where (K,) `rows` is True."""
        agent = self.agent
        if rows.any():
            for name in agent.networks:
                getattr(agent, f"{name}_traces")[rows] = 0

    def forget(self, rows: Tensor) -> None:
        """Traces and the discounted sum of rewards to 0: an episode ended without a learning step."""
        self.clear_traces(rows)
        self.agent.reward_trace[rows] = 0

    def fade(self, lost: Tensor) -> None:
        """Traces and the discounted sum of rewards decay over transitions that can't be learned.

        Traces that exploration cuts are cut instead: an action that is repeated is not known to be greedy.
        """
        agent, c = self.agent, self.config
        if hasattr(c, "trace_cut"):
            self.clear_traces(lost > 0)
        for name in agent.networks:
            getattr(agent, f"{name}_traces").mul_((c.discount * c.decay) ** lost.to(agent.dtype).unsqueeze(-1))
        agent.reward_trace.mul_(c.discount**lost)
