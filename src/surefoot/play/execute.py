"""Whole episodes of a policy whose inference takes time, in a simulator where control time is simulated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.memory import Memory
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import generator
from surefoot.core.base.spec import mapped
from surefoot.core.execution.executor import Execution, Executor
from surefoot.core.execution.guidance import GuidedPlanner
from surefoot.core.execution.inference import PolicyPlanner, Request, SimulatedWorker, ticks
from surefoot.core.policy.chunk_playing import chunk_of
from surefoot.core.policy.policy import Policy
from surefoot.envs.known_systems import system_of
from surefoot.envs.names import beneath
from surefoot.envs.vector import check_spaces
from surefoot.evaluation import difference_interval, evaluate, hierarchical_interval, success_rate
from surefoot.evaluation.rollout import Episodes

WARM, TRIED = 5, 50
"""Inferences before and while the usual latency is measured."""
PERCENTILES = (50, 95, 99)


@dataclasses.dataclass(frozen=True)
class Latency:
    """How long inferences take in control time: mean + uniform(-jitter, jitter), and now and then a spike instead.

    Raises:
        ConfigError: a number out of range.
    """

    mean: float | None = 0.0
    """s; None: as long as each takes on this machine."""
    jitter: float = 0.0
    """s, at most the mean."""
    spike: float = 0.0
    """s; 0: there are none."""
    spike_share: float = 0.01
    """Of the inferences."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no inference takes."""
        for name, value in (("latency", self.mean), ("jitter", self.jitter), ("spike", self.spike)):
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name} is {value}; an inference takes 0 s or more")
        if self.mean is None and self.jitter:
            raise ConfigError("jitter is of a latency that is given; a measured one has its own")
        if self.mean is not None and self.jitter > self.mean:
            raise ConfigError(f"jitter is {self.jitter} s around a latency of {self.mean} s; it is at most that")
        if not 0 <= self.spike_share <= 1:
            raise ConfigError(f"the share of spikes is {self.spike_share}; it is from 0 to 1")

    def stream(self) -> Callable[[float], float]:
        """Measured seconds -> seconds in control time, of one inference after the other."""
        drawn = generator(self.seed, "latency")

        def next_one(measured: float) -> float:
            share, place = drawn.random(2)
            if self.spike and share < self.spike_share:
                return self.spike
            return measured if self.mean is None else self.mean + self.jitter * (2 * float(place) - 1)

        return next_one


