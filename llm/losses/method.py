"""A method's loss out of four arguments to `surefoot.core`'s functions: advantages, ratio, surrogate, reduction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.options import Options, option
from surefoot.core.losses import policy_gradient as pg
from surefoot.core.losses.masked import REDUCTIONS, keep, masked_mean, normalise, reduce, sequence_mask
from surefoot.llm.losses.advantages import (
    BASELINES,
    best_of_group,
    group_baseline,
    pairwise_baseline,
    step_rewards_to_go,
    token_gae,
    token_returns,
    within_deviations,
)
from surefoot.llm.losses.regressions import (
    classification_terms,
    optimal_advantage_terms,
    optimal_value,
    ranking_terms,
    reward_weights,
)
from surefoot.llm.losses.reward_shaping import outcome_rewards
from surefoot.llm.losses.selection import high_entropy_mask, spurious_mask

TO_THE_SAMPLER = ("vespo", "oapl")
"""Surrogates whose ratio is to the policy that sampled."""
GROUPED = ("oapl", "pacs", "rrhf", "reward_weighted")
"""Surrogates that read rewards, most of them of whole groups, in the place of advantages."""
UNITS = ("all", "high_entropy", "spurious", "chosen")
RATIOS = (*pg.LEVELS, "sequence_of_units")
VERDICT = "{prompt}\n\nAnswer 1: {first}\n\nAnswer 2: {second}\n\nThe better answer (1 or 2) is answer "
"""How a model is asked for the better of two answers."""
READS = ("none", "probability", "consistency", "diversity", "choice", "demonstration")
"""Rewards of methods that read the policy; `llm.own_rewards` has them."""
JUDGED = ("best", "pairwise")
"""Advantages that are the outcome of a comparison, and not a sum that a penalty could be taken from."""


@dataclasses.dataclass(frozen=True)
class Method(Options):
    """What an update is made of."""

    title: str
    source: str
    advantages: str = option(
        "meanstd",
        "advantages: none, mean, meanstd, loo, batchstd, best, pairwise, steps, gae, or whitened: docs/llm.md",
    )
    ratio: str = option(
        "unit",
        "ratio: unit (a token), chain (product over the answer), sequence (its root), sequence_of_units",
        choices=RATIOS,
    )
    surrogate: str = option(
        "clip", "surrogate: clip, cispo, sapo, vespo, likelihood, reward_weighted, oapl, pacs, rrhf"
    )
    reduction: str = option(
        "mean",
        "reduction: mean (of tokens), sequence_mean, token_sum, fixed_length, length_weighted",
        choices=REDUCTIONS,
    )
    low: float = option(0.2, "clip range below 1", range=">= 0")
    high: float = option(0.2, "clip range above 1", range=">= 0")
    dual: float = option(0.0, "dual clip c, where A < 0; 0 for none", range=">= 0")
    cap: float = option(5.0, "CISPO: the largest ratio", range="> 0")
    scale: float = option(1.0, "OAPL, PACS: b, what the summed log-ratio is multiplied by", range="> 0")
    temperature: float = option(1.0, "OAPL: of the optimal value; RWR: of the weights", range="> 0")
    log_ratio_bound: float = option(
        0.0, "log-ratios are cut here before the surrogate; 0 for the core's own bound", range=">= 0"
    )
    fixed_length: int = option(0, "length of the reduction 'fixed_length'; 0 for max_new_tokens", range=">= 0")
    units: str = option(
        "all",
        "tokens that are trained: all, high_entropy, spurious (all but those), chosen (of best answers)",
        choices=UNITS,
    )
    share: float = option(0.2, "high_entropy: share of the tokens that are trained", range="(0, 1]")
    discount: float = option(1.0, "advantages=gae: discount from one token to the next", range="[0, 1]")
    trace: float = option(0.95, "advantages=gae: lambda, 1 for rewards to come less the critic's value", range="[0, 1]")
    value_clip: float = option(
        0.2,
        "advantages=gae: clip of the change of a value within a batch, in units of the reward; 0 for none",
        range=">= 0",
    )
    weight_cap: float = option(
        0.0, "weights of a foreign or older sampler are cut here; 0 for no weights", range=">= 0"
    )
    drop_above_cap: bool = option(
        False, "tokens whose weight is above weight_cap count for nothing, in place of being cut"
    )
    lagged: bool = option(False, "whether it is made for a sampler that lags behind: a run then has to set lag=")
    kl: str = option("none", "KL to the reference: none, reward (k1), or as a loss k2, k3, k3_straight, k3_weighted")
    kl_coefficient: float = option(0.0, "weight of the KL to the reference", range=">= 0")
    entropy_coefficient: float = option(
        0.0, "weight of the entropy bonus, the mean over all tokens, trained or not", range=">= 0"
    )
    mixed_groups: bool = option(False, "draw again for groups whose rewards are all the same")
    overlong_share: float = option(
        0.0, "share of max_new_tokens before the limit in which a penalty grows to -1; 0 for none", range="[0, 1]"
    )
    drop_truncated: bool = option(False, "leave out answers without an end")
    reads: str = option(
        "none",
        "reward of its own: none, probability (RLPR), consistency (CARE), diversity, choice (URPO), demonstration",
        choices=READS,
    )
    answer_mark: str = option(
        "", "text that an answer follows in a completion; with reads=probability, none for its end"
    )
    form_share: float = option(
        0.1, "reads=probability: share of the reward function, which judges the form", range="[0, 1]"
    )
    spread: float = option(
        0.0, "RLPR's beta: groups that deviate less than this part of the running mean are left out", range=">= 0"
    )
    diversity_bonus: float = option(
        0.001, "reads=diversity: what full difference adds to a right answer's reward", range=">= 0"
    )
    diversity_entropy: float = option(
        0.0, "weight of the entropy of right answers, weighed by their difference (DSDR)", range=">= 0"
    )
    gap_limit: float = option(
        1.0,
        "reads=demonstration: squared deviation of gaps in reward from their mean that still counts",
        range=">= 0",
    )
    judge: str = option(VERDICT, "reads=choice: how the better of two answers is asked for")
    verdict_tokens: int = option(
        8, "reads=choice: the most tokens of the reply, of which the first 1 or 2 counts", range="> 0"
    )
    sage: int = option(
        0,
        "answers of each group that are drawn by SAGE, where the model is sure of its reasoning; 0 for none",
        range=">= 0",
    )
    sage_width: int = option(2, "SAGE's m: chains that are kept, of 2m continuations of each")
    sage_tolerance: float = option(
        1.0, "SAGE's TR: of the 2m likeliest continuations, the share that may end the reasoning"
    )
    step_mark: str = option("\n\n", "SAGE: text that ends a step")
    think_mark: str = option("</think>", "SAGE: text that ends the reasoning")
    nucleus: float = option(
        0.0, "tokens are drawn from the nucleus of this share of a mask policy alone; 0 for all tokens", range="[0, 1]"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        for field, names in (("advantages", (*ADVANTAGES, STEPS, GAE)), ("surrogate", SURROGATES), ("kl", KL_TERMS)):
            if getattr(self, field) not in names:
                close = nearest(getattr(self, field), list(names))
                raise ConfigError(f"method.{field}={getattr(self, field)!r}: {close}", field=field, code="choice")
        if self.sage and self.nucleus:
            raise ConfigError("method.sage draws from all tokens: leave method.nucleus out")
        if self.weight_cap > 0 and self.surrogate in TO_THE_SAMPLER:
            raise ConfigError(
                f"method.weight_cap is above 0, and the loss of {self.surrogate} has a correction of its own for the "
                "policy that sampled: leave it at 0"
            )
        if self.diversity_entropy and self.reads != "diversity":
            raise ConfigError("method.diversity_entropy weighs answers by their difference: set method.reads=diversity")
        if self.reads != "none" and self.advantages == STEPS:
            raise ConfigError(
                f"method.reads={self.reads} is a reward of answers, and method.advantages=steps reads steps"
            )
        missing = [part for part in ("{prompt}", "{first}", "{second}") if part not in self.judge]
        if missing:
            raise ConfigError(f"method.judge={self.judge!r} has no {missing[0]}: it asks for the better of two answers")
        if self.advantages == GAE and (self.of_sequences or self.surrogate in GROUPED):
            raise ConfigError(
                f"method.advantages=gae are those of tokens, and method.surrogate={self.surrogate} with "
                f"method.ratio={self.ratio} is of whole answers: take a surrogate of tokens, as clip with ratio=unit"
            )
        if self.drop_above_cap and not self.weight_cap:
            raise ConfigError("method.drop_above_cap leaves out what is above method.weight_cap: set that, as to 5")
        if self.kl_coefficient > 0 and self.kl == "none":
            raise ConfigError("method.kl_coefficient is above 0 and method.kl is none: say where the KL goes, as kl=k3")
        if self.kl == "reward" and (self.surrogate in GROUPED or self.advantages in JUDGED):
            field = "surrogate" if self.surrogate in GROUPED else "advantages"
            raise ConfigError(
                f"method.kl=reward takes the KL from advantages, and method.{field}={getattr(self, field)} reads the "
                "rewards alone: put it into the loss, as kl=k3"
            )
        if self.overlong_share > 0 and self.advantages == STEPS:
            raise ConfigError(
                f"method.overlong_share={self.overlong_share} takes from the reward of an answer, and "
                "method.advantages=steps reads those of its steps alone: leave it at 0"
            )

    @property
    def of_sequences(self) -> bool:
        """Whether terms are (B, 1), one for each answer."""
        return self.surrogate in ("oapl", "pacs", "rrhf") or (
            self.surrogate == "clip" and self.ratio in ("chain", "sequence")
        )


@dataclasses.dataclass(frozen=True)
class Batch:
    """What a loss reads of B answers with at most C tokens. Groups are whole."""

    log_prob: Tensor
    """(B, C), with gradient."""
    proximal: Tensor
    """(B, C), of the policy before this batch's updates, by the trainer's own forward pass."""
    behaviour: Tensor
    """(B, C), of the policy that sampled, as it recorded them."""
    mask: Tensor
    """(B, C), of real tokens."""
    units: Tensor
    """(B, C), of those that are trained; `selected`."""
    advantages: Tensor
    """(B, 1) or (B, C)."""
    returns: Tensor
    """(B,), NaN where an answer could not be scored."""
    groups: Tensor
    """(B,) integers."""
    entropy: Tensor
    """(B, C), in nats."""
    reference: Tensor | None = None
    """(B, C), of the reference policy."""
    values: Tensor | None = None
    """(B, C), of the critic before this batch's updates: what is to come before each token is drawn."""
    value_targets: Tensor | None = None
    """(B, C), what the critic learns."""
    entropy_weights: Tensor | None = None
    """(B,), of the entropy of whole answers; their sum over a group is the group's size, or 0."""

    def rows(self, which: Tensor) -> Batch:
        """Some of the rows."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        chosen: dict[str, Any] = {name: None if value is None else value[which] for name, value in values.items()}
        return Batch(**chosen)


# -- advantages: (returns, groups, mask, penalty of each token) -> (B, 1) or (B, C) ---------------------------


def _against_group(mode: str) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def of(returns: Tensor, groups: Tensor, mask: Tensor, penalty: Tensor) -> Tensor:
        return group_baseline(returns - penalty.sum(-1), groups, mode).unsqueeze(-1)

    return of


def _token_rewards(returns: Tensor, mask: Tensor, penalty: Tensor) -> Tensor:
    """(B, C): minus the penalty at each token, plus the answer's reward at its last one; `mask` keeps scored rows."""
    rewards = torch.zeros_like(mask)
    scored = sequence_mask(mask).squeeze(-1) != 0
    rewards[scored] = outcome_rewards(returns[scored].to(mask.dtype), mask[scored])
    return keep(rewards - penalty, mask)


