"""Learning from answers that are given: their likelihood (SFT), or which of two is the better one (DPO)."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.files import read_json_lines, written_aside
from surefoot.core.base.options import option
from surefoot.core.losses.masked import masked_mean
from surefoot.llm.feedback import Demonstration, Pair
from surefoot.llm.losses import direct_preference_terms
from surefoot.llm.optimizers import Optimizer, Pace
from surefoot.llm.policy import LMPolicy, Rollout
from surefoot.llm.same_run import check_same

CHECKPOINT, METRICS = "checkpoint.safetensors", "metrics.jsonl"
KIND = "language training on given answers"
UNASKED = ("steps", "learning_rate", "max_gradient_norm", "rows_at_once", "checkpoint_every")
"""Settings that may change where a training continues."""


class Stopped(Exception):
    """Training was asked to stop; its state is kept."""


def answered(policy: LMPolicy, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Rollout:
    """Given answers as a `Rollout`; each is followed by the end token. Its log-probabilities are 0.

    Args:
        policy: for its padding, end and device.
        prompts: tokens of each.
        answers: tokens of each, without an end.
    """
    ended = [[*answer, policy.tokenizer.eos_token_id] for answer in answers]
    width, longest = max(map(len, prompts)), max(map(len, ended))
    ids, tokens = torch.full((len(ended), width), policy.pad), torch.full((len(ended), longest), policy.pad)
    mask, kept = torch.zeros(len(ended), width), torch.zeros(len(ended), longest)
    for row, (prompt, answer) in enumerate(zip(prompts, ended, strict=True)):
        ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
        tokens[row, : len(answer)], kept[row, : len(answer)] = torch.tensor(answer), 1
    device, finished = policy.device, torch.ones(len(ended), dtype=torch.bool)
    ids, mask, tokens, kept = (part.to(device) for part in (ids, mask, tokens, kept))
    return Rollout(ids, mask, tokens, kept, torch.zeros_like(kept), finished.to(device))


def supervise(
    policy: LMPolicy,
    pairs: Sequence[tuple[str, str]],
    *,
    steps: int,
    rows: int = 128,
    learning_rate: float = 1e-3,
    max_gradient_norm: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> None:
    """`learn_given` in few words, for models from nothing: the learning rate falls linearly in the last fifth.

    Args:
        policy: is changed.
        pairs: prompt and answer.
        steps: of the optimiser.
        rows: of each batch.
        learning_rate: of AdamW.
        max_gradient_norm: gradients longer than this are shortened.
        seed: of the order of rows.
        progress: called with the step and the loss, every hundred steps.

    Raises:
        ConfigError, DivergenceError: as `learn_given`.
    """

    def reported(line: dict[str, float]) -> None:
        step = int(line["step"])
        if progress is not None and (step % 100 == 0 or step == steps):
            progress(step, line["loss"])

    training = GivenTraining(
        steps=steps,
        rows=rows,
        learning_rate=learning_rate,
        max_gradient_norm=max_gradient_norm,
        schedule="linear",
        decay_share=0.2,
        seed=seed,
    )
    learn_given(policy, [Demonstration(*pair) for pair in pairs], training, progress=reported)


@dataclasses.dataclass(frozen=True)
class GivenTraining(Pace):
    """Settings of training on given answers."""

    schedule: str = option(
        "linear", "schedule of the learning rate behind the warm-up: constant, or linear or cosine, which fall to 0"
    )
    steps: int = option(200, "steps of the optimizer", range="> 0")
    rows: int = option(32, "lines of the file in each step, with replacement", range="> 0")
    learning_rate: float = option(
        1e-5, "learning rate of the optimizer; 1e-6 and below are usual for pairs", range=">= 0"
    )
    weight_decay: float = option(0.0, "weight decay of the optimizer", range=">= 0")
    max_gradient_norm: float = option(1.0, "gradients longer than this are shortened", range="> 0")
    rows_at_once: int = option(256, "lines whose activations are held at once", range="> 0")
    beta: float = option(0.1, "beta of DPO: how strongly the policy is held to what it was", range="> 0")
    checkpoint_every: int = option(50, "steps between checkpoints", range="> 0")
    seed: int = option(0, "seed of the order of rows", range=">= 0")


class Given:
    """A training in progress on answers of one kind: demonstrations by their likelihood, pairs by DPO."""

    def __init__(
        self,
        policy: LMPolicy,
        data: Sequence[Demonstration] | Sequence[Pair],
        training: GivenTraining,
        held_out: Sequence[Demonstration] | Sequence[Pair] = (),
    ) -> None:
        """Begin; the policy as it is now is DPO's reference.

        Raises:
            ConfigError: there are no data, or of several kinds; or a prompt and answer that are longer than the model's
                context, whose row is named.
        """
        if not data:
            raise ConfigError("there are no pairs of prompt and answer to learn from")
        kind = type(data[0])
        if kind not in (Demonstration, Pair) or not all(isinstance(one, kind) for one in (*data, *held_out)):
            raise ConfigError("given answers, held-out ones too, are all Demonstrations or all Pairs")
        self.policy, self.training, self.of_pairs, self.count = policy, training, kind is Pair, len(data)
        both: list[Any] = [*data, *held_out]
        self.prompts = policy.encode([one.prompt for one in both])
        texts = [[one.chosen for one in both], [one.rejected for one in both]] if self.of_pairs else None
        self.answers = [
            [policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in column]
            for column in texts or [[one.answer for one in both]]
        ]
        """Tokens of each column: answers, or those chosen and those rejected."""
        self._check_lengths()
        self.optimizer = Optimizer(policy.model, training.optimizer, training.learning_rate, training.weight_decay)
        self.step = 0
        self.reference: Tensor | None = None  # (2, lines), of chosen and rejected before training
        self._random = np.random.default_rng(training.seed)

    def _check_lengths(self) -> None:
        context = self.policy.context
        for column in self.answers:
            for row, (prompt, answer) in enumerate(zip(self.prompts, column, strict=True)):
                if context is not None and len(prompt) + len(answer) >= context:
                    where = f"pair {row}" if row < self.count else f"held-out pair {row - self.count}"
                    raise ConfigError(
                        f"{where} has a prompt of {len(prompt)} tokens and an answer of {len(answer)} with its end, "
                        f"more than the model's context of {context}: shorten them, or take a model with a longer one"
                    )

    def _rows(self, numbers: Sequence[int], column: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities of answers' tokens and their mask, (B, C) each."""
        batch = answered(self.policy, [self.prompts[n] for n in numbers], [self.answers[column][n] for n in numbers])
        return self.policy.log_probs(batch)[0], batch.completion_mask

    def _margins(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(B,) each: log-probabilities of chosen and of rejected answers, less the reference's."""
        assert self.reference is not None
        better, worse = (self._rows(numbers, column)[0].sum(-1) for column in (0, 1))
        known = self.reference[:, list(numbers)].to(better.device)
        return better - known[0], worse - known[1]

    def _parts(self, numbers: Sequence[int]) -> list[Sequence[int]]:
        size = self.training.rows_at_once
        return [numbers[start : start + size] for start in range(0, len(numbers), size)]

    @torch.no_grad()
    def _remember(self) -> None:
        """DPO's reference: what the policy gives before it is trained."""
        if self.of_pairs and self.reference is None:
            parts = self._parts(range(len(self.prompts)))
            columns = [torch.cat([self._rows(part, column)[0].sum(-1) for part in parts]) for column in (0, 1)]
            self.reference = torch.stack(columns)

    def advance(self) -> dict[str, float]:
        """One step: its metrics before it, `loss` and of pairs `accuracy` and `margin` (in nats, times beta)."""
        self._remember()
        numbers = self._random.integers(self.count, size=self.training.rows).tolist()
        self.optimizer.zero_grad()
        found = self._through(numbers, learn=True)
        self.step += 1
        share = self.training.share(self.step, self.training.steps)
        loss = torch.tensor(found["loss"])
        norm = self.optimizer.step(loss, self.training.max_gradient_norm, share, f"step {self.step}")
        return {
            "step": float(self.step),
            **found,
            "gradient_norm": norm,
            "learning_rate": self.training.learning_rate * share,
        }

    @torch.no_grad()
    def examine(self) -> dict[str, float]:
        """The same numbers on the lines that are held out."""
        self._remember()
        return self._through(range(self.count, len(self.prompts)), learn=False)

    def _through(self, numbers: Sequence[int], learn: bool) -> dict[str, float]:
        """Loss and metrics of lines, their gradient in parts that are divided by what all of them count."""
        tokens = sum(len(self.answers[0][n]) + 1 for n in numbers)
        sums: dict[str, float] = {}
        for part in self._parts(numbers):
            if self.of_pairs:
                better, worse = self._margins(part)
                loss = direct_preference_terms(better, worse, self.training.beta).sum() / len(numbers)
                margin = self.training.beta * (better - worse).detach()
                more = {"accuracy": (margin > 0).float().sum(), "margin": margin.sum()}
                reported = {name: float(value) / len(numbers) for name, value in more.items()}
            else:
                log_prob, mask = self._rows(part, 0)
                loss, reported = -masked_mean(log_prob, mask) * (mask.sum() / tokens), {}
            if learn:
                loss.backward()  # type: ignore[no-untyped-call]
            for name, value in {"loss": float(loss.detach()), **reported}.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    # -- its state ---------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """What a checkpoint has to agree in to be of the same training."""
        kept = {k: v for k, v in dataclasses.asdict(self.training).items() if k not in UNASKED}
        return {**kept, "lines": self.count, "pairs": self.of_pairs}

    def save(self, path: pathlib.Path) -> None:
        """Write the whole state."""
        tensors = {f"model/{name}": value.detach() for name, value in self.optimizer.parameters.items()}
        tensors |= self.optimizer.tensors() | ({} if self.reference is None else {"reference": self.reference})
        checkpoint.save(path, tensors, {"kind": KIND, "step": self.step, "settings": self.settings()})

    def load(self, path: pathlib.Path) -> None:
        """Continue from what `save` wrote.

        Raises:
            CheckpointError: the file is damaged, of another model, or of a training with other settings.
        """
        tensors, meta = checkpoint.load(path, KIND)
        checkpoint.check_tensors(path, tensors)
        check_same(path, meta.get("settings"), self.settings())
        for name, parameter in self.optimizer.parameters.items():
            found = tensors.get(f"model/{name}")
            if found is None or found.shape != parameter.shape:
                raise CheckpointError(f"{path}: is of another model, it has no model/{name} of this shape")
        with torch.no_grad():
            for name, parameter in self.optimizer.parameters.items():
                parameter.copy_(tensors[f"model/{name}"])
        self.optimizer.load(tensors)
        self.reference, self.step = tensors.get("reference"), int(meta["step"])
        if self.of_pairs and (self.reference is None or self.reference.shape[1] != len(self.prompts)):
            raise CheckpointError(f"{path}: is of other pairs, or other held-out ones")
        self._random = np.random.default_rng(self.training.seed)
        for _ in range(self.step):
            self._random.integers(self.count, size=self.training.rows)


def metrics_until(file: pathlib.Path, step: int) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl up to the step of a checkpoint, which an interrupted training continues from.

    Raises:
        CheckpointError: the file is missing or damaged; names the line.
    """
    return [line for _, line in read_json_lines(file) if line["step"] <= step]


def learn_given(
    policy: LMPolicy,
    data: Sequence[Demonstration] | Sequence[Pair],
    training: GivenTraining,
    folder: str | pathlib.Path | None = None,
    *,
    held_out: Sequence[Demonstration] | Sequence[Pair] = (),
    progress: Callable[[dict[str, float]], None] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train a policy in place on answers: demonstrations by their likelihood (SFT), pairs by DPO.

    Args:
        policy: is changed. As it is when training begins, it is DPO's reference.
        data: of one kind. End tokens are learned too.
        training: settings.
        folder: for metrics.jsonl and a checkpoint that an interrupted training continues from bit for bit, given the
            same first policy; None keeps nothing.
        held_out: of the same kind, to be examined at the beginning and at the end.
        progress: called with the metrics of each step.
        stopping: asked after each step; once it is true the state is kept, and training ends.

    Returns:
        `steps`, mean metrics of the last 20 steps, and `before` and `after` of held-out answers.

    Raises:
        CheckpointError: the folder's checkpoint is damaged, or of another training.
        ConfigError: what `Given` refuses.
        DivergenceError: the loss stopped being finite.
        Stopped: it was asked to stop.
    """
    one = Given(policy, data, training, held_out)
    path = None if folder is None else pathlib.Path(folder)
    lines: list[dict[str, Any]] = []
    if path is not None and (path / CHECKPOINT).is_file():
        one.load(path / CHECKPOINT)
        lines = metrics_until(path / METRICS, one.step)
    elif held_out:
        lines.append({"step": 0.0, "held_out": one.examine()})

    def keep() -> None:
        if path is not None:
            with written_aside(path / METRICS) as aside:
                aside.write_text("".join(json.dumps(line) + "\n" for line in lines))
            one.save(path / CHECKPOINT)

    while one.step < training.steps:
        lines.append(one.advance())
        if progress is not None:
            progress(lines[-1])
        stop = stopping() and one.step < training.steps
        if one.step % training.checkpoint_every == 0 or one.step == training.steps or stop:
            keep()
        if stop:
            raise Stopped(f"stopped after step {one.step} of {training.steps}")
    last = [line for line in lines if "loss" in line][-20:]
    reported = {k: float(np.mean([line[k] for line in last])) for k in ("loss", "accuracy", "margin") if k in last[0]}
    first = [line["held_out"] for line in lines if "held_out" in line]
    after: dict[str, Any] = {"before": first[0], "after": one.examine()} if first else {}
    found: dict[str, Any] = {"steps": one.step}
    return found | reported | after
