"""The control loop of streaming agents, as the methods of `StreamingAgent` that a user calls at each tick."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.streaming.kernel import ACT, ACT_BEFORE, LEARN, OBSERVE, SHIFT

if TYPE_CHECKING:
    from surefoot.streaming.agent import StreamingAgent


def begin(self: StreamingAgent, observation: Any, *, streams: Any = None) -> Any:
    """The first action of an episode.

    An episode that was going on is given up: its traces are cleared, as at a truncation. The action takes the place of
    one that `step` gave at the end, so that no step of schedules is counted, but for the very first.

    Args:
        observation: (O,) of one stream, (K, O) of K.
        streams: (K,) bool, which streams begin; the others go on, and their rows are not read. None: all.

    Raises:
        EnvironmentMismatchError: another shape.
    """
    self.learn()
    samples = self.samples
    rows = np.ones(len(self.seeds), bool) if streams is None else np.asarray(streams)
    if rows.shape != samples.ready.shape or rows.dtype != bool:
        raise EnvironmentMismatchError(
            f"streams has shape {rows.shape} and dtype {rows.dtype}; one bool is needed for each of this agent's "
            f"{len(self.seeds)} streams"
        )
    samples.write(samples.observations, observation, "observation")
    samples.cut(rows & samples.running)
    samples.ready[rows], samples.running[rows] = False, True
    usable = samples.usable(samples.observations)
    samples.count_skipped(rows & ~usable)
    samples.flags[:3] = 0
    if rows.all() and not self.acted_count:
        self.draw_noise()
    else:
        self.draw_first_noise(rows)
    samples.run_for(rows & usable, OBSERVE | ACT | SHIFT)
    return self.answer()


def step(
    self: StreamingAgent, observation: Any, reward: Any, terminated: Any, truncated: Any, *, first: Any = None
) -> Any:
    """Learn what the last action led to, and give the next one.

    Args:
        observation: (O,) or (K, O) that the last action led to; an episode's last one where it ended.
        reward: a number, or (K,).
        terminated: bool, or (K,): the task ended; nothing follows.
        truncated: bool, or (K,): the episode was stopped; what would follow still counts.
        first: like `observation`: where an episode ended, the next one's first observation, for environments
            that reset themselves. Without it call `begin` after an end; the action returned then is for nothing.

    Returns:
        (A,) or (K, A) in the environment's units, within its bounds; the number of a choice or (K,) of them.

    Raises:
        EnvironmentMismatchError: another shape, or no episode is going on.
        DivergenceError: what was learned is not finite; there is no action then.
    """
    start = time.perf_counter_ns()
    self.learn()
    usable = self.samples.receive(observation, reward, terminated, truncated, first)
    self.draw_noise()
    if usable is None:
        self.run(OBSERVE | ACT_BEFORE | LEARN | SHIFT if self.act_before else OBSERVE | LEARN | ACT | SHIFT)
    else:
        self.samples.step_apart(usable, np.ones_like(usable), first is not None)
    self.check_learned()
    action = self.answer()
    self.count_time("step", time.perf_counter_ns() - start)
    return action


def act(
    self: StreamingAgent, observation: Any, reward: Any, terminated: Any, truncated: Any, *, first: Any = None
) -> Any:
    """The next action before anything is learned: send it, then call `learn`. Arguments as `step`.

    The action is by weights that don't know this transition yet. Where an episode ended there is no action to
    wait for, and the step is taken as by `step`.
    """
    start = time.perf_counter_ns()
    self.learn()
    usable = self.samples.receive(observation, reward, terminated, truncated, first)
    self.draw_noise()
    if usable is None:
        self.later[:] = True
        self.run(OBSERVE | ACT_BEFORE)
    else:
        ended = self.samples.ended()
        self.samples.step_apart(usable, ended, first is not None)
        self.check_learned()
        self.later[:] = usable & ~ended
        self.keep_noise()  # streams that began an episode may have drawn for all
        self.samples.run_for(self.later, OBSERVE | ACT_BEFORE)
    self.due = True
    action = self.answer(acting=True)
    self.act_ns = time.perf_counter_ns() - start
    self.latency["act"].add(self.act_ns)
    return action


def learn(self: StreamingAgent) -> None:
    """Learn the transition whose end `act` was given; without one that is due, do nothing.

    Raises:
        DivergenceError: what was learned is not finite.
    """
    if not self.due:
        return
    start = time.perf_counter_ns()
    self.samples.run_for(self.later, LEARN | SHIFT)
    self.due = False
    self.count_time("learn", time.perf_counter_ns() - start, self.act_ns)
    self.check_learned()


def miss(self: StreamingAgent) -> Any:
    """Say that a sample did not come, in any stream; gives the last actions again.

    To miss a sample of some streams only, give them rows of NaN in `step`.
    """
    self.learn()
    self.samples.check_running()
    self.samples.lose(np.ones(len(self.seeds), bool))
    self.missed += 1
    return self.answer()
