"""How often a policy breaks its constraint: bounds from counted episodes, exact ones and ones to stop by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from surefoot.core.base.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Violations among independent episodes, and what they say of the probability of one."""

    violations: int
    episodes: int
    confidence: float
    """Of `upper`, and of [`low`, `high`]."""
    upper: float
    """One-sided: the probability of a violation is below this, with `confidence`."""
    low: float
    high: float
    """Two-sided interval."""
    sequential: bool = False
    """Whether the bounds hold at all numbers of episodes at once, so that one may stop where one likes the result."""

    @property
    def rate(self) -> float:
        """Share of the episodes with a violation."""
        return self.violations / self.episodes

    def sentence(self, steps: int | None = None) -> str:
        """The certificate in words; `steps`: the episodes were cut off after so many."""
        counted = f"{self.violations:,} violations in {self.episodes:,} episodes"
        cut = "" if steps is None else f" cut off after {_steps(steps)}"
        within = "" if steps is None else f"'s first {_steps(steps)}"
        stopped = ", whenever one stops" if self.sequential else ""
        return (
            f"{counted}{cut}: with {100 * self.confidence:g} % confidence{stopped}, the "
            f"probability of a violation in an episode{within} is below {self.upper:.3g}"
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {**dataclasses.asdict(self), "rate": self.rate}


def certificate(violations: int, episodes: int, confidence: float = 0.95) -> Certificate:
    """Exact (Clopper-Pearson) bounds on the probability of a violation, for a number of episodes fixed beforehand.

    Args:
        violations: episodes with at least one violation, 0 <= violations <= episodes.
        episodes: independent episodes, at least 1.
        confidence: in (0, 1); the bounds hold at least this often.

    Raises:
        ConfigError: a number out of range.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial" (1934), by quantiles of the beta distribution.
    """
    from scipy.special import betaincinv  # slow to import, which training workers spare; scipy.stats thrice as slow

    _check(violations, episodes, confidence)

    def bound(level: float, above: bool) -> float:
        if above:
            return 1.0 if violations == episodes else float(betaincinv(violations + 1, episodes - violations, level))
        return 0.0 if violations == 0 else float(betaincinv(violations, episodes - violations + 1, level))

    tail = (1 - confidence) / 2
    return Certificate(
        violations=violations,
        episodes=episodes,
        confidence=confidence,
        upper=bound(confidence, above=True),
        low=bound(tail, above=False),
        high=bound(1 - tail, above=True),
    )


def sequential_certificate(violations: int, episodes: int, confidence: float = 0.95) -> Certificate:
    """Bounds that hold at all numbers of episodes at once: one may look after each and stop.

    The probabilities p against which a bet spread over p by Jeffreys' Beta(1/2, 1/2) has not yet won 1 / level:

        log B(k + 1/2, n - k + 1/2) - log B(1/2, 1/2) - k log p - (n - k) log(1 - p) < log(1 / level)

    Clopper-Pearson's bound looked at ten times, the episodes doubled each time, lies below the truth in 19 % of the
    cases and not in 5 % (`benchmarks/deciding.py`). Ville (1939); Robbins, "Statistical methods related to the law of
    the iterated logarithm" (1970). Arguments and errors as in `certificate`.
    """
    from scipy.special import betaln, xlog1py, xlogy

    _check(violations, episodes, confidence)
    k, n, rate = violations, episodes, violations / episodes
    won = float(betaln(k + 0.5, n - k + 0.5) - betaln(0.5, 0.5)) - math.log(1 / (1 - confidence))

    def rejected(p: float) -> bool:
        return won - float(xlogy(k, p) + xlog1py(n - k, -p)) >= 0

    def edge(end: float) -> float:
        """Where rejection begins between the rate, which is never rejected, and an end that always is."""
        good, bad = rate, end
        for _ in range(200):
            middle = (good + bad) / 2
            good, bad = (good, middle) if rejected(middle) else (middle, bad)
        return bad

    low = 0.0 if k == 0 else edge(0.0)
    high = 1.0 if k == n else edge(1.0)
    return Certificate(k, n, confidence, upper=high, low=low, high=high, sequential=True)


def _check(violations: int, episodes: int, confidence: float) -> None:
    if episodes < 1 or not 0 <= violations <= episodes:
        raise ConfigError(f"{violations} violations in {episodes} episodes: there must be 1 episode or more, and no "
                          "more violations than episodes")  # fmt: skip
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}; it must be between 0 and 1, as in 0.95")


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def where_certified(certified: Mapping[str, Any]) -> str:
    """The environment of a certificate, with the preset of altered dynamics, what varied and the steps it was cut off
    after, where there are such.

    Args:
        certified: what certificate.json holds.
    """
    gap = f" with {certified['gap']}" if certified.get("gap") else ""
    ranges = (certified.get("varied") or {}).items()
    varied = [f"{name} {low:g} to {high:g}" for name, (low, high) in ranges]
    within = [f"within {_steps(certified['steps'])}"] if certified.get("steps") else []
    return ", ".join([f"{certified['environment']}{gap}", *varied, *within])


def filter_words(certified: Mapping[str, Any]) -> str:
    """The filter of a certified policy, its margin, and how many actions it changed; "none" where there was none.

    Args:
        certified: what certificate.json holds.
    """
    found = certified.get("filter")
    if not found:
        return "none"
    share = found["changed"] / max(1, found["actions"])
    return f"{found['kind']}, margin {found['margin']:.4g}, changed {share:.2%} of the actions"


def broken_promise(certified: Mapping[str, Any]) -> list[str]:
    """Lines that say that a filter's promise was broken, and in which states first; empty where it was kept.

    Args:
        certified: what certificate.json holds.
    """
    found = certified.get("filter")
    if not found or not found["broken"]:
        return []
    unknown = [certified["gap"]] if certified.get("gap") else []
    unknown += ["constants that vary"] if certified.get("varied") else []
    why = f" (it does not know {' and '.join(unknown)})" if unknown else ""
    return [f"THE FILTER BROKE ITS PROMISE{why} in {found['broken']:,} episodes:", *found["cases"]]
