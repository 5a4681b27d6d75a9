"""One of the processes that `test_share` starts by torchrun: 100 steps of IQL or PPO, and what was learned.

torchrun --standalone --nproc-per-node=2 shared_learning.py iql float64 OUT.safetensors
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.share import Share
from surefoot.core.engine.sources import Uniform
from surefoot.offline.iql import IQL, IQLConfig
from surefoot.online.loops.minibatches import Minibatches
from surefoot.online.ppo import PPO, PPOConfig

ROWS, BATCH, STEPS = 512, 64, 100


class Rows:
    """Columns in memory, of any dtype."""

    def __init__(self) -> None:
        self.columns: dict[str, torch.Tensor] = {}

    def __len__(self) -> int:
        return ROWS

    def gather(self, indices: torch.Tensor, out: Any = None) -> dict[str, torch.Tensor]:
        return {name: value[indices] for name, value in self.columns.items()}

    workspace = None


def learned(kind: str, dtype: torch.dtype, share: Share | None) -> dict[str, torch.Tensor]:
    """Parameters after 100 steps on batches of 64 rows, of which a process that shares them sees its part."""
    spec = Spec(3, 1, (-1.0,), (1.0,))
    draw = np.random.default_rng(0)
    if kind == "iql":
        agent = IQL(spec, IQLConfig(hidden=(32, 32))).fresh(0)
        names = {"observations": (3,), "actions": (1,), "rewards": (), "terminations": (), "next_observations": (3,)}
    else:
        config = PPOConfig(num_envs=4, horizon=128, minibatches=ROWS // BATCH, hidden=(32, 32))
        agent = PPO(spec, config).fresh(0)
        names = {"observations": (3,), "actions": (1,), "advantages": (), "returns": (), "values": ()}
        names |= {"behaviour_log_prob": ()}
    table = Rows()
    for name, shape in names.items():
        values = draw.normal(size=(ROWS, *shape)) * 0.5
        table.columns[name] = torch.from_numpy(values.clip(-0.95, 0.95)).to(dtype)
    if kind == "iql":
        table.columns["terminations"] = (table.columns["terminations"] > 0.5).to(dtype)
        table.columns["observation_actions"] = torch.cat([table.columns["observations"], table.columns["actions"]], 1)
    source: Any = Uniform(table) if kind == "iql" else Minibatches(table, ROWS, ROWS // BATCH)  # type: ignore[arg-type]
    rows = BATCH if share is None else share.check(agent, BATCH)
    sources = source if share is None else share.sources(source, agent)
    learner = Learner([agent], [0], sources, batch_size=rows, planned_steps=STEPS, dtype=dtype)
    if share is not None:
        share.lead(learner)
    learner.run(STEPS)
    return {name: value.clone() for name, value in learner.agents_parameters(0).items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    mine = Share.join()
    for kind, dtype in ((kind, dtype) for kind in ("iql", "ppo") for dtype in ("float32", "float64")):
        found = learned(kind, getattr(torch, dtype), mine)
        if mine.rank == 0:
            save_file(found, f"{sys.argv[1]}/{kind}-{dtype}.safetensors")
    mine.leave()
