"""Grid reachability against closed forms: what discount, binary signals and FISOR's expectile do to a safe set.

    python benchmarks/reachability.py            # compute what is missing, then write the tables
    python benchmarks/reachability.py --quick    # one small grid, for CI

Solver against closed form for the double integrator and a Dubins car before a disc, and the tabular limit of FISOR's
critics (no network, every action in the data), each beside a reference value.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import torch
from cells import Results
from study import Cell, git_commit, study_main

from surefoot.safe.reachability import closed_forms, compare, measures, problems, solve, solve_expectile

SIGNALS = {"signed": None, "binary -1/+1": 1.0, "binary -1/+5": 5.0, "binary -1/+25": 25.0}
DISCOUNTS = (0.9, 0.95, 0.99, 0.999, 0.9999, 1.0)
REFERENCE = {  # signal -> discount -> IoU / false-safe
    "signed": {
        0.9: ".628/.593",
        0.95: ".721/.387",
        0.99: ".957/.045",
        0.999: ".997/.003",
        0.9999: ".999/.000",
        1.0: ".998/.000",
    },
    "binary -1/+1": {0.95: ".749/.335", 0.99: ".978/.023", 0.999: ".992/.008"},
    "binary -1/+5": {0.95: ".980/.016", 0.99: ".972/.001", 0.999: ".965/.001"},
    "binary -1/+25": {0.95: ".957/.000", 0.99: ".934/.000", 0.999: ".930/.000"},
}
REFERENCE_DISC = {
    0.5: {0.95: ".899", 0.99: ".972", 0.999: ".998", 1.0: "1.000"},
    1.0: {0.95: ".933", 0.99: ".982", 0.999: ".998", 1.0: "1.000"},
}
EXPECTILES = (0.7, 0.9, 0.99, 1.0)
REFERENCE_TABULAR = {
    "signed": (".534/.000/.466", ".791/.000/.209", ".995/.003/.002", ".956/.046/.000"),
    "binary -1/+1": (".538/.000/.462", ".784/.000/.216", ".978/.000/.022", ".985/.015/.000"),
    "binary -1/+25": (".288/.000/.712", ".598/.000/.402", ".851/.000/.149", ".924/.000/.076"),
}
REFINED = ((41, 0.2), (81, 0.1), (161, 0.05), (321, 0.025))


def signal(name: str, actions: int, period: float = 0.05) -> Any:
    """The double integrator with one of the constraint signals."""
    problem = problems.double_integrator(period, actions=actions)
    magnitude = SIGNALS[name]
    return problem if magnitude is None else problems.binary(problem, magnitude)


def judged(solution: Any, truth: torch.Tensor, began: float) -> dict[str, Any]:
    """The comparison as JSON values."""
    return {
        **dataclasses.asdict(compare(solution.values, truth)),
        "unsafe_iou": measures.unsafe_iou(solution.values, truth),
        "missed_unsafe": measures.missed_unsafe(solution.values, truth),
        "unsafe_area": measures.volume(-solution.values, solution.grid.cell_volume),
        "sweeps": solution.sweeps,
        "converged": solution.converged,
        "seconds": round(time.perf_counter() - began, 2),
        "git": git_commit(),
    }


def braking(points: int, name: str, discount: float, period: float = 0.05) -> dict[str, Any]:
    """The double integrator's set."""
    torch.set_num_threads(1)
    began, grid = time.perf_counter(), problems.double_integrator_grid(points)
    truth = closed_forms.double_integrator(*grid.states().unbind(-1)).reshape(grid.shape)
    solution = solve(signal(name, 5, period), grid, discount=discount)
    return {"points": points, "signal": name, "discount": discount, "period": period, **judged(solution, truth, began)}


def disc(radius: float, discount: float) -> dict[str, Any]:
    """The car's set before a disc."""
    torch.set_num_threads(1)
    began, grid = time.perf_counter(), problems.dubins_disc_grid(201)
    truth = closed_forms.dubins_disc(*grid.states().unbind(-1), radius).reshape(grid.shape)
    solution = solve(problems.dubins_disc(radius), grid, discount=discount)
    return {"radius": radius, "discount": discount, **judged(solution, truth, began)}


def tabular(name: str, expectile: float) -> dict[str, Any]:
    """The tabular learner; an expectile of 1 is the exact minimum."""
    torch.set_num_threads(1)
    began, grid = time.perf_counter(), problems.double_integrator_grid(121)
    truth = closed_forms.double_integrator(*grid.states().unbind(-1)).reshape(grid.shape)
    problem = signal(name, 9)
    if expectile == 1:
        solution = solve(problem, grid, discount=0.99)
    else:
        solution = solve_expectile(problem, grid, expectile=expectile, discount=0.99)
    undiscounted = solve(signal("signed", 9), grid)
    against = dataclasses.asdict(compare(solution.values, undiscounted.values))
    return {"signal": name, "expectile": expectile, "against_grid": against, **judged(solution, truth, began)}


