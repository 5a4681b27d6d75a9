"""How good answers are on prompts that were not trained on: greedy, pass@1 and pass@k, with intervals over prompts."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.llm.losses.selection import mixed_groups
from surefoot.llm.policy import LMPolicy
from surefoot.llm.prompts import Prompt
from surefoot.llm.reader import PolicyReader
from surefoot.llm.rewards import RewardFunction, scores
from surefoot.llm.turns import Turns


def pass_at(k: int, right: Tensor, count: int) -> Tensor:
    """Probability that at least one of k answers is right, without bias, from `right` of `count` that are.

    Args:
        k: at most `count`.
        right: (M,) integers.
        count: answers to each prompt.

    Returns:
        (M,) float64: 1 - C(count - right, k) / C(count, k).

    Source: Chen et al., "Evaluating Large Language Models Trained on Code", eq. (1).
    """
    if not 0 < k <= count:
        raise ConfigError(f"pass@{k} needs at least {k} answers to each prompt, there are {count}")
    table = [1 - math.comb(count - n, k) / math.comb(count, k) for n in range(count + 1)]
    return torch.tensor(table, dtype=torch.float64)[right.long()]


@dataclasses.dataclass(frozen=True)
class Report:
    """Shares with the half-widths of their 95 % intervals over prompts."""

    prompts: int
    samples: int
    greedy: tuple[float, float]
    pass_1: tuple[float, float]
    pass_k: tuple[float, float]
    reward: tuple[float, float]
    entropy: float
    """Mean over tokens of sampled answers, in nats."""
    length: float
    """Mean number of tokens of sampled answers."""
    same: float
    """Share of prompts whose scored answers all have the same reward: what a group baseline learns nothing from."""
    highest: float | None = None
    """The highest reward of all answers, greedy ones too; None in files of earlier versions."""
    each: Mapping[str, list[float | None]] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Of every prompt greedy, pass_1, pass_k and reward, in the order of the prompts; None for no reward."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, intervals as lists, without those of `each` prompt."""
        values = dataclasses.asdict(self)
        del values["each"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Report:
        """What `to_json` gave."""
        plain: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in value.items()}
        return cls(**plain)

    def __str__(self) -> str:
        """One line."""
        parts = {"greedy": self.greedy, "pass@1": self.pass_1, f"pass@{self.samples}": self.pass_k}
        shown = ", ".join(f"{name} {mean:.3f} ± {half:.3f}" for name, (mean, half) in parts.items())
        return f"{shown} ({self.prompts} prompts, 95 % over prompts); entropy {self.entropy:.2f}, same {self.same:.2f}"


def evaluate(
    policy: LMPolicy,
    prompts: Sequence[Prompt],
    reward: RewardFunction,
    *,
    new: int,
    samples: int = 8,
    solved: float = 1.0,
    seed: int = 0,
    at_once: int = 256,
    turns: Turns | None = None,
) -> Report:
    """Answer each prompt greedily once and by sampling `samples` times.

    Args:
        policy: whose temperature sampling is at.
        prompts: held out.
        reward: an answer is right where it is at least `solved`; one without a score is not.
        new: the most tokens of an answer.
        samples: k.
        solved: threshold.
        seed: of the sampling.
        at_once: rows that are generated together.
        turns: an environment that replies; `new` is then the most tokens of a turn.

    Raises:
        ConfigError: fewer than two prompts have answers that could be scored, or no sample or token is asked for.
    """
    for name, value in (("samples", samples), ("max_new_tokens", new)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1")
    encoded = policy.encode([prompt.text for prompt in prompts])

    def answers(count: int, greedy: bool) -> tuple[Tensor, Any]:
        if turns is None:
            rollout = policy.generate(encoded, count, new, seed, greedy=greedy, at_once=at_once)
        else:
            rollout = turns.generate(policy, prompts, encoded, count, new, seed, greedy=greedy, at_once=at_once)
        rows = [prompt for prompt in prompts for _ in range(count)]
        reader = PolicyReader(policy, at_once=at_once)
        return scores(reward, rows, policy.decode(rollout), rollout.answers(), reader).view(-1, count), rollout

    once, _ = answers(1, True)
    found, rollout = answers(samples, False)
    with torch.no_grad():
        cuts = [rollout.rows(slice(start, start + at_once)) for start in range(0, len(rollout.finished), at_once)]
        parts = [(policy.log_probs(part)[1] * part.trained).sum() for part in cuts]
    tokens = rollout.trained.sum()
    right = (found >= solved).sum(1)
    same = 1 - mixed_groups(found.flatten(), samples).view(-1, samples)[:, 0].double()
    each = {
        "greedy": (once[:, 0] >= solved).double(),
        "pass_1": right.double() / samples,
        "pass_k": pass_at(samples, right, samples),
        "reward": found.double().nanmean(1),
    }
    return Report(
        prompts=len(prompts),
        samples=samples,
        **{name: _interval(values) for name, values in each.items()},
        each={name: [None if math.isnan(v) else v for v in values.tolist()] for name, values in each.items()},
        entropy=float(sum(parts) / tokens),
        length=float(tokens / len(rollout.finished)),
        same=float(same.mean()),
        highest=max(float(values[~values.isnan()].max()) for values in (once, found) if not values.isnan().all()),
    )


def warn_unreached(report: Report, solved: float) -> None:
    """Say so where no answer's reward is high enough to be right: pass@1 and pass@k then tell nothing."""
    if report.highest is not None and report.highest < solved:
        warnings.warn(
            f"none of the answers to {report.prompts} prompts is right: the highest reward is {report.highest:.3g}, "
            f"and one is right from solved={solved:g} on; where the reward can't reach that, set solved",
            stacklevel=3,
        )


def _interval(each: Tensor) -> tuple[float, float]:
    """Mean over prompts and 1.96 standard errors."""
    each = each[~each.isnan()]
    if len(each) < 2:
        raise ConfigError(f"{len(each)} of the prompts have answers with a reward: an interval needs at least two")
    return float(each.mean()), 1.96 * float(each.std()) / math.sqrt(len(each))
