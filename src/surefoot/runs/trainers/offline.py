"""Training from a dataset alone: the worker's part of an offline run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import DataError, DivergenceError
from surefoot.core.engine.agent import Agent, Rule
from surefoot.core.engine.features import ENCODED, encoded, encodes_once
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Source, Stores, Uniform
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.frozen_features import with_features
from surefoot.data.sources import Added, BesideAdded
from surefoot.data.store import NEXT, store_from_dataset
from surefoot.offline.evaluation.fitted_q import Estimate, fitted_q_estimate
from surefoot.runs.finishing import FITTED_Q, MISSING, MODEL, VALIDATION, attempted, why
from surefoot.runs.machine import as_begun
from surefoot.runs.plan import agent_class
from surefoot.runs.progress_events import finite_or_none
from surefoot.runs.run import split
from surefoot.runs.trainers.trainer import SeedTrainer

FITTED_Q_STEPS = 10_000
VALIDATION_ROWS = 16_384
VALIDATION_WINDOWS = 512


class DataTrainer(SeedTrainer):
    """Trains agents on a dataset; where no policy is evaluated, a tenth of the episodes is held out to judge by."""

    sources: Mapping[str, Source]
    held_out: Dataset | None = None

    def begin(self) -> None:
        """Prepare the data and bind the agents to it."""
        assert self.dataset is not None
        if not self.plan.evaluates:
            self.dataset, self.held_out = split(self.dataset, agent_class(self.plan.algorithm).required_columns)
        agents = [self.fresh(seed) for seed in self.seeds]
        ready = self._encoded_once(agents, self.prepared(agents, self.dataset))
        store = store_from_dataset(ready, agents[0].required_columns, self.device)
        self.sources = agents[0].sources(Stores(ready, store))
        self.learner = as_begun(self._learner(agents), self.run.folder)

    def _encoded_once(self, agents: list[Agent], ready: Dataset) -> Dataset:
        """With features in place of pictures, where the encoder of a lone agent stays as it is."""
        agent = agents[0]
        if len(agents) > 1 or not encodes_once(agent):
            return ready
        assert agent.encoder is not None
        following = any(key.startswith(NEXT) for key in agent.required_columns)
        found = with_features(ready, agent.encoder, self.device, following)
        columns = [found.extras[name] for name in found.extras if name.rpartition("/")[2] in ENCODED]
        self.send({"kind": "note", "text": (
            f"seed {self.seeds[0]}: the encoder is not trained: features of {len(ready):,} observations were computed "
            f"once, {sum(column.nbytes for column in columns) / 1e6:,.1f} MB as {columns[0].dtype}"
        )})  # fmt: skip
        return found

    def _learner(self, agents: list[Agent]) -> Learner:
        sources, rows = self.sources, self.plan.batch_size
        if self.share is not None:
            sources, rows = self.share.sources(sources, agents[0]), self.share.check(agents[0], rows)
        learner = Learner(
            agents,
            self.seeds,
            sources,
            batch_size=rows,
            planned_steps=self.plan.steps,
            device=self.device,
            kernels=self.kernels(),
            compiled=self.plan.compiled,
            mixed_precision=self.plan.mixed_precision,
            jacobian_penalty=self.plan.jacobian_penalty,
            steps_per_graph=self.plan.steps_per_graph,
        )
        if self.share is not None:
            self.share.lead(learner)
        return learner

    def extras(self, position: int) -> dict[str, Any]:
        """Where no policy is evaluated: losses on the episodes held out, and a fitted-Q estimate of one that is."""
        if self.held_out is None:
            return {}
        agent, seed, missing = self.learner.extract(position), self.seeds[position], dict[str, str]()
        found: dict[str, Any] = {"validation": self._validated(agent, self.held_out, seed, missing)}
        held_out, nothing = self.held_out, dict[str, Any]()
        judged = attempted(MODEL, lambda: agent.judged_on(held_out, seed), nothing, missing)
        for text in agent.judged_words(judged):
            self.send({"kind": "note", "text": f"seed {seed}: {text}"})
        found |= judged
        if agent.requires.policy:
            found |= self.estimated(agent.policy(), seed)
        missing |= found.pop(MISSING, {})
        return {**found, MISSING: missing} if missing else found

    def _validated(
        self, agent: Agent, held_out: Dataset, seed: int, missing: dict[str, str]
    ) -> dict[str, float | None]:
        """The losses that are known, None where they are not finite; why there are none goes to `missing`."""

        def losses() -> dict[str, float | None]:
            try:
                return {name: finite_or_none(value) for name, value in validation_losses(agent, held_out).items()}
            except DataError as error:  # no episode of the kind that it learns from is among them
                self.send({"kind": "note", "text": f"no validation losses of the episodes held out: {error}"})
                return {}

        found = attempted(VALIDATION, losses, dict[str, float | None](), missing)
        for name in (name for name, value in found.items() if value is None):
            text = f"seed {seed}: {name} is not finite on the episodes held out"
            self.send({"kind": "note", "text": f"{text}; look for outliers in the data"})
        return found

    def estimated(self, policy: Policy, seed: int) -> dict[str, Any]:
        """A fitted-Q estimate, of policies of one vector without memory, from data with rewards.

        None where there is none, with the reason under `missing` unless the critic that judges diverged.
        """
        data, missing = self.dataset, dict[str, str]()
        assert data is not None
        if not data.has_rewards or policy.has_memory or policy.encoder is not None or data.choices:
            return {}  # fitted Q needs a continuous action for one vector alone
        steps, kernels = min(self.plan.steps, FITTED_Q_STEPS), self.plan.kernels

        def made() -> Estimate | str:
            try:
                return fitted_q_estimate(policy, data, steps, seed, kernels=kernels)
            except DivergenceError as error:  # of the critic that judges; what it judges is trained
                return why(error)

        found = attempted(FITTED_Q, made, None, missing)
        if isinstance(found, Estimate) and np.isfinite([*found.values, found.drift]).all():
            return {"fitted_q": found.values.tolist(), "fitted_q_drift": found.drift}
        if found is not None:
            reason = found if isinstance(found, str) else "its values are not finite"
            self.send({"kind": "note", "text": f"seed {seed}: there is no fitted-Q estimate of its policy: {reason}"})
        return {"fitted_q": None, "fitted_q_drift": None, **({MISSING: missing} if missing else {})}


@torch.no_grad()
def validation_losses(agent: Agent, held_out: Dataset) -> dict[str, float]:
    """Each loss of the agent, averaged over rows of episodes that it was not trained on.

    Raises:
        DataError: none of them is of the kind that the agent learns from.
    """
    agent.normalizer.fixed = agent.rewards_fixed = agent.goals_fixed = True
    ready = agent.prepare(held_out)
    store = store_from_dataset(ready, agent.required_columns)
    batches, cpu = {}, torch.device("cpu")
    for name, source in agent.sources(Stores(ready, store)).items():
        rows = torch.arange(min(getattr(source, "population", len(store)), VALIDATION_ROWS))
        if isinstance(source, BesideAdded):  # nothing is imagined here
            rows = rows[:VALIDATION_WINDOWS]
            source = source.alone
        elif isinstance(source, Added):
            continue
        elif not isinstance(source, Uniform):
            source.bind([0], VALIDATION_WINDOWS, cpu)
            rows = source.rows(0)[0]
        batches[name] = encoded(agent, source.gather(rows), {})
    if MAIN in batches:
        batches[MAIN] = agent.annotate(batches[MAIN])
    losses = {}
    for update in agent.updates():
        if isinstance(update, Rule) or not set(update.sources) <= set(batches):
            continue
        parts = {name: batches[name] for name in update.sources}
        count = sum(len(next(iter(part.values()))) for part in parts.values())
        noise = {n: kind.draw(CounterGenerator([0], n, 0, cpu), (count,))[0] for n, kind in update.noise.items()}
        losses[update.name] = float(update.loss(parts[update.source] if len(parts) == 1 else parts, noise)[0])  # type: ignore[index]
    return losses
