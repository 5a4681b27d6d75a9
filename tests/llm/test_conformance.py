"""The conformance kit finds planted mistakes, finds none in ours, and compares the engines that are installed."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError
from surefoot.core.losses import policy_gradient as pg
from surefoot.core.losses.masked import group_moments, normalise
from surefoot.llm import LMPolicy, Rollout
from surefoot.llm.conformance import Case, Implementation, Ours, check, engine
from surefoot.llm.losses import BASELINES
from surefoot.llm.losses.method import Method, critic_advantages
from surefoot.llm.policy import log_prob_and_entropy


def changed(case: Case, **values: object) -> Case:
    return dataclasses.replace(case, **values)


class WithoutForward(Ours):
    """Its forward pass is not compared, which takes time."""

    log_probs = Implementation.log_probs


def mistaken_loss(change: Callable[[Case, str], Case]) -> type[Ours]:
    class Mistaken(WithoutForward):
        def loss(self, name: str, case: Case) -> Tensor | None:
            return super().loss(name, change(case, name))

    return Mistaken


def mistaken_settings(change: Callable[[Method], Method]) -> type[Ours]:
    class Mistaken(WithoutForward):
        def loss(self, name: str, case: Case) -> Tensor | None:
            return self.loss_as(change(self.settings(name)), case)

    return Mistaken


def mistaken_terms(function: str, mistake: Callable[..., object]) -> type[Ours]:
    class Mistaken(WithoutForward):
        def loss(self, name: str, case: Case) -> Tensor | None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(pg, function, mistake)
                return super().loss(name, case)

    return Mistaken


def mistaken_advantages(mistake: Callable[[str, Case], Tensor | None]) -> type[Ours]:
    class Mistaken(WithoutForward):
        def advantages(self, name: str, case: Case) -> Tensor | None:
            found = mistake(name, case)
            return super().advantages(name, case) if found is None else found

    return Mistaken


def mistaken_forward(mistake: Callable[[LMPolicy, Rollout], Tensor]) -> type[Ours]:
    class Mistaken(Ours):
        def log_probs(self, policy: LMPolicy, rollout: Rollout) -> Tensor | None:
            return mistake(policy, rollout)

    return Mistaken


def forward(
    policy: LMPolicy, rollout: Rollout, shift: int = 0, temperature: float = 0.7, positions: bool = True
) -> Tensor:
    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)
    mask = torch.cat([rollout.prompt_mask, rollout.completion_mask], 1).long()
    width = rollout.completion_ids.shape[1]
    more = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if positions else {}
    logits = policy.model(input_ids=ids, attention_mask=mask, **more).logits
    logits = logits[:, -width - 1 + shift : logits.shape[1] - 1 + shift]
    return log_prob_and_entropy(logits.flatten(0, 1), rollout.completion_ids.flatten(), temperature)[0].view(-1, width)


class EndMasked(WithoutForward):
    def completion_mask(self, tokens: Tensor, ends: Sequence[int]) -> Tensor | None:
        return super().completion_mask(tokens, ends) * ~torch.isin(tokens, torch.tensor(list(ends)))


class AfterTheEnd(WithoutForward):
    def completion_mask(self, tokens: Tensor, ends: Sequence[int]) -> Tensor | None:
        return (tokens != ends[0]).float()


class KLSign(WithoutForward):
    def divergence(self, name: str, case: Case) -> Tensor | None:
        return super().divergence(name, changed(case, log_prob=case.reference, reference=case.log_prob))


def zero_for_unscored(name: str, case: Case) -> Tensor | None:
    return Ours().advantages(name, changed(case, returns=case.returns.nan_to_num(nan=0.0)))


def contiguous_groups(name: str, case: Case) -> Tensor | None:
    return Ours().advantages(name, changed(case, groups=torch.arange(12) // 4))


def biased_deviation(name: str, case: Case) -> Tensor | None:
    if name != "meanstd":
        return None
    mean, variance, count = group_moments(case.returns, case.groups)
    return ((case.returns - mean) / ((variance * (count - 1) / count).sqrt() + 1e-4)).unsqueeze(1) * case.mask


def in_their_own_mean(name: str, case: Case) -> Tensor | None:
    return Ours().advantages("mean", case) if name == "loo" else None


def unwhitened(name: str, case: Case) -> Tensor | None:
    return Ours().advantages("mean", case) if name == "whitened_group_mean" else None


def half_a_trace(name: str, case: Case) -> Tensor | None:
    settings = Method("", "", advantages="gae", trace=0.5)
    return critic_advantages(settings, case.returns, case.mask, case.values)[0] if name == "gae" else None


class UnclippedValues(WithoutForward):
    def value_loss(self, case: Case) -> Tensor | None:
        return super().value_loss(changed(case, proximal=case.log_prob.detach()))


def stopped_at_tools(name: str, case: Case) -> Tensor | None:
    if name != "whitened_to_go":
        return None
    found = torch.zeros_like(case.mask)
    for row in range(len(case.mask)):
        last = int(case.mask[row].nonzero()[-1])
        begin = last
        while begin > 0 and case.mask[row, begin - 1]:
            begin -= 1
        found[row, begin : last + 1] = case.returns[row]
    return normalise(found, case.mask)


def undetached_cispo(logs: Tensor, log_prob: Tensor, advantages: Tensor, largest: float, mask: Tensor) -> tuple:
    rho = logs.exp().clamp(max=largest)
    return -torch.where(mask != 0, rho * advantages * log_prob, 0.0), rho > largest


def unclipped(logs: Tensor, advantages: Tensor, low: float, high: float, dual: float | None, mask: Tensor) -> tuple:
    return torch.where(mask != 0, -logs.exp() * advantages, 0.0), logs > high


def clipped_alone(logs: Tensor, advantages: Tensor, low: float, high: float, dual: float | None, mask: Tensor) -> tuple:
    return torch.where(mask != 0, -logs.exp().clamp(1 - low, 1 + high) * advantages, 0.0), logs > high


def dual_everywhere(
    logs: Tensor, advantages: Tensor, low: float, high: float, dual: float | None, mask: Tensor
) -> tuple[Tensor, Tensor]:
    terms, outside = CLIP(logs, advantages, low, high, None, mask)
    return (terms if dual is None else torch.minimum(terms, -dual * advantages)), outside


CLIP, SAPO, VESPO, K3 = pg.clip_surrogate, pg.sapo_surrogate, pg.vespo_surrogate, pg.kl_k3
replace = dataclasses.replace
MUTATIONS: dict[str, type[Ours]] = {
    "the ratio is always 1": mistaken_loss(lambda case, _: changed(case, proximal=case.log_prob.detach())),
    "the sign of the loss": mistaken_loss(lambda case, _: changed(case, advantages=-case.advantages)),
    "the sign of the KL": KLSign,
    "the KL weighs half as much again": mistaken_settings(lambda m: replace(m, kl_coefficient=m.kl_coefficient * 1.5)),
    "k2 in the place of k3": mistaken_settings(lambda m: replace(m, kl="k2" if m.kl == "k3" else m.kl)),
    "the ratio of the KL is detached": mistaken_settings(
        lambda m: replace(m, kl="k3" if m.kl == "k3_weighted" else m.kl)
    ),
    "the mask is one token late": mistaken_loss(lambda case, _: changed(case, mask=case.mask.roll(1, 1))),
    "local number of tokens": mistaken_loss(lambda case, _: changed(case, tokens=float(case.mask.sum()))),
    "local number of rows": mistaken_loss(lambda case, _: changed(case, parts=1)),
    "empty rows do not count": mistaken_loss(
        lambda case, _: changed(case, parts=case.parts * float((case.mask.sum(1) > 0).float().mean()))
    ),
    "the upper bound is the lower": mistaken_settings(lambda m: replace(m, high=m.low)),
    "no clip": mistaken_terms("clip_surrogate", unclipped),
    "clip without the minimum": mistaken_terms("clip_surrogate", clipped_alone),
    "dual clip for good answers too": mistaken_terms("clip_surrogate", dual_everywhere),
    "the product in the place of its root": mistaken_settings(
        lambda m: replace(m, ratio="chain" if m.ratio == "sequence" else m.ratio)
    ),
    "token ratios in the place of sequences'": mistaken_settings(
        lambda m: replace(m, ratio="unit" if m.ratio == "sequence_of_units" else m.ratio)
    ),
    "SAPO's temperatures are exchanged": mistaken_terms(
        "sapo_surrogate", lambda logs, advantages, mask: SAPO(logs, advantages, 1.05, 1.0, mask)
    ),
    "VESPO's shapes are exchanged": mistaken_terms(
        "vespo_surrogate",
        lambda logs, log_prob, advantages, mask: VESPO(logs, log_prob, advantages, (3.0, 2.0), (2.0, 3.0), mask),
    ),
    "CISPO's weight has a gradient": mistaken_terms("cispo_surrogate", undetached_cispo),
    "tokens averaged where answers are": mistaken_settings(
        lambda m: replace(m, reduction="mean" if m.reduction == "sequence_mean" else m.reduction)
    ),
    "Dr.GRPO divides by the padded width": mistaken_loss(lambda case, _: changed(case, longest=case.mask.shape[1])),
    "every token in the place of uncertain ones": mistaken_settings(lambda m: replace(m, units="all")),
    "answers without a score are in the baseline": mistaken_advantages(zero_for_unscored),
    "groups are taken to stand side by side": mistaken_advantages(contiguous_groups),
    "the biased deviation": mistaken_advantages(biased_deviation),
    "an answer is in its own baseline": mistaken_advantages(in_their_own_mean),
    "no whitening": mistaken_advantages(unwhitened),
    "half a trace": mistaken_advantages(half_a_trace),
    "values are not clipped": UnclippedValues,
    "returns end at a tool's answer": mistaken_advantages(stopped_at_tools),
    "no position ids": mistaken_forward(lambda policy, rollout: forward(policy, rollout, positions=False)),
    "no temperature": mistaken_forward(lambda policy, rollout: forward(policy, rollout, temperature=1.0)),
    "logits one place late": mistaken_forward(lambda policy, rollout: forward(policy, rollout, shift=1)),
    "the end token is masked": EndMasked,
    "what follows the end is trained": AfterTheEnd,
}


def test_ours_beside_ours_differs_in_nothing() -> None:
    found = check(Ours())
    assert len(found) > 70
    assert [one for one in found if not one.equal] == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_mistake_is_found(name: str) -> None:
    assert any(not one.equal for one in check(MUTATIONS[name](), list(MUTATIONS).index(name)))


def test_a_correct_second_forward_pass_is_not_found() -> None:
    found = check(mistaken_forward(forward)())
    assert [one for one in found if not one.equal] == []


def test_what_an_implementation_does_not_have_is_not_compared() -> None:
    assert check(Implementation()) == []
    with pytest.raises(ConfigError, match="unknown engine 'vllm'"):
        engine("vllm")


@pytest.mark.parametrize(("name", "version"), [("trl", "1.16."), ("verl", "0.9.")])
def test_an_installed_engine_computes_what_we_do_but_for_the_listed_differences(
    name: str, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(name) is None:
        assert main(["llm", "check", name]) == 2
        said = capsys.readouterr().err
        assert f"needs the package '{name}'" in said
        assert f"pip install {name}, in an environment of its own" in said  # no extra of ours brings it
        pytest.skip(f"{name} is not installed: pip install {name}=={version}*")
    other = engine(name)
    if not other.version.startswith(version):
        pytest.skip(f"{name} {other.version} is installed, the comparison is pinned to {version}*")
    found = check(other)
    assert [one for one in found if not one.accepted] == []
    assert {one.check for one in found if not one.equal} <= {
        "log-probabilities",
        *(f"advantages {k}" for k in BASELINES),
        "advantages whitened_to_go",
        "advantages whitened_group_mean",
        "advantages gae",
    }
    assert main(["llm", "check", name]) == 0
    assert "known difference" in capsys.readouterr().out
