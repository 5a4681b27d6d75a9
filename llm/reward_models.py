"""Reward models: a causal model with a head of one number, trained on pairs or on labelled steps, used as `reward=`.

A model of pairs scores an answer at its end token; one of steps gives each reasoning step the probability that it is
right, and an answer that of its worst step. Both are called as any reward function is (`llm.rewards`).
"""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, ConfigError, DeviceError, DivergenceError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.options import Options, option
from surefoot.core.base.schema import Plain, Table
from surefoot.llm.feedback import LabelledSteps, Pair
from surefoot.llm.losses import demonstration_terms, preference_terms, step_label_terms
from surefoot.llm.policy import LMPolicy, Rollout, load_policy, positions
from surefoot.llm.rewards import RewardFunction, text_of
from surefoot.llm.supervised import answered

ABOUT, HEAD = "reward.json", "reward_head.safetensors"
Kind = Literal["pairs", "steps"]
LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "preference": preference_terms,
    "demonstration": demonstration_terms,
}
"""Of pairs: (scores of the chosen, of the rejected, centre) -> terms."""


class RewardModel:
    """Scores answers; also a reward function."""

    __name__ = "reward model"

    def __init__(self, policy: LMPolicy, kind: Kind = "pairs", separator: str = "\n", at_once: int = 256) -> None:
        """Put a head on a model; its scores are 0 until it is trained.

        Args:
            policy: whose model is trained too. Copy one that is still needed as it is.
            kind: of what it is trained on.
            separator: that ends each step of an answer but the last.
            at_once: answers that are scored together.

        Raises:
            ConfigError: an unknown kind, or no separator.
        """
        if kind not in ("pairs", "steps"):
            raise ConfigError(f"a reward model is of pairs or of steps, not of {kind!r}")
        if kind == "steps" and not separator:
            raise ConfigError("a reward model of steps needs the text that separates them, as separator='\\n'")
        self.policy, self.kind, self.separator, self.at_once = policy, kind, separator, at_once
        width = policy._inner.get_output_embeddings().in_features
        self.head = torch.nn.Linear(width, 1, device=policy.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained."""
        return [*(p for p in self.policy.model.parameters() if p.requires_grad), *self.head.parameters()]

    def _token_scores(self, prompts: Sequence[Any], answers: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """(B, C) of each token of the answers, their end tokens included, and (B, C) which are real."""
        encoded, context = self.policy.encode(prompts), self.policy.context
        for prompt, answer in zip(encoded, answers, strict=True):
            if context is not None and len(prompt) + len(answer) >= context:
                raise ConfigError(
                    f"a prompt of {len(prompt)} tokens and an answer of {len(answer)} with its end are more than the "
                    f"reward model's context of {context}: shorten them, or take a model with a longer one"
                )
        rows = answered(self.policy, encoded, answers)
        return self.of_rows(rows)[:, rows.prompt_ids.shape[1] :], rows.completion_mask

    def of_rows(self, rows: Rollout) -> Tensor:
        """(B, P + C), what the head gives at each token of prompts and answers, with gradient."""
        mask = torch.cat([rows.prompt_mask, rows.completion_mask], 1).long()
        ids = torch.cat([rows.prompt_ids, rows.completion_ids], 1)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask), "use_cache": False}
        found: Tensor = self.head(self.policy._inner.base_model(**inputs).last_hidden_state.float()).squeeze(-1)
        return found

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Of answers, without an end."""
        return [self.policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]

    def check_reads(self, policy: LMPolicy) -> None:
        """Refuse a policy whose tokens are others: steps are read and rewarded by the tokens that the policy wrote.

        Raises:
            ConfigError: names a token.
        """
        own, other = self.policy.tokenizer, policy.tokenizer
        known = own.get_vocab()
        for token, number in sorted(other.get_vocab().items(), key=lambda one: one[1]):
            if known.get(token) != number:
                here = own.convert_ids_to_tokens(number) if number < len(own) else None
                raise ConfigError(
                    f"token {number} is {token!r} to the policy ({len(other)} tokens) and {here!r} to the reward model "
                    f"({len(own)}), which reads the policy's tokens where it is a critic or rewards steps: train the "
                    "reward model from a model with the policy's tokenizer"
                )

    def scores(self, prompts: Sequence[Any], answers: Sequence[Sequence[int]]) -> Tensor:
        """(B,) scores at the end tokens, with gradient: those of preferences."""
        found, mask = self._token_scores(prompts, answers)
        return found.gather(1, mask.sum(-1, keepdim=True).long() - 1).squeeze(1)

    def step_ends(self, answers: Sequence[Sequence[int]]) -> list[list[int]]:
        """Places of each answer's last tokens of steps: of separators, and the end token's where more follows one."""
        found = []
        for ids in answers:
            places, text, seen = list[int](), "", 0
            for place, piece in enumerate(self.policy.tokenizer.batch_decode([[number] for number in ids])):
                text += piece
                count = text.count(self.separator)
                if count > seen:
                    places.append(place)
                    seen = count
            found.append(places if places and places[-1] == len(ids) - 1 else [*places, len(ids)])
        return found

    def step_scores(self, prompts: Sequence[Any], answers: Sequence[Sequence[int]]) -> tuple[list[Tensor], Any]:
        """Logits of each answer's steps, with gradient, and places of their last tokens (the end's is the length)."""
        ends = self.step_ends(answers)
        found, _ = self._token_scores(prompts, answers)
        return [row[places] for row, places in zip(found, ends, strict=True)], ends

    # -- as a reward function ----------------------------------------------------------------------------------

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **columns: Any
    ) -> list[float]:
        """Scores of pairs, or the probability that an answer's worst step is right."""
        if self.kind == "steps":
            return [min(rewards.values()) for rewards in self.step_rewards(prompts, completions)]
        answers, found = self.tokens([text_of(one) for one in completions]), list[float]()
        for start in range(0, len(answers), self.at_once):
            part = slice(start, start + self.at_once)
            found += self.scores(prompts[part], answers[part]).tolist()
        return found

    @torch.no_grad()
    def step_rewards(
        self, prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **columns: Any
    ) -> list[dict[int, float]]:
        """Of each answer: place of a step's last token (that of the end token is the answer's length) -> probability.

        Raises:
            ConfigError: the model is one of pairs.
        """
        if self.kind != "steps":
            raise ConfigError("this reward model was trained on pairs and has no rewards of steps")
        given = completion_ids or self.tokens([text_of(one) for one in completions])
        found = list[dict[int, float]]()
        for start in range(0, len(given), self.at_once):
            part = slice(start, start + self.at_once)
            logits, ends = self.step_scores(prompts[part], given[part])
            found += [
                dict(zip(places, row.sigmoid().tolist(), strict=True)) for row, places in zip(logits, ends, strict=True)
            ]
        return found

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, folder: str | pathlib.Path) -> None:
        """Write model, tokenizer and head: safetensors and JSON."""
        path = pathlib.Path(folder)
        self.policy.save(path)
        save_file({name: value.detach().contiguous() for name, value in self.head.state_dict().items()}, path / HEAD)
        write_json(path / ABOUT, {"kind": self.kind, "separator": self.separator})


