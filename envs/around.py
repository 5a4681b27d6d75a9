"""`Around`: an environment around another one, which stays what it is but for what is stated of the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.base.spec import mapped
from surefoot.envs.interface import Array, VectorEnvironment, as_numpy
from surefoot.envs.side_by_side import name_of


class Around(VectorEnvironment):
    """A contract environment with another reward, more ends of episodes or wider observations.

    Args:
        env: contract environment; to end episodes of its rows, it must reset single rows (`options["reset_mask"]`).
        observation_space: of one row; None: the environment's.
    """

    passed_on: ClassVar[tuple[str, ...]] = (
        "active",
        "max_episode_steps",
        "get_state",
        "set_state",
        "parameters",
        "set_parameters",
        "goals",
        "unsaved",
    )
    """Attributes that are the environment's own, where it has them."""

    def __init__(self, env: Any, observation_space: gymnasium.Space[Any] | None = None) -> None:
        super().__init__(
            env.num_envs,
            env.single_observation_space if observation_space is None else observation_space,
            env.single_action_space,
            getattr(env, "tensors", "numpy"),
            getattr(env, "device", "cpu"),
        )
        self.env = env
        self.spec, self.metadata, self.called = env.spec, env.metadata, getattr(env, "called", None)
        self.render_mode = getattr(env, "render_mode", None)
        self.exact_final_obs = getattr(env, "exact_final_obs", True)
        self.inserts_rows, self.seeding = bool(getattr(env, "inserts_rows", False)), getattr(env, "seeding", "rows")

    def __getattr__(self, name: str) -> Any:
        """What is the environment's own."""
        if name not in type(self).passed_on:
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

    def begin_anew(
        self, rows: Array, over: Array, following: Any, info: Mapping[str, Any], why: str
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes where the environment did not end them.

        Args:
            rows: (N,) bool, some of them True.
            over: (N,) bool: rows whose episode the environment ended with this step.
            following: (N, ...) what the step led to in each row.
            info: of the step.
            why: clause of what ends an episode, for the message.

        Returns:
            (N, ...) what the next actions are chosen by, and the info with final observations of both kinds of rows.

        Raises:
            EnvironmentMismatchError: the environment can't reset single rows.
        """
        following = mapped(lambda part: np.array(as_numpy(part)), following)
        planned = getattr(self.env, "next_seeds", None) or [None] * self.num_envs
        seeds = [seed if here else None for seed, here in zip(planned, rows.tolist(), strict=True)]
        own = seeds if any(seed is not None for seed in seeds) else None
        observations = self.reset_alone(rows, f"{why} ends an episode", own)
        return observations, {**info, "final_obs": mapped(self.give, following), "_final_obs": rows | over}

    def reset_alone(self, rows: Array, why: str, seeds: list[int | None] | None = None) -> Any:
        """(N, ...) observations after a reset of the (N,) bool rows; rows that are paused stay so.

        Args:
            rows: to be reset.
            why: clause for the message.
            seeds: of all rows; None: the environment's next ones.

        Raises:
            EnvironmentMismatchError: the environment can't reset single rows.
        """
        active = np.array(self.env.active) if hasattr(self.env, "active") else None
        try:
            observations, _ = self.env.reset(seed=seeds, options={"reset_mask": rows})
        except Exception as error:
            raise EnvironmentMismatchError(
                f"{name_of(self.env)}: {why}, and its row can't be reset alone ({error}): make the environment as "
                "single ones (a function or an id), or train with one environment, envs=1"
            ) from error
        if active is not None:  # a reset activates all rows
            self.env.active[:] = active
        return observations

    def render(self) -> Any:
        """As the environment renders."""
        return self.env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        self.env.close(**kwargs)
