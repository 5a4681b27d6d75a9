"""What tests of ensembles share."""

from __future__ import annotations

import numpy as np

# -- identities ------------------------------------------------------------------------------------------------


def rows_of(count: int) -> dict[str, np.ndarray]:
    source = np.random.default_rng(5)
    return {
        "observations": source.normal(size=(count, 3)).astype(np.float32),
        "actions": source.uniform(-1, 1, (count, 1)).astype(np.float32),
        "rewards": source.normal(size=count).astype(np.float32),
        "terminations": source.random(count) < 0.1,
        "next_observations": source.normal(size=(count, 3)).astype(np.float32),
    }