class ExecutedPolicy:
    """An executor in control time as a policy of one row: `evaluate` steps it as any other, with num_envs=1."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def begin(self, rows: int) -> Memory:
        """An empty memory: the executor has its own."""
        if rows != 1:
            raise ConfigError(f"an executor drives one robot, not {rows}")
        self.executor.reset()
        return {}

    def act(self, observations: Any, memory: Memory) -> tuple[Tensor, Memory]:
        """(1, A) actions of (1, O) observations."""
        one = mapped(lambda values: values[0].numpy(), observations)
        return torch.from_numpy(self.executor.select_action(one)).unsqueeze(0), memory

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """Begin the next episode where one ended."""
        if bool(ended[0]):
            self.executor.reset(None)
        return memory


@dataclasses.dataclass(frozen=True)
class Executed:
    """Episodes with and without the latency, from the same initial states, and what the executor counted."""

    settings: Execution
    latency: Latency
    chunk: int
    execute: int
    delay: int
    gap: int
    episodes: Episodes
    """Executed."""
    immediate: Episodes
    """Of the policy as it is, whose inference takes no control time."""
    counts: dict[str, Any]
    latencies: list[float]
    """s, in control time."""
    measured: list[float]
    """s on this machine."""

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values, with intervals."""
        both = [self.episodes], [self.immediate]
        returns, immediate = ([one.returns for one in side] for side in both)
        success, before = (success_rate(side) for side in both)
        counts = self.counts
        return {
            "mode": self.settings.mode,
            "rate": self.settings.rate,
            "chunk": self.chunk,
            "execute": self.execute,
            "deadline": self.settings.deadline,
            "delay": self.delay,
            "gap": self.gap,
            "late_option": self.settings.late,
            "max_rate": self.settings.max_rate,
            "episodes": len(self.episodes.returns),
            "length_mean": float(self.episodes.lengths.mean()),
            "returns": hierarchical_interval(returns).to_json(),
            "immediate_returns": hierarchical_interval(immediate).to_json(),
            "difference": difference_interval(returns, immediate).to_json(),
            "success": None if success is None else success.to_json(),
            "immediate_success": None if before is None else before.to_json(),
            "counts": counts,
            "late_share": counts["late"] / max(1, counts["received"]),
            "held_share": counts["held"] / max(1, counts["ticks"]),
            "latency": percentiles(self.latencies),
            "measured": percentiles(self.measured),
            "latency_law": dataclasses.asdict(self.latency),
        }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Percentiles and the largest, in ms."""
    found = 1000 * np.asarray(seconds)
    named = {f"p{p}": float(np.percentile(found, p)) for p in PERCENTILES}
    return {**named, "max": float(found.max())}


def planner_of(policy: Policy, guidance: float | None) -> PolicyPlanner:
    """What plans: the policy, or the policy whose new chunks are guided."""
    return PolicyPlanner(policy) if guidance is None else GuidedPlanner(policy, guidance)


def tried(planner: PolicyPlanner, policy: Policy, count: int) -> list[float]:
    """Seconds of `count` inferences of `policy` on this machine, guided where `planner` guides; of zeros.

    A few come before them, which take longer and are not counted.
    """
    zeros = {key: np.zeros(one.shape, one.dtype) for key, one in policy.arrays.items()}
    observation = zeros if policy.encoder is not None else next(iter(zeros.values()))
    worker = SimulatedWorker(planner, 1.0, lambda seconds: 0.0)
    steps = planner.chunk if isinstance(planner, GuidedPlanner) else 0  # without a plan there is nothing to be led by
    coming = np.tile((planner.low + planner.high) / 2, (steps, 1))
    for draw in range(WARM + count):
        seen = planner.see(observation)
        worker.submit(Request(0, seen, draw, coming, 0))
    planner.reset(0)
    return list(worker.measured)[WARM:]


def usual_rate(env_id: str) -> float:
    """Steps a second of a system whose equations are at hand, one a tick; 50 elsewhere, where nothing says it.

    A system that is seen by a camera has its own steps.
    """
    known = system_of(beneath(env_id))
    return 50.0 if known is None else 1 / known.time_step


def settings_for(
    policy: Policy, latency: Latency, rate: float, mode: str | None, guidance: float | None = None, **options: Any
) -> Execution:
    """Settings with what is left open filled in: the deadline is the longest usual latency, and the mode asynchronous.

    A policy whose chunks are not longer than the deadline can only be executed synchronously.

    Args:
        policy: that plans.
        latency: of its inference.
        rate: control ticks a second.
        mode: as of `Execution`, or None.
        guidance: as `execute` is given it, since guided inference takes longer.
        options: others of `Execution`; None where it has a default.

    Raises:
        ConfigError: an option out of range, or a policy that can't be planned with or guided.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "deadline" not in given:
        if latency.mean is None:
            seconds = tried(planner_of(policy, guidance), policy, TRIED)
            given["deadline"] = float(np.percentile(seconds, 95))
        else:
            given["deadline"] = latency.mean + latency.jitter
    head = chunk_of(policy)
    if mode is None:
        bridged = head is not None and ticks(given["deadline"], rate) < head.chunk
        mode = "asynchronous" if bridged else "synchronous"
    return Execution(rate=rate, mode=mode, **given)


def execute(
    policy: Policy,
    env_id: str,
    settings: Execution,
    latency: Latency,
    episodes: int = 20,
    seed: int = 2,
    progress: Callable[[int, int], None] | None = None,
    guidance: float | None = None,
) -> Executed:
    """Run whole episodes of a policy with and without the latency of its inference, from the same initial states.

    One step of the environment is one control tick. The same settings, latency and seed give the same episodes, except
    where the latency is that of this machine.

    Args:
        policy: that plans, with or without chunks.
        env_id: where.
        settings: of the executor.
        latency: of its inference, in control time.
        episodes: of either, at least 1.
        seed: of the environment.
        progress: called with (finished, all) episodes.
        guidance: of a flow's new chunks towards what is planned already (`core.execution.guidance`); None: there is
        none.

    Raises:
        ConfigError: settings or a policy that don't fit.
        EnvironmentMismatchError: an environment that does not fit the policy, or what `evaluate` raises.
    """
    check_spaces(env_id, policy.arrays, policy.action_dim, policy.discrete)
    planner = planner_of(policy, guidance)
    if latency.mean is None:
        tried(planner, policy, 0)  # so that the first chunk of the first episode is no later than others
    worker = SimulatedWorker(planner, settings.rate, latency.stream())
    with Executor(planner, settings, worker) as executor:
        found = evaluate([ExecutedPolicy(executor), policy], env_id, episodes, seed, num_envs=1, progress=progress)
        return Executed(
            settings=settings,
            latency=latency,
            chunk=planner.chunk,
            execute=executor.execute,
            delay=executor.delay,
            gap=executor.gap,
            episodes=found[0],
            immediate=found[1],
            counts=executor.counts.to_json(),
            latencies=list(executor.latencies),
            measured=list(worker.measured),
        )
