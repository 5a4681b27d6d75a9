"""`device=auto` where there is a GPU: the run's own training steps are tried on both devices, and the faster is taken.

What was measured is remembered in the user's cache folder, by all that it depends on. Where a trial of training steps
would not say how long the run takes, the GPU is taken, and the sentence says why nothing was measured.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from surefoot.core.base.errors import DataError, SurefootError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.schema import Number, Record
from surefoot.core.base.threads import one_torch_thread
from surefoot.core.engine.agent import Agent, Rule, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.nn.native.kernels import machine_name
from surefoot.data.dataset import Dataset
from surefoot.data.files import cache_folder
from surefoot.data.store import store_from_dataset
from surefoot.runs.machine import at_once, cores, rounds
from surefoot.runs.plan import Plan

SECONDS = 1.0
"""Of timed training steps on each device."""
WARM_GRAPHS = 5
"""Graphs of steps before a GPU is timed: three as they stand, the capture, and one more."""
ROWS = 20_000
"""Of the dataset that a trial reads, in whole episodes: a step does not depend on how many there are."""
MEASURED = Record({"cpu": Number(0), "cuda": Number(0), "seconds": Number(0)})
"""What a file of the cache holds: training steps a second of a seed on one core, and of all seeds on the GPU; and how
long the trial took."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The device that `auto` means for a run, and how that was found."""

    device: str
    """cpu or cuda."""
    because: str
    """A sentence, for the log and the summary."""
    measured: dict[str, float] | None = None
    """As `MEASURED`; None: nothing was."""

    def to_json(self) -> dict[str, Any]:
        """For config.json and summary.json."""
        return {"device": self.device, "because": self.because, "measured": self.measured}


def chosen_device(plan: Plan, agent: Agent, dataset: Dataset | None) -> Choice | None:
    """What `device=auto` takes; None where the plan names a device, or there is no GPU to choose.

    Args:
        plan: of the run, with all options settled.
        agent: of it.
        dataset: that it trains on, or None.
    """
    if plan.device != "auto" or not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    if (why := why_not_measured(plan, agent, dataset)) is not None:
        return Choice(
            "cuda",
            f"device=auto takes the GPU ({name}) without a trial: {why}. device=cpu trains each seed in a process of "
            "its own, and may be faster for few seeds and small networks",
        )
    assert dataset is not None
    path = _path(plan, agent, name)
    measured, remembered = _remembered(path), True
    if measured is None:
        remembered = False
        try:
            measured = _tried(plan, agent, _part(dataset))
        except torch.OutOfMemoryError:
            return Choice("cpu", f"device=auto takes the CPU: {len(plan.seeds)} seeds do not fit the GPU ({name})")
        _keep(path, measured)
    return _faster(plan, name, measured, remembered)


def why_not_measured(plan: Plan, agent: Agent, dataset: Dataset | None) -> str | None:
    """Why a short trial of training steps would not say how long the run takes; None where it would."""
    if agent.requires.online:
        return f"{agent.name} acts while it trains, and most of that time may be the environment's"
    if dataset is None:
        return "there is no dataset to take training steps on"
    if plan.learners > 1:
        return "processes share each batch"
    if plan.tf32:
        return "tf32=true is of a GPU"
    order = agent.updates()
    phases = any(isinstance(one, Update) and (one.after > 0 or one.until is not None) for one in order)
    if phases or any(isinstance(one, Rule) for one in order):
        return f"the training steps of {agent.name} are not all alike"
    return None


def _faster(plan: Plan, name: str, measured: dict[str, float], remembered: bool) -> Choice:
    seeds, own = len(plan.seeds), cores()
    processes = at_once(seeds, own)
    of_cpu = rounds(seeds, processes, own) / measured["cpu"]  # seconds of a training step of all seeds
    of_cuda = 1 / measured["cuda"]
    device, what = ("cuda", f"the GPU ({name})") if of_cuda < of_cpu else ("cpu", f"the CPU, and not the GPU ({name})")
    when = "measured by an earlier run" if remembered else f"measured in {measured['seconds']:.1f} s"
    return Choice(
        device,
        f"device=auto takes {what}: a training step of all {seeds} seeds takes {1e3 * of_cuda:.3g} ms on the GPU and "
        f"{1e3 * of_cpu:.3g} ms on {own} {'core' if own == 1 else 'cores'} ({when}; device= chooses)",
        measured,
    )


