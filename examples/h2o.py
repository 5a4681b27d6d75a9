"""H2O: a few transitions of the real system and a simulator whose gravity is wrong.

python examples/h2o.py                                        the pendulum, 20,000 steps in the simulator
python examples/h2o.py --system native/cartpole-swingup --gap friction0.3 --steps 50000
"""

from __future__ import annotations

import argparse

import surefoot
from surefoot.evaluation.tables import format_bounds
from surefoot.runs.embedded import generate


def main() -> None:
    """Compare two simulators' transitions with the real ones, train in the wrong one, and score in the right one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="native/pendulum", help="a native system")
    parser.add_argument("--gap", default="gravity2", help="of the simulator; `surefoot envs info SYSTEM` lists them")
    parser.add_argument("--transitions", type=int, default=5_000, help="of the real system")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=50, help="of the final evaluation, per seed")
    arguments = parser.parse_args()

    system, count = arguments.system, arguments.transitions
    real = generate(system, 0, count, "medium")
    simulated = {gap: generate(system, 1, count, "medium", gap) for gap in (None, arguments.gap)}
    for gap, transitions in simulated.items():
        print(f"gap {gap}: {surefoot.online.estimate_gap(real, transitions, steps=500).divergence:.2f} nats")
    run = surefoot.fit(surefoot.online.H2O(real), real, env=system, gap=arguments.gap, steps=arguments.steps,
                       seeds=arguments.seeds, episodes=arguments.episodes)  # fmt: skip
    print(f"data: {format_bounds(run.summary['behaviour'])}")
    print(f"H2O:  {format_bounds(run.summary['returns'])}, {arguments.seeds} seeds, {arguments.episodes} episodes each")


if __name__ == "__main__":
    main()
