"""Official code beside ours on one file: the rows, the first weights, the steps, the actions, the curves.

    benchmarks/peers/setup.sh paired_jax corl      # environments of the official codes, once
    python benchmarks/paired.py                    # compute what is missing, then write docs/paired.md
    python benchmarks/paired.py --only iql         # one algorithm's cells
    python benchmarks/paired.py --table            # only the page
    python benchmarks/paired.py --quick            # ours alone, a few steps, for CI

Equal losses and updates don't make equal runs: a run has more parts. Each cell compares one, at equal settings:

- rows: what reaches the loss, of every row of the file, through each code's own loader; of algorithms that act while
  they learn, what the collection hands over in a scripted environment, and after which steps it learns;
- weights: mean, deviation, range and norm of each layer in 100 initialisations;
- steps: rates, losses and networks, targets too, after steps 1, 2, 10 and 1,000 from equal weights on equal batches
  (after 100 instead of 1,000 where a step is expensive);
- acting: the same weights' actions on 1,000 recorded observations, and their returns in 50 episodes, fewer where slow;
- curves: whole runs from each code's own weights and draws; returns on the way, and losses, mean Q and entropy, which
  our code measures of both sides' networks on the same rows.

Official code is cloned at the commit named here into `SUREFOOT_PEERS`/code; nothing of it is in this repository.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import paired_online
import paired_streaming
import torch
from beside import peer_python
from pairs import PAIRS
from pairs.page import SAME_ROWS, table
from pairs.pair import INITIALISATIONS, Pair
from study import SHARED, Cell, study_main

from surefoot.core.engine.agent import Agent, Rule, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores, Uniform
from surefoot.core.nn.native import kernels
from surefoot.core.policy.policy import Policy
from surefoot.data import load
from surefoot.data.dataset import Dataset
from surefoot.data.sources import WindowSource
from surefoot.data.store import store_from_dataset
from surefoot.evaluation import evaluate
from surefoot.offline.goal_conditioned import GoalAgent
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.runs.plan import agent_class
from surefoot.streaming.agent import StreamingAgent

PEERS = pathlib.Path(__file__).parent / "peers"
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "paired.md"
sys.path.append(str(PEERS))
import handed  # noqa: E402
from paired_peer import Arrays, counted, summary  # noqa: E402

NAME, ADVICE = "paired", "make it with benchmarks/peers/setup.sh, and say where by SUREFOOT_PEERS"
AT, BATCH = (1, 2, 10), 256
POINTS, OBSERVATIONS = 6, 1000
PROBED = 1024
"""Rows on which a curve's inner quantities are measured."""
ROUNDING = 1e-6
"""A network that moved less than this part of its norm is one that did not."""
WINDOW = ("observations", "actions", "rewards", "reach", "valid", "next_observations", "mask", "next_actions",
          "next_mask")  # fmt: skip
"""What losses read of windows."""


# -- the two sides -------------------------------------------------------------------------------------------


def file_of(name: str) -> pathlib.Path:
    """One of the shared files, or one that was made for a pair (benchmarks/pairs says by which command).

    Raises:
        SystemExit: it is in neither folder.
    """
    made = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers")) / "files"
    for folder in (SHARED, made):
        if (folder / f"{name}.hdf5").is_file():
            return folder / f"{name}.hdf5"
    raise SystemExit(f"{name}.hdf5 is neither in {SHARED} nor in {made}: make it as its pair says")


@functools.cache
def data(file: str) -> Dataset:
    """What both codes learn from."""
    return load(str(file_of(file)))


def agent_of(pair: Pair, seed: int, quiet: bool = False) -> tuple[Agent, Dataset]:
    """Our agent, fresh, and the data as it learns from them."""
    kind = agent_class(pair.algorithm)
    options = {**pair.options, **(pair.silent if quiet else {})}
    agent = kind(data(pair.file), **options).fresh(seed)
    alone = agent.requires.data == "refused"  # it learns from its own steps
    return agent, data(pair.file) if alone else agent.prepare(data(pair.file))


