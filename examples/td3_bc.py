"""TD3+BC on a dataset.

python examples/td3_bc.py                                     the embedded quadrotor dataset
python examples/td3_bc.py hopper.hdf5 --env Hopper-v5 --steps 100000 --alpha 2.5
"""

from __future__ import annotations

import argparse

import surefoot
from surefoot.evaluation.tables import format_bounds
from surefoot.runs.embedded import load  # surefoot.data.load, and the embedded datasets


def main() -> None:
    """Train, evaluate, and print the score beside the data's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="native/quadrotor-2d-mixed", help="path or id")
    parser.add_argument("--env", default="auto", help="gymnasium id (default: the dataset's)")
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=50, help="of the final evaluation, per seed")
    parser.add_argument("--alpha", type=float, default=2.5, help="weight of Q against cloning; 0 is cloning alone")
    arguments = parser.parse_args()

    dataset = load(arguments.dataset)
    agent = surefoot.offline.TD3BC(dataset, alpha=arguments.alpha)
    run = surefoot.fit(
        agent, dataset, env=arguments.env, steps=arguments.steps, seeds=arguments.seeds, episodes=arguments.episodes
    )
    print(f"data:   {format_bounds(run.summary['behaviour'])}")
    print(
        f"TD3+BC: {format_bounds(run.summary['returns'])}, {arguments.seeds} seeds, {arguments.episodes} episodes each"
    )
    print(run.folder)


if __name__ == "__main__":
    main()
