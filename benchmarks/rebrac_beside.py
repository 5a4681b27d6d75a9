"""ReBRAC beside d3rlpy's on hopper-v5-medium: the same losses at the same weights, updates per second, scores.

    python benchmarks/rebrac_beside.py            # all cells; SUREFOOT_PEERS as for benchmarks/peers/setup.sh
    python benchmarks/rebrac_beside.py --quick    # ours alone, a few updates, for CI
    python benchmarks/rebrac_beside.py --table    # write results/rebrac_beside.md from the cells

Batches of 256, three layers of 256, layer norms in the critics, rate 1e-3, CORL's penalties for hopper-medium, 3,000
updates, one seed, one thread; both policies are evaluated by our `evaluate`, 20 episodes. d3rlpy steps the target actor
towards the new actor, ours towards the old one (CORL's order); it starts its networks as torch does, ours as CORL; and
it leaves out the last step of an episode that a time limit cut. 3,000 updates say how alike two codes train, not how
good ReBRAC is. The machine was busy: compare the two rates with each other alone.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
import time
from typing import Any

import numpy as np
import torch
from beside import line_of, peer_python
from cells import Results
from study import SHARED, Cell, study_main

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.core.nn.native import kernels
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.data import load
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.evaluation import evaluate, hierarchical_interval
from surefoot.offline import ReBRAC

NAME, FILE, ENVIRONMENT = "rebrac_beside", "hopper-v5-medium-sb3.hdf5", "Hopper-v5"
UPDATES, EPISODES, SEEDS, BATCH, EPOCH = 3_000, 20, 1, 256, 500
PEER = pathlib.Path(__file__).parent / "peers" / "d3rlpy_rebrac.py"
ADVICE = "make it with benchmarks/peers/setup.sh d3rlpy, and say where by SUREFOOT_PEERS"


@functools.cache
def data() -> Dataset:
    """The file."""
    return load(str(SHARED / FILE))


def scored(policy: Policy, episodes: int) -> dict[str, Any]:
    """Returns of the policy's mean actions."""
    found = evaluate([policy], ENVIRONMENT, episodes, seed=0)[0]
    return {"returns": [round(float(value), 3) for value in found.returns], "lengths": found.lengths.tolist()}


