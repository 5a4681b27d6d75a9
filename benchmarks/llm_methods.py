"""Methods of language models on addition after a noisy teacher: before and after 120 steps of rewards.

    python benchmarks/llm_methods.py              # compute what is missing, then write the table
    python benchmarks/llm_methods.py --table      # only the table
    python benchmarks/llm_methods.py --quick      # one small cell, for CI

One warm start a seed, the same for all methods; 32 prompts with 8 answers a step, temperature 1, 512 prompts held out.
By default AdamW takes steps of 3e-4 and there is no KL to a reference; "with KL" is k2 as a loss, 0.1.
Controls get the rewards of each batch shuffled, so that there is nothing to learn.
"""

from __future__ import annotations

import functools
import pathlib
import platform
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from cells import Results
from study import Cell, git_commit, study_main

from surefoot.evaluation import hierarchical_interval
from surefoot.llm import Report, TrainConfig, evaluate, load_policy, method, train
from surefoot.llm.policy import LMPolicy
from surefoot.llm.tasks import TASKS, shuffled

SEEDS, STEPS, HELD_OUT = 3, 120, 512
TASK = TASKS["addition"]
WARM = pathlib.Path(tempfile.gettempdir()) / "surefoot-llm-methods"
"""Warm starts, made once on each machine."""


class Variant(NamedTuple):
    """A method, and what it is trained with."""

    name: str
    title: str
    method: str
    learning_rate: float = 3e-4
    shuffled: bool = False
    changes: dict[str, Any] = {}  # noqa: RUF012
    seeds: int = SEEDS
    task: str = "addition"
    limit: int | None = None
    """The most tokens of an answer; None for the task's."""


KL: dict[str, Any] = {"kl": "k2", "kl_coefficient": 0.1}
VARIANTS = (
    Variant("grpo", "GRPO", "grpo"),
    Variant("rloo", "RLOO", "rloo"),
    Variant("dr_grpo", "Dr.GRPO", "dr_grpo"),
    Variant("dapo_clip", "DAPO, decoupled clip", "dapo_clip"),
    Variant("gspo", "GSPO", "gspo"),
    Variant("vespo", "VESPO", "vespo"),
    Variant("kl", "DAPO, at 1e-4 with KL", "dapo_clip", 1e-4, changes=KL),
    Variant("kl-shuffled", "DAPO, at 1e-4 with KL, rewards shuffled", "dapo_clip", 1e-4, True, KL),
    Variant("shuffled", "DAPO, rewards shuffled", "dapo_clip", shuffled=True),
)


def warm(seed: int, steps: int | None = None, task: str = "addition") -> LMPolicy:
    """The policy that has copied the task's teacher, of a file where it is there."""
    steps = TASKS[task].supervised if steps is None else steps
    folder = WARM / f"{task}-{seed}-{steps}"
    if not (folder / "config.json").is_file():
        aside = pathlib.Path(f"{folder}.new")
        TASKS[task].copied(seed, steps).save(aside)
        aside.rename(folder)
    return load_policy(folder)


def compute(
    variant: Variant,
    seed: int,
    steps: int = STEPS,
    held: int = HELD_OUT,
    copied: int | None = None,
    every: int | None = None,
) -> Any:
    """One cell; `copied` steps of copying (default: the task's), and a point of its curve `every` so many steps."""
    torch.set_num_threads(1)
    policy, task = warm(seed, copied, variant.task), TASKS[variant.task]
    new = task.new if variant.limit is None else variant.limit
    unseen = task.prompts(np.random.default_rng([seed, 2]), held, True)
    before = evaluate(policy, unseen, task.reward, new=new, seed=seed)
    config = TrainConfig(
        steps=steps,
        prompts_per_step=32,
        group=8,
        max_new_tokens=new,
        learning_rate=variant.learning_rate,
        evaluate_every=every or steps,
        seed=seed,
    )
    settings = {"kl": "none", "kl_coefficient": 0.0} | variant.changes
    reward = shuffled(task.reward, seed) if variant.shuffled else task.reward
    began = time.process_time()
    prompts = task.prompts(np.random.default_rng([seed, 3]), 32 * steps, False)
    looked_at = unseen if every else None
    lines = train(policy, prompts, reward, method(variant.method, **settings), config, held_out=looked_at)
    curve = [{"step": line["step"], **line["evaluation"]} for line in lines if "evaluation" in line]
    return {
        "method": variant.method,
        "learning_rate": variant.learning_rate,
        "shuffled": variant.shuffled,
        "changes": settings,
        "seed": seed,
        "steps": steps,
        "before": before.to_json(),
        "after": evaluate(policy, unseen, task.reward, new=new, seed=seed).to_json(),
        **({"curve": curve} if every else {}),
        "rewards": [round(line["reward"], 4) for line in lines if line["step"] % 10 == 0 and "reward" in line],
        "cpu_seconds": round(time.process_time() - began, 1),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "git": git_commit(),
    }


def name_of(variant: Variant, seed: int) -> str:
    """Of a cell."""
    return f"{variant.name}-s{seed}"


def change(found: list[Any], which: str) -> str:
    """Mean over seeds of after - before, and its interval where there is more than one."""
    each = [one["after"][which][0] - one["before"][which][0] for one in found]
    if len(each) == 1:
        return f"{each[0]:+.3f}"
    interval = hierarchical_interval([np.array([value]) for value in each], shared_episodes=False)
    return f"{interval.estimate:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def table(found: Results) -> list[str]:
    """The page of this study."""
    return comparison(found, __doc__, "Methods of language models on addition after a noisy teacher", VARIANTS)


def comparison(found: Results, about: str | None, title: str, variants: Sequence[Variant]) -> list[str]:
    """Rows of methods; a cell that is not there yet is missing."""
    lines = [f"# {title}", "", *(about or "").split("\n\n", 2)[2].strip().splitlines()]
    lines += [
        "",
        "Changes are means over seeds of held-out shares, brackets 95 % intervals over seeds (Student's t).",
        "",
    ]
    lines += ["| method | pass@1 before | after | change | pass@8 before | after | change | greedy | seeds |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for variant in variants:
        cells = [found[name_of(variant, seed)] for seed in range(variant.seeds) if name_of(variant, seed) in found]
        if not cells:
            lines.append(f"| {variant.title} |" + " missing |" * 7 + f" 0 of {variant.seeds} |")
            continue
        first, last = [Report.from_json(c["before"]) for c in cells], [Report.from_json(c["after"]) for c in cells]

        def mean(reports: list[Report], which: str) -> str:
            return f"{np.mean([getattr(report, which)[0] for report in reports]):.3f}"

        parts = [mean(first, "pass_1"), mean(last, "pass_1"), change(cells, "pass_1")]
        parts += [mean(first, "pass_k"), mean(last, "pass_k"), change(cells, "pass_k"), change(cells, "greedy")]
        lines.append(f"| {variant.title} | " + " | ".join(parts) + f" | {len(cells)} of {variant.seeds} |")
    return lines


CELLS = [Cell(name_of(v, seed), functools.partial(compute, v, seed)) for seed in range(SEEDS) for v in VARIANTS]

if __name__ == "__main__":
    quick = Cell("quick", functools.partial(compute, VARIANTS[0], 0, 2, 8, 20))
    study_main(__doc__, "llm_methods", CELLS, table, quick)
