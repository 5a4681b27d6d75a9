"""`LatentPlanner`: the policy head of TD-MPC2, which plans in a latent model from each observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from surefoot.core.actors.actor import OptionsActor
from surefoot.core.actors.memory import Memory
from surefoot.core.base.errors import ConfigError
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.latent.elites import drawn_elite, refit, shifted
from surefoot.world_models.latent.latent import LatentCritic, LatentModel, PolicyPrior, SimplicialMLP

SEARCH: dict[str, Any] = {
    "horizon": 3,
    "samples": 512,
    "prior_samples": 24,
    "elites": 64,
    "iterations": 6,
    "temperature": 0.5,
    "std_range": (0.05, 2.0),
    "discount": 0.99,
}
"""Options of the search, and the official values."""
NETWORKS: dict[str, Any] = {
    "encoder_hidden": (256,),
    "latent_dim": 512,
    "hidden": (512, 512),
    "group": 8,
    "bins": 101,
    "limit": 10.0,
    "critics": 5,
    "terminates": False,
    "log_std_range": (-10.0, 2.0),
}
"""Options of the networks, and the official values."""
BEHIND = slice(0, 2)
"""Critics whose mean is the value behind the horizon."""
PART = 16
"""Rows that are planned for at once: each of them has hundreds of sampled plans."""


class Plan(NamedTuple):
    """Where a search ended."""

    action: Tensor
    """(B, A) to be carried out, in [-1, 1]."""
    std: Tensor
    """(B, A) deviation of the first action in the last distribution."""
    mean: Tensor
    """(B, H, A) of the last distribution: where the next search begins."""


class LatentPlanner(OptionsActor):
    r"""MPPI in the latent space, started at the last plan, helped by a policy prior, with a value behind the horizon.

    .. math:: G = \sum_{t < H} \gamma^t \hat r_t + \gamma^H \hat Q(z_H, \pi(z_H))

    Of N plans of H actions, some are the prior's own, drawn once; the others are drawn anew in each iteration from a
    normal that is refitted to the best (`elites.refit`). What is carried out is the first action of one of
    the last elites, drawn by their weights. The mean plan is the memory.

    All candidates of a row share the noise of the action behind the horizon (common random numbers), and the value
    there is the mean of the first two critics. The official code draws both anew for each candidate and evaluation;
    here a row's plan depends on its own noise alone, so that rows planned together equal rows planned alone.
    """

    kind = "latent_planner"
    always_samples = True

    def __init__(
        self,
        representation: SimplicialMLP,
        model: LatentModel,
        critic: LatentCritic,
        prior: PolicyPrior,
        options: Mapping[str, Any],
    ) -> None:
        """Plan with these networks.

        Args:
            representation: encoder of observations.
            model: of latent states.
            critic: of latent states.
            prior: of latent states.
            options: those of `SEARCH`, and of `NETWORKS`, by which the networks were built.

        Raises:
            ConfigError: more elites or prior samples than samples, or none.
        """
        super().__init__()
        self.representation, self.model, self.critic, self.prior = representation, model, critic, prior
        self.options = {name: options[name] for name in (*NETWORKS, *SEARCH)}
        o = self.options
        if not (1 <= o["elites"] <= o["samples"] and 0 <= o["prior_samples"] < o["samples"]):
            raise ConfigError(
                f"{o['elites']} elites and {o['prior_samples']} plans of the prior among {o['samples']} samples: at "
                "least 1 elite, and fewer plans of the prior than samples, are needed"
            )
        if min(o["horizon"], o["iterations"]) < 1:
            raise ConfigError(f"horizon is {o['horizon']} and iterations {o['iterations']}: both must be at least 1")
        if o["temperature"] < 0:
            raise ConfigError(f"temperature is {o['temperature']}, must be >= 0: below 0 the worst elites count most")

    # -- noise and memory ----------------------------------------------------------------------------------

    @property
    def _noise(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape, of one row's random numbers, in order."""
        o, size = self.options, self.model.action_dim
        free = o["samples"] - o["prior_samples"]
        return {
            "plans": (o["iterations"], free, o["horizon"], size),
            "prior": (o["prior_samples"], o["horizon"], size),
            "behind": (o["iterations"], 1, size),
            "choice": (o["elites"],),
        }

    @property
    def noise_dim(self) -> int:
        """Numbers of a whole search."""
        return sum(torch.Size(shape).numel() for shape in self._noise.values())

    def begin(self, rows: int) -> Memory:
        """A plan of zeros."""
        some = self.representation.norm.weight
        return {"plan": some.new_zeros(rows, self.options["horizon"], self.model.action_dim)}

    # -- the search ----------------------------------------------------------------------------------------

    def returns(self, states: Tensor, actions: Tensor, behind: Tensor) -> Tensor:
        """(B, N) returns of (B, N, H, A) plans from (B, V) states, with (B, 1, A) noise of the action behind them."""
        z = states.unsqueeze(1).expand(-1, actions.shape[1], -1)
        total = torch.zeros_like(actions[..., 0, 0])
        reach = torch.ones_like(total)
        for time in range(actions.shape[2]):
            z, rewards, _, ended = self.model.step(z, actions[:, :, time], StepNoise())
            total = total + reach * rewards
            reach = reach * self.options["discount"] * (~ended).to(reach.dtype)
        last = self.prior.act(z, behind)
        pairs = torch.cat([z, last], -1)
        value = self.critic.values(pairs.flatten(0, 1), BEHIND).mean(0).view_as(total)
        return total + reach * value

    def prior_plans(self, states: Tensor, noise: Tensor) -> Tensor:
        """(B, P, H, A) plans of the prior from (B, V) states, by (B, P, H, A) noise."""
        z = states.unsqueeze(1).expand(-1, noise.shape[1], -1)
        found = []
        for time in range(noise.shape[2]):
            found.append(self.prior.act(z, noise[:, :, time]))
            if time < noise.shape[2] - 1:
                z = self.model.following(z, found[-1])
        return torch.stack(found, 2)

    def plan(self, observations: Tensor, started: Tensor, noise: Tensor) -> Plan:
        """Search from (B, O) normalised observations.

        Args:
            observations: as the encoder reads them.
            started: (B, H, A) mean plan to begin at.
            noise: (B, `noise_dim`) standard normal.
        """
        o, shapes = self.options, self._noise
        parts = noise.split([torch.Size(shape).numel() for shape in shapes.values()], -1)
        plans, prior, behind, choice = (
            part.unflatten(-1, shape) for part, shape in zip(parts, shapes.values(), strict=True)
        )
        z = self.representation(observations)
        own = self.prior_plans(z, prior) if o["prior_samples"] else plans[:, 0, :0]
        mean, std = started, torch.full_like(started, o["std_range"][1])
        for turn in range(o["iterations"]):
            drawn = (mean.unsqueeze(1) + std.unsqueeze(1) * plans[:, turn]).clamp(-1, 1)
            actions = torch.cat([own, drawn], 1)
            found = refit(
                self.returns(z, actions, behind[:, turn]), actions, o["elites"], o["temperature"], o["std_range"]
            )
            mean, std = found.mean, found.std
        return Plan(drawn_elite(found, choice)[:, 0], std[:, 0], mean)

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`; the memory is the mean plan for the steps to come."""
        if noise is None:
            raise ConfigError("planning draws its samples from noise: give (B, noise_dim) standard normal numbers")
        if torch.compiler.is_compiling() or len(observations) <= PART:
            found = self.plan(observations, memory["plan"], noise)
            return found.action, {**memory, "plan": shifted(found.mean)}
        parts = [t.split(PART) for t in (observations, memory["plan"], noise)]
        plans = [self.plan(*part) for part in zip(*parts, strict=True)]
        return torch.cat([p.action for p in plans]), {**memory, "plan": shifted(torch.cat([p.mean for p in plans]))}

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the first step of an episode, from (B, `noise_dim`) noise."""
        return self.step(observations, self.begin(len(observations)), noise)[0]

    # -- how it is built again -----------------------------------------------------------------------------

    @classmethod
    def built(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `OptionsActor.built`."""
        return cls(*networks(observation_dim, action_dim, options), options)


def networks(
    observation_dim: int, action_dim: int, options: Mapping[str, Any]
) -> tuple[SimplicialMLP, LatentModel, LatentCritic, PolicyPrior]:
    """Encoder, model, critics and policy prior, their weights drawn anew, of the sizes of `NETWORKS`.

    Raises:
        ConfigError: groups that do not divide the latent state, or fewer than two critics.
    """
    o, width = options, options["latent_dim"]
    if o["group"] < 1 or width % o["group"]:
        raise ConfigError(f"group is {o['group']}, which does not divide latent_dim, {width}: take a divisor")
    if o["critics"] < 2:
        raise ConfigError(f"critics is {o['critics']}, must be at least 2: targets take the lower of two")
    return (
        SimplicialMLP(observation_dim, width, o["encoder_hidden"], o["group"]),
        LatentModel(width, action_dim, o["hidden"], o["group"], o["bins"], o["limit"], o["terminates"]),
        LatentCritic(width, action_dim, o["hidden"], o["critics"], o["bins"], o["limit"]),
        PolicyPrior(width, action_dim, o["hidden"], o["log_std_range"]),
    )
