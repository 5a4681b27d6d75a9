"""Online training: the worker's part of an online run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent
from surefoot.core.engine.sources import MAIN
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare_without_data
from surefoot.envs.adapters.shared import takes_turns
from surefoot.envs.curriculum import lessons_of
from surefoot.envs.interface import VectorEnvironment
from surefoot.online.loops.loop import Loop, acting_of, make_loop
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.on_policy import OnPolicyLoop
from surefoot.online.loops.replay import ReplayWindows
from surefoot.online.remote.team import Elsewhere
from surefoot.runs.inputs import training_environment
from surefoot.runs.machine import as_begun
from surefoot.runs.processes.collectors import team_environment
from surefoot.runs.starts import snapshots_in
from surefoot.runs.trainers.trainer import SeedTrainer
from surefoot.runs.warm_start import take_moments, take_reward_scale


class ActingTrainer(SeedTrainer):
    """Trains agents on what they meet in an environment of their own, and on a dataset where they take one."""

    loop: Loop
    environment: VectorEnvironment
    """What the loop acts in."""
    elsewhere: Elsewhere | None = None
    """The environments of collectors, where they act."""
    _windows_known = False
    """Whether windows of the replay buffer are known to be as long as episodes or not."""

    def begin(self) -> None:
        """Make the environments and the loop."""
        agents = [self.fresh(seed) for seed in self.seeds]
        self.loop = self._loop(agents, self._ready(agents))
        self.learner = as_begun(self.loop.learner, self.run.folder)
        self.look_at_first_steps(acting_of(self.loop))
        if isinstance(self.loop, OffPolicyLoop) and self.seeds[0] == self.plan.seeds[0] and self.loop.experience.size:
            self.send({"kind": "note", "text": self.loop.experience.size})
        if self.plan.init is not None:
            take_moments(self.learner, self.started_from())
            if isinstance(self.loop, OnPolicyLoop):
                take_reward_scale(self.loop, self.started_from())

    @property
    def step(self) -> int:
        """Environment steps taken so far by each seed."""
        return self.loop.step

    def advance(self, steps: int) -> dict[str, list[float]]:
        """Act and learn for at least `steps` environment steps."""
        self.loop.pause = self.pause
        if isinstance(self.loop, OnPolicyLoop):  # whose pauses are a block apart
            self.loop.blocks.meanwhile = lambda taken: self.teller.within(self.step + taken)
        found = self.loop.run(steps)
        if not self._windows_known:
            self._say_windows()
        self.say_precision(acting_of(self.loop))
        return found

    def _evaluate(self) -> None:
        """As for all; an environment that evaluation steps too has lost the episodes that training had started."""
        super()._evaluate()
        if takes_turns(self.environment):
            self.loop.begin_episodes()

    def _say_windows(self) -> None:
        """Once updates have started: that no episode fills a window, where that is so of the first that are over."""
        source = self.learner.sources.get(MAIN)
        if not isinstance(source, ReplayWindows):
            self._windows_known = True
        elif self.learner.step > 0:
            (longest, over), length = source.longest(), source.windows.length
            self._windows_known = over or longest >= length
            if over and longest < length and self.seeds[0] == self.plan.seeds[0]:
                option = next(name for name in ("n_step", "length", "horizon", "chunk") if name in self.plan.config)
                self.send({"kind": "note", "text": (
                    f"windows have {length} steps and the longest episode so far {longest}: what is behind an episode's"
                    f" end is computed and counts in no loss; set algo.{option} to no more than episodes have"
                )})  # fmt: skip

    def state(self, position: int) -> dict[str, Tensor]:
        """Learner, replay, environments, normalisers."""
        return self.loop.state(position)

    def go_on(self, states: Sequence[Mapping[str, Tensor]], step: int) -> None:
        """Take up the loop's states; what can't be is reported, and recorded among the metrics."""
        self.say_lost(self.loop.restore(states, step))

    def _ready(self, agents: Sequence[Agent]) -> Dataset | None:
        if self.dataset is not None:
            return self.prepared(agents, self.dataset)
        for agent in agents:
            prepare_without_data(agent)
        return None

    def _loop(self, agents: list[Agent], dataset: Dataset | None) -> Loop:
        self.environment = self._environment(agents[0])
        return make_loop(
            agents,
            self.seeds,
            self.environment,
            planned_steps=self.plan.steps,
            batch_size=self.plan.batch_size,
            device=self.device,
            kernels=self.kernels(),
            compiled=self.plan.compiled,
            mixed_precision=self.plan.mixed_precision,
            dataset=dataset,
            jacobian_penalty=self.plan.jacobian_penalty,
            steps_per_graph=self.plan.steps_per_graph,
            collect_steps=None if self.plan.collect == "episode" else self.plan.collect_steps,
            share=self.share,
        )

    def _environment(self, agent: Agent) -> VectorEnvironment:
        """What the loop acts in: environments here, or those of collectors."""
        if self.plan.collectors is None:
            return training_environment(self.plan, agent, len(self.seeds), snapshots_in(self.run))
        if len(self.seeds) > 1:
            raise ConfigError(
                f"collectors={self.plan.collectors}: act for one seed, and {self.seeds} are trained together on this "
                "GPU: train each by itself, as in seeds=[0]"
            )
        seed = self.seeds[0]
        self.elsewhere = team_environment(
            self.plan, agent, seed, lambda text: self.send({"kind": "note", "text": f"seed {seed}: {text}"})
        )
        return self.elsewhere

    def extras(self, position: int) -> dict[str, Any]:
        """What collectors did, or what a curriculum came to."""
        if self.elsewhere is None:
            lessons = lessons_of(self.environment)
            return super().extras(position) | ({} if lessons is None else {"tasks": lessons.facts(position)})
        updates = {"updates_per_row": self.learner.step / max(1, self.step)}
        return super().extras(position) | {"collectors": {**self.elsewhere.team.facts(), **updates}}

    def close(self) -> None:
        """Close the environments, and end collectors."""
        if self.elsewhere is not None:
            self.elsewhere.team.close()
        self.environment.close()

    def finish(self) -> None:
        """As for all; collectors have nothing more to do."""
        if self.elsewhere is not None:
            self.elsewhere.team.close()
        super().finish()
