"""What every official code that is paired with ours is asked: rows, initial weights, steps, actions, a training run.

A runner (paired_iql.py, paired_corl.py) builds a `Peer` from a checkout and calls `main`; benchmarks/paired.py starts
it in the peer's environment. Arrays go through npz files under the names of our parameters, so that nothing here knows
an algorithm. Needs numpy, h5py and gymnasium only.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import common
import h5py
import numpy as np

Arrays = dict[str, np.ndarray]
FIRST_EVALUATION_SEED = 1000


class Peer(Protocol):
    """One official algorithm, with the networks named as ours are."""

    def rows(self, data: Arrays) -> Arrays:
        """The columns that its loss reads, of all rows that it may draw, from a file in D4RL's layout."""
        ...

    def begin(self, seed: int, rows: Arrays, planned: int) -> None:
        """New networks and optimisers."""
        ...

    def silence(self) -> None:
        """Take noise out of the losses, where steps are compared."""
        ...

    def networks(self) -> Arrays:
        """Their parameters by our names."""
        ...

    def take(self, networks: Arrays) -> None:
        """Continue from these."""
        ...

    def update(self, batch: Arrays) -> dict[str, float]:
        """One training step; its losses by our names."""
        ...

    def rates(self) -> dict[str, float]:
        """Learning rates of the next step."""
        ...

    def act(self, observations: np.ndarray) -> np.ndarray:
        """(B, A) actions as its evaluation takes them, for (B, O) observations of the environment."""
        ...


