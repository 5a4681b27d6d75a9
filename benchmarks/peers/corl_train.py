"""Trains CORL's IQL and TD3+BC on our dataset files and keeps what they score, a line of JSON a cell.

    python corl_train.py --source CORL/algorithms/offline --data ../shared/data

Cells that are there already are skipped, so a run that was stopped continues where it was. CORL's defaults:
observations normalised, rewards not, Gaussian policy, actor cosine over the steps of the run.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import common
import corl_script
import gymnasium
import h5py
import mujoco
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cells import Results, append_cell, read_cells

RESULTS = Path(__file__).resolve().parents[1] / "results" / "peers.jsonl"
FIRST_EVALUATION_SEED = 1000


class Task(NamedTuple):
    algorithm: str
    dataset: str
    env: str
    action_scale: float


TASKS = (
    Task("iql", "hopper-v5-medium-sb3", "Hopper-v5", 1.0),
    Task("iql", "walker2d-v5-mixed-sb3", "Walker2d-v5", 1.0),
    Task("iql", "pendulum-mixed-sb3", "Pendulum-v1", 2.0),
    Task("td3bc", "hopper-v5-medium-sb3", "Hopper-v5", 1.0),
)


def read_rows(file: Path, action_scale: float) -> dict[str, np.ndarray]:
    """Read every transition of a D4RL file; next observations are rebuilt where they are not stored.

    Inside an episode the next row holds them, after its last step `infos/final_observations` does. Actions
    are divided by `action_scale`, so that they lie in [-1, 1].
    """
    with h5py.File(file, "r") as stored:
        rows = {key: stored[key][:] for key in ("observations", "actions", "rewards")}
        terminals, timeouts = stored["terminals"][:], stored["timeouts"][:]
        if "next_observations" in stored:
            rows["next_observations"] = stored["next_observations"][:]
        else:
            ends = stored["infos/episode_ends"][:]
            if not np.array_equal(ends, np.flatnonzero(terminals | timeouts)):
                raise SystemExit(f"{file}: infos/episode_ends disagrees with terminals and timeouts")
            following = np.roll(rows["observations"], -1, axis=0)
            following[ends] = stored["infos/final_observations"][:]
            rows["next_observations"] = following
    rows["actions"] = rows["actions"] / np.float32(action_scale)
    rows["terminals"] = terminals.astype(np.float32)
    return rows


def evaluate(actor: Any, task: Task, mean: np.ndarray, std: np.ndarray, episodes: int) -> tuple[list[float], list[int]]:
    """Return each episode's return and length under the deterministic policy; episode k has seed 1000 + k."""
    env = gymnasium.make(task.env)
    actor.eval()
    returns, lengths = [], []
    for episode in range(episodes):
        observation, _ = env.reset(seed=FIRST_EVALUATION_SEED + episode)
        total, length, over = 0.0, 0, False
        while not over:
            action = actor.act((observation - mean) / std, "cpu") * task.action_scale
            observation, reward, terminated, truncated, _ = env.step(action.astype(np.float32))
            total, length, over = total + float(reward), length + 1, terminated or truncated
        returns.append(total)
        lengths.append(length)
    env.close()
    return returns, lengths


def run_cell(task: Task, seed: int, source: Path, data: Path, steps: int, episodes: int) -> dict[str, Any]:
    """Train one cell and return what is kept of it."""
    file = source / corl_script.SCRIPTS[task.algorithm]
    script = corl_script.load_script(file)
    rows = read_rows(data / f"{task.dataset}.hdf5", task.action_scale)
    mean, std = corl_script.normalise(script, rows)
    buffer = corl_script.fill_buffer(script, rows)
    script.set_seed(seed)
    trainer = corl_script.TRAINERS[task.algorithm](
        script, rows["observations"].shape[1], rows["actions"].shape[1], steps
    )
    start = time.perf_counter()
    corl_script.run_updates(trainer, buffer, steps, common.BATCH_SIZE)
    trained = time.perf_counter()
    returns, lengths = evaluate(trainer.actor, task, mean, std, episodes)
    return {
        "peer": "corl",
        "algorithm": task.algorithm,
        "dataset": task.dataset,
        "env": task.env,
        "seed": seed,
        "steps": steps,
        "episodes": episodes,
        "returns": [round(value, 4) for value in returns],
        "lengths": lengths,
        "seconds": round(trained - start, 1),
        "evaluation_seconds": round(time.perf_counter() - trained, 1),
        "source_sha256": corl_script.sha256(file),
        "versions": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "gymnasium": gymnasium.__version__,
            "mujoco": mujoco.__version__,
        },
    }


def already_there(cells: Results, name: str, steps: int, episodes: int) -> bool:
    """Say whether a cell is kept; one that was made with other steps or episodes is refused, not replaced."""
    if name not in cells:
        return False
    kept = cells[name]
    if (kept["steps"], kept["episodes"]) != (steps, episodes):
        made_with = f"{kept['steps']} steps, {kept['episodes']} episodes"
        raise SystemExit(f"cell {name} is there with {made_with}: give another --out")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="CORL's folder algorithms/offline")
    parser.add_argument("--data", type=Path, required=True, help="folder with the HDF5 files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--episodes", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = read_cells(options.out)
    for seed in range(options.seeds):
        for task in TASKS:
            name = f"{task.algorithm}-{task.dataset}-s{seed}"
            if already_there(done, name, options.steps, options.episodes):
                print(f"{name}: there already", flush=True)
                continue
            cell = run_cell(task, seed, options.source, options.data, options.steps, options.episodes)
            append_cell(options.out, name, cell)
            returns = np.asarray(cell["returns"])
            print(
                f"{name}: return {returns.mean():.1f} (sd {returns.std():.1f}), "
                f"{cell['seconds']:.0f} s training, {cell['evaluation_seconds']:.0f} s evaluation",
                flush=True,
            )


if __name__ == "__main__":
    main()
