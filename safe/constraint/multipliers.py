"""Multipliers of a cost constraint and the functions around them: state in, state out, elementwise over seeds.

A state is a dict of tensors that begins with what `first_state` gives; its `value` is the multiplier lambda >= 0. A
step takes the present cost J and the limit d, in the same units (here: sums over an episode), and gives the next state.
Four proportional-integral-derivative rules are in use under one name; each is here with the numbers that set it apart
from the others.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor, nn

from surefoot.core.engine.agent import require
from surefoot.core.losses.masked import keep, masked_mean

State = dict[str, Tensor]
"""Name -> a tensor that a multiplier's next step depends on."""
FORMS = ("adam", "omnisafe", "fsrl", "osrl", "paper")
GAINS = {"omnisafe": (0.1, 0.01, 0.01), "fsrl": (0.05, 0.0005, 0.1), "osrl": (0.1, 0.003, 0.001)}
"""Proportional, integral and derivative gain of each rule as published; the paper's own are those of omnisafe here."""


class Multiplier(Protocol):
    """A rule for the weight of a constraint."""

    def first_state(self) -> State:
        """The first state: 0-dimensional tensors but for a delay's (K,)."""
        ...

    def step(self, state: State, cost: Tensor, limit: float) -> State:
        """The next state, from () the cost now and its limit."""
        ...


@dataclasses.dataclass(frozen=True)
class Lagrange:
    """Ascent of -L = lambda (J - d) by Adam on lambda itself, projected on [0, upper].

    Adam's steps are at most about `rate` in size whatever the units of the cost, and after a large violation small
    ones stay small for long: the multiplier comes down more slowly than it went up.
    Source: Ray, Achiam and Amodei, "Benchmarking Safe Exploration"; Kingma and Ba (2015) for the step.
    """

    rate: float = 0.035
    initial: float = 0.001
    upper: float | None = None

    def first_state(self) -> State:
        """lambda, Adam's moments and count."""
        zero = torch.zeros(())
        return {
            "value": torch.tensor(self.initial),
            "first": zero.clone(),
            "second": zero.clone(),
            "count": zero.clone(),
        }

    def step(self, state: State, cost: Tensor, limit: float) -> State:
        """One step of Adam (betas .9, .999, epsilon 1e-8) along J - d."""
        gradient = limit - cost
        first = 0.9 * state["first"] + 0.1 * gradient
        second = 0.999 * state["second"] + 0.001 * gradient.square()
        count = state["count"] + 1
        corrected = (second / (1 - 0.999**count)).sqrt() + 1e-8
        value = (state["value"] - self.rate * first / (1 - 0.9**count) / corrected).clamp(0, self.upper)
        return {"value": value, "first": first, "second": second, "count": count}


@dataclasses.dataclass(frozen=True)
class OmniSafePID:
    r"""PID with smoothed terms, as OmniSafe has it: the rule of its PPO-PID and TRPO-PID.

    .. math::
        I &\leftarrow \max(0, I + k_i D), \quad P \leftarrow .95 P + .05 D, \quad C \leftarrow .95 C + .05 J \\
        \lambda &= \max(0, k_p P + I + k_d \max(0, C - C_{10\ \text{updates ago}})), \quad D = J - d

    Costs before the first update count as 0, so that for 10 updates the derivative is C itself. `bounded` holds I and
    lambda at 1 or below (their diff_norm); `upper` bounds lambda where objectives are not divided by 1 + lambda.
    """

    gains: tuple[float, float, float] = GAINS["omnisafe"]
    initial: float = 0.001
    smoothing: float = 0.95
    delay: int = 10
    bounded: bool = False
    upper: float | None = None

    def first_state(self) -> State:
        """lambda, integral, smoothed terms, and the smoothed costs of the last `delay` updates."""
        value = torch.tensor(self.initial)
        zero = torch.zeros(())
        return {
            "value": value,
            "integral": value.clone(),
            "proportional": zero.clone(),
            "smooth": zero.clone(),
            "past": torch.zeros(self.delay),
        }

    def step(self, state: State, cost: Tensor, limit: float) -> State:
        """All three terms, smoothed, and their sum."""
        proportion, integration, differentiation = self.gains
        error, keeps = cost - limit, self.smoothing
        integral = (state["integral"] + integration * error).clamp(0, 1 if self.bounded else None)
        smooth_error = keeps * state["proportional"] + (1 - keeps) * error
        smooth = keeps * state["smooth"] + (1 - keeps) * cost
        rise = (smooth - state["past"][0]).clamp(min=0)
        value = proportion * smooth_error + integral + differentiation * rise
        value = value.clamp(0, 1 if self.bounded else self.upper)
        past = torch.cat([state["past"][1:], smooth.unsqueeze(0)])
        return {"value": value, "integral": integral, "proportional": smooth_error, "smooth": smooth, "past": past}


