"""Hard constraints from data: train FISOR, print its return and cost, and query which states it considers safe.

python examples/fisor.py                                       the embedded double integrator between walls
python examples/fisor.py velocity.hdf5 --env surefoot/HalfCheetahVelocity-v5 --steps 50000
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import surefoot
from surefoot.evaluation.tables import format_bounds
from surefoot.runs.embedded import load  # surefoot.data.load, and the embedded datasets
from surefoot.runs.run import load_agent


def show(event: dict[str, Any]) -> None:
    """Print notes, such as which constraint signal is used, and evaluations as they come."""
    if event["kind"] == "note":
        print(event["text"])
    if event["kind"] == "eval":
        print(f"seed {event['seed']}, step {event['step']}: return {event['return_mean']:.1f}")


def main() -> None:
    """Train, print return and cost with their intervals, and the share of the data's states that it considers safe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="native/double-integrator-mixed", help="path or id")
    parser.add_argument("--env", default="auto", help="gymnasium id (default: the dataset's)")
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=20, help="of the final evaluation, per seed")
    parser.add_argument("--preset", default="small", help="small or official")
    arguments = parser.parse_args()

    dataset = load(arguments.dataset)
    agent = surefoot.safe.FISOR(dataset, preset=arguments.preset)
    run = surefoot.fit(
        agent,
        dataset,
        env=arguments.env,
        steps=arguments.steps,
        seeds=arguments.seeds,
        episodes=arguments.episodes,
        evaluate_episodes=5,
        listener=show,
    )
    print(f"return {format_bounds(run.summary['returns'])}, cost {format_bounds(run.summary['cost'])}")
    trained: Any = load_agent(run)
    values = trained.feasible_value(torch.from_numpy(dataset.observations))
    print(f"held to be safe: {100 * float((values <= 0).float().mean()):.0f} % of the data's states")
    print(f"run folder: {run.folder}")


if __name__ == "__main__":
    main()