def _to_go(returns: Tensor, mask: Tensor, penalty: Tensor) -> Tensor:
    mask = mask * ~returns.isnan().unsqueeze(-1)
    return token_returns(_token_rewards(returns, mask, penalty), mask)


def _whitened_to_go(returns: Tensor, groups: Tensor, mask: Tensor, penalty: Tensor) -> Tensor:
    return normalise(_to_go(returns, mask, penalty), mask * ~returns.isnan().unsqueeze(-1))


def _whitened_group_mean(returns: Tensor, groups: Tensor, mask: Tensor, penalty: Tensor) -> Tensor:
    centred = group_baseline(returns, groups, "mean").unsqueeze(-1).expand_as(mask)
    scored = mask * ~returns.isnan().unsqueeze(-1)
    return normalise(keep(centred - penalty.flip(-1).cumsum(-1).flip(-1), scored), scored)


def _filtered_to_go(returns: Tensor, groups: Tensor, mask: Tensor, penalty: Tensor) -> Tensor:
    return within_deviations(_to_go(returns, mask, penalty), mask * ~returns.isnan().unsqueeze(-1))


def _best(returns: Tensor, groups: Tensor, mask: Tensor, penalty: Tensor) -> Tensor:
    return best_of_group(returns, groups).unsqueeze(-1)


