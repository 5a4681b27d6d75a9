"""Online learning under a cost limit: PPO with a Lagrange multiplier on a cheetah with a speed limit.

python examples/safe_acting.py                                 300,000 steps of PPO-PID, limit 25
python examples/safe_acting.py --algorithm cpo --limit 10 --steps 1000000
"""

from __future__ import annotations

import argparse

import surefoot
from surefoot.core.engine.agent import Spec
from surefoot.evaluation.tables import format_bounds

CHEETAH = Spec(17, 6, (-1.0,) * 6, (1.0,) * 6)


def main() -> None:
    """Train with a limit on the episode's cost, and print the policy's return and cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="ppo_pid", choices=sorted(surefoot.safe.ALGORITHMS))
    parser.add_argument("--limit", type=float, default=25.0, help="on the sum of an episode's costs")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()

    agent = surefoot.safe.ALGORITHMS[arguments.algorithm](CHEETAH, cost_limit=arguments.limit)
    run = surefoot.fit(agent, env="surefoot/HalfCheetahVelocity-v5", steps=arguments.steps, seeds=arguments.seeds)
    print(f"return {format_bounds(run.summary['returns'])}")
    print(f"cost   {format_bounds(run.summary['cost'])}, limit {arguments.limit:g}")


if __name__ == "__main__":
    main()
