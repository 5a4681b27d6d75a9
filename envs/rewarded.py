"""`Rewarded`: an environment whose reward is that the task is done, as something else judges by observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from surefoot.core.base.spec import mapped
from surefoot.envs.around import Around
from surefoot.envs.interface import Array, Numbers, as_numpy, final_observations, valid_rows

Judge = Callable[[Any], Array]
"""(N, ...) observations, or a dict of several arrays, in the environment's units -> (N,) bool."""


class Rewarded(Around):
    """Reward 1 and the end of the episode where a step leads to an observation that is judged a success; else 0.

    The environment's own ends stay, its own rewards go. `info["success"]` (N,) says what was judged.

    Args:
        env: contract environment that can reset single rows (`options["reset_mask"]`).
        judge: of observations that steps led to.
    """

    def __init__(self, env: Any, judge: Judge) -> None:
        super().__init__(env)
        self.judge = judge

    def step(self, actions: Any) -> tuple[Any, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step, judged.

        Raises:
            EnvironmentMismatchError: the environment can't reset single rows.
        """
        observations, _, terminations, truncations, info = self.env.step(actions)
        following = final_observations(observations, info)
        over, cut = as_numpy(terminations).astype(np.bool_), as_numpy(truncations).astype(np.bool_)
        success = self.judge(mapped(as_numpy, following)) & as_numpy(valid_rows(info, self.num_envs)).astype(np.bool_)
        started = success & ~(over | cut)
        if started.any():
            observations, info = self.begin_anew(started, over | cut, following, info, "a success")
        info = {**info, "success": self.give(success)}
        return observations, self.give(success.astype(np.float32)), self.give(over | success), self.give(cut), info
