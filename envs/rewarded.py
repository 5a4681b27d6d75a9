"""`Rewarded`: an environment whose reward is that the task is done, as something else judges by observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.base.spec import mapped
from surefoot.envs.interface import Array, Numbers, VectorEnvironment, as_numpy, final_observations, valid_rows
from surefoot.envs.side_by_side import name_of

Judge = Callable[[Any], Array]
"""(N, ...) observations, or a dict of several arrays, in the environment's units -> (N,) bool."""
PASSED_ON = (
    "active",
    "max_episode_steps",
    "get_state",
    "set_state",
    "parameters",
    "set_parameters",
    "goals",
    "unsaved",
)


class Rewarded(VectorEnvironment):
    """Reward 1 and the end of the episode where a step leads to an observation that is judged a success; else 0.

    The environment's own ends stay, its own rewards go. `info["success"]` (N,) says what was judged.

    Args:
        env: contract environment that can reset single rows (`options["reset_mask"]`).
        judge: of observations that steps led to.
    """

    def __init__(self, env: Any, judge: Judge) -> None:
        super().__init__(
            env.num_envs,
            env.single_observation_space,
            env.single_action_space,
            env.tensors,
            getattr(env, "device", "cpu"),
        )
        self.env, self.judge = env, judge
        self.spec, self.metadata, self.called = env.spec, env.metadata, getattr(env, "called", None)
        self.render_mode = getattr(env, "render_mode", None)
        self.exact_final_obs = getattr(env, "exact_final_obs", True)
        self.inserts_rows, self.seeding = bool(getattr(env, "inserts_rows", False)), getattr(env, "seeding", "rows")

    def __getattr__(self, name: str) -> Any:
        """State and rows that can be paused are the environment's, where it has them."""
        if name not in PASSED_ON:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)

    @property
    def next_seeds(self) -> list[int | None]:
        """As the environment's, where it has them."""
        return self.env.next_seeds  # type: ignore[no-any-return]

    @next_seeds.setter
    def next_seeds(self, seeds: Sequence[int | None]) -> None:
        self.env.next_seeds = list(seeds)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment resets."""
        return self.env.reset(seed=seed, options=options)  # type: ignore[no-any-return]

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
            following = mapped(lambda rows: np.array(as_numpy(rows)), following)
            active = np.array(self.env.active) if hasattr(self.env, "active") else None
            try:
                observations, _ = self.env.reset(options={"reset_mask": started})
            except Exception as error:
                raise EnvironmentMismatchError(
                    f"{name_of(self.env)}: a success ends an episode, and its row can't be reset alone ({error}): make "
                    "the environment as single ones (a function or an id), or train with one environment, envs=1"
                ) from error
            if active is not None:  # a reset activates all rows
                self.env.active[:] = active
            info = {**info, "final_obs": mapped(self.give, following), "_final_obs": started | over | cut}
        info = {**info, "success": self.give(success)}
        return observations, self.give(success.astype(np.float32)), self.give(over | success), self.give(cut), info

    def render(self) -> Any:
        """As the environment renders."""
        return self.env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        self.env.close(**kwargs)