def load_reward_model(folder: str | pathlib.Path, device: str = "cpu") -> RewardModel:
    """What `RewardModel.save` wrote.

    Raises:
        CheckpointError: a file is missing or damaged.
        DeviceError: a GPU that is not there.
    """
    path = pathlib.Path(folder).expanduser()
    if not (path / ABOUT).is_file():
        raise CheckpointError(f"{path}: is no reward model, there is no {ABOUT}; `surefoot llm reward` writes one")
    about = read_json(path / ABOUT, Table(Plain()))
    try:
        model = RewardModel(load_policy(path, device=device), about["kind"], about["separator"])
        model.head.load_state_dict(load_file(path / HEAD, device=device))
    except DeviceError:
        raise
    except (KeyError, OSError, RuntimeError, ConfigError) as error:
        raise CheckpointError(f"{path}: the reward model can't be read ({error}); restore it from a copy") from error
    except Exception as error:  # safetensors' own class, which it does not export under one name in all versions
        raise CheckpointError(f"{path / HEAD}: is damaged ({error}); restore it from a copy") from error
    return model


@dataclasses.dataclass(frozen=True)
class RewardTraining(Options):
    """Settings of `train_reward_model`."""

    owner = ""
    steps: int = option(200, "steps of AdamW without weight decay", range="> 0")
    rows: int = option(64, "pairs, or answers with labeled steps, of each step", range="> 0")
    learning_rate: float = option(1e-5, "learning rate, falling linearly to 0", range=">= 0")
    loss: str = option(
        "preference",
        "loss of pairs; or demonstration: chosen ones are demonstrations, the others a policy's own",
        choices=LOSSES,
    )
    center: float = option(
        0.01,
        "weight of (r_w + r_l)^2, which holds the scores' level; of demonstration, r_w^2 + r_l^2",
        range=">= 0",
    )
    max_gradient_norm: float = option(1.0, "gradients longer than this are shortened", range="> 0")
    seed: int = option(0, "seed of the order of rows", range=">= 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        if self.loss == "demonstration" and not self.center:
            raise ConfigError("loss=demonstration needs centre above 0: scores are at most 1 / (2 centre)")


def train_reward_model(
    model: RewardModel,
    data: Sequence[Pair] | Sequence[LabelledSteps],
    training: RewardTraining,
    progress: Callable[[dict[str, float]], None] | None = None,
) -> dict[str, float]:
    """Train a reward model in place; gives the metrics of its last 20 steps: `loss` and `accuracy`.

    Args:
        model: of pairs or of steps.
        data: what it is of.
        training: settings.
        progress: called with `step`, `loss` and `accuracy` of each step.

    Raises:
        ConfigError: there are no data, or of the other kind; labels that don't fit the steps.
        DivergenceError: the loss stopped being finite.
    """
    learner, random, last = (
        RewardLearner(model, training),
        np.random.default_rng(training.seed),
        list[dict[str, float]](),
    )
    if not data:
        raise ConfigError(f"a reward model of {model.kind} learns from one line or more")
    for step in range(1, training.steps + 1):
        rate = training.learning_rate * (training.steps - step + 1) / training.steps
        batch: Any = [data[n] for n in random.integers(len(data), size=training.rows)]
        line = {"step": float(step), **learner.update(batch, rate)}
        last = [*last[-19:], line]
        if progress is not None:
            progress(line)
    return {name: float(np.mean([line[name] for line in last])) for name in ("loss", "accuracy")}


class RewardLearner:
    """Optimiser steps of a reward model, one batch at a time: for one that is trained beside a policy."""

    def __init__(self, model: RewardModel, training: RewardTraining) -> None:
        """Begin; `training.steps` and `rows` are whoever's who calls `update`.

        Raises:
            ConfigError: `loss=demonstration` for a model of steps.
        """
        if model.kind == "steps" and training.loss != "preference":
            raise ConfigError(f"loss={training.loss} is of pairs, and this reward model is of steps: leave it out")
        self.model, self.training = model, training
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=training.learning_rate, weight_decay=0.0)

    def update(
        self, batch: Sequence[Pair] | Sequence[LabelledSteps], learning_rate: float | None = None
    ) -> dict[str, float]:
        """One step; gives `loss` and `accuracy`, the share of pairs (steps) that were ordered correctly before it.

        Args:
            batch: pairs, or answers with labelled steps.
            learning_rate: of this step; None for the training's.

        Raises:
            ConfigError: data of the other kind, or labels that don't fit the steps.
            DivergenceError: the loss is not finite; nothing is changed then.
        """
        model, wanted = self.model, Pair if self.model.kind == "pairs" else LabelledSteps
        if not all(isinstance(one, wanted) for one in batch):
            raise ConfigError(f"a reward model of {model.kind} learns from a list of {wanted.__name__}")
        rows: Any = batch
        terms, right = (_of_pairs if model.kind == "pairs" else _of_steps)(model, rows, self.training)
        loss = terms.mean()
        if not torch.isfinite(loss):
            raise DivergenceError(f"the reward model's loss is {float(loss.detach())}; lower learning_rate")
        self.optimizer.param_groups[0]["lr"] = self.training.learning_rate if learning_rate is None else learning_rate
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), self.training.max_gradient_norm)
        self.optimizer.step()
        return {"loss": float(loss.detach()), "accuracy": float(right.float().mean())}


