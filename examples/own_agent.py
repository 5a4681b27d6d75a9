"""An algorithm of your own: advantage-weighted regression on Monte-Carlo returns (docs/engine.md explains it).

PYTHONPATH=examples python examples/own_agent.py
PYTHONPATH=examples python examples/own_agent.py hopper.hdf5 --steps 50000

PYTHONPATH is for the worker processes: they import the agent by the name of its module.
"""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np
from torch import Tensor

import surefoot
from surefoot.core.actors.heads import GaussianActor
from surefoot.core.base.options import Options, option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.losses.value_learning import advantage_weights
from surefoot.core.nn.networks import Value
from surefoot.data import Dataset
from surefoot.data.prepare import prepare
from surefoot.evaluation.tables import format_bounds
from surefoot.runs.embedded import load


@dataclasses.dataclass(frozen=True)
class AWRConfig(Options):
    """Settings of AWR."""

    temperature: float = option(3.0, "multiplies the advantage", range=">= 0")
    discount: float = option(0.99, "discount factor", range="[0, 1)")
    learning_rate: float = option(3e-4, "learning rate of both networks", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers", range=">= 1")


class AWR(Agent):
    r"""Advantage-weighted regression (Peng et al., 2019), one round of it on a fixed dataset.

    .. math:: L_V = E (G - V(s))^2, \quad L_\pi = -E \min(e^{\beta (G - V(s))}, 100) \log \pi(a | s)

    G is (1 - discount) times the discounted sum of rewards to the recorded end of the episode.
    """

    name = "awr"
    Config = AWRConfig
    required_columns = ("observations", "actions", "returns_to_go")
    config: AWRConfig

    def build(self) -> None:
        """Value and actor; the attributes' names are the networks' names in `updates`."""
        self.value = Value(self.spec.observation_dim, self.config.hidden)
        self.actor: GaussianActor = GaussianActor(self.spec.observation_dim, self.spec.action_dim, self.config.hidden)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, normalise observations, add the column that the losses read."""
        ready = prepare(self, dataset, normalization="observations")
        returns = (1 - self.config.discount) * returns_to_go(ready, self.config.discount)
        return ready.replace(extras={**ready.extras, "returns_to_go": returns.astype(np.float32)})

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of V against the returns."""
        value = self.value(batch["observations"])
        return (batch["returns_to_go"] - value).square().mean(), {"value": value}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the data's actions, weighted by exp(advantage)."""
        weight = advantage_weights(batch["returns_to_go"] - self.value(batch["observations"]), self.config.temperature)
        return -(weight * self.actor.log_density(batch["observations"], batch["actions"])).mean(), {"weight": weight}

    def updates(self) -> list[Update]:
        """The value first; the actor then sees the new one."""
        adam = Adam(self.config.learning_rate)
        return [Update(self.value_loss, ("value",), adam), Update(self.actor_loss, ("actor",), adam)]


def returns_to_go(dataset: Dataset, discount: float) -> np.ndarray:
    """(N,) float64: discounted sum of rewards from each row to the end of its episode."""
    total = np.zeros(len(dataset))
    last = dataset.terminations | dataset.truncations
    following = 0.0
    for row in range(len(dataset) - 1, -1, -1):
        following = float(dataset.rewards[row]) + (0.0 if last[row] else discount * following)
        total[row] = following
    return total


def main() -> None:
    """Train it as any algorithm of the library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="native/quadrotor-2d-mixed", help="path or id")
    parser.add_argument("--env", default="auto", help="gymnasium id (default: the dataset's)")
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=50, help="of the final evaluation, per seed")
    arguments = parser.parse_args()

    dataset = load(arguments.dataset)
    run = surefoot.fit(
        AWR(dataset),
        dataset,
        env=arguments.env,
        steps=arguments.steps,
        seeds=arguments.seeds,
        episodes=arguments.episodes,
    )
    print(f"data: {format_bounds(run.summary['behaviour'])}")
    print(f"AWR:  {format_bounds(run.summary['returns'])}, {arguments.seeds} seeds, {arguments.episodes} episodes each")
    print(run.folder)


if __name__ == "__main__":
    import own_agent  # under the name by which worker processes import it: __main__ is another module there

    own_agent.main()
