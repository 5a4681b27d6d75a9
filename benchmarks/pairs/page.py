"""docs/paired.md from the cells: what each comparison showed, in a word and in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
from cells import Results

from pairs import PAIRS
from pairs.pair import INITIALISATIONS, Pair
from surefoot.evaluation import difference_interval, hierarchical_interval

QUESTIONS = ("rows", "weights", "steps", "acting", "curves")
SIDES = ("ours", "theirs")
SAME_ROWS, SAME_AT, SAME_STEPS, SAME_ACTIONS = 1e-3, "10", 1e-2, 5e-3
"""Called equal: columns within this part of their range; networks after that step within this part of how far they
moved; actions within this."""
SAME_INNER = 0.2
"""Inner quantities called equal: within this part of the larger at the last half of the points, or within noise."""

Said = tuple[str, bool]
"""A sentence, and whether the two codes are equal there."""
Entry = tuple[str, str]
"""A word for the table, and the sentences behind it."""
OPEN, NOT_RUN = "**open**", "not run"


def said_of_rows(cell: dict[str, Any]) -> Said:
    """What the cell shows; rewards may be in another unit, and ours may have the steps that a time limit cut."""
    worst = {
        name: column["largest"] / max(column["scale"], 1e-30)
        for name, column in cell["columns"].items()
        if name != "rewards" or abs(column["ratio"] - 1) < 1e-3
    }
    parts = []
    if cell["ours"] != cell["theirs"]:
        more = cell["ours"] - cell["theirs"]
        cause = " (steps at which a time limit ends an episode)" if more == cell["cut"] else ""
        cause = " (starts of windows that the file cuts, without weight)" if more == cell.get("starts") else cause
        parts.append(f"ours has {more:,} rows of {cell['ours']:,} more{cause}")
    if not cell["columns"]:
        parts.append("columns not compared")
    elif max(worst.values(), default=0.0) < 1e-5:
        parts.append("equal" if not parts else "the others are equal")
    else:
        name = max(worst, key=lambda name: worst[name])
        rows = f" in {cell['columns'][name]['rows']:,} rows" if cell["columns"][name].get("rows") else ""
        parts.append(f"{name} differ by {worst[name]:.1e} of their range{rows}")
    ratio = cell["columns"].get("rewards", {}).get("ratio", 1.0)
    if abs(ratio - 1) >= 1e-3:
        parts.append(f"rewards are scaled {ratio:.4f} times theirs")
    known = cell["ours"] - cell["theirs"] in (0, cell["cut"], cell.get("starts", 0))
    return "; ".join(parts), known and bool(cell["columns"]) and max(worst.values(), default=0.0) < SAME_ROWS


def said_of_weights(cell: dict[str, Any]) -> Said:
    """Parameters whose mean, deviation or norm is further off than five standard errors."""
    off = []
    for name, other in cell["theirs"].items():
        mine = cell["ours"][name]
        error = max(other["deviation"], mine["deviation"]) * np.sqrt(2 / other["numbers"])
        far = [abs(mine[key] - other[key]) > 5 * error + 1e-7 for key in ("mean", "deviation")]
        norm_error = np.hypot(mine["norm_deviation"], other["norm_deviation"]) / np.sqrt(INITIALISATIONS)
        if any(far) or abs(mine["norm"] - other["norm"]) > 5 * norm_error + 1e-4 * max(other["norm"], 1e-30):
            off.append(f"{name}: deviation {mine['deviation']:.4g} for {other['deviation']:.4g}")
    return "; ".join(off) or f"{len(cell['theirs'])} parameters", not off


def said_of_steps(cell: dict[str, Any]) -> Said:
    """The largest distance at the first and last steps, in parts of how far the network has moved; rates."""
    largest = {step: max(values.values()) for step, values in cell["distances"].items()}
    rates = [
        abs(cell["ours"]["rates"][step][name] - rate) / max(rate, 1e-12)
        for step, values in cell["theirs"]["rates"].items()
        for name, rate in values.items()
    ]
    text = ", ".join(f"{largest[step]:.0e} at {int(step):,}" for step in largest)
    same = max(rates) < 1e-6
    stated = f"rates {'equal' if same else f'differ by {max(rates):.1e}'}; networks differ by {text}"
    return stated, same and largest[SAME_AT] < SAME_STEPS


def said_of_acting(cell: dict[str, Any]) -> Said:
    """Actions' largest difference, and the interval of the returns' difference."""
    mine, theirs = ([np.array(cell[side]["returns"])] for side in ("ours", "theirs"))
    left, right = hierarchical_interval(mine), hierarchical_interval(theirs)
    within = left.low <= right.high and right.low <= left.high
    within |= bool(np.isclose(left.estimate, right.estimate))  # all episodes alike: intervals without a width
    word = "equal within noise" if within else "differ"
    numbers = f"{left.estimate:.1f} and {right.estimate:.1f}"
    return f"actions within {cell['actions']:.0e}; returns {word} ({numbers})", within and cell[
        "actions"
    ] < SAME_ACTIONS


def curve_cells(name: str, pair: Pair, found: Results) -> dict[str, list[dict[str, Any]]]:
    """Side -> the cells of its seeds that are there."""
    return {side: [found[key] for seed in pair.seeds if (key := f"{name}-curve-{side}-s{seed}") in found]
            for side in SIDES}  # fmt: skip


def last_half(cells: list[dict[str, Any]], quantity: str) -> list[np.ndarray]:
    """Of each seed the quantity's values at the last half of the points."""
    return [np.array([p["inner"][quantity] for p in c["points"][len(c["points"]) // 2 :]]) for c in cells]


def of_returns(cells: dict[str, list[dict[str, Any]]]) -> tuple[str, bool]:
    """The difference of returns at the last half of the points with its interval, and whether that holds 0.

    The interval is over seeds where both sides have several; of one seed each over the policies at those points, or
    over episodes where only the last has some.
    """
    points = {side: [late_returns(cell) for cell in cells[side]] for side in SIDES}
    means = {side: float(np.mean([np.mean([p.mean() for p in seed]) for seed in points[side]])) for side in SIDES}
    if min(len(points[side]) for side in SIDES) > 1:
        groups = {side: [np.array([np.mean([p.mean() for p in seed])]) for seed in points[side]] for side in SIDES}
    elif min(len(points[side][0]) for side in SIDES) > 1:
        groups = {side: [np.array([p.mean()]) for p in points[side][0]] for side in SIDES}
    else:
        groups = {side: points[side][0] for side in SIDES}
    apart = difference_interval(groups["ours"], groups["theirs"], shared_episodes=False)
    same = bool(apart.low <= 0 <= apart.high) or bool(np.isclose(means["ours"], means["theirs"]))
    interval = f"{apart.estimate:+.0f} [{apart.low:+.0f}, {apart.high:+.0f}]"
    return f"return {means['ours']:.0f}, official {means['theirs']:.0f}, difference {interval}", same


def late_returns(cell: dict[str, Any]) -> list[np.ndarray]:
    """Returns at each of the last half of the points that has some."""
    late = cell["points"][len(cell["points"]) // 2 :]
    return [np.array(point["returns"]) for point in late if point["returns"]]


def of_inner(cells: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[float, float, str, bool]]:
    """Quantity -> ours, theirs, the difference with its interval, whether it is equal.

    The interval is over seeds where both sides have several, else over the differences at the points.
    """
    found = {}
    for quantity in cells["ours"][0]["points"][-1]["inner"]:
        values = {side: last_half(cells[side], quantity) for side in SIDES}
        ours, theirs = (float(np.mean([v.mean() for v in values[side]])) for side in SIDES)
        if min(len(values[side]) for side in SIDES) > 1:
            means = [[np.array([v.mean()]) for v in values[side]] for side in SIDES]
            apart = difference_interval(*means, shared_episodes=False)
        else:
            apart = hierarchical_interval([values["ours"][0] - values["theirs"][0]])
        text = f"{apart.estimate:+.3g} [{apart.low:+.3g}, {apart.high:+.3g}]"
        near = abs(ours - theirs) <= SAME_INNER * max(abs(ours), abs(theirs))
        found[quantity] = (ours, theirs, text, near or bool(apart.low <= 0 <= apart.high))
    return found


def said_of_curves(name: str, pair: Pair, found: Results) -> Said | None:
    """The last returns of both, and inner quantities that differ; None where a side is missing."""
    cells = curve_cells(name, pair, found)
    if not all(cells.values()):
        return None
    text, same = of_returns(cells)
    inner = of_inner(cells)
    far = [
        f"`{quantity}` {ours:.3g} for {theirs:.3g}" for quantity, (ours, theirs, _, equal) in inner.items() if not equal
    ]
    words = (
        f"{len(inner) - len(far)} of {len(inner)} inner quantities equal" + (": not " if far else "") + ", ".join(far)
    )
    return f"{text}; {words}", same and not far


SAID = {"rows": said_of_rows, "weights": said_of_weights, "steps": said_of_steps, "acting": said_of_acting}


def stated(name: str, pair: Pair, question: str, found: Results) -> Entry:
    """One entry of the page."""
    if question in pair.left_out:
        return NOT_RUN, pair.left_out[question]
    reported: Said | None = None
    if question == "curves":
        reported = said_of_curves(name, pair, found)
    elif f"{name}-{question}" in found:
        reported = SAID[question](found[f"{name}-{question}"])
    if reported is None:
        return NOT_RUN, f"not computed yet; `python benchmarks/paired.py --only {name}-{question.rstrip('s')}` does so"
    text, equal = reported
    cause = pair.causes.get(question)
    word = "equal" if equal else OPEN if cause is None else "explained"
    return word, text if cause is None else f"{text}. Why: {cause}"


def code_of(pair: Pair) -> str:
    """A link to the official code as it ran."""
    if pair.package:
        return f"[{pair.package}](https://pypi.org/project/{pair.package.replace('==', '/')}/)"
    return f"[{pair.repository}](https://github.com/{pair.repository}/tree/{pair.commit}) at {pair.commit[:8]}"


def table(found: Results) -> list[str]:
    """The page: open differences, a row an algorithm and a column a comparison, then a section for each."""
    entries = {name: {q: stated(name, pair, q, found) for q in QUESTIONS} for name, pair in PAIRS.items()}
    counts = {q: sum(row[q][0] != NOT_RUN for row in entries.values()) for q in QUESTIONS}
    lines = [
        "# Beside official code",
        "",
        "Losses and updates that are equal don't make runs equal: a run has more parts. Here official code runs beside "
        "ours on one file, at equal settings, and each part is compared: "
        + ", ".join(f"{q} of {count} algorithms" for q, count in counts.items())
        + ". Written by `python benchmarks/paired.py`, which computes what is missing.",
        "",
        "| column | what is compared |",
        "|---|---|",
        "| rows | what reaches the loss of every row of the file, through each code's own loader; of algorithms that "
        "act while they learn, what the collection hands over in a scripted environment |",
        "| weights | mean, deviation, range and norm of each layer in 100 initializations |",
        "| steps | rates, losses and networks after steps 1, 2, 10 and 1,000 (100 where a step is slow) from equal "
        "weights on equal batches with the same random numbers; networks' distances are in parts of how far they have "
        "moved. Rounding grows: our ReBRAC beside itself with "
        "observations changed by 1e-7 of their size is 0.4 apart after 1,000 steps, so networks are called equal by "
        f"step {SAME_AT} |",
        "| acting | the same weights' actions on 1,000 recorded observations, and their returns |",
        "| curves | whole, short runs from each code's own weights and draws: returns, and inner quantities (losses, "
        "mean Q, entropy), which our code measures of both sides' networks on the same rows. Compared is "
        "the last half of the points; differences are ours minus theirs with 95 % intervals over seeds where there are "
        "several, else over the policies at these points (over episodes where only the last was evaluated), so that "
        f"another seed may lie outside. Inner quantities are called equal within {SAME_INNER:.0%} or where the "
        "interval holds 0 |",
        "",
        "`equal`: within rounding or noise. `explained`: they differ, and the cause is known, by a run with one thing "
        "changed or by reading both codes. `open`: they differ, and no cause was found. Runs are short and mostly of "
        "one seed, so that intervals of returns are wide: inner quantities tell more.",
        "",
        "## Open: differences whose cause was not found",
        "",
    ]
    unknown = [(name, q, text) for name, row in entries.items() for q, (word, text) in row.items() if word == OPEN]
    lines += [f"- [`{name}`](#{name.lower()}), {q}: {text}" for name, q, text in unknown] or [
        "None of the cells below."
    ]
    lines += ["", "Whole runs that fall short of published ones, and why, where that is known, are among the"]
    lines += ["[limitations](limitations.md)."]
    lines += ["", "## All pairs", ""]
    lines += ["| algorithm | official code | " + " | ".join(QUESTIONS) + " |", "|---" * 7 + "|"]
    for name, pair in PAIRS.items():
        words = " | ".join(word for word, _ in entries[name].values())
        lines.append(f"| [{name}](#{name.lower()}) | {code_of(pair)} | {words} |")
    for name, pair in PAIRS.items():
        row = entries[name].items()
        lines += ["", f"## {name}", "", f"{code_of(pair)}, on {pair.file}.", ""]
        for question, (word, text) in row:
            reason = "" if text == word else f"{': ' if word == NOT_RUN else '; '}{text}"
            lines.append(f"- {question}: {word}{reason}.")
        lines += curves_of(name, pair, found)
    return lines


def curves_of(name: str, pair: Pair, found: Results) -> list[str]:
    """Returns along the way, and the inner quantities of the last half."""
    cells = curve_cells(name, pair, found)
    if not any(cells.values()):
        return []
    seeds = {side: f"{len(cells[side])} seed{'s' if len(cells[side]) > 1 else ''}" for side in SIDES}
    lines = ["", f"Mean return ({seeds['ours']} of ours, {seeds['theirs']} of theirs):", ""]
    steps = [point["step"] for point in next(c for c in cells.values() if c)[0]["points"]]
    shown = [
        place for place in range(len(steps)) if any(c["points"][place]["returns"] for s in SIDES for c in cells[s])
    ]
    lines += [
        "| updates | " + " | ".join(f"{steps[place]:,}" for place in shown) + " |",
        "|---" * (len(shown) + 1) + "|",
    ]
    for side, word in (("ours", "ours"), ("theirs", "official")):
        means = (
            [np.mean([np.mean(cell["points"][place]["returns"]) for cell in cells[side]]) for place in shown]
            if cells[side]
            else []
        )
        lines.append(f"| {word} | " + " | ".join([f"{m:.0f}" for m in means] or ["not run"] * len(shown)) + " |")
    if all(cells.values()):
        lines += ["", "| inner quantity, mean of the last half | ours | official | difference |", "|---|---|---|---|"]
        for quantity, (ours, theirs, text, _) in of_inner(cells).items():
            lines.append(f"| `{quantity}` | {ours:.4g} | {theirs:.4g} | {text} |")
    return lines
