"""RIQL and IQL on a dataset whose rows were corrupted at random.

python examples/riql.py                                                   the embedded quadrotor dataset
python examples/riql.py hopper.hdf5 --element dynamics --steps 50000
"""

from __future__ import annotations

import argparse

import surefoot
from surefoot.data.corrupt import corrupt
from surefoot.evaluation.tables import format_bounds
from surefoot.runs.embedded import load  # surefoot.data.load, and the embedded datasets


def main() -> None:
    """Corrupt, train both algorithms on equal terms, and print their scores in the clean simulator."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="native/quadrotor-2d-mixed", help="path or id")
    parser.add_argument("--env", default="auto", help="gymnasium id (default: the dataset's)")
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=50, help="of the final evaluation, per seed")
    parser.add_argument("--element", default="dynamics", help="observations, actions, rewards or dynamics")
    parser.add_argument("--rate", type=float, default=0.3, help="share of the rows")
    arguments = parser.parse_args()

    attacked = corrupt(load(arguments.dataset), arguments.element, "random", rate=arguments.rate, seed=0)
    print(f"{attacked.report['attacked']} of {attacked.report['rows']} rows attacked ({arguments.element})")
    dataset = attacked.dataset
    # Same normalisation, actor and order of updates, so that what differs is the robust part alone.
    rival = surefoot.offline.IQL(dataset, preset="corl", normalization="stacked", actor="deterministic")
    for agent in (surefoot.offline.RIQL(dataset), rival):
        run = surefoot.fit(
            agent, dataset, env=arguments.env, steps=arguments.steps, seeds=arguments.seeds, episodes=arguments.episodes
        )
        print(f"{agent.name}: {format_bounds(run.summary['returns'])}, {arguments.seeds} seeds; {run.folder}")


if __name__ == "__main__":
    main()