def read(file: Path) -> Arrays:
    """A file of ours in D4RL's layout: what `env.get_dataset()` would have given, next observations included."""
    with h5py.File(file, "r") as stored:
        data = {name: stored[name][:] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
        if "next_observations" in stored:
            return {**data, "next_observations": stored["next_observations"][:]}
        following = np.roll(data["observations"], -1, axis=0)
        following[stored["infos/episode_ends"][:]] = stored["infos/final_observations"][:]
    return {**data, "next_observations": following}


def without_cut_steps(data: Arrays) -> Arrays:
    """D4RL's rule for Q-learning (`qlearning_dataset`): a step at which a time limit cut the episode is no row."""
    kept = ~data["timeouts"].astype(bool)
    return {name: values[kept] for name, values in data.items()}


def counted(rows: Arrays) -> Arrays:
    """Windows as they count: 0 where a number has no weight in any loss; other rows as they are."""
    if "valid" not in rows:
        return rows
    whole, reached = rows["valid"][:, None] > 0, (rows["valid"] * rows["reach"])[:, None] > 0
    found = {**rows, "rewards": rows["rewards"] * rows["valid"], "reach": rows["reach"] * rows["valid"]}
    found["actions"] = np.where(whole | (rows["mask"] > 0), rows["actions"], 0)
    found["next_observations"] = np.where(reached, rows["next_observations"], 0)
    if "next_actions" in rows:
        found["next_mask"] = rows["next_mask"] * reached
        found["next_actions"] = rows["next_actions"] * found["next_mask"]
    return found


def environment_of(name: str) -> Any:
    """A gymnasium id, or a task of OGBench by our name."""
    if name.startswith("ogbench/"):
        import ogbench

        return ogbench.make_env_and_datasets(name.removeprefix("ogbench/"), env_only=True)
    import gymnasium

    return gymnasium.make(name)


def returns(peer: Peer, environment: str, episodes: int) -> tuple[list[float], list[int]]:
    """Returns and lengths of whole episodes; episode k begins with seed 1000 + k.

    A peer with a memory, such as a queue of actions, has a method `episode`, which gives what acts in one.
    """
    made, found, lengths = environment_of(environment), [], []
    for episode in range(episodes):
        observation, _ = made.reset(seed=FIRST_EVALUATION_SEED + episode)
        act = peer.episode() if hasattr(peer, "episode") else peer.act
        total, steps, ended = 0.0, 0, False
        while not ended:
            action = act(np.asarray(observation, np.float32)[None])[0]
            observation, reward, terminated, truncated, _ = made.step(action)
            total, steps, ended = total + float(reward), steps + 1, bool(terminated or truncated)
        found.append(total)
        lengths.append(steps)
    made.close()
    return found, lengths


def of_weights(peer: Peer, rows: Arrays, count: int) -> dict[str, dict[str, float]]:
    """Parameter -> mean, deviation, least and greatest over `count` initialisations."""
    seen: dict[str, list[np.ndarray]] = {}
    for seed in range(count):
        peer.begin(seed, rows, 1000)
        for name, values in peer.networks().items():
            seen.setdefault(name, []).append(np.asarray(values, np.float64).ravel())
    return {name: summary(np.stack(values)) for name, values in seen.items()}


def summary(values: np.ndarray) -> dict[str, float]:
    """Moments and range of one parameter's numbers, (initialisations, numbers)."""
    norms = np.sqrt((values**2).sum(1))
    return {
        "mean": float(values.mean()),
        "deviation": float(values.std()),
        "least": float(values.min()),
        "greatest": float(values.max()),
        "norm": float(norms.mean()),
        "norm_deviation": float(norms.std()),
        "numbers": values.size,
    }


def stepped(peer: Peer, rows: Arrays, given: Arrays, planned: int, at: list[int]) -> tuple[Arrays, dict[str, Any]]:
    """Take the given weights and batches; what the networks, rates and losses are at some of the steps."""
    peer.begin(0, rows, planned)
    peer.silence()
    peer.take({name.removeprefix("weights/"): v for name, v in given.items() if name.startswith("weights/")})
    found: Arrays = {}
    facts: dict[str, Any] = {"rates": {}, "losses": {}}
    for step, index in enumerate(given["indices"], 1):
        if step in at:
            facts["rates"][str(step)] = peer.rates()
        losses = peer.update({name: column[index] for name, column in rows.items()})
        if step in at:
            facts["losses"][str(step)] = losses
            found |= {f"{step}/{name}": values for name, values in peer.networks().items()}
    return found, facts


def curve(
    peer: Peer, rows: Arrays, seed: int, updates: int, points: int, environment: str, episodes: int
) -> tuple[Arrays, Any]:
    """Train from its own initial weights on batches of 256 drawn with `seed`.

    Returns:
        The networks on the way by "step/name", and a list of points: returns, lengths, CPU seconds of training so far.
    """
    peer.begin(seed, rows, updates)
    source, found, seconds = np.random.default_rng(seed), [], 0.0
    networks: Arrays = {}
    count = len(rows["rewards"])
    start = time.process_time()
    for step in range(1, updates // points * points + 1):
        index = source.integers(count, size=common.BATCH_SIZE)
        peer.update({name: column[index] for name, column in rows.items()})
        if step % (updates // points) == 0:
            networks |= {f"{step}/{name}": values for name, values in peer.networks().items()}
            seconds += time.process_time() - start
            last = len(found) == points - 1
            values, lengths = returns(peer, environment, episodes if last else episodes // 4)
            found.append({"step": step, "returns": values, "lengths": lengths, "cpu_seconds": round(seconds, 1)})
            start = time.process_time()
    return networks, found


def main(description: str, build: Callable[[argparse.Namespace], Peer]) -> None:
    """The command line of a runner: one question, one line of JSON, arrays to --out."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=("rows", "collected", "weights", "steps", "acting", "curve"))
    parser.add_argument("--algorithm", required=True)
    parser.add_argument("--checkout", type=Path, required=True, help="of the official code")
    parser.add_argument("--file", type=Path, required=True, help="dataset in D4RL's layout")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--settings", default="{}", help="JSON: settings of the official code over the runner's")
    parser.add_argument("--given", type=Path, help="npz with weights and indices")
    parser.add_argument("--out", type=Path, help="npz to write")
    parser.add_argument("--at", default="1,2,10,1000")
    parser.add_argument("--planned", type=int, default=1000)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--episodes", type=int, default=20)
    a = parser.parse_args()
    peer = build(a)
    rows = peer.rows(read(a.file))
    arrays: Arrays = {}
    line: Any = {}
    if a.question == "rows":
        arrays, line = rows, {"rows": len(rows["observations"])}
    elif a.question == "collected":  # of a peer that acts while it learns
        arrays = peer.collected(dict(np.load(a.given, allow_pickle=False)))  # type: ignore[attr-defined]
    elif a.question == "weights":
        line = of_weights(peer, rows, a.count)
    elif a.question == "curve":
        arrays, line = curve(peer, rows, a.seed, a.planned, a.points, a.environment, a.episodes)
    else:
        given = dict(np.load(a.given, allow_pickle=False))
        if a.question == "steps":
            arrays, line = stepped(peer, rows, given, a.planned, [int(step) for step in a.at.split(",")])
        else:
            peer.begin(0, rows, a.planned)
            peer.take({n.removeprefix("weights/"): v for n, v in given.items() if n.startswith("weights/")})
            arrays = {"actions": peer.act(given["observations"])}
            values, lengths = returns(peer, a.environment, a.episodes)
            line = {"returns": values, "lengths": lengths}
    if a.out is not None and arrays:
        np.savez(a.out, **arrays)  # type: ignore[arg-type]
    print(json.dumps(line))
