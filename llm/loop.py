"""The loop: answers are sampled, scored and compared, and the policy takes its steps. One process, one device.

All random numbers follow from the seed and the number of the step, so that a run that was killed continues as if it had
not been: weights, optimiser and counters are the whole of its state.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.core.base.options import option
from surefoot.core.losses import policy_gradient as pg
from surefoot.llm.curriculum import Weakness, Write, written
from surefoot.llm.losses import method as losses
from surefoot.llm.losses.method import Batch, Method
from surefoot.llm.losses.reward_shaping import overlong_penalty
from surefoot.llm.losses.selection import fresh_mask, mixed_groups, spread_groups
from surefoot.llm.nucleus import Nucleus
from surefoot.llm.optimizers import Optimizer, Pace
from surefoot.llm.own_rewards import OWN, SLOW, Answers, check_prompts
from surefoot.llm.policy import LMPolicy, Rollout, joined
from surefoot.llm.prompts import Prompt
from surefoot.llm.reader import PolicyReader
from surefoot.llm.reward_models import RewardModel
from surefoot.llm.rewards import Learning, RewardFunction, Weighted, ask, step_scores
from surefoot.llm.sage import Sage, SageSampler
from surefoot.llm.same_run import check_same, deciding
from surefoot.llm.token_critic import TokenCritic
from surefoot.llm.turns import Environment, Turns

LARGEST_GAP = 1e-2
"""In nats, between log-probabilities when a token was sampled and when it is trained, by the same float32 weights."""
SLOW_EVERY, SLOW_SHARE = 10, 0.005
"""Steps after which the slow copy moves, and how far towards the policy (GRPO-CARE's code)."""
SPREAD_FROM, FILTER_FROM = 5, 10
"""Steps before the mean deviation of groups is kept, and before groups are left out by it (RLPR's code)."""
NEW = -1
"""The number of a prompt that was written in this step."""
Forward = tuple[Tensor, Tensor]
"""Log-probabilities and entropies of answers, (B, C) each."""


@dataclasses.dataclass(frozen=True)
class TrainConfig(Pace):
    """Settings of the loop."""

    steps: int = option(200, "batches of answers", range="> 0")
    prompts_per_step: int = option(32, "prompts of each batch", range="> 0")
    group: int = option(8, "answers to each prompt", range="> 0")
    max_new_tokens: int = option(64, "the most tokens of an answer", range="> 0")
    turns: int = option(
        1, "the most turns of an answer, between which environment= replies; max_new_tokens is of each", range="> 0"
    )
    epochs: int = option(1, "times that a batch is gone through", range="> 0")
    minibatches: int = option(1, "optimizer steps of each time", range="> 0")
    learning_rate: float = option(1e-6, "learning rate of the optimizer", range=">= 0")
    weight_decay: float = option(0.0, "weight decay of the optimizer", range=">= 0")
    max_gradient_norm: float = option(1.0, "gradients longer than this are shortened", range="> 0")
    rows_at_once: int = option(256, "answers whose activations are held at once", range="> 0")
    continuous: bool = option(False, "sample by transformers' continuous batching, for answers of unequal lengths")
    weak_share: float = option(
        0.0, "share of each batch's prompts, drawn from those that stay below half right and get worse", range="[0, 1]"
    )
    refills: int = option(2, "times that more prompts are drawn where groups are dropped", range=">= 0")
    reference_every: int = option(
        0, "steps after which the reference becomes the policy of now; 0 for never", range=">= 0"
    )
    reference_share: float = option(
        1.0, "the policy's share in the new reference; below 1 the rest is the old one's", range="(0, 1]"
    )
    nucleus_every: int = option(
        5, "steps after which the mask policy of method.nucleus becomes the policy of now", range="> 0"
    )
    critic_learning_rate: float = option(
        0.0, "learning rate of the critic of method.advantages=gae; 0 for learning_rate", range=">= 0"
    )
    lag: int = option(0, "steps after which the sampler becomes the policy of now; 0 for always", range=">= 0")
    oldest: int = option(1_000_000, "updates that a sample may be behind; older ones count for nothing", range=">= 0")
    checkpoint_every: int = option(50, "steps between checkpoints", range="> 0")
    evaluate_every: int = option(50, "steps between evaluations, with prompts that were held out", range="> 0")
    samples: int = option(8, "samples for pass@k, k", range="> 0")
    solved: float = option(1.0, "the reward from which on an answer is right, in pass@1 and pass@k")
    keep_best: bool = option(True, "keep the model with the highest pass@1 on held-out prompts, beside the last")
    seed: int = option(0, "seed of all random numbers; on the command line seed=5 is seeds=[5]", range=">= 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        if self.weak_share and not round(self.weak_share * self.prompts_per_step):
            raise ConfigError(
                f"weak_share={self.weak_share} of prompts_per_step={self.prompts_per_step} is less than one prompt"
            )
        if self.prompts_per_step % self.minibatches:
            raise ConfigError(
                f"minibatches={self.minibatches} does not divide prompts_per_step={self.prompts_per_step}"
            )


class Loop:
    """A run in progress."""

    def __init__(
        self,
        policy: LMPolicy,
        prompts: Sequence[Prompt],
        reward: RewardFunction | None,
        method: Method,
        config: TrainConfig,
        critic: RewardModel | None = None,
        write: Write | None = None,
        environment: Environment | None = None,
    ) -> None:
        """Begin one; `reward` is None for methods whose own reward is enough (RLPR).

        `critic` is what the critic of `method.advantages=gae` begins as, which is trained; None for a copy of the
        policy with a head that gives 0. `write` makes new problems of weak prompts, which stand in for them.
        `environment` replies between the turns of an answer (`llm.turns`), where `config.turns` is above 1.

        Raises:
            ConfigError: a prompt is longer than the model's context allows; the method needs rewards of steps, and
                `reward` has none, or is a model with another vocabulary; or a reference that is to follow, and the
                method has none; or a method for samplers that lag, and none does; or a critic where the method reads
                none, or that can't be one (`TokenCritic`).
        """
        self.policy, self.prompts, self.reward, self.method, self.config = policy, prompts, reward, method, config
        check_prompts(method, prompts, reward is not None)
        self.encoded = policy.encode([prompt.text for prompt in prompts])
        policy.check_lengths(self.encoded, config.max_new_tokens)
        self.optimizer = Optimizer(policy.model, config.optimizer, config.learning_rate, config.weight_decay)
        self.parameters = self.optimizer.parameters
        self.reference = _copy(policy) if method.kl != "none" and method.kl_coefficient else None
        if config.reference_every and self.reference is None:
            raise ConfigError(
                f"reference_every={config.reference_every}, and this method keeps no reference: give it a KL "
                "(method.kl and method.kl_coefficient), or leave it at 0"
            )
        if method.lagged and not config.lag:
            raise ConfigError(
                f"{method.title} is made for a sampler that lags behind: say lag=, the steps after which it becomes "
                "the policy of now, as lag=50; lag=1 is the method's on-policy form"
            )
        self.sampler = _copy(policy) if config.lag else policy
        self.weakness = Weakness(len(prompts)) if config.weak_share else None
        if write is not None and self.weakness is None:
            raise ConfigError(
                "write= makes new problems of weak prompts: say their share of a batch, as weak_share=0.25"
            )
        self.write = write
        self.slow = _copy(policy) if method.reads in SLOW else None
        self.reader = PolicyReader(policy, self.slow, config.rows_at_once)
        self.nucleus = Nucleus(_copy(policy), method.nucleus) if method.nucleus else None
        if self.nucleus is not None:
            self.nucleus.check_size(config.prompts_per_step * config.group, config.max_new_tokens)
        if method.sage >= config.group:
            raise ConfigError(f"method.sage={method.sage} must be below group={config.group}: the others are plain")
        self.sage = SageSampler(self.sampler, _sage_of(method)) if method.sage else None
        self.of_steps = method.advantages == losses.STEPS
        if self.of_steps and not hasattr(reward, "step_rewards"):
            raise ConfigError("this method learns from rewards of steps: give a reward with step_rewards (docs/llm.md)")
        if self.of_steps and isinstance(reward, RewardModel):
            reward.check_reads(policy)
        self.critic = self._critic(critic)
        self.turns = self._turns(environment)
        self.entropy_gradient = method.entropy_coefficient > 0
        self.answered: list[Prompt] = []
        """The prompt of each answer of the last batch."""
        self.step = self.drawn = self.version = self.sampler_version = 0
        self.spread = 0.0  # running mean of groups' deviations; 0 before there is one
        self._ahead: tuple[Tensor, Forward] | None = None  # answers, and the forward pass that did not wait for rewards
        self._epoch: tuple[int, np.ndarray] | None = None  # its number, and the order of its prompts

    def _turns(self, environment: Environment | None) -> Turns | None:
        config, method = self.config, self.method
        if (environment is None) != (config.turns == 1):
            raise ConfigError(
                f"turns={config.turns} and environment= go together: how often the policy may write, and what replies"
            )
        if environment is None:
            return None
        for name, value in (
            ("method.sage", method.sage), ("method.nucleus", method.nucleus), ("continuous", config.continuous),
            ("method.reads", method.reads != "none"), ("method.advantages=steps", self.of_steps),
        ):  # fmt: skip
            if value:
                raise ConfigError(f"{name} is for answers of one turn: leave it out, or turns=1")
        return Turns(environment, config.turns)

    def _critic(self, given: RewardModel | None) -> TokenCritic | None:
        config, method = self.config, self.method
        if method.advantages != losses.GAE:
            for name, value in (("critic", given), ("critic_learning_rate", config.critic_learning_rate)):
                if value:
                    raise ConfigError(f"{name} is for method.advantages=gae, as method=ppo has; leave it out")
            return None
        if given is not None and given is self.reward:
            raise ConfigError("the critic is trained, and the reward must stay: read the reward model's folder twice")
        model = RewardModel(_copy(self.policy, trained=True)) if given is None else given
        rate = config.critic_learning_rate or config.learning_rate
        return TokenCritic(model, self.policy, rate, method.value_clip, config.rows_at_once)

    # -- one batch ---------------------------------------------------------------------------------------------

    def _draw(self, count: int) -> list[int]:
        """The next prompts; all come once in random order before any comes again."""
        found: list[int] = []
        for _ in range(count):
            epoch, place = divmod(self.drawn, len(self.prompts))
            if self._epoch is None or self._epoch[0] != epoch:
                self._epoch = epoch, _order(self.config.seed, epoch, len(self.prompts))
            found.append(int(self._epoch[1][place]))
            self.drawn += 1
        return found

    def collect(self) -> tuple[Rollout, Tensor, dict[str, float]]:
        """Answers, their rewards, and what the log shows of both. Groups without a difference may be drawn again."""
        config, method = self.config, self.method
        kept: list[tuple[Rollout, Tensor]] = []
        drawn, same, wanted, seconds = 0, 0, config.prompts_per_step, time.perf_counter()
        rewards_seen: list[Tensor] = []
        asked: list[Prompt] = []
        new = 0
        for refill in range(config.refills + 1 if method.mixed_groups else 1):
            weak = self._weak(refill)
            numbers = weak + self._draw(config.prompts_per_step - len(weak))
            seed = int(np.random.SeedSequence([config.seed, self.step, refill]).generate_state(1)[0])
            prompts, encoded = [self.prompts[n] for n in numbers], [self.encoded[n] for n in numbers]
            for row, one in self._written(weak, seed).items():
                prompts[row], encoded[row], numbers[row] = one, self.policy.encode([one.text])[0], NEW
            new += numbers.count(NEW)
            self.policy.check_lengths(encoded, config.max_new_tokens)
            rollout = self._answers(prompts, encoded, seed)
            rows = [prompt for prompt in prompts for _ in range(config.group)]
            rollout, found = self.score(rollout, rows, ahead=not method.mixed_groups and not method.spread)
            rewards_seen.append(found)
            self._note_weakness(numbers, found)
            mixed = mixed_groups(found, config.group).view(-1, config.group)[:, 0] != 0
            drawn, same = drawn + len(mixed), same + int((~mixed).sum())
            spread = self._spread(found)
            if self._ahead is not None:  # nothing is left out, and the answers stay as they are
                kept, asked = [(rollout, found)], prompts
                break
            for group in range(len(numbers)):
                if spread[group] and (mixed[group] or not method.mixed_groups) and len(kept) < wanted:
                    part = slice(group * config.group, (group + 1) * config.group)
                    kept.append((rollout.rows(part), found[part]))
                    asked.append(prompts[group])
            if len(kept) == wanted:
                break
        if not kept:  # nothing differs anywhere: the step will be empty
            none = torch.full_like(found[: config.group], torch.nan) if method.spread else found[: config.group]
            kept, asked = [(rollout.rows(slice(0, config.group)), none)], prompts[:1]
        self.answered = [prompt for prompt in asked for _ in range(config.group)]
        if self._ahead is None:
            rollout, found = joined([part for part, _ in kept], self.policy.pad), torch.cat([part for _, part in kept])
        seen, mask = torch.cat(rewards_seen), rollout.trained
        if bool(seen.isnan().all()):
            raise DataError(
                f"step {self.step}: the reward function could score none of {len(seen)} answers (it gave None)"
            )
        metrics = {
            "reward": float(seen.nanmean()),
            "same": same / drawn,
            "length": float(mask.sum(-1).mean()),
            "finished": float(rollout.finished.float().mean()),
            "groups": len(asked),
            **({} if self.weakness is None else {"weak": len(self.weakness.weak())}),
            **({} if self.write is None else {"written": new}),
            "sampling_seconds": time.perf_counter() - seconds,
        }
        if isinstance(self.reward, Weighted):
            metrics |= {f"reward_{name}": mean for name, mean in self.reward.means.items()}
        return rollout, found, metrics

    def _weak(self, refill: int) -> list[int]:
        """Weak prompts that begin a batch."""
        if self.weakness is None:
            return []
        count = round(self.config.weak_share * self.config.prompts_per_step)
        return self.weakness.draw(count, [self.config.seed, self.step, refill, count])

    def _written(self, weak: Sequence[int], seed: int) -> dict[int, Prompt]:
        """New problems in the place of weak prompts, by their row."""
        if self.write is None or not weak:
            return {}
        found = {row: one for row, one in enumerate(written(self.write, [self.prompts[n] for n in weak], seed)) if one}
        check_prompts(self.method, list(found.values()), self.reward is not None)
        return found

    def _note_weakness(self, numbers: Sequence[int], returns: Tensor) -> None:
        """How many of each prompt's scored answers are right."""
        if self.weakness is not None:
            for number, group in zip(numbers, returns.view(-1, self.config.group), strict=True):
                scored = group[~group.isnan()]
                if len(scored) and number != NEW:
                    self.weakness.note(number, float((scored >= self.config.solved).double().mean()))

    def _answers(self, asked: Sequence[Prompt], prompts: list[list[int]], seed: int) -> Rollout:
        """`config.group` answers to each prompt, `method.sage` of them by SAGE, the last ones."""
        config, sage = self.config, self.method.sage
        if self.turns is not None:
            return self.turns.generate(
                self.sampler, asked, prompts, config.group, config.max_new_tokens, seed, at_once=config.rows_at_once
            )
        plain = self.sampler.generate(
            prompts,
            config.group - sage,
            config.max_new_tokens,
            seed,
            at_once=config.rows_at_once,
            within=self.nucleus,
            continuous=config.continuous,
        )
        if self.sage is None:
            return plain
        sure = self.sage.generate(prompts, config.max_new_tokens, seed, config.rows_at_once)
        both, count = joined([plain, sure], self.policy.pad), config.group - sage
        order = [
            row
            for n in range(len(prompts))
            for row in (*range(n * count, (n + 1) * count), *(count * len(prompts) + n * sage + k for k in range(sage)))
        ]
        return both.rows(torch.tensor(order, device=both.log_prob.device))

    def _spread(self, returns: Tensor) -> Tensor:
        """(groups,) bool, those that deviate enough from one another by `method.spread`; its mean follows."""
        whole = torch.ones(len(returns) // self.config.group, dtype=torch.bool, device=returns.device)
        if not self.method.spread or self.step < SPREAD_FROM:
            return whole
        before = torch.tensor(self.spread, dtype=returns.dtype, device=returns.device)
        enough, after = spread_groups(returns, self.config.group, before, self.method.spread)
        if self.spread == 0:
            after = 100 * after  # the first one: its own mean
        self.spread = float(after)
        return whole if self.step < FILTER_FROM else enough.view(-1, self.config.group)[:, 0] != 0

    def score(self, rollout: Rollout, rows: Sequence[Prompt], ahead: bool = False) -> tuple[Rollout, Tensor]:
        """Rewards (B,) of answers to these prompts; the rollout keeps what else training reads of them.

        Args:
            rollout: B answers.
            rows: the prompt of each.
            ahead: while rewards are on their way, do the forward pass that the update begins with.
        """
        self._ahead = None
        texts, answers, device = self.policy.decode(rollout), rollout.answers(), rollout.log_prob.device
        if not self.of_steps:
            asked = None if self.reward is None else ask(self.reward, rows, texts, answers, self.reader)
            if asked is not None and asked.late and ahead:
                self._ahead = rollout.completion_ids, self._first(rollout)
            found = None if asked is None else asked().to(device)
            own = OWN[self.method.reads]
            if own is None:
                assert found is not None
                return rollout, found
            lengths = rollout.prompt_mask.sum(-1).long().tolist()
            prompt_ids = [row[len(row) - n :].tolist() for row, n in zip(rollout.prompt_ids, lengths, strict=True)]
            given = Answers(rows, prompt_ids, answers, texts, found, self.config.group, self.reward)
            mark = self.method.answer_mark
            if mark and self.step == 0 and not any(mark in text for text in texts):
                warnings.warn(
                    f"none of the {len(texts)} first answers has {mark!r}, behind which {self.method.title} reads an "
                    "answer: none earns its reward so; method.answer_mark names the text, prompts may ask for it",
                    stacklevel=2,
                )
            found, more = own(self.method, self.reader, given)
            wide = {name: value.to(device).unsqueeze(1).expand_as(rollout.log_prob) for name, value in more.items()}
            return dataclasses.replace(rollout, kept=rollout.kept | wide), found.to(device)
        assert self.reward is not None
        found, ends = step_scores(self.reward, rows, texts, answers, rollout.completion_mask)
        kept = {"step_rewards": found.to(device), "steps": ends.to(device)}
        returns = (kept["step_rewards"] * kept["steps"]).sum(-1) / kept["steps"].sum(-1)
        return dataclasses.replace(rollout, kept=rollout.kept | kept), returns

    def prepare(self, rollout: Rollout, returns: Tensor, log_prob: Tensor, entropy: Tensor) -> Batch:
        """What stays fixed while a batch is gone through: advantages, the proximal policy and the reference.

        Args:
            rollout: B answers.
            returns: (B,).
            log_prob: (B, C) of the policy before its updates.
            entropy: (B, C).
        """
        method, config, mask = self.method, self.config, rollout.trained
        if method.overlong_share:
            buffer = max(1, round(method.overlong_share * config.max_new_tokens))
            returns = returns + overlong_penalty(mask.sum(-1), config.max_new_tokens, buffer)
        groups = torch.arange(len(returns), device=returns.device) // config.group
        reference = None if self.reference is None else self._forward(self.reference, rollout)[0]
        kl = pg.kl_k1(rollout.log_prob, reference, mask) if method.kl == "reward" and reference is not None else None
        steps = (rollout.kept["step_rewards"], rollout.kept["steps"]) if self.of_steps else None
        more = {}
        if self.critic is None:
            advantages = losses.advantages(method, returns, groups, mask, kl, steps)
        else:
            values = self.critic.all_values(rollout)
            advantages, targets = losses.critic_advantages(method, returns, mask, values, kl)
            more = {"values": values, "value_targets": targets}
        if "scales" in rollout.kept:  # one for each answer, kept at all of its tokens
            advantages = advantages * rollout.kept["scales"][:, :1]
        versions = torch.full_like(groups, self.sampler_version if config.lag else self.version)
        mask = mask * fresh_mask(versions, self.version, config.oldest).unsqueeze(-1)
        if "entropy_weights" in rollout.kept:  # one for each answer, kept at all of its tokens
            more["entropy_weights"] = rollout.kept["entropy_weights"][:, 0]
        batch = Batch(
            log_prob, log_prob, rollout.log_prob, mask, mask, advantages, returns, groups, entropy, reference, **more
        )
        return dataclasses.replace(batch, units=losses.selected(method, batch, rollout.finished))

    def _first(self, rollout: Rollout) -> Forward:
        """What the update begins with; with gradient where it is the one update on these answers, too."""
        return (
            self.policy.log_probs(rollout, self.entropy_gradient)
            if self._single(rollout)
            else self._forward(self.policy, rollout)
        )

    def _single(self, rollout: Rollout) -> bool:
        config = self.config
        return config.epochs * config.minibatches == 1 and len(rollout.finished) <= config.rows_at_once

    @torch.no_grad()
    def _forward(self, policy: LMPolicy, rollout: Rollout) -> tuple[Tensor, Tensor]:
        size = self.config.rows_at_once
        parts = [policy.log_probs(rollout.rows(slice(k, k + size))) for k in range(0, len(rollout.finished), size)]
        return torch.cat([logs for logs, _ in parts]), torch.cat([entropies for _, entropies in parts])

    def take(self, rollout: Rollout, batch: Batch, forward: Forward | None) -> dict[str, float]:
        """All optimiser steps on one batch; metrics of the last. With `forward` there is one, of these numbers."""
        config, group = self.config, self.config.group
        count = len(batch.returns) // group
        metrics: dict[str, float] = {}
        for epoch in range(config.epochs):
            order = _order(config.seed, epoch, count, self.step) if config.minibatches > 1 else np.arange(count)
            for part in np.array_split(order, min(config.minibatches, count)):
                rows = torch.as_tensor((part[:, None] * group + np.arange(group)).ravel(), device=batch.mask.device)
                metrics = self._update(rollout, batch, rows, forward)
        return metrics

    def _update(self, rollout: Rollout, batch: Batch, rows: Tensor, forward: Forward | None) -> dict[str, float]:
        """One optimiser step, its gradient in parts that are divided by what the whole minibatch counts."""
        config = self.config
        counts = losses.denominators(self.method, batch.rows(rows))
        parts = rows.split(max(1, config.rows_at_once // config.group) * config.group)
        total, shown = torch.zeros((), device=batch.mask.device), dict[str, Tensor]()
        self.optimizer.zero_grad()
        for part in parts:
            log_prob, entropy = forward or self.policy.log_probs(rollout.rows(part), self.entropy_gradient)
            now = dataclasses.replace(batch.rows(part), log_prob=log_prob, entropy=entropy)
            loss, reported = losses.loss(self.method, now, config.max_new_tokens, *counts)
            loss.backward()
            total += loss.detach()
            for name, value in reported.items():
                old = shown.get(name, torch.zeros_like(value))
                shown[name] = torch.maximum(old, value) if name.endswith("max") else old + value / len(parts)
        share = config.share(self.step + 1, config.steps)
        norm = self.optimizer.step(total, config.max_gradient_norm, share, f"step {self.step}")
        self.version += 1
        found = {name: float(value) for name, value in shown.items()}
        if self.critic is not None:
            found |= self.critic.update(rollout, batch, rows, config.max_gradient_norm, share, f"step {self.step}")
        return found | {
            "loss": float(total),
            "gradient_norm": norm,
            "learning_rate": config.learning_rate * share,
        }

    def advance(self) -> dict[str, float]:
        """One step: a batch is sampled and learned from."""
        self.refresh()
        rollout, returns, metrics = self.collect()
        found = self.learn(rollout, returns, metrics)
        if isinstance(self.reward, Learning):
            found |= self.reward.learn(self.answered, self.policy.decode(rollout), self.config.group)
        return found

    def refresh(self) -> None:
        """Bring copies up to date that are to be, before a batch is sampled."""
        if self.config.lag and self.step % self.config.lag == 0:
            _overwrite(self.sampler, self.policy)
            self.sampler_version = self.version
        if self.nucleus is not None and self.step % self.config.nucleus_every == 0:
            _overwrite(self.nucleus.policy, self.policy)

    def learn(self, rollout: Rollout, returns: Tensor, metrics: dict[str, float]) -> dict[str, float]:
        """All updates on a batch of answers, whoever sampled it; `metrics` with those of learning added.

        Args:
            rollout: B answers, `config.group` in a row being a group.
            returns: (B,), NaN where an answer could not be scored.
            metrics: of the batch.

        Raises:
            ConfigError: before its first update the model gives other log-probabilities than it sampled with.
            DivergenceError: the loss stopped being finite.
        """
        began = time.perf_counter()
        ahead, self._ahead = self._ahead, None
        first = ahead[1] if ahead is not None and ahead[0] is rollout.completion_ids else self._first(rollout)
        forward = first if self._single(rollout) else None  # of the one update, too
        log_prob, entropy = first
        batch = self.prepare(rollout, returns, log_prob.detach(), entropy.detach())
        gap = pg.weight_metrics(batch.proximal, batch.behaviour, batch.mask)
        if self.version == 0 and self.policy.model.dtype == torch.float32 and float(gap["gap_max"]) > LARGEST_GAP:
            raise ConfigError(
                f"a token's log-probability differs by {float(gap['gap_max']):.2g} nats between sampling and training: "
                "the model depends on something else than tokens and positions (dropout, generation of its own), and "
                "would learn from wrong ratios"
            )
        metrics |= {name: float(value) for name, value in gap.items()}
        metrics["entropy"] = float((batch.entropy * batch.mask).sum() / batch.mask.sum().clamp(min=1))
        metrics |= self.take(rollout, batch, forward)
        metrics |= {"training_seconds": time.perf_counter() - began, "tokens": float(rollout.trained.sum())}
        self.end_step()
        return metrics

    def end_step(self) -> None:
        """Count a step, whether or not this policy learned in it; the reference follows where that is due."""
        self.step += 1
        if self.slow is not None and self.method.reads == "consistency" and self.step % SLOW_EVERY == 0:
            _overwrite(self.slow, self.policy, SLOW_SHARE)
        if self.reference is not None and self.config.reference_every and self.step % self.config.reference_every == 0:
            _overwrite(self.reference, self.policy, self.config.reference_share)
            if self.config.reference_share == 1:
                self.optimizer.clear()  # a hard reset begins with a fresh optimiser (ProRL)

    # -- its state ---------------------------------------------------------------------------------------------

    def _copies(self) -> dict[str, LMPolicy]:
        """Policies beside the one that is trained, with weights of their own."""
        found = {"reference": self.reference, "sampler": self.sampler, "slow": self.slow}
        found["nucleus"] = None if self.nucleus is None else self.nucleus.policy
        return {name: one for name, one in found.items() if one is not None and one is not self.policy}

    def settings(self) -> dict[str, Any]:
        """What a checkpoint has to agree in to be of the same run."""
        more = {"temperature": self.policy.temperature, "prompts": len(self.prompts)}
        return deciding(self.method, self.config) | more

    def save(self, path: pathlib.Path) -> None:
        """Write the whole state."""
        tensors = {f"model/{name}": value.detach() for name, value in self.parameters.items()}
        tensors |= self.optimizer.tensors()
        for kind, other in self._copies().items():
            own = dict(other.model.named_parameters())
            tensors |= {f"{kind}/{name}": own[name].detach() for name in self.parameters}
        if self.critic is not None:
            tensors |= {f"critic/{name}": value for name, value in self.critic.tensors().items()}
        counters = {name: getattr(self, name) for name in ("step", "drawn", "version", "sampler_version", "spread")}
        if isinstance(self.reward, Learning):
            tensors |= {f"reward/{name}": value for name, value in self.reward.state().items()}
        if self.weakness is not None:
            tensors["weakness"] = self.weakness.sums
        checkpoint.save(path, tensors, {"kind": "language training", **counters, "settings": self.settings()})

    def load(self, path: pathlib.Path) -> None:
        """Continue from what `save` wrote.

        Raises:
            CheckpointError: the file is damaged, has numbers that are not finite, or is of another model, or of a run
                with other settings.
        """
        tensors, meta = checkpoint.load(path, "language training")
        checkpoint.check_tensors(path, tensors)
        check_same(path, meta.get("settings"), self.settings())
        for kind in ("model", *self._copies()):
            for name, parameter in self.parameters.items():
                found = tensors.get(f"{kind}/{name}")
                if found is None or found.shape != parameter.shape:
                    raise CheckpointError(
                        f"{path}: is of another model or method, it has no {kind}/{name} of this shape"
                    )
        of_critic = _below("critic/", tensors)
        if self.critic is not None and (lacking := self.critic.lacks(of_critic)) is not None:
            raise CheckpointError(f"{path}: is of another model or method, it has no critic's {lacking} of this shape")
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"model/{name}"])
            for kind, other in self._copies().items():
                own = dict(other.model.named_parameters())
                for name in self.parameters:
                    own[name].copy_(tensors[f"{kind}/{name}"])
        self.optimizer.load(tensors)
        if self.critic is not None:
            self.critic.load(of_critic)
        if self.weakness is not None and "weakness" in tensors:
            self.weakness.load(tensors["weakness"])
        if isinstance(self.reward, Learning):
            self.reward.load_state(_below("reward/", tensors))
        for name in ("step", "drawn", "version", "sampler_version"):
            setattr(self, name, int(meta[name]))
        self.spread = float(meta.get("spread", 0.0))  # those of earlier versions have none


def _sage_of(method: Method) -> Sage:
    return Sage(method.sage, method.sage_width, method.sage_tolerance, method.step_mark, method.think_mark)


def _order(seed: int, epoch: int, count: int, *more: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch, count, *more]).permutation(count)


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _copy(policy: LMPolicy, trained: bool = False) -> LMPolicy:
    """Its own weights, which are not `trained`; those that no training changes (under adapters) are shared."""
    shared = {id(p): p for p in policy.model.parameters() if not p.requires_grad}
    model = copy.deepcopy(policy.model, shared)
    return LMPolicy(model if trained else model.requires_grad_(False), policy.tokenizer, policy.temperature)


@torch.no_grad()
def _overwrite(there: LMPolicy, here: LMPolicy, share: float = 1.0) -> None:
    for old, new in zip(there.model.parameters(), here.model.parameters(), strict=True):
        if old is not new:
            old.lerp_(new, share)
