"""Where a language model goes when its rewards are shuffled, and why: gradient in the mean, step size, KL.

    python benchmarks/llm_shuffled.py              # compute what is missing, then write the table
    python benchmarks/llm_shuffled.py --table      # only the table
    python benchmarks/llm_shuffled.py --quick      # one small cell, for CI

Addition after a noisy teacher, one seed, DAPO's decoupled clip, 32 prompts with 8 answers a step. Rewards are shuffled
within each batch, so that there is nothing to learn. The first table is about the gradient of one batch at the warm
start, over 2,000 shuffles of its rewards; the second about what 120 steps do to 256 prompts that were held out.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from cells import Results
from llm_methods import KL, TASK, warm
from study import Cell, git_commit, study_main

from surefoot.core.losses.policy_gradient import group_baseline
from surefoot.llm import Loop, TrainConfig, evaluate, method, train
from surefoot.llm.tasks import shuffled

NONE: dict[str, Any] = {"kl": "none", "kl_coefficient": 0.0}
SHUFFLES = 2_000


class Variant(NamedTuple):
    """One training."""

    name: str
    title: str
    learning_rate: float
    steps: int = 120
    shuffled: bool = True
    changes: dict[str, Any] = NONE


VARIANTS = (
    Variant("3e-4", "shuffled, 3e-4", 3e-4),
    Variant("1e-4", "shuffled, 1e-4", 1e-4),
    Variant("1e-4-20", "shuffled, 1e-4, the first 20 steps", 1e-4, 20),
    Variant("3e-5", "shuffled, 3e-5", 3e-5),
    Variant("kl", "shuffled, 1e-4, KL (k2, 0.1)", 1e-4, changes=KL),
    Variant("true", "true rewards, 1e-4", 1e-4, shuffled=False),
    Variant("true-kl", "true rewards, 1e-4, KL (k2, 0.1)", 1e-4, shuffled=False, changes=KL),
)


def configured(steps: int, learning_rate: float) -> TrainConfig:
    """The loop's settings."""
    return TrainConfig(
        steps=steps,
        prompts_per_step=32,
        group=8,
        max_new_tokens=TASK.new,
        learning_rate=learning_rate,
        evaluate_every=steps,
    )


def gradient() -> dict[str, Any]:
    """Norms of gradients of one batch: of its true rewards, of one shuffle, of the mean over many shuffles.

    With a ratio of 1 the gradient is the sum of A_i grad log p_i over the number of tokens, A of the shuffled rewards;
    so each answer's gradient is computed once.
    """
    torch.set_num_threads(1)
    policy = warm(0)
    prompts = TASK.prompts(np.random.default_rng([0, 3]), 320, False)
    loop = Loop(policy, prompts, TASK.reward, method("dapo_clip", **NONE), configured(1, 1e-4))
    rollout, rewards, _ = loop.collect()
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    rows = []
    for row in range(len(rewards)):
        log_prob, _ = policy.log_probs(rollout.rows(slice(row, row + 1)))
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(log_prob.sum(), parameters)]))
    stacked, tokens = torch.stack(rows), rollout.completion_mask.sum()
    products = stacked @ stacked.T / tokens**2
    random = torch.Generator().manual_seed(0)

    def norm(advantages: torch.Tensor) -> float:
        return float((advantages @ products @ advantages).clamp(min=0).sqrt())

    def advantages(values: torch.Tensor) -> torch.Tensor:
        return group_baseline(values, 8, "meanstd")

    drawn = torch.stack([advantages(rewards[torch.randperm(len(rewards), generator=random)]) for _ in range(SHUFFLES)])
    one = float(((drawn @ products) * drawn).sum(1).mean().sqrt())
    spectrum = torch.linalg.eigvalsh(products.double())
    return {
        "true": norm(advantages(rewards)),
        "one_shuffle": one,
        "mean_of_shuffles": norm(drawn.mean(0)),
        "expected_of_chance": one / SHUFFLES**0.5,
        "effective_rank": float(spectrum.sum() ** 2 / spectrum.square().sum()),
        "answers": len(rewards),
        "git": git_commit(),
    }


def trained(variant: Variant, held: int = 256) -> dict[str, Any]:
    """One cell."""
    torch.set_num_threads(1)
    policy, start = warm(0), warm(0)
    unseen = TASK.prompts(np.random.default_rng([0, 2]), held, True)
    before = evaluate(policy, unseen, TASK.reward, new=TASK.new)
    reward = shuffled(TASK.reward, 0) if variant.shuffled else TASK.reward
    prompts = TASK.prompts(np.random.default_rng([0, 3]), 32 * variant.steps, False)
    settings = configured(variant.steps, variant.learning_rate)
    train(policy, prompts, reward, method("dapo_clip", **variant.changes), settings)
    answers = policy.generate(policy.encode([prompt.text for prompt in unseen]), 4, TASK.new, seed=0)
    with torch.no_grad():
        gap = (policy.log_probs(answers)[0] - start.log_probs(answers)[0]) * answers.completion_mask
    return {
        "learning_rate": variant.learning_rate,
        "steps": variant.steps,
        "shuffled": variant.shuffled,
        "changes": variant.changes,
        "before": before.to_json(),
        "after": evaluate(policy, unseen, TASK.reward, new=TASK.new).to_json(),
        "divergence": float(gap.sum(-1).mean()),
        "git": git_commit(),
    }


def table(found: Results) -> list[str]:
    """Both tables."""
    lines = ["# Shuffled rewards", "", *(__doc__ or "").split("\n\n")[-1].strip().splitlines(), ""]
    one = found.get("gradient")
    if one is None:
        lines.append("The gradient is missing.")
    else:
        lines += ["| norm of the gradient | |", "|---|---|"]
        lines += [
            f"| of the true rewards | {one['true']:.3f} |",
            f"| of one shuffle (rms) | {one['one_shuffle']:.3f} |",
        ]
        lines += [f"| of the mean over {SHUFFLES:,} shuffles | {one['mean_of_shuffles']:.4f} |"]
        lines += [f"| expected of that by chance, were it 0 | {one['expected_of_chance']:.4f} |"]
        rank = f"{one['effective_rank']:.0f}"
        lines += ["", f"Effective rank of the gradients of {one['answers']} answers: {rank}."]
    lines += [
        "",
        "| rewards, steps | pass@1 before | after | pass@8 before | after | KL to the start, nats an answer |",
    ]
    lines += ["|---|---|---|---|---|---|"]
    for variant in VARIANTS:
        cell = found.get(variant.name)
        if cell is None:
            lines.append(f"| {variant.title} |" + " missing |" * 5)
            continue
        shown = [f"{cell[when][w][0]:.3f} ± {cell[when][w][1]:.3f}" for w in ("pass_1", "pass_k") for when in WHEN]
        lines.append(f"| {variant.title} | " + " | ".join(shown) + f" | {cell['divergence']:.2f} |")
    return [*lines, "", "Half-widths of 95 % intervals over prompts."]


WHEN = ("before", "after")
CELLS = [Cell("gradient", gradient), *(Cell(v.name, functools.partial(trained, v)) for v in VARIANTS)]

if __name__ == "__main__":
    quick = Cell("quick", functools.partial(trained, VARIANTS[0]._replace(steps=1), 8))
    study_main(__doc__, "llm_shuffled", CELLS, table, quick)