def _pairwise(returns: Tensor, groups: Tensor, mask: Tensor, penalty: Tensor) -> Tensor:
    """Against the first of each group, which is as random as any: answers to a prompt come in no order."""
    numbers = torch.unique(groups, return_inverse=True)[1]
    rows = torch.arange(len(returns), device=returns.device)
    first = torch.full_like(rows, len(rows)).scatter_reduce_(0, numbers, rows, "amin")[numbers]
    judged = ~(returns.isnan() | returns[first].isnan())
    return keep(pairwise_baseline(returns > returns[first], rows == first, groups), judged).unsqueeze(-1)


ADVANTAGES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    **{mode: _against_group(mode) for mode in BASELINES},
    "whitened_to_go": _whitened_to_go,
    "whitened_group_mean": _whitened_group_mean,
    "filtered_to_go": _filtered_to_go,
    "best": _best,
    "pairwise": _pairwise,
}
STEPS = "steps"
"""Advantages of step rewards, which need those and the steps' ends."""
GAE = "gae"
"""Advantages of tokens by a critic's values, which need those: `critic_advantages`."""


def advantages(
    method: Method,
    returns: Tensor,
    groups: Tensor,
    mask: Tensor,
    kl: Tensor | None = None,
    steps: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Advantages of a whole batch of answers, without gradient.

    Args:
        method: whose `advantages` to use; its KL coefficient weighs `kl`.
        returns: (B,); NaN for answers that could not be scored, which get 0.
        groups: (B,) integers.
        mask: (B, C).
        kl: (B, C), `kl_k1` to the reference, where the KL goes into the reward.
        steps: of the advantages "steps": rewards and ends of steps, (B, C) each.

    Returns:
        (B, 1) or (B, C).

    Raises:
        ConfigError: advantages of steps without rewards of steps.
    """
    if method.advantages == GAE:
        raise ConfigError("advantages of a critic need its values: critic_advantages has them")
    if method.advantages == STEPS:
        if steps is None:
            raise ConfigError("advantages of steps need a reward of steps, as a reward model that was trained on them")
        found = step_rewards_to_go(*steps, groups, mask * ~returns.isnan().unsqueeze(-1))
        return (found if kl is None else found - method.kl_coefficient * token_returns(keep(kl, mask), mask)).detach()
    penalty = torch.zeros_like(mask) if kl is None else method.kl_coefficient * keep(kl, mask)
    return ADVANTAGES[method.advantages](returns, groups, mask, penalty).detach()


@torch.no_grad()
def critic_advantages(
    method: Method, returns: Tensor, mask: Tensor, values: Tensor, kl: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Generalised advantages of tokens, whitened over the batch, and what the critic is to learn.

    Args:
        method: whose discount, trace and KL coefficient count.
        returns: (B,), given with an answer's last token; NaN for answers that could not be scored, which get 0.
        mask: (B, C).
        values: (B, C), the critic's, before each token is drawn.
        kl: (B, C), `kl_k1` to the reference, which is taken from each token's reward.

    Returns:
        (B, C) each; targets are the advantages before they are whitened, plus the values.

    Source: Ziegler et al., "Fine-Tuning Language Models from Human Preferences", and its code, which whitens.
    """
    scored = mask * ~returns.isnan().unsqueeze(-1)
    penalty = torch.zeros_like(mask) if kl is None else method.kl_coefficient * keep(kl, mask)
    rewards = _token_rewards(returns, scored, penalty)
    found, targets = token_gae(rewards, keep(values, scored), scored, method.discount, method.trace)
    return keep(normalise(found, scored), scored), targets


# -- which tokens are trained ----------------------------------------------------------------------------------

RENORMALISED = ("spurious", "chosen")
"""Their loss is divided by the number of tokens that are left, that of the others by the number that there was."""


def selected(method: Method, batch: Batch, finished: Tensor) -> Tensor:
    """(B, C): the tokens that a method trains, chosen with the proximal policy over the whole batch."""
    units = batch.mask
    if not bool(units.any()):  # all samples are too old: there is no quantile, and nothing is trained
        return units
    if method.units == "high_entropy":
        units = high_entropy_mask(batch.entropy, units, method.share)
    elif method.units == "spurious":
        units = spurious_mask(batch.proximal, batch.entropy, batch.advantages, units)
    elif method.units == "chosen":
        units = units * (batch.advantages != 0)
    return units * finished.to(units.dtype).unsqueeze(-1) if method.drop_truncated else units


# -- surrogates: (method, batch) -> terms, where they were clipped ----------------------------------------------


def _log_ratio(method: Method, batch: Batch) -> Tensor:
    if method.ratio == "sequence_of_units":
        logs = pg.sequence_log_ratio_of_units(batch.log_prob, batch.proximal, batch.mask)
    else:
        logs = pg.log_ratio(batch.log_prob, batch.proximal, batch.mask, method.ratio)
    bound = method.log_ratio_bound
    return logs.clamp(-bound, bound) if bound else logs


def _clip(method: Method, batch: Batch) -> tuple[Tensor, Tensor | None]:
    mask = sequence_mask(batch.units) if method.of_sequences else batch.units
    dual = method.dual or None
    return pg.clip_surrogate(_log_ratio(method, batch), batch.advantages, method.low, method.high, dual, mask)


def _cispo(method: Method, batch: Batch) -> tuple[Tensor, Tensor | None]:
    return pg.cispo_surrogate(_log_ratio(method, batch), batch.log_prob, batch.advantages, method.cap, batch.units)


def _sapo(method: Method, batch: Batch) -> tuple[Tensor, Tensor | None]:
    return pg.sapo_surrogate(_log_ratio(method, batch), batch.advantages, mask=batch.units), None


def _vespo(method: Method, batch: Batch) -> tuple[Tensor, Tensor | None]:
    logs = pg.log_ratio(batch.log_prob, batch.behaviour, batch.mask, "chain")
    return pg.vespo_surrogate(logs, batch.log_prob, batch.advantages, mask=batch.units), None


def _likelihood(method: Method, batch: Batch) -> tuple[Tensor, Tensor | None]:
    return pg.reinforce_surrogate(batch.log_prob, batch.advantages, None, batch.units), None


def _reward_weighted(method: Method, batch: Batch) -> tuple[Tensor, Tensor | None]:
    weights = reward_weights(batch.returns, method.temperature).unsqueeze(-1)
    return pg.reinforce_surrogate(batch.log_prob, weights, None, batch.units), None


def _oapl(method: Method, batch: Batch) -> tuple[Tensor, Tensor | None]:
    values = optimal_value(batch.returns, batch.groups, method.temperature)
    terms = optimal_advantage_terms(batch.log_prob, batch.behaviour, batch.returns, values, batch.units, method.scale)
    return terms, None


def _pacs(method: Method, batch: Batch) -> tuple[Tensor, Tensor | None]:
    right = torch.where(batch.returns.isnan(), torch.nan, (batch.returns > 0.5).to(batch.log_prob.dtype))
    return classification_terms(batch.log_prob, batch.proximal, right, batch.groups, batch.units, method.scale), None


def _rrhf(method: Method, batch: Batch) -> tuple[Tensor, Tensor | None]:
    return ranking_terms(batch.log_prob, batch.returns, batch.groups, batch.units), None


SURROGATES: dict[str, Callable[[Method, Batch], tuple[Tensor, Tensor | None]]] = {
    "clip": _clip,
    "cispo": _cispo,
    "sapo": _sapo,
    "vespo": _vespo,
    "likelihood": _likelihood,
    "reward_weighted": _reward_weighted,
    "oapl": _oapl,
    "pacs": _pacs,
    "rrhf": _rrhf,
}


def _weighed_entropy(batch: Batch) -> Tensor:
    """Terms of minus the entropy of answers, of samples of the proximal policy: w rho log pi (B, C).

    Source: "DSDR" (2602.19895), its local term.
    """
    assert batch.entropy_weights is not None
    rho = pg.ratio(pg.log_ratio(batch.log_prob, batch.proximal, batch.mask))
    return batch.entropy_weights.unsqueeze(-1) * rho * batch.log_prob


KL_TERMS: dict[str, Callable[[Batch, Tensor], Tensor] | None] = {
    "none": None,
    "reward": None,
    "k2": lambda batch, reference: pg.kl_k2(batch.log_prob, reference, batch.mask),
    "k3": lambda batch, reference: pg.kl_k3(batch.log_prob, reference, batch.mask),
    "k3_straight": lambda batch, reference: pg.kl_k3_straight(batch.log_prob, reference, batch.mask),
    "k3_weighted": lambda batch, reference: pg.kl_k3_weighted(batch.log_prob, reference, batch.proximal, batch.mask),
}


def denominators(method: Method, batch: Batch) -> tuple[Tensor, int, Tensor]:
    """Tokens and rows that the loss of this batch is divided by, and all its tokens, by which its entropy is.

    To be counted before it is cut into parts. Rows that are masked as a whole count, so that the size of a step does
    not depend on how many were masked.
    """
    counted = batch.units if method.units in RENORMALISED else batch.mask
    return counted.sum().clamp(min=1), len(batch.mask), batch.mask.sum().clamp(min=1)


def loss(
    method: Method,
    batch: Batch,
    longest: int,
    tokens: Tensor | float | None = None,
    rows: int | None = None,
    all_tokens: Tensor | float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch, or of a part of one.

    Args:
        method: which.
        batch: whole groups.
        longest: the most tokens of an answer, what "fixed_length" divides by where the method has no length of its own.
        tokens: denominator of the whole batch, of which this may be a part; None to count this one.
        rows: likewise.
        all_tokens: what the entropy's sum is divided by, tokens that are not trained included; None for `tokens`.

    Returns:
        A scalar, and metrics without gradient.
    """
    own_tokens, own_rows, own_all = denominators(method, batch)
    all_tokens = (own_all if tokens is None else tokens) if all_tokens is None else all_tokens
    tokens, rows = own_tokens if tokens is None else tokens, own_rows if rows is None else rows
    length = method.fixed_length or longest

    def total(terms: Tensor, mode: str) -> Tensor:
        mask = batch.units
        if terms.shape[-1] != mask.shape[-1] and mode != "length_weighted":
            mask = sequence_mask(mask)
        elif mode == "sequence_mean" and method.units not in RENORMALISED:
            terms, mask = keep(terms, mask), batch.mask
        return reduce(terms, mask, mode, denominator=tokens if mode == "mean" else rows, length=length)

    terms, clipped = SURROGATES[method.surrogate](method, batch)
    if method.weight_cap:  # terms of whole answers have one weight each
        level = "unit" if not method.of_sequences else "sequence" if method.ratio == "sequence" else "chain"
        high, drop = method.weight_cap, method.drop_above_cap
        terms = terms * pg.behaviour_weight(batch.proximal, batch.behaviour, batch.mask, level, high=high, reject=drop)
    found = total(terms, "token_sum" if method.of_sequences and method.reduction == "mean" else method.reduction)
    metrics = pg.ratio_metrics(pg.log_ratio(batch.log_prob, batch.proximal, batch.mask), None, batch.mask)
    if clipped is not None:
        mask = batch.units if clipped.shape == batch.units.shape else sequence_mask(batch.units)
        metrics["clip_fraction"] = masked_mean(clipped.to(mask.dtype), mask)
    if method.entropy_coefficient:  # over tokens whatever the reduction, so that its coefficient keeps its meaning
        found = found - method.entropy_coefficient * reduce(batch.entropy, batch.mask, "mean", denominator=all_tokens)
    if method.diversity_entropy and batch.entropy_weights is not None:
        found = found + method.diversity_entropy * total(_weighed_entropy(batch), "sequence_mean")
    estimate = KL_TERMS[method.kl]
    if estimate is not None and batch.reference is not None and method.kl_coefficient:
        mode = "sequence_mean" if method.of_sequences else method.reduction
        found = found + method.kl_coefficient * total(estimate(batch, batch.reference), mode)
    if batch.reference is not None:
        metrics["reference_kl"] = masked_mean(
            pg.kl_k3(batch.log_prob.detach(), batch.reference, batch.mask), batch.mask
        )
    return found, metrics
