"""Fine-tuning clones of `gantry-pick` that see: ReinFlow, DPPO, DSRL and a residual, from two cameras.

    python benchmarks/gantry_finetune.py                  # compute what is missing, then write the table
    python benchmarks/gantry_finetune.py --only reinflow
    python benchmarks/gantry_finetune.py --table          # only the table
    python benchmarks/gantry_finetune.py --quick          # one small cell, for CI

A flow, and a diffusion for DPPO, clone 100 demonstrations for so few updates that about half of the episodes are
solved (kept under build/gantry_finetune). Each is then fine-tuned by the reward of the task, 1 where the cube is
lifted, with the encoder as the clone has it (`encoder_trains=false`). Success is of the same initial states before and
after. Steps are few, as a core allows; nothing was searched for.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import Any, NamedTuple

from cells import Results
from gantry_cloning import CHUNKED, DEMONSTRATIONS, data_of
from study import Cell, study_main, training_cell

from surefoot.data import load, save
from surefoot.evaluation import hierarchical_interval
from surefoot.evaluation.tables import format_bounds
from surefoot.play.demonstrations import demonstrate

KEPT = pathlib.Path(__file__).parent.parent / "build" / "gantry_finetune"
ENVIRONMENT, STEPS, EPISODES, SEEDS = "gantry-pick", 20_000, 50, (0, 1)
CLONES = {"flow": ("flow_bc", 750), "diffusion": ("diffusion_bc", 1_500)}
"""Algorithm and updates of each."""
BLOCKS: dict[str, Any] = {"num_envs": 16, "minibatches": 4, "encoder_trains": False, "discount": 0.99}


class Method(NamedTuple):
    """An algorithm, the clone that it starts from, and its options."""

    algorithm: str
    clone: str
    options: dict[str, Any]


METHODS = {
    "ReinFlow": Method("reinflow", "flow", {**BLOCKS, "horizon": 20, "epochs": 5, "learning_rate": 1e-4}),
    "residual (PPO)": Method("residual_ppo", "flow", {**BLOCKS, "horizon": 80, "epochs": 5, "scale": 0.2}),
    "DSRL": Method("dsrl", "flow", {"num_envs": 8, "updates_per_step": 2.0, "initial_steps": 500}),
    "DPPO": Method("dppo", "diffusion", {**BLOCKS, "horizon": 20, "epochs": 5, "critic_warmup": 2}),
}


def cloned(kind: str) -> dict[str, Any]:
    """What a clone reaches before it is fine-tuned; its run is kept."""
    algorithm, updates = CLONES[kind]
    data = functools.partial(data_of, ENVIRONMENT)
    out = str(KEPT / kind)
    return training_cell(
        algorithm, CHUNKED, data, ENVIRONMENT, 0, updates, EPISODES, evaluations=1, out=out, batch_size=64
    )


def tuned(method: Method, seed: int) -> dict[str, Any]:
    """A run of one seed."""
    init = str(KEPT / method.clone)
    if not (pathlib.Path(init) / "summary.json").is_file():
        cloned(method.clone)
    return training_cell(
        method.algorithm, method.options, None, ENVIRONMENT, seed, STEPS, EPISODES, evaluations=2, init=init
    )


def name_of(method: str, seed: int) -> str:
    """Of a cell."""
    return f"{METHODS[method].algorithm}-s{seed}"


def cells() -> list[Cell]:
    """The clones first, then one seed of each method before the other."""
    found = [Cell(f"clone-{kind}", functools.partial(cloned, kind)) for kind in CLONES]
    return found + [
        Cell(name_of(method, seed), functools.partial(tuned, facts, seed))
        for seed in SEEDS
        for method, facts in METHODS.items()
    ]


def table(found: Results) -> list[str]:
    """A row of each clone and method."""
    lines = [
        "# gantry-pick, clones fine-tuned from two cameras",
        "",
        f"{DEMONSTRATIONS} demonstrations; {STEPS:,} steps in the environment; {EPISODES} episodes a seed from equal "
        "initial states, success in % with 95 % intervals over episodes and, where there are several, seeds. Written "
        "by `python benchmarks/gantry_finetune.py`, which says what was trained.",
        "",
        "| method | from | seeds | success in % [95 %] | seconds a seed |",
        "|---|---|---|---|---|",
    ]
    rows = [(f"the {kind} itself", "", [f"clone-{kind}"]) for kind in CLONES]
    rows += [(method, facts.clone, [name_of(method, seed) for seed in SEEDS]) for method, facts in METHODS.items()]
    for title, start, names in rows:
        own = [found[name] for name in names if name in found]
        shown, seconds = "missing", ""
        if own:
            solved = [[100 * value for value in one["successes"]] for one in own]
            shown = format_bounds(hierarchical_interval(solved, bounds=(0, 100)).to_json())
            seconds = f"{sum(one['seconds'] for one in own) / len(own):.0f}"
        lines.append(f"| {title} | {start} | {len(own)} | {shown} | {seconds} |")
    return lines


def quick_cell() -> dict[str, Any]:
    """A few steps from a clone of two demonstrations."""
    with tempfile.TemporaryDirectory() as folder:
        save(demonstrate(ENVIRONMENT, 2), pathlib.Path(folder) / "two.hdf5")
        data, run = load(pathlib.Path(folder) / "two.hdf5"), f"{folder}/clone"
        training_cell("flow_bc", CHUNKED, data, ENVIRONMENT, 0, 4, 2, evaluations=1, out=run, batch_size=8)
        options = {**METHODS["ReinFlow"].options, "num_envs": 2, "horizon": 4, "minibatches": 1, "epochs": 1}
        return training_cell("reinflow", options, None, ENVIRONMENT, 0, 64, 2, evaluations=1, init=run)


if __name__ == "__main__":
    study_main(__doc__, "gantry_finetune", cells(), table, Cell("quick", quick_cell))