def networks_of(agent: Agent, names: tuple[str, ...]) -> Arrays:
    """Parameters of these networks by name."""
    if isinstance(agent, StreamingAgent):
        return paired_streaming.networks(agent)
    found = agent.named_parameters()
    return {name: value.detach().numpy().copy() for name, value in found if name.split(".")[0] in names}


def checkout(pair: Pair) -> pathlib.Path:
    """The official code at its commit, cloned where it is not there yet; or the package and its version.

    Raises:
        SystemExit: it can't be cloned, or another commit is there.
    """
    if pair.package:
        return pathlib.Path(pair.package)
    root = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers")) / "code"
    folder = root / pair.repository.replace("/", "+")
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        address = f"https://github.com/{pair.repository}"
        cloned = subprocess.run(["git", "clone", "--quiet", address, str(folder)], check=False)
        if cloned.returncode:
            raise SystemExit(f"{address} could not be cloned to {folder}; clone it there by hand")
        subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", pair.commit], check=True)
    reported = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if reported.stdout.strip() != pair.commit:
        raise SystemExit(
            f"{folder} is at {reported.stdout.strip() or 'no commit'}, wanted is {pair.commit}: check it out"
        )
    return folder


def ask(pair: Pair, question: str, given: Arrays | None = None, **options: Any) -> tuple[Any, Arrays]:
    """The runner's line and its arrays."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.npz"
        command = [peer_python(pair.venv, ADVICE), str(PEERS / pair.runner), question, "--algorithm", pair.algorithm]
        command += ["--checkout", str(checkout(pair)), "--file", str(file_of(pair.file))]
        command += ["--environment", pair.environment, "--out", str(out)]
        command += ["--settings", json.dumps(pair.settings)] if pair.settings else []
        if given is not None:
            np.savez(f"{folder}/given.npz", **given)  # type: ignore[arg-type]
            command += ["--given", f"{folder}/given.npz"]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        arrays = dict(np.load(out, allow_pickle=False)) if out.is_file() else {}
        return json.loads(done.stdout.strip().splitlines()[-1]), arrays


# -- the five comparisons ------------------------------------------------------------------------------------


def our_rows(pair: Pair, agent: Agent, ready: Dataset) -> Arrays:
    """What the losses read of each row, in the file's order; of windows what their annotation makes of them."""
    stores = Stores(ready, store_from_dataset(ready, agent.required_columns, "cpu"))
    drawn = isinstance(agent, (OffPolicyAgent, GoalAgent)) or bool(pair.part)  # draws goals, or from a buffer too
    source = Uniform(stores.data) if drawn else agent.sources(stores)[MAIN]
    batch = source.gather(torch.arange(len(stores.data)))
    names: tuple[str, ...] = agent.required_columns
    if isinstance(source, WindowSource):
        batch = agent.annotate(batch)
        names = tuple(name for name in WINDOW if name in batch)
    return {name: batch[name].numpy().astype(np.float32) for name in names}


def compare_rows(pair: Pair) -> dict[str, Any]:
    """Rows that are in one code alone, and the largest difference of each column of the others."""
    if pair.collecting is not None:
        kind = agent_class(pair.algorithm)
        if issubclass(kind, StreamingAgent):
            return streamed(pair)[0]
        options = {**pair.options, **pair.collecting}
        return paired_online.compare(kind, options, lambda given: ask(pair, "collected", given)[1])
    theirs = counted(ask(pair, "rows")[1])
    agent, ready = agent_of(pair, 0)
    ours, own = counted(our_rows(pair, agent, ready)), data(pair.file)
    cut = own.truncations[own.transitions]  # steps at which a time limit ended the episode
    count, their_count = len(ours["observations"]), len(theirs["observations"])
    kept = np.ones(count, bool)
    if count - their_count == int(cut.sum()):
        kept = ~cut
    starts = getattr(agent.config, "chunk", 1) - 1  # where the flat file has no whole window
    if starts and len(kept) - len(theirs["rewards"]) == starts:
        kept[-starts:] = False
    columns = {}
    shared = [name for name in theirs if name in ours]
    for name in shared if kept.sum() == their_count else ():
        mine, other = ours[name][kept].astype(np.float64), theirs[name].astype(np.float64)
        columns[name] = {"largest": float(np.abs(mine - other).max()), "scale": float(np.abs(other).max())}
        differs = (np.abs(mine - other).reshape(len(mine), -1).max(1) > SAME_ROWS * columns[name]["scale"]).sum()
        columns[name]["rows"] = int(differs)
        if name == "rewards":
            columns[name]["ratio"] = float(mine.sum() / other.sum())
    return {"ours": count, "theirs": their_count, "cut": int(cut.sum()), "starts": starts, "columns": columns}


