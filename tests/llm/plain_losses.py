"""Each method's loss written out answer by answer: the second implementation of `test_losses.py`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from surefoot.llm import Batch, Method
from surefoot.llm.losses.method import advantages, critic_advantages, selected

GROUP, LONGEST = 4, 7
LENGTHS = [3, 6, 1, 4, 6, 2, 5, 3]
FINISHED = torch.tensor([True, False, True, True, False, True, True, True])
RETURNS = [1.0, 0.0, 0.0, 1.0, 0.3, 1.0, 0.0, 0.2]


class Answers:
    """Eight answers in two groups."""

    def __init__(self, seed: int = 0, gap: float = 0.2) -> None:
        source = torch.Generator().manual_seed(seed)

        def draw() -> Tensor:
            return torch.randn(8, 6, generator=source, dtype=torch.float64)

        self.old = -draw().abs() - 0.1
        self.beh = self.old + gap * draw()
        self.ref = self.old + 0.3 * draw()
        self.new = (self.old + gap * draw()).requires_grad_()
        self.entropy = draw().abs()
        self.mask = (torch.arange(6) < torch.tensor(LENGTHS)[:, None]).double()
        self.returns = torch.tensor(RETURNS, dtype=torch.float64)
        self.groups = torch.arange(8) // GROUP
        self.values = draw()

    def entropy_weights(self) -> list[float]:
        """Shares of right answers, those of a group summing to 1."""
        return [0.3, 0.0, 0.0, 0.7, 0.0, 1.0, 0.0, 0.0, *[0.0] * (len(self.mask) - 8)]

    def batch(self, one: Method) -> Batch:
        kl = (self.beh - self.ref) if one.kl == "reward" else None
        ends = self.mask * (torch.arange(6) % 2 == 0)
        steps = (self.returns.unsqueeze(-1) * (1 + torch.arange(6)), ends) if one.advantages == "steps" else None
        if one.advantages == "gae":
            found, _ = critic_advantages(one, self.returns, self.mask, self.values, kl)
        else:
            found = advantages(one, self.returns, self.groups, self.mask, kl, steps)
        batch = Batch(
            self.new, self.old, self.beh, self.mask, self.mask, found, self.returns, self.groups, self.entropy, self.ref
        )
        if one.diversity_entropy:
            batch = dataclasses.replace(
                batch, entropy_weights=torch.tensor(self.entropy_weights(), dtype=torch.float64) * GROUP
            )
        return dataclasses.replace(batch, units=selected(one, batch, FINISHED[torch.arange(len(self.mask)) % 8]))


# -- the second implementation: for each answer and token, with numbers out of python -----------------------------


def group_of(row: int) -> range:
    return range(row // GROUP * GROUP, row // GROUP * GROUP + GROUP)


def mean(values: list) -> Tensor:
    return sum(values) / len(values)


def deviation(values: list) -> float:
    centre = mean(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1))


def tokens(row: int) -> range:
    return range(LENGTHS[row])


def everywhere() -> list[tuple[int, int]]:
    return [(row, t) for row in range(8) for t in tokens(row)]


def by_group(kind: str, returns: list[float]) -> list[float]:
    found = []
    for row in range(8):
        own = [returns[k] for k in group_of(row)]
        centred = returns[row] - mean(own)
        if kind == "meanstd":
            centred /= deviation(own) + 1e-4
        elif kind == "batchstd":
            centred /= deviation(returns) + 1e-4
        elif kind == "loo":
            centred *= GROUP / (GROUP - 1)
        found.append(centred)
    return found


def clipped(rho: Tensor, advantage: float, low: float, high: float) -> Tensor:
    return -torch.minimum(rho * advantage, rho.clamp(1 - low, 1 + high) * advantage)


def token_mean(term: Callable[[int, int], Tensor]) -> Tensor:
    return mean([term(*place) for place in everywhere()])


def answer_mean(term: Callable[[int, int], Tensor]) -> Tensor:
    return mean([mean([term(row, t) for t in tokens(row)]) for row in range(8)])


def ppo(a: Answers, found: list[float], low: float = 0.2, high: float = 0.2) -> Callable[[int, int], Tensor]:
    return lambda row, t: clipped((a.new[row, t] - a.old[row, t]).exp(), found[row], low, high)


def grpo(a: Answers) -> Tensor:
    terms = ppo(a, by_group("meanstd", RETURNS))

    def k3(row: int, t: int) -> Tensor:
        d = a.ref[row, t] - a.new[row, t]
        return d.exp() - 1 - d

    return answer_mean(lambda row, t: terms(row, t) + 0.001 * k3(row, t))


def dr_grpo(a: Answers) -> Tensor:
    terms = ppo(a, by_group("mean", RETURNS))
    return sum(terms(*place) for place in everywhere()) / LONGEST / 8


def dapo_clip(a: Answers) -> Tensor:
    return token_mean(ppo(a, by_group("meanstd", RETURNS), 0.2, 0.28))


def lite_ppo(a: Answers) -> Tensor:
    return token_mean(ppo(a, by_group("batchstd", RETURNS)))


def rloo(a: Answers) -> Tensor:
    paid = [RETURNS[row] - 0.05 * float(sum(a.beh[row, t] - a.ref[row, t] for t in tokens(row))) for row in range(8)]
    found = by_group("loo", paid)
    whole = [sum(a.new[row, t] - a.old[row, t] for t in tokens(row)).exp() for row in range(8)]
    return mean([clipped(whole[row], found[row], 0.2, 0.2) for row in range(8)])


def whitened(values: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    numbers = list(values.values())
    return {place: (value - mean(numbers)) / (deviation(numbers) + 1e-8) for place, value in values.items()}


def penalties_to_come(a: Answers, row: int, t: int, coefficient: float = 1e-3) -> float:
    return coefficient * float(sum(a.beh[row, k] - a.ref[row, k] for k in tokens(row) if k >= t))


def reinforce_pp(a: Answers, bound: float = 20.0, most: float = math.inf, coefficient: float = 1e-3) -> Tensor:
    found = whitened({(row, t): RETURNS[row] - penalties_to_come(a, row, t, coefficient) for row, t in everywhere()})
    found = {place: value if abs(value) <= most else 0.0 for place, value in found.items()}
    logs = (a.new - a.old).clamp(-bound, bound)
    return token_mean(lambda row, t: clipped(logs[row, t].exp(), found[row, t], 0.2, 0.2))


def stable_reinforce(a: Answers) -> Tensor:
    return reinforce_pp(a, math.log(1000), 3.0)


def reinforce_pp_baseline(a: Answers) -> Tensor:
    centred = by_group("mean", RETURNS)
    found = whitened({(row, t): centred[row] - penalties_to_come(a, row, t) for row, t in everywhere()})
    return token_mean(lambda row, t: clipped((a.new - a.old)[row, t].exp(), found[row, t], 0.2, 0.2))


def loop(a: Answers) -> Tensor:
    found = by_group("loo", RETURNS)

    def term(row: int, t: int) -> Tensor:
        rho = (a.new[row, t] - a.old[row, t]).exp()
        return -torch.minimum(rho * found[row], rho.clamp(1 / 1.2, 1.2) * found[row])

    return answer_mean(term)


def of_answers(a: Answers, low: float, high: float) -> list[Tensor]:
    found = by_group("meanstd", RETURNS)
    rho = [mean([a.new[row, t] - a.old[row, t] for t in tokens(row)]).exp() for row in range(8)]
    return [clipped(rho[row], found[row], low, high) for row in range(8)]


def gspo(a: Answers) -> Tensor:
    return mean(of_answers(a, 3e-4, 4e-4))


def luspo(a: Answers) -> Tensor:
    terms = of_answers(a, 2e-3, 2.5e-3)
    return mean([LENGTHS[row] * terms[row] for row in range(8)])


def vespo(a: Answers) -> Tensor:
    found = by_group("meanstd", RETURNS)

    def term(row: int, t: int) -> Tensor:
        weight = sum(a.new[row, k].detach() - a.beh[row, k] for k in tokens(row)).exp()
        k, lam = (2, 3) if found[row] >= 0 else (3, 2)
        return -(weight**k) * (lam * (1 - weight)).exp() * found[row] * a.new[row, t]

    return token_mean(term)


def cispo(a: Answers) -> Tensor:
    found = by_group("meanstd", RETURNS)
    rho = (a.new.detach() - a.old).exp().clamp(max=5.0)
    return token_mean(lambda row, t: -rho[row, t] * found[row] * a.new[row, t])


def sapo(a: Answers) -> Tensor:
    found = by_group("meanstd", RETURNS)

    def term(row: int, t: int) -> Tensor:
        rho, tau = (a.new[row, t] - a.old[row, t]).exp(), 1.0 if found[row] > 0 else 1.05
        return -found[row] * 4 / tau / (1 + (-tau * (rho - 1)).exp())

    return answer_mean(term)


def oapl(a: Answers) -> Tensor:
    terms = []
    for row in range(8):
        value = math.log(mean([math.exp(RETURNS[k]) for k in group_of(row)]))
        moved = sum(a.new[row, t] - a.beh[row, t] for t in tokens(row))
        terms.append((1e-3 * moved - (RETURNS[row] - value)) ** 2)
    return mean(terms)


def pacs(a: Answers) -> Tensor:
    z = [sum(a.new[row, t] - a.old[row, t] for t in tokens(row)) for row in range(8)]
    right = [value > 0.5 for value in RETURNS]
    terms = []
    for row in range(8):
        logit = z[row] - mean([z[k] for k in group_of(row) if k != row])
        same = sum(right[k] == right[row] for k in group_of(row))
        weight = GROUP / (2 * same) if same < GROUP else 1.0
        share = 1 / (1 + (-logit).exp())
        terms.append(-weight * (share.log() if right[row] else (1 - share).log()))
    return mean(terms)


def raft(a: Answers) -> Tensor:
    return -mean([a.new[row, t] for row in (0, 5) for t in tokens(row)])


def rrhf(a: Answers) -> Tensor:
    p = [mean([a.new[row, t] for t in tokens(row)]) for row in range(8)]
    worse = [(p[i] - p[j]).clamp(min=0) for i in range(8) for j in group_of(i) if RETURNS[i] < RETURNS[j]]
    best = [-sum(a.new[row, t] for t in tokens(row)) for row in (0, 5)]
    return (sum(worse) + sum(best)) / 8


def rwr(a: Answers) -> Tensor:
    return token_mean(lambda row, t: -min(math.exp(RETURNS[row] / 0.5), 20.0) * a.new[row, t])


def entropy_tokens(a: Answers) -> Tensor:
    terms = ppo(a, by_group("meanstd", RETURNS), 0.2, 0.28)
    known = torch.stack([a.entropy[place] for place in everywhere()])
    high = [place for place in everywhere() if a.entropy[place] >= known.quantile(0.8)]
    return sum(terms(*place) for place in high) / len(everywhere())


def stapo(a: Answers) -> Tensor:
    found = by_group("meanstd", RETURNS)
    terms = ppo(a, found, 0.2, 0.28)
    rare = [(row, t) for row, t in everywhere() if found[row] > 0 and float(a.old[row, t].exp()) < 0.002]
    sure = torch.stack([a.entropy[place] for place in rare]).quantile(0.75) if rare else 0.0
    kept = [place for place in everywhere() if not (place in rare and a.entropy[place] < sure)]
    return mean([terms(*place) for place in kept])


def gui_g1(a: Answers) -> Tensor:
    terms = ppo(a, by_group("mean", RETURNS))
    return sum(terms(*place) for place in everywhere()) / 64 / 8


def rlpr(a: Answers) -> Tensor:
    return token_mean(ppo(a, by_group("meanstd", RETURNS), 0.2, 0.27))


def care(a: Answers) -> Tensor:
    return answer_mean(ppo(a, by_group("meanstd", RETURNS)))


urpo = care


def dsdr(a: Answers) -> Tensor:
    weights = a.entropy_weights()

    def moved(row: int, t: int) -> Tensor:
        return (a.new[row, t] - a.old[row, t]).exp() * a.new[row, t]

    of_answers = [weights[row] * mean([moved(row, t) for t in tokens(row)]) for row in range(8)]
    entropy = -sum(of_answers) / 2  # of two groups
    return token_mean(ppo(a, by_group("meanstd", RETURNS), 0.2, 0.28)) - 0.001 * entropy


def async_ppo(a: Answers) -> Tensor:
    terms = ppo(a, by_group("meanstd", RETURNS))
    weight = (a.old - a.beh).exp()
    return token_mean(lambda row, t: (weight[row, t] if weight[row, t] <= 5 else 0.0) * terms(row, t))


def generalised(
    a: Answers, discount: float = 1.0, trace: float = 0.95, coefficient: float = 0.02
) -> dict[tuple[int, int], float]:
    """By the definition: at each token the weighted sum of all later errors of one step."""
    found = {}
    for row, t in everywhere():
        last = LENGTHS[row] - 1
        errors = []
        for k in range(t, last + 1):
            paid = (RETURNS[row] if k == last else 0.0) - coefficient * float(a.beh[row, k] - a.ref[row, k])
            following = float(a.values[row, k + 1]) if k < last else 0.0
            errors.append(paid + discount * following - float(a.values[row, k]))
        found[row, t] = sum((discount * trace) ** n * error for n, error in enumerate(errors))
    return found


def critic_ppo(a: Answers, discount: float = 1.0, coefficient: float = 0.02) -> Tensor:
    found = whitened(generalised(a, discount, 0.95, coefficient))
    return token_mean(lambda row, t: clipped((a.new - a.old)[row, t].exp(), found[row, t], 0.2, 0.2))


def nlpo(a: Answers) -> Tensor:
    return critic_ppo(a, 0.99, 0.1)


def brpo(a: Answers) -> Tensor:
    found = []
    for row in range(8):
        own = {k: 1.0 if RETURNS[k] > RETURNS[group_of(row)[0]] else -1.0 for k in group_of(row)[1:]}
        one_sided = abs(sum(own.values())) / GROUP > 0.6
        found.append(0.0 if one_sided else own.get(row, 0.0))
    assert found == [0, 0, 0, 0, 0, 1, -1, -1]
    return token_mean(ppo(a, found))


def process(a: Answers) -> Tensor:
    def paid(row: int, t: int) -> float:
        return RETURNS[row] * (1 + t)

    found = {}
    for row, t in everywhere():
        own = [paid(k, step) for k in group_of(row) for step in tokens(k) if step % 2 == 0]
        scaled = {
            step: (paid(row, step) - mean(own)) / (deviation(own) + 1e-4) for step in tokens(row) if step % 2 == 0
        }
        found[row, t] = sum(value for step, value in scaled.items() if step >= t)

    def term(row: int, t: int) -> Tensor:
        d = a.ref[row, t] - a.new[row, t]
        rho = (a.new[row, t] - a.old[row, t]).exp()
        return clipped(rho, found[row, t], 0.2, 0.2) + 0.001 * (d.exp() - 1 - d)

    return answer_mean(term)


EXPECTED = {one.__name__: one for one in (
    grpo, dr_grpo, dapo_clip, lite_ppo, rloo, reinforce_pp, reinforce_pp_baseline, stable_reinforce, loop, gspo, luspo,
    vespo, cispo, sapo, oapl, pacs, raft, rrhf, rwr, entropy_tokens, stapo, gui_g1, rlpr, async_ppo,
    nlpo, brpo, process, care, dsdr,
)} | {"gspo_token": gspo, "urpo": urpo, "grpo_s": grpo, "ppo": critic_ppo}  # fmt: skip
