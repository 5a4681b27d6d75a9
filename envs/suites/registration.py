"""Tells gymnasium of a benchmark's environment when its name is used, so that everything else finds it by that name."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium

from surefoot.core.base.errors import MissingExtraError
from surefoot.envs.suites.names import OGBenchName, PointMazeName, is_benchmark, parse

ROBOTICS = re.compile(r"(PointMaze|AntMaze|AdroitHand|FrankaKitchen|Fetch|HandReach|HandManipulate)\w*-v\d+")
"""Ids that gymnasium-robotics registers."""


def ensure_registered(env_id: str) -> None:
    """Make a name of OGBench, OCBench, MBRCSL or gymnasium-robotics known to gymnasium; any other is left alone.

    Args:
        env_id: without a module.

    Raises:
        ConfigError: a benchmark's name that is not understood.
        MissingExtraError: its package is not installed; the message names the extra.
    """
    if is_benchmark(env_id):
        name = parse(env_id)
        if env_id in gymnasium.registry:
            return
        if isinstance(name, PointMazeName):
            package("gymnasium_robotics", env_id)
            steps, maker = 200, "surefoot.envs.suites.stitch:make"
            gymnasium.register(id=env_id, entry_point=maker, max_episode_steps=steps, kwargs={"name": env_id})
            return
        suite = "ogbench" if isinstance(name, OGBenchName) else "ocbench"
        package(suite, env_id)
        gymnasium.register(
            id=env_id,
            entry_point=f"surefoot.envs.suites.{suite}:make",
            max_episode_steps=gymnasium.spec(name.gym_id).max_episode_steps,
            kwargs={"name": name.text},
        )
    elif ROBOTICS.fullmatch(env_id):
        known = gymnasium.registry.get(env_id)
        if known is not None and not str(known.entry_point).startswith("gymnasium_robotics"):
            return  # somebody else's of that name
        from surefoot.envs.suites.robotics import prepare

        prepare(package("gymnasium_robotics", env_id), env_id)


def package(name: str, env_id: str) -> Any:
    """Import a benchmark's package, which an environment needs.

    Raises:
        MissingExtraError: it is not installed.
    """
    extra = {"gymnasium_robotics": "robotics"}.get(name, name)
    if importlib.util.find_spec(name) is None:
        raise MissingExtraError(name.replace("_", "-"), extra, f"the environment {env_id}")
    with quiet():
        return importlib.import_module(name)


class FixedSpaces(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose spaces are made once: OGBench and OCBench make new ones, and warn, at each reading."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        with quiet():
            self.action_space, self.observation_space = env.action_space, env.observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        with quiet():
            return self.env.reset(seed=seed, options=options)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what packages warn of when they look for a display, or round a bound to float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
