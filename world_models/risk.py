r"""Risk measures of returns: one number of F equally likely futures, so that plans can be ranked by more than the mean.

All are of rewards, so that larger is better, and all but `Deviation` are monotone. They are of whole trajectories:
measures that are nested in time, and so consistent over it, give other numbers (Ruszczynski, 2010).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError

FORMS = "mean, worst, cvar:BETA, entropic:THETA or std:C, such as cvar:0.1"


class Risk(Protocol):
    """A number for each group of returns."""

    def of(self, returns: Tensor) -> Tensor:
        """(...) from (F, ...) returns of F futures; minus infinity where one that counts is minus infinity or NaN."""
        ...


def counted(returns: Tensor) -> Tensor:
    """Returns with minus infinity for NaN and infinities: a world that left its numbers is never a good one."""
    return torch.where(returns.isfinite(), returns, -math.inf)


@dataclasses.dataclass(frozen=True)
class Mean:
    """The expected return: neutral to risk."""

    def of(self, returns: Tensor) -> Tensor:
        """(...) means."""
        return counted(returns).mean(0)


@dataclasses.dataclass(frozen=True)
class CVaR:
    """Conditional value at risk: the mean of the worst ceil(beta F) returns (Rockafellar and Uryasev, 2000).

    `beta` is in (0, 1], 1 the mean; futures of 10 / beta or more make it more than a few trajectories' luck.
    """

    beta: float

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        if not 0 < self.beta <= 1:
            raise ConfigError(f"the share of CVaR is {self.beta}; it is above 0 and at most 1, such as 0.1")

    def worst(self, futures: int) -> int:
        """How many of them are counted."""
        return max(1, math.ceil(round(self.beta * futures, 9)))

    def of(self, returns: Tensor) -> Tensor:
        """(...) means of the worst."""
        values = counted(returns)
        worst = self.worst(len(values))
        if worst == len(values):
            return values.mean(0)
        return values.topk(worst, dim=0, largest=False).values.mean(0)


@dataclasses.dataclass(frozen=True)
class WorstCase:
    """The least of the futures: robust to each of them."""

    def of(self, returns: Tensor) -> Tensor:
        """(...) minima."""
        return counted(returns).amin(0)


@dataclasses.dataclass(frozen=True)
class Entropic:
    """-log E exp(-theta G) / theta: about the mean less theta / 2 variances (Howard and Matheson, 1972).

    `theta` above 0 shuns risk and below 0 seeks it; in units of 1 / return.
    """

    theta: float

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        if not math.isfinite(self.theta) or self.theta == 0:
            raise ConfigError(f"theta of the entropic risk is {self.theta}; it is a finite number other than 0")

    def of(self, returns: Tensor) -> Tensor:
        """(...) certainty equivalents."""
        values = counted(returns)
        found = (math.log(len(values)) - torch.logsumexp(-self.theta * values, 0)) / self.theta
        return torch.where(values.isneginf().any(0), -math.inf, found)


@dataclasses.dataclass(frozen=True)
class Deviation:
    """The mean less c standard deviations (of the F futures, not of a sample): cheap, and not monotone."""

    c: float

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        if not math.isfinite(self.c):
            raise ConfigError(f"c of the mean less c standard deviations is {self.c}; it is a finite number")

    def of(self, returns: Tensor) -> Tensor:
        """(...) lower bounds."""
        values = counted(returns)
        found = values.mean(0) - self.c * values.std(0, correction=0)
        return torch.where(values.isneginf().any(0), -math.inf, found)


def parse_risk(text: str) -> Risk:
    """The measure that the command line calls `text`: mean, worst, cvar:BETA, entropic:THETA or std:C.

    Raises:
        ConfigError: another name, or a number that is none or out of range.
    """
    name, separator, number = text.strip().lower().partition(":")
    if name in ("mean", "worst") and not separator:
        return Mean() if name == "mean" else WorstCase()
    kinds: dict[str, Callable[[float], Risk]] = {"cvar": CVaR, "entropic": Entropic, "std": Deviation}
    made = kinds.get(name)
    if made is None or not separator:
        raise ConfigError(f"there is no risk measure {text!r}; it is one of {FORMS}")
    try:
        value = float(number)
    except ValueError as error:
        raise ConfigError(f"{number!r} of the risk measure {text!r} is no number; it is one of {FORMS}") from error
    return made(value)


def cost_at_risk(costs: Tensor, risk: Risk) -> Tensor:
    """(...) the same measure of (F, ...) costs, where larger is worse; infinite where one is no number."""
    return -risk.of(-costs)