def ours(seed: int, updates: int = UPDATES, episodes: int = EPISODES) -> dict[str, Any]:
    """Train one seed as a worker of `surefoot train` does."""
    torch.set_num_threads(1)
    kernels.keep_memory()
    agent = ReBRAC(data()).fresh(seed)
    ready = agent.prepare(data())
    store = store_from_dataset(ready, agent.required_columns, "cpu")
    sources = agent.sources(Stores(ready, store))
    learner = Learner([agent], [seed], sources, batch_size=BATCH, planned_steps=updates, kernels=True)
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(max(1, updates // EPOCH)):
        last = learner.run(min(EPOCH, updates))
    spent = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    means = {name: float(last[name][0]) for name in ("critic_loss", "actor_loss")}
    return {"updates": updates, **spent, **means, **scored(learner.extract(0).policy(), episodes)}


def peer(what: str, rows: dict[str, np.ndarray], *options: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The peer's line and its networks."""
    with tempfile.TemporaryDirectory() as folder:
        given, weights = (f"{folder}/{name}.npz" for name in ("rows", "weights"))
        np.savez(given, **rows)  # type: ignore[arg-type]
        python = peer_python("d3rlpy", ADVICE)
        line = line_of([python, str(PEER), what, "--rows", given, "--weights", weights, *options])
        with np.load(weights) as stored:
            return line, dict(stored)


def theirs(seed: int) -> dict[str, Any]:
    """Train d3rlpy's one seed on the same file, and evaluate its policy as ours."""
    dataset = data()
    rows = {name: getattr(dataset, name) for name in ("observations", "actions", "rewards")}
    rows["terminals"], rows["timeouts"] = (
        flags.astype(np.float32) for flags in (dataset.terminations, dataset.truncations)
    )
    line, weights = peer("train", rows, "--updates", str(UPDATES), "--seed", str(seed))
    actor = DeterministicActor(dataset.observation_dim, dataset.action_dim, (256, 256, 256))
    take(actor.mlp, weights, ["policy"])
    bound = torch.ones(dataset.action_dim)
    policy = Policy.of(actor, Normalizer(dataset.observation_dim), -bound, bound)
    return {"updates": UPDATES, **line, **scored(policy, EPISODES)}


@torch.no_grad()
def take(mlp: MLP, weights: dict[str, np.ndarray], names: list[str]) -> None:
    """Copy a peer's layers into a network, or each of `names` into the member of its place."""
    groups = [(mlp.weights, "", "weight"), (mlp.biases, "", "bias")]
    groups += [(mlp.scales, "norm", "weight"), (mlp.shifts, "norm", "bias")]
    for own, kind, part in groups:
        for layer, parameter in enumerate(own):
            found = [torch.from_numpy(weights[f"{name}/{kind}{layer}/{part}"]) for name in names]
            parameter.copy_(found[0] if mlp.members is None else torch.stack(found))


def losses() -> dict[str, Any]:
    """Both codes' losses on one batch at d3rlpy's weights, perturbed, without noise on the target's action."""
    agent = ReBRAC(data(), target_noise=0.0).fresh(0)
    ready = agent.prepare(data())
    source = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns, "cpu")))[MAIN]
    source.bind([0], BATCH, torch.device("cpu"))
    batch = source.gather(source.rows(0)[0])
    rows = {name: batch[name][:, 0] for name in ("observations", "actions", "next_observations")}
    rows["next_actions"] = batch["actions"][:, 1]
    rows["rewards"], rows["terminals"] = batch["rewards"][:, :1], batch["terminations"][:, :1]
    rows["intervals"] = torch.ones(BATCH, 1)
    known = (batch["mask"][:, 1] + batch["terminations"][:, 0]) > 0  # where a next action is hidden the codes differ
    line, weights = peer("losses", {name: value[known].numpy() for name, value in rows.items()})
    take(agent.actor.mlp, weights, ["policy"])  # type: ignore[union-attr, arg-type]
    take(agent.target_actor.mlp, weights, ["targ_policy"])  # type: ignore[union-attr, arg-type]
    for critic, name in ((agent.critic, "q_funcs"), (agent.target_critic, "targ_q_funcs")):
        take(critic.mlp, weights, [f"{name}/{member}" for member in range(2)])
        critic.mlp.norm_epsilon = 1e-5  # torch's, where ours has flax's 1e-6
    batch = agent.annotate({name: value[known] for name, value in batch.items()})
    noise = {"target_noise": torch.zeros(len(batch["rewards"]), data().action_dim)}
    with torch.no_grad():
        own = {"critic": agent.critic_loss(batch, noise)[0], "actor": agent.actor_loss(batch, {})[0]}
    return {"rows": int(known.sum()), "theirs": line, "ours": {name: float(value) for name, value in own.items()}}


def cells() -> list[Cell]:
    """The losses; seeds in turn."""
    found = [Cell("losses", losses)]
    for seed in range(SEEDS):
        found.append(Cell(f"surefoot-s{seed}", functools.partial(ours, seed)))
        found.append(Cell(f"d3rlpy-s{seed}", functools.partial(theirs, seed)))
    return found


def table(found: Results) -> list[str]:
    """The page."""
    lines = ["# ReBRAC beside d3rlpy's", "", *(__doc__ or "").split("\n\n")[2].strip().splitlines(), ""]
    if "losses" in found:
        both = found["losses"]
        lines += ["| loss at equal weights | surefoot | d3rlpy | relative difference |", "|---|---|---|---|"]
        for name in ("critic", "actor"):
            own, other = both["ours"][name], both["theirs"][name]
            lines.append(f"| {name} | {own:.7g} | {other:.7g} | {abs(own - other) / abs(other):.1e} |")
        lines.append("")
    lines += [
        "| code | seeds | updates per CPU second | return [95 %] | last critic loss | last actor loss |",
        "|---|---|---|---|---|---|",
    ]
    for code in ("surefoot", "d3rlpy"):
        runs = [found[f"{code}-s{seed}"] for seed in range(SEEDS) if f"{code}-s{seed}" in found]
        if not runs:
            lines.append(f"| {code} | missing | | | | |")
            continue
        rates = sorted(run["updates"] / run["cpu_seconds"] for run in runs)
        interval = hierarchical_interval([np.array(run["returns"]) for run in runs])
        critic, actor = (np.mean([run[name] for run in runs]) for name in ("critic_loss", "actor_loss"))
        lines.append(
            f"| {code} | {len(runs)} | {np.median(rates):.1f} | "
            f"{interval.estimate:.1f} [{interval.low:.1f}, {interval.high:.1f}] | {critic:.3f} | {actor:.3f} |"
        )
    lines += ["", f"{len(found)} of {1 + 2 * SEEDS} cells."]
    return lines


if __name__ == "__main__":
    quick = Cell("quick", functools.partial(ours, 0, 4, 1))
    study_main(__doc__, NAME, cells(), table, quick)
