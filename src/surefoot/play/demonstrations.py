"""Demonstrations of a scripted expert, which knows more of the simulator than an observation says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.memory import Reactive
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.data.dataset import Dataset
from surefoot.envs.names import gantry_ids, short_name
from surefoot.envs.vector import make_vec
from surefoot.play.record import ROWS, recorded

EPISODES = 100
EXPERT, NOISELESS = "expert", "noiseless"
BEHAVIOURS = (EXPERT, NOISELESS)
"""The expert with noise on its actions, so that the data show how it comes back to its course; and without."""
VERSION = 1
"""Counted up when the task or the expert changes."""


def has_expert(name: str) -> bool:
    """Whether demonstrations of an environment, of either form of name, can be recorded."""
    return short_name(name) in gantry_ids()


class _Demonstrator(Reactive):
    """A scripted expert with the face of a policy."""

    def __init__(self, expert: Any, sim: Any) -> None:
        self.expert, self.sim = expert, sim

    def actions(self, observations: Tensor) -> Tensor:
        """What the expert says to the simulator's state."""
        return torch.from_numpy(self.expert.actions(self.sim))


def demonstrate(
    name: str,
    episodes: int = EPISODES,
    seed: int = 0,
    behaviour: str = EXPERT,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Whole episodes of the scripted expert; the same arguments give the same bits.

    Args:
        name: of an environment that has one, such as `gantry-pick`.
        episodes: at least 1.
        seed: of initial states, noise, and of which handle is gripped; from 0 on.
        behaviour: one of `BEHAVIOURS`.
        progress: called with (finished, all) episodes.

    Returns:
        `attributes["solved_episodes"]` says how many reached the end.

    Raises:
        ConfigError: another environment or behaviour, or a number out of its range.
    """
    from surefoot.envs.gantry.expert import NOISE, Expert

    if not has_expert(name):
        raise ConfigError(f"no scripted expert demonstrates {name!r}; {nearest(name, list(gantry_ids()))}")
    if behaviour not in BEHAVIOURS:
        raise ConfigError(f"{name} has no behaviour {behaviour!r}; {nearest(behaviour, BEHAVIOURS)}")
    if episodes < 1 or seed < 0:
        raise ConfigError(f"episodes is {episodes} and seed {seed}; at least 1, and 0 or more, are needed")
    name, rows = short_name(name), min(ROWS, episodes)
    env: Any = make_vec(name, rows)
    try:
        noise = NOISE if behaviour == EXPERT else 0.0
        expert = Expert(env.gantry, rows, noise, np.random.default_rng([seed, VERSION]))
        dataset = recorded(env, [_Demonstrator(expert, env.sim)], [{}], name, episodes, seed, progress)
    finally:
        env.close()
    facts = {
        "source": f"recorded by surefoot {name} version {VERSION}",
        "kind": "scripted expert",
        "behaviour": behaviour,
        "seed": seed,
        "simulator": env.metadata["simulator"],
        "solved_episodes": int(dataset.terminations.sum()),
    }
    return dataset.replace(name=f"{name}-{behaviour}", attributes={**dataset.attributes, **facts})
