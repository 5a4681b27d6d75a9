"""Cooper: a reward model that is trained beside the policy, so that the policy can't run away from it.

After each update of the policy the reward model learns that an answer of the policy's which a rule finds right is
better than a corruption of it that the rule finds wrong.

Source: Hong et al., "Cooper: Co-Optimizing Policy and Reward Models in Reinforcement Learning for Large Language
Models" (2508.05613), from summaries. The rate, and that a prompt gives one pair, are ours;
the paper's reward model reads the reference answer too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.llm.feedback import Pair
from surefoot.llm.prompts import Prompt
from surefoot.llm.reward_models import RewardLearner, RewardModel, RewardTraining
from surefoot.llm.rewards import RewardFunction, scores

Corrupt = Callable[..., Sequence[str | None]]
"""`corrupt(prompts, completions, **columns)`: for each answer a wrong one that looks like it, or None."""
RIGHT = 1.0
"""The rule's reward from which on an answer is right."""


class Cooper:
    """A reward function by a reward model, which `learn` trains; `rule` tells what is right, in evaluations too."""

    __name__ = "Cooper's reward model"

    def __init__(
        self, model: RewardModel, rule: RewardFunction, corrupt: Corrupt, training: RewardTraining | None = None
    ) -> None:
        """Take the parts.

        Args:
            model: of pairs, trained already; is changed.
            rule: a reward function that is 1 or more for right answers alone.
            corrupt: an assistant, who makes wrong answers of right ones.
            training: its rate and its bound of gradients; 1e-5 and 1 where none is given.

        Raises:
            ConfigError: the model is one of steps.
        """
        if model.kind != "pairs":
            raise ConfigError("Cooper's reward model is one of pairs: surefoot llm reward with chosen and rejected")
        self.model, self.rule, self.corrupt = model, rule, corrupt
        self._learner = RewardLearner(model, training or RewardTraining())

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """The model's scores."""
        return self.model(prompts, completions)

    def pairs(self, prompts: Sequence[Prompt], completions: Sequence[str], group: int) -> list[Pair]:
        """Of each prompt whose answers have a right one the first of those, above its corruption.

        Raises:
            DataError: `corrupt` gave another number of answers, or no text.
        """
        ids = self.model.tokens(completions)
        right = scores(self.rule, prompts, completions, ids) >= RIGHT
        rows = [next((n for n in range(k, k + group) if right[n]), -1) for k in range(0, len(completions), group)]
        rows = [row for row in rows if row >= 0]
        if not rows:
            return []
        asked, texts = [prompts[row] for row in rows], [completions[row] for row in rows]
        columns = {name: [prompt.columns.get(name) for prompt in asked] for name in asked[0].columns}
        worse = list(self.corrupt(prompts=[prompt.text for prompt in asked], completions=texts, **columns))
        if len(worse) != len(texts) or not all(one is None or isinstance(one, str) for one in worse):
            raise DataError(f"corrupt gave {worse!r} for {len(texts)} answers; one text or None for each is needed")
        made = [n for n, one in enumerate(worse) if one is not None]
        if not made:
            return []
        spoiled = [str(worse[n]) for n in made]
        still = scores(self.rule, [asked[n] for n in made], spoiled, self.model.tokens(spoiled)) >= RIGHT
        return [
            Pair(asked[n].text, texts[n], text)
            for n, text, right in zip(made, spoiled, still, strict=True)
            if not right
        ]

    def learn(self, prompts: Sequence[Prompt], completions: Sequence[str], group: int) -> dict[str, float]:
        """One step on the pairs of a batch of answers; the metrics `judge_pairs`, and of these `judge_right`."""
        found = self.pairs(prompts, completions, group)
        if not found:
            return {"judge_pairs": 0.0}
        given = self._learner.update(found)
        return {"judge_pairs": float(len(found)), "judge_loss": given["loss"], "judge_right": given["accuracy"]}

    def _named(self) -> dict[str, torch.nn.Parameter]:
        own = {f"model/{name}": p for name, p in self.model.policy.model.named_parameters() if p.requires_grad}
        return own | {f"head/{name}": p for name, p in self.model.head.named_parameters()}

    def state(self) -> dict[str, Tensor]:
        """Weights, and what the optimiser keeps of each."""
        found = {name: p.detach() for name, p in self._named().items()}
        for name, p in self._named().items():
            found |= {f"adam/{key}/{name}": value for key, value in self._learner.optimizer.state.get(p, {}).items()}
        return found

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from it.

        Raises:
            ConfigError: it is of another model.
        """
        named = self._named()
        for name, p in named.items():
            if name not in state or state[name].shape != p.shape:
                raise ConfigError(f"the checkpoint's reward model has no {name} of this shape: it is of another model")
        for name, p in named.items():
            p.copy_(state[name])
            kept = {key: state.get(f"adam/{key}/{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
            if kept["step"] is not None:
                self._learner.optimizer.state[p] = kept
