"""Published results: how fast each trains on one core, what was run here, and docs/reproduce.md with both.

    python benchmarks/reproduce.py                     # measure the rates that are missing, then write table and page
    python benchmarks/reproduce.py --only iql-         # some of them
    python benchmarks/reproduce.py --add FOLDER        # a finished `surefoot reproduce NAME -o FOLDER` becomes a cell
    python benchmarks/reproduce.py --table             # only write
    python benchmarks/reproduce.py --check             # exit code 1 where what is written is not up to date
    python benchmarks/reproduce.py --quick             # one small cell, for CI

A cell is a rate (`rate/NAME/STAGE`) or a run that went to its end (`run/NAME`). A rate is the difference of two short
trainings in CPU seconds of one thread, so that neither the start nor other work counts; who learns from data does so on
made-up rows of the result's sizes. Rates on a GPU are predictions (tools/gpu/predicted.json).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import machine
import numpy as np
from cells import Results, append_cell, read_cells
from study import RESULTS, git_commit

from surefoot.cli.reproduce import request, stages_of
from surefoot.core.base.errors import SurefootError
from surefoot.data.dataset import Dataset
from surefoot.runs.plan import Plan, agent_class
from surefoot.runs.processes.here import work_here
from surefoot.studies import reproduce
from surefoot.studies.reproduce import Result, duration

ROOT = pathlib.Path(__file__).resolve().parents[1]
CELLS = RESULTS / "reproduce.jsonl"
MEASURED = ROOT / "src" / "surefoot" / "conf" / "reproduce" / "measured.json"
PAGE = ROOT / "docs" / "reproduce.md"
PREDICTED = ROOT / "tools" / "gpu" / "predicted.json"
FIRST, LAST = "<!-- results: begin -->", "<!-- results: end -->"
"""Lines of the page between which the tables stand."""
EPISODES, EPISODE_STEPS = 40, 100
"""Of made-up data."""
SHORT: dict[str, Any] = {"initial_steps": 50, "model_updates": 20, "model_epoch": 10**6, "behavior_updates": 20,
                         "rollout_batches": 1, "pretrain": False}  # fmt: skip
"""Options of what precedes the updates whose rate is wanted, where an algorithm has them."""
LEAST_STEPS = 8
"""Of the shorter training."""
LEAST = 0.5
"""CPU seconds that the longer training takes more than the shorter one."""
LONG, SMALLER = 500, 10
"""Steps of a block of each environment from which on a block is cut, and to which part."""
MOST = 200_000
"""Steps of the longer training."""
PREDICTIONS = {"iql": "learners/iql x1: graph", "sac": "learners/sac x1: graph", "fql": "learners/fql x1: graph",
               "tdmpc2": "learners/tdmpc2 x1: graph"}  # fmt: skip
"""Algorithm -> the row of its predicted rate, of one seed at the usual sizes."""


def made_up(sizes: tuple[int, int], costs: bool) -> Dataset:
    """Random transitions of these sizes of observation and action."""
    source, rows = np.random.default_rng(0), EPISODES * EPISODE_STEPS
    observations = source.standard_normal((rows, sizes[0])).astype(np.float32)
    ends = np.arange(rows) % EPISODE_STEPS == EPISODE_STEPS - 1
    return Dataset(
        observations=observations,
        actions=source.uniform(-0.99, 0.99, (rows, sizes[1])).astype(np.float32),
        rewards=source.uniform(0.0, 1.0, rows).astype(np.float32),
        next_observations=np.roll(observations, -1, axis=0),
        terminations=np.zeros(rows, bool),
        truncations=ends,
        episode_ids=np.arange(rows) // EPISODE_STEPS,
        valid=np.ones(rows, bool),
        costs=(source.uniform(size=rows) < 0.01).astype(np.float32) if costs else None,
    )


def rate(one: Result, stage: str) -> dict[str, Any]:
    """Steps that one thread of this machine trains in a second of its time, without evaluations.

    Raises:
        SurefootError: it needs an environment that is not here.
    """
    asked = request(stages_of(one, pathlib.Path("."))[stage], one.name)
    kind = agent_class(asked.algorithm)
    options = {**asked.options, **{key: value for key, value in SHORT.items() if key in asked.options}}
    if (
        kind.requires.online and options.get("horizon") and options.get("minibatches")
    ):  # the same work a step, in smaller blocks
        by = SMALLER if int(options["horizon"]) >= LONG else 1
        options |= {"horizon": int(options["horizon"]) // by, "minibatches": max(1, int(options["minibatches"]) // by)}
    environment = asked.fields["env"] if kind.requires.online else None
    data = made_up(one.sizes, "costs" in kind.needs().needed) if one.sizes and asked.fields["dataset"] else None

    def seconds(steps: int) -> float:
        plan = Plan(
            algorithm=asked.algorithm,
            config=options,
            dataset=None if data is None else "<memory>",
            environment=environment,
            steps=steps,
            batch_size=asked.fields["batch_size"],
            seeds=(0,),
            episodes=1,
            evaluate_every=10 * MOST,
            device="cpu",
        )
        with tempfile.TemporaryDirectory(prefix="surefoot-rate-", ignore_cleanup_errors=True) as folder:
            return trained(plan, pathlib.Path(folder) / "run", data)

    block = int(options.get("num_envs", 1)) * int(options.get("horizon") or 0) if kind.requires.online else 0
    before = sum(int(options.get(name, 0)) for name in ("model_updates", "behavior_updates", "initial_steps"))
    part = max(2 * block, int(options.get("imagine_every", 0)), LEAST_STEPS)
    least, steps, more = seconds(before + part), part, 0.0
    while more < LEAST and steps < MOST:
        steps *= 2
        more = seconds(before + part + steps) - least
    return {
        "steps": steps,
        "cpu_seconds": round(more, 3),
        "rate": float(f"{steps / more:.4g}"),
        "machine": machine.record([machine.load()]),
        "git": git_commit(),
    }


def trained(plan: Plan, folder: pathlib.Path, data: Dataset | None) -> float:
    """CPU seconds of the training steps of a plan, in this process."""
    from surefoot.runs import start

    spent: list[float] = []

    def timed(run: Any, groups: list[list[int]], notify: Callable[[dict[str, Any]], Any], *unused: Any) -> None:
        started = time.process_time()
        work_here(run, groups, notify)
        spent.append(time.process_time() - started)

    before = start.work
    start.work = timed  # type: ignore[assignment]
    try:
        start.train(plan, folder, dataset=data)
    finally:
        start.work = before
    return sum(spent)


def measure(only: str) -> None:
    """Measure the rates that are missing; what needs an environment that is not here is left out, with the reason."""
    for name, one in reproduce.results().items():
        for stage in one.stages:
            cell = f"rate/{name}/{stage}"
            if only not in name or one.alike is not None or cell in read_cells(CELLS):
                continue
            try:
                append_cell(CELLS, cell, rate(one, stage))
            except (SurefootError, ModuleNotFoundError) as error:
                print(f"{cell}: left out: {error}")
            else:
                print(f"done: {cell}", flush=True)


def add(folder: pathlib.Path) -> None:
    """Make a cell of a reproduction that went to its end."""
    found = json.loads((folder / "reproduction.json").read_text(encoding="utf-8"))
    found["machine"] = machine.processor()
    if not append_cell(CELLS, f"run/{found['name']}", found):
        sys.exit(f"run/{found['name']} is in {CELLS} already: remove its line to replace it")


def measured(found: Results) -> dict[str, dict[str, Any]]:
    """What measured.json holds."""
    predicted = json.loads(PREDICTED.read_text(encoding="utf-8"))
    facts: dict[str, dict[str, Any]] = {}
    for name, one in reproduce.results().items():
        own: dict[str, Any] = {}
        rates = {stage: found.get(f"rate/{one.alike or name}/{stage}") for stage in one.stages}
        if all(rates.values()):
            own["core"] = {stage: line["rate"] for stage, line in rates.items() if line}
        if (row := PREDICTIONS.get(one.algorithm)) is not None and len(one.stages) == 1:
            own |= {"gpu": predicted[row]["value"], "gpu_row": row}
        if (line := found.get(f"run/{name}")) is not None:
            own["here"] = line
        if own:
            facts[name] = own
    return facts


def page(facts: dict[str, dict[str, Any]]) -> list[str]:
    """The tables of docs/reproduce.md."""
    known = list(reproduce.results().values())
    ran = [one for one in known if "here" in facts.get(one.name, {})]
    lines = [f"{len(known)} results, of which {len(ran)} were run here to their end.", "", "### Run here"]
    lines += ["", "| result | published | ours [95 % interval] | seeds, episodes | published number | machine |"]
    lines += ["|---|---|---|---|---|---|"]
    for one in ran:
        here = facts[one.name]["here"]
        for number, outcome in zip(one.published, here["outcomes"], strict=True):
            ours = f"{outcome['mean']:.4g}"
            ours += "" if outcome["low"] is None else f" [{outcome['low']:.4g}, {outcome['high']:.4g}]"
            where = {"inside": "in our interval", "below": "below our interval", "above": "above our interval"}
            place = where.get(outcome["place"], outcome["place"]) + (" (shorter run)" if here["shorter"] else "")
            seeds = f"{len(here['seeds'])}, {here['episodes']} each"
            lines.append(f"| `{one.name}` | {number} | {ours} | {seeds} | {place} | {here['machine']} |")
    for family in reproduce.families(known):
        lines += ["", f"### {family.replace('_', '-').capitalize()}", ""]
        lines += [
            "| result | task | published | steps | one core | GPU | file | run here |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for one in known:
            if one.family == family:
                lines.append(_row(one, facts.get(one.name, {})))
    lines += ["", "### What each is of", "", "| result | paper and table | scored | differs | file, environment |"]
    lines += ["|---|---|---|---|---|"]
    for one in known:
        needed = " ".join(text for text in (one.data, one.needs) if text)
        lines.append(f"| `{one.name}` | {one.paper}: {one.table} | {one.protocol} | {one.differs or ''} | {needed} |")
    return lines


def _row(one: Result, facts: dict[str, Any]) -> str:
    steps = one.stages["run"].steps
    rates = facts.get("core")
    core = None if rates is None else sum(stage.steps / rates[name] for name, stage in one.stages.items())
    gpu = facts.get("gpu")
    cells = [
        f"`{one.name}`",
        one.task,
        "; ".join(map(str, one.published)),
        f"{steps:,}",
        duration(core),
        duration(steps / gpu if gpu else None),
        "to be had" if one.data else "-",
        "yes" if "here" in facts else "",
    ]
    return f"| {' | '.join(cells)} |"


def written(text: str, facts: dict[str, dict[str, Any]]) -> str:
    """The page with the tables of today."""
    before, rest = text.split(FIRST)
    after = rest.split(LAST)[1]
    return before + "\n".join([FIRST, "", *page(facts), "", LAST]) + after


def quick() -> dict[str, Any]:
    """A rate of small networks."""
    one = reproduce.result("bc-neorl2-dmsd")
    small = dataclasses.replace(one.stages["run"], options={"hidden": [8]})
    return rate(dataclasses.replace(one, stages={"run": small}), "run")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small cell, not kept, for CI")
    parser.add_argument("--table", action="store_true", help="only write what is measured and the page")
    parser.add_argument("--check", action="store_true", help="only say whether both are up to date")
    parser.add_argument("--only", default="", help="only results whose name contains this")
    parser.add_argument("--add", metavar="FOLDER", type=pathlib.Path, help="of a reproduction that is finished")
    arguments = parser.parse_args()
    if arguments.quick:
        print(quick())
        return
    if arguments.add is not None:
        add(arguments.add)
    elif not (arguments.table or arguments.check):
        measure(arguments.only)
    facts = measured(read_cells(CELLS))
    texts = {MEASURED: json.dumps(facts, indent=1) + "\n", PAGE: written(PAGE.read_text(encoding="utf-8"), facts)}
    for path, text in texts.items():
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path} is not up to date: python benchmarks/reproduce.py --table")


if __name__ == "__main__":
    main()
