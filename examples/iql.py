"""Implicit Q-learning on a dataset: train, evaluate, act.

python examples/iql.py                                        the embedded quadrotor dataset
python examples/iql.py hopper.hdf5 --env Hopper-v5 --steps 100000
"""

from __future__ import annotations

import argparse
from typing import Any

import surefoot
from surefoot.evaluation.tables import format_bounds
from surefoot.runs.embedded import load  # surefoot.data.load, and the embedded datasets


def show(event: dict[str, Any]) -> None:
    """Print evaluations as they come; `fit` calls this with every event of the run."""
    if event["kind"] == "eval":
        print(f"seed {event['seed']}, step {event['step']}: return {event['return_mean']:.1f}")


def main() -> None:
    """Train three seeds, print the score with its interval, and compute one action of the policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="native/quadrotor-2d-mixed", help="path or id")
    parser.add_argument("--env", default="auto", help="gymnasium id (default: the dataset's)")
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=50, help="of the final evaluation, per seed")
    parser.add_argument("--expectile", type=float, default=0.7, help="in (0, 1); nearer 1 is bolder")
    parser.add_argument("--preset", default="official", help="official or corl")
    arguments = parser.parse_args()

    dataset = load(arguments.dataset)
    agent = surefoot.offline.IQL(dataset, preset=arguments.preset, expectile=arguments.expectile)
    run = surefoot.fit(
        agent,
        dataset,
        env=arguments.env,
        steps=arguments.steps,
        seeds=arguments.seeds,
        episodes=arguments.episodes,
        listener=show,
    )
    print(f"data: {format_bounds(run.summary['behaviour'])}")
    print(f"IQL:  {format_bounds(run.summary['returns'])}, {arguments.seeds} seeds, {arguments.episodes} episodes each")

    policy = run.policy()
    policy.reset()
    print(f"action at the data's first observation: {policy.select_action(dataset.observations[0])}")
    print(run.folder)


if __name__ == "__main__":
    main()