def compare_weights(pair: Pair) -> dict[str, Any]:
    """Moments of each parameter on both sides."""
    line, _ = ask(pair, "weights", count=INITIALISATIONS)
    seen: dict[str, list[np.ndarray]] = {}
    base, _ = agent_of(pair, 0)
    for seed in range(INITIALISATIONS):
        for name, values in networks_of(base.fresh(seed), pair.networks).items():
            seen.setdefault(name, []).append(values.astype(np.float64).ravel())
    return {"ours": {name: summary(np.stack(values)) for name, values in seen.items()}, "theirs": line}


class Snapshots:
    """Takes given batches one after the other, and keeps the networks, rates and losses at some steps."""

    def __init__(self, pair: Pair, rows: Arrays, indices: np.ndarray) -> None:
        torch.set_num_threads(1)
        self.pair = pair
        self.agent, _ = agent_of(pair, 0, quiet=True)
        self.start = networks_of(self.agent, pair.part or pair.networks)
        if "reach" in rows:  # windows, annotated already
            self.agent.annotate = lambda batch: batch  # type: ignore[method-assign]
        if pair.part:
            updates = [u for u in self.agent.updates() if isinstance(u, Update) and u.trains[0] in pair.part]
            self.agent.updates = lambda: [dataclasses.replace(u, after=0) for u in updates]  # type: ignore[method-assign]
        tensors = {name: torch.from_numpy(np.ascontiguousarray(column, np.float32)) for name, column in rows.items()}
        tensors["observation_actions"] = torch.cat([tensors["observations"], tensors["actions"]], 1)

        def batch(_: Any) -> dict[str, torch.Tensor]:  # twice in a step of an algorithm whose rules read rows too
            chosen = torch.from_numpy(indices[self.learner.step])
            found = {name: column[chosen] for name, column in tensors.items()}
            return found if pair.shaped is None else pair.shaped(found)

        source = Uniform(batch, len(rows["rewards"]))
        self.learner = Learner([self.agent], [0], source, batch_size=indices.shape[1], planned_steps=pair.steps)
        hand_numbers(self.learner, pair.noise, indices.shape[1])

    def at(self, steps: tuple[int, ...]) -> tuple[Arrays, dict[str, Any], dict[str, Any]]:
        """Arrays by "step/name"; rates and losses by step."""
        found: Arrays = {}
        rates: dict[str, Any] = {}
        losses: dict[str, Any] = {}
        for step in steps:
            if step - 1 > self.learner.step:
                self.learner.run(step - 1 - self.learner.step)
            pairs = zip(self.learner.updates, self.learner.optimizers, strict=True)
            rates[str(step)] = {update.trains[0]: optimizer.learning_rate() for update, optimizer in pairs}
            logged = self.learner.run(1)
            losses[str(step)] = {name: float(values[0]) for name, values in logged.items() if name.endswith("_loss")}
            now = networks_of(self.learner.extract(0), self.pair.part or self.pair.networks)
            found |= {f"{step}/{name}": values for name, values in now.items()}
        return found, rates, losses


def hand_numbers(learner: Learner, how: str, batch: int) -> None:
    """From now on its losses get the numbers that the official code is handed: `Pair.noise` says how."""
    stream = learner.stream
    own = stream.at

    def at(step: int) -> dict[str, torch.Tensor]:
        found = own(step)
        for name, noise in stream.noises.items():
            if how == "zeros":
                found[name] = torch.zeros_like(found[name])
            elif noise.kind in ("normal", "uniform"):
                values = (
                    handed.numbers(noise.kind, step, stream.rows[name], noise.width)
                    if how == "by_row"
                    else handed.by_name(name, noise.kind, step + 1, batch, noise.width)
                )
                found[name] = torch.from_numpy(np.ascontiguousarray(values))[None]
        return found

    stream.at = at  # type: ignore[method-assign]


