"""Is a filter safe at the margin that it is claimed to need, and unsafe below? A million episodes where it should be
safe.

    python benchmarks/shield.py            # compute what is missing, then write the table
    python benchmarks/shield.py --quick    # few episodes, for CI

The double integrator on a line with |u| <= 1, |x| <= 1 and steps of 0.05 s, held exactly; 2,000 actions drawn
uniformly, from states with V <= -0.1, through `LeastRestrictive` with the value of the closed form and braking as its
fallback. That value is exact in continuous time; sampled, the last period of braking overshoots by up to
U dt^2 / 8 = 3.125e-4 m.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from cells import Results
from study import Cell, git_commit, study_main
from torch import Tensor

from surefoot.evaluation import certificate
from surefoot.safe.filters.model import Model
from surefoot.safe.filters.safety_filter import LeastRestrictive
from surefoot.safe.reachability import closed_forms
from surefoot.safe.reachability.problems import Line

MARGINS = (0.0, 1e-4, 2e-4, 3e-4, 3.125e-4, 4e-4, 1e-3)
EXPECTED = {0.0: 0.96, 1e-4: 0.85, 4e-4: 0.0, 1e-3: 0.0}  # reference values
EPISODES, STEPS, BLOCK = 1_000_000, 2_000, 8_192
FEW = 100_000
"""Episodes at margins that can't be enough: what is shown there is no small probability."""


def value(states: Tensor) -> Tensor:
    """The closed form."""
    return closed_forms.double_integrator(*states.unbind(-1))


def starts(count: int, generator: torch.Generator) -> Tensor:
    """Uniform in the set V <= -0.1."""
    found: list[Tensor] = []
    while sum(map(len, found)) < count:
        drawn = torch.rand(2 * count, 2, dtype=torch.float64, generator=generator) * 2 - 1
        drawn = drawn * torch.tensor([1.0, 2.0], dtype=torch.float64)
        found.append(drawn[value(drawn) <= -0.1])
    return torch.cat(found)[:count]


def violations(margin: float, episodes: int, steps: int = STEPS, seed: int = 0) -> int:
    """Episodes in which the constraint was ever broken; those that have are followed no further."""
    line = Line()
    model = Model(line)
    shield = LeastRestrictive(model, value, margin, fallback=line.braking)
    broken = 0
    for block in range(0, episodes, BLOCK):
        generator = torch.Generator().manual_seed(seed + block)
        states = starts(min(BLOCK, episodes - block), generator)
        for _ in range(steps):
            actions = torch.rand(len(states), 1, dtype=torch.float64, generator=generator) * 2 - 1
            states = model(states, shield(states, actions).actions)
            outside = model.h(states) > 0
            if bool(outside.any()):
                broken += int(outside.sum())
                states = states[~outside]
                if len(states) == 0:
                    break
    return broken


def cell(margin: float, episodes: int = EPISODES, steps: int = STEPS) -> dict[str, Any]:
    """One margin."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    broken = violations(margin, episodes, steps)
    found = certificate(broken, episodes)
    return {
        "margin": margin,
        "episodes": episodes,
        "steps": steps,
        **found.to_json(),
        "seconds": round(time.perf_counter() - began, 1),
        "git": git_commit(),
    }


def name(margin: float) -> str:
    """Of a cell."""
    return f"margin-{margin:g}"


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# A shield at and below the margin that it needs",
        "",
        f"Double integrator on a line, {STEPS:,} random actions through the least restrictive filter, dt 0.05 s; the "
        "margin that sampling makes necessary is U dt^2 / 8 = 3.125e-4 m. Written by `python benchmarks/shield.py`.",
        "",
        "| margin, m | episodes | with a violation | share | two-sided 95 % interval | expected |",
        "|---|---|---|---|---|---|",
    ]
    for one in found.values():
        expected = EXPECTED.get(one["margin"])
        row = [f"{one['margin']:g}", f"{one['episodes']:,}", f"{one['violations']:,}", f"{one['rate']:.4g}"]
        row += [f"[{one['low']:.4g}, {one['high']:.4g}]", "" if expected is None else f"{expected:g}"]
        lines.append("| " + " | ".join(row) + " |")
    return [*lines, "", f"{len(found)} of {len(MARGINS)} cells are there."]


def main() -> None:
    """The command line."""
    enough = closed_forms.sampling_margin(1.0, Line.time_step)
    few = [margin < enough * (1 - 1e-9) for margin in MARGINS]
    cells = [
        Cell(name(margin), functools.partial(cell, margin, FEW if short else EPISODES))
        for margin, short in zip(MARGINS, few, strict=True)
    ]
    study_main(__doc__, "shield", cells, table, Cell("quick", lambda: cell(4e-4, 1_000, 200)))


if __name__ == "__main__":
    main()
