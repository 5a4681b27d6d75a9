"""Countdown, the longer task of language models: four digits and + - * that come to a number, 300 steps of rewards.

    python benchmarks/llm_countdown.py              # compute what is missing, then write the table
    python benchmarks/llm_countdown.py --table      # only the table
    python benchmarks/llm_countdown.py --quick      # one small cell, for CI

The task, model and settings of `examples/llm_countdown.py`: a character model of 229,000 parameters copies random
expressions for 1,200 steps, then gets 1 for each right answer: 32 prompts with 8 answers a step, temperature 1, AdamW
at 1e-4, no KL to a reference, 512 prompts held out by a hash. Each digit is used once, many answers are right, and
unlike in addition the teacher's way of answering is not the best. One warm start a seed, the same for all methods.
Answers have 7 tokens and an end and may have 10. Where they may have 8, DAPO's penalty takes 1 from each right one.
"""

from __future__ import annotations

import functools
from typing import Any

from cells import Results
from llm_methods import HELD_OUT, Variant, change, comparison, compute, name_of
from study import Cell, study_main

STEPS, EVERY = 300, 100
VARIANTS = (
    Variant("dapo_clip", "DAPO, decoupled clip", "dapo_clip", 1e-4, task="countdown"),
    Variant("rloo", "RLOO", "rloo", 1e-4, task="countdown"),
    Variant("limit", "DAPO, answers of at most 8 tokens", "dapo_clip", 1e-4, seeds=1, task="countdown", limit=8),
)


def cell(variant: Variant, seed: int) -> Any:
    """One of the study."""
    return compute(variant, seed, STEPS, HELD_OUT, None, EVERY)


def table(found: Results) -> list[str]:
    """Before and after, and the points between."""
    lines = comparison(found, __doc__, "Countdown, the longer task of language models", VARIANTS)
    lines += ["", "Change since the warm start along training, the same intervals:", ""]
    lines += ["| method | steps | greedy | pass@1 | pass@8 |", "|---|---|---|---|---|"]
    for variant in VARIANTS:
        cells = [found[name_of(variant, seed)] for seed in range(variant.seeds) if name_of(variant, seed) in found]
        for step in range(EVERY, STEPS + 1, EVERY) if cells else ():
            at = [one | {"after": next(p for p in one["curve"] if p["step"] == step)} for one in cells]
            changes = " | ".join(change(at, which) for which in ("greedy", "pass_1", "pass_k"))
            lines.append(f"| {variant.title} | {step} | {changes} |")
    return lines


CELLS = [Cell(name_of(v, seed), functools.partial(cell, v, seed)) for v in VARIANTS for seed in range(v.seeds)]

if __name__ == "__main__":
    quick = Cell("quick", functools.partial(compute, VARIANTS[0], 0, 2, 8, 20, 1))
    study_main(__doc__, "llm_countdown", CELLS, table, quick)