@torch.no_grad()
def accuracy(model: RewardModel, data: Sequence[Pair] | Sequence[LabelledSteps]) -> tuple[float, int]:
    """Share of pairs, or of labelled steps, that it tells right, and how many there are."""
    right = list[Tensor]()
    for start in range(0, len(data), model.at_once):
        batch: Any = data[start : start + model.at_once]
        right.append((_of_pairs if model.kind == "pairs" else _of_steps)(model, batch, RewardTraining())[1])
    flat = torch.cat(right)
    return float(flat.float().mean()), len(flat)


def _of_pairs(model: RewardModel, batch: list[Pair], training: RewardTraining) -> tuple[Tensor, Tensor]:
    prompts = [pair.prompt for pair in batch]
    texts = model.tokens([pair.chosen for pair in batch] + [pair.rejected for pair in batch])
    better, worse = model.scores(prompts + prompts, texts).chunk(2)
    return LOSSES[training.loss](better, worse, training.center), better > worse


def _of_steps(model: RewardModel, batch: list[LabelledSteps], training: RewardTraining) -> tuple[Tensor, Tensor]:
    answers = model.tokens([model.separator.join(one.steps) for one in batch])
    logits, _ = model.step_scores([one.prompt for one in batch], answers)
    for found, one in zip(logits, batch, strict=True):
        if len(found) != len(one.labels):
            raise ConfigError(
                f"the answer to {one.prompt!r} has {len(one.labels)} labels, and {len(found)} steps between separators "
                f"{model.separator!r} as the tokenizer has them: a step must not hold the separator"
            )
    flat = torch.cat(logits)
    labels = torch.tensor([label for one in batch for label in one.labels], dtype=flat.dtype, device=flat.device)
    return step_label_terms(flat, labels), (flat > 0) == (labels > 0.5)


def load_reward(name: str, device: str = "cpu") -> RewardFunction:
    """The function that "module:function" names, the module being one that python finds, or a folder's reward model.

    Raises:
        CheckpointError: a reward model that is damaged.
        ConfigError: the name is not of that form, or there is no such module or function.
    """
    if (pathlib.Path(name).expanduser() / "config.json").is_file():
        return load_reward_model(name, device)
    return load_function(name, "reward", ", nor a reward model's folder")


def load_function(name: str, setting: str, or_else: str = "") -> RewardFunction:
    """The function that "module:function" names, as `setting` is given it.

    Raises:
        ConfigError: the name is not of that form, or there is no such module or function.
    """
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise ConfigError(f"{setting}={name!r} is not of the form module:function, as in my_rewards:exact{or_else}")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ConfigError(f"{setting}={name!r}: the module can't be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"{setting}={name!r}: the module {module} has no function {function!r}")
    reward: RewardFunction = found
    return reward
