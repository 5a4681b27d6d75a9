"""What a worker process does: train some seeds of a run from where their checkpoints stand to their results."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from surefoot import training
from surefoot.core import checkpoint, kernels
from surefoot.core.agent import Agent, Spec
from surefoot.core.errors import CheckpointError
from surefoot.core.files import read_json, write_json
from surefoot.core.learner import Learner
from surefoot.data.dataset import Dataset
from surefoot.data.store import Store, store_from_dataset
from surefoot.evaluation import evaluate
from surefoot.offline.fitted_q import fitted_q_estimate
from surefoot.run import Run, read_columns, split

Send = Callable[[dict[str, Any]], None]
TRAINING_EVALUATION_SEED, FINAL_EVALUATION_SEED = 0, 1
"""Initial states of evaluations during training, and of the final one."""
FITTED_Q_STEPS = 10_000
VALIDATION_ROWS = 16_384


class SeedTrainer:
    """Trains some seeds of a run from where their checkpoints stand to their results."""

    def __init__(self, run: Run, seeds: list[int], send: Send) -> None:
        """Read the data, build the agents, take up the checkpoints."""
        self.run, self.plan, self.seeds, self.send = run, run.plan, seeds, send
        self.device = training.resolve_device(self.plan.device)
        config = read_json(run.folder / "config.json")
        dataset = read_columns(run.columns_path)
        self.spec = Spec.of(dataset, config["bounds"]["low"], config["bounds"]["high"])
        self.held_out: Dataset | None = None
        if self.plan.environment is None:
            dataset, self.held_out = split(dataset)
        self.dataset = dataset
        agents = [self._fresh(seed) for seed in seeds]
        ready = [agent.prepare(dataset) for agent in agents][-1]
        self.store: Store = store_from_dataset(ready, agents[0].reads, self.device)
        table = self._table()
        self.learner = self._learner(agents, table)
        self.metrics: list[dict[str, Any]] = []
        self.seconds = 0.0
        self._restore()

    def _fresh(self, seed: int) -> Agent:
        agent = self.plan.agent(self.spec).fresh(seed)
        if self.plan.init is not None:
            training.initialise_from(agent, Run.open(self.plan.init), seed)
        return agent

    def _learner(self, agents: list[Agent], table: kernels.KernelTable | None) -> Learner:
        return Learner(
            agents,
            self.seeds,
            self.store.gather,
            len(self.store),
            batch_size=self.plan.batch_size,
            planned_steps=self.plan.steps,
            device=self.device,
            table=table,
            compiled=self.plan.compiled,
            mixed_precision=self.plan.mixed_precision,
        )

    def _table(self) -> kernels.KernelTable | None:
        """The run's kernels: those it started with, or measured now by training steps that are thrown away."""
        if not self.plan.kernels or self.device.type != "cpu":
            return None
        path = self.run.folder / "kernels.json"
        if path.is_file():
            table = kernels.KernelTable.from_json(read_json(path))
            if table.machine != kernels.machine_name():
                raise CheckpointError(
                    f"{self.run.folder}: was begun on {table.machine}, this is {kernels.machine_name()}; going on here "
                    "would give other numbers. Resume it there, or start anew with init="
                )
            return table
        table = kernels.load_table()
        throw_away = self._learner([self._fresh(seed) for seed in self.seeds], table)
        throw_away.run(max(update.every for update in throw_away.updates))
        kernels.store_table(table)
        write_json(path, table.to_json())
        return table

    def _restore(self) -> None:
        paths = [self.run.checkpoint_path(seed) for seed in self.seeds]
        if not all(path.is_file() for path in paths):
            return
        states, steps = [], set()
        for seed, path in zip(self.seeds, paths, strict=True):
            tensors, meta = checkpoint.load(path, kind="checkpoint")
            if (meta["algorithm"], meta["seed"]) != (self.plan.algorithm, seed):
                raise CheckpointError(
                    f"{path}: is of {meta['algorithm']} seed {meta['seed']}, but {self.plan.algorithm} seed {seed} is "
                    "needed here; it was moved from another run"
                )
            states.append(tensors)
            steps.add(meta["step"])
            self.metrics += meta["metrics"]
            self.seconds = max(self.seconds, meta["seconds"])
        if len(steps) > 1:  # killed between two seeds' checkpoints: begin them all again
            self.metrics, self.seconds = [], 0.0
            return
        self.learner.restore(states, steps.pop())

    def train(self) -> None:
        """Train to the end, evaluating and saving on the way."""
        plan, learner = self.plan, self.learner
        chunk = min(5000, max(50, plan.steps // 200))
        while learner.step < plan.steps:
            stops = ((learner.step // k + 1) * k for k in (chunk, plan.interval))
            upto = min(plan.steps, *stops)
            start, count = time.perf_counter(), upto - learner.step
            values = learner.run(count)
            elapsed = time.perf_counter() - start
            self.seconds += elapsed
            for position, seed in enumerate(self.seeds):
                self._record(seed, "train", {name: value[position] for name, value in values.items()})
                self.send(
                    {
                        "kind": "progress",
                        "seed": seed,
                        "step": learner.step,
                        "steps": plan.steps,
                        "rate": count / max(elapsed, 1e-9),
                    }
                )
            if learner.step % plan.interval == 0 or learner.step == plan.steps:
                if plan.environment is not None:
                    self._evaluate()
                self._save()

    def _record(self, seed: int, kind: str, values: dict[str, Any]) -> None:
        self.metrics.append({"seed": seed, "step": self.learner.step, "kind": kind, "values": values})

    def _agents(self) -> list[Agent]:
        return [self.learner.extract(position) for position in range(len(self.seeds))]

    def _evaluate(self) -> None:
        assert self.plan.environment is not None
        policies = [agent.policy() for agent in self._agents()]
        found = evaluate(policies, self.plan.environment, self.plan.evaluate_episodes, seed=TRAINING_EVALUATION_SEED)
        for seed, episodes in zip(self.seeds, found, strict=True):
            mean = float(episodes.returns.mean())
            self._record(seed, "eval", {"return_mean": mean, "returns": episodes.returns.tolist()})
            self.send({"kind": "eval", "seed": seed, "step": self.learner.step, "return_mean": mean})

    def _save(self) -> None:
        for position, seed in enumerate(self.seeds):
            meta = {
                "kind": "checkpoint",
                "algorithm": self.plan.algorithm,
                "seed": seed,
                "step": self.learner.step,
                "seconds": self.seconds,
                "metrics": [line for line in self.metrics if line["seed"] == seed],
            }
            checkpoint.save(self.run.checkpoint_path(seed), self.learner.state(position), meta)

    def finish(self) -> None:
        """Evaluate for the last time; write policies, then results."""
        plan, agents = self.plan, self._agents()
        policies = [agent.policy() for agent in agents]
        found: list[Any] = [None] * len(self.seeds)
        if plan.environment is not None:
            found = list(evaluate(policies, plan.environment, plan.episodes, seed=FINAL_EVALUATION_SEED))
        for seed, agent, policy, episodes in zip(self.seeds, agents, policies, found, strict=True):
            result: dict[str, Any] = {
                "seed": seed,
                "seconds": self.seconds,
                "updates_per_second": plan.steps * len(self.seeds) / max(self.seconds, 1e-9),
                "metrics": [line for line in self.metrics if line["seed"] == seed],
                "evaluation": None if episodes is None else episodes.to_json(),
            }
            if self.held_out is not None:
                result["validation"] = validation_losses(agent, self.held_out)
                steps = min(plan.steps, FITTED_Q_STEPS)
                estimate = fitted_q_estimate(policy, self.dataset, steps, seed)
                result["fitted_q"], result["fitted_q_drift"] = estimate.values.tolist(), estimate.drift
            policy.save(self.run.policy_path(seed))
            write_json(self.run.seed_folder(seed) / "result.json", result)
            self.send({"kind": "done", "seed": seed})


@torch.no_grad()
def validation_losses(agent: Agent, held_out: Dataset) -> dict[str, float]:
    """Each loss of the agent, averaged over rows of episodes that it was not trained on."""
    from surefoot.core.random import generator

    agent.normalizer.fixed = agent.rewards_fixed = True
    store = store_from_dataset(agent.prepare(held_out), agent.reads)
    rows = torch.arange(min(len(store), VALIDATION_ROWS))
    batch = agent.annotate(store.gather(rows))
    losses = {}
    for update in agent.updates():
        noise = {
            name: torch.from_numpy(kind.draw(generator(0, name), (len(rows),))) for name, kind in update.noise.items()
        }
        losses[update.name] = float(update.loss(batch, noise)[0])
    return losses