def together(pair: Pair) -> tuple[Snapshots, Arrays, Arrays, Any]:
    """Both codes over the same batches of the official rows: ours, its arrays, theirs, their line."""
    if id(pair) not in _together:
        _together[id(pair)] = _stepped(pair)
    return _together[id(pair)]


_together: dict[int, tuple[Snapshots, Arrays, Arrays, Any]] = {}


def _stepped(pair: Pair) -> tuple[Snapshots, Arrays, Arrays, Any]:
    at = (*AT, pair.steps)
    rows = ask(pair, "rows")[1]
    indices = np.random.default_rng(0).integers(len(rows["rewards"]), size=(pair.steps, BATCH))
    ours = Snapshots(pair, rows, indices)
    given = {f"weights/{name}": values for name, values in ours.start.items()} | {"indices": indices}
    line, theirs = ask(pair, "steps", given, planned=pair.steps, at=",".join(map(str, at)))
    mine, rates, losses = ours.at(at)
    line = {"theirs": line, "ours": {"rates": rates, "losses": losses}}
    return ours, mine, theirs, line


def streamed(pair: Pair) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows and steps of an agent that learns from each sample once, of one run over both."""
    options = {**pair.options, **(pair.collecting or {})}
    kind = agent_class(pair.algorithm)
    return paired_streaming.compare(kind, options, (*AT, pair.steps), lambda given: ask(pair, "collected", given)[1])


def compare_steps(pair: Pair) -> dict[str, Any]:
    """Relative distance of each network's parameters, and both sides' rates and losses."""
    if issubclass(agent_class(pair.algorithm), StreamingAgent):
        return streamed(pair)[1]
    ours, mine, theirs, line = together(pair)
    distances: dict[str, dict[str, float]] = {}
    for step in (*AT, pair.steps):
        for network in pair.part or pair.networks:
            names = [name for name in mine if name.startswith(f"{step}/{network}.")]
            left, right = (np.concatenate([side[name].ravel() for name in names]) for side in (mine, theirs))
            started = np.concatenate([ours.start[name.split("/", 1)[1]].ravel() for name in names])
            moved, mine_moved = (float(np.linalg.norm(side - started)) for side in (right, left))
            apart, rounding = float(np.linalg.norm(left - right)), ROUNDING * float(np.linalg.norm(started))
            still = max(moved, mine_moved) < rounding  # what lags has not moved yet, but for rounding
            distances.setdefault(str(step), {})[network] = 0.0 if still else apart / max(moved, 1e-30)
    return {"distances": distances, **line}


def compare_acting(pair: Pair) -> dict[str, Any]:
    """The official weights after the steps that were compared, acting in both codes."""
    ours, _, theirs, _ = together(pair)
    weights = {name.split("/", 1)[1]: values for name, values in theirs.items() if name.startswith(f"{pair.steps}/")}
    agent = ours.learner.extract(0)
    full, ready = agent_of(pair, 0)
    full.load_state_dict({**full.state_dict(), **{name: torch.from_numpy(v) for name, v in weights.items()}})
    del agent, ready
    observations = data(pair.file).observations[:: max(1, len(data(pair.file)) // OBSERVATIONS)][:OBSERVATIONS]
    given = {f"weights/{name}": values for name, values in weights.items()}
    given["observations"] = observations
    line, arrays = ask(pair, "acting", given, episodes=pair.acting_episodes, planned=pair.steps)
    policy = full.policy()
    mine = acted(full, policy, observations)
    return {
        "actions": float(np.abs(mine - arrays["actions"]).max()),
        "theirs": line,
        "ours": scored(policy, pair.environment, pair.acting_episodes),
    }


@torch.no_grad()
def acted(agent: Agent, policy: Policy, observations: np.ndarray) -> np.ndarray:
    """(B, A) actions of recorded observations; of a head that draws, with the numbers that both codes are handed."""
    head = getattr(agent.actor, "inner", agent.actor)
    if not head.always_samples:
        return policy(torch.from_numpy(observations)).numpy()
    drawn = torch.from_numpy(handed.by_name("acting", "normal", 0, len(observations), head.noise_dim))
    return head.act(agent.normalizer(torch.from_numpy(observations)), drawn).numpy()


def scored(policy: Policy, environment: str, episodes: int) -> dict[str, Any]:
    """Returns and lengths of the policy's mean actions."""
    if episodes == 0:
        return {"returns": [], "lengths": []}
    found = evaluate([policy], environment, episodes, seed=0)[0]
    return {"returns": [round(float(value), 3) for value in found.returns], "lengths": found.lengths.tolist()}


