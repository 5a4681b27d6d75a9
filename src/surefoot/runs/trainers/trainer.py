"""What a worker process does: train some seeds of a run from where their checkpoints stand to their results."""

from __future__ import annotations

import functools
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, ConfigError, DivergenceError
from surefoot.core.base.files import write_json
from surefoot.core.base.schema import check
from surefoot.core.engine.agent import Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.share import Share
from surefoot.core.engine.smoothness import measured
from surefoot.core.policy.mean_pictures import mean_pictures
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import NAMED, Dataset
from surefoot.envs.acting import Stepping
from surefoot.envs.acting.first_look import FirstLook
from surefoot.envs.reward_terms import STEM
from surefoot.evaluation import Episodes, evaluate
from surefoot.runs import finishing
from surefoot.runs.machine import resolve_device, same_machine, use_tf32
from surefoot.runs.plan import FINAL_EVALUATION_SEED, TRAINING_EVALUATION_SEED, agent_class
from surefoot.runs.processes.stopping import Finishing, Stopped
from surefoot.runs.progress_events import Teller, finite, finite_or_none, of_episodes
from surefoot.runs.run import RESULT_FORMAT, Run, load_together, read_columns
from surefoot.runs.trainers.alarm_monitor import Watch
from surefoot.runs.trainers.best import CHOSEN, Best
from surefoot.runs.warm_start import initialise_from

Send = Callable[[dict[str, Any]], None]


def never() -> bool:
    """No one asks to stop."""
    return False


