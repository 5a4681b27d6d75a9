"""surefoot: classical, offline and safe reinforcement learning for control and robotics.

import surefoot
dataset = surefoot.data.load("hopper.hdf5")
run = surefoot.fit(surefoot.offline.IQL(dataset), dataset, env="Hopper-v5", steps=100_000)
action = run.policy().select_action(observation)

from surefoot import PPO
model = PPO("Hopper-v5").learn(100_000)
"""

from __future__ import annotations

import importlib

from surefoot import moved, registration

TYPE_CHECKING = False  # typing's, without its import, which `import surefoot` would wait for
if TYPE_CHECKING:
    import os
    from typing import Any

    from surefoot import core as core
    from surefoot import data as data
    from surefoot import envs as envs
    from surefoot import evaluation as evaluation
    from surefoot import offline as offline
    from surefoot import online as online
    from surefoot import safe as safe
    from surefoot import streaming as streaming
    from surefoot.api.fit import fit as fit
    from surefoot.core.policy.policy import Policy
    from surefoot.runs.run import Run as Run
    from surefoot.runs.run import load_agent as load_agent
    from surefoot.runs.start import resume as resume

__version__ = "0.2.0"

registration.install()
moved.install()

ROOMS = ("core", "data", "envs", "evaluation", "offline", "online", "safe", "streaming")
NAMES = {
    "Run": "surefoot.runs.run",
    "fit": "surefoot.api.fit",
    "load_agent": "surefoot.runs.run",
    "resume": "surefoot.runs.start",
}
"""Public name -> the module that defines it."""

__all__ = ["Run", "__version__", "fit", "load_agent", "load_policy", "resume", *ROOMS]


def load_policy(path: str | os.PathLike[str], seed: int | None = None, *, best: bool = False) -> Policy:
    """The policy in a run folder, of one seed (the first where none is named), or in a policy file.

    Args:
        path: of the run folder, or of the file.
        seed: which policy of a run.
        best: of a run with `keep_best`, the best one by evaluations while it trained, and not the last.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    import pathlib

    from surefoot.core.policy.policy import Policy
    from surefoot.runs.run import Run

    return Run.open(path).policy(seed, best=best) if pathlib.Path(path).is_dir() else Policy.load(path)


def __getattr__(name: str) -> Any:
    """Import rooms and names at first use: `import surefoot` by itself takes no time."""
    if name in ROOMS:
        return importlib.import_module(f"surefoot.{name}")
    if name in NAMES:
        return getattr(importlib.import_module(NAMES[name]), name)
    if name[:1].isupper():  # an algorithm, as in `from surefoot import PPO`
        found = importlib.import_module("surefoot.api.model").model(name)
        if found is not None:
            globals()[name] = found
            return found
    raise AttributeError(f"module 'surefoot' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, those not imported yet included."""
    return sorted({*globals(), *__all__})