def _tried(plan: Plan, agent: Agent, dataset: Dataset) -> dict[str, float]:
    start = time.perf_counter()
    found = {"cpu": rate_on("cpu", plan, agent, dataset), "cuda": rate_on("cuda", plan, agent, dataset)}
    return found | {"seconds": time.perf_counter() - start}


def rate_on(device: str, plan: Plan, agent: Agent, dataset: Dataset, seconds: float = SECONDS) -> float:
    """Training steps a second: of the first seed alone on one core, or of all seeds on a GPU.

    Args:
        device: cpu or cuda.
        plan: of the run.
        agent: of it.
        dataset: rows to train on.
        seconds: how long steps are timed, at least.
    """
    seeds = plan.seeds[:1] if device == "cpu" else plan.seeds
    agents = [agent.fresh(seed) for seed in seeds]
    ready: Any = [one.prepare(dataset) for one in agents][-1]
    sources = agents[0].sources(
        Stores(ready, store_from_dataset(ready, agents[0].required_columns, torch.device(device)))
    )
    try:
        with one_torch_thread():  # as the worker of a seed
            learner = Learner(
                agents,
                seeds,
                sources,
                batch_size=plan.batch_size,
                planned_steps=plan.steps,
                device=device,
                kernels=plan.kernels and device == "cpu",
                compiled=plan.compiled,
                mixed_precision=plan.mixed_precision,
                jacobian_penalty=plan.jacobian_penalty,
                steps_per_graph=plan.steps_per_graph,
            )
            return _rate(learner.run, WARM_GRAPHS * plan.steps_per_graph, plan.steps_per_graph, device, seconds)
    finally:
        if device == "cuda":
            torch.cuda.empty_cache()


def _rate(run: Callable[[int], Any], warm: int, portion: int, device: str, seconds: float) -> float:
    """Steps a second of `run(steps)`, which ends by reading its losses and so has waited for a GPU."""
    run(warm if device == "cuda" else 2)
    taken, start = 0, time.perf_counter()
    while True:
        run(portion)
        taken += portion
        if (passed := time.perf_counter() - start) >= seconds:
            return taken / passed
        portion *= 2  # the reading of losses is not part of a long run's steps


def _part(dataset: Dataset) -> Dataset:
    """The first whole episodes, of `ROWS` steps or a few more."""
    if len(dataset) <= ROWS:
        return dataset
    needed = int(np.searchsorted(np.cumsum(dataset.episode_lengths), ROWS)) + 1
    return dataset.select_episodes(np.arange(min(needed, len(dataset.episode_lengths))))


def _path(plan: Plan, agent: Agent, name: str) -> pathlib.Path:
    """The file of the cache for all that a rate depends on."""
    options = ("algorithm", "config", "batch_size", "kernels", "compiled", "mixed_precision", "steps_per_graph")
    settings = {key: value for key, value in plan.to_json().items() if key in (*options, "jacobian_penalty")}
    where = [machine_name(), name, torch.__version__, importlib.metadata.version("surefoot")]
    facts = [where, settings, agent.spec.to_json(), len(plan.seeds)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return cache_folder().parent / "devices" / f"{key[:40]}.json"


def _remembered(path: pathlib.Path) -> dict[str, float] | None:
    """What an earlier trial measured; None where there was none, or its file is damaged: it is measured again then."""
    try:
        found: dict[str, float] = read_json(path, MEASURED)
    except (SurefootError, OSError):
        return None
    return found if found["cpu"] > 0 and found["cuda"] > 0 else None


def _keep(path: pathlib.Path, measured: dict[str, float]) -> None:
    """Remember it; where the folder can't be written, the next run measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, measured)
    except (OSError, DataError):
        pass