@dataclasses.dataclass(frozen=True)
class PlainPID:
    r"""PID without smoothing: of the paper, FSRL and OSRL.

    .. math:: I \leftarrow (I + D)_+, \quad \lambda = (k_p D + k_i I + k_d (J - J_{prev})_+)_+, \quad D = J - d

    The paper's J before the first update is 0. FSRL and OSRL take the derivative of D, whose first predecessor is 0
    (`from_error`); OSRL's proportional term is max(0, D) too (`positive`), so that lambda comes down to k_i I at once.
    Source: Stooke, Achiam and Abbeel, "Responsive Safety in Reinforcement Learning by PID Lagrangian Methods",
    algorithm 2.
    """

    gains: tuple[float, float, float] = GAINS["omnisafe"]
    from_error: bool = False
    positive: bool = False
    upper: float | None = None

    def first_state(self) -> State:
        """lambda, integral, and what the derivative is taken from."""
        return {"value": torch.zeros(()), "integral": torch.zeros(()), "previous": torch.zeros(())}

    def step(self, state: State, cost: Tensor, limit: float) -> State:
        """The three terms and their sum."""
        proportion, integration, differentiation = self.gains
        error = cost - limit
        now = error if self.from_error else cost
        integral = (state["integral"] + error).clamp(min=0)
        rise = (now - state["previous"]).clamp(min=0)
        present = error.clamp(min=0) if self.positive else error
        value = proportion * present + integration * integral + differentiation * rise
        return {"value": value.clamp(0, self.upper), "integral": integral, "previous": now}


def check_gains(algorithm: str, gains: tuple[float, ...]) -> None:
    """Refuse gains of a PID that are not three finite numbers of at least 0.

    Raises:
        ConfigError: names the algorithm's option `gains`.
    """
    fine = len(gains) == 3 and all(0 <= gain < float("inf") for gain in gains)
    require(fine, algorithm, "gains", gains, "three numbers >= 0: proportional, integral, derivative")


def pid(
    form: str, gains: tuple[float, float, float] | None = None, upper: float | None = None, initial: float = 0.001
) -> Multiplier:
    """The rule "omnisafe", which alone has an `initial` value, "fsrl", "osrl" or "paper"; published gains or others.

    Raises:
        ConfigError: another name.
    """
    require(form in FORMS[1:], "pid", "form", form, f"one of {', '.join(FORMS[1:])}")
    own = GAINS.get(form, GAINS["omnisafe"]) if gains is None else gains
    if form == "omnisafe":
        return OmniSafePID(own, initial, upper=upper)
    return PlainPID(own, from_error=form != "paper", positive=form == "osrl", upper=upper)


class HeldMultiplier(nn.Module):
    """A multiplier whose state an agent carries as buffers: saved with it, stacked over seeds."""

    def __init__(self, rule: Multiplier) -> None:
        super().__init__()
        self.rule = rule
        self.names = list(rule.first_state())
        for name, value in rule.first_state().items():
            self.register_buffer(name, value)

    def forward(self) -> Tensor:
        """() lambda."""
        return self.value  # type: ignore[return-value]

    def stepped(self, cost: Tensor, limit: float) -> State:
        """The next state by buffer name; the present one where the cost is NaN: nothing was observed."""
        state: State = {name: getattr(self, name) for name in self.names}
        return {
            name: torch.where(cost.isnan(), state[name], new)
            for name, new in self.rule.step(state, cost.nan_to_num(), limit).items()
        }


# -- constraint functions ----------------------------------------------------------------------------------


def discounted_threshold(limit: float, discount: float, horizon: int) -> float:
    """The limit of a discounted sum that a limit of the plain sum over `horizon` steps stands for.

    d (1 - g^H) / ((1 - g) H): costs spread evenly over the episode; d itself for a discount of 1.
    Source: Liu et al., "Datasets and Benchmarks for Offline Safe Reinforcement Learning" (OSRL).
    """
    if discount == 1:
        return limit
    return limit * (1 - discount**horizon) / ((1 - discount) * horizon)


def centred(advantages: Tensor, mask: Tensor | None = None) -> Tensor:
    """Advantages less their mean over what the mask keeps, 0 elsewhere: in the units of the cost."""
    return keep(advantages - masked_mean(advantages, mask), mask)


def penalised(rewards: Tensor, costs: Tensor, multiplier: Tensor) -> Tensor:
    """(A_r - lambda A_c) / (1 + lambda): as large whatever lambda is; broadcastable shapes."""
    return (rewards - multiplier * costs) / (1 + multiplier)