class SeedTrainer:
    """Trains some seeds of a run from where their checkpoints stand to their results.

    What is trained, and how a number of steps is taken, is a subclass's; when to evaluate, save and end is decided
    here, once.
    """

    _pictures: dict[str, list[Any]] | None = None
    """Mean pictures of the dataset's cameras, once they are known."""

    learner: Learner

    def __init__(
        self,
        run: Run,
        seeds: list[int],
        send: Send,
        asked_to_stop: Callable[[], bool] = never,
        share: Share | None = None,
    ) -> None:
        """Read the data, build the agents, take up the checkpoints.

        Args:
            run: to be trained.
            seeds: which of it.
            send: called with each event.
            asked_to_stop: asked between training steps; when it says so, `train` and `finish` raise `Stopped`.
            share: of each batch, where other processes train the same seed; the first evaluates and saves.
        """
        self.asked_to_stop, self.share = asked_to_stop, share
        self.leads = share is None or share.rank == 0
        self.run, self.plan, self.seeds, self.send = run, run.plan, seeds, send
        self.device = resolve_device(self.plan.device)
        use_tf32(self.plan.tf32, self.device)
        self.spec = run.spec
        self.dataset = read_columns(run.columns_path) if run.columns_path.is_file() else None
        self.metrics: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.asked_to_finish: Callable[[], bool] = never
        """Asked between training steps too; when it says so, training ends as if the plan had no more steps."""
        self.finishing = False
        self.due = False
        """Whether an evaluation and a checkpoint come before the next training step."""
        self._said: dict[str, Any] = {}
        self.watch, self.teller = Watch(run, seeds), Teller(run.plan, seeds, send)
        self.best = Best(run, seeds)
        self.begin()
        self._restore()
        self.watch.hear_again(self.metrics)

    # -- what a subclass says ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Build what is trained."""
        raise TypeError(f"{type(self).__name__} must define begin")

    @property
    def step(self) -> int:
        """Steps taken so far, of the kind that the plan counts."""
        return self.learner.step

    @property
    def updates(self) -> int:
        """Training steps taken so far by each seed."""
        return self.learner.step

    def advance(self, steps: int) -> dict[str, list[float]]:
        """Take `steps` steps or a few more, calling `pause` between them; name -> a number per seed."""
        return self.learner.run(steps, pause=self.pause)

    def state(self, position: int) -> dict[str, Tensor]:
        """Everything that seed `position` needs to continue."""
        return self.learner.state(position)

    def go_on(self, states: Sequence[Mapping[str, Tensor]], step: int) -> None:
        """Take up what `state` gave."""
        self.learner.restore(states, step)

    def policy(self, position: int) -> Policy:
        """The policy of seed `position` as it is now."""
        policy, data = self.learner.extract(position).policy(), self.dataset
        if data is None:
            return policy
        if self._pictures is None:
            seen = {key.removeprefix(NAMED): value for key, value in data.extras.items() if key.startswith(NAMED)}
            self._pictures = mean_pictures(seen, policy.arrays)
        return policy.named(data.observation_names, data.action_names).pictured(self._pictures)

    def extras(self, position: int) -> dict[str, Any]:
        """More of a seed's result, after its last evaluation."""
        return {}

    def estimated(self, policy: Policy, seed: int) -> dict[str, Any]:
        """What a policy is worth without a simulator, as JSON values."""
        return {}

    def close(self) -> None:
        """Give free what training acts in: nothing is trained any more."""

    def pause(self) -> None:
        """Raise `Stopped` or `Finishing` if the run is asked for it, and tell how far training is.

        To be called between training steps, where `state` may be.
        """
        self.end_if_asked()
        self.teller.within(self.step)

    def end_if_asked(self) -> None:
        """The same without progress: evaluation takes no training steps, and its time is not in their rate."""
        if self.asked_to_stop():
            raise Stopped
        if not self.finishing and self.asked_to_finish():
            raise Finishing

    def engine(self) -> dict[str, Any]:
        """How training steps were repeated, which ran as they stand and why, and products that are not float32's."""
        products = {"products": "tf32"} if self.plan.tf32 else {}
        return {"steps": self.learner.capture.how, "eager": self.learner.eager_because(), **products}

    # -- for subclasses ----------------------------------------------------------------------------------

    def fresh(self, seed: int) -> Agent:
        """An untrained agent of the plan, or one that starts from the run that the plan names.

        One that continues from a checkpoint is restored later, and needs no file of weights.
        """
        agent = self.run.agent(new=not self.run.checkpoint_path(seed).is_file()).fresh(seed)
        if self.plan.init is not None:
            initialise_from(agent, self.started_from(), seed)
        return agent

    def started_from(self) -> Run:
        """The run that the plan starts from.

        Raises:
            CheckpointError: it is not there any more.
        """
        try:
            return Run.open(str(self.plan.init))
        except CheckpointError as error:
            raise CheckpointError(
                f"{self.run.folder} starts from init={self.plan.init}, which resuming reads too: {error}; put it back"
            ) from error

    def look_at_first_steps(self, stepping: Stepping) -> None:
        """Look for what float32 loses of what the environment gives; one process does it for all seeds of the run."""
        if self.seeds[0] == self.plan.seeds[0]:
            stepping.first_steps = FirstLook(str(self.plan.environment), stepping.env.single_observation_space)

    def say_precision(self, stepping: Stepping) -> None:
        """Send what is known of that by now, and has not been sent yet."""
        for text in () if stepping.first_steps is None else stepping.first_steps.notes():
            self.send({"kind": "note", "text": text})

    def say_lost(self, lost: str | None) -> None:
        """Say, and record among the metrics, what could not be taken up; None: nothing."""
        if lost is not None:
            for seed in self.seeds:
                self.record(seed, "resumed", {"lost": lost})
            self.send({"kind": "note", "text": lost})

    def prepared(self, agents: Sequence[Agent], dataset: Dataset) -> Dataset:
        """The dataset as the agents read it; sets their normalisers."""
        ready: object = [agent.prepare(dataset) for agent in agents][-1]
        if not isinstance(ready, Dataset):
            kind = type(ready).__name__
            raise ConfigError(f"{agents[-1].name}: prepare() gives a {kind}, and not the dataset as the losses read it")
        return ready

    def kernels(self) -> bool:
        """Whether networks and updates run in the native module."""
        shared = self.share is not None  # gradients are averaged between processes in each step
        return self.plan.kernels and self.device.type == "cpu" and not shared and same_machine(self.run.folder)

    # -- one way through a run ---------------------------------------------------------------------------

    def _restore(self) -> None:
        found = load_together({seed: self.run.checkpoint_path(seed) for seed in self.seeds}, self.plan.algorithm)
        if found is None:
            return
        for seed, (_, meta) in zip(self.seeds, found, strict=True):
            self.watch.kept |= {} if meta.get("kept") is None else {seed: meta["kept"]}
            if meta.get("best") is not None:
                check(meta["best"], CHOSEN, self.run.checkpoint_path(seed))
                self.best.chosen[seed] = meta["best"]
            self.due = bool(meta.get("due"))
            self.metrics += [{**line, "values": finite(line["values"])} for line in meta["metrics"]]
            self.seconds = max(self.seconds, meta["seconds"])
        self.go_on([tensors for tensors, _ in found], found[0][1]["step"])

    def train(self) -> None:
        """Train to the end, or to where a listener ends it, evaluating and saving on the way.

        Raises:
            Stopped: it was asked for; a checkpoint of where it stands is written.
        """
        try:
            try:
                self._train()
            except Finishing:
                self._end_here()
            self.finishing = True
        except Stopped:
            if self.step > 0 and self.leads and self._is_finite():
                checkpoint.save_together(self._checkpoints())  # an undisturbed run keeps no policy of this step
            raise

    def _end_here(self) -> None:
        """Evaluate and save what there is, before the steps of the plan are taken.

        Raises:
            DivergenceError: it is not finite.
        """
        self.finishing = True
        if not self._is_finite():
            raise DivergenceError(
                f"seed {self.seeds[0]}: weights are not finite where training ended, step {self.step:,}"
            )
        reported = any(line["kind"] == "eval" and line["step"] == self.step for line in self.metrics)
        self.due = False
        if self.leads and self.plan.evaluates and not reported:
            self._evaluate()
        if self.leads:
            self._save()

    def _is_finite(self) -> bool:
        """Whether all weights are finite: what was learned since the last check may not be."""
        states = [self.state(position) for position in range(len(self.seeds))]
        return all(bool(v.isfinite().all()) for one in states for n, v in one.items() if n.startswith("agent/"))

    def _train(self) -> None:
        plan = self.plan
        chunk = min(5000, max(50, plan.steps // 200))
        rhythm = plan.checkpoint_every or plan.interval
        if plan.init is not None and plan.evaluates and self.step == 0 and self.leads:
            self._evaluate()  # so that curves begin where the other run ended
        if self.leads and self.step > 0:
            self.watch.keep(self.step, self.policy, missing=True)
        if self.due:
            self._evaluate_and_save()
        while self.step < plan.steps:
            self.pause()
            before = self.step
            upto = min(plan.steps, *((before // k + 1) * k for k in (chunk, plan.interval, rhythm)))
            self.teller.begin(before)
            start = time.perf_counter()
            try:
                values = self.advance(upto - before)
            finally:  # a stop saves the steps that were taken, so their seconds count
                elapsed = time.perf_counter() - start
                self.seconds += elapsed
            for position, seed in enumerate(self.seeds):
                reported = {name: value[position] for name, value in values.items()}
                heard = finite(reported)
                self.record(seed, "train", heard)
                for ring in self.watch.observe_outcome(seed, self.step, heard):
                    self.record(seed, "alarm", {ring.signal: ring.value})
                    self.send({"kind": "note", "text": f"seed {seed}: {ring}"})
                    print(ring, file=sys.stderr)
                self.teller.end(self.step, seed, elapsed, reported)
            self._say_engine()
            if self.step // plan.interval > before // plan.interval or self.step >= plan.steps:
                self.due = True
                self._evaluate_and_save()
            elif self.leads and self.step // rhythm > before // rhythm and self._is_finite():
                self._save()

    def _evaluate_and_save(self) -> None:
        if not self.leads:
            self.due = False
            return
        if self.plan.evaluates:
            self._evaluate()
        self.due = False
        self._save()

    def _say_engine(self) -> None:
        """Into the log, once it is known, how training steps are repeated; also what runs as it stands."""
        found = self.engine()
        if found == self._said:
            return
        self._said = found
        eager = found.get("eager", {})
        print("training steps:", *(f"{key}: {value}" for key, value in found.items()), file=sys.stderr)
        chosen = not self.plan.kernels or self.plan.compiled or self.plan.mixed_precision or self.share is not None
        if self.device.type == "cpu" and not chosen and self.seeds[0] == self.plan.seeds[0]:
            for names, why in eager.items():
                self.send({"kind": "note", "text": f"slower than need be: {names} not repeated from a tape, {why}"})

    def record(self, seed: int, kind: str, values: dict[str, Any]) -> None:
        """Keep a line of metrics, and tell it."""
        self.metrics.append({"seed": seed, "step": self.step, "kind": kind, "values": values})
        self.send({"kind": "metrics", "seed": seed, "step": self.step, "line": self.metrics[-1]})

    def _policies(self) -> list[Policy]:
        return [self.policy(position) for position in range(len(self.seeds))]

    def _evaluate(self) -> None:
        assert self.plan.environment is not None
        started = time.perf_counter()
        found = evaluate(
            self._policies(),
            self.plan.environment,
            self.plan.evaluate_episodes,
            seed=TRAINING_EVALUATION_SEED,
            progress=lambda *unused: self.end_if_asked(),
        )
        self._say_evaluation(time.perf_counter() - started)
        for position, (seed, episodes) in enumerate(zip(self.seeds, found, strict=True)):
            values = of_episodes(episodes)
            self.record(seed, "eval", values)
            self.best.observe_outcome(seed, self.step, episodes, functools.partial(self.policy, position))
            reported = {
                name: value for name, value in values.items() if name.endswith("_mean") or name.startswith(STEM)
            }
            self.send({"kind": "eval", "seed": seed, "step": self.step, **reported})

    def _say_evaluation(self, seconds: float) -> None:
        """Once, where evaluation and not training is what a run spends its time on."""
        plan, first = self.plan, self.step <= self.plan.interval
        if first and seconds > max(5.0, self.seconds) and self.step > 0 and self.seeds[0] == plan.seeds[0]:
            every = seconds / plan.evaluate_episodes
            whole = every * (plan.evaluate_episodes * (plan.steps // plan.interval) + plan.episodes)
            self.send({"kind": "note", "text": (
                f"{plan.interval:,} training steps take {self.seconds:.1f} s and their evaluation {seconds:.0f} s, "
                f"all of the run's evaluations about {whole:.0f} s: evaluate_every=, evaluate_episodes= and episodes= "
                "say how many episodes are run"
            )})  # fmt: skip

    def _save(self) -> None:
        self.watch.keep(self.step, self.policy)
        checkpoint.save_together(self._checkpoints())

    def _checkpoints(self) -> Iterator[tuple[pathlib.Path, dict[str, Tensor], dict[str, Any]]]:
        """Path, tensors and description of each seed's checkpoint."""
        for position, seed in enumerate(self.seeds):
            meta = {
                "kind": "checkpoint",
                "algorithm": self.plan.algorithm,
                "seed": seed,
                "step": self.step,
                "due": self.due,
                "kept": self.watch.kept.get(seed),
                "best": self.best.chosen.get(seed),
                "seconds": self.seconds,
                "metrics": [line for line in self.metrics if line["seed"] == seed],
            }
            yield self.run.checkpoint_path(seed), self.state(position), meta

    def _judged(self, policy: Policy, seed: int) -> dict[str, Any]:
        """What a policy that was kept is worth: episodes, or without a simulator an estimate from data held out."""
        if self.plan.environment is None:
            return self.estimated(policy, seed)
        evaluation = evaluate([policy], self.plan.environment, self.plan.episodes, seed=FINAL_EVALUATION_SEED)[0]
        return {"returns": evaluation.returns.tolist()}

    def finish(self) -> None:
        """Write policies, evaluate for the last time, and write results: first what is known, then what is estimated.

        An estimate that fails is left out of the result, which says why.
        """
        if self.share is not None:
            self.share.leave()
        if not self.leads:
            return
        policies = self._policies() if agent_class(self.plan.algorithm).requires.policy else []
        for policy, seed in zip(policies, self.seeds, strict=False):  # of a model of the world alone there is none
            policy.save(self.run.policy_path(seed))
        found, seen = finishing.last_evaluation(self.plan, policies, self.dataset, self.end_if_asked)
        before = [finishing.tries(self.run, seed) for seed in self.seeds]
        known = [self._known(position, found[position] if found else None) for position in range(len(self.seeds))]
        if self.best.chosen:
            of_seed = dict(zip(self.seeds, found, strict=True))
            best, gone = self.best.results(self.step, of_seed, self.pause)
            known = [result | ({"best": best[result["seed"]]} if result["seed"] in best else {}) for result in known]
            for seed, why in gone.items():
                self.send({"kind": "note", "text": f"no best policy of seed {seed}: {why}"})
        for seed, result, count in zip(self.seeds, known, before, strict=True):
            write_json(self.run.seed_folder(seed) / "result.json", {**result, finishing.UNFINISHED: count + 1})
        for position, seed in enumerate(self.seeds):
            reported = (policies[position], seen[position]) if policies else None
            more = self._estimates(position, reported, finishing.given_up(before[position]))
            write_json(self.run.seed_folder(seed) / "result.json", {**known[position], **more})
            self.send({"kind": "done", "seed": seed})

    def _known(self, position: int, episodes: Episodes | None) -> dict[str, Any]:
        """What a seed's result has without any estimate."""
        seed, seconds = self.seeds[position], max(self.seconds, 1e-9)
        return {
            "format": RESULT_FORMAT,
            "seed": seed,
            "steps": self.step,
            "seconds": self.seconds,
            "updates_per_second": self.updates * len(self.seeds) / seconds,
            "steps_per_second": self.step * len(self.seeds) / seconds,
            "metrics": [line for line in self.metrics if line["seed"] == seed],
            "evaluation": None if episodes is None else episodes.to_json(),
            "engine": self.engine(),
        }

    def _estimates(self, position: int, reported: tuple[Policy, Any] | None, missing: dict[str, str]) -> dict[str, Any]:
        """The rest of a seed's result, by its policy and observations; not tried where something is `missing`."""
        seed, gone, norm, more = self.seeds[position], bool(missing), None, dict[str, Any]()
        if not gone:
            if reported is not None:
                norm_of = lambda: measured(reported[0], torch.from_numpy(reported[1]))  # noqa: E731
                norm = finishing.attempted(finishing.JACOBIAN, norm_of, None, missing)
            more = self.extras(position)
        judged = (lambda policy, seed: {finishing.FITTED_Q: None}) if gone else self._judged
        found = {"jacobian": finite_or_none(norm), **more, **self.watch.result(seed, judged)}
        missing |= found.pop(finishing.MISSING, {})
        for what, reason in missing.items():
            self.send({"kind": "note", "text": finishing.in_words(what, [seed], reason)})
        return {**found, finishing.MISSING: missing} if missing else found
