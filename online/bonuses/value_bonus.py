"""Value bonuses: actions are chosen by their value and by how far predictors of random values are off there."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from surefoot.core.actors.greedy_actor import of_choice
from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.nn.networks import MLP
from surefoot.online.bonuses.bonus import Bonus, Numbers

NEXT = "next_choices"
"""Column of a batch: (B, A) what the greedy policy chooses at the next observations."""


class ValueBonus(Bonus):
    r"""Wahab et al., "Value Bonuses using Ensemble Errors for Exploration" (2025), of choices.

    .. math::
        r_k &= f_k(s, a) - \gamma (1 - d)\, f_k(s', a'), \quad a' = \arg\max_a Q(s', a) \\
        L &= \textstyle\sum_k E\, (\hat f_k(s, a) - r_k - \gamma (1 - d)\, \hat f_k(s', a'))^2 \\
        b(s, a) &= \max_k |f_k(s, a) - \hat f_k(s, a)|

    K functions f are drawn once and stay. The fixed point of each predictor is its f, so that b goes to 0; what leads
    to states that are new keeps it up. Unlike a reward for what is new it is there before the first visit. While
    training, the choice is that of the highest Q + `bonus_weight` b; rewards are the task's alone. The next value is
    the predictor's own, without gradient.
    """

    kind = "value"
    by_choice = True

    def make(self, observation_dim: int, action_dim: int) -> None:
        """The fixed functions' layers as buffers, and their predictors."""
        c = self.config
        sizes = (observation_dim, action_dim, c.bonus_hidden)
        fixed = MLP(*sizes, members=c.bonus_members, initialization="orthogonal")
        for number, weight in enumerate(fixed.weights):
            self.register_buffer(f"fixed_{number}", weight.detach().clone())
        self.layers = len(fixed.weights)
        self.predictors = MLP(*sizes, members=c.bonus_members)

    def fixed(self, inputs: Tensor) -> Tensor:
        """(K, B, A) the fixed values of (B, O) normalised observations."""
        value = inputs
        for number in range(self.layers):
            value = value @ getattr(self, f"fixed_{number}").transpose(-1, -2)
            value = value.relu() if number < self.layers - 1 else value
        return value

    def both(self, observations: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """(K, B, A) fixed values of (B, O) observations, and what the predictors say of them."""
        inputs = self.normalised(observations, numbers)
        return self.fixed(inputs), self.predictors(inputs)

    def of_choices(self, observations: Tensor) -> Tensor:
        """(B, A) b of all choices at (B, O) observations."""
        fixed, predicted = self.both(observations, self.numbers)
        return (fixed - predicted).abs().amax(0)

    def novelty(self, batch: Batch, numbers: Numbers) -> Tensor:
        """(B,) b of the choices that were made."""
        fixed, predicted = self.both(batch["observations"], numbers)
        return ((fixed - predicted).abs().amax(0) * batch["actions"]).sum(-1)

    def loss(self, batch: Batch, noise: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Sum over the predictors of their mean squared TD errors."""
        discount = vars(self.config)["discount"] * (1 - batch["terminations"])

        def taken(values: Tensor, choices: Tensor) -> Tensor:
            return of_choice(values.movedim(0, -1), choices).movedim(-1, 0)

        here = [taken(v, batch["actions"]) for v in self.both(batch["observations"], self.numbers)]
        after = [taken(v, batch[NEXT]) for v in self.both(batch["next_observations"], self.numbers)]
        target = here[0] - discount * after[0] + discount * after[1]
        error = here[1] - target.detach()
        return error.square().mean(-1).sum(), {"novelty": (here[0] - here[1]).abs().amax(0)}
