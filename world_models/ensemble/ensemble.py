"""`GaussianEnsemble`: a probabilistic ensemble as a world that is stepped and planned in."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.world_models.dynamics import Outcome, StepNoise
from surefoot.world_models.ensemble.gaussian import GaussianMembers, countable
from surefoot.world_models.ensemble.rollout import sums_in_ensemble
from surefoot.world_models.futures import Objective


class GaussianEnsemble(GaussianMembers):
    """A learned `Dynamics`, of states in the environment's units; how its members learn stands in `GaussianMembers`."""

    def draw_elites(self, uniform: Tensor) -> Tensor:
        """(...) int64 members for `StepNoise`, each elite equally likely, of uniform numbers in [0, 1)."""
        return self.elites[(uniform * len(self.elites)).long().clamp(max=len(self.elites) - 1)]

    def outcome(self, states: Tensor, actions: Tensor, values: Tensor) -> Outcome:
        """What follows from (..., D) predicted values, means or samples, at (..., S) states under (..., A) actions."""
        following = states + values[..., : self.state_dim]
        rewards = values[..., self.state_dim]
        rewards = rewards if self.rewards_of is None else self.rewards_of(states, actions, following)
        costs = values[..., self.state_dim + 1] if self.costs else torch.zeros_like(rewards)
        costs = costs if self.costs_of is None else self.costs_of(following)
        ended = torch.zeros_like(rewards, dtype=torch.bool) if self.terminates is None else self.terminates(following)
        return Outcome(following, rewards, costs, ended)

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One step, as `Dynamics.step`.

        With a member for each row it is TS1 where members are drawn anew at every step (`draw_elites`), and TSinf where
        they are kept over a trajectory; without, the elites' mixture, whose mean it is without normal numbers.
        """
        prediction = self.predict(states, actions, noise.member)
        values = prediction.mean if noise.normal is None else prediction.mean + prediction.std * noise.normal
        return self.outcome(states, actions, values)

    def sums_of(
        self, states: Tensor, actions: Tensor, draws: Tensor, objective: Objective
    ) -> tuple[Tensor, Tensor] | None:
        """As `futures.sums_of`, in few operations; None where that is for single steps (`rollout`)."""
        weight = self.network.weights[0]
        if not countable(states, actions, weight) or {states.dtype, actions.dtype} != {weight.dtype}:
            return None
        return sums_in_ensemble(self, states, actions, draws, objective)
