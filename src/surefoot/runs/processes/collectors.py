"""Collectors: processes that act for one learner, on this machine (`collectors=processes`) or on Ray's (`ray`).

A collector is given everything by messages (`online.remote.team`) and reads no file of the run, so it may be anywhere
where surefoot and the environment are installed. Its randomness follows from the seed: collector 0 has the run's own
seed, so that a run with one collector is the run without, to the bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import IO, Any

import numpy as np
import torch

from surefoot.core.base.children import ONE_THREAD, start_python
from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.core.base.precision import FirstSteps
from surefoot.core.engine.agent import Agent, Spec
from surefoot.envs.acting import under
from surefoot.envs.acting.first_look import FirstLook
from surefoot.envs.training import make_training
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.loops.loop import acting_of, make_loop
from surefoot.online.loops.on_policy import OnPolicyLoop
from surefoot.online.remote.collector import fill_for, restore_acting, steps_for
from surefoot.online.remote.team import STATE, Elsewhere, LostError, Team, packed, unpacked
from surefoot.runs import trust
from surefoot.runs.inputs import row_view, shaped
from surefoot.runs.plan import Plan
from surefoot.runs.processes import cluster
from surefoot.runs.processes.stopping import leave_interrupts, signals_wait
from surefoot.runs.success_reward import with_reward


def collector_seed(seed: int, worker: int) -> int:
    """What fixes all that is random in a collector; the first has the run's own seed."""
    return seed if worker == 0 else int(np.random.SeedSequence((seed, worker)).generate_state(1, np.uint64)[0] >> 1)


def check_plan(plan: Plan, agent: Agent) -> None:
    """Refuse what the collectors of a plan can't do.

    Raises:
        ConfigError: says what.
    """
    if not isinstance(agent, OnPolicyAgent | OffPolicyAgent):
        raise ConfigError(f"{agent.name} does not learn from blocks or a replay buffer: leave out collectors=")
    beside = isinstance(agent, OffPolicyAgent) and agent.config.offline_fraction > 0
    if plan.dataset is not None and not beside:
        raise ConfigError(
            f"collectors={plan.collectors}: of runs that learn online, alone or with a part of each batch from data "
            "(algo.offline_fraction); leave out dataset="
        )
    rows = int(plan.config["num_envs"])
    if rows % plan.workers:
        raise ConfigError(
            f"workers={plan.workers}: {rows} environments can't be shared equally among them; set envs= to a multiple"
        )
    if plan.collect == "episode":
        if not isinstance(agent, OffPolicyAgent):
            raise ConfigError(f"collect=episode: {agent.name} learns from blocks of steps: leave it out")
        if rows > 1:
            raise ConfigError(
                f"collect=episode: an order is one episode of one environment, and envs={rows}: set envs=1"
            )
    if plan.collectors == "ray":
        cluster.check("collectors=ray")


def team_environment(plan: Plan, agent: Agent, seed: int, notify: Callable[[str], None]) -> Elsewhere:
    """The environments of a run's collectors, for a learner's loop."""
    recipe = {"plan": plan.to_json(), "spec": agent.spec.to_json(), "seed": seed, "fixed": agent.normalizer.fixed,
              "modules": trust.for_workers([*plan.imports, plan.environment])}  # fmt: skip
    connect: Callable[[int], Any]
    if plan.collectors == "ray":
        ray = cluster.begin("collectors=ray", cpus=plan.workers, address=os.environ.get("RAY_ADDRESS"), notify=notify)
        actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Collector)

        def connect(worker: int) -> Any:
            return RayConnection(ray, actor)

    else:

        def connect(worker: int) -> Any:
            return ProcessConnection()

    team = Team(
        connect, lambda worker: {**recipe, "worker": worker}, plan.workers, plan.staleness, plan.patience, notify
    )
    like = make_training(str(plan.environment), 1, gap=plan.gap, view=row_view(type(agent)))
    try:
        return Elsewhere(like, agent.config.num_envs, team)
    finally:
        like.close()


