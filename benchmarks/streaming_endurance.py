"""Ten million steps of one stream: does memory grow, do weights drift or stop being finite, does the score hold?

    python benchmarks/streaming_endurance.py            # compute what is missing, then write the table
    python benchmarks/streaming_endurance.py --quick    # few steps, for CI

Before each tenth ends the stream is saved, a fresh one loads the file and sees the same samples for a thousand steps:
all that is saved of both must then be equal bit for bit. Each cell is a process of its own, so its memory is its own.
"""

from __future__ import annotations

import functools
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
from typing import Any

import gymnasium
import numpy as np
import torch
from cells import Results
from study import Cell, git_commit, study_main

from surefoot.core.engine.agent import Spec
from surefoot.runs.plan import agent_class

STEPS, PARTS, CHECKED = 10_000_000, 10, 1_000
TASKS = {"stream_ac": "CartPole-v1", "stream_q": "CartPole-v1", "stream_ac-continuous": "Pendulum-v1"}


def resident() -> float:
    """Resident memory of this process, MB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def spec_of(env: Any) -> Spec:
    """The problem of a gymnasium environment."""
    width, action = env.observation_space.shape[0], env.action_space
    if isinstance(action, gymnasium.spaces.Discrete):
        return Spec.of_choices(width, int(action.n))
    return Spec(width, len(action.low), tuple(action.low.tolist()), tuple(action.high.tolist()))


class Twin:
    """A copy of a stream through a file, which then sees the samples that the stream itself sees."""

    def __init__(self, agent: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "stream.safetensors"
            agent.save(path)
            self.agent = type(agent)(agent.spec, agent.config)
            self.agent.load(path)
        self.samples = 0

    def equals(self, agent: Any) -> bool:
        """Whether everything that is saved of both is equal bit for bit."""
        mine = self.agent.state_dict()
        return all(torch.equal(value, mine[name]) for name, value in agent.state_dict().items())


def endure(name: str, steps: int) -> dict[str, Any]:
    """Learn for `steps` steps, and check everything ten times on the way."""
    torch.set_num_threads(1)
    env: Any = gymnasium.make(TASKS[name])
    agent: Any = agent_class(name.split("-")[0])(spec_of(env))
    agent.plan(steps)
    action = agent.begin(env.reset(seed=0)[0])
    part, checked = steps // PARTS, min(CHECKED, steps // PARTS // 2)
    parts: list[dict[str, Any]] = []
    returns, total, twin, equal = [], 0.0, None, None
    for step in range(1, steps + 1):
        sample = env.step(action)[:4]
        total += float(sample[1])
        action = agent.step(*sample)
        over = sample[2] or sample[3]
        first = env.reset()[0] if over else None
        for learner in (agent, twin.agent) if twin else (agent,):
            if learner is not agent:
                learner.step(*sample)
            if first is not None:
                following = learner.begin(first)
                action = following if learner is agent else action
        if over:
            returns.append(total)
            total = 0.0
        if twin is not None and step % part == 0:
            equal, twin = twin.equals(agent), None
        if step % part == part - checked:
            twin = Twin(agent)
        if step % part == 0:
            state = agent.state_dict()
            weights = torch.cat([value.reshape(-1) for key, value in state.items() if key.endswith("_weights")])
            parts.append(
                {
                    "step": step,
                    "return": round(float(np.mean(returns)) if returns else float("nan"), 2),
                    "finite": all(bool(v.isfinite().all()) for v in state.values() if v.is_floating_point()),
                    "largest_weight": round(float(weights.abs().max()), 3),
                    "resident_mb": round(resident(), 1),
                    "goes_on_equal": equal,
                }
            )
            returns = []
    return {"task": name, "environment": TASKS[name], "steps": steps, "parts": parts, "git": git_commit()}


def cell(name: str, steps: int = STEPS) -> dict[str, Any]:
    """`endure` in a process of its own."""
    command = [sys.executable, __file__, "--child", name, str(steps)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{found.stderr[-2000:]}")
    value: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return value


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# Ten million steps of one stream",
        "",
        "After each tenth: mean training return, the largest weight, resident memory, and whether a copy through a "
        "file went on equal bit for bit. Written by `python benchmarks/streaming_endurance.py`.",
        "",
        "| stream | environment | steps | return | all finite | largest weight | resident MB | continues equal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        for part in one["parts"]:
            row = [name, one["environment"], f"{part['step']:,}", f"{part['return']:.0f}"]
            row += ["yes" if part["finite"] else "NO", f"{part['largest_weight']:.1f}", f"{part['resident_mb']:.0f}"]
            lines.append("| " + " | ".join([*row, "yes" if part["goes_on_equal"] else "NO"]) + " |")
    lines += ["", f"{len(found)} of {len(TASKS)} cells are there."]
    return lines


def main() -> None:
    """The command line."""
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        print(json.dumps(endure(sys.argv[2], int(sys.argv[3]))))
        return
    cells = [Cell(name, functools.partial(cell, name)) for name in TASKS]
    study_main(__doc__, "streaming_endurance", cells, table, Cell("stream_ac", lambda: cell("stream_ac", 2_000)))


if __name__ == "__main__":
    main()