def our_curve(pair: Pair, seed: int, updates: int | None = None, episodes: int | None = None) -> dict[str, Any]:
    """A run of ours, as a worker of `surefoot train` trains one seed."""
    torch.set_num_threads(1)
    kernels.keep_memory()
    updates = pair.updates if updates is None else updates
    episodes = pair.curve_episodes if episodes is None else episodes
    agent, ready = agent_of(pair, seed)
    stores = Stores(ready, store_from_dataset(ready, agent.required_columns, "cpu"))
    learner = Learner([agent], [seed], agent.sources(stores), batch_size=BATCH, planned_steps=updates, kernels=True)
    points, seconds = [], 0.0
    for point in range(1, POINTS + 1):
        start = time.process_time()
        learner.run(updates // POINTS)
        seconds += time.process_time() - start
        extracted, last = learner.extract(0), point == POINTS
        found = scored(extracted.policy(), pair.environment, episodes if last else episodes // 4)
        inner = quantities(pair, networks_of(extracted, pair.networks))
        points.append({"step": learner.step, **found, "cpu_seconds": round(seconds, 1), "inner": inner})
    return {"points": points}


def their_curve(pair: Pair, seed: int) -> dict[str, Any]:
    """A run of the official code."""
    points, arrays = ask(pair, "curve", planned=pair.updates, points=POINTS, episodes=pair.curve_episodes, seed=seed)
    for point in points:
        start = f"{point['step']}/"
        taken = {name.removeprefix(start): v for name, v in arrays.items() if name.startswith(start)}
        point["returns"] = [round(value, 3) for value in point["returns"]]
        point["inner"] = quantities(pair, taken)
    return {"points": points}


def quantities(pair: Pair, networks: Arrays) -> dict[str, float]:
    """Losses and metrics that our code has for these networks, of either side, on the same rows and random numbers.

    Of updates that train nothing but networks that the pair compares; others' depend on numbers that ours alone has.
    """
    agent, ready = agent_of(pair, 0)
    agent.load_state_dict({**agent.state_dict(), **{n: torch.from_numpy(np.array(v)) for n, v in networks.items()}})
    own = [u for u in agent.updates() if isinstance(u, Rule) or set(u.trains) <= set(pair.networks)]
    due = [u if isinstance(u, Rule) else dataclasses.replace(u, every=1, after=0) for u in own]
    agent.updates = lambda: due  # type: ignore[method-assign]
    stores = Stores(ready, store_from_dataset(ready, agent.required_columns, "cpu"))
    learner = Learner([agent], [0], agent.sources(stores), batch_size=PROBED)
    return {name: float(f"{values[0]:.6g}") for name, values in learner.run(1).items()}


# -- the study -----------------------------------------------------------------------------------------------


def cells() -> list[Cell]:
    """The cheap comparisons of all pairs, then curves."""
    cheap = {"rows": compare_rows, "weights": compare_weights, "steps": compare_steps, "acting": compare_acting}
    found = [
        Cell(f"{name}-{question}", functools.partial(compute, pair))
        for question, compute in cheap.items()
        for name, pair in PAIRS.items()
        if question not in pair.left_out
    ]
    for name, pair in PAIRS.items():
        if "curves" not in pair.left_out:
            for seed in pair.seeds:
                found.append(Cell(f"{name}-curve-theirs-s{seed}", functools.partial(their_curve, pair, seed)))
                found.append(Cell(f"{name}-curve-ours-s{seed}", functools.partial(our_curve, pair, seed)))
    return found


if __name__ == "__main__":
    quick = Cell("quick", functools.partial(our_curve, PAIRS["iql"], 0, 12, 1))
    study_main(__doc__, NAME, cells(), table, quick, page=PAGE)