class Collector:
    """Answers the messages of a learner, in whatever process it lives."""

    def __init__(self) -> None:
        """Wait to be given what to act in."""
        torch.set_num_threads(1)
        self.loop: Any = None
        self.reported: list[str] = []
        self.first_steps: FirstSteps | None = None

    def answer(self, message: bytes) -> bytes | None:
        """The answer to a message, None where there is none; errors are answers too."""
        meta, tensors = unpacked(message)
        try:
            if meta["do"] == "begin":
                self._begin(meta)
                return None
            if meta["do"] == "restore":
                self._restore(under(tensors, STATE), int(meta["number"]) + 1)
                return None
            return self._collect(meta, tensors)
        except SurefootError as error:
            return packed({"error": type(error).__name__, "text": str(error)}, {})
        except Exception as error:
            traceback.print_exc()
            return packed({"error": "unexpected", "text": f"{type(error).__name__}: {error}"}, {})

    def _begin(self, meta: dict[str, Any]) -> None:
        from surefoot.core.nn.native import kernels

        kernels.keep_memory()
        trust.take_over(meta["modules"])
        plan, spec, worker = Plan.from_json(meta["plan"]), Spec.from_json(meta["spec"]), int(meta["worker"])
        rows = int(plan.config["num_envs"]) // plan.workers
        options = {**plan.config, "num_envs": rows}
        if "horizon" in options:
            options["horizon"] = plan.agent(
                spec
            ).config.length  # of all environments, where it follows from their number
        if "minibatches" in options:
            options["minibatches"] = 1  # of blocks that are learned from elsewhere
        if "initial_steps" in options:
            options["initial_steps"] = max(1, math.ceil(int(options["initial_steps"]) / plan.workers))
        if "offline_fraction" in options:
            options["offline_fraction"] = 0.0  # data are the learner's
        own = dataclasses.replace(plan, config=options)
        seed = collector_seed(int(meta["seed"]), worker)
        agent = own.agent(spec).fresh(seed)
        agent.normalizer.fixed = bool(meta["fixed"])  # as the learner's, whose statistics come with its weights
        made = make_training(str(plan.environment), rows, gap=plan.gap, view=row_view(type(agent)))
        env = with_reward(shaped(made, plan), plan)
        held = plan.collect_steps * env.num_envs  # of the replay buffer, which no one learns from
        steps = held if isinstance(agent, OffPolicyAgent) else plan.steps
        self.loop = make_loop([agent], [seed], env, planned_steps=steps, batch_size=1, kernels=plan.kernels)
        if worker == 0 and int(meta["seed"]) == plan.seeds[0]:  # one says it for all
            look = FirstLook(str(plan.environment), env.single_observation_space)
            self.first_steps = acting_of(self.loop).first_steps = look

    def _restore(self, state: dict[str, torch.Tensor], number: int) -> None:
        """Continue from a state; `number` fixes the new episodes where environments can't give theirs."""
        loop = self.loop
        if isinstance(loop, OnPolicyLoop):
            lost = loop.blocks.restore([state], number)
        else:
            lost = restore_acting(loop, state, number)
        if lost is not None:
            self.reported.append(lost)

    def _collect(self, meta: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bytes:
        reported, self.reported = self.reported, []
        reported += [] if self.first_steps is None else self.first_steps.notes()
        loop = self.loop
        if isinstance(loop, OnPolicyLoop):
            return fill_for(loop.blocks, meta, tensors, reported)
        return steps_for(loop, meta, tensors, reported)


class ProcessConnection:
    """A collector in a process of its own on this machine; messages through its standard input and output.

    One thread writes and another reads, so that a full pipe never blocks the learner: it waits in `receive` only, where
    its patience counts. What waits to be written is bounded, as a team has at most `staleness` + 1 orders under way.
    """

    def __init__(self) -> None:
        """Begin it."""
        with signals_wait():
            self.process = start_python("-m", "surefoot.runs.processes.collectors", variables=ONE_THREAD)
        self._inbox: queue.Queue[bytes | None] = queue.Queue()
        self._outbox: queue.Queue[bytes | None] = queue.Queue()
        for side in (self._read, self._write):
            threading.Thread(target=side, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while (message := read_framed(self.process.stdout)) is not None:
                self._inbox.put(message)
        self._inbox.put(None)

    def _write(self) -> None:
        assert self.process.stdin is not None
        try:
            with self.process.stdin as orders:
                while (message := self._outbox.get()) is not None:
                    write_framed(orders, message)
        except (OSError, ValueError):
            self._inbox.put(None)

    def send(self, message: bytes) -> None:
        """As `Connection.send`; where the collector is lost, `receive` says so."""
        self._outbox.put(message)

    def receive(self, patience: float | None) -> bytes:
        """As `Connection.receive`."""
        try:
            message = self._inbox.get(timeout=patience)
        except queue.Empty:
            raise TimeoutError from None
        if message is None:
            raise LostError(self._why())
        return message

    def _why(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        code = self.process.returncode
        return f"its process {self.process.pid} {'takes no orders' if code is None else f'ended with code {code}'}"

    def close(self) -> None:
        """As `Connection.close`."""
        self.process.kill()
        self._outbox.put(None)
        self.process.wait()


class RayConnection:
    """A collector that is an actor of Ray, on whatever machine has room."""

    def __init__(self, ray: Any, actor: Any) -> None:
        """Begin it."""
        self.ray, self.actor = ray, actor.remote()
        self._waiting: list[Any] = []

    def send(self, message: bytes) -> None:
        """As `Connection.send`."""
        reference = self.actor.answer.remote(message)
        self._waiting.append(reference)

    def receive(self, patience: float | None) -> bytes:
        """As `Connection.receive`."""
        while True:
            reference = self._waiting[0]
            try:
                message = self.ray.get(reference, timeout=patience)
            except self.ray.exceptions.GetTimeoutError as error:
                raise TimeoutError from error
            except self.ray.exceptions.RayError as error:
                raise LostError(f"{type(error).__name__}") from error
            self._waiting.pop(0)
            if message is not None:
                return bytes(message)

    def close(self) -> None:
        """As `Connection.close`."""
        with contextlib.suppress(Exception):
            self.ray.kill(self.actor)


def write_framed(file: IO[bytes], message: bytes) -> None:
    """A message behind its length."""
    file.write(len(message).to_bytes(8, "little"))
    file.write(message)
    file.flush()


def read_framed(file: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = file.read(8)
    if len(head) < 8:
        return None
    length = int.from_bytes(head, "little")
    message = file.read(length)
    return message if len(message) == length else None


def main() -> None:
    """A collector of `ProcessConnection`; does not return.

    It ends with its standard input, that is, with the learner, also where its environment hangs. Ctrl-C, which a
    terminal sends to all processes of a run, is left to the learner, which may still want an answer.
    """
    leave_interrupts()
    channel, orders = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)  # what libraries print is no answer
    sys.stdout = sys.stderr
    received: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        try:
            while (message := read_framed(orders)) is not None:
                received.put(message)
        finally:
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    own = Collector()
    while True:
        answer = own.answer(received.get())
        if answer is not None:
            with contextlib.suppress(BrokenPipeError):
                write_framed(channel, answer)


if __name__ == "__main__":
    main()