def cells() -> list[Cell]:
    """All of the study."""
    made = [
        Cell(
            f"braking-{name.replace('/', '_').replace(' ', '')}-{discount:g}",
            functools.partial(braking, 161, name, discount),
        )
        for name in SIGNALS
        for discount in (DISCOUNTS if name == "signed" else (0.95, 0.99, 0.999))
    ]
    made += [
        Cell(f"disc-{radius:g}-{discount:g}", functools.partial(disc, radius, discount))
        for radius in REFERENCE_DISC
        for discount in (0.95, 0.99, 0.999, 1.0)
    ]
    made += [
        Cell(
            f"tabular-{name.replace('/', '_').replace(' ', '')}-{expectile:g}",
            functools.partial(tabular, name, expectile),
        )
        for name in REFERENCE_TABULAR
        for expectile in EXPECTILES
    ]
    return made + [
        Cell(f"refined-{points}", functools.partial(braking, points, "signed", 1.0, period))
        for points, period in REFINED
    ]


def table(found: Results) -> list[str]:
    """The Markdown tables of the cells that are there."""
    lines = [
        "# Safe sets on grids against closed forms",
        "",
        "Double integrator L = U = 1, dt 0.05 s, 161 x 161 points, 5 actions, against the closed form. IoU / false-"
        "safe share; in brackets the reference. Written by `python benchmarks/reachability.py`.",
        "",
        "| signal | " + " | ".join(f"g = {discount:g}" for discount in DISCOUNTS) + " |",
        "|" + "---|" * (1 + len(DISCOUNTS)),
    ]
    for name in SIGNALS:
        entries = []
        for discount in DISCOUNTS:
            one = found.get(f"braking-{name.replace('/', '_').replace(' ', '')}-{discount:g}")
            entries.append(_entry(one, ("iou", "false_safe"), REFERENCE[name].get(discount)))
        lines.append(f"| {name} | " + " | ".join(entries) + " |")
    lines += [
        "",
        "Dubins car, turning radius 1 m, before a disc; 201 x 201 points of a square of 6 m. Unsafe-set IoU, unsafe "
        "states missed, unsafe area at g = 1 beside the closed form's.",
        "",
        "| radius | g = 0.95 | g = 0.99 | g = 0.999 | g = 1 | area | exact |",
        "|---|---|---|---|---|---|---|",
    ]
    for radius, reference in REFERENCE_DISC.items():
        entries = [
            _entry(found.get(f"disc-{radius:g}-{discount:g}"), ("unsafe_iou", "missed_unsafe"), reference[discount])
            for discount in reference
        ]
        whole = found.get(f"disc-{radius:g}-1")
        area = "missing" if whole is None else f"{whole['unsafe_area']:.3f}"
        entries += [area, f"{closed_forms.dubins_disc_area(radius):.4f}"]
        lines.append(f"| {radius:g} | " + " | ".join(entries) + " |")
    lines += [
        "",
        "FISOR's feasible value without a network: 121 x 121 points, 9 uniform actions, g = 0.99, against closed forms."
        " IoU / false-safe / false-unsafe; in brackets the reference.",
        "",
        "| signal | tau .7 | tau .9 | tau .99 | exact min |",
        "|---|---|---|---|---|",
    ]
    for name, row in REFERENCE_TABULAR.items():
        short = name.replace("/", "_").replace(" ", "")
        entries = [
            _entry(found.get(f"tabular-{short}-{expectile:g}"), ("iou", "false_safe", "false_unsafe"), reference)
            for expectile, reference in zip(EXPECTILES, row)
        ]
        lines.append(f"| {name} | " + " | ".join(entries) + " |")
    best = found.get("tabular-signed-0.99")
    if best is not None:
        grid = best["against_grid"]
        lines += [
            "",
            f"Against the undiscounted grid solution, tau .99 on the signed signal: IoU {grid['iou']:.4f}, false-safe "
            f"{grid['false_safe']:.4f} (goal: 0.98 and 0.01).",
        ]
    lines += ["", "Refinement with dt proportional to the spacing (first order):", ""]
    lines += ["| points | dt, s | largest error in the true set | mean error |", "|---|---|---|---|"]
    for points, period in REFINED:
        one = found.get(f"refined-{points}")
        entries = ["missing", ""] if one is None else [f"{one['sup_error']:.5f}", f"{one['mean_error']:.6f}"]
        lines.append(f"| {points} x {points} | {period:g} | " + " | ".join(entries) + " |")
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


def _entry(one: dict[str, Any] | None, keys: tuple[str, ...], reference: str | None) -> str:
    if one is None:
        return "missing" if reference is not None else "-"
    text = " / ".join(f"{one[key]:.3f}" for key in keys)
    return text if reference is None else f"{text} ({reference})"


def main() -> None:
    """The command line."""
    study_main(__doc__, "reachability", cells(), table, Cell("quick", lambda: braking(41, "signed", 1.0)))


if __name__ == "__main__":
    main()
