"""A bound on the probability that a policy breaks its constraint, from very many whole episodes."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

from surefoot.actors import Actor
from surefoot.core.errors import ConfigError
from surefoot.core.files import write_json
from surefoot.envs.episodes import EpisodeBatch, episode_seeds, run_episodes
from surefoot.evaluation.certificates import Certificate, certificate

FIRST = 2048
"""Episodes that are measured before the expected time is told."""
BATCH = 1 << 16
"""Episodes between two reports of progress."""
FILE = "certificate.json"
"""In the run folder."""

Progress = Callable[[int, int, float], None]
"""Called with finished episodes, all of them, and the seconds that the rest will take."""


@dataclasses.dataclass(frozen=True)
class Certified:
    """A certificate with what it was made from."""

    certificate: Certificate
    policy: str
    environment: str
    gap: str | None
    seed: int
    steps_per_episode: float
    diverged: int
    """Episodes that the simulation's breakdown ended; each counts as a violation."""
    seconds: float
    device: str

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return {**self.certificate.to_json(), "sentence": self.certificate.sentence(), **own}


def certify(
    actor: Actor,
    episodes: int,
    *,
    confidence: float = 0.95,
    seed: int = 2,
    steps: int | None = None,
    gap: str | None = None,
    threads: int | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Certified:
    """Count the episodes with any cost in them among `episodes` independent ones, and bound their probability.

    Args:
        actor: who acts, and where.
        episodes: at least 1.
        confidence: in (0, 1).
        seed: of the initial states and noise, at least 0; episode e has the same seed in whatever batch it is.
        steps: cut episodes off after this many; None: the environment's limit.
        gap: preset of altered dynamics, or None.
        threads: of native code; None: all processors.
        device: as in `run_episodes`.
        progress: called when the expected time is known, and after each batch.

    Raises:
        ConfigError: a number out of range, or an environment without a constraint.
    """
    if episodes < 1 or seed < 0:
        raise ConfigError(
            f"{episodes} episodes and seed {seed}: at least 1 episode, and a seed of 0 or more, are needed"
        )
    certificate(0, 1, confidence)  # a bad confidence is told before the episodes are run
    done = violations = diverged = steps_taken = 0
    seconds, size, computed_by = 0.0, FIRST, ""
    while done < episodes:
        seeds = episode_seeds(seed, done, min(size, episodes - done))
        batch = run_episodes(actor.policy, actor.env_id, seeds, steps=steps, gap=gap, threads=threads, device=device)
        violations += _violations(batch, actor.env_id)
        diverged += int(batch.diverged.sum())
        steps_taken, seconds, computed_by = steps_taken + batch.steps, seconds + batch.seconds, batch.device
        done, size = done + len(seeds), BATCH
        if progress is not None:
            progress(done, episodes, (episodes - done) * seconds / done)
    return Certified(
        certificate=certificate(violations, episodes, confidence),
        policy=actor.label,
        environment=actor.env_id,
        gap=gap,
        seed=seed,
        steps_per_episode=steps_taken / episodes,
        diverged=diverged,
        seconds=seconds,
        device=computed_by,
    )


def _violations(batch: EpisodeBatch, env_id: str) -> int:
    if batch.violations is None:
        raise ConfigError(
            f"{env_id}: gives no cost, so there is no constraint to certify; `surefoot envs list` says which do"
        )
    return batch.violations


def store(certified: Certified, folder: pathlib.Path) -> pathlib.Path:
    """Write it into a run folder, where `surefoot report` finds it; the path."""
    path = folder / FILE
    write_json(path, certified.to_json())
    return path
