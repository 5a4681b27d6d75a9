"""`EnsemblePlanner`: a policy head that plans by CEM in an ensemble, over many futures (the controller of PETS)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from surefoot.core.actors.actor import OptionsActor
from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.core.base.errors import ConfigError
from surefoot.world_models.dynamics import check_costs
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.futures import Objective, check_futures
from surefoot.world_models.known import rewards, terminations
from surefoot.world_models.known.rewards import LEARNED
from surefoot.world_models.known.terminations import AUTO, NONE
from surefoot.world_models.planners.base import PLAN
from surefoot.world_models.planners.cem import CEM
from surefoot.world_models.risk import parse_risk

SEARCH: dict[str, Any] = {
    "horizon": 15,
    "samples": 350,
    "iterations": 5,
    "elite_share": 0.1,
    "momentum": 0.1,
    "futures": 20,
    "propagation": "tsinf",
    "risk": "mean",
    "cost_limit": None,
}
"""Options of the search; the values are those of PETS on a cart-pole."""
MODEL: dict[str, Any] = {"members": 5, "asked": 5, "model_hidden": (200, 200, 200), "costs": False}
"""Options of the networks."""
WORDS = {"termination": (AUTO, NONE), "reward_function": (AUTO, LEARNED)}
"""Options of the model that name functions, and what a policy file may say of them."""
_2_TO_32 = 4_294_967_296


def without_code(words: dict[str, str]) -> dict[str, str]:
    """The words as they are, of `WORDS`.

    Raises:
        ConfigError: one names a function of the user's own, which would be code in a policy's file.
    """
    for option, word in words.items():
        if word not in WORDS[option]:
            raise ConfigError(
                f"{option}={word} is code, which no policy file holds: use {' or '.join(WORDS[option])}, or plan in a "
                "model alone that has the function (algo=dynamics, then surefoot plan RUN)"
            )
    return words


class EnsemblePlanner(OptionsActor):
    """CEM in a learned ensemble from each observation; the plan, a step on, is the memory.

    Its one standard normal number is the seed of the search's own random numbers. Observations are read in the
    environment's units.
    """

    kind = "ensemble_planner"
    defaults: ClassVar[Mapping[str, Any]] = {"reward_function": LEARNED}
    always_samples = True

    def __init__(
        self,
        model: GaussianEnsemble,
        options: Mapping[str, Any],
        termination: str = NONE,
        environment: str | None = None,
        reward_function: str = LEARNED,
    ) -> None:
        """Plan in a model.

        Args:
            model: of observations.
            options: those of `SEARCH`.
            termination: by which the model's function was found, for the description.
            environment: likewise, its id.
            reward_function: as `termination`.

        Raises:
            ConfigError: a function of the user's own, which is refused here so that no run ends at its policy's file.
        """
        super().__init__()
        self.model = model
        self.options = {
            "members": model.members,
            "asked": len(model.elites),
            "model_hidden": tuple(model.network.hidden),
            "costs": model.costs,
            **{name: options[name] for name in SEARCH},
            **without_code({"termination": termination, "reward_function": reward_function}),
            "environment": environment,
        }
        o = self.options
        self.planner = CEM(
            o["horizon"], o["samples"], o["iterations"], o["elite_share"], o["momentum"], sampling="truncated"
        )
        self.objective = Objective(
            o["futures"], propagation=o["propagation"], risk=parse_risk(o["risk"]), cost_limit=o["cost_limit"]
        )
        check_costs(model, self.objective.cost_limit)
        check_futures(model, self.objective)

    @property
    def noise_dim(self) -> int:
        """One number: the seed."""
        return 1

    def begin(self, rows: int) -> Memory:
        """A plan of zeros."""
        some = self.model.input_mean
        return {PLAN: some.new_zeros(rows, self.options["horizon"], self.model.action_dim)}

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """(B, A) first actions of the plans, and the plans, a step on; without noise with a fixed seed."""
        number = observations.new_zeros(len(observations), 1) if noise is None else noise
        uniform = 0.5 * (1 + torch.erf(number[:, 0].double() / math.sqrt(2)))
        seeds = (uniform * _2_TO_32).long().clamp(0, _2_TO_32 - 1)
        draws = torch.stack([seeds, torch.zeros_like(seeds)], 1)
        with torch.no_grad():
            plan, after = self.planner.plan(self.model, observations, {**memory, DRAWS: draws}, self.objective)
        return plan[:, 0], {**memory, PLAN: after[PLAN]}  # what is there of the policy's own draws stays

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) as at the first step of an episode."""
        return self.step(observations, self.begin(len(observations)), noise)[0]

    @classmethod
    def built(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `OptionsActor.built`."""
        environment, words = options["environment"], without_code({name: options[name] for name in WORDS})
        model = GaussianEnsemble(
            observation_dim,
            action_dim,
            members=options["members"],
            elites=options["asked"],
            hidden=options["model_hidden"],
            decays=(),
            costs=options["costs"],
            normalize_targets=True,
            terminates=terminations.named(words["termination"], environment),
        )
        model.rewards_of = rewards.named(words["reward_function"], environment)
        return cls(model, options, words["termination"], environment, words["reward_function"])
