"""Behaviour cloning, of all episodes or of the best tenth.

python examples/bc.py                                    the embedded quadrotor dataset
python examples/bc.py hopper.hdf5 --fraction 0.1         10%BC on a file of your own
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
    parser.add_argument("--fraction", type=float, default=1.0, help="of the episodes that is cloned, best first")
    arguments = parser.parse_args()

    dataset = load(arguments.dataset)
    agent = surefoot.offline.BC(dataset, fraction=arguments.fraction)
    run = surefoot.fit(
        agent, dataset, env=arguments.env, steps=arguments.steps, seeds=arguments.seeds, episodes=arguments.episodes
    )
    print(f"data: {format_bounds(run.summary['behaviour'])}")
    print(f"BC:   {format_bounds(run.summary['returns'])}, {arguments.seeds} seeds, {arguments.episodes} episodes each")
    print(run.folder)


if __name__ == "__main__":
    main()
