"""What IQL's weights do on data of one good policy: the same weights on their rows, and on other rows of the batch.

    python benchmarks/iql_weights.py               # compute what is missing, then write results/iql_weights.md
    python benchmarks/iql_weights.py --table       # only the table
    python benchmarks/iql_weights.py --quick       # a few updates, for CI

IQL by its defaults against IQL whose weights are handed to other rows of the same batch, so that they are as unequal as
before and choose nothing; and with all weights 1. Beside returns: the effective share of rows,
(sum w)^2 / (n sum w^2), and how alike the advantages of two seeds are.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from cells import Results
from study import Cell, entry, shared, study_main
from torch import Tensor

from surefoot.core.engine.agent import Batch
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.nn.native import kernels
from surefoot.data.store import store_from_dataset
from surefoot.evaluation import evaluate
from surefoot.offline import IQL

FILE, ENVIRONMENT = "halfcheetah-v5-expert-sb3", "HalfCheetah-v5"
UPDATES, EPISODES, SEEDS, KEPT = 30_000, 20, (0, 1), 1000
FORMS = {"as they are": {}, "on other rows": {}, "all 1": {"temperature": 0.0}}


class Elsewhere(IQL):
    """IQL whose weights are those of other rows, drawn alike."""

    name = "iql_elsewhere"

    def _weights(self, batch: Batch) -> Tensor:
        return super()._weights(batch).flip(-1)


def trained(form: str, seed: int, updates: int = UPDATES, episodes: int = EPISODES) -> dict[str, Any]:
    """Returns of the last policy, and what the weights of all rows are at the end."""
    torch.set_num_threads(1)
    kernels.keep_memory()
    data = shared(FILE)
    kind = Elsewhere if form == "on other rows" else IQL
    agent = kind(data, **FORMS[form]).fresh(seed)
    ready = agent.prepare(data)
    store = store_from_dataset(ready, agent.required_columns, "cpu")
    learner = Learner(
        [agent], [seed], agent.sources(Stores(ready, store)), batch_size=256, planned_steps=updates, kernels=True
    )
    learner.run(updates)
    last: Any = learner.extract(0)
    with torch.no_grad():
        batch = store.gather(torch.arange(len(store)))
        pairs = torch.cat([batch["observations"], batch["actions"]], 1)
        advantage = last.target_critic(pairs).amin(0) - last.value(batch["observations"])
        weights = (last.config.temperature * advantage).exp().clamp(max=100)
    found = evaluate([last.policy()], ENVIRONMENT, episodes, seed=0)[0]
    rows = np.linspace(0, len(store) - 1, KEPT).astype(int)
    return {
        "returns": [round(float(one), 1) for one in found.returns],
        "share": float(weights.sum() ** 2 / (weights.square().sum() * len(weights))),
        "advantages": [round(float(one), 4) for one in advantage[rows]],
    }


def cells() -> list[Cell]:
    """One seed of all forms before the next."""
    return [Cell(f"{form}-s{seed}", functools.partial(trained, form, seed)) for seed in SEEDS for form in FORMS]


def table(found: Results) -> list[str]:
    """A row a form."""
    lines = [
        f"# IQL's weights on {FILE}",
        "",
        f"{UPDATES:,} updates with the defaults, {EPISODES} episodes of the mean action. Written by "
        "`python benchmarks/iql_weights.py`, which says what the forms are.",
        "",
        "| weights | return [95 %] | effective share of rows | correlation of two seeds' advantages |",
        "|---|---|---|---|",
    ]
    for form in FORMS:
        own = [found[name] for name in (f"{form}-s{seed}" for seed in SEEDS) if name in found]
        alike = f"{np.corrcoef(*(one['advantages'] for one in own[:2]))[0, 1]:.2f}" if len(own) > 1 else "missing"
        share = ", ".join(f"{one['share']:.2f}" for one in own) or "missing"
        lines.append(f"| {form} | {entry([one['returns'] for one in own], len(SEEDS))} | {share} | {alike} |")
    return lines


if __name__ == "__main__":
    study_main(__doc__, "iql_weights", cells(), table, Cell("quick", lambda: trained("on other rows", 0, 12, 1)))
